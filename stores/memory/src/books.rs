//! [`Books`]: a stock that is kept in one place, as steps without clocks, mutexes or futures.
//!
//! The memory store keeps its stocks this way. For other stores, this is the reference for their
//! scripts and statements.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use lock_core::FencingToken;
use lock_core::internal::clock::Tick;
use lock_core::internal::plan::{AT_ONCE, few_parts, fill};
use lock_core::store::Few;
use lock_core::store::stock::{
    Audit, MAX_QUANTITY, OperationId, Part, RestockAnswer, SegmentCounts, Settle, SettleAnswer, Snapshot,
    State, Swept, TakeAnswer, next,
};

#[derive(Debug)]
struct Record {
    quantity: u64,
    kind: Kind,
    parts: Few<Part>,
    /// When the record is forgotten.
    until: Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Taken(State),
    Reserved(State, Tick),
    /// Cancelled before it arrived: its quantity is unknown.
    NeverCame,
    Restocked,
}

impl Record {
    fn state(&self) -> Option<State> {
        match self.kind {
            Kind::Taken(state) | Kind::Reserved(state, _) => Some(state),
            Kind::NeverCame => Some(State::Cancelled),
            Kind::Restocked => None,
        }
    }

    fn is_reserved(&self) -> bool {
        matches!(self.kind, Kind::Reserved(..))
    }
}

#[derive(Debug, Default)]
struct Segment {
    available: u64,
    held: u64,
    sold: u64,
    /// The largest token that was presented for this segment.
    fence: u64,
}

/// The terms of a take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) quantity: u64,
    pub(crate) hold: Option<Duration>,
    pub(crate) first: u32,
    pub(crate) only: Option<(u32, Option<FencingToken>)>,
}

/// One stock.
#[derive(Debug)]
pub(crate) struct Books {
    /// The active segments first, then the retired ones.
    segments: Vec<Segment>,
    active: usize,
    initial: u64,
    restocked: u64,
    epoch: u64,
    /// Units sold by operations whose records are forgotten.
    forgotten: u64,
    records: HashMap<OperationId, Record>,
    /// The ends of reservations.
    deadlines: BTreeSet<(Tick, OperationId)>,
    /// When records of settled operations are forgotten.
    forget: BTreeSet<(Tick, OperationId)>,
}

impl Books {
    pub(crate) fn new(units: &[u64]) -> Self {
        let segments = units.iter().map(|&available| Segment { available, ..Segment::default() }).collect();
        Self {
            segments,
            active: units.len(),
            initial: units.iter().sum(),
            restocked: 0,
            epoch: 1,
            forgotten: 0,
            records: HashMap::new(),
            deadlines: BTreeSet::new(),
            forget: BTreeSet::new(),
        }
    }

    fn active(&mut self) -> &mut [Segment] {
        self.segments.get_mut(..self.active).unwrap_or_default()
    }

    /// Throws away expired records, at most `most`; returns how many.
    pub(crate) fn purge(&mut self, now: Tick, most: usize) -> u64 {
        for done in 0..most {
            match self.forget.first() {
                Some((due, _)) if *due <= now => {}
                _ => return done as u64,
            }
            if let Some((_, operation)) = self.forget.pop_first() {
                self.forget(&operation);
            }
        }
        most as u64
    }

    fn forget(&mut self, operation: &OperationId) {
        if let Some(record) = self.records.remove(operation)
            && record.state() == Some(State::Sold)
        {
            self.forgotten += record.quantity;
        }
    }

    /// Prepares access to the operation's record: removes an expired one, which a purge may not
    /// have reached yet.
    fn look_at(&mut self, operation: &OperationId, now: Tick) {
        self.purge(now, 2);
        if let Some(until) =
            self.records.get(operation).map(|record| record.until).filter(|&until| until <= now)
        {
            self.forget(operation);
            self.forget.remove(&(until, operation.clone()));
        }
    }

    /// Stores a settled record.
    fn keep(&mut self, operation: &OperationId, record: Record) {
        self.forget.insert((record.until, operation.clone()));
        self.records.insert(operation.clone(), record);
    }

