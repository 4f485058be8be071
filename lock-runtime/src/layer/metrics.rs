//! The layer's metrics, counted through the `metrics` facade; without the feature `metrics`,
//! nothing.

use lock_engine::metrics::Label;

/// Counts a request that was refused for `reason`.
#[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is counted"))]
pub(super) fn refused(label: &Label, reason: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!("lock_layer_refused_total", "lock" => label.clone(), "reason" => reason).increment(1);
}

/// Counts a request that was served without its lock.
#[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is counted"))]
pub(super) fn unlocked(label: &Label) {
    #[cfg(feature = "metrics")]
    metrics::counter!("lock_layer_unlocked_total", "lock" => label.clone()).increment(1);
}
