//! The driver of a lane: the one task that carries out its machine's steps.
//!
//! It acquires and releases the hold at the store, one call at a time, so a new local caller queues
//! behind a release. It is never part of a waiter's future: waiters come and go, but its calls
//! always end.

use std::sync::Arc;

use lock_core::internal::chance::jitter;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::catch_panics;
use lock_core::store::{AcquireRequest, Acquired, Busy, Notice, StoreError, StoreErrorKind, Takeover};

use super::hold::Hold;
use super::lane::{Lane, Order};
use super::machine::{Input, Seen, Step};
use super::release;
use super::spec::LaneKind;
use super::subscription::{Heard, Subscription};
use super::{Engine, LONGEST_SLEEP};
use crate::failure::Failure;
use crate::trace::TARGET;

/// Drives the lane to its end. A dying runtime may drop the future unpolled: that is an end too.
pub(super) fn run(engine: Arc<Engine>, lane: Arc<Lane>) -> impl Future<Output = ()> + Send {
    let (subscription, request) = (Subscription::default(), None);
    let driver = Driver { engine, lane, subscription, request, done: false };
    async move {
        // Captures the whole driver rather than its fields.
        let mut driver = driver;
        let (engine, lane) = (Arc::clone(&driver.engine), Arc::clone(&driver.lane));
        loop {
            let owner = || engine.settings.owners.next();
            // Only the steps that end a hold use the order; at any other step, its hold was lost.
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
    /// The request whose owner it listens for.
    request: Option<Arc<AcquireRequest>>,
    /// Whether it was told to end.
    done: bool,
}

impl Drop for Driver {
    /// Tells the machine that the driver ended without having been told to: with its runtime, or by
    /// a panic.
    fn drop(&mut self) {
        if self.done {
            return;
        }
        // In a task: a dying runtime would drop the next driver inside this drop, and so recurse
        // along the whole line.
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
        // Dropping the order tells its caller.
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
        if self.lane.spec.is_queued(self.engine.store.abilities()) && !same {
            // The subscription is for one owner.
            self.subscription = Subscription::default();
        }
        self.request = Some(Arc::clone(&request));
        // Messages published before the request is sent say nothing about what it will find, and
        // the request itself will find a grant.
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
                    Acquired::Busy(Busy { remaining: Some(remaining), .. }) => now + *remaining,
                    _ => Tick::default(),
                };
                self.told_in_own(Ok(until));
                if let Acquired::Busy(_) = acquired {
                    self.listen(request, now);
                }
            }
            Err(error) => {
                // Panics are caught, because the waiters still have to be told.
                let key = &self.lane.key;
                catch_panics(|| tracing::debug!(target: TARGET, %key, %error, "acquire attempt failed"));
                self.told_in_own(Err(error.clone()));
            }
        }
        engine.tell(&self.lane, Input::Acquired { answer, sent, seen: self.seen() });
    }

    /// Subscribes to messages.
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

    /// Passes the store's answer on to the waiters in lanes of their own.
    fn told_in_own(&self, told: Result<Tick, StoreError>) {
        if self.lane.kind == LaneKind::Own {
            self.engine.registry.told_in_own(&self.lane.own_key(), told);
        }
    }

    async fn release(&mut self, hold: Arc<Hold>, order: Order, then: Option<Takeover>) {
        let (engine, lane) = (Arc::clone(&self.engine), Arc::clone(&self.lane));
        let _pending = order.pending.unwrap_or_else(|| engine.pending_releases.count());
        let seen = self.seen();
        let note = |error: &StoreError| engine.tell(&lane, Input::ReleaseFailed { error, seen });
        let answer = release::send(&engine, &hold, then, self.subscription.echo(), order.report, note).await;
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
