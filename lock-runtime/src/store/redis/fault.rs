//! [`Fault`]: why a step has no result, and where else it may have one.

use redis::ServerError;

use crate::store::StoreError;

/// Why a step has no result.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) error: StoreError,
    /// The server has executed nothing, because of this. A store on one server has no use for it.
    pub(super) redirect: Option<Box<Redirect>>,
}

/// What a server of a cluster says instead of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot is at this server, from now on.
    Moved { slot: u16, to: String },
    /// The slot is about to go to this server, where these keys are already, or will be.
    Ask { slot: u16, to: String },
    /// Some of the keys are here, and some there.
    TryAgain,
}

impl Fault {
    pub(super) fn map(self, change: impl FnOnce(StoreError) -> StoreError) -> Self {
        Self { error: change(self.error), redirect: self.redirect }
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self { error, redirect: None }
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        fault.error
    }
}

impl Redirect {
    /// What `error` says, if it is that.
    pub(super) fn read(error: &ServerError) -> Option<Box<Self>> {
        let details = || {
            let (slot, to) = error.details()?.trim().split_once(' ')?;
            Some((slot.parse().ok()?, to.to_owned()))
        };
        let redirect = match error.code() {
            "MOVED" => {
                let (slot, to) = details()?;
                Self::Moved { slot, to }
            }
            "ASK" => {
                let (slot, to) = details()?;
                Self::Ask { slot, to }
            }
            "TRYAGAIN" => Self::TryAgain,
            _ => return None,
        };
        Some(Box::new(redirect))
    }
}
