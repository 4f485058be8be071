//! Odd states that readers and writers meet: holds of the dead, foreign data, full memory, missing
//! rights.

use lock_core::store::StoreErrorKind;

use super::rw::{assert_about, fields, hold, leased, pexpire, pttl, read, reads, write, writes};
use super::*;

const JAVA: &str = "0e5a1b0e-7c0f-4f0e-9d53-0c1a3e6c2f11:42";

/// Makes the remains of Redisson's read lock: `count` nested holds, of which those at `living` are
/// not over.
async fn redisson_reads(server: &RedisServer, count: u32, living: &[(u32, i64)]) {
    let _: () = server.ask(&["HSET", "lock:a", "mode", "read", JAVA, &count.to_string()]).await;
    pexpire(server, "lock:a", 300_000).await;
    for (index, millis) in living {
        let hold = format!("{{lock:a}}:{JAVA}:rwlock_timeout:{index}");
        let _: () = server.ask(&["SET", &hold, "1", "PX", &millis.to_string()]).await;
    }
}

#[tokio::test]
async fn a_release_leaves_what_living_nested_holds_need() {
    let server = RedisServer::start();
    let store = store(&server);
    let mine = [read("a")];
    redisson_reads(&server, 3, &[(2, 40_000), (3, 60_000)]).await;
    granted(&store, &mine).await;
    assert_about(pttl(&server, "lock:a").await, 300_000);
    release(&store, &mine).await.unwrap();
    assert_about(pttl(&server, "lock:a").await, 60_000);
    assert_eq!(
        fields(&server, "lock:a").await,
        [(JAVA.to_owned(), "3".to_owned()), ("mode".into(), "read".into())]
    );
}

#[tokio::test]
async fn a_lock_that_only_the_dead_hold_is_free_when_the_last_reader_goes() {
    let server = RedisServer::start();
    let (store, other) = (store(&server), store(&server));
    let mut watch = other.watch(Arc::new(request(&[write("a")]))).await.unwrap();
    let mine = [read("a")];
    redisson_reads(&server, 2, &[]).await;
    granted(&store, &mine).await;
    assert_eq!(release(&store, &mine).await.unwrap().rivals, Rivals::Some);
    assert_eq!(pttl(&server, "lock:a").await, -2);
    assert_eq!(watch.notice().await, lock_core::store::Notice::Retry);
    granted(&store, &[write("a")]).await;
}

/// Adds `count` readers whose holds last for `millis`; those from `dead` on are over.
async fn crowd(server: &RedisServer, name: &str, count: u32, millis: i64, dead: u32) {
    let script = "
        redis.call('HSET', KEYS[1], 'mode', 'read')
        if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
        for i = 1, ARGV[2] do
          local owner = ARGV[1] .. ':' .. i
          redis.call('HSET', KEYS[1], owner, '1')
          if i < tonumber(ARGV[4]) then
            redis.call('SET', '{lock:a}:' .. owner .. ':rwlock_timeout:1', '1', 'PX', ARGV[3])
          end
        end";
    let [count, millis, dead] = [count.to_string(), millis.to_string(), dead.to_string()];
    let _: () = server.ask(&["EVAL", script, "1", "lock:a", name, &count, &millis, &dead]).await;
}

/// Returns how many TTLs and whole hashes a call looked at.
async fn looks(server: &RedisServer, call: impl Future<Output = ()>) -> [u64; 2] {
    let _: () = server.ask(&["CONFIG", "RESETSTAT"]).await;
    call.await;
    [server.calls("pttl").await, server.calls("hgetall").await]
}

#[tokio::test]
async fn a_reader_that_goes_looks_at_few_of_many() {
    let server = RedisServer::start();
    let store = store(&server);
    let (first, last) = ([read("a")], [read("a")]);
    granted_by(&store, leased(&first, 20)).await;
    granted_by(&store, leased(&last, 60)).await;
    crowd(&server, "many", 5000, 60_000, u32::MAX).await;
    let goes = async |mine: &[Item]| drop(release(&store, mine).await.unwrap());
    // Others last longer.
    assert_eq!(looks(&server, goes(&first)).await, [2, 0]);
    // They last about as long.
    let [ttls, hashes] = looks(&server, goes(&last)).await;
    assert!(ttls <= 2 + 64 && hashes == 0, "{ttls} {hashes}");
    assert_about(pttl(&server, "lock:a").await, 60_000);
}

