//! [`HeldLock`] as an axum extractor, and [`LockError`] as an axum response.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::{IntoResponse, Response};
use http::request::Parts;

use super::refusal::{ProblemDetails, Protocol, Reason, Refusal, Refuse};
use super::told::Told;
use crate::error::LockError;
use crate::guard::HeldLock;

/// Extracts the lock under which the request runs.
///
/// Use `Option<HeldLock>` in handlers that also run without a lock. That happens for skipped
/// methods, for requests without a key under [`MissingKey::Skip`](super::MissingKey::Skip), and
/// while the store is down under [`StoreDown::PassThrough`](super::StoreDown::PassThrough).
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl<S: Send + Sync> FromRequestParts<S> for HeldLock {
    type Rejection = NotLocked;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NotLocked> {
        parts.extensions.get::<Self>().cloned().ok_or(NotLocked(()))
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl<S: Send + Sync> OptionalFromRequestParts<S> for HeldLock {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}

/// Rejection of a handler that asked for the [`HeldLock`] of a request that has none. The response
/// is 500; the log says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this request runs without a lock: there is no `LockLayer` around its route, or the layer skips its method, or lets it \
     pass because it has no key or the store is down. If that is intended, use the extractor `Option<HeldLock>`"
)]
pub struct NotLocked(());

impl IntoResponse for NotLocked {
    fn into_response(self) -> Response {
        // The client can't do anything about a mistake in the program.
        static TOLD: Told = Told::new();
        if TOLD.is_due("") {
            tracing::error!(error = %self, "a handler asked for the lock of its request, which has none (logged once a minute)");
        }
        let refusal = Refusal::new(Reason::Misconfigured, Protocol::Http);
        ProblemDetails.refuse(&refusal).map(Body::from)
    }
}

/// Answers with the `application/problem+json` of [`ProblemDetails`], so that a handler can return
/// the errors of annotated functions with `?`. The error itself, with its key and cause, is in the
/// extensions of the response, for logs. A misconfiguration is logged as an error.
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl IntoResponse for LockError {
    fn into_response(self) -> Response {
        let mut response = ProblemDetails.refuse(&Refusal::of_handler(&self, Protocol::Http)).map(Body::from);
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
pub(super) mod tests {
    use axum::Router;
    use axum::extract::Extension;
    use axum::routing::any;
    use http::Request;
    use tower::ServiceExt;

    use super::*;
    use crate::{LockKey, LockManager};

    pub(in crate::layer) async fn text(response: Response) -> (u16, String) {
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    pub(in crate::layer) async fn get(router: &Router, uri: &str) -> (u16, String) {
        let request = Request::builder().uri(uri).body(Body::empty()).unwrap();
        text(router.clone().oneshot(request).await.unwrap()).await
    }

    pub(in crate::layer) fn found(key: &str) -> (u16, String) {
        (200, key.to_owned())
    }

    /// A handler gets the lock of its request, and an instructive error if there is none.
    #[tokio::test]
    async fn a_handler_gets_its_lock() {
        let locks = LockManager::connect("memory:").await.unwrap();
        let guard = locks.mutex("order:42").acquire().await.unwrap();
        let view = guard.view();
        let router =
            Router::new().route("/strict", any(async |held: HeldLock| held.key().to_string())).route(
                "/optional",
                any(async |held: Option<HeldLock>| held.map_or("none".into(), |held| held.key().to_string())),
            );
        let locked = router.clone().layer(Extension(view));
        assert_eq!(get(&locked, "/strict").await, found("order:42"));
        assert_eq!(get(&locked, "/optional").await, found("order:42"));
        assert_eq!(get(&router, "/optional").await, found("none"));
        let (status, detail) = get(&router, "/strict").await;
        assert_eq!(status, 500);
        assert!(!detail.contains("LockLayer"), "what to do is in the log: {detail}");
        guard.release().await.unwrap();
    }

    /// A handler's error is a problem response for the client, and is complete in the extensions,
    /// for logs.
    #[tokio::test]
    async fn an_error_is_a_response() {
        let error = LockError::Busy { key: LockKey::new("s3cret").unwrap(), remaining: None };
        let response = error.into_response();
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert!(response.extensions().get::<LockError>().unwrap().to_string().contains("s3cret"));
        let (status, body) = text(response).await;
        assert_eq!(status, 409);
        assert!(body.contains("urn:problem-type:lock:busy") && !body.contains("s3cret"), "{body}");
    }
}
