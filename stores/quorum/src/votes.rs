//! [`Tally`]: counts the votes of a quorum's stores. No I/O and no clock.

use std::time::Duration;

use lock_core::store::{Busy, Granted, StoreError, StoreErrorKind};

/// Returns how many of `of` stores are more than half.
pub(super) const fn majority(of: usize) -> usize {
    of / 2 + 1
}

/// One store's answer to a request.
#[derive(Debug)]
pub(super) enum Vote {
    /// Held there, by a store that remembers all its grants.
    Yes(Granted),
    /// Held there, but without counting: the store may have forgotten an earlier hold, or could not
    /// say whether it has.
    Void(StoreError),
    /// Another owner holds the key there.
    No(Busy),
    /// Nothing was executed there.
    Failed(StoreError),
    /// Possibly held there.
    Unknown(StoreError),
}

impl Vote {
    pub(super) fn from_error(error: StoreError) -> Self {
        if error.outcome_unknown() { Self::Unknown(error) } else { Self::Failed(error) }
    }

    fn error(&self) -> Option<&StoreError> {
        match self {
            Self::Void(error) | Self::Failed(error) | Self::Unknown(error) => Some(error),
            Self::Yes(_) | Self::No(_) => None,
        }
    }
}

/// The state of a ballot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// More than half have said yes.
    Won,
    /// More than half can no longer say yes.
    Lost,
    /// It depends on the stores that have not answered yet.
    Open,
}

/// A possible hold that has to be undone at one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remnant {
    pub(super) node: usize,
    pub(super) certain: Certain,
}

/// Whether a store is known to hold the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certain {
    /// It does, and every copy of the request was answered.
    Held,
    /// It may, or will when a late copy arrives.
    Unknown,
}

/// The votes on one request.
#[derive(Debug)]
pub(super) struct Tally(Vec<Option<Vote>>);

impl Tally {
    pub(super) fn new(nodes: usize) -> Self {
        Self((0..nodes).map(|_| None).collect())
    }

    pub(super) fn put(&mut self, node: usize, vote: Vote) {
        if let Some(place) = self.0.get_mut(node) {
            *place = Some(vote);
        }
    }

    /// Returns the vote of a node that can't be asked for its vote, or for its marker.
    pub(super) fn failed(&self, node: usize, error: StoreError) -> Vote {
        match self.0.get(node) {
            Some(Some(Vote::Void(_))) => Vote::Void(error),
            _ => Vote::from_error(error),
        }
    }

    pub(super) fn majority(&self) -> usize {
        majority(self.0.len())
    }

    /// Returns the votes so far, by node.
    fn votes(&self) -> impl Iterator<Item = (usize, &Vote)> {
        self.0.iter().enumerate().filter_map(|(node, vote)| Some((node, vote.as_ref()?)))
    }

    fn count(&self, of: impl Fn(&Vote) -> bool) -> usize {
        self.votes().filter(|(_, vote)| of(vote)).count()
    }

    /// Returns the state of the ballot while `open` nodes have not answered.
    pub(super) fn verdict(&self, open: usize) -> Verdict {
        let yes = self.count(|vote| matches!(vote, Vote::Yes(_)));
        if yes >= self.majority() {
            Verdict::Won
        } else if yes + open < self.majority() {
            Verdict::Lost
        } else {
            Verdict::Open
        }
    }

    /// Returns the nodes that have said yes, and their grants.
    pub(super) fn grants(&self) -> Vec<(usize, &Granted)> {
        let grants = self.votes().filter_map(|(node, vote)| match vote {
            Vote::Yes(granted) => Some((node, granted)),
            _ => None,
        });
        grants.collect()
    }

    /// Returns the nodes held by other owners, if asking them again could win the ballot. Rivals
    /// withdraw when they lose, and a release may not have reached all nodes.
    pub(super) fn worth_asking_again(&self) -> Vec<usize> {
        let busy: Vec<usize> =
            self.votes().filter(|(_, vote)| matches!(vote, Vote::No(_))).map(|(node, _)| node).collect();
        let yes = self.count(|vote| matches!(vote, Vote::Yes(_)));
        if yes + busy.len() >= self.majority() { busy } else { Vec::new() }
    }

    /// Returns the remnants of a ballot that was not won.
    pub(super) fn remnants(&self) -> Vec<Remnant> {
        let remnants = self.votes().filter_map(|(node, vote)| match vote {
            Vote::Yes(_) | Vote::Void(_) => Some(Remnant { node, certain: Certain::Held }),
            Vote::Unknown(_) => Some(Remnant { node, certain: Certain::Unknown }),
            Vote::No(_) | Vote::Failed(_) => None,
        });
        remnants.collect()
    }

    /// Returns the nodes that may hold the request although the ballot was won without them.
    pub(super) fn unknown(&self) -> Vec<usize> {
        self.votes().filter(|(_, vote)| matches!(vote, Vote::Unknown(_))).map(|(node, _)| node).collect()
    }

    /// Returns the answer to a request whose ballot was lost, once everything is undone. It is busy
    /// until enough holds have ended for a majority, or an error if too many stores have failed.
    pub(super) fn refusal(&self) -> Result<Busy, StoreError> {
        // An unknown end is the latest.
        let mut ends: Vec<(Duration, Option<&Busy>)> = self
            .votes()
            .filter_map(|(_, vote)| match vote {
                Vote::Yes(_) => Some((Duration::ZERO, None)),
                Vote::No(busy) => Some((busy.remaining.unwrap_or(Duration::MAX), Some(busy))),
                _ => None,
            })
            .collect();
        ends.sort_by_key(|(remaining, _)| *remaining);
        match ends.get(self.majority() - 1) {
            Some((_, Some(busy))) => Ok((*busy).clone()),
            _ => Err(self.lack()),
        }
    }

