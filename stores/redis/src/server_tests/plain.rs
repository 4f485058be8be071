//! The plain layout on real servers: the suite that every store has to pass, and what is its own.

use lock_core::store::{Notice, ScanRequest, StoreErrorKind, Withdrawn};

use super::super::connection::At;
use super::super::late::may_kill;
use super::cluster::{Cluster, ClusterExt as _, home, slot_of};
use super::server::Proxy;
use super::*;

/// The suite on one server.
mod alone {
    use super::*;

    async fn alone() -> Subject {
        let server = RedisServer::start();
        subject_of(|| plain(&server)).keeping(server)
    }

    lock_store_conformance::conformance!(alone);
}

/// The suite on one server of a quorum.
mod by_script {
    use super::*;

    async fn by_script() -> Subject {
        let server = RedisServer::start();
        subject_of(|| store_with(&server, |options| options.layout = Layout::PlainByScript)).keeping(server)
    }

    lock_store_conformance::conformance!(by_script);
}

const LOCK: &str = "lock:a";
const COUNTER: &str = "lock_plain_tokens:lock:";

fn plain(server: &RedisServer) -> RedisStore {
    store_with(server, |options| options.layout = Layout::Plain)
}

fn plain_at(client: &redis::Client) -> RedisStore {
    RedisStore::new(client, RedisOptions { layout: Layout::Plain, ..options() }).unwrap()
}

/// Returns a store that has used its connection through a proxy.
async fn behind_a_proxy() -> (RedisServer, Proxy, RedisStore) {
    let server = RedisServer::start();
    let proxy = Proxy::start(&server).await;
    let store = plain_at(&proxy.client());
    granted(&store, &[item("warm-up")]).await;
    (server, proxy, store)
}

async fn first_token(store: &RedisStore, mine: &[Item]) -> u64 {
    granted(store, mine).await.tokens[0].first
}

async fn withdraw(store: &RedisStore, request: &Arc<AcquireRequest>) -> Withdrawn {
    store.withdraw(Arc::clone(request)).await.unwrap()
}

/// Makes a request that is sent and not answered in time.
async fn unanswered(store: &RedisStore, lease: Duration) -> Arc<AcquireRequest> {
    let mut timeout = Duration::from_millis(200);
    loop {
        let request = Arc::new(AcquireRequest::new(vec![item("a")], lease, timeout));
        let error = store.acquire(Arc::clone(&request)).await.unwrap_err();
        match error.kind() {
            StoreErrorKind::Unanswered => return request,
            // A busy machine has not even sent it.
            StoreErrorKind::Unreachable if timeout < LEASE / 4 => timeout *= 2,
            _ => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn a_lock_is_a_string_with_its_owner_and_leaves_only_the_counter() {
    let server = RedisServer::start();
    let store = plain(&server);
    for name in ["a", "b", "c"] {
        let mine = [item(name)];
        granted(&store, &mine).await;
        let value: String = server.ask(&["GET", &format!("lock:{name}")]).await;
        assert_eq!(value, mine[0].owner.as_str());
        let left: u64 = server.ask(&["PTTL", &format!("lock:{name}")]).await;
        assert!(left <= 10_000 && left > 5_000, "{left}");
        assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
    }
    assert_eq!(server.keys().await, [COUNTER]);
    // The first request seeds the counter, by a script. The others need one for the release.
    assert_eq!((server.calls("evalsha").await, server.calls("incrby").await), (4, 3));
}

#[tokio::test]
async fn requests_that_are_ready_together_travel_together() {
    let server = RedisServer::start();
    let store = Arc::new(plain(&server));
    granted(&store, &[item("warm-up")]).await;
    let before = server.calls("incrby").await;
    let calls: Vec<_> = (0..100)
        .map(|i| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { first_token(&store, &[item(&format!("k{i}"))]).await })
        })
        .collect();
    let mut tokens = Vec::new();
    for call in calls {
        tokens.push(call.await.unwrap());
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 100, "each has its own token");
    let counted = server.calls("incrby").await - before;
    assert!(counted < 30, "{counted} groups");
}

#[tokio::test]
async fn a_late_copy_takes_nothing_after_the_withdrawal() {
    let (_server, proxy, store) = behind_a_proxy().await;
    for _ in 0..3 {
        proxy.hold_next();
        let late = unanswered(&store, LEASE).await;
        assert_eq!(withdraw(&store, &late).await, Withdrawn::Settled);
        proxy.let_go();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!store.status(key("a")).await.unwrap().is_locked());
    }
}

