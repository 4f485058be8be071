//! [`ZooKeeperStore`]: locks in ZooKeeper, in the format of Apache Curator's recipes.
//!
//! A lock is a queue of [entries](lock_store_sequences): ephemeral sequential nodes in a directory
//! with the lock's name. `InterProcessMutex` and `InterProcessReadWriteLock` of Curator do the
//! same, so they share locks with this store. Semaphores are those of `InterProcessSemaphoreV2`.
//!
//! A manager has one session. `link` has it, with its heartbeats, and `certain` says until when it
//! is certain to live. `names` has the names of nodes, `queue` the order of those in a directory,
//! and `own` those that this session has made. `steps` is the store; its transactions are in
//! `entering` and `leaving`, and its lists in `looking`. `permits` knows how many permits a
//! semaphore has, and `turn` is a place among those who wait for them. `watched` counts what the
//! client watches. `errors` turns ZooKeeper's errors into the store's.
//!
//! # Rules
//!
//! - A heartbeat is a write, and no `sync`: a leader that was deposed still answers those.
//! - The leader hears of a heartbeat through a follower, a tick later. So a session is certain to
//!   live from the last but two of its heartbeats on. Each is sent a tick after the last answer.
//! - A permit is held if those before it, by their numbers, are fewer than the semaphore has. A
//!   client of Curator holds one if all are no more than that. So the last of the holders has seen
//!   all others, whoever they are: they are never too many.
//! - A request for permits looks first, makes all of its nodes in one step, and looks again. If one
//!   of them is too many, it deletes all and begins anew. Of two that do so at once, the first has
//!   what it wants. A client of Curator that sees too many meanwhile waits for the next change.
//! - A try does not take the mutex of Curator's clients, which would cost two more writes. The
//!   first of them has a node among the permits, so nobody overtakes it. Those who wait enter that
//!   mutex, or Curator's next client would always be first.
//! - A withdrawal first writes the epoch of its session, and then lists the directory.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod certain;
mod entering;
mod errors;
mod leaving;
mod link;
mod looking;
mod names;
mod open;
mod own;
mod permits;
mod queue;
mod steps;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod turn;
mod watched;

pub use lock_store_sequences::Settings;

pub use self::open::{Target, ZooKeeperStore, open};
