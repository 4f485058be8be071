//! Release.

use std::sync::Arc;

use lock_core::store::{LockStore, ReleaseRequest};

use super::rig::*;

#[tokio::test(start_paused = true)]
async fn a_release_answers_when_a_majority_has() {
    let rig = Rig::new(3);
    let process = rig.process();
    for fault in [Fault::Refuses, Fault::Swallows, Fault::Mute] {
        grant(&process, 1).await;
        rig.fail(&[1], fault);
        let began = tokio::time::Instant::now();
        assert_eq!(release(&process, 1).await.unwrap().held, [true]);
        assert!(began.elapsed() < SECOND / 100, "{fault:?}");
        rig.fail(&[1], Fault::None);
        tokio::time::sleep(SECOND * 2).await;
        // A store that was away for only a moment hears of it later.
        assert_eq!(rig.holders("a").await, [None, None, None], "{fault:?}");
    }
}

/// The gate refuses the next tries until it has heard of the release.
#[tokio::test(start_paused = true)]
async fn a_release_waits_a_moment_for_the_gate() {
    let rig = Rig::new(3);
    let process = rig.process();
    for (fault, waits) in [
        (Fault::Slow(SECOND / 50), true),
        (Fault::Swallows, false),
        (Fault::Mute, false),
        (Fault::Refuses, false),
    ] {
        grant(&process, 1).await;
        rig.fail(&[0], fault);
        let began = tokio::time::Instant::now();
        assert_eq!(release(&process, 1).await.unwrap().held, [true]);
        assert!(began.elapsed() < SECOND / 10, "{fault:?}");
        rig.fail(&[0], Fault::None);
        if waits {
            assert_eq!(rig.holders("a").await[0], None, "{fault:?}");
        }
        tokio::time::sleep(SECOND * 2).await;
        assert_eq!(rig.holders("a").await, [None, None, None], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_reaches_a_minority_is_an_error_and_can_be_repeated() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 1).await;
    rig.fail(&[0, 1], Fault::Mute);
    let error = release(&process, 1).await.unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    rig.fail(&[0, 1], Fault::None);
    release(&process, 1).await.unwrap();
    assert_eq!(rig.holders("a").await, [None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_a_majority_has_lost_was_not_held() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 1).await;
    rig.servers[0].store().force_release(key("a")).await.unwrap();
    assert_eq!(release(&process, 1).await.unwrap().held, [true]);
    grant(&process, 2).await;
    for server in &rig.servers[..2] {
        server.store().force_release(key("a")).await.unwrap();
    }
    assert_eq!(release(&process, 2).await.unwrap().held, [false]);
    tokio::time::sleep(SECOND).await;
    assert_eq!(rig.holders("a").await, [None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_vote_that_comes_after_the_release_is_taken_back() {
    for fault in [Fault::Mute, Fault::Slow(SECOND / 5), Fault::Slow(SECOND / 4)] {
        for node in 0..3 {
            let rig = Rig::new(3);
            let process = rig.process();
            grant(&process, 99).await;
            release(&process, 99).await.unwrap();
            rig.fail(&[node], fault);
            grant(&process, 1).await;
            release(&process, 1).await.unwrap();
            rig.fail(&[node], Fault::None);
            tokio::time::sleep(SECOND * 5).await;
            assert_eq!(rig.holders("a").await, [None, None, None], "{fault:?} at {node}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_was_away_during_the_release_is_freed_when_it_is_back() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 1).await;
    rig.fail(&[0], Fault::Refuses);
    release(&process, 1).await.unwrap();
    tokio::time::sleep(SECOND * 5).await;
    rig.fail(&[0], Fault::None);
    tokio::time::sleep(SECOND * 3 / 2).await;
    assert_eq!(rig.holders("a").await, [None, None, None]);
    grant(&rig.process(), 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hears_late_of_a_lingering_release_lingers_no_longer_than_the_others() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 1).await;
    rig.fail(&[0], Fault::Refuses);
    let linger = SECOND * 5;
    let items = vec![item("a", 1)];
    let request =
        ReleaseRequest { items: items.into(), linger, then: None, own_watch: None, timeout: SECOND };
    process.release(Arc::new(request)).await.unwrap();
    tokio::time::sleep(SECOND * 3).await;
    rig.fail(&[0], Fault::None);
    tokio::time::sleep(SECOND * 3 / 2).await;
    assert_eq!(rig.holders("a").await, vec![Some(owner(1)); 3]);
    tokio::time::sleep(SECOND).await;
    assert_eq!(rig.holders("a").await, [None, None, None]);
}
