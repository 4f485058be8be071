//! Steps of one process on one row travel together.

use std::sync::Arc;

use futures_util::FutureExt as _;
use lock_core::store::{AcquireRequest, Acquired, Item, Kind, LockStore, Withdrawn};
use sqlx::{Connection, Executor, PgConnection, Row};

use super::*;
use crate::tests::rows::{SECOND, granted, item};

/// Number of waiters.
const MANY: usize = 200;

fn waiter(number: usize) -> Arc<AcquireRequest> {
    let item = Item { kind: Kind::Fair, ..item("a", &format!("waiter:{number}")) };
    Arc::new(AcquireRequest::new(vec![item], 60 * SECOND, 60 * SECOND).queued(60 * SECOND))
}

/// Each write of a row with many waiters is long, and would overtake those of all others.
#[tokio::test]
async fn many_waiters_are_few_writes() {
    let server = PostgresServer::start();
    let store = postgres(server.url().parse().unwrap(), &settings(""));
    assert!(granted(&store, "a", "owner:1").await);
    let mut operator = PgConnection::connect(&server.url()).await.unwrap();
    let written = "SELECT txid_current()";
    let before: i64 = operator.fetch_one(written).await.unwrap().get(0);
    let mut tasks: Vec<_> = (0..MANY)
        .map(|number| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.acquire(waiter(number)).await })
        })
        .collect();
    // Among them the one that makes the first step, and others that wait for their turns.
    tokio::task::yield_now().await;
    let dropped = tasks.split_off(MANY - 10);
    dropped.iter().chain(&tasks[..1]).for_each(tokio::task::JoinHandle::abort);
    for task in tasks.into_iter().skip(1) {
        assert!(matches!(task.await.unwrap().unwrap(), Acquired::Busy(_)));
    }
    let after: i64 = operator.fetch_one(written).await.unwrap().get(0);
    assert!(after - before < 20, "{} writes", after - before);
    let waiters = store.status(item("a", "x").key).await.unwrap().waiters;
    assert!((MANY as u64 - 11..=MANY as u64).contains(&waiters), "{waiters}");

    let withdrawals: Vec<_> = (0..MANY).map(|number| tokio::spawn(store.withdraw(waiter(number)))).collect();
    for withdrawal in withdrawals {
        assert_eq!(withdrawal.await.unwrap().unwrap(), Withdrawn::Settled);
    }
    let end: i64 = operator.fetch_one(written).await.unwrap().get(0);
    assert!(end - after < 20, "{} writes", end - after);
    assert_eq!(store.status(item("a", "x").key).await.unwrap().waiters, 0);
}

/// As in a `select!` whose other branch takes long.
#[tokio::test]
async fn a_caller_that_stops_polling_holds_up_nobody() {
    let server = PostgresServer::start();
    let store = postgres(server.url().parse().unwrap(), &settings(""));
    assert!(granted(&store, "a", "owner:1").await);
    let mut number = 0;
    let first = loop {
        let mut first = store.acquire(waiter(number));
        // A busy machine may let the answer arrive in between.
        match (&mut first).now_or_never() {
            None => break first,
            Some(answer) => assert!(matches!(answer.unwrap(), Acquired::Busy(_))),
        }
        number += 1;
        assert!(number < 100, "no statement was under way");
    };
    for number in 100..103 {
        assert!(matches!(store.acquire(waiter(number)).await.unwrap(), Acquired::Busy(_)));
    }
    assert!(matches!(first.await.unwrap(), Acquired::Busy(_)));
    assert!(store.store().groups.is_empty(), "no row has a step under way");
}

/// As at the end of a program that does not shut its manager down.
#[test]
fn a_runtime_may_end_while_steps_wait() {
    let server = PostgresServer::start();
    for _ in 0..5 {
        let store = postgres(server.url().parse().unwrap(), &settings(""));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            store.check().await.unwrap();
            for number in 0..MANY {
                let store = Arc::clone(&store);
                tokio::spawn(async move { store.acquire(waiter(number)).await });
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        });
        drop(runtime);
        assert!(store.store().groups.is_empty(), "no row has a step under way");
    }
}
