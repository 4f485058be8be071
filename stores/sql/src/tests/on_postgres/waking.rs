//! How the waiters of other processes hear of a release.

use std::sync::Arc;

use lock_core::store::{AcquireRequest, Acquired, Item, Kind, LockStore, Notice, Watch};
use sqlx::{Connection, Executor, PgConnection, Row};

use super::*;
use crate::SqlStore;
use crate::tests::rows::{SECOND, granted, item, released};

fn open(prefix: &str) -> Arc<SqlStore> {
    postgres(SERVER.url().parse().unwrap(), &settings(prefix))
}

fn wish(keys: &[&str], kind: Kind, owner: &str) -> AcquireRequest {
    let items: Vec<_> = keys.iter().map(|key| Item { kind, ..item(key, owner) }).collect();
    AcquireRequest::new(items, 60 * SECOND, 10 * SECOND)
}

async fn is_granted(store: &SqlStore, request: &Arc<AcquireRequest>) -> bool {
    matches!(store.acquire(Arc::clone(request)).await.unwrap(), Acquired::Granted(_))
}

async fn heard(watch: &mut Watch) -> Notice {
    tokio::time::timeout(30 * SECOND, watch.notice()).await.unwrap()
}

/// An operator, a server that restarts, or a firewall ends the connection.
#[tokio::test]
async fn waiters_look_again_after_a_connection_was_lost_and_hear_again() {
    let (store, other) = (open("lost:"), open("lost:"));
    assert!(granted(&store, "a", "owner:1").await);
    let reader = Arc::new(wish(&["a"], Kind::Read, "owner:2"));
    assert!(!is_granted(&other, &reader).await);
    let mut watch = other.watch(Arc::clone(&reader)).await.unwrap();
    assert!(watch.is_confirmed());

    let mut operator = PgConnection::connect(&SERVER.url()).await.unwrap();
    let listeners = "SELECT listeners FROM lock_records WHERE name = 'lost:a'";
    let listeners: String = operator.fetch_one(listeners).await.unwrap().get(0);
    let listeners: Vec<(String, i64)> = serde_json::from_str(&listeners).unwrap();
    let ended = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN \"lock_{}\"'",
        listeners[0].0
    );
    assert_eq!(operator.fetch_all(ended.as_str()).await.unwrap().len(), 1);
    assert_eq!(heard(&mut watch).await, Notice::Resubscribed);

    assert!(released(&store, "a", "owner:1").await);
    assert_eq!(heard(&mut watch).await, Notice::Retry);
    assert!(is_granted(&other, &reader).await);
}

/// NOTIFY makes the commits of a server wait for each other.
#[tokio::test]
async fn only_processes_that_wait_are_registered() {
    let (store, other) = (open("some:"), open("some:"));
    assert!(granted(&store, "a", "owner:1").await);
    assert!(!is_granted(&other, &Arc::new(wish(&["a"], Kind::Mutex, "owner:2"))).await);
    let mut operator = PgConnection::connect(&SERVER.url()).await.unwrap();
    let row = "SELECT record, listeners FROM lock_records WHERE name = 'some:a'";
    let read = operator.fetch_one(row).await.unwrap();
    let (record, listeners): (String, Option<String>) = (read.get(0), read.get(1));
    assert!(!record.contains("queue") && listeners.is_none(), "{record} {listeners:?}");

    // A waiter for a mutex is in the record.
    let waits = Arc::new(wish(&["a"], Kind::Mutex, "owner:2").queued(60 * SECOND));
    let _watch = other.watch(Arc::clone(&waits)).await.unwrap();
    assert!(!is_granted(&other, &waits).await);
    let read = operator.fetch_one(row).await.unwrap();
    let (record, listeners): (String, Option<String>) = (read.get(0), read.get(1));
    assert!(record.contains("queue") && listeners.is_none(), "{record} {listeners:?}");
}

/// Its owner may ask for the free key before it gives the other one back.
#[tokio::test]
async fn a_request_for_several_mutexes_reserves_none_that_is_free() {
    let (store, other) = (open("several:"), open("several:"));
    assert!(granted(&store, "a", "owner:1").await);
    let both = Arc::new(wish(&["a", "b"], Kind::Mutex, "owner:2").queued(60 * SECOND));
    let mut watch = other.watch(Arc::clone(&both)).await.unwrap();
    assert!(!is_granted(&other, &both).await);
    assert!(granted(&store, "b", "owner:1").await);
    assert!(released(&store, "a", "owner:1").await);
    assert_eq!(heard(&mut watch).await, Notice::Retry);
    // Now it waits for the other one.
    assert!(!is_granted(&other, &both).await);
    assert!(granted(&store, "a", "owner:3").await);
    assert!(released(&store, "b", "owner:1").await);
    assert_eq!(heard(&mut watch).await, Notice::Retry);
    assert!(!is_granted(&other, &both).await);
    assert!(released(&store, "a", "owner:3").await);
    assert_eq!(heard(&mut watch).await, Notice::Retry);
    assert!(is_granted(&other, &both).await);
}
