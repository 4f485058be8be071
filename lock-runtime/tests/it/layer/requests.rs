//! Which requests are locked, with which key, for how long, and which may run side by side.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use lock_core::store::StoreErrorKind;
use lock_runtime::layer::{
    AsyncKeyExtractor, Extraction, KeyExtractor, LockBody, LockLayer, LockWait, MissingKey, ProblemDetails,
    Rejection, RequestKeys, StoreDown, Unlocked, body, header,
};
use lock_runtime::{HeldLock, InvalidKey, Kind, LockKey, LockManager};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::rig::{MS, SECOND, Scene, Sent, by_path, done, grpc, held_in, ok, post, request, send};

/// Counts the requests that are in the handler at the same time: by path, and in total.
#[derive(Clone, Debug, Default)]
struct Overlap(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    now: BTreeMap<String, usize>,
    most: BTreeMap<String, usize>,
    most_of_all: usize,
}

impl Overlap {
    async fn handle(self, request: Sent) -> Result<Response<Full<Bytes>>, Infallible> {
        let path = request.uri().path().to_owned();
        {
            let counts = &mut *self.0.lock().unwrap();
            *counts.now.entry(path.clone()).or_default() += 1;
            let most = counts.most.entry(path.clone()).or_default();
            *most = counts.now[&path].max(*most);
            counts.most_of_all = counts.now.values().sum::<usize>().max(counts.most_of_all);
        }
        sleep(10 * MS).await;
        *self.0.lock().unwrap().now.get_mut(&path).unwrap() -= 1;
        Ok(ok())
    }

    fn service(
        &self,
    ) -> impl Service<Sent, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static {
        let overlap = self.clone();
        service_fn(move |request| overlap.clone().handle(request))
    }

    fn most(&self, path: &str) -> usize {
        self.0.lock().unwrap().most[path]
    }

    fn most_of_all(&self) -> usize {
        self.0.lock().unwrap().most_of_all
    }
}

