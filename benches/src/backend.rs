//! [`Backend`]: the libraries that are measured, behind one pair of calls.
//!
//! It is an enum and not a trait object, so that the measured calls need no boxing and no
//! allocation.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_runtime::{Kind, LockError, LockGuard, LockKey, LockManager, MultiKey, testing};
use lock_tests::Layout;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use tokio::sync::{OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::time::Instant;

use crate::args::{Lib, Options};
use crate::etcd::{Caller, GoClient};
use crate::journal::{Journal, Watched};
use crate::server::{Product, Urls};
use crate::sql::RowLock;

const RAW_POLL: Duration = Duration::from_millis(5);
const RAW_WAIT: Duration = Duration::from_secs(10);
const RAW_RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
/// Time-out of one call, as in our library; redis-rs has half a second, which a busy machine
/// exceeds.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    /// The library's default, 10 s.
    Default,
    Forever,
    For(Duration),
}

/// A library, connected.
#[derive(Clone)]
pub(crate) enum Backend {
    Ours(LockManager),
    Raw(Raw),
    /// The URL of a SQL server.
    Rows(String),
    Go(GoClient),
    Ping(MultiplexedConnection),
    Tokio(Arc<Mutex<HashMap<String, Bare>>>),
    /// Grants every request after a wait, so that the tests can see the checks fail.
    #[cfg(test)]
    Broken(Duration),
}

/// The tokio locks of one key. A workload uses one of the two.
#[derive(Clone, Default)]
pub(crate) struct Bare {
    mutex: Arc<tokio::sync::Mutex<()>>,
    rw: Arc<RwLock<()>>,
}

#[derive(Clone)]
pub(crate) struct Raw {
    connection: MultiplexedConnection,
    release: Arc<str>,
    lease: Duration,
}

impl Backend {
    /// Connects; the tasks of the connection or manager live on the current runtime.
    pub(crate) async fn connect(options: &Options, urls: &Urls) -> Result<Self, String> {
        match (options.lib, urls.measured.as_deref()) {
            (Lib::Tokio, _) => Ok(Self::Tokio(Arc::default())),
            (_, None) => Err("there is no store to connect to".to_owned()),
            (Lib::Ours | Lib::Plain, Some(url)) => {
                let builder = LockManager::builder().lease(options.lease);
                let layout = if options.lib == Lib::Plain { Layout::Plain } else { Layout::Hash };
                builder.connect(layout.url(url)).await.map(Self::Ours).map_err(|error| error.to_string())
            }
            (Lib::Ping, Some(url)) => connect(url).await.map(Self::Ping),
            (Lib::Raw, Some(url)) => match urls.database() {
                Some((Product::Etcd, _)) => GoClient::connect(url).await.map(Self::Go),
                Some((Product::ZooKeeper, _)) => Err("Curator runs the whole workload itself".to_owned()),
                Some(_) => Ok(Self::Rows(url.to_owned())),
                None => Raw::connect(url, options.lease).await.map(Self::Raw),
            },
        }
    }

    /// Makes a handle on one key, before anything is measured.
    pub(crate) fn lock(&self, key: &str) -> Result<Lock, String> {
        self.lock_as(Kind::Mutex, key)
    }

    /// Makes a handle of this kind. For other libraries, it only selects between a tokio mutex, a
    /// read lock and a write lock.
    pub(crate) fn lock_as(&self, kind: Kind, key: &str) -> Result<Lock, String> {
        Ok(match self {
            Self::Ours(manager) => {
                let key = LockKey::new(key).map_err(|error| error.to_string())?;
                Lock::Ours { manager: manager.clone(), kind, key }
            }
            Self::Raw(raw) => Lock::Raw { raw: raw.clone(), key: format!("raw:{key}").into() },
            Self::Rows(url) => Lock::Row(RowLock::new(url, key)),
            Self::Go(client) => Lock::Go { client: client.clone(), key: format!("go:{key}").into() },
            Self::Ping(connection) => Lock::Ping(connection.clone()),
            Self::Tokio(mutexes) => {
                let mut mutexes = mutexes.lock().unwrap_or_else(PoisonError::into_inner);
                let Bare { mutex, rw } = mutexes.entry(key.to_owned()).or_default().clone();
                match kind {
                    Kind::Read => Lock::TokioRead(rw),
                    Kind::Write => Lock::TokioWrite(rw),
                    _ => Lock::Tokio(mutex),
                }
            }
            #[cfg(test)]
            Self::Broken(wait) => Lock::Broken { wait: *wait, kind },
        })
    }

