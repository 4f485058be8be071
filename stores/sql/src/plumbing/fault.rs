//! [`Fault`]: why something was not done.

use lock_core::store::{StoreError, StoreErrorKind};

/// Why something was not done.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Nothing was done, because of another transaction; a retry may succeed. Contains the
    /// database's message.
    Again(String),
    /// The tables are missing. Contains the database's message.
    NoTables(String),
    /// Any other error.
    Failed(StoreError),
}

impl Fault {
    /// Returns the fault as an error. `no_tables` says what to do about missing ones.
    pub(crate) fn error(self, no_tables: &str) -> StoreError {
        match self {
            Self::Again(text) => StoreError::new(StoreErrorKind::NotReady, text),
            Self::NoTables(text) => {
                StoreError::new(StoreErrorKind::Unsupported, format!("{text}; {no_tables}"))
            }
            Self::Failed(error) => error,
        }
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}
