//! Requests for keys in several slots, all or nothing: one slot after the other, and back when one
//! refuses.
//!
//! Nobody waits while it holds something, so no order can make two of them block each other; and
//! none takes a place in a queue, or keeps readers out, for keys that it may be the first to get
//! and then can't use.
//!
//! To give back what was taken tells those who wait for it, and so also whoever asked for all. It
//! must not try, take, and give back again for ever: the next try begins where the last one was
//! refused, and ends there if nothing has changed.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::{
    AcquireRequest, Acquired, Busy, Few, Granted, Item, ServerTime, StoreError, StoreErrorKind, TokenRange,
};

use super::super::join::join;
use super::Cluster;
use super::steps::{SlotShare, in_order};

/// Two who have got in each other's way go on at different times.
const APART: Duration = Duration::from_millis(10);

impl Cluster {
    /// The request does not ask any more.
    pub(super) fn begin_anywhere(&self, request: &AcquireRequest) {
        self.refusals.forget(request);
    }

    pub(super) async fn acquire_several(
        &self,
        request: &Arc<AcquireRequest>,
        shares: &[SlotShare<Item>],
        deadline: Tick,
    ) -> Result<Acquired, StoreError> {
        let refused = self.refusals.of(request);
        let mut order: Vec<_> = shares.iter().collect();
        order.sort_by_key(|share| Some(share.slot) != refused);
        let mut taken: Vec<(&SlotShare<Item>, Few<TokenRange>)> = Vec::new();
        let mut at = ServerTime::from_micros(0);
        for share in order {
            let answer = Box::pin(self.acquire_part(request, share, None, deadline)).await;
            let granted = match answer {
                Ok(Acquired::Granted(granted)) => granted,
                Ok(Acquired::Busy(busy)) => {
                    self.refusals.note(request, share.slot);
                    self.undo(&taken, deadline).await?;
                    if refused.is_some() && !taken.is_empty() {
                        tokio::time::sleep(APART.mul_f64(rand::random())).await;
                    }
                    let item = share.places.get(busy.item).copied().unwrap_or_default();
                    return Ok(Acquired::Busy(Busy { item, ..busy }));
                }
                // All of it is withdrawn then.
                Err(error) if error.outcome_unknown() => return Err(error),
                Err(error) => {
                    self.undo(&taken, deadline).await?;
                    return Err(error);
                }
            };
            at = at.max(granted.server_time);
            taken.push((share, granted.tokens));
        }
        self.refusals.forget(request);
        let none = TokenRange { first: 1, last: 0 };
        let tokens = taken.into_iter().map(|(share, tokens)| (share.places.clone(), tokens));
        Ok(Acquired::Granted(Granted { tokens: in_order(tokens, none).into(), server_time: at }))
    }

    /// Gives the shares that were taken back. The error is one after which all of them are
    /// withdrawn.
    async fn undo(
        &self,
        taken: &[(&SlotShare<Item>, Few<TokenRange>)],
        deadline: Tick,
    ) -> Result<(), StoreError> {
        // Also when there is hardly any time left.
        let deadline = deadline.max(self.now() + self.options.call_timeout / 4);
        let undone = join(taken.iter().map(|(share, _)| self.withdraw_part(share, deadline))).await;
        for undone in undone {
            if let Err(error) = undone {
                let what = format!("taken in part, and not given back yet: {error}");
                return Err(StoreError::new(StoreErrorKind::Unanswered, what));
            }
        }
        Ok(())
    }
}
