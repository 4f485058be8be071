//! Looks for units: in one segment that has enough, or else in several, all or nothing.

use lock_core::FencingToken;
use lock_core::internal::plan::fill;
use lock_core::store::stock::{
    MAX_QUANTITY, OperationId, Part, RestockAnswer, RestockRequest, State, TakeAnswer, TakeRequest,
};
use lock_core::store::{Few, StoreError, StoreErrorKind};

use super::look::Room;
use super::record::{Column, Record, Stage};
use super::steps::{Home, Put};
use super::{Spread, TRIES};
use crate::join::join;
use crate::steps::millis;

/// The segments in which units are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    pub(super) first: u32,
    pub(super) only: Option<(u32, Option<FencingToken>)>,
}

impl Search {
    /// Any segment, from the first one on.
    pub(super) const ANYWHERE: Self = Self { first: 0, only: None };
}

/// Why nothing was taken.
#[derive(Debug)]
pub(super) enum Refusal {
    Short {
        available: u64,
        /// Units that are reserved in the segments searched.
        held: u64,
    },
    Contended,
    Stale,
    /// There is no such stock.
    Missing,
}

/// The end of an operation.
#[derive(Debug)]
pub(super) enum End {
    /// Decided and carried out, with this record.
    At(Record),
    /// Dropped: as if it had never come.
    Refused(Refusal),
}

/// Outcome of the puts at all segments of a record.
enum Puts {
    Done,
    /// Another call has continued the operation.
    Older,
    /// A segment knows a later record with the same id, made at this time, which the home has lost.
    Newer {
        born: u64,
    },
    /// At least one segment does not give the wanted units.
    Short,
    Stale,
}

impl Spread {
    pub(super) async fn take(&self, request: &TakeRequest) -> Result<TakeAnswer, StoreError> {
        let TakeRequest { operation, quantity, hold, first, only, .. } = request;
        let Some(count) = self.count().await? else { return Ok(TakeAnswer::Missing) };
        let first = match only {
            Some((index, _)) if *index >= count => {
                // There may be more segments than this process knows.
                let Some(root) = self.load().await? else { return Ok(TakeAnswer::Missing) };
                if *index >= root.count {
                    return self.taken_before(request).await;
                }
                *index
            }
            Some((index, _)) => *index,
            None => first % count,
        };
        let kind = if hold.is_some() { Column::Held } else { Column::Sold };
        let hold = hold.map(millis);
        let search = Search { first, only: *only };
        let parts = [Part { segment: first, quantity: *quantity }];
        if only.is_none()
            && let Some((available, held)) = self.still_short(*quantity).await?
            && self.home(operation, Home::Look).await?.now.is_none()
            && !self.finds_room(available, held).await?
        {
            return Ok(TakeAnswer::Short { available });
        }
        let mut older = 0;
        for nth in 0..TRIES {
            let ask = Home::Open { kind, quantity: *quantity, hold, parts: &parts, older };
            let opened = self.home(operation, ask).await?;
            let Some(record) = opened.now else { continue };
            if let Some(answer) = differs(&record, kind, *quantity) {
                return Ok(answer);
            }
            match self.drive(operation, record, search, &mut older).await? {
                Some(End::At(record)) if opened.changed => {
                    return Ok(
                        differs(&record, kind, *quantity).unwrap_or_else(|| self.taken(&record, false))
                    );
                }
                Some(End::At(record)) => {
                    let record = self.not_overdue(operation, record).await?;
                    return Ok(differs(&record, kind, *quantity).unwrap_or_else(|| self.taken(&record, true)));
                }
                // An abandoned operation may have the missing units.
                Some(End::Refused(Refusal::Contended)) if self.recover().await? => {}
                Some(End::Refused(Refusal::Short { available, held }))
                    if self.finds_room(available, held).await? => {}
                Some(End::Refused(why)) => {
                    return Ok(match why {
                        Refusal::Short { available, .. } => TakeAnswer::Short { available },
                        Refusal::Contended => TakeAnswer::Contended,
                        Refusal::Stale => TakeAnswer::Stale,
                        Refusal::Missing => TakeAnswer::Missing,
                    });
                }
                // Another call has given it up, so it never came.
                None => self.step_back(nth).await,
            }
        }
        Ok(TakeAnswer::Contended)
    }