#[tokio::test]
async fn late_copies_of_a_group_take_nothing_either() {
    let (server, proxy, store) = behind_a_proxy().await;
    let store = Arc::new(store);
    proxy.hold_next();
    let timeout = Duration::from_millis(300);
    let requests: Vec<_> = (0..20)
        .map(|i| Arc::new(AcquireRequest::new(vec![item(&format!("k{i}"))], LEASE, timeout)))
        .collect();
    let calls: Vec<_> = requests
        .iter()
        .map(|request| {
            let (store, request) = (Arc::clone(&store), Arc::clone(request));
            tokio::spawn(async move { store.acquire(request).await })
        })
        .collect();
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error.kind(), StoreErrorKind::Unanswered | StoreErrorKind::Unreachable), "{error}");
    }
    for request in &requests {
        assert_eq!(withdraw(&store, request).await, Withdrawn::Settled);
    }
    proxy.let_go();
    tokio::time::sleep(Duration::from_millis(100)).await;
    release(&store, &[item("other")]).await.unwrap();
    assert_eq!(server.keys().await, ["lock:warm-up", COUNTER]);
}

#[tokio::test]
async fn a_connection_that_is_slow_from_the_start_takes_nothing_after_its_time() {
    let server = RedisServer::start();
    let proxy = Proxy::start(&server).await;
    let store = plain_at(&proxy.client());
    // Connects, but asks for no identity.
    store.status(key("a")).await.unwrap();
    proxy.hold_next();
    let request = Arc::new(AcquireRequest::new(vec![item("a")], LEASE, Duration::from_millis(200)));
    let begun = tokio::time::Instant::now();
    store.acquire(Arc::clone(&request)).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    assert_eq!(withdraw(&store, &request).await, Withdrawn::Settled);
    proxy.let_go();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!store.status(key("a")).await.unwrap().is_locked());
}

#[tokio::test]
async fn a_request_that_is_sent_again_has_no_earlier_copy() {
    let (_server, proxy, store) = behind_a_proxy().await;
    proxy.hold_next();
    let late = unanswered(&store, LEASE).await;
    assert!(matches!(store.acquire(Arc::clone(&late)).await.unwrap(), Acquired::Granted(_)));
    assert_eq!(release(&store, &late.items).await.unwrap().held, [true]);
    proxy.let_go();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!store.status(key("a")).await.unwrap().is_locked());
}

#[tokio::test]
async fn without_the_right_to_end_connections_a_withdrawal_is_settled_after_a_lease() {
    let server = RedisServer::start();
    let rights = ["ACL", "SETUSER", "ann", "on", ">hunter2", "~*", "&*", "+@all", "-client|kill"];
    let _: () = server.ask(&rights).await;
    let proxy = Proxy::start(&server).await;
    let store = plain_at(&proxy.client_as("ann", "hunter2"));
    granted(&store, &[item("warm-up")]).await;
    proxy.hold_next();
    let lease = Duration::from_secs(1);
    let late = unanswered(&store, lease).await;
    let Withdrawn::Pending(left) = withdraw(&store, &late).await else { panic!("settled") };
    assert!(left <= lease);
    proxy.let_go();
    until("the late copy takes the key", async || server.keys().await.contains(&LOCK.to_owned())).await;
    tokio::time::sleep(left).await;
    assert_eq!(withdraw(&store, &late).await, Withdrawn::Settled);
    assert!(!store.status(key("a")).await.unwrap().is_locked());
    let node = store.node();
    let ready = node.connector.ready(At::once(TIMEOUT)).await.unwrap();
    assert!(!may_kill(&node.connector, &ready).await.unwrap());
}

#[tokio::test]
async fn tokens_grow_although_the_counter_is_lost() {
    let server = RedisServer::start();
    let (store, other) = (plain(&server), plain(&server));
    let mut last = first_token(&other, &[item("other")]).await;
    for loss in [&["FLUSHALL"][..], &["DEL", COUNTER], &["SET", COUNTER, "7"], &["SET", COUNTER, "-7"]] {
        for store in [&store, &other] {
            let _: () = server.ask(&["SET", "warm-up", "1"]).await;
            assert!(first_token(store, &[item("warm")]).await > last);
            let _: redis::Value = server.ask(loss).await;
            let token = first_token(store, &[item(&format!("a{last}"))]).await;
            assert!(token > last, "{token} after {last} and {loss:?}");
            last = token;
            let _: redis::Value = server.ask(&["DEL", "lock:warm"]).await;
        }
    }
}

