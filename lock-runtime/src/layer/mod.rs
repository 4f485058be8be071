//! A [tower] layer that locks each request with a key of its own.
//!
//! Two requests for the same order wait for each other, whichever instance of the service they come
//! to; requests for different orders don't. Put [`LockLayer`] around any service from
//! `http::Request` to `http::Response`: axum, tonic, hyper, or tower by itself.
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
//! A [`KeyExtractor`] makes the key of a request out of its head: [`path_segment`], [`query`],
//! [`header`], [`extension`], [`grpc_metadata`], [`constant`], the [first of several](first_of),
//! several [joined](joined()), or a closure `|head: &http::request::Parts| …`. With the feature
//! `axum`, also `path_param`. An extractor may name [several keys](RequestKeys::several), which are
//! taken all or nothing. Use [`LockLayer::new_async`] when the key is in the body
//! ([`body`](body())), or comes from one of axum's extractors (`extractor`, feature `axum`).
//!
//! - A request of a method in [`skip_methods`](LockLayer::skip_methods), by default GET, HEAD,
//!   OPTIONS, TRACE and CONNECT, goes straight to the inner service; or
//!   [`only_methods`](LockLayer::only_methods) says which are locked. With
//!   `.kind(Kind::Write).kind_for([Method::GET], Kind::Read)`, GETs are readers and all others
//!   writers; see [`kind_for`](LockLayer::kind_for).
//! - A request for which there is no key goes by [`on_missing_key`](LockLayer::on_missing_key):
//!   refused, let through, or locked with a fixed key.
//! - Every other one waits for its lock, by default for as long as the manager's `default_wait`
//!   says (10 s). A [`LockWait`] in its extensions says otherwise.
//!
//! Clients choose what is in their requests, so the extractors of headers, paths, queries and
//! metadata take values of a limited length and without braces, and can
//! [hash](key::PartKey::hashed) them. A closure has to do so itself, or a client can choose the
//! cluster slot of its key by a `{tag}`. Give each use a [`prefix`](key::PartKey::prefix) of its
//! own, and put the layer behind authentication, so that nobody can take locks without being let
//! in.
//!
//! # What a key costs
//!
//! Each key that was ever locked leaves its fencing counter at the store: on Redis some 200 bytes
//! for 15 minutes after its last use, see [`token_retention`](LockLayer::token_retention). The lock
//! comes before the handler, so this holds for an id that the handler answers with 404, too. 1000
//! requests a second with a new key each keep about 900 000 counters, 200 MB. A server that is full
//! refuses every lock: limit the rate of requests outside, or set a shorter retention. A minute is
//! safe where the clocks of the servers are right, since a new counter begins with the time of day.
//!
//! # For how long
//!
//! | [`HeldUntil`] | the lock is released |
//! |---|---|
//! | `Response`, the default | when the handler has returned, before the response goes out |
//! | `BodyEnd` | with the last frame of the response's body, its error, or its drop |
//!
//! The response does not wait for the release. A client that repeats its request at once queues
//! behind it and is not refused (see [`no_wait`](LockLayer::no_wait) for fair locks and several
//! keys). A handler that runs for longer than a lease keeps its lock, which is renewed. A
//! connection that is upgraded, to a WebSocket for example, has no body: it is not locked.
//!
//! After [`max_hold`](LockLayer::max_hold), 60 s by default, the lock counts as lost. Handlers, and
//! the extractors of axum, read the request's body under the lock, so without that limit a client
//! that sends it slowly could hold the lock indefinitely. [`body`](body()) reads it before the lock
//! is taken.
//!
//! # What handlers see
//!
//! The extensions of a locked request, and of its response, have a [`HeldLock`](crate::HeldLock):
//! the key, the fencing token, the time left, the lost signal. With the feature `axum` it is an
//! extractor; use `Option<HeldLock>` where requests may pass without a lock.
//!
//! The handler, and a body that is sent under the lock, run in its scope. A function with
//! `#[distributed_lock]` on the same key and [kind](LockLayer::kind) enters it again. A read inside
//! a write does too; any other mix is a [`KindConflict`](crate::LockError::KindConflict). Tasks
//! that the handler spawns are outside of the scope, unless they are spawned with
//! [`in_current_scope`](crate::in_current_scope).
//!
//! Of two layers, one inside the other, both extensions have the lock of the inner one. If the
//! inner one lets a request pass without a lock, the handler sees no `HeldLock` at all.
//!
//! A span that is current around the layer, such as that of tower-http's `TraceLayer`, gets
//! `lock.key`, `lock.token` and `lock.wait_ms`, if it has declared these fields.
//!
//! # When the client leaves, when things go wrong
//!
//! | what happens | what becomes of the lock | what becomes of the request |
//! |---|---|---|
//! | the client leaves while the request waits | it leaves the queue | |
//! | the client leaves while the handler runs | released after the handler was dropped | dropped where it is suspended; with [`detached`](LockLayer::detached) it runs to its end |
//! | the client leaves in mid-body | released after the body was dropped | |
//! | the client stops reading in mid-body | free when `max_hold`, and what was left of the lease then, are over | the body stays until the connection goes |
//! | the handler panics | released | as without the layer |
//! | the body fails | released | as without the layer |
//! | the lock is lost while the handler runs | it is gone | dropped where it is suspended, 500; or it [finishes](OnLost::Finish) |
//! | the handler returns a response, and the lock was lost meanwhile | it is gone | its response, with [`LostLock`] in the extensions; 500 if the rest of the body was to be sent under the lock |
//! | the lock is lost in mid-body | it is gone | the body ends with an error, or with gRPC trailers that say `ABORTED` |
//! | the store is down | | 503; or it [goes on without a lock](StoreDown::PassThrough) |
//!
//! That a client has left is seen at once over HTTP/2. Over HTTP/1 the server has to be reading:
//! hyper's does once the whole body of the request has arrived and nothing behind it. So a request
//! with an unread body, or one that is followed by the next, goes on waiting for its lock, and is
//! executed. Servers have time-outs for that.
//!
//! A handler that was dropped may have done half of its work. Where that must not be, use a
//! transaction, or [`detached`](LockLayer::detached) and the fencing token.
//!
//! # What a refused client is told
//!
//! Refusals are responses and not errors: the service's `Error` stays what it is.
//! [`ProblemDetails`] makes them as `application/problem+json` ([RFC 9457]), and for requests with
//! the content type `application/grpc` as a gRPC status. The `type` is `urn:problem-type:lock:` and
//! the reason; in gRPC, `google.rpc.ErrorInfo` has it as `LOCK_BUSY` and so on.
//!
//! | [`Reason`] | HTTP | gRPC | retry |
//! |---|---|---|---|
//! | `busy`: another request has the lock, and the layer does not wait | 409 | `ABORTED` | after `Retry-After` |
//! | `timed_out`: still so when the wait was over | 429 | `RESOURCE_EXHAUSTED` | after `Retry-After` |
//! | `too_many_waiters` | 429 | `RESOURCE_EXHAUSTED` | after `Retry-After` |
//! | `store_down` | 503 | `UNAVAILABLE` | after `Retry-After` |
//! | `shut_down`: this instance is going away | 503 | `UNAVAILABLE` | after `Retry-After` |
//! | `lost`: the handler was dropped | 500 | `ABORTED` | if that is safe |
//! | `bad_key`, `missing_key` | 400 | `INVALID_ARGUMENT` | no |
//! | `misconfigured` | 500 | `INTERNAL` | no |
//!
//! `Retry-After` is at most what is left of the lock's lease, and at most
//! [`longest_retry_after`](LockLayer::longest_retry_after) (5 s); three seconds where nothing is
//! known. Each client is told a random time between the half and the whole. gRPC has it as
//! `grpc-retry-pushback-ms` and as `google.rpc.RetryInfo`. Nobody is invited to repeat a request
//! whose handler may have begun: one that lost its lock, or whose handler returned the error of a
//! lock of its own. For gRPC the pushback is -1 then; in HTTP there is no `Retry-After`, and no
//! status that gateways repeat by themselves for `lost`.
//!
//! Nothing of the store, the key or its holder is in a refusal; the log and the metric
//! `lock_layer_refused_total` have the reason. A mistake in the program is an error in the log, and
//! only there: install a subscriber of [tracing], or a 500 is all that you see. Building a layer
//! with an impossible setting panics. [`refuse_with`](LockLayer::refuse_with) makes other
//! responses, with other [statuses](Refusal::with_status) or [types](Refusal::with_problem_type)
//! for example; the trailers of a stream that is cut off stay as they are.
//!
//! # Other layers
//!
//! - Limits of concurrency belong outside of the lock, and [`max_waiters`](LockLayer::max_waiters)
//!   caps those that wait. What a limit inside does depends on where it is:
//!   - In axum, and around one service of a tonic server, it is asked only when the lock is held.
//!     The
//!     request then waits for a permit while it holds the lock. If handlers take locks too, that can
//!     deadlock until a wait times out.
//!   - In a bare tower stack, such as one `ServiceBuilder` or the layers of
//!     `tonic::transport::Server`, it
//!     is asked before the request comes, and its permit is kept while the request waits for its lock.
//!     Requests that wait count, so one hot key can use the limit up.
//! - A time-out outside drops the handler as a client that leaves does. Make it longer than the
//!   wait, or it hides the 429. A gRPC request does not wait for longer than its `grpc-timeout`.
//! - Limits of the body's length, `CorsLayer` and `GrpcWebLayer` belong outside. Browsers read the
//!   reason of a refusal only if CORS lets them, and `Retry-After` only if it is exposed; without
//!   `GrpcWebLayer` outside, a client of gRPC-Web gets a refusal as a plain HTTP status.
//! - A layer outside that answers without reading the body to its end drops the body, and with it
//!   the lock.
//! - Two layers one inside the other: for the same key the inner one enters again. With two keys,
//!   nest the layers in the same order on all routes, or requests can deadlock; one layer with both
//!   keys can't. [Detach](LockLayer::detached) all of them or none.
//!
//! # Idempotency keys
//!
//! A lock keeps two requests apart; it does not know that the second is a repetition of the first.
//! A client that gets no answer repeats its request, and then it is executed twice, one after the
//! other. An idempotency key closes that gap. Take its lock, then look for a stored response. Send
//! it if there is one; otherwise do the work and store the response *in the same transaction*. The
//! layer takes the lock, with the key of [`joined`](joined())'s example; looking and storing is the
//! handler's. Where a key is unique only per endpoint, add
//! [`of_method_and_path`](key::PartKey::of_method_and_path). Look after the lock is held and not
//! before: the request that had it until now has just stored what is looked for.
//!
//! The IETF's draft has more. The same key with another request gets 422. A repetition while the
//! first one still runs gets 409, as [`no_wait`](LockLayer::no_wait) does here. Its header is a
//! structured field, so a client may send `"abc"` in quotes where another sends `abc`: two texts,
//! and so two locks. A closure can take off the quotes.
//!
//! # In axum
//!
//! Path parameters are known once a route has matched, so the layer has to be inside of the router:
//!
//! | | parameters | requests to no route |
//! |---|---|---|
//! | `Router::route_layer` | yes | 404, without a lock |
//! | `MethodRouter::layer`, `route_layer` | yes | 404, without a lock |
//! | `Router::layer` | yes | pass the layer too, which finds no parameters: 500, or as `optional` says; those of skipped methods 404 |
//! | around the router | no: 500 | |
//!
//! `Router::route_layer` is what most programs want. A layer applies to all routes that were added
//! before it, and so has to find its parameter in all of them. A method that a route does not have
//! is answered with 405, but inside of the layer: such a request waits for the lock too, except
//! with `MethodRouter::route_layer`. `LockManager` is `Clone`, so that it can be a part of the
//! router's state.
//!
//! # gRPC
//!
//! `tonic::transport::Server::builder().layer(layer)` locks all methods of all services, the health
//! check too, which has no key: let it through with [`MissingKey::Skip`], or put the layer around
//! one service. [`grpc_metadata`] and [`path_segment`] (0 is the service, 1 the method) name the
//! key. gRPC is POST, so nothing is skipped. For a stream that is locked to its end use
//! [`HeldUntil::BodyEnd`]. With the feature `tonic`, a [`LockError`](crate::LockError) is a
//! `tonic::Status`, so a unary method can have the attribute instead, and take its key from the
//! message: `key = format!("order:{}", request.get_ref().order_id)`. Such a status never invites
//! the client to repeat the call, since it may come from a lock inside of the method; the layer's
//! refusals do.
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
