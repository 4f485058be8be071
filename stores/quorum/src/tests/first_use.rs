//! Stores that were started without data: new ones, and those that have lost it.

use lock_core::store::{Acquired, StoreErrorKind};

use super::rig::*;

#[tokio::test(start_paused = true)]
async fn new_stores_are_believed_at_once() {
    let rig = Rig::new(3);
    grant(&rig.process(), 1).await;
    let rig = Rig::new(3);
    rig.process().check().await.unwrap();
    rig.fail(&[0], Fault::Refuses);
    grant(&rig.process(), 1).await;
}

#[tokio::test(start_paused = true)]
async fn processes_that_start_together_agree_that_the_stores_are_new() {
    let rig = Rig::new(5);
    rig.fail(&[0, 1, 2, 3, 4], Fault::Slow(SECOND / 100));
    let mut starts = tokio::task::JoinSet::new();
    for number in 0..8_u32 {
        let process = rig.process();
        starts.spawn(async move {
            tokio::time::sleep(SECOND / 200 * number).await;
            acquire(&process, number).await
        });
    }
    let granted = starts.join_all().await.into_iter().filter(|got| matches!(got, Ok(Acquired::Granted(_))));
    assert_eq!(granted.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn stores_are_not_taken_for_new_while_one_of_them_is_away() {
    let rig = Rig::new(3);
    rig.fail(&[2], Fault::Refuses);
    let error = acquire(&rig.process(), 1).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotReady, "{error}");
    assert!(error.to_string().contains("may have forgotten locks"), "{error}");
    tokio::time::sleep(MAX_LEASE + SECOND).await;
    grant(&rig.process(), 1).await;
}

/// Lets the first process hold a majority. One of its stores is restarted without data, the other
/// is down.
async fn a_restart_while_held(pretend: bool) -> (Rig, bool) {
    let rig = Rig::new(3);
    let (first, second) = (rig.process(), rig.process());
    assert!(matches!(acquire(&second, 99).await, Ok(Acquired::Granted(_))));
    release(&second, 99).await.unwrap();
    rig.fail(&[2], Fault::Refuses);
    let sent = tokio::time::Instant::now();
    grant(&first, 1).await;
    if pretend {
        rig.servers[1].wipe_and_pretend().await;
    } else {
        rig.servers[1].wipe();
    }
    rig.fail(&[2], Fault::None);
    rig.fail(&[0], Fault::Refuses);
    let got = acquire(&second, 2).await;
    assert!(tokio::time::Instant::now() < valid_until(sent, LEASE), "the first still holds it");
    (rig, matches!(got, Ok(Acquired::Granted(_))))
}

#[tokio::test(start_paused = true)]
async fn a_store_that_lost_its_data_has_no_vote_until_every_lease_is_over() {
    let (rig, granted) = a_restart_while_held(false).await;
    assert!(!granted);
    let second = rig.process();
    tokio::time::sleep(MAX_LEASE - SECOND * 2).await;
    assert_eq!(acquire(&second, 3).await.unwrap_err().kind(), StoreErrorKind::NotReady);
    assert_eq!(rig.holders("a").await[1..], [None, None], "what does not count is undone");
    tokio::time::sleep(SECOND * 4).await;
    grant(&second, 4).await;
}

/// Shows that the test before can detect two holders.
#[tokio::test(start_paused = true)]
async fn a_store_that_lies_about_its_data_makes_two_holders() {
    let (_, granted) = a_restart_while_held(true).await;
    assert!(granted);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_loses_its_data_between_grant_and_vote_is_noticed() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 99).await;
    release(&process, 99).await.unwrap();
    rig.fail(&[2], Fault::Refuses);
    rig.fail(&[1], Fault::Slow(SECOND / 10));
    let call = tokio::spawn(async move { acquire(&process, 1).await });
    // The grant has arrived, the check of the marker is on its way.
    tokio::time::sleep(SECOND * 3 / 20).await;
    assert_eq!(rig.holders("a").await[1], Some(owner(1)));
    rig.servers[1].wipe();
    assert_eq!(call.await.unwrap().unwrap_err().kind(), StoreErrorKind::NotReady);
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_clock_was_set_back_has_a_vote_again_after_the_longest_lease() {
    let rig = Rig::new(3);
    let process = rig.process();
    process.check().await.unwrap();
    // Marked by a clock that was an hour ahead.
    rig.servers[0].wipe();
    rig.servers[0].store().mark_ahead(SECOND * 3600);
    rig.fail(&[1], Fault::Refuses);
    assert_eq!(acquire(&process, 1).await.unwrap_err().kind(), StoreErrorKind::NotReady);
    tokio::time::sleep(MAX_LEASE + SECOND).await;
    grant(&process, 2).await;
}
