//! Stocks in MongoDB.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lock_runtime::LockManager;
use lock_runtime::segmented::StockError;
use lock_tests::database_server::beside_a_busy_disk;
use lock_tests::mongodb::{MongoDb, Options, doc};
use lock_tests::stock_sql::{Deed, PATIENCE, stock};
use lock_tests::{MongoDbServer, MongoDbSet, eventually, stock_on_servers};

stock_on_servers! { MongoDb, databases }

/// A sale is told when a majority has it, and a failover undoes none of those. A repetition tells
/// whether a sale without an answer was made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elections_and_killed_primaries_lose_no_sale_and_make_none_twice() {
    let options = Options::default().within(beside_a_busy_disk()).election_timeout(Duration::from_secs(1));
    let mut set = tokio::task::block_in_place(|| MongoDbSet::start_with(options));
    let locks = LockManager::connect(set.url()).await.unwrap();
    let stock = stock(&locks, "elections").timeout(Duration::from_secs(1));
    assert!(stock.initialize(1_000_000, 5).await.unwrap());
    let (sold, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let tasks: Vec<_> = (0..4)
        .map(|task| {
            let (stock, sold, ended) = (stock.clone(), Arc::clone(&sold), Arc::clone(&ended));
            tokio::spawn(async move {
                let mut number = 0_u64;
                while !ended.load(Ordering::Relaxed) {
                    let (id, quantity) = (format!("{task}:{number}"), 1 + number % 7);
                    loop {
                        let done = match number % 3 {
                            0 => stock.reserve(&*id, quantity, PATIENCE * 10).await.map(drop),
                            _ => stock.take(&*id, quantity).await.map(drop),
                        };
                        match done {
                            Ok(()) => break,
                            Err(StockError::Unavailable { .. } | StockError::Contended { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    if number.is_multiple_of(3) {
                        while let Err(error) = stock.confirm(&*id).await {
                            assert!(error.is_retryable(), "{error}");
                        }
                    }
                    sold.fetch_add(quantity, Ordering::Relaxed);
                    number += 1;
                }
            })
        })
        .collect();
    let go_on = async || {
        let before = sold.load(Ordering::Relaxed);
        eventually(async || sold.load(Ordering::Relaxed) > before + 40, PATIENCE).await;
    };
    go_on().await;
    for _ in 0..2 {
        tokio::task::block_in_place(|| set.step_down());
        go_on().await;
        let primary = tokio::task::block_in_place(|| {
            let primary = set.primary();
            set.kill(primary);
            set.primary();
            primary
        });
        go_on().await;
        tokio::task::block_in_place(|| {
            set.restart(primary);
            set.settle();
        });
    }
    ended.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    let audit = stock.timeout(PATIENCE).audit().await.unwrap();
    assert!(audit.agrees(), "{audit:?}");
    assert_eq!(audit.counted.sold(), sold.load(Ordering::Relaxed), "{audit:?}");
    assert_eq!(audit.counted.held(), 0, "{audit:?}");
}

/// Units of a retired segment go to another one, also while many buy from that.
#[tokio::test]
async fn reservations_of_retired_segments_end_while_others_buy() {
    let server = MongoDbServer::start();
    let locks = LockManager::connect(server.url()).await.unwrap();
    let stock = stock(&locks, "retired").timeout(PATIENCE);
    assert!(stock.initialize(1_000_000, 8).await.unwrap());
    let ids: Vec<_> = (0..24).map(|number| format!("reserved {number}")).collect();
    for id in &ids {
        stock.reserve(&**id, 2, PATIENCE * 10).await.unwrap();
    }
    stock.resize(1).await.unwrap();
    let counted = stock.snapshot().await.unwrap().segments;
    assert!(counted.iter().skip(1).any(|segment| segment.held > 0), "{counted:?}");
    let (bought, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let buy = async |task: u64| {
        while !ended.load(Ordering::Relaxed) {
            let number = bought.fetch_add(1, Ordering::Relaxed);
            stock.take(format!("{task}:{number}"), 1).await.unwrap();
        }
    };
    let cancel = async {
        for id in &ids {
            stock.cancel(&**id).await.unwrap();
        }
        ended.store(true, Ordering::Relaxed);
    };
    tokio::join!(cancel, join_all((0..16).map(buy)));
    let audit = stock.audit().await.unwrap();
    assert!(audit.agrees(), "{audit:?}");
    assert_eq!(audit.counted.held(), 0, "{audit:?}");
    assert_eq!(audit.counted.sold(), bought.load(Ordering::Relaxed), "{audit:?}");
    let left: Vec<_> = audit.counted.segments.iter().skip(1).map(|segment| segment.available).collect();
    assert_eq!(left, [0; 7]);
}

/// However many records are kept.
#[tokio::test]
async fn a_sweep_looks_by_index_at_what_is_over() {
    let server = MongoDbServer::start();
    let locks = LockManager::connect(server.url()).await.unwrap();
    let stock = stock(&locks, "swept");
    Deed::Sweep.prepare(&stock).await;
    let records = (0..2000_i64).map(|number| {
        let (never, sold) = (i64::MAX / 2, number % 2 == 0);
        doc! {
            "_id": { "stock": "lock:swept", "operation": format!("kept {number}") },
            "state": if sold { "S" } else { "H" }, "reserved": !sold, "quantity": 1_i64, "parts": "0:1",
            "deadline": if sold { None } else { Some(never) }, "kept_until": if sold { Some(never) } else { None },
        }
    });
    let records: Vec<_> = records.collect();
    server.command(doc! { "insert": "lock_stock_operation", "documents": records, "$db": "locks" });
    server.command(doc! { "profile": 2, "$db": "locks" });
    stock.sweep(10).await.unwrap();
    stock.take("op", 7).await.unwrap();
    server.command(doc! { "profile": 0, "$db": "locks" });
    let filter = doc! { "docsExamined": { "$gt": 20 } };
    let found = server.command(doc! { "find": "system.profile", "filter": filter, "$db": "locks" });
    let found = found.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).unwrap();
    assert!(found.is_empty(), "{found:?}");
}

/// A transaction of another client, which it has left open, keeps one segment. The others sell.
#[tokio::test]
async fn a_segment_that_another_client_keeps_is_passed_over() {
    let server = MongoDbServer::start();
    let locks = LockManager::connect(server.url()).await.unwrap();
    let stock = stock(&locks, "kept");
    stock.initialize(300, 3).await.unwrap();
    let session = doc! { "id": lock_tests::mongodb::Uuid::new() };
    let segment = doc! { "_id": { "stock": "lock:kept", "segment": 1_i64 } };
    let touch = doc! { "q": segment, "u": { "$inc": { "available": 0_i64, "touched": 1_i64 } } };
    let open = doc! {
        "update": "lock_stock_segment", "updates": [touch], "$db": "locks", "lsid": session.clone(),
        "txnNumber": 1_i64, "startTransaction": true, "autocommit": false,
    };
    assert_eq!(server.command(open).get_i32("n").unwrap(), 1);
    for order in 0..20_u64 {
        let taken = stock.take(order, 1).await.unwrap();
        assert!(taken.parts().iter().all(|part| part.segment != 1), "{taken:?}");
    }
    let abort = doc! { "abortTransaction": 1, "lsid": session, "txnNumber": 1_i64, "autocommit": false };
    server.command(abort);
    stock.take("all", 280).await.unwrap();
}
