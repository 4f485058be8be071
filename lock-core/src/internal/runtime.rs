//! [`InRuntime`]: polls a future inside a given tokio runtime, wherever it is polled from.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// A future whose timers and tasks belong to `runtime`. Does nothing before its first poll.
#[pin_project::pin_project]
pub(super) struct InRuntime<F> {
    runtime: Handle,
    #[pin]
    future: F,
}

impl<F> InRuntime<F> {
    pub(super) fn new(runtime: Handle, future: F) -> Self {
        Self { runtime, future }
    }
}

impl<F: Future> Future for InRuntime<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let _entered = this.runtime.enter();
        this.future.poll(cx)
    }
}