    pub(crate) fn take(
        &mut self,
        operation: &OperationId,
        wanted: Wanted,
        now: Tick,
        retention: Duration,
    ) -> TakeAnswer {
        self.look_at(operation, now);
        if self.records.contains_key(operation) {
            return self.again(operation, wanted, now, retention);
        }
        let mut planned = self.plan(wanted);
        if let Err(TakeAnswer::Short { .. }) = planned {
            let Swept { expired, more, .. } = self.expire_some(AT_ONCE, now, retention);
            if expired > 0 {
                planned = self.plan(wanted);
            }
            if more && wanted.only.is_none() && planned.is_err() {
                return TakeAnswer::Contended;
            }
        }
        let parts = match planned {
            Ok(parts) => parts,
            Err(answer) => return answer,
        };
        for part in &parts {
            let Some(segment) = self.segments.get_mut(part.segment as usize) else { continue };
            segment.available -= part.quantity;
            *(if wanted.hold.is_some() { &mut segment.held } else { &mut segment.sold }) += part.quantity;
        }
        if let Some((index, Some(token))) = wanted.only
            && let Some(segment) = self.segments.get_mut(index as usize)
        {
            segment.fence = token.get();
        }
        let quantity = wanted.quantity;
        let record = |kind, parts, until| Record { quantity, kind, parts, until };
        match wanted.hold {
            None => {
                let sold = record(Kind::Taken(State::Sold), parts.clone(), now + retention);
                self.keep(operation, sold);
                TakeAnswer::Done { parts, state: State::Sold, remaining: None, repeated: false }
            }
            Some(hold) => {
                let deadline = now + hold;
                self.deadlines.insert((deadline, operation.clone()));
                let held = record(Kind::Reserved(State::Held, deadline), parts.clone(), Tick::MAX);
                self.records.insert(operation.clone(), held);
                TakeAnswer::Done { parts, state: State::Held, remaining: Some(hold), repeated: false }
            }
        }
    }

    /// Answers a repeated take.
    fn again(
        &mut self,
        operation: &OperationId,
        wanted: Wanted,
        now: Tick,
        retention: Duration,
    ) -> TakeAnswer {
        // An overdue reservation counts as expired, swept or not.
        self.expire(operation, now, retention);
        let Some(record) = self.records.get(operation) else { return TakeAnswer::Contended };
        let (quantity, reserved) = (record.quantity, record.is_reserved());
        let is_same = quantity == wanted.quantity && reserved == wanted.hold.is_some();
        let (state, remaining) = match record.kind {
            Kind::NeverCame => return TakeAnswer::Over(State::Cancelled),
            Kind::Restocked => return TakeAnswer::Different { quantity, reserved },
            _ if !is_same => return TakeAnswer::Different { quantity, reserved },
            Kind::Reserved(State::Held, deadline) => (State::Held, Some(deadline.since(now))),
            Kind::Taken(State::Sold) | Kind::Reserved(State::Sold, _) => (State::Sold, None),
            Kind::Taken(state) | Kind::Reserved(state, _) => return TakeAnswer::Over(state),
        };
        TakeAnswer::Done { parts: record.parts.clone(), state, remaining, repeated: true }
    }

    /// Returns the units to take: from the first segment that has enough, or else from as few as
    /// possible.
    fn plan(&self, wanted: Wanted) -> Result<Few<Part>, TakeAnswer> {
        let quantity = wanted.quantity;
        let active = self.segments.get(..self.active).unwrap_or_default();
        let one = |segment: usize| [Part { segment: segment as u32, quantity }].into_iter().collect();
        if let Some((index, token)) = wanted.only {
            // A retired segment sells nothing.
            let Some(segment) = active.get(index as usize) else {
                return Err(TakeAnswer::Short { available: 0 });
            };
            if token.is_some_and(|token| token.get() < segment.fence) {
                return Err(TakeAnswer::Stale);
            }
            return if segment.available >= quantity {
                Ok(one(index as usize))
            } else {
                Err(TakeAnswer::Short { available: segment.available })
            };
        }
        let first = wanted.first as usize % active.len().max(1);
        let order = (first..active.len()).chain(0..first);
        if let Some(segment) =
            order.clone().find(|&at| active.get(at).is_some_and(|it| it.available >= quantity))
        {
            return Ok(one(segment));
        }
        let available: u64 = active.iter().map(|segment| segment.available).sum();
        if available < quantity {
            return Err(TakeAnswer::Short { available });
        }
        let has = |at: usize| Some(Part { segment: at as u32, quantity: active.get(at)?.available });
        Ok(few_parts(order.filter_map(has).collect(), quantity).into())
    }

