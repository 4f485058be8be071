//! The layer's bounds, and the bounds of others that it has to satisfy. Each test compiles, and
//! serves a request.

use std::convert::Infallible;
use std::error::Error;
use std::fmt::Debug;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, BodyStream, Collected, Empty, Full, StreamBody};
use lock_runtime::LockManager;
use lock_runtime::layer::{
    BoxError, HeldUntil, LockBody, LockLayer, LockService, LostLock, PartKey, ProblemDetails, Reason,
    Refusal, Rejection, RequestKeys, Unlocked, header, path_segment,
};
use lock_runtime::testing::memory_manager;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use super::rig::{Sent, by_path, done, ok, post};

fn is_public<T: Send + Sync + Debug + 'static>() {}

#[test]
fn public_types_can_go_anywhere() {
    type Inner = tower::util::BoxCloneService<Sent, Response<Full<Bytes>>, Infallible>;
    fn is_sent<T: Send + 'static>() {}
    is_public::<LockLayer<PartKey>>();
    is_public::<LockBody<Full<Bytes>>>();
    is_public::<(
        RequestKeys,
        Rejection,
        Reason,
        Refusal<'static>,
        ProblemDetails,
        HeldUntil,
        LostLock,
        Unlocked,
    )>();
    is_sent::<LockService<Inner, PartKey>>();
    is_sent::<<LockService<Inner, PartKey> as Service<Sent>>::Future>();
    is_sent::<<LockService<Inner, PartKey> as Service<Sent>>::Response>();
}

fn locks() -> LockManager {
    memory_manager()
}

/// Answers with a body that `make` makes, locked to its end. Returns what is read of the body.
async fn served<B>(make: impl Fn() -> B + Clone) -> Collected<B::Data>
where
    B: Body<Data: From<Bytes>, Error: Into<BoxError>>,
{
    let locks = locks();
    let layer = LockLayer::new(locks.clone(), by_path()).hold(HeldUntil::BodyEnd);
    let service = layer.layer(service_fn(move |_: Sent| {
        let body = make();
        async move { Ok::<_, Infallible>(Response::new(body)) }
    }));
    let response: Response<LockBody<B>> = service.oneshot(post("/k")).await.unwrap();
    let held = super::rig::held_in(response.extensions());
    let collected = response.into_body().collect().await;
    assert!(!held.is_held());
    let Ok(collected) = collected else { panic!("the body has failed") };
    collected
}

/// A data type of another crate.
#[derive(Clone, Debug)]
struct Chunk(Bytes);

impl From<Bytes> for Chunk {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.0.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.0.chunk()
    }

    fn advance(&mut self, bytes: usize) {
        self.0.advance(bytes);
    }
}

/// A body that is neither `Unpin` nor `Send`, with its own data and error types.
struct Odd {
    left: Rc<usize>,
    _pinned: std::marker::PhantomPinned,
}

impl Body for Odd {
    type Data = Chunk;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, std::io::Error>>> {
        let mut this = self;
        if *this.left == 0 {
            return Poll::Ready(None);
        }
        // Nothing is moved: only the counter is replaced.
        let left = Rc::new(*this.left - 1);
        Pin::as_mut(&mut this).set(Self { left, _pinned: std::marker::PhantomPinned });
        Poll::Ready(Some(Ok(Frame::data(Chunk(Bytes::from_static(b"odd"))))))
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_of_all_sorts() {
    let whole = |text: &'static str| Full::new(Bytes::from_static(text.as_bytes()));
    assert_eq!(served(move || whole("full")).await.to_bytes(), "full");
    assert_eq!(served(Empty::<Bytes>::new).await.to_bytes(), "");
    assert_eq!(served(|| "a text".to_owned()).await.to_bytes(), "a text");
    let boxed = move || -> BoxBody<Bytes, Infallible> { whole("boxed").boxed() };
    assert_eq!(served(boxed).await.to_bytes(), "boxed");
    let unsync = move || -> UnsyncBoxBody<Bytes, Infallible> { whole("boxed").boxed_unsync() };
    assert_eq!(served(unsync).await.to_bytes(), "boxed");
    let stream = move || StreamBody::new(BodyStream::new(whole("stream")));
    assert_eq!(served(stream).await.to_bytes(), "stream");
    let odd = || Odd { left: Rc::new(2), _pinned: std::marker::PhantomPinned };
    assert_eq!(served(odd).await.to_bytes(), "oddodd");
}

/// Response bodies can be boxed, as servers do that have several types of them.
#[tokio::test(start_paused = true)]
async fn the_body_of_a_response_can_be_boxed() {
    let service = LockLayer::new(locks(), by_path()).layer(service_fn(done));
    let service = service.map_response(|response: Response<_>| response.map(BodyExt::boxed));
    let response: Response<BoxBody<Bytes, BoxError>> = service.oneshot(post("/k")).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "done");
}

/// A refusal is a response of the same type: its text is converted into the body's data type.
#[tokio::test(start_paused = true)]
async fn refusals_are_of_the_data_of_the_body() {
    let inner = service_fn(|_: Sent| async move {
        Ok::<_, Infallible>(Response::new(Odd { left: Rc::new(1), _pinned: std::marker::PhantomPinned }))
    });
    let service = LockLayer::new(locks(), header("x-order")).layer(inner);
    let response = service.oneshot(post("/k")).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    let mut body = std::pin::pin!(response.into_body());
    let chunk: Chunk = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(chunk.0.starts_with(b"{"));
}

/// A service on one thread: requests, futures and errors need not be `Send`.
#[tokio::test(start_paused = true)]
async fn services_of_one_thread() {
    let counter = Rc::new(std::cell::Cell::new(0));
    let count = Rc::clone(&counter);
    let inner = service_fn(move |request: Request<Rc<()>>| {
        count.set(count.get() + 1);
        async move {
            drop(request);
            Ok::<_, Rc<str>>(ok())
        }
    });
    let service = LockLayer::new(locks(), by_path()).layer(inner);
    let request = Request::post("/k").body(Rc::new(())).unwrap();
    assert_eq!(service.oneshot(request).await.unwrap().status(), StatusCode::OK);
    assert_eq!(counter.get(), 1);
}

/// The bounds of hyper's servers, behind `hyper_util::service::TowerToHyperService`: those of
/// HTTP/1 and HTTP/2 with a task for each connection.
fn hyper_takes<S, B, T>(service: S) -> S
where
    S: Service<Request<B>, Response = Response<T>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    T: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    service
}

