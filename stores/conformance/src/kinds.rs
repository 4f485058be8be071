//! Rules that hold for every kind.

use super::*;

pub async fn kinds_exclude_each_other(Subject { store, other, .. }: Subject) {
    for held in kinds_of_locks() {
        grant(&store, wish(held, "a", 1)).await;
        for asked in kinds_of_locks() {
            if (held, asked) != (Kind::Read, Kind::Read) {
                assert_busy_for(&busy(&other, wish(asked, "a", 2)).await, long());
            }
        }
        assert_held_by(&other, "a", 1).await;
        give_back(&store, &wish(held, "a", 1)).await;
        assert_free(&store, "a").await;
    }
}

pub async fn tokens_grow_across_kinds(Subject { store, .. }: Subject) {
    let mut last = 0;
    for (number, kind) in (1..).zip([kinds_of_locks(), kinds_of_locks()].concat()) {
        let granted = grant(&store, wish(kind, "a", number).tokens(10)).await;
        assert!(granted.tokens[0].first > last, "{kind:?}: {granted:?} after {last}");
        assert_eq!(granted.tokens[0].last - granted.tokens[0].first + 1, tokens_of(10));
        last = granted.tokens[0].last;
        assert_last_token(&status(&store, "a").await, last);
        give_back(&store, &wish(kind, "a", number)).await;
    }
}

pub async fn release_and_renew_by_a_stranger_touch_nothing(Subject { store, other, .. }: Subject) {
    for held in kinds_of_locks() {
        grant(&store, wish(held, "a", 1)).await;
        for asked in kinds_of_locks() {
            assert_eq!(give_back(&other, &wish(asked, "a", 2)).await.held, [false]);
            assert_eq!(renew(&other, vec![item_of(asked, "a", 2)], 3 * long()).await, [Renewed::Gone]);
            if (held, asked) != (Kind::Read, Kind::Read) {
                let request = Arc::new(wish(asked, "a", 2));
                busy(&other, Arc::clone(&request)).await;
                withdraw(&other, &request).await;
            }
        }
        assert_held_by(&store, "a", 1).await;
        assert_remaining(&store, "a", long()).await;
        give_back(&store, &wish(held, "a", 1)).await;
    }
}

pub async fn force_release_frees_every_kind_and_wakes_who_waits(Subject { store, other, .. }: Subject) {
    for (number, kind) in (1..).zip(kinds_of_locks()) {
        let before = grant(&store, wish(kind, "a", 90 + number)).await.tokens[0].last;
        let request = Arc::new(waiting(kind, "a", number));
        let mut watch = watch_for(&other, &request).await;
        let waits = matches!(acquire(&other, Arc::clone(&request)).await, Acquired::Busy(_));
        assert!(force_release(&other, "a").await);
        // A reader beside a reader waits for nothing, and is told of nothing if waiters queue.
        if waits || abilities(|store| !store.queues(kind)) {
            assert_gets_its_turn(&other, &mut watch, &request).await;
        } else {
            grant(&other, Arc::clone(&request)).await;
        }
        assert_held_by(&store, "a", number).await;
        assert_eq!(renew(&store, vec![item_of(kind, "a", 90 + number)], long()).await, [Renewed::Gone]);
        if abilities(|store| store.own_tokens) {
            assert!(status(&store, "a").await.last_token.unwrap().get() > before);
        }
        give_back(&other, &request).await;
        assert!(!force_release(&other, "a").await);
    }
}

pub async fn an_acquire_that_was_granted_can_be_withdrawn(Subject { store, other, .. }: Subject) {
    for kind in kinds_of_locks() {
        let request = Arc::new(waiting(kind, "a", 1));
        grant(&store, Arc::clone(&request)).await;
        withdraw(&store, &request).await;
        assert_free(&store, "a").await;
        grant(&other, wish(kind, "a", 2)).await;
        withdraw(&store, &request).await;
        assert_held_by(&other, "a", 2).await;
        give_back(&other, &wish(kind, "a", 2)).await;
    }
}

pub async fn requests_of_every_kind_can_be_late(subject: Subject) {
    let items: Vec<_> =
        kinds_of_locks().into_iter().map(|kind| item_of(kind, &format!("{kind:?}"), 1)).collect();
    let all = Some(items.clone()).filter(|_| abilities(|store| store.several));
    for items in items.iter().map(|item| vec![item.clone()]).chain(all) {
        let late = AcquireRequest::new(items, long(), short());
        subject.refused_late(late).await;
    }
    for item in items {
        let status = status(&subject.store, item.key.as_str()).await;
        assert_eq!(status, LockStatus::free(), "a late request was refused, and left a trace");
    }
}
