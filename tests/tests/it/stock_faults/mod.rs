//! Stocks while sellers die, and servers restart, fail over, fall silent or refuse: the sellers'
//! records are compared with the stock.

mod failovers;
mod processes;
mod refusals;
mod restarts;
mod silence;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use lock_runtime::segmented::SegmentedStock;
use lock_tests::stocks::{Chance, Habits, Kept, Ledger, Sum, insist};
use lock_tests::{Helper, RedisServer};
use tempfile::TempDir;

/// Extra time that a busy machine may take.
const SLACK: Duration = Duration::from_secs(20);
/// An audit of this many orders or fewer shows nothing.
const ENOUGH: usize = 20;
const LONG: Duration = Duration::from_secs(600);
const NAME: &str = "stock:1001";

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns the stock as the auditor has it.
async fn stock_at(kept: Kept, url: &str) -> SegmentedStock {
    kept.connect(url).await.stock(NAME).timeout(ms(2000))
}

/// Creates a new stock.
async fn new_stock(kept: Kept, url: &str, units: u64) -> SegmentedStock {
    let stock = stock_at(kept, url).await;
    assert!(stock.initialize(units, 10).await.unwrap());
    stock
}

/// Processes that sell from the stock.
struct Crew {
    kept: Kept,
    url: String,
    habits: Habits,
    chance: Chance,
    folder: TempDir,
    journals: Vec<PathBuf>,
    sellers: Vec<Helper>,
}

impl Crew {
    fn new(kept: Kept, url: &str, habits: Habits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (journals, sellers) = (Vec::new(), Vec::new());
        Self { kept, url: url.to_owned(), habits, chance: Chance::new(), folder, journals, sellers }
    }

    fn of(kept: Kept, url: &str, habits: Habits, sellers: usize) -> Self {
        let mut crew = Self::new(kept, url, habits);
        (0..sellers).for_each(|_| crew.hire());
        crew
    }

    /// Starts one more seller.
    fn hire(&mut self) {
        let (n, Habits { tasks, most, hold }) = (self.journals.len(), self.habits);
        let journal = self.folder.path().join(format!("journal-{n}"));
        let seed = self.chance.fork(n as u64).roll() >> 1;
        let hold = [hold.0, hold.1].map(|time| time.as_millis().to_string());
        let mut seller = Helper::spawn(
            env!("CARGO_BIN_EXE_seller"),
            [
                self.kept.name(),
                &self.url,
                NAME,
                journal.to_str().unwrap(),
                &format!("seller-{n}"),
                &seed.to_string(),
                &tasks.to_string(),
                &most.to_string(),
                &hold[0],
                &hold[1],
            ],
        );
        assert_eq!(seller.line(SLACK), "ready");
        seller.send("go");
        self.journals.push(journal);
        self.sellers.push(seller);
    }

    /// Waits until the sellers have taken enough orders to compare, however slow the disk is.
    fn sell(&self) {
        let start = Instant::now();
        while self.ledger().sum().orders <= ENOUGH {
            assert!(start.elapsed() < SLACK * 2, "{:?}", self.ledger().sum());
            std::thread::sleep(ms(20));
        }
    }

    /// Kills the oldest seller with SIGKILL.
    fn kill_one(&mut self) {
        self.sellers.remove(0).kill();
    }

    /// Kills all sellers with SIGKILL.
    fn kill(&mut self) {
        self.sellers.drain(..).for_each(|mut seller| seller.kill());
    }

    /// Stops all sellers in an orderly way, after enough orders.
    fn stop(&mut self) {
        self.sell();
        for seller in &mut self.sellers {
            seller.send("stop");
        }
        for mut seller in self.sellers.drain(..) {
            let done = seller.line(SLACK * 2);
            assert!(done.starts_with("done "), "{done}");
            seller.finish(SLACK);
        }
    }

    fn ledger(&self) -> Ledger {
        Ledger::read(&self.journals)
    }

    /// Repeats every request without an answer, and compares all answers with the stock.
    async fn audit(&self, stock: &SegmentedStock, units: u64) -> Sum {
        let mut ledger = self.ledger();
        let open = ledger.sum().open;
        ledger.settle(stock).await;
        ledger.close(stock).await;
        let sum = ledger.sum();
        assert_eq!((sum.open, sum.held), (0, 0));
        assert!(sum.orders > ENOUGH, "they have sold: {sum:?}");
        let expected = (units - sum.sold, 0, sum.sold);
        // Operations that a dead seller left half-done are found when they expire.
        let start = Instant::now();
        loop {
            while stock.sweep(1000).await.unwrap().more {}
            let snapshot = insist(|| stock.snapshot()).await.unwrap();
            assert!(snapshot.balances(), "{snapshot:?}");
            let found = (snapshot.available(), snapshot.held(), snapshot.sold());
            if found == expected {
                break;
            }
            assert!(start.elapsed() < SLACK, "{found:?} instead of {expected:?}: {sum:?}, {open} were open");
            tokio::time::sleep(ms(20)).await;
        }
        Sum { open, ..sum }
    }
}

/// Returns the state letter in the record of an order in one slot of a server.
fn record(server: &RedisServer, order: &str) -> Option<char> {
    server.cli(&["HGET", &format!("lock_stock_ops:{{lock:{NAME}}}"), order]).chars().next()
}

/// Returns all keys of a server with their contents and whether they expire, sorted. A field of no
/// units counts as missing, and the position of a sweep (`w`) is left out.
fn all_keys(server: &RedisServer) -> Vec<(String, String, bool)> {
    let keys = server.cli(&["KEYS", "*"]);
    let mut all: Vec<_> = keys
        .lines()
        .filter(|key| !key.is_empty())
        .map(|key| {
            let how: &[&str] = match server.cli(&["TYPE", key]).as_str() {
                "string" => &["GET", key],
                "hash" => &["HGETALL", key],
                "zset" => &["ZRANGE", key, "0", "-1", "WITHSCORES"],
                "list" => &["LRANGE", key, "0", "-1"],
                "set" => &["SMEMBERS", key],
                other => panic!("{key} is a {other}"),
            };
            let ends = server.cli(&["PTTL", key]) != "-1";
            let mut text = server.cli(how);
            if how[0] == "HGETALL" {
                let words: Vec<&str> = text.lines().collect();
                let mut pairs: Vec<_> =
                    words.chunks(2).filter(|pair| pair[1] != "0" && pair[0] != "w").collect();
                pairs.sort_unstable();
                text = format!("{pairs:?}");
            }
            (key.to_owned(), text, ends)
        })
        .collect();
    all.sort();
    all
}
