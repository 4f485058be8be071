//! Distributed locks that people put on a function and forget.
//!
//! ```
//! # #[cfg(feature = "macros")] mod example {
//! use lock_runtime::{LockError, LockManager, distributed_lock, set_default};
//!
//! /// In all processes together, at most one call for an order is in here.
//! #[distributed_lock(key = "order:<id>", wait = "5s")]
//! pub async fn ship(id: u64) -> Result<(), LockError> {
//!     println!("shipping order {id}");
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! # pub
//! async fn main() -> Result<(), LockError> {
//!     set_default(LockManager::connect("memory:").await?); // or redis://…
//!     ship(42).await
//! }
//! # }
//! # #[cfg(feature = "macros")] fn main() { example::main().unwrap() }
//! # #[cfg(not(feature = "macros"))] fn main() {}
//! ```
//!
//! # Which lock should I use?
//!
//! | you want | use |
//! |---|---|
//! | one at a time, as fast as can be | [`mutex`](LockManager::mutex), which is the default of the attribute |
//! | one at a time, first come first served across processes | [`fair`](LockManager::fair) |
//! | many that read, one that writes | [`read`](LockManager::read) and [`write`](LockManager::write) |
//! | several keys at once, all or nothing | [`multi`](LockManager::multi) |
//! | at most n at a time | [`semaphore`](LockManager::semaphore), whose size is set by [`try_set_permits`](Semaphore::try_set_permits) |
//! | to wait until so many things are done | [`latch`](LockManager::latch) |
//! | a lock for each request of a service | the module `layer` |
//! | a job that every machine starts and one does | a mutex with [`no_wait`](Lock::no_wait) and [`min_hold`](Lock::min_hold) |
//! | a hot item, sold many times a second | [`stock`](LockManager::stock), see [`segmented`] |
//!
//! Begin with the mutex. Inside one process it is first come first served too, and it hands the
//! lock on without the store. Between processes whoever asks first after a release gets it; nobody
//! is shut out, since a process lets others have their turn after a quarter of a second at most,
//! but there is no order. `fair` has one, for a message and a place in the store's queue for every
//! hand-off.
//!
//! Read and write locks pay where reads are long or many: a short read costs as much as a mutex,
//! and a writer waits until the readers have left. A lock that only keeps two copies of a periodic
//! job apart is a mutex with [`no_wait`](Lock::no_wait) and [`min_hold`](Lock::min_hold).
//!
//! In the attribute the kind is `kind = fair | read | write`, and several keys are
//! `keys = ["a:<from>", "a:<to>"]`. All kinds of locks have the same builder ([`Lock`]), the same
//! guard ([`LockGuard`]) and the same promises, and every grant has a fencing token.
//!
//! # What is where
//!
//! - [`LockManager`]: a connection to a store (`memory:`, `redis://…`). One for the program, given
//!   to [`set_default`].
//! - `#[distributed_lock]` (feature `macros`): the attribute. [`Lock`]: the same in calls,
//!   `locks.mutex("order:42").wait(…).acquire()`.
//! - [`LockManager::health`]: one call for readiness probes.
//! - [`LockGuard`]: a held lock. [`HeldLock`]: a view of one, for bodies. [`FencingToken`]: the
//!   number of the grant.
//! - [`LockError`]: everything that can go wrong with a locked body; `is_busy`, `is_retryable` and
//!   `body_started` say what to do about it.
//! - [`Semaphore`] and [`CountDownLatch`]: what is counted rather than locked.
//! - `layer` (a feature): a tower layer that locks each request, for axum and tonic.
//! - [`segmented`]: a stock in parts that is never oversold, and locks in parts.
//! - [`store`]: the storage trait, for custom backends.
#![cfg_attr(feature = "testing", doc = "- [`testing`]: helpers for the tests of code that uses locks.")]
//!
//! # What a lock is, and is not
//!
//! A lock is a lease. The watchdog renews it for as long as its guard lives, so a crash frees the
//! key after at most one lease, and a holder that is paused for longer than a lease has lost its
//! lock without knowing. [`LockGuard::is_lost`] says so by the local clock, without asking anybody;
//! a body under the attribute or under [`Lock::with`] is dropped at its next await. Code between
//! two awaits can't be stopped by any lock service. Where a late write does harm, pass
//! [`LockGuard::fencing_token`] along with it, and let the resource refuse smaller ones than it has
//! seen.
//!
//! `docs/guarantees.md` in the repository lists what is promised, with the tests behind it, and
//! what is not.
//!
//! # Runtime
//!
//! A manager's tasks live on the tokio runtime on which it was built, which needs `enable_all` (as
//! `#[tokio::main]` has it); see [`LockManagerBuilder::dedicated_thread`] for programs that block
//! theirs or have none. The futures of this crate may be polled by any executor, and guards may be
//! dropped anywhere. Time-outs are counted by the tokio runtime in whose context a future is polled
//! first, which has to run, with timers; under another executor by the manager's.
//!
//! A process that forks has to make its managers afterwards. A child that uses a manager of its
//! parent's has the same names at the store, which takes one for the other.
//!
//! # Metrics
//!
//! With the feature `metrics`, through the facade of that name:
//!
//! | name | kind | labels |
//! |---|---|---|
//! | `lock_acquire_seconds` | histogram | `lock`, `outcome` |
//! | `lock_hold_seconds` | histogram | `lock` |
//! | `lock_lost_total` | counter | |
//! | `lock_handoffs_total` | counter | |
//! | `lock_waiters` | gauge | |
//! | `lock_release_failed_total` | counter | |
//! | `lock_requeued_total` | counter | |
//! | `lock_layer_refused_total` | counter | `lock`, `reason` |
//! | `lock_layer_unlocked_total` | counter | `lock` |
//!
//! The label `lock` is the name given by [`Lock::name`] or `name` in the attribute (by default
//! module and function), never the key: keys are unbounded. `outcome` is `granted`, `handed_off`,
//! `reentered`, `busy`, `timed_out`, `too_many_waiters`, `unavailable`, `not_replicated`,
//! `shut_down` or `misconfigured`.
//!
//! # Features
//!
//! | feature | default | |
//! |---|---|---|
//! | `macros` | yes | `#[distributed_lock]` |
//! | `redis` | yes | the Redis store |
//! | `layer` | | the tower layer: a lock for each request; `axum` and `tonic` switch it on |
//! | `axum` | | path parameters and extractors as keys, answers made of errors |
//! | `tonic` | | `tonic::Status` from errors |
//! | `tls-rustls`, `tls-native` | | `rediss://`; one of the two |
//! | `sqlite`, `postgres` | | stocks in a database: `segmented::SqlStocks` on a pool of `sqlx` |
//! | `metrics` | | counters and histograms through the `metrics` facade |
//! | `testing` | | helpers for tests: a memory manager, forced loss, a look for leftovers |
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod acquire;
mod body;
mod builder;
mod connect;
mod counting;
mod default;
mod error;
mod guard;
mod guarded;
mod kinds;
#[cfg(feature = "layer")]
pub mod layer;
mod list;
mod manager;
mod private;
mod scope;
pub mod segmented;
#[cfg(feature = "testing")]
pub mod testing;

