//! The store: where locks are kept, behind one small object-safe trait.
//!
//! A store executes single atomic steps and answers. It never waits for a lock, queues callers or renews on its own
//! initiative; all of that is the engine's work. Methods take owned requests and return boxed `'static` futures, so
//! that a call can outlive whoever started it: the engine never drops a call half-way that changes something, it hands
//! it to its reaper.
//!
//! # Rules for every implementation
//!
//! - A call does nothing before its future is first polled, and resolves by itself within about the request's
//!   time-out, with [`StoreErrorKind::Unanswered`] when it cannot know whether the step was executed.
//! - The first poll may be inside the poll of the caller who wants the lock, and so wherever that is. A store wakes its
//!   calls after it has given its own mutexes back: to wake a call may be to drop it, when its runtime has ended.
//! - A `watch` may be left unpolled while other calls are made, and may be dropped before it ends. It must hold nothing
//!   that another call needs, and soon after the drop nothing may be left of it.
//! - `acquire` sets the hold count to 1 and treats "already mine" as this very grant (the call was re-sent), with new
//!   tokens. It only lengthens a lease.
//! - `keep` only lengthens. `release` and `withdraw` touch nothing that another owner holds.
//! - A call that was answered is not executed again; one that was not may be executed at any later time. A second
//!   `withdraw` would undo what the same request is granted next.
//! - An owner that has a key for writing may have it for reading since a [`downgrade`](LockStore::downgrade) whose
//!   answer was lost: `release`, `keep` and `withdraw` of items of the kinds [`Kind::Write`] and [`Kind::Read`] go by
//!   what the owner has. Of an owner that has both, nothing is promised but that releasing each gives back all.
//! - Keys that are asked for in different kinds exclude each other whole: a key held as a mutex is busy for readers. Who
//!   waits for a key that is held in another kind may not hear of its release, and looks again in time.
//! - Every step that takes something (`acquire`) is refused by the store itself when it arrives later than
//!   [`AcquireRequest::timeout`] after it was sent; see [`AcquireRequest::stamp`]. A `withdraw`
//!   [seals](AcquireRequest::seal) what was not sent yet.
//! - Time-to-live and tokens go by the store's clock, never by a client's wall clock.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::key::LockKey;
use crate::replication::Replication;
use crate::retention::TokenRetention;
use crate::token::{FencingToken, OwnerId};

mod at_once;
mod error;
mod few;
mod latch;
mod latest;
mod mark;
pub(crate) mod memory;
pub(crate) mod quorum;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod semaphore;
#[cfg(any(feature = "redis", feature = "sqlite", feature = "postgres"))]
mod server_clock;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod sql;
mod status;
pub mod stock;
mod watch;

use latest::Latest;

pub use at_once::AtOnce;
pub use error::{StoreError, StoreErrorKind};
pub use few::Few;
pub use latch::{CountDownRequest, LatchStore};
pub use mark::{Mark, MarkRequest, Marked};
pub use semaphore::{
    MAX_PERMITS, PermitCounts, PermitId, Permits, PermitsAcquired, PermitsBusy, PermitsChange, PermitsHold,
    PermitsKeep, PermitsRelease, PermitsRequest, SemaphoreStore,
};
pub use status::{LockStatus, ScanRequest, Scanned};
pub use watch::{Notice, Watch};

#[cfg(test)]
mod conformance;

/// What the methods of a [`LockStore`] return.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// The largest number of fencing tokens that one grant may ask for.
pub const MAX_TOKENS: u32 = 131_072;

/// Microseconds since the Unix epoch by the store's clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerTime(u64);

impl ServerTime {
    /// A server time of so many microseconds since the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for ServerTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerTime({} us)", self.0)
    }
}

