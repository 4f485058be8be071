//! [`EtcdStore`]: locks in etcd, in the format of etcd's own clients.
//!
//! A lock is a queue of [entries](lock_store_sequences): keys under its name that end with a lease.
//! The entry with the smallest create revision holds the lock. `etcdctl lock` and the package
//! `concurrency` of etcd's Go client do the same, so they share locks with this store.
//!
//! `client` has the connections and calls, with `messages`. `watches` is one stream for all
//! watches. `names` has the names of keys, and `numbers` the numbers in them. `ranges` reads keys,
//! `leaving` has those that are deleted, and `steps` the transactions.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod client;
mod leaving;
mod messages;
mod names;
mod numbers;
mod open;
mod ranges;
mod steps;
#[cfg(test)]
mod tests;
mod tls;
mod watches;

pub use lock_store_sequences::Settings;

pub use self::open::{EtcdStore, Target, open};