#[tokio::test(start_paused = true)]
async fn hyper() {
    let inner = service_fn(|_: Sent| async move { Ok::<_, BoxError>(ok()) });
    let layer = LockLayer::new(locks(), path_segment(0)).hold(HeldUntil::BodyEnd);
    for service in [hyper_takes::<_, Full<Bytes>, _>(layer.layer(inner))] {
        assert_eq!(service.oneshot(post("/k")).await.unwrap().status(), StatusCode::OK);
    }
    let detached = hyper_takes::<_, Full<Bytes>, _>(layer.detached().layer(inner));
    assert_eq!(detached.oneshot(post("/k")).await.unwrap().status(), StatusCode::OK);
}

/// `ServiceBuilder`, and the layer behind a reference and boxed.
#[tokio::test(start_paused = true)]
async fn tower() {
    let layer = LockLayer::new(locks(), |head: &Parts| head.uri.path().to_owned());
    let inner = service_fn(done);
    let built = ServiceBuilder::new()
        .timeout(std::time::Duration::from_secs(20))
        .layer(&layer)
        .layer(layer.clone().detached())
        .service(inner);
    assert_eq!(built.oneshot(post("/k")).await.unwrap().status(), StatusCode::OK);
    let boxed = tower::util::BoxCloneService::new(layer.layer(inner));
    assert_eq!(boxed.oneshot(post("/k")).await.unwrap().status(), StatusCode::OK);
}

/// The bounds of `tonic::transport::Server`, version 0.14:
/// `builder().layer(…).add_service(…).serve(…)`.
#[cfg(feature = "tonic")]
mod tonic {
    use ::tonic::body::Body as TonicBody;
    use ::tonic::{Code, Status};
    use lock_runtime::LockError;

    use super::*;

    fn tonic_takes<L, S, ResBody>(layer: &L, routes: S) -> L::Service
    where
        L: Layer<S> + Clone,
        L::Service: Service<Request<TonicBody>, Response = Response<ResBody>> + Clone + Send + 'static,
        <L::Service as Service<Request<TonicBody>>>::Future: Send,
        <L::Service as Service<Request<TonicBody>>>::Error: Into<BoxError> + Send,
        ResBody: Body<Data = Bytes> + Send + 'static,
        ResBody::Error: Into<BoxError>,
    {
        layer.layer(routes)
    }

    #[tokio::test(start_paused = true)]
    async fn servers() {
        let locks = locks();
        let routes = service_fn(|_: Request<TonicBody>| async move {
            Ok::<_, Infallible>(Response::new(TonicBody::new(Full::new(Bytes::from_static(b"message")))))
        });
        let layer = LockLayer::new(locks.clone(), path_segment(1)).no_wait().hold(HeldUntil::BodyEnd);
        let request = || {
            let request = Request::post("/orders.Orders/Ship").header("content-type", "application/grpc");
            request.body(TonicBody::empty()).unwrap()
        };
        let response = tonic_takes(&layer, routes).oneshot(request()).await.unwrap();
        // As a server does before it sends the body.
        let body = TonicBody::new(response.into_body());
        assert_eq!(body.collect().await.unwrap().to_bytes(), "message");

        let _taken = locks.mutex("Ship").acquire().await.unwrap();
        let refused = tonic_takes(&layer.detached(), routes).oneshot(request()).await.unwrap();
        // As a client reads the response.
        let status = Status::from_header_map(refused.headers()).unwrap();
        assert_eq!(status.code(), Code::Aborted);
        assert!(status.message().contains("Another request is using the same resource"), "{status:?}");
        let details = String::from_utf8_lossy(status.details());
        assert!(details.contains("google.rpc.ErrorInfo") && details.contains("LOCK_BUSY"), "{details}");
        assert!(details.contains("google.rpc.RetryInfo"), "{details}");
    }

    /// A method that returns the error of an annotated function.
    #[test]
    fn errors_of_functions() {
        let error = LockError::Misconfigured { reason: "secret".into() };
        let status = Status::from(error);
        assert_eq!(status.code(), Code::Internal);
        assert!(!status.message().contains("secret") && status.source().is_some());
    }
}
