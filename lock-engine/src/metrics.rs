//! Counters and histograms through the `metrics` facade; empty without the feature `metrics`. The
//! documentation of the crate has the table.

#![cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "nothing is recorded"))]

use std::borrow::Cow;
use std::time::Duration;

#[cfg(feature = "metrics")]
use crate::trace::TARGET;

pub type Label = Cow<'static, str>;

pub fn acquired(label: &Label, outcome: &'static str, took: impl FnOnce() -> Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(target: TARGET, "lock_acquire_seconds", "lock" => label.clone(), "outcome" => outcome)
        .record(took().as_secs_f64());
}

pub fn held(label: &Label, held: impl FnOnce() -> Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(target: TARGET, "lock_hold_seconds", "lock" => label.clone())
        .record(held().as_secs_f64());
}

pub fn lost() {
    #[cfg(feature = "metrics")]
    metrics::counter!(target: TARGET, "lock_lost_total").increment(1);
}

pub fn handed_off() {
    #[cfg(feature = "metrics")]
    metrics::counter!(target: TARGET, "lock_handoffs_total").increment(1);
}

pub fn requeued() {
    #[cfg(feature = "metrics")]
    metrics::counter!(target: TARGET, "lock_requeued_total").increment(1);
}

pub fn waiters(change: f64) {
    #[cfg(feature = "metrics")]
    metrics::gauge!(target: TARGET, "lock_waiters").increment(change);
}

pub fn release_failed() {
    #[cfg(feature = "metrics")]
    metrics::counter!(target: TARGET, "lock_release_failed_total").increment(1);
}
