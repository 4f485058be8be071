//! Takes from the one segment whose lock the caller holds.

use std::time::Duration;

use lock_runtime::LockManager;
use lock_runtime::segmented::{SegmentedStock, StockError};
use lock_runtime::testing::memory_manager;
use lock_tests::{RedisServer, stock_sql};

const NAME: &str = "stock:1001";

async fn a_stock(locks: &LockManager) -> SegmentedStock {
    let stock = locks.stock(NAME).timeout(Duration::from_secs(60));
    assert!(stock.initialize(20, 4).await.unwrap());
    stock
}

async fn only_the_locked_segment_is_sold_from(locks: &LockManager) {
    let (stock, segments) = (a_stock(locks).await, locks.segmented(NAME, 4));
    let third = segments.acquire(2).await.unwrap();
    let taken = stock.take_at(&third, "a", 3).await.unwrap();
    assert_eq!(taken.parts().iter().map(|part| (part.segment, part.quantity)).collect::<Vec<_>>(), [(2, 3)]);
    // Other segments have enough, and are not asked.
    let short = stock.take_at(&third, "b", 3).await;
    let Err(StockError::SegmentShort { segment: 2, wanted: 3, available: 2, .. }) = short else {
        panic!("{short:?}")
    };
    assert!(!short.unwrap_err().is_sold_out());
    assert!(stock.take_at(&third, "a", 3).await.unwrap().is_repeated());
    assert!(matches!(stock.take_at(&third, "a", 2).await, Err(StockError::Different { .. })));
    third.release().await.unwrap();

    // The id is still free: nothing was taken.
    let other = segments.acquire(1).await.unwrap();
    assert!(!stock.take_at(&other, "b", 3).await.unwrap().is_repeated());
    let snapshot = stock.snapshot().await.unwrap();
    assert!(snapshot.balances(), "{snapshot:?}");
    assert_eq!(snapshot.segments[2].available, 2);
    assert_eq!(snapshot.sold(), 6);

    // A segment that a resize has retired has no units.
    stock.resize(1).await.unwrap();
    let short = stock.take_at(&other, "c", 1).await;
    assert!(matches!(short, Err(StockError::SegmentShort { available: 0, .. })), "{short:?}");
}

async fn an_order_that_is_too_large_for_a_segment_shuts_none(locks: &LockManager) {
    sell_under_locks(locks, &locks.stock(NAME)).await;
}

/// Sells a hundred units in ten segments.
async fn sell_under_locks(locks: &LockManager, stock: &SegmentedStock) {
    let segments = locks.segmented(NAME, 10);
    assert!(stock.initialize(100, 10).await.unwrap());
    // No segment has eleven, so they come from several, under no lock.
    let (taken, segment) = stock.take_locked(&segments, "large", 11).await.unwrap();
    assert!(taken.is_merged() && segment.is_none(), "{taken:?}");
    let (taken, segment) = stock.take_locked(&segments, "small", 1).await.unwrap();
    let segment = segment.expect("one that was short for the large order has enough for this one");
    assert_eq!((taken.parts()[0].segment, taken.parts().len()), (segment.index(), 1));
    segment.release().await.unwrap();

    // A repeated take returns the lock of the units' segment, or none if there are several.
    for _ in 0..20 {
        let (again, segment) = stock.take_locked(&segments, "small", 1).await.unwrap();
        let segment = segment.expect("of the one segment");
        assert!(again.is_repeated() && segment.index() == taken.parts()[0].segment);
        segment.release().await.unwrap();
        let (again, segment) = stock.take_locked(&segments, "large", 11).await.unwrap();
        assert!(again.is_repeated() && segment.is_none(), "{again:?}");
    }
    let (_, segment) = stock.take_locked(&segments, "small", 1).await.unwrap();
    let segment = segment.unwrap();
    segment.release().await.unwrap();
    let (taken, _) = stock.take_locked(&segments, "large", 11).await.unwrap();
    assert!(taken.is_repeated());
    // All segments but one are empty: it is found.
    stock.take("rest", 88).await.unwrap();
    stock.resize(10).await.unwrap();
    stock.give_back("small").await.unwrap();
    let (taken, _segment) = stock.take_locked(&segments, "last", 1).await.unwrap();
    assert_eq!(taken.parts().len(), 1);
    drop(_segment);
    let sold_out = stock.clone().timeout(Duration::from_secs(60)).take_locked(&segments, "more", 1).await;
    assert!(sold_out.as_ref().is_err_and(StockError::is_sold_out), "{sold_out:?}");
    // After that, too, no segment stays shut.
    stock.restock("new", 10).await.unwrap();
    for order in 0..10_u64 {
        drop(stock.take_locked(&segments, order, 1).await.unwrap());
    }
    assert!(stock.audit().await.unwrap().agrees());
}

#[tokio::test]
async fn sales_under_locks_in_sqlite_shut_no_segment() {
    let folder = tempfile::tempdir().unwrap();
    let locks = LockManager::connect(stock_sql::sqlite_in(folder.path())).await.unwrap();
    sell_under_locks(&locks, &stock_sql::stock(&locks, NAME)).await;
}

async fn who_has_lost_the_lock_sells_nothing_after_somebody_else(locks: &LockManager) {
    let (stock, segments) = (a_stock(locks).await, locks.segmented(NAME, 4));
    let lost = segments.acquire(1).await.unwrap();
    stock.take_at(&lost, "a", 1).await.unwrap();
    locks.force_release(format!("{NAME}:1")).await.unwrap();
    let newer = segments.acquire(1).await.unwrap();
    assert!(newer.fencing_token() > lost.fencing_token());
    stock.take_at(&newer, "b", 1).await.unwrap();

    let stale = stock.take_at(&lost, "c", 1).await;
    assert!(matches!(stale, Err(StockError::Stale { .. })), "{stale:?}");
    // The answer of a completed take is given to anybody who repeats it.
    assert!(stock.take_at(&lost, "a", 1).await.unwrap().is_repeated());
    // Its own next sale, and those without any lock, work as before.
    stock.take_at(&newer, "c", 1).await.unwrap();
    stock.take("d", 1).await.unwrap();
    let snapshot = stock.snapshot().await.unwrap();
    assert!(snapshot.balances(), "{snapshot:?}");
    assert_eq!(snapshot.sold(), 4);
}

async fn a_token_is_remembered_for_its_segment_alone(locks: &LockManager) {
    let (stock, segments) = (a_stock(locks).await, locks.segmented(NAME, 4));
    let (older, newer) = (segments.acquire(0).await.unwrap(), segments.acquire(3).await.unwrap());
    stock.take_at(&newer, "a", 1).await.unwrap();
    stock.take_at(&older, "b", 1).await.unwrap();
    stock.take_at(&newer, "c", 1).await.unwrap();
    assert_eq!(stock.snapshot().await.unwrap().sold(), 3);
}

macro_rules! on_each_store {
    ($($name:ident),+ $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $name() {
                super::$name(&super::memory_manager()).await;
            })+
        }
        mod redis {
            $(#[tokio::test]
            async fn $name() {
                let redis = super::RedisServer::start();
                super::$name(&super::LockManager::connect(redis.url()).await.unwrap()).await;
            })+
        }
    };
}

on_each_store!(
    only_the_locked_segment_is_sold_from,
    who_has_lost_the_lock_sells_nothing_after_somebody_else,
    a_token_is_remembered_for_its_segment_alone,
    an_order_that_is_too_large_for_a_segment_shuts_none,
);
