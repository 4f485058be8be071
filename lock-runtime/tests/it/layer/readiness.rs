//! Readiness: the service that was polled ready is the one that is called, and its reserved
//! capacity is given back in time.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use lock_core::store::StoreErrorKind;
use lock_runtime::HeldLock;
use lock_runtime::layer::{
    AsyncKeyExtractor, Extraction, LockLayer, MissingKey, PartKey, Rejection, RequestKeys, StoreDown, header,
};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower::buffer::BufferLayer;
use tower::limit::{ConcurrencyLimitLayer, GlobalConcurrencyLimitLayer};
use tower::util::BoxCloneService;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use super::rig::{MS, SECOND, Scene, Sent, by_path, ok, poll_once, post, request, send};

/// A service that panics if it is called without having been polled ready, such as a fresh clone.
/// It counts its clones.
#[derive(Debug)]
struct Strict {
    ready: bool,
    clones: Arc<AtomicUsize>,
}

impl Strict {
    fn new() -> Self {
        Self { ready: false, clones: Arc::default() }
    }
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        self.clones.fetch_add(1, Ordering::SeqCst);
        Self { ready: false, clones: Arc::clone(&self.clones) }
    }
}

impl Service<Sent> for Strict {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Sent) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without having been ready");
        std::future::ready(Ok(ok()))
    }
}

fn layer(scene: &Scene) -> LockLayer<PartKey> {
    LockLayer::new(scene.locks.clone(), by_path())
}

/// Sends all requests through one service, which is polled ready before each.
async fn send_all<S>(mut service: S, requests: impl IntoIterator<Item = Sent>) -> Vec<StatusCode>
where
    S: Service<Sent, Error = Infallible>,
    S::Response: HasStatus,
{
    let mut statuses = Vec::new();
    for request in requests {
        let response = service.ready().await.unwrap().call(request).await.unwrap();
        statuses.push(response.status_code());
    }
    statuses
}

trait HasStatus {
    fn status_code(&self) -> StatusCode;
}

