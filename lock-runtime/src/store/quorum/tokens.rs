//! [`Counters`]: which fencing tokens a grant of a quorum has. No I/O.
//!
//! Every store has a counter of its own. The tokens of a grant are those of the store whose counter is highest, and the
//! grant is not returned before a majority of the stores have a counter at least as high: any later grant has one of
//! them in its own majority, which gives it higher tokens, and so the highest of that majority's are higher too.

use crate::store::{Granted, TokenRange};

/// The counters of the stores that have granted a request.
#[derive(Debug)]
pub(super) struct Counters {
    majority: usize,
    /// For each item, the tokens of the store whose counter is the highest.
    tops: Vec<TokenRange>,
    /// The nodes, and for each item where its counter is at least.
    known: Vec<(usize, Vec<u64>)>,
}

/// A counter that is behind: to be lifted to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Behind {
    pub(super) node: usize,
    pub(super) item: usize,
    pub(super) to: u64,
}

impl Counters {
    pub(super) fn new(majority: usize, items: usize, grants: &[(usize, &Granted)]) -> Self {
        let last = |granted: &Granted, item: usize| granted.tokens.get(item).map_or(0, |range| range.last);
        let top = |item: usize| {
            let ranges = grants.iter().filter_map(|(_, granted)| granted.tokens.get(item).copied());
            ranges.max_by_key(|range| range.last).unwrap_or(TokenRange { first: 1, last: 0 })
        };
        let known = grants.iter().map(|(node, granted)| {
            let lasts = (0..items).map(|item| last(granted, item)).collect();
            (*node, lasts)
        });
        Self { majority, tops: (0..items).map(top).collect(), known: known.collect() }
    }

    /// The tokens of the grant, when [`settled`](Self::is_settled).
    pub(super) fn tokens(&self) -> Vec<TokenRange> {
        self.tops.clone()
    }

    /// Whether a majority is at the top of every item.
    pub(super) fn is_settled(&self) -> bool {
        (0..self.tops.len()).all(|item| self.is_settled_for(item))
    }

    fn is_settled_for(&self, item: usize) -> bool {
        let Some(top) = self.tops.get(item) else { return true };
        let there = |(_, lasts): &&(usize, Vec<u64>)| lasts.get(item).is_some_and(|last| *last >= top.last);
        self.known.iter().filter(there).count() >= self.majority
    }

    /// What has to be lifted; any of it may fail as long as it is settled in the end.
    pub(super) fn behind(&self) -> Vec<Behind> {
        let mut behind = Vec::new();
        for (item, top) in self.tops.iter().enumerate() {
            if self.is_settled_for(item) {
                continue;
            }
            let nodes =
                self.known.iter().filter(|(_, lasts)| lasts.get(item).is_some_and(|&at| at < top.last));
            behind.extend(nodes.map(|(node, _)| Behind { node: *node, item, to: top.last }));
        }
        behind
    }

    /// A counter was lifted to `last`.
    pub(super) fn lifted(&mut self, node: usize, item: usize, last: u64) {
        let lasts = self.known.iter_mut().find(|(known, _)| *known == node);
        if let Some(at) = lasts.and_then(|(_, lasts)| lasts.get_mut(item)) {
            *at = last.max(*at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ServerTime;

    fn granted(lasts: &[u64]) -> Granted {
        let tokens = lasts.iter().map(|&last| TokenRange { first: last, last }).collect();
        Granted { tokens, server_time: ServerTime::from_micros(1) }
    }

    #[test]
    fn the_highest_counter_counts_when_a_majority_is_there() {
        let (low, high) = (granted(&[10]), granted(&[100]));
        let mut counters = Counters::new(2, 1, &[(0, &low), (1, &high)]);
        assert_eq!(counters.tokens(), [TokenRange { first: 100, last: 100 }]);
        assert!(!counters.is_settled());
        assert_eq!(counters.behind(), [Behind { node: 0, item: 0, to: 100 }]);
        counters.lifted(0, 0, 99);
        assert!(!counters.is_settled());
        counters.lifted(0, 0, 103);
        assert!(counters.is_settled() && counters.behind().is_empty());
        assert_eq!(counters.tokens(), [TokenRange { first: 100, last: 100 }]);
    }

    #[test]
    fn a_majority_that_agrees_needs_no_second_round() {
        let (low, high) = (granted(&[10]), granted(&[100]));
        assert!(Counters::new(2, 1, &[(0, &high), (1, &low), (2, &high)]).is_settled());
    }

    #[test]
    fn each_item_has_its_own_top() {
        let (one, two) = (granted(&[10, 7]), granted(&[3, 7]));
        let counters = Counters::new(2, 2, &[(0, &one), (4, &two)]);
        assert_eq!(counters.behind(), [Behind { node: 4, item: 0, to: 10 }]);
    }
}
