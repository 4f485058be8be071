//! Support for the integration tests: real servers ([`RedisServer`]; several that belong together: [`Sentinels`],
//! [`Cluster`], [`Quorum`]), also with clocks that are wrong ([`ServerClock`]), a network that breaks ([`Proxy`]), rival
//! processes ([`Helper`]), a [`PostgresServer`], [`chaos`], the checkers for what happens in a run ([`history`]), a checker for what several
//! processes did under one lock ([`overlap`]), a store that counts its calls ([`probe`]), what tests of all kinds of
//! locks share ([`kinds`]), a model of stocks ([`stock_model`]), where they are and who sells from
//! them ([`stocks`]), those in SQL ([`stock_sql`]), what programs die of in the middle of an operation on one ([`stock_steps`]),
//! a long way to a server ([`Distance`]), Redisson's own client ([`java`]), a browser (`browser`), and waiting for
//! conditions ([`eventually`]).
//!
//! Everything that is started here listens on a free port of the loopback interface, works in a folder of its own
//! and is ended through its handle: on drop, and by a [sentinel](process) when the test process dies before that.
//! Nothing here reads `LOCK_URL`.
#![cfg_attr(not(feature = "helpers"), allow(rustdoc::broken_intra_doc_links))]

#[cfg(feature = "browser")]
pub mod browser;
#[cfg(feature = "helpers")]
pub mod chaos;
pub mod clock;
pub mod cluster;
pub mod dice;
#[cfg(feature = "helpers")]
mod distance;
pub mod fenced;
pub mod history;
pub mod java;
#[cfg(feature = "helpers")]
pub mod kinds;
pub mod memory;
pub mod overlap;
pub mod postgres;
#[cfg(feature = "helpers")]
pub mod probe;
pub mod process;
#[cfg(feature = "helpers")]
pub mod proxy;
mod quorum;
pub mod redis;
pub mod sentinels;
mod server_clock;
#[cfg(feature = "helpers")]
pub mod simulation;
#[cfg(feature = "helpers")]
mod site;
pub mod soak;
#[cfg(feature = "helpers")]
pub mod stock_model;
#[cfg(feature = "helpers")]
pub mod stock_sql;
#[cfg(feature = "helpers")]
pub mod stock_steps;
#[cfg(feature = "helpers")]
pub mod stocks;
pub mod stress;
#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
pub mod tls;
mod wait;

pub use cluster::Cluster;
#[cfg(feature = "helpers")]
pub use distance::Distance;
#[cfg(feature = "interop")]
pub use java::Java;
pub use postgres::PostgresServer;
pub use process::Helper;
#[cfg(feature = "helpers")]
pub use proxy::Proxy;
pub use quorum::Quorum;
pub use redis::RedisServer;
pub use sentinels::Sentinels;
pub use server_clock::{Offset, ServerClock};
#[cfg(feature = "helpers")]
pub use site::{Site, validity};
pub use wait::eventually_blocking;
#[cfg(feature = "helpers")]
pub use wait::{eventually, first_poll, poll_once_and_drop};
