//! Release and acquire in one step.

use lock_core::store::{ListenerPolicy, ServerTime, Takeover, Watch};

use super::*;

fn takeover(from: &[Item], to: &Arc<AcquireRequest>, listeners: ListenerPolicy) -> Arc<ReleaseRequest> {
    takeover_with(from, to, listeners, None)
}

fn takeover_with(
    from: &[Item],
    to: &Arc<AcquireRequest>,
    listeners: ListenerPolicy,
    own: Option<&Watch>,
) -> Arc<ReleaseRequest> {
    let then = Takeover { request: Arc::clone(to), listeners };
    Arc::new(ReleaseRequest { then: Some(then), own_watch: own.map(Watch::echo), ..release_request(from) })
}

async fn holder(server: &RedisServer, lock: &str) -> Vec<String> {
    server.ask(&["HKEYS", lock]).await
}

#[tokio::test]
async fn the_next_owner_takes_over_when_nobody_else_listens() {
    let server = RedisServer::start();
    let store = store(&server);
    let mine = [item("a"), item("b")];
    let first = granted(&store, &mine).await;
    // The other order: the answer is in the order of the request.
    let next = [item("b"), item("a")];
    let request = Arc::new(request(&next).tokens(7));
    let released = store.release(takeover(&mine, &request, ListenerPolicy::Respect)).await.unwrap();
    assert_eq!(released.held, [true, true]);
    let then = released.then.unwrap();
    assert_eq!(then.tokens.len(), 2);
    for range in &then.tokens {
        assert_eq!(range.last - range.first, 6);
        assert!(range.first > first.tokens[0].last);
    }
    assert_eq!(holder(&server, "lock:a").await, [next[1].owner.as_str()]);
    assert_eq!(holder(&server, "lock:b").await, [next[0].owner.as_str()]);
    let left: u64 = server.ask(&["PTTL", "lock:a"]).await;
    assert!(left > 5_000);
    assert!(request.latest().is_some(), "stamped, so that it can be withdrawn");
}

#[tokio::test]
async fn each_key_has_its_own_tokens_when_the_order_differs() {
    let server = RedisServer::start();
    let store = store(&server);
    let mine = [item("a"), item("b")];
    granted(&store, &mine).await;
    let _: () = server.ask(&["SET", "redisson_lock_token:{lock:a}", "9007199254740993"]).await;
    let request = Arc::new(request(&[item("b"), item("a")]));
    let released = store.release(takeover(&mine, &request, ListenerPolicy::Respect)).await.unwrap();
    let then = released.then.unwrap();
    assert_eq!(then.tokens[1].last, 9_007_199_254_740_994);
    assert!(then.tokens[0].last < 9_007_199_254_740_992);
}

#[tokio::test]
async fn listeners_of_others_stop_a_takeover_unless_they_are_ignored() {
    let server = RedisServer::start();
    let (store, other) = (store(&server), store(&server));
    let own = store.watch(Arc::new(request(&[item("a")]))).await.unwrap();
    let mine = [item("a")];
    let next = Arc::new(request(&[item("a")]));
    granted(&store, &mine).await;
    let released =
        store.release(takeover_with(&mine, &next, ListenerPolicy::Respect, Some(&own))).await.unwrap();
    assert!(
        released.then.is_some() && own.echo().is_expected(),
        "the store's own watch does not count: {released:?}"
    );
    assert_eq!(released.rivals, Rivals::None);

    let _watch = other.watch(Arc::new(request(&[item("a")]))).await.unwrap();
    let after = Arc::new(request(&[item("a")]));
    let released =
        store.release(takeover_with(&next.items, &after, ListenerPolicy::Respect, Some(&own))).await.unwrap();
    assert_eq!((&*released.held, released.rivals), ([true].as_slice(), Rivals::Some));
    assert!(released.then.is_none());
    assert!(holder(&server, "lock:a").await.is_empty());

    granted(&store, &mine).await;
    let released =
        store.release(takeover_with(&mine, &after, ListenerPolicy::Ignore, Some(&own))).await.unwrap();
    assert_eq!(released.rivals, Rivals::Some);
    assert!(released.then.is_some());
}

