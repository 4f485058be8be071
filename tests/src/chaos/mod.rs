//! Chaos: rival processes compete for a few keys while servers, network and processes fail in every
//! known way, one after the other. Every history is checked.
//!
//! The program `chaos` of this package is the parent ([`run`]) and its workers ([`work`]). The
//! parent starts the servers of a [`Topology`], each behind a [proxy](crate::proxy) and with a
//! [clock](crate::ServerClock) that it can set. SQLite has no server: its workers share a file. The
//! parent injects [faults](Fault) that follow from a seed. Workers take locks of all kinds, and
//! write with their tokens to a set in a separate store. An observer looks at the keys from
//! outside. All of them write [histories](crate::history), which are checked in the end.
//!
//! A worker can be [broken](Broken) on purpose, which shows that the checkers notice.

mod arena;
mod database;
mod etcd;
mod fault;
mod inject;
mod mongo;
mod observe;
mod orders;
mod peers;
mod plan;
mod report;
mod run;
mod schedule;
mod short;
mod sql;
mod want;
mod worker;
mod zookeeper;

pub use arena::Topology;
pub use etcd::etcd_with_peers;
pub use fault::Fault;
pub use orders::{Broken, Confirmed, Orders};
pub use peers::Peers;
pub use plan::Plan;
pub use report::{Losses, Outcome, Row, markdown};
pub use run::{judge, run};
pub use schedule::schedule;
pub use worker::work;

use std::time::Duration;

/// Lease of renewed locks.
pub(crate) const LEASE: Duration = Duration::from_millis(2400);
/// Maximum lease on the servers of a quorum: a server that lost its data has no vote for this long.
const MAX_LEASE: Duration = Duration::from_secs(6);
/// Time-out of one call to a store.
const CALL_TIMEOUT: Duration = Duration::from_millis(1000);
/// Maximum pause of a waiter that hears nothing.
const FALLBACK: Duration = Duration::from_millis(1000);
/// Wait of patient requests while clocks agree.
const PATIENCE: Duration = Duration::from_secs(60);