    /// Adds a journal of the calls to the store; only our library can have one.
    pub(crate) async fn watched_by(self, journal: &Journal, options: &Options) -> Result<Self, String> {
        let Self::Ours(manager) = self else { return Ok(self) };
        let store = Watched::new(testing::store_of(&manager), journal, manager);
        let builder = LockManager::builder().lease(options.lease);
        builder.connect_store(Arc::new(store)).await.map(Self::Ours).map_err(|error| error.to_string())
    }

    /// Makes a handle on several keys at once.
    pub(crate) fn multi(&self, keys: &[String]) -> Result<Lock, String> {
        match self {
            Self::Ours(manager) => {
                let keys: Result<_, _> = keys.iter().map(LockKey::new).collect();
                let keys = keys.map_err(|error| error.to_string())?;
                Ok(Lock::Several { manager: manager.clone(), keys })
            }
            _ => Err("only --lib ours has locks of several keys".to_owned()),
        }
    }
}

/// Opens one redis-rs connection.
pub(crate) async fn connect(url: &str) -> Result<MultiplexedConnection, String> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(5)))
        .set_response_timeout(Some(CALL_TIMEOUT));
    let client = Client::open(url).map_err(|error| format!("bad store URL: {}", error.category()))?;
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .map_err(|error| format!("no connection to the server: {}", error.category()))
}

/// One key of one library.
#[derive(Clone)]
pub(crate) enum Lock {
    Ours {
        manager: LockManager,
        kind: Kind,
        key: LockKey,
    },
    Several {
        manager: LockManager,
        keys: Arc<[LockKey]>,
    },
    Raw {
        raw: Raw,
        key: Arc<str>,
    },
    Row(RowLock),
    Go {
        client: GoClient,
        key: Arc<str>,
    },
    Ping(MultiplexedConnection),
    Tokio(Arc<tokio::sync::Mutex<()>>),
    TokioRead(Arc<RwLock<()>>),
    TokioWrite(Arc<RwLock<()>>),
    #[cfg(test)]
    Broken {
        wait: Duration,
        kind: Kind,
    },
}

/// A lock that is held, to be given back to [`Lock::release`].
#[must_use]
pub(crate) enum Held {
    Ours(LockGuard),
    /// The value of the key on the server.
    Raw(u64),
    Row,
    Go(Caller),
    Ping,
    Tokio(OwnedMutexGuard<()>),
    TokioRead(OwnedRwLockReadGuard<()>),
    TokioWrite(OwnedRwLockWriteGuard<()>),
    #[cfg(test)]
    Broken,
}

impl Held {
    /// Whether the library reports that the lock was lost.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Ours(guard) if guard.is_lost())
    }
}

impl Lock {
    /// Whether several holders may be inside together.
    pub(crate) fn is_shared(&self) -> bool {
        match self {
            Self::Ours { kind, .. } => *kind == Kind::Read,
            Self::TokioRead(_) => true,
            #[cfg(test)]
            Self::Broken { kind, .. } => *kind == Kind::Read,
            _ => false,
        }
    }

    /// Acquires the lock; `None` when the limit was reached.
    pub(crate) async fn acquire(&mut self, limit: Limit) -> Result<Option<Held>, String> {
        match self {
            Self::Ours { manager, kind, key } => {
                let key = &*key;
                let lock = match kind {
                    Kind::Fair => manager.fair(key),
                    Kind::Read => manager.read(key),
                    Kind::Write => manager.write(key),
                    _ => manager.mutex(key),
                };
                ours(lock, limit).await
            }
            Self::Several { manager, keys } => {
                ours(manager.multi(keys.iter().map(MultiKey::mutex)), limit).await
            }
            Self::Raw { raw, key } => raw.acquire(key, limit).await,
            // These two wait without a limit.
            Self::Row(row) => row.acquire().await.map(|()| Some(Held::Row)),
            Self::Go { client, key } => client.acquire(key).await.map(|caller| Some(Held::Go(caller))),
            Self::Ping(connection) => ping(connection).await.map(|()| Some(Held::Ping)),
            Self::Tokio(mutex) => Ok(Some(Held::Tokio(Arc::clone(mutex).lock_owned().await))),
            Self::TokioRead(lock) => Ok(Some(Held::TokioRead(Arc::clone(lock).read_owned().await))),
            Self::TokioWrite(lock) => Ok(Some(Held::TokioWrite(Arc::clone(lock).write_owned().await))),
            #[cfg(test)]
            Self::Broken { wait, .. } => {
                tokio::time::sleep(*wait).await;
                Ok(Some(Held::Broken))
            }
        }
    }

