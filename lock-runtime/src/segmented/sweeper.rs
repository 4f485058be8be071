//! [`Sweeper`]: ends the overdue reservations of a stock in the background.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::internal::chance::jitter;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::{SegmentedStock, StockError, Swept};

/// Maximum number of reservations that one call ends; if there are more, the next call follows at
/// once.
const AT_ONCE: u32 = 100;

/// Sweeps a stock in the background until it is dropped; made by [`SegmentedStock::sweeper`].
#[derive(Debug)]
#[must_use = "it stops when it is dropped"]
pub struct Sweeper {
    task: JoinHandle<()>,
    totals: Arc<Totals>,
}

#[derive(Debug, Default)]
struct Totals {
    expired: AtomicU64,
    recovered: AtomicU64,
    forgotten: AtomicU64,
}

impl Sweeper {
    /// Returns what this sweeper has done since it was made; `more` is always false. Other
    /// instances may sweep too.
    #[must_use]
    pub fn swept(&self) -> Swept {
        let of = |total: &AtomicU64| total.load(Ordering::Relaxed);
        Swept {
            expired: of(&self.totals.expired),
            recovered: of(&self.totals.recovered),
            forgotten: of(&self.totals.forgotten),
            more: false,
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl SegmentedStock {
    /// [Sweeps](Self::sweep) about every `period`, until the [`Sweeper`] is dropped. Units of an
    /// unconfirmed reservation are shown as available at most about that long after its deadline. A
    /// take that needs them does not wait for that. Each instance of a service may have a sweeper;
    /// they don't coordinate. A sweep that fails is logged, and tried again after the period.
    ///
    /// # Errors
    ///
    /// [`StockError::Misconfigured`] if the period is zero, or outside a tokio runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let locks = lock_runtime::LockManager::connect("memory:").await?;
    /// let stock = locks.stock("console");
    /// stock.initialize(1000, 10).await?;
    /// let _sweeper = stock.sweeper(Duration::from_secs(1))?; // for as long as the service runs
    /// # Ok(()) }
    /// ```
    pub fn sweeper(&self, period: Duration) -> Result<Sweeper, StockError> {
        let mistake = |reason: &str| StockError::Misconfigured { reason: reason.into() };
        if period.is_zero() {
            return Err(mistake("a sweeper can't have a period of zero; use a second, for example"));
        }
        let runtime = Handle::try_current()
            .map_err(|_| mistake("a sweeper needs a tokio runtime; make it inside one"))?;
        let (stock, totals) = (self.clone(), Arc::<Totals>::default());
        let task = runtime.spawn(run(stock, period, Arc::clone(&totals)));
        Ok(Sweeper { task, totals })
    }
}

async fn run(stock: SegmentedStock, period: Duration, totals: Arc<Totals>) {
    let mut failing = false;
    loop {
        match stock.sweep(AT_ONCE).await {
            Ok(swept) => {
                totals.expired.fetch_add(swept.expired, Ordering::Relaxed);
                totals.recovered.fetch_add(swept.recovered, Ordering::Relaxed);
                totals.forgotten.fetch_add(swept.forgotten, Ordering::Relaxed);
                failing = false;
                // A store that claims there is more, but does nothing, is asked again only after
                // the period.
                if swept.more && swept.expired + swept.recovered + swept.forgotten > 0 {
                    tokio::task::yield_now().await;
                    continue;
                }
            }
            // Logged once, however long it lasts.
            Err(error) if !failing => {
                tracing::warn!(%error, "a stock could not be swept; the sweeper tries again after its period");
                failing = true;
            }
            Err(_) => {}
        }
        // Between three and five quarters of the period, so that instances that were started
        // together do not all sweep at once.
        tokio::time::sleep(period.mul_f64(0.75 + jitter() / 2.0)).await;
    }
}
