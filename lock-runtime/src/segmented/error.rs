//! [`StockError`]: why an operation on a stock was not done.

use std::sync::Arc;

use lock_core::LockKey;
use lock_core::store::StoreError;
use lock_core::store::stock::{InvalidOperationId, OperationId};

use crate::error::LockError;

/// Why an operation on a [`SegmentedStock`](super::SegmentedStock) was not done.
///
/// None of these operations has changed the stock, with two exceptions:
/// [`Unavailable`](Self::Unavailable) may have changed it, and
/// [`NotReplicated`](Self::NotReplicated) has. Send the same operation under the same id again to
/// learn the outcome.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StockError {
    /// At one moment, all segments together had fewer units than wanted, and no units were moving
    /// between them. Units of expired reservations were counted. Reserved units may still come
    /// back.
    #[error("stock {stock}: wanted {wanted} units, {available} are available")]
    SoldOut {
        /// The stock.
        stock: LockKey,
        /// The number of units wanted.
        wanted: u64,
        /// The number of units available.
        available: u64,
    },
    /// The segment that the caller has locked has fewer units than wanted. Other segments may have
    /// enough, and this one may have enough for a smaller order. Release it and
    /// [take](super::SegmentedStock::take) from all segments, as
    /// [`take_locked`](super::SegmentedStock::take_locked) does by itself.
    #[error("stock {stock}: wanted {wanted} units from segment {segment}, {available} are available there")]
    SegmentShort {
        /// The stock.
        stock: LockKey,
        /// The segment.
        segment: u32,
        /// The number of units wanted.
        wanted: u64,
        /// The number of units in the segment; also 0 if the stock has no such segment, or no
        /// longer has it.
        available: u64,
    },
    /// There may be enough units, but others came in between whenever they were counted or put
    /// together. Or there are more overdue reservations than one call ends. Try again.
    #[error("stock {stock}: other calls changed the stock at the same time; try again")]
    Contended {
        /// The stock.
        stock: LockKey,
    },
    /// The id was used for another operation. Give each operation its own id.
    #[error("stock {stock}: the id {operation} was already used for {was}; use a new id for each operation")]
    Different {
        /// The stock.
        stock: LockKey,
        /// The id.
        operation: OperationId,
        /// The operation that it was used for.
        was: String,
    },
    /// The operation was cancelled, perhaps before it arrived.
    #[error("stock {stock}: the operation {operation} was cancelled")]
    Cancelled {
        /// The stock.
        stock: LockKey,
        /// The id.
        operation: OperationId,
    },
    /// The reservation was not confirmed in time; its units are available again.
    #[error("stock {stock}: the reservation {operation} has expired")]
    Expired {
        /// The stock.
        stock: LockKey,
        /// The id.
        operation: OperationId,
    },
    /// The units that the operation had taken were given back.
    #[error("stock {stock}: the units of the operation {operation} were given back")]
    GivenBack {
        /// The stock.
        stock: LockKey,
        /// The id.
        operation: OperationId,
    },
    /// The reservation is confirmed: it can be given back, but no longer cancelled.
    #[error("stock {stock}: the reservation {operation} is confirmed; call `give_back` instead")]
    Confirmed {
        /// The stock.
        stock: LockKey,
        /// The id.
        operation: OperationId,
    },
    /// The units are reserved and not sold: cancel the reservation instead.
    #[error("stock {stock}: the operation {operation} is a reservation; call `cancel` instead")]
    StillHeld {
        /// The stock.
        stock: LockKey,
        /// The id.
        operation: OperationId,
    },
    /// The units were taken without a reservation: there is nothing to confirm or cancel.
    #[error(
        "stock {stock}: the operation {operation} was a sale without a reservation; call `give_back` instead"
    )]
    NotReserved {
        /// The stock.
        stock: LockKey,
        /// The id.
        operation: OperationId,
    },
    /// There is no such operation, or its retention is over.
    #[error("stock {stock}: there is no operation {operation}, or its retention is over")]
    UnknownOperation {
        /// The stock.
        stock: LockKey,
        /// The id.
        operation: OperationId,
    },
    /// The lock of the segment was lost: a holder with a newer token has sold from the segment.
    /// Nothing was taken.
    #[error(
        "stock {stock}: the lock of the segment was lost, and nothing was taken; take the lock again, and then send the operation again"
    )]
    Stale {
        /// The stock.
        stock: LockKey,
    },
    /// No stock of this name was made.
    #[error("stock {stock} does not exist; create it with `initialize`")]
    Missing {
        /// The stock.
        stock: LockKey,
    },
    /// The store could not be reached or has not answered, so it is unknown whether the operation
    /// was done. Send the same operation again.
    #[error("stock {stock}: the store is unavailable: {cause}")]
    Unavailable {
        /// The stock.
        stock: LockKey,
        /// The store's last error.
        cause: StoreError,
    },
    /// The operation was done at the primary, but too few replicas confirmed it in time: a failover
    /// may undo it. Send the same operation again: that only waits for the replicas once more.
    #[error("stock {stock}: the operation is done, but too few replicas confirmed it: {cause}")]
    NotReplicated {
        /// The stock.
        stock: LockKey,
        /// How many replicas have confirmed it.
        cause: StoreError,
    },
    /// A lock for [`take_locked`](super::SegmentedStock::take_locked) could not be taken, or the
    /// stock's name is invalid.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A setting or an argument is invalid; the text says what to change.
    #[error("{reason}")]
    Misconfigured {
        /// The text that says what to change.
        reason: Arc<str>,
    },
    /// The id is invalid.
    #[error(transparent)]
    InvalidOperationId(#[from] InvalidOperationId),
}

impl StockError {
    /// Whether too few units are available now. Others may still bring units back.
    #[must_use]
    pub fn is_sold_out(&self) -> bool {
        matches!(self, Self::SoldOut { .. })
    }

    /// Whether the same operation may succeed if it is sent again. After
    /// [`Unavailable`](Self::Unavailable) and [`NotReplicated`](Self::NotReplicated) it may already
    /// have been done; it is not done twice.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Contended { .. }
            | Self::Unavailable { .. }
            | Self::NotReplicated { .. }
            | Self::Stale { .. } => true,
            Self::Lock(error) => error.is_retryable(),
            _ => false,
        }
    }
}
