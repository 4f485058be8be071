//! Sessions that end, and holds that are lost with them.

use std::time::Instant;

use lock_test_servers::wire::{Fate, Wire};

use super::*;

#[tokio::test]
async fn a_session_that_ends_takes_its_holds_and_waiters_and_the_next_one_begins() {
    let (store, root) = new_store();
    let (holder, waiter) = (waiting(Kind::Mutex, "a", 1), waiting(Kind::Mutex, "a", 2));
    assert!(granted(&store, &holder).await);
    let mut watch = queue(&store, &waiter).await;
    SERVER.end_session(session(&store).await.0);
    // The waiter's entry is gone as well. It asks again.
    assert_eq!(tokio::time::timeout(SLACK, watch.notice()).await.unwrap(), Notice::Retry);
    assert_eq!(renew(&store, &holder, 60 * SECOND).await, [Renewed::Gone]);
    assert!(granted(&store, &waiter).await);
    assert!(!release(&store, &holder).await);
    assert!(release(&store, &waiter).await);
    assert_eq!(nodes(&format!("{root}/a")).await, [""; 0]);
}

/// No call lasts for as long as the handshake takes, as with TLS on a busy machine.
#[tokio::test]
async fn a_session_begins_although_each_call_gives_up() {
    let wire = Wire::to(SERVER.addr());
    wire.set(|request| {
        // The request for a session. Others begin with a number.
        if request.get(4..8) == Some(&[0; 4]) {
            std::thread::sleep(3 * SECOND);
        }
        Fate::Passes
    });
    let store = store(&format!("zookeeper://{}{}?timeout=40s&tick=200ms", wire.addr(), new_root()), "");
    let begins = async {
        // Heartbeats have to make it certain for so long: its beginning was too long ago.
        let is_certain = async || {
            let (store, lease) = (store.store(), 37 * SECOND);
            let (session, _) = store.begin(SECOND).await.ok()?;
            store.beat(session, lease).await.ok()?.filter(|left| *left >= lease)
        };
        while !matches!(tokio::time::timeout(SECOND / 4, is_certain()).await, Ok(Some(_))) {}
    };
    tokio::time::timeout(SLACK, begins).await.expect("no session begins");
}

/// A hold ends at the server when its handle is gone: the client closes its session.
#[tokio::test]
async fn a_hold_ends_with_its_handle() {
    let (store, root) = new_store();
    let request = trying(Kind::Mutex, "a", 1, 60 * SECOND);
    assert!(granted(&store, &request).await);
    let other = crate::tests::store(&url(&root), "");
    let mut watch = queue(&other, &waiting(Kind::Mutex, "a", 2)).await;
    drop(store);
    hears_grant(&mut watch).await;
}

#[tokio::test]
async fn heartbeats_keep_a_session_certain_to_live() {
    let root = new_root();
    let url = format!("{}{root}?timeout=4s&tick=200ms", SERVER.url());
    let store = store(&url, "");
    let longest = store.abilities().longest_lease.unwrap();
    assert!(longest > 3 * SECOND && longest < 4 * SECOND, "{longest:?}");
    let hold = trying(Kind::Mutex, "a", 1, longest);
    assert!(granted(&store, &hold).await);
    let begun = Instant::now();
    while begun.elapsed() < 8 * SECOND {
        tokio::time::sleep(SECOND).await;
        assert_eq!(renew(&store, &hold, longest).await, [Renewed::Held]);
    }
    assert_eq!(nodes(&format!("{root}/a")).await.len(), 1);
    assert!(release(&store, &hold).await);
}

/// The server grants what it may, and that is what counts.
#[tokio::test]
async fn a_lease_that_the_server_lets_no_session_live_for_is_refused() {
    let url = format!("{}{}?timeout=2000s&tick=200ms", SERVER.url(), new_root());
    let store = store(&url, "");
    let error = ask(&store, &trying(Kind::Mutex, "a", 1, 1500 * SECOND)).await.unwrap_err();
    assert!(error.to_string().contains("too short for a lease of 1500s"), "{error}");
    assert!(granted(&store, &trying(Kind::Mutex, "a", 1, 600 * SECOND)).await);
}

