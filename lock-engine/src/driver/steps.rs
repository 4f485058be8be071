//! The requests of a driver, and its part in the answers.

use std::sync::Arc;

use lock_core::internal::chance::jitter;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::{lock, shielded};
use lock_core::store::{
    AcquireRequest, Acquired, DIRECT_LEASE, Granted, Released, ServerTime, Standing, StoreError, Takeover,
    TokenRange,
};
use lock_core::{FencingToken, Replication};

use super::Driver;
use crate::LONGEST;
use crate::hold::{Hold, Lease};
use crate::keeper;
use crate::machine::{Again, Ask, Rivals};
use crate::registry::{LaneKind, Queued};
use crate::subscription::Subscription;
use crate::trace::TARGET;

impl Driver {
    pub(super) fn request(&self, lease: Lease, tokens: u32) -> AcquireRequest {
        let items = self.lane.items(self.engine.settings.owners.next());
        let timeout = self.engine.settings.call_timeout;
        AcquireRequest::new(items, lease.duration, timeout).tokens(tokens).retention(lease.retention)
    }

    /// The request that waits at the store, or a new one.
    pub(super) fn next_request(&mut self, ask: Ask) -> Arc<AcquireRequest> {
        let Ask { lease, tokens, replication, .. } = ask;
        let request = |driver: &Self| {
            let mut request = driver.request(lease, tokens).replicated(replication);
            // The replicas have their time after the grant.
            request.timeout += replication.timeout();
            request
        };
        let Some(wait) = ask.wait.at_the_store().filter(|_| self.lane.waits_at_the_store()) else {
            self.leave_queue();
            return Arc::new(request(self));
        };
        let same = |queued: &&Arc<AcquireRequest>| {
            (queued.lease, queued.retention) == (lease.duration, lease.retention)
                && queued.replication == replication
        };
        if let Some(queued) = self.queued.as_ref().filter(same) {
            return Arc::clone(queued);
        }
        self.leave_queue();
        let mut request = request(self).queued(wait);
        if ask.min_hold > DIRECT_LEASE || !replication.is_none() {
            // Whoever wants a token above a floor is not granted the key directly, for a few seconds and with nobody to wait
            // for replicas: it has to stay taken for longer than that, even if we are gone by then. Every token is above
            // this one.
            request = request.token_floor(1);
        }
        let request = Arc::new(request);
        self.queued = Some(Arc::clone(&request));
        request
    }

    /// Nobody wants the request any more that waits at the store.
    pub(super) fn leave_queue(&mut self) {
        if let Some(request) = self.retire() {
            self.engine.reap(request);
        }
    }

    /// The owner that waits at the store, if there is one, is not used again.
    pub(super) fn retire(&mut self) -> Option<Arc<AcquireRequest>> {
        self.unanswered = false;
        self.stop_queueing()
    }

    /// Its place is not kept any more.
    pub(super) fn stop_queueing(&mut self) -> Option<Arc<AcquireRequest>> {
        let request = self.queued.take()?;
        // Another driver of the key may have one of its own there already.
        let ours = |queued: &mut Queued| Arc::ptr_eq(&queued.request, &request);
        if self.act(|machine, _, _| machine.queued.take_if(ours)).is_some() {
            keeper::leave_crowd(&self.engine, &self.lane);
        }
        if self.lane.has_a_queue() {
            // What it hears is for one owner.
            self.subscription = Subscription::new(None);
        }
        Some(request)
    }

    /// The store has taken note that the request, sent at `since`, waits.
    fn keep_place(&self, request: &Arc<AcquireRequest>, since: Tick, found: ServerTime) {
        if self.queued.as_ref().is_some_and(|queued| Arc::ptr_eq(queued, request)) {
            let queued =
                Queued { request: Arc::clone(request), since, found, asking: false, keep_at: Tick::MAX };
            lock(&self.lane.machine).queued = Some(queued);
            keeper::join_crowd(&self.engine, &self.lane, request);
            keeper::keep_place(&self.engine, &self.lane, Standing::Waiter);
        }
    }

