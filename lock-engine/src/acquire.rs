//! [`acquire`]: brings a caller into a lane.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::{catch_panics, lock};
use lock_core::internal::time::{self, Timer};
use lock_core::store::{Kind, StoreErrorKind};

use super::Host;
use super::admission::Admission;
use super::caller::Caller;
use super::grant::Entry;
use super::hold::drift_margin;
use super::lane::{Lane, State};
use super::machine::{Ask, Cap, Enqueued, Input, Polled};
use super::places::{Counted, OwnPlace};
use super::request::Request;
use super::scope::Scope;
use super::spec::LaneKind;
use crate::failure::{Failure, no_answer};
use crate::metrics;
use crate::terms::{Lease, Terms, Wait};
use crate::trace::TARGET;

/// The key that a caller does not get, and why.
pub type Refused = (LockKey, Failure);

/// Waits for the keys of one request; those that an enclosing call holds are entered again.
///
/// Dropped, it leaves the queue, and what has just been granted goes to the next waiter or is
/// released.
pub async fn acquire(mut request: Request) -> Result<Admission, Refused> {
    let call_timeout = request.engine.settings.call_timeout;
    let Terms { wait, lease, replication, .. } = request.terms;
    let longest_call = match wait {
        Wait::No => call_timeout,
        Wait::For(wait) => wait.max(call_timeout),
        Wait::Forever => Duration::MAX,
    };
    request.terms.replication = replication.within(longest_call.min(lease.duration / 2));
    let mut asked = request.asked;
    loop {
        match acquire_once(&request, &mut asked).await {
            Ok(Some(admission)) => return Ok(admission),
            Ok(None) => {}
            Err(failure) => return Err((request.key, failure)),
        }
    }
}

/// `None`: what was entered is gone already, so the call stands in line like everybody else.
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
    let entry = match enter(request, asked).await {
        Ok(entered) => entered,
        Err(error) => {
            record(request, *asked, &span, Err(&error));
            return Err(error);
        }
    };
    let Terms { wait, lease, .. } = request.terms;
    let (Lease { duration, is_renewed, .. }, recorded) = (lease, entry.clone());
    let admission = Admission::new(Arc::clone(engine), entry, lease, request.label.clone());
    // The admission is there first: a panicking subscriber or recorder must not leak the hold.
    record(request, *asked, &span, Ok(&recorded));
    drop(span);
    let grant = recorded.grant;
    let hold = &grant.hold;
    // A longer fixed lease inside a shorter one takes one store call.
    let ends = || (engine.clock.now() + duration).saturating_sub(drift_margin(duration));
    if !admission.entry().reentrant || is_renewed || hold.is_renewing() || hold.deadline() >= ends() {
        return Ok(Some(admission));
    }
    let retry_until = match wait {
        Wait::No => Tick::default(),
        Wait::For(wait) => asked.unwrap_or_default() + wait,
        Wait::Forever => Tick::MAX,
    };
    match engine.extend(&grant.lane, hold, duration, retry_until).await {
        Ok(()) if !admission.grant().is_lost() => Ok(Some(admission)),
        Err(Failure::NotHeld) if engine.runtime_is_gone() => Err(Failure::ShutDown),
        // The outer hold is gone, perhaps after the answer and before this poll.
        Ok(()) | Err(Failure::Lost(_) | Failure::NotHeld) => Ok(None),
        Err(Failure::Unconfirmed(cause)) => Err(Failure::Store(cause)),
        Err(error) => Err(error),
    }
}

