//! [`acquire`]: brings a caller into a lane, and waits there for its turn.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use lock_core::LockKey;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::{catch_panics, lock};
use lock_core::internal::time::{self, Timer};
use lock_core::store::kit::no_answer;
use lock_core::store::{Kind, StoreErrorKind};

use super::admission::Admission;
use super::caller::Caller;
use super::grant::Grant;
use super::hold::drift_margin;
use super::lane::{Lane, State};
use super::machine::{Ask, Cap, Enqueued, Input};
use super::places::{Counted, OwnPlace};
use super::request::Request;
use super::scope::Scope;
use super::spec::LaneKind;
use crate::failure::Failure;
use crate::metrics;
use crate::terms::{Lease, Terms, Wait};
use crate::trace::TARGET;

/// The key that could not be acquired, and why.
pub type Refused = (LockKey, Failure);

/// Waits for the keys of one request; keys that an enclosing call holds are re-entered.
///
/// Dropping the future leaves the queue. A hold that was just granted goes to the next waiter or is
/// released.
pub async fn acquire(mut request: Request) -> Result<Admission, Refused> {
    let call_timeout = request.engine.settings.call_timeout;
    let Terms { wait, lease, replication, .. } = request.terms;
    let longest_call = wait.limit().max(call_timeout).min(lease.duration / 2);
    request.terms.replication = replication.within(longest_call);
    let mut asked = request.asked;
    loop {
        match acquire_once(&request, &mut asked).await {
            Ok(Some(admission)) => return Ok(admission),
            Ok(None) => {}
            Err(failure) => return Err((request.key, failure)),
        }
    }
}

/// Makes one attempt. `None` means that the re-entered hold was gone already, so the caller has to
/// queue like any other.
async fn acquire_once(request: &Request, asked: &mut Option<Tick>) -> Result<Option<Admission>, Failure> {
    if let Some(failure) = request.refusal() {
        return Err(failure);
    }
    let engine = &request.engine;
    let span = tracing::debug_span!(
        target: TARGET,
        "lock_acquire",
        key = %request.key,
        wait = ?request.terms.wait,
        token = tracing::field::Empty,
        outcome = tracing::field::Empty,
    );
    let grant = match enter(request, asked).await {
        Ok(entered) => entered,
        Err(error) => {
            record(request, *asked, &span, Err(&error));
            return Err(error);
        }
    };
    let Terms { wait, lease, .. } = request.terms;
    let Lease { duration, is_renewed, .. } = lease;
    let admission = Admission::new(Arc::clone(engine), grant, request.label.clone());
    // Made before recording: a panicking subscriber or recorder must not leak the hold.
    let grant = admission.grant();
    record(request, *asked, &span, Ok(grant));
    drop(span);
    let hold = &grant.pass.hold;
    // A longer fixed lease inside a shorter one takes one store call.
    let ends = || (engine.clock.now() + duration).saturating_sub(drift_margin(duration));
    if !grant.pass.reentrant || is_renewed || grant.is_renewed() || hold.deadline() >= ends() {
        return Ok(Some(admission));
    }
    let retry_until = asked.unwrap_or_default() + wait.limit();
    match engine.extend(&grant.lane, hold, move |_| duration, retry_until).await {
        Ok(()) if !grant.is_lost() => Ok(Some(admission)),
        Err(Failure::NotHeld) if engine.runtime_is_gone() => Err(Failure::ShutDown),
        // The outer hold is gone, perhaps after the answer and before this poll.
        Ok(()) | Err(Failure::Lost(_) | Failure::NotHeld) => Ok(None),
        Err(Failure::Unconfirmed(cause)) => Err(Failure::Store(cause)),
        Err(error) => Err(error),
    }
}

