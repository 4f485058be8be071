//! Stocks in one slot whose keys another client has changed, lost, or made anew.

use std::time::Duration;

use lock_runtime::LockManager;
use lock_runtime::segmented::{Layout, SegmentedStock, StockError};
use lock_tests::RedisServer;
use lock_tests::stocks::{counts, insist};
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(600);
const NAME: &str = "stock:1001";
const STOCK: &str = "lock_stock:{lock:stock:1001}";
const HOLDS: &str = "lock_stock_holds:{lock:stock:1001}";
const RECORDS: &str = "lock_stock_ops:{lock:stock:1001}";

/// Returns the stock as another instance has it.
async fn stock_at(redis: &RedisServer) -> SegmentedStock {
    LockManager::connect(redis.url()).await.unwrap().stock(NAME).timeout(Duration::from_secs(20))
}

async fn new_stock(redis: &RedisServer, units: u64, segments: u32) -> SegmentedStock {
    let stock = stock_at(redis).await;
    assert!(stock.initialize(units, segments).await.unwrap());
    stock
}

/// Returns the number of scripts that the server has executed.
fn scripts(redis: &RedisServer) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]);
    let calls = |line: &str| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse().ok();
    stats.lines().find_map(calls).unwrap_or(0)
}

fn misconfigured<T: std::fmt::Debug>(answer: Result<T, StockError>, text: &str) {
    match answer {
        Err(StockError::Misconfigured { reason }) if reason.contains(text) => {}
        other => panic!("{text}: {other:?}"),
    }
}

#[tokio::test]
async fn an_audit_sees_counts_that_were_changed_behind_its_back() {
    let redis = RedisServer::start();
    let stock = new_stock(&redis, 10, 1).await;
    for order in 0..3_u64 {
        stock.take(order, 1).await.unwrap();
    }
    stock.reserve("held", 6, LONG).await.unwrap();
    assert_eq!(counts(&stock).await, (1, 6, 3));
    let audit = stock.audit().await.unwrap();
    assert_eq!((audit.held, audit.sold, audit.forgotten), (6, 3, 0));
    for (field, by) in [("a0", 2), ("h0", -6), ("g", 1)] {
        redis.cli(&["HINCRBY", STOCK, field, &by.to_string()]);
        let audit = stock.audit().await.unwrap();
        assert!(audit.counted.balances() && !audit.agrees(), "{field}: {audit:?}");
        redis.cli(&["HINCRBY", STOCK, field, &(-by).to_string()]);
        assert!(stock.audit().await.unwrap().agrees());
    }
    redis.cli(&["HDEL", RECORDS, "0"]);
    let audit = stock.audit().await.unwrap();
    assert!(!audit.agrees() && audit.sold == 2, "{audit:?}");
}

/// A damaged reservation neither sells units over and over, nor stands in the way of others.
#[tokio::test]
async fn a_reservation_whose_counts_are_damaged_changes_nothing() {
    let redis = RedisServer::start();
    let stock = new_stock(&redis, 10, 1).await;
    let hold = Duration::from_millis(20);
    stock.reserve("damaged", 4, hold).await.unwrap();
    let record = redis.cli(&["HGET", RECORDS, "damaged"]);
    redis.cli(&["HSET", RECORDS, "damaged", &format!("{record} 1:99999999999999999999")]);
    stock.reserve("good", 3, hold).await.unwrap();
    tokio::time::sleep(2 * hold).await;
    for _ in 0..3 {
        stock.sweep(100).await.unwrap();
        assert!(stock.cancel("damaged").await.is_err());
    }
    assert_eq!(counts(&stock).await, (6, 4, 0), "what was good came back, once");
    assert_eq!(insist(|| stock.take("all", 6)).await.unwrap().parts().len(), 1);
}

