//! [`Fault`]: why a step has no result, and where else it may have one.

use lock_core::store::StoreError;
use redis::ServerError;

/// Why a step has no result.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) error: StoreError,
    /// Set when the server executed nothing because the keys are elsewhere. Unused on a single
    /// server.
    pub(super) redirect: Option<Box<Redirect>>,
    /// Set when the server executed nothing because there were several keys. It may execute a call
    /// for each.
    pub(super) several: Option<Several>,
}

/// Why a server refuses a call for several keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Several {
    /// The user lacks the right to one of the keys.
    Rights,
    /// The server takes no keys of several hash slots in one call.
    Slots,
}

impl Several {
    /// Returns the reason if `error` gives one.
    pub(super) fn read(error: &ServerError) -> Option<Self> {
        match error.code() {
            "CROSSSLOT" => Some(Self::Slots),
            // Excludes a missing right to a command or a channel.
            "NOPERM" if error.details().is_some_and(|details| details.contains(" key")) => Some(Self::Rights),
            _ => None,
        }
    }
}

/// Answer of a cluster's server that does not serve the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot is at this server from now on.
    Moved { slot: u16, to: String },
    /// The slot is moving to this server, where these keys are already or will be.
    Ask { slot: u16, to: String },
    /// Some keys are at this server, some at the other.
    TryAgain,
}

impl Fault {
    /// Whether the keys of the step are at two servers.
    pub(super) fn is_split(&self) -> bool {
        self.redirect.as_deref() == Some(&Redirect::TryAgain)
    }

    pub(super) fn map(self, change: impl FnOnce(StoreError) -> StoreError) -> Self {
        Self { error: change(self.error), ..self }
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self { error, redirect: None, several: None }
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        fault.error
    }
}

impl Redirect {
    /// Returns the redirect if `error` is one.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages are those of Redis 6.2, 7.0 and 7.4.
    #[test]
    fn a_missing_right_to_a_key_is_told_from_other_missing_rights() {
        let read = |details: &str| {
            let value = redis::parse_redis_value(format!("-NOPERM {details}\r\n").as_bytes()).unwrap();
            let redis::Value::ServerError(error) = value else { panic!("{value:?}") };
            Several::read(&error)
        };
        for key in [
            "this user has no permissions to access one of the keys used as arguments",
            "No permissions to access a key",
            "User ann has no permissions to access the 'lock:a' key",
        ] {
            assert_eq!(read(key), Some(Several::Rights), "{key}");
        }
        for other in [
            "this user has no permissions to run the 'evalsha' command",
            "User ann has no permissions to run the 'evalsha' command",
            "No permissions to access a channel",
        ] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