    /// Answers for a segment that is no longer active: only an operation that was done before can
    /// succeed.
    async fn taken_before(&self, request: &TakeRequest) -> Result<TakeAnswer, StoreError> {
        let kind = if request.hold.is_some() { Column::Held } else { Column::Sold };
        let looked = self.home(&request.operation, Home::Look).await?;
        let Some(record) = looked.now else { return Ok(TakeAnswer::Short { available: 0 }) };
        if let Some(answer) = differs(&record, kind, request.quantity) {
            return Ok(answer);
        }
        let search = Search { first: 0, only: request.only };
        Ok(match self.drive(&request.operation, record, search, &mut 0).await? {
            Some(End::At(record)) => self.taken(&record, true),
            _ => TakeAnswer::Short { available: 0 },
        })
    }

    /// Ends a reservation that is over but was not swept yet.
    async fn not_overdue(&self, operation: &OperationId, record: Record) -> Result<Record, StoreError> {
        if record.stage != Stage::At(State::Held) {
            return Ok(record);
        }
        let turned = self.home(operation, Home::Settle("expire")).await?;
        match turned.now {
            Some(now) if turned.changed => Ok(self.carry_out(operation, now.clone()).await?.unwrap_or(now)),
            now => Ok(now.unwrap_or(record)),
        }
    }

    fn taken(&self, record: &Record, repeated: bool) -> TakeAnswer {
        let state = match record.stage {
            Stage::At(state @ (State::Held | State::Sold)) => state,
            // A short reservation that was swept already.
            Stage::At(State::Expired) if !repeated => State::Held,
            Stage::At(over) => return TakeAnswer::Over(over),
            Stage::Never => return TakeAnswer::Over(State::Cancelled),
            Stage::Undecided | Stage::Restocked => return TakeAnswer::Contended,
        };
        let remaining = (state == State::Held).then(|| self.until(record.ends));
        TakeAnswer::Done { parts: record.given().collect::<Few<_>>(), state, remaining, repeated }
    }

