//! Counters and histograms through the `metrics` facade; nothing without the feature `metrics`.
//! The table is in the documentation of the crate.

#[cfg(feature = "metrics")]
mod on {
    use std::borrow::Cow;
    use std::time::Duration;

    pub(crate) type Label = Cow<'static, str>;

    pub(crate) fn acquired(label: &Label, outcome: &'static str, took: impl FnOnce() -> Duration) {
        metrics::histogram!("lock_acquire_seconds", "lock" => label.clone(), "outcome" => outcome)
            .record(took().as_secs_f64());
    }

    pub(crate) fn held(label: &Label, held: impl FnOnce() -> Duration) {
        metrics::histogram!("lock_hold_seconds", "lock" => label.clone()).record(held().as_secs_f64());
    }

    pub(crate) fn lost() {
        metrics::counter!("lock_lost_total").increment(1);
    }

    pub(crate) fn handed_off() {
        metrics::counter!("lock_handoffs_total").increment(1);
    }

    pub(crate) fn requeued() {
        metrics::counter!("lock_requeued_total").increment(1);
    }

    pub(crate) fn waiters(change: f64) {
        metrics::gauge!("lock_waiters").increment(change);
    }

    pub(crate) fn release_failed() {
        metrics::counter!("lock_release_failed_total").increment(1);
    }

    #[cfg(feature = "layer")]
    pub(crate) fn layer_refused(label: &Label, reason: &'static str) {
        metrics::counter!("lock_layer_refused_total", "lock" => label.clone(), "reason" => reason)
            .increment(1);
    }

    #[cfg(feature = "layer")]
    pub(crate) fn layer_unlocked(label: &Label) {
        metrics::counter!("lock_layer_unlocked_total", "lock" => label.clone()).increment(1);
    }
}

#[cfg(not(feature = "metrics"))]
mod on {
    use std::borrow::Cow;
    use std::time::Duration;

    pub(crate) type Label = Cow<'static, str>;

    pub(crate) fn acquired(_: &Label, _: &'static str, _: impl FnOnce() -> Duration) {}
    pub(crate) fn held(_: &Label, _: impl FnOnce() -> Duration) {}
    pub(crate) fn lost() {}
    pub(crate) fn handed_off() {}
    pub(crate) fn requeued() {}
    pub(crate) fn waiters(_: f64) {}
    pub(crate) fn release_failed() {}
    #[cfg(feature = "layer")]
    pub(crate) fn layer_refused(_: &Label, _: &'static str) {}
    #[cfg(feature = "layer")]
    pub(crate) fn layer_unlocked(_: &Label) {}
}

pub(crate) use on::{Label, acquired, handed_off, held, lost, release_failed, requeued, waiters};
#[cfg(feature = "layer")]
pub(crate) use on::{layer_refused, layer_unlocked};
