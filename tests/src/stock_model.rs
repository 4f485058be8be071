//! Random operations on a stock, compared with a model that has no segments.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use lock_runtime::segmented::{SegmentedStock, StockError};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Retention of the stocks that [`play`] tests.
pub const RETENTION: Duration = Duration::from_secs(100);

/// A list of operations on a stock.
#[derive(Clone, Debug)]
pub struct Ops(Vec<Op>);

/// Times are in seconds.
#[derive(Clone, Copy, Debug)]
enum Op {
    Take { id: u8, quantity: u64 },
    Reserve { id: u8, quantity: u64, hold: u64 },
    Confirm(u8),
    Cancel(u8),
    GiveBack(u8),
    Restock { id: u8, quantity: u64 },
    Resize(u32),
    Rebalance,
    Sweep(u32),
    Advance(u64),
}

/// Returns random operations. Without `time`, no reservation expires.
pub fn ops(time: bool) -> impl Strategy<Value = Ops> {
    proptest::collection::vec(op(time), 1..80).prop_map(Ops)
}

fn op(time: bool) -> impl Strategy<Value = Op> {
    let id = || 0..12_u8;
    let quantity = || prop_oneof![4 => 1..4_u64, 2 => 4..30_u64, 1 => 30..200_u64];
    prop_oneof![
        8 => (id(), quantity()).prop_map(|(id, quantity)| Op::Take { id, quantity }),
        6 => (id(), quantity(), if time { 1..60_u64 } else { 50..60 }).prop_map(|(id, quantity, hold)| Op::Reserve { id, quantity, hold }),
        4 => id().prop_map(Op::Confirm),
        3 => id().prop_map(Op::Cancel),
        4 => id().prop_map(Op::GiveBack),
        2 => (id(), quantity()).prop_map(|(id, quantity)| Op::Restock { id, quantity }),
        2 => (1..12_u32).prop_map(Op::Resize),
        1 => Just(Op::Rebalance),
        1 => (1..4_u32).prop_map(Op::Sweep),
        if time { 4 } else { 0 } => (1..40_u64).prop_map(Op::Advance),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Taken,
    Reserved,
    Confirmed,
    Cancelled,
    Expired,
    GivenBack,
    Restocked,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    quantity: u64,
    reserved: bool,
    fate: Fate,
    /// In seconds, like all times here.
    deadline: u64,
    /// When it was settled or given back.
    settled: Option<u64>,
}

#[derive(Default)]
struct Model {
    now: u64,
    put_in: u64,
    known: HashMap<u8, Known>,
    /// Units sold by operations whose records have been forgotten.
    sold_for_good: u64,
}

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Done,
    SoldOut(u64),
    Different,
    Cancelled,
    Expired,
    GivenBack,
    Confirmed,
    StillHeld,
    NotReserved,
    Unknown,
}

impl Model {
    fn forget(&mut self) {
        let now = self.now;
        let over = |known: &Known| known.settled.is_some_and(|at| now >= at + RETENTION.as_secs());
        let gone: Vec<u8> = self.known.iter().filter(|(_, known)| over(known)).map(|(id, _)| *id).collect();
        for id in gone {
            let known = self.known.remove(&id).unwrap();
            if matches!(known.fate, Fate::Taken | Fate::Confirmed) {
                self.sold_for_good += known.quantity;
            }
        }
    }

    /// Returns the held units. The store still holds units of reservations that have expired
    /// without notice.
    fn held(&self) -> u64 {
        self.known.values().filter(|known| known.fate == Fate::Reserved).map(|known| known.quantity).sum()
    }

    fn sold(&self) -> u64 {
        let sold = |known: &&Known| matches!(known.fate, Fate::Taken | Fate::Confirmed);
        self.sold_for_good + self.known.values().filter(sold).map(|known| known.quantity).sum::<u64>()
    }

    fn available(&self) -> u64 {
        self.put_in - self.held() - self.sold()
    }

    fn is_over(&self, known: &Known) -> bool {
        known.fate == Fate::Reserved && self.now >= known.deadline
    }

    fn expire(&mut self, id: u8) {
        if self.known.get(&id).is_some_and(|known| self.is_over(known))
            && let Some(known) = self.known.get_mut(&id)
        {
            known.fate = Fate::Expired;
            known.settled = Some(self.now);
        }
    }

