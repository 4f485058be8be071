//! [`Rig`]: memory servers, and processes with connections to them that can fail.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::internal::clock::Clock;
use lock_core::internal::tasks::Tasks;
use lock_core::store::{
    Abilities, AcquireRequest, Acquired, BoxFuture, Granted, Item, Kind, LockStatus, LockStore, Mark,
    MarkRequest, Marked, QuorumMember, ReleaseRequest, Released, RenewItem, RenewRequest, Renewed,
    ScanRequest, Scanned, StoreError, StoreErrorKind, Watch, Withdrawn,
};
use lock_core::{LockKey, OwnerId};
use lock_store_memory::MemoryStore;
use tokio::runtime::Handle;

use crate::{QuorumOptions, QuorumStore};

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const LEASE: Duration = Duration::from_secs(10);
pub(super) const MAX_LEASE: Duration = Duration::from_secs(20);
const TIMEOUT: Duration = Duration::from_secs(2);

/// The fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// Connections are refused.
    Refuses,
    /// Calls get lost on their way to the server.
    Swallows,
    /// Answers get lost on their way back.
    Mute,
    /// Calls take this long on their way to the server.
    Slow(Duration),
}

pub(super) struct Server {
    now: Mutex<State>,
    /// Number of acquires that reached the server.
    acquires: AtomicUsize,
}

struct State {
    store: Arc<MemoryStore>,
    fault: Fault,
    runs: u64,
}

impl Server {
    fn new(store: Arc<MemoryStore>) -> Arc<Self> {
        let now = Mutex::new(State { store, fault: Fault::None, runs: 0 });
        Arc::new(Self { now, acquires: AtomicUsize::new(0) })
    }

    pub(super) fn fail(&self, fault: Fault) {
        self.now.lock().unwrap().fault = fault;
    }

    /// Restarts the server without its data.
    pub(super) fn wipe(&self) {
        let mut now = self.now.lock().unwrap();
        now.store = now.store.started_again(Duration::ZERO);
        now.runs += 1;
    }

    /// Restarts the server without its data; the operator claims that it remembers everything.
    pub(super) async fn wipe_and_pretend(&self) {
        self.wipe();
        let store = self.store();
        let look = MarkRequest { mark: Mark::Look, timeout: TIMEOUT };
        let latest = store.member().unwrap().mark(look).await.unwrap().server_time;
        let first = MarkRequest { mark: Mark::First { latest }, timeout: TIMEOUT };
        store.member().unwrap().mark(first).await.unwrap();
    }

    /// Returns the number of acquires since the last call.
    pub(super) fn acquires(&self) -> usize {
        self.acquires.swap(0, Ordering::Relaxed)
    }

    /// Sets its counter of the key.
    pub(super) async fn count_to(&self, name: &str, counter: u64) {
        let number = 999_999;
        let request = AcquireRequest::new(vec![item(name, number)], LEASE, TIMEOUT).above(counter - 1);
        let store = self.store();
        assert!(matches!(store.acquire(Arc::new(request)).await.unwrap(), Acquired::Granted(_)));
        assert_eq!(store.status(key(name)).await.unwrap().last_token.unwrap().get(), counter);
        assert!(store.force_release(key(name)).await.unwrap());
    }

    pub(super) fn store(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.now.lock().unwrap().store)
    }

    pub(super) async fn holder(&self, name: &str) -> Option<OwnerId> {
        let status = self.store().status(key(name)).await.unwrap();
        status.holders.first().map(|(owner, _)| owner.clone())
    }
}

/// The connection of one process to one server.
struct Path {
    server: Arc<Server>,
    handle: Mutex<(u64, Arc<MemoryStore>)>,
    abilities: Abilities,
    /// Delay of a call on its way to the server.
    delay: Duration,
}

impl std::fmt::Debug for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Path")
    }
}

