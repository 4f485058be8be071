//! [`Site`]: the place that a test of the shared suite runs at, and
//! [`on_every_store!`](crate::on_every_store).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use lock_runtime::{LockManager, LockManagerBuilder};

use crate::{Cluster, Quorum, RedisServer, Sentinels, cluster, sentinels};

/// Servers that a busy machine keeps from answering for less are not taken for dead, neither by
/// each other nor by the managers: no test of the shared suite is about servers that fail.
const PATIENCE: Duration = Duration::from_secs(10);

/// The environment variable that says on which servers the tests of every store run, besides the
/// memory store: `single`, which is the default, `sentinel`, `cluster` or `quorum`. For
/// `cargo xtask test topologies`.
pub(crate) const TOPOLOGY: &str = "LOCK_TESTS_TOPOLOGY";

/// A store of its own for one test, to which any number of managers connect.
#[derive(Debug)]
pub struct Site {
    url: String,
    /// `None` for a memory store.
    place: Option<Place>,
}

/// Servers that the tests of a process share, none of which ends them. They end with the last test
/// that has them.
#[derive(Debug)]
enum Shared {
    Single(RedisServer),
    Sentinel(Sentinels),
    Cluster(Cluster),
    Quorum(Quorum),
}

impl Shared {
    fn get(topology: &str) -> Arc<Self> {
        static SHARED: Mutex<Weak<Shared>> = Mutex::new(Weak::new());

        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(servers) = shared.upgrade() {
            return servers;
        }
        let servers = Arc::new(match topology {
            "single" => Self::Single(RedisServer::start()),
            "sentinel" => {
                Self::Sentinel(Sentinels::start_with(sentinels::Options::default().down_after(PATIENCE)))
            }
            "cluster" => {
                Self::Cluster(Cluster::start_with(cluster::Options::default().node_timeout(PATIENCE)))
            }
            "quorum" => Self::Quorum(Quorum::start()),
            other => panic!("{TOPOLOGY}={other}: there are single, sentinel, cluster and quorum"),
        });
        *shared = Arc::downgrade(&servers);
        servers
    }

    fn url(&self) -> String {
        match self {
            Self::Single(server) => server.url(),
            Self::Sentinel(servers) => servers.url(),
            Self::Cluster(servers) => servers.url(),
            Self::Quorum(servers) => servers.url(),
        }
    }

    /// All that take writes.
    fn primaries(&self) -> Vec<&RedisServer> {
        match self {
            Self::Single(server) => vec![server],
            Self::Sentinel(servers) => vec![servers.primary()],
            Self::Cluster(servers) => {
                servers.primaries().into_iter().map(|at| &servers.nodes()[at]).collect()
            }
            Self::Quorum(servers) => servers.servers().iter().collect(),
        }
    }
}

/// A part of shared servers.
#[derive(Debug)]
struct Place {
    servers: Arc<Shared>,
    /// In front of every key, so that tests can share the servers.
    prefix: String,
}

static NEXT: AtomicU64 = AtomicU64::new(0);

impl Site {
    /// A fresh memory store. Its time is tokio's, so tests pause it.
    #[must_use]
    pub fn memory() -> Self {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { url: format!("memory:site-{n}"), place: None }
    }

    /// A part of the Redis server that the tests share, or of several, see `LOCK_TESTS_TOPOLOGY`.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[must_use]
    #[track_caller]
    pub fn redis() -> Self {
        let topology = std::env::var(TOPOLOGY).unwrap_or_else(|_| "single".to_owned());
        let servers = Shared::get(&topology);
        let prefix = format!("site-{}:", NEXT.fetch_add(1, Ordering::Relaxed));
        Self { url: servers.url(), place: Some(Place { servers, prefix }) }
    }

    /// The store's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether the highest token that `status` tells is that of the last grant. On a quorum it is
    /// the highest of any server, also of one that was not needed for the grant.
    #[must_use]
    pub fn tells_the_last_token(&self) -> bool {
        !self.is_quorum()
    }

    /// Whether its servers know nothing of each other.
    #[must_use]
    pub fn is_quorum(&self) -> bool {
        self.place.as_ref().is_some_and(|place| matches!(*place.servers, Shared::Quorum(_)))
    }

    /// Whether there are servers behind it, so that time is real and other processes are in the
    /// way.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.place.is_some()
    }

    /// What is at the servers, a memory store apart: all keys, sorted.
    ///
    /// # Panics
    ///
    /// When one does not answer.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let Some(Place { servers, prefix }) = &self.place else { return Vec::new() };
        let pattern = format!("*{prefix}*");
        let keys = servers.primaries().into_iter().flat_map(|server| {
            let keys = server.cli(&["KEYS", &pattern]);
            keys.lines().filter(|key| !key.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        });
        let mut keys: Vec<_> = keys.collect();
        keys.sort();
        keys
    }

    /// A manager with the default settings. Each is to the store what another process would be.
    ///
    /// # Panics
    ///
    /// When it can't connect.
    pub async fn manager(&self) -> LockManager {
        self.manager_with(|builder| builder).await
    }

    /// A manager with other settings.
    ///
    /// # Panics
    ///
    /// When it can't connect.
    pub async fn manager_with(
        &self,
        settings: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
    ) -> LockManager {
        let mut builder = LockManager::builder();
        if let Some(place) = &self.place {
            // On a quorum leases have a maximum, but for what is tested here.
            builder = builder.prefix(place.prefix.clone()).max_lease(Duration::from_secs(24 * 60 * 60));
            builder = builder.call_timeout(PATIENCE).connect_timeout(PATIENCE);
        }
        match settings(builder).connect(&self.url).await {
            Ok(locks) => locks,
            Err(error) => panic!("{}: {error}", self.url),
        }
    }

    /// An upper bound for something that takes `exactly` when nothing else runs: nothing more under
    /// paused time, and generous on two busy cores.
    #[must_use]
    pub fn at_most(&self, exactly: Duration) -> Duration {
        exactly + if self.is_remote() { Duration::from_secs(5) } else { Duration::from_millis(50) }
    }
}

/// How long a hold of `lease` is valid for its holder: the lease less the margin for clocks that
/// run at different rates (lease/100 + 2 ms). A holder that lives gives a fixed lease back then, so
/// nobody else gets in earlier.
#[must_use]
pub fn validity(lease: Duration) -> Duration {
    lease - lease / 100 - Duration::from_millis(2)
}

/// Makes each function a test on the memory store, with paused time, and a test on a Redis server.
///
/// ```
/// lock_tests::on_every_store! {
///     async fn a_free_lock_is_acquired(site: Site) {
///         let locks = site.manager().await;
///         assert!(locks.mutex("free").try_acquire().await.unwrap().is_some());
///     }
/// }
/// ```
#[macro_export]
macro_rules! on_every_store {
    ($($(#[$attribute:meta])* async fn $name:ident($site:ident: Site) $body:block)*) => {
        $($(#[$attribute])* async fn $name($site: $crate::Site) $body)*

        mod memory {
            $(
                #[::tokio::test(start_paused = true)]
                async fn $name() {
                    super::$name($crate::Site::memory()).await;
                }
            )*
        }

        mod redis {
            $(
                #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::Site::redis()).await;
                }
            )*
        }
    };
}
