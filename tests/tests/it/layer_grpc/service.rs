//! A gRPC service written by hand, in the form of generated code: `test.Orders` with a unary method
//! and a server stream, whose messages are texts.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut};
use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::server::NamedService;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tower::Service;

/// The sender of a stream's messages. The stream ends when it is dropped.
pub(crate) type Feed = mpsc::UnboundedSender<Result<String, Status>>;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Unary = dyn Fn(Request<String>) -> Boxed<Result<String, Status>> + Send + Sync;
type Stream = dyn Fn(Request<String>, Feed) -> Boxed<Result<(), Status>> + Send + Sync;

/// The service; its methods are closures of the test.
#[derive(Clone)]
pub(crate) struct Orders {
    update: Arc<Unary>,
    watch: Arc<Stream>,
}

impl Orders {
    /// Makes a service whose two methods answer that they are not implemented.
    pub(crate) fn new() -> Self {
        Self {
            update: Arc::new(|_| Box::pin(async { Err(Status::unimplemented("Update")) })),
            watch: Arc::new(|_, _| Box::pin(async { Err(Status::unimplemented("Watch")) })),
        }
    }

    /// Sets the method `/test.Orders/Update`.
    pub(crate) fn update<F, T>(mut self, update: F) -> Self
    where
        F: Fn(Request<String>) -> T + Send + Sync + 'static,
        T: Future<Output = Result<String, Status>> + Send + 'static,
    {
        self.update = Arc::new(move |request| Box::pin(update(request)));
        self
    }

    /// Sets the method `/test.Orders/Watch`, which sends the messages of its stream, or hands the
    /// sender to the test.
    pub(crate) fn watch<F, T>(mut self, watch: F) -> Self
    where
        F: Fn(Request<String>, Feed) -> T + Send + Sync + 'static,
        T: Future<Output = Result<(), Status>> + Send + 'static,
    {
        self.watch = Arc::new(move |request, feed| Box::pin(watch(request, feed)));
        self
    }
}

impl NamedService for Orders {
    const NAME: &'static str = "test.Orders";
}

impl Service<http::Request<tonic::body::Body>> for Orders {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Boxed<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(Texts);
            Ok(match request.uri().path() {
                "/test.Orders/Update" => grpc.unary(Update(this.update), request).await,
                "/test.Orders/Watch" => grpc.server_streaming(Watch(this.watch), request).await,
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}

struct Update(Arc<Unary>);

impl tonic::server::UnaryService<String> for Update {
    type Response = String;
    type Future = Boxed<Result<Response<String>, Status>>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let answer = (self.0)(request);
        Box::pin(async move { Ok(Response::new(answer.await?)) })
    }
}

struct Watch(Arc<Stream>);

impl tonic::server::ServerStreamingService<String> for Watch {
    type Response = String;
    type ResponseStream = UnboundedReceiverStream<Result<String, Status>>;
    type Future = Boxed<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let (feed, messages) = mpsc::unbounded_channel();
        let answer = (self.0)(request, feed);
        Box::pin(async move {
            answer.await?;
            Ok(Response::new(UnboundedReceiverStream::new(messages)))
        })
    }
}

/// A client of the service.
#[derive(Clone)]
pub(crate) struct Client(tonic::client::Grpc<Channel>);

impl Client {
    pub(crate) fn new(channel: Channel) -> Self {
        Self(tonic::client::Grpc::new(channel))
    }

    /// Calls `Update` for an order, which is named in the metadata.
    pub(crate) async fn update(&mut self, order: &str) -> Result<String, Status> {
        self.update_with(with_order(order)).await
    }

    pub(crate) async fn update_with(&mut self, request: Request<String>) -> Result<String, Status> {
        self.0.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
        let answer = self.0.unary(request, PathAndQuery::from_static("/test.Orders/Update"), Texts).await?;
        Ok(answer.into_inner())
    }

    /// Calls `Watch` for an order.
    pub(crate) async fn watch(&mut self, order: &str) -> Result<Streaming<String>, Status> {
        self.0.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
        let path = PathAndQuery::from_static("/test.Orders/Watch");
        Ok(self.0.server_streaming(with_order(order), path, Texts).await?.into_inner())
    }
}

fn with_order(order: &str) -> Request<String> {
    let mut metadata = MetadataMap::new();
    metadata.insert("x-order", order.parse().unwrap());
    Request::from_parts(metadata, tonic::Extensions::default(), order.to_owned())
}

/// A codec for UTF-8 messages.
#[derive(Clone, Copy, Default)]
struct Texts;

impl Codec for Texts {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Texts {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, text: String, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(text.as_bytes());
        Ok(())
    }
}

impl Decoder for Texts {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = from.copy_to_bytes(from.remaining());
        String::from_utf8(bytes.to_vec()).map(Some).map_err(|_| Status::internal("not UTF-8"))
    }
}
