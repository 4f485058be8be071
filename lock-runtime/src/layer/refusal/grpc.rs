//! Refusals in gRPC: a status in the headers, with details for programs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Response};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::{Reason, Refusal};

/// Name of the header that carries [`pushback`].
pub(in crate::layer) const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// The `domain` of `google.rpc.ErrorInfo`, in which its `reason` is defined.
const DOMAIN: &str = "lock-runtime";

/// Returns after how many milliseconds a gRPC client with automatic retries may send the call again
/// ([gRFC A6](https://github.com/grpc/proposal/blob/master/A6-client-retries.md)). A negative
/// number forbids it.
pub(in crate::layer) fn pushback(refusal: &Refusal<'_>) -> Option<i32> {
    // Clients repeat `ABORTED` by themselves, but this handler may have done half of its work.
    if refusal.begun || refusal.reason() == Reason::Lost {
        return Some(-1);
    }
    // Clients read a 32-bit number.
    let millis = refusal.retry_after()?.as_nanos().div_ceil(1_000_000);
    Some(i32::try_from(millis).unwrap_or(i32::MAX).max(1))
}

/// Characters to encode in `grpc-message`: the percent sign, and all that are not printable ASCII.
const IN_MESSAGES: &AsciiSet = &CONTROLS.add(b'%');

/// Returns a response with everything in the headers, which also count as the trailers.
pub(super) fn trailers_only(refusal: &Refusal<'_>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(HeaderName::from_static("grpc-status"), HeaderValue::from(refusal.grpc_code()));
    let message = utf8_percent_encode(refusal.detail(), IN_MESSAGES).to_string();
    if let Ok(message) = HeaderValue::try_from(message) {
        headers.insert(HeaderName::from_static("grpc-message"), message);
    }
    if let Some(millis) = pushback(refusal) {
        headers.insert(HeaderName::from_static(PUSHBACK), HeaderValue::from(millis));
    }
    if let Ok(details) = HeaderValue::try_from(STANDARD_NO_PAD.encode(details(refusal))) {
        headers.insert(HeaderName::from_static("grpc-status-details-bin"), details);
    }
    response
}

/// Encodes a `google.rpc.Status` with `google.rpc.ErrorInfo`, and with `google.rpc.RetryInfo` if
/// the call may be repeated. The protobuf encoding is written by hand: three messages do not need a
/// library.
pub(in crate::layer) fn details(refusal: &Refusal<'_>) -> Vec<u8> {
    let any = |name: &str, value: &[u8]| {
        let mut any = Vec::new();
        put_bytes(&mut any, 1, format!("type.googleapis.com/google.rpc.{name}").as_bytes());
        put_bytes(&mut any, 2, value);
        any
    };
    let mut status = Vec::new();
    put_number(&mut status, 1, u64::try_from(refusal.grpc_code()).unwrap_or_default());
    put_bytes(&mut status, 2, refusal.detail().as_bytes());

    let mut info = Vec::new();
    put_bytes(&mut info, 1, format!("LOCK_{}", refusal.reason().as_str().to_uppercase()).as_bytes());
    put_bytes(&mut info, 2, DOMAIN.as_bytes());
    put_bytes(&mut status, 3, &any("ErrorInfo", &info));

    if let Some(millis) = pushback(refusal).and_then(|millis| u64::try_from(millis).ok()) {
        let mut delay = Vec::new();
        put_number(&mut delay, 1, millis / 1000);
        put_number(&mut delay, 2, millis % 1000 * 1_000_000);
        let mut retry = Vec::new();
        put_bytes(&mut retry, 1, &delay);
        put_bytes(&mut status, 3, &any("RetryInfo", &retry));
    }
    status
}

/// Appends a field of wire type 0.
fn put_number(message: &mut Vec<u8>, field: u8, number: u64) {
    message.push(field << 3);
    put_varint(message, number);
}

/// Appends a field of wire type 2.
fn put_bytes(message: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    message.push(field << 3 | 2);
    put_varint(message, bytes.len() as u64);
    message.extend_from_slice(bytes);
}

