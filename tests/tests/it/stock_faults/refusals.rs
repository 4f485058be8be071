//! Servers that are full, read-only, or refuse our commands: an operation is done as a whole, or
//! not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lock_core::store::StoreErrorKind;
use lock_runtime::segmented::{SegmentedStock, StockError};
use lock_tests::stocks::{Chance, Habits, Journal, Kept, Ledger, Seller, counts};
use lock_tests::{RedisServer, eventually};

use super::{LONG, NAME, SLACK, all_keys, ms, new_stock, stock_at};

const OPERATIONS: [&str; 14] = [
    "take",
    "merge",
    "reserve",
    "confirm",
    "confirm too late",
    "reserve again too late",
    "cancel",
    "cancel what has not come",
    "give back",
    "restock",
    "rebalance",
    "resize",
    "grow",
    "sweep",
];

async fn operation(stock: &SegmentedStock, what: &str) -> Result<(), StockError> {
    match what {
        "take" => stock.take("new sale", 2).await.map(drop),
        "merge" => stock.take("new large sale", 35).await.map(drop),
        "reserve" => stock.reserve("new hold", 12, LONG).await.map(drop),
        "confirm" => stock.confirm("held").await,
        "confirm too late" => match stock.confirm("over").await {
            Err(StockError::Expired { .. }) => Ok(()),
            other => other,
        },
        "reserve again too late" => match stock.reserve("over too", 3, ms(1)).await {
            Err(StockError::Expired { .. }) => Ok(()),
            other => other.map(drop),
        },
        "cancel" => stock.cancel("held too").await,
        "cancel what has not come" => stock.cancel("unheard of").await,
        "give back" => stock.give_back("sold").await,
        "restock" => stock.restock("more", 7).await,
        "rebalance" => stock.rebalance().await,
        "resize" => stock.resize(3).await,
        "grow" => stock.resize(15).await,
        "sweep" => stock.sweep(10).await.map(drop),
        other => panic!("{other}"),
    }
}

/// Creates a stock on which every operation has something to do.
async fn stock_with_orders(server: &RedisServer) -> SegmentedStock {
    let stock = new_stock(Kept::OneSlot, &server.url(), 100).await;
    stock.take("sold", 15).await.unwrap();
    stock.reserve("held", 15, LONG).await.unwrap();
    stock.reserve("held too", 5, LONG).await.unwrap();
    stock.reserve("over", 2, ms(1)).await.unwrap();
    stock.reserve("over too", 3, ms(1)).await.unwrap();
    tokio::time::sleep(ms(5)).await;
    stock
}

