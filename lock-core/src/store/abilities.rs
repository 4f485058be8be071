//! [`Abilities`]: the features and limits of a store.

use std::fmt;
use std::time::Duration;

use super::request::{AcquireRequest, DIRECT_LEASE, INTENT_LIFE, MAX_TOKENS, WAITER_LIFE};
use super::{Kind, StoreError, StoreErrorKind};
use crate::replication::Replication;

/// The features and limits of a store.
///
/// The handles refuse a request that exceeds them before anything is sent. The conformance suite
/// tests everything that is claimed here. Start from [`Abilities::MUTEX`] and add to it, so that a
/// new field is no change for the store:
///
/// ```
/// # use lock_core::store::Abilities;
/// const ABILITIES: Abilities = Abilities { name: "Example", several: true, ..Abilities::MUTEX };
/// ```
///
/// A store has semaphores, latches and stocks, and can be a server of a quorum, if the method
/// returns one: [`LockStore::semaphores`](super::LockStore::semaphores),
/// [`latches`](super::LockStore::latches), [`stocks`](super::LockStore::stocks),
/// [`member`](super::LockStore::member).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Name of the store in errors.
    pub name: &'static str,
    /// Whether it has [`Kind::Fair`].
    pub fair: bool,
    /// Whether it has [`Kind::Read`] and [`Kind::Write`].
    pub read_write: bool,
    /// Whether it can [`downgrade`](super::LockStore::downgrade).
    pub downgrade: bool,
    /// Whether it takes several keys in one request.
    pub several: bool,
    /// Whether it [queues](super::AcquireRequest::queued) the waiters of mutexes, too. Then a
    /// manager has one place in the queue of a mutex, and the grant comes as a notice if those are
    /// pushed. Between processes, such a mutex is first in, first out. Asking again tells a waiter
    /// no more than [renewing](super::LockStore::renew) its place.
    pub queues_mutexes: bool,
    /// Whether it [queues](super::AcquireRequest::queued) readers and writers, too. Then a reader
    /// comes after the writers that were there before it, and no writer has an intent.
    pub queues_read_write: bool,
    /// Minimum lease.
    pub shortest_lease: Duration,
    /// Resolution of leases. The store rounds up.
    pub lease_grain: Duration,
    /// Maximum lease; `None` if any lease is allowed.
    pub longest_lease: Option<Duration>,
    /// Whether a release can leave the key taken for a while, see
    /// [`ReleaseRequest::linger`](super::ReleaseRequest::linger). `min_hold` needs this.
    pub shortens: bool,
    /// Time after which a waiter in a queue counts as dead if it is not
    /// [renewed](super::LockStore::renew).
    pub waiter_life: Duration,
    /// Lifetime of a waiting writer's intent, which keeps new readers out.
    pub intent_life: Duration,
    /// Whether waiters may be renewed as [`Standing::Far`](super::Standing::Far).
    pub far_waiters: bool,
    /// Whether a release can be followed by a [`Takeover`](super::Takeover). A store that
    /// [queues mutexes](Self::queues_mutexes) declines it while others are in the queue.
    pub takeovers: bool,
    /// Whether a release grants the key to the first waiter of its queue, see
    /// [`Notice::Granted`](super::Notice::Granted).
    pub direct_grants: bool,
    /// Lease of a hold that is granted in this way, unless the request's is shorter. A waiter
    /// counts such a hold from its last sign of life, so this has to be much more than half of
    /// [`waiter_life`](Self::waiter_life).
    pub direct_lease: Duration,
    /// How a waiter hears of a release.
    pub notices: Notices,
    /// Whether [`LockStatus::waiters`](super::LockStatus::waiters) and
    /// [`Released::rivals`](super::Released::rivals) are known for all kinds. An old server may
    /// still answer [`Rivals::Unknown`](super::Rivals::Unknown).
    pub counts_listeners: bool,
    /// Where fencing tokens come from.
    pub tokens: Tokens,
    /// Whether each key has a counter of its own. If not,
    /// [`LockStatus::last_token`](super::LockStatus::last_token) is not known, and a refused
    /// request may use up tokens.
    pub own_tokens: bool,
    /// Maximum number of tokens in one grant. A store that is asked for more grants this many.
    pub most_tokens: u32,
    /// How a request is refused that arrives late.
    pub late_requests: LateRequests,
    /// Whether [`AcquireRequest::replication`](super::AcquireRequest::replication) works.
    pub replication: bool,
    /// Whether [`scan`](super::LockStore::scan) works.
    pub scan: bool,
}

