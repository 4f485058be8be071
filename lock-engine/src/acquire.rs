//! [`Acquire`]: the future that brings a caller into one lane.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::polled_again;
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

/// Waits for the keys of one request; those that an enclosing call holds are entered again.
///
/// Nothing happens before the first poll. Dropped, it leaves the queue, and what has just been
/// granted goes to the next waiter or is released.
#[must_use = "futures do nothing unless polled"]
pub struct Acquire {
    state: State,
}

/// The key that a caller does not get, and why.
pub(crate) type Refused = (LockKey, Failure);

enum State {
    /// Has its place already, if it has waited elsewhere.
    New(Box<Request>, Option<Counted>),
    Waiting(Box<Waiting>),
    /// The call is inside an own fixed lease that ends too early: one store call makes it longer.
    Extending(Box<Extending>),
    Done,
}

struct Extending {
    admission: Admission,
    request: Box<Request>,
    outcome: Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>,
}

struct Waiting {
    request: Box<Request>,
    lane: Arc<Lane>,
    id: u64,
    started: Tick,
    /// Made when the wait turns out to be one.
    timer: Option<Pin<Box<Timer>>>,
    /// Until when it goes on after its end, for an answer that nobody has had yet.
    grace: Option<Tick>,
    queued: bool,
    /// Its task was told that it waits for itself.
    warned: bool,
    /// In a lane of its own.
    _own: Option<OwnPlace>,
    /// `None`: it goes elsewhere with its place.
    counted: Option<Counted>,
    span: tracing::Span,
}

impl Acquire {
    pub fn new(request: Box<Request>) -> Self {
        Self { state: State::New(request, None) }
    }

    /// Returns where it stands, in a word.
    pub fn state(&self) -> &'static str {
        match &self.state {
            State::New(..) => "new",
            State::Waiting(_) => "waiting",
            State::Extending(_) => "extending",
            State::Done => "done",
        }
    }
}

impl Future for Acquire {
    type Output = Result<Admission, Refused>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match std::mem::replace(&mut self.state, State::Done) {
                State::New(request, counted) => match start(request, counted, cx) {
                    Ok(Started::Waiting(waiting)) => {
                        self.state = State::Waiting(waiting);
                        return Poll::Pending;
                    }
                    Ok(Started::Elsewhere(request, counted)) => self.state = State::New(request, counted),
                    Ok(Started::Entered(Entered::Admitted(admission))) => return Poll::Ready(Ok(admission)),
                    Ok(Started::Entered(Entered::Extending(extending))) => {
                        self.state = State::Extending(extending);
                    }
                    Err(error) => return Poll::Ready(Err(error)),
                },
                State::Waiting(mut waiting) => match waiting.poll(cx) {
                    Poll::Ready(Ok(Some(entry))) => match waiting.enter(entry) {
                        Entered::Admitted(admission) => return Poll::Ready(Ok(admission)),
                        Entered::Extending(extending) => self.state = State::Extending(extending),
                    },
                    Poll::Ready(Ok(None)) => {
                        self.state = State::New(waiting.request.clone(), waiting.counted.take());
                    }
                    Poll::Ready(Err(error)) => {
                        return Poll::Ready(Err((waiting.request.key.clone(), error)));
                    }
                    Poll::Pending => {
                        self.state = State::Waiting(waiting);
                        return Poll::Pending;
                    }
                },
                State::Extending(mut extending) => match extending.outcome.as_mut().poll(cx) {
                    Poll::Pending => {
                        self.state = State::Extending(extending);
                        return Poll::Pending;
                    }
                    Poll::Ready(outcome) => {
                        let Extending { admission, request, .. } = *extending;
                        let error = match outcome {
                            Ok(()) if !admission.grant().is_lost() => return Poll::Ready(Ok(admission)),
                            Err(Failure::NotHeld) if request.engine.runtime_is_gone() => Failure::ShutDown,
                            // The outer hold is gone, perhaps after the answer and before this poll: the call stands
                            // in line like everybody else.
                            Ok(()) | Err(Failure::Lost(_) | Failure::NotHeld) => {
                                drop(admission);
                                self.state = State::New(request, None);
                                continue;
                            }
                            Err(Failure::Unconfirmed(cause)) => Failure::Store(cause),
                            Err(error) => error,
                        };
                        return Poll::Ready(Err((request.key, error)));
                    }
                },
                State::Done => polled_again(),
            }
        }
    }
}

