//! How a fair lock passes from its holder to the first of its queue.

use super::fair::outlast_short;
use super::*;

fn direct_lease() -> Duration {
    abilities(|store| store.direct_lease)
}

fn fair(name: &str, number: u32) -> Item {
    item_of(queued(), name, number)
}

fn waiter(name: &str, number: u32) -> Arc<AcquireRequest> {
    Arc::new(waiting(queued(), name, number))
}

pub async fn waiters_are_served_in_the_order_they_came(Subject { store, other, .. }: Subject) {
    grant(&store, wish(queued(), "a", 9)).await;
    let mut line = Vec::new();
    for number in [3, 1, 2] {
        let store = Arc::clone(if number == 1 { &other } else { &store });
        let request = waiter("a", number);
        let watch = wait_in_line(&store, &request).await;
        line.push((store, request, watch));
    }
    give_back(&store, &wish(queued(), "a", 9)).await;
    for turn in 0..line.len() {
        let (store, request, watch) = &mut line[turn];
        assert_hears_grant(watch).await;
        assert_eq!(status(store, "a").await.holders, [(request.items[0].owner.clone(), 1)]);
        let (store, request) = (Arc::clone(store), Arc::clone(request));
        for (_, _, watch) in &mut line[turn + 1..] {
            assert_eq!(watch.try_notice(), None);
        }
        give_back(&store, &request).await;
    }
    assert_free(&store, "a").await;
    for (_, _, watch) in &mut line {
        assert_hears_nothing(watch).await;
    }
}

pub async fn a_release_grants_the_key_to_the_first_waiter(Subject { store, other, .. }: Subject) {
    let before = grant(&store, wish(queued(), "a", 9)).await;
    let request = waiter("a", 1);
    let mut watch = wait_in_line(&other, &request).await;
    let released = give_back(&store, &wish(queued(), "a", 9)).await;
    assert_eq!(released.held, [true]);

    let notice = tokio::time::timeout(PATIENCE, watch.notice()).await.unwrap();
    let Notice::Granted { token, moment } = notice else { panic!("{notice:?}") };
    assert!(token.get() > before.tokens[0].last && moment >= before.moment);
    let status = status(&store, "a").await;
    assert_eq!((status.holders.clone(), status.waiters), (vec![(owner(1), 1)], 0));
    assert_last_token(&status, token.get());
    assert!(
        status.remaining.is_some_and(|remaining| remaining <= direct_lease() + grain()),
        "{:?}",
        status.remaining
    );

    // The waiter renews, or asks once more, and has the lease of its request.
    assert_eq!(renew(&other, vec![fair("a", 1)], long() / 2).await, [Renewed::Held]);
    assert_remaining(&store, "a", long() / 2).await;
    let granted = grant(&other, request).await;
    assert!(granted.tokens[0].first > token.get());
    assert_remaining(&store, "a", long()).await;
}

pub async fn a_direct_grant_is_no_longer_than_the_lease(Subject { store, other, .. }: Subject) {
    let lease = short().max(direct_lease() / 2);
    grant(&store, wish(queued(), "a", 9)).await;
    let request = Arc::new(AcquireRequest::new(vec![fair("a", 1)], lease, PATIENCE).queued(long()));
    let mut watch = wait_in_line(&other, &request).await;
    give_back(&store, &wish(queued(), "a", 9)).await;
    assert_hears_grant(&mut watch).await;
    assert!(remaining(&store, "a").await <= lease + grain());
}

pub async fn a_withdrawal_of_the_holder_grants_the_key(Subject { store, other, .. }: Subject) {
    let holder = waiter("a", 9);
    grant(&store, Arc::clone(&holder)).await;
    let mut watch = wait_in_line(&other, &waiter("a", 1)).await;
    withdraw(&store, &holder).await;
    assert_hears_grant(&mut watch).await;
    assert_held_by(&store, "a", 1).await;
}

pub async fn a_forced_release_grants_the_key_and_keeps_the_queue(Subject { store, other, .. }: Subject) {
    grant(&store, wish(queued(), "a", 9)).await;
    let mut first = wait_in_line(&other, &waiter("a", 1)).await;
    let mut second = wait_in_line(&other, &waiter("a", 2)).await;
    assert!(force_release(&store, "a").await);
    assert_hears_grant(&mut first).await;
    assert_kind(&store, "a", Kind::Fair, &[1]).await;
    assert_waiters(&store, "a", 1).await;
    assert!(force_release(&store, "a").await);
    assert_hears_grant(&mut second).await;
    assert_held_by(&store, "a", 2).await;
}

pub async fn a_waiter_that_missed_its_grant_learns_of_it(Subject { store, other, .. }: Subject) {
    grant(&store, wish(queued(), "a", 9)).await;
    let request = waiter("a", 1);
    let _unread = wait_in_line(&other, &request).await;
    give_back(&store, &wish(queued(), "a", 9)).await;
    // A store whose messages bring the grant learns of it soon.
    let mut kept = keep_waiter(&other, fair("a", 1)).await;
    while abilities(|store| store.late_requests == LateRequests::BySession)
        && matches!(kept, Renewed::Waiting(_))
    {
        rest(Duration::from_millis(5)).await;
        kept = keep_waiter(&other, fair("a", 1)).await;
    }
    assert_eq!(kept, Renewed::Held);
    grant(&other, request).await;
    assert_held_by(&store, "a", 1).await;
    assert_remaining(&store, "a", long()).await;
}

