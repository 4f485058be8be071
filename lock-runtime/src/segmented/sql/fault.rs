//! [`Fault`]: why something was not done.

use lock_core::store::StoreError;

/// Why something was not done.
#[derive(Debug)]
pub(super) enum Fault {
    /// Nothing was done, because of another transaction; a retry may succeed. Contains the
    /// database's message.
    Again(String),
    Failed(StoreError),
}

impl Fault {
    /// Returns the fault of an operation that is also under way elsewhere.
    pub(super) fn crossed() -> Self {
        Self::Again("the same operation is under way elsewhere".to_owned())
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}
