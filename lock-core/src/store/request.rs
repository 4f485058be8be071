//! The requests to a [`LockStore`](super::LockStore).

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::few::Few;
use super::latest::Latest;
use super::time::ServerTime;
use super::watch::Echo;
use crate::key::LockKey;
use crate::replication::Replication;
use crate::retention::TokenRetention;
use crate::token::OwnerId;

/// Maximum number of fencing tokens in one grant.
pub const MAX_TOKENS: u32 = 131_072;

/// How a key is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// One holder at a time. Processes race for the next turn; inside one process, waiters are
    /// served first-in first-out.
    Mutex,
    /// One holder at a time, first-in first-out across processes. The store keeps the queue, see
    /// [`AcquireRequest::queued`].
    Fair,
    /// Many holders at a time, as long as nobody writes and no writer
    /// [waits](AcquireRequest::queued).
    Read,
    /// One holder at a time, which also excludes readers.
    Write,
}

/// One key of a request: what is locked, how, and by whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    /// The key.
    pub key: LockKey,
    /// How it is locked.
    pub kind: Kind,
    /// The owner.
    pub owner: OwnerId,
}

/// A request for one or more keys, all or nothing.
#[derive(Debug)]
pub struct AcquireRequest {
    /// The keys: at least one, all different.
    pub items: Few<Item>,
    /// Time to live of the holds, counted by the store from the moment of the grant. Its resolution
    /// is a millisecond.
    pub lease: Duration,
    /// Fencing tokens per key, 1 to [`MAX_TOKENS`].
    pub tokens: u32,
    /// Whether a release may grant the keys to this request while it waits, see
    /// [`Notice::Granted`](super::Notice::Granted).
    pub direct: bool,
    /// How long the token counters outlive the holds.
    pub retention: TokenRetention,
    /// The store refuses to execute the request later than this after it was sent.
    pub timeout: Duration,
    /// `None`: one attempt, which leaves nothing behind when it is refused. Otherwise the caller
    /// waits at most this long ([`LONGEST_WAIT`] if without limit), and a store that refuses the
    /// request records that, see [`queued`](Self::queued).
    pub wait: Option<Duration>,
    /// How many replicas have to confirm the grant. If fewer do, the call fails with
    /// [`StoreErrorKind::NotReplicated`](super::StoreErrorKind::NotReplicated), and the request has
    /// to be withdrawn. A refusal does not wait for replicas. A store without replicas answers
    /// [`StoreErrorKind::Unsupported`](super::StoreErrorKind::Unsupported). Never set for a
    /// [`Takeover`].
    pub replication: Replication,
    floor: u64,
    latest: Latest,
    attachment: Attachment,
}

/// Maximum wait that a queue assumes, as in Redisson (`fairLockWaitTimeout`, 5 minutes).
pub const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Usual [`waiter_life`](super::Abilities::waiter_life): the time after which a waiter in a queue
/// counts as dead if it is not [renewed](super::LockStore::renew), unless it was renewed as
/// [`Standing::Far`].
pub const WAITER_LIFE: Duration = Duration::from_secs(3);

/// Time after which a waiter that was kept as [`Standing::Far`] counts as dead.
pub const FAR_LIFE: Duration = Duration::from_secs(60);

/// Usual [`direct_lease`](super::Abilities::direct_lease): the lease of a hold that is granted
/// directly to a waiter, unless the request's lease is shorter. See
/// [`Notice::Granted`](super::Notice::Granted).
pub const DIRECT_LEASE: Duration = Duration::from_secs(5);

/// Usual [`intent_life`](super::Abilities::intent_life): the lifetime of a waiting writer's intent,
/// which keeps readers out.
pub const INTENT_LIFE: Duration = Duration::from_secs(1);

impl AcquireRequest {
    /// Creates a request for one token per key.
    #[must_use]
    pub fn new(items: impl Into<Few<Item>>, lease: Duration, timeout: Duration) -> Self {
        Self {
            items: items.into(),
            lease,
            tokens: 1,
            direct: true,
            retention: TokenRetention::default(),
            timeout,
            wait: None,
            replication: Replication::NONE,
            floor: 0,
            latest: Latest::default(),
            attachment: Attachment::default(),
        }
    }

