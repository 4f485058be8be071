//! How a request is refused: the reason, the status, and the response.

mod grpc;
mod problem;
mod reason;
mod rejection;

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response, StatusCode, Version};
use lock_core::internal::chance::jitter;

#[cfg(any(feature = "axum", feature = "tonic"))]
use super::told::Told;
use crate::error::LockError;

#[cfg(feature = "tonic")]
pub(in crate::layer) use grpc::{PUSHBACK, details, pushback};
pub use problem::ProblemDetails;
pub use reason::Reason;
pub use rejection::Rejection;

/// Delay before a client asks again if the store is down, the manager shuts down, or nothing is
/// known. HTTP has whole seconds, so a shorter delay would send all clients back in the same
/// second.
pub(in crate::layer) const RETRY_SOON: Duration = Duration::from_secs(3);

/// Maximum delay that a client is told, unless set otherwise. A renewed hold always has most of its
/// lease left, but its holder rarely needs that long.
pub(in crate::layer) const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(5);

/// Returns when a client may repeat a request that ended with this error. Returns `None` if its
/// handler may have done half of its work, or if a retry would fail in the same way. The delay is
/// random, between half of the known time and all of it, so that clients that are refused together
/// don't come back together.
pub(in crate::layer) fn retry_after(error: &LockError, longest: Duration) -> Option<Duration> {
    let remaining = match error {
        LockError::Busy { remaining, .. }
        | LockError::TimedOut { remaining, .. }
        | LockError::TooManyWaiters { remaining, .. } => remaining.unwrap_or(RETRY_SOON),
        LockError::Unavailable { .. } | LockError::NotReplicated { .. } | LockError::ShutDown { .. } => {
            RETRY_SOON
        }
        _ => return None,
    };
    Some(spread(remaining.min(longest)))
}

pub(in crate::layer) fn spread(time: Duration) -> Duration {
    time.mul_f64(0.5 + jitter() / 2.0)
}

/// The protocol of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// Plain HTTP.
    Http,
    /// gRPC.
    Grpc,
}

impl Protocol {
    /// Returns the protocol that the header `content-type` stands for. gRPC is `application/grpc`,
    /// alone or followed by `+` or `;`. `application/grpc-web` counts as HTTP: its client reads the
    /// HTTP status.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        const GRPC: &[u8] = b"application/grpc";
        let Some(value) = headers.get(CONTENT_TYPE) else { return Self::Http };
        match value.as_bytes().split_at_checked(GRPC.len()) {
            Some((start, [] | [b'+' | b';', ..])) if start.eq_ignore_ascii_case(GRPC) => Self::Grpc,
            _ => Self::Http,
        }
    }

    /// Returns the protocol for ending a body: gRPC, with trailers, needs HTTP/2 or later. HTTP/1
    /// servers drop trailers that the client has not asked for.
    pub(in crate::layer) fn over(self, version: Version) -> Self {
        if version < Version::HTTP_2 { Self::Http } else { self }
    }
}

/// A refused request, with everything that a response to it can be made of.
#[derive(Clone, Debug)]
pub struct Refusal<'a> {
    reason: Reason,
    protocol: Protocol,
    status: Option<StatusCode>,
    problem_type: Option<Cow<'a, str>>,
    retry_after: Option<Duration>,
    detail: Cow<'a, str>,
    error: Option<&'a LockError>,
    mistake: Option<&'a str>,
    /// Whether the handler has begun, and so may have done part of its work.
    begun: bool,
}

impl<'a> Refusal<'a> {
    /// Returns a refusal with the default text of the reason.
    #[must_use]
    pub fn new(reason: Reason, protocol: Protocol) -> Self {
        let detail = Cow::Borrowed(reason.detail());
        Self {
            reason,
            protocol,
            status: None,
            problem_type: None,
            retry_after: None,
            detail,
            error: None,
            mistake: None,
            begun: false,
        }
    }

