//! Sales: under the locks of their segments, in one transaction with the operation's record. A
//! request's hint where to look first is not used: the lock takes the better of two segments.

use std::time::Duration;

use lock_core::FencingToken;
use lock_core::internal::clock::Clock;
use lock_core::internal::plan::few_parts;
use lock_core::store::kit::Backoff;
use lock_core::store::stock::{Part, State, TakeAnswer, TakeRequest};
use lock_core::store::{Few, StoreError, StoreErrorKind};
use lock_store_sql::plumbing::Fault;

use super::call::{Call, NO_TABLES, Open};
use super::numbers::{micros, signed, unsigned};
use super::records::{Look, Record, letter};
use super::settle::End;
use super::stocks::SqlStocks;
use crate::error::LockError;
use crate::segmented::lock::{SegmentGuard, SegmentedLock};

/// The units to take from one segment, and the token of its lock.
struct Sale {
    part: Part,
    token: Option<FencingToken>,
}

/// The segments that are locked.
struct Locks<'a>(&'a [SegmentGuard]);

impl Locks<'_> {
    fn are_lost(&self) -> bool {
        self.0.iter().any(|guard| guard.is_lost())
    }

    fn token(&self, segment: u32) -> Option<FencingToken> {
        self.0.iter().find(|guard| guard.index() == segment).map(|guard| guard.fencing_token())
    }
}

/// How to continue after a look.
enum Plan {
    Answer(TakeAnswer),
    /// Each of these segments has enough.
    One(Vec<u32>),
    /// Only together do these segments have enough.
    Merge(Vec<Part>),
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

/// Plans from which segments to take the units: from one that has enough, or otherwise from as few
/// as possible.
fn plan(available: &[Part], quantity: u64) -> Plan {
    let enough: Vec<_> =
        available.iter().filter(|part| part.quantity >= quantity).map(|part| part.segment).collect();
    if !enough.is_empty() {
        return Plan::One(enough);
    }
    let total: u64 = available.iter().map(|part| part.quantity).sum();
    if total < quantity {
        return Plan::Answer(TakeAnswer::Short { available: total });
    }
    let mut parts = few_parts(available.to_vec(), quantity);
    // Rows are locked in ascending order, like locks.
    parts.sort_by_key(|part| part.segment);
    Plan::Merge(parts)
}

/// Returns the answer if a lock could not be taken: nothing was done.
fn unlocked(error: &LockError) -> Result<TakeAnswer, StoreError> {
    let kind = match error {
        LockError::Busy { .. } | LockError::TimedOut { .. } | LockError::TooManyWaiters { .. } => {
            return Ok(TakeAnswer::Contended);
        }
        // The outcome for the lock may be unknown; the sale has not begun.
        LockError::Unavailable { cause, .. } | LockError::NotReplicated { cause, .. } => {
            if cause.outcome_unknown() { StoreErrorKind::NotReady } else { cause.kind() }
        }
        // No retry helps.
        _ => StoreErrorKind::Unsupported,
    };
    Err(StoreError::new(kind, format!("nothing was taken: {error}")))
}

impl SqlStocks {
    pub(super) async fn take_units(&self, request: &TakeRequest) -> Result<TakeAnswer, StoreError> {
        let call = Call::new(&self.tables, &request.call).await?;
        let mut backoff = Backoff::default();
        // From the second merge on, all segments are locked, so that no other sale can come in
        // between again.
        let mut merged = false;
        loop {
            match self.try_to_take(&call, request, &mut merged).await {
                Ok(Some(answer)) => return Ok(answer),
                // Another sale has taken or moved the units that this one had counted on.
                Ok(None) if call.left().is_zero() => return Ok(TakeAnswer::Contended),
                Ok(None) => {}
                Err(Fault::Again(said)) => call.pause(&mut backoff, said).await?,
                Err(fault) => return Err(fault.error(NO_TABLES)),
            }
        }
    }

