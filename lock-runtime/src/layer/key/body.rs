//! A key from the body of the request.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::pin::{Pin, pin};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::request::Parts;
use http::{Request, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError};

use super::{AsyncKeyExtractor, Extraction, Found, IntoRequestKeys, Rejection};
use crate::layer::body::BoxError;

/// A key that comes from the head and the body of the request; made by [`body`].
#[derive(Clone)]
pub struct BodyKey<F> {
    key: F,
    longest: usize,
}

/// Returns a key that comes from the head and the body of the request. The body is read to its end
/// first, and then passed to the handler in one piece. For
/// [`LockLayer::new_async`](crate::layer::LockLayer::new_async).
///
/// ```
/// use http::request::Parts;
/// use lock_runtime::layer::{Rejection, body};
///
/// // {"account": 7, "amount": 100}, of at most 16 KiB
/// let key = body(16 * 1024, |_: &Parts, body: &[u8]| {
///     let charge: serde_json::Value =
///         serde_json::from_slice(body).map_err(|_| Rejection::new("The body is not JSON."))?;
///     let account = charge["account"].as_u64().ok_or("The body names no `account`.")?;
///     Ok::<_, Rejection>(format!("account:{account}"))
/// });
/// ```
///
/// - A body of more than `longest` bytes is refused with 413. While it is read, a request keeps up
///   to twice `longest` bytes in memory, so put a concurrency limit outside.
/// - No lock is held while the body arrives, so a slow client keeps no other request waiting. Only
///   the server limits how long it may take.
/// - Trailers of the request are lost. A body that fails is answered with 400.
/// - The body's type has to be constructible from bytes, as `axum::body::Body` is.
///
/// # Cancel safety
///
/// If the client leaves, the part of the body that has arrived is dropped.
#[must_use]
pub fn body<F, R>(longest: usize, key: F) -> BodyKey<F>
where
    F: Fn(&Parts, &[u8]) -> R,
    R: IntoRequestKeys,
{
    BodyKey { key, longest }
}

impl<B, F, R> AsyncKeyExtractor<B> for BodyKey<F>
where
    B: Body<Data: Send, Error: Into<BoxError>> + From<Bytes> + Send + 'static,
    F: Fn(&Parts, &[u8]) -> R + Clone + Send + 'static,
    R: IntoRequestKeys,
{
    type Future = Pin<Box<dyn Future<Output = (Request<B>, Found)> + Send>>;

    fn extract(&self, request: Request<B>) -> Extraction<B, Self::Future> {
        let Self { key, longest } = self.clone();
        Extraction::Pending(Box::pin(async move {
            let (head, body) = request.into_parts();
            let (body, keys) = match read(body, longest).await {
                Ok(body) => (body.clone(), key(&head, &body).into_request_keys()),
                Err(rejection) => (Bytes::new(), Err(rejection)),
            };
            (Request::from_parts(head, body.into()), keys)
        }))
    }
}

/// Reads a body to its end and returns it in one piece.
async fn read<B>(body: B, longest: usize) -> Result<Bytes, Rejection>
where
    B: Body<Error: Into<BoxError>>,
{
    let mut body = pin!(body);
    // Refused before the body is read, so a client that sent `Expect: 100-continue` need not send
    // it.
    if body.size_hint().lower() > longest as u64 {
        return Err(longer_than(longest));
    }
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unread(&*error.into()))?;
        if let Ok(data) = frame.into_data() {
            if data.remaining() > longest - all.len() {
                return Err(longer_than(longest));
            }
            all.put(data);
        }
    }
    Ok(all.freeze())
}

fn longer_than(longest: usize) -> Rejection {
    too_long(format!("The body is longer than {longest} bytes."))
}

fn too_long(detail: impl Into<Cow<'static, str>>) -> Rejection {
    Rejection::with_status(StatusCode::PAYLOAD_TOO_LARGE, detail)
}

/// Returns the refusal for a body that failed. The limit of an outer layer may be several sources
/// deep in the error.
fn unread(error: &(dyn Error + 'static)) -> Rejection {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return too_long("The body is too long.");
        }
        cause = error.source();
    }
    Rejection::new("The body could not be read to its end.")
}

impl<F> fmt::Debug for BodyKey<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyKey").field("longest", &self.longest).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{Channel, Full};

    use super::super::Keys;
    use super::*;

    async fn read<B, K: AsyncKeyExtractor<B>>(key: &K, body: B) -> (Request<B>, Result<String, u16>) {
        let Extraction::Pending(read) = key.extract(Request::new(body)) else { panic!("not read") };
        let (request, keys) = read.await;
        let text = match keys {
            Ok(Some(keys)) => match keys.into_inner() {
                Keys::One(key) => Ok(key.to_string()),
                Keys::Several(_) => panic!("several keys"),
            },
            Ok(None) => Ok("none".into()),
            Err(rejection) => Err(rejection.status().as_u16()),
        };
        (request, text)
    }

    fn key() -> impl Fn(&Parts, &[u8]) -> String + Clone + Send + 'static {
        |head, body| format!("{}:{}", head.method, String::from_utf8_lossy(body))
    }

    /// The handler gets the body as it was sent.
    #[tokio::test]
    async fn a_body_is_the_key_and_is_given_back() {
        let (request, text) = read(&body(3, key()), Full::<Bytes>::from("abc")).await;
        assert_eq!(text, Ok("GET:abc".into()));
        assert_eq!(request.into_body().collect().await.unwrap().to_bytes(), "abc");
    }

    /// A body that is too long is the client's mistake, whether or not its length was announced.
    #[tokio::test]
    async fn a_long_body_is_refused() {
        assert_eq!(read(&body(3, key()), Full::<Bytes>::from("abcd")).await.1, Err(413));
    }

    /// A body that arrives in pieces, and one that fails.
    #[tokio::test]
    async fn a_body_may_come_in_pieces_and_may_fail() {
        struct Pieces(Channel<Bytes, BoxError>);

        impl From<Bytes> for Pieces {
            fn from(_: Bytes) -> Self {
                Self(Channel::new(1).1)
            }
        }

        impl Body for Pieces {
            type Data = Bytes;
            type Error = BoxError;

            fn poll_frame(
                mut self: Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, BoxError>>> {
                Pin::new(&mut self.0).poll_frame(cx)
            }
        }

        let (mut sender, pieces) = Channel::new(2);
        sender.send_data(Bytes::from("ab")).await.unwrap();
        sender.send_data(Bytes::from("c")).await.unwrap();
        drop(sender);
        assert_eq!(read(&body(3, key()), Pieces(pieces)).await.1, Ok("GET:abc".into()));

        // An outer layer has a limit, and its error is the source of another error.
        #[derive(Debug, thiserror::Error)]
        #[error("outside")]
        struct Outside(#[source] BoxError);
        let inner = http_body_util::Limited::new(Full::<Bytes>::from("abc"), 1).collect().await.unwrap_err();
        let (sender, pieces) = Channel::new(2);
        sender.abort(Outside(inner).into());
        assert_eq!(read(&body(3, key()), Pieces(pieces)).await.1, Err(413));

        let (sender, pieces) = Channel::new(2);
        sender.abort("gone".into());
        assert_eq!(read(&body(3, key()), Pieces(pieces)).await.1, Err(400));
    }
}