pub use acquire::Acquire;
pub use builder::LockManagerBuilder;
pub use counting::{CountDownLatch, Semaphore, SemaphorePermit};
pub use default::{default_manager, set_default, with_default};
pub use error::{ConnectError, LockError, ShutdownError};
pub use guard::{HeldLock, LockGuard};
pub use kinds::{Lock, MultiKey, Mutex};
pub use list::LockList;
#[doc(inline)]
pub use lock_core::store;
pub use lock_core::store::{Kind, LockStatus};
pub use lock_core::{FencingToken, IntoLockKey, InvalidKey, LockKey, OwnerId, Replication, TokenRetention};
pub use lock_engine::failure::Loss;
#[cfg(feature = "macros")]
pub use lock_macros::distributed_lock;
#[cfg(feature = "redis")]
pub use lock_store_redis::{Credentials, Endpoint};
pub use manager::{Health, LockManager};
pub use scope::in_current_scope;

#[cfg(all(feature = "testing", feature = "redis"))]
#[doc(hidden)]
pub mod fuzzing {
    //! What the fuzz targets in `fuzz/` reach that nobody else has to. Not public API.

    use crate::ConnectError;
    use crate::connect::address::Address;
    pub use lock_store_redis::fuzzing::{redacted, reply, reply_text};

    /// Reads a lock URL.
    ///
    /// # Errors
    ///
    /// Those of [`connect_lazy`](crate::LockManager::connect_lazy) for a URL that can't be one.
    pub fn url(text: &str) -> Result<(), ConnectError> {
        Address::parse(text).map(drop)
    }
}

#[doc(hidden)]
pub mod __private {
    //! What `#[distributed_lock]` expands to. Not public API.

    pub use crate::body::{OnLost, Run};
    pub use crate::private::*;
    use crate::{IntoLockKey, Lock, LockGuard};
    pub use lock_core::store::Kind;

    /// On the task's or the process's default manager.
    pub fn lock(kind: Kind, key: impl IntoLockKey) -> Lock {
        crate::default::default_lock(kind, key)
    }

    /// On the manager that the user named.
    pub fn lock_on<M: Manager + ?Sized>(manager: &M, kind: Kind, key: impl IntoLockKey) -> Lock {
        manager.manager().of_kind(kind, key)
    }

    /// All keys or none, on the task's or the process's default manager.
    pub fn multi(keys: Keys) -> Lock {
        crate::default::default_multi(keys)
    }

    /// All keys or none, on the manager that the user named.
    pub fn multi_on<M: Manager + ?Sized>(manager: &M, keys: Keys) -> Lock {
        manager.manager().multi(keys)
    }

    /// Runs a body under its lock.
    pub fn run<F: Future>(guard: LockGuard, on_lost: OnLost, body: F) -> Run<F> {
        Run::new(guard, on_lost, body)
    }
}

/// The code blocks of the README and of `docs/` are documentation tests.
#[cfg(all(doctest, feature = "macros", feature = "testing"))]
mod documents {
    #[cfg(feature = "axum")]
    #[doc = include_str!("../../README.md")]
    struct Readme;
    #[doc = include_str!("../../docs/architecture.md")]
    struct Architecture;
    #[doc = include_str!("../../docs/errors.md")]
    struct Errors;
    #[doc = include_str!("../../docs/guarantees.md")]
    struct Guarantees;
    #[cfg(feature = "redis")]
    #[doc = include_str!("../../docs/interop.md")]
    struct Interop;
    #[doc = include_str!("../../docs/stock.md")]
    struct Stock;
    #[cfg(feature = "redis")]
    #[doc = include_str!("../../docs/topologies.md")]
    struct Topologies;
}
