//! One counter of fencing tokens for Redisson's `RFencedLock` and for our locks. Java's tokens are
//! those that `lockAndGetToken()` returns to the program.

use std::time::{Duration, Instant};

use lock_runtime::{FencingToken, LockManager, TokenRetention};
use lock_tests::eventually;
use lock_tests::java::{Java, JavaLock, SLACK, Servers, Shared, connect};

const COUNTER: &str = "redisson_lock_token:{k}";

async fn both(server: &Shared) -> (LockManager, Java) {
    (connect(server, |builder| builder).await, Java::start(server).await)
}

/// Locks in Java, unlocks, and returns the token.
async fn java_token(lock: JavaLock<'_>) -> u64 {
    let token = lock.lock_and_get_token().await.number();
    lock.unlock().await.done();
    token
}

/// Acquires in Rust, releases, and returns the token.
async fn rust_token(locks: &LockManager) -> u64 {
    let guard = locks.mutex("k").acquire().await.unwrap();
    let token = guard.fencing_token().get();
    guard.release().await.unwrap();
    token
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_both_sides_grow_over_a_thousand_alternating_grants() {
    let server = Shared::start();
    let (locks, java) = both(&server).await;
    let lock = java.lock("a", "fenced", "k");
    let (start, mut last) = (Instant::now(), 0);
    for round in 0..500 {
        for (side, token) in [("Java", java_token(lock).await), ("Rust", rust_token(&locks).await)] {
            assert!(token > last, "round {round}: {side} has {token} after {last}");
            last = token;
        }
    }
    println!("1000 grants in {:.2?}, the last token is {last}", start.elapsed());
    assert_eq!(server.ask(COUNTER, &["GET", COUNTER]), last.to_string());
    // Whichever side was first, the counter does not expire.
    assert_eq!(server.ask(COUNTER, &["PTTL", COUNTER]), "-1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_goes_on_where_rust_has_begun() {
    let server = Shared::start();
    let (locks, java) = both(&server).await;
    let first = rust_token(&locks).await;
    assert_eq!(server.ask(COUNTER, &["PTTL", COUNTER]), "-1");
    let second = java_token(java.lock("a", "fenced", "k")).await;
    assert_eq!(second, first + 1, "Redisson adds one");
    // A plain `lock()` of a fenced lock takes a token too.
    let lock = java.lock("b", "fenced", "k");
    lock.lock().await.done();
    let seen = lock.call("gettoken", &[]).await.number();
    assert_eq!(seen, second + 1);
    assert_eq!(locks.status("k").await.unwrap().last_token.map(FencingToken::get), Some(seen));
    lock.unlock().await.done();
    assert!(rust_token(&locks).await > seen);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_re_entry_of_java_has_a_token_and_the_next_of_rust_is_larger() {
    let server = Shared::start();
    let (locks, java) = both(&server).await;
    let lock = java.lock("a", "fenced", "k");
    let mut last = rust_token(&locks).await;
    for _ in 0..3 {
        let token = lock.lock_and_get_token().await.number();
        assert!(token > last);
        last = token;
    }
    for _ in 0..3 {
        assert!(locks.mutex("k").try_acquire().await.unwrap().is_none());
        lock.unlock().await.done();
    }
    assert!(rust_token(&locks).await > last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_was_to_expire_is_kept_from_the_next_rust_grant_on() {
    let server = Shared::start();
    let (locks, java) = both(&server).await;
    let lock = java.lock("a", "fenced", "k");
    let first = java_token(lock).await;
    // Redisson's `expire()` does this to a fenced lock.
    assert_eq!(server.ask(COUNTER, &["PEXPIRE", COUNTER, "60000"]), "1");
    let second = rust_token(&locks).await;
    assert_eq!(server.ask(COUNTER, &["PTTL", COUNTER]), "-1");
    assert!(second > first && java_token(lock).await > second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_keep_the_counter_expires_and_java_begins_again_at_one() {
    let server = Shared::start();
    let retention = TokenRetention::For(Duration::from_secs(2));
    let lease = Duration::from_millis(500);
    let locks = connect(&server, |builder| builder.lease(lease).token_retention(retention)).await;
    let java = Java::start(&server).await;
    let first = rust_token(&locks).await;
    eventually(async || server.ask(COUNTER, &["EXISTS", COUNTER]) == "0", SLACK).await;
    assert_eq!(java_token(java.lock("a", "fenced", "k")).await, 1, "why a mixed fleet needs `Keep`");
    // Our tokens continue from the server's clock then.
    assert!(rust_token(&locks).await > first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delete_sends_java_back_to_one_and_not_rust() {
    let server = Shared::start();
    let (locks, java) = both(&server).await;
    let lock = java.lock("a", "fenced", "k");
    let first = rust_token(&locks).await;
    assert!(java_token(lock).await > first);
    lock.lock().await.done();
    assert!(lock.call("delete", &[]).await.is_true());
    assert_eq!(java_token(lock).await, 1, "why a mixed fleet must not call `delete()`");
    let second = rust_token(&locks).await;
    assert!(second > first + 1);
    assert_eq!(java_token(lock).await, second + 1);
}
