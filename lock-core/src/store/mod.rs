//! The contract of a store, where locks are kept: one small object-safe trait.
//!
//! A store executes single atomic steps and answers. It never waits for a lock and never renews one
//! on its own initiative: that is the engine's work. The queue of a fair lock is data that calls
//! read and change.
//!
//! Methods take owned requests and return boxed `'static` futures, so that a call can outlive its
//! caller. The engine never drops a call that changes something: it hands the call to its reaper.
//!
//! # Rules for every implementation
//!
//! - A call does nothing before its future is first polled, and resolves by itself within about the
//!   request's time-out. It resolves to [`StoreErrorKind::Unanswered`] when it cannot know whether
//!   the step was executed. See [`kit::bounded`].
//! - Every poll happens inside the manager's tokio runtime, so timers, sockets and `tokio::spawn`
//!   work. Only a [stock](stock::StockStore) is polled by its callers, in any runtime. The first
//!   poll may happen inside the poll of the caller that wants the lock, in any task or thread. A
//!   store releases its own mutexes before it wakes a call, because waking a call may drop it when
//!   its runtime has ended.
//! - The store does what its [`Abilities`] claim, and refuses the rest as
//!   [`StoreErrorKind::Unsupported`] without a trace.
//! - A `watch` may be left unpolled while other calls are made, and may be dropped before it
//!   resolves. It must hold nothing that another call needs. Soon after the drop, nothing of it may
//!   be left.
//! - `acquire` sets the hold count to 1. When the owner already holds the key, the request was
//!   re-sent: it counts as the same grant and gets new tokens. It only lengthens a lease.
//! - `renew` only lengthens. `release` and `withdraw` touch nothing that another owner holds.
//! - A call that was answered is not executed again; a call that was not answered may be executed
//!   at any later time. A second `withdraw` would undo the next grant of the same request.
//! - A [`downgrade`](LockStore::downgrade) whose answer was lost may have turned a hold for writing
//!   into one for reading. For items of the kinds [`Kind::Write`] and [`Kind::Read`], `release`,
//!   `renew` and `withdraw` therefore go by what the owner has. For an owner that has both, the
//!   only promise is that releasing each item gives back everything.
//! - Different kinds of the same key exclude each other completely: a key held as a mutex is busy
//!   for readers. A waiter for a key that is held in another kind may not hear of its release, and
//!   looks again in time.
//! - Every step that takes something (`acquire`) is refused by the store itself when it arrives
//!   later than [`AcquireRequest::timeout`] after it was sent; see [`AcquireRequest::stamp`]. A
//!   `withdraw` [seals](AcquireRequest::seal) a request that was not sent yet. Stores with another
//!   rule name it in [`Abilities::late_requests`].
//! - Time to live and tokens go by the store, never by a client's wall clock.
//! - An error of one item of a [`renew`](LockStore::renew) (rights, foreign data, a server that is
//!   down) never costs another: that item is [`Renewed::Unknown`] or [`Renewed::Gone`].
//!
//! The crate `lock-store-conformance` has these rules as tests. The chapter *Write a store* of the
//! guide goes through a complete one.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::key::LockKey;

mod abilities;
mod answer;
mod error;
mod few;
mod forward;
pub mod kit;
mod latch;
mod latest;
mod mark;
mod request;
pub(crate) mod semaphore;
mod status;
pub mod stock;
mod time;
mod watch;

pub use abilities::{Abilities, Lacked, LateRequests, Notices, Tokens};
pub use answer::{Acquired, BoxFuture, Busy, Granted, Released, Renewed, Rivals, TokenRange, Withdrawn};
pub use error::{StoreError, StoreErrorKind};
pub use few::Few;
pub use forward::Forward;
pub use latch::{CountDownRequest, LatchStore};
pub use mark::{Mark, MarkRequest, Marked, QuorumMember};
pub use request::{
    AcquireRequest, DIRECT_LEASE, FAR_LIFE, INTENT_LIFE, Item, Kind, LONGEST_WAIT, ListenerPolicy,
    MAX_TOKENS, ReleaseRequest, RenewItem, RenewRequest, Standing, Takeover, WAITER_LIFE,
};
pub use semaphore::{
    MAX_PERMITS, PermitCounts, PermitId, Permits, PermitsAcquired, PermitsBusy, PermitsChange, PermitsHold,
    PermitsRelease, PermitsRenew, PermitsRequest, SemaphoreStore,
};
pub use status::{Cursor, LockStatus, ScanRequest, Scanned};
pub use time::{Moment, ServerTime};
pub use watch::{Echo, Notice, Watch};

