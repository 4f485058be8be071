//! Names, and keys of others.

use lock_core::store::{ScanRequest, StoreErrorKind};
use lock_store_sequences::{Class, Enter, Entered, Entry, Epoch, Leave, Left, OrderedStore};

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
        etcd.remember(session, &entry);
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

/// etcd's index keeps deleted keys until the next compaction, so a new name for each grant would
/// make a lock slower and slower.
#[tokio::test]
async fn names_are_used_again() {
    let (store, prefix) = new_store();
    let mut names = Vec::new();
    for owner in 0..50 {
        let request = if owner % 2 == 0 {
            waiting(Kind::Mutex, "a", owner)
        } else {
            trying(Kind::Mutex, "a", owner, 60 * SECOND)
        };
        assert!(granted(&store, &request).await);
        let refused = trying(Kind::Mutex, "a", 1000 + owner, 60 * SECOND);
        assert!(!granted(&store, &refused).await);
        names.extend(keys(&prefix));
        assert!(release(&store, &request).await);
    }
    names.sort_unstable();
    names.dedup();
    // The request of a hold may live on for a moment.
    assert!(names.len() <= 3, "{names:?}");
    let number = names[0].rsplit('-').next().unwrap();
    assert!(number.parse::<u32>().is_ok_and(|number| number < 3), "{names:?}");
}

#[tokio::test]
async fn the_value_of_an_entry_is_its_owner() {
    let (store, prefix) = new_store();
    let [holder, waiter] = [waiting(Kind::Write, "a", 1), waiting(Kind::Read, "a", 2)];
    assert!(granted(&store, &holder).await && !granted(&store, &waiter).await);
    let all = SERVER.etcdctl(&["get", "--prefix", "--print-value-only", &prefix]);
    let mut values: Vec<_> = all.lines().filter(|line| !line.is_empty()).collect();
    values.sort_unstable();
    assert_eq!(values, ["tester:1", "tester:2"]);
    let status = store.status(LockKey::new("a").unwrap()).await.unwrap();
    assert_eq!(status.holders, [(OwnerId::new("tester:1"), 1)]);
}

fn entry_of(prefix: &str, owner: u32) -> Entry {
    let owner = OwnerId::new(format!("tester:{owner}"));
    Entry { lock: format!("{prefix}a").into(), class: Class::Lock, owner }
}

/// A request was given up and could not be withdrawn. A copy of it has come late, under the name
/// that another owner has now.
#[tokio::test]
async fn a_name_under_which_somebody_else_has_entered_late_is_left_alone() {
    let (store, prefix) = new_store();
    let etcd = store.store();
    let session = etcd.begin(60 * SECOND).await.unwrap().0;
    let [one, two] = [1, 2].map(|owner| entry_of(&prefix, owner));
    let enter = |entry: &Entry, stays| Enter {
        session,
        entries: [entry.clone()].into(),
        epoch: Epoch { slot: 7, version: 0 },
        beside: Vec::new(),
        stays,
    };
    etcd.remember(session, &one);
    assert!(matches!(etcd.enter(enter(&one, true)).await, Ok(Entered::All { .. })));
    etcd.forget(session, &one);
    // The same number, and the entry of the other owner is under it.
    etcd.remember(session, &two);
    assert!(matches!(etcd.enter(enter(&two, false)).await, Ok(Entered::Busy { .. })));
    let Ok(Entered::All { places, .. }) = etcd.enter(enter(&two, true)).await else { panic!("it waits") };
    assert!(places[0].before.is_some());
    assert_eq!(keys(&prefix).len(), 2);
    // Only what is its own is deleted, under every name that it has had.
    let leave = |entry: &Entry, epoch| Leave { session, entries: vec![(entry.clone(), None)], epoch };
    let epoch = Some(Epoch { slot: 7, version: 0 });
    assert_eq!(etcd.leave(leave(&two, epoch)).await, Ok(Left::All(vec![true])));
    assert_eq!(keys(&prefix).len(), 1);
    assert_eq!(etcd.leave(leave(&two, None)).await, Ok(Left::All(vec![false])));
    assert_eq!(keys(&prefix).len(), 1);
    // Nobody knows the name of the first one any more. It ends with its session.
    assert_eq!(etcd.leave(leave(&one, None)).await, Ok(Left::All(vec![false])));
    SERVER.etcdctl(&["lease", "revoke", &format!("{:x}", session.0)]);
    assert_eq!(keys(&prefix), [""; 0]);
}

/// A withdrawal runs beside an acquire of the same request, which takes another name meanwhile.
#[tokio::test]
async fn a_withdrawal_deletes_what_has_entered_under_a_later_name() {
    let (store, prefix) = new_store();
    let etcd = store.store();
    let session = etcd.begin(60 * SECOND).await.unwrap().0;
    let [one, two] = [1, 2].map(|owner| entry_of(&prefix, owner));
    let epoch = Epoch { slot: 7, version: 0 };
    let enter = |entry: &Entry| Enter {
        session,
        entries: [entry.clone()].into(),
        epoch,
        beside: Vec::new(),
        stays: true,
    };
    for round in 0..30 {
        etcd.remember(session, &one);
        etcd.enter(Enter { epoch: Epoch { slot: 8, version: 0 }, ..enter(&one) }).await.unwrap();
        etcd.forget(session, &one);
        etcd.remember(session, &two);
        let epoch = Epoch { slot: 7, version: round };
        let leave = Leave { session, entries: vec![(two.clone(), None)], epoch: Some(epoch) };
        let (entered, left) = tokio::join!(etcd.enter(Enter { epoch, ..enter(&two) }), etcd.leave(leave));
        assert!(matches!(left, Ok(Left::All(_))), "{left:?}");
        assert!(
            matches!(entered, Ok(Entered::All { .. } | Entered::Late(_) | Entered::Partly(_))),
            "{entered:?}"
        );
        assert_eq!(keys(&prefix).len(), 1, "that of the first one: {entered:?}");
        SERVER.etcdctl(&["del", "--prefix", &prefix]);
        etcd.forget(session, &two);
    }
}