#[tokio::test]
async fn the_longest_of_many_readers_takes_its_time_along() {
    let server = RedisServer::start();
    let store = store(&server);
    let mine = [read("a")];
    granted_by(&store, leased(&mine, 60)).await;
    crowd(&server, "short", 300, 20_000, u32::MAX).await;
    crowd(&server, "dead", 300, 40_000, 0).await;
    crowd(&server, "long", 1, 30_000, u32::MAX).await;
    release(&store, &mine).await.unwrap();
    assert_about(pttl(&server, "lock:a").await, 30_000);
}

#[tokio::test]
async fn a_lock_that_many_dead_hold_is_free_when_the_last_reader_goes() {
    let server = RedisServer::start();
    let store = store(&server);
    let mine = [read("a")];
    crowd(&server, "dead", 300, 10_000, 0).await;
    granted(&store, &mine).await;
    release(&store, &mine).await.unwrap();
    assert_eq!(pttl(&server, "lock:a").await, -2);
}

#[tokio::test]
async fn a_reader_without_its_hold_key_is_removed_with_its_leftovers() {
    let server = RedisServer::start();
    let store = store(&server);
    let (mine, other) = ([read("a")], [read("a")]);
    granted(&store, &other).await;
    granted(&store, &mine).await;
    let _: () = server.ask(&["DEL", &hold(&mine[0])]).await;
    assert_eq!(renew(&store, &mine, LEASE).await, [Renewed::Gone]);
    assert_eq!(downgrade(&store, &mine, LEASE).await, [Renewed::Gone]);
    let linger = ReleaseRequest { linger: LEASE / 2, ..release_request(&mine) };
    assert_eq!(store.release(Arc::new(linger)).await.unwrap().held, [false]);
    assert_eq!(release(&store, &mine).await.unwrap().held, [false]);
    let left = [(reads(&other[0]), "1".to_owned()), ("mode".into(), "read".into())];
    assert_eq!(fields(&server, "lock:a").await, left, "its field does not stay");
    // The last owner with a field there frees the lock.
    let _: () = server.ask(&["DEL", &hold(&other[0])]).await;
    assert_eq!(release(&store, &other).await.unwrap().held, [false]);
    assert_eq!(pttl(&server, "lock:a").await, -2);
}

#[tokio::test]
async fn foreign_data_is_left_unchanged() {
    let server = RedisServer::start();
    let store = store(&server);
    for make in [
        vec!["SET", "lock:a", "x", "PX", "60000"],
        vec!["HSET", "lock:a", "mode", "read"],
        vec!["RPUSH", "lock:a", "x"],
    ] {
        let _: () = server.ask(&["DEL", "lock:a"]).await;
        let _: redis::Value = server.ask(&make).await;
        let before: Vec<u8> = server.ask(&["DUMP", "lock:a"]).await;
        assert_left_alone(&server, &store, &before).await;
    }
    for hash in [["mode", "read", "name", "ann"], ["mode", "fast", JAVA, "1"], ["name", "ann", JAVA, "1"]] {
        let _: () = server.ask(&["DEL", "lock:a"]).await;
        let _: () = server.ask(&[&["HSET", "lock:a"][..], &hash].concat()).await;
        pexpire(&server, "lock:a", 60_000).await;
        let before: Vec<u8> = server.ask(&["DUMP", "lock:a"]).await;
        assert_left_alone(&server, &store, &before).await;
    }
}

async fn assert_left_alone(server: &RedisServer, store: &RedisStore, before: &[u8]) {
    for items in [vec![read("a")], vec![write("a")], vec![read("b"), write("a")], vec![item("b"), read("a")]]
    {
        let error = store.acquire(Arc::new(request(&items).queued(LEASE))).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{error}");
        assert!(error.to_string().contains("lock:a"), "{error}");
        assert_eq!(release(store, &items).await.unwrap().held, vec![false; items.len()]);
        assert_eq!(renew(store, &items, LEASE).await, vec![Renewed::Gone; items.len()]);
        assert_eq!(downgrade(store, &items, LEASE).await, vec![Renewed::Gone; items.len()]);
        let linger = ReleaseRequest { linger: LEASE, ..release_request(&items) };
        assert_eq!(store.release(Arc::new(linger)).await.unwrap().held, vec![false; items.len()]);
    }
    assert_eq!(server.ask::<Vec<u8>>(&["DUMP", "lock:a"]).await, before);
    assert_eq!(server.keys().await, ["lock:a"]);
}

