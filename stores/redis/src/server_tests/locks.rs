//! The plain path: acquire, release, renew, withdraw, status, force release.

use lock_core::store::{RenewItem, RenewRequest, Renewed, ServerTime, StoreErrorKind, TokenRange, Withdrawn};

use super::*;

#[tokio::test]
async fn a_lock_is_taken_once_and_given_back() {
    let server = RedisServer::start();
    let store = store(&server);
    let (first, second) = (item("a"), item("a"));

    let granted = granted(&store, std::slice::from_ref(&first)).await;
    assert_eq!(granted.tokens.len(), 1);
    let busy = busy(&store, std::slice::from_ref(&second)).await;
    assert_eq!(busy.item, 0);
    assert!(
        busy.remaining.unwrap() <= LEASE && busy.remaining.unwrap() > LEASE - Duration::from_secs(5),
        "{busy:?}"
    );

    assert_eq!(release(&store, std::slice::from_ref(&second)).await.unwrap().held, [false]);
    let released = release(&store, std::slice::from_ref(&first)).await.unwrap();
    assert_eq!(released, Released { held: vec![true].into(), rivals: Rivals::None, then: None });
    assert_eq!(release(&store, std::slice::from_ref(&first)).await.unwrap().held, [false], "sent again");

    let next = super::granted(&store, &[second]).await;
    assert!(next.tokens[0].first > granted.tokens[0].last);
}

#[tokio::test]
async fn several_keys_are_taken_all_or_none() {
    let server = RedisServer::start();
    let store = store(&server);
    let held = [item("b")];
    granted(&store, &held).await;

    let all = [item("a"), item("b"), item("c")];
    assert_eq!(busy(&store, &all).await.item, 1);
    assert!(!server.keys().await.contains(&"lock:a".to_owned()));

    release(&store, &held).await.unwrap();
    let granted = granted_by(&store, request(&all).tokens(5)).await;
    assert_eq!(granted.tokens.len(), 3);
    for range in &granted.tokens {
        assert_eq!(range.last - range.first, 4);
    }
    let one_gone = [all[0].clone(), item("b"), all[2].clone()];
    assert_eq!(release(&store, &one_gone).await.unwrap().held, [true, false, true]);
    assert_eq!(server.keys().await.iter().filter(|key| key.starts_with("lock:")).count(), 1);
}

#[tokio::test]
async fn tokens_come_in_ranges_that_never_overlap() {
    let server = RedisServer::start();
    let store = store(&server);
    let mut highest = 0;
    for tokens in [1, 1000, 1, 131_072, 1, 2, 131_072, 131_072] {
        let item = [item("a")];
        let granted = granted_by(&store, request(&item).tokens(tokens)).await;
        let TokenRange { first, last } = granted.tokens[0];
        assert_eq!(last - first + 1, u64::from(tokens));
        assert!(first > highest, "{first} {highest}");
        highest = last;
        let counter: u64 = server.ask(&["GET", "redisson_lock_token:{lock:a}"]).await;
        assert_eq!(counter, last, "the counter is the highest token granted");
        release(&store, &item).await.unwrap();
    }
}

#[tokio::test]
async fn tokens_are_above_the_floor() {
    let server = RedisServer::start();
    let store = store(&server);
    let now = {
        let item = [item("a")];
        let now = granted(&store, &item).await.moment.get();
        release(&store, &item).await.unwrap();
        now
    };
    for floor in [7, now + 3_600_000_000, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, 1 << 62] {
        let item = [item("a")];
        let granted = granted_by(&store, request(&item).tokens(3).above(floor)).await;
        assert!(granted.tokens[0].first > floor, "{granted:?}");
        assert!(granted.moment.get().abs_diff(now) < 60_000_000, "{granted:?}");
        release(&store, &item).await.unwrap();
    }
    let error = store.acquire(Arc::new(request(&[item("a")]).above(u64::MAX))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported);
}

