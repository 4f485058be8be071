//! The Redis store: locks of all kinds on one server or a cluster, in the same keys as Redisson.
//!
//! A call goes through `topology` to one server or to the cluster. There it becomes a step: one
//! atomic Lua script, and the reader of its answer.
//!
//! - `names`: the names of a lock's keys. `script`: the scripts in `scripts/*.lua`. `reply`: reads
//!   their answers.
//! - `locks`: the locks of one server. `singles`: the steps for single mutexes, which travel in a
//!   `group`. `steps`, `release`, `admin`: the other steps. `kinds`: requests that include other
//!   locks than mutexes. `fair`: messages to the waiter of a fair lock.
//! - `plain`: acquires of the plain layout, where a lock is a string. `late`, `session`: late
//!   copies there. `keyspace`: the server's own events. `layout`: the two layouts. `hash_slot`:
//!   slots of names.
//! - `semaphore`, `latch`: their steps. `stock`, `stock_take`: stocks in one slot. `spread`: stocks
//!   that are spread over slots. `cluster`: all steps where there are several servers.
//! - `node`: one server, without steps. `connection`: its connection for commands. `subscriber`,
//!   `registry`: its connection for release messages. `pool`: connections for grants that replicas
//!   confirm, see `synced`. `dialer`: makes connections. `sentinel`: finds the primary. `options`:
//!   the settings.
//! - `fault`, `classify`: errors. `check`: whether a server can keep locks. `url`: addresses.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::fmt;
use std::sync::Arc;

mod admin;
mod check;
mod classify;
mod cluster;
mod connection;
mod credentials;
mod dialer;
mod each;
mod fair;
mod fault;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod hash_slot;
mod join;
mod keyspace;
mod kinds;
mod latch;
mod late;
mod layout;
mod locks;
mod login;
mod mark;
mod names;
mod node;
mod options;
mod plain;
mod pool;
mod registry;
mod release;
mod reply;
mod script;
mod semaphore;
mod sentinel;
mod session;
mod singles;
mod spread;
mod steps;
mod stock;
mod stock_take;
mod subscriber;
mod synced;
mod topology;
mod trace;
pub mod url;
mod url_parts;

#[cfg(test)]
mod server_tests;

use cluster::Cluster;
use connection::At;
pub use credentials::{Credentials, Endpoint, Provider};
use dialer::Dialer;
pub use layout::Layout;
use lock_core::LockKey;
use lock_core::store::{
    Abilities, AcquireRequest, Acquired, BoxFuture, Lacked, LatchStore, LateRequests, LockStatus, LockStore,
    Notices, QuorumMember, ReleaseRequest, Released, RenewRequest, Renewed, ScanRequest, Scanned,
    SemaphoreStore, StoreError, Tokens, Watch, Withdrawn,
};
pub use login::Login;
use node::Node;
pub use options::RedisOptions;
use spread::RedisLayouts;
use steps::Renewal;
use topology::{Topology, step};

/// Locks on Redis. Connects on first use.
#[derive(Clone)]
pub struct RedisStore {
    topology: Topology,
    stocks: RedisLayouts,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.topology.fmt(f)
    }
}

impl RedisStore {
    /// Returns a store on the server of `client`, with the address, credentials, database and TLS
    /// settings of `client`.
    ///
    /// # Errors
    ///
    /// `Unsupported` when the client library does not accept the client's settings.
    pub fn new(client: &redis::Client, options: RedisOptions) -> Result<Self, StoreError> {
        Ok(Self::at(Dialer::new(client.get_connection_info(), &options)?, options))
    }

    /// Returns a store on the primary that `sentinels` name.
    pub fn with_sentinels(sentinels: &url::Sentinels, options: RedisOptions) -> Self {
        Self::at(Dialer::through(sentinels, &options), options)
    }

    fn at(dialer: Dialer, options: RedisOptions) -> Self {
        Self::on(Topology::one(Node::new(dialer, options)))
    }

    fn on(topology: Topology) -> Self {
        Self { stocks: RedisLayouts::new(&topology), topology }
    }

    /// Returns a store on the cluster that `seeds` belong to. All its servers are addressed with
    /// the credentials and TLS settings of the seeds.
    ///
    /// # Errors
    ///
    /// `Unsupported` when there is no seed, or a seed has no TCP address.
    pub fn cluster(seeds: &url::Seeds, options: RedisOptions) -> Result<Self, StoreError> {
        Ok(Self::on(Topology::Cluster(Cluster::new(seeds, options)?)))
    }

    fn layout(&self) -> Layout {
        self.topology.options().layout
    }

