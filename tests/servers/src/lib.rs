//! Real servers for tests, on free ports of the loopback interface.
//!
//! Redis runs as a single [`RedisServer`] or as a group: [`Sentinels`], [`Cluster`], [`Quorum`].
//! There are also a [`PostgresServer`], with a [`PgBouncer`] in front of it, and a
//! [`MariaDbServer`]. The following are single servers or groups of three: [`MongoDbServer`] and
//! [`MongoDbSet`], [`EtcdServer`] and [`EtcdCluster`], [`ZooKeeperServer`] and
//! [`ZooKeeperEnsemble`]. Servers can speak TLS (`tls`) and have clocks that can be set
//! ([`ServerClock`]). All of them are [processes](process). A [`Wire`] breaks connections.
//!
//! Programs in other languages are [built](foreign) once.
//!
//! Each works in its own folder and is ended through its handle: on drop, or by a
//! [sentinel](process) if the test process dies before that. Nothing here knows the library under
//! test, so every package can use it.

pub mod cluster;
mod database;
pub mod etcd;
pub mod folders;
pub mod foreign;
pub mod mariadb;
pub mod mongodb;
pub mod pgbouncer;
pub mod postgres;
pub mod process;
mod quorum;
pub mod redis;
pub mod sentinels;
mod server_clock;
#[cfg(feature = "tls")]
pub mod tls;
mod wait;
pub mod wire;
pub mod zookeeper;

pub use cluster::Cluster;
pub use database::{DatabaseServer, Product};
pub use etcd::{EtcdCluster, EtcdServer};
pub use mariadb::MariaDbServer;
pub use mongodb::{MongoDbServer, MongoDbSet};
pub use pgbouncer::PgBouncer;
pub use postgres::PostgresServer;
pub use process::Helper;
pub use quorum::Quorum;
pub use redis::RedisServer;
pub use sentinels::Sentinels;
pub use server_clock::{Offset, ServerClock};
pub use wait::eventually_blocking;
pub use wire::Wire;
pub use zookeeper::{ZooKeeperEnsemble, ZooKeeperServer};