    /// Returns why there is no majority. The error's kind is a transient one if any store failed
    /// with such a kind.
    pub(super) fn lack(&self) -> StoreError {
        let mut kind = None;
        let mut message = format!("no majority of {} stores", self.0.len());
        for (node, error) in self.votes().filter_map(|(node, vote)| Some((node, vote.error()?))) {
            message.push_str(&format!("; {}: {error}", node + 1));
            // Transient kinds take precedence.
            kind = match kind {
                Some(StoreErrorKind::NotReady | StoreErrorKind::Unreachable | StoreErrorKind::TooLate) => {
                    kind
                }
                Some(_) if !error.is_transient() => kind,
                // Everything was undone.
                _ if error.outcome_unknown() => Some(StoreErrorKind::Unreachable),
                _ => Some(error.kind()),
            };
        }
        StoreError::new(kind.unwrap_or(StoreErrorKind::Unreachable), message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::store::{Moment, TokenRange};

    const MS: Duration = Duration::from_millis(1);

    fn yes() -> Vote {
        let tokens = vec![TokenRange { first: 1, last: 1 }];
        Vote::Yes(Granted { tokens: tokens.into(), moment: Moment::new(1) })
    }

    fn no(remaining: u32) -> Vote {
        Vote::No(Busy {
            item: 0,
            remaining: Some(MS * remaining),
            moment: Moment::new(1),
            listeners: 0,
            ahead: 0,
        })
    }

    fn error(kind: StoreErrorKind) -> StoreError {
        StoreError::new(kind, format!("{kind:?}"))
    }

    fn tally(votes: impl IntoIterator<Item = Vote>, nodes: usize) -> Tally {
        let mut tally = Tally::new(nodes);
        votes.into_iter().enumerate().for_each(|(node, vote)| tally.put(node, vote));
        tally
    }

    #[test]
    fn more_than_half_wins_and_half_does_not() {
        assert_eq!([3, 5, 7].map(majority), [2, 3, 4]);
        assert_eq!(tally([yes(), yes()], 3).verdict(1), Verdict::Won);
        assert_eq!(tally([yes()], 3).verdict(2), Verdict::Open);
        assert_eq!(tally([yes(), no(1)], 3).verdict(1), Verdict::Open);
        assert_eq!(tally([yes(), no(1), no(1)], 3).verdict(0), Verdict::Lost);
        assert_eq!(tally([yes(), yes(), no(1), no(1)], 5).verdict(1), Verdict::Open);
    }

    #[test]
    fn only_a_yes_counts() {
        let void = Vote::Void(error(StoreErrorKind::NotReady));
        let unknown = Vote::Unknown(error(StoreErrorKind::Unanswered));
        let tally = tally([yes(), void, unknown], 3);
        assert_eq!(tally.verdict(0), Verdict::Lost);
        let remnant = |node, certain| Remnant { node, certain };
        let held = |node| remnant(node, Certain::Held);
        assert_eq!(tally.remnants(), [held(0), held(1), remnant(2, Certain::Unknown)]);
    }

    #[test]
    fn a_lost_ballot_is_busy_until_a_majority_could_be_free() {
        assert_eq!(tally([yes(), no(30), no(20)], 3).refusal().unwrap().remaining, Some(20 * MS));
        assert_eq!(tally([no(10), no(30), no(20)], 3).refusal().unwrap().remaining, Some(20 * MS));
        let failed = Vote::Failed(error(StoreErrorKind::Unreachable));
        assert_eq!(tally([yes(), no(30), failed], 3).refusal().unwrap().remaining, Some(30 * MS));
    }

    #[test]
    fn without_enough_stores_it_is_not_busy_but_an_error_of_the_passing_kind() {
        let failed = |kind| Vote::Failed(error(kind));
        let kind = |votes: [Vote; 3]| tally(votes, 3).refusal().unwrap_err().kind();
        use StoreErrorKind::{Denied, NotReady, Unanswered, Unreachable};
        assert_eq!(kind([no(1), failed(Denied), failed(Unreachable)]), Unreachable);
        assert_eq!(kind([no(1), failed(Unreachable), failed(Denied)]), Unreachable);
        assert_eq!(kind([no(1), failed(Denied), failed(Denied)]), Denied);
        assert_eq!(kind([yes(), Vote::Void(error(NotReady)), failed(Denied)]), NotReady);
        // Called when everything is undone.
        assert_eq!(kind([yes(), Vote::Unknown(error(Unanswered)), failed(Denied)]), Unreachable);
        let message = tally([yes(), failed(Denied), failed(Unreachable)], 3).lack().to_string();
        assert_eq!(message, "no majority of 3 stores; 2: Denied; 3: Unreachable");
    }

    #[test]
    fn those_who_were_busy_are_asked_again_if_that_can_win() {
        let failed = || Vote::Failed(error(StoreErrorKind::Unreachable));
        assert_eq!(tally([yes(), no(1), failed()], 3).worth_asking_again(), [1]);
        assert_eq!(tally([yes(), failed(), failed()], 3).worth_asking_again(), [0; 0]);
        assert_eq!(tally([no(1), no(1), failed(), failed(), failed()], 5).worth_asking_again(), [0; 0]);
    }
}
