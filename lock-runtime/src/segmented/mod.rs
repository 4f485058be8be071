//! Hot items in segments: locks for the segments of an item, and a stock that is counted in
//! segments.

mod error;
mod lock;
mod order;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod sql;
mod stock;
mod sweeper;

pub use error::StockError;
pub use lock::{AllSegments, MAX_SEGMENTS, SegmentGuard, SegmentedLock};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use sql::SqlStocks;
pub use stock::{Reservation, SegmentedStock, Taken};
pub use sweeper::Sweeper;

pub use lock_core::store::stock::{
    Audit, IntoOperationId, InvalidOperationId, Layout, OperationId, Part, SegmentCounts, Snapshot, Swept,
};
