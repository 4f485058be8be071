//! How the waiters of other processes hear of a release.

use std::time::Instant;

use lock_core::store::{Notice, Watch};
use lock_test_servers::wire::{Fate, Wire};

use super::*;

fn wish(keys: &[&str], kind: Kind, owner: &str) -> AcquireRequest {
    let items: Vec<_> = keys.iter().map(|key| Item { kind, ..item(key, owner) }).collect();
    AcquireRequest::new(items, 60 * SECOND, SLACK)
}

async fn is_granted(store: &MongoStore, request: &Arc<AcquireRequest>) -> bool {
    matches!(store.acquire(Arc::clone(request)).await.unwrap(), Acquired::Granted(_))
}

async fn heard(watch: &mut Watch) -> Notice {
    tokio::time::timeout(SLACK, watch.notice()).await.unwrap()
}

/// Waits until the stream of another process has said that it may have missed something, or that
/// the key is free.
async fn granted_after_notices(store: &MongoStore, watch: &mut Watch, request: &Arc<AcquireRequest>) {
    let deadline = Instant::now() + SLACK;
    while !is_granted(store, request).await {
        assert!(Instant::now() < deadline);
        heard(watch).await;
    }
}

/// Returns the ids of the change streams of clients with this name.
fn streams(server: &MongoDbServer, name: &str) -> Vec<i64> {
    let here =
        doc! { "cursor.originatingCommand.pipeline.$changeStream": { "$exists": true }, "appName": name };
    let pipeline = vec![doc! { "$currentOp": { "idleCursors": true } }, doc! { "$match": here }];
    let found = server.command(doc! { "aggregate": 1, "pipeline": pipeline, "cursor": {} });
    let batch = found.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).unwrap();
    let id = |it: &mongodb::bson::Bson| {
        it.as_document().unwrap().get_document("cursor").unwrap().get_i64("cursorId")
    };
    batch.iter().map(|it| id(it).unwrap()).collect()
}

/// A release reaches the waiters of other processes, in the order of the releases.
#[tokio::test]
#[allow(clippy::print_stdout, reason = "how long a message takes, for orientation")]
async fn a_release_wakes_the_waiter_of_another_process() {
    let prefix = new_prefix();
    let (store, other) = (store(&SERVER.url(), &prefix), store(&SERVER.url(), &prefix));
    let waits = Arc::new(wish(&["a"], Kind::Read, "reader:1"));
    let mut watch = other.watch(Arc::clone(&waits)).await.unwrap();
    assert!(watch.is_confirmed());
    for round in 0..20 {
        let owner = format!("owner:{round}");
        assert!(granted(&store, "a", &owner).await);
        assert!(!is_granted(&other, &waits).await);
        assert!(released(&store, "a", &owner).await);
        assert_eq!(heard(&mut watch).await, Notice::Retry);
        assert!(is_granted(&other, &waits).await, "it is free when it is said to be");
        assert!(gave_back(&other, &waits).await);
        while watch.try_notice().is_some() {}
    }
}

/// A waiter in the queue is told its grant.
#[tokio::test]
async fn a_waiter_in_the_queue_of_another_process_is_told_its_grant() {
    let prefix = new_prefix();
    let (store, other) = (store(&SERVER.url(), &prefix), store(&SERVER.url(), &prefix));
    assert!(granted(&store, "a", "owner:0").await);
    let mut watches = Vec::new();
    for number in 1..=3 {
        let waits = Arc::new(wish(&["a"], Kind::Fair, &format!("owner:{number}")).queued(60 * SECOND));
        let watch = other.watch(Arc::clone(&waits)).await.unwrap();
        assert!(!is_granted(&other, &waits).await);
        watches.push((watch, waits));
    }
    assert!(released(&store, "a", "owner:0").await);
    for (mut watch, waits) in watches {
        // Until it is granted by a message, or may ask.
        let notice = heard(&mut watch).await;
        assert!(is_granted(&other, &waits).await, "{notice:?}");
        assert!(gave_back(&other, &waits).await);
    }
}

