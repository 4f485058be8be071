//! The queue of a fair lock: who is in it, and for how long.

use lock_core::store::{ListenerPolicy, Takeover};

use super::*;

/// Returns the time after which a waiter counts as dead if it gives no sign of life.
fn dead() -> Duration {
    waiter_life() + Duration::from_millis(200)
}

fn fair(name: &str, number: u32) -> Item {
    item_of(queued(), name, number)
}

/// Makes a free key with one waiter that has not noticed.
async fn free_with_a_waiter(store: &Arc<dyn LockStore>, name: &str, number: u32) -> Arc<AcquireRequest> {
    let holder = AcquireRequest::new(vec![fair(name, 99)], short(), PATIENCE);
    let waiter = Arc::new(waiting(queued(), name, number));
    grant(store, holder).await;
    busy(store, Arc::clone(&waiter)).await;
    outlast_short(store, &waiter.items).await;
    assert_free(store, name).await;
    waiter
}

/// Waits until a [`short`] lease is over, while the waiters give the signs of life that they need.
pub(super) async fn outlast_short(store: &Arc<dyn LockStore>, waiters: &[Item]) {
    let (mut time, step) = (short_is_over(), waiter_life() / 10);
    while time > step {
        rest(step).await;
        time -= step;
        for waiter in waiters {
            keep_waiter(store, waiter.clone()).await;
        }
    }
    rest(time).await;
}

pub async fn a_free_key_is_granted_and_a_held_one_is_busy(Subject { store, other, .. }: Subject) {
    grant(&store, waiting(queued(), "a", 1)).await;
    assert_held_by(&other, "a", 1).await;
    assert_remaining(&other, "a", long()).await;
    let answer = busy(&other, wish(queued(), "a", 2)).await;
    assert_eq!(answer.item, 0);
    assert_busy_for(&answer, long());
    assert_eq!(give_back(&store, &wish(queued(), "a", 1)).await.held, [true]);
    assert_free(&store, "a").await;
    grant(&other, waiting(queued(), "a", 2)).await;
}

pub async fn who_asks_without_waiting_leaves_no_trace(Subject { store, other, .. }: Subject) {
    grant(&store, wish(queued(), "a", 1)).await;
    busy(&other, wish(queued(), "a", 2)).await;
    assert_waiters(&store, "a", 0).await;
    give_back(&store, &wish(queued(), "a", 1)).await;
    assert_free(&store, "a").await;
    grant(&store, wish(queued(), "a", 3)).await;
}

pub async fn who_asks_without_waiting_is_refused_while_others_wait(Subject { store, other, .. }: Subject) {
    let waiter = free_with_a_waiter(&store, "a", 1).await;
    let answer = busy(&other, wish(queued(), "a", 2)).await;
    assert_busy_at_most(&answer, waiter_life());
    assert_waiters(&store, "a", 1).await;
    // The waiter itself may ask without waiting.
    grant(&store, wish(queued(), "a", 1)).await;
    assert_waiters(&store, "a", 0).await;
    give_back(&store, &waiter).await;
    grant(&other, wish(queued(), "a", 2)).await;
}

pub async fn who_asks_again_keeps_its_place(Subject { store, other, .. }: Subject) {
    grant(&store, wish(queued(), "a", 9)).await;
    let first = Arc::new(waiting(queued(), "a", 1));
    let second = Arc::new(waiting(queued(), "a", 2));
    let mut heard = wait_in_line(&store, &first).await;
    wait_in_line(&other, &second).await;
    busy(&store, Arc::clone(&first)).await;
    busy(&store, wish(queued(), "a", 1)).await;
    assert_waiters(&store, "a", 2).await;
    give_back(&store, &wish(queued(), "a", 9)).await;
    assert_gets_its_turn(&store, &mut heard, &first).await;
    assert_waiters(&store, "a", 1).await;
}

pub async fn a_mutex_passes_the_queue(Subject { store, other, .. }: Subject) {
    let waiter = free_with_a_waiter(&store, "a", 1).await;
    grant(&other, wish(Kind::Mutex, "a", 2)).await;
    busy(&store, Arc::clone(&waiter)).await;
    assert_held_by(&store, "a", 2).await;
    force_release(&other, "a").await;
    grant(&store, waiter).await;
}

pub async fn status_counts_the_queue(Subject { store, other, .. }: Subject) {
    grant(&store, wish(queued(), "a", 9)).await;
    assert_waiters(&other, "a", 0).await;
    for waiter in 1..=3 {
        busy(&store, waiting(queued(), "a", waiter)).await;
        assert_waiters(&other, "a", u64::from(waiter)).await;
    }
    assert_kind(&other, "a", Kind::Fair, &[9]).await;
}

pub async fn renew_says_how_long_a_waiter_has_to_wait(Subject { store, .. }: Subject) {
    grant(&store, wish(queued(), "a", 9)).await;
    busy(&store, waiting(queued(), "a", 1)).await;
    match keep_waiter(&store, fair("a", 1)).await {
        Renewed::Waiting(time) => assert!(is_left_of(time, long()), "{time:?}"),
        kept => panic!("{kept:?}"),
    }

    // The first waiter of a free key can have it at once; the next one when the first is dead.
    free_with_a_waiter(&store, "b", 1).await;
    busy(&store, waiting(queued(), "b", 2)).await;
    match keep_waiter(&store, fair("b", 2)).await {
        Renewed::Waiting(time) => assert!(time <= waiter_life() && !time.is_zero(), "{time:?}"),
        kept => panic!("{kept:?}"),
    }
    match keep_waiter(&store, fair("b", 1)).await {
        Renewed::Waiting(time) => assert!(time <= SOON && !time.is_zero(), "{time:?}"),
        kept => panic!("{kept:?}"),
    }
}