#[tokio::test]
async fn renew_lengthens_what_is_held_and_nothing_else() {
    let server = RedisServer::start();
    let store = store(&server);
    let items = [item("a"), item("b")];
    granted(&store, &items).await;
    let foreign = item("b");
    let text = item("text");
    let _: () = server.ask(&["SET", "lock:text", "x"]).await;
    let renewing = |item: &Item, secs| RenewItem::hold(item.clone(), Duration::from_secs(secs));
    let request = RenewRequest {
        items: vec![
            renewing(&items[0], 60),
            renewing(&foreign, 60),
            renewing(&items[1], 1),
            renewing(&text, 60),
        ],
        timeout: TIMEOUT,
    };
    let kept = store.renew(Arc::new(request)).await.unwrap();
    assert_eq!(kept, [Renewed::Held, Renewed::Gone, Renewed::Held, Renewed::Gone]);
    let a: u64 = server.ask(&["PTTL", "lock:a"]).await;
    let b: u64 = server.ask(&["PTTL", "lock:b"]).await;
    assert!(a > 50_000 && a <= 60_000, "{a}");
    assert!(b > 5_000 && b <= 10_000, "only lengthened: {b}");
}

#[tokio::test]
async fn a_lingering_release_shortens_and_never_lengthens() {
    let server = RedisServer::start();
    let store = store(&server);
    let mine = [item("a")];
    granted(&store, &mine).await;
    let linger = |items: &[Item], millis| {
        let request = ReleaseRequest { linger: Duration::from_millis(millis), ..release_request(items) };
        store.release(Arc::new(request))
    };
    assert_eq!(linger(&[item("a")], 100).await.unwrap().held, [false]);
    let left: u64 = server.ask(&["PTTL", "lock:a"]).await;
    assert!(left > 5_000, "not the owner: {left}");
    assert_eq!(linger(&mine, 3_000).await.unwrap().held, [true]);
    assert_eq!(linger(&mine, 60_000).await.unwrap().held, [true]);
    let left: u64 = server.ask(&["PTTL", "lock:a"]).await;
    assert!(left <= 3_000 && left > 1_000, "{left}");
}

#[tokio::test]
async fn a_withdrawn_acquire_holds_nothing_and_settles_after_its_time() {
    let server = RedisServer::start();
    let store = store(&server);
    let items = [item("a"), item("b")];
    let request = Arc::new(AcquireRequest::new(items.to_vec(), LEASE, Duration::from_millis(300)));
    let never = Arc::new(AcquireRequest::new(items.to_vec(), LEASE, Duration::from_millis(300)));
    assert_eq!(store.withdraw(Arc::clone(&never)).await.unwrap(), Withdrawn::Settled, "was never sent");
    let error = store.acquire(never).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TooLate, "and never will be: {error}");

    assert!(matches!(store.acquire(Arc::clone(&request)).await.unwrap(), Acquired::Granted(_)));
    let Withdrawn::Pending(wait) = store.withdraw(Arc::clone(&request)).await.unwrap() else {
        panic!("a late copy could still come");
    };
    assert!(wait <= Duration::from_millis(400), "{wait:?}");
    assert!(!server.keys().await.contains(&"lock:a".to_owned()));
    tokio::time::sleep(wait).await;
    assert_eq!(store.withdraw(request).await.unwrap(), Withdrawn::Settled);
}

#[tokio::test]
async fn withdrawing_touches_no_other_owner() {
    let server = RedisServer::start();
    let store = store(&server);
    let late = Arc::new(request(&[item("a")]));
    let held = [item("a")];
    granted(&store, &held).await;
    assert!(matches!(store.acquire(Arc::clone(&late)).await.unwrap(), Acquired::Busy(_)));
    store.withdraw(late).await.unwrap();
    assert_eq!(release(&store, &held).await.unwrap().held, [true]);
}

#[tokio::test]
async fn an_acquire_that_arrives_late_takes_nothing() {
    let server = RedisServer::start();
    let store = store(&server);
    granted(&store, &[item("warm-up")]).await;
    let late = Arc::new(AcquireRequest::new(vec![item("a")], LEASE, Duration::from_millis(200)));
    let error = acquire_late(&store, late).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TooLate, "{error}");
    assert!(!server.keys().await.contains(&"lock:a".to_owned()));
    granted(&store, &[item("a")]).await;
}

