//! Grants that replicas confirm, on a primary with real replicas, which are stopped to prevent
//! that.

use std::sync::Arc;
use std::time::Duration;

use lock_core::Replication;
use lock_core::store::{
    AcquireRequest, Acquired, Item, Kind, ListenerPolicy, LockStore, Notice, StoreError, StoreErrorKind,
    Takeover, Withdrawn,
};
use lock_test_servers::RedisServer;

use super::cluster::{Cluster, ClusterExt as _, Options, home, slot_of};
use super::sentinel_rig::{SentinelsExt as _, sentinels};
use super::server::ServerExt as _;
use super::{
    LEASE, RedisStore, TIMEOUT, busy, granted, granted_by, item, item_of, release, release_request, request,
    store, store_with, until, waits,
};

const SECOND: Duration = Duration::from_secs(1);
/// Longer than any test takes.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// Starts a primary with `replicas` replicas that are in sync.
pub(super) async fn replicated(replicas: usize) -> (RedisServer, Vec<RedisServer>) {
    let primary = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let port = primary.port().to_string();
    let replicas: Vec<_> =
        (0..replicas).map(|_| RedisServer::start_with(&["--replicaof", "127.0.0.1", &port])).collect();
    until("the replicas are in sync", async || {
        let info: String = primary.ask(&["INFO", "replication"]).await;
        info.matches("state=online").count() == replicas.len()
    })
    .await;
    (primary, replicas)
}

fn synced(items: &[Item], replication: Replication) -> AcquireRequest {
    let mut request = request(items).replicated(replication);
    request.timeout += replication.timeout();
    request
}

async fn refusal(store: &RedisStore, request: AcquireRequest) -> StoreError {
    store.acquire(Arc::new(request)).await.unwrap_err()
}

/// Waits until `calls` calls wait for replicas.
async fn blocked(server: &RedisServer, calls: usize) {
    until("calls wait for replicas", async || {
        let info: String = server.ask(&["INFO", "clients"]).await;
        info.contains(&format!("blocked_clients:{calls}\r\n"))
    })
    .await;
}

async fn was_waited_for(server: &RedisServer) -> bool {
    server.ask::<String>(&["INFO", "commandstats"]).await.contains("cmdstat_wait:")
}

async fn withdraw(store: &RedisStore, request: &Arc<AcquireRequest>) {
    while let Withdrawn::Pending(wait) = store.withdraw(Arc::clone(request)).await.unwrap() {
        tokio::time::sleep(wait).await;
    }
}

#[tokio::test]
async fn a_grant_that_was_confirmed_is_on_the_replicas() {
    let (primary, replicas) = replicated(2).await;
    let store = store(&primary);
    for round in 0..20 {
        let name = format!("a{round}");
        let kind = [Kind::Mutex, Kind::Fair, Kind::Write, Kind::Read][round % 4];
        let mine = [item_of(kind, &name)];
        granted_by(&store, synced(&mine, Replication::at_least(2, LONG))).await;
        for replica in &replicas {
            assert!(replica.ask::<bool>(&["EXISTS", &format!("lock:{name}")]).await, "{name}");
        }
        release(&store, &mine).await.unwrap();
        if round == 10 {
            let _: () = primary.ask(&["SCRIPT", "FLUSH"]).await;
        }
    }
    granted_by(&store, synced(&[item("x"), item("y")], Replication::at_least(1, LONG))).await;
    assert_eq!(store.node().synced.idle(), 1, "one connection, used again and again");
}

