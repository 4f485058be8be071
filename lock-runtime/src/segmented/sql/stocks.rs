//! [`SqlStocks`]: the public type, and its implementation of [`StockStore`].

use std::fmt;
use std::sync::Arc;

use lock_core::store::stock::{
    AuditAnswer, RestockAnswer, RestockRequest, SettleAnswer, SettleRequest, Snapshot, StockCall, StockStore,
    Swept, TakeAnswer, TakeRequest,
};
use lock_core::store::{BoxFuture, StoreError};
use lock_store_sql::plumbing::Database;

use super::call::Call;
use super::tables::Tables;
use crate::manager::LockManager;

#[doc = include_str!("sql.md")]
#[derive(Clone)]
pub struct SqlStocks {
    pub(super) locks: LockManager,
    pub(super) tables: Arc<Tables>,
}

impl SqlStocks {
    /// Returns stocks in SQLite. Every connection of the pool must reach the same database. With
    /// `sqlite::memory:`, each connection has its own, so such a pool has one connection, which is
    /// never closed.
    #[cfg(feature = "sqlite")]
    #[must_use]
    pub fn sqlite(locks: LockManager, pool: sqlx::SqlitePool) -> Self {
        Self::new(locks, Database::Sqlite((pool, Arc::default())))
    }

    /// Returns stocks in PostgreSQL, 9.6 or newer, at the primary.
    #[cfg(feature = "postgres")]
    #[must_use]
    pub fn postgres(locks: LockManager, pool: sqlx::PgPool) -> Self {
        Self::new(locks, Database::Postgres(pool))
    }

    fn new(locks: LockManager, database: Database) -> Self {
        Self { locks, tables: Arc::new(Tables::new(database)) }
    }

    /// Creates the tables and indexes that are missing. Several processes may do so at the same
    /// time.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Denied`](crate::StoreErrorKind::Denied) if the user lacks the
    /// permission; any other error of the database.
    ///
    /// # Cancel safety
    ///
    /// Either all of them are created or none.
    pub async fn create_tables(&self) -> Result<(), StoreError> {
        self.make_tables().await
    }
}

impl fmt::Debug for SqlStocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlStocks").field("database", &self.tables.database.name()).finish_non_exhaustive()
    }
}

impl StockStore for SqlStocks {
    fn initialize(&self, call: StockCall, segments: Vec<u64>) -> BoxFuture<Result<bool, StoreError>> {
        let stocks = self.clone();
        Box::pin(async move { stocks.make(&call, &segments).await })
    }

    fn take(&self, request: Arc<TakeRequest>) -> BoxFuture<Result<TakeAnswer, StoreError>> {
        let stocks = self.clone();
        Box::pin(async move { stocks.take_units(&request).await })
    }

    fn settle(&self, request: Arc<SettleRequest>) -> BoxFuture<Result<SettleAnswer, StoreError>> {
        let stocks = self.clone();
        Box::pin(async move { stocks.settle_operation(&request).await })
    }

    fn restock(&self, request: Arc<RestockRequest>) -> BoxFuture<Result<RestockAnswer, StoreError>> {
        let stocks = self.clone();
        Box::pin(async move { stocks.put_in(&request).await })
    }

    fn snapshot(&self, call: StockCall) -> BoxFuture<Result<Option<Snapshot>, StoreError>> {
        let stocks = self.clone();
        Box::pin(async move {
            let call = Call::new(&stocks.tables, &call).await?;
            let audit = call.again(|| call.look_at(call.at.sql.snapshot)).await?;
            Ok(audit.map(|audit| audit.counted))
        })
    }

    fn rebalance(&self, call: StockCall) -> BoxFuture<Result<Option<()>, StoreError>> {
        let stocks = self.clone();
        Box::pin(async move { stocks.even_out(&call).await })
    }

    fn resize(&self, call: StockCall, segments: u32) -> BoxFuture<Result<Option<()>, StoreError>> {
        let stocks = self.clone();
        Box::pin(async move { stocks.change_size(&call, segments).await })
    }

    fn audit(&self, call: StockCall) -> BoxFuture<Result<AuditAnswer, StoreError>> {
        let stocks = self.clone();
        Box::pin(async move {
            let call = Call::new(&stocks.tables, &call).await?;
            let audit = call.again(|| call.look_at(&call.at.sql.audit)).await?;
            Ok(audit.map_or(AuditAnswer::Missing, AuditAnswer::Audited))
        })
    }

    fn sweep(&self, call: StockCall, limit: u32) -> BoxFuture<Result<Swept, StoreError>> {
        let stocks = self.clone();
        Box::pin(async move { stocks.sweep_stock(&call, limit).await })
    }
}
