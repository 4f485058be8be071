//! Names, and keys of others.

use lock_core::store::{ScanRequest, StoreErrorKind};
use lock_store_sequences::{Class, Enter, Entry, Epoch, OrderedStore};

use super::*;
use crate::tests::*;

async fn error_kind(store: &EtcdStore, request: &Arc<AcquireRequest>) -> (StoreErrorKind, String) {
    let error = ask(store, request).await.unwrap_err();
    (error.kind(), error.to_string())
}

#[tokio::test]
async fn names_that_would_be_taken_for_something_else_are_refused() {
    let store = store(&SERVER.url(), "");
    for name in ["a/read", "a/write", "lock-epochs", "lock-epochs/a"] {
        for request in [waiting(Kind::Mutex, name, 1), trying(Kind::Read, name, 1, SECOND)] {
            assert_eq!(error_kind(&store, &request).await.0, StoreErrorKind::Unsupported, "{name}");
        }
    }
    for name in ["read", "write", "lock-epochs2", "a/reads"] {
        let request = trying(Kind::Mutex, name, 1, SECOND);
        assert!(granted(&store, &request).await, "{name}");
        assert!(release(&store, &request).await);
    }
}

#[tokio::test]
async fn a_key_without_a_lease_in_a_queue_is_named() {
    let (store, prefix) = new_store();
    let foreign = format!("{prefix}a/somebody's");
    SERVER.etcdctl(&["put", &foreign, "x"]);
    for kind in [Kind::Mutex, Kind::Read, Kind::Write] {
        for request in [waiting(kind, "a", 1), trying(kind, "a", 2, SECOND)] {
            let (found, text) = error_kind(&store, &request).await;
            assert_eq!(found, StoreErrorKind::ForeignData, "{text}");
            assert!(text.contains(&foreign), "{text}");
        }
    }
    assert_eq!(keys(&prefix), [&*foreign], "nothing is left behind");
    // No call of an operator takes it for a lock.
    let error = store.force_release(LockKey::new("a").unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ForeignData);
    let all = ScanRequest { prefix: String::new(), cursor: None, timeout: SLACK };
    assert!(store.scan(all).await.unwrap().locks.is_empty());
    assert_eq!(keys(&prefix), [&*foreign]);
    SERVER.etcdctl(&["del", &foreign]);
    assert!(granted(&store, &waiting(Kind::Mutex, "a", 3)).await);
}

#[tokio::test]
async fn a_lock_waits_for_those_whose_names_begin_with_its_own() {
    let (store, _) = new_store();
    let (outer, inner) = (waiting(Kind::Mutex, "a", 1), waiting(Kind::Mutex, "a/b", 2));
    assert!(granted(&store, &inner).await);
    let mut watch = queue(&store, &outer).await;
    assert!(release(&store, &inner).await);
    hears_grant(&mut watch).await;
    // Not the other way round, as with etcd's own clients.
    assert!(granted(&store, &inner).await);
}

#[tokio::test]
async fn a_scan_goes_through_queues_that_are_longer_than_a_page() {
    let (store, prefix) = new_store();
    assert!(granted(&store, &waiting(Kind::Fair, "a", 1)).await);
    assert!(granted(&store, &waiting(Kind::Fair, "b", 1)).await);
    // Entries of others.
    let etcd = store.store();
    let (session, _) = etcd.begin(60 * SECOND).await.unwrap();
    let owners: Vec<_> = (2..=700).map(|owner| item(Kind::Fair, "a", owner).owner).collect();
    for owner in owners {
        let entry = Entry { lock: format!("{prefix}a").into(), class: Class::Lock, owner };
        let epoch = Epoch { slot: 0, version: 0 };
        etcd.enter(Enter { session, entries: [entry].into(), epoch, beside: Vec::new(), stays: true })
            .await
            .unwrap();
    }
    assert!(granted(&store, &waiting(Kind::Fair, "c", 1)).await);
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let request = ScanRequest { prefix: String::new(), cursor, timeout: SLACK };
        let page = store.scan(request).await.unwrap();
        found.extend(page.locks);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let names: Vec<_> = found.iter().map(|(key, status)| (key.as_str(), status.waiters)).collect();
    assert_eq!(names, [("a", 699), ("b", 0), ("c", 0)]);
    assert!(found.iter().all(|(_, status)| status.holders.len() == 1));
}
