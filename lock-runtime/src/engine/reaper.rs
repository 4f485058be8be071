//! The reaper: what a call took whose outcome nobody knows is given back.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::pending::Pending;
use crate::backoff::Backoff;
use crate::store::{AcquireRequest, FAR_LIFE, Withdrawn};

impl Engine {
    /// The outcome of `request` is unknown: its owner is retired, and it is withdrawn until the store answers that no
    /// copy of it can be executed any more. As many as releases may be under way.
    pub(crate) fn reap(self: &Arc<Self>, request: Arc<AcquireRequest>) {
        match self.pending_withdrawals.reserve() {
            Some(pending) => self.spawn(withdraw(Arc::clone(self), request, pending)),
            None => {
                for item in &request.items {
                    self.left_to_lease(&item.key);
                }
            }
        }
    }
}

impl Engine {
    /// The same, begun by one call that is awaited.
    pub(super) async fn undo(self: &Arc<Self>, request: Arc<AcquireRequest>) {
        let withdrawn = self.bounded(|store| store.withdraw(Arc::clone(&request))).await;
        if !matches!(withdrawn, Ok(Withdrawn::Settled)) {
            self.reap(request);
        }
    }
}

async fn withdraw(engine: Arc<Engine>, request: Arc<AcquireRequest>, _pending: Pending) {
    // After this the store has dropped by itself whatever a copy could have taken.
    let last_copy = engine.clock.now() + request.timeout * 2;
    let place = if request.wait.is_some() { FAR_LIFE } else { Duration::ZERO };
    let (lease_over, place_over) = (last_copy + request.lease, last_copy + request.lease.max(place));
    let mut backoff = Backoff::new();
    loop {
        let (wait, over) = match engine.bounded(|store| store.withdraw(Arc::clone(&request))).await {
            Ok(Withdrawn::Settled) => return,
            // The place, if there was one, is gone.
            Ok(Withdrawn::Pending(wait)) => (wait.max(Duration::from_millis(1)), lease_over),
            Err(_) => (backoff.next(), place_over),
        };
        if engine.clock.now() >= over || engine.runtime_is_gone() {
            return;
        }
        tokio::time::sleep(wait.min(request.timeout)).await;
    }
}
