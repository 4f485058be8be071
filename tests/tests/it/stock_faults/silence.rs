//! Servers that do not answer, and networks that break.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lock_runtime::segmented::{SegmentedStock, StockError};
use lock_tests::proxy::{Fault, Line, Proxy, Way};
use lock_tests::stocks::{Chance, Habits, Journal, Kept, Ledger, Seller, counts};
use lock_tests::{RedisServer, eventually};

use super::{LONG, SLACK, all_keys, ms, new_stock, stock_at};

/// Calls every operation, and returns the results by name.
async fn every_operation(stock: &SegmentedStock) -> Vec<(&'static str, Result<(), StockError>)> {
    vec![
        ("take", stock.take("new sale", 25).await.map(drop)),
        ("reserve", stock.reserve("new hold", 25, LONG).await.map(drop)),
        ("confirm", stock.confirm("held").await),
        ("cancel", stock.cancel("held too").await),
        ("give back", stock.give_back("sold").await),
        ("cancel what has not come", stock.cancel("unheard of").await),
        ("restock", stock.restock("more", 7).await),
        ("snapshot", stock.snapshot().await.map(drop)),
        ("rebalance", stock.rebalance().await),
        ("resize", stock.resize(3).await),
        ("sweep", stock.sweep(10).await.map(drop)),
        ("initialize", stock.initialize(5, 5).await.map(drop)),
    ]
}