enum Started {
    Entered(Entered),
    /// It has been polled. What is granted at once needs no box.
    Waiting(Box<Waiting>),
    /// It has to ask again, in another lane.
    Elsewhere(Box<Request>, Option<Counted>),
}

fn start(
    mut request: Box<Request>,
    counted: Option<Counted>,
    cx: &mut Context<'_>,
) -> Result<Started, Refused> {
    let engine = &request.engine;
    if let Some(failure) = request.refusal() {
        return Err((request.key.clone(), failure));
    }
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
    let has_its_place = counted.is_some();
    // Before anything is taken: a recorder may panic.
    let (counted, waiting_now) = counted.map_or_else(|| Counted::new(engine), |counted| (counted, 0));
    let wish = Wish {
        kind: request.spec.kind,
        lease: request.lease,
        max_hold: request.max_hold,
        min_hold: request.min_hold,
        replication: request.replication,
        wait: request.wait,
        guest: false,
        gated: request.spec.permits > 0 && request.wait != Wait::No,
        part: None,
        scope: Scope::current(),
        task: Caller::current(),
    };
    // A call that enters again does not wait, so it may pass a cap.
    let full = waiting_now >= engine.settings.max_waiters;
    let of_fair = engine.settings.max_fair_waiters_per_key;
    let per_key = match engine.settings.max_waiters_per_key {
        most if request.spec.is_fair() && of_fair < most => {
            Cap { most: of_fair, name: "max_fair_waiters_per_key" }
        }
        most => Cap { most, name: "max_waiters_per_key" },
    };
    let cap = if has_its_place {
        Cap { most: usize::MAX, name: "max_waiters" }
    } else if full {
        Cap { most: 0, name: "max_waiters" }
    } else if request.max_waiters < per_key.most {
        Cap { most: request.max_waiters, name: "max_waiters of this lock" }
    } else {
        per_key
    };
    let (lane, _own, enqueued, now) = match enter(&request, &wish, cap) {
        Ok(place) => place,
        Err(error) => {
            let error = if full { all_full(error, waiting_now) } else { error };
            let started = request.asked.unwrap_or_else(|| engine.clock.now());
            record(&request, &span, started, Err(&error));
            return Err((request.key.clone(), error));
        }
    };
    let started = *request.asked.get_or_insert(now);
    let (id, queued) = match &enqueued {
        Ok(Enqueued::Waiting(id)) => (*id, true),
        _ => (0, false),
    };
    let counted = Some(counted);
    // From here on, whatever panics leaves the queue.
    let mut waiting = Waiting {
        request,
        lane,
        id,
        started,
        timer: None,
        grace: None,
        queued,
        warned: false,
        _own,
        counted,
        span,
    };
    match enqueued {
        Ok(Enqueued::Entered(entry)) => Ok(Started::Entered(waiting.enter(entry))),
        // `enter` has looked for another place already.
        Ok(Enqueued::Elsewhere) => Err((waiting.request.key.clone(), Failure::ShutDown)),
        Ok(Enqueued::Waiting(_)) => match waiting.poll(cx) {
            Poll::Ready(Ok(Some(entry))) => Ok(Started::Entered(waiting.enter(entry))),
            Poll::Ready(Ok(None)) => Ok(Started::Elsewhere(waiting.request.clone(), waiting.counted.take())),
            Poll::Ready(Err(error)) => Err((waiting.request.key.clone(), error)),
            Poll::Pending => Ok(Started::Waiting(Box::new(waiting))),
        },
        Err(error) => {
            let error = if full { all_full(error, waiting_now) } else { error };
            waiting.record(Err(&error));
            Err((waiting.request.key.clone(), error))
        }
    }
}

