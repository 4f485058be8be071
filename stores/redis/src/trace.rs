//! [`TARGET`]: the target of events and spans.

/// Target of all events and spans: programs filter by the name of the crate they know.
pub(crate) const TARGET: &str = "lock_runtime::store::redis";
