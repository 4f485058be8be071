//! Taking keys.

use tokio::task::JoinSet;

use super::*;

pub async fn a_free_key_is_granted_and_a_held_one_is_busy(Subject { store, .. }: Subject) {
    let granted = grant(&store, request(&["a"], 1)).await;
    let busy = busy(&store, request(&["a"], 2)).await;
    assert_eq!(busy.item, 0);
    assert_busy_for(&busy, long());
    assert!(busy.moment >= granted.moment);
    assert_held_by(&store, "a", 1).await;
}

pub async fn both_handles_see_the_same_locks(Subject { store, other, .. }: Subject) {
    grant(&store, request(&["a"], 1)).await;
    busy(&other, request(&["a"], 2)).await;
    grant(&other, request(&["b"], 2)).await;
    busy(&store, request(&["b"], 1)).await;
    assert_held_by(&other, "a", 1).await;
    assert_held_by(&store, "b", 2).await;
}

pub async fn an_expired_lease_frees_the_key(Subject { store, .. }: Subject) {
    let names = together(&["a", "b"]);
    grant(&store, leased(names, 1, short())).await;
    rest(short_is_over()).await;
    for name in names {
        assert_free(&store, name).await;
    }
    let names: Vec<_> = names.iter().copied().rev().collect();
    grant(&store, request(&names, 2)).await;
}

pub async fn a_lease_lasts(subject: Subject) {
    for mut lease in [short(), allowed(short().max(Duration::from_millis(1900)))] {
        loop {
            let sent = Instant::now();
            grant(&subject.store, leased(&["a"], 1, lease)).await;
            if assert_lasts(&subject, "a", sent, lease).await {
                break;
            }
            lease = allowed(2 * lease);
        }
    }
}

pub async fn a_lease_may_be_very_long(Subject { store, .. }: Subject) {
    // 366 days are the maximum of `lock_runtime`.
    for lease in [2, 366 * 24].map(|hours| allowed(Duration::from_secs(hours * 3600))) {
        grant(&store, leased(&["a"], 1, lease)).await;
        assert_remaining(&store, "a", lease).await;
        assert_busy_for(&busy(&store, request(&["a"], 2)).await, lease);
        force_release(&store, "a").await;
    }
}

pub async fn keys_that_differ_in_one_byte_are_different(Subject { store, .. }: Subject) {
    let long = |last| "k".repeat(LockKey::LONGEST - 1) + last;
    let pairs = [("a", "A"), ("b", "b "), ("é", "ü"), ("c%", "c_"), (&*long("1"), &*long("2"))];
    for (one, other) in pairs {
        grant(&store, request(&[one], 1)).await;
        grant(&store, request(&[other], 2)).await;
        assert_held_by(&store, one, 1).await;
        assert_held_by(&store, other, 2).await;
    }
}

pub async fn waiting_as_long_as_busy_says_is_enough(Subject { store, .. }: Subject) {
    grant(&store, leased(&["a"], 1, short())).await;
    if let Acquired::Busy(busy) = acquire(&store, request(&["a"], 2)).await {
        assert_busy_at_most(&busy, short());
        // The clocks of both machines may have a resolution of milliseconds.
        rest(busy.remaining.map_or(short_is_over(), |left| left + Duration::from_millis(2))).await;
        grant(&store, request(&["a"], 2)).await;
    }
}

pub async fn acquire_of_two_items_is_all_or_nothing(Subject { store, other, .. }: Subject) {
    grant(&other, request(&["b"], 2)).await;
    let busy = busy(&store, request(&["a", "b"], 1)).await;
    assert_eq!(busy.item, 1);
    assert_free(&store, "a").await;
    assert_eq!(status(&store, "a").await.last_token, None, "not even a token was taken");

    force_release(&other, "b").await;
    let granted = grant(&store, request(&["a", "b"], 1)).await;
    assert_eq!(granted.tokens.len(), 2);
    for name in ["a", "b"] {
        assert_held_by(&store, name, 1).await;
        assert_remaining(&store, name, long()).await;
    }
}

pub async fn busy_names_the_first_busy_item(Subject { store, .. }: Subject) {
    grant(&store, leased(&["b"], 1, 2 * long())).await;
    grant(&store, request(&["c"], 2)).await;
    let answer = busy(&store, request(&["a", "b", "c"], 3)).await;
    assert_eq!(answer.item, 1);
    assert_busy_longer_than(&answer, long());
    let answer = busy(&store, request(&["c", "b", "a"], 3)).await;
    assert_eq!(answer.item, 0);
    assert_busy_at_most(&answer, long());
}

pub async fn two_items_may_have_two_owners(Subject { store, .. }: Subject) {
    let items = vec![item("a", 1), item("b", 2)];
    grant(&store, AcquireRequest::new(items, long(), PATIENCE)).await;
    assert_held_by(&store, "a", 1).await;
    assert_held_by(&store, "b", 2).await;
}