    /// The store has answered the request that was sent at `sent`.
    pub(super) fn acquired(&mut self, ask: Ask, request: &Arc<AcquireRequest>, answer: Acquired, sent: Tick) {
        let engine = Arc::clone(&self.engine);
        let now = engine.clock.now();
        engine.rtt.record(sent, now);
        match answer {
            Acquired::Granted(granted) => self.granted(request, ask.lease, sent, &granted),
            Acquired::Busy(busy) => {
                let known = busy.remaining <= LONGEST;
                self.told_in_own(Ok(if known { now + busy.remaining } else { Tick::default() }));
                self.subscription.want(now, || {
                    let (engine, request) = (Arc::clone(&engine), Arc::clone(request));
                    let key = self.lane.key.clone();
                    Box::pin(async move {
                        let watch = engine
                            .bounded(|_| engine.store_of(&request.items).watch(Arc::clone(&request)))
                            .await;
                        watch.inspect_err(
                            |error| tracing::debug!(target: TARGET, %key, %error, "no subscription"),
                        )
                    })
                });
                let listening = self.subscription.listens();
                let longest = self.subscription.longest(engine.settings.fallback_poll);
                let random = jitter();
                self.act(|machine, now, effects| {
                    machine.on_busy(now, &busy, listening, longest, random, effects);
                });
                self.keep_place(request, sent, busy.server_time);
            }
        }
    }

    /// Tells those who wait in lanes of their own what the store has said.
    fn told_in_own(&self, told: Result<Tick, StoreError>) {
        if self.lane.kind == LaneKind::Own {
            self.engine.registry.told_in_own(&self.lane.own_key(), told);
        }
    }

    pub(super) fn failed(&self, error: &StoreError, asked: Replication) {
        // Shielded: the waiters still have to be told.
        shielded(|| tracing::debug!(target: TARGET, key = %self.lane.key, %error, "acquire attempt failed"));
        self.told_in_own(Err(error.clone()));
        let random = jitter();
        self.act(|machine, now, effects| machine.on_error(error, asked, now, random, effects));
    }

    /// The request was granted: its hold counts from before it was sent. A reply that leaves nothing is undone.
    fn granted(&mut self, request: &Arc<AcquireRequest>, lease: Lease, sent: Tick, granted: &Granted) {
        self.stop_queueing();
        let unanswered = std::mem::take(&mut self.unanswered).then(|| Arc::clone(request));
        let engine = &self.engine;
        let items = request.items.iter().zip(&granted.tokens);
        let more = items.skip(1).map(|(item, range)| (item.clone(), FencingToken::new(range.last)));
        let (Some(item), Some(&tokens)) = (request.items.first(), granted.tokens.first()) else {
            self.failed(&engine.overdue(), request.replication);
            return;
        };
        let hold = Hold::new(item.clone(), lease, sent, engine.runtime.clone());
        let hold = hold.of(&self.lane).and(more).with_unanswered(unanswered).replicated(request.replication);
        let hold = Arc::new(hold);
        if !hold.is_valid(engine.clock.now()) {
            engine.reap(Arc::clone(request));
            self.failed(&engine.overdue(), request.replication);
            return;
        }
        self.hold_granted(&hold, tokens, granted.server_time);
    }

    pub(super) fn hold_granted(&self, hold: &Arc<Hold>, tokens: TokenRange, server_time: ServerTime) {
        let window = self.engine.window(hold.lease);
        self.told_in_own(Ok(Tick::default()));
        self.act(|machine, now, effects| {
            machine.on_granted(Arc::clone(hold), tokens, server_time, window, now, effects);
        });
    }

    /// The store has answered the release that was sent at `sent`.
    pub(super) fn released(&mut self, then: Option<(Again, Takeover)>, released: &Released, sent: Tick) {
        if let (Some((again, takeover)), Some(granted)) = (then, &released.then) {
            self.act(|machine, _, _| machine.on_taken_over());
            self.granted(&takeover.request, again.lease, sent, granted);
            return;
        }
        let rivals = Rivals {
            listeners: released.other_listeners,
            echo: released.echo && self.subscription.is_watched(),
            round_trip: self.engine.rtt.lowest(),
        };
        self.act(|machine, now, _| machine.on_released(now, Some(rivals)));
    }
}
