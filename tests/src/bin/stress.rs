//! A worker of the stress runs; its arguments are [`Orders`].
//!
//! Says `ready` and fights for locks until the line `end`. When its tasks have ended it says what its manager still
//! has, `quiet <keys> <timers> <tasks>`, all zero as soon as they are, and waits for the end of its input.
#![allow(clippy::print_stdout, reason = "answers go to stdout")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::{AcquireError, ConnectError, LockGuard, LockManager, ReleaseError, testing};
use lock_tests::clock::{nanos_from_now, now_nanos};
use lock_tests::dice::Dice;
use lock_tests::redis::{Connection, Reply};
use lock_tests::stress::{Event, Kind, Lock, Orders, Writer};
use tokio::sync::Notify;

/// Leases of locks that are not renewed.
const FIXED: Duration = Duration::from_millis(300);
/// Leases of the broken lock that does not renew.
const RAW: Duration = Duration::from_millis(100);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let orders = match Orders::from_args(&args) {
        Ok(orders) => orders,
        Err(error) => return println!("!{error}"),
    };
    let locks = match connect(&orders).await {
        Ok(locks) => locks,
        Err(error) => return println!("!can't connect: {error}"),
    };
    let leaked = match orders.lock {
        Lock::Leak => {
            Some(locks.mutex(format!("stress:leaked:{}", orders.name)).acquire().await.expect("free"))
        }
        _ => None,
    };
    let worker = Arc::new(Worker {
        writer: Writer::open(&orders.log).expect("the log can be opened"),
        signals: (0..orders.keys).map(|_| Notify::new()).collect(),
        locks: locks.clone(),
        orders: orders.clone(),
        ended: AtomicBool::new(false),
        numbers: AtomicU64::new(1),
    });
    let dice = Dice::new(orders.seed);
    let tasks: Vec<_> =
        (0..orders.tasks).map(|task| tokio::spawn(Arc::clone(&worker).run(dice.fork(task as u64)))).collect();
    println!("ready");

    line().await;
    worker.ended.store(true, Ordering::Relaxed);
    let deadline = Instant::now() + orders.patience;
    for task in tasks {
        let left = deadline.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => println!("!a task failed: {error}"),
            // The log tells which requests have no answer.
            Err(_) => {}
        }
    }
    let settled_by = Instant::now() + orders.lease + orders.patience.min(Duration::from_secs(5));
    let rest = loop {
        let rest = testing::leftovers(&locks);
        if (rest.keys, rest.timers, rest.tasks) == (0, 0, 0) || Instant::now() >= settled_by {
            break rest;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    println!("quiet {} {} {}", rest.keys, rest.timers, rest.tasks);
    line().await;
    drop(leaked);
    if let Err(error) = locks.shutdown(Duration::from_secs(5)).await {
        println!("!{error}");
    }
    // Not by the end of `main`, which waits for the thread that reads.
    std::process::exit(0);
}

/// The server may be stopped just now, or cut the connection that is being made.
async fn connect(orders: &Orders) -> Result<LockManager, ConnectError> {
    let mut attempts = 0;
    loop {
        let settings =
            LockManager::builder().lease(orders.lease).subscription_linger(Duration::from_millis(500));
        match settings.connect(&orders.url).await {
            Err(ConnectError::Unavailable { .. }) if attempts < 5 => attempts += 1,
            outcome => return outcome,
        }
    }
}

/// Awaits a line, or the end of the input.
async fn line() {
    let read = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    read.await.expect("reading does not panic").expect("the input can be read");
}

struct Worker {
    orders: Orders,
    locks: LockManager,
    writer: Writer,
    /// For the lock that wakes its own process only.
    signals: Vec<Notify>,
    ended: AtomicBool,
    numbers: AtomicU64,
}

/// A lock that is held.
enum Held {
    Guard { guard: LockGuard, token: u64 },
    Raw { connection: Connection, index: usize, value: String, token: u64, valid_until: u64 },
}

impl Held {
    fn token(&self) -> u64 {
        match self {
            Self::Guard { token, .. } | Self::Raw { token, .. } => *token,
        }
    }

    fn remaining(&self) -> Duration {
        match self {
            Self::Guard { guard, .. } => guard.remaining(),
            Self::Raw { valid_until, .. } => Duration::from_nanos(valid_until.saturating_sub(now_nanos())),
        }
    }
}

impl Worker {
    async fn run(self: Arc<Self>, mut dice: Dice) {
        while !self.ended.load(Ordering::Relaxed) {
            self.request(&mut dice).await;
            if dice.once_in(4) {
                tokio::time::sleep(dice.between(Duration::ZERO, Duration::from_millis(5))).await;
            }
        }
    }

    /// One request, from its beginning to its end.
    async fn request(&self, dice: &mut Dice) {
        let none = || Duration::ZERO;
        let id = self.numbers.fetch_add(1, Ordering::Relaxed);
        let index = usize::try_from(dice.below(self.orders.keys as u64)).expect("few keys");
        let (kind, wait) = match dice.below(10) {
            0 => (Kind::Try, Duration::ZERO),
            1 => (Kind::Short, dice.between(Duration::from_millis(1), Duration::from_millis(200))),
            2 => (Kind::Fickle, self.orders.patience),
            _ => (Kind::Patient, self.orders.patience),
        };
        let key = format!("stress:{index}");
        self.writer.note(id, &Event::Ask { key: key.clone(), kind, wait }, none);
        let acquire = self.acquire(index, key, wait, dice.fork(1));
        let outcome = if kind == Kind::Fickle {
            let limit = dice.between(Duration::ZERO, Duration::from_millis(50));
            match tokio::time::timeout(limit, acquire).await {
                Ok(outcome) => outcome,
                Err(_) => return self.writer.note(id, &Event::Left, none),
            }
        } else {
            acquire.await
        };
        let held = match outcome {
            Ok(held) => held,
            Err(error) => {
                let why = match error {
                    AcquireError::Busy { .. } => "busy".to_owned(),
                    AcquireError::TimedOut { .. } => "timed out".to_owned(),
                    AcquireError::Unavailable { cause, .. } => format!("unavailable: {cause}"),
                    error => error.to_string(),
                };
                return self.writer.note(id, &Event::No { why }, none);
            }
        };
        self.writer.note(id, &Event::Got { token: held.token() }, || held.remaining());
        self.work(id, &held, dice).await;
        self.writer.note(id, &Event::End, || held.remaining());
        let how = self.release(held, dice).await;
        self.writer.note(id, &Event::Out { how }, none);
    }

    async fn acquire(
        &self,
        index: usize,
        key: String,
        wait: Duration,
        mut dice: Dice,
    ) -> Result<Held, AcquireError> {
        match self.orders.lock {
            Lock::Real | Lock::Leak | Lock::RandomToken => {
                let mut mutex = self.locks.mutex(key).wait(wait);
                if dice.once_in(10) {
                    mutex = mutex.lease(FIXED);
                }
                let guard = mutex.acquire().await?;
                let random = self.orders.lock == Lock::RandomToken;
                let token = if random { dice.roll() } else { guard.fencing_token().get() };
                Ok(Held::Guard { guard, token })
            }
            Lock::NoOwnerCheck | Lock::ForgetWaiter => Ok(self.acquire_raw(index, &key).await),
        }
    }

    async fn acquire_raw(&self, index: usize, key: &str) -> Held {
        let addr = self.orders.url.trim_start_matches("redis://").parse().expect("an address");
        let mut connection = Connection::open(addr, Duration::from_secs(10)).expect("the server is up");
        // One that is not given back by a dead process is long enough to be seen.
        let lease = if self.orders.lock == Lock::NoOwnerCheck { RAW } else { self.orders.patience * 10 };
        let millis = lease.as_millis().to_string();
        let value = format!("{}/{}", self.orders.name, self.numbers.fetch_add(1, Ordering::Relaxed));
        loop {
            let valid_until = nanos_from_now(lease);
            let set = connection.command(&["SET", key, &value, "NX", "PX", &millis]);
            if set.expect("an answer") == Reply::Text("OK".to_owned()) {
                let counter = format!("redisson_lock_token:{{{key}}}");
                let token = connection.command(&["INCR", &counter]).expect("an answer");
                let Reply::Number(token) = token else { panic!("not a number: {token}") };
                connection.command(&["PEXPIRE", &counter, "600000"]).expect("an answer");
                let token = token.unsigned_abs();
                return Held::Raw { connection, index, value, token, valid_until };
            }
            match self.orders.lock {
                Lock::ForgetWaiter => self.signals[index].notified().await,
                _ => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        }
    }

    /// Most bodies are short. Some last longer than a fixed lease or a renewed one, which makes them lose the first
    /// and keep the second.
    async fn work(&self, id: u64, held: &Held, dice: &mut Dice) {
        let ms = Duration::from_millis;
        let pauses: &[Duration] = match dice.below(2000) {
            _ if matches!(held, Held::Raw { .. }) && dice.once_in(4) => &[RAW, ms(50)],
            0 => &[self.orders.lease, ms(500), FIXED],
            1..=5 => &[FIXED, ms(50)],
            6..=300 => &[ms(3), ms(1)],
            301..=900 => &[ms(1)],
            901..=1500 => &[Duration::ZERO],
            _ => &[],
        };
        for &pause in pauses {
            if pause.is_zero() {
                tokio::task::yield_now().await;
            } else {
                tokio::time::sleep(pause).await;
            }
            self.writer.note(id, &Event::Held, || held.remaining());
            if held.remaining().is_zero() {
                return;
            }
        }
    }

    async fn release(&self, held: Held, dice: &mut Dice) -> String {
        match held {
            Held::Guard { guard, .. } if dice.once_in(3) => {
                drop(guard);
                "dropped".to_owned()
            }
            Held::Guard { guard, .. } => match guard.release().await {
                Ok(()) => "ok".to_owned(),
                Err(ReleaseError::Lost { why, .. }) => format!("lost: {why}"),
                Err(error) => error.to_string(),
            },
            Held::Raw { mut connection, index, value, .. } => {
                let key = format!("stress:{index}");
                let found = connection.command(&["GET", &key]).expect("an answer");
                connection.command(&["DEL", &key]).expect("an answer");
                self.signals[index].notify_one();
                if found == Reply::Text(value) { "ok".to_owned() } else { format!("lost: found {found}") }
            }
        }
    }
}
