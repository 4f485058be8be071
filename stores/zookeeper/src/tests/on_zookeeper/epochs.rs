//! Late copies of requests are refused, and what they left is deleted.

use std::sync::atomic::{AtomicUsize, Ordering};

use lock_core::store::{StoreErrorKind, Withdrawn};
use lock_store_sequences::{Class, Enter, Entered, Entry, Epoch, Leave, Left};
use lock_test_servers::wire::{Fate, Wire};
use lock_test_servers::zookeeper::{MULTI, operations};
use tokio::task::JoinSet;

use super::*;
use crate::names;
use crate::steps::ZooKeeper;

fn entry(root: &str, name: &str, owner: u32) -> Entry {
    let owner = OwnerId::new(format!("tester:{owner}"));
    Entry { lock: format!("{root}/{name}").into(), class: Class::Lock, owner }
}

fn enter(session: Session, root: &str, version: i64) -> Enter {
    Enter {
        session,
        entries: [entry(root, "a", 1)].into(),
        epoch: Epoch { slot: 7, version },
        beside: Vec::new(),
        stays: true,
    }
}

/// Enters, under names that the entries keep.
async fn enters(zookeeper: &ZooKeeper, enter: &Enter) -> Result<Entered, StoreError> {
    enter.entries.iter().for_each(|entry| zookeeper.remember(enter.session, entry));
    zookeeper.enter(enter.clone()).await
}

fn leave(of: &Enter) -> Leave {
    let entries = of.entries.iter().map(|entry| (entry.clone(), None)).collect();
    Leave { session: of.session, entries, epoch: Some(of.epoch) }
}

#[tokio::test]
async fn a_copy_that_arrives_after_the_withdrawal_is_refused() {
    let (store, root) = new_store();
    let (zookeeper, directory) = (store.store(), format!("{root}/a"));
    let late = enter(session(&store).await, &root, 0);
    // The withdrawal comes first.
    assert!(matches!(zookeeper.leave(leave(&late)).await, Ok(Left::All { .. })));
    assert_eq!(enters(zookeeper, &late).await, Ok(Entered::Late(1)));
    assert_eq!(nodes(&directory).await, [""; 0]);
    // A copy of the withdrawal does nothing to what came after it.
    let next = enter(late.session, &root, 1);
    assert!(matches!(enters(zookeeper, &next).await, Ok(Entered::All { .. })));
    assert_eq!(zookeeper.leave(leave(&late)).await, Ok(Left::Late(1)));
    assert_eq!(nodes(&directory).await.len(), 1);
    assert_eq!(zookeeper.leave(leave(&next)).await, Ok(Left::All(vec![true])));
    assert_eq!(nodes(&directory).await, [""; 0]);
}

#[tokio::test]
async fn nothing_enters_in_a_session_that_has_ended() {
    let (store, root) = new_store();
    let zookeeper = store.store();
    let late = enter(session(&store).await, &root, 0);
    SERVER.end_session(late.session.0);
    // The connection breaks first.
    while zookeeper.beat(late.session, Duration::ZERO).await != Ok(None) {
        tokio::time::sleep(SECOND / 10).await;
    }
    assert_eq!(enters(zookeeper, &late).await, Ok(Entered::Ended));
    assert_eq!(zookeeper.leave(leave(&late)).await, Ok(Left::Ended));
    assert_ne!(session(&store).await, late.session);
    assert_eq!(enters(zookeeper, &late).await, Ok(Entered::Ended));
    assert_eq!(nodes(&format!("{root}/a")).await, [""; 0]);
}

/// A second request of an owner finds the entry of the first, whose answer was lost.
#[tokio::test]
async fn an_entry_whose_answer_was_lost_is_found_and_not_made_twice() {
    let (store, root) = new_store();
    let zookeeper = store.store();
    let session = session(&store).await;
    let (mut version, mut were_there) = (0, 0);
    for _ in 0..40 {
        let dropped = enter(session, &root, version);
        zookeeper.remember(session, &dropped.entries[0]);
        tokio::select! {
            biased;
            answer = zookeeper.enter(dropped.clone()) => drop(answer),
            // It is sent by then, or not.
            () = tokio::time::sleep(SECOND / 1000) => {}
        }
        let entered = loop {
            match zookeeper.enter(enter(session, &root, version)).await.unwrap() {
                Entered::Late(next) => {
                    assert!(next > version);
                    version = next;
                    were_there += 1;
                }
                entered => break entered,
            }
        };
        assert!(matches!(entered, Entered::All { .. }), "{entered:?}");
        assert_eq!(nodes(&format!("{root}/a")).await.len(), 1);
        let left = Leave { epoch: None, ..leave(&dropped) };
        assert_eq!(zookeeper.leave(left).await, Ok(Left::All(vec![true])));
        zookeeper.forget(session, &dropped.entries[0]);
    }
    assert!(were_there > 0, "every answer was heard");
}

/// Nobody could withdraw it: the session itself deletes what it has left.
#[tokio::test]
async fn an_entry_that_was_forgotten_is_deleted() {
    let (store, root) = new_store();
    let zookeeper = store.store();
    let session = session(&store).await;
    let [kept, forgotten] =
        [1, 2].map(|owner| Enter { entries: [entry(&root, "a", owner)].into(), ..enter(session, &root, 0) });
    for enter in [&kept, &forgotten] {
        assert!(matches!(enters(zookeeper, enter).await, Ok(Entered::All { .. })));
    }
    zookeeper.forget(session, &forgotten.entries[0]);
    let tag = names::tag(&kept.entries[0], session);
    for _ in 0..300 {
        let names = nodes(&format!("{root}/a")).await;
        assert!(names[0].starts_with(&tag) || names[1].starts_with(&tag), "{names:?}");
        if names.len() == 1 {
            return;
        }
        tokio::time::sleep(SECOND / 10).await;
    }
    panic!("it was not deleted");
}

