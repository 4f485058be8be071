//! The driver of a key: the one task that carries out its machine's steps.
//!
//! A store that answers in place needs no task: [`at_once`] goes as far as it can, where the driver is started, and
//! [`run`] is for the rest.
//!
//! It is the contender for the remote lock and the releaser of the remote hold, one call at a time, so the next
//! local asker queues behind a release. It is never part of a waiter's future: waiters come and go, its calls end.

mod steps;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use lock_core::FencingToken;
use lock_core::internal::chance::jitter;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::lock;
use lock_core::store::{
    AcquireRequest, DIRECT_LEASE, Notice, ServerTime, StoreError, StoreErrorKind, TokenRange,
};

use self::steps::Releasing;
use super::hold::Hold;
use super::machine::{Ask, Effects, Machine};
use super::pending::Pending;
use super::registry::Lane;
use super::release::{self, Sent};
use super::subscription::{Heard, Subscription};
use super::{Engine, LONGEST_SLEEP};
use crate::failure::Failure;
use crate::trace::TARGET;

/// Says so when the driver ends without having been told to: with its runtime, or by a panic.
struct Alive {
    engine: Arc<Engine>,
    lane: Arc<Lane>,
    done: bool,
}

impl Drop for Alive {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        if let Some(queued) = lock(&self.lane.queued).take()
            && !self.engine.runtime_is_gone()
        {
            self.engine.reap(queued.request);
        }
        super::keeper::leave_crowd(&self.engine, &self.lane);
        self.engine.act(&self.lane, |machine, now, effects| {
            machine.on_driver_gone(effects);
            if std::thread::panicking() && !self.engine.runtime_is_gone() {
                let cause =
                    StoreError::new(StoreErrorKind::Unanswered, "the task that asks for this key panicked");
                machine.fail_all(&Failure::Store(cause), now, effects);
            } else {
                machine.shut_down(now, effects);
            }
        });
    }
}

/// What a driver has to await before it goes on.
enum Awaited {
    /// The answer to a request.
    Acquire { ask: Ask, request: Arc<AcquireRequest> },
    /// What follows from an error.
    Refused { ask: Ask, request: Arc<AcquireRequest>, error: StoreError },
    /// The answer to a release; `first`: the error that it was answered with already.
    Release { releasing: Releasing, first: Option<StoreError> },
    /// That the store knows for how long it is to keep a key.
    Linger { hold: Arc<Hold>, rest: Duration, pending: Option<Pending> },
    /// A message, the answer to a subscription, a change of the machine, or this time.
    Change { until: Tick },
    /// That others have had their turn: it has done much without a pause, perhaps in somebody's drop.
    Turn,
}

/// A driver that has something to await, and so needs a task.
pub(super) struct Rest {
    driver: Driver,
    awaited: Awaited,
}

/// Drives the key for as long as the store answers in place. It is `now`.
pub(super) fn at_once(engine: &Arc<Engine>, lane: &Arc<Lane>, now: Tick) -> Option<Rest> {
    // As in a task of its own, a panic is told of by its hook and by what is dropped.
    let done = catch_unwind(AssertUnwindSafe(|| {
        let mut alive = Alive { engine: Arc::clone(engine), lane: Arc::clone(lane), done: false };
        let mut driver = Driver::new(engine, lane);
        let awaited = driver.advance(now);
        alive.done = true;
        match awaited {
            Some(awaited) => Some(Rest { driver, awaited }),
            None => {
                driver.end();
                None
            }
        }
    }));
    done.unwrap_or_default()
}

/// Drives the key to the end; `begun`, if something was done at once. A runtime that is going may drop it unpolled: that
/// is an end too.
pub(super) fn run(
    engine: Arc<Engine>,
    lane: Arc<Lane>,
    begun: Option<Rest>,
) -> impl Future<Output = ()> + Send + use<> {
    let alive = Alive { engine: Arc::clone(&engine), lane: Arc::clone(&lane), done: false };
    async move {
        // All of it, and not its flag alone.
        let mut alive = alive;
        let (mut driver, mut awaited) = match begun {
            Some(Rest { driver, awaited }) => (driver, Some(awaited)),
            None => (Driver::new(&engine, &lane), None),
        };
        loop {
            if let Some(awaited) = awaited {
                driver.await_it(awaited).await;
            }
            awaited = driver.advance(engine.clock.now());
            if awaited.is_none() {
                break;
            }
        }
        alive.done = true;
        driver.end();
    }
}

