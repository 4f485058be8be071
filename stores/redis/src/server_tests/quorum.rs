//! Three servers as a quorum: one is killed, stopped, or started again without its data.

use lock_core::internal::tasks::Tasks;
use lock_core::store::{Mark, MarkRequest, Marked, StoreErrorKind};
use lock_store_quorum::{QuorumOptions, QuorumStore};

use super::*;

const MAX_LEASE: Duration = Duration::from_secs(15);

fn three() -> [RedisServer; 3] {
    [RedisServer::start(), RedisServer::start(), RedisServer::start()]
}

fn quorum(servers: &[RedisServer; 3]) -> Arc<dyn LockStore> {
    let stores = servers.iter().map(|server| {
        let store: Arc<dyn LockStore> = Arc::new(store(server));
        store
    });
    let options = QuorumOptions {
        clock: Clock::Boot,
        tasks: Tasks::new(Handle::current()),
        call_timeout: TIMEOUT,
        connect_timeout: Duration::from_secs(5),
        max_lease: MAX_LEASE,
    };
    Arc::new(QuorumStore::new(stores.collect(), options).unwrap())
}

async fn try_acquire(store: &Arc<dyn LockStore>, item: &Item) -> Result<Acquired, StoreError> {
    store.acquire(Arc::new(request(std::slice::from_ref(item)))).await
}

async fn is_granted(store: &Arc<dyn LockStore>, item: &Item) -> bool {
    matches!(try_acquire(store, item).await, Ok(Acquired::Granted(_)))
}

async fn mark(store: &RedisStore, mark: Mark) -> Marked {
    store.member().unwrap().mark(MarkRequest { mark, timeout: TIMEOUT }).await.unwrap()
}

#[tokio::test]
async fn a_marker_is_made_once_and_stays() {
    let server = RedisServer::start();
    let store = store(&server);
    assert_eq!(mark(&store, Mark::Look).await.since, None);
    let made = mark(&store, Mark::Make).await;
    assert_eq!(made.since, Some(made.server_time));
    let again = mark(&store, Mark::Make).await;
    assert!(again.since == made.since && again.server_time > made.server_time);
    assert_eq!(server.ask::<i64>(&["PTTL", "lock_quorum_marker:lock:"]).await, -1);
    // The time in which the server could be called new is over.
    let late = Mark::First { latest: made.server_time };
    assert_eq!(mark(&store, late).await.since, made.since);
    let in_time = ServerTime::from_micros(made.server_time.as_micros() + 60_000_000);
    assert_eq!(mark(&store, Mark::First { latest: in_time }).await.since, Some(ServerTime::from_micros(0)));

    // Simulates that the clock was set back by a minute.
    let info: String = server.ask(&["INFO", "server"]).await;
    let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap();
    let future = format!("{} {run}", in_time.as_micros());
    let _: () = server.ask(&["SET", "lock_quorum_marker:lock:", &*future]).await;
    assert_eq!(mark(&store, Mark::Look).await.since, Some(in_time));
    let made = mark(&store, Mark::Make).await;
    assert_eq!(made.since, Some(made.server_time));

    let _: () = server.ask(&["SET", "lock_quorum_marker:lock:", "mine"]).await;
    let request = MarkRequest { mark: Mark::Make, timeout: TIMEOUT };
    let error = store.member().unwrap().mark(request).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{error}");
}

/// With Redis's default persistence: occasional snapshots.
#[tokio::test]
async fn servers_that_come_back_with_an_old_snapshot_give_nobodys_lock_away() {
    let mut servers = three();
    let (one, other) = (quorum(&servers), quorum(&servers));
    one.check().await.unwrap();
    for server in &servers {
        let _: String = server.ask(&["SAVE"]).await;
    }
    assert!(is_granted(&one, &item("a")).await);
    for server in &mut servers[..2] {
        server.kill();
        server.restart(Data::Kept);
        assert!(server.keys().await.contains(&"lock_quorum_marker:lock:".to_owned()));
    }
    let error = try_acquire(&other, &item("a")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotReady, "{error}");
    assert!(error.to_string().contains("may have forgotten locks"), "{error}");
}