pub async fn resent_acquire_is_the_same_grant_and_never_shortens(Subject { store, .. }: Subject) {
    for names in [&["a"], together(&["b", "c"])] {
        let sent = Arc::new(request(names, 1));
        grant(&store, Arc::clone(&sent)).await;
        grant(&store, sent).await;
        grant(&store, leased(names, 1, short())).await;
        for name in names {
            assert_held_by(&store, name, 1).await;
            assert_remaining(&store, name, long()).await;
        }
        grant(&store, leased(names, 1, 3 * long())).await;
        for name in names {
            assert_remaining(&store, name, 3 * long()).await;
        }
        // One release gives it back, however often it was sent.
        release(&store, giving_back(items(names, 1))).await;
        for name in names {
            assert_free(&store, name).await;
        }
    }
}

pub async fn resent_acquire_takes_the_item_that_was_lost_in_between(Subject { store, .. }: Subject) {
    grant(&store, request(&["a", "b"], 1)).await;
    force_release(&store, "b").await;
    grant(&store, request(&["a", "b"], 1)).await;
    assert_held_by(&store, "a", 1).await;
    assert_held_by(&store, "b", 1).await;
}

pub async fn resent_acquire_that_is_busy_changes_nothing(Subject { store, .. }: Subject) {
    grant(&store, request(&["a", "b"], 1)).await;
    force_release(&store, "b").await;
    grant(&store, request(&["b"], 2)).await;
    let before = status(&store, "a").await;
    let answer = busy(&store, leased(&["a", "b"], 1, 3 * long())).await;
    assert_eq!(answer.item, 1);
    let after = status(&store, "a").await;
    assert_eq!((before.holders, before.last_token), (after.holders, after.last_token));
    assert!(after.remaining <= before.remaining);
    assert_held_by(&store, "b", 2).await;
}

pub async fn an_owner_whose_lease_ended_starts_again(Subject { store, .. }: Subject) {
    grant(&store, leased(&["a"], 1, short())).await;
    rest(short_is_over()).await;
    grant(&store, request(&["a"], 1)).await;
    assert_held_by(&store, "a", 1).await;
    assert_remaining(&store, "a", long()).await;
}

pub async fn a_call_that_is_never_polled_does_nothing(Subject { store, .. }: Subject) {
    let sent = Arc::new(request(&["a"], 1));
    drop(store.acquire(Arc::clone(&sent)));
    assert_free(&store, "a").await;
    assert_eq!(sent.latest(), None, "it was never sent");

    grant(&store, Arc::clone(&sent)).await;
    let before = status(&store, "a").await;
    drop(store.release(Arc::new(giving_back(items(&["a"], 1)))));
    drop(store.withdraw(Arc::clone(&sent)));
    drop(store.force_release(key("a")));
    let kept = vec![RenewItem::hold(item("a", 1), 3 * long())];
    drop(store.renew(Arc::new(RenewRequest { items: kept, timeout: PATIENCE })));
    drop(store.acquire(Arc::new(leased(&["a"], 1, 3 * long()))));
    drop(store.watch(sent));
    drop(store.status(key("a")));
    drop(store.check());
    let after = status(&store, "a").await;
    assert_eq!((before.holders, before.last_token), (after.holders, after.last_token));
    assert!(after.remaining <= before.remaining);
}

pub async fn a_call_has_its_effect_when_it_is_polled_and_not_before(Subject { store, other, .. }: Subject) {
    let first = store.acquire(Arc::new(request(&["a"], 1)));
    let second = other.acquire(Arc::new(request(&["a"], 2)));
    assert!(matches!(second.await.unwrap(), Acquired::Granted(_)));
    assert!(matches!(first.await.unwrap(), Acquired::Busy(_)));
    assert_held_by(&store, "a", 2).await;
}

/// Sends all requests at the same time, half of them on each handle, and counts the grants.
async fn race(subject: Subject, requests: Vec<AcquireRequest>) -> usize {
    let mut rivals = JoinSet::new();
    for (i, request) in requests.into_iter().enumerate() {
        let store = Arc::clone(if i % 2 == 0 { &subject.store } else { &subject.other });
        rivals.spawn(async move { acquire(&store, request).await });
    }
    let answers = rivals.join_all().await;
    answers.iter().filter(|answer| matches!(answer, Acquired::Granted(_))).count()
}

pub async fn one_of_many_rivals_gets_the_key(subject: Subject) {
    let requests = (1..=64).map(|rival| request(&["a"], rival)).collect();
    assert_eq!(race(subject, requests).await, 1);
}

pub async fn one_of_many_rivals_gets_both_keys_whatever_their_order(subject: Subject) {
    let order = |rival| if rival % 3 == 0 { ["a", "b"] } else { ["b", "a"] };
    let requests = (1..=64).map(|rival| request(&order(rival), rival)).collect();
    assert_eq!(race(subject, requests).await, 1);
}

pub async fn late_request_is_refused(subject: Subject) {
    let names = together(&["a", "b"]);
    let late = AcquireRequest::new(items(names, 1), long(), short());
    let error = subject.refused_late(late).await;
    assert!(error.is_transient() && !error.outcome_unknown());
    for name in names {
        let status = status(&subject.store, name).await;
        assert_eq!(status, LockStatus::free(), "a late request was refused, and left a trace");
    }
    // Another request has its own time limit.
    grant(&subject.store, request(names, 1)).await;
}

pub async fn the_store_says_that_it_can_be_used(Subject { store, other, .. }: Subject) {
    store.check().await.unwrap();
    other.check().await.unwrap();
}
