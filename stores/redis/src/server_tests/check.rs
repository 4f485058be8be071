//! Verdicts of `check` about servers.

use lock_core::store::StoreErrorKind;
use lock_core::store::kit::ServerClock;

use super::rw::fields;
use super::server::Fake;
use super::synced::{LONG, replicated};
use super::*;
use crate::check::clocks_apart;
use crate::connection::At;

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// Starts a fake with this INFO, version and role.
async fn fake(info: &'static str, version: &'static str, role: &'static str) -> Fake {
    Fake::start(move |words| match words[0].as_str() {
        "HELLO" => format!("%2\r\n{}{}{}{}", bulk("version"), bulk(version), bulk("role"), bulk(role)),
        "TIME" => "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n".to_owned(),
        "CLIENT" => "+OK\r\n".to_owned(),
        "INFO" if info.is_empty() => {
            "-NOPERM this user has no permissions to run the 'info' command\r\n".to_owned()
        }
        "INFO" => bulk(info),
        _ => "-NOPERM this user has no permissions to run this command\r\n".to_owned(),
    })
    .await
}

#[tokio::test]
async fn a_good_server_passes() {
    let server = RedisServer::start();
    store_with(&server, |options| options.strict = true).check().await.unwrap();
}

#[tokio::test]
async fn eviction_warns_and_is_an_error_in_strict_mode() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    store(&server).check().await.unwrap();
    let error = store_with(&server, |options| options.strict = true).check().await.unwrap_err();
    // Waiting does not help, so a program that waits for its store ends.
    assert!(error.kind().is_misconfiguration(), "{error}");
    let text = error.to_string();
    assert!(text.contains("allkeys-lru") && text.contains("noeviction"), "{text}");
}

#[tokio::test]
async fn without_the_right_to_look_it_only_warns() {
    let server = RedisServer::start();
    let _: () = server
        .ask(&["ACL", "SETUSER", "ann", "on", ">hunter2", "~*", "&*", "+@all", "-info", "-config"])
        .await;
    let mut options = options();
    options.strict = true;
    let store = RedisStore::new(&server.client_as("ann", "hunter2"), options).unwrap();
    store.check().await.unwrap();
    granted(&store, &[item("a")]).await;
}

#[tokio::test]
async fn an_old_server_is_named() {
    for info in ["redis_version:6.0.16\r\nrole:master\r\n", ""] {
        let fake = fake(info, "6.0.16", "master").await;
        let error = RedisStore::new(&fake.client(), options()).unwrap().check().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
        let text = error.to_string();
        assert!(text.contains("6.0.16") && text.contains("6.2"), "{text}");
        assert!(text.contains(&fake.port.to_string()) && !text.contains("hunter2"), "{text}");
    }
}