/// Waits until the caller is in a lane.
async fn enter(request: &Request, asked: &mut Option<Tick>) -> Result<Arc<Grant>, Failure> {
    let engine = &request.engine;
    // Counted before anything is taken: a recorder may panic.
    let (_counted, waiting) = Counted::new(engine);
    let task = Caller::current();
    // A re-entrant call does not wait, so the cap does not apply to it.
    let full = waiting >= engine.settings.max_waiters;
    let cap = if full { Cap { most: 0, name: "max_waiters", all: Some(waiting) } } else { cap(request) };
    let mut finding = Finding { request, asked, scope: Scope::current(), task, cap };
    loop {
        let Place { lane, own: _own, enqueued } = finding.find()?;
        match enqueued {
            Enqueued::Entered(grant) => return Ok(grant),
            // The lane does not take this caller: find another one.
            Enqueued::Elsewhere => {}
            Enqueued::Waiting(id) => {
                let started = finding.asked.unwrap_or_default();
                let lane = &lane;
                let (timer, grace, queued, warned) = (None, None, true, false);
                let mut waiting = Waiting { request, started, lane, id, task, timer, grace, queued, warned };
                if let Some(grant) = std::future::poll_fn(|cx| waiting.poll(cx)).await? {
                    return Ok(grant);
                }
                // The caller asks again in another lane, and has passed the cap already.
                finding.cap.most = usize::MAX;
            }
        }
    }
}

/// Returns the cap on the callers that wait for the key.
fn cap(request: &Request) -> Cap {
    let settings = &request.engine.settings;
    let mut cap = Cap { most: settings.max_waiters_per_key, name: "max_waiters_per_key", all: None };
    if request.spec.is_fair() && settings.max_fair_waiters_per_key < cap.most {
        (cap.most, cap.name) = (settings.max_fair_waiters_per_key, "max_fair_waiters_per_key");
    }
    if request.max_waiters < cap.most {
        (cap.most, cap.name) = (request.max_waiters, "max_waiters of this lock");
    }
    cap
}

/// A caller in a queue, which it leaves when dropped.
struct Waiting<'r> {
    request: &'r Request,
    started: Tick,
    lane: &'r Arc<Lane>,
    id: u64,
    task: Option<Caller>,
    /// Created once the caller really has to wait.
    timer: Option<Pin<Box<Timer>>>,
    /// End of the extra time after the wait, in which the store's first answer may still arrive.
    grace: Option<Tick>,
    queued: bool,
    /// Whether the caller was warned that its own task holds the lock.
    warned: bool,
}

/// The lane and the position in which a caller was put.
struct Place {
    lane: Arc<Lane>,
    own: Option<OwnPlace>,
    enqueued: Enqueued<Arc<Grant>>,
}

/// A caller that looks for its lane.
struct Finding<'r> {
    request: &'r Request,
    /// When the wait began.
    asked: &'r mut Option<Tick>,
    scope: Scope,
    task: Option<Caller>,
    cap: Cap,
}

