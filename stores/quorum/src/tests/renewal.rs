//! Renewal.

use std::sync::Arc;

use lock_core::store::{
    AcquireRequest, Acquired, Item, Kind, LockStore, RenewItem, RenewRequest, Renewed, StoreErrorKind,
};

use super::rig::*;

#[tokio::test(start_paused = true)]
async fn a_hold_is_renewed_by_a_majority() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 1).await;
    for fault in [Fault::Refuses, Fault::Swallows, Fault::Mute] {
        rig.fail(&[0], fault);
        tokio::time::sleep(LEASE / 2).await;
        assert_eq!(renew(&process, 1).await.unwrap(), Renewed::Held);
    }
    rig.fail(&[0], Fault::None);
    for server in &rig.servers[1..] {
        let left = server.store().status(key("a")).await.unwrap().remaining.unwrap();
        assert!(left > LEASE - SECOND * 2, "{left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_only_a_minority_has_renewed_is_not() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 1).await;
    rig.fail(&[0, 1], Fault::Refuses);
    assert_eq!(renew(&process, 1).await.unwrap(), Renewed::Unknown);
    rig.fail(&[2], Fault::Refuses);
    assert_eq!(renew(&process, 1).await.unwrap_err().kind(), StoreErrorKind::Unreachable);
    // Renewals succeed again when the stores come back in time.
    rig.fail(&[0, 1, 2], Fault::None);
    assert_eq!(renew(&process, 1).await.unwrap(), Renewed::Held);
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_gone_when_a_majority_has_lost_it() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 1).await;
    rig.fail(&[2], Fault::Refuses);
    rig.servers[0].store().force_release(key("a")).await.unwrap();
    assert_eq!(renew(&process, 1).await.unwrap(), Renewed::Unknown);
    rig.servers[1].store().force_release(key("a")).await.unwrap();
    assert_eq!(renew(&process, 1).await.unwrap(), Renewed::Gone);
    tokio::time::sleep(SECOND).await;
    assert_eq!(rig.holders("a").await[..2], [None, None], "what is lost is not taken again");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_lost_a_hold_is_taken_again_by_its_renewal() {
    let rig = Rig::new(3);
    let process = rig.process();
    rig.process().check().await.unwrap();
    // The store was away when the key was taken.
    rig.fail(&[1], Fault::Refuses);
    grant(&process, 1).await;
    rig.fail(&[1], Fault::None);
    assert_eq!(renew(&process, 1).await.unwrap(), Renewed::Held);
    tokio::time::sleep(SECOND).await;
    assert_eq!(rig.holders("a").await, vec![Some(owner(1)); 3]);
    // The store has lost its data. Another store may fail after that.
    rig.servers[1].wipe();
    assert_eq!(renew(&process, 1).await.unwrap(), Renewed::Held);
    tokio::time::sleep(SECOND).await;
    assert_eq!(rig.holders("a").await, vec![Some(owner(1)); 3]);
    rig.fail(&[2], Fault::Refuses);
    assert_eq!(renew(&process, 1).await.unwrap(), Renewed::Held);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_taken_from_another_owner_by_a_renewal() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 1).await;
    rig.servers[2].store().force_release(key("a")).await.unwrap();
    let other = rig.servers[2].store().acquire(request("a", 2)).await.unwrap();
    assert!(matches!(other, Acquired::Granted(_)));
    assert_eq!(renew(&process, 1).await.unwrap(), Renewed::Held);
    tokio::time::sleep(SECOND).await;
    assert_eq!(rig.holders("a").await[2], Some(owner(2)));
}

#[tokio::test(start_paused = true)]
async fn a_release_during_a_renewal_is_not_undone_by_it() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 1).await;
    rig.servers[2].store().force_release(key("a")).await.unwrap();
    // The renewal finds that the third store has lost the hold, while the key is released.
    rig.fail(&[2], Fault::Slow(SECOND / 10));
    let renewing = Arc::clone(&process);
    let renewal = tokio::spawn(async move { renew(&renewing, 1).await });
    tokio::time::sleep(SECOND / 20).await;
    release(&process, 1).await.unwrap();
    assert_eq!(renewal.await.unwrap().unwrap(), Renewed::Held);
    tokio::time::sleep(SECOND * 5).await;
    assert_eq!(rig.holders("a").await, [None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_release_after_a_slow_renewal_leaves_nothing() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 1).await;
    rig.servers[2].store().force_release(key("a")).await.unwrap();
    assert_eq!(renew(&process, 1).await.unwrap(), Renewed::Held);
    // The request that takes the third store again is sent before the release, and arrives after
    // it.
    rig.fail(&[2], Fault::Slow(SECOND * 2));
    tokio::task::yield_now().await;
    release(&process, 1).await.unwrap();
    rig.fail(&[2], Fault::None);
    tokio::time::sleep(SECOND * 6).await;
    assert_eq!(rig.holders("a").await, [None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_too_long_harms_no_other() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 1).await;
    assert!(matches!(process.acquire(request("b", 2)).await.unwrap(), Acquired::Granted(_)));
    let long = RenewItem::hold(item("a", 1), MAX_LEASE + SECOND);
    let items = vec![long.clone(), RenewItem::hold(item("b", 2), LEASE)];
    let kept = process.renew(Arc::new(RenewRequest { items, timeout: SECOND })).await.unwrap();
    assert_eq!(kept, [Renewed::Unknown, Renewed::Held]);
    let alone = process.renew(Arc::new(RenewRequest { items: vec![long], timeout: SECOND })).await;
    assert_eq!(alone.unwrap_err().kind(), StoreErrorKind::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_begins_after_the_release_takes_nothing_again() {
    let rig = Rig::new(3);
    let process = rig.process();
    grant(&process, 1).await;
    rig.fail(&[0, 1], Fault::Slow(SECOND / 10));
    let releasing = Arc::clone(&process);
    let released = tokio::spawn(async move { release(&releasing, 1).await });
    tokio::time::sleep(SECOND / 20).await;
    rig.fail(&[0, 1], Fault::None);
    // The release has reached only the third store.
    assert_eq!(renew(&process, 1).await.unwrap(), Renewed::Held);
    released.await.unwrap().unwrap();
    tokio::time::sleep(SECOND * 3).await;
    assert_eq!(rig.holders("a").await, [None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_that_misses_the_gate_lets_readers_in_soon() {
    for fault in [Fault::Refuses, Fault::Swallows] {
        let rig = Rig::new(3);
        let process = rig.process();
        let of = |kind, number| Item { kind, ..item("a", number) };
        let wanted = |kind, number| Arc::new(AcquireRequest::new(vec![of(kind, number)], LEASE, SECOND));
        let granted = process.acquire(wanted(Kind::Write, 1)).await.unwrap();
        assert!(matches!(granted, Acquired::Granted(_)));
        rig.fail(&[0], fault);
        let items = vec![RenewItem::hold(of(Kind::Write, 1), LEASE)];
        let request = Arc::new(RenewRequest { items, timeout: SECOND });
        assert_eq!(process.downgrade(request).await.unwrap(), [Renewed::Held]);
        tokio::time::sleep(SECOND * 3).await;
        rig.fail(&[0], Fault::None);
        tokio::time::sleep(SECOND * 3 / 2).await;
        let granted = rig.process().acquire(wanted(Kind::Read, 2)).await.unwrap();
        assert!(matches!(granted, Acquired::Granted(_)), "{fault:?}: {granted:?}");
    }
}