#[tokio::test]
async fn after_a_clock_jump_the_second_try_succeeds() {
    let server = RedisServer::start();
    let store = store(&server);
    granted(&store, &[item("warm-up")]).await;
    // The store's estimate of the server's time is an hour old: the server's clock was stepped
    // forward.
    let now = Clock::Boot.now();
    let estimate = store.node().server_clock.estimate(now).unwrap().as_micros();
    store.node().server_clock.pretend(ServerTime::from_micros(estimate - 3_600_000_000), now);
    granted(&store, &[item("a")]).await;
    let estimate = store.node().server_clock.estimate(Clock::Boot.now()).unwrap().as_micros();
    let (seconds, micros): (u64, u64) = server.ask(&["TIME"]).await;
    assert!(estimate.abs_diff(seconds * 1_000_000 + micros) < 5_000_000);
}

#[tokio::test]
async fn who_is_refused_hears_how_many_listen() {
    let server = RedisServer::start();
    for name in ["a", "{tag}a"] {
        let (mine, others) = (store(&server), [store(&server), store(&server)]);
        granted(&mine, &[item(name)]).await;
        assert_eq!(busy(&mine, &[item(name)]).await.listeners, 0);
        let mut watches = Vec::new();
        for other in &others {
            watches.push(other.watch(Arc::new(request(&[item(name)]))).await.unwrap());
        }
        assert_eq!(busy(&mine, &[item(name)]).await.listeners, 2);
    }
    let _: () = server.ask(&["ACL", "SETUSER", "ann", "on", ">x", "~*", "&*", "+@all", "-pubsub"]).await;
    let store = RedisStore::new(&server.client_as("ann", "x"), options()).unwrap();
    assert_eq!(busy(&store, &[item("a")]).await.listeners, 0, "without the right, no listeners are counted");
}

#[tokio::test]
async fn status_tells_who_holds_a_lock() {
    let server = RedisServer::start();
    let store = store(&server);
    let free = store.status(key("a")).await.unwrap();
    assert!(!free.is_locked() && free.remaining.is_none() && free.last_token.is_none());
    let mine = [item("a")];
    let granted = granted(&store, &mine).await;
    let held = store.status(key("a")).await.unwrap();
    assert_eq!(held.holders, [(mine[0].owner.clone(), 1)]);
    assert!(held.remaining.unwrap() <= LEASE);
    assert_eq!(held.last_token.unwrap().get(), granted.tokens[0].last);
    release(&store, &mine).await.unwrap();
    let free = store.status(key("a")).await.unwrap();
    assert!(!free.is_locked());
    assert_eq!(free.last_token.unwrap().get(), granted.tokens[0].last);
}

#[tokio::test]
async fn force_release_frees_locks_and_leaves_the_counter() {
    let server = RedisServer::start();
    let store = store(&server);
    assert!(!store.force_release(key("a")).await.unwrap());
    let first = granted(&store, &[item("a")]).await;
    assert!(store.force_release(key("a")).await.unwrap());
    let second = granted(&store, &[item("a")]).await;
    assert!(second.tokens[0].first > first.tokens[0].last);
}

#[tokio::test]
async fn nothing_happens_before_the_first_poll() {
    let server = RedisServer::start();
    let store = store(&server);
    granted(&store, &[item("warm-up")]).await;
    let call = store.acquire(Arc::new(request(&[item("a")])));
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(call);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!server.keys().await.contains(&"lock:a".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_stores_never_hold_a_lock_at_the_same_time() {
    let server = RedisServer::start();
    let stores = [Arc::new(store(&server)), Arc::new(store(&server))];
    let holder = Arc::new(AtomicU64::new(0));
    let highest = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (1..=16)
        .map(|task| {
            let (store, holder, highest) =
                (Arc::clone(&stores[task % 2]), Arc::clone(&holder), Arc::clone(&highest));
            tokio::spawn(async move {
                let mut held = 0;
                while held < 50 {
                    let mine = [item("a")];
                    let Acquired::Granted(granted) = acquire(&store, &mine).await.unwrap() else {
                        tokio::time::sleep(Duration::from_micros(300)).await;
                        continue;
                    };
                    held += 1;
                    assert_eq!(holder.swap(task as u64, Ordering::SeqCst), 0, "another holder is inside");
                    let token = granted.tokens[0].first;
                    assert!(
                        highest.swap(token, Ordering::SeqCst) < token,
                        "tokens follow the order of grants"
                    );
                    tokio::task::yield_now().await;
                    assert_eq!(holder.swap(0, Ordering::SeqCst), task as u64);
                    assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}
