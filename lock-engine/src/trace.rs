//! [`TARGET`]: the target of events, spans and metrics.

/// Target of all events, spans and metrics: programs filter by the name of the crate they know.
pub(crate) const TARGET: &str = "lock_runtime::engine";
