//! Takes and gives back locks in all ways, in one process, for a long time.
//!
//! `soak <url> <seed> <milliseconds> <leak>` says `sample <live bytes> <resident bytes> <grants>`
//! ten times a second. In the end it says
//! `done <grants> <in vain> <live bytes> <keys> <timers> <tasks>`; its managers count the last
//! three. At every sample the program loses `<leak>` bytes, which the parent must notice.
#![allow(clippy::print_stdout, reason = "answers go to stdout")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{LockManager, LockManagerBuilder, TokenRetention, testing};
use lock_tests::dice::Dice;
use lock_tests::memory::{Counting, live_bytes, resident_bytes};
use lock_tests::soak::PERIOD;
use tokio::time::{Instant, sleep, timeout};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TASKS: u64 = 24;
const SHARED_KEYS: u64 = 8;

struct Soak {
    url: String,
    /// Two, so that each has a rival.
    managers: [LockManager; 2],
    ended: AtomicBool,
    keys: AtomicU64,
    grants: AtomicU64,
    vain: AtomicU64,
}

/// Short times, so that everything that is kept for a while comes and goes often.
fn settings() -> LockManagerBuilder {
    LockManager::builder()
        .lease(ms(2000))
        .subscription_linger(ms(100))
        .token_retention(TokenRetention::For(ms(10_000)))
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, seed, time, leak] = args.as_slice() else {
        return println!("!four arguments are needed: {args:?}");
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (dice, time, leak) = (Dice::new(number(seed)), ms(number(time)), number(leak));
    let connect = || async { settings().connect(url).await.expect("the server is up") };
    let soak = Arc::new(Soak {
        url: url.clone(),
        managers: [connect().await, connect().await],
        ended: AtomicBool::new(false),
        keys: AtomicU64::new(0),
        grants: AtomicU64::new(0),
        vain: AtomicU64::new(0),
    });
    let tasks: Vec<_> = (0..TASKS).map(|n| tokio::spawn(Arc::clone(&soak).run(dice.fork(n)))).collect();

    let end = Instant::now() + time;
    let mut leaked = Vec::new();
    while Instant::now() < end {
        sleep(PERIOD).await;
        if leak > 0 {
            leaked.push(vec![1_u8; usize::try_from(leak).expect("few bytes")]);
        }
        let resident = resident_bytes().unwrap_or(0);
        println!("sample {} {resident} {}", live_bytes(), soak.grants.load(Ordering::Relaxed));
    }
    soak.ended.store(true, Ordering::Relaxed);
    for task in tasks {
        if let Err(error) = task.await {
            println!("!a task failed: {error}");
        }
    }
    let quiet_by = Instant::now() + ms(10_000);
    let rest = loop {
        let rest = soak.managers.each_ref().map(testing::leftovers);
        let [keys, timers, tasks] = [
            rest.iter().map(|rest| rest.keys).sum::<usize>(),
            rest.iter().map(|rest| rest.timers).sum(),
            rest.iter().map(|rest| rest.tasks).sum(),
        ];
        if keys + timers + tasks == 0 || Instant::now() >= quiet_by {
            break format!("{keys} {timers} {tasks}");
        }
        sleep(ms(10)).await;
    };
    let (grants, vain) = (soak.grants.load(Ordering::Relaxed), soak.vain.load(Ordering::Relaxed));
    // Lingering subscriptions end, too.
    sleep(ms(500)).await;
    println!("done {grants} {vain} {} {rest}", live_bytes());
}

impl Soak {
    async fn run(self: Arc<Self>, mut dice: Dice) {
        while !self.ended.load(Ordering::Relaxed) {
            let granted = match dice.below(100) {
                0..30 => self.take_a_new_key(&mut dice).await,
                30..60 => self.take_a_shared_key(&mut dice).await,
                60..75 => self.wait_in_vain(&mut dice).await,
                75..97 => self.drop_the_future(&mut dice).await,
                97..99 => self.keep_for_a_renewal(&mut dice).await,
                _ => self.come_and_go().await,
            };
            let counter = if granted { &self.grants } else { &self.vain };
            counter.fetch_add(1, Ordering::Relaxed);
            // Some quiet in between, so that subscriptions end and not only the allocator is
            // measured.
            sleep(dice.between(Duration::ZERO, ms(5))).await;
        }
    }

    fn one(&self, dice: &mut Dice) -> &LockManager {
        let [first, second] = &self.managers;
        if dice.once_in(2) { first } else { second }
    }

    fn new_key(&self) -> String {
        format!("soak:once:{}", self.keys.fetch_add(1, Ordering::Relaxed))
    }

    async fn take_a_new_key(&self, dice: &mut Dice) -> bool {
        let mut mutex = self.one(dice).mutex(self.new_key());
        if dice.once_in(3) {
            mutex = mutex.lease(ms(200));
        }
        match dice.below(3) {
            0 => mutex.with(async |held| held.fencing_token()).await.is_ok(),
            1 => mutex.acquire().await.is_ok(),
            _ => match mutex.try_acquire().await {
                Ok(Some(guard)) => guard.release().await.is_ok(),
                _ => false,
            },
        }
    }

    async fn take_a_shared_key(&self, dice: &mut Dice) -> bool {
        let key = format!("soak:shared:{}", dice.below(SHARED_KEYS));
        let Ok(guard) = self.one(dice).mutex(key).wait(ms(5000)).acquire().await else { return false };
        sleep(dice.between(Duration::ZERO, ms(3))).await;
        if dice.once_in(2) { guard.release().await.is_ok() } else { true }
    }

    /// On a key that no other task uses, which has its own subscription.
    async fn wait_in_vain(&self, dice: &mut Dice) -> bool {
        let (key, wait) = (self.new_key(), dice.between(ms(1), ms(30)));
        let [first, second] = &self.managers;
        let Ok(guard) = first.mutex(&key).acquire().await else { return false };
        let refused = second.mutex(&key).wait(wait).acquire().await.is_err();
        drop(guard);
        !refused
    }

    async fn drop_the_future(&self, dice: &mut Dice) -> bool {
        let key = format!("soak:shared:{}", dice.below(SHARED_KEYS));
        let acquire = self.one(dice).mutex(key).wait(ms(5000)).acquire();
        timeout(dice.between(Duration::ZERO, ms(4)), acquire).await.is_ok()
    }

    async fn keep_for_a_renewal(&self, dice: &mut Dice) -> bool {
        let Ok(guard) = self.one(dice).mutex(self.new_key()).acquire().await else { return false };
        let lost = timeout(dice.between(ms(700), ms(1500)), guard.lost()).await.is_ok();
        !lost
    }

    /// Connects a new manager, which takes one lock.
    async fn come_and_go(&self) -> bool {
        let Ok(locks) = settings().connect(&self.url).await else { return false };
        let granted = match locks.mutex(self.new_key()).acquire().await {
            Ok(guard) => guard.release().await.is_ok(),
            Err(_) => false,
        };
        locks.shutdown(ms(1000)).await.is_ok() && granted
    }
}