impl Finding<'_> {
    fn ask(&self, lane: &Arc<Lane>) -> Ask {
        let (kind, terms) = (self.request.spec.kind, self.request.terms);
        Ask { kind, terms, inside: self.scope.inside(lane), guest: false, gated: None, part: None }
    }

    fn enqueue(
        &mut self,
        lane: &Arc<Lane>,
        state: &mut State,
        ask: Ask,
        cap: Cap,
        now: Tick,
    ) -> Result<Enqueued<Arc<Grant>>, Failure> {
        self.asked.get_or_insert(now);
        Ok(match state.machine.enqueue(ask, cap, now)? {
            Enqueued::Entered(pass) => Enqueued::Entered(state.admit(lane, pass, self.task, now)),
            Enqueued::Waiting(id) => Enqueued::Waiting(id),
            Enqueued::Elsewhere => Enqueued::Elsewhere,
        })
    }

    /// Finds the lane for the caller and enqueues it there. It is the lane of an enclosing call's
    /// hold, a lane shared with other callers, or a new lane for this caller alone.
    fn find(&mut self) -> Result<Place, Failure> {
        let Request { engine, key, spec, terms, .. } = self.request;
        let kind = spec.kind;
        // Permits are not locks, and are never re-entered.
        if spec.permits == 0
            && !self.scope.is_empty()
            && let Some((lane, part)) = engine.host(key, kind, &self.scope)?
        {
            let entered = engine.with_host(&lane, |state, now| {
                // Once the host's grant has ended, a guest has to ask elsewhere.
                let guest = lane.spec.kind != kind || part.is_some();
                let ask = Ask { guest, part, ..self.ask(&lane) };
                self.enqueue(&lane, state, ask, self.cap, now)
            });
            match entered {
                None | Some(Ok(Enqueued::Elsewhere)) => {}
                Some(entered) => return Ok(Place { lane, own: None, enqueued: entered? }),
            }
        }
        let usual = terms.lease.is_renewed && terms.lease.retention == engine.settings.token_retention;
        let shares_reads = usual && terms.max_hold.is_none() && terms.min_hold.is_zero();
        let lane_kind = match kind {
            _ if !spec.more.is_empty() || spec.permits > 0 => LaneKind::Own,
            Kind::Mutex => LaneKind::Mutex,
            Kind::Write => LaneKind::Write,
            Kind::Read if shares_reads => LaneKind::Read,
            _ => LaneKind::Own,
        };
        match lane_kind {
            // A sealed shared hold is no obstacle to a reader.
            LaneKind::Read if terms.is_try() => self.join().map_or_else(|| self.enter_own(), Ok),
            LaneKind::Own => self.enter_own(),
            _ => {
                let (lane, entered) = engine.with_lane(key, lane_kind, spec, |lane, state, now| {
                    self.enqueue(lane, state, self.ask(lane), self.cap, now)
                });
                let enqueued = entered?;
                if let Enqueued::Elsewhere = enqueued {
                    // The lane is sealed; detach it, so that the next lookup makes a fresh one.
                    engine.registry.detach(&lane);
                }
                Ok(Place { lane, own: None, enqueued })
            }
        }
    }

    /// Joins the readers of a shared hold, if there is one that still takes readers.
    fn join(&mut self) -> Option<Place> {
        let engine = &self.request.engine;
        let lane = engine.registry.find(&self.request.key, LaneKind::Read)?;
        let grant = engine.with_host(&lane, |state, now| {
            let pass = state.machine.join(&self.ask(&lane), now)?;
            self.asked.get_or_insert(now);
            Some(state.admit(&lane, pass, self.task, now))
        })??;
        Some(Place { lane, own: None, enqueued: Enqueued::Entered(grant) })
    }

    fn enter_own(&mut self) -> Result<Place, Failure> {
        let Request { engine, key, spec, terms, .. } = self.request;
        let own_key = (key.clone(), spec.permits > 0);
        let full = |waiting| {
            let taken = engine.registry.taken_in_own(&own_key, engine.clock.now());
            self.cap.refuse(waiting, taken.ok().flatten())
        };
        let mut own = OwnPlace::new(engine, own_key.clone(), self.cap.most).map_err(full)?;
        // A caller that wants permits stands in line for its turn, which ends with its wait, polled
        // or not.
        let asked = || self.asked.unwrap_or_else(|| engine.clock.now());
        let gated =
            (spec.permits > 0 && !terms.is_try()).then(|| asked() + terms.wait.limit() + engine.grace());
        let (lane, entered) = engine.with_lane(key, LaneKind::Own, spec, |lane, state, now| {
            self.enqueue(lane, state, Ask { gated, ..self.ask(lane) }, Cap { most: 1, ..self.cap }, now)
        });
        let enqueued = entered?;
        if let (Enqueued::Waiting(id), Some(_)) = (&enqueued, gated) {
            own.stand_in_line(&lane, *id);
        }
        Ok(Place { lane, own: Some(own), enqueued })
    }
}

