//! Changes the decision of an operation, and carries it out.

use lock_core::store::stock::{OperationId, Settle, SettleAnswer, SettleRequest, State};
use lock_core::store::{StoreError, StoreErrorKind};

use super::record::{Column, Stage};
use super::steps::{Home, Turned};
use super::take::{End, Refusal};
use super::{Spread, TRIES};

impl Spread {
    pub(super) async fn settle(&self, request: &SettleRequest) -> Result<SettleAnswer, StoreError> {
        if self.count().await?.is_none() {
            return Ok(SettleAnswer::Missing);
        }
        let how = match request.settle {
            Settle::Confirm => "confirm",
            Settle::Cancel => "cancel",
            Settle::GiveBack => "give_back",
        };
        let operation = &request.operation;
        for nth in 0..TRIES {
            let turned = self.home(operation, Home::Settle(how)).await?;
            match turned.now {
                Some(record) if record.stage == Stage::Undecided => {
                    if record.kind == Column::Restocked {
                        return Ok(SettleAnswer::Unknown);
                    }
                    // No caller was told that it is done, and the lock that it would need is not
                    // known here. So it counts as never come.
                    let end = self.give_up(operation, record, Refusal::Contended).await?;
                    if let Some(End::Refused(_)) = end {
                        continue;
                    }
                    self.step_back(nth).await;
                }
                _ => return self.settled(operation, turned).await,
            }
        }
        let what = "other calls came in between; send the same call again";
        Err(StoreError::new(StoreErrorKind::Unanswered, what))
    }

    async fn settled(&self, operation: &OperationId, turned: Turned) -> Result<SettleAnswer, StoreError> {
        let Some(record) = turned.now else { return Ok(SettleAnswer::Unknown) };
        let (quantity, reserved) = (record.quantity, record.kind == Column::Held);
        let now = match record.stage {
            Stage::At(state) => state,
            Stage::Never => State::Cancelled,
            Stage::Undecided | Stage::Restocked => return Ok(SettleAnswer::Unknown),
        };
        let before = turned.before.and_then(|before| match before.stage {
            Stage::At(state) => Some(state),
            Stage::Never => Some(State::Cancelled),
            Stage::Undecided | Stage::Restocked => None,
        });
        self.carry_out(operation, record).await?;
        Ok(SettleAnswer::Known { before, now, quantity, reserved })
    }

    /// Ends a reservation that is over. Returns whether this call did so.
    pub(super) async fn expire(&self, operation: &OperationId) -> Result<bool, StoreError> {
        let turned = self.home(operation, Home::Settle("expire")).await?;
        let changed = turned.changed;
        self.settled(operation, turned).await?;
        Ok(changed)
    }
}
