//! [`OperationId`]: identifies an operation when it is sent again.

use std::fmt;
use std::sync::Arc;

/// The name of one operation on a stock, such as the number of an order line, given by the caller
/// and checked once.
///
/// An operation that is sent again under the same id has no second effect: when an answer does not
/// come, send the same operation again. Ids are kept for the stock's retention (24 h). For that
/// time, an id must not be used for anything else.
///
/// An id has 1 to [128 bytes](Self::LONGEST) of printable text without braces, because braces
/// determine the slot of a key in a Redis Cluster.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(Arc<str>);

/// Why a text is not an [`OperationId`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid operation id: {reason}")]
pub struct InvalidOperationId {
    reason: &'static str,
}

impl OperationId {
    /// Maximum length of an id, in bytes.
    pub const LONGEST: usize = 128;

    /// Checks `text` and makes an id of it.
    ///
    /// # Errors
    ///
    /// [`InvalidOperationId`] when `text` is empty, longer than 128 bytes, or has control
    /// characters or braces.
    pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidOperationId> {
        let text = text.as_ref();
        let reason = if text.is_empty() {
            "it is empty; use the number of the order, for example"
        } else if text.len() > Self::LONGEST {
            "it is longer than 128 bytes; use a hash of it"
        } else if text.chars().any(char::is_control) {
            "it has a control character; ids are printable text"
        } else if text.contains(['{', '}']) {
            "it has braces, which choose the slot of a key in a Redis Cluster; leave them out"
        } else {
            return Ok(Self(Arc::from(text)));
        };
        Err(InvalidOperationId { reason })
    }

    /// Returns the id's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// A type that converts into an [`OperationId`]: texts and numbers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be turned into an operation id",
    note = "expected a `&str`, `String`, `u64` or `OperationId`; use `.to_string()` or `u64::from`"
)]
pub trait IntoOperationId {
    /// Converts the value into an id.
    ///
    /// # Errors
    ///
    /// [`InvalidOperationId`], as from [`OperationId::new`].
    fn into_operation_id(self) -> Result<OperationId, InvalidOperationId>;
}

impl IntoOperationId for OperationId {
    fn into_operation_id(self) -> Result<OperationId, InvalidOperationId> {
        Ok(self)
    }
}

impl IntoOperationId for &OperationId {
    fn into_operation_id(self) -> Result<OperationId, InvalidOperationId> {
        Ok(self.clone())
    }
}

impl IntoOperationId for &str {
    fn into_operation_id(self) -> Result<OperationId, InvalidOperationId> {
        OperationId::new(self)
    }
}

impl IntoOperationId for String {
    fn into_operation_id(self) -> Result<OperationId, InvalidOperationId> {
        OperationId::new(self)
    }
}

impl IntoOperationId for &String {
    fn into_operation_id(self) -> Result<OperationId, InvalidOperationId> {
        OperationId::new(self)
    }
}

impl IntoOperationId for u64 {
    fn into_operation_id(self) -> Result<OperationId, InvalidOperationId> {
        OperationId::new(self.to_string())
    }
}