    /// Makes one attempt. Returns `None` if others came in between.
    async fn try_to_take(
        &self,
        call: &Call<'_>,
        request: &TakeRequest,
        merged: &mut bool,
    ) -> Result<Option<TakeAnswer>, Fault> {
        // No connection is held while waiting for a lock: holders of locks need connections to
        // finish.
        let Some(look) = call.look(&request.operation).await? else { return Ok(Some(TakeAnswer::Missing)) };
        if let Some(record) = &look.record {
            let answer = again(record, request, look.now);
            if answer.is_none() {
                call.try_to_settle(&request.operation, End::Expire).await?;
            }
            return Ok(answer);
        }
        call.in_time(look.now)?;
        let quantity = request.quantity;
        if let Some((segment, token)) = request.only {
            let sales = [Sale { part: Part { segment, quantity }, token }];
            return call.or_room(call.sell(request, &sales, &Locks(&[])).await?, look.overdue).await;
        }
        match plan(&look.available, quantity) {
            Plan::Answer(answer) => call.or_room(Some(answer), look.overdue).await,
            Plan::One(enough) => {
                let guard = match self.lock_any(call, &look, &enough).await {
                    Ok(Some(guard)) => guard,
                    Ok(None) => return Ok(None),
                    Err(error) => return Ok(Some(unlocked(&error)?)),
                };
                let part = Part { segment: guard.index(), quantity };
                let sales = [Sale { part, token: Some(guard.fencing_token()) }];
                call.sell(request, &sales, &Locks(&[guard])).await
            }
            Plan::Merge(parts) => {
                let wanted: Vec<_> = if std::mem::replace(merged, true) {
                    (0..look.segments).collect()
                } else {
                    parts.iter().map(|part| part.segment).collect()
                };
                let guards = match self.lock_all(call, look.segments, &wanted).await {
                    Ok(guards) => guards,
                    Err(error) => return Ok(Some(unlocked(&error)?)),
                };
                call.merge(request, &guards).await
            }
        }
    }

    fn lock_of(&self, call: &Call<'_>, segments: u32) -> SegmentedLock {
        self.locks.segmented(call.stock, segments).wait(call.left())
    }

    /// Locks one of the segments that have enough.
    async fn lock_any(
        &self,
        call: &Call<'_>,
        look: &Look,
        enough: &[u32],
    ) -> Result<Option<SegmentGuard>, LockError> {
        self.lock_of(call, look.segments).acquire_of(enough.to_vec()).await
    }

    /// Locks these segments, given in ascending order, within the time of the call.
    async fn lock_all(
        &self,
        call: &Call<'_>,
        segments: u32,
        wanted: &[u32],
    ) -> Result<Vec<SegmentGuard>, LockError> {
        let lock = self.lock_of(call, segments);
        let mut guards = Vec::with_capacity(wanted.len());
        for &segment in wanted {
            guards.push(lock.clone().wait(call.left()).acquire(segment).await?);
        }
        Ok(guards)
    }
}

impl Call<'_> {
    /// Returns the answer. If there were too few units, ends overdue reservations and returns
    /// `None`, to look again.
    async fn or_room(&self, answer: Option<TakeAnswer>, overdue: bool) -> Result<Option<TakeAnswer>, Fault> {
        if !overdue || !matches!(answer, Some(TakeAnswer::Short { .. })) {
            return Ok(answer);
        }
        if self.make_room().await? {
            Ok(None)
        } else {
            Err(Fault::Again("other calls are ending overdue reservations".into()))
        }
    }