/// Waits until the caller is in a lane.
async fn enter(request: &Request, asked: &mut Option<Tick>) -> Result<Entry, Failure> {
    let engine = &request.engine;
    // Before anything is taken: a recorder may panic.
    let (_counted, waiting) = Counted::new(engine);
    let (scope, task) = (Scope::current(), Caller::current());
    // A call that enters again does not wait, so it may pass a cap.
    let full = waiting >= engine.settings.max_waiters;
    let mut cap = if full { Cap { most: 0, name: "max_waiters" } } else { cap(request) };
    loop {
        let place =
            Finding { request, asked: *asked, scope: &scope, task, cap }.find().map_err(
                |error| match error {
                    Failure::TooManyWaiters { cap, remaining, .. } if full => {
                        Failure::TooManyWaiters { waiting, cap, remaining }
                    }
                    error => error,
                },
            )?;
        let Place { lane, own: _own, enqueued, now } = place;
        let started = *asked.get_or_insert(now);
        match enqueued {
            Enqueued::Entered(entry) => return Ok(entry),
            // The lane takes nobody any more.
            Enqueued::Elsewhere => {}
            Enqueued::Waiting(id) => {
                let lane = &lane;
                let mut waiting = Waiting {
                    request,
                    started,
                    lane,
                    id,
                    task,
                    timer: None,
                    grace: None,
                    queued: true,
                    warned: false,
                };
                let entered = std::future::poll_fn(|cx| waiting.poll(cx)).await?;
                drop(waiting);
                if let Some(entry) = entered {
                    return Ok(entry);
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
    started: Tick,
    lane: &'r Arc<Lane>,
    id: u64,
    task: Option<Caller>,
    /// Made when the wait turns out to be one.
    timer: Option<Pin<Box<Timer>>>,
    /// Until when it goes on after its end, for an answer that nobody has had yet.
    grace: Option<Tick>,
    queued: bool,
    /// Its task was told that it waits for itself.
    warned: bool,
}

/// Where a caller was put, and when.
struct Place {
    lane: Arc<Lane>,
    own: Option<OwnPlace>,
    enqueued: Enqueued<Entry>,
    now: Tick,
}

/// A caller that looks for its lane.
struct Finding<'r> {
    request: &'r Request,
    asked: Option<Tick>,
    scope: &'r Scope,
    task: Option<Caller>,
    cap: Cap,
}

impl Finding<'_> {
    fn ask(&self, lane: &Arc<Lane>) -> Ask {
        let (kind, terms) = (self.request.spec.kind, self.request.terms);
        Ask { kind, terms, inside: self.scope.inside(lane), guest: false, gated: None, part: None }
    }

    fn enqueue(
        &self,
        lane: &Arc<Lane>,
        state: &mut State,
        ask: Ask,
        cap: Cap,
        now: Tick,
    ) -> Result<(Enqueued<Entry>, Tick), Failure> {
        let enqueued = match state.machine.enqueue(ask, cap, now)? {
            Enqueued::Entered(pass) => Enqueued::Entered(state.admit(lane, pass, self.task, now)),
            Enqueued::Waiting(id) => Enqueued::Waiting(id),
            Enqueued::Elsewhere => Enqueued::Elsewhere,
        };
        Ok((enqueued, now))
    }

    /// Finds the lane for the caller and puts it there: beside an enclosing call's hold, in the
    /// lane that it shares with others, or in one of its own.
    fn find(&self) -> Result<Place, Failure> {
        let Request { engine, key, spec, terms, .. } = self.request;
        let kind = spec.kind;
        // Permits are not locks, and are never entered again.
        if spec.permits == 0
            && !self.scope.is_empty()
            && let Some(Host { lane, guest, part }) = engine.host(key, kind, self.scope)?
        {
            let entered = engine.with_host(&lane, |state, now| {
                let ask = Ask { guest, part, ..self.ask(&lane) };
                self.enqueue(&lane, state, ask, self.cap, now)
            });
            match entered {
                None | Some(Ok((Enqueued::Elsewhere, _))) => {}
                Some(entered) => {
                    let (enqueued, now) = entered?;
                    return Ok(Place { lane, own: None, enqueued, now });
                }
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
            // A shared hold that takes nobody any more is no obstacle to a reader.
            LaneKind::Read if terms.is_try() => self.join().map_or_else(|| self.enter_own(), Ok),
            LaneKind::Own => self.enter_own(),
            _ => {
                let (lane, entered) = engine.with_lane(key, lane_kind, spec, |lane, state, now| {
                    self.enqueue(lane, state, self.ask(lane), self.cap, now)
                });
                let (enqueued, now) = entered?;
                if let Enqueued::Elsewhere = enqueued {
                    // It takes nobody any more, so the next one is another.
                    engine.registry.detach(&lane);
                }
                Ok(Place { lane, own: None, enqueued, now })
            }
        }
    }

    /// Joins the readers of a shared hold, if there is one that takes them.
    fn join(&self) -> Option<Place> {
        let engine = &self.request.engine;
        let lane = engine.registry.find(&self.request.key, LaneKind::Read)?;
        let (entry, now) = engine.with_host(&lane, |state, now| {
            let pass = state.machine.join(&self.ask(&lane), now)?;
            Some((state.admit(&lane, pass, self.task, now), now))
        })??;
        Some(Place { lane, own: None, enqueued: Enqueued::Entered(entry), now })
    }

    fn enter_own(&self) -> Result<Place, Failure> {
        let Request { engine, key, spec, terms, .. } = self.request;
        let own_key = (key.clone(), spec.permits > 0);
        let full = |waiting| {
            let taken = engine.registry.taken_in_own(&own_key, engine.clock.now());
            self.cap.refuse(waiting, taken.ok().flatten())
        };
        let mut own = OwnPlace::new(engine, own_key.clone(), self.cap.most).map_err(full)?;
        // One who wants permits waits in line for its turn, which ends with its wait, polled or
        // not.
        let gated = match terms.wait {
            _ if spec.permits == 0 => None,
            Wait::No => None,
            Wait::For(wait) => Some(self.asked.unwrap_or_else(|| engine.clock.now()) + wait + engine.grace()),
            Wait::Forever => Some(Tick::MAX),
        };
        let (lane, entered) = engine.with_lane(key, LaneKind::Own, spec, |lane, state, now| {
            self.enqueue(lane, state, Ask { gated, ..self.ask(lane) }, Cap { most: 1, ..self.cap }, now)
        });
        let (enqueued, now) = entered?;
        if let (Enqueued::Waiting(id), Some(_)) = (&enqueued, gated) {
            own.stand_in_line(&lane, *id);
        }
        Ok(Place { lane, own: Some(own), enqueued, now })
    }
}

impl Waiting<'_> {
    /// `None`: it has to ask again, in another lane.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Entry>, Failure>> {
        let id = self.id;
        let (polled, waker, now) = self.request.engine.with(self.lane, |state, now| {
            let polled = match state.machine.poll_waiter(id, now) {
                Polled::Pending => return (None, state.listen(id, cx.waker()), now),
                Polled::Granted(pass) => Ok(Some(state.admit(self.lane, pass, self.task, now))),
                Polled::Failed(failure) => Err(failure),
                Polled::Elsewhere => Ok(None),
            };
            (Some(polled), state.wakers.remove(&id), now)
        });
        // It may own a task, and so a guard of this lane.
        catch_panics(|| drop(waker));
        if let Some(polled) = polled {
            self.queued = false;
            return Poll::Ready(polled);
        }
        let engine = &self.request.engine;
        let timeout = engine.settings.call_timeout;
        let replicas = self.request.terms.replication.timeout();
        let mut end = match self.request.terms.wait {
            Wait::Forever => return self.poll_forever(cx, now),
            Wait::For(wait) => self.started + wait,
            // An answer ends it, at the latest that of the call after the one under way: two call
            // time-outs, and one for what each takes longer.
            Wait::No => self.started + timeout * 3 + replicas * 2,
        };
        if now >= end {
            let grace = engine.grace();
            let unanswered =
                engine.with(self.lane, |state, now| state.machine.awaits_first_answer(id, now, grace));
            // From now on, and not from the end: the answer may have come while this process stood
            // still. Replicas may be about to confirm it.
            end = *self.grace.get_or_insert(now + grace + replicas.min(timeout));
            if !unanswered || now >= end {
                return Poll::Ready(Err(self.give_up(now, unanswered)));
            }
        }
        ready!(self.poll_timer(cx, end.since(now)));
        // The timer is through. It may have been early: by the clock, which counts differently, or
        // because the manager's runtime is gone, which the machine knows by the next poll.
        self.timer = None;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// A wait without an end that is one for its own task is told of after a while.
    fn poll_forever<T>(&mut self, cx: &mut Context<'_>, now: Tick) -> Poll<T> {
        let due = self.started + self.request.engine.settings.default_wait;
        let watches = !self.warned && lock(&self.lane.state).is_held_by(self.task);
        if watches && now >= due {
            self.warned = true;
            self.warn_of_itself();
        } else if watches && self.poll_timer(cx, due.since(now)).is_ready() {
            self.timer = None;
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.queued) {
            let waker = self.request.engine.with(self.lane, |state, now| {
                state.machine.handle(Input::Leave(self.id), now);
                state.wakers.remove(&self.id)
            });
            catch_panics(|| drop(waker));
        }
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
        let engine = &self.request.engine;
        let state = lock(&self.lane.state);
        let (machine, own) = (&state.machine, state.is_held_by(self.task));
        let (remaining, gated) = (machine.taken_for(now), machine.is_gated(self.id));
        let last_error = machine.retry.last_error_for(self.request.terms.replication);
        drop(state);
        self.leave();
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
        let waited = now.since(self.started);
        // Somebody may have been seen to have it before this call came.
        let nobody_seen = unanswered && remaining.is_none() || self.request.terms.is_try();
        let last_error = last_error.or_else(|| nobody_seen.then(|| no_answer(waited)));
        Failure::wait_over(last_error, waited, remaining)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

fn record(request: &Request, asked: Option<Tick>, span: &tracing::Span, outcome: Result<&Entry, &Failure>) {
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
    let took = || now().since(asked.unwrap_or_else(now));
    tracing::debug!(target: TARGET, outcome, took = ?took(), "acquire");
    metrics::acquired(&request.label, outcome, took);
    if outcome == "handed_off" {
        metrics::handed_off();
    }
}
