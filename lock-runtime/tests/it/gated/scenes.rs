//! A scene: futures that are polled and dropped, events, and store calls that stop at the gate.
//! Every schedule of it is played, and none may leave anything behind.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use lock_core::store::LockStore;
use lock_runtime::testing::{lose, manager_on, named_memory_store};
use lock_runtime::{Lock, LockManager};
use tokio::time::sleep;

use super::leaks::{Leak, look_for_leaks};
use super::polled::{Polled, runtime, settle};
use super::schedule::{Choices, every};
use super::{GatedStore, Stage, Verdict};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Lease that outlives every test, so that leftovers at the store are found.
pub(crate) const LEASE: Duration = Duration::from_secs(3600);

type Value = Box<dyn Any>;
type Subject = Pin<Box<dyn Future<Output = Value>>>;
type Event = Pin<Box<dyn Future<Output = ()>>>;

/// Two processes on one store. Only the calls of the first one stop at the gate.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) store: Arc<GatedStore>,
    /// A third process's handle on the store.
    pub(crate) probe: Arc<dyn LockStore>,
    pub(crate) locks: LockManager,
    pub(crate) rival: LockManager,
}

/// The futures that are polled and dropped, and the events that may happen meanwhile, each once.
#[derive(Default)]
pub(crate) struct Scene {
    subjects: Vec<Subject>,
    events: Vec<(&'static str, Event)>,
    /// Maximum number of requests that are refused and answers that are lost.
    faults: usize,
    /// Maximum number of polls without a wake-up.
    spurious: usize,
}

impl Scene {
    pub(crate) fn of<T: 'static>(subject: impl Future<Output = T> + 'static) -> Self {
        Self::default().and(subject)
    }

    pub(crate) fn and<T: 'static>(mut self, subject: impl Future<Output = T> + 'static) -> Self {
        self.subjects.push(Box::pin(async { Box::new(subject.await) as Value }));
        self
    }

    pub(crate) fn while_it_may(
        mut self,
        name: &'static str,
        event: impl Future<Output = ()> + 'static,
    ) -> Self {
        self.events.push((name, Box::pin(event)));
        self
    }

    pub(crate) fn faults(self, faults: usize) -> Self {
        Self { faults, ..self }
    }

    pub(crate) fn spurious(self, spurious: usize) -> Self {
        Self { spurious, ..self }
    }
}

#[derive(Clone, Copy)]
enum Action {
    Poll(usize),
    /// Drops the future, or its output.
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
    Future(Polled<Value>),
    Value(#[allow(dead_code)] Value),
    Gone,
}

/// How the schedules of a scene ended.
#[derive(Debug, Default)]
struct Seen {
    schedules: usize,
    /// Futures that were dropped before they were ready.
    dropped: usize,
    /// Futures that were dropped without a single poll.
    unpolled: usize,
    ready: usize,
}

/// Runs one schedule.
async fn play(scene: Scene, store: &GatedStore, choices: &mut Choices, seen: &mut Seen) {
    let Scene { subjects, events, mut faults, mut spurious } = scene;
    let mut actors: Vec<Actor> =
        subjects.into_iter().map(|subject| Actor::Future(Polled::new(subject))).collect();
    let mut polls = vec![0; actors.len()];
    let mut events: Vec<_> = events.into_iter().map(Some).collect();
    loop {
        settle().await;
        let mut options = Vec::new();
        for (n, actor) in actors.iter().enumerate() {
            if let Actor::Future(subject) = actor
                && (subject.is_woken() || spurious > 0)
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
                let Actor::Future(subject) = &mut actors[n] else { unreachable!() };
                polls[n] += 1;
                spurious -= usize::from(!subject.is_woken());
                if let Poll::Ready(value) = subject.poll() {
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

pub(crate) async fn world() -> World {
    static WORLDS: AtomicU64 = AtomicU64::new(0);
    let name = format!("drops-{}", WORLDS.fetch_add(1, Ordering::Relaxed));
    let store = GatedStore::new(named_memory_store(&name)).await;
    let settings = || LockManager::builder().lease(LEASE).subscription_linger(Duration::ZERO);
    let locks = manager_on(settings(), Arc::clone(&store) as Arc<dyn LockStore>);
    let rival = manager_on(settings(), named_memory_store(&name));
    let probe = named_memory_store(&name);
    World { store, probe, locks, rival }
}

/// Lets everything run to its end, and returns what the managers left behind.
pub(crate) async fn leaks_of(world: World) -> Vec<Leak> {
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

/// Plays every schedule of the scene. There have to be at least `at_least` of them, which shows
/// that the driver stops every call it should.
pub(crate) fn no_leaks(at_least: usize, scene: &impl AsyncFn(&World) -> Scene) {
    let seen = every_schedule(scene);
    assert!(seen.schedules >= at_least, "{seen:?}");
}

/// Takes a lock of the rival. The returned future gives it back when the schedule polls it.
pub(crate) async fn held(lock: Lock) -> impl Future<Output = ()> + use<> {
    let guard = lock.acquire().await.unwrap();
    async move { drop(guard) }
}

/// Takes the key for the rival. The returned future gives it back when the schedule polls it.
pub(crate) async fn held_by_rival(world: &World) -> impl Future<Output = ()> + use<> {
    held(world.rival.mutex("k")).await
}

/// Takes the key away from the first process at the store, if it has the key.
pub(crate) async fn lost(locks: LockManager) {
    let _ = lose(&locks, "k");
    settle().await;
}

/// Waits to be polled once more.
pub(crate) async fn once_more() {
    tokio::task::yield_now().await;
}
