//! [`Tables`]: the tables of a database, with the statements for them.

use lock_core::store::kit::ServerClock;
use lock_store_sql::plumbing::Database;

use super::statements::{Dialect, Statements};

/// The tables of one database.
pub(super) struct Tables {
    pub(super) database: Database,
    pub(super) sql: Statements,
    /// The estimate of the database's clock.
    pub(super) clock: ServerClock,
}

impl Tables {
    pub(super) fn new(database: Database) -> Self {
        Self { sql: Statements::new(Dialect::of(&database)), database, clock: ServerClock::default() }
    }
}
