//! The constructors of [`LockManager`]: from a URL, from a client of Redis or MongoDB, from a pool
//! of SQL connections, or from a store.

pub(crate) mod address;
#[cfg(feature = "mongodb")]
mod mongodb;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod sql;

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Clock;
use lock_core::store::LockStore;
#[cfg(feature = "redis")]
use lock_store_redis::{Layout, url::Servers};

use self::address::{ACCEPTED, Address};
use crate::builder::LockManagerBuilder;
use crate::error::ConnectError;
use crate::manager::LockManager;

impl LockManager {
    /// Connects to the store at `url` with the default settings; fails when it can't be reached.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `memory:` | a fresh store in this process |
    /// | `memory:NAME` | one store per name and process, shared by the managers that connect to it |
    /// | `redis://[user:password@]host[:port][/db]` | one Redis server, 6.2 or newer |
    /// | `redis+sentinel://[user:password@]h1[:26379],h2/MASTER[/db]` | the primary that the sentinels name |
    /// | `redis+cluster://[user:password@]h1[:6379],h2` | a Redis Cluster |
    /// | `quorum:url1\|url2\|url3` | a majority of independent servers |
    /// | `redis+plain…://` | the same with the locks of `SET NX PX`, mutexes only |
    /// | `rediss…` | the same through TLS; needs feature `tls-rustls` or `tls-native` |
    /// | `postgres://[user:password@]host[:port]/database` | a table in PostgreSQL; needs feature `postgres` |
    /// | `mysql://[user:password@]host[:port]/database` | a table in MariaDB; needs feature `mysql` |
    /// | `mongodb://[user:password@]h1[:port],h2,h3/database` | a collection in MongoDB; needs feature `mongodb` |
    /// | `etcd://[user:password@]h1[:2379],h2,h3/path` | keys in etcd; needs feature `etcd` |
    /// | `etcds://…[?ca=FILE][&cert=FILE&key=FILE]` | the same through TLS |
    /// | `zookeeper://[user:password@]h1[:2181],h2,h3/path` | nodes in ZooKeeper; needs feature `zookeeper` |
    /// | `zookeepers://…[?ca=FILE][&cert=FILE&key=FILE]` | the same through TLS; needs feature `zookeeper-tls` |
    /// | `sqlite:FILE`, `sqlite://FILE` | a table in an SQLite file of this machine; needs feature `sqlite` |
    ///
    /// `postgresql://` is the same as `postgres://`, and `mariadb://` as `mysql://`.
    ///
    /// The options of `etcds://` and `zookeepers://` name files in the PEM format: certificates of
    /// authorities, instead of those of the platform, and the certificate and key that the client
    /// shows. In etcd, the option `tokens=revision` makes tokens that Go's client can compare with
    /// its own. In ZooKeeper, the options `timeout=40s` and `tick=3s` are the time-out of sessions
    /// and the servers' longest tick.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Unavailable`] after at most the connect time-out (5 s), naming host and
    /// port; [`ConnectError::Misconfigured`] for a bad URL, wrong credentials, or a server that is
    /// too old.
    ///
    /// Cancel safe.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, ConnectError> {
        Self::builder().connect(url).await
    }

    /// As [`connect`](Self::connect), but does not ask the store, so that a service can start while
    /// its store is down.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Misconfigured`] for a bad URL.
    pub fn connect_lazy(url: impl AsRef<str>) -> Result<Self, ConnectError> {
        Self::builder().connect_lazy(url)
    }

    /// Connects to the store named by the environment variable `LOCK_URL`.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), and [`ConnectError::Misconfigured`] when the variable is not
    /// set: there is no silent default.
    pub async fn from_env() -> Result<Self, ConnectError> {
        Self::builder().from_env().await
    }

    /// Returns a builder with the default settings.
    pub fn builder() -> LockManagerBuilder {
        LockManagerBuilder::default()
    }
}

impl LockManagerBuilder {
    /// As [`LockManager::connect`], with these settings.
    ///
    /// # Errors
    ///
    /// As [`LockManager::connect`], and [`ConnectError::Misconfigured`] for settings that
    /// contradict each other.
    pub async fn connect(self, url: impl AsRef<str>) -> Result<LockManager, ConnectError> {
        let limit = self.store.connect_timeout;
        checked(self.connect_lazy(url)?, limit).await
    }

    /// As [`LockManager::connect_lazy`], with these settings.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Misconfigured`] for a bad URL or settings that contradict each other.
    pub fn connect_lazy(self, url: impl AsRef<str>) -> Result<LockManager, ConnectError> {
        self.open(Address::parse(url.as_ref())?)
    }