    /// Returns a refusal for an error of the layer's lock.
    #[must_use]
    pub fn of_error(error: &'a LockError, protocol: Protocol) -> Self {
        Self { error: Some(error), ..Self::new(Reason::from(error), protocol) }
    }

    /// Returns a refusal for a key that can't be used, with the rejection's status. If the mistake
    /// is the client's, the text is for the client; if it is the program's, the text is for the
    /// log.
    #[must_use]
    pub fn of_rejection(rejection: &'a Rejection, protocol: Protocol) -> Self {
        let refusal = Self { status: Some(rejection.status()), ..Self::new(rejection.reason(), protocol) };
        match refusal.reason {
            Reason::Misconfigured => Self { mistake: Some(rejection.detail()), ..refusal },
            _ => Self { mistake: rejection.invalid(), ..refusal.with_detail(rejection.detail()) },
        }
    }

    /// Returns a refusal for an error that a handler has returned. The handler may have done some
    /// work before, so the client is not invited to repeat the request. A mistake in the program is
    /// logged.
    #[cfg(any(feature = "axum", feature = "tonic"))]
    pub(in crate::layer) fn of_handler(error: &'a LockError, protocol: Protocol) -> Self {
        let reason = match Reason::from(error) {
            // The value of an argument may come from the client; any other key comes from the
            // program.
            Reason::BadKey if !is_of_value(error) => Reason::Misconfigured,
            reason => reason,
        };
        let refusal = Self { error: Some(error), begun: true, ..Self::new(reason, protocol) };
        let detail = match reason {
            Reason::Busy | Reason::TimedOut | Reason::TooManyWaiters => {
                "Another request is using the same resource. This one may be done in part: find out before \
                 you send it again."
            }
            Reason::StoreDown => {
                "The lock service is not available. This request may be done in part: find out before you \
                 send it again."
            }
            Reason::ShutDown => {
                "The server is shutting down. This request may be done in part: find out before you send \
                 it again."
            }
            Reason::Misconfigured => {
                static TOLD: Told = Told::new();
                if TOLD.is_due(&error.to_string()) {
                    tracing::error!(
                        %error,
                        "a handler can't take its locks because of a mistake in the program (logged once a minute)"
                    );
                }
                return refusal;
            }
            Reason::Lost | Reason::BadKey | Reason::MissingKey => return refusal,
        };
        refusal.with_detail(detail)
    }

    /// Returns a refusal for a request without a key. `expected` is the part that the request
    /// lacks; see [`KeyExtractor::expected`](super::KeyExtractor::expected).
    #[must_use]
    pub fn missing_key(expected: Option<&str>, protocol: Protocol) -> Self {
        let refusal = Self::new(Reason::MissingKey, protocol);
        match expected {
            Some(expected) => refusal.with_detail(format!("This request needs {expected}.")),
            None => refusal,
        }
    }

    /// Sets when the client may send the request again.
    #[must_use]
    pub fn with_retry_after(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.retry_after = after.into();
        self
    }

