//! The library's errors as those of histories.

use lock_runtime::{AcquireError, LockError, ReleaseError};

use super::event::{ErrorClass, Event, Outcome};

impl From<&AcquireError> for ErrorClass {
    fn from(error: &AcquireError) -> Self {
        match error {
            AcquireError::Busy { .. } => Self::Busy,
            AcquireError::TimedOut { .. } => Self::TimedOut,
            AcquireError::TooManyWaiters { .. } => Self::TooManyWaiters,
            AcquireError::Unavailable { .. } => Self::Unavailable,
            AcquireError::NotReplicated { .. } => Self::NotReplicated,
            AcquireError::ShutDown { .. } => Self::ShutDown,
            AcquireError::Misconfigured { .. } => Self::Misconfigured,
            _ => Self::Other,
        }
    }
}

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

impl From<&Result<(), ReleaseError>> for Outcome {
    fn from(result: &Result<(), ReleaseError>) -> Self {
        match result {
            Ok(()) => Self::Released,
            Err(ReleaseError::Lost { why, .. }) => Self::Lost(why.to_string()),
            Err(error @ ReleaseError::NotHeld { .. }) => Self::Failed(ErrorClass::NotHeld, error.to_string()),
            Err(error @ ReleaseError::Unavailable { .. }) => {
                Self::Failed(ErrorClass::Unavailable, error.to_string())
            }
            Err(error) => Self::Failed(ErrorClass::Other, error.to_string()),
        }
    }
}

impl From<&AcquireError> for Event {
    fn from(error: &AcquireError) -> Self {
        Self::Refused { error: error.into(), why: error.to_string() }
    }
}
