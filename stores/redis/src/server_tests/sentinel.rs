//! Behaviour with a primary that sentinels watch.

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{Acquired, Item, LockStore, Notice, Renewed, StoreError, StoreErrorKind};
use lock_test_servers::RedisServer;
use lock_test_servers::redis::{Data, free_port};
use lock_test_servers::sentinels::MASTER;

use super::sentinel_rig::{SentinelsExt as _, sentinels, sentinels_with};
use super::server::{Fake, ServerExt as _};
use super::{
    LEASE, RedisStore, acquire, busy, granted, item, options, release, renew, request, store_at, until,
};

const SECOND: Duration = Duration::from_secs(1);

/// User of the sentinels at the servers, for tests that need one.
const USER: &str = "watchman";

/// Asks until there is a grant, as the engine does: transient errors are waited out, others are
/// not.
async fn granted_soon(store: &RedisStore, name: &str) -> Vec<Item> {
    let give_up = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        let mine = vec![item(name)];
        match acquire(store, &mine).await {
            Ok(Acquired::Granted(_)) => return mine,
            Ok(Acquired::Busy(_)) => {}
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        assert!(tokio::time::Instant::now() < give_up, "no grant within 30 s");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn has(server: &RedisServer, name: &str) -> bool {
    server.ask::<bool>(&["EXISTS", &format!("lock:{name}")]).await
}

/// Whether this server gives a grant.
async fn arrives_at(store: &RedisStore, server: &RedisServer) -> bool {
    let mine = granted_soon(store, "probe").await;
    let there = has(server, "probe").await;
    release(store, &mine).await.is_ok() && there
}

#[tokio::test]
async fn the_primary_is_found_also_when_the_first_sentinel_is_dead() {
    let mut set = sentinels();
    let store = set.store();
    store.check().await.unwrap();
    let mine = [item("a")];
    granted(&store, &mine).await;
    assert!(has(&set.servers()[0], "a").await);
    assert_eq!(release(&store, &mine).await.unwrap().held, [true]);

    set.sentinels_mut()[0].kill();
    granted(&set.store(), &[item("b")]).await;
    set.sentinels_mut()[1].stop();
    granted(&set.store(), &[item("c")]).await;
    set.sentinels_mut()[1].cont();

    // One known sentinel is enough to find the others.
    let one = format!("redis+sentinel://{}/{MASTER}", set.sentinels()[2].addr());
    let store = store_at(&one, options());
    granted(&store, &[item("d")]).await;
    set.sentinels_mut()[2].kill();
    set.servers()[0].kill_clients("normal").await;
    granted_soon(&store, "e").await;
}

#[tokio::test]
async fn errors_say_what_was_asked() {
    let ports = [free_port().unwrap(), free_port().unwrap()];
    let nobody = format!("redis+sentinel://ann:hunter2@127.0.0.1:{},127.0.0.1:{}/m", ports[0], ports[1]);
    let error = store_at(&nobody, options()).check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    for port in ports {
        assert!(error.to_string().contains(&format!("127.0.0.1:{port}: no connection")), "{error}");
    }
    assert!(!format!("{error}").contains("hunter2"), "{error}");

    let server = RedisServer::start();
    let no_sentinel = format!("redis+sentinel://127.0.0.1:{}/m", server.port());
    let error = store_at(&no_sentinel, options()).check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("this is not a sentinel"), "{error}");

    let set = sentinels();
    let error = store_at(&set.sentinels()[0].url(), options()).check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("redis+sentinel://"), "{error}");
    let error = store_at(&set.url().replace(MASTER, "stock"), options()).check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains(&format!("\"stock\"; they know {MASTER}")), "{error}");
}

