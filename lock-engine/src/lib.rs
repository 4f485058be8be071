//! The engine of `lock-runtime`: turns requests into holds, on any [`LockStore`]. Programs use
//! `lock-runtime`; everything in here may change with any version.
//!
//! A caller queues in a lane, whose driver asks the store on behalf of all its callers. A granted
//! hold goes from caller to caller, until the driver releases it. The parts:
//!
//! - `acquire`: the future that a caller awaits; it finds the lane.
//! - `machine`: everything known about one lane, a state machine without I/O; `retry`: when its
//!   contender tries again.
//! - `lane`, `grant`: the state beside a machine: wakers, grants and their lost signals.
//! - `driver`: the task that carries out a machine's steps; at most one per lane.
//! - `keeper`: the timekeeper, which renews holds and finds lost ones.
//! - `calls`: store calls with time-outs.
//! - `release`, `reaper`: the two kinds of calls that go on without their caller; `pending` counts
//!   the former.
//! - `ending`: how a manager ends.
#![doc(hidden)]
#![forbid(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links, reason = "its documentation is for maintainers")]
#![allow(missing_debug_implementations, reason = "the handles and guards of `lock-runtime` have it")]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod acquire;
pub mod admission;
mod caller;
mod calls;
mod crowds;
mod driver;
mod ending;
pub mod failure;
pub mod grant;
mod health;
pub mod hold;
mod keeper;
mod lane;
pub mod machine;
pub mod metrics;
mod pending;
mod permits;
pub mod places;
mod reaper;
pub mod registry;
mod release;
pub mod request;
pub mod retry;
mod rtt;
pub mod scope;
pub mod settings;
pub mod spec;
pub mod subscription;
pub mod terms;
mod timers;

use std::sync::Arc;
use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::chance::jitter;
use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::eager;
use lock_core::internal::is_of_permits;
use lock_core::internal::runtime::is_inside;
use lock_core::internal::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use lock_core::internal::sync::{CachePadded, MutexGuard, catch_panics, lock};
use lock_core::store::{Abilities, Few, Item, Kind, LockStore, SemaphoreStore, StoreError};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::crowds::Crowds;
use self::grant::Grant;
use self::health::Health;
use self::hold::Ticks;
use self::lane::{Lane, Order, State, Told};
use self::machine::{Action, Input, Machine, ReleaseOutcome, Rules};
use self::pending::InFlightCount;
use self::permits::PermitsAsLocks;
use self::registry::Registry;
use self::rtt::RoundTrip;
use self::spec::{LaneKind, Spec};
use self::timers::Timers;
use crate::failure::Failure;
use crate::scope::Scope;
use crate::trace::TARGET;
use settings::EngineSettings;
pub use settings::{LONGEST, SHORTEST_POLL, out_of_range};

/// Maximum sleep, so that a resumed machine is noticed: tokio's timers do not count suspend.
pub const LONGEST_SLEEP: Duration = Duration::from_secs(5);

/// Minimum extension of a wait that is shorter than a round trip.
const GRACE: Duration = Duration::from_millis(100);

