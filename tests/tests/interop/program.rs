//! The Java program itself: the properties that the other tests rely on.

use lock_tests::clock::now_nanos;
use lock_tests::eventually;
use lock_tests::java::{Java, SLACK, Servers, Settings, Shared};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stamps_of_both_sides_are_on_one_clock() {
    let server = Shared::start();
    let java = Java::start(&server).await;
    let before = now_nanos();
    let answer = java.lock("a", "lock", "k").lock().await;
    let after = now_nanos();
    answer.done();
    assert!(before <= answer.start && answer.start < answer.end && answer.end <= after, "{answer:?}");
    java.exit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_are_told_apart_and_run_side_by_side() {
    let server = Shared::start();
    let java = Java::start(&server).await;
    let (first, second) = (java.lock("a", "lock", "k"), java.lock("b", "lock", "k"));
    let owner = first.lock().await.owner;
    assert!(owner.starts_with(java.client()));
    let mut waiting = second.lock();
    // One thread's second command is answered before the other's first.
    let entered_again = first.lock().await;
    assert_eq!(entered_again.owner, owner);
    waiting.assert_still_out();
    first.unlock().await.done();
    first.unlock().await.done();
    assert_ne!(waiting.await.owner, owner);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[should_panic(expected = "the Java program has ended")]
async fn a_call_to_a_killed_program_fails_at_once() {
    let server = Shared::start();
    let mut java = Java::start_with(&server, Settings::default().alone()).await;
    java.lock("a", "lock", "k").lock().await.done();
    let waiting = java.lock("b", "lock", "k").lock();
    java.kill();
    waiting.within(SLACK).await.done();
}

/// Returns by how many milliseconds the wall clock of Redisson is ahead of the server's. It follows
/// from the deadline of a waiter in a fair queue: the time of its request, plus the holder's
/// remaining lease, plus its own wait.
async fn wall_clock_ahead(server: &Shared, java: &Java, name: &str) -> i64 {
    const LEASE: i64 = 60_000;
    const WAIT: i64 = 300_000;
    let lease = LEASE.to_string();
    java.lock("holder", "fair", name).call("lock", &[("lease", &lease)]).await.done();
    let _waits_for_ever = java.lock(&format!("waiter of {name}").replace(' ', "-"), "fair", name).lock();
    let queue = format!("redisson_lock_timeout:{{{name}}}");
    let score =
        || server.ask(&queue, &["ZRANGE", &queue, "0", "0", "WITHSCORES"]).lines().nth(1).map(str::to_owned);
    eventually(async || score().is_some(), SLACK).await;
    let score: f64 = score().and_then(|score| score.parse().ok()).expect("a time in milliseconds");
    let time = server.ask(name, &["TIME"]);
    let seconds: i64 =
        time.lines().next().and_then(|seconds| seconds.parse().ok()).expect("a time in seconds");
    score as i64 - seconds * 1000 - LEASE - WAIT
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wall_clock_that_redisson_sends_can_be_off() {
    let server = Shared::start();
    let near = |ahead: i64, expected: i64| (ahead - expected).abs() < 20_000;
    for minutes in [-1, 0, 1] {
        let ahead = minutes * 60_000;
        let java = Java::start_with(&server, Settings::default().wall_clock_ahead(ahead)).await;
        let name = format!("from-the-start:{minutes}");
        let seen = wall_clock_ahead(&server, &java, &name).await;
        assert!(near(seen, ahead), "{seen} ms, set to {ahead}");
        java.set_wall_clock_ahead(-ahead).await;
        let seen = wall_clock_ahead(&server, &java, &format!("set:{minutes}")).await;
        assert!(near(seen, -ahead), "{seen} ms, set to {}", -ahead);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_one_program_are_told_apart_and_end_one_by_one() {
    let server = Shared::start();
    let (first, second) = tokio::join!(Java::start(&server), Java::start(&server));
    assert_ne!(first.client(), second.client());
    let held = first.lock("a", "lock", "k").lock().await;
    assert!(held.owner.starts_with(first.client()), "{held:?}");
    let mut waiting = second.lock("a", "lock", "k").lock();
    second.is_parked("a").await;
    waiting.assert_still_out();
    first.lock("a", "lock", "k").unlock().await.done();
    waiting.await.done();
    first.exit().await;
    second.lock("a", "lock", "k").unlock().await.done();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[should_panic(expected = "start it with `Settings::alone`")]
async fn a_program_that_serves_others_is_not_killed() {
    let server = Shared::start();
    Java::start(&server).await.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_is_understood() {
    let server = Shared::start();
    let java = Java::start(&server).await;
    for kind in ["lock", "fair", "read", "write", "fenced", "spin"] {
        let (mine, other) = (java.lock("a", kind, kind), java.lock("b", kind, kind));
        mine.lock().await.done();
        let status = mine.status().await;
        assert_eq!((status.locked, status.mine, status.count), (true, true, 1), "{kind}");
        assert_eq!(other.try_lock().await.is_true(), kind == "read", "{kind}");
        if kind == "read" {
            other.unlock().await.done();
        }
        mine.unlock().await.done();
        assert!(!mine.status().await.locked, "{kind}");
    }
    let multi = java.lock("a", "multi", "lock:first,read:second,fair:third");
    multi.lock_for(SLACK).await.done();
    for (kind, name) in [("lock", "first"), ("write", "second"), ("fair", "third")] {
        assert!(!java.lock("b", kind, name).try_lock().await.is_true(), "{name}");
    }
    multi.unlock().await.done();

    let semaphore = java.lock("a", "semaphore", "permits");
    assert!(semaphore.call("permits", &[("n", "1")]).await.is_true());
    let permit = semaphore.call("acquire", &[("lease", "60000")]).await.value().as_str().unwrap().to_owned();
    assert_eq!(semaphore.call("available", &[]).await.number(), 0);
    assert!(semaphore.call("tryacquire", &[]).await.value().is_null());
    assert!(semaphore.call("extend", &[("id", &permit), ("lease", "70000")]).await.is_true());
    semaphore.call("release", &[("id", &permit)]).await.done();
    assert!(!semaphore.call("tryrelease", &[("id", &permit)]).await.is_true());
    assert_eq!(semaphore.call("available", &[]).await.number(), 1);

    let latch = java.lock("a", "latch", "gate");
    assert!(latch.call("setcount", &[("n", "1")]).await.is_true());
    let waiter = java.lock("b", "latch", "gate");
    let mut waiting = waiter.call("await", &[]);
    eventually(async || server.listeners("redisson_countdownlatch__channel__{gate}") == 1, SLACK).await;
    waiting.assert_still_out();
    assert_eq!(latch.call("count", &[]).await.number(), 1);
    latch.call("countdown", &[]).await.done();
    waiting.await.done();
    assert!(latch.call("await", &[("wait", "1")]).await.is_true());
}