    /// Ends the operation's reservation if it is overdue; returns whether it was.
    fn expire(&mut self, operation: &OperationId, now: Tick, retention: Duration) -> bool {
        let overdue = match self.records.get(operation).map(|record| record.kind) {
            Some(Kind::Reserved(State::Held, deadline)) => deadline <= now,
            _ => false,
        };
        if overdue {
            self.change(operation, State::Expired, now, retention);
        }
        overdue
    }

    /// Moves the units of an operation according to its new state.
    fn change(&mut self, operation: &OperationId, to: State, now: Tick, retention: Duration) {
        let Some(record) = self.records.get_mut(operation) else { return };
        let Some(from) = record.state() else { return };
        if let Kind::Reserved(State::Held, deadline) = record.kind {
            self.deadlines.remove(&(deadline, operation.clone()));
        } else {
            self.forget.remove(&(record.until, operation.clone()));
        }
        // A caller that repeats this change gets its answer for as long as after the first one.
        record.until = now + retention;
        self.forget.insert((record.until, operation.clone()));
        record.kind = match record.kind {
            Kind::Reserved(_, deadline) => Kind::Reserved(to, deadline),
            _ => Kind::Taken(to),
        };
        for part in &record.parts {
            let Some(segment) = self.segments.get_mut(part.segment as usize) else { continue };
            match from {
                State::Held => segment.held -= part.quantity,
                State::Sold => segment.sold -= part.quantity,
                _ => continue,
            }
            if to == State::Sold {
                segment.sold += part.quantity;
                continue;
            }
            // Units of a retired segment could not be sold, so they go to an active one.
            let home = part.segment as usize % self.active.max(1);
            let at = if (part.segment as usize) < self.active { part.segment as usize } else { home };
            if let Some(segment) = self.segments.get_mut(at) {
                segment.available += part.quantity;
            }
        }
    }

    pub(crate) fn settle(
        &mut self,
        operation: &OperationId,
        settle: Settle,
        now: Tick,
        retention: Duration,
    ) -> SettleAnswer {
        self.look_at(operation, now);
        let Some(record) = self.records.get(operation) else {
            let Some(state) = next(settle, None, false) else { return SettleAnswer::Unknown };
            let until = now + retention;
            self.keep(operation, Record { quantity: 0, kind: Kind::NeverCame, parts: Few::new(), until });
            return SettleAnswer::Known { before: None, now: state, quantity: 0, reserved: false };
        };
        let (quantity, reserved) = (record.quantity, record.is_reserved());
        // A restock cannot be sold or cancelled.
        let Some(before) = record.state() else { return SettleAnswer::Unknown };
        let overdue = matches!(record.kind, Kind::Reserved(State::Held, deadline) if deadline <= now);
        let after = next(settle, Some(before), overdue).unwrap_or(before);
        if after != before {
            self.change(operation, after, now, retention);
        }
        SettleAnswer::Known { before: Some(before), now: after, quantity, reserved }
    }

