//! Scenarios that every database must pass. `url` is that of a new database.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::store::stock::MAX_QUANTITY;
use lock_runtime::LockManager;
use lock_runtime::segmented::{Part, SegmentedStock, StockError};
use tokio::runtime::Builder;

use super::{Deed, PATIENCE, drop_at, stock, with_steps};
use crate::Helper;
use crate::dice::Dice;
use crate::mongodb::{Connection, Document, doc, is_ok};
use crate::stocks::{insist, one_is_new};

async fn start(url: &str) -> LockManager {
    LockManager::connect(url).await.unwrap()
}

/// Ten thousand callers want one of a hundred units.
pub async fn a_hundred_units_are_sold_once(url: &str) {
    let stock = stock(&start(url).await, "hot");
    assert!(stock.initialize(100, 10).await.unwrap());
    let sold = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (stock, sold) = (stock.clone(), Arc::clone(&sold));
            tokio::spawn(async move {
                for attempt in 0..1250 {
                    loop {
                        match stock.take(format!("{task}:{attempt}"), 1).await {
                            Ok(_) => {
                                sold.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(StockError::SoldOut { available: 0, .. }) => {}
                            Err(StockError::Contended { .. }) => continue,
                            Err(error) => panic!("{error}"),
                        }
                        break;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let snapshot = stock.snapshot().await.unwrap();
    assert_eq!(sold.load(Ordering::Relaxed), 100);
    assert_eq!((snapshot.available(), snapshot.held(), snapshot.sold()), (0, 0, 100), "{snapshot:?}");
}

/// Every kind of operation is dropped at each of its steps, and up to two polls later.
pub async fn a_dropped_future_has_done_all_or_nothing(url: &str) {
    // A transaction that was left open would keep others out.
    let locks = start(url).await;
    for deed in Deed::ALL {
        for more in 0..3 {
            for step in 0.. {
                let stock = stock(&locks, &format!("{}:{step}:{more}", deed.name()));
                deed.prepare(&stock).await;
                let has_ended = drop_at(step, more, deed.act(&stock)).await;
                deed.is_settled_by_the_same_again(&stock, &format!("dropped at step {step} + {more}")).await;
                if has_ended {
                    assert!(step > 5, "{deed:?} has steps");
                    break;
                }
            }
        }
    }
}

/// Polls `work` until it has reached a step, and returns it.
async fn reach<T>(
    wanted: &'static str,
    work: impl Future<Output = T> + 'static,
) -> Pin<Box<dyn Future<Output = T>>> {
    let reached = Arc::new(AtomicBool::new(false));
    let reach = Arc::clone(&reached);
    let step = move |step: &str| {
        reach.fetch_or(step == wanted, Ordering::Relaxed);
    };
    let mut work: Pin<Box<dyn Future<Output = T>>> = Box::pin(with_steps(step, work));
    while !reached.load(Ordering::Relaxed) {
        let polled = std::future::poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx)));
        assert!(polled.await.is_pending(), "it has not ended before `{wanted}`");
        tokio::task::yield_now().await;
    }
    work
}

/// A caller stands still in the middle of a sale, and is polled again much later.
pub async fn a_caller_who_is_not_polled_keeps_nobody_out(url: &str) {
    let stock = stock(&start(url).await, "still");
    stock.initialize(10, 1).await.unwrap();
    let slow = stock.clone();
    let still = reach("after begin", async move { slow.take("still", 2).await }).await;
    for order in 0..5_u64 {
        stock.take(order, 1).await.unwrap();
    }
    assert!(!still.await.unwrap().is_repeated());
    assert_eq!(stock.available().await.unwrap(), 3);
}

/// A call is given up in the middle of a sale, by a caller whose runtime then stands still.
pub fn a_call_that_was_dropped_keeps_nobody_out(url: &str) {
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let (still, moving) = (runtime(), runtime());
    let stock = still.block_on(async { stock(&start(url).await, "still") });
    still.block_on(stock.initialize(10, 1)).unwrap();
    let given_up = still.block_on(reach("after begin", async move { stock.take("still", 2).await }));
    drop(given_up);
    moving.block_on(async {
        let stock = start(url).await.stock("still").timeout(Duration::from_secs(10));
        stock.take("other", 1).await.unwrap();
        assert_eq!(stock.available().await.unwrap(), 9);
    });
}

/// Calls that lock many rows come again and again, more of them than a manager has connections.
pub async fn a_restock_comes_between_sales_from_several_segments(url: &str) {
    let (locks, other) = (start(url).await, start(url).await);
    stock(&locks, "busy").initialize(1000, 10).await.unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..16)
        .map(|task| {
            let stock = stock(if task % 2 == 0 { &locks } else { &other }, "busy");
            let ended = Arc::clone(&ended);
            tokio::spawn(async move {
                for number in 0.. {
                    if ended.load(Ordering::Relaxed) {
                        break;
                    }
                    let id = format!("{task}:{number}");
                    match stock.reserve(&*id, 150, PATIENCE).await {
                        Ok(_) => stock.cancel(&*id).await.unwrap(),
                        Err(StockError::SoldOut { .. } | StockError::Contended { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        })
        .collect();
    let busy = stock(&locks, "busy");
    for delivery in 0..10_u64 {
        busy.restock(format!("delivery:{delivery}"), 10).await.unwrap();
    }
    busy.resize(5).await.unwrap();
    ended.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(busy.available().await.unwrap(), 1100);
}

/// A seller is killed at each step of every kind of operation. Some kinds are side by side, since a
/// server may take a while to end what a dead process has begun.
pub async fn a_killed_seller_leaves_all_or_nothing(url: &str, seller: &str) {
    let locks = start(url).await;
    for deeds in Deed::ALL.chunks(4) {
        join_all(deeds.iter().map(|deed| a_killed_seller_of(*deed, &locks, url, seller))).await;
    }
}

async fn a_killed_seller_of(deed: Deed, locks: &LockManager, url: &str, seller: &str) {
    for step in 0.. {
        let name = format!("{}:{step}", deed.name());
        let stock = stock(locks, &name);
        deed.prepare(&stock).await;
        let step_text = step.to_string();
        let mut helper = Helper::spawn(seller, [url, "deed", &name, &deed.name(), &step_text]);
        let ended = tokio::task::spawn_blocking(move || (helper.process().wait(PATIENCE), helper));
        let (status, mut helper) = ended.await.unwrap();
        deed.is_settled_by_the_same_again(&stock, &format!("killed at step {step}")).await;
        if status.success() {
            assert_eq!(helper.line(PATIENCE), "done");
            assert!(step > 5, "{deed:?} has steps");
            break;
        }
    }
}

/// Two processes sell a stock that does not suffice for both.
pub async fn two_processes_sell_each_unit_once(url: &str, seller: &str) {
    let locks = start(url).await;
    let stock = stock(&locks, "rivals");
    assert!(stock.initialize(100, 7).await.unwrap());
    let mut rivals = ["a", "b"].map(|name| Helper::spawn(seller, [url, "sell", "rivals", name, "100"]));
    // The segments change meanwhile.
    for segments in [3, 9, 2, 7] {
        stock.resize(segments).await.unwrap();
        stock.rebalance().await.unwrap();
    }
    let sold = rivals.each_mut().map(|rival| {
        let line = rival.line(PATIENCE);
        line.strip_prefix("sold ").unwrap().parse::<u64>().unwrap()
    });
    rivals.into_iter().for_each(|rival| rival.finish(PATIENCE));
    let snapshot = stock.snapshot().await.unwrap();
    assert!(snapshot.balances());
    assert_eq!((snapshot.available(), snapshot.sold()), (0, 100), "{sold:?}, {snapshot:?}");
    assert_eq!(sold.iter().sum::<u64>(), 100);
}

/// A holder that was away comes back with an old token after others have sold.
pub async fn an_older_token_is_refused(url: &str) {
    let locks = start(url).await;
    let stock = stock(&locks, "fenced");
    stock.initialize(30, 1).await.unwrap();
    let shelf = locks.segmented("fenced", 1);
    let old = shelf.acquire(0).await.unwrap();
    let first = stock.take_at(&old, "first", 2).await.unwrap();
    assert_eq!(first.parts(), [Part { segment: 0, quantity: 2 }]);
    assert!(!first.is_repeated());
    // Its lease is over, and another caller sells.
    locks.force_release("fenced:0").await.unwrap();
    let new = shelf.acquire(0).await.unwrap();
    stock.take_at(&new, "other", 1).await.unwrap();
    let error = stock.take_at(&old, "late", 2).await.unwrap_err();
    assert!(matches!(error, StockError::Stale { .. }) && error.is_retryable(), "{error}");
    assert!(stock.take_at(&old, "first", 2).await.unwrap().is_repeated());
    assert_eq!(stock.snapshot().await.unwrap().sold(), 3);
    stock.take_at(&new, "late", 2).await.unwrap();
    let error = stock.take_at(&new, "more", 26).await.unwrap_err();
    assert!(matches!(error, StockError::SegmentShort { segment: 0, available: 25, .. }), "{error}");
    // Who sells without a lock needs no token.
    stock.take("all", 25).await.unwrap();
}

/// Sales that each need all segments, beside small ones that move the units under their feet.
pub async fn sales_from_several_segments_end_beside_small_ones(url: &str) {
    let stock = stock(&start(url).await, "merged");
    stock.initialize(4000, 4).await.unwrap();
    let small = tokio::spawn({
        let stock = stock.clone();
        async move {
            for order in 0..200_u64 {
                let id = format!("small {order}");
                insist(|| stock.take(&id, 1)).await.unwrap();
                stock.give_back(&id).await.unwrap();
            }
        }
    });
    // Each needs units of every segment, and none of them is larger than the others.
    for order in 0..20_u64 {
        let taken = stock.take(order, 3700).await.unwrap();
        assert_eq!(taken.parts().len(), 4);
        assert_eq!(taken.parts().iter().map(|part| part.quantity).sum::<u64>(), 3700);
        stock.give_back(order).await.unwrap();
    }
    small.await.unwrap();
    let snapshot = stock.snapshot().await.unwrap();
    assert_eq!((snapshot.available(), snapshot.sold()), (4000, 0), "{snapshot:?}");
    assert!(stock.audit().await.unwrap().agrees());
}

/// The process stands still between two statements until it is too late.
pub async fn what_comes_too_late_changes_nothing(url: &str) {
    let locks = start(url).await;
    const TIMEOUT: Duration = Duration::from_millis(300);
    for deed in Deed::ALL {
        for (name, at) in [("begin", "after begin"), ("commit", "before commit")] {
            let name = format!("{}:{name}", deed.name());
            let patient = stock(&locks, &name);
            deed.prepare(&patient).await;
            let before = patient.snapshot().await.unwrap();
            let stopped = Arc::new(AtomicBool::new(false));
            let stop = Arc::clone(&stopped);
            let step = move |step: &str| {
                if step == at && !stop.swap(true, Ordering::Relaxed) {
                    std::thread::sleep(TIMEOUT * 2);
                }
            };
            let hasty = patient.clone().timeout(TIMEOUT);
            let result = with_steps(step, deed.act(&hasty)).await;
            if stopped.load(Ordering::Relaxed) {
                let error = result.unwrap_err();
                assert!(
                    matches!(&error, StockError::Unavailable { cause, .. } if !cause.outcome_unknown()),
                    "{deed:?}: {error}"
                );
                assert_eq!(patient.snapshot().await.unwrap(), before, "{deed:?}");
            }
            deed.is_settled_by_the_same_again(&patient, "after it was too late").await;
        }
    }
}

/// The texts of errors say what to do. Nobody has created tables.
pub async fn mistakes_are_told(url: &str) {
    let locks = start(url).await;
    let stock = stock(&locks, "stock");
    let made = tokio::join!(stock.snapshot(), stock.sweep(10), stock.confirm("op"));
    assert!(matches!(made.0, Err(StockError::Missing { .. })), "{:?}", made.0);
    made.1.unwrap();
    assert!(matches!(made.2, Err(StockError::Missing { .. })), "{:?}", made.2);
    assert!(matches!(stock.take("op", 1).await, Err(StockError::Missing { .. })));
    assert!(matches!(stock.restock("op", 1).await, Err(StockError::Missing { .. })));
    assert!(matches!(stock.resize(3).await, Err(StockError::Missing { .. })));
    assert!(matches!(stock.rebalance().await, Err(StockError::Missing { .. })));
    assert!(stock.initialize(MAX_QUANTITY, 1024).await.unwrap());
    assert!(!stock.initialize(5, 1).await.unwrap());
    assert!(matches!(stock.restock("op", 1).await, Err(StockError::Misconfigured { .. })));
    stock.take("all", MAX_QUANTITY).await.unwrap();
    assert_eq!(stock.snapshot().await.unwrap().sold(), MAX_QUANTITY);
    let replicated =
        stock.clone().replication(lock_runtime::Replication::at_least(1, Duration::from_secs(1)));
    let error = replicated.take("op", 1).await.unwrap_err();
    let what = if url.starts_with("mongodb") { "majority" } else { "synchronous_commit" };
    assert!(error.to_string().contains(what), "{error}");
    assert!(!error.is_retryable());
}

/// Managers with different prefixes have nothing in common.
pub async fn a_prefix_is_another_stock(url: &str) {
    let one = LockManager::builder().prefix("one:").connect(url).await.unwrap();
    let other = LockManager::builder().prefix("other:").connect(url).await.unwrap();
    assert!(stock(&one, "same").initialize(10, 2).await.unwrap());
    assert!(stock(&other, "same").initialize(20, 2).await.unwrap());
    stock(&one, "same").take("op", 3).await.unwrap();
    assert_eq!(stock(&one, "same").available().await.unwrap(), 7);
    assert_eq!(stock(&other, "same").available().await.unwrap(), 20);
}

/// Reservations end without a sweep.
pub async fn reservations_end_by_the_databases_clock(url: &str) {
    let locks = start(url).await;
    let stock = stock(&locks, "reserved");
    stock.initialize(1000, 3).await.unwrap();
    let hold = Duration::from_millis(20);
    stock.reserve("held", 500, hold).await.unwrap();
    stock.reserve("seen", 400, hold).await.unwrap();
    tokio::time::sleep(hold * 2).await;
    assert!(matches!(stock.confirm("seen").await, Err(StockError::Expired { .. })));
    assert!(matches!(stock.reserve("seen", 400, hold).await, Err(StockError::Expired { .. })));
    assert_eq!(stock.snapshot().await.unwrap().held(), 500, "no call has touched it since");
    assert!(matches!(stock.reserve("held", 500, hold).await, Err(StockError::Expired { .. })));
    assert_eq!(stock.available().await.unwrap(), 1000);
    for operation in 0..250_u64 {
        stock.reserve(operation, 1, hold).await.unwrap();
    }
    // The deadline is set before the commit, and the answer contains the time left.
    let step = move |step: &str| {
        if step == "before commit" {
            std::thread::sleep(hold);
        }
    };
    let later = with_steps(step, stock.reserve("later", 1, PATIENCE)).await.unwrap();
    assert!(later.remaining().unwrap() <= PATIENCE - hold, "{later:?}");
    tokio::time::sleep(hold * 2).await;
    let first = stock.sweep(120).await.unwrap();
    assert_eq!((first.expired, first.more), (120, true));
    // The time is over after it has ended a hundred.
    let hasty = stock.clone().timeout(Duration::from_secs(1));
    let mut commits = 0;
    let step = move |step: &str| {
        if step == "after commit" && commits == 0 {
            std::thread::sleep(Duration::from_secs(1));
            commits += 1;
        }
    };
    let second = with_steps(step, hasty.sweep(1000)).await.unwrap();
    assert_eq!((second.expired, second.more), (100, true));
    let third = stock.sweep(1000).await.unwrap();
    assert_eq!((third.expired, third.more), (30, false));
    let snapshot = stock.snapshot().await.unwrap();
    assert_eq!((snapshot.available(), snapshot.held()), (999, 1));
}

/// Records are deleted after their retention, swept or not, and their ids count as new.
pub async fn records_whose_time_is_over_are_thrown_away(url: &str) {
    let locks = start(url).await;
    let retention = Duration::from_millis(50);
    let stock = stock(&locks, "short").retention(retention);
    stock.initialize(1000, 3).await.unwrap();
    stock.take("sold", 10).await.unwrap();
    stock.cancel("never").await.unwrap();
    stock.restock("more", 5).await.unwrap();
    tokio::time::sleep(retention * 2).await;
    assert!(matches!(stock.give_back("sold").await, Err(StockError::UnknownOperation { .. })));
    assert!(!stock.take("sold", 7).await.unwrap().is_repeated());
    assert!(!stock.take("never", 3).await.unwrap().is_repeated());
    stock.restock("more", 6).await.unwrap();
    stock.cancel("never again").await.unwrap();
    tokio::time::sleep(retention * 2).await;
    stock.cancel("never again").await.unwrap();
    tokio::time::sleep(retention * 2).await;
    assert_eq!(records(url).await, 4);
    assert!(stock.sweep(3).await.unwrap().more);
    assert_eq!(records(url).await, 1);
    assert!(!stock.sweep(3).await.unwrap().more);
    assert_eq!(records(url).await, 0);
    let snapshot = stock.snapshot().await.unwrap();
    assert!(snapshot.balances());
    assert_eq!((snapshot.available(), snapshot.sold()), (1011 - 20, 20));
    let audit = stock.audit().await.unwrap();
    assert!(audit.agrees(), "{audit:?}");
    assert_eq!((audit.sold, audit.forgotten), (0, 20), "what is sold stays sold");
}

/// Several callers sell one order; exactly one of them is told that it is new.
pub async fn of_several_with_one_id_one_is_told_that_it_is_new(url: &str) {
    let locks = start(url).await;
    let stock = stock(&locks, "one");
    stock.initialize(1000, 5).await.unwrap();
    for order in 0..25_u64 {
        one_is_new(&stock, order).await;
    }
    assert!(stock.audit().await.unwrap().agrees());
}

/// The audit finds counts that were changed from outside.
pub async fn an_audit_sees_what_was_changed_behind_its_back(url: &str) {
    let locks = start(url).await;
    let stock = stock(&locks, "audited");
    assert!(matches!(stock.audit().await, Err(StockError::Missing { .. })));
    stock.initialize(100, 3).await.unwrap();
    stock.take("sold", 40).await.unwrap();
    stock.reserve("held", 10, PATIENCE).await.unwrap();
    let audit = stock.audit().await.unwrap();
    assert!(audit.agrees(), "{audit:?}");
    assert_eq!((audit.held, audit.sold, audit.forgotten), (10, 40, 0));
    change(url, "sold", Edit::Quantity(39)).await;
    let audit = stock.audit().await.unwrap();
    assert!(audit.counted.balances() && !audit.agrees(), "{audit:?}");
}

/// Units of expired reservations are sold again without a sweep, also by many callers at once.
pub async fn what_is_overdue_is_for_sale_at_once(url: &str) {
    let locks = start(url).await;
    let stock = stock(&locks, "overdue");
    stock.initialize(100, 5).await.unwrap();
    let hold = Duration::from_millis(20);
    for order in 0..50_u64 {
        stock.reserve(order, 2, hold).await.unwrap();
    }
    tokio::time::sleep(hold * 2).await;
    stock.take("all", 100).await.unwrap();
    let error = stock.take("more", 1).await.unwrap_err();
    assert!(error.is_sold_out(), "{error}");
    assert!(matches!(stock.confirm(7).await, Err(StockError::Expired { .. })));

    // One of ten concurrent callers ends the expired reservations. The others do not report a
    // sold-out stock.
    for round in 0..5_u64 {
        for order in 0..10_u64 {
            let id = 1000 + round * 100 + order;
            stock.restock(format!("put {id}"), 1).await.unwrap();
            stock.reserve(id, 1, hold).await.unwrap();
        }
        tokio::time::sleep(hold * 2).await;
        let buyers: Vec<_> = (0..10_u64)
            .map(|buyer| {
                let stock = stock.clone();
                tokio::spawn(async move { insist(|| stock.take(1050 + round * 100 + buyer, 1)).await })
            })
            .collect();
        for buyer in buyers {
            buyer.await.unwrap().unwrap();
        }
    }
}

/// Its units are unknown, and so is whether the stock is sold out.
pub async fn an_unreadable_reservation_is_named(url: &str) {
    let locks = start(url).await;
    let stock = stock(&locks, "counted");
    stock.initialize(2, 1).await.unwrap();
    let hold = Duration::from_millis(20);
    stock.reserve("edited", 1, hold).await.unwrap();
    change(url, "edited", Edit::Parts("x")).await;
    tokio::time::sleep(hold * 2).await;
    stock.take("one", 1).await.unwrap();
    let errors = [stock.take("two", 1).await.unwrap_err(), stock.sweep(10).await.unwrap_err()];
    for error in errors.map(|error| error.to_string()) {
        assert!(error.contains("edited") && error.contains("lock_stock_operation"), "{error}");
    }
    change(url, "edited", Edit::Parts("0:1")).await;
    stock.take("two", 1).await.unwrap();
    assert!(stock.audit().await.unwrap().agrees());
}

/// Several tasks run all kinds of operations.
pub async fn everything_at_once_adds_up(url: &str) {
    const TASKS: u64 = 4;
    let locks = start(url).await;
    let stock = stock(&locks, "busy");
    stock.initialize(200, 5).await.unwrap();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let stock = stock.clone();
            tokio::spawn(async move { work(&stock, task).await })
        })
        .collect();
    let (mut sold, mut put_in) = (0, 200);
    for task in tasks {
        let books = task.await.unwrap();
        (sold, put_in) = (sold + books.0, put_in + books.1);
    }
    // All remaining reservations have expired by then.
    tokio::time::sleep(Duration::from_millis(20)).await;
    while stock.sweep(7).await.unwrap().more {}
    let snapshot = stock.snapshot().await.unwrap();
    assert!(snapshot.balances(), "{snapshot:?}");
    assert_eq!(snapshot.initial + snapshot.restocked, put_in);
    assert_eq!((snapshot.held(), snapshot.sold()), (0, sold), "{snapshot:?}");
}

/// Runs one task's operations. Returns the units that it has sold, and those that it has added.
async fn work(stock: &SegmentedStock, task: u64) -> (u64, u64) {
    let mut dice = Dice::new(task);
    let (mut sold, mut put_in) = (0, 0);
    // Its sales that were not given back, with their quantities.
    let mut sales: Vec<(String, u64)> = Vec::new();
    for number in 0..150 {
        let (id, quantity) = (format!("{task}:{number}"), 1 + dice.below(60));
        let result = match dice.below(12) {
            0..=3 => stock.take(&id, quantity).await.map(|_| {
                sold += quantity;
                sales.push((id, quantity));
            }),
            4..=6 => match stock.reserve(&id, quantity, Duration::from_millis(1 + dice.below(10))).await {
                Ok(_) if dice.below(3) == 0 => stock.cancel(&id).await,
                Ok(_) => stock.confirm(&id).await.map(|()| {
                    sold += quantity;
                    sales.push((id, quantity));
                }),
                Err(error) => Err(error),
            },
            7 | 8 => match sales.pop() {
                None => Ok(()),
                Some((id, quantity)) => stock.give_back(id).await.map(|()| sold -= quantity),
            },
            9 => stock.sweep(3).await.map(drop),
            10 => stock.resize(1 + dice.below(7) as u32).await,
            _ if dice.below(2) == 0 => stock.rebalance().await,
            _ => stock.restock(&id, 5).await.map(|()| put_in += 5),
        };
        match result {
            Ok(())
            | Err(StockError::SoldOut { .. } | StockError::Contended { .. } | StockError::Expired { .. }) => {
            }
            Err(error) => panic!("{error}"),
        }
    }
    (sold, put_in)
}

/// Connects to a database without the library.
macro_rules! with_pool {
    ($url:expr, |$pool:ident| $work:expr) => {
        match $url.split_once(':').unwrap().0 {
            "postgres" => {
                let $pool = sqlx::PgPool::connect($url).await.unwrap();
                $work
            }
            "mysql" => {
                let $pool = sqlx::MySqlPool::connect($url).await.unwrap();
                $work
            }
            _ => {
                let $pool = sqlx::SqlitePool::connect($url).await.unwrap();
                $work
            }
        }
    };
}

/// A change of an operation's record, behind the library's back.
enum Edit {
    Quantity(i64),
    Parts(&'static str),
}

/// Changes the record of an operation.
async fn change(url: &str, operation: &str, edit: Edit) {
    if url.starts_with("mongodb") {
        let set = match edit {
            Edit::Quantity(quantity) => doc! { "quantity": quantity },
            Edit::Parts(parts) => doc! { "parts": parts },
        };
        let update = doc! { "q": { "_id.operation": operation }, "u": { "$set": set } };
        let concern = doc! { "w": "majority" };
        run(url, doc! { "update": RECORDS, "updates": [update], "writeConcern": concern });
        return;
    }
    let set = match edit {
        Edit::Quantity(quantity) => format!("quantity = {quantity}"),
        Edit::Parts(parts) => format!("parts = '{parts}'"),
    };
    let statement = format!("UPDATE {RECORDS} SET {set} WHERE operation = '{operation}'");
    with_pool!(url, |pool| {
        sqlx::query(&statement).execute(&pool).await.unwrap();
    });
}

/// Returns the number of operation records.
async fn records(url: &str) -> i64 {
    if url.starts_with("mongodb") {
        return run(url, doc! { "count": RECORDS }).get_i32("n").unwrap().into();
    }
    let count = format!("SELECT COUNT(*) FROM {RECORDS} WHERE operation <> ''");
    with_pool!(url, |pool| sqlx::query_scalar(&count).fetch_one(&pool).await.unwrap())
}

/// Where records are.
const RECORDS: &str = "lock_stock_operation";

/// Runs a command in MongoDB.
fn run(url: &str, mut command: Document) -> Document {
    let addr = url.trim_start_matches("mongodb://").split('/').next().unwrap();
    command.insert("$db", "locks");
    let answer = Connection::open(addr.parse().unwrap(), PATIENCE).unwrap().run(command).unwrap();
    assert!(is_ok(&answer), "{answer}");
    answer
}
