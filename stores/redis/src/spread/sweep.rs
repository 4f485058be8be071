//! Ends what is over, and finishes or undoes what others have left half-done.

use lock_core::internal::plan::AT_ONCE;
use lock_core::store::StoreError;
use lock_core::store::stock::{OperationId, State, Swept};

use super::Spread;
use super::names::HOMES;
use super::record::{Column, Record, Stage};
use super::steps::Home;
use super::take::{End, Refusal, Search};
use crate::join::join;
use crate::steps::millis;

/// Number of operations that are looked at concurrently.
const SIDE_BY_SIDE: usize = 16;

/// Outcome of looking after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    Expired,
    Recovered,
    /// There was nothing to do, or another call has done it.
    Nothing,
}

impl Spread {
    pub(super) async fn sweep(&self, limit: u32) -> Result<Swept, StoreError> {
        let Some(seen) = self.collect().await? else { return Ok(Swept::default()) };
        let mut swept = Swept { recovered: self.finish_moves(&seen).await?, ..Swept::default() };
        let looks: Vec<_> = (0..HOMES).map(|home| self.due(home, limit.saturating_add(1))).collect();
        // A failure at one server or for one operation must not affect the others.
        let mut failed = None;
        let mut due = Vec::new();
        for some in join(looks).await {
            some.map(|some| due.extend(some)).unwrap_or_else(|error| failed = Some(error));
        }
        due.sort();
        swept.more = due.len() as u64 > u64::from(limit);
        due.truncate(limit as usize);
        for some in due.chunks(SIDE_BY_SIDE) {
            let each: Vec<_> = some.iter().map(|(_, operation)| self.look_after(operation)).collect();
            for came in join(each).await {
                match came {
                    Ok(Came::Expired) => swept.expired += 1,
                    Ok(Came::Recovered) => swept.recovered += 1,
                    Ok(Came::Nothing) => {}
                    Err(error) => failed = Some(error),
                }
            }
        }
        let segments =
            seen.active().chain(seen.retired()).map(|(segment, _)| self.forget_old(segment, limit));
        for forgotten in join(segments.collect::<Vec<_>>()).await {
            match forgotten {
                Ok(forgotten) => {
                    swept.forgotten += forgotten;
                    swept.more |= forgotten > 0 && forgotten >= u64::from(limit);
                }
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(swept)
    }

    /// Finishes or undoes a few operations that others have left. Returns whether there were any.
    pub(super) async fn recover(&self) -> Result<bool, StoreError> {
        Ok(self.sweep(SIDE_BY_SIDE as u32).await?.recovered > 0)
    }

    /// Ends reservations that are over, also those that another call is ending. Returns whether
    /// there were any.
    async fn make_room(&self) -> Result<bool, StoreError> {
        let looks: Vec<_> = (0..HOMES).map(|home| self.due(home, AT_ONCE)).collect();
        let mut due = Vec::new();
        for some in join(looks).await {
            due.extend(some?);
        }
        due.sort();
        due.truncate(AT_ONCE as usize);
        let each: Vec<_> = due.iter().map(|(_, operation)| self.look_after(operation)).collect();
        let came = join(each).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(came.iter().any(|came| *came != Came::Nothing))
    }

    /// Whether a take that found this much available may find more, because this call or another
    /// has ended reservations.
    pub(super) async fn finds_room(&self, available: u64, held: u64) -> Result<bool, StoreError> {
        if held == 0 {
            return Ok(false);
        }
        Ok(self.make_room().await?
            || self.collect().await?.is_some_and(|now| now.available() > available || now.held() < held))
    }

    async fn look_after(&self, operation: &OperationId) -> Result<Came, StoreError> {
        let looked = self.home(operation, Home::Tidy).await?;
        let Some(record) = looked.now else { return Ok(Came::Nothing) };
        match record.stage {
            // Restocked units may be sold already, so this can only be finished.
            Stage::Undecided if record.kind == Column::Restocked => {
                let end = self.drive(operation, record, Search::ANYWHERE, &mut 0).await?;
                Ok(if matches!(end, Some(End::At(_))) { Came::Recovered } else { Came::Nothing })
            }
            Stage::Undecided => {
                let end = self.give_up(operation, record, Refusal::Contended).await?;
                Ok(if matches!(end, Some(End::Refused(_))) { Came::Recovered } else { Came::Nothing })
            }
            _ if record.open => {
                let was = record.stage;
                self.carry_out(operation, record).await?;
                if was == Stage::At(State::Held) && self.expire(operation).await? {
                    return Ok(Came::Expired);
                }
                Ok(Came::Recovered)
            }
            Stage::At(State::Held) => {
                Ok(if self.expire(operation).await? { Came::Expired } else { Came::Nothing })
            }
            _ => Ok(Came::Nothing),
        }
    }

    /// Forgets a segment's entries of operations whose records are over; their sold units stay
    /// sold. Returns how many there were.
    async fn forget_old(&self, segment: u32, limit: u32) -> Result<u64, StoreError> {
        let ago = millis(self.retention.saturating_add(self.grace));
        let mut over = self.over(segment, ago, limit).await?;
        let mut gone = Vec::new();
        while !over.is_empty() {
            let some: Vec<_> = over.drain(..over.len().min(SIDE_BY_SIDE)).collect();
            let looks: Vec<_> = some.iter().map(|(operation, _)| self.home(operation, Home::Look)).collect();
            let looked = join(looks).await;
            for (one, looked) in some.into_iter().zip(looked) {
                if !looked?.now.is_some_and(|record| needs(&record, &one.1)) {
                    gone.push(one);
                }
            }
        }
        if gone.is_empty() {
            return Ok(0);
        }
        let count = gone.len() as u64;
        self.forget(segment, gone).await?;
        Ok(count)
    }
}

/// Whether the record may still change the segment's entry.
fn needs(record: &Record, entry: &str) -> bool {
    entry.split(' ').next().and_then(|born| born.parse().ok()).is_none_or(|born: u64| born >= record.born)
}
