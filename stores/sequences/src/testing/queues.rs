//! The order of waiters, and their notices.

use super::*;

pub async fn a_writer_waits_for_readers_and_later_readers_wait_for_the_writer(
    store: &Sequences<impl OrderedStore>,
) {
    let [first, second, third] = [1, 2, 3].map(|owner| waiting(Kind::Read, "a", owner));
    let writer = waiting(Kind::Write, "a", 9);
    let before = ask(store, &first).await.unwrap().unwrap().tokens[0].last;
    assert!(granted(store, &second).await);
    let mut writes = queue(store, &writer).await;
    let mut reads = queue(store, &third).await;
    assert!(!granted(store, &trying(Kind::Read, "a", 4, SECOND)).await, "a writer waits");
    let status = store.status(LockKey::new("a").unwrap()).await.unwrap();
    assert_eq!((status.kind, status.holders.len(), status.waiters), (Some(Kind::Read), 2, 2));

    assert!(release(store, &first).await);
    assert!(!granted(store, &writer).await);
    assert_eq!(writes.try_notice(), None);
    assert!(release(store, &second).await);
    let token = hears_grant(&mut writes).await;
    assert!(token > before);
    assert_eq!(reads.try_notice(), None);
    assert_eq!(renew(store, &writer, 60 * SECOND).await, [Renewed::Held]);
    assert!(release(store, &writer).await);
    hears(&mut reads).await;
    assert!(ask(store, &third).await.unwrap().unwrap().tokens[0].first > token);
    assert!(release(store, &third).await);
    assert!(!store.status(LockKey::new("a").unwrap()).await.unwrap().is_locked());
}

pub async fn readers_behind_a_writer_are_let_in_together(store: &Sequences<impl OrderedStore>) {
    let writer = waiting(Kind::Write, "a", 9);
    assert!(granted(store, &writer).await);
    let readers: Vec<_> = (1..=5).map(|owner| waiting(Kind::Read, "a", owner)).collect();
    let mut watches = Vec::new();
    for reader in &readers {
        watches.push(queue(store, reader).await);
    }
    assert!(release(store, &writer).await);
    let mut tokens = Vec::new();
    for (watch, reader) in watches.iter_mut().zip(&readers) {
        hears(watch).await;
        tokens.push(ask(store, reader).await.unwrap().unwrap().tokens[0].first);
    }
    tokens.dedup();
    assert_eq!(tokens.len(), 5, "each has tokens of its own");
    let status = store.status(LockKey::new("a").unwrap()).await.unwrap();
    assert_eq!((status.kind, status.holders.len(), status.waiters), (Some(Kind::Read), 5, 0));
}

pub async fn a_forced_release_of_readers_lets_the_writer_in(store: &Sequences<impl OrderedStore>) {
    for owner in 1..=2 {
        assert!(granted(store, &waiting(Kind::Read, "a", owner)).await);
    }
    let writer = waiting(Kind::Write, "a", 9);
    let mut writes = queue(store, &writer).await;
    assert!(store.force_release(LockKey::new("a").unwrap()).await.unwrap());
    hears_grant(&mut writes).await;
    for owner in 1..=2 {
        assert_eq!(renew(store, &waiting(Kind::Read, "a", owner), SECOND).await, [Renewed::Gone]);
    }
    assert!(release(store, &writer).await);
}

pub async fn a_mutex_excludes_readers_and_writers_in_both_orders(store: &Sequences<impl OrderedStore>) {
    for kind in [Kind::Read, Kind::Write] {
        let (mutex, other) = (waiting(Kind::Mutex, "a", 1), waiting(kind, "a", 2));
        for (first, second) in [(&mutex, &other), (&other, &mutex)] {
            assert!(granted(store, first).await);
            let mut watch = queue(store, second).await;
            assert!(release(store, first).await);
            hears(&mut watch).await;
            assert!(granted(store, second).await);
            assert!(release(store, second).await);
        }
    }
}

pub async fn a_hold_that_ends_by_itself_passes_the_lock_on(store: &Sequences<impl OrderedStore>) {
    let (first, second) = (trying(Kind::Mutex, "a", 1, 300 * SECOND / 1000), waiting(Kind::Mutex, "a", 2));
    assert!(granted(store, &first).await);
    let mut watch = queue(store, &second).await;
    hears_grant(&mut watch).await;
    assert_eq!(renew(store, &first, SECOND).await, [Renewed::Gone]);
    assert!(!release(store, &first).await);
    assert!(release(store, &second).await);
}

/// As etcd's `TestMutexWaitsOnCurrentHolder`: the waiter in front goes before the holder does.
pub async fn a_waiter_in_front_that_gives_up_lets_nobody_in_early(store: &Sequences<impl OrderedStore>) {
    let [holder, front, behind] = [1, 2, 3].map(|owner| waiting(Kind::Mutex, "a", owner));
    assert!(granted(store, &holder).await);
    let _front = queue(store, &front).await;
    let mut watch = queue(store, &behind).await;
    store.withdraw(front).await.unwrap();
    tokio::time::sleep(SECOND / 2).await;
    assert_eq!(watch.try_notice(), None);
    assert!(!granted(store, &behind).await);
    assert!(release(store, &holder).await);
    hears_grant(&mut watch).await;
}

