//! The Redis store: one server or a cluster, keys as Redisson's locks of all kinds have them.
//!
//! - [`names`]: what a lock is called. [`script`]: the steps, in Lua, each atomic; what goes over the wire is in
//!   `scripts/*.lua`. [`reply`]: what they answer.
//! - [`steps`], [`release`], [`admin`]: the methods of the trait. [`singles`]: the steps for single mutexes, which travel in
//!   groups, see [`group`]. [`kinds`]: requests that are not for mutexes alone; [`fair`]: what a fair lock's waiter hears.
//! - [`semaphore`], [`latch`]: the steps of those. [`stock`], [`stock_take`]: stocks in one slot; [`spread`]: stocks that are
//!   not in one place. [`cluster`]: all steps where there are several servers.
//! - [`node`]: one server. [`connection`]: one connection for commands. [`subscriber`] and [`registry`]: one for release messages.
//!   [`synced`]: one for each grant that replicas confirm. [`dialer`]: how they are made. [`sentinel`]: finds the primary.
//! - [`server_clock`]: the estimate of the server's time behind [`AcquireRequest::stamp`].
//! - [`fault`], [`classify`]: errors. [`check`]: whether a server can keep locks. [`url`]: addresses.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

pub(crate) use self::login::Login;
use crate::clock::Clock;
use crate::key::LockKey;
use crate::store::{
    AcquireRequest, Acquired, BoxFuture, KeepRequest, Kept, LatchStore, LockStatus, LockStore, MarkRequest,
    Marked, ReleaseRequest, Released, ScanRequest, Scanned, SemaphoreStore, StoreError, StoreErrorKind,
    Watch, Withdrawn,
};

mod admin;
mod check;
mod classify;
mod cluster;
mod connection;
mod dialer;
mod each;
mod fair;
mod fault;
#[cfg(feature = "testing")]
pub(crate) mod fuzzing;
mod group;
mod join;
mod kinds;
mod latch;
mod login;
mod mark;
mod names;
mod node;
mod registry;
mod release;
mod reply;
mod runtime;
mod script;
mod semaphore;
mod sentinel;
mod singles;
mod spread;
mod steps;
mod stock;
mod stock_take;
mod subscriber;
mod synced;
pub(crate) mod url;
mod url_parts;

#[cfg(test)]
mod tests;

use cluster::Cluster;
use dialer::Dialer;
use node::{At, Node};
use steps::Keeping;

/// Longest time that is passed to the server, about 100 years: it refuses times that overflow, and it would do so
/// after a lock was written.
const LONGEST_MILLIS: u64 = 3_155_760_000_000;
/// Tokens above a larger floor would not fit the server's integers.
const HIGHEST_FLOOR: u64 = i64::MAX as u64 - crate::store::MAX_TOKENS as u64;

/// Settings of a [`RedisStore`].
#[derive(Clone, Debug)]
pub(crate) struct RedisOptions {
    /// In front of every key.
    pub(crate) prefix: String,
    /// Time-out of calls that carry none.
    pub(crate) call_timeout: Duration,
    /// Time-out of making a connection, and of [`check`](LockStore::check).
    pub(crate) connect_timeout: Duration,
    /// How long a channel stays subscribed after its last watcher has left.
    pub(crate) subscription_linger: Duration,
    /// How often a subscriber connection is asked whether it lives.
    pub(crate) ping_every: Duration,
    /// How many replicas a single primary has.
    pub(crate) replicas: Option<u32>,
    /// Doubtful server settings are errors.
    pub(crate) strict: bool,
    /// How connections log in.
    pub(crate) login: Login,
    /// Our time; one that counts suspend.
    pub(crate) clock: Clock,
    /// Where connections live.
    pub(crate) runtime: Handle,
}

impl RedisOptions {
    /// A key that no lock has.
    fn nobodys_key(&self) -> Option<LockKey> {
        LockKey::new(format!("rights-of-{}", self.login.name())).ok()
    }
}

/// Locks on Redis. Connects on first use.
#[derive(Clone)]
pub(crate) struct RedisStore {
    topology: Topology,
    /// What is known of its stocks that are spread.
    known: spread::Known,
    /// Of its stocks in one slot.
    generations: stock::Generations,
}

#[derive(Clone)]
enum Topology {
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, options) = match &self.topology {
            Topology::One(node) => (&node.address, &node.options),
            Topology::Cluster(cluster) => (&cluster.address, &cluster.options),
        };
        f.debug_struct("RedisStore")
            .field("address", address)
            .field("prefix", &options.prefix)
            .finish_non_exhaustive()
    }
}

impl RedisStore {
    /// A store on the server of `client`; the client's address, credentials, database and TLS settings are used.
    ///
    /// # Errors
    ///
    /// `Unsupported` when the client library does not accept the client's settings.
    pub(crate) fn new(client: &redis::Client, options: RedisOptions) -> Result<Self, StoreError> {
        Ok(Self::at(Dialer::new(client.get_connection_info(), &options)?, options))
    }

    /// A store on the primary that `sentinels` name.
    pub(crate) fn with_sentinels(sentinels: &url::Sentinels, options: RedisOptions) -> Self {
        Self::at(Dialer::through(sentinels, &options), options)
    }

    fn at(dialer: Dialer, options: RedisOptions) -> Self {
        Self {
            topology: Topology::One(Node::new(dialer, options)),
            known: spread::Known::default(),
            generations: stock::Generations::default(),
        }
    }

