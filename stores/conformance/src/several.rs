//! Requests for several keys of several kinds.

use lock_core::store::MAX_TOKENS;

use super::*;

/// Returns items of each kind that the store has, in this order, and two at least.
fn one_of_each(number: u32) -> Vec<Item> {
    let all = [("m", Kind::Mutex), ("f", Kind::Fair), ("r", Kind::Read), ("w", Kind::Write)];
    let kinds = kinds_of_locks();
    let mut items: Vec<_> = all
        .into_iter()
        .filter(|(_, kind)| kinds.contains(kind))
        .map(|(name, kind)| item_of(kind, name, number))
        .collect();
    if items.len() == 1 {
        items.push(item("m2", number));
    }
    items
}

fn fair_pair(number: u32) -> Arc<AcquireRequest> {
    let items = vec![item_of(Kind::Fair, "a", number), item_of(Kind::Fair, "b", number)];
    Arc::new(wish_of(items).queued(long()))
}

pub async fn items_of_every_kind_are_granted_together(Subject { store, other, .. }: Subject) {
    let granted = grant(&store, wish_of(one_of_each(1)).tokens(3)).await;
    let count = one_of_each(1).len();
    assert_eq!(granted.tokens.len(), count);
    for (item, range) in one_of_each(1).iter().zip(&granted.tokens) {
        let status = status(&other, item.key.as_str()).await;
        assert_eq!(status.holders, [(owner(1), 1)]);
        assert_last_token(&status, range.last);
        assert_eq!(range.last - range.first + 1, tokens_of(3));
        assert_remaining(&other, item.key.as_str(), long()).await;
    }
    assert_eq!(renew(&store, one_of_each(1), 2 * long()).await, vec![Renewed::Held; count]);
    let released = release(&store, giving_back(one_of_each(1))).await;
    assert_eq!(*released.held, *vec![true; count]);
    for item in one_of_each(1) {
        assert_free(&other, item.key.as_str()).await;
    }
}

pub async fn nothing_is_taken_when_one_item_is_busy(Subject { store, other, .. }: Subject) {
    for (index, item) in one_of_each(2).into_iter().enumerate() {
        let kind = if item.kind == Kind::Read { Kind::Write } else { item.kind };
        grant(&other, wish_of(vec![Item { kind, ..item.clone() }])).await;
        let answer = busy(&store, wish_of(one_of_each(1))).await;
        assert_eq!(answer.item, index);
        for (other_index, item) in one_of_each(1).iter().enumerate() {
            let status = status(&store, item.key.as_str()).await;
            assert_eq!(status.is_locked(), other_index == index, "{item:?} while {index} is held");
            if has_counters() {
                assert!(status.last_token.is_some() == (other_index <= index), "{item:?}: {status:?}");
            }
        }
        force_release(&other, item.key.as_str()).await;
    }
    grant(&store, wish_of(one_of_each(1))).await;
}

pub async fn answers_are_in_the_order_of_the_request(Subject { store, .. }: Subject) {
    // The counters differ, as far as tokens can be ahead of the clock.
    for (name, grants) in [("a", 1), ("b", 2)] {
        for _ in 0..grants {
            grant(&store, request(&[name], 1).tokens(MAX_TOKENS)).await;
        }
    }
    let names = ["c", "a", "b"];
    let granted = grant(&store, request(&names, 1)).await;
    assert_eq!(granted.tokens.len(), names.len());
    for (name, range) in names.into_iter().zip(&granted.tokens) {
        assert_last_token(&status(&store, name).await, range.last);
    }
    force_release(&store, "a").await;
    let kept = renew(&store, items(&names, 1), long()).await;
    assert_eq!(kept, [Renewed::Held, Renewed::Gone, Renewed::Held]);
    assert_eq!(release(&store, giving_back(items(&names, 1))).await.held, [true, false, true]);
}

