//! [`InRuntime`]: polls a future inside a given tokio runtime, wherever it is polled from.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// A future whose timers and tasks belong to `runtime`. Does nothing before its first poll.
#[derive(Debug)]
#[pin_project::pin_project]
pub struct InRuntime<F> {
    runtime: Handle,
    #[pin]
    future: F,
}

impl<F> InRuntime<F> {
    pub fn new(runtime: Handle, future: F) -> Self {
        Self { runtime, future }
    }
}

impl<F: Future> Future for InRuntime<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let _entered = (!is_inside(this.runtime)).then(|| this.runtime.enter());
        this.future.poll(cx)
    }
}

/// Whether tasks of `runtime` can be polled here, with access to its timers and sockets.
pub fn is_inside(runtime: &Handle) -> bool {
    Handle::try_current().is_ok_and(|current| current.id() == runtime.id())
}