/// How a waiter hears of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notices {
    /// By a message: [`watch`](super::LockStore::watch) returns a confirmed watch.
    Pushed,
    /// Not at all: it looks again, every 250 ms at least.
    Polled,
}

/// Where fencing tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tokens {
    /// A counter that is never behind the store's clock, in microseconds. Each
    /// [`Moment`](super::Moment) is a [`ServerTime`](super::ServerTime).
    Clock,
    /// A number that grows with every change of the store.
    Revision,
}

/// How a request is refused that arrives late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LateRequests {
    /// By the store's clock, see [`AcquireRequest::stamp`](super::AcquireRequest::stamp).
    ByClock,
    /// With the session that sent it, whose end is a withdrawal.
    BySession,
    /// Not at all: a late copy may take the key for one lease.
    Never,
}

impl Abilities {
    /// A store of mutexes and nothing else, with one key in a request. Leases are 100 ms and more,
    /// in steps of a millisecond. Waiters poll. Tokens come from the store's clock, which also
    /// refuses late requests.
    pub const MUTEX: Self = Self {
        name: "this store",
        fair: false,
        read_write: false,
        downgrade: false,
        several: false,
        queues_mutexes: false,
        queues_read_write: false,
        shortest_lease: Duration::from_millis(100),
        lease_grain: Duration::from_millis(1),
        longest_lease: None,
        shortens: false,
        waiter_life: WAITER_LIFE,
        intent_life: INTENT_LIFE,
        far_waiters: false,
        takeovers: false,
        direct_grants: false,
        direct_lease: DIRECT_LEASE,
        notices: Notices::Polled,
        counts_listeners: false,
        tokens: Tokens::Clock,
        own_tokens: true,
        most_tokens: MAX_TOKENS,
        late_requests: LateRequests::ByClock,
        replication: false,
        scan: false,
    };

    /// Whether the store has locks of this kind.
    #[must_use]
    pub const fn has(&self, kind: Kind) -> bool {
        match kind {
            Kind::Mutex => true,
            Kind::Fair => self.fair,
            Kind::Read | Kind::Write => self.read_write,
        }
    }

    /// Whether a waiter for a key of this kind has a place in a queue of the store.
    #[must_use]
    pub const fn queues(&self, kind: Kind) -> bool {
        match kind {
            Kind::Mutex => self.queues_mutexes,
            Kind::Fair => self.fair,
            Kind::Read | Kind::Write => self.read_write && self.queues_read_write,
        }
    }

    /// Refuses a request that the store can't carry out: kinds, several keys, replicas. Handles
    /// have done so already; a store calls this first, for other callers.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Unsupported`], with a text that names stores that can.
    pub fn allow(&self, request: &AcquireRequest) -> Result<(), StoreError> {
        let lacked = self.lacked(request.items.iter().map(|item| item.kind), request.replication);
        lacked.map_or(Ok(()), |lacked| Err(self.refusal(lacked)))
    }

    /// Returns the first thing that a request for these kinds needs and the store lacks.
    #[doc(hidden)]
    pub fn lacked(&self, kinds: impl Iterator<Item = Kind>, replication: Replication) -> Option<Lacked> {
        let mut keys = 0;
        for kind in kinds {
            match kind {
                Kind::Fair if !self.fair => return Some(Lacked::Fair),
                Kind::Read | Kind::Write if !self.read_write => return Some(Lacked::ReadWrite),
                _ => keys += 1,
            }
        }
        match replication.is_none() {
            _ if keys > 1 && !self.several => Some(Lacked::Several),
            false if !self.replication => Some(Lacked::Replication),
            _ => None,
        }
    }

