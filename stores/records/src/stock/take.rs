//! Sales: each is one transaction, with the operation's record.

use std::time::Duration;

use lock_core::FencingToken;
use lock_core::internal::clock::Clock;
use lock_core::internal::plan::few_parts;
use lock_core::store::kit::Backoff;
use lock_core::store::stock::{Part, State, TakeAnswer, TakeRequest};
use lock_core::store::{Few, StoreError};

use super::numbers::{micros, signed};
use super::record::{Look, Record, letter, write_parts};
use super::settle::{End, end, make_room};
use super::{Calls, Done, Note, Scope, Shift, Units, Work, decided, sum};

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
    let total = sum(available);
    if total < quantity {
        return Err(total);
    }
    Ok(Source::Several(few_parts(available.to_vec(), quantity).into_iter().collect()))
}

pub(super) async fn take<C: Calls>(call: &C, request: &TakeRequest) -> Result<TakeAnswer, StoreError> {
    let mut tries = C::Tries::default();
    let (mut first, mut overtaken) = (request.first, None::<Backoff>);
    loop {
        match try_to_take(call, request, first).await {
            Ok(Some(answer)) => return Ok(answer),
            // Another sale has taken or moved the units that this one had counted on.
            Ok(None) if call.left().is_zero() => return Ok(TakeAnswer::Contended),
            Ok(None) => match &mut overtaken {
                None => overtaken = Some(Backoff::default()),
                // The next look may not see that yet.
                Some(backoff) => tokio::time::sleep(backoff.next_pause().min(call.left())).await,
            },
            Err(fault) => call.retry(&mut tries, fault).await?,
        }
        // Others may be busy in that segment for long.
        first = first.wrapping_add(1);
    }
}

/// The next step, according to a look.
enum Step {
    Answer(TakeAnswer),
    /// The reservation of this very operation is overdue, and ends first.
    End,
    Sell(Source),
}

/// Decides on the next step. Returns also whether the stock has an overdue reservation.
fn decide(
    call: &impl Calls,
    request: &TakeRequest,
    first: u32,
    look: Option<Look>,
) -> Result<(Step, bool), StoreError> {
    let Some(look) = look else { return Ok((Step::Answer(TakeAnswer::Missing), false)) };
    if let Some(record) = Record::read(call, request.operation.as_str(), look.record, look.now)? {
        let answer = again(&record, request, look.now);
        return Ok((answer.map_or(Step::End, Step::Answer), look.overdue));
    }
    call.in_time(look.now)?;
    let planned = match request.only {
        Some((segment, token)) => Ok(Source::One(segment, token)),
        None => plan(&look.available, request.quantity, first),
    };
    let short = |available| Step::Answer(TakeAnswer::Short { available });
    Ok((planned.map_or_else(short, Step::Sell), look.overdue))
}

/// Makes one attempt. Returns `None` if others came in between.
async fn try_to_take<C: Calls>(
    call: &C,
    request: &TakeRequest,
    first: u32,
) -> Result<Option<TakeAnswer>, C::Fault> {
    let operation = &request.operation;
    let by = |look| decide(call, request, first, look);
    let (step, overdue) = decided(call, operation, by, |(step, _)| matches!(step, Step::Answer(_))).await?;
    let answer = match step {
        Step::Answer(answer) => Some(answer),
        Step::End => {
            end(call, operation, End::Expire).await?;
            return Ok(None);
        }
        Step::Sell(source) => {
            let scope =
                if let Source::One(segment, _) = source { Scope::Segment(segment) } else { Scope::Stock };
            let mut work = Work::begin(call, scope).await?;
            // The deadline counts from when the record is written; later steps may still have to
            // wait.
            let noted = Clock::Boot.now();
            let done = work.sell(request, source).await;
            let mut answer = work.end(done).await?;
            if let Some(TakeAnswer::Done { remaining: Some(remaining), .. }) = &mut answer {
                *remaining = remaining.saturating_sub(Clock::Boot.now().since(noted));
            }
            answer
        }
    };
    if !overdue || !matches!(answer, Some(TakeAnswer::Short { .. })) {
        return Ok(answer);
    }
    // Look again once overdue reservations have ended.
    if make_room(call).await? {
        Ok(None)
    } else {
        Err(call.again("other calls are ending overdue reservations"))
    }
}