    /// Takes the units from the locked segments, after counting them again under their locks.
    async fn merge(
        &self,
        request: &TakeRequest,
        guards: &[SegmentGuard],
    ) -> Result<Option<TakeAnswer>, Fault> {
        let locks = Locks(guards);
        let Some(look) = self.look(&request.operation).await? else { return Ok(None) };
        if look.record.is_some() {
            return Ok(None);
        }
        let locked: Vec<_> =
            look.available.iter().filter(|part| locks.token(part.segment).is_some()).copied().collect();
        let parts = match plan(&locked, request.quantity) {
            Plan::One(enough) => enough.iter().take(1).map(|&segment| (segment, request.quantity)).collect(),
            Plan::Merge(parts) => parts.iter().map(|part| (part.segment, part.quantity)).collect::<Vec<_>>(),
            // The locked segments have too few. All segments were counted at the same moment.
            Plan::Answer(_) => {
                let available = look.total();
                return Ok((available < request.quantity && !look.overdue)
                    .then_some(TakeAnswer::Short { available }));
            }
        };
        let sales: Vec<_> = parts
            .into_iter()
            .map(|(segment, quantity)| Sale { part: Part { segment, quantity }, token: locks.token(segment) })
            .collect();
        self.sell(request, &sales, &locks).await
    }

    /// Writes the record and the rows in one transaction. Returns `None` if others came in between.
    async fn sell(
        &self,
        request: &TakeRequest,
        sales: &[Sale],
        locks: &Locks<'_>,
    ) -> Result<Option<TakeAnswer>, Fault> {
        let mut open = self.begin().await?;
        let parts: Few<Part> = sales.iter().map(|sale| sale.part).collect();
        let state = if request.hold.is_some() { State::Held } else { State::Sold };
        // Retention begins when the operation is over, so a reservation has none yet.
        let kept = request.hold.is_none().then_some(self.retention);
        let hold = request.hold.map(micros);
        // The deadline counts from when the record is written; later statements may still have to
        // wait.
        let noted = Clock::Boot.now();
        if !open.note(&request.operation, letter(state), request.quantity, &parts, hold, kept).await? {
            return Ok(None);
        }
        for sale in sales {
            if !open.take_part(sale, state).await? {
                return open.why_not(request, sale).await;
            }
        }
        if locks.are_lost() {
            return Ok(Some(TakeAnswer::Stale));
        }
        open.commit().await?;
        let remaining = request.hold.map(|hold| hold.saturating_sub(Clock::Boot.now().since(noted)));
        Ok(Some(TakeAnswer::Done { parts, state, remaining, repeated: false }))
    }
}

impl Open<'_> {
    async fn take_part(&mut self, sale: &Sale, state: State) -> Result<bool, Fault> {
        let quantity = signed(sale.part.quantity);
        let (sold, held) = if state == State::Sold { (quantity, 0) } else { (0, quantity) };
        let token = sale.token.map(|token| signed(token.get()));
        let args = [
            self.call.stock.into(),
            i64::from(sale.part.segment).into(),
            quantity.into(),
            sold.into(),
            held.into(),
            token.into(),
        ];
        Ok(self.execute(self.call.at.sql.take, &args).await? == 1)
    }

    /// Finds out why a segment refused. The earlier statements are rolled back.
    async fn why_not(
        mut self,
        request: &TakeRequest,
        Sale { part, token }: &Sale,
    ) -> Result<Option<TakeAnswer>, Fault> {
        let args = [self.call.stock.into(), i64::from(part.segment).into()];
        let rows = self.rows(self.call.at.sql.segment, &args).await?;
        let (active, available, fence) = match rows.first() {
            None => (false, 0, 0),
            Some(row) => {
                let number = |at| row.int(at).map_err(|error| self.call.unreadable(&error));
                (number(0)? == 1, unsigned(number(1)?)?, number(2)?)
            }
        };
        let is_only = request.only.is_some();
        Ok(if !active {
            is_only.then_some(TakeAnswer::Short { available: 0 })
        } else if token.is_some_and(|token| signed(token.get()) < fence) {
            Some(TakeAnswer::Stale)
        } else {
            (is_only && available < part.quantity).then_some(TakeAnswer::Short { available })
        })
    }
}
