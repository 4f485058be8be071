//! [`Rejection`]: what is wrong with a request whose key can't be used.

use std::borrow::Cow;
use std::convert::Infallible;

use http::StatusCode;
use lock_core::InvalidKey;

use super::reason::Reason;

/// A refusal of a request whose key can't be used: what is wrong and what to do about it.
///
/// With a 4xx status, the text is sent to the client: name the part of the request, and not its
/// value. With any other status, it is a mistake in the program, and the text is for the log.
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
    /// Why the text is not a valid key, for the program's author.
    invalid: Option<&'static str>,
}

impl Rejection {
    fn of(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { status, detail: detail.into(), invalid: None }
    }

    /// Returns a rejection for a client's mistake: 400 Bad Request, or `INVALID_ARGUMENT`.
    #[must_use]
    pub fn new(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::of(StatusCode::BAD_REQUEST, detail)
    }

    /// Returns a rejection with another status. A status that is not an error becomes 500.
    ///
    /// 4xx is the client's mistake. Everything else is a mistake in the program
    /// ([`Reason::Misconfigured`]), whose text goes to the log and not to the client.
    #[must_use]
    pub fn with_status(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        let is_error = status.is_client_error() || status.is_server_error();
        Self::of(if is_error { status } else { StatusCode::INTERNAL_SERVER_ERROR }, detail)
    }

    /// Returns a rejection for a mistake in the program, which no client can fix.
    pub(in crate::layer) fn misconfigured(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::of(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }

    /// Returns the status of the response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns what is wrong and what to do: for the client, or for the log if it is the program's
    /// mistake.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns why the text is not a valid key, for the log only.
    pub(in crate::layer) fn invalid(&self) -> Option<&'static str> {
        self.invalid
    }

    /// Returns [`Reason::BadKey`] for the client's mistakes, and [`Reason::Misconfigured`] for
    /// those of the program.
    #[must_use]
    pub fn reason(&self) -> Reason {
        if self.status.is_client_error() { Reason::BadKey } else { Reason::Misconfigured }
    }
}

/// Returns a rejection for a client's mistake. The refused text is not repeated; why it is not a
/// valid key is for the log.
impl From<InvalidKey> for Rejection {
    fn from(error: InvalidKey) -> Self {
        Self { invalid: Some(error.reason()), ..Self::new(Reason::BadKey.detail()) }
    }
}

/// Returns a rejection for a client's mistake, with this text.
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

    /// A rejection is always an error, whatever status it was given, and says whose mistake it is.
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
