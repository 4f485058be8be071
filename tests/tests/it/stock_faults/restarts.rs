//! Servers that are killed and started again, with and without their data.

use lock_runtime::segmented::StockError;
use lock_tests::RedisServer;
use lock_tests::clock::now_nanos;
use lock_tests::redis::Data;
use lock_tests::stocks::{Habits, Kept, Ledger, Loss, counts};

use super::{Crew, ms, new_stock, record, stock_at};

/// Maximum nanoseconds that `appendfsync everysec` keeps data in its own memory. It writes at once,
/// unless the system is busy with the last `fsync`, and waits at most two seconds for that.
const EVERYSEC: u64 = 2_000_000_000;
/// Nanoseconds that a busy machine adds to it.
const SLACK: u64 = 3_000_000_000;

const UNITS: u64 = 100_000;

#[allow(clippy::print_stderr, reason = "the measurement")]
fn say(what: &str, ledger: &Ledger, loss: &Loss, killed: u64) {
    let first = loss.first.map_or(0, |first| killed.saturating_sub(first) / 1_000_000);
    eprintln!(
        "{what}: of {} orders {} are lost with {} units, the first told {first} ms before the end",
        ledger.sum().orders,
        loss.orders,
        loss.units,
    );
}

async fn killed_again_and_again(kept: Kept) {
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let stock = new_stock(kept, &server.url(), UNITS).await;
    let mut crew = Crew::of(kept, &server.url(), Habits::default(), 2);
    let mut dice = crew.chance.fork(1000);
    for _ in 0..4 {
        tokio::time::sleep(ms(100 + dice.below(500))).await;
        server.kill();
        tokio::time::sleep(ms(dice.below(300))).await;
        server.restart(Data::Kept);
    }
    tokio::time::sleep(ms(300)).await;
    crew.stop();
    crew.audit(&stock, UNITS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_syncs_always_forgets_nothing_however_often_it_is_killed() {
    killed_again_and_again(Kept::OneSlot).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_syncs_always_forgets_nothing_of_a_spread_stock() {
    killed_again_and_again(Kept::Spread).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_together_with_its_sellers_forgets_nothing_when_it_syncs_always() {
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    new_stock(Kept::OneSlot, &server.url(), UNITS).await;
    let mut crew = Crew::of(Kept::OneSlot, &server.url(), Habits::default(), 2);
    tokio::time::sleep(ms(600)).await;
    crew.sell();
    server.kill();
    crew.kill();
    server.restart(Data::Kept);
    // Nobody has repeated anything: the records are those of before.
    let loss = crew.ledger().loss(|order| record(&server, order));
    assert_eq!((loss.orders, loss.units), (0, 0), "{loss:?}");
    let stock = stock_at(Kept::OneSlot, &server.url()).await;
    crew.audit(&stock, UNITS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_syncs_every_second_forgets_the_last_two_at_most() {
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    new_stock(Kept::OneSlot, &server.url(), UNITS).await;
    let mut crew = Crew::of(Kept::OneSlot, &server.url(), Habits::default(), 2);
    tokio::time::sleep(ms(2500)).await;
    let killed = now_nanos();
    server.kill();
    crew.kill();
    server.restart(Data::Kept);
    let ledger = crew.ledger();
    let loss = ledger.loss(|order| record(&server, order));
    say("everysec", &ledger, &loss, killed);
    assert!(
        loss.first.is_none_or(|first| first + EVERYSEC + SLACK >= killed),
        "{loss:?}, killed at {killed}"
    );
    // The remaining data is consistent.
    let stock = stock_at(Kept::OneSlot, &server.url()).await;
    counts(&stock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_saves_now_and_then_forgets_what_it_was_told_since() {
    let mut server = RedisServer::start();
    new_stock(Kept::OneSlot, &server.url(), UNITS).await;
    let mut crew = Crew::of(Kept::OneSlot, &server.url(), Habits::default(), 2);
    tokio::time::sleep(ms(500)).await;
    let from = now_nanos();
    server.cli(&["SAVE"]);
    let to = now_nanos();
    tokio::time::sleep(ms(500)).await;
    let killed = now_nanos();
    server.kill();
    crew.kill();
    server.restart(Data::Kept);

    let ledger = crew.ledger();
    let loss = ledger.loss(|order| record(&server, order));
    say("saved half a second before", &ledger, &loss, killed);
    // All of it, and nothing else: earlier answers are all there, and later requests are not.
    assert!(loss.orders > 0 && loss.first.is_some_and(|first| first >= from), "{loss:?}, saved from {from}");
    assert!(loss.kept.is_some_and(|kept| kept <= to), "{loss:?}, saved until {to}");

    // The stock balances, and does not agree with its sellers.
    let stock = stock_at(Kept::OneSlot, &server.url()).await;
    let (available, held, sold) = counts(&stock).await;
    assert_eq!(available + held + sold, UNITS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_forgets_all_sells_nothing_until_somebody_makes_the_stock_again() {
    let mut server = RedisServer::start();
    let stock = new_stock(Kept::OneSlot, &server.url(), 100).await;
    stock.take("before", 30).await.unwrap();
    stock.reserve("held", 30, super::LONG).await.unwrap();
    server.restart(Data::Lost);
    let stock = stock_at(Kept::OneSlot, &server.url()).await;
    let errors = [
        stock.take("after", 1).await.unwrap_err(),
        stock.take("before", 30).await.unwrap_err(),
        stock.confirm("held").await.unwrap_err(),
        stock.cancel("held").await.unwrap_err(),
        stock.give_back("before").await.unwrap_err(),
        stock.restock("more", 5).await.unwrap_err(),
        stock.available().await.unwrap_err(),
    ];
    assert!(errors.iter().all(|error| matches!(error, StockError::Missing { .. })), "{errors:?}");
    assert_eq!(super::all_keys(&server), []);
}
