//! The driver of a key: the one task that carries out its machine's steps.
//!
//! It is the contender for the remote lock and the releaser of the remote hold, one call at a time,
//! so the next local asker queues behind a release. It is never part of a waiter's future: waiters
//! come and go, its calls end.

use std::sync::Arc;

use lock_core::internal::chance::jitter;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::catch_panics;
use lock_core::store::{AcquireRequest, Acquired, Notice, StoreError, StoreErrorKind, Takeover};

use super::hold::Hold;
use super::lane::{Lane, Order};
use super::machine::{Input, Seen, Step};
use super::release;
use super::settings::LONGEST;
use super::spec::LaneKind;
use super::subscription::{Heard, Subscription};
use super::{Engine, LONGEST_SLEEP};
use crate::failure::Failure;
use crate::trace::TARGET;

/// Drives the lane to the end. A runtime that is going may drop it unpolled: that is an end too.
pub(super) fn run(engine: Arc<Engine>, lane: Arc<Lane>) -> impl Future<Output = ()> + Send {
    let (subscription, request) = (Subscription::default(), None);
    let driver = Driver { engine, lane, subscription, request, done: false };
    async move {
        // All of it, and not its fields.
        let mut driver = driver;
        let (engine, lane) = (Arc::clone(&driver.engine), Arc::clone(&driver.lane));
        loop {
            let owner = || engine.settings.owners.next();
            // At another step than those that end a hold, an order is one of a hold that was lost.
            let (step, order) = engine.with(&lane, |state, now| {
                (state.machine.next_step(now, owner), std::mem::take(&mut state.order))
            });
            match step {
                Step::Exit => break,
                Step::Acquire(request) => driver.acquire(request).await,
                Step::Undo(request) => {
                    engine.undo(request).await;
                    engine.tell(&lane, Input::Undone { seen: driver.seen() });
                }
                Step::Release { hold, then } => driver.release(hold, order, then).await,
                Step::Linger { hold, rest } => {
                    release::linger(&engine, &hold, rest).await;
                    drop(order);
                }
                Step::Park { until } => driver.park(until).await,
            }
        }
        driver.done = true;
        engine.leave_line(&lane);
    }
}

struct Driver {
    engine: Arc<Engine>,
    lane: Arc<Lane>,
    subscription: Subscription,
    /// For whose owner it listens.
    request: Option<Arc<AcquireRequest>>,
    /// It was told to end.
    done: bool,
}

impl Drop for Driver {
    /// Tells the machine when the driver ends without having been told to: with its runtime, or by
    /// a panic.
    fn drop(&mut self) {
        if self.done {
            return;
        }
        // By a task: a runtime that is going drops the next driver here, and all in line one inside
        // the other.
        let (engine, lane) = (Arc::clone(&self.engine), Arc::clone(&self.lane));
        self.engine.spawn(async move { engine.leave_line(&lane) });
        let input = if std::thread::panicking() && !self.engine.runtime_is_gone() {
            let said = "the task that asks for this key panicked";
            Input::Fail(Failure::Store(StoreError::new(StoreErrorKind::Unanswered, said)))
        } else {
            Input::ShutDown
        };
        let order = self.engine.with(&self.lane, |state, now| {
            state.machine.handle(Input::DriverGone, now);
            state.machine.handle(input, now);
            std::mem::take(&mut state.order)
        });
        // Its caller is told by that.
        catch_panics(|| drop(order));
    }
}

impl Driver {
    fn seen(&self) -> Seen {
        Seen {
            listening: self.subscription.listens(),
            fallback: self.subscription.longest(self.engine.settings.fallback_poll),
            round_trip: self.engine.rtt.lowest(),
            random: jitter(),
        }
    }

    async fn acquire(&mut self, request: Arc<AcquireRequest>) {
        let same = self.request.as_ref().is_some_and(|other| Arc::ptr_eq(other, &request));
        if self.lane.spec.is_fair() && !same {
            // What it hears is for one owner.
            self.subscription = Subscription::default();
        }
        self.request = Some(Arc::clone(&request));
        // Whatever was published before the request is sent says nothing about what it will find,
        // and a grant is found by the request itself.
        self.subscription.skip();
        let (engine, call) = (Arc::clone(&self.engine), Arc::clone(&request));
        let sent = engine.clock.now();
        let answer =
            engine.bounded_by(request.timeout, |_| engine.store_of(&call.items).acquire(Arc::clone(&call)));
        let answer = answer.await;
        match &answer {
            Ok(acquired) => {
                let now = engine.clock.now();
                engine.rtt.record(sent, now);
                let until = match acquired {
                    Acquired::Busy(busy) if busy.remaining <= LONGEST => now + busy.remaining,
                    _ => Tick::default(),
                };
                self.told_in_own(Ok(until));
                if let Acquired::Busy(_) = acquired {
                    self.listen(request, now);
                }
            }
            Err(error) => {
                // A panic is caught: the waiters still have to be told.
                let key = &self.lane.key;
                catch_panics(|| tracing::debug!(target: TARGET, %key, %error, "acquire attempt failed"));
                self.told_in_own(Err(error.clone()));
            }
        }
        engine.tell(&self.lane, Input::Acquired { answer, sent, seen: self.seen() });
    }

    /// Asks for messages.
    fn listen(&mut self, request: Arc<AcquireRequest>, now: Tick) {
        let (engine, key) = (Arc::clone(&self.engine), self.lane.key.clone());
        self.subscription.want(now, || {
            Box::pin(async move {
                let watch = engine.bounded(|_| engine.store_of(&request.items).watch(Arc::clone(&request)));
                watch
                    .await
                    .inspect_err(|error| tracing::debug!(target: TARGET, %key, %error, "no subscription"))
            })
        });
    }

    /// Tells those who wait in lanes of their own what the store has said.
    fn told_in_own(&self, told: Result<Tick, StoreError>) {
        if self.lane.kind == LaneKind::Own {
            self.engine.registry.told_in_own(&self.lane.own_key(), told);
        }
    }

    async fn release(&mut self, hold: Arc<Hold>, order: Order, then: Option<Takeover>) {
        let (engine, lane) = (Arc::clone(&self.engine), Arc::clone(&self.lane));
        let _pending = order.pending.unwrap_or_else(|| engine.pending_releases.count());
        let watches = u32::from(self.subscription.is_watched());
        let seen = self.seen();
        let note = |error: &StoreError| engine.tell(&lane, Input::ReleaseFailed { error, seen });
        let mut answer = release::send(&engine, &hold, then, watches, order.report, note).await;
        if let Some((_, released)) = &mut answer {
            released.echo &= self.subscription.is_watched();
        }
        engine.tell(&lane, Input::Released { answer, seen });
    }

    /// Waits for a message, the answer to a subscription, a change of the machine, or `until`.
    async fn park(&mut self, until: Tick) {
        // tokio's timers do not count suspend.
        let left = until.since(self.engine.clock.now()).min(LONGEST_SLEEP);
        let heard = tokio::select! {
            biased; // so that a run can be made again
            () = self.lane.changed.notified() => return,
            heard = self.subscription.hear() => heard,
            () = tokio::time::sleep(left) => return,
        };
        tracing::trace!(target: TARGET, key = %self.lane.key, ?heard, "heard");
        let seen = self.seen();
        if let Heard::Notice(Notice::Granted { .. }) = heard {
            self.told_in_own(Ok(Tick::default()));
        }
        self.engine.tell(&self.lane, Input::Heard { heard, seen });
    }
}
