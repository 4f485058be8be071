//! [`Place`]: where stocks are.

use std::sync::Arc;

use super::statements::Statements;
use crate::links::Links;
use crate::records::Sql;

/// A database, as one manager sees it.
pub(super) struct Place {
    /// The locks of the same database, with its clock.
    pub(super) sql: Arc<Sql>,
    pub(super) prefix: String,
    /// For transactions. A sale may wait for a row, and no lock has to wait for the sale.
    pub(super) links: Links,
    /// For statements that only read.
    pub(super) reads: Links,
    /// For audits, which read all records.
    pub(super) audits: Links,
    pub(super) statements: Statements,
}
