//! [`MongoStore`]: locks, semaphores, latches and stocks in MongoDB.
//!
//! It is a database of [records](lock_store_records): a document for each key. `call` makes a step:
//! on one document by compare and swap, on several in a transaction. `documents` has the commands.
//! `server` is the connection, and `classify` reads its errors. `station` hears of the steps of
//! other managers by a change stream. `stock` has the stocks.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod call;
mod classify;
mod documents;
mod open;
mod records;
mod server;
mod station;
mod stock;
#[cfg(test)]
mod tests;

pub use lock_store_records::rows::Settings;

pub use self::open::{MongoStore, open};
pub use self::server::Target;
