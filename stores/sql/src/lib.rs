//! [`SqlStore`]: locks, semaphores and latches in PostgreSQL, MariaDB or SQLite.
//!
//! It is a database of [records](lock_store_records): a row for each key, which each step locks,
//! changes and commits. `call` has the transactions, and `swap` the steps that need only one round
//! trip. `statements` has their text in both dialects, `links` the connections. `notices` tells
//! other managers of a step, `station` hears of theirs, and `sweep` removes rows that are over.
//! `commit` commits transactions of the user's under a lock. `stock` has the stocks. `plumbing` is
//! one interface to all databases.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod call;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod commit;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod links;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod notices;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod open;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod options;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod plumbing;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod records;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod row;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod statements;
#[cfg(feature = "postgres")]
mod station;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod stock;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod swap;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod sweep;
#[cfg(all(test, feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod tests;

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use self::commit::{CommitIfHeld, Hold, Uncommitted, commit_if_held, roll_back};
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use self::open::SqlStore;
#[cfg(feature = "mysql")]
pub use self::open::mysql;
#[cfg(feature = "sqlite")]
pub use self::open::sqlite;
#[cfg(feature = "postgres")]
pub use self::open::{pooled_postgres, postgres};
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use lock_store_records::rows::Settings;
