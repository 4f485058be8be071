//! [`acquire`]: brings a caller into a lane.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::clock::Tick;
use lock_core::internal::time::{self, Timer};
use lock_core::store::{Kind, StoreErrorKind};

use super::admission::Admission;
use super::caller::Caller;
use super::calls::no_answer;
use super::hold::{Lease, drift_margin};
use super::machine::{Cap, Enqueued, Entry, Polled, Wish};
use super::places::{Counted, OwnPlace};
use super::registry::{Lane, LaneKind};
use super::request::Request;
use super::scope::Scope;
use crate::failure::Failure;
use crate::metrics;
use crate::trace::TARGET;
use crate::wait::Wait;

/// The key that a caller does not get, and why.
pub type Refused = (LockKey, Failure);

/// Waits for the keys of one request; those that an enclosing call holds are entered again.
///
/// Dropped, it leaves the queue, and what has just been granted goes to the next waiter or is released.
pub async fn acquire(mut request: Request) -> Result<Admission, Refused> {
    loop {
        match acquire_once(&mut request).await {
            Ok(Some(admission)) => return Ok(admission),
            Ok(None) => {}
            Err(failure) => return Err((request.key, failure)),
        }
    }
}

/// `None`: what was entered is gone already, so the call stands in line like everybody else.
async fn acquire_once(request: &mut Request) -> Result<Option<Admission>, Failure> {
    if let Some(failure) = request.refusal() {
        return Err(failure);
    }
    let engine = Arc::clone(&request.engine);
    let longest_call = match request.wait {
        Wait::No => engine.settings.call_timeout,
        Wait::For(wait) => wait.max(engine.settings.call_timeout),
        Wait::Forever => Duration::MAX,
    };
    request.replication = request.replication.within(longest_call.min(request.lease.duration / 2));
    let span = tracing::debug_span!(
        target: TARGET,
        "lock_acquire",
        key = %request.key,
        wait = ?request.wait,
        token = tracing::field::Empty,
        outcome = tracing::field::Empty,
    );
    let (lane, entry) = match enter(request).await {
        Ok(entered) => entered,
        Err(error) => {
            record(request, &span, Err(&error));
            return Err(error);
        }
    };
    let (Lease { duration: lease, is_renewed, .. }, recorded) = (request.lease, entry.clone());
    let admission = Admission::new(Arc::clone(&engine), lane, entry, request.lease, request.label.clone());
    // The admission is there first: a panicking subscriber or recorder must not leak the hold.
    record(request, &span, Ok(&recorded));
    let hold = Arc::clone(&recorded.grant.hold);
    drop((recorded, span));
    // A longer fixed lease inside a shorter one takes one store call.
    let ends = || (engine.clock.now() + lease).saturating_sub(drift_margin(lease));
    if !admission.entry().reentrant || is_renewed || hold.is_renewing() || hold.deadline() >= ends() {
        return Ok(Some(admission));
    }
    let retry_until = match request.wait {
        Wait::No => Tick::default(),
        Wait::For(wait) => request.asked.unwrap_or_default() + wait,
        Wait::Forever => Tick::MAX,
    };
    match engine.extend(&hold, lease, retry_until).await {
        Ok(()) if !admission.grant().is_lost() => Ok(Some(admission)),
        Err(Failure::NotHeld) if engine.runtime_is_gone() => Err(Failure::ShutDown),
        // The outer hold is gone, perhaps after the answer and before this poll.
        Ok(()) | Err(Failure::Lost(_) | Failure::NotHeld) => Ok(None),
        Err(Failure::Unconfirmed(cause)) => Err(Failure::Store(cause)),
        Err(error) => Err(error),
    }
}

