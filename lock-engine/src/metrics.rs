//! Counters and histograms through the `metrics` facade; nothing without the feature `metrics`.
//! The table is in the documentation of the crate.

#[cfg(feature = "metrics")]
mod on {
    use std::borrow::Cow;
    use std::time::Duration;

    use crate::trace::TARGET;

    pub type Label = Cow<'static, str>;

    pub fn acquired(label: &Label, outcome: &'static str, took: impl FnOnce() -> Duration) {
        metrics::histogram!(target: TARGET, "lock_acquire_seconds", "lock" => label.clone(), "outcome" => outcome)
            .record(took().as_secs_f64());
    }

    pub fn held(label: &Label, held: impl FnOnce() -> Duration) {
        metrics::histogram!(target: TARGET, "lock_hold_seconds", "lock" => label.clone())
            .record(held().as_secs_f64());
    }

    pub fn lost() {
        metrics::counter!(target: TARGET, "lock_lost_total").increment(1);
    }

    pub fn handed_off() {
        metrics::counter!(target: TARGET, "lock_handoffs_total").increment(1);
    }

    pub fn requeued() {
        metrics::counter!(target: TARGET, "lock_requeued_total").increment(1);
    }

    pub fn waiters(change: f64) {
        metrics::gauge!(target: TARGET, "lock_waiters").increment(change);
    }

    pub fn release_failed() {
        metrics::counter!(target: TARGET, "lock_release_failed_total").increment(1);
    }
}

#[cfg(not(feature = "metrics"))]
mod on {
    use std::borrow::Cow;
    use std::time::Duration;

    pub type Label = Cow<'static, str>;

    pub fn acquired(_: &Label, _: &'static str, _: impl FnOnce() -> Duration) {}
    pub fn held(_: &Label, _: impl FnOnce() -> Duration) {}
    pub fn lost() {}
    pub fn handed_off() {}
    pub fn requeued() {}
    pub fn waiters(_: f64) {}
    pub fn release_failed() {}
}

pub use on::{Label, acquired, handed_off, held, lost, release_failed, requeued, waiters};
