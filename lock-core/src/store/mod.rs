//! The store: where locks are kept, behind one small object-safe trait.
//!
//! A store executes single atomic steps and answers. It never waits for a lock and never renews on
//! its own initiative: that is the engine's work. The queue of a fair lock is data that calls read
//! and change. Methods take owned requests and return boxed `'static` futures, so that a call can
//! outlive its caller. The engine never drops a call that changes something: it hands it to its
//! reaper.
//!
//! # Rules for every implementation
//!
//! - A call does nothing before its future is first polled, and resolves by itself within about the
//!   request's time-out, with [`StoreErrorKind::Unanswered`] when it cannot know whether the step
//!   was executed.
//! - The first poll may be inside the poll of the caller who wants the lock, and so wherever that
//!   is. A store wakes its calls after it has given its own mutexes back: to wake a call may be to
//!   drop it, when its runtime has ended.
//! - A `watch` may be left unpolled while other calls are made, and may be dropped before it ends.
//!   It must hold nothing that another call needs, and soon after the drop nothing may be left of
//!   it.
//! - `acquire` sets the hold count to 1 and treats "already mine" as this very grant (the call was
//!   re-sent), with new tokens. It only lengthens a lease.
//! - `keep` only lengthens. `release` and `withdraw` touch nothing that another owner holds.
//! - A call that was answered is not executed again; one that was not may be executed at any later
//!   time. A second `withdraw` would undo what the same request is granted next.
//! - An owner that has a key for writing may have it for reading since a
//!   [`downgrade`](LockStore::downgrade) whose answer was lost: `release`, `keep` and `withdraw` of
//!   items of the kinds [`Kind::Write`] and [`Kind::Read`] go by what the owner has. Of an owner
//!   that has both, nothing is promised but that releasing each gives back all.
//! - Keys that are asked for in different kinds exclude each other whole: a key held as a mutex is
//!   busy for readers. Who waits for a key that is held in another kind may not hear of its
//!   release, and looks again in time.
//! - Every step that takes something (`acquire`) is refused by the store itself when it arrives
//!   later than [`AcquireRequest::timeout`] after it was sent; see [`AcquireRequest::stamp`]. A
//!   `withdraw` [seals](AcquireRequest::seal) what was not sent yet.
//! - Time-to-live and tokens go by the store's clock, never by a client's wall clock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::key::LockKey;

mod answer;
mod error;
mod few;
mod latch;
mod latest;
mod mark;
mod request;
pub(crate) mod semaphore;
pub(crate) mod server_clock;
mod status;
pub mod stock;
mod time;
mod watch;

pub use answer::{Acquired, BoxFuture, Busy, Granted, Kept, Released, TokenRange, Withdrawn};
pub use error::{StoreError, StoreErrorKind};
pub use few::Few;
pub use latch::{CountDownRequest, LatchStore};
pub use mark::{Mark, MarkRequest, Marked};
pub use request::{
    AcquireRequest, DIRECT_LEASE, FAR_LIFE, INTENT_LIFE, Item, KeepItem, KeepRequest, Kind, LONGEST_WAIT,
    ListenerPolicy, MAX_TOKENS, ReleaseRequest, Standing, Takeover, WAITER_LIFE,
};
pub use semaphore::{
    MAX_PERMITS, PermitCounts, PermitId, Permits, PermitsAcquired, PermitsBusy, PermitsChange, PermitsHold,
    PermitsKeep, PermitsRelease, PermitsRequest, SemaphoreStore,
};
pub use status::{LockStatus, ScanRequest, Scanned};
pub use time::ServerTime;
pub use watch::{Notice, Watch};

/// Where locks are kept. See the [module](self) for the rules.
pub trait LockStore: Send + Sync + fmt::Debug + 'static {
    /// Takes every item of the request or none.
    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>>;

    /// Gives the items back and wakes whoever waits for them.
    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>>;

    /// Renews each item on its own; the answers are in the order of the request. An `Err` is about
    /// all of them.
    fn keep(&self, request: Arc<KeepRequest>) -> BoxFuture<Result<Vec<Kept>, StoreError>>;

    /// Turns holds of [`Kind::Write`] into holds of [`Kind::Read`] of the same owners, each on its
    /// own, renews them, and wakes the readers that wait. Holds that are that already are only
    /// renewed.
    fn downgrade(&self, request: Arc<KeepRequest>) -> BoxFuture<Result<Vec<Kept>, StoreError>>;

    /// Undoes an acquire whose outcome is unknown, or that has queued and is not wanted any more:
    /// what it holds is released, its place in a queue is given up, its intent ends.
    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>>;

    /// Delivers notices about the request's keys from now on: releases, and for [`Kind::Fair`] only
    /// what concerns the item's owner. An `Err` or an unconfirmed watch means that the caller has
    /// to poll; it is never a reason to fail.
    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>>;

    /// What the store knows about `key`.
    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>>;

    /// Frees `key` whoever holds it, in whatever kind, and wakes whoever waits; `false` when it was
    /// free. The fencing counter and the queue of a fair lock stay.
    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>>;

    /// The next page of the locks whose keys begin with a prefix. Touches nothing, and holds nobody
    /// up for long.
    fn scan(&self, request: ScanRequest) -> BoxFuture<Result<Scanned, StoreError>>;

    /// Looks at the store's marker, or makes it: see [`MarkRequest`]. A store without one can't be
    /// part of a quorum.
    fn mark(&self, request: MarkRequest) -> BoxFuture<Result<Marked, StoreError>> {
        let _ = request;
        let message = format!("{self:?} keeps no marker, so it can't be part of a quorum");
        Box::pin(async { Err(StoreError::new(StoreErrorKind::Unsupported, message)) })
    }

    /// The longest lease that can be asked for; `None` for any.
    fn longest_lease(&self) -> Option<Duration> {
        None
    }

    /// Whether waiters may be kept as [`Standing::Far`].
    fn keeps_far_waiters(&self) -> bool {
        false
    }

    /// Which server has `key`, as a number that means nothing else: keys with the same one share
    /// its fate. 0 when it is not known, and for all keys of a store that is up or down as a whole.
    fn place(&self, key: &LockKey) -> u64 {
        let _ = key;
        0
    }

    /// Checks that the store can be used, for `LockManager::connect`.
    fn check(&self) -> BoxFuture<Result<(), StoreError>>;

    /// The store's semaphores; `None` when it has none.
    fn semaphores(&self) -> Option<Arc<dyn SemaphoreStore>> {
        None
    }

    /// The store's stocks; `None` when it has none.
    fn stocks(&self) -> Option<Arc<dyn stock::StockStore>> {
        None
    }

    /// The store's latches; `None` when it has none.
    fn latches(&self) -> Option<Arc<dyn LatchStore>> {
        None
    }
}
