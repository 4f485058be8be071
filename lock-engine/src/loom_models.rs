//! Models of the state that threads share without a mutex, or across two. They cover every
//! interleaving, and every value that the memory orderings allow. Run by
//! `cargo xtask test --only loom`.

use std::sync::Weak;
use std::task::{Context, Poll, Waker};

use lock_core::OwnerId;
use lock_core::internal::clock::model::advance;
use lock_core::store::{AcquireRequest, Item, ServerTime};
use loom::thread;
use tokio::runtime::{Builder, Handle, Runtime};

use super::hold::{Hold, drift_margin};
use super::*;
use crate::acquire::Refused;
use crate::admission::Admission;
use crate::failure::Loss;
use crate::request::Request;
use crate::spec::LaneKind;
use crate::terms::{Lease, Wait};
use crate::tests::{mutex, terms};

const LEASE: Duration = Duration::from_secs(10);

fn model(threads: impl Fn(Handle) + Send + Sync + 'static) {
    // Its tasks are never run: they are not part of the models.
    let runtime = runtime();
    let handle = runtime.handle().clone();
    loom::model(move || threads(handle.clone()));
    drop(runtime);
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    // tokio's and tracing's frames are larger than loom's stacks.
    thread::Builder::new().stack_size(0x10_000).spawn(f).unwrap()
}

fn hold(lease: Lease) -> Arc<Hold> {
    let item = Item { key: LockKey::new("k").unwrap(), kind: Kind::Mutex, owner: OwnerId::new("o:1") };
    Arc::new(Hold::new(item, lease, Clock::Model.now()))
}

fn grant(runtime: &Handle, hold: &Arc<Hold>) -> Arc<Grant> {
    crate::grant::tests::grant(hold, Clock::Model, runtime.clone(), Tick::MAX)
}

/// Advances the clock to the end of the lease.
fn let_it_end() {
    advance(u64::try_from((LEASE - drift_margin(LEASE)).as_nanos()).unwrap());
}

/// Checks that a lost grant stays lost at a second look.
fn look(grant: &Grant) {
    let first = grant.is_lost();
    assert!(!first || grant.is_lost(), "lost, and then not lost");
    assert!(!first || grant.remaining().is_zero(), "lost, and still certain");
}

#[test]
fn a_grant_that_was_seen_lost_stays_lost_when_it_ends() {
    model(|runtime| {
        let grant = grant(&runtime, &hold(Lease::fixed(LEASE)));
        let viewer = spawn({
            let grant = Arc::clone(&grant);
            move || look(&grant)
        });
        let clock = spawn(let_it_end);
        let lost = grant.end(grant.now());
        assert_eq!(grant.is_lost(), lost, "unchanged since its end");
        viewer.join().unwrap();
        clock.join().unwrap();
        assert_eq!(grant.is_lost(), lost, "unchanged since its end");
    });
}

#[test]
fn a_grant_that_was_seen_lost_stays_lost_when_a_renewal_is_late() {
    model(|runtime| {
        let hold = hold(Lease::renewed(LEASE));
        let grant = grant(&runtime, &hold);
        let viewer = spawn({
            let grant = Arc::clone(&grant);
            move || look(&grant)
        });
        let clock = spawn(let_it_end);
        let sent = Clock::Model.now();
        hold.renewed(sent, Clock::Model.now(), LEASE * 2);
        viewer.join().unwrap();
        clock.join().unwrap();
        look(&grant);
    });
}

#[test]
fn whoever_sees_the_end_of_a_grant_sees_how_it_ended() {
    model(|runtime| {
        let hold = hold(Lease::fixed(LEASE));
        hold.mark_lost(Loss::TakenAway);
        let grant = grant(&runtime, &hold);
        let viewer = spawn({
            let grant = Arc::clone(&grant);
            move || !grant.has_ended() || grant.is_lost()
        });
        assert!(grant.end(grant.now()));
        assert!(viewer.join().unwrap(), "a lost grant that ended in good order");
    });
}

