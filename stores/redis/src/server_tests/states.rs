//! Odd states of keys, counters and servers: each row of the acquire script's table that one server
//! can show.

use lock_core::store::StoreErrorKind;

use super::*;

const COUNTER: &str = "redisson_lock_token:{lock:a}";

async fn exists(server: &RedisServer, key: &str) -> bool {
    server.ask::<u64>(&["EXISTS", key]).await == 1
}

async fn pttl(server: &RedisServer, key: &str) -> i64 {
    server.ask(&["PTTL", key]).await
}

#[tokio::test]
async fn counters_behind_the_clock_are_seeded_from_it() {
    let server = RedisServer::start();
    let store = store(&server);
    // First a missing counter. Then: value, its TTL before, and whether it has none afterwards.
    for (value, ttl) in
        [(None, None), (Some("7"), None), (Some("7"), Some("60000")), (Some("-5"), None), (Some("0"), None)]
    {
        let _: () = server.ask(&["DEL", COUNTER]).await;
        if let Some(value) = value {
            let _: () = server.ask(&["SET", COUNTER, value]).await;
        }
        if let Some(ttl) = ttl {
            let _: () = server.ask(&["PEXPIRE", COUNTER, ttl]).await;
        }
        let before = server_micros(&server).await;
        let mine = [item("a")];
        let granted = granted_by(&store, request(&mine).tokens(10)).await;
        let after = server_micros(&server).await;
        let range = granted.tokens[0];
        assert!(range.first > before && range.last <= after + 10, "{value:?} {range:?}");
        assert!((before..=after).contains(&granted.moment.get()));
        let left = pttl(&server, COUNTER).await;
        if value.is_some() && ttl.is_none() {
            assert_eq!(left, -1, "{value:?}: a persistent counter stays persistent");
        } else {
            assert!(left > 60_000, "{value:?}: {left}");
        }
        release(&store, &mine).await.unwrap();
    }
}

#[tokio::test]
async fn an_expired_counter_is_seeded_from_the_clock() {
    let server = RedisServer::start();
    let store = store(&server);
    let _: () = server.ask(&["SET", COUNTER, "99", "PX", "1"]).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let before = server_micros(&server).await;
    assert!(granted(&store, &[item("a")]).await.tokens[0].first > before);
}

#[tokio::test]
async fn counters_ahead_of_the_clock_are_counted_on_exactly() {
    let server = RedisServer::start();
    let store = store(&server);
    let edge: u64 = 1 << 53;
    for (counter, tokens) in [
        (edge - 10, 3),
        (edge - 2, 1),
        (edge - 1, 1),
        (edge - 1, 5),
        (edge, 1),
        (edge + 1, 2),
        (1_700_000_000_000_000_001, 1),
        (1_700_000_000_000_000_001, 1000),
        (9_223_372_036_854_775_806, 1),
        (9_223_372_036_854_644_735, 131_072),
    ] {
        let _: () = server.ask(&["SET", COUNTER, &counter.to_string()]).await;
        let mine = [item("a")];
        let granted = granted_by(&store, request(&mine).tokens(tokens)).await;
        assert_eq!(granted.tokens[0].first, counter + 1, "{counter}");
        assert_eq!(granted.tokens[0].last, counter + u64::from(tokens), "{counter}");
        let now = server_micros(&server).await;
        assert!(granted.moment.get().abs_diff(now) < 10_000_000, "the server's time is told all the same");
        assert_eq!(pttl(&server, COUNTER).await, -1);
        release(&store, &mine).await.unwrap();
    }
}

