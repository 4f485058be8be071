//! Votes, and the undoing of lost ballots.

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{AcquireRequest, Acquired, LockStore, ScanRequest, StoreErrorKind, Withdrawn};

use super::rig::*;
use crate::QuorumStore;

#[tokio::test(start_paused = true)]
async fn who_is_refused_at_the_gate_asks_nobody_else() {
    let rig = Rig::new(3);
    let (first, second) = (rig.process(), rig.process());
    grant(&first, 1).await;
    assert_eq!(rig.holders("a").await, vec![Some(owner(1)); 3]);
    rig.servers.iter().for_each(|server| _ = server.acquires());
    assert!(is_busy(&second, 2).await);
    let asked: Vec<usize> = rig.servers.iter().map(|server| server.acquires()).collect();
    assert_eq!(asked, [1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_minority_may_be_away_whichever_and_however() {
    for fault in [Fault::Refuses, Fault::Swallows, Fault::Mute, Fault::Slow(SECOND * 5)] {
        for (servers, away) in [(3, vec![0]), (3, vec![1]), (3, vec![2]), (5, vec![0, 1]), (5, vec![0, 3])] {
            let rig = Rig::new(servers);
            let (first, second) = (rig.process(), rig.process());
            grant(&first, 99).await;
            release(&first, 99).await.unwrap();
            rig.fail(&away, fault);
            grant(&first, 1).await;
            assert!(!matches!(acquire(&second, 2).await, Ok(Acquired::Granted(_))), "{fault:?} {away:?}");
            assert_eq!(release(&first, 1).await.unwrap().held, [true], "{fault:?} {away:?}");
            let granted = acquire(&second, 3).await;
            assert!(matches!(granted, Ok(Acquired::Granted(_))), "{fault:?} {away:?}: {granted:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_takes_no_longer_than_its_time_whatever_fails() {
    for fault in [Fault::Swallows, Fault::Mute, Fault::Slow(Duration::from_millis(150)), Fault::Slow(SECOND)]
    {
        for away in [vec![0], vec![0, 1], vec![0, 1, 2], vec![0, 2, 4], vec![0, 1, 2, 3, 4]] {
            let rig = Rig::new(5);
            let process = rig.process();
            grant(&process, 99).await;
            release(&process, 99).await.unwrap();
            rig.fail(&away, fault);
            let began = tokio::time::Instant::now();
            let _ = acquire(&process, 1).await;
            assert!(began.elapsed() <= request("a", 1).timeout, "{fault:?} {away:?} {:?}", began.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_nothing_is_left_behind() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 99).await;
    release(&process, 99).await.unwrap();
    rig.fail(&[1, 2], Fault::Refuses);
    let error = acquire(&process, 1).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("2: refused; 3: refused"), "{error}");
    assert_eq!(rig.holders("a").await, [None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_ballot_is_undone_and_busy() {
    let rig = Rig::new(3);
    let process = rig.process();
    // The rival came through another gate.
    for server in &rig.servers[1..] {
        assert!(matches!(server.store().acquire(request("a", 7)).await.unwrap(), Acquired::Granted(_)));
    }
    let Acquired::Busy(busy) = acquire(&process, 1).await.unwrap() else { panic!("two holders") };
    assert!(busy.remaining.is_some_and(|left| left <= LEASE && left > LEASE / 2), "{busy:?}");
    assert_eq!(rig.holders("a").await, [None, Some(owner(7)), Some(owner(7))]);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_has_reached_the_gate_only_is_waited_for() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 1).await;
    rig.servers[0].store().force_release(key("a")).await.unwrap();
    let rivals = rig.servers[1..].to_vec();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_micros(100)).await;
        for server in rivals {
            server.store().force_release(key("a")).await.unwrap();
        }
    });
    grant(&process, 2).await;
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_granted_is_withdrawn_until_that_is_settled() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 99).await;
    release(&process, 99).await.unwrap();
    rig.fail(&[1, 2], Fault::Mute);
    let request = request("a", 1);
    let error = process.acquire(Arc::clone(&request)).await.unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    rig.fail(&[1, 2], Fault::None);
    let mut waited = Duration::ZERO;
    while let Withdrawn::Pending(wait) = process.withdraw(Arc::clone(&request)).await.unwrap() {
        tokio::time::sleep(wait).await;
        waited += wait;
        assert!(waited < SECOND, "its latest moment is over");
    }
    assert_eq!(rig.holders("a").await, [None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_dead_store_keeps_a_withdrawal_pending_for_a_lease_at_most() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 99).await;
    release(&process, 99).await.unwrap();
    rig.fail(&[1, 2], Fault::Mute);
    let request = request("a", 1);
    process.acquire(Arc::clone(&request)).await.unwrap_err();
    rig.fail(&[1], Fault::None);
    rig.fail(&[2], Fault::Swallows);
    let began = tokio::time::Instant::now();
    while let Withdrawn::Pending(wait) = process.withdraw(Arc::clone(&request)).await.unwrap() {
        tokio::time::sleep(wait).await;
        assert!(began.elapsed() < LEASE + request.timeout * 3);
    }
    assert!(began.elapsed() > LEASE / 2, "it may have been granted there");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_withdrawn_before_it_was_sent_is_refused() {
    let rig = Rig::new(3);
    let process = rig.process();
    let request = request("a", 1);
    assert_eq!(process.withdraw(Arc::clone(&request)).await.unwrap(), Withdrawn::Settled);
    assert_eq!(process.acquire(request).await.unwrap_err().kind(), StoreErrorKind::TooLate);
    assert_eq!(rig.holders("a").await, [None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_withdrawn_meanwhile_sends_no_more() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 99).await;
    release(&process, 99).await.unwrap();
    rig.fail(&[0, 1, 2], Fault::Slow(Duration::from_millis(100)));
    let request = request("a", 1);
    let call = tokio::spawn(process.acquire(Arc::clone(&request)));
    // The gate has the request, the other stores have not.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let withdrawal = process.withdraw(Arc::clone(&request)).await.unwrap();
    assert!(matches!(withdrawal, Withdrawn::Pending(_)));
    assert!(call.await.unwrap().is_err());
    assert_eq!(rig.holders("a").await, [None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_beyond_the_longest_is_refused_and_says_why() {
    let rig = Rig::new(3);
    let process = rig.process();
    let long = AcquireRequest::new(vec![item("a", 1)], MAX_LEASE + SECOND, SECOND);
    let error = process.acquire(Arc::new(long)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported);
    assert!(error.to_string().contains("21s exceeds the maximum of this quorum, 20s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_quorum_is_of_an_odd_number_of_different_stores() {
    let store = || -> Arc<dyn LockStore> { lock_store_memory::MemoryStore::new("q:") };
    let stores = |count: usize| -> Vec<_> { (0..count).map(|_| store()).collect() };
    for (count, hint) in [
        (0, "no stores"),
        (1, "no safer than that store"),
        (2, "use 3"),
        (4, "use 5 or 3"),
        (17, "15 at most"),
    ] {
        let error = QuorumStore::new(stores(count), options()).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unsupported);
        assert!(error.to_string().contains(hint), "{count}: {error}");
    }
    let one = store();
    let twice = vec![Arc::clone(&one), store(), one];
    assert!(QuorumStore::new(twice, options()).unwrap_err().to_string().contains("twice"));
    let quorums = (0..3).map(|_| Rig::new(3).process()).collect();
    assert!(QuorumStore::new(quorums, options()).unwrap_err().to_string().contains("keeps no marker"));
    for count in [3, 5, 15] {
        QuorumStore::new(stores(count), options()).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_of_a_held_key_is_busy_although_one_store_hangs() {
    for fault in [Fault::Swallows, Fault::Mute] {
        // The rival has all stores, or a majority if it came through another gate.
        for held in [vec![0, 1, 2], vec![0, 2]] {
            let rig = Rig::new(3);
            let process = rig.process();
            process.check().await.unwrap();
            for &node in &held {
                rig.servers[node].store().acquire(request("a", 7)).await.unwrap();
            }
            rig.fail(&[0], fault);
            assert!(is_busy(&process, 1).await, "{fault:?} {held:?}");
            rig.fail(&[0], Fault::None);
            tokio::time::sleep(SECOND * 4).await;
            let holders = rig.holders("a").await;
            assert!(holders.iter().all(|holder| *holder != Some(owner(1))), "{fault:?} {holders:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_try_may_have_left_at_a_store_that_hangs_is_taken_back_in_the_background() {
    let rig = Rig::new(3);
    let process = rig.process();
    process.check().await.unwrap();
    for server in &rig.servers[1..] {
        server.store().acquire(request("a", 7)).await.unwrap();
    }
    rig.fail(&[0], Fault::Mute);
    assert!(is_busy(&process, 1).await);
    tokio::time::sleep(SECOND).await;
    rig.fail(&[0], Fault::None);
    tokio::time::sleep(SECOND * 3).await;
    assert_eq!(rig.holders("a").await, [None, Some(owner(7)), Some(owner(7))]);
}

#[tokio::test(start_paused = true)]
async fn locks_are_listed_in_time_although_one_store_hangs() {
    for away in 0..3 {
        let rig = Rig::new(3);
        let process = rig.process();
        for number in 0..8 {
            let granted = process.acquire(request(&format!("k{number}"), number)).await.unwrap();
            assert!(matches!(granted, Acquired::Granted(_)));
        }
        rig.fail(&[away], Fault::Swallows);
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = ScanRequest { prefix: String::new(), cursor, timeout: SECOND * 2 };
            let began = tokio::time::Instant::now();
            let page = process.scan(page).await.unwrap();
            assert!(began.elapsed() <= SECOND * 2, "{away}: {:?}", began.elapsed());
            found.extend(page.locks.into_iter().map(|(key, _)| key));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        found.sort();
        found.dedup();
        assert_eq!(found.len(), 8, "{away}: {found:?}");
    }
}
