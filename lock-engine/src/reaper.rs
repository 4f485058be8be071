//! The reaper: gives back holds that the store may still have, but no caller wants.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::kit::Backoff;
use lock_core::store::{AcquireRequest, StoreError, Withdrawn};

use super::pending::Pending;
use super::{Engine, LONGEST_SLEEP};

/// Number of repeated calls from which on their pauses grow in proportion.
const REPEATS: usize = 1000;

impl Engine {
    /// Withdraws `request`, whose outcome is unknown, until the store answers that no copy of it
    /// can be executed any more. Its owner is not used again. Limited to as many withdrawals as
    /// releases may be under way.
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

    /// Makes one call that withdraws `request`.
    async fn withdraw(&self, request: &Arc<AcquireRequest>) -> Result<Withdrawn, StoreError> {
        self.bounded(|_| self.store_of(&request.items).withdraw(Arc::clone(request))).await
    }

    /// Withdraws `request` like [`reap`](Self::reap), but awaits the first call.
    pub(super) async fn undo(self: &Arc<Self>, request: Arc<AcquireRequest>) {
        let withdrawn = self.withdraw(&request).await;
        if !matches!(withdrawn, Ok(Withdrawn::Settled)) {
            self.reap(request);
        }
    }

    /// Repeats `call` from `due` on, until the store answers or the manager ends. A lease that is
    /// over here need not be over at the store. The clock of the server, or of a replica that
    /// replaced it, may be behind.
    pub(super) fn insist<F>(self: &Arc<Self>, mut due: Tick, call: impl Fn(Arc<Self>) -> F + Send + 'static)
    where
        F: Future<Output = Result<(), StoreError>> + Send,
    {
        let Some(pending) = self.pending_repeats.reserve() else { return };
        let (engine, clock) = (Arc::downgrade(self), self.clock);
        let mut backoff = Backoff::patient();
        let task = async move {
            let _pending = pending;
            loop {
                tokio::time::sleep(due.since(clock.now()).min(LONGEST_SLEEP)).await;
                let Some(engine) = engine.upgrade().filter(|engine| !engine.runtime_is_gone()) else {
                    return;
                };
                if clock.now() < due {
                    continue;
                }
                // Many repeated calls together ask the store no more often than a few.
                let crowd = u32::try_from(engine.pending_repeats.len() / REPEATS).unwrap_or(u32::MAX);
                match call(engine).await {
                    Err(error) if error.may_pass() => {
                        due = clock.now() + backoff.next_pause().saturating_mul(1 + crowd);
                    }
                    _ => return,
                }
            }
        };
        // A shutdown does not wait for it.
        drop(self.runtime.spawn(self.part(task)));
    }
}

async fn withdraw(engine: Arc<Engine>, request: Arc<AcquireRequest>, _pending: Pending) {
    // By then the store has dropped by itself anything that a copy could have taken, if its clock
    // runs like ours.
    let over = engine.clock.now() + request.timeout * 2 + request.lease;
    let mut backoff = Backoff::default();
    loop {
        let answer = engine.withdraw(&request).await;
        let is_over = engine.clock.now() >= over;
        let pause = match answer {
            Ok(Withdrawn::Settled) => return,
            Ok(Withdrawn::Pending(wait)) => wait.max(Duration::from_millis(1)),
            Err(error) if is_over && error.may_pass() => {
                let due = engine.clock.now() + request.timeout;
                return engine.insist(due, move |engine| {
                    let request = Arc::clone(&request);
                    async move { engine.withdraw(&request).await.map(drop) }
                });
            }
            Err(_) => backoff.next_pause(),
        };
        if is_over || engine.runtime_is_gone() {
            return;
        }
        tokio::time::sleep(pause.min(request.timeout)).await;
    }
}