    /// Sets another HTTP status, and with it the closest gRPC code. In a closure for
    /// [`refuse_with`](super::LockLayer::refuse_with):
    ///
    /// ```
    /// use http::StatusCode;
    /// use lock_runtime::layer::{ProblemDetails, Reason, Refusal, Refuse};
    ///
    /// let refuse = |refusal: &Refusal<'_>| match refusal.reason() {
    ///     Reason::TimedOut => ProblemDetails.refuse(&refusal.clone().with_status(StatusCode::CONFLICT)),
    ///     _ => ProblemDetails.refuse(refusal),
    /// };
    /// ```
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = Some(status);
        self
    }

    /// Sets another `type`: the address of a page about the problem, or your own URN.
    ///
    /// [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457#section-4.2.1) prefers an address that can
    /// be opened. The default is `urn:problem-type:lock:` and the reason; that namespace is in use
    /// but not registered.
    #[must_use]
    pub fn with_problem_type(mut self, uri: impl Into<Cow<'a, str>>) -> Self {
        self.problem_type = Some(uri.into());
        self
    }

    /// Sets another text for the client.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Cow<'a, str>>) -> Self {
        self.detail = detail.into();
        self
    }

    /// Returns why the request was refused.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns the client's protocol.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns the HTTP status: that of [`with_status`](Self::with_status) or of the [`Rejection`],
    /// or otherwise that of the reason.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status.unwrap_or_else(|| self.reason.status())
    }

    /// Returns the `type` of the problem: that of [`with_problem_type`](Self::with_problem_type),
    /// or otherwise `urn:problem-type:lock:` and the reason.
    #[must_use]
    pub fn problem_type(&self) -> Cow<'_, str> {
        match &self.problem_type {
            Some(uri) => Cow::Borrowed(uri),
            None => format!("urn:problem-type:lock:{}", self.reason.as_str()).into(),
        }
    }

    /// Returns the gRPC status code: the one that is closest to a status that was set, or otherwise
    /// that of the reason.
    #[must_use]
    pub fn grpc_code(&self) -> i32 {
        match self.status.map(|status| status.as_u16()) {
            Some(401) => 16,       // UNAUTHENTICATED
            Some(403) => 7,        // PERMISSION_DENIED
            Some(404 | 410) => 5,  // NOT_FOUND
            Some(409) => 10,       // ABORTED
            Some(412) => 9,        // FAILED_PRECONDITION
            Some(413 | 429) => 8,  // RESOURCE_EXHAUSTED
            Some(501) => 12,       // UNIMPLEMENTED
            Some(502 | 503) => 14, // UNAVAILABLE
            Some(504) => 4,        // DEADLINE_EXCEEDED
            _ => self.reason.grpc_code(),
        }
    }

    /// Returns when it may be worth sending the request again. The lock may be free earlier or
    /// later.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the text for the client: what happened and what to do, without the key, the owner,
    /// or anything about the store.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns what the program has to change, for logs. For [`Reason::BadKey`], it is why the text
    /// is not a valid key.
    #[must_use]
    pub fn mistake(&self) -> Option<&'a str> {
        self.mistake
    }

    /// Returns the complete error, for logs. It names the key, and includes the store's error.
    #[must_use]
    pub fn error(&self) -> Option<&'a LockError> {
        self.error
    }
}

#[cfg(any(feature = "axum", feature = "tonic"))]
fn is_of_value(error: &LockError) -> bool {
    matches!(error, LockError::InvalidKey(invalid) if invalid.is_of_value())
}

