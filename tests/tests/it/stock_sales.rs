//! Stocks of every store from which many sell at once: nothing is sold twice, nothing is lost, and
//! an id has one effect.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::segmented::{SegmentedStock, StockError};
use lock_tests::on_every_stock;
use lock_tests::stocks::{
    Chance, Client, Habits, Journal, Kept, Ledger, Place, Seller, counts, insist, one_is_new, poll_at_most,
    shuffle,
};
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(600);
/// Extra time that a busy machine may take.
const SLACK: Duration = Duration::from_secs(20);
const NAME: &str = "stock:1001";

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns the stock as each of several clients has it.
async fn stocks<const N: usize>(place: &Place, units: u64, segments: u32) -> [SegmentedStock; N] {
    let clients: [Client; N] = place.clients().await;
    let stocks = clients.map(|client| client.stock(NAME).timeout(SLACK));
    assert!(stocks[0].initialize(units, segments).await.unwrap());
    stocks
}

async fn take(stock: &SegmentedStock, id: &str, quantity: u64) -> Result<(), StockError> {
    insist(|| stock.take(id, quantity)).await.map(drop)
}

/// Sweeps expired reservations until none are left, and returns how many there were.
async fn sweep_all(stock: &SegmentedStock) -> u64 {
    let mut expired = 0;
    loop {
        let swept = stock.sweep(100).await.unwrap();
        expired += swept.expired;
        if !swept.more {
            return expired;
        }
    }
}

/// Reserves, and returns when the reservation is over; 0 if the answer already said so. The
/// remaining time counts from the answer.
async fn reserve_until_over(stock: &SegmentedStock, id: &str, quantity: u64, hold: Duration) -> u64 {
    let start = Instant::now();
    match insist(|| stock.reserve(id, quantity, hold)).await {
        Ok(held) => {
            let remaining = held.remaining().unwrap();
            assert!(remaining <= hold, "{remaining:?}");
            // To the next millisecond of the server's clock, and one more.
            tokio::time::sleep(remaining + ms(3)).await;
            1
        }
        // Over before all units were reserved.
        Err(StockError::Expired { .. }) if start.elapsed() >= hold => 0,
        Err(error) => panic!("{error}"),
    }
}

/// Reserves; the reservation may be over already.
async fn reserve_or_over(stock: &SegmentedStock, id: u64, quantity: u64, hold: Duration) {
    let reserved = insist(|| stock.reserve(id, quantity, hold)).await;
    assert!(matches!(reserved, Ok(_) | Err(StockError::Expired { .. })), "{reserved:?}");
}

/// Returns the name of an answer, without the parts that differ between clients.
fn word<T>(answer: &Result<T, StockError>) -> String {
    match answer {
        Ok(_) => "Ok".to_owned(),
        Err(error) => format!("{error:?}").split(['{', '(']).next().unwrap().trim().to_owned(),
    }
}

/// Concurrent sellers, one for each of these stocks, until they are told that it is over.
struct Crew {
    journals: Vec<std::path::PathBuf>,
    over: Arc<AtomicBool>,
    sellers: JoinSet<u64>,
    _folder: tempfile::TempDir,
}

impl Crew {
    fn new(stocks: &[SegmentedStock], chance: &Chance, habits: Habits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let mut sellers = JoinSet::new();
        let mut journals = Vec::new();
        for (n, stock) in stocks.iter().cloned().enumerate() {
            let path = folder.path().join(n.to_string());
            let journal = Arc::new(Journal::open(&path).unwrap());
            journals.push(path);
            let seller = Seller { stock, name: n.to_string(), habits, journal };
            let (dice, over) = (chance.fork(n as u64), Arc::clone(&over));
            sellers.spawn(async move { seller.sell(&dice, move || !over.load(Ordering::Relaxed)).await });
        }
        Self { journals, over, sellers, _folder: folder }
    }

    /// Stops the sellers, and returns how many orders they have had.
    async fn stop(&mut self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        std::mem::take(&mut self.sellers).join_all().await.into_iter().sum()
    }
}

