//! The reaper: gives back holds that the store may still have and that no caller wants.

use std::sync::Arc;
use std::time::Duration;

use super::hold::Hold;
use super::pending::Pending;
use super::{Engine, release};
use crate::backoff::Backoff;
use crate::store::{AcquireRequest, StoreError, StoreErrorKind, Withdrawn};

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

    /// The same, begun by one call that is awaited.
    pub(super) async fn undo(self: &Arc<Self>, request: Arc<AcquireRequest>) {
        let withdrawn = self.bounded(|store| store.withdraw(Arc::clone(&request))).await;
        if !matches!(withdrawn, Ok(Withdrawn::Settled)) {
            self.reap(request);
        }
    }

    /// The release of `hold` has failed. It is sent again after `pause`, see [`Engine::insist`].
    pub(super) fn release_later(self: &Arc<Self>, hold: Arc<Hold>, pause: Duration) {
        let Some(pending) = self.pending_withdrawals.reserve() else { return };
        self.insist(pending, pause, move |engine| {
            let hold = Arc::clone(&hold);
            async move { release::once(&engine, &hold).await }
        });
    }

    /// Repeats `call` after `pause` until the store answers it, for as long as the manager lives. A lease that is over
    /// here need not be over there: the clock of the server, or of a replica that took its place, may be behind.
    fn insist<F>(
        self: &Arc<Self>,
        pending: Pending,
        mut pause: Duration,
        call: impl Fn(Arc<Self>) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<(), StoreError>> + Send,
    {
        let engine = Arc::downgrade(self);
        let mut backoff = Backoff::patient();
        let task = async move {
            let _pending = pending;
            loop {
                tokio::time::sleep(pause).await;
                let Some(engine) = engine.upgrade().filter(|engine| !engine.runtime_is_gone()) else {
                    return;
                };
                match call(engine).await {
                    Err(error) if may_pass(&error) => pause = backoff.next(),
                    _ => return,
                }
            }
        };
        // A shutdown does not await it.
        drop(self.runtime.spawn(self.part(task)));
    }
}

/// Whether the same call may succeed later. A primary that was demoted will be replaced.
pub(super) fn may_pass(error: &StoreError) -> bool {
    error.is_transient() || error.kind() == StoreErrorKind::ReadOnly
}

async fn withdraw(engine: Arc<Engine>, request: Arc<AcquireRequest>, pending: Pending) {
    // After this the store has dropped by itself whatever a copy could have taken, if its clock goes as ours.
    let over = engine.clock.now() + request.timeout * 2 + request.lease;
    let mut backoff = Backoff::new();
    loop {
        let answer = engine.bounded(|store| store.withdraw(Arc::clone(&request))).await;
        let is_over = engine.clock.now() >= over;
        let pause = match answer {
            Ok(Withdrawn::Settled) => return,
            Ok(Withdrawn::Pending(wait)) => wait.max(Duration::from_millis(1)),
            Err(error) if is_over && may_pass(&error) => {
                return engine.insist(pending, request.timeout, move |engine| {
                    let request = Arc::clone(&request);
                    async move { engine.bounded(|store| store.withdraw(request)).await.map(drop) }
                });
            }
            Err(_) => backoff.next(),
        };
        if is_over || engine.runtime_is_gone() {
            return;
        }
        tokio::time::sleep(pause.min(request.timeout)).await;
    }
}