    /// Brings an undecided operation to its end. Returns `None` if another call has given it up.
    /// Raises `older` if a segment knows a record that was made later.
    pub(super) async fn drive(
        &self,
        operation: &OperationId,
        mut record: Record,
        search: Search,
        older: &mut u64,
    ) -> Result<Option<End>, StoreError> {
        let mut empty = None;
        for nth in 0..2 * TRIES {
            if record.stage != Stage::Undecided {
                return Ok(self.carry_out(operation, record).await?.map(End::At));
            }
            let next = if search.only.is_some_and(|(only, _)| record.given().any(|part| part.segment != only))
            {
                // Another call wanted units of a segment whose lock is not ours.
                let parts = record.replaced(&[]);
                self.home(operation, Home::Plan { record: &record, parts: &parts }).await?.now
            } else if record.given().next().is_none() {
                // The call that planned this may not have put it: segments must not keep units of
                // it that would be missing elsewhere.
                if !record.parts.is_empty() && empty != Some(record.version) {
                    empty = Some(record.version);
                    self.put_all(operation, &record, Search::ANYWHERE, false).await?;
                }
                // No segment has units of it: look for segments with enough.
                if nth >= TRIES {
                    return self.give_up(operation, record, Refusal::Contended).await;
                }
                match self.room(record.quantity, search).await? {
                    None => return self.give_up(operation, record, Refusal::Missing).await,
                    Some(Room::Parts(parts)) => {
                        let parts = record.replaced(&parts);
                        self.home(operation, Home::Plan { record: &record, parts: &parts }).await?.now
                    }
                    Some(Room::None { available, held }) => {
                        return self.give_up(operation, record, Refusal::Short { available, held }).await;
                    }
                    Some(Room::Unclear) if nth + 1 >= TRIES || self.left() < self.grace / 16 => {
                        return self.give_up(operation, record, Refusal::Contended).await;
                    }
                    Some(Room::Unclear) => {
                        self.step_back(nth).await;
                        continue;
                    }
                }
            } else {
                let puts = self.put_all(operation, &record, search, nth > 0).await?;
                match puts {
                    Puts::Done => self.home(operation, Home::Decide(&record)).await?.now,
                    Puts::Newer { born } => {
                        *older = born;
                        let end = self.give_up(operation, record, Refusal::Contended).await?;
                        return Ok(end.filter(|end| matches!(end, End::At(_))));
                    }
                    Puts::Older => {
                        self.step_back(nth).await;
                        self.home(operation, Home::Look).await?.now
                    }
                    Puts::Stale => return self.give_up(operation, record, Refusal::Stale).await,
                    Puts::Short if record.kind == Column::Restocked => {
                        // The segment is only being made. Units put in elsewhere may be sold
                        // already.
                        self.count().await?;
                        self.step_back(nth).await;
                        continue;
                    }
                    Puts::Short => {
                        let parts = record.replaced(&[]);
                        self.home(operation, Home::Plan { record: &record, parts: &parts }).await?.now
                    }
                }
            };
            match next {
                Some(next) => record = next,
                None => return Ok(None),
            }
        }
        self.give_up(operation, record, Refusal::Contended).await
    }

    /// Removes the operation from all segments, unless another call has continued it.
    pub(super) async fn give_up(
        &self,
        operation: &OperationId,
        mut record: Record,
        why: Refusal,
    ) -> Result<Option<End>, StoreError> {
        if record.kind == Column::Restocked {
            let what = "the units were added to some segments, but not to all yet; send the same call again";
            return Err(StoreError::new(StoreErrorKind::Unanswered, what));
        }
        if record.given().next().is_some() {
            let parts = record.replaced(&[]);
            let turned = self.home(operation, Home::Plan { record: &record, parts: &parts }).await?;
            match turned.now {
                Some(now) if turned.changed => record = now,
                Some(now) if now.stage != Stage::Undecided => {
                    return Ok(self.carry_out(operation, now).await?.map(End::At));
                }
                _ => return Ok(None),
            }
        }
        if let Puts::Older = self.put_all(operation, &record, Search::ANYWHERE, false).await? {
            return Ok(None);
        }
        let dropped = self.home(operation, Home::Drop(&record)).await?;
        Ok(dropped.changed.then_some(End::Refused(why)))
    }

    /// Brings each segment to what the record wants of it.
    async fn put_all(
        &self,
        operation: &OperationId,
        record: &Record,
        search: Search,
        one_by_one: bool,
    ) -> Result<Puts, StoreError> {
        // A lock's token has no meaning at other segments.
        let token =
            |part: Part| search.only.filter(|(only, _)| *only == part.segment).and_then(|(_, token)| token);
        let mut wanted: Vec<_> = record.wanted().collect();
        let puts = if one_by_one && record.is_merge() {
            // In the order of segments: of several operations that want the same, the one that gets
            // the lowest segment gets the others too.
            wanted.sort_by_key(|(part, _)| part.segment);
            let mut puts = Vec::with_capacity(wanted.len());
            for one in wanted {
                let put = self.put(operation, record, one, token(one.0)).await?;
                puts.push(put);
                if !matches!(put, Put::Done { .. }) {
                    break;
                }
            }
            puts
        } else {
            let each: Vec<_> =
                wanted.into_iter().map(|one| self.put(operation, record, one, token(one.0))).collect();
            join(each).await.into_iter().collect::<Result<Vec<_>, _>>()?
        };
        for put in &puts {
            match put {
                Put::Done { epoch, .. } => self.heard_of(*epoch),
                Put::Retired | Put::Missing => self.doubt(),
                _ => {}
            }
        }
        let older = |put: &Put| match put {
            Put::Older { born } => Some(*born),
            _ => None,
        };
        Ok(match puts.iter().filter_map(older).max() {
            Some(born) if born > record.born => Puts::Newer { born },
            Some(_) => Puts::Older,
            None if puts.contains(&Put::Stale) => Puts::Stale,
            None if puts.iter().all(|put| matches!(put, Put::Done { .. })) => Puts::Done,
            None => Puts::Short,
        })
    }

