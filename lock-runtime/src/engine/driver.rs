//! The driver of a key: the one task that carries out its machine's steps.
//!
//! It is the contender for the remote lock and the releaser of the remote hold, one call at a time, so the next
//! local asker queues behind a release. It is never part of a waiter's future: waiters come and go, its calls end.

use std::sync::Arc;
use std::time::Duration;

use super::hold::{Hold, Lease};
use super::keeper;
use super::machine::{Again, Ask, Effects, Order, Rivals, Step};
use super::registry::{Key, Lane, Queued};
use super::release::{self, Sent};
use super::{Engine, LONGEST};
use crate::backoff::jitter;
use crate::clock::Tick;
use crate::error::AcquireError;
use crate::replication::Replication;
use crate::store::{
    AcquireRequest, Acquired, DIRECT_LEASE, Granted, Notice, ServerTime, StoreError, StoreErrorKind,
    Takeover, TokenRange, Watch,
};
use crate::sync::lock;
use crate::token::FencingToken;

/// A subscription that was refused is asked for again after this.
pub(crate) const RESUBSCRIBE: Duration = Duration::from_secs(1);

/// Says so when the driver ends without having been told to: with its runtime, or by a panic.
struct Alive {
    engine: Arc<Engine>,
    key: Arc<Key>,
    done: bool,
}

impl Drop for Alive {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let key = self.key.name.clone();
        if let Some(queued) = lock(&self.key.queued).take()
            && !self.engine.runtime_is_gone()
        {
            self.engine.reap(queued.request);
        }
        self.engine.act(&self.key, |machine, _, effects| {
            machine.on_driver_gone(effects);
            if std::thread::panicking() && !self.engine.runtime_is_gone() {
                let cause =
                    StoreError::new(StoreErrorKind::Unanswered, "the task that asks for this key panicked");
                machine.fail_all(&AcquireError::Unavailable { key, cause: Arc::new(cause) }, effects);
            } else {
                machine.shut_down(effects);
            }
        });
    }
}

pub(crate) async fn run(engine: Arc<Engine>, key: Arc<Key>) {
    let mut alive = Alive { engine: Arc::clone(&engine), key: Arc::clone(&key), done: false };
    let watch = lock(&key.watch).take();
    let mut driver =
        Driver { watch, engine, key, subscribe_after: Tick::default(), queued: None, unanswered: false };
    loop {
        let step = driver.act(|machine, now, _| machine.next_step(now));
        match step {
            Step::Exit => break,
            Step::Acquire(ask) => driver.acquire(ask).await,
            Step::Release { hold, order, then } => driver.release(hold, order, then).await,
            Step::Linger { hold, rest, pending } => {
                release::linger(&driver.engine, &hold, rest).await;
                drop(pending);
            }
            Step::Park { until } => driver.park(until).await,
        }
    }
    alive.done = true;
    driver.leave_queue();
    let machine = lock(&driver.key.machine);
    // Under the machine's mutex, so that it is not kept after the last waiter has left, nor beside a new driver's.
    if machine.waiting() > 0 && !machine.has_driver() && !driver.key.has_a_queue() {
        *lock(&driver.key.watch) = driver.watch.take();
    }
    drop(machine);
}

struct Driver {
    engine: Arc<Engine>,
    key: Arc<Key>,
    watch: Option<Watch>,
    subscribe_after: Tick,
    /// The request for which the store may have a place in a queue, or an intent: it is sent again, under the same owner,
    /// until it is granted or withdrawn.
    queued: Option<Arc<AcquireRequest>>,
    /// A copy of it was not answered.
    unanswered: bool,
}

impl Driver {
    fn act<R>(&self, f: impl FnOnce(&mut super::machine::Machine, Tick, &mut Effects) -> R) -> R {
        self.engine.act(&self.key, f)
    }

    fn request(&self, lease: Lease, tokens: u32) -> AcquireRequest {
        let items = self.key.items(self.engine.owners.next());
        let timeout = self.engine.config.call_timeout;
        AcquireRequest::new(items, lease.duration(), timeout).tokens(tokens)
    }

