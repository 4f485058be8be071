//! Releases: sent by engine tasks only, re-sent until they are answered; after the lease by the
//! reaper.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::backoff::Backoff;
use lock_core::internal::clock::Tick;
use lock_core::store::{ReleaseRequest, Released, StoreError, StoreErrorKind, Takeover};

use super::Engine;
use super::hold::{Hold, drift_margin};
use super::lane::Report;
use super::pending::Pending;
use crate::failure::{Failure, Loss};
use crate::trace::TARGET;

/// How much longer than `min_hold` a key stays taken when its process is gone and can't end it in
/// time.
const LINGER_SLACK: Duration = Duration::from_millis(500);

/// Makes the call.
async fn call(
    engine: &Engine,
    hold: &Hold,
    linger: Duration,
    then: Option<Takeover>,
    own_watches: u32,
) -> Result<Released, StoreError> {
    let (items, timeout) = (hold.items(), engine.settings.call_timeout);
    let request = Arc::new(ReleaseRequest { items, linger, then, own_watches, timeout });
    engine.bounded(|_| engine.store_of(&request.items).release(Arc::clone(&request))).await
}

/// Releases `hold`, re-sending on failure until the store should have dropped it by itself. After
/// that it is the reaper's.
///
/// Returns when the call was sent that the store answered, and the answer; `None` when it gave up.
///
/// `watches` of the hold's keys are the caller's own. `report` hears the first outcome: a failure
/// is told at once, although the release goes on being re-sent.
pub(crate) async fn send(
    engine: &Arc<Engine>,
    hold: &Arc<Hold>,
    mut then: Option<Takeover>,
    watches: u32,
    mut report: Option<Report>,
    on_error: impl Fn(&StoreError),
) -> Option<(Tick, Released)> {
    let key = &hold.item.key;
    let mut unconfirmed = Unconfirmed { engine: Arc::clone(engine), hold: Arc::clone(hold), over: false };
    let mut backoff = Backoff::default();
    // It may have been renewed to more than was asked for.
    let longest = hold.lease.duration.max(hold.deadline().since(engine.clock.now()));
    let mut unanswered = false;
    loop {
        let sent = engine.clock.now();
        let answer = call(engine, hold, Duration::ZERO, then.clone(), watches).await;
        let error = match answer {
            Ok(released) => {
                let now = engine.clock.now();
                engine.rtt.record(sent, now);
                unconfirmed.over = true;
                if let Some(report) = report {
                    let held = !released.held.is_empty() && released.held.iter().all(|held| *held);
                    // An earlier copy whose answer never came may have released it, while it was
                    // certainly ours.
                    let certain = unanswered && now < hold.deadline();
                    let lost = || Failure::Lost(Loss::TakenAway);
                    let _ = report.send(if held || certain { Ok(()) } else { Err(lost()) });
                }
                engine.withdraw_copies(hold);
                return Some((sent, released));
            }
            Err(error) => error,
        };
        unanswered |= error.outcome_unknown();
        if let Some(takeover) = then.take()
            && error.outcome_unknown()
        {
            engine.reap(takeover.request);
        }
        tracing::debug!(target: TARGET, %key, %error, "release failed");
        on_error(&error);
        if let Some(report) = report.take() {
            let cause = error.clone();
            let _ = report.send(Err(Failure::Unconfirmed(cause)));
        }
        // The margin was taken off the lease for us; the store's own clock ends the hold that much
        // later.
        let over = hold.deadline() + drift_margin(longest) * 2;
        let now = engine.clock.now();
        // Then what is there is not our hold.
        let is_final = matches!(error.kind(), StoreErrorKind::ForeignData | StoreErrorKind::Unsupported);
        if now >= over || is_final || engine.runtime_is_gone() {
            unconfirmed.over = true;
            engine.release_failed(key, &error);
            if error.may_pass() && !engine.runtime_is_gone() {
                engine.release_later(Arc::clone(hold), now + backoff.next_pause());
            }
            return None;
        }
        tokio::time::sleep(backoff.next_pause().min(over.since(now))).await;
    }
}

/// Says so when the task of a release goes before the store has answered: with its runtime, or by a
/// panic.
struct Unconfirmed {
    engine: Arc<Engine>,
    hold: Arc<Hold>,
    over: bool,
}

impl Drop for Unconfirmed {
    fn drop(&mut self) {
        if !self.over {
            self.engine.release_failed(&self.hold.item.key, &"its task is gone");
        }
    }
}

/// A lost hold: nobody has it any more, but if the store still knows it, it is given back to the
/// others, at the end of its `min_hold`.
pub(crate) fn abandon(
    engine: Arc<Engine>,
    hold: Arc<Hold>,
    rest: Duration,
    pending: Pending,
) -> impl Future<Output = ()> {
    // From now on, and not only from the first poll.
    let unconfirmed = Unconfirmed { engine: Arc::clone(&engine), hold: Arc::clone(&hold), over: false };
    async move {
        let mut unconfirmed = unconfirmed;
        unconfirmed.over = true;
        if rest.is_zero() {
            send(&engine, &hold, None, 0, None, |_| ()).await;
        } else {
            linger(&engine, &hold, rest).await;
        }
        drop(pending);
    }
}

/// Keeps the key taken for `rest` more. If this process goes away meanwhile, the store ends the
/// hold by itself.
pub(crate) async fn linger(engine: &Arc<Engine>, hold: &Arc<Hold>, rest: Duration) {
    let end = engine.clock.now() + rest;
    // An inner call may have asked for a longer `min_hold` than the hold's lease.
    if hold.deadline() < engine.clock.now() + rest {
        let lease = rest + LINGER_SLACK;
        let _ = engine.keep(hold.keep_items(lease).collect()).await;
    }
    if let Err(error) = call(engine, hold, rest + LINGER_SLACK, None, 0).await {
        // The hold ends with its lease at the latest, which is at least `min_hold` long.
        tracing::debug!(target: TARGET, key = %hold.item.key, %error, "min_hold not shortened");
        engine.release_later(Arc::clone(hold), end);
    }
}

impl Engine {
    /// Copies of its request that were not answered can't be granted any more.
    fn withdraw_copies(self: &Arc<Self>, hold: &Hold) {
        if let Some(request) = &hold.unanswered {
            self.reap(Arc::clone(request));
        }
    }

    /// The release of `hold` has failed. It is sent again at `due`, see [`Engine::insist`].
    fn release_later(self: &Arc<Self>, hold: Arc<Hold>, due: Tick) {
        self.insist(due, move |engine| {
            let hold = Arc::clone(&hold);
            async move {
                call(&engine, &hold, Duration::ZERO, None, 0).await?;
                engine.withdraw_copies(&hold);
                tracing::debug!(target: TARGET, key = %hold.item.key, "release confirmed after the lease");
                Ok(())
            }
        });
    }
}