/// How a key is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// One holder at a time; who is next is a race between processes and first-in first-out inside one.
    Mutex,
    /// One holder at a time, first-in first-out across processes: the store has the queue, see
    /// [`AcquireRequest::queued`].
    Fair,
    /// Many holders at a time, as long as nobody writes and no writer [waits](AcquireRequest::queued).
    Read,
    /// One holder at a time, which excludes readers too.
    Write,
}

/// One key of a request: what is locked, how, and by whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    /// The key.
    pub key: LockKey,
    /// How it is locked.
    pub kind: Kind,
    /// By whom.
    pub owner: OwnerId,
}

/// A wish for one or more keys, all or nothing.
#[derive(Debug)]
pub struct AcquireRequest {
    /// The keys, at least one, no key twice.
    pub items: Few<Item>,
    /// Time to live of the holds, counted by the store from the moment it grants them. Milliseconds count.
    pub lease: Duration,
    /// Fencing tokens wanted for each key, 1 to [`MAX_TOKENS`].
    pub tokens: u32,
    /// Tokens granted are above this; 0 for no floor.
    pub token_floor: u64,
    /// How long the counters of tokens outlive the holds.
    pub retention: TokenRetention,
    /// The store refuses to execute the request later than this after it was sent.
    pub timeout: Duration,
    /// `None`: one attempt, which leaves nothing behind when it is refused. Else the caller waits, at most for so long
    /// ([`LONGEST_WAIT`] for ever), and a store that refuses it takes note of that, see [`queued`](Self::queued).
    pub wait: Option<Duration>,
    /// How many replicas have to confirm the grant: if fewer do, it is [`StoreErrorKind::NotReplicated`], and the request
    /// has to be withdrawn. Not waited for when the answer is no grant. A store without replicas refuses it as
    /// [`StoreErrorKind::Unsupported`]. Never of a [`Takeover`].
    pub replication: Replication,
    latest: Latest,
    parts: quorum::Parts,
}

/// The longest wait that a queue counts with, as in Redisson (`fairLockWaitTimeout`, 5 minutes).
pub const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// A waiter in a fair queue that has not been [kept](LockStore::keep) for so long counts as dead, if it
/// was not kept as [`Standing::Far`].
pub const WAITER_LIFE: Duration = Duration::from_secs(3);

/// The same of a waiter that is kept as [`Standing::Far`].
pub const FAR_LIFE: Duration = Duration::from_secs(60);

/// The lease of a hold that is granted to a waiter directly, see [`Notice::Granted`], if the request's is not shorter.
pub const DIRECT_LEASE: Duration = Duration::from_secs(5);

/// The life of a waiting writer's intent, which keeps readers out.
pub const INTENT_LIFE: Duration = Duration::from_secs(1);

impl AcquireRequest {
    /// A request for one token a key, without a floor.
    #[must_use]
    pub fn new(items: impl Into<Few<Item>>, lease: Duration, timeout: Duration) -> Self {
        Self {
            items: items.into(),
            lease,
            tokens: 1,
            token_floor: 0,
            retention: TokenRetention::default(),
            timeout,
            wait: None,
            replication: Replication::NONE,
            latest: Latest::default(),
            parts: quorum::Parts::default(),
        }
    }

    /// The caller waits for at most `wait`, cut to [`LONGEST_WAIT`]. When the store refuses the request:
    ///
    /// - each [`Kind::Fair`] item whose owner is not in the key's queue joins the end of it, also when it is another item
    ///   that is busy. It stays there until it is granted, withdrawn, or not [kept](LockStore::keep) for [`WAITER_LIFE`]; to
    ///   ask again keeps it too. A request that has lost one of its places takes all of them anew, together: else two of
    ///   them could each be the first in one queue, and wait for each other. A free key goes to the first of the queue only; dead ones are passed over, with
    ///   everything that their going means to those behind.
    /// - each [`Kind::Write`] item that finds readers keeps new ones out for [`INTENT_LIFE`], if nothing but readers is in
    ///   the way of the request, and unless the intent of another writer does so already. An intent stops readers only, and none that reads already. It ends with the
    ///   grant or the withdrawal; the latter wakes the readers.
    #[must_use]
    pub fn queued(mut self, wait: Duration) -> Self {
        self.wait = Some(wait.min(LONGEST_WAIT));
        self
    }