    /// A store on the cluster that these servers belong to. All of it is spoken to with their credentials and TLS settings.
    ///
    /// # Errors
    ///
    /// `Unsupported` when there is no seed, or one that is no TCP address.
    pub(crate) fn cluster(seeds: &url::Seeds, options: RedisOptions) -> Result<Self, StoreError> {
        Ok(Self {
            topology: Topology::Cluster(Cluster::new(seeds, options)?),
            known: spread::Known::default(),
            generations: stock::Generations::default(),
        })
    }

    /// All servers that it has spoken to.
    #[cfg(test)]
    fn nodes(&self) -> Vec<Arc<Node>> {
        match &self.topology {
            Topology::One(node) => vec![Arc::clone(node)],
            Topology::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// The only server.
    #[cfg(test)]
    fn node(&self) -> &Arc<Node> {
        match &self.topology {
            Topology::One(node) => node,
            Topology::Cluster(_) => panic!("there are several"),
        }
    }
}

/// A call that is made in the runtime of the store, wherever it is polled.
fn call<T, F>(runtime: &Handle, call: F) -> BoxFuture<T>
where
    F: Future<Output = T> + Send + 'static,
{
    Box::pin(runtime::InRuntime::new(runtime.clone(), call))
}

/// A call that the engine makes in tasks of the store's runtime, where it need not be entered first.
fn call_in_task<T, F>(runtime: &Handle, future: F) -> BoxFuture<T>
where
    F: Future<Output = T> + Send + 'static,
{
    if tokio::task::try_id().is_some() { Box::pin(future) } else { call(runtime, future) }
}

/// A method of a store: what it is at one server, and in a cluster. The call is made as the second argument says.
macro_rules! step {
    ($store:expr, $call:ident, |$node:ident| $one:expr, |$cluster:ident| $several:expr) => {
        match &$store.topology {
            Topology::One(node) => {
                let $node = Arc::clone(node);
                $call(&node.options.runtime, async move { $one })
            }
            Topology::Cluster(cluster) => {
                let $cluster = Arc::clone(cluster);
                $call(&cluster.options.runtime, async move { $several.await })
            }
        }
    };
}
use step;

impl LockStore for RedisStore {
    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        step!(self, call_in_task, |node| node.acquire(request).await, |cluster| cluster.acquire(request))
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        step!(self, call_in_task, |node| node.release(request).await, |cluster| cluster.release(request))
    }

    fn keeps_far_waiters(&self) -> bool {
        true
    }

    fn keep(&self, request: Arc<KeepRequest>) -> BoxFuture<Result<Vec<Kept>, StoreError>> {
        step!(
            self,
            call_in_task,
            |node| Ok(node.keep(&request.items, Keeping::Renew, At::once(request.timeout)).await?),
            |cluster| cluster.keep(&request)
        )
    }

    fn downgrade(&self, request: Arc<KeepRequest>) -> BoxFuture<Result<Vec<Kept>, StoreError>> {
        step!(
            self,
            call_in_task,
            |node| Ok(node.keep(&request.items, Keeping::Downgrade, At::once(request.timeout)).await?),
            |cluster| cluster.downgrade(&request)
        )
    }

    fn scan(&self, request: ScanRequest) -> BoxFuture<Result<Scanned, StoreError>> {
        step!(self, call, |node| Ok(node.scan(&request).await?), |cluster| cluster.scan(&request))
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        step!(
            self,
            call_in_task,
            |node| {
                // Never stamped: never sent.
                let Some(latest) = request.seal() else { return Ok(Withdrawn::Settled) };
                Ok(Withdrawn::by(latest, node.withdraw(request).await?))
            },
            |cluster| cluster.withdraw(&request)
        )
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        step!(self, call_in_task, |node| node.watch(&request).await, |cluster| cluster.watch(&request))
    }

    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        step!(
            self,
            call,
            |node| Ok(node.status(&key, At::once(node.options.call_timeout)).await?),
            |cluster| cluster.status(&key)
        )
    }

    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>> {
        step!(
            self,
            call,
            |node| Ok(node.force_release(&key, At::once(node.options.call_timeout)).await?),
            |cluster| cluster.force_release(&key)
        )
    }

    fn mark(&self, request: MarkRequest) -> BoxFuture<Result<Marked, StoreError>> {
        step!(self, call_in_task, |node| Ok(node.mark(&request).await?), |cluster| async move {
            // Each of its primaries may lose its data by itself.
            let what = "a cluster can't be one of a quorum: it keeps no marker that says when it has lost locks; use single servers";
            Err(cluster.address.error(StoreErrorKind::Unsupported, what))
        })
    }

    fn place(&self, key: &LockKey) -> u64 {
        match &self.topology {
            Topology::One(_) => 0,
            Topology::Cluster(cluster) => cluster.place_of_key(key),
        }
    }

    fn check(&self) -> BoxFuture<Result<(), StoreError>> {
        step!(
            self,
            call,
            |node| {
                let RedisOptions { strict, connect_timeout, .. } = node.options;
                check::check(&node.connector, check::Mode::Alone, strict, connect_timeout).await?;
                if let Some(key) = node.options.nobodys_key() {
                    drop(node.warn_of_rights(&key, At::once(connect_timeout / 10)).await);
                }
                Ok(())
            },
            |cluster| cluster.check()
        )
    }

    fn semaphores(&self) -> Option<Arc<dyn SemaphoreStore>> {
        Some(Arc::new(semaphore::RedisSemaphores::new(self)))
    }

    fn stocks(&self) -> Option<Arc<dyn crate::store::stock::StockStore>> {
        Some(Arc::new(spread::RedisLayouts::new(self)))
    }

    fn latches(&self) -> Option<Arc<dyn LatchStore>> {
        Some(Arc::new(latch::RedisLatches::new(self)))
    }
}
