//! Distributed locks that you put on a function and forget.
//!
//! ```
//! # #[cfg(feature = "macros")] mod example {
//! use lock_runtime::{LockError, LockManager, distributed_lock, set_default};
//!
//! /// At most one call for an order runs at a time, in all processes together.
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
//! | one holder at a time, as fast as possible | [`mutex`](LockManager::mutex), the attribute's default |
//! | one holder at a time, first come first served across processes | [`fair`](LockManager::fair) |
//! | many readers, or one writer | [`read`](LockManager::read) and [`write`](LockManager::write) |
//! | several keys at once, all or nothing | [`multi`](LockManager::multi) |
//! | at most n holders at a time | [`semaphore`](LockManager::semaphore), whose size is set by [`try_set_permits`](Semaphore::try_set_permits) |
//! | to wait until a number of things are done | [`latch`](LockManager::latch) |
//! | a lock for each request of a service | the module `layer` |
//! | a job that every machine starts and only one runs | a mutex with [`no_wait`](Lock::no_wait) and [`min_hold`](Lock::min_hold) |
//! | a hot item, sold many times a second | [`stock`](LockManager::stock), see [`segmented`] |
//!
//! Begin with the mutex. Inside one process it is first come, first served too, and is handed on
//! without a call to the store. Between processes there is no order: the first caller to ask after
//! a release gets the lock. No process is shut out, since each lets others have their turn after a
//! quarter of a second at most. `fair` keeps an order across processes, at the price of a message
//! and a place in the store's queue for every hand-off.
//!
//! Read and write locks pay off where reads are long or many. A short read costs as much as a
//! mutex, and a writer waits until the readers have left. To keep two copies of a periodic job
//! apart, use a mutex with [`no_wait`](Lock::no_wait) and [`min_hold`](Lock::min_hold).
//!
//! In the attribute, the kind is `kind = fair | read | write`, and several keys are
//! `keys = ["a:<from>", "a:<to>"]`. Locks of all kinds have the same builder ([`Lock`]), the same
//! guard ([`LockGuard`]) and the same promises, and every grant has a fencing token.
//!
//! # What is where
//!
//! - [`LockManager`]: a connection to a store (`memory:`, `redis://…`). A program needs one, given
//!   to [`set_default`].
//! - `#[distributed_lock]` (feature `macros`): the attribute. [`Lock`]: the same as method calls,
//!   `locks.mutex("order:42").wait(…).acquire()`.
//! - [`LockManager::health`]: one call for readiness probes.
//! - [`LockGuard`]: a held lock. [`HeldLock`]: a view of one, for bodies. [`FencingToken`]: the
//!   number of the grant.
//! - [`LockError`]: everything that can go wrong with a locked body; `is_busy`, `is_retryable` and
//!   `body_started` say what to do about it.
//! - [`Blocking`]: the same for threads without a tokio runtime.
//! - [`Semaphore`] and [`CountDownLatch`]: permits and counts that processes share.
//! - `layer` (a feature): a tower layer that locks each request, for axum and tonic.
//! - [`segmented`]: a stock in parts that is never oversold, and locks in parts.
//! - [`store`]: the storage trait, for custom backends.
#![cfg_attr(feature = "testing", doc = "- [`testing`]: helpers for the tests of code that uses locks.")]
//!
//! # What a lock is, and is not
//!
//! A lock is a lease, which the watchdog renews for as long as the guard lives. A crash therefore
//! frees the key after at most one lease. A holder that is paused for longer than a lease has lost
//! its lock without knowing. [`LockGuard::is_lost`] tells it so from the local clock alone. A body
//! under the attribute or under [`Lock::with`] is dropped at its next await, but no lock service
//! can stop code between two awaits. Where a late write does harm, pass
//! [`LockGuard::fencing_token`] along with it, and let the resource refuse tokens smaller than the
//! largest it has seen.
//!
//! `docs/book/src/guarantees.md` in the repository lists what is promised, with the tests behind it, and
//! what is not.
//!
//! # Runtime
//!
//! A manager's background tasks run on the tokio runtime on which it was built. That runtime needs
//! `enable_all`, which `#[tokio::main]` switches on. Programs that block their runtime, or have
//! none, use [`LockManagerBuilder::dedicated_thread`]. Any executor may poll the futures of this
//! crate, and guards may be dropped anywhere. A future's time-outs are counted by the tokio runtime
//! in whose context it is first polled, which has to run, with timers. Under another executor, the
//! manager's runtime counts them.
//!
//! A process that forks has to build its managers afterwards. A child that used a manager of its
//! parent would have the same owners at the store, which could not tell the two processes apart.
//!
//! # Metrics
//!
//! With the feature `metrics`, the crate reports through the facade of that name:
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
//! The label `lock` is the name given by [`Lock::name`], or by `name` in the attribute (default:
//! module and function). It is never the key: keys are unbounded. `outcome` is `granted`,
//! `handed_off`, `reentered`, `busy`, `timed_out`, `too_many_waiters`, `unavailable`,
//! `not_replicated`, `shut_down` or `misconfigured`.
//!
//! # Features
//!
//! | feature | default | |
//! |---|---|---|
//! | `macros` | yes | `#[distributed_lock]` |
//! | `redis` | yes | the Redis store |
//! | `layer` | | the tower layer: a lock for each request; `axum` and `tonic` switch it on |
//! | `axum` | | path parameters and extractors as keys, responses made from errors |
//! | `tonic` | | `tonic::Status` from errors |
//! | `tls-rustls`, `tls-native` | | `rediss://`; one of the two |
//! | `sqlite`, `postgres` | | stocks in a database: `segmented::SqlStocks` on a pool of `sqlx` |
//! | `metrics` | | counters and histograms through the `metrics` facade |
//! | `testing` | | helpers for tests: a memory manager, forced loss, a check for leftovers |
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod acquire;
mod blocking;
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
pub use blocking::Blocking;
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
    //! Entry points for the fuzz targets in `fuzz/`. Not public API.

    use crate::ConnectError;
    use crate::connect::address::Address;
    pub use lock_store_redis::fuzzing::{redacted, reply, reply_text};

    /// Reads a lock URL.
    ///
    /// # Errors
    ///
    /// Those of [`connect_lazy`](crate::LockManager::connect_lazy) for a malformed URL.
    pub fn url(text: &str) -> Result<(), ConnectError> {
        Address::parse(text).map(drop)
    }
}

