//! Futures that are polled by hand, when the test decides, and a runtime for them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use lock_core::internal::chance::set_jitter;

#[derive(Debug)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A future, and whether it asked to be polled.
pub(crate) struct Polled<T> {
    future: Pin<Box<dyn Future<Output = T>>>,
    woken: Arc<Woken>,
}

impl<T> Polled<T> {
    pub(crate) fn new(future: Pin<Box<dyn Future<Output = T>>>) -> Self {
        Self { future, woken: Arc::new(Woken(AtomicBool::new(true))) }
    }

    /// Whether it was woken since its last poll, or was never polled.
    pub(crate) fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::SeqCst)
    }

    pub(crate) fn poll(&mut self) -> Poll<T> {
        self.woken.0.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.woken));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

/// Lets background tasks run as far as they get without time passing.
pub(crate) async fn settle() {
    for _ in 0..12 {
        tokio::task::yield_now().await;
    }
}

/// Returns a deterministic runtime: one thread and paused time.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    set_jitter(0.5);
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}