#[test]
fn a_listener_during_a_loss_is_signalled() {
    model(|runtime| {
        let hold = hold(Lease::renewed(LEASE));
        let grant = grant(&runtime, &hold);
        let listener = spawn({
            let grant = Arc::clone(&grant);
            move || {
                let follower = CancellationToken::new();
                grant.cancel_with_it(&follower);
                (grant.cancellation_token(), follower)
            }
        });
        hold.mark_lost(Loss::TakenAway);
        grant.signal_lost();
        let (signal, follower) = listener.join().unwrap();
        assert!(signal.is_cancelled() && follower.is_cancelled(), "a loss without a signal");
    });
}

#[test]
fn a_hold_is_lost_once_and_for_one_reason() {
    model(|_| {
        let hold = hold(Lease::renewed(LEASE));
        let other = spawn({
            let hold = Arc::clone(&hold);
            move || hold.mark_lost(Loss::LeaseOver)
        });
        let first = hold.mark_lost(Loss::TakenAway);
        assert!(!hold.is_valid(Clock::Model.now()));
        assert!(!hold.renewed(Clock::Model.now(), Clock::Model.now(), LEASE), "revived");
        assert_ne!(other.join().unwrap(), first);
    });
}

#[test]
fn two_renewals_never_shorten() {
    model(|_| {
        let hold = hold(Lease::renewed(LEASE));
        let now = Clock::Model.now();
        let long = spawn({
            let hold = Arc::clone(&hold);
            move || {
                assert!(hold.renewed(now, now, LEASE * 3));
                hold.deadline()
            }
        });
        assert!(hold.renewed(now, now, LEASE * 2));
        let deadline = hold.deadline();
        assert!(long.join().unwrap().max(deadline) == hold.deadline());
        assert_eq!(hold.deadline(), (now + LEASE * 3).saturating_sub(drift_margin(LEASE * 3)));
    });
}

#[test]
fn pending_releases_stay_below_their_cap() {
    model(|_| {
        let releases = Arc::new(InFlightCount::new(1));
        let reserve = |releases: &Arc<InFlightCount>| {
            let releases = Arc::clone(releases);
            spawn(move || releases.reserve())
        };
        let (first, second) = (reserve(&releases), reserve(&releases));
        let reserved = [first.join().unwrap(), second.join().unwrap()];
        assert_eq!(reserved.iter().flatten().count(), 1, "exactly one of the two gets the place");
        drop(reserved);
        assert!(releases.reserve().is_some(), "a place leaked");
    });
}

#[test]
fn the_latest_time_of_a_request_covers_every_copy() {
    model(|_| {
        let request = Arc::new(AcquireRequest::new(Vec::new(), LEASE, Duration::from_micros(100)));
        let other = spawn({
            let request = Arc::clone(&request);
            move || request.stamp(ServerTime::from_micros(20))
        });
        let latest = request.stamp(ServerTime::from_micros(10));
        assert!(latest.as_micros() >= 110 && request.latest() >= Some(latest));
        assert_eq!(other.join().unwrap().as_micros(), 120);
        assert_eq!(request.latest(), Some(ServerTime::from_micros(120)));
    });
}

/// Makes an engine on a store that is never asked.
fn engine(settings: EngineSettings, runtime: &Handle) -> Arc<Engine> {
    let store = lock_store_memory::MemoryStore::new("");
    Engine::start(settings, Clock::Model, store, runtime.clone())
}

/// Acquires the mutex of `key`, with an endless wait.
type Acquire = std::pin::Pin<Box<dyn Future<Output = Result<Admission, Refused>> + Send>>;

fn wait_forever(engine: &Arc<Engine>, key: &str) -> Acquire {
    Box::pin(crate::acquire::acquire(Request { terms: terms(Wait::Forever), ..mutex(engine, key) }))
}

fn poll(acquire: &mut Acquire) -> Poll<Result<Admission, Refused>> {
    acquire.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn the_waiters_of_all_keys_stay_below_their_cap() {
    model(|callers| {
        // Not the manager's runtime: there, callers would carry out the driver's part in their
        // first poll.
        let _entered = callers.enter();
        let runtime = runtime();
        let engine = engine(EngineSettings { max_waiters: 1, ..EngineSettings::default() }, runtime.handle());
        let waiter = |key: &'static str| {
            let mut acquire = wait_forever(&engine, key);
            spawn(move || poll(&mut acquire).is_pending().then_some(acquire))
        };
        let (first, second) = (waiter("a"), waiter("b"));
        let waiting = [first.join().unwrap(), second.join().unwrap()];
        assert_eq!(waiting.iter().flatten().count(), 1, "exactly one of the two gets the place");
        drop(waiting);
        assert_eq!(engine.waiting.load(Ordering::Relaxed), 0, "a place leaked");
    });
}

