//! Operations on stocks that replicas confirm, on a primary whose real replica is paused when it
//! must not confirm.

use std::future::Future;
use std::time::{Duration, Instant};

use lock_runtime::segmented::{SegmentedStock, StockError};
use lock_runtime::testing::memory_manager;
use lock_runtime::{LockManager, Replication};
use lock_tests::RedisServer;

/// Time-out longer than any test takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Starts a primary and its replica, in sync.
pub(crate) async fn replicated() -> (RedisServer, RedisServer) {
    let primary = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    let started = Instant::now();
    while !primary.cli(&["INFO", "replication"]).contains("state=online") {
        assert!(started.elapsed() < LONG, "the replica is not in sync");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (primary, replica)
}

/// Creates a stock whose operations the replica must confirm within `time`.
async fn a_stock(primary: &RedisServer, time: Duration) -> SegmentedStock {
    let locks = LockManager::connect(primary.url()).await.unwrap();
    let stock = locks.stock("stock:1001").timeout(LONG);
    // The replica may take long to confirm what the test needs.
    stock.clone().replication(Replication::at_least(1, LONG)).initialize(1000, 10).await.unwrap();
    stock.replication(Replication::at_least(1, time))
}

fn record(server: &RedisServer, operation: &str) -> String {
    server.cli(&["HGET", "lock_stock_ops:{lock:stock:1001}", operation])
}

#[tokio::test]
async fn what_was_confirmed_is_on_the_replica() {
    let (primary, replica) = replicated().await;
    let stock = a_stock(&primary, LONG).await;
    for round in 0..20 {
        let (sale, reservation) = (format!("sale:{round}"), format!("reservation:{round}"));
        stock.take(&sale, 1).await.unwrap();
        assert!(record(&replica, &sale).starts_with("S "));
        stock.give_back(&sale).await.unwrap();
        assert!(record(&replica, &sale).starts_with("B "));
        stock.reserve(&reservation, 2, LONG).await.unwrap();
        assert!(record(&replica, &reservation).starts_with("H "));
        stock.confirm(&reservation).await.unwrap();
        assert!(record(&replica, &reservation).starts_with("S "));
        stock.restock(format!("delivery:{round}"), 5).await.unwrap();
        assert!(record(&replica, &format!("delivery:{round}")).starts_with("R "));
        stock.cancel(format!("never:{round}")).await.unwrap();
        assert!(record(&replica, &format!("never:{round}")).starts_with("N "));
    }
    // Of many at once, some wait for a connection, and all are done.
    let mut calls = tokio::task::JoinSet::new();
    for id in 0..40_u64 {
        let stock = stock.clone();
        calls.spawn(async move { stock.take(id, 1).await.map(drop) });
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert_eq!(stock.snapshot().await.unwrap().sold(), 80);
}

/// Runs the operation twice while the replica is paused, and again when it goes on.
async fn confirmed_late<T: std::fmt::Debug, F: Future<Output = Result<T, StockError>>>(
    replica: &mut RedisServer,
    stock: &SegmentedStock,
    patient: &SegmentedStock,
    operation: impl Fn(SegmentedStock) -> F,
    state: impl Fn() -> String,
    expected: &str,
) {
    replica.stop();
    for _ in 0..2 {
        let answer = operation(stock.clone()).await;
        let Err(error @ StockError::NotReplicated { .. }) = answer else { panic!("{answer:?}") };
        assert!(error.is_retryable());
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        // It is done at the primary.
        assert!(state().starts_with(expected), "{}", state());
    }
    replica.cont();
    operation(patient.clone()).await.unwrap();
}

#[tokio::test]
async fn what_is_not_confirmed_is_done_at_the_primary_and_told_when_it_is_sent_again() {
    let (primary, mut replica) = replicated().await;
    let (stock, patient) =
        (a_stock(&primary, Duration::from_millis(50)).await, a_stock(&primary, LONG).await);
    let state = |operation: &'static str| {
        let primary = &primary;
        move || record(primary, operation)
    };
    let replica = &mut replica;
    confirmed_late(replica, &stock, &patient, async |stock| stock.take("a", 1).await, state("a"), "S ").await;
    confirmed_late(replica, &stock, &patient, async |stock| stock.give_back("a").await, state("a"), "B ")
        .await;
    confirmed_late(
        replica,
        &stock,
        &patient,
        async |stock| stock.reserve("b", 2, LONG).await,
        state("b"),
        "H ",
    )
    .await;
    confirmed_late(replica, &stock, &patient, async |stock| stock.confirm("b").await, state("b"), "S ").await;
    confirmed_late(replica, &stock, &patient, async |stock| stock.cancel("c").await, state("c"), "N ").await;
    confirmed_late(replica, &stock, &patient, async |stock| stock.restock("d", 7).await, state("d"), "R ")
        .await;
    // More than any segment has.
    confirmed_late(replica, &stock, &patient, async |stock| stock.take("e", 500).await, state("e"), "S ")
        .await;
    let snapshot = patient.snapshot().await.unwrap();
    assert!(snapshot.balances(), "{snapshot:?}");
    assert_eq!((snapshot.sold(), snapshot.restocked), (502, 7));
    assert!(record(replica, "e").starts_with("S 0 500 "));
}

#[tokio::test]
async fn nobody_waits_for_replicas_when_nothing_was_done() {
    let (primary, mut replica) = replicated().await;
    let stock = a_stock(&primary, Duration::from_millis(50)).await;
    replica.stop();
    assert!(matches!(stock.take("a", 1001).await, Err(StockError::SoldOut { available: 1000, .. })));
    assert!(matches!(stock.confirm("b").await, Err(StockError::UnknownOperation { .. })));
    assert!(matches!(stock.give_back("b").await, Err(StockError::UnknownOperation { .. })));
    assert_eq!(stock.available().await.unwrap(), 1000);
    replica.cont();
}

#[tokio::test]
async fn a_store_without_replicas_refuses() {
    let stock = memory_manager().stock("stock:1001");
    assert!(stock.initialize(10, 2).await.unwrap());
    let stock = stock.replication(Replication::at_least(1, LONG));
    let error = stock.take("a", 1).await.unwrap_err();
    assert!(error.to_string().contains("leave out `replication`"), "{error}");
    assert!(!error.is_retryable());
}
