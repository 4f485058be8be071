//! Takes that are ready together share a call to the server, and nothing else.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lock_core::store::stock::{OperationId, StockCall, StockStore, TakeAnswer, TakeRequest};
use lock_runtime::segmented::{SegmentedStock, StockError, Taken};
use lock_runtime::testing::store_of;
use lock_runtime::{FencingToken, LockKey, LockManager};
use lock_tests::RedisServer;
use tokio::task::JoinSet;

const NAME: &str = "stock:1001";
const RECORDS: &str = "lock_stock_ops:{lock:stock:1001}";
/// Time-out longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

async fn a_stock(redis: &RedisServer, units: u64) -> (LockManager, SegmentedStock) {
    let locks = LockManager::connect(redis.url()).await.unwrap();
    let stock = locks.stock(NAME).timeout(LONG);
    assert!(stock.initialize(units, 10).await.unwrap());
    // The server knows the script from now on.
    stock.take("first", 1).await.unwrap();
    (locks, stock)
}

/// Runs all calls at once, and returns the results in the order of their answers.
async fn together<T: Send + 'static>(
    calls: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    calls.into_iter().collect::<JoinSet<_>>().join_all().await
}

fn take(
    stock: &SegmentedStock,
    operation: u64,
    quantity: u64,
) -> impl Future<Output = Result<Taken, StockError>> + use<> {
    let stock = stock.clone();
    async move { stock.take(operation, quantity).await }
}

async fn sold(stock: &SegmentedStock) -> u64 {
    let snapshot = stock.snapshot().await.unwrap();
    assert!(snapshot.balances(), "{snapshot:?}");
    snapshot.sold()
}

