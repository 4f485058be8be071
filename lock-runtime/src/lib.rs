//! Distributed locks for async Rust: one caller at a time for each key, in all processes together.
//!
//! ```
//! # #[cfg(feature = "macros")] mod example {
//! use std::time::Duration;
//!
//! use lock_runtime::{LockError, LockManager, distributed_lock, set_default};
//!
//! #[distributed_lock(key = "order:<id>", wait = "5s")]
//! async fn ship(id: u64, clerk: &str) -> Result<(), LockError> {
//!     println!("{clerk} begins with order {id}");
//!     tokio::time::sleep(Duration::from_millis(100)).await;
//!     println!("{clerk} has shipped order {id}");
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! # pub
//! async fn main() -> Result<(), LockError> {
//!     // With `redis://127.0.0.1:6379`, all processes share the locks.
//!     set_default(LockManager::connect("memory:").await?);
//!     // Bob begins when Ann is done.
//!     tokio::try_join!(ship(42, "Ann"), ship(42, "Bob"))?;
//!     Ok(())
//! }
//! # }
//! # #[cfg(feature = "macros")] fn main() { example::main().unwrap() }
//! # #[cfg(not(feature = "macros"))] fn main() {}
//! ```
//!
//! The guide explains all of this step by step, with recipes and operations: it is `docs/book` in
//! the repository, and `cargo xtask book` builds it.
//!
//! Without the attribute, a lock is a request that you await. It returns a guard:
//!
//! ```
//! # use std::time::Duration;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_runtime::LockError> {
//! # let locks = lock_runtime::LockManager::connect("memory:").await?;
//! let guard = locks.mutex("order:42").wait(Duration::from_secs(5)).acquire().await?;
//! println!("shipping with token {}", guard.fencing_token());
//! guard.release().await?; // or drop it, which does not wait for the store
//! # Ok(()) }
//! ```
//!
//! In a service, a layer locks each request with its own key:
//!
//! ```
//! # #[cfg(feature = "axum")] mod example {
//! use axum::{Router, routing::post};
//! use lock_runtime::layer::{LockLayer, path_param};
//! use lock_runtime::{HeldLock, LockManager};
//!
//! async fn ship(held: HeldLock) -> String {
//!     format!("shipped with token {}", held.fencing_token())
//! }
//!
//! /// Requests for one order wait for each other, whichever instance they reach.
//! pub fn app(locks: LockManager) -> Router {
//!     let per_order = LockLayer::new(locks, path_param("id").prefix("order:").parsed::<u64>());
//!     Router::new().route("/orders/{id}/ship", post(ship)).route_layer(per_order)
//! }
//! # }
//! # fn main() {}
//! ```
//!
//! # Which lock should I use?
//!
//! | you want | use |
//! |---|---|
//! | one holder at a time | [`mutex`](LockManager::mutex), the attribute's default |
//! | one holder at a time, first come, first served across processes | [`fair`](LockManager::fair) |
//! | many readers, or one writer | [`read`](LockManager::read) and [`write`](LockManager::write) |
//! | several keys at once, all or none | [`multi`](LockManager::multi) |
//! | at most n holders at a time | [`semaphore`](LockManager::semaphore), whose size is set by [`try_set_permits`](Semaphore::try_set_permits) |
//! | to wait until a number of things are done | [`latch`](LockManager::latch) |
//! | a lock for each request of a service | [`layer`] |
//! | a job that every machine starts and only one runs | a mutex with [`no_wait`](Lock::no_wait) and [`min_hold`](Lock::min_hold) |
//! | a hot item, sold many times a second | [`stock`](LockManager::stock) |
//! | a hot item with work for each sale | [`segmented`](LockManager::segmented) |
//!
//! Begin with the mutex. In the attribute, the kind is `kind = fair | read | write`, and several
//! keys are `keys = ["a:<from>", "a:<to>"]`. Locks of all kinds have the same builder ([`Lock`]),
//! the same guard ([`LockGuard`]) and the same promises, and every grant has a fencing token.
//! Semaphores and latches have no tokens, and only the settings on their own pages.
//!
//! # What is where
//!
//! | | |
//! |---|---|
//! | [`LockManager`], [`LockManagerBuilder`] | a connection to a store, and its settings |
//! | [`distributed_lock`], [`set_default`], [`with_default`] | the attribute, and the manager that it uses |
//! | [`Lock`], [`MultiKey`] | a lock to be taken: its wait, its lease, its limits |
//! | [`LockGuard`], [`HeldLock`], [`FencingToken`] | a held lock, a view of one, the number of the grant |
//! | [`LockError`] | all errors of locks; `is_busy`, `is_retryable` and `body_started` say what to do |
//! | [`Semaphore`], [`CountDownLatch`] | permits and counts that processes share |
//! | [`layer`] | a tower layer that locks each request, for axum, tonic and hyper |
//! | [`segmented`] | hot items: a stock that is never oversold, and locks in parts |
//! | [`Blocking`] | locks for threads without a tokio runtime |
//! | [`health`](LockManager::health), [`status`](LockManager::status), [`list`](LockManager::list), [`force_release`](LockManager::force_release), [`shutdown`](LockManager::shutdown) | for operators |
//! | [`testing`] | helpers for the tests of code that uses locks |
//!
//! A manager needs a tokio runtime, or its own thread: see *Runtime* at [`LockManager`]. To keep
//! locks in a store of your own, implement the trait `LockStore` of the crate `lock-core`, in the
//! same version, and give it to [`connect_store`](LockManagerBuilder::connect_store).
//!
//! # What a lock is, and is not
//!
//! A lock is a lease, which is renewed for as long as the guard lives. After a crash, the key is
//! therefore free again when the lease is over. A holder that was paused for longer than a lease
//! has lost its lock: [`LockGuard::is_lost`] says so, from the local clock alone.
//!
//! A body under the attribute or under [`Lock::with`] is dropped at the await where it is suspended
//! when its lock is lost. No lock service can stop code between two awaits. Where a late write does
//! harm, pass the [`fencing_token`](LockGuard::fencing_token) along with it. Let the resource
//! refuse tokens smaller than the largest that it has seen.
//!
//! The page `docs/book/src/guarantees.md` of the guide lists every promise, with its tests and its
//! limits.
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
//! | `macros` | yes | the attribute `#[distributed_lock]` |
//! | `redis` | yes | the Redis store |
//! | `layer` | | the tower layer: a lock for each request; `axum` and `tonic` switch it on |
//! | `axum` | | path parameters and extractors as keys, responses made from errors |
//! | `tonic` | | `tonic::Status` from errors |
//! | `tls-rustls`, `tls-native` | | `rediss://`; one of the two |
//! | `sqlite`, `postgres` | | locks and stocks at `sqlite:` and `postgres://` |
//! | `mysql` | | the same at `mysql://`, in MariaDB |
//! | `mongodb` | | the same at `mongodb://` |
//! | `etcd` | | locks at `etcd://` |
//! | `zookeeper` | | locks at `zookeeper://` |
//! | `metrics` | | counters and histograms through the `metrics` facade |
//! | `testing` | | helpers for tests: a memory manager, forced loss, a check for leftovers |
//!
#![cfg_attr(not(feature = "macros"), doc = "[`distributed_lock`]: #features")]
#![cfg_attr(not(feature = "layer"), doc = "[`layer`]: #features")]
#![cfg_attr(not(feature = "testing"), doc = "[`testing`]: #features")]
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
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod commit;
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
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use commit::CommitError;
pub use counting::{CountDownLatch, Semaphore, SemaphorePermit};
pub use default::{default_manager, set_default, with_default};
pub use error::{ConnectError, LockError, ShutdownError};
pub use guard::{HeldLock, LockGuard};
pub use kinds::{Lock, MultiKey};
pub use list::LockList;
pub use lock_core::store::{Kind, LockStatus, PermitId, StoreError, StoreErrorKind};
pub use lock_core::{FencingToken, IntoLockKey, InvalidKey, LockKey, OwnerId, Replication, TokenRetention};
pub use lock_engine::failure::Loss;
#[cfg(feature = "macros")]
pub use lock_macros::distributed_lock;
#[cfg(feature = "redis")]
pub use lock_store_redis::{Credentials, Endpoint};
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use lock_store_sql::CommitIfHeld;
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
#[cfg(all(
    doctest,
    feature = "macros",
    feature = "testing",
    feature = "axum",
    feature = "redis",
    feature = "mongodb",
    feature = "mysql",
    feature = "postgres"
))]
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
        StoresEtcd = "docs/book/src/stores/etcd.md",
        StoresMariaDb = "docs/book/src/stores/mariadb.md",
        StoresMongoDb = "docs/book/src/stores/mongodb.md",
        StoresMemory = "docs/book/src/stores/memory.md",
        StoresPlain = "docs/book/src/stores/plain.md",
        StoresPostgres = "docs/book/src/stores/postgres.md",
        StoresQuorum = "docs/book/src/stores/quorum.md",
        StoresRedis = "docs/book/src/stores/redis.md",
        StoresSentinel = "docs/book/src/stores/sentinel.md",
        StoresSqlite = "docs/book/src/stores/sqlite.md",
        StoresZooKeeper = "docs/book/src/stores/zookeeper.md",
        Testing = "docs/book/src/testing.md",
        WriteAStore = "docs/book/src/write-a-store.md",
    }
}