#[tokio::test]
async fn an_odd_intent_is_an_error_and_not_a_hot_loop() {
    let server = RedisServer::start();
    let store = store(&server);
    let intent = "lock_rw_intent:{lock:a}";
    let _: () = server.ask(&["SET", intent, "x:1"]).await;
    let left = busy(&store, &[read("a")]).await.remaining.unwrap();
    assert!(left >= Duration::from_millis(500), "without an end it is looked at now and then: {left:?}");
    let _: () = server.ask(&["DEL", intent]).await;
    let _: () = server.ask(&["RPUSH", intent, "x"]).await;
    let error = acquire(&store, &[read("a")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{error}");
    assert_eq!(server.keys().await, [intent]);
    // Writers don't need it.
    let writer = [write("a")];
    granted(&store, &writer).await;
    assert_eq!(release(&store, &writer).await.unwrap().held, [true]);
}

#[tokio::test]
async fn a_bad_counter_takes_nothing() {
    let server = RedisServer::start();
    let store = store(&server);
    let _: () = server.ask(&["SET", "redisson_lock_token:{lock:b}", "abc"]).await;
    for items in [vec![read("b")], vec![write("b")], vec![read("a"), write("b")]] {
        let error = acquire(&store, &items).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{error}");
        assert!(error.to_string().contains("LOCKTOKEN"), "{error}");
        assert_eq!(server.keys().await, ["redisson_lock_token:{lock:b}"]);
    }
}

#[tokio::test]
async fn full_memory_refuses_acquires_and_nothing_else() {
    let server = RedisServer::start();
    let store = store(&server);
    let items: Vec<Item> = [
        (Kind::Read, "a"),
        (Kind::Read, "a"),
        (Kind::Write, "b"),
        (Kind::Write, "c"),
        (Kind::Write, "d"),
        (Kind::Read, "e"),
    ]
    .map(|(kind, name)| item_of(kind, name))
    .to_vec();
    for item in &items {
        granted(&store, std::slice::from_ref(item)).await;
    }
    let reads_too = [Item { kind: Kind::Read, ..items[3].clone() }];
    granted(&store, &reads_too).await;
    let _: () = server.ask(&["SCRIPT", "FLUSH"]).await;
    let _: () = server.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;

    for wish in [[read("x")], [write("x")], [read("a")]] {
        let error = acquire(&store, &wish).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
    }
    assert!(!server.keys().await.iter().any(|key| key.contains("lock:x")), "nothing is taken");

    assert_eq!(renew(&store, &items, 2 * LEASE).await, [Renewed::Held; 6]);
    assert_about(pttl(&server, &hold(&items[0])).await, 20_000);
    assert!(matches!(stay(&store, &[write("a")]).await[..], [Renewed::Waiting(_)]));
    assert_eq!(downgrade(&store, &items[4..5], LEASE).await, [Renewed::Held]);
    assert_eq!(release(&store, &items[0..1]).await.unwrap().held, [true]);
    assert_eq!(release(&store, &items[2..5]).await.unwrap().held, [true; 3]);
    assert_eq!(
        fields(&server, "lock:c").await,
        [(reads(&items[3]), "1".to_owned()), ("mode".into(), "read".into())],
        "the write hold was given back, the read hold stays"
    );
    let linger = ReleaseRequest { linger: Duration::from_secs(1), ..release_request(&items[5..6]) };
    assert_eq!(store.release(Arc::new(linger)).await.unwrap().held, [true]);
    assert!(store.status(key("a")).await.unwrap().is_locked());
    assert!(store.force_release(key("a")).await.unwrap());
    let withdrawn = request(&reads_too);
    withdrawn.stamp(ServerTime::from_micros(1));
    store.withdraw(Arc::new(withdrawn)).await.unwrap();
    assert_eq!(pttl(&server, "lock:c").await, -2);
}

#[tokio::test]
async fn a_user_without_channel_rights_releases_all_the_same() {
    let server = RedisServer::start();
    let rights = ["on", ">hunter2", "~*lock*", "resetchannels", "+@all"];
    let _: () = server.ask(&[&["ACL", "SETUSER", "ann"][..], &rights].concat()).await;
    let store = RedisStore::new(&server.client_as("ann", "hunter2"), options()).unwrap();
    let mine = [read("a"), write("b"), item("c")];
    granted(&store, &mine).await;
    assert_eq!(downgrade(&store, &mine[1..2], LEASE).await, [Renewed::Held]);
    let released = release(&store, &mine).await.unwrap();
    assert_eq!((released.held, released.rivals), (vec![true; 3].into(), Rivals::None));
    assert!(!server.keys().await.iter().any(|key| !key.starts_with("redisson_lock_token")));
    assert!(!store.watch(Arc::new(request(&mine))).await.unwrap().is_confirmed());
}

#[tokio::test]
async fn a_user_without_rights_is_denied_and_leaves_nothing() {
    let server = RedisServer::start();
    for (user, less) in [("ann", "-pexpire"), ("bob", "-hset"), ("eve", "-hmget")] {
        let _: () = server.ask(&["ACL", "SETUSER", user, "on", ">hunter2", "~*", "&*", "+@all", less]).await;
        let store = RedisStore::new(&server.client_as(user, "hunter2"), options()).unwrap();
        let taken = [write("x")];
        if user == "eve" {
            granted(&super::store(&server), &taken).await;
        }
        let error = acquire(&store, &[read("a"), write("b"), read("x")]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{user}: {error}");
        release(&super::store(&server), &taken).await.unwrap();
        let left: Vec<String> = server.keys().await;
        assert!(left.iter().all(|key| key.starts_with("redisson_lock_token")), "{user}: {left:?}");
    }
    // A foreign hash that is joined stays as it was.
    let _: () =
        server.ask(&["ACL", "SETUSER", "joe", "on", ">hunter2", "~*", "&*", "+@all", "-pexpire"]).await;
    let reader = [read("a")];
    granted(&super::store(&server), &reader).await;
    let before = fields(&server, "lock:a").await;
    let store = RedisStore::new(&server.client_as("joe", "hunter2"), options()).unwrap();
    let longer = AcquireRequest::new(vec![read("a")], 2 * LEASE, TIMEOUT);
    assert_eq!(store.acquire(Arc::new(longer)).await.unwrap_err().kind(), StoreErrorKind::Denied);
    assert_eq!(fields(&server, "lock:a").await, before);
}

#[tokio::test]
async fn a_wish_that_arrives_late_takes_nothing() {
    let server = RedisServer::start();
    let store = store(&server);
    granted(&store, &[read("a")]).await;
    let late =
        AcquireRequest::new(vec![write("a"), read("b")], LEASE, Duration::from_millis(200)).queued(LEASE);
    let error = acquire_late(&store, Arc::new(late)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TooLate, "{error}");
    assert_eq!(pttl(&server, "lock_rw_intent:{lock:a}").await, -2, "nor does it wait");
    assert_eq!(pttl(&server, "lock:b").await, -2);
}

#[tokio::test]
async fn redissons_writer_and_readers_are_respected() {
    let server = RedisServer::start();
    let store = store(&server);
    let _: () = server.ask(&["HSET", "lock:a", "mode", "write", &format!("{JAVA}:write"), "2"]).await;
    pexpire(&server, "lock:a", 30_000).await;
    assert!(busy(&store, &[read("a")]).await.remaining.unwrap() > Duration::from_secs(20));
    busy(&store, &[write("a")]).await;
    // A read field beside another owner's write field, which nobody writes, gives no access.
    let odd = [read("a")];
    let _: () = server.ask(&["HSET", "lock:a", odd[0].owner.as_str(), "1"]).await;
    busy(&store, &odd).await;
    let _: () = server.ask(&["DEL", "lock:a"]).await;
    redisson_reads(&server, 1, &[(1, 60_000)]).await;
    busy(&store, &[write("a")]).await;
    let mine = [read("a")];
    granted(&store, &mine).await;
    assert!(fields(&server, "lock:a").await.iter().any(|(field, _)| *field == reads(&mine[0])));
    assert!(!fields(&server, "lock:a").await.iter().any(|(field, _)| *field == writes(&mine[0])));
}