/// A place where locks are kept. See the [module](self) for the rules.
pub trait LockStore: Any + Send + Sync + fmt::Debug {
    /// Returns what the store can do. The same for the whole life of the store.
    fn abilities(&self) -> &Abilities;

    /// Takes every item of the request or none.
    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>>;

    /// Gives the items back and wakes their waiters.
    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>>;

    /// Renews each item independently; the answers are in the order of the request. An `Err`
    /// concerns all of them.
    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>>;

    /// Turns [`Kind::Write`] holds into [`Kind::Read`] holds of the same owners, each
    /// independently; renews them and wakes waiting readers. A hold that is a read hold already is
    /// only renewed. Needs [`Abilities::downgrade`].
    fn downgrade(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        let _ = request;
        lacks(self.abilities(), Lacked::Downgrade)
    }

    /// Undoes an acquire whose outcome is unknown, or that is queued and no longer wanted. Its
    /// holds are released, its place in the queue is given up, and its intent to write ends.
    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>>;

    /// Delivers notices about the request's keys from now on: releases, and for a kind that the
    /// store [queues](Abilities::queues) only what concerns the item's owner. After an `Err` or
    /// with an unconfirmed watch, the caller has to poll; neither is ever a reason to fail.
    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        let _ = request;
        Box::pin(async { Ok(Watch::polled()) })
    }

    /// Waits until the store has seen holds of this handle end that nobody gave back, and returns
    /// them. An operator may have deleted them, for example. The engine renews them at once, so it
    /// hears of a loss before the next renewal is due. The answer to a call also has the holds that
    /// have ended since the last call. `None` if the store does not look after holds.
    ///
    /// This is a hint: the answer may have holds that were given back, or were not lost. The kind
    /// of an item may differ from that of the hold. A handle has one listener: the answers to two
    /// calls at once may have different holds.
    fn lost(&self) -> Option<BoxFuture<Vec<Item>>> {
        None
    }

    /// Returns what the store knows about `key`.
    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>>;

    /// Frees `key`, whatever its holders and their kind, and wakes its waiters; returns `false`
    /// when it was free. The fencing counter and the queue of a fair lock stay.
    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>>;

    /// Returns the next page of the locks whose keys begin with a prefix. Changes nothing, and
    /// blocks nobody for long. Needs [`Abilities::scan`].
    fn scan(&self, request: ScanRequest) -> BoxFuture<Result<Scanned, StoreError>> {
        let _ = request;
        lacks(self.abilities(), Lacked::Scan)
    }

    /// Returns an opaque number for the server that has `key`: keys with the same number fail
    /// together. Zero stands for an unknown server, and for a store that is up or down as a whole.
    fn place(&self, key: &LockKey) -> u64 {
        let _ = key;
        0
    }

    /// Checks that the store is usable, for `LockManager::connect`.
    fn check(&self) -> BoxFuture<Result<(), StoreError>>;

    /// Returns the store as a server of a quorum, if it can be one.
    fn member(&self) -> Option<&dyn QuorumMember> {
        None
    }

    /// Returns the store's semaphores, if it has any.
    fn semaphores(&self) -> Option<Arc<dyn SemaphoreStore>> {
        None
    }

    /// Returns the store's stocks, if it has any.
    fn stocks(&self) -> Option<Arc<dyn stock::StockStore>> {
        None
    }

    /// Returns the store's latches, if it has any.
    fn latches(&self) -> Option<Arc<dyn LatchStore>> {
        None
    }
}

/// Makes the answer of a store that can't do this.
fn lacks<T: Send + 'static>(abilities: &Abilities, what: Lacked) -> BoxFuture<Result<T, StoreError>> {
    let refusal = abilities.refusal(what);
    Box::pin(async { Err(refusal) })
}
