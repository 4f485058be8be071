//! [`Reason`]: why a request was refused, and its names in HTTP, gRPC and metrics.

use std::fmt;

use http::StatusCode;

use crate::error::LockError;

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Another request has the lock, and the layer does not wait.
    Busy,
    /// The wait ended before the lock was free.
    TimedOut,
    /// Too many requests are already waiting.
    TooManyWaiters,
    /// The store could not be reached, or too few replicas confirmed the grant.
    StoreDown,
    /// The lock manager was shut down.
    ShutDown,
    /// The lock was lost while the handler ran.
    Lost,
    /// The request has a key that can't be used.
    BadKey,
    /// The request has no key.
    MissingKey,
    /// The program or the store needs a change.
    Misconfigured,
}

/// The names and texts of a reason in every place where it appears.
pub(super) struct Names {
    status: StatusCode,
    grpc_code: i32,
    name: &'static str,
    title: &'static str,
    /// The text for the client. It assumes that the handler has not run, except for a reason that
    /// only occurs later.
    pub(super) detail: &'static str,
}

impl Reason {
    /// Returns the default text for the client.
    pub(in crate::layer) fn detail(self) -> &'static str {
        self.names().detail
    }

    pub(super) fn names(self) -> Names {
        let names = |status, grpc_code, name, title, detail| Names { status, grpc_code, name, title, detail };
        match self {
            Self::Busy => names(
                StatusCode::CONFLICT,
                10,
                "busy",
                "The resource is busy",
                "Another request is using the same resource. Nothing was done for this one; send it again later.",
            ),
            Self::TimedOut => names(
                StatusCode::TOO_MANY_REQUESTS,
                8,
                "timed_out",
                "The resource is still busy",
                "Other requests for the same resource took too long. Nothing was done for this one; send it again \
                 later.",
            ),
            Self::TooManyWaiters => names(
                StatusCode::TOO_MANY_REQUESTS,
                8,
                "too_many_waiters",
                "Too many requests are waiting",
                "Too many requests wait already. Nothing was done for this one; send it again later.",
            ),
            Self::StoreDown => names(
                StatusCode::SERVICE_UNAVAILABLE,
                14,
                "store_down",
                "Locks are not available",
                "The lock service is not available. Nothing was done for this request; send it again later.",
            ),
            Self::ShutDown => names(
                StatusCode::SERVICE_UNAVAILABLE,
                14,
                "shut_down",
                "The server is shutting down",
                "The server is shutting down. Nothing was done for this request; send it again.",
            ),
            // Not a 502, 503 or 504: gateways repeat those by themselves, whatever the method.
            Self::Lost => names(
                StatusCode::INTERNAL_SERVER_ERROR,
                10,
                "lost",
                "The lock was lost",
                "The request lost its exclusive access before it was done. It may be done in part or in full: find \
                 out before you send it again.",
            ),
            Self::BadKey => names(
                StatusCode::BAD_REQUEST,
                3,
                "bad_key",
                "Invalid lock key",
                "The request identifies its resource in a way that can't be used.",
            ),
            Self::MissingKey => names(
                StatusCode::BAD_REQUEST,
                3,
                "missing_key",
                "Missing lock key",
                "The request doesn't identify a resource.",
            ),
            Self::Misconfigured => names(
                StatusCode::INTERNAL_SERVER_ERROR,
                13,
                "misconfigured",
                "Server misconfiguration",
                "The server is misconfigured. Retrying won't help.",
            ),
        }
    }

    /// Returns the HTTP status.
    ///
    /// | reason | status |
    /// |---|---|
    /// | `Busy` | 409 |
    /// | `TimedOut`, `TooManyWaiters` | 429 |
    /// | `StoreDown`, `ShutDown` | 503 |
    /// | `BadKey`, `MissingKey` | 400 |
    /// | `Lost`, `Misconfigured` | 500 |
    #[must_use]
    pub fn status(self) -> StatusCode {
        self.names().status
    }

    /// Returns the gRPC status code.
    ///
    /// | reason | code |
    /// |---|---|
    /// | `Busy`, `Lost` | 10, `ABORTED` |
    /// | `TimedOut`, `TooManyWaiters` | 8, `RESOURCE_EXHAUSTED` |
    /// | `StoreDown`, `ShutDown` | 14, `UNAVAILABLE` |
    /// | `BadKey`, `MissingKey` | 3, `INVALID_ARGUMENT` |
    /// | `Misconfigured` | 13, `INTERNAL` |
    #[must_use]
    pub fn grpc_code(self) -> i32 {
        self.names().grpc_code
    }

    /// Returns the name that the problem's `type` (`urn:problem-type:lock:busy`) and the metrics'
    /// label `reason` use. It is `busy`, `timed_out`, `too_many_waiters`, `store_down`,
    /// `shut_down`, `lost`, `bad_key`, `missing_key` or `misconfigured`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.names().name
    }

    /// Returns the title of the problem, the same for all requests that are refused for this
    /// reason.
    #[must_use]
    pub fn title(self) -> &'static str {
        self.names().title
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<&LockError> for Reason {
    fn from(error: &LockError) -> Self {
        match error {
            LockError::Busy { .. } => Self::Busy,
            LockError::TimedOut { .. } => Self::TimedOut,
            LockError::TooManyWaiters { .. } => Self::TooManyWaiters,
            LockError::Unavailable { .. } | LockError::NotReplicated { .. } | LockError::Store { .. } => {
                Self::StoreDown
            }
            LockError::ShutDown { .. } | LockError::CutOff(_) => Self::ShutDown,
            // The body has begun, and it is unknown whether it had the lock until its end.
            LockError::Lost { .. } | LockError::Unconfirmed { .. } => Self::Lost,
            LockError::InvalidKey(_) => Self::BadKey,
            LockError::NotHeld { .. } | LockError::KindConflict { .. } | LockError::Misconfigured { .. } => {
                Self::Misconfigured
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use std::time::Duration;

    use super::*;
    use lock_core::LockKey;
    use lock_core::store::{Kind, StoreError, StoreErrorKind};
    use lock_engine::failure::Loss;

    /// All reasons, with their values on the wire. Clients rely on these: none may change.
    const ALL: [(Reason, u16, i32, &str); 9] = [
        (Reason::Busy, 409, 10, "busy"),
        (Reason::TimedOut, 429, 8, "timed_out"),
        (Reason::TooManyWaiters, 429, 8, "too_many_waiters"),
        (Reason::StoreDown, 503, 14, "store_down"),
        (Reason::ShutDown, 503, 14, "shut_down"),
        (Reason::Lost, 500, 10, "lost"),
        (Reason::BadKey, 400, 3, "bad_key"),
        (Reason::MissingKey, 400, 3, "missing_key"),
        (Reason::Misconfigured, 500, 13, "misconfigured"),
    ];

    /// The table of the documentation.
    #[test]
    fn reasons_have_their_status() {
        for (reason, status, code, name) in ALL {
            assert_eq!((reason.status().as_u16(), reason.grpc_code(), reason.as_str()), (status, code, name));
        }
    }

    /// A title belongs to one reason, as RFC 9457 requires, and each reason has its own detail.
    #[test]
    fn titles_tell_reasons_apart() {
        let titles: HashSet<_> = ALL.iter().map(|(reason, ..)| reason.title()).collect();
        assert_eq!(titles.len(), ALL.len());
        let details: HashSet<_> = ALL.iter().map(|(reason, ..)| reason.names().detail).collect();
        assert_eq!(details.len(), ALL.len());
    }

    /// A retry is suggested if nothing was done, and not if something may have been done.
    #[test]
    fn details_say_whether_anything_was_done() {
        for (reason, ..) in ALL {
            let detail = reason.names().detail;
            match reason {
                Reason::Lost => assert!(detail.contains("find out before you send it again"), "{detail}"),
                Reason::Busy
                | Reason::TimedOut
                | Reason::TooManyWaiters
                | Reason::StoreDown
                | Reason::ShutDown => {
                    assert!(detail.contains("Nothing was done for this"), "{detail}");
                }
                _ => assert!(!detail.contains("send it again"), "{detail}"),
            }
        }
    }

    /// Every error has its reason, the same one whether it comes from a guard or a locked body.
    #[test]
    fn errors_have_their_reason() {
        let key = || LockKey::new("a").unwrap();
        let cause = || StoreError::new(StoreErrorKind::Unreachable, "down");
        let (held, wanted) = (Kind::Read, Kind::Write);
        let all = [
            (LockError::Busy { key: key(), remaining: None }, Reason::Busy),
            (LockError::TimedOut { key: key(), waited: Duration::ZERO, remaining: None }, Reason::TimedOut),
            (
                LockError::TooManyWaiters { key: key(), waiting: 1, cap: "max_waiters", remaining: None },
                Reason::TooManyWaiters,
            ),
            (LockError::Unavailable { key: key(), cause: cause() }, Reason::StoreDown),
            (LockError::NotReplicated { key: key(), cause: cause() }, Reason::StoreDown),
            (LockError::ShutDown { key: key() }, Reason::ShutDown),
            (LockError::KindConflict { key: key(), held, wanted }, Reason::Misconfigured),
            (LockError::misconfigured("x"), Reason::Misconfigured),
            (LockKey::new("").unwrap_err().into(), Reason::BadKey),
            (LockError::from(cause()), Reason::StoreDown),
            (LockError::Lost { key: key(), why: Loss::LeaseOver }, Reason::Lost),
            (LockError::Unconfirmed { key: key(), cause: cause() }, Reason::Lost),
            (LockError::NotHeld { key: key() }, Reason::Misconfigured),
        ];
        for (error, reason) in all {
            assert_eq!(Reason::from(&error), reason, "{error}");
        }
    }
}