#[tokio::test]
async fn an_entry_of_another_birth_is_not_deleted() {
    let (store, root) = new_store();
    let zookeeper = store.store();
    let first = enter(session(&store).await, &root, 0);
    let Ok(Entered::All { places, .. }) = enters(zookeeper, &first).await else { panic!("not entered") };
    let born = places[0].born;
    let entry = &first.entries[0];
    let of = |born| vec![(entry.clone(), born)];
    let by_birth =
        |born| Leave { session: first.session, entries: vec![(entry.clone(), Some(born))], epoch: None };
    assert_eq!(zookeeper.leave(by_birth(born - 1)).await, Ok(Left::All(vec![false])));
    assert_eq!(zookeeper.exist(first.session, of(born - 1)).await, Ok(vec![false]));
    assert_eq!(zookeeper.exist(first.session, of(born)).await, Ok(vec![true]));
    assert_eq!(zookeeper.leave(by_birth(born)).await, Ok(Left::All(vec![true])));
}

#[tokio::test]
async fn nothing_enters_beside_an_entry_that_is_gone() {
    let (store, root) = new_store();
    let zookeeper = store.store();
    let first = enter(session(&store).await, &root, 0);
    let Ok(Entered::All { places, .. }) = enters(zookeeper, &first).await else { panic!("not entered") };
    let beside = vec![(first.entries[0].clone(), places[0].born)];
    let rest = |name: &str, version| Enter {
        entries: [entry(&root, name, 1)].into(),
        beside: beside.clone(),
        stays: false,
        epoch: Epoch { slot: 7, version },
        ..first.clone()
    };
    assert!(matches!(enters(zookeeper, &rest("b", 0)).await, Ok(Entered::All { .. })));
    // Somebody else deletes it.
    delete_all(&format!("{root}/a")).await;
    assert_eq!(enters(zookeeper, &rest("c", 0)).await, Ok(Entered::Partly(vec![false])));
    assert!(matches!(zookeeper.leave(leave(&first)).await, Ok(Left::All { .. })));
    assert_eq!(enters(zookeeper, &rest("c", 1)).await, Ok(Entered::Partly(vec![false])));
    assert_eq!(nodes(&format!("{root}/c")).await, [""; 0]);
}

/// An operator who deletes the nodes of sessions ends them. The managers begin others.
#[tokio::test]
async fn requests_go_on_when_their_epochs_were_deleted() {
    let (store, root) = new_store();
    for round in 0..3 {
        let request = waiting(Kind::Mutex, "a", round);
        assert!(granted(&store, &request).await);
        delete_all(&format!("{root}/{}", names::SESSIONS)).await;
        let other = waiting(Kind::Mutex, "b", round);
        let asks = async {
            loop {
                match ask(&store, &other).await {
                    // The old session ends in the midst of the call.
                    Err(error) if error.kind() == StoreErrorKind::NotReady => {}
                    answer => break answer.unwrap(),
                }
            }
        };
        let answer = tokio::time::timeout(SLACK, asks).await.unwrap();
        assert!(answer.is_some() && release(&store, &other).await);
        assert_eq!(renew(&store, &request, SECOND).await, [Renewed::Gone]);
    }
}

#[tokio::test]
async fn calls_that_are_dropped_leave_nothing() {
    let (store, root) = new_store();
    for owner in 2..60 {
        let dropped = waiting(Kind::Mutex, "b", owner);
        tokio::select! {
            biased;
            answer = store.acquire(Arc::clone(&dropped)) => drop(answer),
            () = tokio::time::sleep(Duration::from_micros(50 * u64::from(owner))) => {}
        }
        store.withdraw(dropped).await.unwrap();
        assert_eq!(nodes(&format!("{root}/b")).await, [""; 0]);
    }
}

/// They end one epoch after the other. At once, all but one would be too late, and so on.
#[tokio::test]
async fn many_withdrawals_send_one_request_each() {
    const MANY: usize = 100;
    let wire = Wire::to(SERVER.addr());
    let store = store(&format!("zookeeper://{}{}?{OPTIONS}", wire.addr(), new_root()), "");
    assert!(granted(&store, &waiting(Kind::Mutex, "first", 1)).await);
    // All are in the slot of one owner.
    let requests: Vec<_> = (0..MANY).map(|n| waiting(Kind::Mutex, &format!("k{n}"), 1)).collect();
    for request in &requests {
        drop_in_flight(&store, request).await;
    }
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    wire.set(move |request| {
        let changes = operations(request).into_iter().filter(|operation| *operation == MULTI).count();
        count.fetch_add(changes, Ordering::Relaxed);
        Fate::Passes
    });
    let mut withdrawals = JoinSet::new();
    for request in requests {
        withdrawals.spawn(store.withdraw(request));
    }
    for withdrawn in withdrawals.join_all().await {
        assert_eq!(withdrawn, Ok(Withdrawn::Settled));
    }
    let sent = sent.load(Ordering::Relaxed);
    assert!((MANY..MANY * 3).contains(&sent), "{sent} requests");
}
