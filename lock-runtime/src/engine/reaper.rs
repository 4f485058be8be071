//! The reaper: calls whose caller gave up are driven to their end, and what they took is given back.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::backoff::Backoff;
use super::pending::Pending;
use crate::store::{AcquireRequest, Acquired, BoxFuture, StoreError, Withdrawn};

impl Engine {
    /// The outcome of `request` is unknown: its owner is retired, and it is withdrawn until the store answers that no
    /// copy of it can be executed any more. As many as releases may be under way.
    pub(crate) fn reap(
        self: &Arc<Self>,
        request: Arc<AcquireRequest>,
        call: Option<BoxFuture<Result<Acquired, StoreError>>>,
    ) {
        if let Some(call) = call {
            self.drive(call);
        }
        match self.pending_withdrawals.reserve() {
            Some(pending) => self.spawn(withdraw(Arc::clone(self), request, pending)),
            None => {
                for item in &request.items {
                    self.left_to_lease(&item.key);
                }
            }
        }
    }

    /// Drives an overdue call to its reply, which nobody awaits. It ends by itself: stores have time-outs.
    pub(crate) fn drive<T: Send + 'static>(self: &Arc<Self>, call: BoxFuture<Result<T, StoreError>>) {
        let limit = self.config.lease.max(self.config.call_timeout * 4);
        self.spawn(async move {
            let _ = tokio::time::timeout(limit, call).await;
        });
    }
}

async fn withdraw(engine: Arc<Engine>, request: Arc<AcquireRequest>, _pending: Pending) {
    // After this the store has dropped by itself whatever a copy could have taken.
    let over = engine.clock.now() + request.lease + request.timeout * 2;
    let mut backoff = Backoff::new();
    loop {
        let wait = match engine.bounded(|store| store.withdraw(Arc::clone(&request))).await {
            Ok(Ok(Withdrawn::Settled)) => return,
            Ok(Ok(Withdrawn::Pending(wait))) => wait.max(Duration::from_millis(1)),
            Ok(Err(_)) => backoff.next(),
            Err(call) => {
                engine.drive(call);
                backoff.next()
            }
        };
        if engine.clock.now() >= over || engine.runtime_is_gone() {
            return;
        }
        tokio::time::sleep(wait.min(request.timeout)).await;
    }
}