    /// Carries out what was decided, so that nothing of it is open. Returns `None` if the record is
    /// gone because its time is over.
    pub(super) async fn carry_out(
        &self,
        operation: &OperationId,
        mut record: Record,
    ) -> Result<Option<Record>, StoreError> {
        for _ in 0..TRIES {
            if !record.open || record.stage == Stage::Undecided {
                return Ok(Some(record));
            }
            let each = record.wanted().map(|one| {
                let record = &record;
                async move {
                    let put = self.put(operation, record, one, None).await?;
                    // Nobody looks for units in a retired segment.
                    if let Put::Done { retired: true, .. } = put {
                        self.drain(one.0.segment).await?;
                    }
                    Ok::<_, StoreError>(put)
                }
            });
            let puts = join(each.collect::<Vec<_>>()).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            let is_there = |put: &Put| match put {
                Put::Done { .. } => true,
                Put::Older { born } => *born > record.born,
                _ => false,
            };
            let turned = if puts.iter().all(is_there) {
                self.home(operation, Home::Done(&record)).await?
            } else {
                self.home(operation, Home::Look).await?
            };
            match turned.now {
                Some(now) => record = now,
                None => return Ok(None),
            }
        }
        Ok(Some(record))
    }
}

/// Returns the answer for a record that does not match the request.
fn differs(record: &Record, kind: Column, quantity: u64) -> Option<TakeAnswer> {
    if record.stage == Stage::Never {
        return Some(TakeAnswer::Over(State::Cancelled));
    }
    let reserved = record.kind == Column::Held;
    let is_same = record.kind == kind && record.quantity == quantity;
    (!is_same).then_some(TakeAnswer::Different { quantity: record.quantity, reserved })
}

impl Spread {
    pub(super) async fn restock(&self, request: &RestockRequest) -> Result<RestockAnswer, StoreError> {
        let RestockRequest { operation, quantity, .. } = request;
        let Some(seen) = self.collect().await? else { return Ok(RestockAnswer::Missing) };
        let mut record = self.home(operation, Home::Look).await?.now;
        let repeated = record.is_some();
        if record.is_none() {
            if seen.put_in() > MAX_QUANTITY.saturating_sub(*quantity) {
                return Ok(RestockAnswer::TooMany);
            }
            let more =
                fill(&seen.active().map(|(_, content)| content.available).collect::<Vec<_>>(), *quantity);
            let parts = seen.active().zip(more).map(|((segment, _), quantity)| Part { segment, quantity });
            let parts: Vec<_> = parts.filter(|part| part.quantity > 0).collect();
            let kind = Column::Restocked;
            let ask = Home::Open { kind, quantity: *quantity, hold: None, parts: &parts, older: 0 };
            record = self.home(operation, ask).await?.now;
        }
        let Some(record) = record else { return Ok(RestockAnswer::Missing) };
        if record.kind != Column::Restocked || record.quantity != *quantity {
            return Ok(RestockAnswer::Different { quantity: record.quantity });
        }
        match self.drive(operation, record, Search::ANYWHERE, &mut 0).await? {
            Some(End::At(_)) => Ok(RestockAnswer::Done { repeated }),
            _ => {
                let what = "other calls came in between; send the same call again";
                Err(StoreError::new(StoreErrorKind::Unanswered, what))
            }
        }
    }
}
