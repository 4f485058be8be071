//! Sales: each is one transaction, with the operation's record.

use std::time::Duration;

use lock_core::FencingToken;
use lock_core::internal::clock::Clock;
use lock_core::internal::plan::few_parts;
use lock_core::store::stock::{Part, State, TakeAnswer, TakeRequest};
use lock_core::store::{Few, StoreError};

use super::call::{Call, Done, Open};
use super::numbers::{micros, signed, unsigned};
use super::records::{Record, letter, write_parts};
use super::settle::End;
use crate::call::Tries;
use crate::plumbing::{Arg, Fault};

/// Where the units come from.
enum Source {
    /// This segment has enough. The token is that of its lock, if the caller has it.
    One(u32, Option<FencingToken>),
    /// Only together do these segments have enough.
    Several(Few<Part>),
}

/// Returns the answer for an operation that has a record. `None` means that its reservation is
/// overdue and has to be ended first.
fn again(record: &Record, request: &TakeRequest, now: i64) -> Option<TakeAnswer> {
    if record.is_overdue(now) {
        return None;
    }
    let (quantity, reserved) = (record.quantity, record.reserved);
    let is_same = quantity == request.quantity && reserved == request.hold.is_some();
    Some(match record.state {
        Some(state) if record.never_came => TakeAnswer::Over(state),
        None => TakeAnswer::Different { quantity, reserved },
        Some(_) if !is_same => TakeAnswer::Different { quantity, reserved },
        Some(state @ (State::Held | State::Sold)) => {
            let left = u64::try_from(record.deadline - now).unwrap_or_default();
            let remaining = (state == State::Held).then(|| Duration::from_micros(left));
            TakeAnswer::Done { parts: record.parts.clone(), state, remaining, repeated: true }
        }
        Some(state) => TakeAnswer::Over(state),
    })
}

/// Plans where to take the units from: the first segment from `first` on that has enough, or else
/// as few as possible. Fails with the number of units if there are too few.
fn plan(available: &[Part], quantity: u64, first: u32) -> Result<Source, u64> {
    let first = first % (available.len() as u32).max(1);
    let enough = |from: u32| available.iter().find(|part| part.segment >= from && part.quantity >= quantity);
    if let Some(part) = enough(first).or_else(|| enough(0)) {
        return Ok(Source::One(part.segment, None));
    }
    let total = available.iter().map(|part| part.quantity).sum();
    if total < quantity {
        return Err(total);
    }
    Ok(Source::Several(few_parts(available.to_vec(), quantity).into_iter().collect()))
}

impl Call<'_> {
    pub(super) async fn take(&self, request: &TakeRequest) -> Result<TakeAnswer, StoreError> {
        let mut tries = Tries::default();
        loop {
            match self.try_to_take(request).await {
                Ok(Some(answer)) => return Ok(answer),
                // Another sale has taken or moved the units that this one had counted on.
                Ok(None) if self.left().is_zero() => return Ok(TakeAnswer::Contended),
                Ok(None) => {}
                Err(fault) => self.retry(&mut tries, fault).await?,
            }
        }
    }

    /// Makes one attempt. Returns `None` if others came in between.
    async fn try_to_take(&self, request: &TakeRequest) -> Result<Option<TakeAnswer>, Fault> {
        let Some(look) = self.look(&request.operation).await? else { return Ok(Some(TakeAnswer::Missing)) };
        if let Some(record) = &look.record {
            let answer = again(record, request, look.now);
            if answer.is_none() {
                self.try_to_end(&request.operation, End::Expire).await?;
            }
            return Ok(answer);
        }
        self.in_time(look.now)?;
        let planned = match request.only {
            Some((segment, token)) => Ok(Source::One(segment, token)),
            None => plan(&look.available, request.quantity, request.first),
        };
        let answer = match planned {
            Ok(source) => {
                let mut open = self.begin().await?;
                // The deadline counts from when the record is written; later statements may still
                // have to wait.
                let noted = Clock::Boot.now();
                let done = open.sell(request, source).await;
                let mut answer = open.end(done).await?;
                if let Some(TakeAnswer::Done { remaining: Some(remaining), .. }) = &mut answer {
                    *remaining = remaining.saturating_sub(Clock::Boot.now().since(noted));
                }
                answer
            }
            Err(available) => Some(TakeAnswer::Short { available }),
        };
        if !look.overdue || !matches!(answer, Some(TakeAnswer::Short { .. })) {
            return Ok(answer);
        }
        // Look again once overdue reservations have ended.
        if self.make_room().await? {
            Ok(None)
        } else {
            Err(Fault::Again("other calls are ending overdue reservations".into()))
        }
    }
}

