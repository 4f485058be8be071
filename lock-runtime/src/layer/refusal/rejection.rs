//! [`Rejection`]: what is wrong with a request whose key can't be used.

use std::borrow::Cow;
use std::convert::Infallible;

use http::StatusCode;
use lock_core::InvalidKey;

use super::reason::Reason;

/// A request has a key that can't be used: what is wrong and what to do about it.
///
/// With a status of 4xx, the text is sent to the client: name the part of the request, and not what
/// it held. With any other, it is a mistake in the program, and the text is for the log.
///
/// ```
/// use lock_runtime::layer::Rejection;
///
/// let rejection = Rejection::new("The header `x-order-id` is not a number.");
/// assert_eq!(rejection.status(), 400);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Rejection {
    status: StatusCode,
    detail: Cow<'static, str>,
    /// Why the text of a key is none, which is for the program's author.
    invalid: Option<&'static str>,
}

impl Rejection {
    fn of(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { status, detail: detail.into(), invalid: None }
    }

    /// The client's mistake: 400 Bad Request, or `INVALID_ARGUMENT`.
    #[must_use]
    pub fn new(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::of(StatusCode::BAD_REQUEST, detail)
    }

    /// With another status. One that is not an error becomes 500.
    ///
    /// 4xx is the client's mistake, everything else a mistake in the program
    /// ([`Reason::Misconfigured`]), whose text goes to the log and not to the client.
    #[must_use]
    pub fn with_status(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        let is_error = status.is_client_error() || status.is_server_error();
        Self::of(if is_error { status } else { StatusCode::INTERNAL_SERVER_ERROR }, detail)
    }

    /// A mistake in the program, which no client can mend.
    pub(in crate::layer) fn misconfigured(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::of(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }

    /// The status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// What is wrong and what to do: for the client, or for the log when it is the program's
    /// mistake.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// What is for the log only.
    pub(in crate::layer) fn invalid(&self) -> Option<&'static str> {
        self.invalid
    }

    /// [`Reason::BadKey`] for the client's mistakes, [`Reason::Misconfigured`] for those of the
    /// program.
    #[must_use]
    pub fn reason(&self) -> Reason {
        if self.status.is_client_error() { Reason::BadKey } else { Reason::Misconfigured }
    }
}

/// The client's mistake. The text that was refused is not repeated, and why it is no key is for the
/// log.
impl From<InvalidKey> for Rejection {
    fn from(error: InvalidKey) -> Self {
        Self { invalid: Some(error.reason()), ..Self::new(Reason::BadKey.detail()) }
    }
}

/// The client's mistake, in these words.
impl From<&'static str> for Rejection {
    fn from(detail: &'static str) -> Self {
        Self::new(detail)
    }
}

impl From<Infallible> for Rejection {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rejection is an error, whatever status it was given, and tells whose mistake it is.
    #[test]
    fn rejections_are_errors() {
        let reason = |status: StatusCode| {
            let rejection = Rejection::with_status(status, "No.");
            (rejection.status().as_u16(), rejection.reason())
        };
        assert_eq!(reason(StatusCode::UNAUTHORIZED), (401, Reason::BadKey));
        assert_eq!(reason(StatusCode::SERVICE_UNAVAILABLE), (503, Reason::Misconfigured));
        assert_eq!(reason(StatusCode::OK), (500, Reason::Misconfigured));
        assert_eq!(reason(StatusCode::SEE_OTHER), (500, Reason::Misconfigured));
    }
}
