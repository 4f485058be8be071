//! Late copies of requests are refused.

use lock_store_sequences::{Class, Enter, Entered, Entry, Epoch, Leave, Left, OrderedStore, Session};

use lock_core::store::{StoreError, Withdrawn};
use tokio::time::timeout;

use super::sessions::leases;
use super::*;
use crate::steps::{Attached, Etcd};
use crate::tests::*;

async fn session(store: &EtcdStore) -> Session {
    store.store().begin(2 * SECOND).await.unwrap().0
}

fn enter(session: Session, prefix: &str, version: i64) -> Enter {
    let owner = OwnerId::new("tester:1");
    let entry = Entry { lock: format!("{prefix}a").into(), class: Class::Lock, owner };
    Enter {
        session,
        entries: [entry].into(),
        epoch: Epoch { slot: 7, version },
        beside: Vec::new(),
        stays: true,
    }
}

/// Enters, under names that the entries keep.
async fn enters(etcd: &Etcd, enter: &Enter) -> Result<Entered, StoreError> {
    enter.entries.iter().for_each(|entry| etcd.remember(enter.session, entry));
    etcd.enter(enter.clone()).await
}

/// Enters, and returns the revision of the first entry.
async fn birth(etcd: &Etcd, enter: &Enter) -> u64 {
    match enters(etcd, enter).await {
        Ok(Entered::All { places, .. }) => places[0].born,
        other => panic!("{other:?}"),
    }
}

fn leave(of: &Enter) -> Leave {
    let entries = of.entries.iter().map(|entry| (entry.clone(), None)).collect();
    Leave { session: of.session, entries, epoch: Some(of.epoch) }
}

#[tokio::test]
async fn a_copy_that_arrives_after_the_withdrawal_is_refused() {
    let (store, prefix) = new_store();
    let etcd = store.store();
    let late = enter(session(&store).await, &prefix, 0);
    // The withdrawal comes first.
    assert!(matches!(etcd.leave(leave(&late)).await, Ok(Left::All { .. })));
    assert_eq!(enters(etcd, &late).await, Ok(Entered::Late(1)));
    assert_eq!(keys(&format!("{prefix}a")), [""; 0]);
    // A copy of the withdrawal does nothing to what came after it.
    let next = enter(late.session, &prefix, 1);
    assert!(matches!(enters(etcd, &next).await, Ok(Entered::All { .. })));
    assert_eq!(etcd.leave(leave(&late)).await, Ok(Left::Late(1)));
    assert_eq!(keys(&format!("{prefix}a")).len(), 1);
    assert!(matches!(etcd.leave(leave(&next)).await, Ok(Left::All { .. })));
    assert_eq!(keys(&format!("{prefix}a")), [""; 0]);
}

#[tokio::test]
async fn nothing_enters_in_a_session_that_has_ended() {
    let (store, prefix) = new_store();
    let etcd = store.store();
    let late = enter(session(&store).await, &prefix, 0);
    SERVER.etcdctl(&["lease", "revoke", &format!("{:x}", late.session.0)]);
    assert_eq!(etcd.beat(late.session, SECOND).await, Ok(None));
    assert_eq!(enters(etcd, &late).await, Ok(Entered::Ended));
    assert_eq!(etcd.leave(leave(&late)).await, Ok(Left::Ended));
    assert_eq!(keys(&prefix), [""; 0]);
}

#[tokio::test]
async fn an_entry_of_another_birth_is_not_deleted() {
    let (store, prefix) = new_store();
    let etcd = store.store();
    let first = enter(session(&store).await, &prefix, 0);
    let born = birth(etcd, &first).await;
    let by_birth = |born| Leave {
        session: first.session,
        entries: vec![(first.entries[0].clone(), Some(born))],
        epoch: None,
    };
    assert_eq!(etcd.leave(by_birth(born - 1)).await, Ok(Left::All(vec![false])));
    assert_eq!(etcd.exist(first.session, vec![(first.entries[0].clone(), born - 1)]).await, Ok(vec![false]));
    assert_eq!(etcd.exist(first.session, vec![(first.entries[0].clone(), born)]).await, Ok(vec![true]));
    assert_eq!(etcd.leave(by_birth(born)).await, Ok(Left::All(vec![true])));
}

