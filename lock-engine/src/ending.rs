//! How a manager ends, and how holds are ended from outside.

use std::sync::Arc;
use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::sync::atomic::Ordering;
use lock_core::internal::sync::lock;
use lock_core::internal::time;
use lock_core::store::StoreError;
use tokio_util::sync::CancellationToken;

use super::Engine;
use super::lane::{Lane, State};
use super::machine::{Input, Machine};
use crate::failure::{Failure, Loss};

impl Engine {
    /// Returns the token that is cancelled when the engine or its runtime ends.
    pub fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Whether the runtime that the manager lives on has ended.
    pub fn runtime_is_gone(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Handles the end of the runtime: nothing is renewed any more, so every hold is lost and every
    /// waiter is told.
    pub(super) fn on_runtime_gone(self: &Arc<Self>) {
        self.shut_down.store(true, Ordering::Release);
        self.ended.cancel();
        for lane in self.registry.all() {
            self.with(&lane, |State { machine, .. }, now| {
                if let Some(hold) = &machine.hold().cloned() {
                    machine.handle(Input::Lost { hold, why: Loss::ShutDown }, now);
                }
                machine.handle(Input::DriverGone, now);
                machine.handle(Input::ShutDown, now);
            });
        }
    }

    /// Ends the engine; see [`LockManager::shutdown`](crate::LockManager::shutdown). Returns how
    /// many holds were cut off, and whether all background work was done in time.
    pub async fn shutdown(self: &Arc<Self>, grace: Duration) -> (usize, bool) {
        self.shut_down.store(true, Ordering::Release);
        let end = self.clock.now() + grace;
        for lane in self.registry.all() {
            self.tell(&lane, Input::ShutDown);
        }
        let busy = || self.registry.any(Machine::is_busy);
        while busy() && self.clock.now() < end {
            let left = end.since(self.clock.now());
            time::sleep(&self.runtime, left.min(Duration::from_millis(5))).await;
        }
        let lanes = self.registry.all();
        let cut = lanes.iter().filter(|lane| self.cut_off(lane, Loss::ShutDown)).count();
        self.tasks.close();
        let limit = self.settings.call_timeout * 2;
        let done = time::timeout(&self.runtime, limit, self.tasks.wait()).await.is_some();
        (cut, done)
    }

    /// Marks the lane's hold as lost; returns `false` if it has none.
    pub(crate) fn cut_off(self: &Arc<Self>, lane: &Arc<Lane>, why: Loss) -> bool {
        self.with(lane, |State { machine, .. }, now| {
            let hold = machine.held().cloned();
            hold.inspect(|hold| machine.handle(Input::Lost { hold, why }, now)).is_some()
        })
    }

    /// Frees the key, whatever its holders. Goes on when its caller is gone.
    pub async fn force_release(self: &Arc<Self>, key: &LockKey) -> Result<bool, Failure> {
        let call = Arc::clone(self).force_release_now(key.clone());
        self.dispatched(self.settings.call_timeout * 2, call).await
    }

    async fn force_release_now(self: Arc<Self>, key: LockKey) -> Result<bool, StoreError> {
        let lanes = self.registry.find_all(&key);
        let hold = |lane: &Arc<Lane>| lock(&lane.state).machine.hold().cloned();
        let before: Vec<_> = lanes.iter().filter_map(|lane| Some((lane, hold(lane)?))).collect();
        let freed = self.bounded(|store| store.force_release(key.clone())).await;
        if freed.is_ok() {
            before
                .iter()
                .for_each(|(lane, hold)| self.tell(lane, Input::Lost { hold, why: Loss::TakenAway }));
        }
        // A hold that was granted meanwhile was either freed, or came after the call; after an
        // error nothing is known. So the store is asked.
        for lane in self.registry.find_all(&key) {
            self.tell(&lane, Input::Freed);
        }
        freed
    }
}
