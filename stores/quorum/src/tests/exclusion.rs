//! One holder at a time, whatever happens to the stores: random schedules from a seed, under paused
//! time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::store::{AcquireRequest, Acquired, LockStore, Renewed, TokenRange};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use super::rig::*;

/// A time in which an owner was certain to hold the key, with its tokens.
#[derive(Clone, Debug)]
struct Held {
    owner: u32,
    from: Instant,
    until: Instant,
    tokens: TokenRange,
}

type Book = Arc<Mutex<Vec<Held>>>;

/// The behaviour of a store that was restarted without its data.
#[derive(Clone, Copy, PartialEq)]
enum Restart {
    Honest,
    Pretends,
}

/// Takes the key again and again, as the engine does, and records when it held it.
async fn work(store: Arc<dyn LockStore>, number: u32, book: Book, end: Instant, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut turn = 0;
    while Instant::now() < end {
        turn += 1;
        let owner = number * 10_000 + turn;
        let request = Arc::new(AcquireRequest::new(vec![item("a", owner)], LEASE, SECOND).tokens(3));
        let sent = Instant::now();
        match store.acquire(Arc::clone(&request)).await {
            Ok(Acquired::Granted(granted)) => {
                let mut until = valid_until(sent, LEASE);
                let from = Instant::now();
                while Instant::now() < until {
                    let rest = until - Instant::now();
                    tokio::time::sleep(rest.mul_f64(random.random_range(0.0..0.6))).await;
                    if random.random_bool(0.4) {
                        break;
                    }
                    let sent = Instant::now();
                    let kept = renew(&store, owner).await;
                    if Instant::now() < until && matches!(kept, Ok(Renewed::Held)) {
                        until = valid_until(sent, LEASE);
                    } else if matches!(kept, Ok(Renewed::Gone)) {
                        break;
                    }
                }
                let crashes = random.random_bool(0.2);
                let over = if crashes { until } else { until.min(Instant::now()) };
                if from < over {
                    let tokens = granted.tokens[0];
                    book.lock().unwrap().push(Held { owner, from, until: over, tokens });
                }
                if crashes {
                    tokio::time::sleep_until(over).await;
                } else {
                    let _ = release(&store, owner).await;
                }
            }
            Ok(Acquired::Busy(busy)) => {
                tokio::time::sleep(
                    busy.remaining.unwrap().min(SECOND.mul_f64(random.random_range(0.02..0.4))),
                )
                .await;
            }
            Err(error) => {
                if error.outcome_unknown() {
                    let store = Arc::clone(&store);
                    tokio::spawn(async move { store.withdraw(request).await });
                }
                tokio::time::sleep(SECOND / 10).await;
            }
        }
    }
}

/// Breaks and repairs at most a minority at a time; stores may lose their data one after the other.
async fn break_things(rig: &Rig, end: Instant, restart: Restart, random: &mut StdRng) {
    let servers = rig.servers.len();
    while Instant::now() < end {
        let broken: Vec<usize> = (0..servers / 2).map(|_| random.random_range(0..servers)).collect();
        for &node in &broken {
            let fault = match random.random_range(0..6) {
                0 => Fault::Refuses,
                1 => Fault::Swallows,
                2 => Fault::Mute,
                3 => Fault::Slow(SECOND * 2),
                4 => Fault::Slow(Duration::from_millis(random.random_range(1..100))),
                _ => {
                    match restart {
                        Restart::Honest => rig.servers[node].wipe(),
                        Restart::Pretends => rig.servers[node].wipe_and_pretend().await,
                    }
                    Fault::None
                }
            };
            rig.servers[node].fail(fault);
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(10..8_000))).await;
        for &node in &broken {
            rig.servers[node].fail(Fault::None);
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..6_000))).await;
    }
}

/// Returns the fault of a run, or `None` if all is well, and how often the key was held.
async fn run(servers: usize, seed: u64, restart: Restart) -> (Option<String>, usize) {
    let rig = Rig::new(servers);
    rig.process().check().await.unwrap();
    let (book, end) = (Book::default(), Instant::now() + SECOND * 300);
    let mut random = StdRng::seed_from_u64(seed);
    let mut workers = tokio::task::JoinSet::new();
    for number in 1..=4 {
        workers.spawn(work(rig.process(), number, Arc::clone(&book), end, seed * 7 + u64::from(number)));
    }
    break_things(&rig, end, restart, &mut random).await;
    workers.join_all().await;
    let mut book = book.lock().unwrap().clone();
    book.sort_by_key(|held| held.from);
    let fault = book.windows(2).find_map(|pair| {
        let [one, next] = pair else { return None };
        let what = if next.from < one.until {
            "two holders"
        } else if next.tokens.first <= one.tokens.last {
            "tokens that do not grow"
        } else {
            return None;
        };
        Some(format!("seed {seed}: {what}: {}, {one:?} and {}, {next:?}", one.owner, next.owner))
    });
    (fault, book.len())
}

fn runs(servers: usize, seeds: std::ops::Range<u64>, restart: Restart) -> Vec<(Option<String>, usize)> {
    let runs = seeds.map(|seed| {
        // Makes runs of the same seed equal.
        lock_core::internal::chance::set_jitter(f64::from(u32::try_from(seed).unwrap() % 10) / 10.0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(run(servers, seed, restart))
    });
    runs.collect()
}

#[test]
fn there_is_one_holder_of_three_stores() {
    for (fault, held) in runs(3, 0..10, Restart::Honest) {
        assert_eq!(fault, None);
        assert!(held > 20, "held {held} times");
    }
}

#[test]
fn there_is_one_holder_of_five_stores() {
    for (fault, held) in runs(5, 0..10, Restart::Honest) {
        assert_eq!(fault, None);
        assert!(held > 20, "held {held} times");
    }
}

/// Shows that the tests before can detect two holders.
#[test]
fn without_quarantine_there_are_two_holders() {
    let broken = runs(3, 0..25, Restart::Pretends);
    let two = |fault: &Option<String>| fault.as_ref().is_some_and(|fault| fault.contains("two holders"));
    assert!(broken.iter().any(|(fault, _)| two(fault)));
}