#[tokio::test]
async fn a_grant_that_is_not_confirmed_can_be_withdrawn() {
    let (primary, mut replicas) = replicated(1).await;
    let store = store(&primary);
    replicas[0].stop();
    let request = Arc::new(synced(&[item("a")], Replication::at_least(1, Duration::from_millis(100))));
    let error = store.acquire(Arc::clone(&request)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotReplicated, "{error}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    assert!(error.outcome_unknown() && error.is_transient());
    assert!(primary.keys().await.contains(&"lock:a".to_owned()));
    withdraw(&store, &request).await;
    assert!(!primary.keys().await.contains(&"lock:a".to_owned()));
    assert_eq!(store.node().synced.idle(), 1, "its connection is good");
    replicas[0].cont();
    granted_by(&store, synced(&[item("a")], Replication::at_least(1, LONG))).await;
}

#[tokio::test]
async fn others_are_not_held_up_meanwhile() {
    let (primary, mut replicas) = replicated(1).await;
    let store = store(&primary);
    replicas[0].stop();
    let waiting = synced(&[item("a")], Replication::at_least(1, LONG));
    let waiting = tokio::spawn(store.acquire(Arc::new(waiting)));
    blocked(&primary, 1).await;
    let mine = [item("b")];
    granted(&store, &mine).await;
    busy(&store, &[item("b")]).await;
    assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
    assert!(!waiting.is_finished());
    replicas[0].cont();
    assert!(matches!(waiting.await.unwrap(), Ok(Acquired::Granted(_))));
}

#[tokio::test]
async fn what_is_not_granted_is_not_waited_for() {
    let (primary, mut replicas) = replicated(1).await;
    let store = store(&primary);
    granted(&store, &[item("held")]).await;
    let _: () = primary.ask(&["SET", "lock:foreign", "data"]).await;
    replicas[0].stop();
    let policy = Replication::at_least(1, LONG);
    assert!(matches!(
        store.acquire(Arc::new(synced(&[item("held")], policy))).await.unwrap(),
        Acquired::Busy(_)
    ));
    // Also if the refused request has to queue, which is a write.
    let waiting = synced(&[item_of(Kind::Fair, "held")], policy).queued(LEASE);
    assert!(matches!(store.acquire(Arc::new(waiting)).await.unwrap(), Acquired::Busy(_)));
    let error = refusal(&store, synced(&[item("foreign")], policy)).await;
    assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{error}");
    assert!(!was_waited_for(&primary).await);
    replicas[0].cont();

    let store = super::store(&replicas[0]);
    let error = refusal(&store, synced(&[item("a")], policy)).await;
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
    assert!(!was_waited_for(&replicas[0]).await);
}

#[tokio::test]
async fn a_majority_counts_replicas_that_are_down() {
    let (primary, mut replicas) = replicated(2).await;
    let of = |count| store_with(&primary, |options| options.replicas = count);
    let majority = Replication::majority(LONG);
    granted_by(&of(Some(3)), synced(&[item("a")], majority)).await;
    replicas[1].stop();
    granted_by(&of(Some(1)), synced(&[item("b")], majority)).await;
    let majority = Replication::majority(Duration::from_millis(300));
    let error = refusal(&of(Some(3)), synced(&[item("c")], majority)).await;
    assert_eq!(error.kind(), StoreErrorKind::NotReplicated, "{error}");
    assert!(error.to_string().contains("1 of 2 replicas"), "{error}");
    let error = refusal(&of(None), synced(&[item("d")], majority)).await;
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("set `replicas`"), "{error}");
    assert!(!primary.keys().await.contains(&"lock:d".to_owned()), "nothing was asked");
}

#[tokio::test]
async fn sentinels_say_how_many_replicas_there_are() {
    let mut set = sentinels();
    let store = set.store();
    granted_by(&store, synced(&[item("a")], Replication::majority(LONG))).await;
    assert_eq!(store.node().connector.dialer().known_replicas(), Some(2));
    set.servers_mut()[2].kill();
    let error =
        refusal(&store, synced(&[item("b")], Replication::majority(Duration::from_millis(300)))).await;
    assert_eq!(error.kind(), StoreErrorKind::NotReplicated, "{error}");
    assert!(error.to_string().contains("1 of 2 replicas"), "{error}");
    granted_by(&store, synced(&[item("c")], Replication::at_least(1, LONG))).await;
}

#[tokio::test]
async fn grants_wait_at_the_new_primary_after_a_failover() {
    let set = sentinels();
    let store = set.store();
    granted_by(&store, synced(&[item("a")], Replication::at_least(2, LONG))).await;
    let new = &set.servers()[set.fail_over().await];
    until("it is used", async || {
        let mine = [item("probe")];
        let there = match store.acquire(Arc::new(synced(&mine, Replication::at_least(1, SECOND)))).await {
            Ok(_) => new.ask::<bool>(&["EXISTS", "lock:probe"]).await,
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                false
            }
        };
        let _ = release(&store, &mine).await;
        there
    })
    .await;
    assert!(was_waited_for(new).await);
}