impl<C: Calls> Work<'_, C> {
    /// Writes the record and the segments. Returns `None` if others came in between.
    async fn sell(
        &mut self,
        request: &TakeRequest,
        source: Source,
    ) -> Result<Done<Option<TakeAnswer>>, C::Fault> {
        let quantity = request.quantity;
        let state = if request.hold.is_some() { State::Held } else { State::Sold };
        let mut parts = match &source {
            Source::One(segment, _) => Few::one(Part { segment: *segment, quantity }),
            Source::Several(parts) => parts.clone(),
        };
        let note = Note {
            operation: &request.operation,
            state: letter(state),
            quantity,
            parts: &write_parts(&parts),
            hold: request.hold.map(micros),
            // Retention begins when the operation is over, so a reservation has none yet.
            kept: request.hold.is_none().then_some(self.call.terms().retention),
        };
        if !self.note(&note).await? {
            return Ok(Done::Undo(None));
        }
        match source {
            Source::One(segment, token) => {
                let units = signed(quantity);
                let (sold, held) = if state == State::Sold { (units, 0) } else { (0, units) };
                let token_number = token.map(|token| signed(token.get()));
                let units = Units { segment, quantity: units, sold, held, token: token_number };
                if !self.call.take(&mut self.open, units).await? {
                    let why = self.why_not(request, segment, token_number).await?;
                    return Ok(if why.is_some() { Done::RollBack(why) } else { Done::Undo(None) });
                }
            }
            Source::Several(_) => match self.merge(request, &parts, state).await? {
                Some(taken) => parts = taken,
                None => return Ok(Done::Undo(None)),
            },
        }
        let remaining = request.hold;
        Ok(Done::Commit(Some(TakeAnswer::Done { parts, state, remaining, repeated: false })))
    }

    /// Takes the units from as few segments as possible, once these are locked; `planned` are the
    /// parts in the record. Returns `None` if there are too few units.
    async fn merge(
        &mut self,
        request: &TakeRequest,
        planned: &[Part],
        state: State,
    ) -> Result<Option<Few<Part>>, C::Fault> {
        let call = self.call;
        // Nobody changes the number of segments from here on, so none is missed.
        if !call.lock(&mut self.open).await? {
            return Ok(None);
        }
        let available = (0..).zip(self.segments().await?.active);
        let available: Vec<_> = available.map(|(segment, quantity)| Part { segment, quantity }).collect();
        if sum(&available) < request.quantity {
            return Ok(None);
        }
        let parts: Few<Part> = few_parts(available, request.quantity).into_iter().collect();
        if *parts != *planned {
            call.set_parts(&mut self.open, &request.operation, &write_parts(&parts)).await?;
        }
        let shift = |part: &Part| {
            let units = signed(part.quantity);
            let counts = if state == State::Sold { [-units, 0, units] } else { [-units, units, 0] };
            Shift { segment: part.segment, counts }
        };
        self.shift(&parts.iter().map(shift).collect::<Vec<_>>()).await?;
        Ok(Some(parts))
    }

    /// Finds out why a segment refused.
    async fn why_not(
        &mut self,
        request: &TakeRequest,
        segment: u32,
        token: Option<i64>,
    ) -> Result<Option<TakeAnswer>, C::Fault> {
        let found = self.call.segment(&mut self.open, segment).await?;
        let (active, available, fence) = found.unwrap_or_default();
        let is_only = request.only.is_some();
        Ok(if !active {
            is_only.then_some(TakeAnswer::Short { available: 0 })
        } else if token.is_some_and(|token| token < fence) {
            Some(TakeAnswer::Stale)
        } else {
            (is_only && available < request.quantity).then_some(TakeAnswer::Short { available })
        })
    }
}
