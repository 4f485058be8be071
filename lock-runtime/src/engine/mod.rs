//! The engine: turns wishes into holds.
//!
//! - [`machine`]: what is known about one key, a state machine without I/O; [`pace`]: when its contender tries again.
//! - [`driver`]: the task that carries out a machine's steps; at most one per key.
//! - [`keeper`]: the timekeeper, which renews holds and finds those that are lost.
//! - [`release`], [`reaper`]: the two kinds of calls that go on when their caller is gone.
//! - [`acquire`]: the future that a caller polls.

pub(crate) mod acquire;
mod driver;
pub(crate) mod hold;
mod keeper;
pub(crate) mod machine;
mod pace;
mod reaper;
pub(crate) mod registry;
mod release;
mod rtt;
mod timers;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::hold::{Grant, Hold, Lease};
use self::machine::{Effects, Ended, Entry, Machine};
use self::registry::{Key, Registry};
use self::rtt::RoundTrip;
use self::timers::{Job, Timers};
use crate::clock::{Clock, Tick};
use crate::config::Config;
use crate::error::{ExtendError, LockError};
use crate::key::LockKey;
use crate::metrics;
use crate::store::{BoxFuture, Item, KeepItem, KeepRequest, Kept, LockStore, StoreError, StoreErrorKind};
use crate::sync::lock;
use crate::token::Owners;

/// Leases shorter than this are refused.
pub(crate) const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// The longest window of local hand-offs, whatever the settings say.
const LONGEST_WINDOW: Duration = Duration::from_millis(250);

/// Everything that belongs to one manager. Guards keep it alive.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) store: Arc<dyn LockStore>,
    pub(crate) runtime: Handle,
    pub(crate) owners: Owners,
    pub(crate) registry: Registry,
    pub(crate) rtt: RoundTrip,
    timers: Arc<Timers>,
    ids: AtomicU64,
    /// Callers that wait, of all keys.
    pub(crate) waiting: AtomicUsize,
    pending_releases: AtomicUsize,
    release_warned: AtomicBool,
    pub(crate) shut_down: AtomicBool,
    /// Everything that runs in the background and ends by itself.
    pub(crate) tasks: TaskTracker,
    /// Ends the timekeeper when the engine goes.
    ended: CancellationToken,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

impl Engine {
    pub(crate) fn start(
        config: Config,
        clock: Clock,
        store: Arc<dyn LockStore>,
        runtime: Handle,
    ) -> Arc<Self> {
        let timers = Arc::new(Timers::default());
        let ended = CancellationToken::new();
        let engine = Arc::new(Self {
            config,
            clock,
            store,
            runtime,
            owners: Owners::new(),
            registry: Registry::default(),
            rtt: RoundTrip::default(),
            timers: Arc::clone(&timers),
            ids: AtomicU64::new(1),
            waiting: AtomicUsize::new(0),
            pending_releases: AtomicUsize::new(0),
            release_warned: AtomicBool::new(false),
            shut_down: AtomicBool::new(false),
            tasks: TaskTracker::new(),
            ended: ended.clone(),
        });
        let keeper = keeper::run(keeper::Alive::new(Arc::downgrade(&engine)), timers, clock, ended);
        drop(engine.runtime.spawn(keeper));
        engine
    }

