//! [`work`]: the life of a worker.
//!
//! A worker says `ready` and takes locks until the line `end`. Then it says
//! `quiet <keys> <timers> <tasks>`, the leftovers of its manager, and waits for the end of its
//! input. Before `end` it accepts `block <milliseconds>`, which blocks the threads of its executor.
//! At `die holding`, `die waiting` or `die releasing` it kills itself as soon as it is in that
//! state.

use std::io::BufRead;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lock_runtime::{ConnectError, LockError, LockGuard, LockManager, testing};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::orders::{Broken, Orders};
use super::want::{MUTEXES, TOGETHER, Wish};
use super::{CALL_TIMEOUT, FALLBACK, LEASE, MAX_LEASE};
use crate::dice::Dice;
use crate::fenced::FencedRegister;
use crate::history::{ErrorClass, Event, Kind, Log, Outcome, Want, Wrote};
use crate::poll_once_and_drop;
use crate::witness::watch_process;

/// Number of threads in a worker's executor.
pub(super) const THREADS: usize = 2;

const HOLDING: u8 = 1;
const WAITING: u8 = 2;
const RELEASING: u8 = 3;

/// Works until the line `end`, and reports the leftovers.
///
/// # Errors
///
/// When the worker can't begin.
///
/// # Panics
///
/// When the log or the set can't be written.
#[allow(clippy::print_stdout, reason = "answers go to stdout")]
pub async fn work(orders: Orders) -> Result<(), String> {
    let log = Log::open(&orders.log).map_err(|error| error.to_string())?;
    let mut lines = lines(log.clone());
    watch_process(log.clone());
    let locks = connect(&orders).await.map_err(|error| format!("can't connect: {error}"))?;
    let leaked = match orders.broken {
        // No code uses it, and it is still renewed.
        Broken::Leak if orders.name == "0.0" => Some(
            locks
                .mutex(TOGETHER[0])
                .wait(orders.patience)
                .acquire()
                .await
                .map_err(|error| error.to_string())?,
        ),
        _ => None,
    };
    let dice = Dice::new(orders.seed);
    let Orders { tasks, lease, patience, .. } = orders;
    let worker = Arc::new(Worker {
        set: Mutex::new(Sets { addr: orders.resource, open: Vec::new() }),
        log,
        locks: locks.clone(),
        orders,
        ended: AtomicBool::new(false),
        doom: AtomicU8::new(0),
        numbers: AtomicU64::new(1),
        stale: AtomicU64::new(0),
    });
    let tasks: Vec<_> =
        (0..tasks).map(|task| tokio::spawn(Arc::clone(&worker).run(dice.fork(task as u64)))).collect();
    println!("ready");
    while let Some(line) = lines.recv().await {
        match line.as_str() {
            "end" => break,
            "die holding" => worker.doom.store(HOLDING, Ordering::SeqCst),
            "die waiting" => worker.doom.store(WAITING, Ordering::SeqCst),
            "die releasing" => worker.doom.store(RELEASING, Ordering::SeqCst),
            _ => return Err(format!("unknown order {line:?}")),
        }
    }
    worker.ended.store(true, Ordering::SeqCst);
    let deadline = Instant::now() + patience;
    for task in tasks {
        match tokio::time::timeout(deadline.saturating_duration_since(Instant::now()), task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => println!("!a task failed: {error}"),
            // The log shows which requests have no answer.
            Err(_) => {}
        }
    }
    let settled_by = Instant::now() + lease * 3;
    let rest = loop {
        let rest = testing::leftovers(&locks);
        if (rest.keys, rest.timers, rest.tasks) == (0, 0, 0) || Instant::now() >= settled_by {
            break rest;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    println!("quiet {} {} {}", rest.keys, rest.timers, rest.tasks);
    while lines.recv().await.is_some() {}
    drop(leaked);
    let ended = locks.shutdown(Duration::from_secs(5)).await;
    ended.map_err(|error| format!("{error}; {:?}, before it {rest:?}", testing::leftovers(&locks)))
}

/// Returns the lines of the input. A separate thread reads them, and blocks the executor when it is
/// told to.
fn lines(log: Log) -> mpsc::UnboundedReceiver<String> {
    let (sender, lines) = mpsc::unbounded_channel();
    let runtime = Handle::current();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match line.strip_prefix("block ").and_then(|millis| millis.parse().ok()) {
                Some(millis) => block(&runtime, Duration::from_millis(millis), &log),
                None if sender.send(line).is_err() => return,
                None => {}
            }
        }
    });
    lines
}

/// Blocks all threads of the executor for this long.
fn block(runtime: &Handle, time: Duration, log: &Log) {
    let together = Arc::new(Barrier::new(THREADS + 1));
    log.say(&Event::Paused);
    for _ in 0..THREADS {
        let together = Arc::clone(&together);
        runtime.spawn(async move {
            together.wait();
            std::thread::sleep(time);
            together.wait();
        });
    }
    together.wait();
    together.wait();
    log.say(&Event::Continued);
}