#[tokio::test]
async fn nothing_enters_beside_an_entry_that_is_gone() {
    let (store, prefix) = new_store();
    let etcd = store.store();
    let first = enter(session(&store).await, &prefix, 0);
    let beside = vec![(first.entries[0].clone(), birth(etcd, &first).await)];
    let b = Entry { lock: format!("{prefix}b").into(), ..first.entries[0].clone() };
    for entries in [vec![], vec![b]] {
        let rest = Enter { entries: entries.into(), beside: beside.clone(), stays: false, ..first.clone() };
        assert!(matches!(enters(etcd, &rest).await, Ok(Entered::All { .. })));
    }
    assert!(matches!(etcd.leave(leave(&first)).await, Ok(Left::All { .. })));
    for lock in ["b", "c"] {
        let entry = Entry { lock: format!("{prefix}{lock}").into(), ..first.entries[0].clone() };
        for entries in [vec![], vec![entry]] {
            let epoch = Epoch { slot: 7, version: 1 };
            let rest = Enter {
                entries: entries.into(),
                beside: beside.clone(),
                stays: false,
                epoch,
                ..first.clone()
            };
            let answer = enters(etcd, &rest).await;
            assert!(matches!(answer, Ok(Entered::Partly(_))), "{lock}: {answer:?}");
        }
    }
    assert_eq!(keys(&format!("{prefix}c")), [""; 0]);
}

#[tokio::test]
async fn an_entry_moves_only_if_it_is_the_same() {
    let (store, prefix) = new_store();
    let etcd = store.store();
    let first = enter(session(&store).await, &prefix, 0);
    let (entry, born) = (&first.entries[0], birth(etcd, &first).await);
    let [second, third] = [session(&store).await, session(&store).await];
    assert_eq!(etcd.attach(first.session, entry, born - 1, second).await, Ok(false));
    for to in [second, third, third] {
        assert_eq!(etcd.attach(first.session, entry, born, to).await, Ok(true));
    }
    SERVER.etcdctl(&["lease", "revoke", &format!("{:x}", second.0)]);
    assert_eq!(etcd.exist(first.session, vec![(entry.clone(), born)]).await, Ok(vec![true]));
    SERVER.etcdctl(&["lease", "revoke", &format!("{:x}", third.0)]);
    assert_eq!(etcd.exist(first.session, vec![(entry.clone(), born)]).await, Ok(vec![false]));
}

#[tokio::test]
async fn a_late_copy_of_a_move_does_nothing_although_the_session_is_the_first_again() {
    let (store, prefix) = new_store();
    let etcd = store.store();
    let first = enter(session(&store).await, &prefix, 0);
    let (entry, born) = (&first.entries[0], birth(etcd, &first).await);
    let second = session(&store).await;
    assert_eq!(etcd.attach(first.session, entry, born, first.session).await, Ok(true));
    // Sent before.
    let late = etcd.attach_if(first.session, entry, born, second, 1).await;
    assert_eq!(late, Ok(Attached::Version(2)));
    SERVER.etcdctl(&["lease", "revoke", &format!("{:x}", second.0)]);
    assert_eq!(etcd.exist(first.session, vec![(entry.clone(), born)]).await, Ok(vec![true]));
}

#[tokio::test]
async fn a_withdrawal_ends_although_its_session_and_its_epochs_have() {
    let (store, prefix) = new_store();
    let hold = waiting(Kind::Mutex, "a", 2);
    assert!(granted(&store, &hold).await);
    let lease = leases(&prefix).remove(0);
    // The epoch of this owner is known to have ended once.
    let first = waiting(Kind::Mutex, "b", 1);
    drop_in_flight(&store, &first).await;
    store.withdraw(first).await.unwrap();
    let second = waiting(Kind::Mutex, "b", 1);
    drop_in_flight(&store, &second).await;
    SERVER.etcdctl(&["lease", "revoke", &lease]);
    let withdrawn = timeout(SLACK, store.withdraw(second)).await;
    assert_eq!(withdrawn.expect("it goes on for ever"), Ok(Withdrawn::Settled));
}

/// An operator who deletes the epochs stops nobody for good.
#[tokio::test]
async fn requests_go_on_when_their_epoch_was_deleted() {
    let (store, _) = new_store();
    let request = waiting(Kind::Mutex, "a", 1);
    assert!(granted(&store, &request).await);
    assert!(release(&store, &request).await);
    for owner in 2..40 {
        let dropped = waiting(Kind::Mutex, "b", owner);
        drop_in_flight(&store, &dropped).await;
        store.withdraw(dropped).await.unwrap();
    }
    assert_ne!(keys("lock-epochs/"), [""; 0]);
    SERVER.etcdctl(&["del", "--prefix", "lock-epochs/"]);
    for owner in 2..40 {
        let request = waiting(Kind::Mutex, "b", owner + 100);
        assert!(granted(&store, &request).await);
        store.withdraw(request).await.unwrap();
    }
}
