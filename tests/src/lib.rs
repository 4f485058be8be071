//! Support for the integration tests. The servers are in [`lock_test_servers`].
//!
//! - Deliberate trouble: a network that breaks ([`Proxy`]), a distant server ([`Distance`]), and
//!   [`chaos`].
//! - Rivals: helper programs, Redisson's own client ([`java`]), the clients of other languages that
//!   share the plain layout ([`plain`]), etcd's client ([`concurrency`]), and [`curator`].
//! - Processes that work as fast as they can ([`hammers`]).
//! - Checkers of the events of a run ([`history`]), of sections under one lock ([`overlap`]), and
//!   of the calls to a store ([`probe`]).
//! - Helpers for all kinds of locks ([`kinds`]), and for both layouts at a server ([`Layout`]).
//! - Locks in databases ([`database_locks`]), on servers of any product ([`database_server`]) that
//!   fail ([`mod@database_faults`]) or whose clocks are set ([`database_clocks`]).
//! - Locks in SQL ([`sql_server`]), whose rows are locked ([`sql_rows`]), and transactions under
//!   them ([`sql_commit`]).
//! - Stocks: a model ([`stock_model`]), their places and sellers ([`stocks`]), databases
//!   ([`stock_sql`]), and programs that die within an operation ([`stock_steps`]).
//! - A browser (`browser`), and waiting for conditions ([`eventually`]).
//!
//! Nothing here reads `LOCK_URL`.
#![cfg_attr(not(feature = "helpers"), allow(rustdoc::broken_intra_doc_links))]

mod background;
#[cfg(feature = "browser")]
pub mod browser;
pub mod callers;
#[cfg(feature = "helpers")]
pub mod chaos;
pub mod clock;
pub mod concurrency;
pub mod curator;
#[cfg(feature = "helpers")]
pub mod database_clocks;
#[cfg(feature = "helpers")]
pub mod database_faults;
#[cfg(feature = "helpers")]
pub mod database_locks;
#[cfg(feature = "helpers")]
pub mod database_server;
pub mod dice;
#[cfg(feature = "helpers")]
mod distance;
pub mod fenced;
pub mod hammers;
pub mod history;
pub mod java;
#[cfg(feature = "helpers")]
pub mod kinds;
mod layout;
pub mod memory;
pub mod overlap;
pub mod plain;
#[cfg(feature = "helpers")]
pub mod probe;
#[cfg(feature = "helpers")]
pub mod proxy;
#[cfg(feature = "helpers")]
pub mod simulation;
#[cfg(feature = "helpers")]
mod site;
pub mod soak;
#[cfg(feature = "helpers")]
pub mod sql_commit;
#[cfg(feature = "helpers")]
pub mod sql_rows;
#[cfg(feature = "helpers")]
pub mod sql_server;
#[cfg(feature = "helpers")]
pub mod stock_model;
#[cfg(feature = "helpers")]
pub mod stock_sql;
#[cfg(feature = "helpers")]
pub mod stock_steps;
#[cfg(feature = "helpers")]
pub mod stocks;
pub mod stress;
#[cfg(feature = "helpers")]
mod wait;
mod witness;

#[cfg(feature = "helpers")]
pub use distance::Distance;
#[cfg(feature = "interop")]
pub use java::Java;
pub use layout::Layout;
pub use lock_test_servers::{
    Cluster, DatabaseServer, EtcdCluster, EtcdServer, Helper, MariaDbServer, MongoDbServer, MongoDbSet,
    Offset, PgBouncer, PostgresServer, Product, Quorum, RedisServer, Sentinels, ServerClock, Wire,
    ZooKeeperEnsemble, ZooKeeperServer, cluster, etcd, eventually_blocking, mariadb, mongodb, pgbouncer,
    postgres, process, redis, sentinels, wire, zookeeper,
};
#[cfg(feature = "helpers")]
pub use proxy::Proxy;
#[cfg(feature = "helpers")]
pub use site::{Site, validity};
#[cfg(feature = "helpers")]
pub use wait::{eventually, first_poll, poll_once_and_drop};