#[tokio::test]
async fn a_counter_that_would_overflow_takes_nothing() {
    let server = RedisServer::start();
    let store = store(&server);
    for (counter, tokens) in
        [("9223372036854775807", 1), ("9223372036854775800", 8), ("9223372036854775807", 131_072)]
    {
        let _: () = server.ask(&["SET", COUNTER, counter]).await;
        let error = store.acquire(Arc::new(request(&[item("a")]).tokens(tokens))).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{error}");
        assert!(error.to_string().contains("overflow") && error.to_string().contains(COUNTER), "{error}");
        assert!(!exists(&server, "lock:a").await);
        assert_eq!(server.ask::<String>(&["GET", COUNTER]).await, counter);
    }
    // Two keys, only one of them corrupt.
    let _: () = server.ask(&["SET", COUNTER, "9223372036854775807"]).await;
    for items in [[item("a"), item("b")], [item("b"), item("a")]] {
        assert!(acquire(&store, &items).await.is_err());
        assert!(!exists(&server, "lock:a").await && !exists(&server, "lock:b").await);
    }
}

#[tokio::test]
async fn a_counter_that_is_no_number_takes_nothing_and_stays() {
    let server = RedisServer::start();
    let store = store(&server);
    for value in
        ["abc", "", "0x7f", "1e30", " 12", "12 ", "12.5", "nan", "inf", "-", "-0", "007", "+5", "1\n"]
    {
        let _: () = server.ask(&["SET", COUNTER, value, "PX", "60000"]).await;
        for items in [vec![item("a")], vec![item("b"), item("a")]] {
            let error = acquire(&store, &items).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{value:?} {error}");
            let text = error.to_string();
            assert!(text.contains("LOCKTOKEN") && text.contains(COUNTER), "{text}");
        }
        assert_eq!(server.keys().await, [COUNTER], "{value:?}");
        assert_eq!(server.ask::<String>(&["GET", COUNTER]).await, value);
        assert!(pttl(&server, COUNTER).await > 0);
    }
}