#[tokio::test]
async fn there_is_a_limit_to_the_connections() {
    let (primary, mut replicas) = replicated(1).await;
    let store = store(&primary);
    replicas[0].stop();
    let policy = Replication::at_least(1, LONG);
    let calls: Vec<_> = (0..10)
        .map(|number| tokio::spawn(store.acquire(Arc::new(synced(&[item(&format!("a{number}"))], policy)))))
        .collect();
    blocked(&primary, 8).await;
    let mut late = request(&[item("late")]).replicated(Replication::at_least(1, SECOND));
    late.timeout = Duration::from_millis(200);
    let late = Arc::new(late);
    let error = store.acquire(Arc::clone(&late)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    assert!(late.latest().is_none(), "nothing was sent");
    blocked(&primary, 8).await;
    assert!(calls.iter().all(|call| !call.is_finished()));
    replicas[0].cont();
    for call in calls {
        assert!(matches!(call.await.unwrap(), Ok(Acquired::Granted(_))));
    }
    assert_eq!(store.node().synced.idle(), 8);
}

#[tokio::test]
async fn a_connection_is_closed_when_its_call_is_dropped() {
    let (primary, mut replicas) = replicated(1).await;
    let store = store(&primary);
    replicas[0].stop();
    // A withdrawal waits for the end of the call's time.
    let mut request = request(&[item("a")]).replicated(Replication::at_least(1, LONG));
    request.timeout = TIMEOUT;
    let request = Arc::new(request);
    let call = tokio::spawn(store.acquire(Arc::clone(&request)));
    blocked(&primary, 1).await;
    call.abort();
    assert!(call.await.is_err());
    assert_eq!(store.node().synced.idle(), 0);
    until("it is closed", async || !primary.ask::<String>(&["CLIENT", "LIST"]).await.contains("cmd=wait"))
        .await;
    replicas[0].cont();
    withdraw(&store, &request).await;
    granted_by(&store, synced(&[item("a")], Replication::at_least(1, LONG))).await;
}

#[tokio::test]
async fn a_connection_that_breaks_while_replicas_are_waited_for_leaves_it_unanswered() {
    let (mut primary, mut replicas) = replicated(1).await;
    let store = store(&primary);
    replicas[0].stop();
    let request = synced(&[item("a")], Replication::at_least(1, LONG));
    let call = tokio::spawn(store.acquire(Arc::new(request)));
    blocked(&primary, 1).await;
    primary.kill_clients("normal").await;
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unanswered, "{error}");
    assert_eq!(store.node().synced.idle(), 0);

    // A server that swallows everything, as long as the call lasts.
    let request = request_of(&store, TIMEOUT);
    blocked(&primary, 1).await;
    primary.stop();
    let error = request.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unanswered, "{error}");
    primary.cont();
}

fn request_of(
    store: &RedisStore,
    timeout: Duration,
) -> tokio::task::JoinHandle<Result<Acquired, StoreError>> {
    let mut request = request(&[item("b")]).replicated(Replication::at_least(1, LONG));
    request.timeout = timeout;
    tokio::spawn(store.acquire(Arc::new(request)))
}

/// Replicas have no more time than the call.
#[tokio::test]
async fn the_wait_ends_with_the_call() {
    let (primary, mut replicas) = replicated(1).await;
    let store = store(&primary);
    granted(&store, &[item("warm-up")]).await;
    replicas[0].stop();
    let error = request_of(&store, SECOND).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotReplicated, "{error}");
}

#[tokio::test]
async fn a_user_who_may_not_wait_is_told() {
    let (primary, _replicas) = replicated(1).await;
    let _: () = primary
        .ask(&["ACL", "SETUSER", "ann", "on", ">hunter2", "allkeys", "allchannels", "+@all", "-wait"])
        .await;
    let store = RedisStore::new(&primary.client_as("ann", "hunter2"), super::options()).unwrap();
    let error = refusal(&store, synced(&[item("a")], Replication::at_least(1, LONG))).await;
    assert_eq!(error.kind(), StoreErrorKind::NotReplicated, "it has to be withdrawn: {error}");
    assert!(error.to_string().contains("NOPERM"), "{error}");
    let error = refusal(&store, synced(&[item("b")], Replication::at_least(1, LONG))).await;
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    assert!(!primary.keys().await.contains(&"lock:b".to_owned()), "it is not tried again at once");
}

