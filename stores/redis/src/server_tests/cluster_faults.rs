//! Clusters with a dead server, and servers that are no cluster.

use lock_core::store::{
    Cursor, Notice, PermitId, Permits, PermitsChange, PermitsHold, PermitsRenew, PermitsRequest, ScanRequest,
    StoreErrorKind,
};

use super::super::script::Dialect;
use super::super::{Topology, hash_slot};
use super::cluster::{Cluster, ClusterExt as _, Options, home};
use super::*;

/// Returns a key at the server `index`.
fn key_at(index: usize) -> String {
    (0..).map(|number| format!("k{number}")).find(|key| home(&format!("lock:{key}")) == index).unwrap()
}

/// Starts a cluster that goes on without one of its servers.
fn partial() -> Cluster {
    Cluster::start_with(Options::default().args(&["--cluster-require-full-coverage", "no"]))
}

#[tokio::test]
async fn renewals_at_a_server_that_is_away_fail_alone() {
    let mut cluster = partial();
    let store = cluster.store();
    let mine = [0, 1, 2, 0].map(|index| item(&key_at(index)));
    let mine = &mine[..3];
    for item in mine {
        granted(&store, std::slice::from_ref(item)).await;
    }
    let semaphores = store.semaphores().unwrap();
    let mut holds = Vec::new();
    for index in 0..3 {
        let key = key(&format!("{}s", key_at(index)));
        let change = PermitsChange { key: key.clone(), permits: Permits::Set(1), timeout: TIMEOUT };
        semaphores.change(change).await.unwrap();
        let ids = vec![PermitId::from_bytes([index as u8; 16])];
        let request = PermitsRequest::new(key.clone(), ids.clone(), LEASE, TIMEOUT);
        semaphores.acquire(Arc::new(request)).await.unwrap();
        holds.push((home(&format!("lock:{key}")), PermitsHold { key, ids, lease: LEASE }));
    }
    cluster.nodes_mut()[1].kill();
    assert_eq!(renew(&store, mine, LEASE).await, [Renewed::Held, Renewed::Unknown, Renewed::Held]);
    let expected: Vec<_> = holds.iter().map(|(home, _)| (*home != 1).then(|| vec![true])).collect();
    let holds = holds.into_iter().map(|(_, hold)| hold).collect();
    assert_eq!(semaphores.renew(PermitsRenew { holds, timeout: TIMEOUT }).await.unwrap(), expected);

    let alone = store.renew(renew_request(&mine[1..2], LEASE, Standing::Holder)).await.unwrap_err();
    assert!(alone.is_transient(), "{alone}");
    // It is unknown what was released; a repetition succeeds.
    let error = release(&store, mine).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unanswered, "{error}");
    assert_eq!(store.status(mine[0].key.clone()).await.unwrap().holders.len(), 0);
}

#[tokio::test]
async fn a_request_that_one_server_can_not_serve_takes_nothing() {
    let mut cluster = partial();
    let store = cluster.store();
    store.check().await.unwrap();
    let mine = [0, 1, 2].map(|index| item(&key_at(index)));
    granted(&store, &mine[2..]).await;
    cluster.nodes_mut()[2].kill();
    let error = acquire(&store, &mine).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    if !error.outcome_unknown() {
        for item in &mine[..2] {
            assert!(!store.status(item.key.clone()).await.unwrap().is_locked());
        }
    }
}

#[tokio::test]
async fn a_server_that_comes_back_is_found_again() {
    let mut cluster = partial();
    let store = cluster.store();
    let name = key_at(1);
    granted(&store, &[item(&name)]).await;
    cluster.nodes_mut()[1].kill();
    assert!(acquire(&store, &[item(&name)]).await.unwrap_err().is_transient());
    cluster.nodes_mut()[1].restart(Data::Lost);
    until("the lock is free", || async {
        matches!(acquire(&store, &[item(&name)]).await, Ok(Acquired::Granted(_)))
    })
    .await;
}

#[tokio::test]
async fn the_second_seed_is_asked_when_the_first_is_away() {
    let cluster = Cluster::start();
    let dead = free_port().unwrap();
    let url = format!("redis+cluster://127.0.0.1:{dead},127.0.0.1:{}", cluster.nodes()[2].port());
    let store = store_at(&url, options());
    store.check().await.unwrap();
    for index in 0..3 {
        granted(&store, &[item(&key_at(index))]).await;
    }
}

#[tokio::test]
async fn a_cluster_that_is_not_there_is_unreachable() {
    let port = free_port().unwrap();
    let url = format!("redis+cluster://ann:hunter2@127.0.0.1:{port}");
    let store = store_at(&url, options());
    for error in [store.check().await.unwrap_err(), acquire(&store, &[item("a")]).await.unwrap_err()] {
        assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
        assert!(!format!("{error} {error:?} {store:?}").contains("hunter2"));
        assert!(error.to_string().contains(&port.to_string()), "{error}");
    }
}

#[tokio::test]
async fn each_kind_of_address_is_refused_by_the_other_kind_of_server() {
    let server = RedisServer::start();
    let url = format!("redis+cluster://127.0.0.1:{}", server.port());
    let error = store_at(&url, options()).check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("redis://"), "{error}");

    let cluster = Cluster::start();
    let alone = store(&cluster.nodes()[0]);
    let error = alone.check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("redis+cluster://"), "{error}");
    let error = acquire(&alone, &[item(&key_at(1))]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("redis+cluster://"), "{error}");
}