    pub(crate) fn restock(
        &mut self,
        operation: &OperationId,
        quantity: u64,
        now: Tick,
        retention: Duration,
    ) -> RestockAnswer {
        self.look_at(operation, now);
        match self.records.get(operation) {
            Some(Record { kind: Kind::Restocked, quantity: before, .. }) if *before == quantity => {
                return RestockAnswer::Done { repeated: true };
            }
            Some(record) => return RestockAnswer::Different { quantity: record.quantity },
            None => {}
        }
        if self.initial + self.restocked > MAX_QUANTITY - quantity {
            return RestockAnswer::TooMany;
        }
        self.restocked += quantity;
        let units: Vec<u64> = self.active().iter().map(|segment| segment.available).collect();
        for (segment, more) in self.active().iter_mut().zip(fill(&units, quantity)) {
            segment.available += more;
        }
        let until = now + retention;
        self.keep(operation, Record { quantity, kind: Kind::Restocked, parts: Few::new(), until });
        RestockAnswer::Done { repeated: false }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let segments = self.segments.iter().enumerate().map(|(at, segment)| SegmentCounts {
            available: segment.available,
            held: segment.held,
            sold: segment.sold,
            active: at < self.active,
        });
        Snapshot {
            segments: segments.collect(),
            in_transit: 0,
            initial: self.initial,
            restocked: self.restocked,
            epoch: self.epoch,
        }
    }

    pub(crate) fn rebalance(&mut self) {
        let total: u64 = self.active().iter().map(|segment| segment.available).sum();
        let none = vec![0; self.active];
        for (segment, units) in self.active().iter_mut().zip(fill(&none, total)) {
            segment.available = units;
        }
    }

    pub(crate) fn resize(&mut self, segments: u32) {
        let (before, after) = (self.active, segments as usize);
        if before == after {
            return;
        }
        self.epoch += 1;
        self.active = after;
        if self.segments.len() < after {
            self.segments.resize_with(after, Segment::default);
        }
        let retired = self.segments.get_mut(after..).unwrap_or_default();
        let left: u64 = retired.iter_mut().map(|segment| std::mem::take(&mut segment.available)).sum();
        let units: Vec<u64> = self.active().iter().map(|segment| segment.available).collect();
        for (segment, more) in self.active().iter_mut().zip(fill(&units, left)) {
            segment.available += more;
        }
    }

    /// Looks through all records. A million takes about a tenth of a second, in which no other
    /// caller can sell.
    pub(crate) fn audit(&self) -> Audit {
        let sum = |state| {
            let of = self.records.values().filter(|record| record.state() == Some(state));
            of.map(|record| record.quantity).sum()
        };
        let (held, sold) = (sum(State::Held), sum(State::Sold));
        Audit { counted: self.snapshot(), held, sold, forgotten: self.forgotten }
    }

    /// Ends overdue reservations, earliest first.
    fn expire_some(&mut self, most: u32, now: Tick, retention: Duration) -> Swept {
        let mut swept = Swept::default();
        while let Some((deadline, operation)) = self.deadlines.first().cloned() {
            swept.more = deadline <= now;
            if !swept.more || swept.expired >= u64::from(most) {
                break;
            }
            self.expire(&operation, now, retention);
            swept.expired += 1;
            swept.more = false;
        }
        swept
    }

    pub(crate) fn sweep(&mut self, limit: u32, now: Tick, retention: Duration) -> Swept {
        let forgotten = self.purge(now, limit as usize);
        let swept = self.expire_some(limit, now, retention);
        Swept { forgotten, more: swept.more || limit > 0 && forgotten >= u64::from(limit), ..swept }
    }

    /// Returns the number of records, for tests that look for leaks.
    #[cfg(test)]
    pub(crate) fn records(&self) -> usize {
        self.records.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_go_with_the_retention() {
        let retention = Duration::from_secs(10);
        let mut books = Books::new(&[1000]);
        let id = |number: u64| OperationId::new(number.to_string()).unwrap();
        for second in 0..100 {
            let now = Tick::from_nanos(0) + Duration::from_secs(second);
            let wanted = Wanted { quantity: 1, hold: None, first: 0, only: None };
            assert!(matches!(books.take(&id(second), wanted, now, retention), TakeAnswer::Done { .. }));
            books.settle(&id(1000 + second), Settle::Cancel, now, retention);
            assert!(books.records() <= 22, "{} after {second} s", books.records());
        }
        books.purge(Tick::from_nanos(0) + Duration::from_secs(200), 1000);
        assert_eq!(books.records(), 0);
    }
}