    /// Asks for `tokens` fencing tokens a key, clamped to 1..=[`MAX_TOKENS`].
    #[must_use]
    pub fn tokens(mut self, tokens: u32) -> Self {
        self.tokens = tokens.clamp(1, MAX_TOKENS);
        self
    }

    /// Asks for a grant that so many replicas confirm.
    #[must_use]
    pub fn replicated(mut self, replication: Replication) -> Self {
        self.replication = replication;
        self
    }

    /// Asks for tokens above `floor`.
    #[must_use]
    pub fn token_floor(mut self, floor: u64) -> Self {
        self.token_floor = floor;
        self
    }

    /// Asks for counters that outlive the holds by `retention`.
    #[must_use]
    pub fn retention(mut self, retention: TokenRetention) -> Self {
        self.retention = retention;
        self
    }

    /// Called by a store with its estimate of the server's time at every send: records and returns the server time
    /// after which the server must refuse the request (estimate + [`timeout`](Self::timeout)). Never moves back.
    ///
    /// A request that was [sealed](Self::seal) is stamped with a time that has passed.
    pub fn stamp(&self, estimate: ServerTime) -> ServerTime {
        self.latest.stamp(estimate, self.timeout)
    }

    /// Called by a store that withdraws the request: the largest server time at which any copy of it may still be
    /// executed. `None` when it was never stamped, and so never sent; it can't be from then on.
    pub fn seal(&self) -> Option<ServerTime> {
        self.latest.seal()
    }

    /// For stores without replicas: an error when some are to confirm the grant.
    pub(crate) fn refuse_replication(&self) -> Result<(), StoreError> {
        if self.replication.is_none() {
            return Ok(());
        }
        let message = "no replica can confirm a grant here: this store has none; leave out `replication`";
        Err(StoreError::new(StoreErrorKind::Unsupported, message))
    }

    /// Whether it was withdrawn before it was sent, and so can't be any more.
    fn is_sealed(&self) -> bool {
        self.latest.is_sealed()
    }

    /// The largest server time at which any copy of this request may still be executed; `None` before the first
    /// [`stamp`](Self::stamp).
    #[must_use]
    pub fn latest(&self) -> Option<ServerTime> {
        self.latest.get()
    }
}

/// The answer to an [`AcquireRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// Every key is held by its owner now.
    Granted(Granted),
    /// At least one key is held by somebody else; nothing was taken.
    Busy(Busy),
}

/// Every key of the request is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The tokens of each item, in the order of the request.
    pub tokens: Few<TokenRange>,
    /// When the store granted it.
    pub server_time: ServerTime,
}

/// Consecutive fencing tokens that belong to one grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRange {
    /// The smallest.
    pub first: u64,
    /// The largest, which is also the highest token of the key ever granted.
    pub last: u64,
}

impl TokenRange {
    /// The `count` tokens that end with `last`.
    #[must_use]
    pub const fn ending_at(last: u64, count: u32) -> Self {
        Self { first: last.saturating_sub(count as u64 - 1), last }
    }

    /// Whether all its tokens were taken.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.first > self.last
    }

    /// Takes the smallest token out of the range.
    pub fn take(&mut self) -> Option<FencingToken> {
        if self.is_empty() {
            return None;
        }
        let token = FencingToken::new(self.first);
        self.first += 1;
        Some(token)
    }
}

/// Somebody else holds one of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Index of the first busy item in the request.
    pub item: usize,
    /// When the hold ends if nobody renews it; for a free key that another waiter is to have first: when to look again.
    /// Never zero.
    pub remaining: Duration,
    /// When the store looked.
    pub server_time: ServerTime,
    /// How many processes listen for the release, 0 if that is not known. Where many do, those who
    /// have lost a race ask after a random delay.
    pub listeners: u32,
}

