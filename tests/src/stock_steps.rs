//! Operations on a stock that is spread, each in several steps, at any of which a program may die.

use std::time::Duration;

use lock_runtime::LockManager;
use lock_runtime::segmented::{Layout, SegmentedStock, StockError};

/// Others look after what is undecided once it is older than twice this, and a second.
pub const TIMEOUT: Duration = Duration::from_secs(4);
/// Units that the stock of a scenario has, in 4 segments.
pub const UNITS: u64 = 20;

/// The stock of this name, spread.
#[must_use]
pub fn spread(locks: &LockManager, name: &str) -> SegmentedStock {
    locks.stock(name).layout(Layout::Spread).timeout(TIMEOUT)
}

/// What is done on a stock of [`UNITS`] units in 4 segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// One segment has enough.
    Take,
    /// It takes three.
    Merge,
    /// More than there is.
    TooMany,
    /// Three, until later.
    Reserve,
    /// A reservation of three.
    Confirm,
    /// A reservation of three.
    Cancel,
    /// What was taken of three.
    GiveBack,
    /// What was taken of segments that were retired since.
    GiveBackRetired,
    /// 7 more.
    Restock,
    /// From 4 segments to 7.
    Grow,
    /// From 4 segments to 2.
    Shrink,
    /// All units are in one segment.
    Rebalance,
    /// Units for 3 segments.
    Initialize,
}

impl Scenario {
    /// All of them.
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

    /// The one of this name, as `Debug` writes it.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scenario| format!("{scenario:?}") == name)
    }

    /// What there has to be before.
    ///
    /// # Errors
    ///
    /// The stock's.
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

    /// Does it; done again, it changes nothing more.
    ///
    /// # Errors
    ///
    /// The stock's, but that there are too few in [`TooMany`](Self::TooMany).
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

    /// Available, held, sold, and all that was put in, once it is done.
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

    /// The same before it was begun.
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