/// The cap that was reached is that of all keys together, for which so many wait.
fn all_full(error: Failure, waiting: usize) -> Failure {
    match error {
        Failure::TooManyWaiters { cap, remaining, .. } => Failure::TooManyWaiters { waiting, cap, remaining },
        error => error,
    }
}

type Place = (Arc<Lane>, Option<OwnPlace>, Result<Enqueued, Failure>, Tick);

/// Finds the lane for the caller and puts it there: beside an enclosing call's hold, in the lane that it shares with
/// others, or in one of its own.
fn enter(request: &Request, wish: &Wish, cap: Cap) -> Result<Place, Failure> {
    let (engine, key, kind) = (&request.engine, &request.key, request.spec.kind);
    if !wish.scope.is_empty()
        && let Some(host) = engine.host(key, kind, &wish.scope)?
    {
        let guest = Wish { guest: host.guest, part: host.part, ..wish.clone() };
        let entered = engine
            .with_host(&host.lane, |machine, now, effects| (machine.enqueue(guest, now, cap, effects), now));
        match entered {
            None | Some((Ok(Enqueued::Elsewhere), _)) => {}
            Some((enqueued, now)) => return Ok((host.lane, None, enqueued, now)),
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
            return Ok((lane, None, Ok(Enqueued::Entered(entry)), now));
        }
        return enter_own(request, wish, cap);
    }
    if lane_kind == LaneKind::Own {
        return enter_own(request, wish, cap);
    }
    loop {
        let wish = wish.clone();
        let (lane, (enqueued, now)) =
            engine.with_lane(key, lane_kind, &request.spec, |machine, now, effects| {
                (machine.enqueue(wish, now, cap, effects), now)
            });
        if !matches!(enqueued, Ok(Enqueued::Elsewhere)) {
            return Ok((lane, None, enqueued, now));
        }
        // It takes nobody any more, so the next one is another.
        engine.registry.detach(&lane);
    }
}

fn enter_own(request: &Request, wish: &Wish, cap: Cap) -> Result<Place, Failure> {
    let engine = &request.engine;
    let key = (request.key.clone(), request.spec.permits > 0);
    let full = |waiting| {
        let taken = engine.registry.taken_in_own(&key, engine.clock.now());
        cap.refuse(waiting, taken.ok().flatten())
    };
    let mut own = OwnPlace::new(engine, key.clone(), cap.most).map_err(full)?;
    let (lane, (enqueued, now)) =
        engine.with_lane(&request.key, LaneKind::Own, &request.spec, |machine, now, effects| {
            (machine.enqueue(wish.clone(), now, Cap { most: 1, ..cap }, effects), now)
        });
    if let Ok(Enqueued::Waiting(id)) = enqueued
        && wish.gated
    {
        own.stand_in_line(&lane, id);
    }
    Ok((lane, Some(own), enqueued, now))
}

enum Entered {
    Admitted(Admission),
    Extending(Box<Extending>),
}

