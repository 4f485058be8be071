//! Operators' steps: status, force release, and the list of locks.

use std::collections::BTreeSet;

use lock_core::store::{LockStatus, ScanRequest};

use super::rw::{hold, pexpire, pttl, read, write};
use super::wire::Subscription;
use super::*;

const JAVA: &str = "0e5a1b0e-7c0f-4f0e-9d53-0c1a3e6c2f11:42";

async fn status(store: &RedisStore, name: &str) -> LockStatus {
    store.status(key(name)).await.unwrap()
}

#[tokio::test]
async fn status_tells_the_kind_and_the_holders() {
    let server = RedisServer::start();
    let store = store(&server);
    assert_eq!(status(&store, "a").await, LockStatus::free());
    for kind in [Kind::Mutex, Kind::Read, Kind::Write] {
        let mine = [item_of(kind, "a")];
        let token = granted(&store, &mine).await.tokens[0].last;
        let held = status(&store, "a").await;
        assert_eq!((held.kind, held.waiters), (Some(kind), 0));
        assert_eq!(held.holders, [(mine[0].owner.clone(), 1)]);
        assert!(held.remaining.unwrap() <= LEASE);
        assert_eq!(held.last_token.unwrap().get(), token);
        release(&store, &mine).await.unwrap();
        assert_eq!(status(&store, "a").await.kind, None);
    }
}

#[tokio::test]
async fn status_shows_all_readers_and_a_writer_that_reads_twice() {
    let server = RedisServer::start();
    let store = store(&server);
    let (one, two) = (read("a"), read("a"));
    granted(&store, std::slice::from_ref(&one)).await;
    granted(&store, std::slice::from_ref(&two)).await;
    let mut holders = status(&store, "a").await.holders;
    holders.sort();
    let mut expected = [(one.owner.clone(), 1), (two.owner.clone(), 1)];
    expected.sort();
    assert_eq!(holders, expected);
    // A reader whose own lease is over is not a holder as long as others are.
    let _: () = server.ask(&["DEL", &hold(&one)]).await;
    assert_eq!(status(&store, "a").await.holders, [(two.owner, 1)]);

    let writer = write("b");
    granted(&store, std::slice::from_ref(&writer)).await;
    granted(&store, &[Item { kind: Kind::Read, ..writer.clone() }]).await;
    let held = status(&store, "b").await;
    assert_eq!(held.kind, Some(Kind::Write));
    assert_eq!(held.holders, [(writer.owner.clone(), 1), (writer.owner, 1)]);
}

#[tokio::test]
async fn status_counts_who_waits() {
    let server = RedisServer::start();
    let (store, other) = (store(&server), store(&server));
    for kind in [Kind::Mutex, Kind::Read, Kind::Write] {
        let mine = [item_of(kind, "a")];
        granted(&store, &mine).await;
        let watch = other.watch(Arc::new(request(&[item_of(kind, "a")]))).await.unwrap();
        let own = store.watch(Arc::new(request(&[item_of(kind, "a")]))).await.unwrap();
        assert_eq!(status(&store, "a").await.waiters, 2, "{kind:?}");
        drop((own, watch));
        assert_eq!(status(&store, "a").await.waiters, 1, "the store knows that its own subscription is idle");
        release(&store, &mine).await.unwrap();
        // The others' subscriptions end with their connections.
        server.kill_clients("pubsub").await;
    }
    let mine = [item("b")];
    granted(&store, &mine).await;
    let _: () = server.ask(&["RPUSH", "redisson_lock_queue:{lock:b}", JAVA, "x:1"]).await;
    let held = status(&store, "b").await;
    assert_eq!((held.kind, held.waiters), (Some(Kind::Fair), 2));
    release(&store, &mine).await.unwrap();
    let free = status(&store, "b").await;
    assert_eq!((free.kind, free.waiters, free.is_locked()), (None, 2, false));
}

