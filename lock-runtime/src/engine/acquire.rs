//! [`Acquire`]: the future that a caller polls.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::Engine;
use super::caller::Caller;
use super::hold::{Lease, MaxHold, drift_margin};
use super::machine::{Enqueued, Entry, Patience, Polled, Wish};
use super::registry::Key;
use crate::begun;
use crate::clock::Tick;
use crate::error::{AcquireError, ExtendError};
use crate::guard::LockGuard;
use crate::key::LockKey;
use crate::metrics::{self, Label};
use crate::scope::Scope;
use crate::sync::atomic::Ordering;
use crate::sync::shielded;
use crate::time::{self, Timer};
use tokio::sync::oneshot;

/// The least time by which a wait that is shorter than a round trip is stretched, so that its one attempt can be
/// answered.
const GRACE: Duration = Duration::from_millis(100);

/// How long a caller is willing to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    For(Duration),
    Forever,
}

impl Wait {
    pub(crate) fn at_most(limit: Duration) -> Self {
        if limit.is_zero() { Self::No } else { Self::For(limit) }
    }
}

/// What a lock builder has collected.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) engine: Arc<Engine>,
    pub(crate) key: LockKey,
    pub(crate) wait: Wait,
    pub(crate) lease: Lease,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Duration,
    pub(crate) label: Label,
    /// Since when it waits; it may have to begin again.
    pub(crate) asked: Option<Tick>,
}

/// Waits for a lock; made by [`Mutex::acquire`](crate::Mutex::acquire).
///
/// Nothing happens before the first poll.
///
/// # Cancel safety
///
/// Dropping it leaves the queue. If the lock has just been granted to it, the grant goes to the next waiter or is
/// released in the background; nothing stays behind.
#[must_use = "futures do nothing unless polled"]
pub struct Acquire {
    state: State,
}

enum State {
    Refused(AcquireError),
    New(Box<Request>),
    Waiting(Box<Waiting>),
    /// The call is inside an own fixed lease that ends too early: one store call makes it longer.
    Extending(Box<Extending>),
    Done,
}

struct Extending {
    guard: LockGuard,
    request: Request,
    outcome: oneshot::Receiver<Result<(), ExtendError>>,
}

struct Waiting {
    request: Request,
    key: Arc<Key>,
    id: u64,
    started: Tick,
    /// Made when the wait turns out to be one.
    timer: Option<Pin<Box<Timer>>>,
    queued: bool,
    span: tracing::Span,
}

impl Acquire {
    pub(crate) fn new(request: Result<Request, AcquireError>) -> Self {
        Self {
            state: match request {
                Ok(request) => State::New(Box::new(request)),
                Err(error) => State::Refused(error),
            },
        }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Refused(_) => "refused",
            State::New(_) => "new",
            State::Waiting(_) => "waiting",
            State::Extending(_) => "extending",
            State::Done => "done",
        };
        f.debug_struct("Acquire").field("state", &state).finish()
    }
}

impl Future for Acquire {
    type Output = Result<LockGuard, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let progress = ready!(tokio::task::coop::poll_proceed(cx));
        let result = ready!(self.poll_inner(cx));
        progress.made_progress();
        Poll::Ready(result)
    }
}

impl Acquire {
    fn poll_inner(&mut self, cx: &mut Context<'_>) -> Poll<Result<LockGuard, AcquireError>> {
        loop {
            match std::mem::replace(&mut self.state, State::Done) {
                State::Refused(error) => return Poll::Ready(Err(error)),
                State::New(request) => match start(*request) {
                    Ok(Started::Waiting(waiting)) => self.state = State::Waiting(waiting),
                    Ok(Started::Entered(Entered::Guard(guard))) => return Poll::Ready(Ok(guard)),
                    Ok(Started::Entered(Entered::Extending(extending))) => {
                        self.state = State::Extending(extending);
                    }
                    Err(error) => return Poll::Ready(Err(error)),
                },
                State::Waiting(mut waiting) => match waiting.poll(cx) {
                    Poll::Ready(Ok(entry)) => match waiting.enter(entry) {
                        Entered::Guard(guard) => return Poll::Ready(Ok(guard)),
                        Entered::Extending(extending) => self.state = State::Extending(extending),
                    },
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        self.state = State::Waiting(waiting);
                        return Poll::Pending;
                    }
                },
                State::Extending(mut extending) => match Pin::new(&mut extending.outcome).poll(cx) {
                    Poll::Pending => {
                        self.state = State::Extending(extending);
                        return Poll::Pending;
                    }
                    Poll::Ready(outcome) => {
                        let Extending { guard, request, .. } = *extending;
                        let error = match outcome {
                            Ok(Ok(())) if !guard.is_lost() => return Poll::Ready(Ok(guard)),
                            // The outer hold is gone, perhaps after the answer and before this poll: the call stands
                            // in line like everybody else.
                            Ok(Ok(()) | Err(ExtendError::Lost { .. } | ExtendError::NotHeld { .. })) => {
                                drop(guard);
                                self.state = State::New(Box::new(request));
                                continue;
                            }
                            Ok(Err(ExtendError::Unavailable { key, cause })) => {
                                AcquireError::Unavailable { key, cause }
                            }
                            Ok(Err(ExtendError::Misconfigured { reason })) => {
                                AcquireError::Misconfigured { reason }
                            }
                            Err(_) => AcquireError::ShutDown { key: request.key },
                        };
                        return Poll::Ready(Err(error));
                    }
                },
                State::Done => return Poll::Pending,
            }
        }
    }
}

