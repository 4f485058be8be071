//! [`Server`]: a program with a layer, in this process; and [`Stage`]: controls and counts its
//! handlers.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::routing::post;
use axum::serve::ListenerExt;
use bytes::Bytes;
use http_body::Frame;
use lock_runtime::layer::{PartKey, path_param};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use crate::layer_http::{SLACK, eventually};

/// A server on a free port. It accepts no new connections after it is dropped.
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn axum(router: Router) -> Self {
        let (listener, addr) = listen().await;
        // Without it, HTTP/2 frames wait for the acknowledgements of earlier ones.
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
        Self { addr, task: tokio::spawn(async move { axum::serve(listener, router).await.unwrap() }) }
    }

    pub(crate) fn of(addr: SocketAddr, task: JoinHandle<()>) -> Self {
        Self { addr, task }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// Returns one route, `/orders/{id}`, for POST, PUT and GET; its handler passes through `stage`.
pub(crate) fn orders(stage: &Stage) -> Router {
    let stage = stage.clone();
    let handler = async move || stage.visit().await;
    Router::new().route("/orders/{id}", post(handler.clone()).put(handler.clone()).get(handler))
}

/// The sender of a body's pieces. The body ends when it is dropped.
pub(crate) type Feed = mpsc::UnboundedSender<Piece>;

/// Returns one route, `/orders/{id}`, for POST and GET, whose bodies are [`Pieces`] that pass
/// through `stage`. The test gets their senders.
pub(crate) fn streams(stage: &Stage) -> (Router, mpsc::UnboundedReceiver<Feed>) {
    let (feeds, receiver) = mpsc::unbounded_channel();
    let stage = stage.clone();
    let handler = async move || {
        let (feed, body) = Pieces::new(&stage);
        feeds.send(feed).unwrap();
        axum::body::Body::new(body)
    };
    (Router::new().route("/orders/{id}", post(handler.clone()).get(handler)), receiver)
}

/// Returns the key of the route `/orders/{id}`.
pub(crate) fn order() -> PartKey {
    path_param("id").prefix("order:")
}

/// A gate that lets handlers through one by one, and counts them.
#[derive(Clone)]
pub(crate) struct Stage(Arc<Inner>);

struct Inner {
    gate: Semaphore,
    entered: AtomicUsize,
    inside: AtomicUsize,
    finished: AtomicUsize,
    dropped: AtomicUsize,
}

impl Stage {
    /// Makes a stage whose handlers return at once.
    pub(crate) fn open() -> Self {
        Self::with(Semaphore::MAX_PERMITS)
    }

    /// Makes a stage whose handlers wait until they are [let through](Self::let_through).
    pub(crate) fn shut() -> Self {
        Self::with(0)
    }

    fn with(permits: usize) -> Self {
        Self(Arc::new(Inner {
            gate: Semaphore::new(permits),
            entered: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn let_through(&self, handlers: usize) {
        self.0.gate.add_permits(handlers);
    }

    /// Returns the number of handlers that have begun.
    pub(crate) fn entered(&self) -> usize {
        self.0.entered.load(Ordering::SeqCst)
    }

    /// Returns the number of handlers that have begun and not ended.
    pub(crate) fn inside(&self) -> usize {
        self.0.inside.load(Ordering::SeqCst)
    }

    /// Returns the number of handlers that ran to their end.
    pub(crate) fn finished(&self) -> usize {
        self.0.finished.load(Ordering::SeqCst)
    }

    /// Returns the number of handlers that were dropped before their end.
    pub(crate) fn dropped(&self) -> usize {
        self.0.dropped.load(Ordering::SeqCst)
    }

    /// Waits until `count` handlers have begun.
    pub(crate) async fn has_entered(&self, count: usize) {
        eventually(async || self.entered() == count, SLACK).await;
    }

    /// Runs a handler, or a part of one.
    pub(crate) async fn visit(&self) {
        let visit = self.enter();
        self.0.gate.acquire().await.unwrap().forget();
        visit.finish();
    }

    pub(crate) fn enter(&self) -> Visit {
        self.0.entered.fetch_add(1, Ordering::SeqCst);
        self.0.inside.fetch_add(1, Ordering::SeqCst);
        Visit { stage: self.clone(), finished: false }
    }
}

/// A handler that has begun.
pub(crate) struct Visit {
    stage: Stage,
    finished: bool,
}

impl Visit {
    pub(crate) fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let inner = &self.stage.0;
        inner.inside.fetch_sub(1, Ordering::SeqCst);
        let end = if self.finished { &inner.finished } else { &inner.dropped };
        end.fetch_add(1, Ordering::SeqCst);
    }
}

pub(crate) type Piece = Result<Bytes, std::io::Error>;

/// A body whose pieces come out of a channel. From its first poll on, its stage counts it like a
/// handler.
pub(crate) struct Pieces {
    pieces: mpsc::UnboundedReceiver<Piece>,
    stage: Stage,
    visit: Option<Visit>,
}

impl Pieces {
    pub(crate) fn new(stage: &Stage) -> (Feed, Self) {
        let (feed, pieces) = mpsc::unbounded_channel();
        (feed, Self { pieces, stage: stage.clone(), visit: None })
    }
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        if self.visit.is_none() {
            self.visit = Some(self.stage.enter());
        }
        let piece = std::task::ready!(self.pieces.poll_recv(cx));
        if piece.is_none()
            && let Some(visit) = self.visit.take()
        {
            visit.finish();
        }
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }
}
