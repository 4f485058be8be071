//! [`Address`]: a parsed lock URL, which opens its store.

use std::sync::Arc;
#[cfg(feature = "redis")]
use std::time::Duration;

#[cfg(feature = "redis")]
use lock_core::internal::OF_HOW_MANY;
use lock_core::internal::clock::Clock;
use lock_core::internal::scheme::is_scheme;
use lock_core::internal::tasks::Tasks;
use lock_core::store::LockStore;
use lock_store_memory::MemoryStore;
#[cfg(feature = "mongodb")]
use lock_store_mongodb::Target;
use lock_store_quorum::{QuorumOptions, QuorumStore};
#[cfg(feature = "redis")]
use lock_store_redis::{
    Layout, Login, RedisOptions, RedisStore,
    url::{self, Servers},
};
#[cfg(feature = "mysql")]
use sqlx::mysql::MySqlConnectOptions;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnectOptions;
#[cfg(feature = "sqlite")]
use sqlx::sqlite::SqliteConnectOptions;
use tokio::runtime::Handle;

#[cfg(feature = "mongodb")]
use super::mongodb;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
use super::sql;
use crate::builder::LockManagerBuilder;
use crate::error::ConnectError;

/// The forms of URLs that are accepted, for error texts.
pub(crate) const ACCEPTED: &str = "`memory:`, `memory:NAME`, `redis://[user:password@]host[:port][/db]`, \
                                   `redis+sentinel://h1,h2/MASTER`, `redis+cluster://h1,h2`, the same with `redis+plain` for the \
                                   locks of `SET NX PX`, with `rediss` for TLS, \
                                   `postgres://[user:password@]host[:port]/database`, `mysql://…` likewise, `sqlite:FILE`, \
                                   `mongodb://h1,h2,h3/DATABASE`, `etcd://h1,h2,h3/PREFIX`, with `etcds` for TLS, `zookeeper://h1,h2,h3/PATH`, with `zookeepers` for TLS, \
                                   or `quorum:url1|url2|url3`";

/// Interval at which a subscriber connection is checked with a ping.
#[cfg(feature = "redis")]
const PING_EVERY: Duration = Duration::from_secs(5);

/// The address of a store.
pub(crate) enum Address {
    /// A fresh store in memory, or the one of this name.
    Memory(Option<String>),
    #[cfg(feature = "redis")]
    Redis(Box<Servers>, Layout),
    #[cfg(feature = "postgres")]
    Postgres(Box<PgConnectOptions>),
    /// PostgreSQL behind a pooler of transactions.
    #[cfg(feature = "postgres")]
    PooledPostgres(Box<PgConnectOptions>),
    #[cfg(feature = "mysql")]
    MySql(Box<MySqlConnectOptions>),
    #[cfg(feature = "sqlite")]
    Sqlite(Box<SqliteConnectOptions>),
    #[cfg(feature = "mongodb")]
    MongoDb(Target),
    #[cfg(feature = "etcd")]
    Etcd(lock_store_etcd::Target),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(lock_store_zookeeper::Target),
    Quorum(Vec<Address>),
}