/// Connects, with retries: some server may be away just now.
async fn connect(orders: &Orders) -> Result<LockManager, ConnectError> {
    let deadline = Instant::now() + orders.patience;
    loop {
        let settings = LockManager::builder()
            .lease(orders.lease)
            .max_lease(MAX_LEASE.max(orders.lease))
            .call_timeout(CALL_TIMEOUT)
            .connect_timeout(CALL_TIMEOUT * 2)
            .fallback_poll(FALLBACK)
            .subscription_linger(Duration::from_millis(500))
            .replication(orders.replication.policy());
        match settings.connect(&orders.url).await {
            Err(ConnectError::Unavailable { .. }) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            outcome => return outcome,
        }
    }
}

/// The sets in a separate store, one for each key.
#[derive(Debug)]
struct Sets {
    addr: std::net::SocketAddr,
    open: Vec<(String, FencedRegister)>,
}

impl Sets {
    fn of(&mut self, key: &str) -> &mut FencedRegister {
        let at = self.open.iter().position(|(name, _)| name == key).unwrap_or_else(|| {
            self.open.push((key.to_owned(), FencedRegister::open(self.addr, key)));
            self.open.len() - 1
        });
        &mut self.open[at].1
    }

    /// Adds the element like a program without an atomic append: reads the whole set, and writes it
    /// with the new element.
    fn add(&mut self, key: &str, token: u64, element: &str) -> Wrote {
        let register = self.of(key);
        let Some(value) = register.read(token) else { return Wrote::Refused };
        let value = if value.is_empty() { element.to_owned() } else { format!("{value},{element}") };
        if register.write(token, &value) { Wrote::Accepted } else { Wrote::Refused }
    }
}

struct Worker {
    orders: Orders,
    locks: LockManager,
    log: Log,
    set: Mutex<Sets>,
    ended: AtomicBool,
    /// The state in which the process is to die.
    doom: AtomicU8,
    numbers: AtomicU64,
    /// A token that was granted long ago.
    stale: AtomicU64,
}

/// A lock that is held, with the numbers of its requests.
struct Held {
    guard: LockGuard,
    ids: Vec<u64>,
}

impl Worker {
    async fn run(self: Arc<Self>, mut dice: Dice) {
        while !self.ended.load(Ordering::SeqCst) {
            self.request(&mut dice).await;
            tokio::time::sleep(dice.between(Duration::ZERO, Duration::from_millis(60))).await;
        }
    }

    /// Kills the process if it is to die in this state.
    fn here(&self, place: u8) {
        if self.doom.load(Ordering::SeqCst) == place {
            // Noted now, not when the parent hears of it: a process can take seconds to end.
            self.log.say(&Event::Killed);
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            std::thread::sleep(self.orders.patience);
        }
    }

    fn doomed(&self, place: u8) -> bool {
        self.doom.load(Ordering::SeqCst) == place
    }

    fn note(&self, ids: &[u64], event: &Event, guard: Option<&LockGuard>) {
        for id in ids {
            self.log.note(*id, event, || guard.map_or(Duration::ZERO, LockGuard::remaining));
        }
    }

    /// Makes one request, from its beginning to its end.
    async fn request(&self, dice: &mut Dice) {
        let doomed = self.doom.load(Ordering::SeqCst) != 0;
        let wish = if doomed {
            Wish::patient(MUTEXES[0], Kind::Mutex, self.orders.patience)
        } else {
            Wish::any(dice, self.orders.patience, self.orders.layout)
        };
        let mut ids = Vec::new();
        let call = self.numbers.fetch_add(wish.parts.len() as u64, Ordering::Relaxed);
        for (id, (key, kind)) in (call..).zip(&wish.parts) {
            ids.push(id);
            let (want, wait, lease) = (wish.want, wish.wait, wish.lease);
            let key = (*key).to_owned();
            self.note(&[id], &Event::Ask { key, kind: *kind, want, wait, lease, call }, None);
        }
        if self.orders.broken == Broken::ForgottenRequest && wish.want == Want::Short && dice.once_in(3) {
            tokio::time::sleep(wish.wait).await;
            // A short wait that ends in a call is excused, so this one does not look like it.
            let why = "no connection".to_owned();
            self.note(&ids, &Event::Refused { error: ErrorClass::Unavailable, why }, None);
            return;
        }
        match self.acquire(&wish, dice).await {
            Some(Ok(guard)) => self.hold(&wish, Held { guard, ids }, dice).await,
            Some(Err(error)) => self.note(&ids, &Event::from(&error), None),
            None => self.note(&ids, &Event::Left, None),
        }
    }