fn kind_of(error: &StockError) -> Option<StoreErrorKind> {
    match error {
        StockError::Unavailable { cause, .. } => Some(cause.kind()),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_takes_back_and_refuses_everything_else_as_a_whole() {
    // These operations make nothing larger.
    const DONE: [&str; 6] =
        ["confirm", "confirm too late", "reserve again too late", "cancel", "give back", "sweep"];
    let server = RedisServer::start();
    let stock = stock_with_orders(&server).await;
    let before = all_keys(&server);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    for what in OPERATIONS {
        if !DONE.contains(&what) {
            let error = operation(&stock, what).await.expect_err(what);
            assert_eq!(kind_of(&error), Some(StoreErrorKind::Full), "{what}: {error}");
            assert_eq!(all_keys(&server), before, "{what}");
        }
    }
    for what in DONE {
        operation(&stock, what).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    assert_eq!(counts(&stock).await, (100 - 15, 0, 15), "who only looks needs no memory");
    let before = all_keys(&server);
    let other = lock_runtime::LockManager::connect_lazy(server.url()).unwrap().stock("another");
    assert!(other.initialize(5, 5).await.is_err());
    assert_eq!(all_keys(&server), before);
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    for what in OPERATIONS {
        operation(&stock, what).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    counts(&stock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sellers_at_a_server_that_is_full_now_and_then_agree_with_the_stock() {
    const UNITS: u64 = 5000;
    let server = RedisServer::start();
    let stock = new_stock(Kept::OneSlot, &server.url(), UNITS).await;
    let chance = Chance::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let over = Arc::new(AtomicBool::new(false));
    let seller = Seller {
        stock: stock_at(Kept::OneSlot, &server.url()).await,
        name: "seller".to_owned(),
        habits: Habits::default(),
        journal: Arc::new(Journal::open(&path).unwrap()),
    };
    let selling = tokio::spawn({
        let (dice, over) = (chance.fork(0), Arc::clone(&over));
        // Sold out is not final for a take that was refused: it is cancelled, see `Seller`.
        async move { seller.sell(&dice, move || !over.load(Ordering::Relaxed)).await }
    });
    let mut dice = chance.fork(1);
    for n in 0..40 {
        tokio::time::sleep(ms(5 + dice.below(40))).await;
        server.cli(&["CONFIG", "SET", "maxmemory", if n % 2 == 0 { "1" } else { "0" }]);
    }
    over.store(true, Ordering::Relaxed);
    selling.await.unwrap();
    let mut ledger = Ledger::read([&path]);
    ledger.settle(&stock).await;
    let sum = ledger.sum();
    assert_eq!(counts(&stock).await, (UNITS - sum.sold - sum.held, sum.held, sum.sold), "{sum:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_server_refuses_every_operation_as_a_whole() {
    let (server, nobody) = (RedisServer::start(), RedisServer::start());
    let stock = stock_with_orders(&server).await;
    let before = all_keys(&server);
    // It follows a server that never answers, and keeps its data.
    let port = nobody.port().to_string();
    drop(nobody);
    server.cli(&["REPLICAOF", "127.0.0.1", &port]);
    for what in OPERATIONS {
        let error = operation(&stock, what).await.expect_err(what);
        assert!(matches!(error, StockError::Unavailable { .. }), "{what}: {error:?}");
        assert_eq!(all_keys(&server), before, "{what}");
    }
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    eventually(async || stock.rebalance().await.is_ok(), SLACK).await;
    for what in OPERATIONS {
        operation(&stock, what).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    counts(&stock).await;
}

/// Foreign data at one of our keys: a command that writes it, without its key.
const FOREIGN: [&[&str]; 6] = [
    &["SET", "somebody's"],
    &["SET", "S 1 2"],
    &["RPUSH", "somebody's"],
    &["HSET", "somebody's", "data"],
    &["SADD", "somebody's"],
    &["ZADD", "1", "somebody's"],
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_data_is_reported_and_left_unchanged() {
    let name = format!("{{lock:{NAME}}}");
    let [stock_key, holds, records_key] =
        ["lock_stock:", "lock_stock_holds:", "lock_stock_ops:"].map(|head| format!("{head}{name}"));
    let records = [
        ("take", "new sale"),
        ("merge", "new large sale"),
        ("reserve", "new hold"),
        ("confirm", "held"),
        ("confirm too late", "over"),
        ("reserve again too late", "over too"),
        ("cancel", "held too"),
        ("cancel what has not come", "unheard of"),
        ("give back", "sold"),
        ("restock", "more"),
    ];
    let server = RedisServer::start();
    let mut failed = Vec::new();
    for foreign in FOREIGN {
        // A corrupt record, or something else in the place of the records.
        let at_records = records.iter().map(|(what, id)| (&records_key, Some(*id), *what));
        let at_records = at_records.filter(|_| foreign[0] == "SET");
        let at_keys = [&stock_key, &holds, &records_key];
        let at_keys = at_keys.into_iter().flat_map(|key| OPERATIONS.map(|what| (key, None, what)));
        for (key, record, what) in at_records.chain(at_keys) {
            if (*key == holds && foreign[0] == "ZADD")
                || (*key == records_key && record.is_none() && foreign[0] == "HSET")
            {
                // An unknown reservation or operation, whose owner can't be determined.
                continue;
            }
            server.cli(&["FLUSHALL"]);
            let stock = stock_with_orders(&server).await;
            match record {
                Some(record) => drop(server.cli(&["HSET", key, record, foreign[1]])),
                None => {
                    server.cli(&["DEL", key]);
                    server.cli(&[&[foreign[0], key], &foreign[1..]].concat());
                }
            }
            let before = all_keys(&server);
            let answer = operation(&stock, what).await;
            let after = all_keys(&server);
            let uses = match what {
                "rebalance" | "resize" | "grow" if *key == records_key => false,
                // These operations use the reservations.
                "reserve"
                | "confirm"
                | "confirm too late"
                | "reserve again too late"
                | "cancel"
                | "sweep" => true,
                _ => *key != holds,
            };
            let same = before == after;
            let text = format!("{foreign:?} at {key}, {what}: {answer:?}");
            match answer {
                Ok(()) if !uses => {}
                Err(StockError::Misconfigured { ref reason }) if same && reason.contains(&stock_key) => {}
                // A hash without our fields is not a stock.
                Err(StockError::Missing { .. }) if same && *key == stock_key && foreign[0] == "HSET" => {}
                Ok(()) if same && what == "sweep" && foreign[0] == "HSET" => {}
                _ => failed.push(format!("{text}, {}", if same { "untouched" } else { "touched" })),
            }
            if record.is_some() || !uses {
                assert!(stock.snapshot().await.unwrap().balances(), "{text}");
            }
        }
    }
    // A stock is not created over foreign data.
    for foreign in FOREIGN {
        server.cli(&["FLUSHALL"]);
        server.cli(&[&[foreign[0], &stock_key], &foreign[1..]].concat());
        let before = all_keys(&server);
        let stock = stock_at(Kept::OneSlot, &server.url()).await;
        let made = stock.initialize(10, 3).await;
        if !matches!(made, Err(StockError::Misconfigured { .. })) || before != all_keys(&server) {
            failed.push(format!("{foreign:?}, initialize: {made:?}"));
        }
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_do_one_thing_does_none() {
    const RIGHTS: [&str; 13] = [
        "-hget",
        "-hset",
        "-hsetnx",
        "-hdel",
        "-hscan",
        "-hmget",
        "-hincrby",
        "-zadd",
        "-zrem",
        "-zrangebyscore",
        "-time",
        "-@write",
        "-@read",
    ];
    let server = RedisServer::start();
    let mut failed = Vec::new();
    for (n, right) in RIGHTS.into_iter().enumerate() {
        let user = format!("user{n}");
        server.cli(&["ACL", "SETUSER", &user, "on", "nopass", "~*", "&*", "+@all", right]);
        let url = server.url().replace("redis://", &format!("redis://{user}:x@"));
        for what in OPERATIONS {
            server.cli(&["FLUSHALL"]);
            stock_with_orders(&server).await;
            let before = all_keys(&server);
            let stock = lock_runtime::LockManager::connect_lazy(&url).unwrap().stock(NAME);
            let answer = operation(&stock, what).await;
            match answer {
                Ok(()) => {
                    let admin = stock_at(Kept::OneSlot, &server.url()).await;
                    let snapshot = admin.snapshot().await.unwrap();
                    if !snapshot.balances() {
                        failed.push(format!("{right} {what}: done, {snapshot:?}"));
                    }
                }
                Err(StockError::Misconfigured { .. }) if all_keys(&server) == before => {}
                Err(error) => failed.push(format!(
                    "{right} {what}: {error:?}, {}",
                    if all_keys(&server) == before { "nothing done" } else { "half done" }
                )),
            }
        }
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}