    /// The request that waits at the store, or a new one.
    fn next_request(&mut self, ask: Ask) -> Arc<AcquireRequest> {
        let Ask { lease, tokens, replication, .. } = ask;
        let request = |driver: &Self| {
            let mut request = driver.request(lease, tokens).replicated(replication);
            // The replicas have their time after the grant.
            request.timeout += replication.timeout();
            request
        };
        let Some(wait) = ask.wait.filter(|_| self.key.waits_at_the_store()) else {
            self.leave_queue();
            return Arc::new(request(self));
        };
        let same = |queued: &&Arc<AcquireRequest>| {
            queued.lease == lease.duration() && queued.replication == replication
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
    fn leave_queue(&mut self) {
        if let Some(request) = self.retire() {
            self.engine.reap(request);
        }
    }

    /// The owner that waits at the store, if there is one, is not used again.
    fn retire(&mut self) -> Option<Arc<AcquireRequest>> {
        self.unanswered = false;
        self.stop_queueing()
    }

    /// Its place is not kept any more.
    fn stop_queueing(&mut self) -> Option<Arc<AcquireRequest>> {
        let request = self.queued.take()?;
        let mut queued = lock(&self.key.queued);
        // Another driver of the key may have one of its own there already.
        if queued.as_ref().is_some_and(|queued| Arc::ptr_eq(&queued.request, &request)) {
            *queued = None;
            self.engine.timers.remove(self.key.second_id);
        }
        drop(queued);
        if self.key.has_a_queue() {
            // What it hears is for one owner.
            self.watch = None;
        }
        Some(request)
    }

    /// The store has taken note that the request, sent at `since`, waits.
    fn keep_place(&self, request: &Arc<AcquireRequest>, since: Tick, found: ServerTime) {
        if self.queued.as_ref().is_some_and(|queued| Arc::ptr_eq(queued, request)) {
            let request = Arc::clone(request);
            *lock(&self.key.queued) = Some(Queued { request, since, found, asking: false });
            keeper::keep_place(&self.engine, &self.key);
        }
    }

    async fn acquire(&mut self, ask: Ask) {
        let engine = Arc::clone(&self.engine);
        // Whatever was published before the request is sent says nothing about what it will find, and a grant is found
        // by the request itself.
        skip_notices(self.watch.as_mut());
        let request = self.next_request(ask);
        if self.queued.is_some()
            && let Some(queued) = lock(&self.key.queued).as_mut()
        {
            queued.asking = true;
        }
        let sent = engine.clock.now();
        match engine.bounded_by(request.timeout, |store| store.acquire(Arc::clone(&request))).await {
            Ok(Acquired::Granted(granted)) => {
                let now = engine.clock.now();
                engine.rtt.record(sent, now);
                self.granted(&request, ask.lease, sent, now, &granted);
            }
            Ok(Acquired::Busy(busy)) => {
                let now = engine.clock.now();
                engine.rtt.record(sent, now);
                if self.key.lane == Lane::Own && busy.remaining <= LONGEST {
                    engine.registry.is_taken_in_own(&self.key.name, now + busy.remaining);
                }
                let listening = self.watch.as_ref().is_some_and(Watch::is_confirmed);
                let longest = engine.config.fallback_poll;
                let random = jitter();
                self.act(|machine, now, effects| {
                    machine.on_busy(now, busy.remaining, listening, longest, random, effects);
                });
                self.keep_place(&request, sent, busy.server_time);
                self.subscribe(request).await;
            }
            Err(error) => {
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
                self.failed(error, ask.replication);
            }
        }
    }

    fn failed(&self, error: StoreError, asked: Replication) {
        tracing::debug!(key = %self.key.name, %error, "acquire attempt failed");
        let error = Arc::new(error);
        let random = jitter();
        self.act(|machine, now, effects| machine.on_error(&error, asked, now, random, effects));
    }

    /// The request was granted: its hold counts from before it was sent. A reply that leaves nothing is undone.
    fn granted(
        &mut self,
        request: &Arc<AcquireRequest>,
        lease: Lease,
        sent: Tick,
        now: Tick,
        granted: &Granted,
    ) {
        self.stop_queueing();
        let unanswered = std::mem::take(&mut self.unanswered).then(|| Arc::clone(request));
        let engine = &self.engine;
        let items = request.items.iter().zip(&granted.tokens);
        let more = items.skip(1).map(|(item, range)| (item.clone(), FencingToken::new(range.last)));
        let (Some(item), Some(&tokens)) = (request.items.first(), granted.tokens.first()) else {
            self.failed(engine.overdue(), request.replication);
            return;
        };
        let hold = Hold::new(engine.new_id(), item.clone(), lease, sent, engine.runtime.clone());
        let hold = hold.of(&self.key).and(more).with_unanswered(unanswered).replicated(request.replication);
        let hold = Arc::new(hold);
        if !hold.is_valid(now) {
            engine.reap(Arc::clone(request));
            self.failed(engine.overdue(), request.replication);
            return;
        }
        self.hold_granted(&hold, tokens, granted.server_time);
    }

    /// The store granted the request that waits there, and said so by a notice: at some time after it was last known to
    /// wait.
    fn granted_directly(&mut self, token: FencingToken, server_time: ServerTime) {
        let queued = lock(&self.key.queued).as_ref().map(|queued| (queued.found, queued.since));
        let Some((_, since)) = queued.filter(|(found, _)| *found < server_time) else {
            // It comes late, to a process that was stopped or over a slow connection.
            self.act(|machine, now, _| machine.pace.now(now));
            return;
        };
        let Some(request) = self.stop_queueing() else { return };
        let unanswered = std::mem::take(&mut self.unanswered).then(|| Arc::clone(&request));
        let Some(lease) = lock(&self.key.machine).wanted_lease(self.engine.clock.now()) else {
            // Nobody waits any more.
            self.engine.reap(request);
            return;
        };
        let Some(item) = request.items.first().cloned() else { return };
        let engine = &self.engine;
        let direct = DIRECT_LEASE.min(lease.duration());
        let hold = Hold::new(engine.new_id(), item, lease, since, engine.runtime.clone());
        let hold = hold.of(&self.key).until(since, direct).with_unanswered(unanswered);
        let hold = Arc::new(hold);
        if !hold.is_valid(engine.clock.now()) {
            // It is asked for again, under the same owner: the hold may still be there.
            self.unanswered = hold.unanswered().is_some();
            self.queued = Some(request);
            self.act(|machine, now, _| machine.pace.now(now));
            return;
        }
        let tokens = TokenRange { first: token.get(), last: token.get() };
        self.hold_granted(&hold, tokens, server_time);
        if matches!(lease, Lease::Fixed(_)) {
            // Counted from when it was last known to wait, and of a direct grant's length: it is less than what was asked
            // for. Goes on by itself; the hold's deadline tells how it went.
            drop(engine.extend(&hold, lease.duration(), hold.deadline()));
        }
    }

    fn hold_granted(&self, hold: &Arc<Hold>, tokens: TokenRange, server_time: ServerTime) {
        let window = self.engine.window(hold.lease);
        self.act(|machine, now, effects| {
            machine.on_granted(Arc::clone(hold), tokens, server_time, window, now, effects);
        });
        self.engine.watch_of(&self.key, hold, || keeper::next_renewal(hold, self.engine.clock.now()));
    }

    async fn release(&mut self, hold: Arc<Hold>, order: Order, then: Option<Again>) {
        let engine = Arc::clone(&self.engine);
        let _pending = order.pending.unwrap_or_else(|| engine.pending_releases.count());
        let takeover = then.map(|again| Takeover {
            request: Arc::new(self.request(again.lease, again.tokens)),
            listeners: again.listeners,
        });
        let watches = u32::from(self.watch.is_some());
        let sent = release::send(&engine, &hold, takeover.clone(), watches, order.report, |error| {
            let random = jitter();
            self.act(|machine, now, effects| machine.note_error(error, now, random, effects));
        })
        .await;
        match (sent, takeover, then) {
            (Sent::Answered { sent, released }, Some(takeover), Some(again)) if released.then.is_some() => {
                if let Some(granted) = &released.then {
                    self.act(|machine, _, _| machine.on_taken_over());
                    self.granted(&takeover.request, again.lease, sent, engine.clock.now(), granted);
                }
            }
            (Sent::Answered { released, .. }, ..) => {
                let rivals = Rivals {
                    listeners: released.other_listeners,
                    echo: released.echo && self.watch.is_some(),
                    round_trip: engine.rtt.lowest(),
                };
                self.act(|machine, now, _| machine.on_released(now, Some(rivals)));
            }
            (Sent::GivenUp, ..) => self.act(|machine, now, _| machine.on_released(now, None)),
        }
    }

    /// Sees to it that messages about the key arrive; a fresh subscription is followed by an attempt at once.
    async fn subscribe(&mut self, request: Arc<AcquireRequest>) {
        let engine = Arc::clone(&self.engine);
        let now = engine.clock.now();
        let listening = self.watch.as_ref().is_some_and(Watch::is_confirmed);
        if listening || now < self.subscribe_after || lock(&self.key.machine).waiting() == 0 {
            return;
        }
        self.subscribe_after = now + RESUBSCRIBE;
        match engine.bounded(|store| store.watch(request)).await {
            Ok(watch) => {
                let confirmed = watch.is_confirmed();
                self.watch = Some(watch);
                if confirmed {
                    self.act(|machine, now, _| machine.pace.now(now));
                }
            }
            // Without messages it polls.
            Err(error) => tracing::debug!(key = %self.key.name, %error, "no subscription"),
        }
    }

    /// Waits for a message, a change of the machine, or `until`.
    async fn park(&mut self, until: Tick) {
        let engine = Arc::clone(&self.engine);
        let key = Arc::clone(&self.key);
        loop {
            let left = until.since(engine.clock.now());
            tokio::select! {
                biased; // so that a run can be made again
                () = key.changed.notified() => return,
                notice = next_notice(self.watch.as_mut()) => {
                    tracing::trace!(key = %key.name, ?notice, "notice");
                    if let Notice::Granted { token, server_time } = notice {
                        self.granted_directly(token, server_time);
                        return;
                    }
                    if self.act(|machine, now, _| machine.on_message(now)) {
                        return;
                    }
                }
                () = tokio::time::sleep(left) => return,
            }
        }
    }
}

/// Forgets what has been heard already.
pub(crate) fn skip_notices(watch: Option<&mut Watch>) {
    if let Some(watch) = watch {
        while watch.try_notice().is_some() {}
    }
}

/// Pending for ever without a watch.
pub(crate) async fn next_notice(watch: Option<&mut Watch>) -> Notice {
    match watch {
        Some(watch) => watch.notice().await,
        None => std::future::pending().await,
    }
}
