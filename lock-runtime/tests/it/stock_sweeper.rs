//! The task that ends reservations, under paused time.

use std::time::Duration;

use lock_runtime::segmented::{SegmentedStock, StockError};
use lock_runtime::testing::memory_manager;
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

async fn stock(units: u64) -> SegmentedStock {
    let stock = memory_manager().stock("stock:1001");
    assert!(stock.initialize(units, 10).await.unwrap());
    stock
}

async fn held(stock: &SegmentedStock) -> u64 {
    stock.snapshot().await.unwrap().held()
}

#[tokio::test(start_paused = true)]
async fn what_is_not_confirmed_in_time_can_be_sold_again() {
    let stock = stock(3).await;
    stock.reserve("walks-away", 2, 5 * SECOND).await.unwrap();
    stock.reserve("stays", 1, 60 * SECOND).await.unwrap();
    let sweeper = stock.sweeper(SECOND).unwrap();
    sleep(4 * SECOND).await;
    assert_eq!((held(&stock).await, sweeper.swept().expired), (3, 0));
    // The deadline, and the longest pause of the sweeper.
    sleep(SECOND + 2 * SECOND).await;
    assert_eq!((held(&stock).await, sweeper.swept().expired), (1, 1));
    stock.take("comes-later", 2).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn many_that_are_over_at_once_are_ended_in_one_go() {
    let stock = stock(1000).await;
    for number in 0..1000_u64 {
        stock.reserve(number, 1, SECOND).await.unwrap();
    }
    sleep(2 * SECOND).await;
    let sweeper = stock.sweeper(60 * SECOND).unwrap();
    sleep(SECOND).await;
    assert_eq!((held(&stock).await, sweeper.swept().expired), (0, 1000));
}

#[tokio::test(start_paused = true)]
async fn a_sweeper_that_is_dropped_sweeps_no_more() {
    let stock = stock(1).await;
    drop(stock.sweeper(SECOND).unwrap());
    stock.reserve("walks-away", 1, SECOND).await.unwrap();
    sleep(60 * SECOND).await;
    assert_eq!(held(&stock).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_stock_that_is_made_later_is_swept_too() {
    let stock = memory_manager().stock("stock:1001");
    let _sweeper = stock.sweeper(SECOND).unwrap();
    sleep(10 * SECOND).await;
    stock.initialize(1, 1).await.unwrap();
    stock.reserve("walks-away", 1, SECOND).await.unwrap();
    sleep(4 * SECOND).await;
    assert_eq!(held(&stock).await, 0);
}

#[tokio::test]
async fn a_period_of_zero_is_refused() {
    let refused = stock(1).await.sweeper(Duration::ZERO).unwrap_err();
    assert!(matches!(refused, StockError::Misconfigured { .. }), "{refused:?}");
}

#[test]
fn outside_of_a_runtime_there_is_an_error_and_no_panic() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let stock = runtime.block_on(stock(1));
    let refused = stock.sweeper(SECOND).unwrap_err();
    assert!(matches!(refused, StockError::Misconfigured { .. }), "{refused:?}");
}