    /// Makes a manager on the store at this address, without asking it.
    fn open(self, address: Address) -> Result<LockManager, ConnectError> {
        let clock = address.clock();
        let engine = self.start(clock, |settings, runtime| address.open(settings, clock, runtime))?;
        Ok(LockManager::on(engine))
    }

    /// As [`LockManager::from_env`], with these settings.
    ///
    /// # Errors
    ///
    /// As [`LockManager::from_env`].
    // The name is that of the constructor on `LockManager`.
    #[allow(clippy::wrong_self_convention)]
    pub async fn from_env(self) -> Result<LockManager, ConnectError> {
        match std::env::var("LOCK_URL") {
            Ok(url) if !url.is_empty() => self.connect(url).await,
            _ => Err(ConnectError::misconfigured(format!(
                "the environment variable LOCK_URL is not set; set it to {ACCEPTED}"
            ))),
        }
    }

    /// Makes a manager on the caller's own store: a type that implements the trait [`LockStore`] of
    /// the crate `lock-core`. The guide's chapter *Write a store* goes through one. The settings
    /// for stores by URL, such as [`prefix`](Self::prefix), have no effect on it.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub async fn connect_store(self, store: Arc<dyn LockStore>) -> Result<LockManager, ConnectError> {
        let limit = self.store.connect_timeout;
        checked(LockManager::on(self.start(Clock::Boot, |_, _| Ok(store))?), limit).await
    }

    /// Makes a manager on the caller's Redis client. It uses the client's address, credentials and
    /// TLS settings, but makes its own connections.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    #[cfg(feature = "redis")]
    pub async fn connect_client(self, client: redis::Client) -> Result<LockManager, ConnectError> {
        let limit = self.store.connect_timeout;
        let address = Address::Redis(Box::new(Servers::One(client)), Layout::Hash);
        checked(self.open(address)?, limit).await
    }

    /// Makes a manager with the connect options of the caller's PostgreSQL pool: its address,
    /// credentials and TLS settings.
    ///
    /// The manager makes its own connections and takes none from the pool. Handlers that wait for
    /// a lock inside a transaction may hold all connections of the pool. A renewal that waited
    /// for one of them would come too late, and the holder's lock would be lost.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    #[cfg(feature = "postgres")]
    pub async fn connect_postgres(self, pool: &sqlx::PgPool) -> Result<LockManager, ConnectError> {
        let limit = self.store.connect_timeout;
        let address = Address::Postgres(Box::new((*pool.connect_options()).clone()));
        checked(self.open(address)?, limit).await
    }

    /// Makes a manager with the connect options of the caller's pool of MariaDB: its address,
    /// credentials and TLS settings. The options have to name a database.
    ///
    /// The manager makes its own connections and takes none from the pool, as with PostgreSQL.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    #[cfg(feature = "mysql")]
    pub async fn connect_mysql(self, pool: &sqlx::MySqlPool) -> Result<LockManager, ConnectError> {
        let limit = self.store.connect_timeout;
        let address = Address::MySql(Box::new((*pool.connect_options()).clone()));
        checked(self.open(address)?, limit).await
    }

    /// Makes a manager with the options of the caller's MongoDB client: its addresses, credentials
    /// and TLS settings, and its default database.
    ///
    /// The manager makes its own connections and takes none from the client. Its read and write
    /// concern, read preference and retries do not count, but a write concern that loses grants is
    /// refused.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    #[cfg(feature = "mongodb")]
    pub async fn connect_mongodb(
        self,
        options: ::mongodb::options::ClientOptions,
    ) -> Result<LockManager, ConnectError> {
        let limit = self.store.connect_timeout;
        let address = Address::MongoDb(lock_store_mongodb::Target::Options(Box::new(options)));
        checked(self.open(address)?, limit).await
    }

    /// Makes a manager on the file of the caller's SQLite pool, with the pool's connect options.
    ///
    /// The manager opens the file by itself, in WAL mode, and takes no connection from the pool.
    /// A transaction of the pool that has written keeps all other writers out, including the
    /// manager: wait for locks before it begins.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), and [`ConnectError::Misconfigured`] for a database in memory,
    /// which is a separate one for each connection.
    #[cfg(feature = "sqlite")]
    pub async fn connect_sqlite(self, pool: &sqlx::SqlitePool) -> Result<LockManager, ConnectError> {
        let limit = self.store.connect_timeout;
        let address = Address::Sqlite(Box::new((*pool.connect_options()).clone()));
        checked(self.open(address)?, limit).await
    }
}

/// Returns the manager once the store has shown that it can be used.
async fn checked(locks: LockManager, limit: Duration) -> Result<LockManager, ConnectError> {
    locks.engine().check(limit).await?;
    Ok(locks)
}
