//! One run: starts, stops and ends the processes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::store::LockStore;
use lock_runtime::testing::leftovers;
use lock_runtime::testing::simulation::{Process, SimClock, manager, seed};
use lock_runtime::{LockKey, LockManager};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::faults::{disturb, replicate};
use super::store::SimStore;
use super::version::Version;
use super::worker::Worker;
use super::world::{World, rate};
use super::{Lie, Plan};
use crate::dice::Dice;
use crate::history::{Event, History, Log, Remains};

/// The processes of a run.
pub(super) struct Processes {
    world: Arc<World>,
    plan: Plan,
    ended: Arc<AtomicBool>,
    inner: Mutex<Inner>,
}

struct Inner {
    dice: Dice,
    /// The living processes, by place.
    live: Vec<Option<Life>>,
    logs: BTreeMap<String, Log>,
    /// Managers of dead processes; dropped together with the runtime, not before.
    dead: Vec<Life>,
}

struct Life {
    log: Log,
    locks: LockManager,
    process: Process,
    killed: Arc<Version>,
    tasks: Vec<JoinHandle<()>>,
    number: u64,
}

impl Processes {
    fn new(world: &Arc<World>, plan: &Plan, dice: Dice) -> Arc<Self> {
        let processes = Arc::new(Self {
            world: Arc::clone(world),
            plan: plan.clone(),
            ended: Arc::default(),
            inner: Mutex::new(Inner {
                dice,
                live: (0..plan.processes).map(|_| None).collect(),
                logs: BTreeMap::from([("world".to_owned(), world.log.clone())]),
                dead: Vec::new(),
            }),
        });
        for place in 0..plan.processes {
            processes.begin(place, 0);
        }
        processes
    }

    fn begin(&self, place: usize, number: u64) {
        let Self { world, plan, .. } = self;
        let mut inner = self.inner.lock().unwrap();
        let mut dice = Dice::new(inner.dice.roll());
        let name = format!("{place}.{number}");
        let log = world.new_log();
        let (process, clock) = (Process::new(), SimClock::new(rate(&mut dice)));
        let killed = Arc::<Version>::default();
        let store = |server| -> Arc<dyn LockStore> {
            Arc::new(SimStore::new(world, place, server, clock, Arc::clone(&killed)))
        };
        let stores = (0..world.servers.len()).map(store).collect();
        let fallback = if world.lies(Lie::ForgetsWaiters) { plan.patience * 100 } else { plan.fallback };
        let settings = LockManager::builder()
            .prefix("")
            .lease(plan.lease)
            .call_timeout(plan.call_timeout)
            .fallback_poll(fallback)
            .subscription_linger(Duration::from_millis(200));
        let locks = manager(settings, stores, clock, &process);
        let worker = Arc::new(Worker {
            world: Arc::clone(world),
            locks: locks.clone(),
            log: log.clone(),
            name: name.clone(),
            lease: plan.lease,
            patience: plan.patience,
            ended: Arc::clone(&self.ended),
            numbers: AtomicU64::new(1),
        });
        let task = |n: u64| tokio::spawn(process.run(Arc::clone(&worker).run(dice.fork(n))));
        let tasks = (0..plan.tasks as u64).map(task).collect();
        inner.logs.insert(name, log.clone());
        inner.live[place] = Some(Life { log, locks, process, killed, tasks, number });
    }

    /// Stops a process for a time.
    pub(super) async fn pause(&self, place: usize, time: Duration) {
        let of = |inner: &Inner| {
            let life = inner.live[place].as_ref().expect("it lives");
            (life.log.clone(), life.process.clone())
        };
        let (log, process) = of(&self.inner.lock().unwrap());
        log.say(&Event::Paused);
        process.stop();
        sleep(time).await;
        log.say(&Event::Continued);
        process.resume();
    }

