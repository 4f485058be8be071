//! [`SqlStocks`]: stocks in tables of the database.

use std::fmt;
use std::sync::Arc;

use lock_core::store::stock::{
    AuditAnswer, RestockAnswer, RestockRequest, SettleAnswer, SettleRequest, Snapshot, StockCall, StockStore,
    Swept, TakeAnswer, TakeRequest,
};
use lock_core::store::{BoxFuture, StoreError};

use super::call::Call;
use super::place::Place;
use super::statements::Statements;
use crate::call::attempts;
use crate::links::Links;
use crate::records::Sql;
use lock_store_records::rows::spawned;

/// One manager's access to the stocks of a database. Every operation is one transaction, which
/// changes counts by differences, under the locks of rows.
#[derive(Clone)]
pub(crate) struct SqlStocks(pub(super) Arc<Place>);

impl SqlStocks {
    /// Makes stocks that have connections for transactions, for statements that only read, and for
    /// audits.
    pub(crate) fn new(sql: Arc<Sql>, prefix: &str, [links, reads, audits]: [Links; 3]) -> Self {
        let (prefix, statements) = (prefix.to_owned(), Statements::of(&links.options));
        Self(Arc::new(Place { sql, prefix, links, reads, audits, statements }))
    }
}

impl fmt::Debug for SqlStocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlStocks").field("prefix", &self.0.prefix).finish_non_exhaustive()
    }
}

/// Spawns the attempts of a call on a stock.
macro_rules! call {
    ($stocks:expr, $request:expr, |$call:ident| $attempt:expr) => {{
        let stocks = $stocks.clone();
        spawned(async move {
            let $call = Call::new(&stocks.0, $request).await?;
            attempts!($call, $attempt)
        })
    }};
}

impl StockStore for SqlStocks {
    fn initialize(&self, call: StockCall, segments: Vec<u64>) -> BoxFuture<Result<bool, StoreError>> {
        call!(self, &call, |call| call.try_to_make(&segments))
    }

    fn take(&self, request: Arc<TakeRequest>) -> BoxFuture<Result<TakeAnswer, StoreError>> {
        let stocks = self.clone();
        spawned(async move { Call::new(&stocks.0, &request.call).await?.take(&request).await })
    }

    fn settle(&self, request: Arc<SettleRequest>) -> BoxFuture<Result<SettleAnswer, StoreError>> {
        call!(self, &request.call, |call| call.try_to_settle(&request))
    }

    fn restock(&self, request: Arc<RestockRequest>) -> BoxFuture<Result<RestockAnswer, StoreError>> {
        call!(self, &request.call, |call| call.try_to_put_in(&request))
    }

    fn snapshot(&self, call: StockCall) -> BoxFuture<Result<Option<Snapshot>, StoreError>> {
        call!(self, &call, |call| call.try_to_count())
    }

    fn rebalance(&self, call: StockCall) -> BoxFuture<Result<Option<()>, StoreError>> {
        call!(self, &call, |call| call.try_to_even_out())
    }

    fn resize(&self, call: StockCall, segments: u32) -> BoxFuture<Result<Option<()>, StoreError>> {
        call!(self, &call, |call| call.try_to_change_size(segments))
    }

    fn audit(&self, call: StockCall) -> BoxFuture<Result<AuditAnswer, StoreError>> {
        call!(self, &call, |call| call.try_to_audit())
    }

    fn sweep(&self, call: StockCall, limit: u32) -> BoxFuture<Result<Swept, StoreError>> {
        let stocks = self.clone();
        spawned(async move { Call::new(&stocks.0, &call).await?.sweep(limit).await })
    }
}