#[tokio::test]
async fn a_session_that_nobody_has_used_for_long_is_replaced_and_not_waited_for() {
    let url = format!("{}{}?timeout=2s&tick=200ms", SERVER.url(), new_root());
    let store = store(&url, "");
    let mut sessions = Vec::new();
    for owner in 1..=2 {
        let request = trying(Kind::Mutex, "a", owner, SECOND);
        assert!(granted(&store, &request).await && release(&store, &request).await);
        sessions.push(session(&store).await);
        drop(request);
        // Its heartbeats end after two seconds, and a second later it is certain for no lease.
        tokio::time::sleep(6 * SECOND).await;
    }
    assert_ne!(sessions[0], sessions[1]);
}

#[tokio::test]
async fn a_lingering_release_keeps_others_out_for_that_long() {
    let (store, _) = new_store();
    let request = trying(Kind::Mutex, "a", 1, 600 * SECOND);
    assert!(granted(&store, &request).await);
    let mut watch = queue(&store, &waiting(Kind::Mutex, "a", 2)).await;
    let (items, linger) = (request.items.clone(), SECOND);
    let released = Instant::now();
    let release = ReleaseRequest { items, linger, then: None, own_watch: None, timeout: SLACK };
    assert_eq!(*store.release(Arc::new(release)).await.unwrap().held, [true]);
    hears_grant(&mut watch).await;
    assert!(released.elapsed() >= SECOND);
}

/// An operator deletes the entry, or Curator's side of a downgrade does.
#[tokio::test]
async fn a_renewed_hold_that_is_deleted_is_told_without_another_renewal() {
    let (store, root) = new_store();
    let mut lost = store.lost().expect("it looks after holds");
    let hold = trying(Kind::Mutex, "lost", 1, 60 * SECOND);
    for _ in 0..20 {
        assert!(granted(&store, &hold).await);
        assert_eq!(renew(&store, &hold, 60 * SECOND).await, [Renewed::Held]);
        // Nothing tells when its watch has begun. If that is too late, it is tried again.
        tokio::time::sleep(SECOND / 2).await;
        delete_all(&format!("{root}/lost")).await;
        let told = tokio::time::timeout(3 * SECOND, &mut lost).await;
        assert_eq!(renew(&store, &hold, 60 * SECOND).await, [Renewed::Gone]);
        if let Ok(told) = told {
            assert_eq!(told, [item(Kind::Mutex, "lost", 1)]);
            return;
        }
    }
    panic!("nothing was told")
}

#[tokio::test]
async fn holds_that_are_given_back_are_not_told_as_lost() {
    let (store, _) = new_store();
    let mut lost = store.lost().unwrap();
    give_back_renewed_holds(&store).await;
    assert!(tokio::time::timeout(SECOND, &mut lost).await.is_err());
}

/// Long before the next renewal.
#[tokio::test]
async fn a_renewed_hold_whose_session_ends_is_told_without_another_renewal() {
    let (store, _) = new_store();
    for round in 0..3 {
        let mut lost = store.lost().unwrap();
        let hold = trying(Kind::Mutex, "lost", round, 600 * SECOND);
        assert!(granted(&store, &hold).await);
        assert_eq!(renew(&store, &hold, 600 * SECOND).await, [Renewed::Held]);
        // Its watch begins.
        tokio::time::sleep(SECOND / 2).await;
        SERVER.end_session(session(&store).await.0);
        let told = tokio::time::timeout(SLACK, &mut lost).await.expect("nothing was told");
        assert_eq!(told, [item(Kind::Mutex, "lost", round)]);
        assert_eq!(renew(&store, &hold, 600 * SECOND).await, [Renewed::Gone]);
    }
}