    /// Ends a process without notice, and starts another one.
    pub(super) fn kill(&self, place: usize) {
        let mut inner = self.inner.lock().unwrap();
        let life = inner.live[place].take().expect("it lives");
        life.process.stop();
        life.log.say(&Event::Killed);
        life.killed.raise();
        let number = life.number + 1;
        inner.dead.push(life);
        drop(inner);
        self.begin(place, number);
    }

    /// Waits until all work has ended.
    async fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        let (tasks, managers) = {
            let mut inner = self.inner.lock().unwrap();
            let lives = inner.live.iter_mut().flatten();
            let (tasks, managers): (Vec<_>, Vec<_>) =
                lives.map(|life| (std::mem::take(&mut life.tasks), life.locks.clone())).unzip();
            (tasks, managers)
        };
        let by = Instant::now() + self.plan.patience;
        for task in tasks.into_iter().flatten() {
            // The log shows which requests have no answer.
            let left = by.saturating_duration_since(Instant::now());
            if let Ok(Err(panic)) = tokio::time::timeout(left, task).await {
                std::panic::resume_unwind(panic.into_panic());
            }
        }
        let by = Instant::now() + self.plan.lease * 2;
        let rest = |locks: &LockManager| {
            let left = leftovers(locks);
            left.keys + left.timers + left.tasks + left.waiters
        };
        while managers.iter().any(|locks| rest(locks) > 0) && Instant::now() < by {
            sleep(Duration::from_millis(10)).await;
        }
        self.world.log.say(&Event::Quiet);
        for (place, locks) in managers.iter().enumerate() {
            if rest(locks) > 0 {
                let name = format!("{:?} of process {place}", leftovers(locks));
                self.world.log.say(&Event::Remains { what: Remains::Other, ttl: None, name });
            }
        }
    }
}

/// Returns the keys that processes request.
fn keys() -> Vec<LockKey> {
    let names = ["fair0", "fair1", "mutex0", "mutex1", "rw0", "rw1", "rw2", "mixed"];
    names.map(|name| LockKey::new(format!("stress:{name}")).expect("a key")).into()
}

fn look_what_is_left(world: &World) {
    for server in &world.servers {
        for key in keys() {
            let looked = server.data().look(&key);
            let queued = looked.queue.iter().map(|(_, left)| *left).max();
            if let Some(ttl) = looked.remaining.max(queued) {
                let name = key.to_string();
                world.log.say(&Event::Remains { what: Remains::Key, ttl: Some(ttl), name });
            }
        }
    }
    world.register.note();
}

/// Runs the plan. Returns the logs by process, and their history.
pub(super) fn play(plan: &Plan) -> (BTreeMap<String, String>, History) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let logs = runtime.block_on(async {
        let dice = Dice::new(plan.seed);
        seed(dice.fork(1).roll());
        let world = World::new(dice.fork(2), plan.servers, plan.lie);
        let net = tokio::spawn({
            let net = Arc::clone(&world.net);
            async move { net.run().await }
        });
        let replicas = tokio::spawn(replicate(Arc::clone(&world)));
        let counting = tokio::spawn({
            let (world, lease) = (Arc::clone(&world), plan.lease);
            async move {
                loop {
                    world.note_commands();
                    if world.lies(Lie::RenewsAll) {
                        world.renew(&keys(), lease);
                    }
                    sleep(Duration::from_millis(250)).await;
                }
            }
        });
        let processes = Processes::new(&world, plan, dice.fork(3));
        disturb(Arc::clone(&world), Arc::clone(&processes), plan.clone(), dice.fork(4)).await;
        world.log.say(&Event::Calm);
        sleep(plan.calm).await;
        processes.end().await;
        look_what_is_left(&world);
        for task in [net, replicas, counting] {
            task.abort();
        }
        let inner = processes.inner.lock().unwrap();
        inner.logs.clone()
    });
    // Notes made while the runtime is dropped do not count.
    let texts: BTreeMap<String, String> = logs.iter().map(|(name, log)| (name.clone(), log.text())).collect();
    let pairs: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let history = History::parse(&pairs).unwrap_or_else(|line| panic!("not an event here: {line:?}"));
    drop(runtime);
    (texts, history)
}