impl Path {
    /// Returns the store as it is when the call arrives, through this process's handle.
    fn handle(server: &Server, handle: &mut (u64, Arc<MemoryStore>)) -> Arc<MemoryStore> {
        let now = server.now.lock().unwrap();
        if handle.0 != now.runs {
            *handle = (now.runs, now.store.another());
        }
        Arc::clone(&handle.1)
    }

    fn call<T: Send + 'static>(
        self: &Arc<Self>,
        timeout: Duration,
        call: impl FnOnce(Arc<MemoryStore>) -> BoxFuture<Result<T, StoreError>> + Send + 'static,
    ) -> BoxFuture<Result<T, StoreError>> {
        let path = Arc::clone(self);
        Box::pin(async move {
            let lost = || Err(StoreError::new(StoreErrorKind::Unanswered, "lost"));
            if !path.delay.is_zero() {
                tokio::time::sleep(path.delay).await;
            }
            let fault = path.server.now.lock().unwrap().fault;
            match fault {
                Fault::Refuses => return Err(StoreError::new(StoreErrorKind::Unreachable, "refused")),
                Fault::Swallows => {
                    tokio::time::sleep(timeout).await;
                    return lost();
                }
                Fault::Slow(time) if time >= timeout => {
                    let late = Self::handle(&path.server, &mut path.handle.lock().unwrap());
                    let call = call(late);
                    tokio::spawn(async move {
                        tokio::time::sleep(time).await;
                        let _ = call.await;
                    });
                    tokio::time::sleep(timeout).await;
                    return lost();
                }
                Fault::Slow(time) => tokio::time::sleep(time).await,
                Fault::None | Fault::Mute => {}
            }
            let store = Self::handle(&path.server, &mut path.handle.lock().unwrap());
            let answer = call(store).await;
            if fault == Fault::Mute {
                tokio::time::sleep(timeout).await;
                return lost();
            }
            answer
        })
    }
}

/// A path as a store.
#[derive(Debug)]
struct Reached(Arc<Path>);

macro_rules! pass {
    ($self:ident, $timeout:expr, $method:ident($request:ident)) => {
        $self.0.call($timeout, move |store| store.$method($request))
    };
}

impl QuorumMember for Reached {
    fn mark(&self, request: MarkRequest) -> BoxFuture<Result<Marked, StoreError>> {
        self.0.call(request.timeout, move |store| store.member().unwrap().mark(request))
    }
}

impl LockStore for Reached {
    fn abilities(&self) -> &Abilities {
        &self.0.abilities
    }
    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        self.0.server.acquires.fetch_add(1, Ordering::Relaxed);
        pass!(self, request.timeout, acquire(request))
    }
    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        pass!(self, request.timeout, release(request))
    }
    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        pass!(self, request.timeout, renew(request))
    }
    fn downgrade(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        pass!(self, request.timeout, downgrade(request))
    }
    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        pass!(self, request.timeout, withdraw(request))
    }
    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        pass!(self, request.timeout, watch(request))
    }
    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        pass!(self, TIMEOUT, status(key))
    }
    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>> {
        pass!(self, TIMEOUT, force_release(key))
    }
    fn scan(&self, request: ScanRequest) -> BoxFuture<Result<Scanned, StoreError>> {
        pass!(self, request.timeout, scan(request))
    }
    fn member(&self) -> Option<&dyn QuorumMember> {
        Some(self)
    }
    fn check(&self) -> BoxFuture<Result<(), StoreError>> {
        self.0.call(TIMEOUT, |store| store.check())
    }
}

/// Several servers.
pub(super) struct Rig {
    pub(super) servers: Vec<Arc<Server>>,
}

impl Rig {
    pub(super) fn new(servers: usize) -> Self {
        // Their clocks agree, until a test changes that.
        let first = MemoryStore::new("q:");
        let servers = (0..servers).map(|_| Server::new(first.started_again(Duration::ZERO)));
        Self { servers: servers.collect() }
    }

    /// Returns a process that uses the servers as a quorum.
    pub(super) fn process(&self) -> Arc<dyn LockStore> {
        self.process_with(MAX_LEASE)
    }