pub async fn keeping_a_place_outside_the_queue_answers_gone(Subject { store, .. }: Subject) {
    assert_eq!(keep_waiter(&store, fair("a", 1)).await, Renewed::Gone);
    grant(&store, wish(queued(), "a", 1)).await;
    assert_eq!(keep_waiter(&store, fair("a", 2)).await, Renewed::Gone);
    assert_eq!(keep_waiter(&store, fair("a", 1)).await, Renewed::Held);
    assert_waiters(&store, "a", 0).await;
    busy(&store, waiting(queued(), "a", 2)).await;
    assert_eq!(
        renew(&store, vec![fair("a", 2)], long()).await,
        [Renewed::Gone],
        "it waits, and holds nothing"
    );
}

pub async fn withdraw_gives_up_the_place(Subject { store, other, .. }: Subject) {
    grant(&store, wish(queued(), "a", 9)).await;
    let first = Arc::new(waiting(queued(), "a", 1));
    let second = Arc::new(waiting(queued(), "a", 2));
    let mut left = wait_in_line(&store, &first).await;
    let mut heard = wait_in_line(&other, &second).await;
    withdraw(&store, &first).await;
    assert_waiters(&store, "a", 1).await;
    assert_eq!(keep_waiter(&store, fair("a", 1)).await, Renewed::Gone);
    assert_held_by(&store, "a", 9).await;
    give_back(&store, &wish(queued(), "a", 9)).await;
    assert_gets_its_turn(&other, &mut heard, &second).await;
    assert_hears_nothing(&mut left).await;
}

pub async fn a_late_request_does_not_join(subject: Subject) {
    grant(&subject.store, wish(queued(), "a", 9)).await;
    let late = AcquireRequest::new(vec![fair("a", 1)], long(), short()).queued(long());
    subject.refused_late(late).await;
    assert_waiters(&subject.store, "a", 0).await;
}

pub async fn a_place_that_is_not_kept_is_lost(Subject { store, .. }: Subject) {
    grant(&store, wish(queued(), "a", 9)).await;
    busy(&store, waiting(queued(), "a", 1)).await;
    rest(dead()).await;
    give_back(&store, &wish(queued(), "a", 9)).await;
    // The key is neither reserved for it, nor blocked by it.
    assert_free(&store, "a").await;
    grant(&store, wish(queued(), "a", 2)).await;
    assert_waiters(&store, "a", 0).await;
    assert_eq!(keep_waiter(&store, fair("a", 1)).await, Renewed::Gone);
}

pub async fn a_place_that_is_kept_lasts(Subject { store, .. }: Subject) {
    grant(&store, wish(queued(), "a", 9)).await;
    busy(&store, waiting(queued(), "a", 1)).await;
    busy(&store, waiting(queued(), "a", 2)).await;
    for _ in 0..3 {
        rest(waiter_life() / 2).await;
        assert!(matches!(keep_waiter(&store, fair("a", 1)).await, Renewed::Waiting(_)));
        // Asking again is a sign of life too.
        busy(&store, waiting(queued(), "a", 2)).await;
    }
    assert_waiters(&store, "a", 2).await;
    give_back(&store, &wish(queued(), "a", 9)).await;
    busy(&store, waiting(queued(), "a", 2)).await;
    grant(&store, waiting(queued(), "a", 1)).await;
}

pub async fn resent_acquire_of_the_holder_is_the_same_grant(Subject { store, .. }: Subject) {
    let first = grant(&store, waiting(queued(), "a", 1)).await;
    busy(&store, waiting(queued(), "a", 2)).await;
    let again = AcquireRequest::new(vec![fair("a", 1)], short(), PATIENCE).queued(long());
    let second = grant(&store, again).await;
    assert!(second.tokens[0].first > first.tokens[0].last);
    assert_held_by(&store, "a", 1).await;
    assert_remaining(&store, "a", long()).await;
    assert_waiters(&store, "a", 1).await;
    give_back(&store, &wish(queued(), "a", 1)).await;
    grant(&store, waiting(queued(), "a", 2)).await;
}

pub async fn a_lingering_release_is_told_and_grants_nothing(Subject { store, other, .. }: Subject) {
    grant(&store, wish(queued(), "a", 9)).await;
    let waiter = Arc::new(waiting(queued(), "a", 1));
    let mut heard = wait_in_line(&other, &waiter).await;
    let linger = ReleaseRequest { linger: long() / 2, ..giving_back(vec![fair("a", 9)]) };
    assert_eq!(release(&store, linger).await.held, [true]);
    assert_hears(&mut heard).await;
    let answer = busy(&other, waiter).await;
    assert_busy_at_most(&answer, long() / 2);
    assert_held_by(&store, "a", 9).await;
}

pub async fn takeover_is_declined(Subject { store, .. }: Subject) {
    grant(&store, wish(queued(), "a", 1)).await;
    let next = Arc::new(waiting(queued(), "a", 2));
    let then = Some(Takeover { request: next, listeners: ListenerPolicy::Ignore });
    let released = release(&store, ReleaseRequest { then, ..giving_back(vec![fair("a", 1)]) }).await;
    assert_eq!((released.held, released.then), (vec![true].into(), None));
    assert_free(&store, "a").await;
}
