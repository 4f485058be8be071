//! Releases: sent by engine tasks only, and re-sent until they are answered; after the end of the
//! lease, by the reaper.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::kit::Backoff;
use lock_core::store::{Echo, ReleaseRequest, Released, StoreError, StoreErrorKind, Takeover};

use super::Engine;
use super::hold::{Hold, drift_margin};
use super::lane::Report;
use super::pending::Pending;
use crate::failure::{Failure, Loss};
use crate::trace::TARGET;

/// Extra time beyond `min_hold` for which a key stays taken if its process dies.
const LINGER_SLACK: Duration = Duration::from_millis(500);

/// Sends the release once.
async fn call(
    engine: &Engine,
    hold: &Hold,
    linger: Duration,
    then: Option<Takeover>,
    own_watch: Option<Echo>,
) -> Result<Released, StoreError> {
    let (items, timeout) = (hold.items(), engine.settings.call_timeout);
    let request = Arc::new(ReleaseRequest { items, linger, then, own_watch, timeout });
    engine.bounded(|_| engine.store_of(&request.items).release(Arc::clone(&request))).await
}

/// Releases `hold`, re-sending on failure until the store should have dropped it by itself. After
/// that, the reaper takes over.
///
/// Returns when the answered call was sent, and its answer; `None` when it gave up.
///
/// `own_watch` is the caller's own watch of the keys. `report` gets the first
/// outcome: a failure is reported at once, although the release goes on being re-sent.
pub(crate) async fn send(
    engine: &Arc<Engine>,
    hold: &Arc<Hold>,
    mut then: Option<Takeover>,
    own_watch: Option<Echo>,
    mut report: Option<Report>,
    on_error: impl Fn(&StoreError),
) -> Option<(Tick, Released)> {
    let key = &hold.item.key;
    let mut unconfirmed = Unconfirmed { engine: Arc::clone(engine), hold: Arc::clone(hold), over: false };
    let mut backoff = Backoff::default();
    // The hold may have been renewed to more than the requested lease.
    let longest = hold.lease.duration.max(hold.deadline().since(engine.clock.now()));
    let mut unanswered = false;
    loop {
        let sent = engine.clock.now();
        let answer = call(engine, hold, Duration::ZERO, then.clone(), own_watch.clone()).await;
        let error = match answer {
            Ok(released) => {
                let now = engine.clock.now();
                engine.rtt.record(sent, now);
                unconfirmed.over = true;
                if let Some(report) = report {
                    let held = !released.held.is_empty() && released.held.iter().all(|held| *held);
                    // An earlier copy whose answer was lost may have released the hold while it was
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
        // The margin was subtracted from the lease on our side; the store's own clock ends the hold
        // that much later.
        let over = hold.deadline() + drift_margin(longest) * 2;
        let now = engine.clock.now();
        // With such an error, the key does not have our hold.
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

/// Reports the release as failed when its task ends before the store has answered: with its
/// runtime, or by a panic.
struct Unconfirmed {
    engine: Arc<Engine>,
    hold: Arc<Hold>,
    over: bool,
}

impl Drop for Unconfirmed {
    fn drop(&mut self) {
        if !self.over {
            self.engine.release_failed(&self.hold.item.key, &"its task has ended");
        }
    }
}

/// Gives back a lost hold, at the end of its `min_hold`: no caller has it any more, but the store
/// may.
pub(crate) fn abandon(
    engine: Arc<Engine>,
    hold: Arc<Hold>,
    rest: Duration,
    pending: Pending,
) -> impl Future<Output = ()> {
    // Effective from now on, not only from the first poll.
    let unconfirmed = Unconfirmed { engine: Arc::clone(&engine), hold: Arc::clone(&hold), over: false };
    async move {
        let mut unconfirmed = unconfirmed;
        unconfirmed.over = true;
        if rest.is_zero() {
            send(&engine, &hold, None, None, None, |_| ()).await;
        } else {
            linger(&engine, &hold, rest).await;
        }
        drop(pending);
    }
}

/// Keeps the key taken for `rest` more. If this process dies meanwhile, the store ends the hold by
/// itself.
pub(crate) async fn linger(engine: &Arc<Engine>, hold: &Arc<Hold>, rest: Duration) {
    let end = engine.clock.now() + rest;
    // An inner call may have asked for a `min_hold` that exceeds the hold's lease.
    if hold.deadline() < engine.clock.now() + rest {
        let lease = rest + LINGER_SLACK;
        let _ = engine.renew(hold.renew_items(lease).collect()).await;
    }
    if let Err(error) = call(engine, hold, rest + LINGER_SLACK, None, None).await {
        // The hold ends at the latest with its lease, which is at least `min_hold` long.
        tracing::debug!(target: TARGET, key = %hold.item.key, %error, "failed to shorten the lease to min_hold");
        engine.release_later(Arc::clone(hold), end);
    }
}

impl Engine {
    /// Withdraws unanswered copies of the hold's request, so that none can be granted any more.
    fn withdraw_copies(self: &Arc<Self>, hold: &Hold) {
        if let Some(request) = &hold.unanswered {
            self.reap(Arc::clone(request));
        }
    }

    /// Re-sends the failed release of `hold` at `due`, see [`Engine::insist`].
    fn release_later(self: &Arc<Self>, hold: Arc<Hold>, due: Tick) {
        self.insist(due, move |engine| {
            let hold = Arc::clone(&hold);
            async move {
                call(&engine, &hold, Duration::ZERO, None, None).await?;
                engine.withdraw_copies(&hold);
                tracing::debug!(target: TARGET, key = %hold.item.key, "release confirmed after the lease");
                Ok(())
            }
        });
    }
}
