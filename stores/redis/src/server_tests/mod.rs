//! Behaviour against a real redis-server, or against a fake where a real one cannot be made to do
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::internal::Owners;
use lock_core::internal::clock::{Clock, Tick};
use lock_core::store::{
    AcquireRequest, Acquired, Busy, Granted, Item, Kind, LockStore, ReleaseRequest, Released, RenewItem,
    RenewRequest, Renewed, Rivals, ServerTime, Standing, StoreError,
};
use lock_core::{LockKey, OwnerId};
use lock_store_conformance::Subject;
use tokio::runtime::Handle;

use super::url::{Servers, servers};
use super::{Layout, Login, RedisOptions, RedisStore};

mod admin;
mod check;
mod cluster;
mod cluster_conformance;
mod cluster_faults;
mod cluster_moves;
mod cluster_several;
mod cluster_watch;
mod conformance;
mod declared;
mod each;
mod fair;
mod fair_java;
mod fair_model;
mod fair_rig;
mod fair_states;
mod faults;
mod group;
mod latch;
mod locks;
mod login;
mod mixed;
mod plain;
mod quorum;
mod registry;
mod retention;
mod rw;
mod rw_model;
mod rw_rivals;
mod rw_states;
mod semaphore;
mod sentinel;
mod sentinel_rig;
mod server;
mod states;
mod synced;
mod takeover;
mod watch;
mod wire;

use lock_test_servers::RedisServer;
use lock_test_servers::redis::{Data, free_port};
use server::ServerExt as _;

const LEASE: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the default options of this store's tests.
pub(super) fn options() -> RedisOptions {
    RedisOptions {
        prefix: "lock:".to_owned(),
        layout: Layout::Hash,
        call_timeout: TIMEOUT,
        connect_timeout: Duration::from_secs(5),
        subscription_linger: Duration::from_secs(5),
        ping_every: Duration::from_secs(5),
        replicas: None,
        strict: false,
        login: Login::new(Owners::default().uuid(), None),
        clock: Clock::Boot,
        runtime: Handle::current(),
    }
}

fn store_with(server: &RedisServer, change: impl FnOnce(&mut RedisOptions)) -> RedisStore {
    let mut options = options();
    change(&mut options);
    RedisStore::new(&server.client(), options).unwrap()
}

fn store(server: &RedisServer) -> RedisStore {
    store_with(server, |_| {})
}

/// Returns a store at `url`, whatever its kind.
fn store_at(url: &str, options: RedisOptions) -> RedisStore {
    match servers(url).unwrap() {
        Servers::One(client) => RedisStore::new(&client, options).unwrap(),
        Servers::Sentinel(sentinels) => RedisStore::with_sentinels(&sentinels, options),
        Servers::Cluster(seeds) => RedisStore::cluster(&seeds, options).unwrap(),
    }
}

fn key(text: &str) -> LockKey {
    LockKey::new(text).unwrap()
}

/// Returns an owner that was never used before.
fn owner() -> OwnerId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    OwnerId::new(format!("8743c9c0-0795-4907-87fd-6c719a6b4586:{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

fn item(name: &str) -> Item {
    item_of(Kind::Mutex, name)
}

fn item_of(kind: Kind, name: &str) -> Item {
    Item { key: key(name), kind, owner: owner() }
}

fn request(items: &[Item]) -> AcquireRequest {
    AcquireRequest::new(items.to_vec(), LEASE, TIMEOUT)
}

async fn server_micros(server: &RedisServer) -> u64 {
    let (seconds, micros): (u64, u64) = server.ask(&["TIME"]).await;
    seconds * 1_000_000 + micros
}

async fn acquire(store: &RedisStore, items: &[Item]) -> Result<Acquired, StoreError> {
    store.acquire(Arc::new(request(items))).await
}

async fn granted(store: &RedisStore, items: &[Item]) -> Granted {
    granted_by(store, request(items)).await
}

async fn granted_by(store: &RedisStore, request: AcquireRequest) -> Granted {
    match store.acquire(Arc::new(request)).await.unwrap() {
        Acquired::Granted(granted) => granted,
        Acquired::Busy(busy) => panic!("{busy:?}"),
    }
}

async fn busy(store: &RedisStore, items: &[Item]) -> Busy {
    match acquire(store, items).await.unwrap() {
        Acquired::Busy(busy) => busy,
        Acquired::Granted(granted) => panic!("{granted:?}"),
    }
}

fn release_request(items: &[Item]) -> ReleaseRequest {
    ReleaseRequest {
        items: items.to_vec().into(),
        linger: Duration::ZERO,
        then: None,
        own_watch: None,
        timeout: TIMEOUT,
    }
}

/// Makes a request that is refused and waits.
async fn waits(store: &RedisStore, items: &[Item]) -> Busy {
    match store.acquire(Arc::new(request(items).queued(LEASE))).await.unwrap() {
        Acquired::Busy(busy) => busy,
        Acquired::Granted(granted) => panic!("{granted:?}"),
    }
}

fn renew_request(items: &[Item], lease: Duration, standing: Standing) -> Arc<RenewRequest> {
    let keep = |item: &Item| RenewItem { standing, ..RenewItem::hold(item.clone(), lease) };
    Arc::new(RenewRequest { items: items.iter().map(keep).collect(), timeout: TIMEOUT })
}

async fn renew(store: &RedisStore, items: &[Item], lease: Duration) -> Vec<Renewed> {
    store.renew(renew_request(items, lease, Standing::Holder)).await.unwrap()
}

async fn stay(store: &RedisStore, items: &[Item]) -> Vec<Renewed> {
    store.renew(renew_request(items, LEASE, Standing::Waiter)).await.unwrap()
}

async fn downgrade(store: &RedisStore, items: &[Item], lease: Duration) -> Vec<Renewed> {
    store.downgrade(renew_request(items, lease, Standing::Holder)).await.unwrap()
}

async fn release(store: &RedisStore, items: &[Item]) -> Result<Released, StoreError> {
    store.release(Arc::new(release_request(items))).await
}

/// Sends a request that the server finds too late both times: its stamp is far in the past.
async fn acquire_late(store: &RedisStore, request: Arc<AcquireRequest>) -> Result<Acquired, StoreError> {
    store.check().await?;
    let now = Clock::Boot.now();
    let nodes = store.nodes();
    let truths: Vec<_> = nodes.iter().map(|node| node.server_clock.estimate(now).unwrap()).collect();
    for node in &nodes {
        // The time in the refusal is ignored, since this one seems newer.
        node.server_clock.pretend(ServerTime::from_micros(1), now + Duration::from_secs(3600));
    }
    let acquired = store.acquire(request).await;
    for (node, truth) in nodes.iter().zip(truths) {
        node.server_clock.pretend(truth, now);
    }
    acquired
}

/// Returns the subject of the conformance suite with two stores that `make` makes.
fn subject_of(make: impl Fn() -> RedisStore) -> Subject {
    let (one, other) = (Arc::new(make()), Arc::new(make()));
    let late = Arc::clone(&one);
    Subject::new(one, other).late_through(Box::new(move |request| {
        let store = Arc::clone(&late);
        Box::pin(async move { acquire_late(&store, request).await })
    }))
}

/// Waits until `condition` holds, for at most 10 s.
async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    until_within(Duration::from_secs(10), what, condition).await;
}

async fn until_within<F: Future<Output = bool>>(most: Duration, what: &str, condition: impl Fn() -> F) {
    let give_up = tokio::time::Instant::now() + most;
    while !condition().await {
        assert!(tokio::time::Instant::now() < give_up, "not within {most:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