pub async fn a_request_for_several_locks_is_told_when_it_is_first_in_all_queues(
    store: &Sequences<impl OrderedStore>,
) {
    let [a, b] = ["a", "b"].map(|key| waiting(Kind::Mutex, key, 1));
    assert!(granted(store, &a).await && granted(store, &b).await);
    let items = ["a", "b", "c"].map(|key| item(Kind::Mutex, key, 2));
    let all = Arc::new(AcquireRequest::new(items, 60 * SECOND, SLACK).queued(60 * SECOND));
    let mut watch = queue(store, &all).await;
    // It keeps nobody from the lock that is free.
    let c = trying(Kind::Mutex, "c", 3, 60 * SECOND);
    assert!(granted(store, &c).await && release(store, &c).await);
    assert!(release(store, &a).await);
    tokio::time::sleep(SECOND / 5).await;
    assert_eq!(watch.try_notice(), None);
    assert!(release(store, &b).await);
    assert_eq!(tokio::time::timeout(SLACK, watch.notice()).await.unwrap(), Notice::Retry);
    assert!(granted(store, &all).await);
    assert!(release(store, &all).await);
}

pub async fn fair_locks_of_one_request_are_all_queued_for(store: &Sequences<impl OrderedStore>) {
    assert!(granted(store, &waiting(Kind::Fair, "a", 1)).await);
    let items = ["a", "b"].map(|key| item(Kind::Fair, key, 2));
    let all = Arc::new(AcquireRequest::new(items, 60 * SECOND, SLACK).queued(60 * SECOND));
    let _watch = queue(store, &all).await;
    assert!(!granted(store, &trying(Kind::Fair, "b", 3, SECOND)).await);
}

pub async fn readers_of_several_locks_get_tokens_of_their_own(store: &Sequences<impl OrderedStore>) {
    let writer = waiting(Kind::Write, "a", 1);
    assert!(granted(store, &writer).await);
    let mut all = Vec::new();
    for owner in 2..5 {
        let items = ["a", "b"].map(|key| item(Kind::Read, key, owner));
        let pair = Arc::new(AcquireRequest::new(items, 60 * SECOND, SLACK).queued(60 * SECOND));
        all.push((queue(store, &pair).await, pair));
    }
    assert!(release(store, &writer).await);
    let mut tokens = Vec::new();
    for (watch, pair) in &mut all {
        hears(watch).await;
        tokens.push(ask(store, pair).await.unwrap().unwrap().tokens[0].first);
    }
    tokens.dedup();
    assert_eq!(tokens.len(), 3);
}

pub async fn only_mutexes_that_are_free_are_left_out(store: &Sequences<impl OrderedStore>) {
    assert!(granted(store, &waiting(Kind::Mutex, "m", 1)).await);
    let items = [(Kind::Mutex, "m"), (Kind::Mutex, "n"), (Kind::Fair, "f"), (Kind::Write, "w")];
    let items = items.map(|(kind, key)| item(kind, key, 2));
    let all = Arc::new(AcquireRequest::new(items, 60 * SECOND, SLACK).queued(60 * SECOND));
    let _watch = queue(store, &all).await;
    assert!(granted(store, &trying(Kind::Mutex, "n", 3, SECOND)).await);
    for (kind, key) in [(Kind::Fair, "f"), (Kind::Read, "w")] {
        assert!(!granted(store, &trying(kind, key, 3, SECOND)).await, "{key}");
    }
}

/// A lock that was free is taken meanwhile: the request takes both places anew, together.
pub async fn two_requests_for_the_same_locks_never_wait_for_each_other(store: &Sequences<impl OrderedStore>) {
    let [a, b] = ["a", "b"].map(|key| waiting(Kind::Mutex, key, 1));
    let pair = |owner| {
        let items = ["a", "b"].map(|key| item(Kind::Mutex, key, owner));
        Arc::new(AcquireRequest::new(items, 60 * SECOND, SLACK).queued(60 * SECOND))
    };
    let (first, second) = (pair(2), pair(3));
    assert!(granted(store, &a).await);
    let mut one = queue(store, &first).await;
    assert!(granted(store, &b).await);
    // It finds both taken, and is in both queues.
    let mut other = queue(store, &second).await;
    assert!(release(store, &a).await);
    assert_eq!(tokio::time::timeout(SLACK, one.notice()).await.unwrap(), Notice::Retry);
    assert!(!granted(store, &first).await, "b is taken");
    assert!(release(store, &b).await);
    let mut done = 0;
    while done < 2 {
        let (request, watch) = if done == 0 { (&second, &mut other) } else { (&first, &mut one) };
        hears(watch).await;
        if granted(store, request).await {
            assert!(release(store, request).await);
            done += 1;
        }
    }
    for key in ["a", "b"] {
        assert!(!store.status(LockKey::new(key).unwrap()).await.unwrap().is_locked());
    }
}

pub async fn a_contender_that_asks_again_is_one_entry(store: &Sequences<impl OrderedStore>) {
    assert!(granted(store, &waiting(Kind::Mutex, "a", 1)).await);
    let contender = waiting(Kind::Mutex, "a", 2);
    for _ in 0..20 {
        assert!(!granted(store, &contender).await);
    }
    let status = store.status(LockKey::new("a").unwrap()).await.unwrap();
    assert_eq!((status.holders.len(), status.waiters), (1, 1));
}