    pub(crate) fn new_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        drop(self.tasks.spawn_on(task, &self.runtime));
    }

    // ---- keys --------------------------------------------------------------------------------------------------

    /// Runs `f` on the key's machine, made if need be, and carries out what follows.
    pub(crate) fn with_key<R>(
        self: &Arc<Self>,
        name: &LockKey,
        f: impl FnOnce(&mut Machine, Tick, &mut Effects) -> R,
    ) -> (Arc<Key>, R) {
        loop {
            let key = self.registry.get(name, || {
                // Read under the registry's mutex: a shutdown that has begun is seen here, or sees this key.
                let shut_down = self.shut_down.load(Ordering::Acquire);
                Key::new(self.new_id(), Machine::new(name.clone(), self.clock, shut_down))
            });
            let mut machine = lock(&key.machine);
            if machine.removed {
                continue;
            }
            let mut effects = Effects::default();
            let result = f(&mut machine, self.clock.now(), &mut effects);
            let idle = machine.is_idle();
            drop(machine);
            self.apply(&key, effects, idle);
            return (key, result);
        }
    }

    /// Runs `f` on the machine of a key that is in use, and carries out what follows.
    pub(crate) fn act<R>(
        self: &Arc<Self>,
        key: &Arc<Key>,
        f: impl FnOnce(&mut Machine, Tick, &mut Effects) -> R,
    ) -> R {
        let mut effects = Effects::default();
        let mut machine = lock(&key.machine);
        let result = f(&mut machine, self.clock.now(), &mut effects);
        let idle = machine.is_idle();
        drop(machine);
        self.apply(key, effects, idle);
        result
    }

    fn apply(self: &Arc<Self>, key: &Arc<Key>, effects: Effects, idle: bool) {
        if let Some(hold) = effects.unwatch {
            self.timers.remove(hold.id);
        }
        if let Some(hold) = effects.rewatch {
            let due = if hold.is_renewing() { self.clock.now() } else { hold.deadline() };
            self.watch_at(&hold, due);
        }
        if let Some((hold, lease)) = effects.lengthen {
            // Goes on by itself; the guard's deadline tells how it went.
            drop(self.extend(&hold, lease));
        }
        if let Some(due) = effects.sweep {
            self.timers.set(key.id, due, Job::Sweep(Arc::downgrade(key)));
        }
        if let Some(grant) = effects.signal {
            self.timers.remove(grant.max_hold_job);
            grant.signal_lost();
            metrics::lost();
            tracing::warn!(key = %key.name, token = %grant.token, "lock lost");
        }
        if let Some((hold, rest)) = effects.abandon {
            self.spawn(release::abandon(Arc::clone(self), hold, rest));
        }
        if effects.spawn {
            self.spawn(driver::run(Arc::clone(self), Arc::clone(key)));
        }
        if effects.notify {
            key.changed.notify_one();
        }
        if let Some(waker) = effects.wake {
            waker.wake();
        }
        for waker in effects.wake_more {
            waker.wake();
        }
        if idle && self.registry.remove_idle(key) {
            self.timers.remove(key.id);
        }
    }

    // ---- grants ------------------------------------------------------------------------------------------------

    /// A guard is released or dropped: decides at once, under the key's mutex, what becomes of its hold.
    pub(crate) fn release(self: &Arc<Self>, key: &Arc<Key>, entry: &Entry) -> Ended {
        let ended = self.act(key, |machine, now, effects| machine.release(entry, now, effects));
        if entry.grant.max_hold_end < Tick::MAX && entry.grant.has_ended() {
            self.timers.remove(entry.grant.max_hold_job);
        }
        ended
    }

    /// A guard is dropped while no release can be sent.
    pub(crate) fn leave_to_lease(self: &Arc<Self>, key: &Arc<Key>, entry: &Entry) {
        let left = self.act(key, |machine, now, effects| machine.leave_to_lease(entry, now, effects));
        self.timers.remove(entry.grant.max_hold_job);
        if left {
            let why =
                if self.runtime_is_gone() { "the runtime is gone" } else { "too many releases are pending" };
            self.release_failed(&key.name, &why);
        }
    }

    /// Whether one more background release may be started; counted until [`release_done`](Self::release_done).
    pub(crate) fn may_release(&self) -> bool {
        self.pending_releases.load(Ordering::Relaxed) < self.config.max_pending_releases
            && !self.runtime_is_gone()
    }

    pub(crate) fn release_started(&self) {
        self.pending_releases.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn release_done(&self) {
        self.pending_releases.fetch_sub(1, Ordering::Relaxed);
    }

    /// A release is given up: the lease ends the hold.
    pub(crate) fn release_failed(&self, key: &LockKey, why: &dyn std::fmt::Display) {
        metrics::release_failed();
        if self.release_warned.swap(true, Ordering::Relaxed) {
            tracing::debug!(%key, %why, "release not confirmed; the lease ends the hold");
        } else {
            tracing::warn!(%key, %why, "release not confirmed; the lease ends the hold (said once, see the metric)");
        }
    }

    /// The hold is not ours any more, or not certain.
    pub(crate) fn lose(self: &Arc<Self>, hold: &Arc<Hold>) {
        match self.registry.find(&hold.item.key) {
            Some(key) => self.act(&key, |machine, now, effects| machine.lose(hold, now, effects)),
            None => {
                hold.mark_lost();
                self.timers.remove(hold.id);
            }
        }
    }

    /// The end of a grant's `max_hold`.
    pub(crate) fn watch_max_hold(&self, grant: &Arc<Grant>) {
        if grant.max_hold_end < Tick::MAX {
            self.timers.set(grant.max_hold_job, grant.max_hold_end, Job::MaxHold(Arc::downgrade(grant)));
        }
    }

    /// Makes the hold's remaining time at least `lease`, by one store call. Goes on when its caller is gone.
    pub(crate) fn extend(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        lease: Duration,
    ) -> tokio::sync::oneshot::Receiver<Result<(), ExtendError>> {
        let (report, outcome) = tokio::sync::oneshot::channel();
        let (engine, hold) = (Arc::clone(self), Arc::clone(hold));
        self.spawn(async move {
            let key = hold.item.key.clone();
            let items = vec![KeepItem { item: hold.item.clone(), lease }];
            let result = match engine.keep(items).await {
                (_, Err(source)) => Err(ExtendError::Unavailable { key, source: Arc::new(source) }),
                (sent, Ok(kept))
                    if kept.first() == Some(&Kept::Renewed)
                        && hold.renewed(sent, engine.clock.now(), lease) =>
                {
                    engine.watch_again(&hold);
                    Ok(())
                }
                (_, Ok(_)) => {
                    engine.lose(&hold);
                    Err(ExtendError::Lost { key })
                }
            };
            let _ = report.send(result);
        });
        outcome
    }

    /// The hold's deadline has moved: its job too, unless the hold has ended meanwhile.
    fn watch_again(&self, hold: &Arc<Hold>) {
        self.watch_at(hold, keeper::next_renewal(hold, self.clock.now()));
    }

    /// Sets the hold's job, unless the hold has ended.
    fn watch_at(&self, hold: &Arc<Hold>, due: Tick) {
        let Some(key) = self.registry.find(&hold.item.key) else { return };
        // Under the machine's mutex, so that a job is never set again after the hold has ended.
        let machine = lock(&key.machine);
        if machine.is_held() && machine.hold().is_some_and(|current| Arc::ptr_eq(current, hold)) {
            self.timers.set(hold.id, due, Job::Hold(Arc::clone(hold)));
        }
    }

    /// One `keep` call; returns when it was sent.
    async fn keep(self: &Arc<Self>, items: Vec<KeepItem>) -> (Tick, Result<Vec<Kept>, StoreError>) {
        let sent = self.clock.now();
        // A call that hangs must leave time for another one before the lease is over.
        let shortest = items.iter().map(|item| item.lease / 4).min().unwrap_or(self.config.call_timeout);
        let timeout = self.config.call_timeout.min(shortest);
        let request = Arc::new(KeepRequest { items, timeout });
        let result = match self.bounded_by(timeout, self.store.keep(request)).await {
            Ok(result) => result,
            Err(call) => {
                self.drive(call);
                Err(self.overdue())
            }
        };
        if result.is_ok() {
            self.rtt.record(sent, self.clock.now());
        }
        (sent, result)
    }

    // ---- store calls -------------------------------------------------------------------------------------------

    async fn bounded_by<T>(
        &self,
        timeout: Duration,
        mut call: BoxFuture<Result<T, StoreError>>,
    ) -> Result<Result<T, StoreError>, BoxFuture<Result<T, StoreError>>> {
        tokio::time::timeout(timeout + timeout / 8, &mut call).await.map_err(|_| call)
    }

    /// Awaits the call for a little longer than the store's own time-out; gives it back when it is overdue.
    async fn bounded<T>(
        &self,
        call: BoxFuture<Result<T, StoreError>>,
    ) -> Result<Result<T, StoreError>, BoxFuture<Result<T, StoreError>>> {
        self.bounded_by(self.config.call_timeout, call).await
    }

    fn overdue(&self) -> StoreError {
        let message = format!("no answer within {:?}", self.config.call_timeout);
        StoreError::new(StoreErrorKind::Unanswered, message)
    }

    fn item(&self, key: &LockKey) -> Item {
        Item { key: key.clone(), kind: crate::store::Kind::Mutex, owner: self.owners.next() }
    }

    /// For how long a hold may be handed on inside the process.
    fn window(&self, lease: Lease) -> Duration {
        (self.rtt.lowest() * 8)
            .max(Duration::from_millis(5))
            .min(self.config.cohort_window)
            .min(LONGEST_WINDOW)
            .min(lease.duration() / 10)
    }

    // ---- the end -----------------------------------------------------------------------------------------------

    /// Cancelled when the engine goes, or its runtime.
    pub(crate) fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Whether the runtime that the manager lives on has ended.
    pub(crate) fn runtime_is_gone(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// The runtime is gone: nothing is renewed any more, so every hold is lost and every waiter is told.
    fn on_runtime_gone(self: &Arc<Self>) {
        self.shut_down.store(true, Ordering::Release);
        self.ended.cancel();
        for key in self.registry.all() {
            self.act(&key, |machine, now, effects| {
                if let Some(hold) = machine.hold().cloned() {
                    machine.lose(&hold, now, effects);
                }
                machine.on_driver_gone(effects);
            });
        }
    }

    /// Ends the engine; see [`LockManager::shutdown`](crate::LockManager::shutdown). Returns how many holds were cut
    /// off, and whether all background work was done in time.
    pub(crate) async fn shutdown(self: &Arc<Self>, grace: Duration) -> (usize, bool) {
        self.shut_down.store(true, Ordering::Release);
        let end = self.clock.now() + grace;
        for key in self.registry.all() {
            self.act(&key, |machine, _, effects| machine.shut_down(effects));
        }
        let busy = || self.registry.all().iter().any(|key| lock(&key.machine).is_busy());
        while busy() && self.clock.now() < end {
            let left = end.since(self.clock.now());
            tokio::time::sleep(left.min(Duration::from_millis(5))).await;
        }
        let mut cut = 0;
        for key in self.registry.all() {
            self.act(&key, |machine, now, effects| {
                if machine.is_held()
                    && let Some(hold) = machine.hold().cloned()
                {
                    cut += 1;
                    machine.lose(&hold, now, effects);
                }
            });
        }
        self.tasks.close();
        let done = self.bounded_wait().await;
        (cut, done)
    }

    async fn bounded_wait(&self) -> bool {
        let limit = self.config.call_timeout * 2;
        tokio::time::timeout(limit, self.tasks.wait()).await.is_ok()
    }

    /// Frees the key whoever holds it.
    pub(crate) async fn force_release(self: &Arc<Self>, name: &LockKey) -> Result<bool, LockError> {
        let ours = self.registry.find(name).and_then(|key| lock(&key.machine).hold().cloned());
        let freed = self.admin(name, self.store.force_release(name.clone())).await?;
        if let Some(hold) = ours {
            self.lose(&hold);
        }
        Ok(freed)
    }

    pub(crate) async fn admin<T>(
        &self,
        name: &LockKey,
        call: BoxFuture<Result<T, StoreError>>,
    ) -> Result<T, LockError> {
        let result = self.bounded(call).await.unwrap_or_else(|_| Err(self.overdue()));
        result.map_err(|error| crate::AcquireError::from_store(name.clone(), Arc::new(error)).into())
    }

    /// Keys in use and jobs set, for tests that look for leaks.
    #[cfg(feature = "testing")]
    pub(crate) fn leftovers(&self) -> (usize, usize, usize) {
        (self.registry.len(), self.timers.len(), self.tasks.len())
    }
}

/// A weak engine, for tasks that must not keep it alive.
pub(crate) type WeakEngine = Weak<Engine>;

#[cfg(test)]
mod tests;
