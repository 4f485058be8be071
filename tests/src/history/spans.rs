//! [`Spans`]: sets of times.

use std::time::Duration;

/// Intervals (from, to): not empty, sorted, and disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spans(Vec<(u64, u64)>);

impl Spans {
    pub(super) fn of(spans: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut spans: Vec<(u64, u64)> = spans.into_iter().filter(|(from, to)| from < to).collect();
        spans.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(spans.len());
        for (from, to) in spans {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        Self(merged)
    }

    pub(super) fn one(from: u64, to: u64) -> Self {
        Self::of([(from, to)])
    }

    pub(super) fn and(&self, other: &Self) -> Self {
        let mut both = Vec::new();
        let (mut these, mut those) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(&&this), Some(&&that)) = (these.peek(), those.peek()) {
            both.push((this.0.max(that.0), this.1.min(that.1)));
            if this.1 <= that.1 {
                these.next();
            } else {
                those.next();
            }
        }
        Self::of(both)
    }

    pub(super) fn without(&self, other: &Self) -> Self {
        self.and(&other.inverse())
    }

    fn inverse(&self) -> Self {
        let mut rest = Vec::with_capacity(self.0.len() + 1);
        let mut from = 0;
        for &(start, end) in &self.0 {
            rest.push((from, start));
            from = end;
        }
        rest.push((from, u64::MAX));
        Self::of(rest)
    }

    /// Whether some span contains a time between `from` and `to`; all ends are included.
    pub(super) fn touches(&self, from: u64, to: u64) -> bool {
        let next = self.0.partition_point(|span| span.1 < from);
        self.0.get(next).is_some_and(|span| span.0 <= to)
    }

    /// Returns how much of the time between `from` and `to` the spans cover.
    pub(super) fn covered(&self, from: u64, to: u64) -> u64 {
        let first = self.0.partition_point(|span| span.1 <= from);
        let inside = self.0.iter().skip(first).take_while(|span| span.0 < to);
        inside.map(|span| span.1.min(to).saturating_sub(span.0.max(from))).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|(from, to)| to - from).sum()
    }
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn length((from, to): (u64, u64)) -> Duration {
    Duration::from_nanos(to.saturating_sub(from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_sets() {
        let spans = Spans::of([(5, 7), (1, 3), (2, 4), (9, 9)]);
        assert_eq!(spans, Spans(vec![(1, 4), (5, 7)]));
        assert_eq!(spans.and(&Spans::one(3, 6)), Spans(vec![(3, 4), (5, 6)]));
        assert_eq!(spans.without(&Spans::one(3, 6)), Spans(vec![(1, 3), (6, 7)]));
        assert_eq!(Spans::one(0, u64::MAX).without(&spans).iter().last(), Some((7, u64::MAX)));
        assert_eq!(spans.total(), 5);
        let covered = [(0, 9), (2, 6), (4, 5), (6, 6), (9, 2)].map(|(from, to)| spans.covered(from, to));
        assert_eq!(covered, [5, 3, 0, 0, 0]);
        assert!(spans.touches(4, 4) && spans.touches(7, 9) && !spans.touches(8, 9));
    }
}
