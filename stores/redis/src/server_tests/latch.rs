//! Latches at the server: effects that Redisson sees, foreign data, and full memory.

use lock_core::store::{CountDownRequest, LatchStore, StoreErrorKind};

use super::wire::Subscription;
use super::*;

fn call(id: &str) -> Arc<CountDownRequest> {
    Arc::new(CountDownRequest::new(key("l"), id.to_owned(), TIMEOUT, Duration::from_secs(20)))
}

fn latches(server: &RedisServer) -> Arc<dyn LatchStore> {
    store(server).latches().unwrap()
}

#[tokio::test]
async fn keys_and_messages_are_those_of_a_count_down_latch() {
    let server = RedisServer::start();
    let mut waiter = Subscription::start(&server, "redisson_countdownlatch__channel__{lock:l}").await;
    let latches = latches(&server);
    latches.try_set_count(key("l"), 2, TIMEOUT).await.unwrap();
    assert_eq!(waiter.next().await, "1");
    assert_eq!(server.ask::<String>(&["GET", "lock:l"]).await, "2");

    latches.count_down(call("a")).await.unwrap();
    assert_eq!(server.ask::<String>(&["GET", "lock:l"]).await, "1");
    assert_eq!(server.keys().await, ["lock:l", "lock_latch_done:{lock:l}:a"]);
    let life: i64 = server.ask(&["PTTL", "lock_latch_done:{lock:l}:a"]).await;
    assert!(life > 10_000 && life <= 20_000, "{life}");

    latches.count_down(call("b")).await.unwrap();
    assert_eq!(waiter.next().await, "0");
    assert!(!server.keys().await.contains(&"lock:l".to_owned()));
    latches.try_set_count(key("l"), 2, TIMEOUT).await.unwrap();
    assert_eq!(waiter.next().await, "1");
    // Not the `1` of Redisson's own delete, which wakes none of its waiters.
    latches.delete(key("l"), TIMEOUT).await.unwrap();
    assert_eq!(waiter.next().await, "0");
}

/// Java may leave a zero behind with `trySetCount(0)`.
#[tokio::test]
async fn a_latch_that_java_left_at_zero_is_cleared_by_counting() {
    let server = RedisServer::start();
    let _: () = server.ask(&["SET", "lock:l", "0"]).await;
    let latches = latches(&server);
    assert_eq!(latches.count(key("l"), TIMEOUT).await, Ok(0));
    assert_eq!(latches.count_down(call("a")).await, Ok(0));
    assert_eq!(server.keys().await, [""; 0]);
}

#[tokio::test]
async fn a_late_count_down_does_not_count() {
    let server = RedisServer::start();
    let latches = latches(&server);
    latches.try_set_count(key("l"), 2, TIMEOUT).await.unwrap();
    let store = store(&server);
    store.check().await.unwrap();
    let now = Clock::Boot.now();
    store.node().server_clock.pretend(ServerTime::from_micros(1), now + Duration::from_secs(3600));
    let error = store.latches().unwrap().count_down(call("a")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TooLate, "{error}");
    assert_eq!(latches.count(key("l"), TIMEOUT).await, Ok(2));
}

#[tokio::test]
async fn what_is_no_latch_is_left_alone() {
    let server = RedisServer::start();
    for command in [["HSET", "lock:l", "a", "b"], ["SET", "lock:l", "a text", "KEEPTTL"]] {
        let _: () = server.ask(&["FLUSHALL"]).await;
        let _: () = server.ask(&command).await;
        let before: Vec<u8> = server.ask(&["DUMP", "lock:l"]).await;
        let latches = latches(&server);
        let errors = [
            latches.try_set_count(key("l"), 1, TIMEOUT).await.err(),
            latches.count_down(call("a")).await.err(),
            latches.count(key("l"), TIMEOUT).await.err(),
            latches.delete(key("l"), TIMEOUT).await.err(),
        ];
        for error in errors {
            let error = error.unwrap_or_else(|| panic!("{command:?}"));
            assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{error}");
            assert!(error.to_string().contains("lock:l"), "{error}");
        }
        assert_eq!(server.keys().await, ["lock:l"]);
        assert_eq!(server.ask::<Vec<u8>>(&["DUMP", "lock:l"]).await, before);
    }
}

#[tokio::test]
async fn a_latch_is_counted_down_when_memory_is_full() {
    let server = RedisServer::start();
    let latches = latches(&server);
    latches.try_set_count(key("l"), 2, TIMEOUT).await.unwrap();
    let _: () = server.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = latches.try_set_count(key("m"), 2, TIMEOUT).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
    assert_eq!(latches.count_down(call("a")).await, Ok(1));
    assert_eq!(latches.count_down(call("a")).await, Ok(1));
    assert_eq!(latches.count_down(call("b")).await, Ok(0));
}