/// Waits until the caller is in a lane.
async fn enter(request: &mut Request) -> Result<(Arc<Lane>, Entry), Failure> {
    let engine = Arc::clone(&request.engine);
    // Before anything is taken: a recorder may panic.
    let (_counted, waiting) = Counted::new(&engine);
    let wish = Wish {
        kind: request.spec.kind,
        lease: request.lease,
        max_hold: request.max_hold,
        min_hold: request.min_hold,
        replication: request.replication,
        wait: request.wait,
        guest: false,
        gated: None,
        part: None,
        scope: Scope::current(),
        task: Caller::current(),
    };
    // A call that enters again does not wait, so it may pass a cap.
    let full = waiting >= engine.settings.max_waiters;
    let mut cap = if full { Cap { most: 0, name: "max_waiters" } } else { cap(request) };
    loop {
        let (lane, _own, enqueued, now) = find_place(request, &wish, cap).map_err(|error| match error {
            Failure::TooManyWaiters { cap, remaining, .. } if full => {
                Failure::TooManyWaiters { waiting, cap, remaining }
            }
            error => error,
        })?;
        request.asked.get_or_insert(now);
        match enqueued {
            Enqueued::Entered(entry) => return Ok((lane, entry)),
            // The lane takes nobody any more.
            Enqueued::Elsewhere => {}
            Enqueued::Waiting(id) => {
                let mut waiting = Waiting {
                    request,
                    lane: &lane,
                    id,
                    timer: None,
                    grace: None,
                    queued: true,
                    warned: false,
                };
                let entered = std::future::poll_fn(|cx| waiting.poll(cx)).await?;
                drop(waiting);
                if let Some(entry) = entered {
                    return Ok((lane, entry));
                }
                // It has to ask again, in another lane, and has its place among those who wait.
                cap.most = usize::MAX;
            }
        }
    }
}

/// How many callers may wait for the key.
fn cap(request: &Request) -> Cap {
    let settings = &request.engine.settings;
    let mut cap = Cap { most: settings.max_waiters_per_key, name: "max_waiters_per_key" };
    if request.spec.is_fair() && settings.max_fair_waiters_per_key < cap.most {
        cap = Cap { most: settings.max_fair_waiters_per_key, name: "max_fair_waiters_per_key" };
    }
    if request.max_waiters < cap.most {
        cap = Cap { most: request.max_waiters, name: "max_waiters of this lock" };
    }
    cap
}

/// A caller in a queue. Dropped, it leaves.
struct Waiting<'r> {
    request: &'r Request,
    lane: &'r Arc<Lane>,
    id: u64,
    /// Made when the wait turns out to be one.
    timer: Option<Pin<Box<Timer>>>,
    /// Until when it goes on after its end, for an answer that nobody has had yet.
    grace: Option<Tick>,
    queued: bool,
    /// Its task was told that it waits for itself.
    warned: bool,
}

type Place = (Arc<Lane>, Option<OwnPlace>, Enqueued, Tick);

/// Finds the lane for the caller and puts it there: beside an enclosing call's hold, in the lane that it shares with
/// others, or in one of its own.
fn find_place(request: &Request, wish: &Wish, cap: Cap) -> Result<Place, Failure> {
    let (engine, key, kind) = (&request.engine, &request.key, request.spec.kind);
    // Permits are not locks, and are never entered again.
    if request.spec.permits == 0
        && !wish.scope.is_empty()
        && let Some(host) = engine.host(key, kind, &wish.scope)?
    {
        let guest = Wish { guest: host.guest, part: host.part, ..wish.clone() };
        let entered = engine
            .with_host(&host.lane, |machine, now, effects| (machine.enqueue(guest, now, cap, effects), now));
        match entered {
            None | Some((Ok(Enqueued::Elsewhere), _)) => {}
            Some((enqueued, now)) => return Ok((host.lane, None, enqueued?, now)),
        }
    }
    let usual = request.lease.is_renewed && request.lease.retention == engine.settings.token_retention;
    let shares_reads = usual && request.max_hold.is_none() && request.min_hold.is_zero();
    let lane_kind = match kind {
        _ if !request.spec.more.is_empty() || request.spec.permits > 0 => LaneKind::Own,
        Kind::Mutex => LaneKind::Mutex,
        Kind::Write => LaneKind::Write,
        Kind::Read if shares_reads => LaneKind::Read,
        _ => LaneKind::Own,
    };
    if lane_kind == LaneKind::Read && wish.wait == Wait::No {
        // A shared hold that takes nobody any more is no obstacle to a reader.
        let joined = engine.registry.find(key, lane_kind).and_then(|lane| {
            let entered =
                engine.with_host(&lane, |machine, now, _| Some((machine.join(wish, now)?, now)))??;
            Some((lane, entered))
        });
        if let Some((lane, (entry, now))) = joined {
            return Ok((lane, None, Enqueued::Entered(entry), now));
        }
        return enter_own(request, wish, cap);
    }
    if lane_kind == LaneKind::Own {
        return enter_own(request, wish, cap);
    }
    let (lane, (enqueued, now)) = engine.with_lane(key, lane_kind, &request.spec, |machine, now, effects| {
        (machine.enqueue(wish.clone(), now, cap, effects), now)
    });
    let enqueued = enqueued?;
    if let Enqueued::Elsewhere = enqueued {
        // It takes nobody any more, so the next one is another.
        engine.registry.detach(&lane);
    }
    Ok((lane, None, enqueued, now))
}

