//! Conversion of the library's errors to those of histories.

use lock_runtime::LockError;

use super::event::{ErrorClass, Event, Outcome};

impl From<&LockError> for ErrorClass {
    fn from(error: &LockError) -> Self {
        match error {
            LockError::Busy { .. } => Self::Busy,
            LockError::TimedOut { .. } => Self::TimedOut,
            LockError::TooManyWaiters { .. } => Self::TooManyWaiters,
            LockError::Lost { .. } => Self::Lost,
            LockError::NotHeld { .. } => Self::NotHeld,
            LockError::Unavailable { .. } | LockError::Unconfirmed { .. } => Self::Unavailable,
            LockError::NotReplicated { .. } => Self::NotReplicated,
            LockError::ShutDown { .. } => Self::ShutDown,
            LockError::Misconfigured { .. } => Self::Misconfigured,
            _ => Self::Other,
        }
    }
}

impl From<&Result<(), LockError>> for Outcome {
    fn from(result: &Result<(), LockError>) -> Self {
        match result {
            Ok(()) => Self::Released,
            Err(LockError::Lost { why, .. }) => Self::Lost(why.to_string()),
            Err(error @ LockError::NotHeld { .. }) => Self::Failed(ErrorClass::NotHeld, error.to_string()),
            Err(error @ LockError::Unconfirmed { .. }) => {
                Self::Failed(ErrorClass::Unavailable, error.to_string())
            }
            Err(error) => Self::Failed(ErrorClass::Other, error.to_string()),
        }
    }
}

impl From<&LockError> for Event {
    fn from(error: &LockError) -> Self {
        Self::Refused { error: error.into(), why: error.to_string() }
    }
}
