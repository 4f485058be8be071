//! [`Sequences`]: locks in stores where a lock is a queue of entries, and an entry ends with the
//! session that made it. Written once for all of them.
//!
//! An entry holds the lock when no entry before it is in its way: none at all, or for a reader, no
//! other entries than readers'. A waiter stays in the queue and watches the last of those entries;
//! when that is gone, it holds the lock or watches the next one. The order is that of the store, so
//! no clock is compared with another.
//!
//! An [`OrderedStore`] enters and deletes entries in atomic steps. This crate has the rest:
//!
//! - `sessions` has the sessions of a manager, and until when each is certain to live.
//! - `entries` knows the manager's own entries, and until when each is wanted. It has no I/O.
//! - `sent` counts the copies of a request that are on their way. `named` keeps names for their
//!   entries.
//! - `locks` is the [`LockStore`](lock_core::store::LockStore). Its steps are in `acquire`,
//!   `several`, `leave`, `renew`, `downgrade` and `look`.
//! - `follow` waits for the entries before an own one, and for the end of holds. `lost` tells the
//!   engine of those, and `sweep` deletes the entries that nobody wants.
//! - `semaphores` is the [`SemaphoreStore`](lock_core::store::SemaphoreStore). A permit is an entry
//!   of another class, with the same steps. It holds if there are fewer before it than the
//!   semaphore has permits. A waiter has no entry, and listens.
//! - `address` reads the URLs of such stores, and `tls` the files with certificates that they name.
//!
//! # Rules
//!
//! The model `spec/Sequenced.tla` shows that each of them is needed.
//!
//! - An entry says who its owner is. A hold counts only if the owner's entry is the first.
//! - A hold is certain until the session's time-out after the *sending* of its last answered
//!   heartbeat. No hold is granted or renewed for longer than that.
//! - A withdrawal deletes the entry and begins a new epoch in one step, and the store refuses
//!   requests of older epochs. A release does the same if a copy of its acquire had no answer.
//! - A predecessor that is gone is a grant only if it was the only one, and no other entry can come
//!   in its place. Otherwise the waiter looks again.
//! - Every entry of a queue counts, whoever made it.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod acquire;
mod address;
mod downgrade;
mod entries;
mod follow;
mod leave;
mod locks;
mod look;
mod lost;
mod named;
mod renew;
mod semaphores;
mod sent;
mod sessions;
mod several;
mod store;
mod sweep;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod tls;

pub use self::address::Address;
pub use self::locks::{ABILITIES, Sequences, Settings};
pub use self::store::{
    Before, Class, Enter, Entered, Entry, Epoch, Gone, Leave, Left, Life, Listed, OrderedStore, Page, Place,
    Session,
};
#[cfg(feature = "tls")]
pub use self::tls::Certificates;
pub use self::tls::Files;
