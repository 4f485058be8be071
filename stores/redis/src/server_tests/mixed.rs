//! Requests for items of several kinds: one script, all or nothing.

use super::rw::{assert_about, hold, pttl, read, write};
use super::wire::Subscription;
use super::*;

/// Returns the keys of holds and waiters, without counters.
async fn left(server: &RedisServer) -> Vec<String> {
    server.keys().await.into_iter().filter(|key| !key.starts_with("redisson_lock_token")).collect()
}

#[tokio::test]
async fn items_of_all_kinds_are_taken_and_given_back_together() {
    let server = RedisServer::start();
    let store = store(&server);
    let all = [read("a"), write("b"), item("c")];
    let got = granted_by(&store, request(&all).tokens(5)).await;
    assert_eq!(got.tokens.len(), 3);
    for (range, name) in got.tokens.iter().zip(["a", "b", "c"]) {
        assert_eq!(range.last - range.first, 4);
        let counter: u64 = server.ask(&["GET", &format!("redisson_lock_token:{{lock:{name}}}")]).await;
        assert_eq!(counter, range.last);
    }
    for lock in ["lock:a", "lock:b", "lock:c"] {
        assert_about(pttl(&server, lock).await, 10_000);
    }
    let one_gone = [all[0].clone(), write("b"), all[2].clone()];
    assert_eq!(renew(&store, &one_gone, LEASE).await, [Renewed::Held, Renewed::Gone, Renewed::Held]);
    assert_eq!(release(&store, &one_gone).await.unwrap().held, [true, false, true]);
    assert_eq!(left(&server).await, ["lock:b"]);
    assert_eq!(release(&store, &all).await.unwrap().held, [false, true, false]);
    assert!(left(&server).await.is_empty());
}

#[tokio::test]
async fn one_busy_item_is_enough_to_take_nothing() {
    let server = RedisServer::start();
    let store = store(&server);
    for held in [item("b"), read("b"), write("b")] {
        granted(&store, std::slice::from_ref(&held)).await;
        let before = server.keys().await;
        for wish in [
            vec![read("a"), write("b"), item("c")],
            vec![item("a"), write("b")],
            vec![write("a"), item("b"), read("c")],
        ] {
            assert_eq!(busy(&store, &wish).await.item, 1, "{held:?}");
            assert_eq!(server.keys().await, before, "{held:?}");
        }
        release(&store, &[held]).await.unwrap();
    }
    // The first of two busy items is named.
    granted(&store, &[item("b"), item("c")]).await;
    assert_eq!(waits(&store, &[read("a"), write("b"), read("c")]).await.item, 1);
}

#[tokio::test]
async fn a_refused_request_that_waits_keeps_readers_out_of_all_it_is_to_write() {
    let server = RedisServer::start();
    let store = store(&server);
    let (holders, other) = ([read("b"), read("c")], [item("a"), write("d")]);
    granted(&store, &holders).await;
    granted(&store, &other).await;
    let wish = [item("a"), write("b"), read("c"), write("d"), write("e")];
    let intents = async || {
        let left = left(&server).await;
        left.into_iter().filter(|key| key.contains("intent")).collect::<Vec<_>>()
    };
    assert_eq!(waits(&store, &wish).await.item, 0);
    assert!(intents().await.is_empty(), "not only readers are in the way");
    release(&store, &other).await.unwrap();
    assert_eq!(waits(&store, &wish).await.item, 1);
    assert_eq!(intents().await, ["lock_rw_intent:{lock:b}"], "only where there are readers");

    let kept = stay(&store, &wish).await;
    assert_eq!(kept.len(), 5);
    assert!(kept.iter().all(|kept| matches!(kept, Renewed::Waiting(_))), "{kept:?}");
    release(&store, &holders).await.unwrap();
    granted(&store, &wish).await;
    assert!(!left(&server).await.iter().any(|key| key.contains("intent")), "the grant ends it");
}

#[tokio::test]
async fn a_withdrawal_frees_and_wakes_whatever_the_kinds_are() {
    let server = RedisServer::start();
    let store = store(&server);
    let mut mutexes = Subscription::start(&server, "redisson_lock__channel:{lock:a}").await;
    let mut readers = Subscription::start(&server, "redisson_rwlock:{lock:b}").await;
    let wish = Arc::new(request(&[item("a"), write("b"), read("c")]));
    assert!(matches!(store.acquire(Arc::clone(&wish)).await.unwrap(), Acquired::Granted(_)));
    store.withdraw(wish).await.unwrap();
    assert!(left(&server).await.is_empty());
    assert_eq!((mutexes.next().await.as_str(), readers.next().await.as_str()), ("0", "1"));
}