impl Address {
    /// Parses a URL. The error of a malformed one repeats only the scheme, since the rest may have
    /// a password.
    pub(crate) fn parse(url: &str) -> Result<Self, ConnectError> {
        let url = url.trim();
        if let Some(urls) = url.strip_prefix("quorum:") {
            return Self::quorum(urls);
        }
        if let Some(name) = url.strip_prefix("memory:") {
            if name.starts_with("//") {
                return Err(refused(
                    "a store in memory has no host; write `memory:`, or `memory:name` for one that managers share",
                ));
            }
            return Ok(Self::Memory(Some(name.to_owned()).filter(|name| !name.is_empty())));
        }
        if url.starts_with("sqlite:") {
            return Self::sqlite(url);
        }
        match url.split_once("://") {
            Some((scheme, _)) if scheme.starts_with("redis") => Self::redis(url),
            Some(("postgres" | "postgresql", _)) => Self::postgres(url),
            Some(("mysql" | "mariadb", _)) => Self::mysql(url),
            Some(("mongodb" | "mongodb+srv", _)) => Self::mongodb(url),
            Some(("etcd" | "etcds", _)) => Self::etcd(url),
            Some(("zookeeper" | "zookeepers", _)) => Self::zookeeper(url),
            // A text before `://` that is not a scheme may be part of a password, and is not
            // repeated.
            Some((scheme, _)) if is_scheme(scheme) => {
                Err(refused(&format!("a lock URL can't begin with {scheme:?}; use {ACCEPTED}")))
            }
            Some(_) => Err(refused(&format!("this is not a lock URL; use {ACCEPTED}"))),
            None if ["redis", "postgres", "mysql", "mariadb", "mongodb", "etcd", "zookeeper"]
                .iter()
                .any(|it| url.starts_with(it))
                && url.contains(':') =>
            {
                Err(refused(&format!("`//` is missing behind the first `:` of the lock URL; use {ACCEPTED}")))
            }
            None => Err(refused(&format!(
                "the lock URL has no scheme, such as `redis://` in `redis://host:6379`; use {ACCEPTED}"
            ))),
        }
    }

    fn quorum(urls: &str) -> Result<Self, ConnectError> {
        let parts: Vec<&str> = urls.split('|').map(str::trim).collect();
        if parts.iter().any(|url| url.is_empty()) {
            return Err(refused("one of the URLs of a quorum is empty; use `quorum:url1|url2|url3`"));
        }
        let each = parts.into_iter().map(|url| match Self::parse(url) {
            Ok(Self::Quorum(_)) => {
                Err(refused("a quorum can't contain another quorum; list the stores themselves"))
            }
            address => address,
        });
        let each = each.collect::<Result<Vec<_>, _>>()?;
        if each.iter().any(Self::is_database) {
            return Err(refused(
                "databases, etcd and ZooKeeper can't be servers of a quorum, because they keep no marker that shows a loss of \
                 locks; use Redis servers",
            ));
        }
        if each
            .iter()
            .enumerate()
            .any(|(index, one)| each.iter().skip(index + 1).any(|other| one.shares(other)))
        {
            let what = "a quorum lists the same server or store twice; list different ones, since databases of one \
                        server fail together";
            return Err(refused(what));
        }
        #[cfg(feature = "redis")]
        {
            let layout =
                |address: &Self| if let Self::Redis(_, layout) = address { Some(*layout) } else { None };
            let layouts: Vec<_> = each.iter().filter_map(layout).collect();
            if layouts.windows(2).any(|two| two.first() != two.last()) {
                let what = "a quorum can't mix `redis+plain` with `redis`: a lock would be of two kinds; use one of them";
                return Err(refused(what));
            }
        }
        let in_memory = each.iter().filter(|address| matches!(address, Self::Memory(_))).count();
        if in_memory > 0 && in_memory < each.len() {
            let what = "a quorum can't mix stores in memory with servers, because their clocks differ; use one or the other";
            return Err(refused(what));
        }
        Ok(Self::Quorum(each))
    }