    fn take(&mut self, id: u8, quantity: u64, hold: Option<u64>) -> Answer {
        if let Some(known) = self.known.get(&id).copied() {
            if known.fate == Fate::Cancelled && known.quantity == 0 {
                return Answer::Cancelled;
            }
            if known.fate == Fate::Restocked || known.quantity != quantity || known.reserved != hold.is_some()
            {
                return Answer::Different;
            }
            // An expired reservation is noticed by any access.
            self.expire(id);
            let known = self.known[&id];
            return match known.fate {
                Fate::Cancelled => Answer::Cancelled,
                Fate::Expired => Answer::Expired,
                Fate::GivenBack => Answer::GivenBack,
                _ => Answer::Done,
            };
        }
        if self.available() < quantity {
            // Units of expired reservations are for sale, swept or not.
            let over = |(id, known): (&u8, &Known)| self.is_over(known).then_some(*id);
            let over: Vec<u8> = self.known.iter().filter_map(over).collect();
            over.into_iter().for_each(|id| self.expire(id));
        }
        let available = self.available();
        if available < quantity {
            return Answer::SoldOut(available);
        }
        let (fate, settled) =
            if hold.is_some() { (Fate::Reserved, None) } else { (Fate::Taken, Some(self.now)) };
        let deadline = self.now + hold.unwrap_or(0);
        self.known.insert(id, Known { quantity, reserved: hold.is_some(), fate, deadline, settled });
        Answer::Done
    }

    fn end(&mut self, id: u8, fate: Fate) {
        let now = self.now;
        let known = self.known.get_mut(&id).unwrap();
        known.fate = fate;
        known.settled = Some(now);
    }

    fn confirm(&mut self, id: u8) -> Answer {
        self.expire(id);
        match self.known.get(&id).map(|known| known.fate) {
            None | Some(Fate::Restocked) => Answer::Unknown,
            Some(Fate::Taken) => Answer::NotReserved,
            Some(Fate::Reserved) => {
                self.end(id, Fate::Confirmed);
                Answer::Done
            }
            Some(Fate::Confirmed) => Answer::Done,
            Some(Fate::Cancelled) => Answer::Cancelled,
            Some(Fate::Expired) => Answer::Expired,
            Some(Fate::GivenBack) => Answer::GivenBack,
        }
    }

    fn cancel(&mut self, id: u8) -> Answer {
        self.expire(id);
        match self.known.get(&id).map(|known| known.fate) {
            None => {
                let settled = Some(self.now);
                let never =
                    Known { quantity: 0, reserved: false, fate: Fate::Cancelled, deadline: 0, settled };
                self.known.insert(id, never);
                Answer::Done
            }
            Some(Fate::Restocked) => Answer::Unknown,
            Some(Fate::Taken) => Answer::NotReserved,
            Some(Fate::Confirmed) => Answer::Confirmed,
            Some(Fate::Reserved) => {
                self.end(id, Fate::Cancelled);
                Answer::Done
            }
            Some(Fate::Cancelled | Fate::Expired | Fate::GivenBack) => Answer::Done,
        }
    }

    fn give_back(&mut self, id: u8) -> Answer {
        match self.known.get(&id).map(|known| known.fate) {
            None | Some(Fate::Restocked) => Answer::Unknown,
            Some(Fate::Taken | Fate::Confirmed) => {
                self.end(id, Fate::GivenBack);
                Answer::Done
            }
            Some(Fate::Reserved) => Answer::StillHeld,
            Some(Fate::Cancelled) => Answer::Cancelled,
            Some(Fate::Expired) => Answer::Expired,
            Some(Fate::GivenBack) => Answer::Done,
        }
    }
}

fn answer<T>(result: Result<T, StockError>) -> Answer {
    match result {
        Ok(_) => Answer::Done,
        Err(StockError::SoldOut { available, .. }) => Answer::SoldOut(available),
        Err(StockError::Different { .. }) => Answer::Different,
        Err(StockError::Cancelled { .. }) => Answer::Cancelled,
        Err(StockError::Expired { .. }) => Answer::Expired,
        Err(StockError::GivenBack { .. }) => Answer::GivenBack,
        Err(StockError::Confirmed { .. }) => Answer::Confirmed,
        Err(StockError::StillHeld { .. }) => Answer::StillHeld,
        Err(StockError::NotReserved { .. }) => Answer::NotReserved,
        Err(StockError::UnknownOperation { .. }) => Answer::Unknown,
        Err(error) => panic!("{error:?}"),
    }
}

/// Runs the operations on a stock that does not exist yet.
///
/// # Panics
///
/// When the stock and the model differ.
pub async fn play(stock: &SegmentedStock, ops: &Ops, advance: impl AsyncFnMut(Duration)) {
    play_at(Duration::from_secs(1), stock, ops, advance).await;
}