    /// Returns all servers that the store has used.
    #[cfg(test)]
    fn nodes(&self) -> Vec<Arc<Node>> {
        match &self.topology {
            Topology::One { node, .. } => vec![Arc::clone(node)],
            Topology::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Returns the only server.
    #[cfg(test)]
    fn node(&self) -> &Arc<Node> {
        match &self.topology {
            Topology::One { node, .. } => node,
            Topology::Cluster(_) => panic!("there are several"),
        }
    }
}

/// The features of the store: everything.
const ABILITIES: Abilities = Abilities {
    name: "Redis",
    fair: true,
    read_write: true,
    downgrade: true,
    several: true,
    shortens: true,
    far_waiters: true,
    takeovers: true,
    direct_grants: true,
    notices: Notices::Pushed,
    counts_listeners: true,
    replication: true,
    scan: true,
    ..Abilities::MUTEX
};

/// The features in the plain layout.
const PLAIN: Abilities = Abilities {
    name: "The plain layout of Redis",
    several: true,
    shortens: true,
    tokens: Tokens::Revision,
    own_tokens: false,
    late_requests: LateRequests::BySession,
    replication: true,
    scan: true,
    ..Abilities::MUTEX
};

/// The features in the plain layout of a server of a quorum.
const PLAIN_BY_SCRIPT: Abilities =
    Abilities { tokens: Tokens::Clock, late_requests: LateRequests::ByClock, ..PLAIN };

impl LockStore for RedisStore {
    fn abilities(&self) -> &Abilities {
        match self.layout() {
            Layout::Hash => &ABILITIES,
            Layout::Plain => &PLAIN,
            Layout::PlainByScript => &PLAIN_BY_SCRIPT,
        }
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        if self.layout().is_plain()
            && let Err(refusal) = self.abilities().allow(&request)
        {
            return Box::pin(async { Err(refusal) });
        }
        step!(self, |locks| locks.acquire(request).await, |cluster| cluster.acquire(request))
    }

    fn release(&self, mut request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        if self.layout().is_plain() && request.then.is_some() {
            request = Arc::new(ReleaseRequest { then: None, ..(*request).clone() });
        }
        step!(self, |locks| locks.release(request).await, |cluster| cluster.release(request))
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        step!(
            self,
            |node| Ok(node.renew(&request.items, Renewal::Renew, At::once(request.timeout)).await?),
            |cluster| cluster.renew(&request)
        )
    }

    fn downgrade(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        if !self.abilities().downgrade {
            let refusal = self.abilities().refusal(Lacked::Downgrade);
            return Box::pin(async { Err(refusal) });
        }
        step!(
            self,
            |node| Ok(node.renew(&request.items, Renewal::Downgrade, At::once(request.timeout)).await?),
            |cluster| cluster.downgrade(&request)
        )
    }

    fn scan(&self, request: ScanRequest) -> BoxFuture<Result<Scanned, StoreError>> {
        step!(self, |node| Ok(node.scan(&request).await?), |cluster| cluster.scan(&request))
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        step!(
            self,
            |locks| {
                // A request that was never stamped was never sent.
                let Some(latest) = request.seal() else { return Ok(Withdrawn::Settled) };
                locks.withdraw(request, latest).await
            },
            |cluster| cluster.withdraw(&request)
        )
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        let is_plain = self.layout().is_plain();
        let watch: BoxFuture<_> =
            step!(self, |node| node.watch(&request).await, |cluster| cluster.watch(&request));
        if !is_plain {
            return watch;
        }
        // Its notices are hints, since other programs send none.
        Box::pin(async { watch.await.map(Watch::unconfirmed) })
    }

    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        step!(self, |node| Ok(node.status(&key, At::once(node.options.call_timeout)).await?), |cluster| {
            cluster.status(&key)
        })
    }

    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>> {
        step!(
            self,
            |node| Ok(node.force_release(&key, At::once(node.options.call_timeout)).await?),
            |cluster| cluster.force_release(&key)
        )
    }

    fn member(&self) -> Option<&dyn QuorumMember> {
        match &self.topology {
            Topology::One { locks, .. } => Some(&**locks),
            // Each primary of a cluster may lose its data independently.
            Topology::Cluster(_) => None,
        }
    }

    fn place(&self, key: &LockKey) -> u64 {
        match &self.topology {
            Topology::One { .. } => 0,
            Topology::Cluster(cluster) => cluster.place_of_key(key),
        }
    }

    fn check(&self) -> BoxFuture<Result<(), StoreError>> {
        let layout = self.layout();
        let checked: BoxFuture<_> = step!(
            self,
            |node| {
                let RedisOptions { strict, connect_timeout, .. } = node.options;
                check::check(&node.connector, check::Mode::Alone, strict, connect_timeout).await?;
                if let Some(key) = node.options.nobodys_key() {
                    drop(node.warn_of_rights(&key, At::once(connect_timeout / 10)).await);
                }
                Ok(())
            },
            |cluster| cluster.check()
        );
        Box::pin(async move { checked.await.map_err(|error| layout.advice(error)) })
    }

    fn semaphores(&self) -> Option<Arc<dyn SemaphoreStore>> {
        let semaphores = || semaphore::RedisSemaphores::new(&self.topology);
        if self.layout().is_plain() { None } else { Some(Arc::new(semaphores())) }
    }

    fn stocks(&self) -> Option<Arc<dyn lock_core::store::stock::StockStore>> {
        if self.layout().is_plain() { None } else { Some(Arc::new(self.stocks.clone())) }
    }

    fn latches(&self) -> Option<Arc<dyn LatchStore>> {
        let latches = || latch::RedisLatches::new(&self.topology);
        if self.layout().is_plain() { None } else { Some(Arc::new(latches())) }
    }
}
