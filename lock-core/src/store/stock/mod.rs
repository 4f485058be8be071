//! [`StockStore`]: where stocks are kept.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::latest::Latest;
use super::{BoxFuture, Few, ServerTime, StoreError, StoreErrorKind};
use crate::internal::sync::atomic::AtomicU64;
use crate::key::LockKey;
use crate::replication::Replication;
use crate::token::FencingToken;

mod operation;
#[doc(hidden)]
pub mod plan;
mod rules;
#[doc(hidden)]
pub mod steps;

pub use operation::{IntoOperationId, InvalidOperationId, OperationId};
pub use rules::{Settle, State, next};

/// Maximum quantity, and maximum total: the largest integer that Lua and JavaScript represent
/// exactly.
pub const MAX_QUANTITY: u64 = (1 << 53) - 1;

/// How a store with several places lays out a stock. Other stores have one layout only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Layout {
    /// In one place: every operation is one step.
    #[default]
    OneSlot,
    /// **Experimental.** Segments and operation records are placed by their names, as in the slots
    /// of a Redis Cluster, so that different servers sell different segments.
    ///
    /// An operation takes several steps. If a program dies in between, the next caller finishes or
    /// undoes the operation. `Taken::is_repeated` is not reliable in this layout, and there is no
    /// audit.
    Spread,
}

/// The fields that all requests have in common.
#[derive(Debug)]
pub struct StockCall {
    /// The stock.
    pub stock: LockKey,
    /// The call resolves within about this time, and the store refuses to execute it later.
    pub timeout: Duration,
    /// How long the record of an operation is kept once nothing of it is open.
    pub retention: Duration,
    /// How many replicas have to confirm the change before the call is answered.
    pub replication: Replication,
    /// How the stock is laid out.
    pub layout: Layout,
    alone: bool,
    /// The generation that the stock must have.
    #[doc(hidden)]
    pub generation: AtomicU64,
    latest: Latest,
}

impl StockCall {
    /// Creates a call that no replica has to confirm.
    #[must_use]
    pub fn new(stock: LockKey, timeout: Duration, retention: Duration) -> Self {
        let (replication, layout, latest) = (Replication::NONE, Layout::OneSlot, Latest::default());
        Self {
            stock,
            timeout,
            retention,
            replication,
            layout,
            alone: false,
            generation: AtomicU64::default(),
            latest,
        }
    }

    /// Requires replicas to confirm the call.
    #[must_use]
    pub fn replicated(self, replication: Replication) -> Self {
        Self { replication, ..self }
    }

    /// Sets the layout of the stock.
    #[must_use]
    pub fn laid_out(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// Sends the call alone, instead of batched with others that are ready.
    #[must_use]
    pub fn by_itself(self) -> Self {
        Self { alone: true, ..self }
    }

    /// Whether the call is to be sent [alone](Self::by_itself).
    #[must_use]
    pub fn is_by_itself(&self) -> bool {
        self.alone
    }

    /// Refuses a call that wants replicas to confirm; for stores without replicas.
    #[doc(hidden)]
    pub fn refuse_replication(&self) -> Result<(), StoreError> {
        if self.replication.is_none() {
            return Ok(());
        }
        let message = "this store has no replicas that could confirm a change; leave out `replication`";
        Err(StoreError::new(StoreErrorKind::Unsupported, message))
    }

    /// Stamps the call, as [`AcquireRequest::stamp`](super::AcquireRequest::stamp) does.
    pub fn stamp(&self, estimate: ServerTime) -> ServerTime {
        self.latest.stamp(estimate, self.timeout)
    }
}

/// Takes units away, for good or until a deadline.
#[derive(Debug)]
pub struct TakeRequest {
    /// The stock, and the terms of the call.
    pub call: StockCall,
    /// The id that identifies a re-sent request.
    pub operation: OperationId,
    /// How many units, 1 to [`MAX_QUANTITY`].
    pub quantity: u64,
    /// How long the units are reserved, by the store's clock; `None` if they are sold.
    pub hold: Option<Duration>,
    /// The segment to look at first. A number that the stock does not have is allowed.
    pub first: u32,
    /// The only segment to look at, with the token of its lock, if the caller holds that lock.
    pub only: Option<(u32, Option<FencingToken>)>,
}

/// A quantity of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The segment.
    pub segment: u32,
    /// How many units.
    pub quantity: u64,
}