/// Sends all requests at once, and asserts that each is answered with 200.
async fn all_pass<K>(layer: &LockLayer<K>, overlap: &Overlap, requests: impl IntoIterator<Item = Sent>)
where
    K: KeyExtractor + Send + Sync + 'static,
{
    let service = layer.layer(overlap.service());
    let mut clients = JoinSet::new();
    for request in requests {
        clients.spawn(send(&service, request));
    }
    while let Some(response) = clients.join_next().await {
        assert_eq!(response.unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test(start_paused = true)]
async fn one_key_is_served_one_by_one_and_different_keys_side_by_side() {
    let (scene, overlap) = (Scene::new(), Overlap::default());
    let layer = LockLayer::new(scene.locks.clone(), by_path());
    let started = Instant::now();
    let requests = (0..30).map(|n| post(["/a", "/b", "/c"][n % 3]));
    all_pass(&layer, &overlap, requests).await;
    assert_eq!(["/a", "/b", "/c"].map(|path| overlap.most(path)), [1, 1, 1]);
    assert_eq!(overlap.most_of_all(), 3);
    assert!(started.elapsed() >= 100 * MS && started.elapsed() < 300 * MS, "{:?}", started.elapsed());
    scene.is_settled(None).await;
}

/// Services of one layer, layers of one manager, and different managers all exclude each other.
#[tokio::test(start_paused = true)]
async fn services_of_all_layers_and_managers_exclude_each_other() {
    let (scene, overlap) = (Scene::new(), Overlap::default());
    let layers = [
        LockLayer::new(scene.locks.clone(), by_path()),
        LockLayer::new(scene.locks.clone(), by_path()).wait(60 * SECOND),
        LockLayer::new(scene.rival(), by_path()).wait(60 * SECOND),
    ];
    let mut clients = JoinSet::new();
    for n in 0..12 {
        let service = layers[n % 3].layer(overlap.service());
        clients.spawn(send(&service, post("/k")));
    }
    while let Some(response) = clients.join_next().await {
        assert_eq!(response.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(overlap.most("/k"), 1);
}

#[tokio::test(start_paused = true)]
async fn methods_that_only_read_are_not_locked_unless_asked_for() {
    let reading = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE];
    let writing = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    let scene = Scene::new();
    let by_default = LockLayer::new(scene.locks.clone(), by_path());
    let all = LockLayer::new(scene.locks.clone(), by_path()).skip_methods([]);
    let but_put = LockLayer::new(scene.locks.clone(), by_path()).skip_methods([Method::PUT]);
    let inner = service_fn(|request: Sent| async move {
        let locked = request.extensions().get::<HeldLock>().is_some();
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(if locked { "locked" } else { "bare" })))
    });
    for method in reading.iter().chain(&writing) {
        let locks =
            [(&by_default, writing.contains(method)), (&all, true), (&but_put, *method != Method::PUT)];
        for (layer, locked) in locks {
            let response = send(&layer.layer(inner), request(method.clone(), "/k")).await;
            assert_eq!(response.extensions().get::<HeldLock>().is_some(), locked, "{method}");
            let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
            assert_eq!(body == "locked", locked, "{method}");
        }
    }
    // A method that is skipped needs no key either.
    let no_key = LockLayer::new(scene.locks.clone(), header("x-order"));
    assert_eq!(send(&no_key.layer(inner), request(Method::GET, "/k")).await.status(), StatusCode::OK);
    assert_eq!(send(&no_key.layer(inner), post("/k")).await.status(), StatusCode::BAD_REQUEST);
}

/// Returns the keys under which a request runs; `None` if it runs without a lock.
async fn keys_of<K>(layer: LockLayer<K>, request: Sent) -> Result<Option<Vec<String>>, StatusCode>
where
    K: AsyncKeyExtractor<Full<Bytes>>,
{
    let service = layer.layer(service_fn(|request: Sent| async move {
        let held = request.extensions().get::<HeldLock>();
        let keys = held.map(|held| held.tokens().iter().map(|(key, _)| key.as_str().to_owned()).collect());
        let mut response = ok();
        response.extensions_mut().insert::<Option<Vec<String>>>(keys);
        Ok::<_, Infallible>(response)
    }));
    let response = send(&service, request).await;
    match response.extensions().get::<Option<Vec<String>>>() {
        Some(keys) => Ok(keys.clone()),
        None => Err(response.status()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_key_is_refused_let_through_or_has_a_fixed_one() {
    let scene = Scene::new();
    let layer = || LockLayer::new(scene.locks.clone(), header("x-order").prefix("order:"));
    let with_key = || {
        let mut request = post("/");
        request.headers_mut().insert("x-order", "7".parse().unwrap());
        request
    };
    let fixed = LockKey::new("orders").unwrap();
    let policies = [
        (MissingKey::Reject, Err(StatusCode::BAD_REQUEST)),
        (MissingKey::Skip, Ok(None)),
        (MissingKey::Fixed(fixed), Ok(Some(vec!["orders".to_owned()]))),
    ];
    for (policy, expected) in policies {
        assert_eq!(keys_of(layer().on_missing_key(policy.clone()), post("/")).await, expected, "{policy:?}");
        let keys = keys_of(layer().on_missing_key(policy.clone()), with_key()).await;
        assert_eq!(keys, Ok(Some(vec!["order:7".to_owned()])), "{policy:?}");
    }
    // An empty list means no key.
    let none = LockLayer::new(scene.locks.clone(), |_: &Parts| Vec::<String>::new());
    assert_eq!(keys_of(none, post("/")).await, Err(StatusCode::BAD_REQUEST));
}

#[tokio::test(start_paused = true)]
async fn closures_may_return_all_that_can_be_a_key() {
    async fn found<K: KeyExtractor>(locks: &LockManager, keys: K) -> Vec<String> {
        keys_of(LockLayer::new(locks.clone(), keys), post("/k")).await.unwrap().unwrap()
    }
    fn key(text: &str) -> LockKey {
        LockKey::new(text).unwrap()
    }
    let scene = Scene::new();
    let locks = &scene.locks;
    let one = ["k"];
    assert_eq!(found(locks, |_: &Parts| key("k")).await, one);
    assert_eq!(found(locks, |_: &Parts| "k").await, one);
    assert_eq!(found(locks, |head: &Parts| head.uri.path()[1..].to_owned()).await, one);
    assert_eq!(found(locks, |_: &Parts| RequestKeys::one(key("k"))).await, one);
    assert_eq!(found(locks, |_: &Parts| Some("k")).await, one);
    assert_eq!(found(locks, |_: &Parts| LockKey::new("k")).await, one);
    assert_eq!(found(locks, |_: &Parts| Ok::<_, Rejection>(Some(key("k")))).await, one);
    assert_eq!(found(locks, |_: &Parts| Ok::<_, InvalidKey>("k".to_owned())).await, one);
    let two = ["a", "b"];
    assert_eq!(found(locks, |_: &Parts| vec![key("b"), key("a")]).await, two);
    assert_eq!(found(locks, |_: &Parts| vec!["b".to_owned(), "a".to_owned(), "b".to_owned()]).await, two);
    assert_eq!(found(locks, |_: &Parts| ["a", "b"]).await, two);
    assert_eq!(found(locks, |_: &Parts| RequestKeys::several(["a", "b"])).await, two);
    assert_eq!(found(locks, |_: &Parts| Some(vec!["a", "b"])).await, two);
    scene.is_settled(None).await;
}

#[tokio::test(start_paused = true)]
async fn several_keys_are_taken_all_or_none() {
    let (scene, overlap) = (Scene::new(), Overlap::default());
    let layer = LockLayer::new(scene.locks.clone(), |head: &Parts| {
        head.uri.path()[1..].split('-').map(str::to_owned).collect::<Vec<_>>()
    });
    // Two requests want b and wait for each other, in whichever order they name their keys. The
    // third wants other keys.
    let started = Instant::now();
    let requests = ["/a-b", "/c-b", "/b-a", "/x-y"].into_iter().cycle().take(12).map(post);
    all_pass(&layer, &overlap, requests).await;
    assert_eq!(overlap.most_of_all(), 2, "one with b, and one without");
    assert!(started.elapsed() >= 90 * MS);

    let b = scene.locks.mutex("b").acquire().await.unwrap();
    let service = layer.layer(overlap.service());
    let waiting = tokio::spawn(send(&service, post("/a-b")));
    sleep(SECOND).await;
    assert!(!waiting.is_finished() && !scene.is_locked("a").await, "none is held while one is missing");
    b.release().await.unwrap();
    let held = held_in(waiting.await.unwrap().extensions());
    assert_eq!(held.tokens().len(), 2);
    scene.is_settled(Some(("a", held.tokens()[0].1))).await;
}

#[tokio::test(start_paused = true)]
async fn readers_share_and_a_writer_is_alone() {
    let (scene, overlap) = (Scene::new(), Overlap::default());
    let constant = |_: &Parts| "k";
    let layer = |kind| LockLayer::new(scene.locks.clone(), constant).kind(kind);
    let reading = layer(Kind::Read).layer(overlap.service());
    let writing = layer(Kind::Write).layer(overlap.service());
    let mut clients = JoinSet::new();
    for n in 0..12 {
        let (service, path) = if n % 4 == 3 { (&writing, "/w") } else { (&reading, "/r") };
        clients.spawn(send(service, post(path)));
    }
    while let Some(response) = clients.join_next().await {
        assert_eq!(response.unwrap().status(), StatusCode::OK);
    }
    assert!(overlap.most("/r") >= 2, "{}", overlap.most("/r"));
    assert_eq!(overlap.most("/w"), 1);
    assert_eq!(overlap.most_of_all(), overlap.most("/r"), "a reader beside a writer");
    scene.is_settled(None).await;
}

#[tokio::test(start_paused = true)]
async fn a_fair_layer_serves_in_the_order_of_arrival_across_processes() {
    let scene = Scene::new();
    let order = Arc::new(Mutex::new(Vec::new()));
    let served = Arc::clone(&order);
    let inner = service_fn(move |request: Sent| {
        served.lock().unwrap().push(request.uri().query().unwrap().parse::<usize>().unwrap());
        async {
            sleep(10 * MS).await;
            Ok::<_, Infallible>(ok())
        }
    });
    let services = [scene.locks.clone(), scene.rival()]
        .map(|locks| LockLayer::new(locks, by_path()).kind(Kind::Fair).wait_forever().layer(inner.clone()));
    let mut clients = JoinSet::new();
    for n in 0..8 {
        clients.spawn(send(&services[n % 2], post(&format!("/k?{n}"))));
        sleep(MS / 2).await;
    }
    while let Some(response) = clients.join_next().await {
        assert_eq!(response.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
    scene.is_settled(None).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_as_long_as_the_layer_says() {
    let scene = Scene::new();
    let guard = scene.rival().mutex("k").acquire().await.unwrap();
    let layer = || LockLayer::new(scene.locks.clone(), by_path());
    let inner = service_fn(done);
    let waits = [
        (layer().no_wait(), StatusCode::CONFLICT, 0),
        (layer().wait(Duration::ZERO), StatusCode::CONFLICT, 0),
        (layer().wait(3 * SECOND), StatusCode::TOO_MANY_REQUESTS, 3),
        (layer(), StatusCode::TOO_MANY_REQUESTS, 10),
        // The last call applies.
        (layer().wait_forever().wait(2 * SECOND), StatusCode::TOO_MANY_REQUESTS, 2),
    ];
    for (layer, status, seconds) in waits {
        let started = Instant::now();
        assert_eq!(send(&layer.layer(inner), post("/k")).await.status(), status);
        let wait = seconds * SECOND;
        assert!((wait..wait + SECOND).contains(&started.elapsed()), "{seconds}: {:?}", started.elapsed());
    }
    let waiting = tokio::spawn(send(&layer().wait_forever().layer(inner), post("/k")));
    sleep(3600 * SECOND).await;
    assert!(!waiting.is_finished());
    guard.release().await.unwrap();
    assert_eq!(waiting.await.unwrap().status(), StatusCode::OK);
    scene.is_settled(None).await;
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lock_outlives_its_lease_and_a_fixed_one_does_not() {
    let scene = Scene::new();
    let inner = service_fn(|request: Sent| async move {
        let held = held_in(request.extensions());
        let left = held.remaining();
        sleep(120 * SECOND).await;
        let mut response = ok();
        response.extensions_mut().insert(left);
        Ok::<_, Infallible>(response)
    });
    let layer = || LockLayer::new(scene.locks.clone(), by_path()).max_hold(None);
    let renewed = send(&layer().layer(inner), post("/k")).await;
    assert_eq!(renewed.status(), StatusCode::OK);
    let left = *renewed.extensions().get::<Duration>().unwrap();
    assert!(left > 20 * SECOND && left <= 30 * SECOND, "{left:?}");
    let started = Instant::now();
    let fixed = send(&layer().lease(5 * SECOND).layer(inner), post("/k")).await;
    assert_eq!(fixed.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!((4 * SECOND..6 * SECOND).contains(&started.elapsed()), "{:?}", started.elapsed());
}

/// An extractor that first has to look up the tenant's name.
#[derive(Clone, Debug)]
struct LookedUp;

impl AsyncKeyExtractor<Full<Bytes>> for LookedUp {
    type Future = Pin<Box<dyn Future<Output = (Sent, Result<Option<RequestKeys>, Rejection>)> + Send>>;

    fn extract(&self, request: Sent) -> Extraction<Full<Bytes>, Self::Future> {
        Extraction::Pending(Box::pin(async move {
            sleep(50 * MS).await;
            let keys = match request.uri().path() {
                "/none" => Ok(None),
                "/bad" => Err(Rejection::with_status(StatusCode::FORBIDDEN, "not yours")),
                path => LockKey::new(path).map(|key| Some(key.into())).map_err(Rejection::from),
            };
            (request, keys)
        }))
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_may_take_its_time() {
    let (scene, overlap) = (Scene::new(), Overlap::default());
    let layer = || LockLayer::new_async(scene.locks.clone(), LookedUp);
    assert_eq!(keys_of(layer(), post("/k")).await, Ok(Some(vec!["/k".to_owned()])));
    assert_eq!(keys_of(layer(), post("/none")).await, Err(StatusCode::BAD_REQUEST));
    assert_eq!(keys_of(layer().on_missing_key(MissingKey::Skip), post("/none")).await, Ok(None));
    assert_eq!(keys_of(layer(), post("/bad")).await, Err(StatusCode::FORBIDDEN));
    let service = layer().layer(overlap.service());
    let (one, other) = tokio::join!(send(&service, post("/k")), send(&service, post("/k")));
    assert!(one.status() == StatusCode::OK && other.status() == StatusCode::OK);
    assert_eq!(overlap.most("/k"), 1);
    scene.is_settled(None).await;
}

/// Requests that read one key run side by side. A kind that is set for a method applies even if the
/// method is otherwise skipped.
#[tokio::test(start_paused = true)]
async fn a_method_may_have_a_kind_of_its_own() {
    let (scene, overlap) = (Scene::new(), Overlap::default());
    let layer = LockLayer::new(scene.locks.clone(), |_: &Parts| "k").kind(Kind::Write);
    let layer = layer.kind_for([Method::PUT], Kind::Write).kind_for([Method::GET, Method::PUT], Kind::Read);
    for (methods, most) in
        [([Method::GET, Method::PUT], 2), ([Method::POST, Method::GET], 1), ([Method::POST, Method::POST], 1)]
    {
        let overlap = Overlap::default();
        all_pass(&layer, &overlap, methods.clone().map(|method| request(method, "/k"))).await;
        assert_eq!(overlap.most("/k"), most, "{methods:?}");
    }
    all_pass(&layer, &overlap, [Method::HEAD, Method::HEAD].map(|method| request(method, "/k"))).await;
    assert_eq!(overlap.most("/k"), 2, "not locked at all");
}

#[tokio::test(start_paused = true)]
async fn only_some_methods_may_be_locked() {
    let scene = Scene::new();
    let only = LockLayer::new(scene.locks.clone(), by_path()).only_methods([Method::DELETE]);
    assert_eq!(keys_of(only.clone(), request(Method::DELETE, "/k")).await, Ok(Some(vec!["k".to_owned()])));
    assert_eq!(keys_of(only.clone(), post("/k")).await, Ok(None));
    let but = only.skip_methods([Method::DELETE]);
    assert_eq!(keys_of(but.clone(), request(Method::DELETE, "/k")).await, Ok(None), "the last one holds");
    assert_eq!(keys_of(but, post("/k")).await, Ok(Some(vec!["k".to_owned()])));
    let connect = LockLayer::new(scene.locks.clone(), |_: &Parts| "k");
    assert_eq!(keys_of(connect, request(Method::CONNECT, "/k")).await, Ok(None), "a WebSocket over HTTP/2");
}

/// An outer layer may know better how long a request can wait.
#[tokio::test(start_paused = true)]
async fn a_request_may_have_a_wait_of_its_own() {
    let scene = Scene::new();
    let _taken = scene.rival().mutex("k").acquire().await.unwrap();
    let service = LockLayer::new(scene.locks.clone(), by_path()).wait(5 * SECOND).layer(service_fn(done));
    for (wait, status) in
        [(None, 429), (Some(Duration::ZERO), 409), (Some(2 * SECOND), 429), (Some(8 * SECOND), 429)]
    {
        let mut request = post("/k");
        if let Some(wait) = wait {
            request.extensions_mut().insert(LockWait(wait));
        }
        let asked = Instant::now();
        assert_eq!(send(&service, request).await.status().as_u16(), status, "{wait:?}");
        assert_eq!(asked.elapsed().as_secs(), wait.unwrap_or(5 * SECOND).as_secs(), "{wait:?}");
    }
}

/// A gRPC request does not wait for longer than its client does.
#[tokio::test(start_paused = true)]
async fn a_grpc_request_waits_for_no_longer_than_its_client() {
    let scene = Scene::new();
    let _taken = scene.rival().mutex("k").acquire().await.unwrap();
    let layer = || LockLayer::new(scene.locks.clone(), by_path());
    for (layer, timeout, seconds) in [
        (layer(), "2S", 2),
        (layer().wait(SECOND), "2S", 1),
        (layer().wait_forever(), "3000m", 3),
        (layer().no_wait(), "3S", 0),
        (layer(), "a while", 10),
    ] {
        let mut request = grpc("/k");
        request.headers_mut().insert("grpc-timeout", timeout.parse().unwrap());
        let asked = Instant::now();
        assert_ne!(send(&layer.layer(service_fn(done)), request).await.headers()["grpc-status"], "0");
        assert_eq!(asked.elapsed().as_secs(), seconds, "{timeout}");
    }
    // The time for finding the key counts.
    let mut request = grpc("/k");
    request.headers_mut().insert("grpc-timeout", "1S".parse().unwrap());
    let slow = LockLayer::new_async(scene.locks.clone(), LookedUp).layer(service_fn(done));
    let asked = Instant::now();
    let _taken = scene.rival().mutex("/k").acquire().await.unwrap();
    send(&slow, request).await;
    assert_eq!(asked.elapsed().as_secs(), 1);
}

/// A client can't shorten its wait in order to go on without the lock.
#[tokio::test(start_paused = true)]
async fn a_hurried_client_is_not_let_through_while_the_store_is_down() {
    let scene = Scene::new();
    scene.store.fail(StoreErrorKind::Unreachable);
    let layer = LockLayer::new(scene.locks.clone(), by_path()).wait(SECOND);
    let service = layer.on_store_down(StoreDown::PassThrough).layer(service_fn(done));
    for (timeout, passes) in [("500m", false), ("1n", false), ("5S", true)] {
        let mut request = grpc("/k");
        request.headers_mut().insert("grpc-timeout", timeout.parse().unwrap());
        let response = send(&service, request).await;
        assert_eq!(response.extensions().get::<Unlocked>().is_some(), passes, "{timeout}");
    }
}

/// A key in the body: two requests for one account wait for each other, and the handlers get their
/// bodies.
#[tokio::test(start_paused = true)]
async fn the_key_may_be_in_the_body() {
    let (scene, overlap) = (Scene::new(), Overlap::default());
    let key = body(16, |_: &Parts, body: &[u8]| String::from_utf8(body.to_vec()).map_err(|_| "No text."));
    let layer = LockLayer::new_async(scene.locks.clone(), key);
    let charge = |account: &'static str| Request::post("/charge").body(Full::from(account)).unwrap();
    let inside = overlap.service();
    let service = layer.layer(service_fn(move |request: Sent| {
        let inside = inside.clone();
        async move {
            let held = held_in(request.extensions());
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            assert_eq!(held.key().as_str().as_bytes(), body);
            inside.oneshot(Request::from_parts(head, Full::from(body))).await
        }
    }));
    let (one, other) = tokio::join!(send(&service, charge("7")), send(&service, charge("7")));
    assert_eq!((one.status(), other.status()), (StatusCode::OK, StatusCode::OK));
    assert_eq!(overlap.most("/charge"), 1);
    let (one, other) = tokio::join!(send(&service, charge("8")), send(&service, charge("9")));
    assert_eq!((one.status(), other.status()), (StatusCode::OK, StatusCode::OK));
    assert_eq!(overlap.most("/charge"), 2);
    assert_eq!(
        send(&service, charge("much too long for an account")).await.status(),
        StatusCode::PAYLOAD_TOO_LARGE
    );
    scene.is_settled(None).await;
}

/// A layer with any changed setting counts its own waiters.
#[tokio::test(start_paused = true)]
async fn layers_count_their_waiters_each_for_itself() {
    let scene = Scene::new();
    let _taken = scene.rival().mutex("k").acquire().await.unwrap();
    let base = LockLayer::new(scene.locks.clone(), by_path()).max_waiters(1);
    let service = base.clone().layer(service_fn(done));
    let waiting = tokio::spawn(send(&service, post("/k")));
    sleep(MS).await;
    let same = base.clone().wait(SECOND).layer(service_fn(done));
    let refused_otherwise = base.clone().refuse_with(ProblemDetails).wait(SECOND).layer(service_fn(done));
    let detached = base.clone().detached().layer(service_fn(done));
    let reason = async |response: Response<LockBody<Full<Bytes>>>| {
        let body = response.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice::<serde_json::Value>(&body).unwrap()["type"].as_str().unwrap().to_owned()
    };
    assert!(reason(send(&same, post("/k")).await).await.ends_with(":timed_out"));
    assert!(reason(send(&refused_otherwise, post("/k")).await).await.ends_with(":timed_out"));
    assert!(timeout(SECOND, send(&detached, post("/k"))).await.is_err(), "it waits");
    // Clones of a layer count together.
    assert!(
        reason(send(&base.layer(service_fn(done)), post("/k")).await).await.ends_with(":too_many_waiters")
    );
    waiting.abort();
}
