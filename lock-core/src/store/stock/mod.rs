//! [`StockStore`]: where a stock is kept.

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

/// The largest quantity, and the largest total: what a double holds exactly, as Lua and JavaScript
/// need it.
pub const MAX_QUANTITY: u64 = (1 << 53) - 1;

/// Where a store that has several places keeps a stock. Others have one layout only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Layout {
    /// In one place: every operation is one step there.
    #[default]
    OneSlot,
    /// **Experimental.** Each segment, and each operation's record, where its name says, as in the
    /// slots of a Redis Cluster: segments sell at different servers. An operation takes several
    /// steps, and the next caller finishes or undoes what a program that died has left half-done.
    /// `Taken::is_repeated` is not to be relied on here, and there
    /// is no audit.
    Spread,
}

/// What all requests have in common.
#[derive(Debug)]
pub struct StockCall {
    /// The stock.
    pub stock: LockKey,
    /// The call resolves within about this time, and the store refuses to execute it later.
    pub timeout: Duration,
    /// For how long the record of an operation is kept once nothing of it is open.
    pub retention: Duration,
    /// How many replicas have to confirm what was done before it is answered.
    pub replication: Replication,
    /// Where the stock is kept.
    pub layout: Layout,
    alone: bool,
    /// The generation that the stock must have.
    #[doc(hidden)]
    pub generation: AtomicU64,
    latest: Latest,
}

impl StockCall {
    /// A call that no replica has to confirm.
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

    /// So many replicas have to confirm it.
    #[must_use]
    pub fn replicated(self, replication: Replication) -> Self {
        Self { replication, ..self }
    }

    /// It is about a stock in this layout.
    #[must_use]
    pub fn laid_out(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// Sent by itself, not together with others that are ready.
    #[must_use]
    pub fn by_itself(self) -> Self {
        Self { alone: true, ..self }
    }

    /// Whether it is to be sent [by itself](Self::by_itself).
    #[must_use]
    pub fn is_by_itself(&self) -> bool {
        self.alone
    }

    /// For stores without replicas: an error when some are to confirm what is done.
    #[doc(hidden)]
    pub fn refuse_replication(&self) -> Result<(), StoreError> {
        if self.replication.is_none() {
            return Ok(());
        }
        let message = "no replica can confirm anything here: this store has none; leave out `replication`";
        Err(StoreError::new(StoreErrorKind::Unsupported, message))
    }

    /// As [`AcquireRequest::stamp`](super::AcquireRequest::stamp).
    pub fn stamp(&self, estimate: ServerTime) -> ServerTime {
        self.latest.stamp(estimate, self.timeout)
    }
}

/// Takes units away, for good or until a deadline.
#[derive(Debug)]
pub struct TakeRequest {
    /// Where, and for how long.
    pub call: StockCall,
    /// What makes it the same one when it is sent again.
    pub operation: OperationId,
    /// How many, 1 to [`MAX_QUANTITY`].
    pub quantity: u64,
    /// Reserved for so long, by the store's clock; `None`: sold.
    pub hold: Option<Duration>,
    /// Where to look first. Another number than the stock has is as good as any.
    pub first: u32,
    /// Look nowhere else: the caller has the lock of this segment, with this token, if it has one.
    pub only: Option<(u32, Option<FencingToken>)>,
}

/// So many units of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The segment.
    pub segment: u32,
    /// How many.
    pub quantity: u64,
}

/// The answer to a [`TakeRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeAnswer {
    /// Done, now or by the same request sent before.
    Done {
        /// Where the units are from.
        parts: Few<Part>,
        /// Where the operation stands: held or sold.
        state: State,
        /// What is left of the reservation.
        remaining: Option<Duration>,
        /// It was there already.
        repeated: bool,
    },
    /// The operation is there and over.
    Over(State),
    /// The id was used for something else: this quantity, reserved or not.
    Different {
        /// Of the operation that is there.
        quantity: u64,
        /// Whether that is a reservation.
        reserved: bool,
    },
    /// At one moment there were so many left, in the stock or in the only segment, and nothing on
    /// its way.
    Short {
        /// How many.
        available: u64,
    },
    /// There may be enough, but others came in between each time it was counted, or more
    /// reservations are over than one call ends.
    Contended,
    /// The token is older than one that the segment has seen: the lock was lost.
    Stale,
    /// There is no such stock.
    Missing,
}

/// Ends or undoes an operation.
#[derive(Debug)]
pub struct SettleRequest {
    /// Where, and for how long.
    pub call: StockCall,
    /// Which.
    pub operation: OperationId,
    /// How.
    pub settle: Settle,
}

/// The answer to a [`SettleRequest`], as [`next`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleAnswer {
    /// The operation has, or had, a record.
    Known {
        /// Where it stood; `None`: it had no record.
        before: Option<State>,
        /// Where it stands.
        now: State,
        /// Of how many units it is; 0 without a record.
        quantity: u64,
        /// Whether it was reserved.
        reserved: bool,
    },
    /// It has none, and got none.
    Unknown,
    /// There is no such stock.
    Missing,
}

/// Puts units in.
#[derive(Debug)]
pub struct RestockRequest {
    /// Where, and for how long.
    pub call: StockCall,
    /// What makes it the same one when it is sent again.
    pub operation: OperationId,
    /// How many, 1 to [`MAX_QUANTITY`].
    pub quantity: u64,
}

/// The answer to a [`RestockRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestockAnswer {
    /// They are there, now or by the same request sent before.
    Done {
        /// It was done before.
        repeated: bool,
    },
    /// The id was used for something else.
    Different {
        /// Its quantity.
        quantity: u64,
    },
    /// There would be more than [`MAX_QUANTITY`].
    TooMany,
    /// There is no such stock.
    Missing,
}