    /// Returns the error of a call for something that the store lacks.
    #[must_use]
    pub fn refusal(&self, lacked: Lacked) -> StoreError {
        StoreError::new(StoreErrorKind::Unsupported, self.lack(lacked))
    }

    /// Returns the error text for a store that lacks something.
    #[must_use]
    pub fn lack(&self, lacked: Lacked) -> String {
        format!("{} {}. {}", self.name, lacked, lacked.way_out())
    }
}

/// URLs of the stores on Redis servers in the layout of Redisson, without quorums.
const REDIS: &str = "`redis://`, `redis+sentinel://`, `redis+cluster://`";

/// URL of a store on a Redis server in the plain layout.
const PLAIN: &str = "`redis+plain://`";

/// URLs of the stores in databases.
const DATABASES: &str = "`postgres://`, `mysql://`, `mongodb://`, `sqlite:`";

/// URL of the store in etcd.
const ETCD: &str = "`etcd://`";

/// URL of the store in ZooKeeper.
const ZOOKEEPER: &str = "`zookeeper://`";

/// Something that a store lacks and a caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lacked {
    /// Fair locks.
    Fair,
    /// Readers and writers.
    ReadWrite,
    /// The downgrade of a writer.
    Downgrade,
    /// Several keys in one request.
    Several,
    /// Releases that leave the key taken.
    Shortens,
    /// Grants that replicas confirm.
    Replication,
    /// Scans.
    Scan,
    /// Semaphores.
    Semaphores,
    /// Latches.
    Latches,
    /// Stocks.
    Stocks,
}

impl Lacked {
    /// Everything that a store may lack.
    pub const ALL: [Self; 10] = [
        Self::Fair,
        Self::ReadWrite,
        Self::Downgrade,
        Self::Several,
        Self::Shortens,
        Self::Replication,
        Self::Scan,
        Self::Semaphores,
        Self::Latches,
        Self::Stocks,
    ];

    /// Says which stores have it, and what else helps.
    fn way_out(self) -> String {
        match self {
            Self::Shortens => {
                format!(
                    "Leave out `min_hold`, or use {REDIS}, {PLAIN}, {DATABASES}, {ETCD}, {ZOOKEEPER}, `quorum:` or \
                     `memory:`"
                )
            }
            Self::Replication => "Leave out `replication`, or use a Redis server with replicas".to_owned(),
            Self::Semaphores => format!("Use {REDIS}, {DATABASES}, {ZOOKEEPER} or `memory:`"),
            Self::Latches | Self::Stocks => format!("Use {REDIS}, {DATABASES} or `memory:`"),
            Self::Downgrade => format!("Use {REDIS}, {DATABASES}, {ZOOKEEPER}, `quorum:` or `memory:`"),
            Self::Fair | Self::ReadWrite => {
                format!("Use {REDIS}, {DATABASES}, {ETCD}, {ZOOKEEPER}, `quorum:` or `memory:`")
            }
            Self::Several | Self::Scan => {
                format!("Use {REDIS}, {PLAIN}, {DATABASES}, {ETCD}, {ZOOKEEPER}, `quorum:` or `memory:`")
            }
        }
    }
}

impl fmt::Display for Lacked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fair => "has no fair locks",
            Self::ReadWrite => "has no locks for readers and writers",
            Self::Downgrade => "can't turn a writer into a reader",
            Self::Several => "can't lock several keys at once",
            Self::Shortens => "can't shorten a lease, which `min_hold` needs",
            Self::Replication => "has no replicas that could confirm a grant",
            Self::Scan => "can't list its locks",
            Self::Semaphores => "has no semaphores",
            Self::Latches => "has no latches",
            Self::Stocks => "has no stocks",
        })
    }
}