#[tokio::test]
async fn without_the_right_to_info_a_restart_is_not_noticed_and_strict_refuses() {
    let server = RedisServer::start();
    let _: () = server.ask(&["ACL", "SETUSER", "ann", "on", ">x", "~*", "&*", "+@all", "-info"]).await;
    let store = RedisStore::new(&server.client_as("ann", "x"), options()).unwrap();
    let made = mark(&store, Mark::Make).await;
    assert_eq!(mark(&store, Mark::Make).await.since, made.since);
    // Nor does it undo more than once what others know.
    let knowing = super::store(&server);
    let known = mark(&knowing, Mark::Make).await;
    assert!(known.since > made.since);
    assert_eq!(mark(&store, Mark::Make).await.since, known.since);
    assert_eq!(mark(&knowing, Mark::Make).await.since, known.since);
    let strict = RedisOptions { strict: true, ..options() };
    let store = RedisStore::new(&server.client_as("ann", "x"), strict).unwrap();
    let error =
        store.member().unwrap().mark(MarkRequest { mark: Mark::Make, timeout: TIMEOUT }).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn a_lock_of_three_servers_is_on_all_of_them() {
    let servers = three();
    let (one, other) = (quorum(&servers), quorum(&servers));
    let (mine, theirs) = (item("a"), item("a"));
    assert!(is_granted(&one, &mine).await);
    assert!(!is_granted(&other, &theirs).await);
    // The slowest server is not waited for.
    for server in &servers {
        while server.ask::<i64>(&["EXISTS", "lock:a"]).await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let released = one.release(Arc::new(release_request(std::slice::from_ref(&mine)))).await.unwrap();
    assert_eq!(released.held, [true]);
    assert!(is_granted(&other, &theirs).await);
}

#[tokio::test]
async fn one_of_three_may_be_killed_or_stopped_whichever_it_is() {
    for node in 0..3 {
        let mut servers = three();
        let store = quorum(&servers);
        store.check().await.unwrap();
        let held = item("held");
        assert!(is_granted(&store, &held).await);
        if node == 1 {
            servers[node].stop();
        } else {
            servers[node].kill();
        }
        let keep = renew_request(std::slice::from_ref(&held), LEASE, Standing::Holder);
        assert_eq!(store.renew(keep).await.unwrap(), [Renewed::Held]);
        assert!(is_granted(&store, &item("b")).await);
        assert!(!is_granted(&quorum(&servers), &item("held")).await);
        let released = store.release(Arc::new(release_request(std::slice::from_ref(&held)))).await.unwrap();
        assert_eq!(released.held, [true]);
        assert!(is_granted(&quorum(&servers), &item("held")).await);
        if node == 1 {
            servers[node].cont();
        }
    }
}

#[tokio::test]
async fn a_server_that_comes_back_without_its_data_gives_nobodys_lock_away() {
    let mut servers = three();
    let (one, other) = (quorum(&servers), quorum(&servers));
    one.check().await.unwrap();
    servers[2].kill();
    assert!(is_granted(&one, &item("a")).await);
    // Of the two servers that have the lock, one forgets it and one dies. The third never knew of
    // it.
    servers[1].restart(Data::Lost);
    servers[2].restart(Data::Lost);
    servers[0].kill();
    let error = try_acquire(&other, &item("a")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotReady, "{error}");
    assert!(error.to_string().contains("may have forgotten locks"), "{error}");
    for server in &servers[1..] {
        assert_eq!(server.keys().await.iter().filter(|key| *key == "lock:a").count(), 0, "it is undone");
    }
    // They are trusted again when every lease is over.
    let limit = tokio::time::Instant::now() + MAX_LEASE * 2;
    while !is_granted(&other, &item("a")).await {
        assert!(tokio::time::Instant::now() < limit);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[tokio::test]
async fn a_server_that_lost_a_hold_gets_it_back_with_the_next_renewal() {
    let mut servers = three();
    let store = quorum(&servers);
    store.check().await.unwrap();
    let held = [item("a")];
    assert!(is_granted(&store, &held[0]).await);
    servers[1].restart(Data::Lost);
    let back = tokio::time::timeout(Duration::from_secs(60), async {
        while servers[1].ask::<i64>(&["EXISTS", "lock:a"]).await == 0 {
            let kept = store.renew(renew_request(&held, LEASE, Standing::Holder)).await.unwrap();
            assert_eq!(kept, [Renewed::Held]);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    back.await.unwrap();
}