/// The answer to a [`TakeRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeAnswer {
    /// Done, now or by the same request sent before.
    Done {
        /// The segments that the units come from.
        parts: Few<Part>,
        /// The state of the operation: held or sold.
        state: State,
        /// Remaining time of the reservation.
        remaining: Option<Duration>,
        /// Whether the operation existed already.
        repeated: bool,
    },
    /// The operation exists, and is over.
    Over(State),
    /// The id belongs to an operation with another quantity, or that differs in being reserved.
    Different {
        /// Quantity of the existing operation.
        quantity: u64,
        /// Whether the existing operation is a reservation.
        reserved: bool,
    },
    /// At one moment there were too few units in the stock, or in the only segment, and none in
    /// transit.
    Short {
        /// How many there were.
        available: u64,
    },
    /// There may be enough units, but other operations interfered each time they were counted, or
    /// more reservations are over than one call ends.
    Contended,
    /// The token is older than one that the segment has seen: the lock was lost.
    Stale,
    /// The stock does not exist.
    Missing,
}

/// Ends or undoes an operation.
#[derive(Debug)]
pub struct SettleRequest {
    /// The stock, and the terms of the call.
    pub call: StockCall,
    /// The operation.
    pub operation: OperationId,
    /// The way in which it ends.
    pub settle: Settle,
}

/// The answer to a [`SettleRequest`], according to [`next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleAnswer {
    /// The operation has a record now, or had one.
    Known {
        /// The state before; `None` if there was no record.
        before: Option<State>,
        /// The state now.
        now: State,
        /// Quantity of the operation; 0 without a record.
        quantity: u64,
        /// Whether it was a reservation.
        reserved: bool,
    },
    /// The operation had no record, and got none.
    Unknown,
    /// The stock does not exist.
    Missing,
}

/// Adds units to the stock.
#[derive(Debug)]
pub struct RestockRequest {
    /// The stock, and the terms of the call.
    pub call: StockCall,
    /// The id that identifies a re-sent request.
    pub operation: OperationId,
    /// How many units, 1 to [`MAX_QUANTITY`].
    pub quantity: u64,
}

/// The answer to a [`RestockRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestockAnswer {
    /// The units were added, now or by the same request sent before.
    Done {
        /// Whether it was done before.
        repeated: bool,
    },
    /// The id belongs to another operation.
    Different {
        /// Quantity of that operation.
        quantity: u64,
    },
    /// The total would exceed [`MAX_QUANTITY`].
    TooMany,
    /// The stock does not exist.
    Missing,
}

/// One segment of a [`Snapshot`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCounts {
    /// Units that can be taken.
    pub available: u64,
    /// Units that are reserved, or taken by an operation that is not decided yet.
    pub held: u64,
    /// Units that were sold and not given back.
    pub sold: u64,
    /// Whether the segment takes part in sales; `false` for one that a resize has retired.
    pub active: bool,
}

/// The counts of a stock at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The segments in their order, retired ones last.
    pub segments: Vec<SegmentCounts>,
    /// Units on the way from one segment to another.
    pub in_transit: u64,
    /// Units at the creation of the stock.
    pub initial: u64,
    /// Units added since.
    pub restocked: u64,
    /// Incremented by every change of the number of segments.
    pub epoch: u64,
}

impl Snapshot {
    fn sum(&self, of: impl Fn(&SegmentCounts) -> u64) -> u64 {
        self.segments.iter().map(of).sum()
    }

    /// Returns the units that can be taken, in all segments.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.sum(|segment| segment.available)
    }

    /// Returns the units that are reserved, or taken by operations that are not decided yet.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.sum(|segment| segment.held)
    }

    /// Returns the units that were sold and not given back.
    #[must_use]
    pub fn sold(&self) -> u64 {
        self.sum(|segment| segment.sold)
    }

    /// Whether all units that were ever put in are accounted for:
    /// `initial + restocked = available + held + in transit + sold`.
    ///
    /// The strength of this check depends on the store. In memory, in SQL and in the
    /// [spread](Layout::Spread) layout, sold units are counted separately. In one slot of Redis
    /// they are computed: the units that each segment accounts for, minus the other counts. There,
    /// only an audit detects too many or too few available or held units.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.initial + self.restocked == self.available() + self.held() + self.in_transit + self.sold()
    }
}

