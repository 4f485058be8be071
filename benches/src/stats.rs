//! Statistics of samples: percentiles and Jain's fairness index.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Nanoseconds in an hour, the longest sample; longer ones count as this.
const LONGEST: u64 = 3_600_000_000_000;

/// Durations, kept to three significant digits however many there are.
#[derive(Clone, Debug)]
pub(crate) struct Samples(Histogram<u64>);

impl Samples {
    pub(crate) fn new() -> Self {
        // Of a fixed size: it does not grow, and so does not allocate, during a measurement.
        Self(Histogram::new_with_max(LONGEST, 3).expect("an hour in three digits is in range"))
    }

    pub(crate) fn record(&mut self, sample: Duration) {
        self.0.saturating_record(nanos(sample));
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// Returns the `percent`-th percentile in microseconds; `None` without samples.
    pub(crate) fn percentile(&self, percent: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| micros(self.0.value_at_percentile(percent)))
    }

    /// Returns the largest sample in microseconds; `None` without samples.
    pub(crate) fn max(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| micros(self.0.max()))
    }
}

/// The numbers of a line about waits, in microseconds; `None` without samples.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waits {
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) max: Option<f64>,
}

impl From<&Samples> for Waits {
    fn from(samples: &Samples) -> Self {
        Self { p50: samples.percentile(50.0), p99: samples.percentile(99.0), max: samples.max() }
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Converts nanoseconds to microseconds with two decimals.
pub(crate) fn micros(nanos: u64) -> f64 {
    round(nanos as f64 / 1000.0)
}

/// Rounds to two decimals.
pub(crate) fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Rounds to four decimals, for ratios.
pub(crate) fn round_ratio(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

/// Returns Jain's fairness index (Jain, Chiu, Hawe: DEC-TR-301, 1984): 1 when all shares are equal,
/// 1/n when one of n gets everything. `None` when nobody got anything.
pub(crate) fn jain(shares: &[u64]) -> Option<f64> {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(micros: impl IntoIterator<Item = u64>) -> Samples {
        let mut samples = Samples::new();
        for sample in micros {
            samples.record(Duration::from_micros(sample));
        }
        samples
    }

    fn close(found: Option<f64>, expected: f64) {
        let found = found.expect("there are samples");
        assert!((found - expected).abs() <= expected / 500.0, "{found} instead of {expected}");
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_samples() {
        let samples = samples((1..=1000).rev());
        close(samples.percentile(50.0), 500.0);
        close(samples.percentile(99.0), 990.0);
        close(samples.max(), 1000.0);
    }

    #[test]
    fn one_outlier_is_the_maximum_and_not_the_median() {
        let samples = samples([10, 10, 10, 5_000_000]);
        close(samples.percentile(50.0), 10.0);
        close(samples.max(), 5_000_000.0);
    }

    #[test]
    fn without_samples_there_are_no_numbers() {
        assert_eq!(Samples::new().percentile(50.0), None);
        assert_eq!(Samples::new().max(), None);
    }

    #[test]
    fn merged_samples_count_as_one_set() {
        let mut all = samples(1..=500);
        all.merge(&samples(501..=1000));
        close(all.percentile(50.0), 500.0);
        close(all.max(), 1000.0);
    }

    #[test]
    fn an_empty_duration_is_a_sample() {
        assert_eq!(samples([0]).percentile(50.0), Some(0.0));
    }

    #[test]
    fn jain_is_one_for_equal_shares_and_one_nth_for_a_monopoly() {
        assert_eq!(jain(&[7, 7, 7, 7]), Some(1.0));
        assert_eq!(jain(&[8, 0, 0, 0]), Some(0.25));
        assert_eq!(jain(&[1, 3]), Some(0.8));
    }

    #[test]
    fn jain_of_nothing_is_nothing() {
        assert_eq!(jain(&[0, 0]), None);
        assert_eq!(jain(&[]), None);
    }
}