struct Driver {
    engine: Arc<Engine>,
    lane: Arc<Lane>,
    subscription: Subscription,
    /// The request for which the store may have a place in a queue, or an intent: it is sent again, under the same owner,
    /// until it is granted or withdrawn.
    queued: Option<Arc<AcquireRequest>>,
    /// A copy of it was not answered.
    unanswered: bool,
}

impl Driver {
    fn new(engine: &Arc<Engine>, lane: &Arc<Lane>) -> Self {
        let subscription = Subscription::new(lock(&lane.watch).take());
        let (engine, lane) = (Arc::clone(engine), Arc::clone(lane));
        Self { engine, lane, subscription, queued: None, unanswered: false }
    }

    /// Its machine needs it no more.
    fn end(mut self) {
        self.leave_queue();
        let mut watch = self.subscription.into_watch();
        if watch.is_none() || self.lane.has_a_queue() {
            return;
        }
        let machine = lock(&self.lane.machine);
        // Under the machine's mutex, so that it is not kept after the last waiter has left, nor beside a new driver's.
        if machine.waiting() > 0 && !machine.has_driver() {
            std::mem::swap(&mut *lock(&self.lane.watch), &mut watch);
        }
        drop(machine);
        // What is left is dropped here: it is the store's, which may do anything then.
        drop(watch);
    }

    fn act<R>(&self, f: impl FnOnce(&mut Machine, Tick, &mut Effects) -> R) -> R {
        self.engine.act(&self.lane, f)
    }

    /// The same for who has just looked at the clock.
    fn act_at<R>(&self, now: Tick, f: impl FnOnce(&mut Machine, Tick, &mut Effects) -> R) -> R {
        self.engine.act_at(&self.lane, now, f)
    }

    async fn await_it(&mut self, awaited: Awaited) {
        match awaited {
            Awaited::Acquire { ask, request } => self.ask(ask, request).await,
            Awaited::Refused { ask, request, error } => {
                self.engine.answered_with(&error);
                self.refused(ask, request, error).await;
            }
            Awaited::Release { releasing, first } => self.give_back(releasing, first).await,
            Awaited::Linger { hold, rest, pending } => {
                release::linger(&self.engine, &hold, rest).await;
                drop(pending);
            }
            Awaited::Change { until } => self.park(until).await,
            Awaited::Turn => tokio::task::yield_now().await,
        }
    }

    async fn ask(&mut self, ask: Ask, request: Arc<AcquireRequest>) {
        let engine = Arc::clone(&self.engine);
        let sent = engine.clock.now();
        match engine.bounded_by(request.timeout, |store| store.acquire(Arc::clone(&request))).await {
            Ok(acquired) => {
                let now = engine.clock.now();
                self.acquired(ask, &request, acquired, sent, now);
            }
            Err(error) => self.refused(ask, request, error).await,
        }
    }

    /// The request was answered with an error.
    async fn refused(&mut self, ask: Ask, request: Arc<AcquireRequest>, error: StoreError) {
        let engine = Arc::clone(&self.engine);
        if error.kind() == StoreErrorKind::NotReplicated {
            // Others may have it, and so may we under another name: before that is tried, it has to be undone.
            self.retire();
            engine.undo(request).await;
        } else if error.outcome_unknown() {
            let keeps_its_owner = self.queued.is_some()
                && request.items.len() == 1
                && error.kind() != StoreErrorKind::Unsettled;
            if keeps_its_owner {
                // It is sent again under the same owner, so as not to lose its place. Not if what the store gives
                // back by itself may arrive later: of several keys, and of several stores.
                self.unanswered = true;
            } else {
                self.retire();
                engine.reap(request);
            }
        }
        self.failed(&error, ask.replication);
    }