impl Waiting {
    /// `None`: it has to ask again, in another lane.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Entry>, Failure>> {
        let id = self.id;
        let (polled, now) = self.request.engine.act(&self.lane, |machine, now, effects| {
            (machine.poll_waiter(id, now, cx.waker(), effects), now)
        });
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
                self.record(Err(&error));
                return Poll::Ready(Err(error));
            }
            Polled::Pending => {}
        }
        let engine = &self.request.engine;
        let timeout = engine.settings.call_timeout;
        let replicas = self.request.replication.timeout();
        let mut end = match self.request.wait {
            Wait::Forever => return self.poll_forever(cx, now),
            Wait::For(wait) => self.started + wait,
            // An answer ends it, at the latest that of the call after the one under way: two call
            // time-outs, and one for what each takes longer.
            Wait::No => self.started + timeout * 3 + replicas * 2,
        };
        if now >= end {
            let unanswered = engine.act(&self.lane, |machine, now, _| machine.awaits_first_answer(id, now));
            // From now on, and not from the end: the answer may have come while this process stood still. Replicas
            // may be about to confirm it.
            end = *self.grace.get_or_insert(now + engine.grace() + replicas.min(timeout));
            if !unanswered || now >= end {
                let error = self.give_up(now, unanswered);
                self.record(Err(&error));
                return Poll::Ready(Err(error));
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
        let (id, due) = (self.id, self.started + self.request.engine.settings.default_wait);
        let watches =
            !self.warned && self.request.engine.act(&self.lane, |machine, _, _| machine.waits_for_itself(id));
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
        let (last_error, remaining, own) = self.request.engine.act(&self.lane, |machine, now, effects| {
            let (remaining, own) = (machine.taken_for(now), machine.waits_for_itself(id));
            machine.leave(id, now, effects);
            (machine.pace.last_error_for(self.request.replication), remaining, own)
        });
        // Of those in line for permits, only the first has asked.
        let (last_error, remaining) = match &self.request.spec {
            spec if spec.permits > 0 => {
                match self.request.engine.registry.taken_in_own(&self.lane.own_key(), now) {
                    Ok(taken) => (last_error, remaining.or(taken)),
                    Err(error) => (last_error.or(Some(error)), remaining),
                }
            }
            _ => (last_error, remaining),
        };
        if own {
            self.warn_of_itself();
        }
        let waited = now.since(self.started);
        // Somebody may have been seen to have it before this call came.
        let nobody_seen = unanswered && remaining.is_none() || self.request.wait == Wait::No;
        let last_error = last_error.or_else(|| nobody_seen.then(|| no_answer(waited)));
        Failure::wait_over(last_error, waited, remaining)
    }

    fn record(&self, outcome: Result<&Entry, &Failure>) {
        record(&self.request, &self.span, self.started, outcome);
    }

    /// Lets the caller in; a longer fixed lease inside a shorter one takes one store call first.
    fn enter(&mut self, entry: Entry) -> Entered {
        let engine = Arc::clone(&self.request.engine);
        let recorded = entry.clone();
        let hold = Arc::clone(&entry.grant.hold);
        let reentrant = entry.reentrant;
        let (lease, label) = (self.request.lease, self.request.label.clone());
        let admission = Admission::new(engine, Arc::clone(&self.lane), entry, lease, label);
        // The admission is there first: a panicking subscriber or recorder must not leak the hold.
        self.record(Ok(&recorded));
        let Lease { duration: lease, is_renewed, .. } = self.request.lease;
        if reentrant && !is_renewed {
            let engine = &self.request.engine;
            let wanted = (engine.clock.now() + lease).saturating_sub(drift_margin(lease));
            if !hold.is_renewing() && hold.deadline() < wanted {
                let retry_until = match self.request.wait {
                    Wait::No => Tick::default(),
                    Wait::For(wait) => self.started + wait,
                    Wait::Forever => Tick::MAX,
                };
                let outcome = Box::pin(engine.extend(&hold, lease, retry_until));
                let request = self.request.clone();
                return Entered::Extending(Box::new(Extending { admission, request, outcome }));
            }
        }
        Entered::Admitted(admission)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.queued {
            let id = self.id;
            self.request.engine.act(&self.lane, |machine, now, effects| machine.leave(id, now, effects));
        }
    }
}

fn record(request: &Request, span: &tracing::Span, started: Tick, outcome: Result<&Entry, &Failure>) {
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
    let took = || request.engine.clock.now().since(started);
    tracing::debug!(target: TARGET, outcome, took = ?took(), "acquire");
    metrics::acquired(&request.label, outcome, took);
    if outcome == "handed_off" {
        metrics::handed_off();
    }
}