async fn stock_with_orders(server: &RedisServer) -> SegmentedStock {
    let stock = new_stock(Kept::OneSlot, &server.url(), 100).await;
    stock.take("sold", 15).await.unwrap();
    stock.reserve("held", 15, LONG).await.unwrap();
    stock.reserve("held too", 5, LONG).await.unwrap();
    stock
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_is_told_and_does_nothing_later() {
    let mut server = RedisServer::start();
    let stock = stock_with_orders(&server).await;
    let before = all_keys(&server);
    server.stop();
    let timeout = ms(300);
    let hasty = stock.clone().timeout(timeout);
    let start = Instant::now();
    let all = every_operation(&hasty).await;
    for (what, answer) in &all {
        assert!(matches!(answer, Err(StockError::Unavailable { .. })), "{what}: {answer:?}");
    }
    let most = timeout * all.len() as u32 + SLACK;
    assert!(start.elapsed() >= timeout && start.elapsed() < most, "{:?}", start.elapsed());
    // Requests in its sockets are read now, too late.
    tokio::time::sleep(timeout).await;
    server.cont();
    eventually(async || stock.snapshot().await.is_ok(), SLACK).await;
    assert_eq!(all_keys(&server), before);
    // Repeated, each of them is done once.
    for (what, answer) in every_operation(&stock).await {
        assert!(answer.is_ok(), "{what}: {answer:?}");
    }
    assert_eq!(counts(&stock).await, (100 + 7 - 25 - 25 - 15, 25, 25 + 15));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_pauses_its_clients_is_told_and_does_nothing_later() {
    let server = RedisServer::start();
    let stock = stock_with_orders(&server).await;
    let before = all_keys(&server);
    server.cli(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    let start = Instant::now();
    let hasty = stock.clone().timeout(ms(300));
    for (what, answer) in every_operation(&hasty).await {
        if what != "snapshot" {
            assert!(matches!(answer, Err(StockError::Unavailable { .. })), "{what}: {answer:?}");
        }
    }
    assert!(start.elapsed() >= ms(300));
    tokio::time::sleep(ms(300)).await;
    server.cli(&["CLIENT", "UNPAUSE"]);
    eventually(async || stock.snapshot().await.is_ok(), SLACK).await;
    assert_eq!(all_keys(&server), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_is_told_at_once_or_after_the_timeout() {
    let mut server = RedisServer::start();
    let stock = stock_with_orders(&server).await.timeout(ms(300));
    server.kill();
    for (what, answer) in every_operation(&stock).await {
        assert!(matches!(answer, Err(StockError::Unavailable { .. })), "{what}: {answer:?}");
        assert!(answer.is_err_and(|error| error.is_retryable()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_lost_is_told_when_the_same_is_sent_again() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr()).await;
    stock_with_orders(&server).await;
    let stock = stock_at(Kept::OneSlot, &proxy.url()).await.timeout(ms(400));
    eventually(async || stock.snapshot().await.is_ok(), SLACK).await;
    let faults = [Fault::Close, Fault::Reset, Fault::Torn, Fault::BlackHole, Fault::HalfClose];
    let (mut sold, mut held) = (15, 20);
    for (n, fault) in faults.into_iter().enumerate() {
        for way in [Way::ToServer, Way::ToClient] {
            let (sale, hold) = (format!("sale {n} {way:?}"), format!("hold {n} {way:?}"));
            // Each step meets the fault the first time, before or after it is done.
            let hit = proxy.next(1, Line::Commands, way, fault);
            let first = stock.take(&sale, 1).await;
            assert_eq!(hit.hits(), 1, "{fault:?} {way:?}: {first:?}");
            assert!(matches!(first, Err(StockError::Unavailable { .. })), "{fault:?} {way:?}: {first:?}");
            let again = once_more(|| stock.take(&sale, 1)).await;
            assert_eq!(again.is_repeated(), way == Way::ToClient, "{fault:?} {way:?}");
            sold += 1;

            once_more(|| stock.reserve(&hold, 2, LONG)).await;
            held += 2;
            for step in 0..2 {
                let hit = proxy.next(1, Line::Commands, way, fault);
                let send = async || {
                    if step == 0 { stock.confirm(&hold).await } else { stock.give_back(&hold).await }
                };
                let first = send().await;
                assert!(matches!(first, Err(StockError::Unavailable { .. })), "{fault:?} {way:?}: {first:?}");
                assert_eq!(hit.hits(), 1);
                eventually(async || send().await.is_ok(), SLACK).await;
                held -= if step == 0 { 2 } else { 0 };
            }
            assert_eq!(counts(&stock).await, (100 - sold - held, held, sold), "{fault:?} {way:?}");
        }
    }
}

/// A copy in flight is not seen by the next one, and may find units that came back meanwhile. After
/// a cancel it finds none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_late_can_be_refused_by_a_cancel() {
    for cancelled in [false, true] {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.addr()).await;
        let other = new_stock(Kept::OneSlot, &server.url(), 10).await;
        let stock = stock_at(Kept::OneSlot, &proxy.url()).await.timeout(SLACK);
        stock.take("all", 10).await.unwrap();
        let late = proxy.next(1, Line::Commands, Way::ToServer, Fault::Delay(ms(700)));
        let first = tokio::spawn({
            let stock = stock.clone();
            async move { stock.take("order", 5).await }
        });
        eventually(async || late.hits() == 1, SLACK).await;
        first.abort();
        let error = other.take("order", 5).await.unwrap_err();
        assert!(error.is_sold_out(), "{error}");
        if cancelled {
            other.cancel("order").await.unwrap();
        }
        other.give_back("all").await.unwrap();
        // It was too late for all of that if this machine slept.
        let was_on_its_way = proxy.delayed() == 1;
        eventually(async || proxy.delayed() == 0, SLACK).await;
        // The server reads the messages that the proxy has passed on before later ones.
        stock.snapshot().await.unwrap();
        let (_, _, sold) = counts(&other).await;
        if cancelled {
            assert_eq!(sold, 0);
            assert!(matches!(other.take("order", 5).await, Err(StockError::Cancelled { .. })));
        } else if was_on_its_way {
            assert_eq!(sold, 5);
            assert!(other.take("order", 5).await.unwrap().is_repeated());
        }
    }
}

/// Repeats a call until the connection works again.
async fn once_more<T, F: Future<Output = Result<T, StockError>>>(mut send: impl FnMut() -> F) -> T {
    let start = Instant::now();
    loop {
        match send().await {
            Ok(done) => return done,
            Err(StockError::Unavailable { .. }) if start.elapsed() < SLACK => {
                tokio::time::sleep(ms(10)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sellers_behind_a_network_that_breaks_agree_with_the_stock() {
    const UNITS: u64 = 300;
    let server = RedisServer::start();
    let stock = new_stock(Kept::OneSlot, &server.url(), UNITS).await;
    let chance = Chance::new();
    let folder = tempfile::tempdir().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let (mut proxies, mut journals, mut sellers) = (Vec::new(), Vec::new(), tokio::task::JoinSet::new());
    for n in 0..3 {
        let proxy = Proxy::start(server.addr()).await;
        let path = folder.path().join(n.to_string());
        let journal = Arc::new(Journal::open(&path).unwrap());
        let stock = stock_at(Kept::OneSlot, &proxy.url()).await.timeout(ms(200));
        let seller = Seller { stock, name: n.to_string(), habits: Habits::default(), journal };
        let (dice, over) = (chance.fork(n), Arc::clone(&over));
        sellers.spawn(async move { seller.sell(&dice, move || !over.load(Ordering::Relaxed)).await });
        proxies.push(proxy);
        journals.push(path);
    }
    let mut dice = chance.fork(1000);
    let mut hits = 0;
    for n in 0..40_u64 {
        tokio::time::sleep(ms(dice.below(100))).await;
        let fault = match dice.below(6) {
            0 => Fault::Close,
            1 => Fault::Reset,
            2 => Fault::Torn,
            3 => Fault::BlackHole,
            // Longer than anybody waits, so that it is refused when it arrives.
            4 => Fault::Delay(ms(300)),
            _ => Fault::HalfClose,
        };
        let way = if dice.once_in(2) { Way::ToServer } else { Way::ToClient };
        let hit = proxies[dice.below(3) as usize].next(1, Line::Commands, way, fault);
        tokio::time::sleep(ms(50)).await;
        hits += hit.hits();
        // Units that are in nobody's order any more are added again.
        stock.restock(n, 10).await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    sellers.join_all().await;
    assert!(hits > 10, "{hits} faults have hit something");
    let mut ledger = Ledger::read(&journals);
    let open = ledger.sum().open;
    ledger.settle(&stock).await;
    let sum = ledger.sum();
    let units = UNITS + 400;
    assert_eq!(
        counts(&stock).await,
        (units - sum.sold - sum.held, sum.held, sum.sold),
        "{sum:?}, {open} open"
    );
}