fn put_varint(message: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        message.push(number as u8 | 0x80);
        number >>= 7;
    }
    message.push(number as u8);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderMap;
    use percent_encoding::percent_decode_str;
    use proptest::prelude::*;

    use super::super::{ProblemDetails, Protocol, Refuse};
    use super::*;

    /// The messages as defined in `google/rpc/{status,error_details}.proto`.
    mod google {
        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct Status {
            #[prost(int32, tag = "1")]
            pub(super) code: i32,
            #[prost(string, tag = "2")]
            pub(super) message: String,
            #[prost(message, repeated, tag = "3")]
            pub(super) details: Vec<Any>,
        }

        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct Any {
            #[prost(string, tag = "1")]
            pub(super) type_url: String,
            #[prost(bytes = "vec", tag = "2")]
            pub(super) value: Vec<u8>,
        }

        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct ErrorInfo {
            #[prost(string, tag = "1")]
            pub(super) reason: String,
            #[prost(string, tag = "2")]
            pub(super) domain: String,
        }

        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct RetryInfo {
            #[prost(message, optional, tag = "1")]
            pub(super) retry_delay: Option<Duration>,
        }

        #[derive(Clone, Copy, PartialEq, prost::Message)]
        pub(super) struct Duration {
            #[prost(int64, tag = "1")]
            pub(super) seconds: i64,
            #[prost(int32, tag = "2")]
            pub(super) nanos: i32,
        }
    }

    /// A library reads the handwritten encoding, including lengths and numbers of several bytes.
    #[test]
    fn details_are_what_the_protocol_says() {
        use prost::Message as _;

        for (detail, after, delay) in [
            ("Short.".to_owned(), Some(Duration::from_millis(1500)), Some((1, 500_000_000))),
            ("ä".repeat(300), Some(Duration::from_secs(3600)), Some((3600, 0))),
            ("Nobody knows when.".to_owned(), None, None),
        ] {
            let refusal = Refusal::new(Reason::TimedOut, Protocol::Grpc);
            let refusal = refusal.with_detail(detail.clone()).with_retry_after(after);
            let status = google::Status::decode(&*details(&refusal)).unwrap();
            assert_eq!((status.code, status.message), (8, detail));
            assert_eq!(status.details.len(), 1 + usize::from(delay.is_some()));
            assert_eq!(status.details[0].type_url, "type.googleapis.com/google.rpc.ErrorInfo");
            let info = google::ErrorInfo::decode(&*status.details[0].value).unwrap();
            assert_eq!((&*info.reason, &*info.domain), ("LOCK_TIMED_OUT", "lock-runtime"));
            if let Some((seconds, nanos)) = delay {
                assert_eq!(status.details[1].type_url, "type.googleapis.com/google.rpc.RetryInfo");
                let retry = google::RetryInfo::decode(&*status.details[1].value).unwrap();
                assert_eq!(retry.retry_delay, Some(google::Duration { seconds, nanos }));
            }
        }
    }

    fn refused(refusal: &Refusal<'_>) -> (u16, HeaderMap, Bytes) {
        let (parts, body) = ProblemDetails.refuse(refusal).into_parts();
        (parts.status.as_u16(), parts.headers, body)
    }

    /// Clients that repeat aborted calls must not repeat a handler that may have done half of its
    /// work.
    #[test]
    fn a_lost_call_is_not_repeated_by_itself() {
        let lost = Refusal::new(Reason::Lost, Protocol::Grpc);
        assert_eq!(refused(&lost).1.get(PUSHBACK).unwrap(), "-1");
        let busy = Refusal::new(Reason::Busy, Protocol::Grpc);
        assert_eq!(refused(&busy).1.get(PUSHBACK), None);
    }

    /// The response as gRPC clients see it, all in the headers.
    #[test]
    fn grpc_gets_trailers() {
        let refusal = Refusal::new(Reason::TimedOut, Protocol::Grpc)
            .with_detail("100 %, später")
            .with_retry_after(Duration::from_micros(1500));
        let (status, headers, body) = refused(&refusal);
        assert_eq!(status, 200);
        assert_eq!(headers[CONTENT_TYPE], "application/grpc");
        assert_eq!(headers["grpc-status"], "8");
        assert_eq!(headers["grpc-message"], "100 %25, sp%C3%A4ter");
        assert_eq!(headers["grpc-retry-pushback-ms"], "2");
        assert_eq!(headers.len(), 5);
        assert!(body.is_empty());
    }

    /// A wait that is too long for the clients' number type becomes the maximum of that type.
    #[test]
    fn pushback_is_a_small_number() {
        let refusal = Refusal::new(Reason::Busy, Protocol::Grpc).with_retry_after(Duration::MAX);
        assert_eq!(refused(&refusal).1["grpc-retry-pushback-ms"], i32::MAX.to_string());
    }

    proptest! {
        /// Any text becomes a header that decodes to the same text.
        #[test]
        fn any_detail_is_a_grpc_message(detail in any::<String>()) {
            let refusal = Refusal::new(Reason::BadKey, Protocol::Grpc).with_detail(detail.as_str());
            let (_, headers, _) = refused(&refusal);
            let message = headers["grpc-message"].to_str().unwrap();
            prop_assert_eq!(percent_decode_str(message).decode_utf8().unwrap(), detail);
        }
    }
}