    /// Acquires the locks of `wish`. Returns `None` when the future was dropped.
    async fn acquire(&self, wish: &Wish, dice: &mut Dice) -> Option<Result<LockGuard, LockError>> {
        if wish.is_deaf(self.orders.broken) {
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        let shadow = match self.orders.broken {
            Broken::DoubleGrant if dice.once_in(3) => format!(":{}", self.orders.name),
            _ => String::new(),
        };
        let acquire = wish.request(&self.locks, &shadow).acquire();
        if self.doomed(WAITING) {
            let mut acquire = std::pin::pin!(acquire);
            return match tokio::time::timeout(Duration::from_millis(5), &mut acquire).await {
                Ok(outcome) => Some(outcome),
                Err(_) => {
                    self.here(WAITING);
                    Some(acquire.await)
                }
            };
        }
        if wish.want == Want::Fickle {
            let limit = dice.between(Duration::ZERO, Duration::from_millis(100));
            return tokio::time::timeout(limit, acquire).await.ok();
        }
        Some(acquire.await)
    }

    async fn hold(&self, wish: &Wish, held: Held, dice: &mut Dice) {
        let Held { guard, ids } = held;
        let stale = match self.orders.broken {
            Broken::ReusedToken if dice.once_in(3) => self.stale.load(Ordering::Relaxed),
            _ => 0,
        };
        for (id, (_, token)) in ids.iter().zip(guard.tokens()) {
            let token = if stale > 0 { stale } else { token.get() };
            self.stale.fetch_max(token.saturating_sub(1), Ordering::Relaxed);
            self.note(&[*id], &Event::Granted { token }, Some(&guard));
        }
        if guard.is_lost() && self.orders.broken != Broken::NoLostSignal {
            // A body must not start without the lock.
            self.note(&ids, &Event::Lost { why: String::new() }, Some(&guard));
        } else {
            self.note(&ids, &Event::Body, Some(&guard));
            self.here(HOLDING);
            self.body(wish, &guard, &ids, dice).await;
        }
        self.note(&ids, &Event::End, Some(&guard));
        let how = self.release(guard, dice).await;
        self.note(&ids, &Event::Out { how }, None);
    }

    /// Most bodies are short. Some last longer than a fixed lease. Some exceed a renewed lease by
    /// more than the lost signal may take.
    async fn body(&self, wish: &Wish, guard: &LockGuard, ids: &[u64], dice: &mut Dice) {
        let ms = Duration::from_millis;
        let long = dice.between(Duration::ZERO, self.orders.lease / 6);
        let pauses: &[Duration] = match dice.below(100) {
            _ if self.orders.lease != LEASE => &[long; 4],
            _ if self.orders.broken == Broken::NoLostSignal => &[LEASE, LEASE, LEASE],
            _ if wish.lease.is_some() && dice.once_in(4) => &[ms(600), LEASE],
            0 => &[LEASE, LEASE],
            1..=4 => &[ms(500), ms(200)],
            5..=30 => &[ms(20), ms(20)],
            31..=80 => &[ms(5)],
            _ => &[],
        };
        if let Some(key) = wish.sole()
            && dice.once_in(3)
        {
            self.write(key, guard.fencing_token().get(), ids[0]);
        }
        for &pause in pauses {
            if self.orders.broken == Broken::NoLostSignal {
                tokio::time::sleep(pause).await;
            } else if tokio::time::timeout(pause, guard.lost()).await.is_ok() {
                self.note(ids, &Event::Lost { why: String::new() }, Some(guard));
                return;
            }
            self.note(ids, &Event::Alive, Some(guard));
        }
    }

    fn write(&self, key: &str, token: u64, id: u64) {
        let element = format!("{}/{id}", self.orders.name);
        // Blocks only for a moment: the store of the sets is never in trouble.
        let outcome = tokio::task::block_in_place(|| {
            self.set.lock().unwrap_or_else(PoisonError::into_inner).add(key, token, &element)
        });
        self.log.say(&Event::Wrote { set: key.to_owned(), token, element, outcome });
    }

    async fn release(&self, guard: LockGuard, dice: &mut Dice) -> Outcome {
        if self.doomed(RELEASING) {
            let release = tokio::spawn(guard.release());
            tokio::time::sleep(Duration::from_micros(dice.below(1500))).await;
            self.here(RELEASING);
            return (&release.await.expect("a release does not panic")).into();
        }
        if guard.is_lost() {
            // Its error contains the cause.
            return (&guard.release().await).into();
        }
        if dice.once_in(4) {
            drop(guard);
            return Outcome::Dropped;
        }
        if dice.once_in(10) {
            poll_once_and_drop(guard.release()).await;
            return Outcome::Dropped;
        }
        (&guard.release().await).into()
    }
}
