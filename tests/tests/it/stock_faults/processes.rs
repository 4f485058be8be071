//! Sellers that are killed or paused in the middle.

use std::time::Duration;

use lock_tests::RedisServer;
use lock_tests::stocks::{Habits, Kept, insist};

use super::{Crew, ms, new_stock};

async fn killed(kept: Kept, url: &str) {
    const UNITS: u64 = 2000;
    let stock = new_stock(kept, url, UNITS).await;
    let mut crew = Crew::of(kept, url, Habits::default(), 3);
    let mut dice = crew.chance.fork(1000);
    for _ in 0..8 {
        tokio::time::sleep(ms(20 + dice.below(200))).await;
        crew.kill_one();
        let snapshot = insist(|| stock.snapshot()).await.unwrap();
        assert!(snapshot.balances(), "{snapshot:?}");
        crew.hire();
    }
    crew.sell();
    crew.kill();
    crew.audit(&stock, UNITS).await;
}

async fn stopped(kept: Kept, url: &str) {
    const UNITS: u64 = 100_000;
    let stock = new_stock(kept, url, UNITS).await;
    let habits = Habits { hold: (ms(50), ms(400)), ..Habits::default() };
    let mut crew = Crew::of(kept, url, habits, 3);
    let mut dice = crew.chance.fork(1000);
    for n in 0..6 {
        tokio::time::sleep(ms(20 + dice.below(200))).await;
        crew.sellers[n % 3].stop();
        // Reservations end meanwhile, and requests in flight arrive too late.
        let pause: Duration = if n % 3 == 0 { ms(1500) } else { ms(50 + dice.below(500)) };
        tokio::time::sleep(pause).await;
        while stock.sweep(100).await.unwrap().more {}
        crew.sellers[n % 3].cont();
    }
    crew.stop();
    let sum = crew.audit(&stock, UNITS).await;
    assert_eq!(sum.open, 0, "who goes home knows what came of each order");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sellers_that_are_killed_leave_books_that_can_be_settled() {
    let server = RedisServer::start();
    killed(Kept::OneSlot, &server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sellers_that_sleep_through_their_deadlines_agree_with_the_stock() {
    let server = RedisServer::start();
    stopped(Kept::OneSlot, &server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sellers_that_are_killed_in_the_middle_of_a_spread_order_leave_books_that_can_be_settled() {
    let server = RedisServer::start();
    killed(Kept::Spread, &server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sellers_that_sleep_in_the_middle_of_a_spread_order_agree_with_the_stock() {
    let server = RedisServer::start();
    stopped(Kept::Spread, &server.url()).await;
}