#[tokio::test]
async fn a_server_that_knows_no_hello_is_named_too() {
    let fake = Fake::start(|words| match words[0].as_str() {
        "AUTH" | "CLIENT" => "+OK\r\n".to_owned(),
        "INFO" => bulk("redis_version:5.0.7\r\n"),
        // As Redis 5 does: with the arguments.
        name => format!(
            "-ERR unknown command `{name}`, with args beginning with: {}\r\n",
            words[1..].iter().map(|word| format!("`{word}`, ")).collect::<String>()
        ),
    })
    .await;
    let store = RedisStore::new(&fake.client(), options()).unwrap();
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("5.0.7"), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    let error = acquire(&store, &[item("a")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("a proxy in front of it"), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

#[tokio::test]
async fn a_replica_or_a_loading_server_is_refused() {
    let good = "redis_version:7.0.15\r\nloading:0\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n";
    for (info, role, kind) in [
        (good, "master", None),
        ("redis_version:7.0.15\r\nloading:1\r\nrole:master\r\n", "master", Some(StoreErrorKind::NotReady)),
        ("redis_version:7.0.15\r\nloading:0\r\nrole:slave\r\n", "replica", Some(StoreErrorKind::ReadOnly)),
        ("", "replica", Some(StoreErrorKind::ReadOnly)),
    ] {
        let fake = fake(info, "7.0.15", role).await;
        let checked = RedisStore::new(&fake.client(), options()).unwrap().check().await;
        assert_eq!(checked.as_ref().err().map(StoreError::kind), kind, "{info:?} {checked:?}");
    }
}

#[tokio::test]
async fn replicas_whose_clocks_differ_are_named() {
    let (primary, replicas) = replicated(1).await;
    let store = store(&primary);
    let dialer = store.nodes()[0].connector.dialer().clone();
    let sent = dialer.clock.now();
    let time = granted(&store, &[item("a")]).await.moment;
    let said = async |ahead: u64, info: &str, timeout| {
        let clock = ServerClock::default();
        clock.observe(ServerTime::from_micros(time.get() + ahead * 1_000_000), sent);
        clocks_apart(&dialer, &clock, Duration::ZERO, info, timeout).await
    };

    let info: String = primary.ask(&["INFO"]).await;
    assert_eq!(said(0, &info, LONG).await, [""; 0], "one machine has one clock");
    let behind = said(3600, &info, LONG).await;
    assert!(
        behind[0].contains(&replicas[0].port().to_string()) && behind[0].contains(" behind "),
        "{behind:?}"
    );

    let future = Fake::start(|_| "*2\r\n$10\r\n9700000000\r\n$1\r\n0\r\n".to_owned()).await;
    let line =
        |number, port| format!("slave{number}:ip=127.0.0.1,port={port},state=online,offset=1,lag=0\r\n");
    let info = ["connected_slaves:2\r\n", &line(0, future.port), "slave_repl_offset:5\r\n"].concat();
    let ahead = said(0, &info, LONG).await;
    assert!(ahead[0].contains(&future.port.to_string()) && ahead[0].contains(" ahead of "), "{ahead:?}");

    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let nobody = line(0, silent.local_addr().unwrap().port());
    assert_eq!(said(0, &nobody, Duration::from_millis(100)).await, [""; 0]);
}

#[tokio::test]
async fn missing_rights_are_named_and_nothing_is_left() {
    let server = RedisServer::start();
    let missing = async |rules: &[&str]| {
        let _: () = server.ask(&[&["ACL", "SETUSER", "ann", "reset", "on", ">x"], rules].concat()).await;
        let store = RedisStore::new(&server.client_as("ann", "x"), options()).unwrap();
        store.check().await.unwrap();
        let key = LockKey::new("nobodys").unwrap();
        let nodes = store.nodes();
        nodes[0].missing_rights(&key, At::once(TIMEOUT)).await.unwrap()
    };
    assert_eq!(missing(&["~*", "&*", "+@all"]).await, "");
    assert_eq!(missing(&["~*", "&*", "+@all", "-zadd", "-lpos"]).await, "lpos, zadd");
    assert_eq!(missing(&["~*", "&*", "+@all", "-pubsub"]).await, "pubsub numsub");
    let keys =
        ["~lock:*", "~{lock:*", "~redisson_lock_t*", "~lock_fair_*", "~lock_rw_*", "&redisson_rwlock*"];
    assert_eq!(
        missing(&[&keys[..], &["+@all"]].concat()).await,
        "publish to redisson_lock__channel:{lock:nobodys}, redisson_lock_queue:{lock:nobodys}"
    );
    // A user that is not meant for fair locks, or for locks at all.
    let mutexes = ["+@all", "-@list", "-@sortedset", "-hkeys"];
    assert_eq!(missing(&[&["~*", "&*"], &mutexes[..]].concat()).await, "");
    assert_eq!(missing(&["~*", "&*", "+@all", "-@hash"]).await, "hkeys, hget");
    let denied = missing(&["~other:*", "&*", "+@all"]).await;
    assert!(denied.contains("NOPERM"), "{denied}");
    assert!(server.keys().await.is_empty());

    // The key may be a lock after all.
    granted(&store(&server), &[item("nobodys")]).await;
    let before = fields(&server, "lock:nobodys").await;
    assert_eq!(missing(&["~*", "&*", "+@all"]).await, "");
    assert_eq!(fields(&server, "lock:nobodys").await, before);
}