/// One segment of a [`Snapshot`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCounts {
    /// What can be taken.
    pub available: u64,
    /// What is reserved, or taken by an operation that is not decided yet.
    pub held: u64,
    /// What is sold, and was not given back.
    pub sold: u64,
    /// It takes part in sales; not one that a resize has retired.
    pub active: bool,
}

/// What there was at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The segments in their order, those that are retired behind the others.
    pub segments: Vec<SegmentCounts>,
    /// On the way from one segment to another.
    pub in_transit: u64,
    /// What there was when the stock was made.
    pub initial: u64,
    /// What has been put in since.
    pub restocked: u64,
    /// Raised by every change of the number of segments.
    pub epoch: u64,
}

impl Snapshot {
    fn sum(&self, of: impl Fn(&SegmentCounts) -> u64) -> u64 {
        self.segments.iter().map(of).sum()
    }

    /// What can be taken, in all segments.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.sum(|segment| segment.available)
    }

    /// What is reserved, or taken by operations that are not decided yet.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.sum(|segment| segment.held)
    }

    /// What is sold, and was not given back.
    #[must_use]
    pub fn sold(&self) -> u64 {
        self.sum(|segment| segment.sold)
    }

    /// Whether everything that was ever put in is accounted for:
    /// `initial + restocked = available + held + in transit + sold`.
    ///
    /// What that checks differs. In memory, in SQL and where the stock is spread, what is sold is a
    /// count of its own. In one slot of Redis it is what the others leave of what each segment
    /// accounts for: there only an audit sees that
    /// available or held units are too many or too few.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.initial + self.restocked == self.available() + self.held() + self.in_transit + self.sold()
    }
}

/// What the records of operations say, beside what is counted; made by
/// `SegmentedStock::audit`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// What is counted.
    pub counted: Snapshot,
    /// Units that are reserved, as the records of reservations have it.
    pub held: u64,
    /// Units that are sold and not given back, as the records of sales have it.
    pub sold: u64,
    /// Units that were sold by operations whose records are forgotten.
    pub forgotten: u64,
}

impl Audit {
    /// Whether counts and records agree: the counts [balance](Snapshot::balances), what is held is
    /// what the records hold, and what is sold is what the records have sold, with what is
    /// forgotten.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let Self { counted, held, sold, forgotten } = self;
        counted.balances() && counted.held() == *held && counted.sold() == sold.saturating_add(*forgotten)
    }
}

/// The answer to an [audit](StockStore::audit).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditAnswer {
    /// All records and counts, as they were at one moment.
    Audited(Audit),
    /// Others changed something each time the records were looked through.
    Contended,
    /// There is no such stock.
    Missing,
}

/// What a [sweep](StockStore::sweep) has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Reservations that were over.
    pub expired: u64,
    /// Operations and transfers that somebody had left half-done, and reservations without a
    /// record.
    pub recovered: u64,
    /// Records that were over and have been thrown away, where the store does not do that by
    /// itself.
    pub forgotten: u64,
    /// There is more to do.
    pub more: bool,
}

/// Where stocks are kept.
///
/// # Rules for every implementation
///
/// - Each call is all or nothing, for whoever looks at the stock by these methods: what a caller
///   that died has left behind is finished or undone by whoever comes next.
/// - A request that is sent again changes nothing, wherever the first one came to an end. [`next`]
///   says what becomes of records.
/// - Counts change by differences, and never below zero.
/// - Reservations end by the store's clock. A take that finds too little ends some that are over,
///   and looks again.
/// - A request is refused by the store itself when it arrives later than its time-out.
/// - After an error of a kind whose [outcome is unknown](StoreError::outcome_unknown), the same
///   request tells what came of it.
pub trait StockStore: Send + Sync + fmt::Debug + 'static {
    /// Makes the stock with these units in its segments; `false` when there is one of this name
    /// already, whatever it has.
    fn initialize(&self, call: StockCall, segments: Vec<u64>) -> BoxFuture<Result<bool, StoreError>>;

    /// Takes units: of one segment that has enough, or else of several.
    fn take(&self, request: Arc<TakeRequest>) -> BoxFuture<Result<TakeAnswer, StoreError>>;

    /// Ends or undoes an operation.
    fn settle(&self, request: Arc<SettleRequest>) -> BoxFuture<Result<SettleAnswer, StoreError>>;

    /// Puts units in, where there are fewest.
    fn restock(&self, request: Arc<RestockRequest>) -> BoxFuture<Result<RestockAnswer, StoreError>>;

    /// What there is, at one moment; `None` when there is no such stock.
    fn snapshot(&self, call: StockCall) -> BoxFuture<Result<Option<Snapshot>, StoreError>>;

    /// Evens out what is available; `None` when there is no such stock.
    fn rebalance(&self, call: StockCall) -> BoxFuture<Result<Option<()>, StoreError>>;

    /// From now on there are this many segments. What the others had is moved into those that are
    /// left; `None` when there is no such stock.
    fn resize(&self, call: StockCall, segments: u32) -> BoxFuture<Result<Option<()>, StoreError>>;

    /// Compares the records of operations with the counts, in steps that keep nobody waiting for
    /// long.
    fn audit(&self, call: StockCall) -> BoxFuture<Result<AuditAnswer, StoreError>>;

    /// Ends reservations that are over, and finishes or undoes what somebody has left half-done: at
    /// most about `limit`.
    fn sweep(&self, call: StockCall, limit: u32) -> BoxFuture<Result<Swept, StoreError>>;
}
