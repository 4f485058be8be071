//! [`Fault`]: why something was not done.

use lock_core::store::StoreError;

/// Why something was not done.
#[derive(Debug)]
pub(super) enum Fault {
    /// Nothing was done, because of what others do; the same may be done now. What the database
    /// said.
    Again(String),
    Failed(StoreError),
}

impl Fault {
    /// The same operation is under way elsewhere.
    pub(super) fn crossed() -> Self {
        Self::Again("the same operation is under way elsewhere".to_owned())
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}
