//! [`Seller`]: one task that sells, and the ways to do so.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::LockManager;
use lock_runtime::segmented::{SegmentedLock, SegmentedStock};
use redis::aio::MultiplexedConnection;

use crate::args::Options;
use crate::backend::Backend;
use crate::server::Urls;

/// Units in a stock, more than any run sells.
const UNITS: u64 = 1 << 40;
/// Number of bits in an id that count the sales of one seller.
const IDS: u32 = 24;

/// Sells one unit after another.
pub(super) struct Seller {
    way: Way,
    next: u64,
}

/// How a unit is sold.
#[derive(Clone)]
pub(super) enum Way {
    /// A bare DECRBY of one key.
    Plain { connection: MultiplexedConnection, key: String },
    /// A take without any lock.
    Take(SegmentedStock),
    /// A take from the segment whose lock is held for a while before.
    Locked(Box<Locked>),
}

#[derive(Clone)]
pub(super) struct Locked {
    locks: SegmentedLock,
    stock: SegmentedStock,
    hold: Duration,
}

impl Way {
    /// Sells under the locks of a stock of `segments`, which is created if it does not exist.
    pub(super) async fn locked(
        manager: &LockManager,
        name: &str,
        segments: u32,
        hold: Duration,
    ) -> Result<Self, String> {
        let stock = stock(manager, name, segments).await?;
        let locks = manager.segmented(name, segments).wait_forever();
        Ok(Self::Locked(Box::new(Locked { locks, stock, hold })))
    }

    /// Makes `count` sellers that sell in this way.
    pub(super) fn sellers(&self, count: usize) -> Vec<Seller> {
        (0..count).map(|_| Seller::new(self.clone())).collect()
    }
}

/// Connects the manager of a run.
pub(super) async fn manager(options: &Options, urls: &Urls) -> Result<LockManager, String> {
    match Backend::connect(options, urls).await? {
        Backend::Ours(manager) => Ok(manager),
        _ => Err("only --lib ours has stocks".to_owned()),
    }
}

/// Returns a stock that does not run out, created if it does not exist.
pub(super) async fn stock(
    manager: &LockManager,
    name: &str,
    segments: u32,
) -> Result<SegmentedStock, String> {
    let stock = manager.stock(name);
    stock.initialize(UNITS, segments).await.map_err(|error| error.to_string())?;
    Ok(stock)
}

impl Seller {
    fn new(way: Way) -> Self {
        static SELLERS: AtomicU64 = AtomicU64::new(0);
        let seller = SELLERS.fetch_add(1, Ordering::Relaxed);
        // No other seller on this machine has these ids.
        Self { way, next: u64::from(std::process::id()) << 40 | seller << IDS }
    }

    /// Sells one unit. A seller that gets its lock after the end (`is_over`) skips the hold.
    pub(super) async fn sell(&mut self, is_over: impl Fn() -> bool) -> Result<(), String> {
        self.next += 1;
        let id = self.next;
        match &mut self.way {
            Way::Plain { connection, key } => {
                let mut command = redis::cmd("DECRBY");
                command.arg(&**key).arg(1);
                let left: Result<i64, _> = command.query_async(connection).await;
                left.map(|_| ()).map_err(|error| error.to_string())
            }
            Way::Take(stock) => {
                stock.take(id, 1).await.map_err(|error| error.to_string())?;
                Ok(())
            }
            Way::Locked(locked) => {
                let Locked { locks, stock, hold } = &**locked;
                let segment = locks.acquire_any().await.map_err(|error| error.to_string())?;
                if !is_over() {
                    tokio::time::sleep(*hold).await;
                }
                let taken = stock.take_at(&segment, id, 1).await;
                segment.release().await.map_err(|error| error.to_string())?;
                taken.map(drop).map_err(|error| error.to_string())
            }
        }
    }
}
