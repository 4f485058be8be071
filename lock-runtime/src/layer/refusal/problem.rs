//! [`ProblemDetails`]: the default responses to refused requests, in HTTP and gRPC.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response};

use super::{Protocol, Refusal, Refuse, grpc};

/// Builds the default responses to refused requests.
///
/// HTTP clients get an `application/problem+json` ([RFC
/// 9457](https://www.rfc-editor.org/rfc/rfc9457)) that must not be cached. It has `retry-after` in
/// whole seconds if that is known:
///
/// ```json
/// {"type":"urn:problem-type:lock:busy","title":"The resource is busy","status":409,"detail":"Another request …"}
/// ```
///
/// gRPC clients get status 200 with `grpc-status` and `grpc-message`, and two headers for programs:
///
/// - `grpc-retry-pushback-ms`: how long clients with a retry policy wait. It is -1 if the handler
///   may have done half of its work, so that no client retries by itself.
/// - `grpc-status-details-bin`: a [`google.rpc.ErrorInfo`], whose `reason` is `LOCK_` and the
///   [`Reason`](super::Reason) (`LOCK_BUSY`, `LOCK_LOST`) and whose `domain` is `lock-runtime`. If
///   the call may be repeated, a `google.rpc.RetryInfo` follows.
///
/// [`google.rpc.ErrorInfo`]: https://github.com/googleapis/googleapis/blob/master/google/rpc/error_details.proto
#[derive(Clone, Copy, Debug, Default)]
pub struct ProblemDetails;

impl Refuse for ProblemDetails {
    fn refuse(&self, refusal: &Refusal<'_>) -> Response<Bytes> {
        match refusal.protocol() {
            Protocol::Http => problem(refusal),
            Protocol::Grpc => grpc::trailers_only(refusal),
        }
    }
}

fn problem(refusal: &Refusal<'_>) -> Response<Bytes> {
    let status = refusal.status();
    let mut body = String::with_capacity(256);
    body.push_str("{\"type\":");
    push_json(&mut body, &refusal.problem_type());
    body.push_str(",\"title\":");
    push_json(&mut body, refusal.reason().title());
    body.push_str(",\"status\":");
    body.push_str(status.as_str());
    body.push_str(",\"detail\":");
    push_json(&mut body, refusal.detail());
    body.push('}');

    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(after) = refusal.retry_after() {
        headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
    }
    response
}

/// Rounds up, so that no client comes back too early. The minimum is 1, since 0 would mean "at
/// once".
fn whole_seconds(after: Duration) -> u64 {
    after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0)).max(1)
}

fn push_json(json: &mut String, text: &str) {
    json.push('"');
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\0'..='\u{1f}' => {
                // Writing to a `String` can't fail.
                let _ = write!(json, "\\u{:04x}", u32::from(c));
            }
            _ => json.push(c),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use proptest::prelude::*;

    use super::*;
    use crate::layer::{Reason, Rejection};

    fn refused(refusal: &Refusal<'_>) -> (u16, HeaderMap, Bytes) {
        let (parts, body) = ProblemDetails.refuse(refusal).into_parts();
        (parts.status.as_u16(), parts.headers, body)
    }

    /// The response as HTTP clients see it, byte for byte.
    #[test]
    fn http_gets_a_problem() {
        let refusal = Refusal::new(Reason::Busy, Protocol::Http).with_detail("Say \"please\".");
        let (status, headers, body) = refused(&refusal);
        assert_eq!(status, 409);
        assert_eq!(headers[CONTENT_TYPE], "application/problem+json");
        assert_eq!(headers[CACHE_CONTROL], "no-store");
        assert!(!headers.contains_key(RETRY_AFTER));
        assert_eq!(
            body,
            r#"{"type":"urn:problem-type:lock:busy","title":"The resource is busy","status":409,"detail":"Say \"please\"."}"#
        );
    }

    /// A problem may have its own page.
    #[test]
    fn a_problem_may_have_another_type() {
        let refusal =
            Refusal::new(Reason::Busy, Protocol::Http).with_problem_type("https://shop.example/busy");
        assert!(refused(&refusal).2.starts_with(br#"{"type":"https://shop.example/busy","title""#));
    }

    /// A client is never told to come back too early, or at once.
    #[test]
    fn retry_after_is_rounded_up() {
        let retry_after = |after| {
            let refusal = Refusal::new(Reason::TimedOut, Protocol::Http).with_retry_after(after);
            refused(&refusal).1[RETRY_AFTER].to_str().unwrap().to_owned()
        };
        assert_eq!(retry_after(Duration::ZERO), "1");
        assert_eq!(retry_after(Duration::from_millis(1)), "1");
        assert_eq!(retry_after(Duration::from_secs(1)), "1");
        assert_eq!(retry_after(Duration::from_millis(1001)), "2");
        assert_eq!(retry_after(Duration::MAX), u64::MAX.to_string());
    }

    /// A rejection's status is that of the response, and the one in its body.
    #[test]
    fn a_rejection_has_its_status_in_both_places() {
        let rejection = Rejection::with_status(http::StatusCode::UNPROCESSABLE_ENTITY, "Why.");
        let (status, _, body) = refused(&Refusal::of_rejection(&rejection, Protocol::Http));
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (status, &body["status"], &body["type"]),
            (422, &422.into(), &"urn:problem-type:lock:bad_key".into())
        );
    }

    proptest! {
        /// Any text becomes JSON that decodes to the same text.
        #[test]
        fn any_detail_is_json(detail in any::<String>()) {
            let refusal = Refusal::new(Reason::BadKey, Protocol::Http).with_detail(detail.as_str());
            let (_, _, body) = refused(&refusal);
            let read: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let expected = serde_json::json!({
                "type": "urn:problem-type:lock:bad_key",
                "title": Reason::BadKey.title(),
                "status": 400,
                "detail": detail,
            });
            prop_assert_eq!(read, expected);
        }
    }
}
