//! [`Admission`]: one caller's share in a hold.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::catch_panics;
use lock_core::internal::time;
use lock_core::store::{Kind, Lacked, StoreError, StoreErrorKind};
use lock_core::{LockKey, OwnerId};
use tokio::runtime::Handle;
use tokio::sync::oneshot::error::TryRecvError;

use super::caller::Caller;
use super::grant::Grant;
use super::lane::Told;
use super::machine::ReleaseOutcome;
use super::{Engine, Mode};
use crate::failure::Failure;
use crate::metrics::{self, Label};
use crate::trace::TARGET;

/// A caller's grant. Dropping it gives the grant back in the background.
pub struct Admission {
    engine: Arc<Engine>,
    grant: Arc<Grant>,
    label: Label,
    released: bool,
}

impl Admission {
    pub(super) fn new(engine: Arc<Engine>, grant: Arc<Grant>, label: Label) -> Self {
        Self { engine, grant, label, released: false }
    }

    pub fn grant(&self) -> &Arc<Grant> {
        &self.grant
    }

    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the owner of the hold at the store.
    pub fn owner(&self) -> &OwnerId {
        &self.grant.pass.hold.item.owner
    }

    /// Whether it has a single key, held for reading or writing.
    pub fn can_be_downgraded(&self) -> bool {
        let hold = &self.grant.pass.hold;
        hold.is_single() && matches!(hold.kind(), Kind::Write | Kind::Read)
    }

    /// Returns the time-out of a store call, and the runtime that counts it.
    pub fn call_limit(&self) -> (Duration, Handle) {
        (self.engine.settings.call_timeout, self.engine.runtime.clone())
    }

    fn key(&self) -> LockKey {
        self.grant.first().0.clone()
    }

    fn lost(&self) -> Failure {
        Failure::Lost(self.grant.loss())
    }

    /// Re-enters the hold; `None` when it is lost.
    pub fn reenter(&self) -> Option<Self> {
        let grant = &self.grant;
        let entered = self.engine.with(&grant.lane, |state, now| {
            let is_live = !grant.is_lost_at(now);
            let pass =
                is_live.then(|| state.machine.reenter_guard(grant.pass.number, grant.pass.part, now))??;
            Some(state.admit(&grant.lane, pass, Caller::current(), now))
        })?;
        Some(Self::new(Arc::clone(&self.engine), entered, self.label.clone()))
    }

    /// Turns a hold for writing into one for reading, and awaits the store's answer.
    pub async fn downgrade(&self) -> Result<(), Failure> {
        let grant = &self.grant;
        let store = self.engine.store.abilities();
        if !store.downgrade && grant.pass.hold.kind() == Kind::Write {
            let lack = store.lack(Lacked::Downgrade);
            return Err(Failure::misconfigured(format!("lock {}: {lack}", self.key())));
        }
        let ended = self.engine.with(&grant.lane, |state, now| match grant.is_lost_at(now) {
            true => ReleaseOutcome::Lost,
            false => state.machine.downgrade(grant.pass.number),
        });
        match ended {
            ReleaseOutcome::Downgrading(hold) => {
                let told = self.engine.start_downgrade(&grant.lane, hold);
                self.outcome(ReleaseOutcome::Releasing, Some(told)).await
            }
            ended => self.outcome(ended, None).await,
        }
    }

    /// Extends the remaining time of a fixed lease to at least `lease`.
    pub async fn extend(&self, lease: Duration) -> Result<(), Failure> {
        let grant = &self.grant;
        if grant.is_lost() {
            return Err(self.lost());
        }
        if grant.is_renewed() {
            return Err(Failure::misconfigured(format!(
                "lock {}: this lock is renewed, so there is nothing to extend; acquire it with a fixed `.lease(…)`",
                self.key()
            )));
        }
        if let Some(reason) = self.engine.refuse_lease(&self.key(), lease) {
            return Err(Failure::misconfigured(reason));
        }
        let extended = self.engine.extend(&grant.lane, &grant.pass.hold, move |_| lease, Tick::default());
        let result = extended.await;
        if result.is_ok() && grant.is_lost() { Err(self.lost()) } else { result }
    }

    /// Gives the grant back, and awaits the store's answer for at most two call time-outs.
    ///
    /// The first poll dispatches the release, and so does a drop before it. If others of this
    /// process wait, the lane's driver does so, one turn of the runtime later.
    pub async fn release(mut self) -> Result<(), Failure> {
        self.released = true;
        let (ended, told) = self.end(Mode::Awaited);
        self.outcome(ended, told).await
    }

    /// Awaits the outcome of the release or downgrade.
    async fn outcome(&self, ended: ReleaseOutcome, told: Option<Told>) -> Result<(), Failure> {
        let unanswered = |said: &str| Failure::Unconfirmed(StoreError::new(StoreErrorKind::Unanswered, said));
        match ended {
            ReleaseOutcome::Lost => return Err(self.lost()),
            ReleaseOutcome::NotHeld => return Err(Failure::NotHeld),
            ReleaseOutcome::LeftToLease => {
                return Err(unanswered("the runtime of the lock manager has shut down"));
            }
            _ => {}
        }
        let Some(mut outcome) = told else { return Ok(()) };
        let limit = self.engine.settings.call_timeout * 2;
        let answer = match outcome.try_recv() {
            // The store has answered already, or its runtime took no more tasks. A channel that
            // reported either must not be polled.
            Ok(result) => Some(Some(result)),
            Err(TryRecvError::Closed) => Some(None),
            Err(TryRecvError::Empty) => {
                time::timeout(&self.engine.runtime, limit, outcome).await.map(Result::ok)
            }
        };
        match answer {
            Some(Some(result)) => result,
            Some(None) => Err(unanswered("the task that sends it has ended")),
            None => Err(unanswered("the call was not answered")),
        }
    }

    fn end(&self, mode: Mode) -> (ReleaseOutcome, Option<Told>) {
        let grant = &self.grant;
        let ended = self.engine.release(grant, mode);
        // This may run in a drop, and that during a panic.
        catch_panics(|| metrics::held(&self.label, || grant.now().since(grant.granted_at)));
        ended
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        self.released = true;
        if let (ReleaseOutcome::Lost, _) = self.end(Mode::Background) {
            catch_panics(
                || tracing::debug!(target: TARGET, key = %self.key(), "a lost lock's guard was dropped"),
            );
        }
    }
}
