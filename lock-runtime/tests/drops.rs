//! Every public future, dropped at every await, with the store's calls and answers let go in every order: nothing is
//! left behind (P5). Paused time.
#![allow(missing_docs)]

mod gated;

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use gated::leaks::{Leak, look_for_leaks};
use gated::schedule::{Choices, every};
use gated::{Bug, GatedStore, Stage, Verdict};
use lock_runtime::store::LockStore;
use lock_runtime::testing::{lose, manager_on, named_memory_store, set_jitter};
use lock_runtime::{LockGuard, LockManager};
use tokio::time::{advance, sleep};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// What is left at the store stays there for longer than any test looks for it.
const LEASE: Duration = Duration::from_secs(3600);

// ---- the scene ---------------------------------------------------------------------------------------------------

type Value = Box<dyn Any>;
type Subject = Pin<Box<dyn Future<Output = Value>>>;
type Event = Pin<Box<dyn Future<Output = ()>>>;

/// Two processes on one store. Only the calls of the first one stop at the gate.
#[derive(Clone)]
struct World {
    store: Arc<GatedStore>,
    /// A third process's handle on it.
    probe: Arc<dyn LockStore>,
    locks: LockManager,
    rival: LockManager,
}

/// What is polled and dropped, and what may happen meanwhile, each once.
#[derive(Default)]
struct Scene {
    subjects: Vec<Subject>,
    events: Vec<(&'static str, Event)>,
    /// How many requests may be refused and answers lost.
    faults: usize,
    /// How many polls may come without having been asked for.
    spurious: usize,
}

impl Scene {
    fn of<T: 'static>(subject: impl Future<Output = T> + 'static) -> Self {
        Self::default().and(subject)
    }

    fn and<T: 'static>(mut self, subject: impl Future<Output = T> + 'static) -> Self {
        self.subjects.push(Box::pin(async { Box::new(subject.await) as Value }));
        self
    }

    fn while_it_may(mut self, name: &'static str, event: impl Future<Output = ()> + 'static) -> Self {
        self.events.push((name, Box::pin(event)));
        self
    }

    fn faults(self, faults: usize) -> Self {
        Self { faults, ..self }
    }

    fn spurious(self, spurious: usize) -> Self {
        Self { spurious, ..self }
    }
}

#[derive(Clone, Copy)]
enum Action {
    Poll(usize),
    /// The future, or what it came to.
    Drop(usize),
    LetGo(u64, &'static str, Stage, Verdict),
    Happens(usize, &'static str),
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Poll(subject) => write!(f, "poll {subject}"),
            Self::Drop(subject) => write!(f, "drop {subject}"),
            Self::LetGo(id, call, stage, verdict) => write!(f, "{verdict:?} {stage:?} {id} of {call}"),
            Self::Happens(_, event) => f.write_str(event),
        }
    }
}