on_every_stock! {
    async fn a_hundred_units_are_sold_to_ten_thousand(place: Place) {
        let stocks: [_; 4] = stocks(&place, 100, 10).await;
        let mut buyers = JoinSet::new();
        for (client, stock) in stocks.iter().cloned().enumerate() {
            for task in 0..25 {
                let stock = stock.clone();
                buyers.spawn(async move {
                    let mut sold = 0;
                    for n in 0..100 {
                        match take(&stock, &format!("{client}-{task}-{n}"), 1).await {
                            Ok(()) => sold += 1,
                            Err(error) => assert!(error.is_sold_out(), "{error}"),
                        }
                    }
                    sold
                });
            }
        }
        let sold: u64 = buyers.join_all().await.into_iter().sum();
        assert_eq!(sold, 100);
        assert_eq!(counts(&stocks[0]).await, (0, 0, 100));
    }

    async fn large_quantities_are_put_together_in_competition(place: Place) {
        const UNITS: u64 = 1000;
        let stocks: [_; 4] = stocks(&place, UNITS, 10).await;
        let chance = Chance::new();
        let mut buyers = JoinSet::new();
        for task in 0..16 {
            let (stock, mut dice) = (stocks[task % 4].clone(), chance.fork(task as u64));
            buyers.spawn(async move {
                let (mut sold, mut merged) = (0, 0);
                for n in 0..10 {
                    // A segment has at most 100.
                    let quantity = 1 + dice.below(250);
                    match insist(|| stock.take(format!("{task}-{n}"), quantity)).await {
                        Ok(taken) => {
                            assert_eq!(taken.parts().iter().map(|part| part.quantity).sum::<u64>(), quantity);
                            let segments: HashSet<_> = taken.parts().iter().map(|part| part.segment).collect();
                            assert_eq!(segments.len(), taken.parts().len(), "{taken:?}");
                            sold += quantity;
                            merged += u64::from(taken.is_merged());
                        }
                        Err(StockError::SoldOut { wanted, available, .. }) => {
                            assert!(wanted == quantity && available < quantity, "{available} < {quantity}");
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                (sold, merged)
            });
        }
        let all = buyers.join_all().await;
        let sold: u64 = all.iter().map(|(sold, _)| sold).sum();
        assert!(all.iter().any(|(_, merged)| *merged > 0));
        assert_eq!(counts(&stocks[1]).await, (UNITS - sold, 0, sold));
        if sold < UNITS {
            take(&stocks[2], "the rest", UNITS - sold).await.unwrap();
        }
        assert_eq!(counts(&stocks[3]).await, (0, 0, UNITS));
        assert!(take(&stocks[3], "one more", 1).await.unwrap_err().is_sold_out());
    }

    async fn of_several_that_want_more_than_half_one_gets_it(place: Place) {
        let clients: [Client; 3] = place.clients().await;
        for round in 0..30 {
            let name = format!("stock:{round}");
            let stocks = clients.clone().map(|client| client.stock(&name).timeout(SLACK));
            stocks[0].initialize(100, 10).await.unwrap();
            let mut buyers = JoinSet::new();
            for task in 0..6 {
                let stock = stocks[task % 3].clone();
                buyers.spawn(async move { take(&stock, &task.to_string(), 51).await });
            }
            let won = buyers.join_all().await.iter().filter(|taken| taken.is_ok()).count();
            assert_eq!((won, counts(&stocks[0]).await), (1, (49, 0, 51)), "round {round}");
        }
    }

    async fn what_is_there_at_rest_can_be_taken_however_it_lies(place: Place) {
        let client = place.client().await;
        let chance = Chance::new();
        let mut dice = chance.fork(0);
        for round in 0..40 {
            let stock = client.stock(&format!("stock:{round}")).timeout(SLACK);
            let (units, segments) = (1 + dice.below(300), 1 + dice.below(20) as u32);
            stock.initialize(units, segments).await.unwrap();
            let mut left = units;
            for n in 0..dice.below(8) {
                match dice.below(4) {
                    0 => stock.resize(1 + dice.below(20) as u32).await.unwrap(),
                    1 => {
                        stock.restock(format!("more {n}"), 5).await.unwrap();
                        left += 5;
                    }
                    _ => {
                        let quantity = 1 + dice.below(60);
                        left -= if take(&stock, &n.to_string(), quantity).await.is_ok() { quantity } else { 0 };
                    }
                }
            }
            let error = insist(|| stock.take("too many", left + 1)).await.unwrap_err();
            let StockError::SoldOut { available, .. } = error else { panic!("{error}") };
            assert_eq!(available, left);
            if left > 0 {
                take(&stock, "all", left).await.unwrap();
            }
            assert_eq!(stock.available().await.unwrap(), 0);
        }
    }

    async fn an_id_has_one_effect_however_often_it_comes(place: Place) {
        let kept = place.kept();
        let stocks: [_; 4] = stocks(&place, 500, 10).await;
        let chance = Chance::new();
        let mut dice = chance.fork(0);
        let ids: Vec<(u64, u64, bool)> =
            (0..100).map(|id| (id, 1 + dice.below(30), dice.once_in(2))).collect();
        let mut sent: Vec<_> =
            ids.iter().flat_map(|id| vec![*id; 1 + dice.below(5) as usize]).collect();
        shuffle(&mut sent, &mut dice);
        let mut callers = JoinSet::new();
        for (n, (id, quantity, reserved)) in sent.into_iter().enumerate() {
            let stock = stocks[n % 4].clone();
            callers.spawn(async move {
                let taken = if reserved {
                    insist(|| stock.reserve(id, quantity, LONG)).await.map(|held| held.taken().clone())
                } else {
                    insist(|| stock.take(id, quantity)).await
                };
                (id, quantity, reserved, taken)
            });
        }
        let answers = callers.join_all().await;
        let (mut held, mut sold) = (0, 0);
        for (id, quantity, reserved) in ids {
            let of_id: Vec<_> = answers.iter().filter(|answer| answer.0 == id).map(|answer| &answer.3).collect();
            match of_id[0] {
                Ok(taken) => {
                    for other in &of_id {
                        assert_eq!(other.as_ref().unwrap().parts(), taken.parts());
                    }
                    let first = of_id.iter().filter(|taken| !taken.as_ref().unwrap().is_repeated()).count();
                    // If segments are spread, one caller may finish the operation of another.
                    assert!(first == 1 || first == 0 && kept == Kept::Spread, "{of_id:?}");
                    *(if reserved { &mut held } else { &mut sold }) += quantity;
                }
                // The number of available units only falls, so a sold-out order stays sold out.
                Err(_) => assert!(
                    of_id.iter().all(|answer| matches!(answer, Err(StockError::SoldOut { .. }))),
                    "{of_id:?}"
                ),
            }
        }
        assert_eq!(counts(&stocks[0]).await, (500 - held - sold, held, sold));
    }

    async fn of_several_quantities_under_one_id_one_is_taken(place: Place) {
        let stocks: [_; 3] = stocks(&place, 10_000, 10).await;
        let mut sold = 0;
        for id in 0..20_u64 {
            let mut callers = JoinSet::new();
            for n in 0..6 {
                let stock = stocks[n % 3].clone();
                let quantity = 10 + n as u64 / 2;
                callers.spawn(async move {
                    (quantity, insist(|| stock.take(id, quantity)).await)
                });
            }
            let answers = callers.join_all().await;
            let done: Vec<u64> = answers.iter().filter(|(_, taken)| taken.is_ok()).map(|(one, _)| *one).collect();
            assert!(done.len() == 2 && done[0] == done[1], "{answers:?}");
            assert!(
                answers.iter().all(|(_, taken)| matches!(taken, Ok(_) | Err(StockError::Different { .. }))),
                "{answers:?}"
            );
            sold += done[0];
        }
        assert_eq!(counts(&stocks[0]).await, (10_000 - sold, 0, sold));
    }

    async fn of_several_with_one_id_one_is_told_that_it_is_new(place: Place) {
        let [stock] = stocks(&place, 10_000, 10).await;
        // Not promised if segments are spread.
        if place.kept() != Kept::Spread {
            for order in 0..100 {
                one_is_new(&stock, order).await;
            }
        }
        counts(&stock).await;
    }

    async fn what_is_overdue_is_for_sale_at_once(place: Place) {
        let [stock, other] = &stocks(&place, 100, 10).await;
        for order in 0..50_u64 {
            reserve_or_over(stock, order, 2, ms(20)).await;
        }
        tokio::time::sleep(ms(30)).await;
        // Nobody sweeps. One call ends some of them, and reports it.
        insist(|| other.take("all", 100)).await.unwrap();
        assert_eq!(word(&insist(|| stock.take("more", 1)).await), "SoldOut");
        assert_eq!(word(&stock.confirm(7).await), "Expired");
        assert_eq!(counts(other).await, (0, 0, 100));

        // Of ten takes at once, one finds ten units in expired reservations. The others find that
        // another call is ending them, and none is turned away.
        for round in 0..5_u64 {
            for order in 0..10_u64 {
                let id = 1000 + round * 100 + order;
                insist(|| stock.restock(format!("put {id}"), 1)).await.unwrap();
                reserve_or_over(stock, id, 1, ms(20)).await;
            }
            tokio::time::sleep(ms(30)).await;
            let mut buyers = JoinSet::new();
            for buyer in 0..10_u64 {
                let stock = if buyer % 2 == 0 { stock.clone() } else { other.clone() };
                buyers.spawn(async move { insist(|| stock.take(1050 + round * 100 + buyer, 1)).await });
            }
            while let Some(answer) = buyers.join_next().await {
                answer.unwrap().unwrap();
            }
        }
    }

    async fn confirm_and_cancel_of_one_reservation_agree_on_who_came_first(place: Place) {
        let stocks: [_; 4] = stocks(&place, 1000, 7).await;
        let (mut sold, mut confirmed) = (0, 0);
        for id in 0..50_u64 {
            stocks[0].reserve(id, 3, LONG).await.unwrap();
            let mut callers = JoinSet::new();
            for (n, stock) in stocks.iter().cloned().enumerate() {
                callers.spawn(async move {
                    if n % 2 == 0 { (true, stock.confirm(id).await) } else { (false, stock.cancel(id).await) }
                });
            }
            let answers: Vec<_> =
                callers.join_all().await.iter().map(|(confirm, answer)| (*confirm, word(answer))).collect();
            let all_say = |confirm: bool, said: &str| {
                answers.iter().filter(|(is_confirm, _)| *is_confirm == confirm).all(|(_, word)| word == said)
            };
            if all_say(true, "Ok") && all_say(false, "Confirmed") {
                (sold, confirmed) = (sold + 3, confirmed + 1);
            } else {
                assert!(all_say(true, "Cancelled") && all_say(false, "Ok"), "{answers:?}");
            }
        }
        assert_eq!(counts(&stocks[0]).await, (1000 - sold, 0, sold), "{confirmed} were confirmed");
    }

    async fn a_cancel_that_overtakes_its_reservation_wins(place: Place) {
        let stocks: [_; 2] = stocks(&place, 100, 10).await;
        for id in 0..50_u64 {
            let (cancelled, reserved) = tokio::join!(
                stocks[0].cancel(id),
                insist(|| stocks[1].reserve(id, 20, LONG)),
            );
            cancelled.unwrap();
            assert!(matches!(reserved, Ok(_) | Err(StockError::Cancelled { .. })), "{reserved:?}");
            let again = insist(|| stocks[0].reserve(id, 20, LONG)).await;
            assert!(matches!(again, Err(StockError::Cancelled { .. })), "{again:?}");
            assert!(matches!(stocks[1].confirm(id).await, Err(StockError::Cancelled { .. })));
        }
        // Late operations too, for a sale as for a reservation, of any quantity.
        stocks[0].cancel("late").await.unwrap();
        for stock in &stocks {
            assert!(matches!(stock.reserve("late", 5, LONG).await, Err(StockError::Cancelled { .. })));
            assert!(matches!(stock.take("late", 5).await, Err(StockError::Cancelled { .. })));
            assert!(matches!(stock.give_back("late").await, Err(StockError::Cancelled { .. })));
            stock.cancel("late").await.unwrap();
        }
        assert_eq!(counts(&stocks[0]).await, (100, 0, 0));
    }

    async fn what_is_given_back_comes_back_once(place: Place) {
        let stocks: [_; 4] = stocks(&place, 100, 10).await;
        take(&stocks[0], "a", 35).await.unwrap();
        stocks[1].reserve("b", 25, LONG).await.unwrap();
        stocks[2].confirm("b").await.unwrap();
        for id in ["a", "b"] {
            let mut callers = JoinSet::new();
            for stock in stocks.clone() {
                callers.spawn(async move { stock.give_back(id).await });
            }
            assert!(callers.join_all().await.iter().all(Result::is_ok));
        }
        assert_eq!(counts(&stocks[0]).await, (100, 0, 0));
        assert!(matches!(stocks[0].take("a", 35).await, Err(StockError::GivenBack { .. })));
        assert!(matches!(stocks[0].confirm("b").await, Err(StockError::GivenBack { .. })));
        stocks[0].cancel("b").await.unwrap();
        assert_eq!(counts(&stocks[3]).await, (100, 0, 0));
    }

    async fn what_comes_back_after_a_resize_can_be_taken(place: Place) {
        let stocks: [_; 2] = stocks(&place, 100, 10).await;
        for (id, segments) in [("a", 3), ("b", 1), ("c", 16), ("d", 2), ("e", 10)] {
            take(&stocks[0], id, 40).await.unwrap();
            let held = format!("{id} held");
            stocks[0].reserve(&held, 35, LONG).await.unwrap();
            let expiring = format!("{id} expires");
            let over = match stocks[1].reserve(&expiring, 20, ms(1)).await {
                Ok(_) => 1,
                Err(StockError::Expired { .. }) => 0,
                Err(error) => panic!("{error}"),
            };
            stocks[1].resize(segments).await.unwrap();
            stocks[0].give_back(id).await.unwrap();
            stocks[1].cancel(&held).await.unwrap();
            tokio::time::sleep(ms(5)).await;
            assert_eq!(sweep_all(&stocks[0]).await, over);
            let snapshot = stocks[1].snapshot().await.unwrap();
            let active: u64 =
                snapshot.segments.iter().filter(|segment| segment.active).map(|segment| segment.available).sum();
            assert_eq!(active, 100, "{snapshot:?}");
            let all = format!("{id} all");
            take(&stocks[1], &all, 100).await.unwrap();
            stocks[0].give_back(&all).await.unwrap();
        }
        assert_eq!(counts(&stocks[0]).await, (100, 0, 0));
    }

    async fn a_retry_looks_elsewhere_first_and_takes_nothing_more(place: Place) {
        let stocks: [_; 2] = stocks(&place, 1000, 10).await;
        for id in 0..10_u64 {
            let taken = stocks[0].take(id, 7).await.unwrap();
            // Each starts at a different segment.
            for n in 0..10 {
                let again = stocks[n % 2].take(id, 7).await.unwrap();
                assert_eq!((again.parts(), again.is_repeated()), (taken.parts(), true));
            }
            let large = format!("large {id}");
            let taken = stocks[0].reserve(&large, 15, LONG).await.unwrap();
            for n in 0..10 {
                let again = stocks[n % 2].reserve(&large, 15, LONG).await.unwrap();
                assert_eq!((again.taken().parts(), again.taken().is_repeated()), (taken.taken().parts(), true));
                assert!(again.remaining().is_some_and(|left| left <= LONG), "{again:?}");
            }
        }
        assert_eq!(counts(&stocks[1]).await, (1000 - 70 - 150, 150, 70));
    }

    async fn futures_that_are_dropped_at_any_poll_leave_nothing_half_done(place: Place) {
        // If segments are spread, an operation takes many steps.
        let more = if place.kept() == Kept::Spread { 150 } else { 13 };
        let stocks: [_; 2] = stocks(&place, 10_000, 10).await;
        let [stock, other] = &stocks;
        let mut completed = [false; 6];
        let (mut held, mut sold, mut restocked) = (0, 0, 0);
        for polls in (0..12).chain((12..more).step_by(15)) {
            let id = |what: &str| format!("{what} {polls}");
            // Dropped after this many polls, and repeated by another client.
            completed[0] |= poll_at_most(stock.take(id("take"), 1500), polls).await.is_some();
            take(other, &id("take"), 1500).await.unwrap();
            completed[1] |= poll_at_most(stock.give_back(id("take")), polls).await.is_some();
            other.give_back(id("take")).await.unwrap();
            completed[2] |= poll_at_most(stock.reserve(id("hold"), 11, LONG), polls).await.is_some();
            insist(|| other.reserve(id("hold"), 11, LONG)).await.unwrap();
            if polls % 2 == 0 {
                completed[3] |= poll_at_most(stock.confirm(id("hold")), polls).await.is_some();
                other.confirm(id("hold")).await.unwrap();
                sold += 11;
            } else {
                held += 11;
            }
            completed[4] |= poll_at_most(stock.restock(id("more"), 100), polls).await.is_some();
            other.restock(id("more"), 100).await.unwrap();
            restocked += 100;
            completed[5] |= poll_at_most(stock.resize(4 + polls as u32 % 9), polls).await.is_some();
            other.resize(4 + polls as u32 % 9).await.unwrap();
            poll_at_most(stock.rebalance(), polls).await;
            other.rebalance().await.unwrap();
            poll_at_most(stock.sweep(10), polls).await;
            // Nobody has seen half of anything, and the dropped operations have completed.
            assert_eq!(counts(other).await, (10_000 + restocked - held - sold, held, sold), "{polls} polls");
        }
        assert_eq!(completed, [true; 6], "some are done within so many polls");
        assert_eq!(counts(stock).await, (10_000 + restocked - held - sold, held, sold));
    }

    async fn a_cancel_that_is_dropped_at_any_poll_is_done_or_not(place: Place) {
        let [stock, other] = &stocks(&place, 100, 10).await;
        for polls in 0..8 {
            let id = format!("{polls}");
            insist(|| stock.reserve(&id, 30, LONG)).await.unwrap();
            poll_at_most(stock.cancel(&id), polls).await;
            // Whichever comes first, both callers agree on it.
            match other.confirm(&id).await {
                Ok(()) => {
                    assert_eq!(word(&stock.cancel(&id).await), "Confirmed");
                    other.give_back(&id).await.unwrap();
                }
                Err(error) => assert!(matches!(error, StockError::Cancelled { .. }), "{error}"),
            }
            assert_eq!(counts(stock).await, (100, 0, 0));
        }
    }

    async fn sales_go_on_while_the_segments_change(place: Place) {
        const UNITS: u64 = 1_000_000;
        let stocks: [_; 4] = stocks(&place, UNITS, 10).await;
        let chance = Chance::new();
        let mut crew = Crew::new(&stocks, &chance, Habits::default());
        let mut dice = chance.fork(100);
        let (start, mut changes) = (Instant::now(), 0);
        // At least some changes, even where they are slow.
        while start.elapsed() < ms(1500) || changes < 20 {
            let stock = &stocks[dice.below(4) as usize];
            if dice.once_in(3) {
                stock.rebalance().await.unwrap();
            } else {
                stock.resize(1 + dice.below(20) as u32).await.unwrap();
            }
            let snapshot = insist(|| stock.snapshot()).await.unwrap();
            assert!(snapshot.balances(), "{snapshot:?}");
            changes += 1;
        }
        let orders = crew.stop().await;
        assert!(orders > 20, "{orders} orders in {changes} changes");
        for journal in &crew.journals {
            // There was always enough, in some segment.
            let text = std::fs::read_to_string(journal).unwrap();
            assert!(!text.contains("sold-out"), "{text}");
        }
        let mut ledger = Ledger::read(&crew.journals);
        ledger.settle(&stocks[1]).await;
        let sum = ledger.sum();
        assert_eq!(sum.open, 0);
        assert_eq!(counts(&stocks[0]).await, (UNITS - sum.sold - sum.held, sum.held, sum.sold), "{sum:?}");
    }

    async fn few_units_go_back_and_forth_and_none_is_lost(place: Place) {
        const UNITS: u64 = 60;
        let stocks: [_; 4] = stocks(&place, UNITS, 10).await;
        let chance = Chance::new();
        // Reservations end in the middle, by themselves or by a sweep.
        let habits = Habits { hold: (ms(1), ms(30)), most: 40, ..Habits::default() };
        let mut crew = Crew::new(&stocks, &chance, habits);
        let start = Instant::now();
        let mut restocked = 0;
        while start.elapsed() < ms(1500) {
            // Sold units are added again.
            stocks[0].restock(format!("more {restocked}"), 5).await.unwrap();
            restocked += 5;
            stocks[1].rebalance().await.unwrap();
            tokio::time::sleep(ms(10)).await;
        }
        crew.stop().await;
        tokio::time::sleep(ms(50)).await;
        sweep_all(&stocks[0]).await;
        let mut ledger = Ledger::read(&crew.journals);
        ledger.settle(&stocks[1]).await;
        ledger.close(&stocks[1]).await;
        let sum = ledger.sum();
        assert_eq!((sum.open, sum.held), (0, 0));
        assert_eq!(counts(&stocks[2]).await, (UNITS + restocked - sum.sold, 0, sum.sold), "{sum:?}");
    }

    async fn a_restock_that_comes_several_times_is_put_in_once(place: Place) {
        let stocks: [_; 4] = stocks(&place, 7, 3).await;
        let mut callers = JoinSet::new();
        for n in 0..40_usize {
            let stock = stocks[n % 4].clone();
            callers.spawn(async move { stock.restock((n % 10) as u64, 11).await });
        }
        assert!(callers.join_all().await.iter().all(Result::is_ok));
        let snapshot = stocks[0].snapshot().await.unwrap();
        assert_eq!((snapshot.restocked, snapshot.available()), (110, 117), "{snapshot:?}");
        assert!(matches!(stocks[0].restock(3, 12).await, Err(StockError::Different { .. })));
        assert!(matches!(stocks[0].take(3, 11).await, Err(StockError::Different { .. })));
        assert!(matches!(stocks[0].give_back(3).await, Err(StockError::UnknownOperation { .. })));
        assert_eq!(counts(&stocks[1]).await, (117, 0, 0));
    }

    async fn a_reservation_lasts_as_long_as_it_was_asked_for(place: Place) {
        let [stock, other] = &stocks(&place, 1000, 10).await;
        let (mut in_time, mut sold) = (0, 0);
        for id in 0..200_u64 {
            let hold = ms(1 + id % 4);
            let start = Instant::now();
            let reserved = insist(|| stock.reserve(id, 2, hold)).await.map(drop);
            let confirmed = if reserved.is_ok() { other.confirm(id).await } else { reserved };
            // It began after `start`, and the confirmation came before now.
            if start.elapsed() < hold {
                assert!(confirmed.is_ok(), "{confirmed:?} after {:?} of {hold:?}", start.elapsed());
                in_time += 1;
            }
            match confirmed {
                Ok(()) => sold += 2,
                Err(error) => assert!(matches!(error, StockError::Expired { .. }), "{error}"),
            }
        }
        sweep_all(stock).await;
        assert_eq!(counts(other).await, (1000 - sold, 0, sold), "{in_time} in time");
    }

    async fn a_reservation_that_is_over_stays_so_swept_or_not(place: Place) {
        let [stock, other] = &stocks(&place, 100, 10).await;
        for (n, swept) in [false, true].into_iter().enumerate() {
            let id = format!("{n}");
            let over = reserve_until_over(stock, &id, 35, ms(30)).await;
            if swept {
                assert_eq!(sweep_all(other).await, over);
                assert_eq!(counts(stock).await, (100, 0, 0));
            }
            assert_eq!(word(&stock.confirm(&id).await), "Expired");
            assert_eq!(counts(stock).await, (100, 0, 0));
            assert_eq!(word(&other.reserve(&id, 35, ms(30)).await), "Expired");
            assert_eq!(word(&other.give_back(&id).await), "Expired");
            assert_eq!(word(&other.cancel(&id).await), "Ok");
            assert_eq!(sweep_all(other).await, 0);
        }
        // A retry notices it as well as a sweep.
        reserve_until_over(stock, "seen by a retry", 100, ms(30)).await;
        assert_eq!(word(&other.reserve("seen by a retry", 100, ms(30)).await), "Expired");
        assert_eq!(counts(stock).await, (100, 0, 0));
    }

    async fn a_confirm_that_races_with_the_deadline_is_on_one_side_of_it(place: Place) {
        let stocks: [_; 3] = stocks(&place, 1000, 10).await;
        let chance = Chance::new();
        let over = Arc::new(AtomicBool::new(false));
        let sweeper = tokio::spawn({
            let (stock, over) = (stocks[2].clone(), Arc::clone(&over));
            async move {
                while !over.load(Ordering::Relaxed) {
                    let _ = stock.sweep(3).await.unwrap();
                    tokio::task::yield_now().await;
                }
            }
        });
        let mut callers = JoinSet::new();
        for id in 0..120_u64 {
            let [first, second, _] = stocks.clone();
            let mut dice = chance.fork(id);
            callers.spawn(async move {
                tokio::time::sleep(ms(dice.below(500))).await;
                let hold = ms(5 + dice.below(30));
                let start = Instant::now();
                match insist(|| first.reserve(id, 3, hold)).await {
                    Ok(_) => {}
                    // Over before all units were reserved.
                    Err(StockError::Expired { .. }) if start.elapsed() >= hold => return 0,
                    Err(error) => panic!("{error}"),
                }
                // About when it ends.
                tokio::time::sleep(hold.saturating_sub(ms(dice.below(4)))).await;
                let (one, two) = tokio::join!(first.confirm(id), second.confirm(id));
                let late = second.confirm(id).await;
                let words = [&one, &two, &late].map(word);
                assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
                match words[0].as_str() {
                    "Ok" => 3,
                    "Expired" => 0,
                    other => panic!("{other}"),
                }
            });
        }
        let sold: u64 = callers.join_all().await.into_iter().sum();
        over.store(true, Ordering::Relaxed);
        sweeper.await.unwrap();
        sweep_all(&stocks[0]).await;
        assert_eq!(counts(&stocks[0]).await, (1000 - sold, 0, sold));
    }

    async fn records_are_kept_for_the_retention_and_not_for_ever(place: Place) {
        const RETENTION: Duration = Duration::from_millis(400);
        let stocks: [_; 2] = stocks(&place, 1000, 10).await;
        let [stock, other] = stocks.map(|stock| stock.retention(RETENTION));
        let start = Instant::now();
        take(&stock, "sold", 15).await.unwrap();
        stock.reserve("confirmed", 15, ms(300)).await.unwrap();
        stock.cancel("cancelled").await.unwrap();
        stock.restock("more", 15).await.unwrap();
        stock.reserve("open", 15, ms(399)).await.unwrap();
        stock.confirm("confirmed").await.unwrap();
        let again = [
            word(&other.take("sold", 15).await),
            word(&other.reserve("confirmed", 15, ms(300)).await),
            word(&other.take("cancelled", 15).await),
            word(&other.restock("more", 15).await),
        ];
        if start.elapsed() >= RETENTION {
            // This machine has slept for longer than that.
            return;
        }
        assert_eq!(again, ["Ok", "Ok", "Cancelled", "Ok"]);
        assert_eq!(counts(&stock).await.2, 30);
        while start.elapsed() < RETENTION {
            // Without a record, these change nothing.
            let answers = ["sold", "confirmed", "cancelled"].map(|id| other.confirm(id));
            let mut words = Vec::new();
            for answer in answers {
                words.push(word(&answer.await));
            }
            // Answered before the first of them may be forgotten.
            if start.elapsed() < RETENTION {
                assert_eq!(words, ["NotReserved", "Ok", "Cancelled"]);
            }
            tokio::time::sleep(ms(20)).await;
        }
        tokio::time::sleep(RETENTION + ms(50)).await;
        // The time of all is over, except for the one that nobody has looked at since it ended.
        for id in ["sold", "confirmed", "more"] {
            assert_eq!(word(&other.give_back(id).await), "UnknownOperation", "{id}");
            assert_eq!(word(&other.confirm(id).await), "UnknownOperation", "{id}");
        }
        assert_eq!(word(&other.confirm("open").await), "Expired");
        assert_eq!(counts(&stock).await, (985, 0, 30));
        // The ids are new ones now.
        take(&stock, "sold", 20).await.unwrap();
        take(&stock, "cancelled", 20).await.unwrap();
        stock.restock("more", 20).await.unwrap();
        assert_eq!(counts(&stock).await, (965, 0, 70));
    }

    async fn what_was_given_back_is_known_for_the_retention_from_then_on(place: Place) {
        const RETENTION: Duration = Duration::from_millis(600);
        let [stock] = stocks(&place, 100, 10).await;
        let stock = stock.retention(RETENTION);
        take(&stock, "order", 35).await.unwrap();
        // Brought back late, and asked again because the answer did not come.
        tokio::time::sleep(ms(300)).await;
        let start = Instant::now();
        match stock.give_back("order").await {
            Ok(()) => {}
            // This machine has slept for longer than that.
            Err(error) => return assert!(matches!(error, StockError::UnknownOperation { .. }), "{error}"),
        }
        while start.elapsed() < RETENTION {
            let again = stock.give_back("order").await;
            if start.elapsed() < RETENTION {
                assert!(again.is_ok(), "{again:?} after {:?}", start.elapsed());
            }
            tokio::time::sleep(ms(20)).await;
        }
        assert_eq!(counts(&stock).await, (100, 0, 0));
    }

    async fn calls_on_a_missing_stock_answer_missing(place: Place) {
        let stock = place.client().await.stock(NAME);
        let all = [
            word(&stock.take("a", 1).await),
            word(&stock.reserve("a", 1, LONG).await),
            word(&stock.confirm("a").await),
            word(&stock.cancel("a").await),
            word(&stock.give_back("a").await),
            word(&stock.restock("a", 1).await),
            word(&stock.snapshot().await),
            word(&stock.available().await),
            word(&stock.rebalance().await),
            word(&stock.resize(3).await),
        ];
        assert_eq!(all, ["Missing"; 10]);
        assert_eq!(stock.sweep(10).await.unwrap(), Default::default());
        assert!(stock.initialize(10, 3).await.unwrap());
        assert_eq!(word(&stock.take("a", 10).await), "Ok");
        assert!(!stock.initialize(20, 5).await.unwrap(), "it is there, whatever it has");
        assert_eq!(counts(&stock).await, (0, 0, 10));
    }

    async fn of_several_who_make_a_stock_one_does(place: Place) {
        let clients: [Client; 4] = place.clients().await;
        for round in 0..20 {
            let mut makers = JoinSet::new();
            for (n, client) in clients.iter().enumerate() {
                let stock = client.stock(&format!("stock:{round}")).timeout(SLACK);
                let units = 10 + n as u64;
                makers.spawn(async move { stock.initialize(units, 3).await.unwrap().then_some(units) });
            }
            let made: Vec<u64> = makers.join_all().await.into_iter().flatten().collect();
            let stock = clients[0].stock(&format!("stock:{round}"));
            assert_eq!((made.len(), counts(&stock).await), (1, (made[0], 0, 0)));
        }
    }

    async fn one_segment_and_very_many_do_as_well(place: Place) {
        let client = place.client().await;
        for segments in [1, 1024] {
            let stock = client.stock(&format!("stock:{segments}")).timeout(SLACK);
            assert!(stock.initialize(3000, segments).await.unwrap());
            assert_eq!(stock.snapshot().await.unwrap().segments.len(), segments as usize);
            let taken = insist(|| stock.take("most", 2999)).await.unwrap();
            assert_eq!(taken.is_merged(), segments > 1);
            assert_eq!(word(&stock.take("too many", 2).await), "SoldOut");
            stock.resize(1025 - segments).await.unwrap();
            stock.give_back("most").await.unwrap();
            assert_eq!(counts(&stock).await, (3000, 0, 0));
            take(&stock, "all", 3000).await.unwrap();
        }
        let stock = client.stock("stock:none");
        for segments in [0, 1025] {
            assert_eq!(word(&stock.initialize(1, segments).await), "Misconfigured");
            assert_eq!(word(&stock.resize(segments).await), "Misconfigured");
        }
        for quantity in [0, 1 << 53] {
            assert_eq!(word(&stock.take("a", quantity).await), "Misconfigured");
            assert_eq!(word(&stock.reserve("a", quantity, LONG).await), "Misconfigured");
            assert_eq!(word(&stock.restock("a", quantity).await), "Misconfigured");
        }
        assert_eq!(word(&stock.initialize(1 << 53, 1).await), "Misconfigured");
        assert_eq!(word(&stock.reserve("a", 1, ms(0)).await), "Misconfigured");
        assert_eq!(word(&stock.reserve("a", 1, Duration::from_secs(24 * 60 * 60)).await), "Misconfigured");
        assert_eq!(word(&stock.take("a{b}", 1).await), "InvalidOperationId");
    }

    async fn the_largest_numbers_are_exact(place: Place) {
        const MOST: u64 = (1 << 53) - 1;
        let stock = place.client().await.stock(NAME).timeout(SLACK);
        assert!(stock.initialize(MOST - 2, 7).await.unwrap());
        stock.restock("more", 2).await.unwrap();
        assert_eq!(word(&stock.restock("too many", 1).await), "Misconfigured");
        assert_eq!(counts(&stock).await, (MOST, 0, 0));
        take(&stock, "nearly all", MOST - 1).await.unwrap();
        assert_eq!(counts(&stock).await, (1, 0, MOST - 1));
        stock.reserve("one", 1, LONG).await.unwrap();
        stock.give_back("nearly all").await.unwrap();
        stock.resize(3).await.unwrap();
        stock.rebalance().await.unwrap();
        assert_eq!(counts(&stock).await, (MOST - 1, 1, 0));
    }
}