impl Open<'_> {
    /// Writes the record and the rows. Returns `None` if others came in between.
    async fn sell(
        &mut self,
        request: &TakeRequest,
        source: Source,
    ) -> Result<Done<Option<TakeAnswer>>, Fault> {
        let (call, quantity) = (self.call, request.quantity);
        let state = if request.hold.is_some() { State::Held } else { State::Sold };
        // Retention begins when the operation is over, so a reservation has none yet.
        let kept = request.hold.is_none().then_some(call.retention);
        let hold = request.hold.map(micros);
        let mut parts = match &source {
            Source::One(segment, _) => Few::one(Part { segment: *segment, quantity }),
            Source::Several(parts) => parts.clone(),
        };
        if !self.note(&request.operation, letter(state), quantity, &parts, hold, kept).await? {
            return Ok(Done::RollBack(None));
        }
        match source {
            Source::One(segment, token) => {
                if !self.take_from(segment, quantity, token, state).await? {
                    return self.why_not(request, segment, token).await.map(Done::RollBack);
                }
            }
            Source::Several(_) => match self.merge(request, &parts, state).await? {
                Some(taken) => parts = taken,
                None => return Ok(Done::RollBack(None)),
            },
        }
        let remaining = request.hold;
        Ok(Done::Commit(Some(TakeAnswer::Done { parts, state, remaining, repeated: false })))
    }

    async fn take_from(
        &mut self,
        segment: u32,
        quantity: u64,
        token: Option<FencingToken>,
        state: State,
    ) -> Result<bool, Fault> {
        let (call, quantity) = (self.call, signed(quantity));
        let (sold, held) = if state == State::Sold { (quantity, 0) } else { (0, quantity) };
        let token = token.map(|token| signed(token.get()));
        let args = [
            (&*call.stock).into(),
            i64::from(segment).into(),
            quantity.into(),
            sold.into(),
            held.into(),
            token.into(),
        ];
        Ok(self.execute(call.sql.take, &args).await? == 1)
    }

    /// Takes the units from as few segments as possible, once their rows are locked; `planned` are
    /// the parts in the record. Returns `None` if there are too few units.
    async fn merge(
        &mut self,
        request: &TakeRequest,
        planned: &[Part],
        state: State,
    ) -> Result<Option<Few<Part>>, Fault> {
        let call = self.call;
        // Nobody changes the number of segments from here on, so none is missed.
        if !self.lock().await? {
            return Ok(None);
        }
        let available = (0..).zip(self.segments().await?.active);
        let available: Vec<_> = available.map(|(segment, quantity)| Part { segment, quantity }).collect();
        if available.iter().map(|part| part.quantity).sum::<u64>() < request.quantity {
            return Ok(None);
        }
        let parts: Few<Part> = few_parts(available, request.quantity).into_iter().collect();
        if *parts != *planned {
            let text = write_parts(&parts);
            let args = [Arg::Text(&call.stock), Arg::Text(request.operation.as_str()), Arg::Text(&text)];
            self.change(call.sql.set_parts, &args, 1).await?;
        }
        let shift = |part: &Part| {
            let (segment, units) = (part.segment.into(), signed(part.quantity));
            if state == State::Sold { [segment, -units, 0, units] } else { [segment, -units, units, 0] }
        };
        self.shift(&parts.iter().map(shift).collect::<Vec<_>>()).await?;
        Ok(Some(parts))
    }

    /// Finds out why a segment refused.
    async fn why_not(
        &mut self,
        request: &TakeRequest,
        segment: u32,
        token: Option<FencingToken>,
    ) -> Result<Option<TakeAnswer>, Fault> {
        let call = self.call;
        let args = [(&*call.stock).into(), i64::from(segment).into()];
        let rows = self.rows(call.sql.segment, &args).await?;
        let (active, available, fence) = match rows.first() {
            None => (false, 0, 0),
            Some(row) => {
                let number = |at| row.int(at).map_err(|error| call.unreadable(&error));
                (number(0)? == 1, unsigned(number(1)?)?, number(2)?)
            }
        };
        let is_only = request.only.is_some();
        Ok(if !active {
            is_only.then_some(TakeAnswer::Short { available: 0 })
        } else if token.is_some_and(|token| signed(token.get()) < fence) {
            Some(TakeAnswer::Stale)
        } else {
            (is_only && available < request.quantity).then_some(TakeAnswer::Short { available })
        })
    }
}