/// Like [`play`], for a clock that can't be moved exactly. A second of the model takes `second`.
/// The stock's retention is longer than [`RETENTION`] by the same factor.
///
/// # Panics
///
/// When the stock and the model differ.
pub async fn play_at(
    second: Duration,
    stock: &SegmentedStock,
    Ops(ops): &Ops,
    mut advance: impl AsyncFnMut(Duration),
) {
    let seconds = |count: u64| second * u32::try_from(count).unwrap_or(u32::MAX);
    let mut model = Model { put_in: 100, ..Model::default() };
    assert!(stock.initialize(100, 10).await.unwrap());
    for op in ops {
        model.forget();
        match *op {
            Op::Take { id, quantity } => {
                let taken = stock.take(u64::from(id), quantity).await;
                if let Ok(taken) = &taken {
                    assert_eq!(taken.parts().iter().map(|part| part.quantity).sum::<u64>(), quantity);
                }
                assert_eq!(answer(taken), model.take(id, quantity, None), "{op:?}");
            }
            Op::Reserve { id, quantity, hold } => {
                let reserved = stock.reserve(u64::from(id), quantity, seconds(hold)).await;
                assert_eq!(answer(reserved), model.take(id, quantity, Some(hold)), "{op:?}");
            }
            Op::Confirm(id) => {
                assert_eq!(answer(stock.confirm(u64::from(id)).await), model.confirm(id), "{op:?}");
            }
            Op::Cancel(id) => {
                assert_eq!(answer(stock.cancel(u64::from(id)).await), model.cancel(id), "{op:?}");
            }
            Op::GiveBack(id) => {
                assert_eq!(answer(stock.give_back(u64::from(id)).await), model.give_back(id), "{op:?}");
            }
            Op::Restock { id, quantity } => {
                let expected = match model.known.get(&id) {
                    Some(Known { fate: Fate::Restocked, quantity: before, .. }) if *before == quantity => {
                        Answer::Done
                    }
                    Some(_) => Answer::Different,
                    None => {
                        model.put_in += quantity;
                        let settled = Some(model.now);
                        let fate = Fate::Restocked;
                        model
                            .known
                            .insert(id, Known { quantity, reserved: false, fate, deadline: 0, settled });
                        Answer::Done
                    }
                };
                assert_eq!(answer(stock.restock(u64::from(id), quantity).await), expected, "{op:?}");
            }
            Op::Resize(segments) => stock.resize(segments).await.unwrap(),
            Op::Rebalance => stock.rebalance().await.unwrap(),
            Op::Sweep(limit) => {
                let swept = stock.sweep(limit).await.unwrap();
                let due: Vec<_> =
                    model.known.iter().filter(|(_, known)| model.is_over(known)).map(|(id, _)| *id).collect();
                assert_eq!(swept.expired, (due.len() as u64).min(limit.into()), "{op:?}");
                // The order of reservations with the same deadline is not specified.
                let all = stock.sweep(1000).await.unwrap();
                assert_eq!(all.expired + swept.expired, due.len() as u64);
                due.into_iter().for_each(|id| model.expire(id));
            }
            Op::Advance(time) => {
                advance(seconds(time)).await;
                model.now += time;
            }
        }
        if let Op::Take { id, .. } | Op::Reserve { id, .. } = *op
            && model.known.get(&id).is_some_and(|known| model.is_over(known))
        {
            // Not the operation under test: a store may or may not have noticed that it is over.
            assert_eq!(answer(stock.cancel(u64::from(id)).await), model.cancel(id), "after {op:?}");
        }
        let snapshot = stock.snapshot().await.unwrap();
        assert!(snapshot.balances(), "{snapshot:?} after {op:?}");
        let sums = (snapshot.available(), snapshot.held(), snapshot.sold());
        assert_eq!(sums, (model.available(), model.held(), model.sold()), "{snapshot:?} after {op:?}");
        if let Ok(audit) = stock.audit().await {
            assert!(audit.agrees(), "{audit:?} after {op:?}");
            let sums = (audit.held, audit.sold + audit.forgotten);
            assert_eq!(sums, (model.held(), model.sold()), "{audit:?} after {op:?}");
        }
        let idle = snapshot.segments.iter().filter(|segment| !segment.active);
        assert_eq!(
            idle.map(|segment| segment.available).sum::<u64>(),
            0,
            "an idle segment has units: {snapshot:?}"
        );
    }
}

/// Runs `case` for `cases` random lists of operations. `PROPTEST_CASES` multiplies their number;
/// its default, 256, stands for a factor of one.
///
/// # Panics
///
/// When a case fails; the text contains the smallest failing one.
pub fn check(cases: u32, time: bool, mut case: impl FnMut(Ops)) {
    let cases = cases.saturating_mul(ProptestConfig::default().cases.div_ceil(256));
    let config = ProptestConfig { failure_persistence: None, cases, ..ProptestConfig::default() };
    let case = RefCell::new(&mut case);
    let played = TestRunner::new(config).run(&ops(time), |ops| {
        (case.borrow_mut())(ops);
        Ok(())
    });
    if let Err(error) = played {
        panic!("{error}");
    }
}

/// Runs this many cases on a server. Each case has its own stock, and time cannot be moved.
///
/// # Panics
///
/// As [`check`].
pub fn check_on(runtime: &tokio::runtime::Runtime, cases: u32, stock: impl Fn(&str) -> SegmentedStock) {
    let count = Cell::new(0);
    check(cases, false, |ops| {
        count.set(count.get() + 1);
        let stock =
            stock(&format!("stock:{}", count.get())).retention(RETENTION).timeout(Duration::from_secs(20));
        runtime.block_on(play(&stock, &ops, async |_| unreachable!("no operation needs time to pass")));
    });
}