/// Gives holds back.
#[derive(Clone, Debug)]
pub struct ReleaseRequest {
    /// The holds, as they were acquired.
    pub items: Few<Item>,
    /// Zero: release now. Else: keep the keys taken, but only for this long from now, then let them expire. Never
    /// lengthens.
    pub linger: Duration,
    /// Acquire this in the same atomic step when the release freed every item and nobody but us listens for it
    /// (see [`Takeover`]). Its items have the same keys and new owners. For [`Kind::Mutex`]; a store may decline it.
    pub then: Option<Takeover>,
    /// Watches of this process, of these keys, that belong to whoever releases: they are not counted as others.
    pub own_watches: u32,
    /// The call resolves within about this time.
    pub timeout: Duration,
}

/// A request that is carried out together with a release when nobody else waits for the key.
#[derive(Clone, Debug)]
pub struct Takeover {
    /// What to acquire.
    pub request: Arc<AcquireRequest>,
    /// What to think of listeners.
    pub listeners: ListenerPolicy,
}

/// Whether listeners on the release channel stop a [`Takeover`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerPolicy {
    /// Acquire only when nobody else listens.
    Respect,
    /// Acquire in any case: the listeners have turned out to be phantoms.
    Ignore,
}

/// The answer to a [`ReleaseRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// For each item: whether its owner still held it, in whatever kind.
    pub held: Few<bool>,
    /// How many others listened for the release, in this process or elsewhere, a hint: only whether it is zero counts.
    /// [`own_watches`](ReleaseRequest::own_watches) are not counted. A lingering release may leave it at zero, and one that
    /// leaves other readers behind does: nobody is told of it.
    pub other_listeners: u64,
    /// Whether our own watch of these keys will see this release too, and should ignore it.
    pub echo: bool,
    /// The grant of [`ReleaseRequest::then`], if it was carried out.
    pub then: Option<Granted>,
}

/// A hold to be renewed, or a waiter to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepItem {
    /// The hold, or what is waited for.
    pub item: Item,
    /// The remaining time of the hold becomes at least this. For a waiter: the lease of its request.
    pub lease: Duration,
    /// How long the counter of tokens outlives the hold. Waiters have no counter.
    pub retention: TokenRetention,
    /// Which of them.
    pub standing: Standing,
}

impl KeepItem {
    /// A hold whose remaining time is to be at least `lease`.
    #[must_use]
    pub fn hold(item: Item, lease: Duration) -> Self {
        Self { item, lease, retention: TokenRetention::default(), standing: Standing::Holder }
    }

    /// What waits for `item` in a queue, with the lease of its request.
    #[must_use]
    pub fn waiter(item: Item, lease: Duration) -> Self {
        Self { standing: Standing::Waiter, ..Self::hold(item, lease) }
    }

    /// Keeps the counter for `retention` after the end of the hold.
    #[must_use]
    pub fn retention(mut self, retention: TokenRetention) -> Self {
        self.retention = retention;
        self
    }
}

/// What the owner of a [`KeepItem`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds the key.
    Holder,
    /// It waits, as it said with [`AcquireRequest::queued`]: its place in a fair queue counts as alive for another
    /// [`WAITER_LIFE`], its intent to write for another [`INTENT_LIFE`]. A writer that finds readers and has no intent is
    /// told to ask again at once.
    Waiter,
    /// As a waiter, in a fair queue where others of the same manager stand before it: its place
    /// counts as alive for another [`FAR_LIFE`], for as long as one of theirs is kept as a
    /// [`Waiter`](Self::Waiter). Only at stores that [know this](LockStore::keeps_far_waiters).
    Far,
}

