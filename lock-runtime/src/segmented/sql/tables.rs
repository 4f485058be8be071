//! [`Tables`]: where the tables are, and how they are spoken to.

use lock_core::internal::ServerClock;

use super::database::Database;
use super::statements::Statements;

/// The tables of one database.
pub(super) struct Tables {
    pub(super) database: Database,
    pub(super) sql: Statements,
    /// What the database's clock says.
    pub(super) clock: ServerClock,
}

impl Tables {
    pub(super) fn new(database: Database) -> Self {
        Self { sql: Statements::new(database.dialect()), database, clock: ServerClock::default() }
    }
}