#[doc(hidden)]
pub mod __private {
    //! Items that the expansion of `#[distributed_lock]` names. Not public API.

    pub use crate::body::{OnLost, Run};
    pub use crate::private::*;
    use crate::{IntoLockKey, Lock, LockGuard};
    pub use lock_core::store::Kind;

    /// Returns a lock on the task's or the process's default manager.
    pub fn lock(kind: Kind, key: impl IntoLockKey) -> Lock {
        crate::default::default_lock(kind, key)
    }

    /// Returns a lock on the manager that the user named.
    pub fn lock_on<M: Manager + ?Sized>(manager: &M, kind: Kind, key: impl IntoLockKey) -> Lock {
        manager.manager().of_kind(kind, key)
    }

    /// Returns a lock of several keys on the task's or the process's default manager.
    pub fn multi(keys: Keys) -> Lock {
        crate::default::default_multi(keys)
    }

    /// Returns a lock of several keys on the manager that the user named.
    pub fn multi_on<M: Manager + ?Sized>(manager: &M, keys: Keys) -> Lock {
        manager.manager().multi(keys)
    }

    /// Runs a body under its lock.
    pub fn run<F: Future>(guard: LockGuard, on_lost: OnLost, body: F) -> Run<F> {
        Run::new(guard, on_lost, body)
    }
}

/// The code blocks of the README, the architecture and the guide are documentation tests.
#[cfg(all(doctest, feature = "macros", feature = "testing", feature = "axum", feature = "redis"))]
mod documents {
    macro_rules! pages {
        ($($page:ident = $path:literal),* $(,)?) => {
            $(#[doc = include_str!(concat!("../../", $path))]
            struct $page;)*
        };
    }
    pages! {
        Readme = "README.md",
        Architecture = "docs/architecture.md",
        Attribute = "docs/book/src/attribute.md",
        Errors = "docs/book/src/errors.md",
        GettingStarted = "docs/book/src/getting-started.md",
        Guarantees = "docs/book/src/guarantees.md",
        Guards = "docs/book/src/guards.md",
        HowItWorks = "docs/book/src/how-it-works.md",
        Interop = "docs/book/src/interop.md",
        Kinds = "docs/book/src/kinds.md",
        Layer = "docs/book/src/layer.md",
        Migrating = "docs/book/src/migrating.md",
        Operations = "docs/book/src/operations.md",
        Stock = "docs/book/src/stock.md",
        Stores = "docs/book/src/stores/index.md",
        StoresCluster = "docs/book/src/stores/cluster.md",
        StoresMemory = "docs/book/src/stores/memory.md",
        StoresQuorum = "docs/book/src/stores/quorum.md",
        StoresRedis = "docs/book/src/stores/redis.md",
        StoresSentinel = "docs/book/src/stores/sentinel.md",
        Testing = "docs/book/src/testing.md",
        Topologies = "docs/book/src/topologies.md",
    }
}
