//! The audit: every unit that was for sale is accounted for, and the buyers' answers agree with the
//! stock.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use lock_runtime::segmented::{SegmentedStock, StockError};
use tokio::time::sleep;

use crate::Result;
use crate::journal::{Action, Answer, Books, Entry, Stands};
use crate::sale::{Counts, State};

/// Maximum time to ask the store again while it does not answer.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Whether other instances, whose books are not here, sell from this stock too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sellers {
    Alone,
    Several,
}

/// Returns the sums as text, and the problems found in them.
pub(crate) fn check(state: &State, books: &Books, sellers: Sellers) -> (String, Vec<String>) {
    let State { initial, restocked, available, held, in_transit, sold, .. } = state;
    let booked = books.sold();
    let mut problems = Vec::new();
    if !state.balanced {
        problems.push("units are missing, or there are too many".to_owned());
    }
    let unknown = books.unknown().len();
    if unknown > 0 {
        problems.push(format!("the outcome of {unknown} requests is unknown"));
    }
    match sellers {
        Sellers::Alone if booked != *sold => {
            problems.push(format!("buyers were told of {booked} units, the stock has sold {sold}"));
        }
        Sellers::Alone if *held > 0 => problems.push(format!("{held} units are still reserved")),
        Sellers::Several if booked > *sold => {
            problems
                .push(format!("buyers were told of {booked} units here, the stock has sold {sold} in all"));
        }
        Sellers::Alone | Sellers::Several => {}
    }
    let balance = if state.balanced { "balanced" } else { "NOT BALANCED" };
    let books = match sellers {
        Sellers::Alone => format!("the buyers' books say {booked} sold"),
        Sellers::Several => {
            let others = sold.saturating_sub(booked);
            format!("the buyers' books here say {booked} sold; {others} were sold by others")
        }
    };
    let text = format!(
        "   {initial} initial + {restocked} restocked = {available} available + {held} reserved + {in_transit} in transit \
         + {sold} sold: {balance}\n   {books}"
    );
    (text, problems)
}

/// Settles the requests that the journals leave open, asks about every order that was sold, and
/// compares. It must run within the retention of the stock: later, it would sell forgotten orders
/// again.
pub(crate) async fn audit(name: &str, stock: &SegmentedStock, journals: &[PathBuf]) -> Result<()> {
    let mut books = Books::default();
    for journal in journals {
        books.read(journal)?;
    }
    println!("audit of the sale {name}");
    let unknown = books.unknown();
    println!("   {} requests had no answer; they are sent again", unknown.len());
    for entry in unknown {
        let answer = again(stock, &entry).await?;
        books.settle(entry, answer);
    }
    // Nobody will confirm these any more, whether they have expired or not.
    let held: Vec<_> = books.standing(Stands::Held).map(|(id, order)| (id.clone(), order.quantity)).collect();
    println!("   {} reservations were left; they are cancelled if they have not expired", held.len());
    for (order, quantity) in held {
        let entry = Entry { order, action: Action::Cancel, quantity, answer: None };
        let answer = again(stock, &entry).await?;
        books.settle(entry, answer);
    }
    // Repeating a sale changes nothing, unless the stock does not know the order.
    let mut problems = Vec::new();
    let mut asked = 0;
    for (id, order) in books.standing(Stands::Sold) {
        asked += 1;
        let known = match order.reserved {
            true => answered(|| stock.confirm(id)).await.map(|()| true),
            false => answered(|| stock.take(id, order.quantity)).await.map(|taken| taken.is_repeated()),
        };
        match known {
            Ok(true) => {}
            Ok(false) => problems.push(format!("the order {id} was sold, but the stock had no record of it")),
            Err(error) => problems.push(format!("the order {id} was sold, but the stock answered: {error}")),
        }
    }
    println!("   {asked} orders were sold; the stock was asked about each");
    let snapshot = answered(|| stock.snapshot()).await?;
    let (text, more) = check(&State::of(name, &snapshot, Counts::default()), &books, Sellers::Alone);
    println!("{text}");
    problems.extend(more);
    verdict(&problems)
}

/// Prints the end of a run or of an audit.
pub(crate) fn verdict(problems: &[String]) -> Result<()> {
    for problem in problems {
        println!("WRONG  {problem}");
    }
    if !problems.is_empty() {
        return Err("the audit does not balance".into());
    }
    println!("No unit was sold twice, and none was lost.");
    Ok(())
}

