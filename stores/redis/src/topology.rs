//! [`Topology`]: one server or a cluster, and how each runs a step.

use std::fmt;
use std::sync::Arc;

use lock_core::internal::runtime::InRuntime;
use lock_core::store::BoxFuture;

use super::cluster::Cluster;
use super::locks::Locks;
use super::node::Node;
use super::options::RedisOptions;

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

/// Makes a call of a stock, which is polled by its caller, in the runtime of the store.
pub(super) fn call<T, F>(topology: &Topology, call: F) -> BoxFuture<T>
where
    F: Future<Output = T> + Send + 'static,
{
    Box::pin(InRuntime::new(topology.options().runtime.clone(), call))
}

/// Runs a step in the cluster or at the only server, there by its `node` or its `locks`.
macro_rules! step {
    ($store:expr, |$one:ident| $single:expr, |$cluster:ident| $several:expr) => {
        match &$store.topology {
            Topology::One { $one, .. } => {
                let $one = Arc::clone($one);
                Box::pin(async move { $single })
            }
            Topology::Cluster(cluster) => {
                let $cluster = Arc::clone(cluster);
                Box::pin(async move { $several.await })
            }
        }
    };
}
pub(super) use step;
