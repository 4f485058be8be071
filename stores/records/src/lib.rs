//! [`Records`]: locks, semaphores and latches as records of a database, written once for all of
//! them.
//!
//! A [`RecordStore`] keeps one [`Record`] for each name, and changes records in atomic steps. This
//! crate has the steps: kinds, queues, readers and writers, intents, several keys, permits,
//! counts, leases, lingering and withdrawals. They have no clock, no mutex and no I/O: a step gets
//! the records and the time, and says who has to hear of it.
//!
//! All times are those of the database, as [`ServerTime`](lock_core::store::ServerTime).
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod latch;
mod latches;
mod listeners;
mod lock;
mod locks;
mod queue;
mod read_write;
mod record;
#[cfg(feature = "text")]
pub mod rows;
mod semaphore;
mod semaphores;
mod step;
#[cfg(feature = "text")]
pub mod stock;
mod store;
#[cfg(feature = "text")]
mod text;

pub use self::latch::Latch;
pub use self::listeners::{Bell, Event, HandleId, Heard, Listeners, What};
pub use self::lock::Lock;
pub use self::locks::Records;
pub use self::queue::ListenerId;
pub use self::record::{Class, Name, Record};
pub use self::semaphore::Semaphore;
pub use self::store::{Access, Change, Changed, Page, RecordStore, Work};
#[cfg(feature = "text")]
pub use self::text::{Row, Unreadable};

#[doc(hidden)]
pub use self::step::{Look, in_time, look};