#[tokio::test]
async fn what_is_no_counter_is_an_error_and_takes_nothing() {
    let server = RedisServer::start();
    let store = plain(&server);
    let mine = [item("a")];
    granted(&store, &mine).await;
    release(&store, &mine).await.unwrap();
    let _: () = server.ask(&["SET", COUNTER, "abc"]).await;
    for _ in 0..2 {
        let error = acquire(&store, &[item("a")]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{error}");
        assert!(error.to_string().contains(COUNTER), "{error}");
        assert_eq!(server.keys().await, [COUNTER]);
    }
    let _: () = server.ask(&["DEL", COUNTER]).await;
    let _: u64 = server.ask(&["RPUSH", COUNTER, "x"]).await;
    let error = acquire(&store, &[item("a")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{error}");
    assert_eq!(server.keys().await, [COUNTER]);
}

#[tokio::test]
async fn a_missing_right_is_named_and_without_set_nothing_is_taken() {
    let server = RedisServer::start();
    for right in ["-incrby", "-set", "-get", "-pttl"] {
        let _: () = server.ask(&["ACL", "SETUSER", "ann", "on", ">hunter2", "~*", "&*", "+@all"]).await;
        let store = plain_at(&server.client_as("ann", "hunter2"));
        // The counter has its seed.
        let mine = [item("warm-up")];
        granted(&store, &mine).await;
        release(&store, &mine).await.unwrap();
        let _: () = server.ask(&["ACL", "SETUSER", "ann", right]).await;
        if right == "-set" {
            let error = acquire(&store, &[item("a")]).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Denied, "{right}: {error}");
            assert_eq!(server.keys().await, [COUNTER], "{right}");
        }
        let missing = store.node().missing_rights(&key("nobody"), At::once(TIMEOUT)).await.unwrap();
        assert!(missing.contains(&right[1..]), "{right}: {missing}");
    }
}

#[tokio::test]
async fn what_was_taken_and_can_not_be_given_back_is_withdrawn_later() {
    let server = RedisServer::start();
    let _: () = server.ask(&["ACL", "SETUSER", "ann", "on", ">hunter2", "~*", "&*", "+@all"]).await;
    let store = plain_at(&server.client_as("ann", "hunter2"));
    granted(&store, &[item("warm-up")]).await;
    let _: () = server.ask(&["ACL", "SETUSER", "ann", "-incrby", "-evalsha", "-eval"]).await;
    let request = Arc::new(request(&[item("a")]));
    let error = store.acquire(Arc::clone(&request)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unanswered, "{error}");
    let _: () = server.ask(&["ACL", "SETUSER", "ann", "+evalsha", "+eval"]).await;
    assert_eq!(withdraw(&store, &request).await, Withdrawn::Settled);
    assert!(!store.status(key("a")).await.unwrap().is_locked());
}

#[tokio::test]
async fn a_full_server_says_so_and_holds_are_still_kept_and_released() {
    let server = RedisServer::start();
    let store = plain(&server);
    let mine = [item("a")];
    granted(&store, &mine).await;
    let _: () = server.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = acquire(&store, &[item("b")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
    assert_eq!(busy(&store, &[item("a")]).await.item, 0, "a busy lock is busy");
    assert_eq!(renew(&store, &mine, LEASE * 2).await, [Renewed::Held]);
    assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
    assert_eq!(server.keys().await, [COUNTER]);
}

#[tokio::test]
async fn other_programs_have_owners_of_their_own() {
    let server = RedisServer::start();
    let store = plain(&server);
    let _: () = server.ask(&["SET", LOCK, "their own"]).await;
    let found = busy(&store, &[item("a")]).await;
    assert_eq!(found.remaining, None, "it has no end");
    let status = store.status(key("a")).await.unwrap();
    assert_eq!(status.holders, [(OwnerId::new("their own"), 1)]);
    assert_eq!(status.remaining, None);
    assert_eq!(renew(&store, &[item("a")], LEASE).await, [Renewed::Gone]);
    assert!(store.force_release(key("a")).await.unwrap());

    // Any bytes.
    let _: () = server.ask(&["SET".as_bytes(), LOCK.as_bytes(), b"\xff\x00", b"PX", b"60000"]).await;
    let found = busy(&store, &[item("a")]).await;
    assert!(found.remaining.unwrap() > Duration::from_secs(50));
    assert!(store.status(key("a")).await.unwrap().is_locked());

    let _: u64 = server.ask(&["DEL", LOCK]).await;
    let _: u64 = server.ask(&["HSET", LOCK, "a", "1"]).await;
    let error = acquire(&store, &[item("a")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{error}");
    let error = store.force_release(key("a")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{error}");
    assert_eq!(release(&store, &[item("a")]).await.unwrap().held, [false]);
    assert_eq!(renew(&store, &[item("a")], LEASE).await, [Renewed::Gone]);
}

#[tokio::test]
async fn a_hold_that_somebody_made_endless_stays_so() {
    let server = RedisServer::start();
    let store = plain(&server);
    let mine = [item("a")];
    granted(&store, &mine).await;
    let _: u64 = server.ask(&["PERSIST", LOCK]).await;
    assert_eq!(renew(&store, &mine, LEASE).await, [Renewed::Held]);
    granted_by(&store, request(&mine)).await;
    assert_eq!(server.ask::<i64>(&["PTTL", LOCK]).await, -1);
}

async fn heard(watch: &mut lock_core::store::Watch) {
    let notice = tokio::time::timeout(Duration::from_secs(10), watch.notice()).await;
    assert_eq!(notice.expect("nothing was heard"), Notice::Retry);
}

/// Ends the lock of another program and waits for a notice of that.
async fn hears_the_end(store: &RedisStore, server: &RedisServer) {
    let _: () = server.ask(&["CONFIG", "SET", "notify-keyspace-events", "Kgx"]).await;
    let mut watch = store.watch(Arc::new(request(&[item("a")]))).await.unwrap();
    assert!(!watch.is_confirmed(), "most servers are silent");
    let _: () = server.ask(&["SET", LOCK, "x", "PX", "60000"]).await;
    let _: u64 = server.ask(&["PEXPIRE", LOCK, "60000"]).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(watch.try_notice(), None, "nothing has ended");
    let _: u64 = server.ask(&["DEL", LOCK]).await;
    heard(&mut watch).await;
    let _: () = server.ask(&["SET", LOCK, "x", "PX", "1"]).await;
    heard(&mut watch).await;
}

#[tokio::test]
async fn a_server_with_keyspace_events_wakes_waiters() {
    let server = RedisServer::start();
    hears_the_end(&plain(&server), &server).await;
}

#[tokio::test]
async fn a_cluster_with_keyspace_events_wakes_waiters() {
    let cluster = Cluster::start();
    let store = cluster.store_with(|options| options.layout = Layout::Plain);
    hears_the_end(&store, &cluster.nodes()[home(LOCK)]).await;
}

#[tokio::test]
async fn releases_of_our_own_are_heard_without_events() {
    let server = RedisServer::start();
    let (store, other) = (plain(&server), plain(&server));
    let mine = [item("a")];
    granted(&store, &mine).await;
    let mut watch = other.watch(Arc::new(request(&[item("a")]))).await.unwrap();
    release(&store, &mine).await.unwrap();
    heard(&mut watch).await;
}

#[tokio::test]
async fn a_release_is_heard_once_although_the_server_announces_it_too() {
    let server = RedisServer::start();
    let _: () = server.ask(&["CONFIG", "SET", "notify-keyspace-events", "Kgx"]).await;
    let (store, other) = (plain(&server), plain(&server));
    let mine = [item("a"), item("{b}c")];
    granted(&store, &mine).await;
    let mut watch = other.watch(Arc::new(request(&[item("a")]))).await.unwrap();
    let mut own = store.watch(Arc::new(request(&mine))).await.unwrap();
    let released = ReleaseRequest { own_watch: Some(own.echo()), ..release_request(&mine[..1]) };
    store.release(Arc::new(released)).await.unwrap();
    heard(&mut watch).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!((watch.try_notice(), own.try_notice()), (None, None));
}

#[tokio::test]
async fn a_list_without_a_prefix_is_refused() {
    let server = RedisServer::start();
    let bare = store_with(&server, |options| {
        options.layout = Layout::Plain;
        options.prefix.clear();
    });
    let scan = |prefix: &str| ScanRequest { prefix: prefix.to_owned(), cursor: None, timeout: TIMEOUT };
    let error = bare.scan(scan("")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    granted(&bare, &[item("jobs:a")]).await;
    assert_eq!(bare.scan(scan("jobs:")).await.unwrap().locks.len(), 1);
    assert!(bare.scan(scan("lock_")).await.unwrap().locks.is_empty(), "a counter is no lock");
}

/// A lock and its counter, each at one of two servers while the slot moves.
#[tokio::test]
async fn a_lock_is_taken_and_tokens_grow_while_its_slot_moves() {
    let cluster = Cluster::start();
    let store = cluster.store_with(|options| options.layout = Layout::Plain);
    let (from, to) = (home(LOCK), (home(LOCK) + 1) % 3);
    let mut last = first_token(&store, &[item("a")]).await;
    let _: u64 = cluster.nodes()[from].ask(&["DEL", LOCK]).await;
    let [counter] = &cluster.keys().await[..] else { panic!("one counter") };

    let moving = cluster.begin_move(slot_of(LOCK), to);
    let mut turn = async || {
        let mine = [item("a")];
        let token = first_token(&store, &mine).await;
        assert!(token > last, "{token} after {last}");
        last = token;
        assert_eq!(renew(&store, &mine, LEASE).await, [Renewed::Held]);
        assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
    };
    turn().await;
    cluster.move_key(moving, counter).await;
    turn().await;
    turn().await;
    cluster.end_move(moving);
    turn().await;
    assert_eq!(cluster.keys().await, [&**counter], "there is one counter");
    assert_eq!(cluster.nodes()[to].keys().await, [&**counter]);
}