/// Number of engines made so far.
static ENGINES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Everything that belongs to one manager. Guards keep it alive. Aligned, so that their reference
/// count does not share a cache line with data that all threads read.
#[derive(Debug)]
#[repr(align(128))]
pub struct Engine {
    /// Unique among all engines of the process.
    id: u64,
    pub settings: EngineSettings,
    pub clock: Clock,
    pub store: Arc<dyn LockStore>,
    /// The store's semaphores, if it has any.
    permits: Option<PermitsAsLocks>,
    pub runtime: Handle,
    pub(crate) registry: CachePadded<Registry>,
    pub(crate) rtt: CachePadded<RoundTrip>,
    health: Health,
    pub(crate) crowds: Crowds,
    timers: Arc<Timers>,
    ids: CachePadded<AtomicU64>,
    /// Number of waiting callers, of all keys.
    pub(crate) waiting: CachePadded<AtomicUsize>,
    pending_releases: InFlightCount,
    pending_withdrawals: InFlightCount,
    /// Releases and withdrawals that are repeated after the lease.
    pending_repeats: InFlightCount,
    release_warned: AtomicBool,
    pub shut_down: AtomicBool,
    pub(crate) ticks: Ticks,
    rules: Arc<Rules>,
    /// All background tasks that end by themselves.
    pub(crate) tasks: TaskTracker,
    /// Ends the timekeeper when the engine is dropped.
    ended: CancellationToken,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

impl Engine {
    pub fn start(
        settings: EngineSettings,
        clock: Clock,
        store: Arc<dyn LockStore>,
        runtime: Handle,
    ) -> Arc<Self> {
        let permits = store.semaphores().map(PermitsAsLocks);
        let abilities = store.abilities().clone();
        let ticks = Ticks { phase: jitter() };
        let (call_timeout, window, fallback) =
            (settings.call_timeout, settings.cohort_window, settings.fallback_poll);
        let timers = Arc::new(Timers::default());
        let pending = || InFlightCount::new(settings.max_pending_releases);
        let (pending_releases, pending_withdrawals, pending_repeats) = (pending(), pending(), pending());
        let ended = CancellationToken::new();
        let engine = Arc::new(Self {
            id: ENGINES.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            settings,
            clock,
            store,
            permits,
            runtime,
            registry: CachePadded::default(),
            rtt: CachePadded::default(),
            health: Health::default(),
            crowds: Crowds::new(abilities.waiter_life),
            timers: Arc::clone(&timers),
            ids: CachePadded(AtomicU64::new(1)),
            waiting: CachePadded::default(),
            pending_releases,
            pending_withdrawals,
            pending_repeats,
            release_warned: AtomicBool::new(false),
            shut_down: AtomicBool::new(false),
            ticks,
            rules: Arc::new(Rules { call_timeout, window, fallback, ticks, abilities }),
            tasks: TaskTracker::new(),
            ended: ended.clone(),
        });
        // A shutdown does not wait for these two.
        if let Some(lost) = engine.store.lost() {
            let looks = keeper::look_after_holds(Arc::downgrade(&engine), lost, ended.clone());
            drop(engine.runtime.spawn(engine.part(looks)));
        }
        let keeper = keeper::run(keeper::OnTaskGone(Arc::downgrade(&engine)), timers, clock, ended);
        drop(engine.runtime.spawn(engine.part(keeper)));
        engine
    }

    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        drop(self.tasks.spawn_on(self.part(task), &self.runtime));
    }

    /// Returns `task` unchanged; only simulations run it as part of a process.
    #[cfg(not(feature = "testing"))]
    fn part<F: Future<Output = ()>>(&self, task: F) -> F {
        task
    }

    /// Makes `task` a part of the simulated process, if there is one.
    #[cfg(feature = "testing")]
    fn part<F: Future<Output = ()>>(&self, task: F) -> impl Future<Output = ()> + use<F> {
        let process = self.settings.process.clone();
        async move {
            match process {
                None => task.await,
                Some(process) => process.run(task).await,
            }
        }
    }