/// Renews holds and keeps waiters, each on its own.
#[derive(Clone, Debug)]
pub struct KeepRequest {
    /// The holds. A store may split them as its topology needs.
    pub items: Vec<KeepItem>,
    /// The call resolves within about this time.
    pub timeout: Duration,
}

/// What became of one [`KeepItem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Held; the remaining time of a hold is at least what was asked for. A waiter that hears this was granted the key
    /// and has missed the notice: it acquires once more.
    Renewed,
    /// Not held by this owner any more. A waiter that hears this has lost its place in a fair queue: it acquires once more.
    Gone,
    /// Still waiting; look again after this time, if nothing is heard before. Never zero.
    Waiting(Duration),
    /// No answer for this item, while there is one for others of the request: its server is away,
    /// or refuses it. Ask again.
    Unknown,
}

/// The answer to a withdrawal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// Nothing of the request is held, and no late copy of it can be executed any more.
    Settled,
    /// Nothing of the request is held now, but a late copy could still be executed: withdraw again after this time.
    Pending(Duration),
}

impl Withdrawn {
    /// Nothing is held now, at `now`, of a request that may be executed until `latest`.
    pub(crate) fn by(latest: ServerTime, now: ServerTime) -> Self {
        if now > latest {
            return Self::Settled;
        }
        let left = latest.0.saturating_sub(now.0).saturating_add(1);
        Self::Pending(Duration::from_micros(left))
    }
}

/// Where locks are kept. See the [module](self) for the rules.
pub trait LockStore: Send + Sync + fmt::Debug + 'static {
    /// Takes every item of the request or none.
    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>>;

    /// Gives the items back and wakes whoever waits for them.
    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>>;

    /// Renews each item on its own; the answers are in the order of the request. An `Err` is about all of them.
    fn keep(&self, request: Arc<KeepRequest>) -> BoxFuture<Result<Vec<Kept>, StoreError>>;

    /// Turns holds of [`Kind::Write`] into holds of [`Kind::Read`] of the same owners, each on its own, renews them, and
    /// wakes the readers that wait. Holds that are that already are only renewed.
    fn downgrade(&self, request: Arc<KeepRequest>) -> BoxFuture<Result<Vec<Kept>, StoreError>>;

    /// Undoes an acquire whose outcome is unknown, or that has queued and is not wanted any more: what it holds is
    /// released, its place in a queue is given up, its intent ends.
    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>>;

    /// Delivers notices about the request's keys from now on: releases, and for [`Kind::Fair`] only what concerns the
    /// item's owner. An `Err` or an unconfirmed watch means that the caller has to poll; it is never a reason to fail.
    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>>;

    /// What the store knows about `key`.
    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>>;

    /// Frees `key` whoever holds it, in whatever kind, and wakes whoever waits; `false` when it was free. The fencing
    /// counter and the queue of a fair lock stay.
    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>>;

    /// The next page of the locks whose keys begin with a prefix. Touches nothing, and holds nobody up for long.
    fn scan(&self, request: ScanRequest) -> BoxFuture<Result<Scanned, StoreError>>;

    /// Looks at the store's marker, or makes it: see [`MarkRequest`]. A store without one can't be part of a quorum.
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

    /// Which server has `key`, as a number that means nothing else: keys with the same one share its fate. 0 when it is not
    /// known, and for all keys of a store that is up or down as a whole.
    fn place(&self, key: &LockKey) -> u64 {
        let _ = key;
        0
    }

    /// Checks that the store can be used, for [`LockManager::connect`](crate::LockManager::connect).
    fn check(&self) -> BoxFuture<Result<(), StoreError>>;

    /// The calls that it answers in place; `None`, as of any store with a network behind it, when it has to be awaited. A
    /// store that is wrapped around another one, to count its calls or to make them fail, says `None` too, or they would
    /// pass it by.
    fn at_once(&self) -> Option<&dyn AtOnce> {
        None
    }

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
