//! Semaphores at the server: effects that Redisson sees, foreign data, and full memory.

use lock_core::store::{
    PermitCounts, PermitId, Permits, PermitsAcquired, PermitsBusy, PermitsChange, PermitsHold,
    PermitsRelease, PermitsRenew, PermitsRequest, SemaphoreStore, StoreErrorKind,
};

use super::wire::Subscription;
use super::*;

/// Redisson's score of a permit that never expires.
const NEVER: u64 = 922_337_203_685_477;

fn id(number: u8) -> PermitId {
    PermitId::from_bytes([number; 16])
}

fn wish(name: &str, number: u8) -> PermitsRequest {
    PermitsRequest::new(key(name), vec![id(number)], LEASE, TIMEOUT)
}

async fn acquire(store: &Arc<dyn SemaphoreStore>, name: &str, number: u8) -> PermitsAcquired {
    store.acquire(Arc::new(wish(name, number))).await.unwrap()
}

fn giving_back(name: &str, numbers: &[u8]) -> PermitsRelease {
    PermitsRelease { key: key(name), ids: numbers.iter().copied().map(id).collect(), timeout: TIMEOUT }
}

fn renewal(name: &str, number: u8) -> PermitsRenew {
    let hold = PermitsHold { key: key(name), ids: vec![id(number)], lease: LEASE * 2 };
    PermitsRenew { holds: vec![hold], timeout: TIMEOUT }
}

fn changing(name: &str, permits: Permits) -> PermitsChange {
    PermitsChange { key: key(name), permits, timeout: TIMEOUT }
}

/// Makes a semaphore with `permits` permits.
async fn semaphore(server: &RedisServer, permits: u32) -> Arc<dyn SemaphoreStore> {
    let semaphores = store(server).semaphores().unwrap();
    assert!(semaphores.change(changing("s", Permits::TrySet(permits))).await.unwrap());
    semaphores
}

async fn server_millis(server: &RedisServer) -> u64 {
    let (seconds, micros): (u64, u64) = server.ask(&["TIME"]).await;
    seconds * 1000 + micros / 1000
}

#[tokio::test]
async fn keys_members_and_messages_are_those_of_a_permit_expirable_semaphore() {
    let server = RedisServer::start();
    let mut waiter = Subscription::start(&server, "redisson_sc:{lock:s}").await;
    let semaphores = semaphore(&server, 13).await;
    assert_eq!(waiter.next().await, "13");

    let before = server_millis(&server).await;
    acquire(&semaphores, "s", 0xab).await;
    let after = server_millis(&server).await;
    assert_eq!(server.keys().await, ["lock:s", "{lock:s}:timeout"]);
    assert_eq!(server.ask::<String>(&["GET", "lock:s"]).await, "12");
    let held: Vec<(Vec<u8>, u64)> =
        server.ask(&["ZRANGE", "{lock:s}:timeout", "0", "-1", "WITHSCORES"]).await;
    let [(member, score)] = &held[..] else { panic!("{held:?}") };
    assert_eq!(member, &[0xab; 16]);
    let lease = u64::try_from(LEASE.as_millis()).unwrap();
    assert!((before + lease..=after + lease).contains(score), "{score}");

    assert_eq!(semaphores.release(giving_back("s", &[0xab])).await.unwrap(), [true]);
    assert_eq!(waiter.next().await, "13");
    // All permits are left, and the semaphore stays; the list of permits ends with its last.
    assert_eq!(server.keys().await, ["lock:s"]);
    semaphores.change(changing("s", Permits::Add(-2))).await.unwrap();
    semaphores.change(changing("s", Permits::Set(12))).await.unwrap();
    assert_eq!(waiter.next().await, "12", "and nothing about fewer");
}

#[tokio::test]
async fn permits_that_java_took_for_ever_are_kept() {
    let server = RedisServer::start();
    let semaphores = semaphore(&server, 1).await;
    let _: () = server.ask(&["ZADD", "{lock:s}:timeout", &NEVER.to_string(), "0123456789abcdef"]).await;
    let _: () = server.ask(&["SET", "lock:s", "0"]).await;
    let answer = acquire(&semaphores, "s", 1).await;
    assert!(matches!(answer, PermitsAcquired::Busy(PermitsBusy { remaining: None, .. })), "{answer:?}");
    let counts = semaphores.counts(key("s"), TIMEOUT).await.unwrap();
    assert_eq!(counts, PermitCounts { available: 0, acquired: 1 });
}

/// Java's lease is over by the server's clock: its permit is free, and waiters hear of it.
#[tokio::test]
async fn permits_that_java_let_expire_come_back() {
    let server = RedisServer::start();
    let semaphores = semaphore(&server, 3).await;
    let before = (server_millis(&server).await - 1).to_string();
    let mut java = ["ZADD", "{lock:s}:timeout"].map(str::to_owned).to_vec();
    java.extend([before.clone(), "0123456789abcdef".to_owned(), before, "fedcba9876543210".to_owned()]);
    let _: () = server.ask(&java).await;
    let _: () = server.ask(&["SET", "lock:s", "0"]).await;
    let mut waiter = Subscription::start(&server, "redisson_sc:{lock:s}").await;
    assert!(matches!(acquire(&semaphores, "s", 1).await, PermitsAcquired::Granted(_)));
    assert_eq!(waiter.next().await, "1");
}