pub async fn a_request_may_have_64_keys(Subject { store, other, .. }: Subject) {
    let names: Vec<_> = (0..64).map(|index| format!("k{index}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    assert_eq!(grant(&store, request(&names, 1)).await.tokens.len(), names.len());
    assert_eq!(busy(&other, request(&["free", "k63"], 2)).await.item, 1);
    assert_eq!(renew(&store, items(&names, 1), long()).await, vec![Renewed::Held; names.len()]);
    assert_eq!(*release(&store, giving_back(items(&names, 1))).await.held, *vec![true; names.len()]);
    grant(&other, request(&names, 2)).await;
}

pub async fn busy_names_the_first_busy_item_of_any_kind(Subject { store, .. }: Subject) {
    grant(&store, wish(Kind::Write, "r", 2)).await;
    grant(&store, wish(Kind::Mutex, "w", 2)).await;
    for (order, first) in [([0, 1, 2, 3], 2), ([3, 2, 1, 0], 0), ([0, 3, 1, 2], 1)] {
        let items = order.map(|index: usize| one_of_each(1)[index].clone());
        assert_eq!(busy(&store, wish_of(items.to_vec())).await.item, first);
    }
}

pub async fn a_refused_request_joins_every_queue(Subject { store, other, .. }: Subject) {
    // Including the queue of a free key.
    grant(&other, wish(Kind::Fair, "b", 9)).await;
    assert_eq!(busy(&store, fair_pair(1)).await.item, 1);
    assert_waiters(&other, "a", 1).await;
    assert_waiters(&other, "b", 1).await;
    assert_free(&other, "a").await;
    busy(&other, wish(Kind::Fair, "a", 2)).await;

    // Even if the busy item is of another kind.
    grant(&other, wish(Kind::Mutex, "m", 9)).await;
    let items = vec![item_of(Kind::Mutex, "m", 1), item_of(Kind::Fair, "c", 1)];
    assert_eq!(busy(&store, wish_of(items).queued(long())).await.item, 0);
    busy(&other, wish(Kind::Fair, "c", 2)).await;
}

/// Otherwise two requests could each be the first in one queue, and wait for each other.
pub async fn a_request_that_lost_one_place_queues_again_for_all_keys(Subject { store, other, .. }: Subject) {
    let held = vec![item_of(Kind::Fair, "a", 9), item_of(Kind::Fair, "b", 9)];
    grant(&store, wish_of(held.clone())).await;
    let (first, second) = (fair_pair(1), fair_pair(2));
    busy(&store, Arc::clone(&first)).await;
    busy(&other, Arc::clone(&second)).await;
    // The first request gives no sign of life for too long, and loses one of its places.
    for _ in 0..2 {
        rest(waiter_life() * 11 / 20).await;
        busy(&other, Arc::clone(&second)).await;
    }
    busy(&other, waiting(Kind::Fair, "b", 3)).await;
    busy(&store, Arc::clone(&first)).await;
    release(&store, giving_back(held)).await;
    busy(&store, first).await;
    grant(&other, second).await;
}

pub async fn a_refused_request_that_does_not_wait_leaves_no_trace(Subject { store, other, .. }: Subject) {
    grant(&other, wish(Kind::Mutex, "m", 9)).await;
    grant(&other, wish(Kind::Read, "w", 9)).await;
    busy(&store, wish_of(one_of_each(1))).await;
    grant(&other, wish(Kind::Fair, "f", 2)).await;
    grant(&other, wish(Kind::Read, "w", 2)).await;
}

pub async fn a_refused_request_announces_its_writers(Subject { store, other, .. }: Subject) {
    grant(&other, wish(Kind::Mutex, "m", 9)).await;
    grant(&other, wish(Kind::Read, "w", 9)).await;
    let request = Arc::new(wish_of(one_of_each(1)).queued(long()));
    assert_eq!(busy(&store, Arc::clone(&request)).await.item, 0);
    // Not only readers are in its way.
    grant(&other, wish(Kind::Read, "w", 3)).await;
    give_back(&other, &wish(Kind::Mutex, "m", 9)).await;
    assert_eq!(busy(&store, Arc::clone(&request)).await.item, one_of_each(1).len() - 1);
    busy(&other, wish(Kind::Read, "w", 2)).await;
    // Now others are in its way again.
    grant(&other, wish(Kind::Mutex, "m", 9)).await;
    busy(&store, Arc::clone(&request)).await;
    grant(&other, wish(Kind::Read, "w", 4)).await;
    give_back(&other, &wish(Kind::Mutex, "m", 9)).await;
    busy(&store, Arc::clone(&request)).await;
    busy(&other, wish(Kind::Read, "w", 2)).await;
    withdraw(&store, &request).await;
    grant(&other, wish(Kind::Read, "w", 2)).await;
}

pub async fn a_request_of_several_is_told_and_not_granted(Subject { store, other, .. }: Subject) {
    grant(&other, wish(Kind::Fair, "b", 9)).await;
    let mut watch = wait_in_line(&store, &fair_pair(1)).await;
    give_back(&other, &wish(Kind::Fair, "b", 9)).await;
    assert_hears(&mut watch).await;
    assert_free(&other, "b").await;
    // The request is first in both queues.
    busy(&other, wish(Kind::Fair, "b", 2)).await;
    grant(&store, fair_pair(1)).await;
}

pub async fn its_places_are_given_up_when_it_is_granted(Subject { store, other, .. }: Subject) {
    grant(&other, wish(Kind::Fair, "b", 9)).await;
    busy(&store, fair_pair(1)).await;
    give_back(&other, &wish(Kind::Fair, "b", 9)).await;
    grant(&store, fair_pair(1)).await;
    for name in ["a", "b"] {
        assert_held_by(&other, name, 1).await;
        assert_waiters(&other, name, 0).await;
    }
    give_back(&store, &fair_pair(1)).await;
    grant(&other, fair_pair(2)).await;
}

pub async fn its_places_are_given_up_when_it_is_withdrawn(Subject { store, other, .. }: Subject) {
    grant(&other, wish(Kind::Fair, "b", 9)).await;
    let request = fair_pair(1);
    busy(&store, Arc::clone(&request)).await;
    withdraw(&store, &request).await;
    assert_waiters(&other, "a", 0).await;
    assert_waiters(&other, "b", 0).await;
    grant(&other, wish(Kind::Fair, "a", 2)).await;
    assert_held_by(&other, "b", 9).await;
}

pub async fn a_request_behind_one_of_several_gets_its_turn(Subject { store, other, .. }: Subject) {
    grant(&other, wish(Kind::Fair, "b", 9)).await;
    let pair = fair_pair(1);
    busy(&store, Arc::clone(&pair)).await;
    // It queues behind the request, for the key that is free.
    let behind = Arc::new(waiting(Kind::Fair, "a", 2));
    let mut watch = wait_in_line(&other, &behind).await;
    withdraw(&store, &pair).await;
    assert_gets_its_turn(&other, &mut watch, &behind).await;
    assert_held_by(&store, "b", 9).await;
}

pub async fn renew_answers_for_each(Subject { store, .. }: Subject) {
    grant(&store, wish_of(one_of_each(1))).await;
    busy(&store, waiting(Kind::Fair, "f", 2)).await;
    let waiter = |kind, name| RenewItem::waiter(item_of(kind, name, 2), long());
    let items = vec![
        RenewItem::hold(item_of(Kind::Mutex, "m", 1), 2 * long()),
        waiter(Kind::Fair, "f"),
        waiter(Kind::Fair, "m"),
        RenewItem::hold(item_of(Kind::Read, "r", 2), 2 * long()),
        waiter(Kind::Write, "w"),
        RenewItem::hold(item_of(Kind::Write, "w", 1), 3 * long()),
    ];
    let kept = store.renew(Arc::new(RenewRequest { items, timeout: PATIENCE })).await.unwrap();
    assert_eq!(
        (kept[0], kept[2], kept[3], kept[5]),
        (Renewed::Held, Renewed::Gone, Renewed::Gone, Renewed::Held)
    );
    // Who is in no queue has lost its place.
    let has_place = abilities(|store| !store.queues(Kind::Write));
    let waits = [true, has_place].map(|has_place| if has_place { "Waiting" } else { "Gone" });
    let said = [kept[1], kept[4]].map(|kept| if let Renewed::Waiting(_) = kept { "Waiting" } else { "Gone" });
    assert_eq!(said, waits, "{kept:?}");
    assert_remaining(&store, "m", 2 * long()).await;
    assert_remaining(&store, "w", 3 * long()).await;
    assert_remaining(&store, "f", long()).await;
}
