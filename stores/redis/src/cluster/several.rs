//! Requests for keys in several slots, all or nothing: slot after slot, and all given back if one
//! refuses.
//!
//! No request waits while it holds something, so two of them cannot block each other in any order.
//! Nor does a request queue, or keep readers out, for keys that it could not use yet.
//!
//! Giving back the taken keys notifies their waiters, and so the request itself. To avoid an
//! endless loop, the next try begins at the slot that refused last, and ends there if nothing has
//! changed.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::{
    AcquireRequest, Acquired, Busy, Few, Granted, Item, Moment, StoreError, StoreErrorKind, TokenRange,
};

use super::super::join::join;
use super::Cluster;
use super::steps::{SlotShare, in_order};

/// Maximum pause that lets two requests in each other's way go on at different times.
const APART: Duration = Duration::from_millis(10);

impl Cluster {
    /// Forgets where the request was refused: it will not ask again.
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
        let mut moment = Moment::default();
        for share in order {
            let answer = Box::pin(self.acquire_part(request, share, None, deadline)).await;
            let granted = match answer {
                Ok(Acquired::Granted(granted)) => granted,
                Ok(Acquired::Busy(busy)) => {
                    self.refusals.note(request, share.slot);
                    self.undo(taken.iter().map(|(share, _)| *share), deadline).await?;
                    if refused.is_some() && !taken.is_empty() {
                        tokio::time::sleep(APART.mul_f64(rand::random())).await;
                    }
                    let item = share.places.get(busy.item).copied().unwrap_or_default();
                    return Ok(Acquired::Busy(Busy { item, ..busy }));
                }
                // The caller withdraws all of it then.
                Err(error) if error.outcome_unknown() => return Err(error),
                Err(error) => {
                    self.undo(taken.iter().map(|(share, _)| *share), deadline).await?;
                    return Err(error);
                }
            };
            moment = moment.max(granted.moment);
            taken.push((share, granted.tokens));
        }
        self.refusals.forget(request);
        let none = TokenRange { first: 1, last: 0 };
        let tokens = taken.into_iter().map(|(share, tokens)| (share.places.clone(), tokens));
        Ok(Acquired::Granted(Granted { tokens: in_order(tokens, none).into(), moment }))
    }

    /// Gives back the shares that were taken. After an error the caller withdraws all of them.
    pub(super) async fn undo(
        &self,
        taken: impl Iterator<Item = &SlotShare<Item>>,
        deadline: Tick,
    ) -> Result<(), StoreError> {
        // Also if there is hardly any time left.
        let deadline = deadline.max(self.now() + self.options.call_timeout / 4);
        let undone = join(taken.map(|share| self.withdraw_part(share, deadline))).await;
        for undone in undone {
            if let Err(error) = undone {
                let what = format!("acquired in part, and not released yet: {error}");
                return Err(StoreError::new(StoreErrorKind::Unanswered, what));
            }
        }
        Ok(())
    }
}
