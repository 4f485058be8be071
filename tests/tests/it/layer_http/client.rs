//! [`Client`]: one connection of one version of HTTP, which can be cut.

use std::net::{Shutdown, SocketAddr};

use bytes::Bytes;
use http::header::HOST;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::layer_http::soon;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

type Answer = hyper::Result<Response<Incoming>>;

pub(crate) struct Client {
    sender: Sender,
    connection: JoinHandle<()>,
    socket: std::net::TcpStream,
    server: SocketAddr,
}

impl Client {
    pub(crate) async fn connect(server: SocketAddr, version: Version) -> Self {
        let stream = TcpStream::connect(server).await.unwrap().into_std().unwrap();
        stream.set_nodelay(true).unwrap();
        let socket = stream.try_clone().unwrap();
        let io = TokioIo::new(TcpStream::from_std(stream).unwrap());
        let (sender, connection) = match version {
            Version::Http1 => {
                let (sender, connection) = http1::handshake(io).await.unwrap();
                (Sender::Http1(sender), tokio::spawn(async move { drop(connection.await) }))
            }
            Version::Http2 => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
                (Sender::Http2(sender), tokio::spawn(async move { drop(connection.await) }))
            }
        };
        Self { sender, connection, socket, server }
    }

    /// Begins a request for this version of HTTP.
    pub(crate) fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let builder = Request::builder().method(method);
        match self.sender {
            Sender::Http1(_) => builder.uri(path).header(HOST, self.server.to_string()),
            Sender::Http2(_) => {
                builder.uri(format!("http://{}{path}", self.server).parse::<Uri>().expect("it is a path"))
            }
        }
    }

    /// Sends a request, which is in flight when this returns. Aborting the task gives up the
    /// answer; HTTP/2 tells the server so.
    pub(crate) async fn start(&mut self, request: http::request::Builder) -> JoinHandle<Answer> {
        self.start_with(request, "").await
    }

    async fn start_with(
        &mut self,
        request: http::request::Builder,
        body: &'static str,
    ) -> JoinHandle<Answer> {
        let request = request.body(Full::from(body)).unwrap();
        match &mut self.sender {
            Sender::Http1(sender) => {
                soon("ready", sender.ready()).await.unwrap();
                tokio::spawn(sender.send_request(request))
            }
            Sender::Http2(sender) => {
                soon("ready", sender.ready()).await.unwrap();
                tokio::spawn(sender.send_request(request))
            }
        }
    }

    pub(crate) async fn start_post(&mut self, path: &str) -> JoinHandle<Answer> {
        let request = self.request(Method::POST, path);
        self.start(request).await
    }

    /// Sends a request, and returns its answer or the error.
    pub(crate) async fn send(&mut self, request: http::request::Builder) -> Answer {
        let answer = self.start(request).await;
        soon("an answer", answer).await.unwrap()
    }

    /// Sends a request with a body, and returns its answer or the error.
    pub(crate) async fn send_with(&mut self, request: http::request::Builder, body: &'static str) -> Answer {
        let answer = self.start_with(request, body).await;
        soon("an answer", answer).await.unwrap()
    }

    /// Returns the answer to a POST.
    pub(crate) async fn post(&mut self, path: &str) -> Response<Incoming> {
        let request = self.request(Method::POST, path);
        self.send(request).await.unwrap()
    }

    /// Returns the answer to a GET.
    pub(crate) async fn get(&mut self, path: &str) -> Response<Incoming> {
        let request = self.request(Method::GET, path);
        self.send(request).await.unwrap()
    }

    /// Closes the socket.
    pub(crate) async fn hang_up(self) {
        // hyper's tasks own the socket, and end with it.
        self.socket.shutdown(Shutdown::Both).unwrap();
        soon("the end of the connection", self.connection).await.unwrap();
    }
}

/// Returns the answer to a request that was started.
pub(crate) async fn answered(answer: JoinHandle<Answer>) -> Response<Incoming> {
    soon("an answer", answer).await.unwrap().unwrap()
}

/// Returns the whole body as text.
pub(crate) async fn text(response: Response<Incoming>) -> String {
    let body = soon("a body", response.into_body().collect()).await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// Returns the next piece of a body, or `None` at its end.
pub(crate) async fn next(response: &mut Response<Incoming>) -> Option<hyper::Result<Bytes>> {
    loop {
        match soon("a frame", response.body_mut().frame()).await? {
            // HTTP/2 may end a body with an empty frame.
            Ok(frame) if frame.data_ref().is_some_and(Bytes::is_empty) => {}
            frame => return Some(frame.map(|frame| frame.into_data().unwrap_or_default())),
        }
    }
}

/// Reads a body to its end. An error means that the body was incomplete.
pub(crate) async fn read_on(response: &mut Response<Incoming>) -> hyper::Result<()> {
    while let Some(frame) = next(response).await {
        frame?;
    }
    Ok(())
}

/// A refusal: an `application/problem+json`.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// The last part of its `type`.
    pub(crate) reason: String,
    pub(crate) detail: String,
    /// In seconds.
    pub(crate) retry_after: Option<u64>,
}

impl Problem {
    /// Reads a refusal, and checks the properties that all refusals share.
    pub(crate) async fn of(response: Response<Incoming>) -> Self {
        let (status, headers) = (response.status(), response.headers().clone());
        let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let text = text(response).await;
        assert_eq!(header("content-type").as_deref(), Some("application/problem+json"), "{status} {text}");
        assert_eq!(header("cache-control").as_deref(), Some("no-store"));
        if let Some(length) = header("content-length") {
            assert_eq!(length, text.len().to_string());
        }
        let json: Value = serde_json::from_str(&text).unwrap();
        let member =
            |name: &str| json[name].as_str().unwrap_or_else(|| panic!("no {name}: {text}")).to_owned();
        assert_eq!(json["status"], status.as_u16(), "{text}");
        assert!(!member("title").is_empty());
        let reason =
            member("type").strip_prefix("urn:problem-type:lock:").expect("a type of ours").to_owned();
        // No word about the key, its holder or the store.
        for secret in ["order:", "lock:order", "127.0.0.1", "redis", "Redis"] {
            assert!(!text.contains(secret), "{text}");
        }
        let retry_after = header("retry-after").map(|seconds| seconds.parse().unwrap());
        Self { status, reason, detail: member("detail"), retry_after }
    }

    #[track_caller]
    pub(crate) fn assert_is(&self, status: u16, reason: &str) {
        assert_eq!((self.status.as_u16(), self.reason.as_str()), (status, reason), "{self:?}");
    }
}