#[tokio::test]
async fn a_list_of_locks_covers_all_servers_or_fails() {
    let mut cluster = partial();
    let store = cluster.store();
    let mut expected = Vec::new();
    for number in 0..30 {
        granted(&store, &[item(&format!("n{number}"))]).await;
        expected.push(format!("n{number}"));
    }
    let page = |cursor| ScanRequest { prefix: "n".to_owned(), cursor, timeout: TIMEOUT };
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let scanned = store.scan(page(cursor)).await.unwrap();
        found.extend(scanned.locks.into_iter().map(|(key, _)| key.to_string()));
        cursor = scanned.next;
        if cursor.is_none() {
            break;
        }
    }
    found.sort();
    found.dedup();
    expected.sort();
    assert_eq!(found, expected);

    let next = store.scan(page(None)).await.unwrap().next.unwrap();
    // Servers are asked in the order of their addresses.
    let mut ports: Vec<_> = cluster.nodes().iter().map(RedisServer::port).collect();
    ports.sort_by_key(|port| format!("127.0.0.1:{port}"));
    let second = ports[1];
    cluster.nodes_mut().iter_mut().find(|server| server.port() == second).unwrap().kill();
    let error = store.scan(page(Some(next.clone()))).await.unwrap_err();
    assert!(
        error.to_string().contains("incomplete") || error.to_string().contains("begin a new list"),
        "{error}"
    );
    let mut other = next.as_bytes().to_vec();
    other[15] ^= 1; // the mark of the set of servers
    let error = store.scan(page(Some(Cursor::new(other)))).await.unwrap_err();
    assert!(error.to_string().contains("begin a new list"), "{error}");
}

#[tokio::test]
async fn scripts_that_a_server_forgot_are_sent_again() {
    let cluster = Cluster::start();
    let store = cluster.store();
    let mine = [0, 1, 2].map(|index| item(&key_at(index)));
    granted(&store, &mine).await;
    for server in cluster.nodes() {
        let _: () = server.ask(&["SCRIPT", "FLUSH"]).await;
    }
    assert_eq!(renew(&store, &mine, LEASE).await, [Renewed::Held; 3]);
    assert_eq!(release(&store, &mine).await.unwrap().held, [true; 3]);
    assert_eq!(cluster.keys().await.len(), 3, "counters");
}

/// Returns a store that treats its servers as older than version 7.
fn classic(cluster: &Cluster) -> RedisStore {
    let store = cluster.store();
    let Topology::Cluster(inner) = &store.topology else { panic!("one server") };
    inner.pretend(Dialect::Classic);
    store
}

#[tokio::test]
async fn older_servers_tell_everybody_and_are_not_believed_about_listeners() {
    let cluster = Cluster::start();
    let (holder, waiter) = (classic(&cluster), classic(&cluster));
    for index in 0..3 {
        let name = key_at(index);
        let mine = [item(&name)];
        granted(&holder, &mine).await;
        let mut watch = waiter.watch(Arc::new(request(&[item(&name)]))).await.unwrap();
        assert!(watch.is_confirmed());
        let released = release(&holder, &mine).await.unwrap();
        assert_ne!(released.rivals, Rivals::None);
        let heard = tokio::time::timeout(Duration::from_secs(10), watch.notice()).await.unwrap();
        assert_eq!(heard, Notice::Retry);
    }
    let mine = [item("alone")];
    granted(&holder, &mine).await;
    let rivals = release(&holder, &mine).await.unwrap().rivals;
    assert_eq!(rivals, Rivals::Unknown, "another process may listen elsewhere");
}

#[test]
fn slots_of_the_names_of_a_lock_are_one() {
    let name = key("order:42");
    let names = super::super::names::Names::new("lock:", &name).unwrap();
    let slot = |name: String| hash_slot::slot(&name);
    let lock = slot(names.lock().to_string());
    assert_eq!(slot(names.counter().to_string()), lock);
    for kind in [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write] {
        assert_eq!(slot(names.channel(kind).to_string()), lock);
    }
}

#[tokio::test]
async fn a_cluster_that_is_down_is_not_ready() {
    let mut cluster = Cluster::start();
    let store = cluster.store();
    let name = key_at(0);
    granted(&store, &[item(&name)]).await;
    cluster.nodes_mut()[2].kill();
    until("the others notice", async || {
        let info: String = cluster.nodes()[0].ask(&["CLUSTER", "INFO"]).await;
        info.contains("cluster_state:fail")
    })
    .await;
    let error = acquire(&store, &[item(&name)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotReady, "{error}");
    assert!(error.to_string().contains("CLUSTERDOWN"), "{error}");
    assert!(cluster.store().check().await.unwrap_err().is_transient());
    cluster.nodes_mut()[2].restart(Data::Lost);
    until("it is up again", async || acquire(&store, &[item(&name)]).await.is_ok()).await;
    until("all of it is up again", async || store.check().await.is_ok()).await;
}

#[tokio::test]
async fn a_server_that_says_nothing_holds_up_nobody_else() {
    let mut cluster = partial();
    let names = [0, 1].map(key_at);
    // The seed is also the first server to be asked.
    cluster.nodes_mut()[0].stop();
    let url = format!("{},127.0.0.1:{}", cluster.seed(), cluster.nodes()[1].port());
    let store = store_at(&url, options());
    let mine = [item(&names[1])];
    granted(&store, &mine).await;
    let wish = [item(&names[0])];
    let stopped = acquire(&store, &wish);
    let kept = renew(&store, &mine, LEASE * 2);
    let (stopped, kept) = tokio::join!(stopped, kept);
    assert!(stopped.unwrap_err().is_transient());
    assert_eq!(kept, [Renewed::Held]);
    assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
    cluster.nodes_mut()[0].cont();
}
