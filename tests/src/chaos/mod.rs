//! Chaos: rival processes fight for a few keys while servers, network and processes fail in all the
//! ways that are known, one after the other, and every history is checked.
//!
//! The program `chaos` of this package is the parent ([`run`]) and its workers ([`work`]). The
//! parent starts the servers of a [`Topology`], each behind a [proxy](crate::proxy) and with a
//! [clock](crate::ServerClock) that it can set, and injects [faults](Fault) that follow from a
//! seed. Workers take locks of all kinds and write with their tokens to a set in a store of its
//! own. All of them, and an observer that looks at the keys from the side, write
//! [histories](crate::history), which are checked in the end.
//!
//! A worker can be told to be [broken](Broken) in a certain way, which shows that the checkers
//! notice.

mod arena;
mod background;
mod fault;
mod inject;
mod observe;
mod orders;
mod plan;
mod report;
mod run;
mod schedule;
mod want;
mod witness;
mod worker;

pub use arena::Topology;
pub use fault::Fault;
pub use orders::{Broken, Confirmed, Orders};
pub use plan::Plan;
pub use report::{Losses, Outcome, Row, markdown};
pub use run::{judge, run};
pub use schedule::schedule;
pub use worker::work;

use std::time::Duration;

/// Of renewed locks.
pub(crate) const LEASE: Duration = Duration::from_millis(2400);
/// The longest on the servers of a quorum: for so long one that lost its data has no vote.
const MAX_LEASE: Duration = Duration::from_secs(6);
/// Of one call to a store.
const CALL_TIMEOUT: Duration = Duration::from_millis(1000);
/// The longest pause of a waiter that hears nothing.
const FALLBACK: Duration = Duration::from_millis(1000);
/// How long requests wait that never give up, while clocks agree.
const PATIENCE: Duration = Duration::from_secs(60);