fn scripts(redis: &RedisServer) -> u64 {
    let info = redis.cli(&["INFO", "commandstats"]);
    let calls = info.split("cmdstat_evalsha:calls=").nth(1).and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

#[tokio::test]
async fn takes_that_are_ready_together_share_a_call() {
    let redis = RedisServer::start();
    let (_locks, stock) = a_stock(&redis, 1000).await;
    let before = scripts(&redis);
    for taken in together((0..64).map(|id| take(&stock, id, 1))).await {
        assert!(!taken.unwrap().is_repeated());
    }
    let calls = scripts(&redis) - before;
    assert!(calls <= 16, "{calls} calls for 64 takes");
    assert_eq!(sold(&stock).await, 65);

    let before = scripts(&redis);
    let alone = stock.clone().one_by_one();
    together((100..164).map(|id| take(&alone, id, 1))).await;
    assert_eq!(scripts(&redis) - before, 64);
}

#[tokio::test]
async fn an_operation_that_is_twice_in_a_call_is_done_once() {
    let redis = RedisServer::start();
    let (_locks, stock) = a_stock(&redis, 1000).await;
    let taken = together((0..60).map(|call| take(&stock, call % 20, 1 + call % 20))).await;
    let repeated = taken.iter().filter(|taken| taken.as_ref().unwrap().is_repeated()).count();
    assert_eq!(repeated, 40);
    assert_eq!(sold(&stock).await, 1 + (1..=20).sum::<u64>());

    // Of two quantities under one id, one is done, and its own caller is told.
    for (done, other) in [(1, 2), (2, 1)] {
        let calls =
            (0..30).map(|_| take(&stock, 1000 + done, done)).chain([take(&stock, 1000 + done, other)]);
        let taken = together(calls).await;
        let different =
            taken.iter().filter(|taken| matches!(taken, Err(StockError::Different { .. }))).count();
        assert!(different == 1 || different == 30, "{taken:?}");
        assert_eq!(
            taken.iter().filter(|taken| matches!(taken, Ok(taken) if !taken.is_repeated())).count(),
            1
        );
    }
}

#[tokio::test]
async fn an_error_of_one_operation_does_not_affect_the_others() {
    let redis = RedisServer::start();
    let (_locks, stock) = a_stock(&redis, 1000).await;
    redis.cli(&["HSET", RECORDS, "7", "no record", "9", "S 0 x"]);
    let failed: HashSet<_> = together((0..64).map(|id| {
        let taking = take(&stock, id, 1);
        async move { (id, taking.await) }
    }))
    .await
    .into_iter()
    .filter_map(|(id, taken)| {
        taken.err().map(|error| (id, error.to_string().contains("data of another kind")))
    })
    .collect();
    assert_eq!(failed, HashSet::from([(7, true), (9, true)]));
    assert_eq!(sold(&stock).await, 63);
    assert_eq!(redis.cli(&["HGET", RECORDS, "7"]).trim(), "no record");
}

#[tokio::test]
async fn no_more_is_sold_than_there_is() {
    let redis = RedisServer::start();
    for (units, quantity) in [(41, 1), (100, 3), (100, 7), (100, 33)] {
        let locks = LockManager::connect(redis.url()).await.unwrap();
        let stock = locks.stock(format!("stock:{units}:{quantity}")).timeout(LONG);
        assert!(stock.initialize(units, 10).await.unwrap());
        let mut done = 0;
        for round in 0..4 {
            for taken in together((0..64).map(|id| take(&stock, 64 * round + id, quantity))).await {
                match taken {
                    Ok(taken) => done += taken.parts().iter().map(|part| part.quantity).sum::<u64>(),
                    Err(StockError::SoldOut { available, .. }) => {
                        assert!(available < quantity, "{available}");
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        assert_eq!(done, units / quantity * quantity);
        assert_eq!(sold(&stock).await, done);
    }
}

#[tokio::test]
async fn takes_of_all_sorts_are_ready_together() {
    let redis = RedisServer::start();
    let (locks, stock) = a_stock(&redis, 10_000).await;
    let other = locks.stock("stock:other").timeout(LONG);
    assert!(other.initialize(10_000, 3).await.unwrap());
    let missing = locks.stock("stock:missing").timeout(LONG);
    let calls = (0..120_u64).map(|id| {
        let (stock, other, missing) = (stock.clone(), other.clone(), missing.clone());
        async move {
            match id % 6 {
                0 => drop(stock.take(id, 1).await.unwrap()),
                1 => drop(other.take(id, 2).await.unwrap()),
                2 => drop(stock.reserve(id, 3, Duration::from_secs(600)).await.unwrap()),
                3 => drop(stock.reserve(id, 4, Duration::from_secs(700)).await.unwrap()),
                4 => drop(stock.retention(LONG).take(id, 5).await.unwrap()),
                _ => assert!(matches!(missing.take(id, 1).await, Err(StockError::Missing { .. }))),
            }
        }
    });
    together(calls).await;
    let snapshot = stock.snapshot().await.unwrap();
    assert!(snapshot.balances(), "{snapshot:?}");
    assert_eq!((snapshot.sold(), snapshot.held()), (1 + 20 + 100, 60 + 80));
    assert_eq!(sold(&other).await, 40);
    assert_eq!(redis.cli(&["ZCARD", "lock_stock_holds:{lock:stock:1001}"]).trim(), "40");
    // Each of them ends as if it had come alone.
    for id in (0..120).filter(|id| [2, 3].contains(&(id % 6))) {
        stock.confirm(id).await.unwrap();
    }
    assert_eq!(sold(&stock).await, 121 + 140);
}

fn request_of(operation: &str, timeout: Duration) -> TakeRequest {
    let call = StockCall::new(LockKey::new(NAME).unwrap(), timeout, LONG);
    let operation = OperationId::new(operation).unwrap();
    TakeRequest { call, operation, quantity: 1, hold: None, first: 0, only: None }
}

fn request(operation: &str, timeout: Duration) -> Arc<TakeRequest> {
    Arc::new(request_of(operation, timeout))
}

/// Each segment is shown its own token, also above 2^53, and an error on one take does not affect
/// the others.
#[tokio::test]
async fn takes_under_the_locks_of_several_segments_share_a_call() {
    const LARGE: u64 = 9_007_199_254_740_993;
    let redis = RedisServer::start();
    let (locks, stock) = a_stock(&redis, 100).await;
    let store = store_of(&locks).stocks().unwrap();
    let stock_key = "lock_stock:{lock:stock:1001}";
    let fences = ["f0", "7", "f1", "9", "f2", "junk", "f3", &LARGE.to_string(), "f4", &LARGE.to_string()];
    redis.cli(&[&["HSET", stock_key], &fences[..]].concat());
    let left = redis.cli(&["HGET", stock_key, "a5"]);
    // Operation, quantity, segment, token.
    let takes = [
        ("newer", 1, 0, 8),
        ("older", 1, 1, 8),
        ("junk", 1, 2, 8),
        ("large, older", 1, 3, LARGE - 1),
        ("large, newer", 1, 4, LARGE + 1),
        ("too many", 20, 5, 1),
        ("first", 1, 6, 1),
        ("retired", 1, 30, 1),
        ("plain", 1, 7, 1),
    ];
    let before = scripts(&redis);
    let answers = together(takes.map(|(operation, quantity, segment, token)| {
        let only = Some((segment, Some(FencingToken::new(token))));
        let request = TakeRequest { quantity, only, ..request_of(operation, LONG) };
        store.take(Arc::new(request))
    }))
    .await;
    let calls = scripts(&redis) - before;
    assert!(calls <= 3, "{calls} calls for {} takes", takes.len());
    let found: HashSet<_> = answers
        .into_iter()
        .map(|answer| match answer {
            Ok(TakeAnswer::Done { parts, repeated, .. }) => format!("{} {repeated}", parts[0].segment),
            Ok(answer) => format!("{answer:?}"),
            Err(error) => format!("{:?}", error.kind()),
        })
        .collect();
    let short = format!("Short {{ available: {left} }}");
    let expected =
        ["0 false", "4 false", "6 true", "7 false", "Stale", "ForeignData", &short, "Short { available: 0 }"];
    let known = redis.cli(&["HGET", RECORDS, "first"]);
    let first = known.rsplit_once(' ').unwrap().1.split_once(':').unwrap().0.to_owned();
    let expected = expected.map(|text| text.replace("6 true", &format!("{first} true")));
    assert_eq!(found, HashSet::from(expected));
    let shown: Vec<_> =
        (0..8).map(|segment| redis.cli(&["HGET", stock_key, &format!("f{segment}")])).collect();
    let large = [LARGE, LARGE + 1].map(|token| token.to_string());
    assert_eq!(shown, ["8", "9", "junk", &large[0], &large[1], "", "", "1"]);
    assert_eq!(sold(&stock).await, 1 + 3);
}

#[tokio::test]
async fn each_take_has_its_own_time() {
    let mut redis = RedisServer::start();
    let (locks, stock) = a_stock(&redis, 1000).await;
    let store = store_of(&locks).stocks().unwrap();
    redis.stop();
    // The first one is in flight alone, so the others are ready together.
    let mut calls = JoinSet::new();
    for (operation, timeout) in
        [("alone", LONG), ("long", LONG), ("short", Duration::from_millis(100)), ("longer", 2 * LONG)]
    {
        let store: Arc<dyn StockStore> = Arc::clone(&store);
        calls.spawn(async move { (operation, store.take(request(operation, timeout)).await) });
    }
    let (first, answer) = calls.join_next().await.unwrap().unwrap();
    assert_eq!(first, "short");
    assert!(answer.unwrap_err().outcome_unknown());
    // The server's clock is past its time when it goes on.
    tokio::time::sleep(Duration::from_millis(200)).await;
    redis.cont();
    for (operation, answer) in calls.join_all().await {
        assert!(matches!(answer, Ok(TakeAnswer::Done { repeated: false, .. })), "{operation}: {answer:?}");
    }
    assert_eq!(sold(&stock).await, 4);
    // It was not done, and never will be.
    stock.cancel("short").await.unwrap();
    assert!(matches!(stock.take("short", 1).await, Err(StockError::Cancelled { .. })));
}

#[tokio::test]
async fn takes_whose_outcome_is_unknown_are_sent_again() {
    let mut redis = RedisServer::start();
    let (_locks, stock) = a_stock(&redis, 1000).await;
    let hasty = stock.clone().timeout(Duration::from_millis(100));
    redis.stop();
    for taken in together((0..40).map(|id| take(&hasty, id, 1))).await {
        assert!(matches!(taken, Err(StockError::Unavailable { .. })), "{taken:?}");
    }
    redis.cont();
    for taken in together((0..40).map(|id| take(&stock, id, 1))).await {
        taken.unwrap();
    }
    assert_eq!(sold(&stock).await, 41);
}

/// Checks that each operation is done as a whole, or not at all, while the server refuses
/// something; afterwards, each is done once. Returns how many were refused.
async fn all_or_nothing(
    redis: &RedisServer,
    locks: &LockManager,
    from: u64,
    refuse: &[&str],
    allow: &[&str],
) -> usize {
    let stock = locks.stock(NAME).timeout(LONG);
    let before = stock.snapshot().await.unwrap();
    redis.cli(refuse);
    let reserved = |id: u64| {
        let stock = stock.clone();
        async move { stock.reserve(id, 1, LONG).await }
    };
    let sales: Vec<_> = together((from..from + 20).map(|id| take(&stock, id, 1))).await;
    let held: Vec<_> = together((from + 20..from + 40).map(reserved)).await;
    // More than a segment has.
    let merge = stock.take(from + 40, 300).await;
    redis.cli(allow);
    let count = |done: &mut dyn Iterator<Item = bool>| done.filter(|done| *done).count() as u64;
    let (sold, reservations) =
        (count(&mut sales.iter().map(Result::is_ok)), count(&mut held.iter().map(Result::is_ok)));
    let after = stock.snapshot().await.unwrap();
    assert!(after.balances(), "{after:?}");
    assert_eq!(after.sold(), before.sold() + sold + 300 * u64::from(merge.is_ok()), "{refuse:?}");
    assert_eq!(after.held(), before.held() + reservations, "{refuse:?}");
    let again = together((from..from + 20).map(|id| take(&stock, id, 1))).await;
    assert_eq!(count(&mut again.into_iter().map(|taken| taken.unwrap().is_repeated())), sold, "{refuse:?}");
    let again = together((from + 20..from + 40).map(reserved)).await;
    let repeated = count(&mut again.into_iter().map(|held| held.unwrap().taken().is_repeated()));
    assert_eq!(repeated, reservations, "{refuse:?}");
    assert_eq!(stock.take(from + 40, 300).await.unwrap().is_repeated(), merge.is_ok(), "{refuse:?}");
    41 - sold as usize - reservations as usize - usize::from(merge.is_ok())
}

#[tokio::test]
async fn what_the_server_refuses_is_not_done_in_part() {
    let redis = RedisServer::start();
    let (locks, stock) = a_stock(&redis, 4000).await;
    let full = ["CONFIG", "SET", "maxmemory", "1"];
    let refused = all_or_nothing(&redis, &locks, 100, &full, &["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(refused, 41);
    let commands = [
        ("hset", true),
        ("hget", true),
        ("hmget", true),
        ("zadd", true),
        ("hincrby", false),
        ("hsetnx", false),
        ("hdel", false),
        ("hscan", false),
    ];
    for (round, (command, needed)) in (1..).zip(commands) {
        let (deny, allow) = (format!("-{command}"), format!("+{command}"));
        let user = |rule: &str| ["ACL", "SETUSER", "default", rule].map(str::to_owned);
        let (deny, allow) = (user(&deny), user(&allow));
        let (deny, allow) = (deny.each_ref().map(String::as_str), allow.each_ref().map(String::as_str));
        let refused = all_or_nothing(&redis, &locks, 100 + 100 * round, &deny, &allow).await;
        assert_eq!(refused > 0, needed, "{command}: {refused}");
    }
    let snapshot = stock.snapshot().await.unwrap();
    assert!(snapshot.balances(), "{snapshot:?}");
    assert_eq!((snapshot.sold(), snapshot.held()), (1 + 9 * 320, 9 * 20));
}

#[tokio::test]
async fn what_is_taken_together_is_forgotten_with_the_retention() {
    let redis = RedisServer::start();
    let (_locks, stock) = a_stock(&redis, 1000).await;
    let stock = stock.retention(Duration::from_millis(300));
    let begun = std::time::Instant::now();
    together((0..40).map(|id| take(&stock, id, 1))).await.into_iter().for_each(|taken| drop(taken.unwrap()));
    // One of them has a different retention from now on.
    let long = stock.clone().retention(2 * LONG);
    long.give_back("7").await.unwrap();
    if begun.elapsed() < Duration::from_millis(300) {
        assert!(take(&stock, 8, 1).await.unwrap().is_repeated());
    }
    tokio::time::sleep(Duration::from_millis(320)).await;
    // Gone, swept or not; a new order under such an id gets a new record.
    assert!(!take(&long, 9, 1).await.unwrap().is_repeated());
    long.reserve(10_u64, 1, LONG).await.unwrap();
    let swept = stock.sweep(100).await.unwrap();
    assert!(swept.forgotten <= 37, "{swept:?}");
    stock.give_back("7").await.unwrap();
    stock.confirm(10_u64).await.unwrap();
    assert!(take(&stock, 9, 1).await.unwrap().is_repeated());
    let kept = redis.cli(&["HKEYS", RECORDS]);
    assert_eq!(kept.lines().count(), 4, "{kept}");
    assert_eq!(sold(&stock).await, 1 + 40 - 1 + 2);
}

#[tokio::test]
async fn records_are_forgotten_while_others_come() {
    let redis = RedisServer::start();
    let (_locks, stock) = a_stock(&redis, 1_000_000).await;
    let short = stock.clone().retention(Duration::from_millis(200));
    // A reservation outlives its retention until it is ended.
    short.reserve("held", 1, Duration::from_millis(100)).await.unwrap();
    let (begun, mut sales) = (std::time::Instant::now(), 0);
    loop {
        together((sales..sales + 1000).map(|id| take(&short, id, 1))).await;
        sales += 1000;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let kept: u64 = redis.cli(&["HLEN", RECORDS]).trim().parse().unwrap();
        if kept < sales / 2 && sales >= 20_000 {
            break;
        }
        assert!(begun.elapsed() < LONG, "{kept} of {sales} records are kept");
    }
    let swept = stock.sweep(10).await.unwrap();
    assert_eq!(swept.expired, 1);
    assert_eq!(sold(&stock).await, 1 + sales);
}

/// A take now and then looks at old records, and needs more rights for that than for the sale.
#[tokio::test]
async fn a_look_at_old_records_spoils_no_sale() {
    let redis = RedisServer::start();
    let (_locks, stock) = a_stock(&redis, 100_000).await;
    for command in ["hget", "hscan", "hdel"] {
        let before = sold(&stock).await;
        redis.cli(&["ACL", "SETUSER", "default", &format!("-{command}")]);
        for id in 0..500 {
            stock.take(format!("{command}:{id}"), 1).await.unwrap();
        }
        redis.cli(&["ACL", "SETUSER", "default", &format!("+{command}")]);
        assert_eq!(sold(&stock).await, before + 500, "{command}");
    }
}

#[tokio::test]
async fn an_id_that_comes_twice_costs_nobody_a_unit() {
    let redis = RedisServer::start();
    let (_locks, stock) = a_stock(&redis, 1000).await;
    redis.cli(&["ACL", "SETUSER", "default", "-hdel"]);
    together((0..60).map(|call| take(&stock, call % 20, 1))).await;
    assert_eq!(sold(&stock).await, 1 + 20);
}

#[tokio::test]
async fn stocks_whose_names_go_on_where_others_end_have_nothing_in_common() {
    let redis = RedisServer::start();
    let locks = LockManager::connect(redis.url()).await.unwrap();
    let (one, other) = (locks.stock("{shop}:1"), locks.stock("{shop}:1:2"));
    one.initialize(1, 1).await.unwrap();
    other.initialize(1, 1).await.unwrap();
    other.take("x", 1).await.unwrap();
    assert!(!one.take("2:x", 1).await.unwrap().is_repeated());
    one.give_back("2:x").await.unwrap();
    assert_eq!((one.available().await.unwrap(), other.available().await.unwrap()), (1, 0));
}