#[tokio::test]
async fn listeners_of_the_same_process_stop_a_takeover_too() {
    let server = RedisServer::start();
    let store = store(&server);
    let mine = [item("a")];
    let own = store.watch(Arc::new(request(&mine))).await.unwrap();
    let neighbour = store.watch(Arc::new(request(&mine))).await.unwrap();
    let next = Arc::new(request(&[item("a")]));
    granted(&store, &mine).await;
    let released =
        store.release(takeover_with(&mine, &next, ListenerPolicy::Respect, Some(&own))).await.unwrap();
    assert_eq!((released.rivals, released.then), (Rivals::Some, None));
    granted(&store, &mine).await;
    drop(neighbour);
    let released =
        store.release(takeover_with(&mine, &next, ListenerPolicy::Respect, Some(&own))).await.unwrap();
    assert!(released.rivals == Rivals::None && released.then.is_some());
}

#[tokio::test]
async fn whoever_does_not_hold_the_lock_takes_nothing_over() {
    let server = RedisServer::start();
    let store = store(&server);
    let held = [item("a")];
    granted(&store, &held).await;
    let next = Arc::new(request(&[item("a")]));
    let released = store.release(takeover(&[item("a")], &next, ListenerPolicy::Ignore)).await.unwrap();
    assert_eq!(released.held, [false]);
    assert!(released.then.is_none());
    assert_eq!(holder(&server, "lock:a").await, [held[0].owner.as_str()]);
    // Nor if the lock is free.
    release(&store, &held).await.unwrap();
    let released = store.release(takeover(&held, &next, ListenerPolicy::Ignore)).await.unwrap();
    assert!(released.then.is_none() && holder(&server, "lock:a").await.is_empty());
}

#[tokio::test]
async fn a_takeover_that_comes_too_late_still_releases() {
    let server = RedisServer::start();
    let store = store(&server);
    let mine = [item("a")];
    granted(&store, &mine).await;
    let now = Clock::Boot.now();
    store.node().server_clock.pretend(ServerTime::from_micros(1), now);
    let next = Arc::new(request(&[item("a")]));
    let released = store.release(takeover(&mine, &next, ListenerPolicy::Respect)).await.unwrap();
    assert_eq!(released.held, [true]);
    assert!(released.then.is_none());
    assert!(holder(&server, "lock:a").await.is_empty());
}

#[tokio::test]
async fn a_takeover_that_fails_still_releases() {
    let server = RedisServer::start();
    let store = store(&server);
    for value in ["abc", "9223372036854775807"] {
        let mine = [item("a")];
        let _: () = server.ask(&["DEL", "redisson_lock_token:{lock:a}"]).await;
        granted(&store, &mine).await;
        let _: () = server.ask(&["SET", "redisson_lock_token:{lock:a}", value]).await;
        let next = Arc::new(request(&[item("a")]));
        let released = store.release(takeover(&mine, &next, ListenerPolicy::Respect)).await.unwrap();
        assert_eq!((&*released.held, &released.then), ([true].as_slice(), &None), "{value}");
        assert!(holder(&server, "lock:a").await.is_empty());
    }
    let mine = [item("a")];
    let _: () = server.ask(&["DEL", "redisson_lock_token:{lock:a}"]).await;
    granted(&store, &mine).await;
    let _: () = server.ask(&["DEL", "redisson_lock_token:{lock:a}"]).await;
    let _: () = server.ask(&["RPUSH", "redisson_lock_token:{lock:a}", "x"]).await;
    let next = Arc::new(request(&[item("a")]));
    let released = store.release(takeover(&mine, &next, ListenerPolicy::Respect)).await.unwrap();
    assert_eq!((&*released.held, &released.then), ([true].as_slice(), &None));
}

#[tokio::test]
async fn waiters_elsewhere_are_told_of_a_takeover_too() {
    let server = RedisServer::start();
    let (store, other) = (store(&server), store(&server));
    let mut watch = other.watch(Arc::new(request(&[item("a")]))).await.unwrap();
    let mine = [item("a")];
    granted(&store, &mine).await;
    let next = Arc::new(request(&[item("a")]));
    store.release(takeover(&mine, &next, ListenerPolicy::Ignore)).await.unwrap();
    assert_eq!(watch.notice().await, lock_core::store::Notice::Retry);
}