/// The counts of a stock, and what its operation records add up to; made by
/// `SegmentedStock::audit`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// The counts.
    pub counted: Snapshot,
    /// Reserved units, according to the records of reservations.
    pub held: u64,
    /// Units sold and not given back, according to the records of sales.
    pub sold: u64,
    /// Units sold by operations whose records are forgotten.
    pub forgotten: u64,
}

impl Audit {
    /// Whether counts and records agree. The counts [balance](Snapshot::balances), the held units
    /// are those of the records, and the sold units are those of the records plus the forgotten
    /// ones.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let Self { counted, held, sold, forgotten } = self;
        counted.balances() && counted.held() == *held && counted.sold() == sold.saturating_add(*forgotten)
    }
}

/// The answer to an [audit](StockStore::audit).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditAnswer {
    /// All records and counts at one moment.
    Audited(Audit),
    /// Each look through the records was disturbed by a concurrent change.
    Contended,
    /// The stock does not exist.
    Missing,
}

/// The result of a [sweep](StockStore::sweep).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Overdue reservations that were ended.
    pub expired: u64,
    /// Half-done operations and transfers that were finished or undone, and reservations without a
    /// record.
    pub recovered: u64,
    /// Expired records that were thrown away, in stores that do not do that by themselves.
    pub forgotten: u64,
    /// Whether there is more to do.
    pub more: bool,
}

/// A place where stocks are kept.
///
/// # Rules for every implementation
///
/// - Each call is all or nothing to anyone who reads the stock through these methods. If a caller
///   died half-way, the next caller finishes or undoes its work.
/// - A re-sent request changes nothing, at whatever point the first one stopped. [`next`] defines
///   what becomes of records.
/// - Counts change by differences, and never become negative.
/// - Reservations end by the store's clock. A take that finds too few units ends some overdue
///   reservations, and looks again.
/// - The store itself refuses a request that arrives later than its time-out.
/// - After an error with an [unknown outcome](StoreError::outcome_unknown), sending the same
///   request again returns the outcome.
pub trait StockStore: Send + Sync + fmt::Debug + 'static {
    /// Creates the stock with these units in its segments; returns `false` when a stock of this
    /// name exists already, whatever its content.
    fn initialize(&self, call: StockCall, segments: Vec<u64>) -> BoxFuture<Result<bool, StoreError>>;

    /// Takes units: from one segment that has enough, or else from several.
    fn take(&self, request: Arc<TakeRequest>) -> BoxFuture<Result<TakeAnswer, StoreError>>;

    /// Ends or undoes an operation.
    fn settle(&self, request: Arc<SettleRequest>) -> BoxFuture<Result<SettleAnswer, StoreError>>;

    /// Adds units, to the segments that have the fewest.
    fn restock(&self, request: Arc<RestockRequest>) -> BoxFuture<Result<RestockAnswer, StoreError>>;

    /// Returns the counts at one moment; `None` when the stock does not exist.
    fn snapshot(&self, call: StockCall) -> BoxFuture<Result<Option<Snapshot>, StoreError>>;

    /// Evens out the available units; returns `None` when the stock does not exist.
    fn rebalance(&self, call: StockCall) -> BoxFuture<Result<Option<()>, StoreError>>;

    /// Sets the number of segments. The units of removed segments move to the remaining ones.
    /// Returns `None` when the stock does not exist.
    fn resize(&self, call: StockCall, segments: u32) -> BoxFuture<Result<Option<()>, StoreError>>;

    /// Compares the records of operations with the counts, in steps that block nobody for long.
    fn audit(&self, call: StockCall) -> BoxFuture<Result<AuditAnswer, StoreError>>;

    /// Ends overdue reservations, and finishes or undoes half-done operations: about `limit` of
    /// them at most.
    fn sweep(&self, call: StockCall, limit: u32) -> BoxFuture<Result<Swept, StoreError>>;
}