#[tokio::test]
async fn what_is_forgotten_is_counted_wherever_that_happens() {
    let redis = RedisServer::start();
    let kept = Duration::from_millis(50);
    let patient = new_stock(&redis, 100, 4).await;
    let stock = patient.clone().retention(kept);
    for id in ["again", "cancelled", "restocked", "swept"] {
        stock.take(id, 3).await.unwrap();
    }
    // However slow the machine is, this record has not expired when its units come back.
    patient.take("back", 3).await.unwrap();
    stock.give_back("back").await.unwrap();
    tokio::time::sleep(kept * 2).await;
    // Each of these replaces a record that has expired.
    stock.take("again", 5).await.unwrap();
    stock.cancel("cancelled").await.unwrap();
    stock.restock("restocked", 1).await.unwrap();
    let audit = stock.audit().await.unwrap();
    assert!(audit.agrees(), "{audit:?}");
    // One take in 128 also looks for old records, and finds the one that nobody replaces.
    let is_swept = redis.cli(&["HEXISTS", RECORDS, "swept"]).trim() == "0";
    assert_eq!(audit.forgotten, if is_swept { 12 } else { 9 });
    tokio::time::sleep(kept * 2).await;
    assert!(stock.sweep(100).await.unwrap().forgotten >= if is_swept { 4 } else { 5 });
    assert_eq!(redis.cli(&["HLEN", RECORDS]).trim(), "0");
    let audit = stock.audit().await.unwrap();
    assert!(audit.agrees(), "{audit:?}");
    assert_eq!((audit.sold, audit.forgotten), (0, 17));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_audit_goes_step_by_step_and_sales_do_not_make_it_lie() {
    const ORDERS: u64 = 3000;
    let redis = RedisServer::start();
    let stock = new_stock(&redis, 1_000_000, 4).await;
    let take = |order| {
        let stock = stock.clone();
        async move { stock.take(order, 2).await }
    };
    for some in (0..ORDERS).collect::<Vec<_>>().chunks(100) {
        let taken = some.iter().copied().map(take).collect::<JoinSet<_>>().join_all().await;
        assert!(taken.iter().all(Result::is_ok));
    }
    let before = scripts(&redis);
    let audit = stock.audit().await.unwrap();
    assert!(audit.agrees() && audit.sold == 2 * ORDERS, "{audit:?}");
    assert!(scripts(&redis) - before >= ORDERS / 1024, "no script looks at all of them");
    let seller = tokio::spawn({
        let stock = stock.clone();
        async move {
            for order in ORDERS.. {
                stock.reserve(order, 2, LONG).await.unwrap();
                stock.confirm(order).await.unwrap();
            }
        }
    });
    for _ in 0..5 {
        match stock.audit().await {
            Ok(audit) => assert!(audit.agrees(), "{audit:?}"),
            Err(error) => assert!(matches!(error, StockError::Contended { .. }), "{error}"),
        }
    }
    seller.abort();
    let _ = seller.await;
    assert!(insist(|| stock.audit()).await.unwrap().agrees());
}

#[tokio::test]
async fn a_hundred_reservations_end_in_one_call() {
    let redis = RedisServer::start();
    let stock = new_stock(&redis, 1000, 10).await;
    for order in 0..1000_u64 {
        stock.reserve(order, 1, LONG).await.unwrap();
        redis_is_over(&redis, order);
    }
    let before = scripts(&redis);
    let swept = stock.sweep(1000).await.unwrap();
    assert_eq!((swept.expired, swept.more), (1000, false));
    let calls = scripts(&redis) - before;
    assert!(calls <= 10 + 3, "{calls} calls");
    assert_eq!(counts(&stock).await, (1000, 0, 0));
}

/// Makes a reservation expire without waiting for it.
fn redis_is_over(redis: &RedisServer, order: u64) {
    let id = order.to_string();
    let record = redis.cli(&["HGET", RECORDS, &id]);
    let mut words: Vec<&str> = record.trim().split(' ').collect();
    words[3] = "1";
    redis.cli(&["HSET", RECORDS, &id, &words.join(" ")]);
    redis.cli(&["ZADD", HOLDS, "1", &id]);
}

#[tokio::test]
async fn reservations_without_a_record_do_not_stop_sweeps() {
    let redis = RedisServer::start();
    let stock = new_stock(&redis, 1000, 10).await;
    for order in 0..250_u64 {
        stock.reserve(order, 1, Duration::from_millis(1)).await.unwrap();
    }
    redis.cli(&["DEL", RECORDS]);
    stock.reserve("whole", 7, Duration::from_millis(1)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let mut swept = Vec::new();
    for _ in 0..3 {
        swept.push(stock.sweep(100).await.unwrap());
    }
    assert_eq!(swept.iter().map(|swept| swept.expired).sum::<u64>(), 1, "{swept:?}");
    assert_eq!(swept.iter().map(|swept| swept.recovered).sum::<u64>(), 250, "{swept:?}");
    assert_eq!(redis.cli(&["ZCARD", HOLDS]).trim(), "0");
    // Their segments are unknown: the units stay held, and an audit reports their number.
    let audit = stock.audit().await.unwrap();
    assert!(!audit.agrees());
    assert_eq!((audit.counted.held(), audit.held, audit.counted.available()), (250, 0, 750));
}

#[tokio::test]
async fn a_stock_in_the_other_layout_is_told_apart_by_every_call() {
    let redis = RedisServer::start();
    let locks = LockManager::connect(redis.url()).await.unwrap();
    let spread = |name: &str| locks.stock(name).layout(Layout::Spread);
    spread("spread").initialize(10, 2).await.unwrap();
    locks.stock("one slot").initialize(10, 2).await.unwrap();
    for (stock, text) in
        [(locks.stock("spread"), "use Layout::Spread"), (spread("one slot"), "use Layout::OneSlot")]
    {
        misconfigured(stock.initialize(10, 2).await, text);
        misconfigured(stock.take("a", 1).await, text);
        misconfigured(stock.reserve("a", 1, LONG).await, text);
        misconfigured(stock.confirm("a").await, text);
        misconfigured(stock.cancel("a").await, text);
        misconfigured(stock.give_back("a").await, text);
        misconfigured(stock.restock("a", 1).await, text);
        misconfigured(stock.snapshot().await, text);
        misconfigured(stock.rebalance().await, text);
        misconfigured(stock.resize(3).await, text);
        misconfigured(stock.sweep(3).await, text);
    }
    misconfigured(locks.stock("spread").audit().await, "use Layout::Spread");
    misconfigured(spread("spread").audit().await, "has no audit");
    assert_eq!(spread("spread").available().await.unwrap(), 10);
    assert_eq!(locks.stock("one slot").available().await.unwrap(), 10);
}

#[tokio::test]
async fn a_sale_that_begins_anew_is_refused_by_those_who_have_seen_it_before() {
    const TEXT: &str = "not the one that this instance has used before";
    let redis = RedisServer::start();
    let maker = new_stock(&redis, 10, 2).await;
    let seller = stock_at(&redis).await;
    assert!(!seller.initialize(10, 2).await.unwrap());
    maker.take("a", 3).await.unwrap();
    let looker = stock_at(&redis).await;
    looker.take("b", 3).await.unwrap();
    let seen = [maker, seller, looker];
    redis.cli(&["FLUSHALL"]);
    for stock in &seen {
        misconfigured(stock.take("c", 1).await, TEXT);
        misconfigured(stock.initialize(10, 2).await, TEXT);
    }
    assert_eq!(redis.cli(&["DBSIZE"]).trim(), "0");
    // An instance that starts now knows nothing of it.
    let new = new_stock(&redis, 10, 2).await;
    for stock in &seen {
        misconfigured(stock.take("c", 1).await, TEXT);
        misconfigured(stock.reserve("c", 1, LONG).await, TEXT);
        misconfigured(stock.initialize(10, 2).await, TEXT);
    }
    new.take("a", 3).await.unwrap();
    assert_eq!(counts(&new).await, (7, 0, 3));
}

#[tokio::test]
async fn a_stock_of_an_older_version_goes_on() {
    let redis = RedisServer::start();
    let stock = new_stock(&redis, 10, 2).await;
    stock.take("a", 3).await.unwrap();
    redis.cli(&["HDEL", STOCK, "b", "g"]);
    let stock = stock_at(&redis).await;
    assert!(!stock.initialize(10, 2).await.unwrap());
    stock.take("b", 1).await.unwrap();
    let other = stock_at(&redis).await;
    other.take("c", 1).await.unwrap();
    assert_eq!(counts(&other).await, (5, 0, 5));
    redis.cli(&["DEL", STOCK]);
    new_stock(&redis, 10, 2).await;
    misconfigured(other.take("d", 1).await, "used before");
}