#[tokio::test]
async fn force_release_frees_any_kind_and_wakes_whoever_waits() {
    let server = RedisServer::start();
    let store = store(&server);
    for (kind, channel, message) in [
        (Kind::Mutex, "redisson_lock__channel:{lock:a}", "0"),
        (Kind::Read, "redisson_rwlock:{lock:a}", "1"),
        (Kind::Write, "redisson_rwlock:{lock:a}", "1"),
    ] {
        let mut waiter = Subscription::start(&server, channel).await;
        assert!(!store.force_release(key("a")).await.unwrap());
        let holders = [item_of(kind, "a"), read("a")];
        let count = if kind == Kind::Read { 2 } else { 1 };
        for holder in &holders[..count] {
            granted(&store, std::slice::from_ref(holder)).await;
        }
        assert!(store.force_release(key("a")).await.unwrap());
        assert_eq!(waiter.next().await, message);
        assert_eq!(server.keys().await, ["redisson_lock_token:{lock:a}"], "{kind:?}: no hold key stays");
        for holder in &holders[..count] {
            assert_eq!(release(&store, std::slice::from_ref(holder)).await.unwrap().held, [false]);
        }
    }
}

async fn scan_all(store: &RedisStore, prefix: &str) -> Vec<(LockKey, LockStatus)> {
    let (mut cursor, mut found) = (None, Vec::new());
    loop {
        let request = ScanRequest { prefix: prefix.to_owned(), cursor, timeout: TIMEOUT };
        let page = store.scan(request).await.unwrap();
        found.extend(page.locks);
        match page.next {
            next @ Some(_) => cursor = next,
            None => return found,
        }
    }
}

#[tokio::test]
async fn a_scan_finds_the_locks_of_a_prefix_and_nothing_else() {
    let server = RedisServer::start();
    let store = store(&server);
    let mut expected = BTreeSet::new();
    for number in 0..60 {
        let kind = [Kind::Mutex, Kind::Read, Kind::Write][number % 3];
        let name = format!("order*[1]?:{number}");
        granted(&store, &[item_of(kind, &name)]).await;
        granted(&store, &[item(&format!("orderly[1]x:{number}"))]).await;
        expected.insert((key(&name), format!("{kind:?}")));
    }
    // Foreign data, and names that yield no key.
    let _: () = server.ask(&["HSET", "lock:order*[1]?:hash", "name", "ann"]).await;
    let _: () = server.ask(&["SET", "lock:order*[1]?:text", "x"]).await;
    for odd in [&b"lock:order*[1]?:\xff"[..], b"lock:order*[1]?:{", b"order*[1]?:1"] {
        let _: () = server.ask(&[b"HSET", odd, JAVA.as_bytes(), b"1"]).await;
        let _: () = server.ask(&[b"PEXPIRE", odd, b"60000"]).await;
    }
    for number in 0..500 {
        let _: () = server.ask(&["HSET", &format!("lock:order*[1]?:h{number}"), "x", "1"]).await;
    }
    let before: u64 = server.ask(&["DBSIZE"]).await;
    let found = scan_all(&store, "order*[1]?:").await;
    let named = found.iter().map(|(key, held)| (key.clone(), format!("{:?}", held.kind.unwrap()))).collect();
    assert_eq!(expected, named);
    assert!(found.iter().all(|(_, held)| held.is_locked() && held.remaining.is_some()));
    assert_eq!(server.ask::<u64>(&["DBSIZE"]).await, before);
    let all: BTreeSet<_> = scan_all(&store, "").await.into_iter().map(|(key, _)| key).collect();
    assert_eq!(all.len(), 120);
    assert!(scan_all(&store, "nothing").await.is_empty());
    let stats: String = server.ask(&["INFO", "commandstats"]).await;
    assert!(stats.contains("cmdstat_scan:"), "{stats}");
}

#[tokio::test]
async fn a_lock_that_has_ended_is_in_no_page() {
    let server = RedisServer::start();
    let store = store(&server);
    granted(&store, &[read("a")]).await;
    granted(&store, &[item("b")]).await;
    pexpire(&server, "lock:a", 1).await;
    until("the lease is over", || async { pttl(&server, "lock:a").await == -2 }).await;
    let keys: Vec<_> = scan_all(&store, "").await.into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, [key("b")]);
}