impl Waiting<'_> {
    /// Polls the waiter. `None` means that it has to ask again, in another lane.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Arc<Grant>>, Failure>> {
        let id = self.id;
        let (polled, waker, now) = self.request.engine.with(self.lane, |state, now| {
            let polled = state.machine.poll_waiter(id, now);
            let waker = match polled {
                Poll::Pending => state.listen(id, cx.waker()),
                Poll::Ready(_) => state.wakers.remove(&id),
            };
            let admit = |pass| state.admit(self.lane, pass, self.task, now);
            (polled.map_ok(|pass| pass.map(admit)), waker, now)
        });
        // The waker may own a task, and so a guard of this lane.
        catch_panics(|| drop(waker));
        if polled.is_ready() {
            self.queued = false;
            return polled;
        }
        let engine = &self.request.engine;
        let timeout = engine.settings.call_timeout;
        let replicas = self.request.terms.replication.timeout();
        let mut end = match self.request.terms.wait {
            // An endless wait for a lock that the caller's own task holds is reported after a
            // while.
            Wait::Forever if self.warned || !lock(&self.lane.state).is_held_by(self.task) => {
                return Poll::Pending;
            }
            Wait::Forever => self.started + engine.settings.default_wait,
            Wait::For(wait) => self.started + wait,
            // A try ends with an answer, at the latest that of the call after the current one.
            // Allows for two call time-outs, and one more for their overruns.
            Wait::No => self.started + timeout * 3 + replicas * 2,
        };
        if now >= end && self.request.terms.wait == Wait::Forever {
            self.warned = true;
            self.warn_of_itself();
            return Poll::Pending;
        }
        if now >= end {
            let grace = engine.grace();
            let unanswered =
                engine.with(self.lane, |state, now| state.machine.awaits_first_answer(id, now, grace));
            // Counted from now, not from the end of the wait: the answer may have arrived while
            // this process was paused. Replicas may be about to confirm it.
            end = *self.grace.get_or_insert(now + grace + replicas.min(timeout));
            if !unanswered || now >= end {
                return Poll::Ready(Err(self.give_up(now, unanswered)));
            }
        }
        let sleep = || Box::pin(time::sleep(&engine.runtime, end.since(now)));
        ready!(self.timer.get_or_insert_with(sleep).as_mut().poll(cx));
        // The timer has fired, perhaps early: it and the clock run differently, or the manager's
        // runtime is gone. The machine knows that by the next poll.
        self.timer = None;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn warn_of_itself(&self) {
        tracing::warn!(
            target: TARGET,
            key = %self.request.key,
            "a task waited for a lock that it already holds; enter it again with `guard.reenter()` or inside \
             `guard.scope(…)`"
        );
    }

    /// Ends the wait. `unanswered` means that the store has not answered anything during it.
    fn give_up(&self, now: Tick, unanswered: bool) -> Failure {
        let engine = &self.request.engine;
        let state = lock(&self.lane.state);
        let (machine, own) = (&state.machine, state.is_held_by(self.task));
        let (remaining, gated) = (machine.taken_for(now), machine.is_gated(self.id));
        let last_error = machine.retry.last_error_for(self.request.terms.replication);
        drop(state);
        // A caller whose turn has not come goes by what the first in line was told.
        let told = gated.then(|| engine.registry.taken_in_own(&self.lane.own_key(), now));
        let (last_error, remaining) = match told {
            Some(Ok(taken)) => (last_error, taken),
            Some(Err(error)) => (Some(error), remaining),
            None => (last_error, remaining),
        };
        if own {
            self.warn_of_itself();
        }
        let waited = now.since(self.started);
        // A holder may have been seen before this call came.
        let nobody_seen = unanswered && remaining.is_none() || self.request.terms.is_try();
        let last_error = last_error.or_else(|| nobody_seen.then(|| no_answer(waited)));
        Failure::wait_over(last_error, waited, remaining)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.queued {
            let waker = self.request.engine.with(self.lane, |state, now| {
                state.machine.handle(Input::Leave(self.id), now);
                state.wakers.remove(&self.id)
            });
            catch_panics(|| drop(waker));
        }
    }
}

fn record(request: &Request, asked: Option<Tick>, span: &tracing::Span, outcome: Result<&Grant, &Failure>) {
    let outcome = match outcome {
        Ok(grant) => {
            span.record("token", grant.first().1.get());
            if grant.pass.handed_off {
                "handed_off"
            } else if grant.pass.reentrant {
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
    // Evaluated only if somebody listens: reading the clock costs as much as a local hand-off.
    let now = || request.engine.clock.now();
    let took = || now().since(asked.unwrap_or_else(now));
    tracing::debug!(target: TARGET, outcome, took = ?took(), "acquire");
    metrics::acquired(&request.label, outcome, took);
    if outcome == "handed_off" {
        metrics::handed_off();
    }
}
