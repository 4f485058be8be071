//! A [tower] layer that locks each request with its own key.
//!
//! Two requests for the same order wait for each other, whichever instance of the service they
//! reach; requests for different orders don't. Put [`LockLayer`] around any service from
//! `http::Request` to `http::Response`: axum, tonic, hyper, or tower by itself.
//!
//! For each request, a [`KeyExtractor`] finds the key, the request waits for the lock of that key,
//! and the inner service runs under it. The lock is released when the handler has returned, or at
//! the end of the response's body. A request that does not get its lock is refused with a response
//! that [`Refuse`] builds.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::convert::Infallible;
//! use std::time::Duration;
//!
//! use http::{Method, Request, Response, StatusCode};
//! use http_body_util::{Empty, Full};
//! use lock_runtime::layer::{LockLayer, path_segment};
//! use lock_runtime::{HeldLock, LockManager};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//!
//! async fn ship(request: Request<Empty<&'static [u8]>>) -> Result<Response<Full<bytes::Bytes>>, Infallible> {
//!     let held = request.extensions().get::<HeldLock>().expect("it is locked");
//!     Ok(Response::new(Full::from(format!("token {}", held.fencing_token()))))
//! }
//!
//! let locks = LockManager::connect("memory:").await?;
//! // PUT /orders/42/status: the lock `order:42`
//! let layer = LockLayer::new(locks, path_segment(1).prefix("order:")).wait(Duration::from_secs(5));
//! let mut service = ServiceBuilder::new().layer(layer).service(service_fn(ship));
//!
//! let request = Request::builder().method(Method::PUT).uri("/orders/42/status").body(Empty::new())?;
//! let response = service.ready().await?.call(request).await?;
//! assert_eq!(response.status(), StatusCode::OK);
//! # Ok(()) }
//! ```
//!
//! # Which requests are locked, and with what
//!
//! A [`KeyExtractor`] derives the key of a request from its head: [`path_segment`], [`query`],
//! [`header`], [`extension`], [`grpc_metadata`], [`constant`], the [first of several](first_of),
//! several [joined](joined()), or a closure `|head: &http::request::Parts| …`. With the feature
//! `axum`, there is also `path_param`. An extractor may name [several keys](RequestKeys::several),
//! which are taken all or nothing. Use [`LockLayer::new_async`] when the key is in the body
//! ([`body`](body())), or comes from one of axum's extractors (`extractor`, feature `axum`).
//!
//! - A request with a method of [`skip_methods`](LockLayer::skip_methods), by default GET, HEAD,
//!   OPTIONS, TRACE and CONNECT, goes straight to the inner service. Alternatively,
//!   [`only_methods`](LockLayer::only_methods) lists the methods to lock. With
//!   `.kind(Kind::Write).kind_for([Method::GET], Kind::Read)`, GETs are readers and all others
//!   writers; see [`kind_for`](LockLayer::kind_for).
//! - A request without a key is refused, passed on without a lock, or locked with a fixed key: see
//!   [`on_missing_key`](LockLayer::on_missing_key).
//! - Every other request waits for its lock, by default for as long as the manager's `default_wait`
//!   (10 s). A [`LockWait`] in its extensions overrides that.
//!
//! Clients choose what is in their requests. So the extractors of headers, paths, queries and
//! metadata limit the length of values, refuse braces, and can [hash](key::PartKey::hashed) the
//! value. A closure has to check its values itself; otherwise a client can choose the cluster slot
//! of its key with a `{tag}`. Give each use its own [`prefix`](key::PartKey::prefix), and put the
//! layer behind authentication, so that only authenticated clients can take locks.
//!
//! # What a key costs
//!
//! Each key that was ever locked leaves its fencing counter at the store. On Redis, that is some
//! 200 bytes for 15 minutes after its last use; see
//! [`token_retention`](LockLayer::token_retention). The lock comes before the handler, so this
//! includes ids that the handler answers with 404. At 1000 requests a second with a new key each,
//! there are about 900 000 counters, 200 MB. A server whose memory is full refuses every lock:
//! limit the rate of requests outside, or set a shorter retention. A minute is safe if the servers'
//! clocks are right, since a new counter begins with the time of day.
//!
//! # How long a lock is held
//!
//! | [`HeldUntil`] | the lock is released |
//! |---|---|
//! | `Response`, the default | when the handler has returned, before the response is sent |
//! | `BodyEnd` | with the last frame of the response's body, with its error, or when it is dropped |
//!
//! The response does not wait for the release. A client that repeats its request at once queues
//! behind the release and is not refused (see [`no_wait`](LockLayer::no_wait) for fair locks and
//! several keys). A handler that runs for longer than a lease keeps its lock, which is renewed. A
//! connection that is upgraded, for example to a WebSocket, has no body, so it is not locked.
//!
//! After [`max_hold`](LockLayer::max_hold), 60 s by default, the lock counts as lost. Handlers and
//! axum's extractors read the request's body under the lock. Without the limit, a client that sends
//! it slowly could hold the lock indefinitely. [`body`](body()) reads it before the lock is taken.
//!
//! # What handlers see
//!
//! The extensions of a locked request and of its response contain a [`HeldLock`](crate::HeldLock):
//! the key, the fencing token, the time left, the lost signal. With the feature `axum`, it is also
//! an extractor; use `Option<HeldLock>` where requests may pass without a lock.
//!
//! The handler, and a body that is sent under the lock, run in its scope. A function with
//! `#[distributed_lock]` on the same key and [kind](LockLayer::kind) re-enters the lock, and so
//! does a read inside a write. Any other mix is a [`KindConflict`](crate::LockError::KindConflict).
//! Tasks that the handler spawns are outside the scope, unless they are spawned with
//! [`in_current_scope`](crate::in_current_scope).
//!
//! If two layers are nested, the extensions of request and response contain the lock of the inner
//! one. If the inner layer lets a request pass without a lock, the handler sees no `HeldLock` at
//! all.
//!
//! The current span around the layer, such as that of tower-http's `TraceLayer`, gets `lock.key`,
//! `lock.token` and `lock.wait_ms`, if it has declared these fields.
//!
//! # When the client leaves, when things go wrong
//!
//! | event | the lock | the request |
//! |---|---|---|
//! | the client leaves while the request waits | the request leaves the queue | |
//! | the client leaves while the handler runs | released after the handler was dropped | dropped where it is suspended; with [`detached`](LockLayer::detached) it runs to its end |
//! | the client leaves in mid-body | released after the body was dropped | |
//! | the client stops reading in mid-body | free after `max_hold` and the rest of the lease | the body stays until the connection goes |
//! | the handler panics | released | as without the layer |
//! | the body fails | released | as without the layer |
//! | the lock is lost while the handler runs | lost | dropped where it is suspended, 500; or it [finishes](OnLost::Finish) |
//! | the handler returns a response after the lock was lost | lost | its response, with [`LostLock`] in the extensions; 500 if the rest of the body was to be sent under the lock |
//! | the lock is lost in mid-body | lost | the body ends with an error, or with gRPC trailers that say `ABORTED` |
//! | the store is down | not taken | 503; or it [goes on without a lock](StoreDown::PassThrough) |
//!
//! Over HTTP/2, the server sees at once that a client has left. Over HTTP/1, the server only sees
//! it while it is reading. The server of hyper reads once the whole body of the request has
//! arrived, with nothing behind it. So a request with an unread body, or one that is followed by
//! the next request, goes on waiting for its lock, and is executed. Servers have time-outs for
//! that.
//!
//! A handler that was dropped may have done half of its work. Where that is not acceptable, use a
//! transaction, or [`detached`](LockLayer::detached) and the fencing token.
//!
//! # What a refused client is told
//!
//! Refusals are responses and not errors: the service's `Error` type does not change. By default,
//! [`ProblemDetails`] builds them: as `application/problem+json` ([RFC 9457]), or as a gRPC status
//! for requests with the content type `application/grpc`. The `type` is `urn:problem-type:lock:`
//! and the reason. In gRPC, `google.rpc.ErrorInfo` has the reason in the form `LOCK_BUSY`.
//!
//! | [`Reason`] | HTTP | gRPC | retry |
//! |---|---|---|---|
//! | `busy`: another request has the lock, and the layer does not wait | 409 | `ABORTED` | after `Retry-After` |
//! | `timed_out`: the lock was not free before the wait ended | 429 | `RESOURCE_EXHAUSTED` | after `Retry-After` |
//! | `too_many_waiters` | 429 | `RESOURCE_EXHAUSTED` | after `Retry-After` |
//! | `store_down` | 503 | `UNAVAILABLE` | after `Retry-After` |
//! | `shut_down`: this instance is shutting down | 503 | `UNAVAILABLE` | after `Retry-After` |
//! | `lost`: the handler was dropped | 500 | `ABORTED` | if that is safe |
//! | `bad_key`, `missing_key` | 400 | `INVALID_ARGUMENT` | no |
//! | `misconfigured` | 500 | `INTERNAL` | no |
//!
//! `Retry-After` is at most the rest of the lock's lease, and at most
//! [`longest_retry_after`](LockLayer::longest_retry_after) (5 s). If nothing is known, it is three
//! seconds. Each client is told a random time between half of that and all of it. gRPC has it as
//! `grpc-retry-pushback-ms` and as `google.rpc.RetryInfo`.
//!
//! No client is invited to repeat a request whose handler may have begun. That is the case if the
//! request lost its lock, or if its handler returned the error of a lock that it took itself. In
//! gRPC, the pushback is then -1. In HTTP, there is no `Retry-After`, and `lost` does not have a
//! status that gateways retry by themselves.
//!
//! A refusal contains nothing about the store, the key or its holder; the log and the metric
//! `lock_layer_refused_total` have the reason. A mistake in the program is an error in the log, and
//! only there: install a [tracing] subscriber, or you see nothing but a 500. Building a layer with
//! an impossible setting panics. [`refuse_with`](LockLayer::refuse_with) builds other responses,
//! for example with other [statuses](Refusal::with_status) or [types](Refusal::with_problem_type).
//! It does not change the trailers of a stream that is cut off.
//!
//! # Other layers
//!
//! - Concurrency limits belong outside the lock, and [`max_waiters`](LockLayer::max_waiters) caps
//!   the waiting requests. The effect of a limit inside depends on where it is:
//!   - In axum, and around one service of a tonic server, it is asked only when the lock is held.
//!     The request then waits for a permit while it holds the lock. If handlers take locks too,
//!     that can deadlock until a wait times out.
//!   - In a bare tower stack, such as one `ServiceBuilder` or the layers of
//!     `tonic::transport::Server`, it is asked before the request arrives. Its permit is kept while
//!     the request waits for its lock. Waiting requests count, so one hot key can use up the limit.
//! - A time-out outside drops the handler, as a client that leaves does. Make it longer than the
//!   wait, or it hides the 429. A gRPC request does not wait for longer than its `grpc-timeout`.
//! - Body size limits, `CorsLayer` and `GrpcWebLayer` belong outside. Browsers can read the reason
//!   of a refusal only if CORS allows it, and `Retry-After` only if it is exposed. Without
//!   `GrpcWebLayer` outside, a gRPC-Web client gets a refusal as a plain HTTP status.
//! - An outer layer that answers without reading the body to its end drops the body, and so
//!   releases the lock.
//! - If two layers are nested, the inner one re-enters the lock of the outer one if they have the
//!   same key. With two keys, nest the layers in the same order on all routes, or requests can
//!   deadlock; one layer with both keys can't. [Detach](LockLayer::detached) all of them or none.
//!
//! # Idempotency keys
//!
//! A lock keeps two requests apart; it does not know that the second one is a repetition of the
//! first. A client that gets no answer repeats its request, which is then executed twice, one after
//! the other. An idempotency key closes that gap. Take its lock, then look for a stored response.
//! Send it if there is one; otherwise do the work and store the response *in the same transaction*.
//! The layer takes the lock, with the key in the example of [`joined`](joined()); the handler looks
//! up and stores. Where a key is unique only per endpoint, add
//! [`of_method_and_path`](key::PartKey::of_method_and_path). Look for the response only under the
//! lock: the previous holder may have just stored it.
//!
//! The IETF's draft adds more rules. The same key with another request gets 422. A repetition while
//! the first request is still running gets 409, as with [`no_wait`](LockLayer::no_wait). Its header
//! is a structured field, so one client may send `"abc"` in quotes where another sends `abc`. Those
//! are two texts, and so two locks. A closure can remove the quotes.
//!
//! # In axum
//!
//! Path parameters are known once a route has matched, so the layer has to be inside the router:
//!
//! | | parameters | requests to no route |
//! |---|---|---|
//! | `Router::route_layer` | yes | 404, without a lock |
//! | `MethodRouter::layer`, `route_layer` | yes | 404, without a lock |
//! | `Router::layer` | yes | pass the layer too, which finds no parameters: 500, or as with `optional`; those with skipped methods 404 |
//! | around the router | no: 500 | |
//!
//! Most programs want `Router::route_layer`. A layer applies to all routes that were added before
//! it, so all of them need the parameter. A method that a route does not have is answered with 405,
//! but inside the layer. Such a request waits for the lock too, except with
//! `MethodRouter::route_layer`. `LockManager` is `Clone`, so it can be part of the router's state.
//!
//! # gRPC
//!
//! `tonic::transport::Server::builder().layer(layer)` locks all methods of all services. That
//! includes the health check, which has no key: let it through with [`MissingKey::Skip`], or put
//! the layer around one service. [`grpc_metadata`] and [`path_segment`] (0 is the service, 1 the
//! method) find the key. gRPC uses POST, so no method is skipped. For a stream that is locked to
//! its end, use [`HeldUntil::BodyEnd`].
//!
//! With the feature `tonic`, a [`LockError`](crate::LockError) converts into a `tonic::Status`. So
//! a unary method can have the attribute instead, and take its key from the message:
//! `key = format!("order:{}", request.get_ref().order_id)`. Such a status never invites the client
//! to repeat the call, since it may come from a lock inside the method; the layer's refusals do.
//!
//! [tower]: https://docs.rs/tower
//! [tracing]: https://docs.rs/tracing
//! [RFC 9457]: https://www.rfc-editor.org/rfc/rfc9457

mod admission;
#[cfg(feature = "axum")]
mod axum;
mod body;
mod future;
pub mod key;
#[expect(clippy::module_inception, reason = "as in tower-http: one file for the layer, one for the service")]
mod layer;
mod marks;
mod metrics;
mod mode;
mod refusal;
mod service;
mod settings;
mod told;
#[cfg(feature = "tonic")]
mod tonic;

#[cfg(feature = "axum")]
pub use self::axum::NotLocked;
pub use body::{BoxError, LockBody};
pub use future::ResponseFuture;
pub use key::{
    AsyncKeyExtractor, Extraction, IntoRequestKeys, KeyExtractor, PartKey, Rejection, RequestKeys, body,
    constant, extension, first_of, grpc_metadata, header, joined, path_segment, query,
};
#[cfg(feature = "axum")]
pub use key::{extractor, extractor_with_state, path_param};
pub use layer::{DetachedLockLayer, LockLayer};
pub use marks::{LockWait, LostLock, Unlocked};
pub use mode::{Detached, Inline, Mode};
pub use refusal::{ProblemDetails, Protocol, Reason, Refusal, Refuse};
pub use service::LockService;
pub use settings::{HeldUntil, MissingKey, StoreDown};

pub use crate::guarded::OnLost;
