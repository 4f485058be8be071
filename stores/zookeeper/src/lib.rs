//! [`ZooKeeperStore`]: locks in ZooKeeper, in the format of Apache Curator's recipes.
//!
//! A lock is a queue of [entries](lock_store_sequences): ephemeral sequential nodes in a directory
//! with the lock's name. `InterProcessMutex` and `InterProcessReadWriteLock` of Curator do the
//! same, so they share locks with this store.
//!
//! A manager has one session. `link` has it, with its heartbeats, and `certain` says until when it
//! is certain to live. `names` has the names of nodes, `queue` the order of those in a directory,
//! and `own` those that this session has made. `steps` is the store; its transactions are in
//! `entering` and `leaving`, and its lists in `looking`. `errors` turns ZooKeeper's errors into the
//! store's.
//!
//! # Rules
//!
//! - A heartbeat is a write, and no `sync`: a leader that was deposed still answers those.
//! - The leader hears of a heartbeat through a follower, a tick later. So a session is certain to
//!   live from the last but two of its heartbeats on. Each is sent a tick after the last answer.
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
mod turn;

pub use lock_store_sequences::Settings;

pub use self::open::{Target, ZooKeeperStore, open};
