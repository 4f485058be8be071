//! Stocks that are spread: programs that die at each step of an operation, others that finish it,
//! and servers of a cluster.

use std::process::{Command, Stdio};
use std::time::Duration;

use lock_runtime::LockManager;
use lock_runtime::segmented::{Layout, SegmentedStock, Snapshot, StockError};
use lock_tests::dice::Dice;
use lock_tests::stock_steps::{Scenario, TIMEOUT, UNITS, spread};
use lock_tests::{Cluster, RedisServer};

fn counts(snapshot: &Snapshot) -> [u64; 4] {
    assert!(snapshot.balances(), "{snapshot:?}");
    let put_in = snapshot.initial + snapshot.restocked;
    [snapshot.available(), snapshot.held(), snapshot.sold(), put_in]
}

/// Starts a program that dies at this step, if it gets there.
fn start(url: &str, name: &str, scenario: Scenario, step: u32) -> std::process::Child {
    Command::new(env!("CARGO_BIN_EXE_stock_steps"))
        .args([url, name, &format!("{scenario:?}"), &step.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// Whether the program ran to its end.
fn ended(child: std::process::Child) -> bool {
    use std::os::unix::process::ExitStatusExt;

    let output = child.wait_with_output().unwrap();
    let done = output.stdout == b"done\n";
    assert!(done || output.status.signal() == Some(9), "{output:?}");
    done
}

/// Lets a program die at each step of each of these scenarios, and returns the stocks that were
/// left.
async fn die_at_each_step(
    locks: &LockManager,
    url: &str,
    scenarios: impl IntoIterator<Item = Scenario>,
    tag: &str,
) -> Vec<(Scenario, u32, SegmentedStock)> {
    let mut left = Vec::new();
    for scenario in scenarios {
        for first in (1..).step_by(4) {
            let mut children = Vec::new();
            for step in first..first + 4 {
                let name = format!("{tag}:{scenario:?}:{step}");
                let stock = spread(locks, &name);
                if scenario != Scenario::Initialize {
                    scenario.prepare(&stock).await.unwrap();
                }
                children.push((step, start(url, &name, scenario, step)));
                left.push((scenario, step, stock));
            }
            let all: Vec<bool> = children.into_iter().map(|(_, child)| ended(child)).collect();
            if all.iter().all(|done| *done) {
                break;
            }
            assert!(first < 400, "{scenario:?} has no end");
        }
    }
    left
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_program_left_when_it_died_is_done_by_sending_it_again() {
    let redis = RedisServer::start();
    let locks = LockManager::connect(redis.url()).await.unwrap();
    for (scenario, step, stock) in die_at_each_step(&locks, &redis.url(), Scenario::ALL, "again").await {
        scenario.play(&stock).await.unwrap_or_else(|error| panic!("{scenario:?} at {step}: {error}"));
        let snapshot = stock.snapshot().await.unwrap();
        assert_eq!(counts(&snapshot), scenario.after(), "{scenario:?} at {step}: {snapshot:?}");
        let idle = snapshot.segments.iter().filter(|segment| !segment.active);
        assert_eq!(
            idle.map(|segment| segment.available).sum::<u64>(),
            0,
            "{scenario:?} at {step}: {snapshot:?}"
        );
        // And again.
        scenario.play(&stock).await.unwrap();
        assert_eq!(counts(&stock.snapshot().await.unwrap()), scenario.after(), "{scenario:?} at {step}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_needs_what_a_dead_program_has_gets_it_without_a_sweep() {
    let redis = RedisServer::start();
    let locks = LockManager::connect(redis.url()).await.unwrap();
    let left = die_at_each_step(&locks, &redis.url(), [Scenario::Merge], "needed").await;
    tokio::time::sleep(2 * TIMEOUT + Duration::from_secs(2)).await;
    let mut sold = 0;
    for (_, step, stock) in left {
        match stock.take("another", UNITS).await {
            Ok(_) => sold += 1,
            Err(error) => assert!(error.is_sold_out(), "the first was decided, at {step}: {error}"),
        }
        let counts = counts(&stock.snapshot().await.unwrap());
        assert!(counts == [0, 0, 20, 20] || counts == [8, 0, 12, 20], "{counts:?} at {step}");
    }
    assert!(sold > 5, "{sold}");
}

/// Programs have died, and nobody repeats their operations. Others go on; in the end each operation
/// has been completed or undone.
async fn others_sweep(url: &str, scenarios: &[Scenario], open_keys: impl Fn() -> Vec<String>) {
    let locks = LockManager::connect(url).await.unwrap();
    let left = die_at_each_step(&locks, url, scenarios.iter().copied(), "swept").await;
    tokio::time::sleep(2 * TIMEOUT + Duration::from_secs(2)).await;
    let (mut done, mut undone) = (0, 0);
    for (scenario, step, stock) in &left {
        let swept = stock.sweep(100).await.unwrap();
        assert!(!swept.more && swept.expired == 0, "{scenario:?} at {step}: {swept:?}");
        let snapshot = match stock.snapshot().await {
            // It died before it had announced the stock.
            Err(StockError::Missing { .. }) if *scenario == Scenario::Initialize => continue,
            snapshot => snapshot.unwrap(),
        };
        let counts = counts(&snapshot);
        match counts {
            counts if counts == scenario.after() => done += 1,
            counts if counts == scenario.before() => undone += 1,
            counts => panic!("{scenario:?} at {step}: {counts:?}, swept {swept:?}, {snapshot:?}"),
        }
        assert_eq!(snapshot.in_transit, 0, "{scenario:?} at {step}: {snapshot:?}");
        let idle = snapshot.segments.iter().filter(|segment| !segment.active);
        assert_eq!(
            idle.map(|segment| segment.available).sum::<u64>(),
            0,
            "{scenario:?} at {step}: {snapshot:?}"
        );
        assert_eq!(
            stock.sweep(100).await.unwrap().recovered,
            0,
            "{scenario:?} at {step}: all was done the first time"
        );
        // A later repetition gets the final result.
        scenario.play(stock).await.unwrap_or_else(|error| panic!("{scenario:?} at {step}: {error}"));
        let snapshot = stock.snapshot().await.unwrap();
        assert_eq!(self::counts(&snapshot), scenario.after(), "{scenario:?} at {step}: {snapshot:?}");
    }
    assert!(done > 10 && undone > 10, "{done} done, {undone} not");
    // Only reservations that have not expired are open.
    let reserved = left.iter().filter(|(scenario, ..)| scenario.after()[1] > 0).count();
    let open = open_keys();
    assert!(open.len() <= reserved, "{open:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_program_left_when_it_died_is_finished_or_undone_by_whoever_sweeps() {
    let redis = RedisServer::start();
    let keys = || {
        let keys = redis.cli(&["KEYS", "lock_stock_open:*"]);
        keys.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    };
    others_sweep(&redis.url(), &Scenario::ALL, keys).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_segments_are_on_several_servers_and_nothing_is_lost() {
    let cluster = Cluster::start();
    let locks = LockManager::connect(cluster.url()).await.unwrap();
    let stock = spread(&locks, "item");
    stock.initialize(60, 6).await.unwrap();
    let nodes: std::collections::BTreeSet<usize> =
        (0..6).map(|segment| cluster.node_of(&format!("lock_stock_part:{{lock:item/{segment}}}"))).collect();
    assert_eq!(nodes.len(), 3, "each server has segments");
    let taken = stock.take("all", 60).await.unwrap();
    assert_eq!(taken.parts().len(), 6);
    stock.give_back("all").await.unwrap();
    assert_eq!(counts(&stock.snapshot().await.unwrap()), [60, 0, 0, 60]);

    let scenarios = [Scenario::Merge, Scenario::Confirm, Scenario::GiveBackRetired, Scenario::Rebalance];
    others_sweep(&cluster.url(), &scenarios, Vec::new).await;
}

/// Sells, reserves and brings back until it is told to stop; returns the units sold by its own
/// books.
async fn trade(stock: SegmentedStock, seller: u32, until: tokio::time::Instant) -> u64 {
    let (mut dice, mut sold) = (Dice::new(u64::from(seller) + 1), 0);
    for nth in 0_u32.. {
        if tokio::time::Instant::now() >= until {
            break;
        }
        let (id, quantity) = (format!("{seller}-{nth}"), 1 + dice.below(9));
        let reserve = dice.below(10) < 4;
        let taken = loop {
            let taken = if reserve {
                stock.reserve(&id, quantity, Duration::from_secs(600)).await.map(drop)
            } else {
                stock.take(&id, quantity).await.map(drop)
            };
            match taken {
                Err(error) if error.is_retryable() => {}
                taken => break taken,
            }
        };
        match taken {
            Ok(()) => {}
            Err(StockError::SoldOut { .. }) => continue,
            Err(error) => panic!("{id}: {error}"),
        }
        if reserve && dice.below(10) < 3 {
            stock.cancel(&id).await.unwrap();
            continue;
        }
        if reserve {
            stock.confirm(&id).await.unwrap();
        }
        if dice.below(10) < 6 {
            stock.give_back(&id).await.unwrap();
        } else {
            sold += quantity;
        }
    }
    sold
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_books_of_many_sellers_balance_while_segments_come_and_go() {
    let redis = RedisServer::start();
    let until = tokio::time::Instant::now() + Duration::from_secs(6);
    let locks = LockManager::connect(redis.url()).await.unwrap();
    let stock = spread(&locks, "item").timeout(Duration::from_secs(20));
    stock.initialize(100, 5).await.unwrap();
    let mut sellers = tokio::task::JoinSet::new();
    for seller in 0..12 {
        let locks = LockManager::connect(redis.url()).await.unwrap();
        sellers.spawn(trade(spread(&locks, "item").timeout(Duration::from_secs(20)), seller, until));
    }
    let (mut dice, mut put_in) = (Dice::new(77), 100);
    while tokio::time::Instant::now() < until {
        match dice.below(4) {
            0 => stock.resize(1 + dice.below(8) as u32).await.unwrap(),
            1 => stock.rebalance().await.unwrap(),
            2 => {
                stock.restock(format!("delivery {put_in}"), 3).await.unwrap();
                put_in += 3;
            }
            _ => drop(stock.sweep(50).await.unwrap()),
        }
        assert!(stock.snapshot().await.unwrap().balances());
    }
    let mut sold = 0;
    while let Some(by_one) = sellers.join_next().await {
        sold += by_one.unwrap();
    }
    let swept = stock.sweep(1000).await.unwrap();
    assert_eq!(counts(&stock.snapshot().await.unwrap()), [put_in - sold, 0, sold, put_in], "{swept:?}");
    // No unit is lost.
    if put_in > sold {
        stock.take("the rest", put_in - sold).await.unwrap();
    }
    assert!(stock.take("one more", 1).await.unwrap_err().is_sold_out());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_merges_that_want_the_same_one_gets_it() {
    let redis = RedisServer::start();
    let locks = LockManager::connect(redis.url()).await.unwrap();
    for nth in 0..40 {
        let stock = spread(&locks, &format!("item:{nth}"));
        stock.initialize(12, 6).await.unwrap();
        let (one, other) = tokio::join!(stock.take("one", 12), stock.take("other", 12));
        let answers = [one.map(drop), other.map(drop)];
        // `Contended` is right while the other one has some of the units; neither getting them
        // after a retry is not.
        let mut sold = answers.iter().filter(|answer| answer.is_ok()).count();
        for (answer, id) in answers.into_iter().zip(["one", "other"]) {
            match answer {
                Ok(()) => {}
                Err(error) if error.is_sold_out() => {}
                Err(error) if error.is_retryable() => sold += usize::from(stock.take(id, 12).await.is_ok()),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(sold, 1);
        assert_eq!(counts(&stock.snapshot().await.unwrap()), [0, 0, 12, 12]);
    }
}

#[tokio::test]
async fn a_future_that_is_dropped_anywhere_leaves_what_the_next_call_finishes() {
    let redis = RedisServer::start();
    let locks = LockManager::connect(redis.url()).await.unwrap();
    for scenario in
        [Scenario::Merge, Scenario::Reserve, Scenario::Confirm, Scenario::GiveBackRetired, Scenario::Shrink]
    {
        for polls in 0..200 {
            let stock = spread(&locks, &format!("{scenario:?}:{polls}"));
            scenario.prepare(&stock).await.unwrap();
            let dropped = poll_and_drop(scenario.play(&stock), polls).await;
            scenario.play(&stock).await.unwrap();
            assert_eq!(
                counts(&stock.snapshot().await.unwrap()),
                scenario.after(),
                "{scenario:?} after {polls} polls"
            );
            if !dropped {
                break;
            }
            assert!(polls < 199, "it has no end");
        }
    }
}

#[tokio::test]
async fn units_of_a_segment_are_taken_under_its_own_lock() {
    let redis = RedisServer::start();
    let locks = LockManager::connect(redis.url()).await.unwrap();
    let (mut elsewhere, mut before) = (0, 0);
    for polls in 0..60 {
        let name = format!("item:{polls}");
        let (shelves, stock) = (locks.segmented(&name, 2), spread(&locks, &name));
        stock.initialize(20, 2).await.unwrap();
        let first = shelves.acquire(0).await.unwrap();
        poll_and_drop(stock.take_at(&first, "order", 3), polls).await;
        // Repeated under another lock, whose token is newer.
        let mut second = shelves.acquire(1).await.unwrap();
        while second.fencing_token() <= first.fencing_token() {
            second.release().await.unwrap();
            second = shelves.acquire(1).await.unwrap();
        }
        let taken = stock.take_at(&second, "order", 3).await.unwrap();
        assert_eq!(taken.parts().len(), 1, "{taken:?}");
        match taken.parts()[0].segment {
            0 => {
                assert!(taken.is_repeated(), "{taken:?} after {polls} polls");
                before += 1;
            }
            _ => elsewhere += 1,
        }
        // The first lock still works.
        stock.take_at(&first, "another", 1).await.unwrap_or_else(|error| panic!("{polls} polls: {error}"));
        assert_eq!(counts(&stock.snapshot().await.unwrap()), [16, 0, 4, 20]);
    }
    assert!(elsewhere > 0 && before > 0, "{elsewhere}, {before}");
}

/// Drops the future after `polls` polls, and returns whether it was still pending.
async fn poll_and_drop(future: impl Future, polls: u32) -> bool {
    let mut future = std::pin::pin!(future);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return std::task::Poll::Ready(true);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            std::task::Poll::Ready(_) => std::task::Poll::Ready(false),
            std::task::Poll::Pending => std::task::Poll::Pending,
        }
    })
    .await
}

#[tokio::test]
async fn a_stock_of_the_other_layout_is_told_from_none() {
    let redis = RedisServer::start();
    let locks = LockManager::connect(redis.url()).await.unwrap();
    let (one_slot, spread) = (locks.stock("item"), spread(&locks, "item"));
    assert!(one_slot.initialize(10, 2).await.unwrap());
    let error = spread.initialize(10, 2).await.unwrap_err().to_string();
    assert!(error.contains("OneSlot"), "{error}");
    let error = spread.take("order", 1).await.unwrap_err().to_string();
    assert!(error.contains("OneSlot"), "{error}");
    let error = locks.stock("{item}").layout(Layout::Spread).initialize(10, 2).await.unwrap_err().to_string();
    assert!(error.contains("braces"), "{error}");

    let (one_slot, spread) = (locks.stock("other"), self::spread(&locks, "other"));
    assert!(spread.initialize(10, 2).await.unwrap());
    let error = one_slot.initialize(10, 2).await.unwrap_err().to_string();
    assert!(error.contains("Spread"), "{error}");
    assert_eq!(counts(&spread.snapshot().await.unwrap()), [10, 0, 0, 10]);
}
