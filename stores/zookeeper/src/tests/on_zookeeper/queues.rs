//! The order of waiters, and their notices.

use lock_core::store::ScanRequest;
use lock_test_servers::wire::{Fate, Wire};
use lock_test_servers::zookeeper::Connection;

use super::*;

lock_store_sequences::test_queues!(|| new_store().0);

/// A node of a client that is not ours has its place, too.
#[tokio::test]
async fn foreign_entries_are_waited_for_and_wait() {
    let (store, root) = new_store();
    let first = waiting(Kind::Mutex, "a", 1);
    assert!(granted(&store, &first).await);
    let other = client().await;
    let path = format!("{root}/a/_c_b5e3b1f1-9ae5-4fd0-9ecd-5b3c19e8a1d2-lock-");
    let (stat, number) = other.create(&path, b"127.0.0.1", &NUMBERED).await.unwrap();
    let second = waiting(Kind::Mutex, "a", 2);
    let mut watch = queue(&store, &second).await;
    assert!(release(&store, &first).await);
    tokio::time::sleep(SECOND / 5).await;
    assert_eq!(watch.try_notice(), None);
    let status = store.status(LockKey::new("a").unwrap()).await.unwrap();
    let name = format!("_c_b5e3b1f1-9ae5-4fd0-9ecd-5b3c19e8a1d2-lock-{number}");
    assert_eq!((status.holders[0].0.as_str(), status.waiters), (name.as_str(), 1));
    assert_eq!(status.remaining, None, "nobody tells");
    other.delete(&format!("{path}{number}"), None).await.unwrap();
    let token = hears_grant(&mut watch).await;
    assert!(token >= 1024 * u64::try_from(stat.czxid).unwrap());
    assert!(release(&store, &second).await);
}

/// As Curator's `testPersistentLock`: a node without a session blocks the lock, and no more.
#[tokio::test]
async fn a_node_without_a_session_holds_the_lock_until_it_is_deleted() {
    let (store, root) = new_store();
    let other = client().await;
    other.mkdir(&format!("{root}/a"), &PERSISTENT).await.unwrap();
    other.create(&format!("{root}/a/lock-0000000000"), b"", &PERSISTENT).await.unwrap();
    let request = waiting(Kind::Mutex, "a", 1);
    let mut watch = queue(&store, &request).await;
    assert!(store.force_release(LockKey::new("a").unwrap()).await.unwrap());
    hears_grant(&mut watch).await;
    assert!(release(&store, &request).await);
}

#[tokio::test]
async fn readers_are_granted_by_notices_with_tokens_of_their_own() {
    let (store, _) = new_store();
    let writer = waiting(Kind::Write, "a", 9);
    let before = ask(&store, &writer).await.unwrap().unwrap().tokens[0].last;
    let readers: Vec<_> = (1..=5).map(|owner| waiting(Kind::Read, "a", owner)).collect();
    let mut watches = Vec::new();
    for reader in &readers {
        watches.push(queue(&store, reader).await);
    }
    assert!(release(&store, &writer).await);
    let mut last = before;
    for watch in &mut watches {
        let token = hears_grant(watch).await;
        assert!(token > last);
        last = token;
    }
}

/// Whenever holders are read, a reader that was listed ends, and another one comes.
#[tokio::test]
async fn lists_end_beside_readers_that_come_and_go() {
    let (root, wire) = (new_root(), Wire::to(SERVER.addr()));
    let other = client().await;
    other.mkdir(&format!("{root}/a"), &PERSISTENT).await.unwrap();
    other.create(&format!("{root}/a/x__READ__0000000001"), b"", &PERSISTENT).await.unwrap();
    let (directory, mut last) = (format!("{root}/a/"), 2);
    let mut readers = Connection::open(SERVER.addr(), SLACK).unwrap();
    let reader = |directory: &str, number: u64| format!("{directory}y__READ__{number:010}");
    assert!(readers.create(&reader(&directory, last)).unwrap());
    wire.set(move |request| {
        if request.windows(directory.len()).any(|part| part == directory.as_bytes()) {
            assert!(readers.delete(&reader(&directory, last)).unwrap());
            last += 1;
            assert!(readers.create(&reader(&directory, last)).unwrap());
        }
        Fate::Passes
    });
    let store = store(&format!("zookeeper://{}{root}?{OPTIONS}", wire.addr()), "");
    let key = LockKey::new("a").unwrap();
    let status = store.status(key.clone()).await.unwrap();
    let stays = [(OwnerId::new("x__READ__0000000001"), 1)];
    assert_eq!((status.kind, status.holders, status.waiters), (Some(Kind::Read), stays.to_vec(), 0));
    let scanned =
        store.scan(ScanRequest { prefix: String::new(), cursor: None, timeout: SLACK }).await.unwrap();
    assert_eq!(scanned.locks.len(), 1);
    assert!(store.force_release(key).await.unwrap());
    let left = nodes(&format!("{root}/a")).await;
    assert!(matches!(&*left, [other] if other.starts_with('y')), "{left:?}");
}

/// Somebody writes to its entry. While it begins to watch it again, somebody deletes both entries.
#[tokio::test]
async fn a_waiter_that_was_deleted_is_not_granted_by_the_end_of_the_one_before_it() {
    let (root, wire) = (new_root(), Wire::to(SERVER.addr()));
    let store = store(&format!("zookeeper://{}{root}?{OPTIONS}", wire.addr()), "");
    let other = client().await;
    other.mkdir(&format!("{root}/a"), &PERSISTENT).await.unwrap();
    let first = format!("{root}/a/lock-0000000000");
    other.create(&first, b"", &PERSISTENT).await.unwrap();
    let request = waiting(Kind::Mutex, "a", 1);
    let mut watch = queue(&store, &request).await;
    let own = nodes(&format!("{root}/a")).await.into_iter().find(|name| name.starts_with("_c_")).unwrap();
    let own = format!("{root}/a/{own}");
    // Its watches begin.
    tokio::time::sleep(SECOND / 2).await;
    wire.hold();
    other.set_data(&own, b"", None).await.unwrap();
    for path in [&own, &first] {
        other.delete(path, None).await.unwrap();
    }
    wire.go_on();
    assert_eq!(tokio::time::timeout(SLACK, watch.notice()).await.unwrap(), Notice::Retry);
    assert!(granted(&store, &request).await && release(&store, &request).await);
}
