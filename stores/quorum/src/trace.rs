//! [`TARGET`]: where events and spans belong.

/// Target of all events and spans: programs filter by the name of the crate that they know.
pub(crate) const TARGET: &str = "lock_runtime::store::quorum";
