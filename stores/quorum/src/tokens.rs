//! [`Counters`]: the fencing tokens of a grant by a quorum. No I/O.
//!
//! Every store has its own counter. The tokens of a grant are those of the store with the highest
//! counter. The grant is returned only when a majority of the stores have a counter at least as
//! high. Any later grant has one of these stores in its own majority, which gives it higher tokens.
//! So the highest tokens of that majority are higher too.
//!
//! This does not distinguish readers that get a key at the same time: two of them may have equal
//! highest tokens, from two different stores. They claim a range instead. One store grants it,
//! above all counters and clocks. The others are asked for exactly this range. They refuse if they
//! have granted part of it, or later tokens, to another owner. Of two overlapping ranges, a
//! majority grants only one.

use lock_core::store::{Granted, TokenRange};

/// The counters of the stores that have granted a request.
#[derive(Debug)]
pub(super) struct Counters {
    majority: usize,
    /// For each item, the tokens from the store with the highest counter.
    tops: Vec<TokenRange>,
    /// The nodes, and for each item a lower bound of its counter.
    known: Vec<(usize, Vec<u64>)>,
}

/// A counter that is behind, and has to be raised to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Behind {
    pub(super) node: usize,
    pub(super) item: usize,
    pub(super) to: u64,
}

/// A range that a majority has to grant exactly.
#[derive(Debug)]
pub(super) struct Claim {
    item: usize,
    range: TokenRange,
    /// By node.
    granted: Vec<(usize, TokenRange)>,
}

impl Claim {
    pub(super) fn new(item: usize, range: TokenRange) -> Self {
        Self { item, range, granted: Vec::new() }
    }

    /// Records the range that a node has granted when asked for this one.
    pub(super) fn granted(&mut self, node: usize, range: TokenRange) {
        self.granted.push((node, range));
    }
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

    /// Returns the tokens of the grant, once [`settled`](Self::is_settled).
    pub(super) fn tokens(&self) -> Vec<TokenRange> {
        self.tops.clone()
    }

    /// Whether a majority has reached the highest counter of every item.
    pub(super) fn is_settled(&self) -> bool {
        (0..self.tops.len()).all(|item| self.is_settled_for(item))
    }

    fn is_settled_for(&self, item: usize) -> bool {
        let Some(top) = self.tops.get(item) else { return true };
        let there = |(_, lasts): &&(usize, Vec<u64>)| lasts.get(item).is_some_and(|last| *last >= top.last);
        self.known.iter().filter(there).count() >= self.majority
    }

    /// Returns the counters to raise. Some raises may fail, as long as the counters are settled in
    /// the end.
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

    /// Returns the nodes that have granted the request.
    pub(super) fn nodes(&self) -> Vec<usize> {
        self.known.iter().map(|(node, _)| *node).collect()
    }

    /// Uses the claimed tokens for the grant, if a majority has granted them; returns whether it
    /// has.
    pub(super) fn claim(&mut self, claim: &Claim) -> bool {
        for (node, range) in &claim.granted {
            self.raised(*node, claim.item, range.last);
        }
        let nodes = claim.granted.iter().filter(|(_, range)| *range == claim.range).count();
        match self.tops.get_mut(claim.item) {
            Some(top) if nodes >= self.majority => {
                *top = claim.range;
                true
            }
            _ => false,
        }
    }

    /// Returns the highest counter of an item.
    pub(super) fn top(&self, item: usize) -> u64 {
        self.known.iter().filter_map(|(_, lasts)| lasts.get(item).copied()).max().unwrap_or(0)
    }

    /// Marks the item as unsettled, because no tokens are certain to be ours alone.
    pub(super) fn give_up(&mut self, item: usize) {
        self.known.iter_mut().filter_map(|(_, lasts)| lasts.get_mut(item)).for_each(|last| *last = 0);
        if let Some(top) = self.tops.get_mut(item) {
            *top = TokenRange { first: u64::MAX, last: u64::MAX };
        }
    }

    /// Records that a counter was raised to `last`.
    pub(super) fn raised(&mut self, node: usize, item: usize, last: u64) {
        let lasts = self.known.iter_mut().find(|(known, _)| *known == node);
        if let Some(at) = lasts.and_then(|(_, lasts)| lasts.get_mut(item)) {
            *at = last.max(*at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::store::Moment;

    fn granted(lasts: &[u64]) -> Granted {
        let tokens = lasts.iter().map(|&last| TokenRange { first: last, last }).collect();
        Granted { tokens, moment: Moment::new(1) }
    }

    #[test]
    fn the_highest_counter_counts_when_a_majority_is_there() {
        let (low, high) = (granted(&[10]), granted(&[100]));
        let mut counters = Counters::new(2, 1, &[(0, &low), (1, &high)]);
        assert_eq!(counters.tokens(), [TokenRange { first: 100, last: 100 }]);
        assert!(!counters.is_settled());
        assert_eq!(counters.behind(), [Behind { node: 0, item: 0, to: 100 }]);
        counters.raised(0, 0, 99);
        assert!(!counters.is_settled());
        counters.raised(0, 0, 103);
        assert!(counters.is_settled() && counters.behind().is_empty());
        assert_eq!(counters.tokens(), [TokenRange { first: 100, last: 100 }]);
    }

    #[test]
    fn a_majority_that_agrees_needs_no_second_round() {
        let (low, high) = (granted(&[10]), granted(&[100]));
        assert!(Counters::new(2, 1, &[(0, &high), (1, &low), (2, &high)]).is_settled());
    }

    #[test]
    fn a_claim_is_granted_by_a_majority_or_not_at_all() {
        let (low, high) = (granted(&[10]), granted(&[100]));
        let mut counters = Counters::new(2, 1, &[(0, &low), (1, &high), (2, &low)]);
        let range = |first| TokenRange { first, last: first + 4 };
        assert_eq!(counters.top(0), 100);
        let mut claim = Claim::new(0, range(101));
        claim.granted(0, range(101));
        // Another owner has interfered.
        claim.granted(1, range(106));
        assert!(!counters.claim(&claim));
        assert_eq!(counters.top(0), 110);
        let mut claim = Claim::new(0, range(111));
        claim.granted(0, range(111));
        claim.granted(2, range(111));
        assert!(counters.claim(&claim));
        assert!(counters.is_settled());
        assert_eq!(counters.tokens(), [range(111)]);
        counters.give_up(0);
        assert!(!counters.is_settled());
    }

    #[test]
    fn each_item_has_its_own_top() {
        let (one, two) = (granted(&[10, 7]), granted(&[3, 7]));
        let counters = Counters::new(2, 2, &[(0, &one), (4, &two)]);
        assert_eq!(counters.behind(), [Behind { node: 4, item: 0, to: 10 }]);
    }
}
