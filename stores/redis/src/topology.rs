//! [`Topology`]: one server or a cluster, and how each runs a step.

use std::fmt;
use std::sync::Arc;

use lock_core::store::BoxFuture;
use tokio::runtime::Handle;

use super::cluster::Cluster;
use super::locks::Locks;
use super::node::Node;
use super::options::RedisOptions;
use super::runtime::InRuntime;

/// The server or servers of a store's keys.
#[derive(Clone)]
pub(super) enum Topology {
    One { node: Arc<Node>, locks: Arc<Locks> },
    Cluster(Arc<Cluster>),
}

impl Topology {
    pub(super) fn one(node: Arc<Node>) -> Self {
        Self::One { locks: Locks::new(&node), node }
    }

    pub(super) fn options(&self) -> &RedisOptions {
        match self {
            Self::One { node, .. } => &node.options,
            Self::Cluster(cluster) => &cluster.options,
        }
    }
}

/// Prints the store that has the keys.
impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = match self {
            Self::One { node, .. } => &node.address,
            Self::Cluster(cluster) => &cluster.address,
        };
        f.debug_struct("RedisStore")
            .field("address", address)
            .field("prefix", &self.options().prefix)
            .finish_non_exhaustive()
    }
}

/// Makes a call in the runtime of the store, wherever it is polled.
pub(super) fn call<T, F>(runtime: &Handle, call: F) -> BoxFuture<T>
where
    F: Future<Output = T> + Send + 'static,
{
    Box::pin(InRuntime::new(runtime.clone(), call))
}

/// Makes a call that the engine polls in tasks of the store's runtime, which need not be entered
/// again.
pub(super) fn call_in_task<T, F>(runtime: &Handle, future: F) -> BoxFuture<T>
where
    F: Future<Output = T> + Send + 'static,
{
    if tokio::task::try_id().is_some() { Box::pin(future) } else { call(runtime, future) }
}

/// Runs a step in the cluster or at the only server, there by its `node` or its `locks`. `$call`
/// decides in which runtime the step is polled.
macro_rules! step {
    ($store:expr, $call:ident, |$one:ident| $single:expr, |$cluster:ident| $several:expr) => {
        match &$store.topology {
            Topology::One { $one, .. } => {
                let $one = Arc::clone($one);
                $call(&$store.topology.options().runtime, async move { $single })
            }
            Topology::Cluster(cluster) => {
                let $cluster = Arc::clone(cluster);
                $call(&cluster.options.runtime, async move { $several.await })
            }
        }
    };
}
pub(super) use step;
