//! The driver of a key: the one task that carries out its machine's steps.
//!
//! It is the contender for the remote lock and the releaser of the remote hold, one call at a time, so the next
//! local asker queues behind a release. It is never part of a waiter's future: waiters come and go, its calls end.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::hold::{Hold, Lease};
use super::keeper;
use super::machine::{Again, Effects, Order, Rivals, Step};
use super::registry::Key;
use super::release::{self, Sent};
use crate::backoff::jitter;
use crate::clock::Tick;
use crate::error::AcquireError;
use crate::store::{
    AcquireRequest, Acquired, Granted, StoreError, StoreErrorKind, Takeover, TokenRange, Watch,
};
use crate::sync::lock;

/// A subscription that was refused is asked for again after this.
const RESUBSCRIBE: Duration = Duration::from_secs(1);

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
    let mut driver = Driver { watch, engine, key, subscribe_after: Tick::default() };
    loop {
        let step = driver.act(|machine, now, _| machine.next_step(now));
        match step {
            Step::Exit => break,
            Step::Acquire { lease, tokens } => driver.acquire(lease, tokens).await,
            Step::Release { hold, order, then } => driver.release(hold, order, then).await,
            Step::Linger { hold, rest, pending } => {
                release::linger(&driver.engine, &hold, rest).await;
                drop(pending);
            }
            Step::Park { until } => driver.park(until).await,
        }
    }
    alive.done = true;
    let machine = lock(&driver.key.machine);
    // Under the machine's mutex, so that it is not kept after the last waiter has left, nor beside a new driver's.
    if machine.waiting() > 0 && !machine.has_driver() {
        *lock(&driver.key.watch) = driver.watch.take();
    }
    drop(machine);
}

struct Driver {
    engine: Arc<Engine>,
    key: Arc<Key>,
    watch: Option<Watch>,
    subscribe_after: Tick,
}

impl Driver {
    fn act<R>(&self, f: impl FnOnce(&mut super::machine::Machine, Tick, &mut Effects) -> R) -> R {
        self.engine.act(&self.key, f)
    }

    fn request(&self, lease: Lease, tokens: u32) -> Arc<AcquireRequest> {
        let items = vec![self.engine.item(&self.key.name)];
        let timeout = self.engine.config.call_timeout;
        Arc::new(AcquireRequest::new(items, lease.duration(), timeout).tokens(tokens))
    }

    async fn acquire(&mut self, lease: Lease, tokens: u32) {
        let engine = Arc::clone(&self.engine);
        // Whatever was published before the request is sent says nothing about what it will find.
        while self.watch.as_mut().and_then(Watch::try_notice).is_some() {}
        let request = self.request(lease, tokens);
        let sent = engine.clock.now();
        match engine.bounded(|store| store.acquire(Arc::clone(&request))).await {
            Ok(Acquired::Granted(granted)) => {
                let now = engine.clock.now();
                engine.rtt.record(sent, now);
                self.granted(&request, lease, sent, now, &granted);
            }
            Ok(Acquired::Busy(busy)) => {
                engine.rtt.record(sent, engine.clock.now());
                let listening = self.watch.as_ref().is_some_and(Watch::is_confirmed);
                let longest = engine.config.fallback_poll;
                let random = jitter();
                self.act(|machine, now, effects| {
                    machine.on_busy(now, busy.remaining, listening, longest, random, effects);
                });
                self.subscribe(request).await;
            }
            Err(error) => {
                if error.outcome_unknown() {
                    engine.reap(request);
                }
                self.failed(error);
            }
        }
    }

    fn failed(&self, error: StoreError) {
        tracing::debug!(key = %self.key.name, %error, "acquire attempt failed");
        let error = Arc::new(error);
        let random = jitter();
        self.act(|machine, now, effects| machine.on_error(&error, now, random, effects));
    }

    /// The request was granted: its hold counts from before it was sent. A reply that leaves nothing is undone.
    fn granted(&self, request: &Arc<AcquireRequest>, lease: Lease, sent: Tick, now: Tick, granted: &Granted) {
        let engine = &self.engine;
        let (Some(item), Some(&tokens)) = (request.items.first(), granted.tokens.first()) else {
            self.failed(engine.overdue());
            return;
        };
        let runtime = engine.runtime.clone();
        let hold = Arc::new(Hold::new(engine.new_id(), item.clone(), lease, sent, runtime));
        if !hold.is_valid(now) {
            engine.reap(Arc::clone(request));
            self.failed(engine.overdue());
            return;
        }
        self.hold_granted(&hold, tokens, granted);
    }

    fn hold_granted(&self, hold: &Arc<Hold>, tokens: TokenRange, granted: &Granted) {
        let window = self.engine.window(hold.lease);
        let server_time = granted.server_time;
        self.act(|machine, now, effects| {
            machine.on_granted(Arc::clone(hold), tokens, server_time, window, now, effects);
        });
        self.engine.watch_of(&self.key, hold, || keeper::next_renewal(hold, self.engine.clock.now()));
    }

    async fn release(&mut self, hold: Arc<Hold>, order: Order, then: Option<Again>) {
        let engine = Arc::clone(&self.engine);
        let _pending = order.pending.unwrap_or_else(|| engine.pending_releases.count());
        let takeover = then.map(|again| Takeover {
            request: self.request(again.lease, again.tokens),
            listeners: again.listeners,
        });
        let sent = release::send(&engine, &hold, takeover.clone(), order.report, |error| {
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
                    if self.act(|machine, now, _| machine.on_message(now)) {
                        return;
                    }
                }
                () = tokio::time::sleep(left) => return,
            }
        }
    }
}

async fn next_notice(watch: Option<&mut Watch>) -> crate::store::Notice {
    match watch {
        Some(watch) => watch.notice().await,
        None => std::future::pending().await,
    }
}