    /// Returns such a process with a delay in milliseconds for each server.
    pub(super) fn process_over(&self, delays: &[u64]) -> Arc<dyn LockStore> {
        self.connect(MAX_LEASE, delays)
    }

    pub(super) fn process_with(&self, max_lease: Duration) -> Arc<dyn LockStore> {
        self.connect(max_lease, &[])
    }

    fn connect(&self, max_lease: Duration, delays: &[u64]) -> Arc<dyn LockStore> {
        let stores = self.servers.iter().enumerate().map(|(node, server)| {
            let delay = Duration::from_millis(delays.get(node).copied().unwrap_or(0));
            let now = server.now.lock().unwrap();
            let handle = Mutex::new((now.runs, now.store.another()));
            let abilities = now.store.abilities().clone();
            drop(now);
            let reached: Arc<dyn LockStore> =
                Arc::new(Reached(Arc::new(Path { server: Arc::clone(server), handle, abilities, delay })));
            reached
        });
        let options = QuorumOptions { max_lease, ..options() };
        Arc::new(QuorumStore::new(stores.collect(), options).unwrap())
    }

    pub(super) fn fail(&self, nodes: &[usize], fault: Fault) {
        for &node in nodes {
            self.servers[node].fail(fault);
        }
    }

    /// Returns the holder of the key at each server.
    pub(super) async fn holders(&self, name: &str) -> Vec<Option<OwnerId>> {
        let mut holders = Vec::new();
        for server in &self.servers {
            holders.push(server.holder(name).await);
        }
        holders
    }
}

pub(super) fn options() -> QuorumOptions {
    QuorumOptions {
        clock: Clock::tokio(),
        tasks: Tasks::new(Handle::current()),
        call_timeout: TIMEOUT,
        connect_timeout: Duration::from_secs(5),
        max_lease: Duration::from_secs(60),
    }
}

pub(super) fn key(name: &str) -> LockKey {
    LockKey::new(name).unwrap()
}

pub(super) fn owner(number: u32) -> OwnerId {
    OwnerId::new(format!("c0ffee00-0000-4000-8000-000000000000:{number}"))
}

pub(super) fn item(name: &str, number: u32) -> Item {
    Item { key: key(name), kind: Kind::Mutex, owner: owner(number) }
}

pub(super) fn request(name: &str, number: u32) -> Arc<AcquireRequest> {
    Arc::new(AcquireRequest::new(vec![item(name, number)], LEASE, TIMEOUT))
}

pub(super) async fn acquire(store: &Arc<dyn LockStore>, number: u32) -> Result<Acquired, StoreError> {
    store.acquire(request("a", number)).await
}

pub(super) async fn grant(store: &Arc<dyn LockStore>, number: u32) -> Granted {
    match acquire(store, number).await.unwrap() {
        Acquired::Granted(granted) => granted,
        Acquired::Busy(busy) => panic!("{busy:?}"),
    }
}

pub(super) async fn is_busy(store: &Arc<dyn LockStore>, number: u32) -> bool {
    matches!(acquire(store, number).await.unwrap(), Acquired::Busy(_))
}

pub(super) async fn release(store: &Arc<dyn LockStore>, number: u32) -> Result<Released, StoreError> {
    let items = vec![item("a", number)];
    let request = ReleaseRequest {
        items: items.into(),
        linger: Duration::ZERO,
        then: None,
        own_watch: None,
        timeout: TIMEOUT,
    };
    store.release(Arc::new(request)).await
}

pub(super) async fn renew(store: &Arc<dyn LockStore>, number: u32) -> Result<Renewed, StoreError> {
    let items = vec![RenewItem::hold(item("a", number), LEASE)];
    let kept = store.renew(Arc::new(RenewRequest { items, timeout: TIMEOUT })).await?;
    Ok(kept[0])
}

/// Returns until when a hold that was requested at `sent` is certain.
pub(super) fn valid_until(sent: tokio::time::Instant, lease: Duration) -> tokio::time::Instant {
    sent + lease - lease / 100 - Duration::from_millis(2)
}