/// Redisson's `expire` on a semaphore: its permits end with it.
#[tokio::test]
async fn a_semaphores_time_to_live_is_that_of_its_permits() {
    let server = RedisServer::start();
    let semaphores = semaphore(&server, 2).await;
    let _: () = server.ask(&["PEXPIRE", "lock:s", "60000"]).await;
    acquire(&semaphores, "s", 1).await;
    let life: i64 = server.ask(&["PTTL", "{lock:s}:timeout"]).await;
    assert!(life > 0 && life <= 60_000, "{life}");
    semaphores.change(changing("s", Permits::Add(1))).await.unwrap();
    let life: i64 = server.ask(&["PTTL", "lock:s"]).await;
    assert!(life > 0 && life <= 60_000, "it stays: {life}");
}

#[tokio::test]
async fn a_late_request_for_permits_takes_nothing() {
    let server = RedisServer::start();
    let semaphores = semaphore(&server, 1).await;
    let store = store(&server);
    store.check().await.unwrap();
    let now = Clock::Boot.now();
    // The time in the refusal is ignored, since this one seems newer.
    store.node().server_clock.pretend(ServerTime::from_micros(1), now + Duration::from_secs(3600));
    let error = store.semaphores().unwrap().acquire(Arc::new(wish("s", 1))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TooLate, "{error}");
    assert_eq!(semaphores.counts(key("s"), TIMEOUT).await.unwrap().available, 1);
}

#[tokio::test]
async fn what_is_no_semaphore_is_left_alone() {
    let server = RedisServer::start();
    let timeouts = "{lock:s}:timeout";
    let cases: [&[&[&str]]; 7] = [
        &[&["HSET", "lock:s", "a", "b"]],
        &[&["SET", "lock:s", "a text"]],
        &[&["SET", "lock:s", "01"]],
        &[&["SET", "lock:s", "9999999999999999"]],
        &[&["SET", "lock:s", "5"], &["SET", timeouts, "a text"]],
        &[&["SET", "lock:s", "5"], &["ZADD", timeouts, "1", "not an id"]],
        &[&["ZADD", timeouts, "1", "not an id"]],
    ];
    for case in cases {
        let _: () = server.ask(&["FLUSHALL"]).await;
        for command in case {
            let _: () = server.ask(command).await;
        }
        let mut before = Vec::new();
        for key in server.keys().await {
            before.push(server.ask::<Vec<u8>>(&["DUMP", &key]).await);
        }
        let semaphores = store(&server).semaphores().unwrap();
        let errors = [
            semaphores.acquire(Arc::new(wish("s", 1))).await.err(),
            semaphores.release(giving_back("s", &[1])).await.err(),
            semaphores.change(changing("s", Permits::TrySet(1))).await.err(),
            semaphores.change(changing("s", Permits::Set(1))).await.err(),
            semaphores.change(changing("s", Permits::Add(1))).await.err(),
            semaphores.counts(key("s"), TIMEOUT).await.err(),
        ];
        for error in errors {
            let error = error.unwrap_or_else(|| panic!("{case:?}"));
            assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{case:?}: {error}");
            assert!(error.to_string().contains("lock:s"), "{error}");
        }
        // A semaphore that was overwritten must not make others fail.
        assert_eq!(semaphores.renew(renewal("s", 1)).await.unwrap(), [Some(vec![false])]);
        let mut after = Vec::new();
        for key in server.keys().await {
            after.push(server.ask::<Vec<u8>>(&["DUMP", &key]).await);
        }
        assert_eq!(before, after, "{case:?}");
    }
}

#[tokio::test]
async fn permits_are_renewed_and_given_back_when_memory_is_full() {
    let server = RedisServer::start();
    let semaphores = semaphore(&server, 4).await;
    let sent = Arc::new(wish("s", 3));
    semaphores.acquire(Arc::clone(&sent)).await.unwrap();
    for number in [1, 2] {
        acquire(&semaphores, "s", number).await;
    }
    let _: () = server.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;

    let error = semaphores.acquire(Arc::new(wish("s", 9))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
    let score = |number: u8| {
        let words = [b"ZSCORE".to_vec(), b"{lock:s}:timeout".to_vec(), vec![number; 16]];
        let server = &server;
        async move { server.ask::<Option<u64>>(&words).await }
    };
    let before = score(1).await.unwrap();
    assert_eq!(semaphores.renew(renewal("s", 1)).await.unwrap(), [Some(vec![true])]);
    assert!(score(1).await.unwrap() > before);
    assert_eq!(semaphores.release(giving_back("s", &[1, 2])).await.unwrap(), [true, true]);
    semaphores.withdraw(sent).await.unwrap();
    let counts = semaphores.counts(key("s"), TIMEOUT).await.unwrap();
    assert_eq!(counts, PermitCounts { available: 4, acquired: 0 });
}

/// A user who may not do all of it does none of it.
#[tokio::test]
async fn a_missing_right_takes_and_loses_no_permit() {
    let server = RedisServer::start();
    let semaphores = semaphore(&server, 2).await;
    acquire(&semaphores, "s", 1).await;
    for right in ["-incrby", "-zadd", "-zrem"] {
        let _: () = server
            .ask(&["ACL", "SETUSER", "ann", "reset", "on", ">hunter2", "~*", "&*", "+@all", right])
            .await;
        let ann = RedisStore::new(&server.client_as("ann", "hunter2"), options()).unwrap();
        let ann = ann.semaphores().unwrap();
        if right != "-zrem" {
            let error = ann.acquire(Arc::new(wish("s", 2))).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Denied, "{right}: {error}");
        }
        if right != "-zadd" {
            let error = ann.release(giving_back("s", &[1])).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Denied, "{right}: {error}");
        }
        let counts = semaphores.counts(key("s"), TIMEOUT).await.unwrap();
        assert_eq!(counts, PermitCounts { available: 1, acquired: 1 }, "{right}");
    }
}