enum Started {
    Entered(Entered),
    Waiting(Box<Waiting>),
}

fn start(mut request: Request) -> Result<Started, AcquireError> {
    let engine = &request.engine;
    if let Some(mut reason) = engine.refuse_lease(&request.key, request.lease.duration()) {
        if request.lease.is_renewed() && request.min_hold > engine.config.lease {
            reason.push_str("; it is that long because of `min_hold`");
        }
        return Err(AcquireError::misconfigured(reason));
    }
    let span = tracing::debug_span!(
        "lock_acquire",
        key = %request.key,
        wait = ?request.wait,
        token = tracing::field::Empty,
        outcome = tracing::field::Empty,
    );
    let waiting_now = engine.waiting.fetch_add(1, Ordering::Relaxed);
    let wish = Wish {
        lease: request.lease,
        max_hold: request.max_hold.map(|duration| MaxHold { duration, job: engine.new_id() }),
        min_hold: request.min_hold,
        patience: if request.wait == Wait::No { Patience::Try } else { Patience::Wait },
        scope: Scope::current(),
        task: Caller::current(),
    };
    // Whoever enters again does not wait, so the caps are no matter of theirs.
    let full = waiting_now >= engine.config.max_waiters;
    let cap = if full { 0 } else { engine.config.max_waiters_per_key };
    let (key, (enqueued, now)) = engine
        .with_key(&request.key, |machine, now, effects| (machine.enqueue(wish, now, cap, effects), now));
    let started = *request.asked.get_or_insert(now);
    let mut waiting = Waiting { request, key, id: 0, started, timer: None, queued: false, span };
    if let Ok(Enqueued::Waiting { id, .. }) = &enqueued {
        waiting.id = *id;
        waiting.queued = true;
    }
    // From here on, whatever panics leaves the queue.
    metrics::waiters(1.0);
    match enqueued {
        Ok(Enqueued::Entered(entry)) => Ok(Started::Entered(waiting.enter(entry))),
        Ok(Enqueued::Waiting { own_task, .. }) => {
            if own_task {
                tracing::warn!(
                    key = %waiting.request.key,
                    "this task waits for a lock that it holds already; enter it again with `guard.reenter()` or \
                     inside `guard.scope(…)`"
                );
            }
            Ok(Started::Waiting(Box::new(waiting)))
        }
        Err(error) => {
            let error = match error {
                AcquireError::TooManyWaiters { key, .. } if full => {
                    AcquireError::TooManyWaiters { key, waiting: waiting_now, cap: "max_waiters" }
                }
                error => error,
            };
            waiting.record(Err(&error));
            Err(error)
        }
    }
}

enum Entered {
    Guard(LockGuard),
    Extending(Box<Extending>),
}