#[tokio::test]
async fn other_peoples_types_are_left_alone() {
    let server = RedisServer::start();
    let store = store(&server);
    let _: () = server.ask(&["RPUSH", COUNTER, "x"]).await;
    let error = acquire(&store, &[item("a")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ForeignData);
    assert!(error.to_string().contains("WRONGTYPE") && error.to_string().contains(COUNTER), "{error}");
    assert_eq!(server.keys().await, [COUNTER]);
    assert!(!store.status(key("a")).await.unwrap().is_locked());

    for make in [
        vec!["SET", "lock:b", "x", "PX", "60000"],
        vec!["SET", "lock:b", "x"],
        vec!["RPUSH", "lock:b", "x"],
        vec!["HSET", "lock:b", "name", "ann"],
        vec!["HSET", "lock:b", "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1"],
    ] {
        let _: () = server.ask(&["DEL", "lock:b"]).await;
        let _: redis::Value = server.ask(&make).await;
        for error in [
            acquire(&store, &[item("b")]).await.unwrap_err(),
            acquire(&store, &[item("c"), item("b")]).await.unwrap_err(),
            store.force_release(key("b")).await.unwrap_err(),
            store.status(key("b")).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{make:?} {error}");
            assert!(error.to_string().contains("lock:b"), "{error}");
        }
        assert!(exists(&server, "lock:b").await, "{make:?}");
        assert!(!exists(&server, "lock:c").await && !exists(&server, "redisson_lock_token:{lock:c}").await);
        assert_eq!(release(&store, &[item("b")]).await.unwrap().held, [false]);
        assert!(exists(&server, "lock:b").await, "{make:?}");
    }
}

#[tokio::test]
async fn hashes_with_other_fields_are_never_waited_for() {
    let server = RedisServer::start();
    let store = store(&server);
    let lock_like = "8743c9c0-0795-4907-87fd-6c719a6b4586:1";
    let many: Vec<String> = (0..600).map(|i| format!("f{i}")).collect();
    let mut hashes = vec![vec!["name"], vec![lock_like, "name"], vec!["mode", "x:y"]];
    hashes.push(many.iter().map(String::as_str).collect());
    for fields in &hashes {
        let _: () = server.ask(&["DEL", "lock:a"]).await;
        for field in fields {
            let _: () = server.ask(&["HSET", "lock:a", field, "1"]).await;
        }
        let _: () = server.ask(&["PEXPIRE", "lock:a", "60000"]).await;
        for error in [
            acquire(&store, &[item("a")]).await.unwrap_err(),
            store.force_release(key("a")).await.unwrap_err(),
            store.status(key("a")).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{error}");
            assert!(error.to_string().contains("is not a lock"), "{error}");
        }
        assert_eq!(server.ask::<usize>(&["HLEN", "lock:a"]).await, fields.len());
    }
    // A hash that Redisson writes is a lock.
    let _: () = server.ask(&["DEL", "lock:a"]).await;
    for (field, value) in
        [("mode", "write"), (lock_like, "1"), ("8743c9c0-0795-4907-87fd-6c719a6b4586:1:write", "1")]
    {
        let _: () = server.ask(&["HSET", "lock:a", field, value]).await;
    }
    let _: () = server.ask(&["PEXPIRE", "lock:a", "60000"]).await;
    busy(&store, &[item("a")]).await;
    assert!(store.status(key("a")).await.unwrap().is_locked());
    assert!(store.force_release(key("a")).await.unwrap());
}

#[tokio::test]
async fn the_same_owner_again_is_the_same_hold() {
    let server = RedisServer::start();
    let store = store(&server);
    let mine = [item("a")];
    let first = granted(&store, &mine).await;
    let _: () = server.ask(&["PEXPIRE", "lock:a", "300000"]).await;
    let second = granted(&store, &mine).await;
    assert!(second.tokens[0].first > first.tokens[0].last, "new tokens");
    let fields: Vec<String> = server.ask(&["HGETALL", "lock:a"]).await;
    assert_eq!(fields, [mine[0].owner.as_str(), "1"], "the count stays at 1");
    assert!(pttl(&server, "lock:a").await > 290_000, "not shortened");
    let longer = AcquireRequest::new(mine.to_vec(), Duration::from_secs(600), TIMEOUT);
    granted_by(&store, longer).await;
    assert!(pttl(&server, "lock:a").await > 590_000, "lengthened");
    assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
    assert!(!exists(&server, "lock:a").await, "one release ends it");
}

#[tokio::test]
async fn a_user_without_channel_rights_releases_all_the_same() {
    let server = RedisServer::start();
    let _: () = server
        .ask(&[
            "ACL",
            "SETUSER",
            "ann",
            "on",
            ">hunter2",
            "~lock:*",
            "~redisson_lock*",
            "resetchannels",
            "+@all",
        ])
        .await;
    let store = RedisStore::new(&server.client_as("ann", "hunter2"), options()).unwrap();
    let mine = [item("a"), item("b")];
    granted(&store, &mine).await;
    let released = release(&store, &mine).await.unwrap();
    assert_eq!(released.held, [true, true]);
    assert_eq!(released.rivals, Rivals::None);
    assert!(!exists(&server, "lock:a").await && !exists(&server, "lock:b").await);

    let watch = store.watch(Arc::new(request(&mine))).await.unwrap();
    assert!(!watch.is_confirmed(), "a refused SUBSCRIBE means polling, not an error");
}

#[tokio::test]
async fn a_user_without_rights_is_denied() {
    let server = RedisServer::start();
    let _: () = server.ask(&["ACL", "SETUSER", "ann", "on", ">hunter2", "~other:*", "&*", "+@all"]).await;
    let _: () =
        server.ask(&["ACL", "SETUSER", "bob", "on", ">hunter2", "~*", "&*", "+@all", "-pexpire"]).await;
    let _: () =
        server.ask(&["ACL", "SETUSER", "eve", "on", ">hunter2", "~*", "&*", "+@all", "-evalsha"]).await;
    for user in ["ann", "bob", "eve"] {
        let store = RedisStore::new(&server.client_as(user, "hunter2"), options()).unwrap();
        let error = acquire(&store, &[item("a"), item("b")]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{user}: {error}");
        assert!(!exists(&server, "lock:a").await, "{user}: a lock without TTL must not stay");
        assert!(!exists(&server, "lock:b").await, "{user}");
    }
    let store = RedisStore::new(&server.client_as("ann", "hunter3"), options()).unwrap();
    for error in [acquire(&store, &[item("a")]).await.unwrap_err(), store.check().await.unwrap_err()] {
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
        let text = format!("{error} {error:?} {store:?}");
        assert!(
            text.contains("WRONGPASS") && text.contains(&format!("127.0.0.1:{}", server.port())),
            "{text}"
        );
        assert!(!text.contains("hunter"), "{text}");
    }
}

#[tokio::test]
async fn a_server_that_wants_a_password_says_so() {
    let server = RedisServer::start_with(&["--requirepass", "hunter2"]);
    let store = store(&server);
    for error in [acquire(&store, &[item("a")]).await.unwrap_err(), store.check().await.unwrap_err()] {
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    }
    let client = redis::Client::open(format!("redis://:hunter2@127.0.0.1:{}", server.port())).unwrap();
    let store = RedisStore::new(&client, options()).unwrap();
    store.check().await.unwrap();
    granted(&store, &[item("a")]).await;
}

#[tokio::test]
async fn full_memory_refuses_acquires_and_nothing_else() {
    let server = RedisServer::start();
    let store = store(&server);
    let (a, b) = ([item("a")], [item("b")]);
    granted(&store, &a).await;
    granted(&store, &b).await;
    let _: () = server.ask(&["SCRIPT", "FLUSH"]).await;
    let _: () = server.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;

    let error = acquire(&store, &[item("c")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
    assert!(!server.keys().await.iter().any(|key| key.contains(":c")), "nothing is taken");

    let keep = lock_core::store::RenewItem::hold(a[0].clone(), Duration::from_secs(60));
    let keep = lock_core::store::RenewRequest { items: vec![keep], timeout: TIMEOUT };
    assert_eq!(store.renew(Arc::new(keep)).await.unwrap(), [lock_core::store::Renewed::Held]);
    let linger = ReleaseRequest { linger: Duration::from_secs(1), ..release_request(&b) };
    assert_eq!(store.release(Arc::new(linger)).await.unwrap().held, [true]);
    assert_eq!(release(&store, &a).await.unwrap().held, [true]);
    assert!(store.status(key("b")).await.unwrap().is_locked());
    store
        .withdraw(Arc::new({
            let request = request(&b);
            request.stamp(lock_core::store::ServerTime::from_micros(1));
            request
        }))
        .await
        .unwrap();
    assert!(!exists(&server, "lock:b").await);
    let _: () = server.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    granted(&store, &[item("c")]).await;
    let _: () = server.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert!(store.force_release(key("c")).await.unwrap());
}

#[tokio::test]
async fn very_long_and_very_short_leases_leave_a_ttl() {
    let server = RedisServer::start();
    let store = store(&server);
    for lease in [Duration::MAX, Duration::from_secs(u64::MAX / 2), Duration::from_nanos(1)] {
        let mine = [item("a")];
        let _ = granted_by(&store, AcquireRequest::new(mine.to_vec(), lease, TIMEOUT)).await;
        assert_ne!(pttl(&server, "lock:a").await, -1, "{lease:?}");
        let _ = release(&store, &mine).await.unwrap();
    }
}

#[tokio::test]
async fn a_missing_script_is_sent_again_with_its_source() {
    let server = RedisServer::start();
    let store = store(&server);
    for _ in 0..3 {
        let _: () = server.ask(&["SCRIPT", "FLUSH"]).await;
        let mine = [item("a")];
        granted(&store, &mine).await;
        let _: () = server.ask(&["SCRIPT", "FLUSH"]).await;
        release(&store, &mine).await.unwrap();
    }
    let stats: String = server.ask(&["INFO", "commandstats"]).await;
    assert!(stats.contains("cmdstat_eval:") && !stats.contains("script|load"), "{stats}");
}

#[tokio::test]
async fn a_misconfigured_server_is_refused_with_its_words() {
    let server = RedisServer::start_with(&["--min-replicas-to-write", "1"]);
    let store = store(&server);
    let error = acquire(&store, &[item("a")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotReady, "{error}");
    assert!(error.to_string().contains("NOREPLICAS"), "{error}");
    assert!(server.keys().await.is_empty());
}