/// Returns the answer that the buyer would get to the same request.
async fn again(stock: &SegmentedStock, entry: &Entry) -> Result<Answer> {
    let Entry { order, action, quantity, .. } = entry;
    let done = match action {
        Action::Buy => answered(|| stock.take(order, *quantity)).await.map(drop),
        // Nobody would confirm it.
        Action::Reserve | Action::Cancel => {
            return match answered(|| stock.cancel(order)).await {
                Ok(()) => Ok(Answer::Expired),
                Err(error) => Err(error.into()),
            };
        }
        Action::Confirm => answered(|| stock.confirm(order)).await,
        Action::GiveBack => answered(|| stock.give_back(order)).await,
    };
    match done {
        Ok(()) => Ok(Answer::Done),
        // The first request may still arrive and find units that others return, unless the order is
        // cancelled.
        Err(StockError::SoldOut { .. }) => match answered(|| stock.cancel(order)).await {
            Ok(()) => Ok(Answer::SoldOut),
            Err(StockError::NotReserved { .. } | StockError::Confirmed { .. }) => Ok(Answer::Done),
            Err(error) => Err(error.into()),
        },
        // Cancelled by its buyer, or by an earlier audit.
        Err(StockError::Cancelled { .. }) if *action == Action::Buy => Ok(Answer::SoldOut),
        Err(StockError::Expired { .. }) => Ok(Answer::Expired),
        Err(error) => Err(error.into()),
    }
}

/// Asks until the store answers.
async fn answered<T, F>(ask: impl Fn() -> F) -> Result<T, StockError>
where
    F: Future<Output = Result<T, StockError>>,
{
    let asked = Instant::now();
    loop {
        match ask().await {
            Err(error) if error.is_retryable() && asked.elapsed() < ASK_AGAIN => {
                sleep(Duration::from_millis(100)).await;
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use lock_runtime::LockManager;
    use lock_runtime::segmented::Layout;

    use super::*;
    use crate::journal::Journal;
    use crate::sale;

    const HOUR: Duration = Duration::from_secs(3600);

    struct Shop {
        stock: SegmentedStock,
        journal: Journal,
        folder: tempfile::TempDir,
    }

    impl Shop {
        async fn open(units: u64) -> Self {
            let locks = LockManager::connect("memory:").await.unwrap();
            let (stock, folder) = (sale::stock(&locks, "s", Layout::OneSlot), tempfile::tempdir().unwrap());
            stock.initialize(units, 10).await.unwrap();
            let journal = Journal::open(Some(&folder.path().join("journal"))).unwrap();
            Self { stock, journal, folder }
        }

        fn note(&self, order: &str, action: Action, answer: Option<Answer>) {
            for answer in [None, answer].into_iter().take(if answer.is_some() { 2 } else { 1 }) {
                self.journal.note(Entry { order: order.to_owned(), action, quantity: 2, answer }).unwrap();
            }
        }

        async fn audit(&self) -> Result<()> {
            audit("s", &self.stock, &[self.folder.path().join("journal")]).await
        }
    }

    #[tokio::test]
    async fn what_a_killed_process_left_is_settled() {
        let shop = Shop::open(100).await;
        // Killed before the request arrived, and after it was done.
        shop.note("never-came", Action::Buy, None);
        shop.stock.take("came", 2).await.unwrap();
        shop.note("came", Action::Buy, None);
        for order in ["reserved", "confirming", "confirmed"] {
            shop.stock.reserve(order, 2, HOUR / 2).await.unwrap();
            shop.note(order, Action::Reserve, Some(Answer::Done));
        }
        shop.note("confirming", Action::Confirm, None);
        shop.stock.confirm("confirmed").await.unwrap();
        shop.note("confirmed", Action::Confirm, None);
        shop.stock.reserve("reserving", 2, HOUR / 2).await.unwrap();
        shop.note("reserving", Action::Reserve, None);
        shop.audit().await.unwrap();
        let snapshot = shop.stock.snapshot().await.unwrap();
        assert_eq!((snapshot.sold(), snapshot.held()), (8, 0));
    }

    #[tokio::test]
    async fn what_was_sold_out_in_the_audit_stays_so() {
        let shop = Shop::open(2).await;
        shop.note("late", Action::Buy, None);
        shop.stock.take("bought", 2).await.unwrap();
        shop.note("bought", Action::Buy, Some(Answer::Done));
        shop.audit().await.unwrap();
        shop.stock.give_back("bought").await.unwrap();
        shop.note("bought", Action::GiveBack, Some(Answer::Done));
        let late = shop.stock.take("late", 2).await.unwrap_err();
        assert!(matches!(late, StockError::Cancelled { .. }), "{late}");
        shop.audit().await.unwrap();
    }

    #[tokio::test]
    async fn units_that_nobody_was_told_of_are_found() {
        let shop = Shop::open(100).await;
        shop.stock.take("by-nobody", 2).await.unwrap();
        shop.audit().await.unwrap_err();
    }

    #[tokio::test]
    async fn an_order_that_the_stock_has_forgotten_is_found() {
        let shop = Shop::open(100).await;
        shop.note("bought", Action::Buy, Some(Answer::Done));
        // As many units are sold as the books say, but not to this buyer.
        shop.audit().await.unwrap_err();
    }

    #[tokio::test]
    async fn a_reservation_that_was_never_confirmed_is_no_sale() {
        let shop = Shop::open(100).await;
        shop.stock.reserve("reserved", 2, HOUR / 2).await.unwrap();
        shop.note("reserved", Action::Confirm, Some(Answer::Done));
        shop.audit().await.unwrap_err();
    }
}
