//! [`Place`]: where stocks are.

use std::sync::Arc;

use lock_core::store::stock::StockCall;
use lock_core::store::{StoreError, StoreErrorKind};
use lock_store_records::RecordStore;
use lock_store_records::stock::{StockDatabase, Stocks, Terms};

use super::call::Call;
use super::statements::Statements;
use crate::call;
use crate::links::Links;
use crate::records::Sql;

/// A database, as one manager sees it.
pub(crate) struct Place {
    /// The locks of the same database, with its clock.
    pub(super) sql: Arc<Sql>,
    prefix: String,
    /// For transactions. A sale may wait for a row, and no lock has to wait for the sale.
    pub(super) links: Links,
    /// For statements that only read.
    pub(super) reads: Links,
    /// For audits, which read all records.
    pub(super) audits: Links,
    pub(super) statements: Statements,
}

/// Makes stocks that have connections for transactions, for statements that only read, and for
/// audits.
pub(crate) fn stocks(sql: Arc<Sql>, prefix: &str, [links, reads, audits]: [Links; 3]) -> Stocks<Place> {
    let (prefix, statements) = (prefix.to_owned(), Statements::of(&links.options));
    Stocks::new(Place { sql, prefix, links, reads, audits, statements })
}

impl StockDatabase for Place {
    type Call = Call;

    async fn call(self: &Arc<Self>, call: &StockCall) -> Result<Call, StoreError> {
        let bounded = call::Call::new(&self.sql, &self.links, call.timeout);
        if !call.replication.is_none() {
            return Err(bounded.error(
                StoreErrorKind::Unsupported,
                "a stock in SQL cannot ask for replicas: what a commit waits for is the database's own setting \
                 (`synchronous_commit` and `synchronous_standby_names` of PostgreSQL); leave `replication` away",
            ));
        }
        bounded.check_name(&call.stock.prefixed(&self.prefix))?;
        let terms = Terms::new(call, &self.prefix, self.sql.time(bounded.left()).await?);
        Ok(Call { place: Arc::clone(self), limits: bounded.limits, terms })
    }
}