impl Waiting {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Entry, AcquireError>> {
        let id = self.id;
        let (polled, now) = self
            .request
            .engine
            .act(&self.key, |machine, now, effects| (machine.poll_waiter(id, now, cx.waker(), effects), now));
        let woken_soon = match polled {
            Polled::Granted(entry) => {
                self.queued = false;
                return Poll::Ready(Ok(entry));
            }
            Polled::Failed(error) => {
                self.queued = false;
                self.record(Err(&error));
                return Poll::Ready(Err(error));
            }
            Polled::Pending { woken_soon } => woken_soon,
        };
        let Wait::For(wait) = self.request.wait else { return Poll::Pending };
        let mut end = self.started + wait;
        // Most are granted by the first answer, which comes within about one call time-out, and need no timer; as far as
        // the runtime of the manager is the one that polls us, and so runs.
        let config = &self.request.engine.config;
        if woken_soon && now + config.call_timeout * 2 < end && begun::is_inside(&self.request.engine.runtime)
        {
            return Poll::Pending;
        }
        if now >= end {
            let grace = GRACE.max(self.request.engine.rtt.lowest() * 4).min(config.call_timeout);
            end = end + grace;
            let awaited =
                self.request.engine.act(&self.key, |machine, now, _| machine.awaits_first_answer(id, now));
            if !awaited || now >= end {
                let error = self.give_up(now);
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

    fn poll_timer(&mut self, cx: &mut Context<'_>, left: Duration) -> Poll<()> {
        let engine = &self.request.engine;
        let timer = self.timer.get_or_insert_with(|| Box::pin(time::sleep(&engine.runtime, left)));
        timer.as_mut().poll(cx)
    }

    /// The wait is over.
    fn give_up(&mut self, now: Tick) -> AcquireError {
        self.queued = false;
        let id = self.id;
        let last_error = self.request.engine.act(&self.key, |machine, now, effects| {
            machine.leave(id, now, effects);
            machine.pace.last_error.clone()
        });
        let key = self.request.key.clone();
        match last_error {
            Some(cause) => AcquireError::from_store(key, cause),
            None => AcquireError::TimedOut { key, waited: now.since(self.started) },
        }
    }

    fn record(&self, outcome: Result<&Entry, &AcquireError>) {
        let outcome = match outcome {
            Ok(entry) => {
                self.span.record("token", entry.grant.token.get());
                if entry.handed_on {
                    "handed_on"
                } else if entry.reentrant {
                    "reentered"
                } else {
                    "granted"
                }
            }
            Err(AcquireError::Busy { .. }) => "busy",
            Err(AcquireError::TimedOut { .. }) => "timed_out",
            Err(AcquireError::TooManyWaiters { .. }) => "too_many_waiters",
            Err(AcquireError::Unavailable { .. }) => "unavailable",
            Err(AcquireError::ShutDown { .. }) => "shut_down",
            Err(AcquireError::Misconfigured { .. } | AcquireError::InvalidKey(_)) => "misconfigured",
        };
        self.span.record("outcome", outcome);
        let _entered = self.span.enter();
        // Read only by who listens: the clock costs as much as a local hand-off.
        let took = || self.request.engine.clock.now().since(self.started);
        tracing::debug!(outcome, took = ?took(), "acquire");
        metrics::acquired(&self.request.label, outcome, took);
        if outcome == "handed_on" {
            metrics::handed_on();
        }
    }

    /// Makes the guard; a longer fixed lease inside a shorter one takes one store call first.
    fn enter(&mut self, entry: Entry) -> Entered {
        let engine = Arc::clone(&self.request.engine);
        engine.watch_max_hold(&self.key, &entry.grant);
        let recorded = entry.clone();
        let hold = Arc::clone(&entry.grant.hold);
        let reentrant = entry.reentrant;
        let guard = LockGuard::new(
            engine,
            Arc::clone(&self.key),
            entry,
            self.request.lease,
            self.request.label.clone(),
        );
        // The guard is there first: a panicking subscriber or recorder must not leak the hold.
        self.record(Ok(&recorded));
        if let (true, Lease::Fixed(lease)) = (reentrant, self.request.lease) {
            let engine = &self.request.engine;
            let wanted = (engine.clock.now() + lease).saturating_sub(drift_margin(lease));
            if !hold.is_renewing() && hold.deadline() < wanted {
                let retry_until = match self.request.wait {
                    Wait::No => Tick::default(),
                    Wait::For(wait) => self.started + wait,
                    Wait::Forever => Tick::MAX,
                };
                let outcome = engine.extend(&hold, lease, retry_until);
                let request = self.request.clone();
                return Entered::Extending(Box::new(Extending { guard, request, outcome }));
            }
        }
        Entered::Guard(guard)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.request.engine.waiting.fetch_sub(1, Ordering::Relaxed);
        if self.queued {
            let id = self.id;
            self.request.engine.act(&self.key, |machine, now, effects| machine.leave(id, now, effects));
        }
        shielded(|| metrics::waiters(-1.0));
    }
}
