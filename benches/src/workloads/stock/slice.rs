//! [`Slice`]: tasks that sell for some time, and how much they have sold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::seller::Seller;
use crate::workloads::common::{AFTER_ERROR, Errors};

/// Time before a slice counts, until connections, scripts and waits have settled.
pub(super) const SETTLE: Duration = Duration::from_millis(100);

const WARMING: u8 = 0;
const COUNTING: u8 = 1;
const OVER: u8 = 2;

/// A set of selling tasks.
pub(super) struct Slice {
    phase: Arc<AtomicU8>,
    tasks: Vec<JoinHandle<Sold>>,
}

/// Units sold.
#[derive(Debug, Default)]
pub(super) struct Sold {
    /// In the counted time.
    pub(super) counted: u64,
    /// In total, before and after it too.
    pub(super) all: u64,
    pub(super) errors: u64,
}

impl Slice {
    /// Starts one task for each seller. Nothing is counted yet.
    pub(super) fn start(sellers: Vec<Seller>) -> Self {
        let phase = Arc::new(AtomicU8::new(WARMING));
        let tasks = sellers.into_iter().map(|seller| tokio::spawn(work(seller, Arc::clone(&phase))));
        Self { tasks: tasks.collect(), phase }
    }

    /// Starts counting.
    pub(super) fn count(&self) -> Instant {
        self.phase.store(COUNTING, Ordering::Release);
        Instant::now()
    }

    /// Stops the tasks. A sale that ends later does not count.
    pub(super) async fn end(self) -> Result<Sold, String> {
        self.phase.store(OVER, Ordering::Release);
        let mut all = Sold::default();
        for task in self.tasks {
            let sold = task.await.map_err(|error| format!("a task failed: {error}"))?;
            all.counted += sold.counted;
            all.all += sold.all;
            all.errors += sold.errors;
        }
        Ok(all)
    }

    /// Runs a slice from start to end, and returns the rate per second.
    pub(super) async fn run(sellers: Vec<Seller>, time: Duration) -> Result<(f64, Sold), String> {
        let slice = Self::start(sellers);
        tokio::time::sleep(SETTLE).await;
        let start = slice.count();
        tokio::time::sleep(time).await;
        let counted = start.elapsed();
        let sold = slice.end().await?;
        Ok((sold.counted as f64 / counted.as_secs_f64(), sold))
    }
}

async fn work(mut seller: Seller, phase: Arc<AtomicU8>) -> Sold {
    let (mut sold, mut errors) = (Sold::default(), Errors::default());
    while phase.load(Ordering::Acquire) != OVER {
        match seller.sell(|| phase.load(Ordering::Acquire) == OVER).await {
            Ok(()) => {
                sold.all += 1;
                sold.counted += u64::from(phase.load(Ordering::Acquire) == COUNTING);
            }
            Err(error) => {
                errors.add(&error);
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }
    sold.errors = errors.0;
    sold
}