#[tokio::test]
async fn nobody_grants_it_for_those_who_want_it_confirmed() {
    let (primary, _replicas) = replicated(1).await;
    let store = store(&primary);
    let policy = Replication::at_least(1, LONG);
    let mine = [item("a")];
    granted(&store, &mine).await;
    let next = Arc::new(synced(&[item("a")], policy));
    let takeover = Takeover { request: Arc::clone(&next), listeners: ListenerPolicy::Ignore };
    let mut releasing = release_request(&mine);
    releasing.then = Some(takeover);
    let released = store.release(Arc::new(releasing)).await.unwrap();
    assert_eq!((released.held, released.then), (vec![true].into(), None));
    assert!(!primary.keys().await.contains(&"lock:a".to_owned()));

    let (first, second) = ([item_of(Kind::Fair, "f")], [item_of(Kind::Fair, "f")]);
    granted(&store, &first).await;
    let waiting = Arc::new(synced(&second, policy).queued(LEASE));
    let mut watch = store.watch(Arc::clone(&waiting)).await.unwrap();
    assert!(matches!(store.acquire(Arc::clone(&waiting)).await.unwrap(), Acquired::Busy(_)));
    release(&store, &first).await.unwrap();
    assert_eq!(watch.notice().await, Notice::Retry);
    assert!(!was_waited_for(&primary).await);
    assert!(matches!(store.acquire(waiting).await.unwrap(), Acquired::Granted(_)));
    assert!(was_waited_for(&primary).await);
    waits(&store, &[item_of(Kind::Fair, "f")]).await;
}

#[tokio::test]
async fn in_a_cluster_each_server_has_replicas_of_its_own() {
    let mut cluster = Cluster::start_with(Options::default().replica_of(0));
    let replica = &cluster.nodes()[3];
    let at = |node: usize, nth: usize| {
        (0..).map(|n| format!("a{n}")).filter(|name| home(&format!("lock:{name}")) == node).nth(nth)
    };
    let (with, without) = (|nth| item(&at(0, nth).unwrap()), |nth| item(&at(1, nth).unwrap()));
    let store = cluster.store();
    let (soon, majority) = (
        Replication::at_least(1, Duration::from_millis(100)),
        Replication::majority(Duration::from_millis(100)),
    );
    granted_by(&store, synced(&[with(0)], Replication::at_least(1, LONG))).await;
    assert!(replica.keys().await.contains(&format!("lock:{}", at(0, 0).unwrap())));
    granted_by(&store, synced(&[with(1)], Replication::majority(LONG))).await;
    granted_by(&store, synced(&[with(2), with(3)], Replication::majority(LONG))).await;
    let error = refusal(&store, synced(&[without(0)], soon)).await;
    assert_eq!(error.kind(), StoreErrorKind::NotReplicated, "{error}");

    // Over several slots, which are at several servers.
    let several = Arc::new(synced(&[with(4), without(1)], soon));
    let error = store.acquire(Arc::clone(&several)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotReplicated, "{error}");
    withdraw(&store, &several).await;
    let keys = cluster.keys().await;
    for name in [at(0, 4), at(1, 1)] {
        assert!(!keys.contains(&format!("lock:{}", name.unwrap())), "{keys:?}");
    }

    cluster.nodes_mut()[3].stop();
    let error = refusal(&store, synced(&[with(5)], majority)).await;
    assert_eq!(error.kind(), StoreErrorKind::NotReplicated, "{error}");
    granted(&store, &[with(6)]).await;
    cluster.nodes_mut()[3].cont();
}

/// While its slot moves, its counter may be at the other server. No kind of grant waits for the
/// counter without end.
#[tokio::test]
async fn a_key_between_two_servers_is_granted_without_its_counter_and_confirmed() {
    let cluster = Cluster::start_with(Options::default().replica_of(0));
    let name = (0..).map(|n| format!("a{n}")).find(|name| home(&format!("lock:{name}")) == 0).unwrap();
    let store = cluster.store();
    let (mine, lock) = ([item(&name)], format!("lock:{name}"));
    granted(&store, &mine).await;
    release(&store, &mine).await.unwrap();
    // The lock is free, so it is at neither server, and its counter is at the other one.
    let moving = cluster.begin_move(slot_of(&lock), 1);
    let counter = cluster.keys().await.into_iter().find(|key| key.contains("token")).unwrap();
    cluster.move_key(moving, &counter).await;
    let mut request =
        request(&[item(&name)]).replicated(Replication::at_least(1, Duration::from_millis(100)));
    request.direct = false;
    let error = refusal(&store, request).await;
    assert_eq!(error.kind(), StoreErrorKind::NotReplicated, "the other one has no replica: {error}");
}