impl<B> HasStatus for Response<B> {
    fn status_code(&self) -> StatusCode {
        self.status()
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_whether_it_is_ready_is_what_is_called() {
    let scene = Scene::new();
    let ok = [StatusCode::OK; 3];
    let three = |method: Method| [(); 3].map(|()| request(method.clone(), "/k"));
    assert_eq!(send_all(layer(&scene).layer(Strict::new()), three(Method::POST)).await, ok);
    assert_eq!(send_all(layer(&scene).layer(Strict::new()), three(Method::GET)).await, ok);
    assert_eq!(send_all(layer(&scene).detached().layer(Strict::new()), three(Method::POST)).await, ok);
    let no_key = LockLayer::new(scene.locks.clone(), header("x-order")).on_missing_key(MissingKey::Skip);
    assert_eq!(send_all(no_key.layer(Strict::new()), three(Method::POST)).await, ok);
    let twice = layer(&scene).layer(layer(&scene).layer(Strict::new()));
    assert_eq!(send_all(twice, three(Method::POST)).await, ok);

    // A refused request does not call the inner service. The service that was ready for it is
    // dropped all the same.
    let guard = scene.rival().mutex("taken").acquire().await.unwrap();
    let mixed = ["/k", "/taken", "/k", "/{}", "/", "/k"].map(|path| {
        let mut request = post("/");
        *request.uri_mut() = path.replace("{}", "%7B").parse().unwrap();
        request
    });
    let statuses = send_all(layer(&scene).no_wait().layer(Strict::new()), mixed).await;
    assert_eq!(statuses.map_codes(), [200, 409, 200, 400, 400, 200]);
    guard.release().await.unwrap();

    scene.store.fail(StoreErrorKind::Unreachable);
    let passing = layer(&scene).no_wait().on_store_down(StoreDown::PassThrough);
    assert_eq!(send_all(passing.layer(Strict::new()), three(Method::POST)).await, ok);
}

trait Codes {
    fn map_codes(self) -> Vec<u16>;
}

impl Codes for Vec<StatusCode> {
    fn map_codes(self) -> Vec<u16> {
        self.into_iter().map(|status| status.as_u16()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_request_that_is_locked_clones_the_service() {
    let scene = Scene::new();
    let clones = async |layer: LockLayer<PartKey>, requests: Vec<Sent>| {
        let inner = Strict::new();
        let clones = Arc::clone(&inner.clones);
        let sent = requests.len();
        assert_eq!(send_all(layer.layer(inner), requests).await, vec![StatusCode::OK; sent]);
        clones.load(Ordering::SeqCst)
    };
    let ten = |method: Method| (0..10).map(|_| request(method.clone(), "/k")).collect();
    assert_eq!(clones(layer(&scene), ten(Method::GET)).await, 0);
    let no_key = LockLayer::new(scene.locks.clone(), header("x-order")).on_missing_key(MissingKey::Skip);
    assert_eq!(clones(no_key, ten(Method::POST)).await, 0);
    assert_eq!(clones(layer(&scene), ten(Method::POST)).await, 10);
}

/// The layer reserves nothing itself: it is as ready as the inner service, and fails with it.
#[tokio::test(start_paused = true)]
async fn readiness_is_that_of_the_inner_service() {
    struct NotYet(usize);
    impl Clone for NotYet {
        fn clone(&self) -> Self {
            Self(self.0)
        }
    }
    impl Service<Sent> for NotYet {
        type Response = Response<Full<Bytes>>;
        type Error = &'static str;
        type Future = std::future::Pending<Result<Self::Response, &'static str>>;

        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
            match self.0 {
                0 => Poll::Ready(Err("broken")),
                1 => Poll::Ready(Ok(())),
                _ => {
                    self.0 -= 1;
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        }

        fn call(&mut self, _: Sent) -> Self::Future {
            std::future::pending()
        }
    }
    let scene = Scene::new();
    // The store is down and the key is taken, but neither matters yet.
    scene.store.fail(StoreErrorKind::Unreachable);
    let mut service = layer(&scene).layer(NotYet(3));
    assert!(poll_once(service.ready()).is_pending());
    service.ready().await.unwrap();
    assert_eq!(layer(&scene).layer(NotYet(0)).ready().await.err(), Some("broken"));
}

/// Returns a handler that takes ten milliseconds.
fn slow() -> impl Service<
    Sent,
    Response = Response<Full<Bytes>>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send,
> + Clone
+ Send {
    service_fn(|_: Sent| async {
        sleep(10 * MS).await;
        Ok(ok())
    })
}

/// Whether there is a free permit; it is not kept.
fn is_free<S: Service<Sent> + Clone>(service: &S) -> bool {
    poll_once(service.clone().ready()).is_ready()
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_gives_its_permit_back_at_once() {
    let scene = Scene::new();
    let _taken = scene.rival().mutex("k").acquire().await.unwrap();
    let limited = || ConcurrencyLimitLayer::new(1).layer(slow());

    // The refusal is decided in `call`, so the permit is free even before the response future is
    // polled.
    let mut service = layer(&scene).max_waiters(1).layer(limited());
    // A clone with the same limit, and without a permit.
    let other = service.clone();
    let refusal = service.ready().await.unwrap().call(post("/"));
    assert!(is_free(&other));
    assert_eq!(refusal.await.unwrap().status(), StatusCode::BAD_REQUEST);

    // A waiting request keeps its permit.
    let waiting = service.ready().await.unwrap().call(post("/k"));
    assert!(!is_free(&other));
    let mut waiting = Box::pin(waiting);
    assert!(timeout(SECOND, waiting.as_mut()).await.is_err());
    assert!(!is_free(&other));
    // When it is refused, its permit is free before the response is sent or dropped.
    assert_eq!(waiting.as_mut().await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(is_free(&other));
    drop(waiting);

    // The same holds when the client leaves.
    let leaving = service.ready().await.unwrap().call(post("/k"));
    assert!(timeout(SECOND, leaving).await.is_err());
    assert!(is_free(&other));
    assert_eq!(service.ready().await.unwrap().call(post("/free")).await.unwrap().status(), StatusCode::OK);
}

/// Sends twenty requests for two keys at once, and asserts that all of them are served.
async fn all_are_served<S, B>(service: S)
where
    S: Service<Sent, Response = Response<B>> + Clone + Send + 'static,
    S::Error: std::fmt::Debug,
    S::Future: Send,
    B: Send + 'static,
{
    let mut clients = JoinSet::new();
    for n in 0..20 {
        clients.spawn(send(&service, post(["/a", "/b"][n % 2])));
    }
    while let Some(response) = clients.join_next().await {
        let response = response.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.extensions().get::<HeldLock>().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn limits_and_buffers_inside_and_outside() {
    let scene = Scene::new();
    let lock = || layer(&scene);
    for room in [1, 2, 5] {
        let limit = || ConcurrencyLimitLayer::new(room);
        let buffer = || BufferLayer::<Sent>::new(room);
        all_are_served(ServiceBuilder::new().layer(limit()).layer(lock()).service(slow())).await;
        all_are_served(ServiceBuilder::new().layer(lock()).layer(limit()).service(slow())).await;
        all_are_served(ServiceBuilder::new().layer(buffer()).layer(lock()).service(slow())).await;
        all_are_served(ServiceBuilder::new().layer(lock()).layer(buffer()).service(slow())).await;
        let all =
            ServiceBuilder::new().layer(buffer()).layer(limit()).layer(lock()).layer(buffer()).layer(limit());
        all_are_served(all.service(slow())).await;
        let detached = ServiceBuilder::new().layer(limit()).layer(lock().detached()).layer(buffer());
        all_are_served(detached.service(slow())).await;
        scene.is_settled(None).await;
    }
}

/// An asynchronous extractor also runs while the service that was ready is kept.
#[tokio::test(start_paused = true)]
async fn a_refusal_after_a_slow_look_for_the_key_gives_the_permit_back() {
    #[derive(Clone, Copy, Debug)]
    struct Slow;
    impl AsyncKeyExtractor<Full<Bytes>> for Slow {
        type Future = Pin<Box<dyn Future<Output = (Sent, Result<Option<RequestKeys>, Rejection>)> + Send>>;

        fn extract(&self, request: Sent) -> Extraction<Full<Bytes>, Self::Future> {
            Extraction::Pending(Box::pin(async move {
                sleep(SECOND).await;
                let keys = match request.uri().path() {
                    "/none" => Ok(None),
                    path => RequestKeys::several([path.to_owned()]),
                };
                (request, keys)
            }))
        }
    }
    let scene = Scene::new();
    let slow_key = || LockLayer::new_async(scene.locks.clone(), Slow);
    let mut service = slow_key().layer(ConcurrencyLimitLayer::new(1).layer(slow()));
    let other = service.clone();
    let mut refused = Box::pin(service.ready().await.unwrap().call(post("/none")));
    assert!(!is_free(&other), "its permit is kept for it");
    assert_eq!(refused.as_mut().await.unwrap().status(), StatusCode::BAD_REQUEST);
    assert!(is_free(&other));
    let strict = [post("/none"), post("/k"), post("/k")];
    let statuses = send_all(slow_key().layer(Strict::new()), strict).await;
    assert_eq!(statuses.map_codes(), [400, 200, 200]);
}

/// In axum, a limit inside the layer is asked only when the lock is held. Here a handler has the
/// only permit. It wants a lock whose holder waits for the permit, so it stalls until its wait
/// ends. Limits belong outside.
#[cfg(feature = "axum")]
#[tokio::test(start_paused = true)]
async fn in_axum_a_limit_inside_is_waited_for_under_the_lock() {
    use axum::Router;
    use axum::body::Body;
    use axum::routing::post;

    let scene = Scene::new();
    let locks = scene.locks.clone();
    let handler = move |held: HeldLock| {
        let locks = locks.clone();
        async move {
            if held.key().as_str() == "a" {
                sleep(SECOND).await;
                // The request for b either holds b meanwhile, or is still outside.
                let other = locks.mutex("b").wait(3 * SECOND).acquire().await;
                return if other.is_ok() { "both" } else { "stuck" };
            }
            "one"
        }
    };
    // Shared: axum creates the service of a route without state anew for each request.
    let limit = || GlobalConcurrencyLimitLayer::new(1);
    let router = || Router::new().route("/{id}", post(handler.clone()));
    let lock = || LockLayer::new(scene.locks.clone(), by_path());
    for (router, told) in [
        (router().route_layer(limit()).route_layer(lock()), "stuck"),
        (router().route_layer(lock()).route_layer(limit()), "both"),
    ] {
        let sent = async |path: &str, after| {
            sleep(after).await;
            let response =
                router.clone().oneshot(Request::post(path).body(Body::empty()).unwrap()).await.unwrap();
            axum::body::to_bytes(response.into_body(), 100).await.unwrap()
        };
        let (a, b) = tokio::join!(sent("/a", Duration::ZERO), sent("/b", MS));
        assert_eq!((&a[..], &b[..]), (told.as_bytes(), &b"one"[..]));
    }
    scene.is_settled(None).await;
}

/// In a bare stack, it is the other way round: the limit inside is asked first, so waiting requests
/// use it up.
#[tokio::test(start_paused = true)]
async fn in_a_bare_stack_a_limit_inside_counts_requests_that_wait() {
    let scene = Scene::new();
    let taken = scene.rival().mutex("hot").acquire().await.unwrap();
    let inside =
        ServiceBuilder::new().layer(layer(&scene)).layer(ConcurrencyLimitLayer::new(1)).service(slow());
    let outside =
        ServiceBuilder::new().layer(ConcurrencyLimitLayer::new(1)).layer(layer(&scene)).service(slow());
    for service in [BoxCloneService::new(inside), BoxCloneService::new(outside)] {
        let mut first = service.clone();
        let mut waiting = Box::pin(first.ready().await.unwrap().call(post("/hot")));
        assert!(poll_once(waiting.as_mut()).is_pending());
        assert!(timeout(SECOND, service.clone().oneshot(post("/cold"))).await.is_err());
        drop(waiting);
    }
    taken.release().await.unwrap();
}