fn enter_own(request: &Request, wish: &Wish, cap: Cap) -> Result<Place, Failure> {
    let engine = &request.engine;
    let key = (request.key.clone(), request.spec.permits > 0);
    let full = |waiting| {
        let taken = engine.registry.taken_in_own(&key, engine.clock.now());
        cap.refuse(waiting, taken.ok().flatten())
    };
    let mut own = OwnPlace::new(engine, key.clone(), cap.most).map_err(full)?;
    // One who wants permits waits in line for its turn, which ends with its wait, polled or not.
    let gated = match request.wait {
        _ if request.spec.permits == 0 => None,
        Wait::No => None,
        Wait::For(wait) => Some(request.asked.unwrap_or_else(|| engine.clock.now()) + wait + engine.grace()),
        Wait::Forever => Some(Tick::MAX),
    };
    let wish = Wish { gated, ..wish.clone() };
    let (lane, (enqueued, now)) =
        engine.with_lane(&request.key, LaneKind::Own, &request.spec, |machine, now, effects| {
            (machine.enqueue(wish, now, Cap { most: 1, ..cap }, effects), now)
        });
    let enqueued = enqueued?;
    if let Enqueued::Waiting(id) = enqueued
        && gated.is_some()
    {
        own.stand_in_line(&lane, id);
    }
    Ok((lane, Some(own), enqueued, now))
}