/// Whether a release grants the key, or only wakes the waiters.
pub async fn waiters_get_their_turns_in_the_order_they_came(Subject { store, other, .. }: Subject) {
    grant(&store, wish(queued(), "a", 9)).await;
    let line = [3, 1, 2].map(|number| waiter("a", number));
    for request in &line {
        busy(&other, Arc::clone(request)).await;
    }
    give_back(&store, &wish(queued(), "a", 9)).await;
    for turn in 0..line.len() {
        for behind in &line[turn + 1..] {
            busy(&other, Arc::clone(behind)).await;
        }
        grant(&other, Arc::clone(&line[turn])).await;
        give_back(&other, &line[turn]).await;
    }
    assert_free(&store, "a").await;
}

pub async fn a_waiter_that_does_not_listen_gets_its_turn(Subject { store, other, .. }: Subject) {
    grant(&store, wish(queued(), "a", 9)).await;
    busy(&other, waiter("a", 1)).await;
    give_back(&store, &wish(queued(), "a", 9)).await;
    busy(&store, wish(queued(), "a", 2)).await;
    assert_ne!(keep_waiter(&other, fair("a", 1)).await, Renewed::Gone);
    grant(&other, waiter("a", 1)).await;
}

/// Makes a free key with waiters that listen and have heard nothing.
async fn free_with_waiters(store: &Arc<dyn LockStore>, name: &str) -> [(Arc<AcquireRequest>, Watch); 2] {
    grant(store, AcquireRequest::new(vec![fair(name, 9)], short(), PATIENCE)).await;
    let mut line = Vec::new();
    for number in [1, 2] {
        let request = waiter(name, number);
        busy(store, Arc::clone(&request)).await;
        let watch = watch_for(store, &request).await;
        line.push((request, watch));
    }
    outlast_short(store, &[fair(name, 1), fair(name, 2)]).await;
    assert_free(store, name).await;
    line.try_into().unwrap()
}

pub async fn an_expired_hold_leaves_the_key_to_the_first_waiter(Subject { store, other, .. }: Subject) {
    let [(first, mut watch), (second, _second)] = free_with_waiters(&other, "a").await;
    assert_hears_nothing(&mut watch).await;
    busy(&other, second).await;
    assert!(matches!(keep_waiter(&other, fair("a", 1)).await, Renewed::Waiting(_)));
    grant(&store, first).await;
    assert_held_by(&store, "a", 1).await;
    assert_waiters(&store, "a", 1).await;
}

pub async fn the_next_hears_when_the_first_of_a_free_key_withdraws(Subject { store, other, .. }: Subject) {
    let [(first, mut gone), (second, mut watch)] = free_with_waiters(&other, "a").await;
    withdraw(&store, &first).await;
    assert_gets_its_turn(&other, &mut watch, &second).await;
    assert_hears_nothing(&mut gone).await;
}

pub async fn the_next_hears_when_the_first_of_a_free_key_is_found_dead(
    Subject { store, other, .. }: Subject,
) {
    let [_, (second, mut watch)] = free_with_waiters(&other, "a").await;
    // The second waiter gives a sign of life here, the first does not.
    rest(waiter_life() / 2).await;
    busy(&other, Arc::clone(&second)).await;
    rest(waiter_life() * 2 / 3).await;
    assert_eq!(watch.try_notice(), None);
    // Another request notices the dead waiter.
    busy(&store, wish(queued(), "a", 3)).await;
    assert_gets_its_turn(&other, &mut watch, &second).await;
}

pub async fn the_dead_are_passed_over(Subject { store, other, .. }: Subject) {
    grant(&store, wish(queued(), "a", 9)).await;
    let mut dead = wait_in_line(&store, &waiter("a", 1)).await;
    let mut dead_too = wait_in_line(&store, &waiter("a", 2)).await;
    let request = waiter("a", 3);
    let mut watch = wait_in_line(&other, &request).await;
    rest(waiter_life() / 2).await;
    assert!(matches!(keep_waiter(&other, fair("a", 3)).await, Renewed::Waiting(_)));
    rest(waiter_life() * 2 / 3).await;
    give_back(&store, &wish(queued(), "a", 9)).await;
    assert_hears_grant(&mut watch).await;
    assert_held_by(&store, "a", 3).await;
    assert_waiters(&store, "a", 0).await;
    for watch in [&mut dead, &mut dead_too] {
        assert_hears_nothing(watch).await;
    }
    // A waiter that counted as dead has to queue again.
    assert_eq!(keep_waiter(&store, fair("a", 1)).await, Renewed::Gone);
    busy(&store, waiter("a", 1)).await;
    assert_waiters(&store, "a", 1).await;
}

pub async fn a_waiter_that_vanished_with_its_grant_loses_it(Subject { store, other, .. }: Subject) {
    grant(&store, wish(queued(), "a", 9)).await;
    let vanishing = AcquireRequest::new(vec![fair("a", 1)], short(), PATIENCE).queued(long());
    let mut watch = wait_in_line(&store, &Arc::new(vanishing)).await;
    busy(&other, waiter("a", 2)).await;
    give_back(&store, &wish(queued(), "a", 9)).await;
    assert_hears_grant(&mut watch).await;
    rest(short_is_over()).await;
    grant(&other, waiter("a", 2)).await;
}

pub async fn tokens_grow_across_direct_grants(Subject { store, other, .. }: Subject) {
    let mut last = grant(&store, wish(queued(), "a", 1).tokens(1000)).await.tokens[0].last;
    for number in 1..20 {
        let mut watch = wait_in_line(&other, &waiter("a", number + 1)).await;
        give_back(&store, &wish(queued(), "a", number)).await;
        let token = assert_hears_grant(&mut watch).await.get();
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}