    /// Says that the caller waits for at most `wait`, cut to [`LONGEST_WAIT`]. When the store
    /// refuses the request:
    ///
    /// - Each item of a kind that the store [queues](super::Abilities::queues) joins the end of the
    ///   key's queue if its owner is not there, even if another item is the busy one. It stays
    ///   there until it is granted, withdrawn, or not [renewed](super::LockStore::renew) for the
    ///   store's [`waiter_life`](super::Abilities::waiter_life); asking again also keeps it. If
    ///   there are several items, a mutex that is free may be left out, so that others can take it.
    /// - A request that has lost one of its places takes all of them anew, together. Otherwise two
    ///   requests could each be the first of one queue and wait for each other.
    /// - A free key goes only to the first of its queue. Dead waiters are passed over, and those
    ///   behind them move up as if the dead ones had left.
    /// - Each [`Kind::Write`] item that finds readers keeps new readers out for the store's
    ///   [`intent_life`](super::Abilities::intent_life). It does so only if nothing but readers is
    ///   in the way of the request, and no other writer's intent does so already.
    /// - An intent stops only new readers. It ends with the grant or the withdrawal; the latter
    ///   wakes the readers.
    #[must_use]
    pub fn queued(mut self, wait: Duration) -> Self {
        self.wait = Some(wait.min(LONGEST_WAIT));
        self
    }

    /// Asks for `tokens` fencing tokens per key, clamped to 1..=[`MAX_TOKENS`].
    #[must_use]
    pub fn tokens(mut self, tokens: u32) -> Self {
        self.tokens = tokens.clamp(1, MAX_TOKENS);
        self
    }

    /// Asks for a grant that is confirmed by replicas.
    #[must_use]
    pub fn replicated(mut self, replication: Replication) -> Self {
        self.replication = replication;
        self
    }

    /// Asks for a grant by an answer only, never by a release.
    #[must_use]
    pub fn indirect(mut self) -> Self {
        self.direct = false;
        self
    }

    /// Asks for tokens above `floor`; for a quorum, whose servers have
    /// [counters that differ](super::QuorumMember).
    #[must_use]
    pub fn above(mut self, floor: u64) -> Self {
        self.floor = floor;
        self
    }

    /// Returns the number that granted tokens exceed. Zero only for a request that may be granted
    /// [directly](Self::direct): every token exceeds 1.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor.max(u64::from(!self.direct))
    }

    /// Asks for counters that outlive the holds by `retention`.
    #[must_use]
    pub fn retention(mut self, retention: TokenRetention) -> Self {
        self.retention = retention;
        self
    }

    /// Records that the request is sent, and returns the server time after which the server must
    /// refuse it: estimate + [`timeout`](Self::timeout). A store calls this at every send, with its
    /// estimate of the server's time. The result never decreases.
    ///
    /// A request that was [sealed](Self::seal) gets a time in the past.
    pub fn stamp(&self, estimate: ServerTime) -> ServerTime {
        self.latest.stamp(estimate, self.timeout)
    }

    /// Returns the largest server time at which any copy of the request may still be executed. A
    /// store that withdraws the request calls this. `None` when the request was never stamped, and
    /// so never sent: it can't be sent from then on.
    pub fn seal(&self) -> Option<ServerTime> {
        self.latest.seal()
    }

    /// Raises [`latest`](Self::latest), for stores that send requests of their own on behalf of
    /// this one.
    #[doc(hidden)]
    pub fn raise_latest(&self, latest: ServerTime) {
        self.latest.stamp(latest, Duration::ZERO);
    }

    /// Whether the request was withdrawn before it was sent, and so can't be sent any more.
    #[doc(hidden)]
    pub fn is_sealed(&self) -> bool {
        self.latest.is_sealed()
    }

    /// Returns the largest server time at which any copy of this request may still be executed;
    /// `None` before the first [`stamp`](Self::stamp).
    #[must_use]
    pub fn latest(&self) -> Option<ServerTime> {
        self.latest.get()
    }

    /// Returns the value of type `T` that a store keeps with the request, if there is one.
    #[doc(hidden)]
    pub fn attached<T: Any + Default + Send + Sync>(&self) -> Option<&T> {
        self.attachment.found()
    }

    /// Returns the value of type `T` that a store keeps with the request; created by default.
    #[doc(hidden)]
    pub fn attachment<T: Any + Default + Send + Sync>(&self) -> &T {
        self.attachment.get()
    }
}