#[tokio::test]
async fn both_passwords_are_needed_and_never_told() {
    let set = sentinels_with(|options| options.password("hunter2").sentinel_password("swordfish"));
    let url = set.url();
    let right = store_at(&url, options());
    granted(&right, &[item("a")]).await;

    for (wrong, hint) in [
        (url.replace("hunter2", "hunter3"), "WRONGPASS"),
        (url.replace("swordfish", "swordfight"), "sentinel_password"),
        (url.split('?').next().unwrap().to_owned(), "sentinel_password"),
        (url.replace(":hunter2@", ""), "NOAUTH"),
    ] {
        let store = store_at(&wrong, options());
        let error = store.check().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
        let text = format!("{error} {error:?} {store:?}");
        assert!(text.contains(hint), "{hint}: {text}");
        for secret in ["hunter2", "hunter3", "swordfish", "swordfight"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

/// While its former primary still answers as if it were one.
#[tokio::test]
async fn a_new_primary_is_used_although_the_old_connection_works() {
    let set = sentinels();
    let store = set.store();
    let (held, waited) = ([item("held")], [item("waited")]);
    granted(&store, &held).await;
    granted(&store, &waited).await;
    set.servers()[0].wait_for_replicas(2);
    let waiting = [item("waited")];
    let mut watch = store.watch(Arc::new(request(&waiting))).await.unwrap();
    assert!(watch.is_confirmed());

    let new = &set.servers()[set.fail_over().await];
    until("the link is given up", async || arrives_at(&store, new).await).await;
    let role: (String, redis::Value, redis::Value) = set.servers()[0].ask(&["ROLE"]).await;
    assert_eq!(role.0, "master", "the test proves nothing if it was demoted already");

    assert_eq!(renew(&store, &held, LEASE).await, [Renewed::Held], "at the new primary");
    // Subscribed again at the new primary, and notified of that.
    loop {
        match watch.notice().await {
            Notice::Retry => continue,
            notice => {
                assert_eq!(notice, Notice::Resubscribed);
                break;
            }
        }
    }
    release(&store, &waited).await.unwrap();
    let notice = tokio::time::timeout(Duration::from_secs(5), watch.notice()).await.unwrap();
    assert_eq!(notice, Notice::Retry, "the release at the new primary is heard");
    granted(&store, &waiting).await;

    set.first_is_demoted().await;
    assert_eq!(renew(&store, &held, LEASE).await, [Renewed::Held]);
    store.check().await.unwrap();
}

/// Nobody can demote it, so it answers as a primary forever.
#[tokio::test]
async fn a_primary_that_only_the_sentinels_can_not_reach_is_left() {
    let set = sentinels_with(|options| options.user(USER));
    let store = set.store();
    let held = [item("held")];
    granted(&store, &held).await;
    let old = &set.servers()[0];
    old.wait_for_replicas(2);
    // Without their user the sentinels are the default user, who may not ask whether the server is
    // alive.
    let _: () = old.ask(&["ACL", "SETUSER", USER, "off"]).await;
    let _: () = old.ask(&["ACL", "SETUSER", "default", "-ping"]).await;
    let _: i64 = old.ask(&["CLIENT", "KILL", "USER", USER]).await;

    let new = &set.servers()[set.another_than(old.port()).await];
    until("the new primary is used", async || arrives_at(&store, new).await).await;
    assert_eq!(renew(&store, &held, LEASE).await, [Renewed::Held]);
    for round in 0..10 {
        new.kill_clients("normal").await;
        let mine = granted_soon(&store, &format!("b{round}")).await;
        assert!(has(new, &format!("b{round}")).await);
        release(&store, &mine).await.unwrap();
    }
    assert!(arrives_at(&set.store(), new).await, "also of later watches");
    let role: (String, redis::Value, redis::Value) = old.ask(&["ROLE"]).await;
    assert_eq!(role.0, "master");
}

#[tokio::test]
async fn a_killed_primary_is_replaced_without_a_restart() {
    let mut set = sentinels();
    let store = set.store();
    let held = [item("held")];
    granted(&store, &held).await;
    let waiting = [item("held")];
    busy(&store, &waiting).await;
    let mut watch = store.watch(Arc::new(request(&waiting))).await.unwrap();
    set.servers()[0].wait_for_replicas(2);
    set.servers_mut()[0].kill();

    let error = acquire(&store, &[item("a")]).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let mine = granted_soon(&store, "a").await;
    let new = &set.servers()[set.another_than(set.servers()[0].port()).await];
    assert!(has(new, "a").await);
    assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
    // The lease of 10 s is longer than the failover took, or it would be gone.
    let kept: Result<Vec<Renewed>, StoreError> =
        store.renew(super::renew_request(&held, LEASE, super::Standing::Holder)).await;
    if kept.unwrap() == [Renewed::Held] {
        until("subscribed again", async || {
            let again = store.watch(Arc::new(request(&[item("held")]))).await.unwrap();
            again.is_confirmed()
        })
        .await;
        release(&store, &held).await.unwrap();
        let heard = async { while watch.notice().await != Notice::Retry {} };
        tokio::time::timeout(Duration::from_secs(5), heard).await.unwrap();
        granted(&store, &waiting).await;
    }
    // It comes back as a replica, which changes nothing.
    set.servers_mut()[0].restart(Data::Lost);
    set.first_is_demoted().await;
    granted_soon(&store, "b").await;
    store.check().await.unwrap();
}

/// As in a manual demotion without the sentinels.
#[tokio::test]
async fn a_primary_that_became_a_replica_is_waited_for() {
    let mut set = sentinels();
    let store = set.store();
    granted(&store, &[item("warm-up")]).await;
    for sentinel in set.sentinels_mut() {
        sentinel.stop();
    }
    let port = set.servers()[1].port().to_string();
    let _: () = set.servers()[0].ask(&["REPLICAOF", "127.0.0.1", &port]).await;
    let error = acquire(&store, &[item("a")]).await.unwrap_err();
    assert!(error.is_transient(), "READONLY passes here: {error}");
    let _: () = set.servers()[0].ask(&["REPLICAOF", "NO", "ONE"]).await;
    for sentinel in set.sentinels_mut() {
        sentinel.cont();
    }
    granted_soon(&store, "a").await;
}

/// Starts a fake that names `host:port` as the primary and refuses all other questions.
async fn fake_sentinel(host: &'static str, port: u16) -> Fake {
    Fake::start(move |words| match words[0].as_str() {
        "HELLO" => "%1\r\n$4\r\nmode\r\n$8\r\nsentinel\r\n".to_owned(),
        "SENTINEL" if words[1] == "GET-MASTER-ADDR-BY-NAME" => {
            format!("*2\r\n${}\r\n{host}\r\n${}\r\n{port}\r\n", host.len(), port.to_string().len())
        }
        "SENTINEL" => "-NOPERM this user has no permissions\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    })
    .await
}

#[tokio::test]
async fn a_server_that_is_no_primary_is_not_used() {
    let replica = Fake::start(|words| match words[0].as_str() {
        "HELLO" => "%2\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$4\r\nrole\r\n$7\r\nreplica\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    })
    .await;
    let port = replica.port;
    let sentinel = fake_sentinel("127.0.0.1", port).await;
    let mut options = options();
    options.connect_timeout = SECOND;
    let store = store_at(&format!("redis+sentinel://127.0.0.1:{}/m", sentinel.port), options);
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}, whose role is replica")), "{error}");
}

#[tokio::test]
async fn a_host_name_is_used_as_it_is_named() {
    let mut server = RedisServer::start();
    let sentinel = fake_sentinel("localhost", server.port()).await;
    let store = store_at(&format!("redis+sentinel://127.0.0.1:{}/m", sentinel.port), options());
    granted(&store, &[item("a")]).await;
    server.kill();
    let place = format!("localhost:{}", server.port());
    until("the error names it", async || store.check().await.unwrap_err().to_string().contains(&place)).await;
}

#[tokio::test]
async fn a_sentinel_that_is_behind_does_not_bring_the_old_primary_back() {
    let mut set = sentinels();
    let store = set.store();
    granted(&store, &[item("warm-up")]).await;
    // It sleeps through the failover, and names the old primary until the others tell it.
    set.sentinels_mut()[2].stop();
    let new = set.fail_over().await;
    until("the new primary is used", async || arrives_at(&store, &set.servers()[new]).await).await;
    set.sentinels_mut()[2].cont();
    let new = &set.servers()[new];
    for round in 0..20 {
        new.kill_clients("normal").await;
        let mine = granted_soon(&store, &format!("b{round}")).await;
        assert!(has(new, &format!("b{round}")).await);
        release(&store, &mine).await.unwrap();
    }
}

#[tokio::test]
async fn the_watcher_ends_with_the_store() {
    let set = sentinels();
    let store = set.store();
    granted(&store, &[item("a")]).await;
    let watched =
        async |sentinel: &RedisServer| sentinel.ask::<String>(&["CLIENT", "LIST"]).await.contains("sub=1");
    let anyone = async || {
        let mut any = false;
        for sentinel in set.sentinels() {
            any |= watched(sentinel).await;
        }
        any
    };
    until("a sentinel is listened to", &anyone).await;
    drop(store);
    until("no listener is left", async || !anyone().await).await;
}