    async fn give_back(&mut self, mut releasing: Releasing, first: Option<StoreError>) {
        let engine = Arc::clone(&self.engine);
        let takeover = releasing.then.as_ref().map(|(_, takeover)| takeover.clone());
        let report = releasing.report.take();
        let lane = Arc::clone(&self.lane);
        let note = |error: &StoreError| {
            let random = jitter();
            engine.act(&lane, |machine, now, effects| machine.note_error(error, now, random, effects));
        };
        match release::send(&engine, &releasing.hold, takeover, releasing.watches, report, first, note).await
        {
            Sent::Answered { sent, released } => {
                self.released(&releasing, &released, sent, engine.clock.now());
            }
            Sent::GivenUp => self.act(|machine, now, _| machine.on_released(now, None)),
        }
    }

    /// The store granted the request that waits there, and said so by a notice: at some time after it was last known to
    /// wait.
    fn granted_directly(&mut self, token: FencingToken, server_time: ServerTime) {
        let queued = lock(&self.lane.queued).as_ref().map(|queued| (queued.found, queued.since));
        let Some((_, since)) = queued.filter(|(found, _)| *found < server_time) else {
            // It comes late, to a process that was stopped or over a slow connection.
            self.act(|machine, now, _| machine.pace.now(now));
            return;
        };
        let Some(request) = self.stop_queueing() else { return };
        let unanswered = std::mem::take(&mut self.unanswered).then(|| Arc::clone(&request));
        let Some(lease) = lock(&self.lane.machine).wanted_lease(self.engine.clock.now()) else {
            // Nobody waits any more.
            self.engine.reap(request);
            return;
        };
        let Some(item) = request.items.first().cloned() else { return };
        let engine = &self.engine;
        let direct = DIRECT_LEASE.min(lease.duration);
        let hold = Hold::new(engine.new_id(), item, lease, since, engine.runtime.clone());
        let hold = hold.of(&self.lane).until(since, direct).with_unanswered(unanswered);
        let hold = Arc::new(hold);
        let now = engine.clock.now();
        if !hold.is_valid(now) {
            // It is asked for again, under the same owner: the hold may still be there.
            self.unanswered = hold.unanswered().is_some();
            self.queued = Some(request);
            self.act(|machine, now, _| machine.pace.now(now));
            return;
        }
        let tokens = TokenRange { first: token.get(), last: token.get() };
        self.hold_granted(&hold, tokens, server_time, now);
        if !lease.is_renewed {
            // Counted from when it was last known to wait, and of a direct grant's length: it is less than what was asked
            // for. Goes on by itself; the hold's deadline tells how it went.
            drop(engine.extend(&hold, lease.duration, hold.deadline()));
        }
    }

    /// Waits for a message, the answer to a subscription, a change of the machine, or `until`.
    async fn park(&mut self, until: Tick) {
        let engine = Arc::clone(&self.engine);
        let lane = Arc::clone(&self.lane);
        loop {
            // tokio's timers do not count suspend.
            let left = until.since(engine.clock.now()).min(LONGEST_SLEEP);
            tokio::select! {
                biased; // so that a run can be made again
                () = lane.changed.notified() => return,
                heard = self.subscription.hear() => {
                    tracing::trace!(target: TARGET, key = %lane.key, ?heard, "heard");
                    match heard {
                        Heard::Confirmed => return self.act(|machine, now, _| machine.pace.listening(now)),
                        Heard::Unconfirmed => return self.act(|machine, now, _| machine.pace.deaf(now)),
                        Heard::Notice(Notice::Granted { token, server_time }) => {
                            return self.granted_directly(token, server_time);
                        }
                        Heard::Notice(_) => {
                            if self.act(|machine, now, _| machine.on_message(now)) {
                                return;
                            }
                        }
                    }
                }
                () = tokio::time::sleep(left) => return,
            }
        }
    }
}