/// An operator ends the stream, or the server forgets it.
#[tokio::test]
async fn waiters_hear_again_after_the_stream_was_killed() {
    let prefix = new_prefix();
    let name = format!("killed {prefix}");
    let url = format!("{}&appName={}", SERVER.url(), name.replace(' ', "%20").replace(':', "%3A"));
    let (store, other) = (store(&SERVER.url(), &prefix), store(&url, &prefix));
    let reader = Arc::new(wish(&["a"], Kind::Read, "owner:2"));
    let mut watch = other.watch(Arc::clone(&reader)).await.unwrap();
    for round in 0..3 {
        assert!(granted(&store, "a", "owner:1").await && !is_granted(&other, &reader).await);
        let deadline = Instant::now() + SLACK;
        let killed = loop {
            let killed = streams(&SERVER, &name);
            if !killed.is_empty() {
                break killed;
            }
            assert!(Instant::now() < deadline, "there is a stream");
            tokio::time::sleep(SECOND / 50).await;
        };
        run(&SERVER, doc! { "killCursors": COLLECTION, "cursors": killed });
        assert!(released(&store, "a", "owner:1").await);
        granted_after_notices(&other, &mut watch, &reader).await;
        assert!(gave_back(&other, &reader).await, "{round}");
    }
}

/// A firewall ends the connection, or forgets it.
#[tokio::test]
async fn waiters_hear_again_after_the_connection_was_cut_or_fell_silent() {
    let prefix = new_prefix();
    let wire = Wire::to(SERVER.addr());
    let url = format!("mongodb://{}/locks?directConnection=true", wire.addr());
    let (store, other) = (store(&SERVER.url(), &prefix), store(&url, &prefix));
    let reader = Arc::new(wish(&["a"], Kind::Read, "owner:2"));
    let mut watch = other.watch(Arc::clone(&reader)).await.unwrap();
    for fate in [Fate::Cut, Fate::Unanswered, Fate::Lost] {
        assert!(granted(&store, "a", "owner:1").await && !is_granted(&other, &reader).await);
        let hits = wire.hits();
        wire.next("getMore", fate);
        let deadline = Instant::now() + SLACK;
        while wire.hits() == hits {
            assert!(Instant::now() < deadline);
            tokio::time::sleep(SECOND / 50).await;
        }
        assert!(released(&store, "a", "owner:1").await);
        granted_after_notices(&other, &mut watch, &reader).await;
        assert!(gave_back(&other, &reader).await, "{fate:?}");
    }
}

/// Its waiters look again, and hear of the new collection.
#[tokio::test]
async fn waiters_hear_again_after_the_collection_was_dropped() {
    let url = SERVER.url().replace("/locks", "/forgotten");
    let (store, other) = (store(&url, ""), store(&url, ""));
    let reader = Arc::new(wish(&["a"], Kind::Read, "owner:2"));
    assert!(granted(&store, "a", "owner:1").await && !is_granted(&other, &reader).await);
    let mut watch = other.watch(Arc::clone(&reader)).await.unwrap();
    SERVER.command(doc! { "drop": COLLECTION, "$db": "forgotten" });
    assert_eq!(heard(&mut watch).await, Notice::Resubscribed);
    assert!(granted(&store, "a", "owner:1").await && !is_granted(&other, &reader).await);
    let _again = other.watch(Arc::clone(&reader)).await.unwrap();
    assert!(released(&store, "a", "owner:1").await);
    granted_after_notices(&other, &mut watch, &reader).await;
}

/// Others cost a document's writer the work for a message.
#[tokio::test]
async fn only_processes_that_wait_are_registered() {
    let prefix = new_prefix();
    let (store, other) = (store(&SERVER.url(), &prefix), store(&SERVER.url(), &prefix));
    assert!(granted(&store, "a", "owner:1").await);
    assert!(!is_granted(&other, &Arc::new(wish(&["a"], Kind::Mutex, "owner:2"))).await);
    let read = || document(&SERVER, &format!("{prefix}a"));
    assert!(!read().contains_key("listeners") && !read().get_str("record").unwrap().contains("queue"));
    // A waiter for a mutex is in the record.
    let waits = Arc::new(wish(&["a"], Kind::Mutex, "owner:2").queued(60 * SECOND));
    let _watch = other.watch(Arc::clone(&waits)).await.unwrap();
    assert!(!is_granted(&other, &waits).await);
    assert!(!read().contains_key("listeners") && read().get_str("record").unwrap().contains("queue"));
    let reader = Arc::new(wish(&["b"], Kind::Read, "owner:2"));
    let _other = other.watch(reader).await.unwrap();
    let listeners = document(&SERVER, &format!("{prefix}b"));
    assert_eq!(listeners.get_array("listeners").unwrap().len(), 1, "{listeners}");
}
