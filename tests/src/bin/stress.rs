//! A worker of the stress runs; its arguments are [`Orders`].
//!
//! Says `ready` and competes for locks until the line `end`. When its tasks have ended it says
//! `quiet <keys> <timers> <tasks>`, the leftovers of its manager: all zero as soon as they are.
//! Then it waits for the end of its input.
#![allow(clippy::print_stdout, reason = "answers go to stdout")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::{ConnectError, LockError, LockGuard, LockManager, Loss, testing};
use lock_tests::clock::{nanos_from_now, now_nanos};
use lock_tests::dice::Dice;
use lock_tests::history::{Event, Log, Outcome, Want};
use lock_tests::poll_once_and_drop;
use lock_tests::redis::{Connection, Reply};
use lock_tests::stress::{FIXED, Kinds, Lock, Orders, Wish, watch_process};
use tokio::sync::Notify;

/// Lease of the broken lock, which does not renew.
const RAW: Duration = Duration::from_millis(100);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let orders = match Orders::from_args(&args) {
        Ok(orders) => orders,
        Err(error) => return println!("!{error}"),
    };
    let writer = Log::open(&orders.log).expect("the log can be opened");
    watch_process(writer.clone());
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
        writer,
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
            // The log shows which requests have no answer.
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
    // Returning from `main` would wait for the thread that reads.
    std::process::exit(0);
}

/// Connects, with retries: the server may be stopped just now, or cut the new connection.
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
    writer: Log,
    /// For the broken lock that only wakes waiters of its own process.
    signals: Vec<Notify>,
    ended: AtomicBool,
    numbers: AtomicU64,
}

/// A lock that is held.
enum Held {
    Guard { guard: LockGuard, tokens: Vec<u64> },
    Raw { connection: Connection, index: usize, value: String, token: u64, valid_until: u64 },
}