    /// Whether the two share a store or a server, and so fail together.
    fn shares(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Memory(Some(name)), Self::Memory(Some(other))) => name == other,
            #[cfg(feature = "redis")]
            (Self::Redis(servers, _), Self::Redis(others, _)) => {
                let others = others.places();
                servers.places().iter().any(|place| others.contains(place))
            }
            _ => false,
        }
    }

    /// Whether it is a database, etcd or ZooKeeper.
    fn is_database(&self) -> bool {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(_) | Self::PooledPostgres(_) => true,
            #[cfg(feature = "mysql")]
            Self::MySql(_) => true,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => true,
            #[cfg(feature = "mongodb")]
            Self::MongoDb(_) => true,
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => true,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(_) => true,
            _ => false,
        }
    }

    #[cfg(feature = "redis")]
    fn redis(url: &str) -> Result<Self, ConnectError> {
        Ok(Self::Redis(Box::new(url::servers(url)?), url::layout(url)))
    }

    #[cfg(not(feature = "redis"))]
    fn redis(_: &str) -> Result<Self, ConnectError> {
        let what = "this build has no Redis store; switch on the feature `redis` of lock-runtime, or `tls-rustls` or \
                    `tls-native` for `rediss://`";
        Err(refused(what))
    }

    #[cfg(feature = "postgres")]
    fn postgres(url: &str) -> Result<Self, ConnectError> {
        let (options, is_pooled) = sql::postgres(url)?;
        Ok(if is_pooled { Self::PooledPostgres } else { Self::Postgres }(Box::new(options)))
    }

    #[cfg(not(feature = "postgres"))]
    fn postgres(_: &str) -> Result<Self, ConnectError> {
        Err(refused("this build has no PostgreSQL store; switch on the feature `postgres` of lock-runtime"))
    }

    #[cfg(feature = "mysql")]
    fn mysql(url: &str) -> Result<Self, ConnectError> {
        Ok(Self::MySql(Box::new(sql::mysql(url)?)))
    }

    #[cfg(not(feature = "mysql"))]
    fn mysql(_: &str) -> Result<Self, ConnectError> {
        Err(refused("this build has no MariaDB store; switch on the feature `mysql` of lock-runtime"))
    }

    #[cfg(feature = "sqlite")]
    fn sqlite(url: &str) -> Result<Self, ConnectError> {
        Ok(Self::Sqlite(Box::new(sql::sqlite(url)?)))
    }

    #[cfg(not(feature = "sqlite"))]
    fn sqlite(_: &str) -> Result<Self, ConnectError> {
        Err(refused("this build has no SQLite store; switch on the feature `sqlite` of lock-runtime"))
    }

    #[cfg(feature = "mongodb")]
    fn mongodb(url: &str) -> Result<Self, ConnectError> {
        Ok(Self::MongoDb(mongodb::target(url)?))
    }

    #[cfg(not(feature = "mongodb"))]
    fn mongodb(_: &str) -> Result<Self, ConnectError> {
        Err(refused("this build has no MongoDB store; switch on the feature `mongodb` of lock-runtime"))
    }

    #[cfg(feature = "etcd")]
    fn etcd(url: &str) -> Result<Self, ConnectError> {
        Ok(Self::Etcd(lock_store_etcd::Target::parse(url)?))
    }

    #[cfg(not(feature = "etcd"))]
    fn etcd(_: &str) -> Result<Self, ConnectError> {
        Err(refused("this build has no etcd store; switch on the feature `etcd` of lock-runtime"))
    }

    #[cfg(feature = "zookeeper")]
    fn zookeeper(url: &str) -> Result<Self, ConnectError> {
        Ok(Self::ZooKeeper(lock_store_zookeeper::Target::parse(url)?))
    }

    #[cfg(not(feature = "zookeeper"))]
    fn zookeeper(_: &str) -> Result<Self, ConnectError> {
        Err(refused("this build has no ZooKeeper store; switch on the feature `zookeeper` of lock-runtime"))
    }

    /// Returns the clock that a manager on this store goes by.
    pub(crate) fn clock(&self) -> Clock {
        match self {
            Self::Memory(_) => Clock::tokio(),
            Self::Quorum(each) => each.first().map_or(Clock::Boot, Self::clock),
            #[cfg(any(
                feature = "redis",
                feature = "etcd",
                feature = "mongodb",
                feature = "mysql",
                feature = "postgres",
                feature = "sqlite",
                feature = "zookeeper"
            ))]
            _ => Clock::Boot,
        }
    }

    /// Returns the address of a server of a quorum.
    fn of_quorum(self) -> Self {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(servers, Layout::Plain) => Self::Redis(servers, Layout::PlainByScript),
            other => other,
        }
    }

    /// Makes the store, which connects on first use.
    pub(crate) fn open(
        self,
        settings: &LockManagerBuilder,
        clock: Clock,
        runtime: &Handle,
    ) -> Result<Arc<dyn LockStore>, ConnectError> {
        let (engine, store) = (&settings.engine, &settings.store);
        #[cfg(feature = "redis")]
        if self.is_database() && store.credentials.is_some() {
            return Err(refused(
                "`credentials` is for Redis; other stores take user and password from their URLs",
            ));
        }
        Ok(match self {
            Self::Memory(None) => MemoryStore::new(&store.prefix),
            Self::Memory(Some(name)) => MemoryStore::named(&name, &store.prefix),
            #[cfg(feature = "redis")]
            Self::Redis(servers, layout) => {
                let is_single = matches!(*servers, Servers::One(_));
                if is_single && store.replicas.is_none() && engine.replication.wanted(None).is_none() {
                    return Err(refused(OF_HOW_MANY));
                }
                let options = RedisOptions {
                    prefix: store.prefix.clone(),
                    layout,
                    call_timeout: engine.call_timeout,
                    connect_timeout: store.connect_timeout,
                    subscription_linger: store.subscription_linger,
                    ping_every: PING_EVERY,
                    replicas: store.replicas,
                    strict: store.strict,
                    login: Login::new(engine.owners.uuid(), store.credentials.clone()),
                    clock,
                    runtime: runtime.clone(),
                };
                Arc::new(match *servers {
                    Servers::One(client) => RedisStore::new(&client, options)?,
                    Servers::Sentinel(sentinels) => RedisStore::with_sentinels(&sentinels, options),
                    Servers::Cluster(seeds) => RedisStore::cluster(&seeds, options)?,
                })
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(options) => lock_store_sql::postgres(*options, &sql_settings(settings)),
            #[cfg(feature = "postgres")]
            Self::PooledPostgres(options) => {
                lock_store_sql::pooled_postgres(*options, &sql_settings(settings))
            }
            #[cfg(feature = "mysql")]
            Self::MySql(options) => lock_store_sql::mysql(*options, &sql_settings(settings)),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(options) => lock_store_sql::sqlite(*options, &sql_settings(settings)),
            #[cfg(feature = "mongodb")]
            Self::MongoDb(target) => {
                let (prefix, call_timeout) = (store.prefix.clone(), engine.call_timeout);
                lock_store_mongodb::open(target, &lock_store_mongodb::Settings { prefix, call_timeout })?
            }
            #[cfg(feature = "etcd")]
            Self::Etcd(target) => {
                let (prefix, call_timeout) = (store.prefix.clone(), engine.call_timeout);
                lock_store_etcd::open(target, &lock_store_etcd::Settings { prefix, call_timeout })?
            }
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(target) => {
                let (prefix, call_timeout) = (store.prefix.clone(), engine.call_timeout);
                lock_store_zookeeper::open(target, &lock_store_zookeeper::Settings { prefix, call_timeout })?
            }
            Self::Quorum(each) => {
                if engine.lease > store.max_lease {
                    let (lease, most) = (engine.lease, store.max_lease);
                    return Err(refused(&format!(
                        "the lease of {lease:?} exceeds the maximum lease of this quorum, {most:?}; set a shorter \
                         lease, or set `max_lease` in all programs that use these servers"
                    )));
                }
                let each = each.into_iter().map(|address| address.of_quorum().open(settings, clock, runtime));
                let options = quorum_options(settings, clock, runtime);
                Arc::new(QuorumStore::new(each.collect::<Result<_, _>>()?, options)?)
            }
        })
    }
}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
fn sql_settings(settings: &LockManagerBuilder) -> lock_store_sql::Settings {
    let (prefix, call_timeout) = (settings.store.prefix.clone(), settings.engine.call_timeout);
    lock_store_sql::Settings { prefix, call_timeout }
}

/// Returns the options of a quorum for these settings.
pub(crate) fn quorum_options(settings: &LockManagerBuilder, clock: Clock, runtime: &Handle) -> QuorumOptions {
    let tasks = Tasks::new(runtime.clone());
    #[cfg(feature = "testing")]
    let tasks = tasks.of(settings.engine.process.clone());
    QuorumOptions {
        clock,
        tasks,
        call_timeout: settings.engine.call_timeout,
        connect_timeout: settings.store.connect_timeout,
        max_lease: settings.store.max_lease,
    }
}

fn refused(what: &str) -> ConnectError {
    ConnectError::misconfigured(what)
}
