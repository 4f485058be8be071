//! Raises the fencing counters of a ballot that was won, see [`tokens`](super::tokens), by
//! acquiring each key once more.

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{AcquireRequest, Acquired, Item, Kind, LockStore, Moment, StoreError, TokenRange};

use super::acquire::{Election, withdrawn};
use super::ballots::{Role, ballots_of};
use super::calls::Answers;
use super::strays::Stray;
use super::tokens::{Behind, Claim, Counters};

/// Distances above the highest known counter at which a range is claimed, one for each attempt.
/// Rivals that claim at the same time move the counters.
const LEAP: [u64; 3] = [100, 1_000, 10_000];
/// Minimum allowance for the progress of clocks while a range is claimed.
const MARGIN: Duration = Duration::from_millis(20);

/// A call that raises a counter.
struct Raise {
    behind: Behind,
    ballot: Arc<AcquireRequest>,
    answer: Answers<Acquired>,
    stray: Stray,
}

impl Election {
    /// Raises the counters that are behind, and claims ranges for keys that several holders may get
    /// at the same time. Returns the unanswered calls.
    pub(super) async fn raise(
        &self,
        counters: &mut Counters,
        clock: Moment,
    ) -> Result<Vec<Stray>, StoreError> {
        let mut unanswered = Vec::new();
        for (index, item) in self.request.items.iter().enumerate() {
            if item.kind == Kind::Read {
                self.claim(counters, index, clock, &mut unanswered).await?;
            }
        }
        let mut calls = Vec::new();
        for behind in counters.behind() {
            if let Some(item) = self.request.items.get(behind.item) {
                calls.push(self.ask_to_raise(behind, item, behind.to.saturating_sub(1), 1)?);
            }
        }
        for call in calls {
            let behind = call.behind;
            if let Some(range) = self.raised(call, &mut unanswered).await {
                counters.raised(behind.node, behind.item, range.last);
            }
        }
        Ok(unanswered)
    }

    /// Claims a range for an item that may have several holders: a majority has to grant exactly
    /// this one.
    async fn claim(
        &self,
        counters: &mut Counters,
        index: usize,
        clock: Moment,
        unanswered: &mut Vec<Stray>,
    ) -> Result<(), StoreError> {
        let Some(item) = self.request.items.get(index) else { return Ok(()) };
        let nodes = counters.nodes();
        for attempt in 0..LEAP.len() {
            // Leaves enough time to undo it all.
            if self.quorum.now().since(self.began) >= self.request.timeout * 5 / 8 {
                break;
            }
            let margin = MARGIN.max(self.quorum.pause(4.0, 4.0) * 2);
            let passed = self.quorum.now().since(self.began) + margin;
            let passed = u64::try_from(passed.as_micros()).unwrap_or(u64::MAX);
            let above = clock.get().saturating_add(passed);
            let Some((&first, others)) = nodes.split_first() else { break };
            // The first store orders the claims that are made at the same time.
            let leap = LEAP.get(attempt).copied().unwrap_or_default();
            let floor = counters.top(index).max(above).saturating_add(leap);
            let behind = Behind { node: first, item: index, to: floor };
            let call = self.ask_to_raise(behind, item, floor, self.request.tokens)?;
            let Some(range) = self.raised(call, unanswered).await else { break };
            let mut claim = Claim::new(index, range);
            claim.granted(first, range);
            let mut calls = Vec::new();
            for &node in others {
                let behind = Behind { node, item: index, to: range.last };
                calls.push(self.ask_to_raise(
                    behind,
                    item,
                    range.first.saturating_sub(1),
                    self.request.tokens,
                )?);
            }
            for call in calls {
                let node = call.behind.node;
                if let Some(range) = self.raised(call, unanswered).await {
                    claim.granted(node, range);
                }
            }
            if counters.claim(&claim) {
                return Ok(());
            }
            tokio::time::sleep(self.quorum.pause(0.0, 2.0)).await;
        }
        counters.give_up(index);
        Ok(())
    }

    fn ask_to_raise(
        &self,
        behind: Behind,
        item: &Item,
        floor: u64,
        tokens: u32,
    ) -> Result<Raise, StoreError> {
        let make = || {
            let ballot = AcquireRequest::new(vec![item.clone()], self.request.lease, self.step);
            ballot.tokens(tokens).above(floor).retention(self.request.retention)
        };
        let now = self.quorum.now();
        let ballot = ballots_of(&self.request).ballot(self.attempt, behind.node, Role::Raise, now, make);
        let ballot = ballot.ok_or_else(withdrawn)?;
        let ask = |_, store: &Arc<dyn LockStore>| store.acquire(Arc::clone(&ballot));
        let answer = self.quorum.ask([behind.node], self.step, ask);
        let stray = Stray::new(behind.node, Arc::clone(&ballot), now);
        Ok(Raise { behind, ballot, answer, stray })
    }

    /// Returns the tokens that a call was granted, if any.
    async fn raised(&self, mut call: Raise, unanswered: &mut Vec<Stray>) -> Option<TokenRange> {
        let answer = call.answer.next().await;
        self.note_latest(&call.ballot);
        match answer {
            Some((_, Ok(Acquired::Granted(granted)))) => granted.tokens.first().copied(),
            Some((_, Ok(Acquired::Busy(_)))) => None,
            Some((_, Err(error))) if !error.outcome_unknown() => None,
            _ => {
                unanswered.push(call.stray);
                None
            }
        }
    }
}