enum Actor {
    Future(Subject, Arc<Woken>),
    Value(#[allow(dead_code)] Value),
    Gone,
}

#[derive(Debug)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// How the schedules of a scene ended.
#[derive(Debug, Default)]
struct Seen {
    schedules: usize,
    /// Futures that were dropped before they were ready.
    dropped: usize,
    /// Those that were dropped without a single poll.
    unpolled: usize,
    ready: usize,
}

/// Background tasks go as far as they get without time.
async fn settle() {
    for _ in 0..12 {
        tokio::task::yield_now().await;
    }
}

/// Runs one schedule.
async fn play(scene: Scene, store: &GatedStore, choices: &mut Choices, seen: &mut Seen) {
    let Scene { subjects, events, mut faults, mut spurious } = scene;
    let woken = || Arc::new(Woken(AtomicBool::new(true)));
    let mut actors: Vec<Actor> =
        subjects.into_iter().map(|subject| Actor::Future(subject, woken())).collect();
    let mut polls = vec![0; actors.len()];
    let mut events: Vec<_> = events.into_iter().map(Some).collect();
    loop {
        settle().await;
        let mut options = Vec::new();
        for (n, actor) in actors.iter().enumerate() {
            if let Actor::Future(_, woken) = actor
                && (woken.0.load(Ordering::SeqCst) || spurious > 0)
            {
                options.push(Action::Poll(n));
            }
            if !matches!(actor, Actor::Gone) {
                options.push(Action::Drop(n));
            }
        }
        for (id, call, stage) in store.gate.stopped() {
            options.push(Action::LetGo(id, call, stage, Verdict::Pass));
            if faults > 0 {
                options.push(Action::LetGo(id, call, stage, Verdict::Fail));
            }
        }
        for (n, event) in events.iter().enumerate() {
            options.extend(event.as_ref().map(|(name, _)| Action::Happens(n, name)));
        }
        if options.is_empty() {
            return;
        }
        match choices.choose(&options) {
            Action::Poll(n) => {
                let Actor::Future(subject, woken) = &mut actors[n] else { unreachable!() };
                polls[n] += 1;
                spurious -= usize::from(!woken.0.swap(false, Ordering::SeqCst));
                let waker = Waker::from(Arc::clone(woken));
                if let Poll::Ready(value) = subject.as_mut().poll(&mut Context::from_waker(&waker)) {
                    seen.ready += 1;
                    actors[n] = Actor::Value(value);
                }
            }
            Action::Drop(n) => {
                let pending = matches!(actors[n], Actor::Future(..));
                seen.dropped += usize::from(pending);
                seen.unpolled += usize::from(pending && polls[n] == 0);
                actors[n] = Actor::Gone;
            }
            Action::LetGo(id, _, _, verdict) => {
                faults -= usize::from(verdict == Verdict::Fail);
                store.gate.let_go(id, verdict);
            }
            Action::Happens(n, _) => events[n].take().expect("it happens once").1.await,
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    set_jitter(0.5);
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

async fn world() -> World {
    static WORLDS: AtomicU64 = AtomicU64::new(0);
    let name = format!("drops-{}", WORLDS.fetch_add(1, Ordering::Relaxed));
    let store = GatedStore::new(named_memory_store(&name)).await;
    let settings = || LockManager::builder().lease(LEASE).subscription_linger(Duration::ZERO);
    let locks = manager_on(settings(), Arc::clone(&store) as Arc<dyn LockStore>);
    let rival = manager_on(settings(), named_memory_store(&name));
    let probe = named_memory_store(&name);
    World { store, probe, locks, rival }
}

/// Everything goes its way now, and has the time for it; then nobody may have left anything.
async fn leaks_of(world: World) -> Vec<Leak> {
    world.store.gate.open();
    sleep(30 * SECOND).await;
    let World { store, probe, locks, rival } = world;
    let leaks = look_for_leaks(&[locks, rival], &probe, "k").await;
    drop(store);
    settle().await;
    leaks
}

/// Plays every schedule of the scene.
fn every_schedule(scene: &impl AsyncFn(&World) -> Scene) -> Seen {
    let mut seen = Seen::default();
    let schedules = every(|choices| {
        runtime().block_on(async {
            let world = world().await;
            let scene = scene(&world).await;
            world.store.gate.shut();
            play(scene, &world.store, choices, &mut seen).await;
            let leaks = leaks_of(world).await;
            assert!(leaks.is_empty(), "left behind: {leaks:?}");
            // The managers are gone, and so are their timekeepers.
            let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
            assert_eq!(tasks, 0, "tasks that outlive their managers");
        });
    });
    seen.schedules = schedules;
    assert!(seen.ready > 0 && seen.dropped > 0 && seen.unpolled > 0, "a scene without its point: {seen:?}");
    seen
}

/// The scene has as many schedules as that at least: the driver does stop everything it should.
fn no_leaks(at_least: usize, scene: &impl AsyncFn(&World) -> Scene) {
    let seen = every_schedule(scene);
    assert!(seen.schedules >= at_least, "{seen:?}");
}

/// A guard of the rival, which gives the key back when the schedule says so.
async fn held_by_rival(world: &World) -> impl Future<Output = ()> + use<> {
    let guard = world.rival.mutex("k").acquire().await.unwrap();
    async move { drop(guard) }
}

/// The store takes the key away from the first process, if that has it.
async fn lost(locks: LockManager) {
    let _ = lose(&locks, "k");
    settle().await;
}

/// Waits to be polled once more.
async fn once_more() {
    tokio::task::yield_now().await;
}

// ---- futures -----------------------------------------------------------------------------------------------------

#[test]
fn acquire_of_a_free_key() {
    no_leaks(8, &async |world| Scene::of(world.locks.mutex("k").acquire()).spurious(2));
}

#[test]
fn acquire_with_a_fault() {
    no_leaks(30, &async |world| Scene::of(world.locks.mutex("k").acquire()).faults(1).spurious(1));
}

#[test]
fn acquire_of_a_key_that_another_process_gives_back() {
    no_leaks(100, &async |world| {
        let back = held_by_rival(world).await;
        Scene::of(world.locks.mutex("k").acquire()).while_it_may("the rival releases", back).spurious(1)
    });
}

#[test]
fn acquire_behind_another_process_with_a_fault() {
    no_leaks(3000, &async |world| {
        let back = held_by_rival(world).await;
        Scene::of(world.locks.mutex("k").acquire()).while_it_may("the rival releases", back).faults(1)
    });
}

#[test]
fn acquire_whose_wait_runs_out() {
    no_leaks(1000, &async |world| {
        let back = held_by_rival(world).await;
        Scene::of(world.locks.mutex("k").wait(50 * MS).acquire())
            .while_it_may("the rival releases", back)
            .while_it_may("60 ms pass", advance(60 * MS))
    });
}

#[test]
fn acquire_whose_call_is_overdue() {
    no_leaks(100, &async |world| {
        Scene::of(world.locks.mutex("k").acquire()).while_it_may("3 s pass", advance(3 * SECOND)).spurious(1)
    });
}

#[test]
fn two_acquires_of_one_process() {
    no_leaks(150, &async |world| {
        Scene::of(world.locks.mutex("k").acquire()).and(world.locks.mutex("k").acquire())
    });
}

#[test]
fn try_acquire() {
    no_leaks(400, &async |world| {
        let back = held_by_rival(world).await;
        Scene::of(world.locks.mutex("k").try_acquire())
            .while_it_may("the rival releases", back)
            .faults(1)
            .spurious(1)
    });
}

#[test]
fn release() {
    no_leaks(15, &async |world| {
        let guard = world.locks.mutex("k").acquire().await.unwrap();
        Scene::of(guard.release()).faults(1).spurious(1)
    });
}

#[test]
fn release_that_is_overdue() {
    no_leaks(15, &async |world| {
        let guard = world.locks.mutex("k").acquire().await.unwrap();
        Scene::of(guard.release()).while_it_may("3 s pass", advance(3 * SECOND)).spurious(1)
    });
}

#[test]
fn release_with_somebody_in_line() {
    no_leaks(250, &async |world| {
        let guard = world.locks.mutex("k").lease(LEASE).acquire().await.unwrap();
        Scene::of(guard.release()).and(world.locks.mutex("k").acquire()).faults(1)
    });
}

#[test]
fn extend() {
    no_leaks(50, &async |world| {
        let guard = world.locks.mutex("k").lease(LEASE).acquire().await.unwrap();
        let extended = async move {
            let result = guard.extend(2 * LEASE).await;
            (guard, result)
        };
        Scene::of(extended).faults(1).spurious(1)
    });
}

#[test]
fn extend_of_a_lock_that_is_lost() {
    no_leaks(60, &async |world| {
        let guard = world.locks.mutex("k").lease(LEASE).acquire().await.unwrap();
        let locks = world.locks.clone();
        Scene::of(async move { (guard.extend(2 * LEASE).await, guard) })
            .while_it_may("the lock is lost", lost(locks))
            .spurious(1)
    });
}

#[test]
fn with() {
    no_leaks(50, &async |world| {
        let body = async |_| once_more().await;
        Scene::of(world.locks.mutex("k").with(body)).faults(1).spurious(1)
    });
}

#[test]
fn with_a_lock_that_is_lost() {
    no_leaks(50, &async |world| {
        let locks = world.locks.clone();
        let body = async |_| once_more().await;
        Scene::of(world.locks.mutex("k").with(body)).while_it_may("the lock is lost", lost(locks)).spurious(1)
    });
}

/// The inner call enters, and makes the outer lock's fixed lease longer.
#[test]
fn reentry() {
    no_leaks(50, &async |world| {
        let locks = world.locks.clone();
        let outer = world.locks.mutex("k").lease(LEASE).acquire().await.unwrap();
        let nested = async move {
            let inner = outer.scope(locks.mutex("k").lease(2 * LEASE).acquire()).await;
            let again = outer.reenter();
            once_more().await;
            (outer, inner, again)
        };
        Scene::of(nested).faults(1).spurious(1)
    });
}

#[test]
fn reentry_of_a_lock_that_is_lost() {
    no_leaks(500, &async |world| {
        let locks = world.locks.clone();
        let outer = world.locks.mutex("k").lease(LEASE).acquire().await.unwrap();
        let nested = {
            let locks = locks.clone();
            async move { (outer.scope(locks.mutex("k").lease(2 * LEASE).acquire()).await, outer) }
        };
        Scene::of(nested).while_it_may("the lock is lost", lost(locks))
    });
}

#[test]
fn force_release() {
    no_leaks(600, &async |world| {
        let guard = world.locks.mutex("k").acquire().await.unwrap();
        let locks = world.locks.clone();
        Scene::of(async move { locks.force_release("k").await })
            .while_it_may("the holder releases", async move { drop(guard) })
            .faults(1)
            .spurious(1)
    });
}

#[test]
fn force_release_beside_an_acquire() {
    no_leaks(1000, &async |world| {
        let (locks, acquire) = (world.locks.clone(), world.locks.mutex("k").acquire());
        let another_call = async move { drop(tokio::spawn(async { drop(acquire.await) })) };
        Scene::of(async move { locks.force_release("k").await })
            .while_it_may("another call begins", another_call)
    });
}

#[test]
fn lost_of_a_lock() {
    no_leaks(25, &async |world| {
        let guard = world.locks.mutex("k").lease(LEASE).acquire().await.unwrap();
        let locks = world.locks.clone();
        Scene::of(async move { (guard.lost().await, guard).1 })
            .while_it_may("the lock is lost", lost(locks))
            .spurious(1)
    });
}

#[test]
fn shutdown() {
    no_leaks(100, &async |world| {
        let guard = world.locks.mutex("k").acquire().await.unwrap();
        let locks = world.locks.clone();
        Scene::of(async move { locks.shutdown(SECOND).await })
            .while_it_may("the holder releases", async move { drop(guard) })
            .while_it_may("2 s pass", advance(2 * SECOND))
            .spurious(1)
    });
}

#[test]
fn status() {
    no_leaks(10, &async |world| {
        let locks = world.locks.clone();
        Scene::of(async move { locks.status("k").await }).faults(1).spurious(1)
    });
}

#[cfg(feature = "macros")]
mod attribute {
    use super::*;
    use lock_runtime::{LockError, distributed_lock};

    #[distributed_lock(key = "<key>", manager = locks)]
    async fn job(locks: LockManager, key: &'static str) -> Result<(), LockError> {
        inner(locks, key).await?;
        once_more().await;
        Ok(())
    }

    #[distributed_lock(key = "<key>", manager = locks)]
    async fn inner(locks: LockManager, key: &'static str) -> Result<(), LockError> {
        once_more().await;
        Ok(())
    }

    #[test]
    fn annotated_functions() {
        no_leaks(50, &async |world| Scene::of(job(world.locks.clone(), "k")).faults(1).spurious(1));
    }

    #[test]
    fn an_annotated_function_in_line() {
        no_leaks(100, &async |world| {
            let back = held_by_rival(world).await;
            Scene::of(job(world.locks.clone(), "k")).while_it_may("the rival releases", back).spurious(1)
        });
    }
}

// ---- the checker -------------------------------------------------------------------------------------------------

/// Somebody leaves something on purpose: the leaks that are found.
fn found<T>(culprit: impl AsyncFnOnce(&World) -> T) -> Vec<Leak> {
    runtime().block_on(async {
        let world = world().await;
        let _left = culprit(&world).await;
        leaks_of(world).await
    })
}

#[test]
fn nothing_is_found_where_nothing_is_left() {
    assert_eq!(found(async |world| world.locks.mutex("k").acquire().await.map(drop)), []);
}

#[test]
fn a_forgotten_guard_is_found() {
    let leaks = found(async |world| ManuallyDrop::new(world.locks.mutex("k").acquire().await.unwrap()));
    assert_eq!(leaks, [Leak::Held, Leak::Entry, Leak::Timer, Leak::Refused]);
}

#[test]
fn a_forgotten_waiter_and_its_subscription_are_found() {
    let leaks = found(async |world| {
        let held = world.rival.mutex("k").acquire().await.unwrap();
        let mut waiter = world.locks.mutex("k").wait_forever().acquire();
        assert!(Pin::new(&mut waiter).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        settle().await; // until it listens
        drop(held);
        ManuallyDrop::new(waiter)
    });
    assert_eq!(leaks, [Leak::Waiter, Leak::Entry, Leak::Subscription]);
}

#[test]
fn a_forgotten_subscription_is_found() {
    use lock_runtime::store::{AcquireRequest, Item, Kind};
    let leaks = found(async |world| {
        let key = lock_runtime::LockKey::new("k").unwrap();
        let item = Item { key, kind: Kind::Mutex, owner: lock_runtime::OwnerId::new("o") };
        let request = Arc::new(AcquireRequest::new(vec![item], SECOND, SECOND));
        world.store.watch(request).await.unwrap()
    });
    assert_eq!(leaks, [Leak::Subscription]);
}

#[test]
fn a_task_that_goes_on_is_found() {
    let leaks = found(async |_| tokio::spawn(std::future::pending::<()>()));
    assert_eq!(leaks, [Leak::Task]);
}

#[test]
fn a_release_that_is_never_carried_out_is_found() {
    let leaks = found(async |world| {
        let guard: LockGuard = world.locks.mutex("k").acquire().await.unwrap();
        world.store.put_in(Bug::LosesReleases);
        guard.release().await
    });
    assert_eq!(leaks, [Leak::Held, Leak::Refused]);
}