    pub(crate) async fn release(&mut self, held: Held) -> Result<(), String> {
        match (self, held) {
            (_, Held::Ours(guard)) => guard.release().await.map_err(|error| error.to_string()),
            (_, Held::Tokio(guard)) => {
                drop(guard);
                Ok(())
            }
            (_, Held::TokioRead(guard)) => {
                drop(guard);
                Ok(())
            }
            (_, Held::TokioWrite(guard)) => {
                drop(guard);
                Ok(())
            }
            (Self::Raw { raw, key }, Held::Raw(owner)) => raw.release(key, owner).await,
            (Self::Row(row), Held::Row) => row.release().await,
            (Self::Go { client, key }, Held::Go(caller)) => client.release(key, caller).await,
            (Self::Ping(connection), Held::Ping) => ping(connection).await,
            #[cfg(test)]
            (_, Held::Broken) => Ok(()),
            (_, Held::Raw(_) | Held::Row | Held::Go(_) | Held::Ping) => {
                Err("a lock was released through another library".to_owned())
            }
        }
    }
}

async fn ours(lock: lock_runtime::Lock, limit: Limit) -> Result<Option<Held>, String> {
    let lock = match limit {
        Limit::Default => lock,
        Limit::Forever => lock.wait_forever(),
        Limit::For(limit) => lock.wait(limit),
    };
    match lock.acquire().await {
        Ok(guard) => Ok(Some(Held::Ours(guard))),
        Err(LockError::TimedOut { .. }) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

impl Raw {
    async fn connect(url: &str, lease: Duration) -> Result<Self, String> {
        let mut connection = connect(url).await?;
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(RAW_RELEASE);
        let release: String = load.query_async(&mut connection).await.map_err(|error| error.to_string())?;
        Ok(Self { connection, release: release.into(), lease })
    }

    async fn acquire(&mut self, key: &str, limit: Limit) -> Result<Option<Held>, String> {
        static OWNERS: AtomicU64 = AtomicU64::new(0);
        // Unique among the processes of a machine, and among the calls of one process.
        let owner = u64::from(std::process::id()) << 40 | OWNERS.fetch_add(1, Ordering::Relaxed);
        let lease = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
        let mut set = redis::cmd("SET");
        set.arg(key).arg(owner).arg("NX").arg("PX").arg(lease);
        let deadline = match limit {
            Limit::Forever => None,
            Limit::Default => Some(Instant::now() + RAW_WAIT),
            Limit::For(limit) => Some(Instant::now() + limit),
        };
        loop {
            let answer: Option<String> =
                set.query_async(&mut self.connection).await.map_err(|error| error.to_string())?;
            if answer.is_some() {
                return Ok(Some(Held::Raw(owner)));
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
            tokio::time::sleep(RAW_POLL).await;
        }
    }

    async fn release(&mut self, key: &str, owner: u64) -> Result<(), String> {
        let mut release = redis::cmd("EVALSHA");
        release.arg(&*self.release).arg(1).arg(key).arg(owner);
        match release.query_async(&mut self.connection).await {
            Ok(1u8) => Ok(()),
            Ok(_) => Err(format!("{key}: the lease was over before the release")),
            Err(error) => Err(error.to_string()),
        }
    }
}

pub(crate) async fn ping(connection: &mut MultiplexedConnection) -> Result<(), String> {
    redis::cmd("PING").query_async(connection).await.map_err(|error| error.to_string())
}