#[tokio::test]
async fn holds_and_waiters_are_kept_by_one_call() {
    let server = RedisServer::start();
    let store = store(&server);
    let (holds, reader) = ([item("a"), read("b"), write("c")], [read("d")]);
    granted(&store, &holds).await;
    granted(&store, &reader).await;
    let waiter = write("d");
    let kept = |item: &Item, standing| RenewItem { standing, ..RenewItem::hold(item.clone(), 2 * LEASE) };
    let mut items: Vec<RenewItem> = holds.iter().map(|item| kept(item, Standing::Holder)).collect();
    items.push(kept(&waiter, Standing::Waiter));
    items.push(kept(&item("a"), Standing::Waiter));
    items.push(kept(&holds[0], Standing::Waiter));
    let _: () = server.ask(&["SET", "lock_rw_intent:{lock:d}", waiter.owner.as_str(), "PX", "500"]).await;
    let answers = store.renew(Arc::new(RenewRequest { items, timeout: TIMEOUT })).await.unwrap();
    assert_eq!(answers[..3], [Renewed::Held; 3]);
    assert!(matches!(answers[3..5], [Renewed::Waiting(_), Renewed::Waiting(_)]), "{answers:?}");
    assert_eq!(answers[5], Renewed::Held, "it has missed that it was granted");
    for key in ["lock:a", "lock:b", "lock:c"] {
        assert_about(pttl(&server, key).await, 20_000);
    }
    assert_about(pttl(&server, "lock:d").await, 10_000);
    assert_eq!(pttl(&server, &hold(&waiter)).await, -2);
    assert!(pttl(&server, "lock_rw_intent:{lock:d}").await > 500);
}

#[tokio::test]
async fn a_watch_hears_of_every_item_in_its_own_way() {
    let server = RedisServer::start();
    let (store, other) = (store(&server), store(&server));
    let wish = [item("a"), write("b"), read("c")];
    let mut watch = other.watch(Arc::new(request(&wish))).await.unwrap();
    assert!(watch.is_confirmed());
    for held in [item("a"), read("b"), write("c")] {
        granted(&store, std::slice::from_ref(&held)).await;
        assert_eq!(release(&store, &[held]).await.unwrap().rivals, Rivals::Some);
        assert_eq!(watch.notice().await, lock_core::store::Notice::Retry);
    }
}

#[tokio::test]
async fn tokens_are_above_the_floor() {
    let server = RedisServer::start();
    let store = store(&server);
    let floor = 1 << 60;
    let got = granted_by(&store, request(&[read("a"), item("b")]).tokens(2).above(floor)).await;
    assert!(got.tokens.iter().all(|range| range.first > floor), "{got:?}");
}

#[tokio::test]
async fn linger_of_several_kinds_shortens_each() {
    let server = RedisServer::start();
    let store = store(&server);
    let all = [item("a"), read("b"), write("c")];
    granted_by(&store, AcquireRequest::new(all.to_vec(), 10 * LEASE, TIMEOUT)).await;
    let linger = ReleaseRequest { linger: 5 * LEASE, ..release_request(&all) };
    assert_eq!(store.release(Arc::new(linger)).await.unwrap().held, [true; 3]);
    for key in ["lock:a", "lock:b", "lock:c"] {
        assert_about(pttl(&server, key).await, 50_000);
    }
}

#[tokio::test]
async fn a_request_with_fair_items_waits_in_their_queues_and_leaves_nothing_there() {
    let server = RedisServer::start();
    let store = store(&server);
    let holders = [read("a"), item_of(Kind::Fair, "b"), item("c")];
    granted(&store, &holders).await;
    let wish = [write("a"), item_of(Kind::Fair, "b"), item("c"), item_of(Kind::Fair, "d")];
    for withdrawn in [true, false] {
        let sent = Arc::new(request(&wish).queued(LEASE));
        let Acquired::Busy(refused) = store.acquire(Arc::clone(&sent)).await.unwrap() else {
            panic!("granted")
        };
        assert_eq!(refused.item, 0);
        for name in ["b", "d"] {
            let queue: Vec<String> =
                server.ask(&["LRANGE", &format!("redisson_lock_queue:{{lock:{name}}}"), "0", "-1"]).await;
            let mine = wish.iter().find(|item| item.key == key(name)).unwrap();
            assert_eq!(queue, [mine.owner.as_str()], "also where it is free");
        }
        assert!(stay(&store, &wish).await.iter().all(|kept| matches!(kept, Renewed::Waiting(_))));
        if withdrawn {
            store.withdraw(sent).await.unwrap();
        } else {
            release(&store, &holders).await.unwrap();
            granted(&store, &wish).await;
        }
        let waiting = left(&server).await;
        assert!(
            !waiting
                .iter()
                .any(|key| ["queue", "timeout:{", "alive", "intent"].iter().any(|part| key.contains(part))),
            "{waiting:?}"
        );
    }
    assert_eq!(renew(&store, &wish, LEASE).await, [Renewed::Held; 4]);
    assert_eq!(release(&store, &wish).await.unwrap().held, [true; 4]);
    assert!(left(&server).await.is_empty());
}

#[tokio::test]
async fn full_memory_frees_and_keeps_items_of_all_kinds() {
    let server = RedisServer::start();
    let store = store(&server);
    let all = [item("a"), read("b"), write("c"), item_of(Kind::Fair, "d")];
    granted(&store, &all).await;
    let _: () = server.ask(&["SCRIPT", "FLUSH"]).await;
    let _: () = server.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let wish = request(&[read("x"), item_of(Kind::Fair, "y")]);
    let error = store.acquire(Arc::new(wish)).await.unwrap_err();
    assert_eq!(error.kind(), lock_core::store::StoreErrorKind::Full, "{error}");
    assert_eq!(renew(&store, &all, 2 * LEASE).await, [Renewed::Held; 4]);
    assert!(
        store
            .scan(lock_core::store::ScanRequest { prefix: String::new(), cursor: None, timeout: TIMEOUT })
            .await
            .is_ok()
    );
    assert_eq!(release(&store, &all).await.unwrap().held, [true; 4]);
    assert!(left(&server).await.is_empty());
}