#[test]
fn a_key_that_is_wanted_is_in_the_registry() {
    model(|callers| {
        // Not the manager's runtime: there, callers would carry out the driver's part in their
        // first poll.
        let _entered = callers.enter();
        let runtime = runtime();
        let engine = engine(EngineSettings::default(), runtime.handle());
        let name = LockKey::new("k").unwrap();
        let passer_by = spawn({
            let (engine, name) = (Arc::clone(&engine), name.clone());
            move || drop(engine.with_lane(&name, LaneKind::Mutex, &Spec::one(Kind::Mutex), |_, _, _| ()))
        });
        let waiter = spawn({
            let mut waiter = wait_forever(&engine, "k");
            move || poll(&mut waiter).is_pending().then_some(waiter)
        });
        let waiter = waiter.join().unwrap().unwrap();
        passer_by.join().unwrap();
        let lane = engine.registry.find(&name, LaneKind::Mutex).expect("a task waits for it");
        assert_eq!(lock(&lane.state).machine.waiting(), 1);
        spawn(move || drop(waiter)).join().unwrap();
    });
}

#[test]
fn a_shutdown_reaches_everybody_who_waits() {
    model(|callers| {
        // Not the manager's runtime: there, callers would carry out the driver's part in their
        // first poll.
        let _entered = callers.enter();
        let runtime = runtime();
        let engine = engine(EngineSettings::default(), runtime.handle());
        let ending = spawn({
            let engine = Arc::clone(&engine);
            move || {
                let mut shutdown = std::pin::pin!(engine.shutdown(Duration::ZERO));
                let _ = shutdown.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            }
        });
        let waiter = spawn({
            let mut waiter = wait_forever(&engine, "k");
            move || (poll(&mut waiter), waiter)
        });
        let (polled, mut waiter) = waiter.join().unwrap();
        ending.join().unwrap();
        let again = spawn(move || if polled.is_pending() { poll(&mut waiter) } else { polled });
        let polled = again.join().unwrap();
        let told = matches!(polled, Poll::Ready(Err((_, Failure::ShutDown))));
        assert!(told, "waits forever");
    });
}

#[test]
fn the_timekeeper_hears_of_a_job_that_is_due_earlier() {
    model(|_| {
        let timers = Arc::new(Timers::default());
        let due = Tick::from_nanos(5);
        let other = spawn({
            let timers = Arc::clone(&timers);
            move || timers.change(1, Tick::MAX, due, Weak::new)
        });
        let until = timers.sleep_until();
        other.join().unwrap();
        let mut earlier = std::pin::pin!(timers.earlier());
        let told = earlier.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(until <= due || told, "it sleeps until {until:?}");
    });
}

#[test]
fn a_failing_store_is_news_once() {
    model(|_| {
        let health = Arc::new(Health::default());
        let other = spawn({
            let health = Arc::clone(&health);
            move || health.is_news(Tick::from_nanos(1))
        });
        let news = health.is_news(Tick::from_nanos(1));
        assert_ne!(other.join().unwrap(), news);
    });
}

#[test]
fn a_task_that_is_woken_while_it_parks_goes_to_one_thread() {
    loom::model(|| {
        let slot = Arc::new(lock_core::internal::eager::Slot::default());
        let wakers: Vec<_> = (0..2)
            .map(|_| {
                let slot = Arc::clone(&slot);
                spawn(move || slot.wake())
            })
            .collect();
        let kept = slot.park(1);
        let handed: Vec<u32> =
            wakers.into_iter().filter_map(|waker| waker.join().unwrap()).chain(kept).collect();
        assert_eq!(handed, [1], "woken twice: exactly one thread polls it");
    });
}
