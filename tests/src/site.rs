//! [`Site`]: the place where a test of the shared suite runs, and
//! [`on_every_store!`](crate::on_every_store).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use lock_runtime::{LockManager, LockManagerBuilder};

use crate::{Cluster, Layout, Quorum, RedisServer, Sentinels, cluster, sentinels};

/// Duration of silence after which servers and managers take a server for dead. Longer than any
/// pause of a busy machine: no test of the shared suite is about failing servers.
const PATIENCE: Duration = Duration::from_secs(10);

/// The environment variable that names the servers for the tests of every store, besides the memory
/// store: `single` (the default), `plain` (in the plain layout), `sentinel`, `cluster` or `quorum`.
/// For `cargo xtask test topologies`.
pub(crate) const TOPOLOGY: &str = "LOCK_TESTS_TOPOLOGY";

/// A separate store for one test, to which any number of managers can connect.
#[derive(Debug)]
pub struct Site {
    url: String,
    /// `None` for a memory store.
    place: Option<Place>,
}

/// Servers that the tests of a process share; no test ends them. They end with the last test that
/// uses them.
#[derive(Debug)]
enum Shared {
    Single(RedisServer),
    Plain(RedisServer),
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
            "plain" => Self::Plain(RedisServer::start()),
            "sentinel" => {
                Self::Sentinel(Sentinels::start_with(sentinels::Options::default().down_after(PATIENCE)))
            }
            "cluster" => {
                Self::Cluster(Cluster::start_with(cluster::Options::default().node_timeout(PATIENCE)))
            }
            "quorum" => Self::Quorum(Quorum::start()),
            other => panic!("{TOPOLOGY}={other}: there are single, plain, sentinel, cluster and quorum"),
        });
        *shared = Arc::downgrade(&servers);
        servers
    }

    fn url(&self) -> String {
        match self {
            Self::Single(server) => server.url(),
            Self::Plain(server) => Layout::Plain.url(&server.url()),
            Self::Sentinel(servers) => servers.url(),
            Self::Cluster(servers) => servers.url(),
            Self::Quorum(servers) => servers.url(),
        }
    }

    /// Returns all servers that take writes.
    fn primaries(&self) -> Vec<&RedisServer> {
        match self {
            Self::Single(server) | Self::Plain(server) => vec![server],
            Self::Sentinel(servers) => vec![servers.primary()],
            Self::Cluster(servers) => {
                servers.primaries().into_iter().map(|at| &servers.nodes()[at]).collect()
            }
            Self::Quorum(servers) => servers.servers().iter().collect(),
        }
    }
}

/// One test's part of shared servers.
#[derive(Debug)]
struct Place {
    servers: Arc<Shared>,
    /// The prefix of every key, so that tests can share the servers.
    prefix: String,
}

static NEXT: AtomicU64 = AtomicU64::new(0);

impl Site {
    /// Returns a new memory store. It uses tokio's time, which tests can pause.
    #[must_use]
    pub fn memory() -> Self {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { url: format!("memory:site-{n}"), place: None }
    }

    /// Returns a part of the servers that the tests share: a single Redis server, or the topology
    /// in `LOCK_TESTS_TOPOLOGY`.
    ///
    /// # Panics
    ///
    /// When a server does not start.
    #[must_use]
    #[track_caller]
    pub fn redis() -> Self {
        let topology = std::env::var(TOPOLOGY).unwrap_or_else(|_| "single".to_owned());
        let servers = Shared::get(&topology);
        let prefix = format!("site-{}:", NEXT.fetch_add(1, Ordering::Relaxed));
        Self { url: servers.url(), place: Some(Place { servers, prefix }) }
    }

    /// Returns the store's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether the highest token in a `status` is that of the last grant. On a quorum it is the
    /// highest of any server, including servers that the grant did not need. In the plain layout,
    /// locks share a counter.
    #[must_use]
    pub fn tells_the_last_token(&self) -> bool {
        !self.is_quorum() && !self.is_plain()
    }

    /// Whether the store is a quorum of independent servers.
    #[must_use]
    pub fn is_quorum(&self) -> bool {
        self.place.as_ref().is_some_and(|place| matches!(*place.servers, Shared::Quorum(_)))
    }

    /// Whether the store keeps its locks in the plain layout, which has only mutexes.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.place.as_ref().is_some_and(|place| matches!(*place.servers, Shared::Plain(_)))
    }

    /// Whether the store has servers, so that time is real and other processes may interfere.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.place.is_some()
    }

    /// Returns all keys at the servers, sorted; none for a memory store.
    ///
    /// # Panics
    ///
    /// When a server does not answer.
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

    /// Connects a manager with the default settings. To the store, each manager is like another
    /// process.
    ///
    /// # Panics
    ///
    /// When it can't connect.
    pub async fn manager(&self) -> LockManager {
        self.manager_with(|builder| builder).await
    }

    /// Connects a manager with other settings.
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
            // A quorum has a maximum lease by default, which is too short for these tests.
            builder = builder.prefix(place.prefix.clone()).max_lease(Duration::from_secs(24 * 60 * 60));
            builder = builder.call_timeout(PATIENCE).connect_timeout(PATIENCE);
        }
        match settings(builder).connect(&self.url).await {
            Ok(locks) => locks,
            Err(error) => panic!("{}: {error}", self.url),
        }
    }

    /// Returns an upper bound for an action that takes `exactly` when nothing else runs. Under
    /// paused time little is added; the bound is generous on two busy cores.
    #[must_use]
    pub fn at_most(&self, exactly: Duration) -> Duration {
        exactly + if self.is_remote() { Duration::from_secs(5) } else { Duration::from_millis(50) }
    }
}

/// Returns how long a hold of `lease` is valid for its holder: the lease minus the margin for
/// different clock rates (lease/100 + 2 ms). A living holder releases a fixed lease at that time,
/// so nobody else gets the lock earlier.
#[must_use]
pub fn validity(lease: Duration) -> Duration {
    lease - lease / 100 - Duration::from_millis(2)
}

/// Makes two tests of each function: one on the memory store, with paused time, and one on a Redis
/// server.
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