impl Held {
    /// Returns the tokens in the order of the keys.
    fn tokens(&self) -> &[u64] {
        match self {
            Self::Guard { tokens, .. } => tokens,
            Self::Raw { token, .. } => std::slice::from_ref(token),
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

    /// Notes the same event for each key of a wish.
    fn note(&self, ids: &[u64], event: &Event, held: Option<&Held>) {
        for id in ids {
            self.writer.note(*id, event, || held.map_or(Duration::ZERO, Held::remaining));
        }
    }

    /// Makes one request, from its beginning to its end.
    async fn request(&self, dice: &mut Dice) {
        let index = usize::try_from(dice.below(self.orders.keys as u64)).expect("few keys");
        let wish = match self.orders.kinds {
            Kinds::Mutex => Wish::mutex(format!("stress:{index}"), self.orders.lock, dice),
            Kinds::All => Wish::any(self.orders.lock, dice),
        };
        let (want, wait) = match dice.below(10) {
            0 => (Want::Try, Duration::ZERO),
            1 => (Want::Short, dice.between(Duration::from_millis(1), Duration::from_millis(200))),
            2 => (Want::Fickle, self.orders.patience),
            _ => (Want::Patient, self.orders.patience),
        };
        let (want, wait) = wish.temper(want, wait, dice);
        let ids: Vec<u64> = wish.parts.iter().map(|_| self.numbers.fetch_add(1, Ordering::Relaxed)).collect();
        for (id, (key, part)) in ids.iter().zip(&wish.parts) {
            let (key, kind, lease, call) = (key.clone(), part.kind(), wish.lease(), ids[0]);
            self.note(&[*id], &Event::Ask { key, kind, want, wait, lease, call }, None);
        }
        let acquire = self.acquire(index, &wish, wait, dice.fork(1));
        let outcome = if want == Want::Fickle {
            let limit = dice.between(Duration::ZERO, Duration::from_millis(50));
            match tokio::time::timeout(limit, acquire).await {
                Ok(outcome) => outcome,
                Err(_) => return self.note(&ids, &Event::Left, None),
            }
        } else {
            acquire.await
        };
        let held = match outcome {
            Ok(held) => held,
            Err(error) => return self.note(&ids, &Event::from(&error), None),
        };
        for (id, token) in ids.iter().zip(held.tokens()) {
            self.note(&[*id], &Event::Granted { token: *token }, Some(&held));
        }
        self.work(&ids, &held, dice).await;
        let held = match self.turn(&ids, &wish, held, dice).await {
            Ok(held) => held,
            Err(how) => return self.note(&ids, &Event::Out { how }, None),
        };
        self.note(&ids, &Event::End, Some(&held));
        let how = self.release(held, dice).await;
        self.note(&ids, &Event::Out { how }, None);
    }

    async fn acquire(
        &self,
        index: usize,
        wish: &Wish,
        wait: Duration,
        mut dice: Dice,
    ) -> Result<Held, LockError> {
        if matches!(self.orders.lock, Lock::NoOwnerCheck | Lock::ForgetWaiter) {
            return Ok(self.acquire_raw(index, &wish.parts[0].0).await);
        }
        let guard = wish.request(&self.locks, &mut dice).wait(wait).acquire().await?;
        let random = self.orders.lock == Lock::RandomToken;
        let token = |token: u64| if random { dice.roll() } else { token };
        let tokens: Vec<u64> = guard.tokens().into_iter().map(|(_, token)| token.get()).map(token).collect();
        Ok(Held::Guard { guard, tokens })
    }

    /// Reenters a lock that is held, or downgrades a write lock to a read lock. Returns `Err` with
    /// the outcome when that ended the hold.
    async fn turn(&self, ids: &[u64], wish: &Wish, held: Held, dice: &mut Dice) -> Result<Held, Outcome> {
        let Held::Guard { guard, tokens } = held else { return Ok(held) };
        if self.orders.kinds == Kinds::Mutex || self.orders.lock != Lock::Real {
            return Ok(Held::Guard { guard, tokens });
        }
        if dice.once_in(8) {
            self.notice(ids, &guard, self.reenter(wish, &guard, dice)).await;
        }
        if !wish.writes() || !dice.once_in(4) {
            return Ok(Held::Guard { guard, tokens });
        }
        if dice.once_in(4) {
            let held = Held::Guard { guard, tokens };
            self.note(ids, &Event::End, Some(&held));
            let Held::Guard { guard, .. } = held else { return Ok(held) };
            if dice.once_in(2) {
                poll_once_and_drop(guard.downgrade()).await;
            } else {
                let limit = dice.between(Duration::ZERO, Duration::from_millis(3));
                let _ = tokio::time::timeout(limit, guard.downgrade()).await;
            }
            return Err(Outcome::Dropped);
        }
        // The read lock may be taken inside the write lock, and outlive it.
        let inside = dice.once_in(2);
        let reader = if inside {
            let reader = guard.scope(self.locks.read(&wish.parts[0].0).no_wait().acquire());
            match self.notice(ids, &guard, reader).await {
                Ok(reader) => Some(reader),
                Err(_) if guard.is_lost() => None,
                Err(error) => {
                    println!("!a read inside a write was refused: {error}");
                    None
                }
            }
        } else {
            None
        };
        let held = Held::Guard { guard, tokens };
        self.note(ids, &Event::Shared, Some(&held));
        let Held::Guard { guard, tokens } = held else { return Ok(held) };
        let lost = |why: Loss| Outcome::Lost(why.to_string());
        let ended = |how: Outcome| {
            self.note(ids, &Event::End, None);
            how
        };
        let reader = match reader {
            None => match guard.downgrade().await {
                Ok(reader) => reader,
                Err(LockError::Lost { why, .. }) => return Err(ended(lost(why))),
                Err(error) => return Err(ended(Outcome::Failed((&error).into(), error.to_string()))),
            },
            Some(reader) => match guard.release().await {
                Ok(()) | Err(LockError::Unconfirmed { .. }) => reader,
                Err(LockError::Lost { why, .. }) => return Err(ended(lost(why))),
                error => return Err(ended((&error).into())),
            },
        };
        let held = Held::Guard { guard: reader, tokens };
        self.note(ids, &Event::Alive, Some(&held));
        self.work(ids, &held, dice).await;
        Ok(held)
    }

    /// Awaits a call inside the lock, which may take long, and notes the lost signal meanwhile.
    async fn notice<F: Future>(&self, ids: &[u64], guard: &LockGuard, call: F) -> F::Output {
        let mut call = std::pin::pin!(call);
        tokio::select! {
            biased;
            output = &mut call => return output,
            () = guard.lost() => self.note(ids, &Event::Lost { why: String::new() }, None),
        }
        call.await
    }

    async fn reenter(&self, wish: &Wish, guard: &LockGuard, dice: &mut Dice) {
        let inner = if dice.once_in(2) {
            guard.reenter().map_err(|error| error.to_string())
        } else {
            let request = wish.request(&self.locks, dice).no_wait();
            match guard.scope(request.acquire()).await {
                // Re-entry may have to extend a fixed lease, which takes a call to the store.
                Err(LockError::Unavailable { .. }) if !guard.is_lost() => return,
                inner => inner.map_err(|error| error.to_string()),
            }
        };
        match inner {
            _ if guard.is_lost() => {}
            Ok(inner) if inner.tokens() == guard.tokens() => {}
            Ok(inner) => println!("!entered again as {:?} inside {:?}", inner.tokens(), guard.tokens()),
            Err(error) => println!("!not entered again: {error}"),
        }
    }

    async fn acquire_raw(&self, index: usize, key: &str) -> Held {
        let addr = self.orders.url.trim_start_matches("redis://").parse().expect("an address");
        let mut connection = Connection::open(addr, Duration::from_secs(10)).expect("the server is up");
        // Long enough to be noticed when a dead process does not give its lock back.
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

    /// Most bodies are short. Some last longer than a fixed or a renewed lease: they lose the first
    /// and keep the second.
    async fn work(&self, ids: &[u64], held: &Held, dice: &mut Dice) {
        let ms = Duration::from_millis;
        let pauses: &[Duration] = match dice.below(2000) {
            _ if matches!(held, Held::Raw { .. }) && dice.once_in(4) => &[RAW, ms(50)],
            0 => &[self.orders.lease, ms(500), FIXED],
            1..=5 => &[FIXED, ms(50)],
            6..=300 if self.orders.kinds == Kinds::All => &[ms(20), ms(10)],
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
            self.note(ids, &Event::Alive, Some(held));
            if held.remaining().is_zero() {
                return;
            }
        }
    }

    async fn release(&self, held: Held, dice: &mut Dice) -> Outcome {
        match held {
            Held::Guard { guard, .. } if dice.once_in(3) => {
                drop(guard);
                Outcome::Dropped
            }
            Held::Guard { guard, .. } if dice.once_in(10) => {
                poll_once_and_drop(guard.release()).await;
                Outcome::Dropped
            }
            Held::Guard { guard, .. } => (&guard.release().await).into(),
            Held::Raw { mut connection, index, value, .. } => {
                let key = format!("stress:{index}");
                let found = connection.command(&["GET", &key]).expect("an answer");
                connection.command(&["DEL", &key]).expect("an answer");
                self.signals[index].notify_one();
                if found == Reply::Text(value) {
                    Outcome::Released
                } else {
                    Outcome::Lost(format!("it is gone: found {found}"))
                }
            }
        }
    }
}
