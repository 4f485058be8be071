//! Stocks of every store, compared with the model of [`lock_tests::stock_model`].

use std::cell::Cell;
use std::time::Duration;

use lock_runtime::LockManager;
use lock_runtime::segmented::{Layout, SegmentedStock};
use lock_runtime::testing::memory_manager;
use lock_tests::RedisServer;
#[cfg(target_os = "linux")]
use lock_tests::stock_model::play_at;
use lock_tests::stock_model::{RETENTION, check, check_on, play};
use lock_tests::stock_sql::{self, sqlite_in};
#[cfg(target_os = "linux")]
use lock_tests::{Offset, ServerClock};
use tokio::runtime::{Builder, Runtime};

/// Checks stocks on a server whose clock is stepped forward, in steps so large that the real time
/// of a test does not matter.
#[cfg(target_os = "linux")]
fn check_with_time(cases: u32, stock: impl Fn(&LockManager, &str) -> SegmentedStock) {
    const FACTOR: u32 = 1000;
    // Added to each step, so that everything due is over to the last millisecond.
    const MORE: Duration = Duration::from_secs(1);
    let clock = ServerClock::new(Offset::NONE).unwrap();
    let (redis, runtime) = (RedisServer::start_with_clock(&[], &clock), runtime());
    let locks = runtime.block_on(LockManager::connect(redis.url())).unwrap();
    let (count, ahead) = (Cell::new(0), Cell::new(Duration::ZERO));
    check(cases, true, |ops| {
        count.set(count.get() + 1);
        let stock = stock(&locks, &format!("stock:{}", count.get()));
        let stock = stock.retention(RETENTION * FACTOR).timeout(Duration::from_secs(20));
        let advance = async |time| {
            ahead.set(ahead.get() + time + MORE);
            clock.set(Offset::Ahead(ahead.get())).unwrap();
        };
        runtime.block_on(play_at(Duration::from_secs(FACTOR.into()), &stock, &ops, advance));
    });
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_stock_in_memory_does_what_the_model_does() {
    check(1000, true, |ops| {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let stock = memory_manager().stock("stock:1001").retention(RETENTION);
            play(&stock, &ops, async |time| tokio::time::advance(time).await).await;
        });
    });
}

#[test]
fn a_stock_in_one_slot_does_what_the_model_does() {
    let (redis, runtime) = (RedisServer::start(), runtime());
    let locks = runtime.block_on(LockManager::connect(redis.url())).unwrap();
    check_on(&runtime, 150, |name| locks.stock(name));
}

#[test]
fn a_stock_that_is_spread_does_what_the_model_does() {
    let (redis, runtime) = (RedisServer::start(), runtime());
    let locks = runtime.block_on(LockManager::connect(redis.url())).unwrap();
    check_on(&runtime, 30, |name| locks.stock(name).layout(Layout::Spread));
}

#[test]
#[cfg(target_os = "linux")]
fn a_stock_in_one_slot_does_what_the_model_does_when_time_passes() {
    check_with_time(80, |locks, name| locks.stock(name));
}

#[test]
#[cfg(target_os = "linux")]
fn a_stock_that_is_spread_does_what_the_model_does_when_time_passes() {
    check_with_time(25, |locks, name| locks.stock(name).layout(Layout::Spread));
}

#[test]
fn a_stock_in_sqlite_does_what_the_model_does() {
    let (folder, runtime) = (tempfile::tempdir().unwrap(), runtime());
    let locks = runtime.block_on(LockManager::connect(sqlite_in(folder.path()))).unwrap();
    check_on(&runtime, 50, |name| stock_sql::stock(&locks, name));
}