/// The values that stores keep with a request: at most one of each type.
#[derive(Default)]
pub(super) struct Attachment(OnceLock<(Box<dyn Any + Send + Sync>, Box<Attachment>)>);

impl Attachment {
    /// Returns the value of type `T` if it was created.
    fn found<T: Any>(&self) -> Option<&T> {
        let (value, others) = self.0.get()?;
        value.downcast_ref().or_else(|| others.found())
    }

    /// Returns the value of type `T`, and creates it on first use.
    pub(super) fn get<T: Any + Default + Send + Sync>(&self) -> &T {
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
    /// Zero: release now. Otherwise keep the keys taken for this long from now, then let them
    /// expire. Never lengthens a lease.
    pub linger: Duration,
    /// Acquire this in the same atomic step, if the release freed every item and nobody else
    /// listens (see [`Takeover`]). Its items have the same keys and new owners. Only for
    /// [`Kind::Mutex`]; a store may decline it.
    pub then: Option<Takeover>,
    /// The caller's own watch of these keys, if it has one. It is no rival, and the store tells it
    /// to [expect](Echo::expect) the notice of this release.
    pub own_watch: Option<Echo>,
    /// The call resolves within about this time.
    pub timeout: Duration,
}

/// A request to acquire the keys together with their release, when nobody else waits.
#[derive(Clone, Debug)]
pub struct Takeover {
    /// The request to carry out.
    pub request: Arc<AcquireRequest>,
    /// Whether listeners prevent it.
    pub listeners: ListenerPolicy,
}

/// Whether listeners on the release channel stop a [`Takeover`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerPolicy {
    /// Acquire only when nobody else listens.
    Respect,
    /// Acquire even if others listen: they have turned out not to exist. Not if they are in a
    /// queue.
    Ignore,
}

/// A hold to be renewed, or a waiter to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewItem {
    /// The hold, or the item that is waited for.
    pub item: Item,
    /// Minimum remaining time of the hold after the renewal. For a waiter: the lease of its
    /// request.
    pub lease: Duration,
    /// How long the token counter outlives the hold. Unused for waiters.
    pub retention: TokenRetention,
    /// Whether it is a hold or a waiter.
    pub standing: Standing,
}

impl RenewItem {
    /// Creates an item that renews a hold to at least `lease`.
    #[must_use]
    pub fn hold(item: Item, lease: Duration) -> Self {
        Self { item, lease, retention: TokenRetention::default(), standing: Standing::Holder }
    }

    /// Creates an item that keeps a waiter for `item` in its queue, with the lease of its request.
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

/// The role of the owner of a [`RenewItem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds the key.
    Holder,
    /// It waits, as announced with [`AcquireRequest::queued`]. Its place in a queue counts as alive
    /// for another [`waiter_life`](super::Abilities::waiter_life), its intent to write for another
    /// [`intent_life`](super::Abilities::intent_life). A writer that finds readers and has no
    /// intent is told to ask again at once.
    Waiter,
    /// It waits in a fair queue, behind other waiters of the same manager. Its place counts as
    /// alive for another [`FAR_LIFE`], as long as one of the others is kept as a
    /// [`Waiter`](Self::Waiter). Only for stores that [support
    /// this](super::Abilities::far_waiters).
    Far,
}

/// Renews holds and keeps waiters, each independently.
#[derive(Clone, Debug)]
pub struct RenewRequest {
    /// The items. A store may split them as its topology requires.
    pub items: Vec<RenewItem>,
    /// The call resolves within about this time.
    pub timeout: Duration,
}
