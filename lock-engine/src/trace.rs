//! [`TARGET`]: where events, spans and metrics belong.

/// Target of all events, spans and metrics: programs filter by the name of the crate that they
/// know.
pub(crate) const TARGET: &str = "lock_runtime::engine";
