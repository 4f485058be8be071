//! The driver of a key: the one task that carries out its machine's steps.
//!
//! It is the contender for the remote lock and the releaser of the remote hold, one call at a time, so the next
//! local asker queues behind a release. It is never part of a waiter's future: waiters come and go, its calls end.

mod steps;

use std::sync::Arc;

use lock_core::FencingToken;
use lock_core::internal::chance::jitter;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::lock;
use lock_core::store::{
    AcquireRequest, DIRECT_LEASE, Notice, ServerTime, StoreError, StoreErrorKind, Takeover, TokenRange,
};

use super::hold::Hold;
use super::machine::{Again, Ask, Effects, Machine, Order, Step};
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
        let queued = lock(&self.lane.machine).queued.take();
        if let Some(queued) = queued.filter(|_| !self.engine.runtime_is_gone()) {
            self.engine.reap(queued.request);
        }
        super::keeper::leave_crowd(&self.engine, &self.lane);
        // By a task: a runtime that is going drops the next driver here, and all in line one inside the other.
        let (engine, lane) = (Arc::clone(&self.engine), Arc::clone(&self.lane));
        self.engine.spawn(async move { engine.leave_line(&lane) });
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

/// Drives the key to the end. A runtime that is going may drop it unpolled: that is an end too.
pub(super) fn run(engine: Arc<Engine>, lane: Arc<Lane>) -> impl Future<Output = ()> + Send {
    let alive = Alive { engine: Arc::clone(&engine), lane: Arc::clone(&lane), done: false };
    async move {
        // All of it, and not its flag alone.
        let mut alive = alive;
        let mut driver = Driver::new(&engine, &lane);
        loop {
            match driver.act(|machine, now, _| machine.next_step(now)) {
                Step::Exit => break,
                Step::Acquire(ask) => driver.acquire(ask).await,
                Step::Release { hold, order, then } => driver.release(hold, order, then).await,
                Step::Linger { hold, rest, pending } => {
                    release::linger(&engine, &hold, rest).await;
                    drop(pending);
                }
                Step::Park { until } => driver.park(until).await,
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
        self.engine.leave_line(&self.lane);
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

    async fn acquire(&mut self, ask: Ask) {
        // Whatever was published before the request is sent says nothing about what it will find, and a grant is found
        // by the request itself.
        self.subscription.skip();
        let request = self.next_request(ask);
        if self.queued.is_some()
            && let Some(queued) = lock(&self.lane.machine).queued.as_mut()
        {
            queued.asking = true;
        }
        let engine = Arc::clone(&self.engine);
        let sent = engine.clock.now();
        let call = Arc::clone(&request);
        let answer =
            engine.bounded_by(request.timeout, |_| engine.store_of(&call.items).acquire(Arc::clone(&call)));
        match answer.await {
            Ok(acquired) => {
                self.acquired(ask, &request, acquired, sent);
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

    async fn release(&mut self, hold: Arc<Hold>, order: Order, then: Option<Again>) {
        let engine = Arc::clone(&self.engine);
        let _pending = order.pending.unwrap_or_else(|| engine.pending_releases.count());
        let then = then.map(|again| {
            let request = Arc::new(self.request(again.lease, again.tokens));
            (again, Takeover { request, listeners: again.listeners })
        });
        let takeover = then.as_ref().map(|(_, takeover)| takeover.clone());
        let watches = u32::from(self.subscription.is_watched());
        let lane = Arc::clone(&self.lane);
        let note = |error: &StoreError| {
            let random = jitter();
            engine.act(&lane, |machine, now, effects| machine.note_error(error, now, random, effects));
        };
        match release::send(&engine, &hold, takeover, watches, order.report, note).await {
            Sent::Answered { sent, released } => self.released(then, &released, sent),
            Sent::GivenUp => self.act(|machine, now, _| machine.on_released(now, None)),
        }
    }

    /// The store granted the request that waits there, and said so by a notice: at some time after it was last known to
    /// wait.
    fn granted_directly(&mut self, token: FencingToken, server_time: ServerTime) {
        let queued = lock(&self.lane.machine).queued.as_ref().map(|queued| (queued.found, queued.since));
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
        let hold = Hold::new(item, lease, since, engine.runtime.clone());
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
        self.hold_granted(&hold, tokens, server_time);
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