impl Waiting<'_> {
    fn started(&self) -> Tick {
        self.request.asked.unwrap_or_default()
    }

    /// `None`: it has to ask again, in another lane.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Entry>, Failure>> {
        let id = self.id;
        let (polled, now) = self
            .request
            .engine
            .act(self.lane, |machine, now, effects| (machine.poll_waiter(id, now, cx.waker(), effects), now));
        match polled {
            Polled::Granted(entry) => {
                self.queued = false;
                return Poll::Ready(Ok(Some(entry)));
            }
            Polled::Elsewhere => {
                self.queued = false;
                return Poll::Ready(Ok(None));
            }
            Polled::Failed(error) => {
                self.queued = false;
                return Poll::Ready(Err(error));
            }
            Polled::Pending => {}
        }
        let engine = &self.request.engine;
        let timeout = engine.settings.call_timeout;
        let replicas = self.request.replication.timeout();
        let mut end = match self.request.wait {
            Wait::Forever => return self.poll_forever(cx, now),
            Wait::For(wait) => self.started() + wait,
            // An answer ends it, at the latest that of the call after the one under way: two call
            // time-outs, and one for what each takes longer.
            Wait::No => self.started() + timeout * 3 + replicas * 2,
        };
        if now >= end {
            let grace = engine.grace();
            let unanswered =
                engine.act(self.lane, |machine, now, _| machine.awaits_first_answer(id, now, grace));
            // From now on, and not from the end: the answer may have come while this process stood
            // still. Replicas may be about to confirm it.
            end = *self.grace.get_or_insert(now + grace + replicas.min(timeout));
            if !unanswered || now >= end {
                return Poll::Ready(Err(self.give_up(now, unanswered)));
            }
        }
        ready!(self.poll_timer(cx, end.since(now)));
        // The timer is through. It may have been early: by the clock, which counts differently, or because the
        // manager's runtime is gone, which the machine knows by the next poll.
        self.timer = None;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// A wait without an end that is one for its own task is told of after a while.
    fn poll_forever<T>(&mut self, cx: &mut Context<'_>, now: Tick) -> Poll<T> {
        let (id, due) = (self.id, self.started() + self.request.engine.settings.default_wait);
        let watches =
            !self.warned && self.request.engine.act(self.lane, |machine, _, _| machine.waits_for_itself(id));
        if watches && now >= due {
            self.warned = true;
            self.warn_of_itself();
        } else if watches && self.poll_timer(cx, due.since(now)).is_ready() {
            self.timer = None;
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn warn_of_itself(&self) {
        tracing::warn!(
            target: TARGET,
            key = %self.request.key,
            "a task waited in vain for a lock that it holds itself; enter it again with `guard.reenter()` or inside \
             `guard.scope(…)`"
        );
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>, left: Duration) -> Poll<()> {
        let engine = &self.request.engine;
        let timer = self.timer.get_or_insert_with(|| Box::pin(time::sleep(&engine.runtime, left)));
        timer.as_mut().poll(cx)
    }

    /// The wait is over. `unanswered`: the store has not answered anything for all of it.
    fn give_up(&mut self, now: Tick, unanswered: bool) -> Failure {
        self.queued = false;
        let id = self.id;
        let engine = &self.request.engine;
        let (last_error, remaining, own, gated) = engine.act(self.lane, |machine, now, effects| {
            let (remaining, own) = (machine.taken_for(now), machine.waits_for_itself(id));
            let gated = machine.is_gated(id);
            machine.leave(id, now, effects);
            (machine.pace.last_error_for(self.request.replication), remaining, own, gated)
        });
        // One whose turn has not come knows what the first in line was told.
        let told = gated.then(|| engine.registry.taken_in_own(&self.lane.own_key(), now));
        let (last_error, remaining) = match told {
            Some(Ok(taken)) => (last_error, taken),
            Some(Err(error)) => (Some(error), remaining),
            None => (last_error, remaining),
        };
        if own {
            self.warn_of_itself();
        }
        let waited = now.since(self.started());
        // Somebody may have been seen to have it before this call came.
        let nobody_seen = unanswered && remaining.is_none() || self.request.wait == Wait::No;
        let last_error = last_error.or_else(|| nobody_seen.then(|| no_answer(waited)));
        Failure::wait_over(last_error, waited, remaining)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.queued {
            let id = self.id;
            self.request.engine.act(self.lane, |machine, now, effects| machine.leave(id, now, effects));
        }
    }
}

fn record(request: &Request, span: &tracing::Span, outcome: Result<&Entry, &Failure>) {
    let outcome = match outcome {
        Ok(entry) => {
            span.record("token", entry.first().1.get());
            if entry.handed_off {
                "handed_off"
            } else if entry.reentrant {
                "reentered"
            } else {
                "granted"
            }
        }
        Err(Failure::Busy { .. }) => "busy",
        Err(Failure::TimedOut { .. }) => "timed_out",
        Err(Failure::TooManyWaiters { .. }) => "too_many_waiters",
        Err(Failure::Store(cause)) if cause.kind().is_misconfiguration() => "misconfigured",
        Err(Failure::Store(cause)) if cause.kind() == StoreErrorKind::NotReplicated => "not_replicated",
        Err(Failure::Store(_)) => "unavailable",
        Err(Failure::ShutDown) => "shut_down",
        // `Misconfigured` or `KindConflict`: an acquire has no other failure.
        Err(_) => "misconfigured",
    };
    span.record("outcome", outcome);
    let _entered = span.enter();
    // Read only by who listens: the clock costs as much as a local hand-off.
    let now = || request.engine.clock.now();
    let took = || now().since(request.asked.unwrap_or_else(now));
    tracing::debug!(target: TARGET, outcome, took = ?took(), "acquire");
    metrics::acquired(&request.label, outcome, took);
    if outcome == "handed_off" {
        metrics::handed_off();
    }
}
