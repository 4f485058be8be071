//! What is asked of a [`LockStore`](super::LockStore).

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::error::{StoreError, StoreErrorKind};
use super::few::Few;
use super::latest::Latest;
use super::time::ServerTime;
use crate::key::LockKey;
use crate::replication::Replication;
use crate::retention::TokenRetention;
use crate::token::OwnerId;

/// The largest number of fencing tokens that one grant may ask for.
pub const MAX_TOKENS: u32 = 131_072;

/// How a key is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// One holder at a time; who is next is a race between processes and first-in first-out inside
    /// one.
    Mutex,
    /// One holder at a time, first-in first-out across processes: the store has the queue, see
    /// [`AcquireRequest::queued`].
    Fair,
    /// Many holders at a time, as long as nobody writes and no writer
    /// [waits](AcquireRequest::queued).
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
    /// Time to live of the holds, counted by the store from the moment it grants them. Milliseconds
    /// count.
    pub lease: Duration,
    /// Fencing tokens wanted for each key, 1 to [`MAX_TOKENS`].
    pub tokens: u32,
    /// Tokens granted are above this; 0 for no floor.
    pub token_floor: u64,
    /// How long the counters of tokens outlive the holds.
    pub retention: TokenRetention,
    /// The store refuses to execute the request later than this after it was sent.
    pub timeout: Duration,
    /// `None`: one attempt, which leaves nothing behind when it is refused. Else the caller waits,
    /// at most for so long ([`LONGEST_WAIT`] for ever), and a store that refuses it takes note of
    /// that, see [`queued`](Self::queued).
    pub wait: Option<Duration>,
    /// How many replicas have to confirm the grant: if fewer do, it is
    /// [`StoreErrorKind::NotReplicated`], and the request has to be withdrawn. Not waited for when
    /// the answer is no grant. A store without replicas refuses it as
    /// [`StoreErrorKind::Unsupported`]. Never of a [`Takeover`].
    pub replication: Replication,
    latest: Latest,
    attachment: Attachment,
}

/// The longest wait that a queue counts with, as in Redisson (`fairLockWaitTimeout`, 5 minutes).
pub const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// A waiter in a fair queue that has not been [kept](super::LockStore::keep) for so long counts as
/// dead, if it was not kept as [`Standing::Far`].
pub const WAITER_LIFE: Duration = Duration::from_secs(3);

/// The same of a waiter that is kept as [`Standing::Far`].
pub const FAR_LIFE: Duration = Duration::from_secs(60);

/// The lease of a hold that is granted to a waiter directly, see
/// [`Notice::Granted`](super::Notice::Granted), if the request's is not shorter.
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
            attachment: Attachment::default(),
        }
    }

    /// The caller waits for at most `wait`, cut to [`LONGEST_WAIT`]. When the store refuses the
    /// request:
    ///
    /// - each [`Kind::Fair`] item whose owner is not in the key's queue joins the end of it, also
    ///   when it is another item that is busy. It stays there until it is granted, withdrawn, or
    ///   not [kept](super::LockStore::keep) for [`WAITER_LIFE`]; to ask again keeps it too. A
    ///   request that has lost one of its places takes all of them anew, together: else two of them
    ///   could each be the first in one queue, and wait for each other. A free key goes to the
    ///   first of the queue only; dead ones are passed over, with everything that their going means
    ///   to those behind.
    /// - each [`Kind::Write`] item that finds readers keeps new ones out for [`INTENT_LIFE`], if
    ///   nothing but readers is in the way of the request, and unless the intent of another writer
    ///   does so already. An intent stops readers only, and none that reads already. It ends with
    ///   the grant or the withdrawal; the latter wakes the readers.
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

    /// Called by a store with its estimate of the server's time at every send: records and returns
    /// the server time after which the server must refuse the request (estimate +
    /// [`timeout`](Self::timeout)). Never moves back.
    ///
    /// A request that was [sealed](Self::seal) is stamped with a time that has passed.
    pub fn stamp(&self, estimate: ServerTime) -> ServerTime {
        self.latest.stamp(estimate, self.timeout)
    }

    /// Called by a store that withdraws the request: the largest server time at which any copy of
    /// it may still be executed. `None` when it was never stamped, and so never sent; it can't be
    /// from then on.
    pub fn seal(&self) -> Option<ServerTime> {
        self.latest.seal()
    }

    /// For stores without replicas: an error when some are to confirm the grant.
    #[doc(hidden)]
    pub fn refuse_replication(&self) -> Result<(), StoreError> {
        if self.replication.is_none() {
            return Ok(());
        }
        let message = "no replica can confirm a grant here: this store has none; leave out `replication`";
        Err(StoreError::new(StoreErrorKind::Unsupported, message))
    }

    /// For stores that send requests of their own for this one, of which some may be executed until
    /// `latest`.
    #[doc(hidden)]
    pub fn raise_latest(&self, latest: ServerTime) {
        self.latest.stamp(latest, Duration::ZERO);
    }

    /// Whether it was withdrawn before it was sent, and so can't be any more.
    #[doc(hidden)]
    pub fn is_sealed(&self) -> bool {
        self.latest.is_sealed()
    }

    /// The largest server time at which any copy of this request may still be executed; `None`
    /// before the first [`stamp`](Self::stamp).
    #[must_use]
    pub fn latest(&self) -> Option<ServerTime> {
        self.latest.get()
    }

    /// Returns what a store that makes several requests of one keeps with it, of its own type `T`.
    #[doc(hidden)]
    pub fn attachment<T: Any + Default + Send + Sync>(&self) -> &T {
        self.attachment.get()
    }
}

/// What stores keep with a request: at most one value of each type.
#[derive(Default)]
struct Attachment(OnceLock<(Box<dyn Any + Send + Sync>, Box<Attachment>)>);

impl Attachment {
    /// Returns the value of type `T`, which is made when it is first asked for.
    fn get<T: Any + Default + Send + Sync>(&self) -> &T {
        let (value, others) = self.0.get_or_init(|| (Box::new(T::default()), Box::default()));
        value.downcast_ref().unwrap_or_else(|| others.get())
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment").field("is_used", &self.0.get().is_some()).finish()
    }
}

/// Gives holds back.
#[derive(Clone, Debug)]
pub struct ReleaseRequest {
    /// The holds, as they were acquired.
    pub items: Few<Item>,
    /// Zero: release now. Else: keep the keys taken, but only for this long from now, then let them
    /// expire. Never lengthens.
    pub linger: Duration,
    /// Acquire this in the same atomic step when the release freed every item and nobody but us
    /// listens for it (see [`Takeover`]). Its items have the same keys and new owners. For
    /// [`Kind::Mutex`]; a store may decline it.
    pub then: Option<Takeover>,
    /// Watches of this process, of these keys, that belong to whoever releases: they are not
    /// counted as others.
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

/// A hold to be renewed, or a waiter to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepItem {
    /// The hold, or what is waited for.
    pub item: Item,
    /// The remaining time of the hold becomes at least this. For a waiter: the lease of its
    /// request.
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
    /// It waits, as it said with [`AcquireRequest::queued`]: its place in a fair queue counts as
    /// alive for another [`WAITER_LIFE`], its intent to write for another [`INTENT_LIFE`]. A writer
    /// that finds readers and has no intent is told to ask again at once.
    Waiter,
    /// As a waiter, in a fair queue where others of the same manager stand before it: its place
    /// counts as alive for another [`FAR_LIFE`], for as long as one of theirs is kept as a
    /// [`Waiter`](Self::Waiter). Only at stores that [know
    /// this](super::LockStore::keeps_far_waiters).
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
