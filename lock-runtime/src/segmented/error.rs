//! [`StockError`]: why an operation on a stock was not done.

use std::sync::Arc;

use lock_core::LockKey;
use lock_core::store::StoreError;
use lock_core::store::stock::{InvalidOperationId, OperationId};

use crate::error::LockError;

/// Why an operation on a [`SegmentedStock`](super::SegmentedStock) was not done.
///
/// None of them has changed the stock, but [`Unavailable`](Self::Unavailable) may have, and
/// [`NotReplicated`](Self::NotReplicated) has: send the same operation under the same id again, and
/// the answer tells.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StockError {
    /// At one moment there were fewer than wanted in all segments together, and none on their way
    /// between them. What is reserved may still come back; what was reserved until then, and is
    /// over, was counted.
    #[error("stock {stock}: {wanted} were wanted, {available} are left")]
    SoldOut {
        /// The stock.
        stock: LockKey,
        /// What was wanted.
        wanted: u64,
        /// What there was.
        available: u64,
    },
    /// The segment that the caller has locked has fewer than this order wants. Others may have
    /// enough, and this one may have enough for a smaller order: release it and
    /// [take](super::SegmentedStock::take) from all segments.
    /// [`take_locked`](super::SegmentedStock::take_locked) does so by itself.
    #[error("stock {stock}: {wanted} were wanted of segment {segment}, {available} are left there")]
    SegmentShort {
        /// The stock.
        stock: LockKey,
        /// The segment.
        segment: u32,
        /// What was wanted.
        wanted: u64,
        /// What the segment had; 0 too when the stock has no such segment, or not any more.
        available: u64,
    },
    /// There may be enough, but others came in between whenever it was counted or put together, or
    /// there are more overdue reservations than one call ends. Try again.
    #[error("stock {stock}: others come in between; try again")]
    Contended {
        /// The stock.
        stock: LockKey,
    },
    /// The id was used for another operation. Give each operation an id of its own.
    #[error("stock {stock}: the operation {operation} was {was}; give each operation an id of its own")]
    Different {
        /// The stock.
        stock: LockKey,
        /// The id.
        operation: OperationId,
        /// What it was used for.
        was: String,
    },
    /// The operation was cancelled, perhaps before it came.
    #[error("stock {stock}: the operation {operation} is cancelled")]
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
    /// What the operation had taken was given back.
    #[error("stock {stock}: what {operation} had taken was given back")]
    GivenBack {
        /// The stock.
        stock: LockKey,
        /// The id.
        operation: OperationId,
    },
    /// The reservation is confirmed: it can be given back, and not cancelled any more.
    #[error("stock {stock}: the reservation {operation} is confirmed; give it back instead")]
    Confirmed {
        /// The stock.
        stock: LockKey,
        /// The id.
        operation: OperationId,
    },
    /// The units are reserved and not sold: cancel the reservation.
    #[error("stock {stock}: {operation} is a reservation; cancel it instead")]
    StillHeld {
        /// The stock.
        stock: LockKey,
        /// The id.
        operation: OperationId,
    },
    /// The units were taken without a reservation: there is nothing to confirm or to cancel.
    #[error("stock {stock}: {operation} was taken without a reservation; give it back instead")]
    NotReserved {
        /// The stock.
        stock: LockKey,
        /// The id.
        operation: OperationId,
    },
    /// No such operation has come, or it is longer ago than the retention.
    #[error("stock {stock}: there is no operation {operation}, or its record is over")]
    UnknownOperation {
        /// The stock.
        stock: LockKey,
        /// The id.
        operation: OperationId,
    },
    /// The lock of the segment was lost, as the process knows, or as the store does because
    /// somebody with a newer one has sold from it. Nothing was taken.
    #[error("stock {stock}: the lock of the segment was lost; nothing was taken")]
    Stale {
        /// The stock.
        stock: LockKey,
    },
    /// Nobody has made this stock.
    #[error("stock {stock}: there is none; make it with `initialize`")]
    Missing {
        /// The stock.
        stock: LockKey,
    },
    /// The store could not be reached, or has not answered: whether the operation was done is
    /// unknown. Send the same again.
    #[error("stock {stock}: the store is unavailable: {cause}")]
    Unavailable {
        /// The stock.
        stock: LockKey,
        /// The store's last error.
        #[source]
        cause: StoreError,
    },
    /// Done at the primary, but too few replicas have confirmed it in time: a failover may undo it.
    /// Send the same again: that waits for the replicas once more, and does nothing else.
    #[error("stock {stock}: done, but not confirmed by replicas: {cause}")]
    NotReplicated {
        /// The stock.
        stock: LockKey,
        /// How many have confirmed it.
        #[source]
        cause: StoreError,
    },
    /// A lock was not to be had, for [`take_locked`](super::SegmentedStock::take_locked); or the
    /// stock's name is invalid.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A setting or an argument; the text says what to change.
    #[error("{reason}")]
    Misconfigured {
        /// What to change.
        reason: Arc<str>,
    },
    /// The id is none.
    #[error(transparent)]
    InvalidOperationId(#[from] InvalidOperationId),
}

impl StockError {
    /// Whether there is not enough, now: somebody else may bring something back.
    #[must_use]
    pub fn is_sold_out(&self) -> bool {
        matches!(self, Self::SoldOut { .. })
    }

    /// Whether the same operation, sent again, may be done. After
    /// [`Unavailable`](Self::Unavailable) and [`NotReplicated`](Self::NotReplicated) it may have
    /// been done already, and is not done twice.
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
