//! Real servers for tests, on free ports of the loopback interface: [`RedisServer`], those that
//! belong together ([`Sentinels`], [`Cluster`], [`Quorum`]), and [`PostgresServer`]; also through
//! TLS (`tls`), with clocks that can be set ([`ServerClock`]); and the [processes](process) that
//! all of them are.
//!
//! Each works in a folder of its own and is ended through its handle: on drop, and by a
//! [sentinel](process) when the test process dies before that. Nothing here knows the library under
//! test, so that every package can use it.

pub mod cluster;
pub mod postgres;
pub mod process;
mod quorum;
pub mod redis;
pub mod sentinels;
mod server_clock;
#[cfg(feature = "tls")]
pub mod tls;
mod wait;

pub use cluster::Cluster;
pub use postgres::PostgresServer;
pub use process::Helper;
pub use quorum::Quorum;
pub use redis::RedisServer;
pub use sentinels::Sentinels;
pub use server_clock::{Offset, ServerClock};
pub use wait::eventually_blocking;
