//! Undoing acquires of unknown outcome.

use lock_core::store::StoreErrorKind;

use super::*;

pub async fn withdraw_frees_what_was_taken_and_settles_after_latest(Subject { store, other, .. }: Subject) {
    let timeout = Duration::from_secs(1);
    let sent = Arc::new(AcquireRequest::new(items(&["a"], 1), long(), timeout));
    grant(&store, Arc::clone(&sent)).await;
    let latest = sent.latest();
    let mut withdrawn = withdraw(&store, &sent).await;
    // The key is free at once, but the withdrawal is not settled: the store can't know of every
    // copy of the acquire.
    grant(&other, request(&["a"], 2)).await;
    let mut waited = Duration::ZERO;
    while let Withdrawn::Pending(time) = withdrawn {
        assert!(!time.is_zero() && waited <= PATIENCE, "{time:?} after {waited:?}");
        rest(time).await;
        waited += time;
        withdrawn = withdraw(&store, &sent).await;
    }
    // "Settled" means that the store's clock is past the time after which it refuses the request.
    let answer = busy(&store, request(&["a"], 3)).await;
    assert_past(answer.moment, latest);
    assert_held_by(&store, "a", 2).await;
}

pub async fn withdraw_of_what_was_never_sent_is_settled(Subject { store, .. }: Subject) {
    let unsent = Arc::new(request(together(&["a", "b"]), 1));
    assert_eq!(withdraw(&store, &unsent).await, Withdrawn::Settled);
    assert_free(&store, "a").await;
}

pub async fn a_request_that_was_withdrawn_before_it_was_sent_is_refused(Subject { store, .. }: Subject) {
    let unsent = Arc::new(request(&["a"], 1));
    withdraw(&store, &unsent).await;
    let error = store.acquire(unsent).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TooLate);
    assert_eq!(status(&store, "a").await, LockStatus::free());
}

pub async fn withdraw_of_a_busy_acquire_touches_nothing_of_the_holder(Subject { store, other, .. }: Subject) {
    grant(&other, request(&["a"], 2)).await;
    let mut waiter = watch(&other, &["a"]).await;
    let sent = Arc::new(request(&["a"], 1));
    busy(&store, Arc::clone(&sent)).await;
    let withdrawn = withdraw(&store, &sent).await;
    if abilities(|store| store.late_requests == LateRequests::ByClock) {
        assert!(
            matches!(withdrawn, Withdrawn::Pending(_)),
            "the withdrawal was settled too early: nothing is held, but a copy of the request may be \
             under way, and its time limit has not passed"
        );
    }
    assert_held_by(&store, "a", 2).await;
    assert_remaining(&store, "a", long()).await;
    assert_hears_nothing(&mut waiter).await;
}

pub async fn withdraw_frees_every_item_that_is_ours_and_no_other(Subject { store, .. }: Subject) {
    let sent = Arc::new(request(&["a", "b", "c"], 1));
    grant(&store, Arc::clone(&sent)).await;
    force_release(&store, "b").await;
    grant(&store, request(&["b"], 2)).await;
    withdraw(&store, &sent).await;
    assert_free(&store, "a").await;
    assert_held_by(&store, "b", 2).await;
    assert_free(&store, "c").await;
}
