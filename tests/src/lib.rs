//! Support for the integration tests: the [servers](lock_test_servers), a network that breaks ([`Proxy`]), [`chaos`], the checkers for what happens in a run ([`history`]), a checker for what several
//! processes did under one lock ([`overlap`]), a store that counts its calls ([`probe`]), what tests of all kinds of
//! locks share ([`kinds`]), a model of stocks ([`stock_model`]), where they are and who sells from
//! them ([`stocks`]), those in SQL ([`stock_sql`]), what programs die of in the middle of an operation on one ([`stock_steps`]),
//! a long way to a server ([`Distance`]), Redisson's own client ([`java`]), a browser (`browser`), and waiting for
//! conditions ([`eventually`]).
//!
//! Nothing here reads `LOCK_URL`.
#![cfg_attr(not(feature = "helpers"), allow(rustdoc::broken_intra_doc_links))]

#[cfg(feature = "browser")]
pub mod browser;
#[cfg(feature = "helpers")]
pub mod chaos;
pub mod clock;
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

#[cfg(feature = "helpers")]
pub use distance::Distance;
#[cfg(feature = "interop")]
pub use java::Java;
pub use lock_test_servers::{
    Cluster, Helper, Offset, PostgresServer, Quorum, RedisServer, Sentinels, ServerClock, cluster,
    eventually_blocking, postgres, process, redis, sentinels,
};
#[cfg(feature = "helpers")]
pub use proxy::Proxy;
#[cfg(feature = "helpers")]
pub use site::{Site, validity};
#[cfg(feature = "helpers")]
pub use wait::{eventually, first_poll, poll_once_and_drop};