    /// Runs `task` to its end, even if nobody awaits its outcome.
    pub(crate) fn report<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (report, outcome) = oneshot::channel();
        self.spawn(async move {
            let _ = report.send(task.await);
        });
        outcome
    }

    // ---- keys -----------------------------------------------------------------------------------

    /// Runs `f` on a lane, which is made if necessary, and carries out the resulting actions.
    pub(crate) fn with_lane<R>(
        self: &Arc<Self>,
        key: &LockKey,
        kind: LaneKind,
        spec: &Spec,
        f: impl FnOnce(&Arc<Lane>, &mut State, Tick) -> R,
    ) -> (Arc<Lane>, R) {
        loop {
            let lane = self.registry.get(key, kind, || self.make_lane(key, kind, spec));
            let state = lock(&lane.state);
            if state.removed {
                continue;
            }
            let result = self.run(&lane, state, Mode::Awaited, |state, now| f(&lane, state, now));
            return (lane, result);
        }
    }

    /// Returns the store's semaphores, if it has any.
    pub fn semaphores(&self) -> Option<&Arc<dyn SemaphoreStore>> {
        self.permits.as_ref().map(|permits| &permits.0)
    }

    /// Returns the store of these items: permits are kept by the store's semaphores.
    pub(crate) fn store_of(&self, items: &[Item]) -> &dyn LockStore {
        match &self.permits {
            Some(permits) if items.first().is_some_and(|item| is_of_permits(&item.owner)) => permits,
            _ => &*self.store,
        }
    }

    /// Ends the turn of the lane's waiter, which has its permits or has left: the next in line
    /// asks.
    pub(crate) fn leave_line(self: &Arc<Self>, lane: &Lane) {
        if lane.spec.permits > 0
            && let Some((next, waiter)) = self.registry.leave_line(lane)
        {
            self.tell(&next, Input::Admit(waiter));
        }
    }

    /// Returns how many callers of this process hold or want the mutex of `key`.
    pub fn load_of(&self, key: &LockKey) -> usize {
        let Some(lane) = self.registry.find(key, LaneKind::Mutex) else { return 0 };
        let machine = &lock(&lane.state).machine;
        machine.waiting() + usize::from(machine.hold().is_some())
    }

    /// Whether a caller of this manager holds the mutex of `key`. A try from outside that call is
    /// then refused.
    pub fn is_claimed(&self, key: &LockKey) -> bool {
        self.registry.find(key, LaneKind::Mutex).is_some_and(|lane| lock(&lane.state).machine.is_claimed())
    }

    /// Makes a lane. Called under the registry's mutex: a shutdown that has begun is either seen
    /// here, or sees this lane.
    fn make_lane(&self, key: &LockKey, kind: LaneKind, spec: &Spec) -> Arc<Lane> {
        let shut_down = self.shut_down.load(Ordering::Acquire);
        let machine = Machine::new(key.clone(), kind, spec.clone(), Arc::clone(&self.rules), shut_down);
        Lane::new(
            machine,
            (self.id, self.ids.fetch_add(1, Ordering::Relaxed)),
            self.clock,
            self.runtime.clone(),
        )
    }

    /// Returns where a call that wants `key` re-enters, if it runs inside a hold of that key.
    ///
    /// # Errors
    ///
    /// When the enclosing call holds the key in a kind that excludes the wanted one.
    fn host(&self, key: &LockKey, kind: Kind, scope: &Scope) -> Result<Option<Host>, Failure> {
        let find = |grant: &Arc<Grant>| {
            let (held, at) = grant.pass.hold.find(key)?;
            let host = &grant.lane;
            let enters = host.engine == self.id && host.spec.permits == 0 && grant.is_live();
            enters.then(|| (held, (!grant.pass.hold.is_single()).then_some(at), Arc::clone(host)))
        };
        let Some((held, part, lane)) = scope.grants().find_map(find) else { return Ok(None) };
        if held != kind && (held, kind) != (Kind::Write, Kind::Read) {
            return Err(Failure::KindConflict { held, wanted: kind });
        }
        Ok(Some((lane, part)))
    }

    /// Whether a call that wants `key` is re-entrant, because it runs inside a hold of that key.
    ///
    /// # Errors
    ///
    /// When the enclosing call holds the key in a kind that excludes the wanted one.
    pub fn is_hosted(&self, key: &LockKey, kind: Kind, scope: &Scope) -> Result<bool, Failure> {
        Ok(self.host(key, kind, scope)?.is_some())
    }

    /// Returns the last error of a call, and when it occurred.
    pub fn last_error(&self) -> Option<(Tick, StoreError)> {
        self.health.last_error()
    }

    /// Runs `f` on a lane on behalf of a caller, unless the lane was removed.
    pub(crate) fn with_host<R>(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        f: impl FnOnce(&mut State, Tick) -> R,
    ) -> Option<R> {
        let state = lock(&lane.state);
        (!state.removed).then(|| self.run(lane, state, Mode::Awaited, f))
    }

    /// Runs `f` on a lane that is in use, and carries out the resulting actions.
    pub(crate) fn with<R>(self: &Arc<Self>, lane: &Arc<Lane>, f: impl FnOnce(&mut State, Tick) -> R) -> R {
        self.run(lane, lock(&lane.state), Mode::Background, f)
    }

    /// Passes an input to the lane's machine.
    pub(crate) fn tell(self: &Arc<Self>, lane: &Arc<Lane>, input: Input<'_>) {
        self.with(lane, |state, now| state.machine.handle(input, now));
    }

    fn run<R>(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        mut state: MutexGuard<'_, State>,
        mode: Mode,
        f: impl FnOnce(&mut State, Tick) -> R,
    ) -> R {
        let result = f(&mut state, self.clock.now());
        let (mut actions, mut wakers, mut drives) = (Few::new(), Few::new(), false);
        let (mut lost, mut is_news) = (Few::new(), false);
        for action in state.machine.poll_actions() {
            match action {
                Action::Wake(waiter) => wakers.extend(state.wakers.remove(&waiter)),
                Action::TellLoss { grants, news } => {
                    is_news |= news;
                    lost.extend(grants.iter().rev().filter_map(|number| state.forget(*number)));
                }
                Action::Drive => drives = true,
                action => actions.push(action),
            }
        }
        let idle = state.machine.is_idle();
        let due = state.machine.poll_timeout();
        // The timer is only moved to an earlier time, so it may fire too early. Changed under the
        // mutex, so that no timer is left when nothing is due.
        if due < state.timer || due == Tick::MAX && state.timer < due {
            self.timers.change(lane.id, state.timer, due, || Arc::downgrade(lane));
            state.timer = due;
        }
        drop(state);
        actions.into_iter().for_each(|action| catch_panics(|| self.execute(lane, action)));
        if idle {
            self.registry.remove_idle(lane);
        }
        wakers.into_iter().for_each(|waker| catch_panics(|| waker.wake()));
        self.tell_loss(lane, &lost, is_news);
        if drives {
            self.drive(lane, mode);
        }
        result
    }

    fn execute(self: &Arc<Self>, lane: &Arc<Lane>, action: Action) {
        match action {
            // Goes on by itself; the hold's deadline shows the result.
            Action::Extend(hold, until) => {
                let lease = move |now| until.since(now).max(Duration::from_millis(1));
                drop(self.extend(lane, &hold, lease, hold.deadline()));
            }
            Action::Withdraw(_) if self.runtime_is_gone() => {}
            Action::Withdraw(request) => self.reap(request),
            Action::JoinQueue(request) => keeper::join_crowd(self, lane, &request),
            Action::LeaveQueue => keeper::leave_crowd(self, lane),
            Action::Abandon(hold, rest) => {
                match self.pending_releases.reserve().filter(|_| !self.runtime_is_gone()) {
                    Some(pending) => self.spawn(release::abandon(Arc::clone(self), hold, rest, pending)),
                    None => self.left_to_lease(&lane.key),
                }
            }
            Action::CountLeft => self.left_to_lease(&lane.key),
            Action::Notify => lane.changed.notify_one(),
            // Handled by the caller.
            Action::Wake(_) | Action::TellLoss { .. } | Action::Drive => {}
        }
    }

    fn tell_loss(&self, lane: &Lane, lost: &[Arc<Grant>], is_news: bool) {
        for grant in lost {
            catch_panics(|| grant.signal_lost());
        }
        // Reported once, for the outermost grant.
        if let Some(grant) = lost.last().filter(|_| is_news) {
            catch_panics(|| {
                metrics::lost();
                tracing::warn!(target: TARGET, key = %lane.key, token = %grant.pass.token, why = %grant.loss(), "lock lost");
            });
        }
    }

    fn drive(self: &Arc<Self>, lane: &Arc<Lane>, mode: Mode) {
        let driver = driver::run(Arc::clone(self), Arc::clone(lane));
        match mode {
            Mode::Awaited if is_inside(&self.runtime) => {
                eager::spawn(&self.runtime, self.tasks.track_future(self.part(driver)));
            }
            _ => self.spawn(driver),
        }
    }

    // ---- grants ---------------------------------------------------------------------------------

    /// Releases a grant whose guard is released or dropped: decides at once, under the lane's
    /// mutex, what becomes of its hold. Only an awaited release may exceed the cap on pending
    /// releases. Returns the receiver of the store's answer, if one is to come.
    pub(crate) fn release(
        self: &Arc<Self>,
        grant: &Arc<Grant>,
        mode: Mode,
    ) -> (ReleaseOutcome, Option<Told>) {
        let lane = &grant.lane;
        let (ended, told, was_lost) = self.run(lane, lock(&lane.state), mode, |state, now| {
            let was_lost = grant.end(now);
            let mut pending = None;
            let reserve = || {
                pending = match mode {
                    _ if self.runtime_is_gone() => None,
                    Mode::Awaited => Some(self.pending_releases.count()),
                    Mode::Background => self.pending_releases.reserve(),
                };
                pending.is_some()
            };
            let ended = state.machine.release(grant.pass.number, was_lost, reserve, now);
            let reports = mode == Mode::Awaited && matches!(ended, ReleaseOutcome::Releasing);
            let (report, told) = reports.then(oneshot::channel).unzip();
            if pending.is_some() {
                state.order = Order { report, pending };
            }
            if !was_lost {
                state.forget(grant.pass.number);
            }
            (ended, told, was_lost)
        });
        if was_lost {
            catch_panics(|| grant.signal_lost());
            drop(lock(&lane.state).forget(grant.pass.number));
        }
        match ended {
            ReleaseOutcome::Downgrading(hold) => {
                (ReleaseOutcome::Releasing, Some(self.start_downgrade(lane, hold)))
            }
            ended => (ended, told),
        }
    }

    fn left_to_lease(&self, key: &LockKey) {
        let gone = self.runtime_is_gone();
        let why = if gone { "the runtime has shut down" } else { "too many releases are pending" };
        self.release_failed(key, &why);
    }

    /// Records that a release is given up: the lease ends the hold.
    pub(crate) fn release_failed(&self, key: &LockKey, why: &dyn std::fmt::Display) {
        catch_panics(|| {
            metrics::release_failed();
            if self.release_warned.swap(true, Ordering::Relaxed) {
                tracing::debug!(target: TARGET, %key, %why, "release not confirmed; the lease ends the hold");
            } else {
                tracing::warn!(target: TARGET, %key, %why, "release not confirmed; the lease ends the hold (logged \
                                                            once as a warning; see the metric)");
            }
        });
    }

    /// Returns why a lease cannot be kept up: it is shorter than 100 ms or four round trips, or
    /// longer than the store allows.
    pub(crate) fn refuse_lease(&self, key: &LockKey, lease: Duration) -> Option<String> {
        if let Some(reason) = out_of_range(lease) {
            return Some(format!("lock {key}: {reason}"));
        }
        let Abilities { name, shortest_lease, longest_lease, .. } = self.store.abilities();
        if lease < *shortest_lease {
            return Some(format!(
                "lock {key}: a lease of {lease:?} is too short for {name}; use {shortest_lease:?} or more"
            ));
        }
        // Checked before anything is taken: a hold may later be renewed to a longer lease, in one
        // call with others.
        if let Some(longest) = longest_lease.filter(|&longest| lease > longest) {
            return Some(format!(
                "lock {key}: a lease of {lease:?} exceeds the maximum of this store, {longest:?}. Use a shorter \
                 lease or a shorter `min_hold`, or set a longer maximum in all programs that use the store: \
                 `max_lease` of a quorum, `timeout` in the URL of ZooKeeper; a renewed lock can be held for any time"
            ));
        }
        // Longer leases always exceed four round trips, because a slower answer counts as none.
        let doubtful = lease < self.settings.call_timeout * 5;
        let measured = doubtful.then(|| self.rtt.measured(self.clock.now())).flatten();
        measured.filter(|&round_trip| lease < round_trip * 4).map(|round_trip| {
            format!(
                "lock {key}: a lease of {lease:?} is shorter than 4 round trips to the store ({round_trip:?} each); \
                 use a longer one"
            )
        })
    }

    /// Returns the extension of a wait that is shorter than a round trip, so that its one attempt
    /// can be answered.
    pub fn grace(&self) -> Duration {
        GRACE.max(self.rtt.lowest() * 4).min(self.settings.call_timeout)
    }

    /// Treats the holds of `key` as lost, as if the store had said so. Returns whether there were
    /// any.
    #[cfg(feature = "testing")]
    pub fn lose_all(self: &Arc<Self>, key: &LockKey) -> bool {
        let lanes = self.registry.find_all(key);
        lanes.iter().filter(|lane| self.cut_off(lane, crate::failure::Loss::TakenAway)).count() > 0
    }

    /// Returns everything that is left, for tests that look for leaks.
    #[cfg(feature = "testing")]
    pub fn leftovers(&self) -> Leftovers {
        Leftovers {
            keys: self.registry.len(),
            timers: self.timers.len(),
            tasks: self.tasks.len(),
            waiters: self.waiting.load(Ordering::Relaxed),
            timekeepers: 1,
        }
    }
}

#[cfg(feature = "testing")]
/// The remaining state of a manager. When nothing is held, wanted or under way, all counts are zero
/// except `timekeepers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leftovers {
    /// Keys that are held, wanted, or being released.
    pub keys: usize,
    /// Lanes with a due time: renewals, deadlines, offers.
    pub timers: usize,
    /// Background tasks: contenders, releases, withdrawals.
    pub tasks: usize,
    /// Waiting calls, of all keys.
    pub waiters: usize,
    /// Tasks that last as long as the manager: one.
    pub timekeepers: usize,
}

/// The lane that a call re-enters, and which of the host's keys it wants if there are several.
type Host = (Arc<Lane>, Option<u16>);

/// How a piece of work is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Its caller awaits it: a driver that it starts is polled at once, if the caller runs in the
    /// manager's runtime.
    Awaited,
    /// Nobody awaits it. It may run anywhere, even in a drop during a panic.
    Background,
}

#[cfg(all(test, lock_loom))]
mod loom_models;
#[cfg(test)]
mod tests;
mod trace;