/// Builds the response to a refused request.
///
/// The response is sent as it is: no `Retry-After` or `cache-control` is added. To keep those
/// headers, start with [`ProblemDetails`]`.refuse(refusal)` and change the body.
///
/// It is implemented by closures:
///
/// ```
/// use http::Response;
/// use lock_runtime::layer::{ProblemDetails, Protocol, Reason, Refusal, Refuse};
///
/// let refuse = |refusal: &Refusal<'_>| match refusal.protocol() {
///     Protocol::Grpc => ProblemDetails.refuse(refusal).map(|_| String::new()),
///     _ => Response::builder().status(refusal.status()).body(refusal.detail().to_owned()).unwrap(),
/// };
/// assert_eq!(refuse.refuse(&Refusal::new(Reason::Busy, Protocol::Http)).status(), 409);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not make the response to a refused request",
    label = "expected a closure `Fn(&Refusal<'_>) -> http::Response<Bytes>`",
    note = "write the argument's type, `|refusal: &Refusal<'_>| …`, and return an `http::Response` with a `Bytes`, \
            `String`, `Vec<u8>` or `&'static str`; or start with `ProblemDetails.refuse(refusal)`"
)]
pub trait Refuse {
    /// Returns the response. For [`Protocol::Grpc`] it has status 200, `grpc-status` among the
    /// headers, and no body.
    fn refuse(&self, refusal: &Refusal<'_>) -> Response<Bytes>;
}

impl<F, T> Refuse for F
where
    F: Fn(&Refusal<'_>) -> Response<T>,
    T: Into<Bytes>,
{
    fn refuse(&self, refusal: &Refusal<'_>) -> Response<Bytes> {
        self(refusal).map(Into::into)
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use lock_core::LockKey;
    use lock_core::store::{StoreError, StoreErrorKind};

    fn protocol(content_type: &[u8]) -> Protocol {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, http::HeaderValue::from_bytes(content_type).unwrap());
        Protocol::of(&headers)
    }

    /// A request is gRPC if its content type is one that the specification defines. gRPC-Web gets
    /// plain HTTP statuses.
    #[test]
    fn grpc_is_told_by_its_content_type() {
        for grpc in ["application/grpc", "application/grpc+proto", "application/grpc;a=b", "Application/gRPC"]
        {
            assert_eq!(protocol(grpc.as_bytes()), Protocol::Grpc, "{grpc}");
        }
        for http in [
            "application/grpc-web",
            "application/grpc-web+proto",
            "application/grpcx",
            "application/grp",
            "text/x",
        ] {
            assert_eq!(protocol(http.as_bytes()), Protocol::Http, "{http}");
        }
        assert_eq!(protocol(b"\xff\xff"), Protocol::Http);
        assert_eq!(Protocol::of(&HeaderMap::new()), Protocol::Http);
    }

    /// The text for the client contains nothing about the key or the store; the error contains all
    /// of it.
    #[test]
    fn internals_are_in_the_error_only() {
        let cause = StoreError::new(StoreErrorKind::Unreachable, "redis-7.internal:6379 refused");
        let error = LockError::Unavailable { key: LockKey::new("s3cret").unwrap(), cause };
        let refusal = Refusal::of_error(&error, Protocol::Http);
        assert_eq!(refusal.detail(), Reason::StoreDown.detail());
        assert!(refusal.error().unwrap().to_string().contains("redis-7.internal"));
        let error = LockError::InvalidKey(LockKey::new("s3cret{").unwrap_err());
        let refusal = Refusal::of_error(&error, Protocol::Http);
        assert_eq!(refusal.detail(), Reason::BadKey.detail());
        assert!(refusal.error().unwrap().to_string().contains("its braces are not one hash tag"));
        let rejection = Rejection::from(LockKey::new("s3cret{").unwrap_err());
        let refusal = Refusal::of_rejection(&rejection, Protocol::Http);
        assert_eq!(refusal.detail(), Reason::BadKey.detail());
        assert!(refusal.mistake().unwrap().contains("its braces are not one hash tag"));
    }

    /// A rejection brings its text and its status, and for gRPC the closest code.
    #[test]
    fn a_rejection_has_its_own_status() {
        let refused = |status| {
            let rejection = Rejection::with_status(StatusCode::from_u16(status).unwrap(), "Why.");
            let refusal = Refusal::of_rejection(&rejection, Protocol::Grpc);
            // The program's mistakes are not shown to its clients.
            let for_the_log = refusal.reason() == Reason::Misconfigured;
            assert_eq!(refusal.mistake().is_some(), for_the_log);
            assert_eq!(refusal.mistake().unwrap_or(refusal.detail()), "Why.");
            assert_eq!(refusal.detail() == "Why.", !for_the_log);
            (refusal.reason(), refusal.status().as_u16(), refusal.grpc_code())
        };
        assert_eq!(refused(400), (Reason::BadKey, 400, 3));
        assert_eq!(refused(401), (Reason::BadKey, 401, 16));
        assert_eq!(refused(403), (Reason::BadKey, 403, 7));
        assert_eq!(refused(422), (Reason::BadKey, 422, 3));
        assert_eq!(refused(500), (Reason::Misconfigured, 500, 13));
        assert_eq!(refused(503), (Reason::Misconfigured, 503, 14));
    }

    /// A client that sent no key is told what to send, if that is known.
    #[test]
    fn a_missing_key_is_named() {
        let detail = |expected| Refusal::missing_key(expected, Protocol::Http).detail().to_owned();
        assert_eq!(detail(Some("the header `x-id`")), "This request needs the header `x-id`.");
        assert_eq!(detail(None), Reason::MissingKey.detail());
    }

    /// After an error of a handler, the text does not claim that nothing was done.
    #[cfg(any(feature = "axum", feature = "tonic"))]
    #[test]
    fn a_handler_may_have_done_something() {
        let error = LockError::Busy { key: LockKey::new("a").unwrap(), remaining: None };
        let refusal = Refusal::of_handler(&error, Protocol::Http);
        assert_eq!(refusal.reason(), Reason::Busy);
        assert!(!refusal.detail().contains("Nothing was done"));
        assert_eq!(refusal.retry_after(), None);
        let grpc = ProblemDetails.refuse(&Refusal::of_handler(&error, Protocol::Grpc));
        assert_eq!(grpc.headers()["grpc-retry-pushback-ms"], "-1");
    }

    /// A bad key that a handler has made of its own data is not the client's mistake.
    #[cfg(any(feature = "axum", feature = "tonic"))]
    #[test]
    fn a_handlers_key_is_the_programs_mistake() {
        let error = LockError::InvalidKey(LockKey::new("s3cret{").unwrap_err());
        let refusal = Refusal::of_handler(&error, Protocol::Http);
        assert_eq!((refusal.reason(), refusal.status().as_u16()), (Reason::Misconfigured, 500));
        // The value of an argument mostly comes from the client, which must not be able to fill the
        // log.
        let of_value = LockError::InvalidKey(LockKey::new("s3cret{").unwrap_err().of_value());
        let refusal = Refusal::of_handler(&of_value, Protocol::Http);
        assert_eq!((refusal.reason(), refusal.status().as_u16()), (Reason::BadKey, 400));
        assert!(!refusal.detail().contains("s3cret"));
    }

    /// If nothing is known, clients are still told different numbers of whole seconds.
    #[cfg(feature = "testing")]
    #[test]
    fn clients_that_are_told_little_are_spread_too() {
        let error = LockError::ShutDown { key: LockKey::new("a").unwrap() };
        let seconds = |jitter| {
            lock_core::internal::chance::set_jitter(jitter);
            let after = retry_after(&error, LONGEST_RETRY_AFTER);
            let refusal = Refusal::of_error(&error, Protocol::Http).with_retry_after(after);
            ProblemDetails.refuse(&refusal).headers()["retry-after"].clone()
        };
        assert_eq!((seconds(0.0), seconds(1.0)), ("2".parse().unwrap(), "3".parse().unwrap()));
    }

    /// Clients that are refused together are told different times, and none of them more than is
    /// known.
    #[cfg(feature = "testing")]
    #[test]
    fn refused_clients_are_spread() {
        let error =
            LockError::Busy { key: LockKey::new("a").unwrap(), remaining: Some(Duration::from_secs(9)) };
        let after = |jitter| {
            lock_core::internal::chance::set_jitter(jitter);
            retry_after(&error, Duration::from_secs(4)).unwrap()
        };
        assert_eq!(after(0.0), Duration::from_secs(2));
        assert_eq!(after(0.5), Duration::from_secs(3));
        assert_eq!(after(1.0), Duration::from_secs(4));
    }

    /// A closure builds the response, with any body that converts into `Bytes`.
    #[test]
    fn a_closure_makes_the_response() {
        let refusal = Refusal::new(Reason::Busy, Protocol::Http).with_retry_after(Duration::from_secs(2));
        let text = |refusal: &Refusal<'_>| Response::new(format!("{:?}", refusal.retry_after()));
        assert_eq!(text.refuse(&refusal).into_body(), "Some(2s)");
        let fixed = |_: &Refusal<'_>| Response::new("no");
        assert_eq!(fixed.refuse(&refusal).into_body(), "no");
    }
}
