//! Hot items in segments: locks for the segments of an item, and a stock that is counted in
//! segments.

mod error;
mod lock;
mod order;
mod stock;
mod sweeper;

pub use error::StockError;
pub use lock::{AllSegments, MAX_SEGMENTS, SegmentGuard, SegmentedLock};
pub use stock::{Reservation, SegmentedStock, Taken};
pub use sweeper::Sweeper;

pub use lock_core::store::stock::{
    Audit, IntoOperationId, InvalidOperationId, Layout, OperationId, Part, SegmentCounts, Snapshot, Swept,
};
