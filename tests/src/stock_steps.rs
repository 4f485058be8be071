//! Operations on a spread stock. Each takes several steps, and a program may die at any of them.

use std::time::Duration;

use lock_runtime::LockManager;
use lock_runtime::segmented::{Layout, SegmentedStock, StockError};

/// Time-out of operations. Other callers resolve an undecided operation once it is older than twice
/// this, plus a second.
pub const TIMEOUT: Duration = Duration::from_secs(4);
/// Number of units in the stock of a scenario, in 4 segments.
pub const UNITS: u64 = 20;

/// Returns the spread stock of this name.
#[must_use]
pub fn spread(locks: &LockManager, name: &str) -> SegmentedStock {
    locks.stock(name).layout(Layout::Spread).timeout(TIMEOUT)
}

/// An operation on a stock of [`UNITS`] units in 4 segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Takes from one segment, which has enough.
    Take,
    /// Takes from three segments.
    Merge,
    /// Takes more than there is.
    TooMany,
    /// Reserves from three segments.
    Reserve,
    /// Confirms a reservation from three segments.
    Confirm,
    /// Cancels a reservation from three segments.
    Cancel,
    /// Gives back a sale from three segments.
    GiveBack,
    /// Gives back a sale from segments that have been retired since.
    GiveBackRetired,
    /// Adds 7 units.
    Restock,
    /// Resizes from 4 segments to 7.
    Grow,
    /// Resizes from 4 segments to 2.
    Shrink,
    /// Balances a stock whose units are all in one segment.
    Rebalance,
    /// Initializes a stock with 3 segments.
    Initialize,
}

impl Scenario {
    /// All scenarios.
    pub const ALL: [Self; 13] = [
        Self::Take,
        Self::Merge,
        Self::TooMany,
        Self::Reserve,
        Self::Confirm,
        Self::Cancel,
        Self::GiveBack,
        Self::GiveBackRetired,
        Self::Restock,
        Self::Grow,
        Self::Shrink,
        Self::Rebalance,
        Self::Initialize,
    ];

    /// Returns the scenario of this name, as `Debug` writes it.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scenario| format!("{scenario:?}") == name)
    }

    /// Makes the starting state of the scenario.
    ///
    /// # Errors
    ///
    /// Those of the stock.
    pub async fn prepare(self, stock: &SegmentedStock) -> Result<(), StockError> {
        stock.initialize(UNITS, 4).await?;
        match self {
            Self::Confirm | Self::Cancel => {
                stock.reserve("order", 12, Duration::from_secs(600)).await?;
            }
            Self::GiveBack => {
                stock.take("order", 12).await?;
            }
            Self::GiveBackRetired => {
                stock.take("order", 18).await?;
                stock.resize(2).await?;
            }
            Self::Rebalance => {
                stock.resize(1).await?;
                stock.resize(4).await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Carries out the operation. Repeating it changes nothing.
    ///
    /// # Errors
    ///
    /// Those of the stock, except the lack of units in [`TooMany`](Self::TooMany).
    pub async fn play(self, stock: &SegmentedStock) -> Result<(), StockError> {
        match self {
            Self::Take => stock.take("order", 3).await.map(drop),
            Self::Merge => stock.take("order", 12).await.map(drop),
            Self::TooMany => match stock.take("order", UNITS + 1).await {
                Err(StockError::SoldOut { .. }) => Ok(()),
                other => panic!("{other:?}"),
            },
            Self::Reserve => stock.reserve("order", 12, Duration::from_secs(600)).await.map(drop),
            Self::Confirm => stock.confirm("order").await,
            Self::Cancel => stock.cancel("order").await,
            Self::GiveBack | Self::GiveBackRetired => stock.give_back("order").await,
            Self::Restock => stock.restock("delivery", 7).await,
            Self::Grow => stock.resize(7).await,
            Self::Shrink => stock.resize(2).await,
            Self::Rebalance => stock.rebalance().await,
            Self::Initialize => stock.initialize(UNITS, 3).await.map(drop),
        }
    }

    /// Returns the units available, held, sold, and put in altogether, after the operation.
    #[must_use]
    pub fn after(self) -> [u64; 4] {
        match self {
            Self::Take => [17, 0, 3, 20],
            Self::Merge | Self::Confirm => [8, 0, 12, 20],
            Self::Reserve => [8, 12, 0, 20],
            Self::Restock => [27, 0, 0, 27],
            _ => [20, 0, 0, 20],
        }
    }

    /// Returns the same numbers before the operation.
    #[must_use]
    pub fn before(self) -> [u64; 4] {
        match self {
            Self::Confirm | Self::Cancel => [8, 12, 0, 20],
            Self::GiveBack => [8, 0, 12, 20],
            Self::GiveBackRetired => [2, 0, 18, 20],
            _ => [20, 0, 0, 20],
        }
    }
}
