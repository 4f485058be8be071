//! `layer`: what the tower layer adds to a request.
//!
//! The first part uses the memory store, without any network. It calls a service whose `clone`
//! allocates, as axum's does, bare and behind the layer in turn; and it takes and drops a lock
//! without either. Each is timed in batches that take much longer than reading the clock.
//!
//! The second part is an axum server over loopback with its locks on the server: a PING, a bare
//! request and a locked one in turn, over one connection.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use lock_runtime::LockManager;
use lock_runtime::layer::{LockLayer, path_segment};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, Service};

use super::common::{AFTER_ERROR, Errors, WARM_UP};
use crate::alloc;
use crate::args::Options;
use crate::backend::Backend;
use crate::meter::Meter;
use crate::report::Report;
use crate::server::Urls;
use crate::stats::{Samples, Waits, round};

/// Requests between two readings of the clock.
const BATCH: u32 = 50;
/// Requests whose allocations are counted in one round.
const COUNTED: u32 = 1000;
/// Rounds in which allocations are counted.
const ROUNDS: u32 = 10;

pub(super) async fn run(options: &Options, urls: &Urls) -> Result<Report, String> {
    let bare = calls(options).await?;
    let Backend::Ours(locks) = Backend::connect(options, urls).await? else {
        return Err("only --lib ours has the layer".to_owned());
    };
    let mut meter = Meter::connect(options, urls).await?;
    let mut client = Client::of_a_server_with(&locks).await?;
    client.rounds(options, &mut meter, WARM_UP).await?;
    let start = meter.start().await?;
    let http = client.rounds(options, &mut meter, options.secs / 2).await?;
    let cost = meter.end(&start).await?;

    let added = |with: &Samples, without: &Samples| {
        with.percentile(50.0).zip(without.percentile(50.0)).map(|(with, without)| round(with - without))
    };
    let nanos = |micros: f64| round(micros * 1000.0 / f64::from(BATCH));
    Ok(Report {
        tasks: 1,
        hold_us: 0,
        grants: http.locked.count(),
        errors: http.errors.0,
        waits: Waits::from(&http.locked),
        cost,
        extra: vec![
            ("added_ns_p50", json!(added(&bare.locked, &bare.plain).map(nanos))),
            ("pair_ns_p50", json!(bare.pairs.percentile(50.0).map(nanos))),
            ("allocs_added", json!(round(bare.allocations - bare.pair_allocations))),
            ("pair_allocs", json!(round(bare.pair_allocations))),
            ("skip_added_ns", json!(added(&bare.skipped, &bare.plain_get).map(nanos))),
            ("skip_allocs_added", json!(round(bare.skip_allocations))),
            ("http_added_p50_us", json!(added(&http.locked, &http.plain))),
            ("ping_p50_us", json!(http.pings.percentile(50.0))),
        ],
    })
}

/// A service that answers at once. Each clone allocates.
#[derive(Clone)]
struct Handler(Box<u64>);

impl Service<Request<Empty<Bytes>>> for Handler {
    type Response = Response<Empty<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Empty<Bytes>>) -> Self::Future {
        *self.0 += 1;
        ready(Ok(Response::new(Empty::new())))
    }
}

/// The cost of calls without a network, batch by batch.
struct Calls {
    plain: Samples,
    locked: Samples,
    plain_get: Samples,
    skipped: Samples,
    pairs: Samples,
    allocations: f64,
    pair_allocations: f64,
    skip_allocations: f64,
}

async fn calls(options: &Options) -> Result<Calls, String> {
    let builder = LockManager::builder().lease(options.lease);
    let locks = builder.connect("memory:").await.map_err(|error| error.to_string())?;
    let mut plain = Handler(Box::new(0));
    let mut locked = layer(&locks).layer(plain.clone());
    let uris: Result<Vec<Uri>, _> = (0..options.keys).map(|key| format!("/orders/{key}").parse()).collect();
    let uris = uris.map_err(|error| error.to_string())?;

    let keys: Vec<String> = (0..options.keys).map(|key| format!("order:{key}")).collect();
    batches(&mut plain, &mut locked, &locks, &uris, &keys, WARM_UP).await;
    let mut calls = batches(&mut plain, &mut locked, &locks, &uris, &keys, options.secs / 2).await;
    for (method, added) in
        [(Method::POST, &mut calls.allocations), (Method::GET, &mut calls.skip_allocations)]
    {
        let mut uris = uris.iter().cycle();
        // Background tasks allocate now and then, so the least of several rounds is what the calls
        // need.
        let (mut bare, mut with) = (u64::MAX, u64::MAX);
        for _ in 0..ROUNDS {
            bare = bare.min(alloc::count(batch(&mut plain, &method, &mut uris, COUNTED)).await.1);
            with = with.min(alloc::count(batch(&mut locked, &method, &mut uris, COUNTED)).await.1);
        }
        *added = (with as f64 - bare as f64) / f64::from(COUNTED);
    }
    let (mut keys, mut least) = (keys.iter().cycle(), u64::MAX);
    for _ in 0..ROUNDS {
        least = least.min(alloc::count(pairs(&locks, &mut keys, COUNTED)).await.1);
    }
    calls.pair_allocations = least as f64 / f64::from(COUNTED);
    Ok(calls)
}

fn layer(locks: &LockManager) -> LockLayer<lock_runtime::layer::PartKey> {
    LockLayer::new(locks.clone(), path_segment(1).prefix("order:"))
}

async fn batches<S>(
    plain: &mut Handler,
    locked: &mut S,
    locks: &LockManager,
    uris: &[Uri],
    keys: &[String],
    time: Duration,
) -> Calls
where
    S: Service<Request<Empty<Bytes>>, Error = Infallible>,
{
    let mut calls = Calls {
        plain: Samples::new(),
        locked: Samples::new(),
        plain_get: Samples::new(),
        skipped: Samples::new(),
        pairs: Samples::new(),
        allocations: 0.0,
        pair_allocations: 0.0,
        skip_allocations: 0.0,
    };
    let (mut uris, mut keys) = (uris.iter().cycle(), keys.iter().cycle());
    let end = Instant::now() + time;
    while Instant::now() < end {
        let start = Instant::now();
        pairs(locks, &mut keys, BATCH).await;
        calls.pairs.record(start.elapsed());
        for (method, bare, with) in [
            (Method::POST, &mut calls.plain, &mut calls.locked),
            (Method::GET, &mut calls.plain_get, &mut calls.skipped),
        ] {
            let start = Instant::now();
            batch(plain, &method, &mut uris, BATCH).await;
            let between = Instant::now();
            batch(locked, &method, &mut uris, BATCH).await;
            with.record(between.elapsed());
            bare.record(between - start);
        }
    }
    calls
}

async fn batch<'u, S>(service: &mut S, method: &Method, uris: &mut impl Iterator<Item = &'u Uri>, count: u32)
where
    S: Service<Request<Empty<Bytes>>, Error = Infallible>,
{
    for uri in uris.take(count as usize) {
        let mut request = Request::new(Empty::new());
        *request.method_mut() = method.clone();
        *request.uri_mut() = uri.clone();
        let Ok(()) = std::future::poll_fn(|cx| service.poll_ready(cx)).await;
        let Ok(response) = service.call(request).await;
        drop(response);
    }
}

/// Takes locks and drops their guards.
async fn pairs<'k>(locks: &LockManager, keys: &mut impl Iterator<Item = &'k String>, count: u32) {
    for key in keys.take(count as usize) {
        drop(locks.mutex(key).acquire().await);
    }
}

/// One connection to a server with a bare route and a locked one.
struct Client {
    address: SocketAddr,
    requests: SendRequest<Empty<Bytes>>,
}

struct Http {
    plain: Samples,
    locked: Samples,
    pings: Samples,
    errors: Errors,
}

impl Client {
    async fn of_a_server_with(locks: &LockManager) -> Result<Self, String> {
        Self::connect(locks).await.map_err(|error| format!("no axum server over loopback: {error}"))
    }

    async fn connect(locks: &LockManager) -> Result<Self, Box<dyn std::error::Error>> {
        let app = Router::new()
            .route("/orders/{id}", post(|| async {}).layer(layer(locks)))
            .route("/bare/{id}", post(|| async {}));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        // It ends with the process.
        tokio::spawn(async move { axum::serve(listener, app).await });
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { address, requests })
    }

    async fn rounds(&mut self, options: &Options, meter: &mut Meter, time: Duration) -> Result<Http, String> {
        let mut http = Http {
            plain: Samples::new(),
            locked: Samples::new(),
            pings: Samples::new(),
            errors: Errors::default(),
        };
        let end = Instant::now() + time;
        for key in (0..options.keys).cycle() {
            if Instant::now() >= end {
                break;
            }
            for (route, samples) in [("bare", &mut http.plain), ("orders", &mut http.locked)] {
                match self.post(&format!("/{route}/{key}")).await {
                    Ok(took) => samples.record(took),
                    Err(error) => {
                        http.errors.add(&error);
                        tokio::time::sleep(AFTER_ERROR).await;
                    }
                }
            }
            if let Some(trip) = meter.ping().await? {
                http.pings.record(trip);
            }
        }
        Ok(http)
    }

    async fn post(&mut self, path: &str) -> Result<Duration, String> {
        let request = Request::post(path).header("host", self.address.to_string()).body(Empty::new());
        let request = request.map_err(|error| error.to_string())?;
        let asked = Instant::now();
        self.requests.ready().await.map_err(|error| error.to_string())?;
        let response = self.requests.send_request(request).await.map_err(|error| error.to_string())?;
        let took = asked.elapsed();
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?;
        drop(body);
        if status == StatusCode::OK { Ok(took) } else { Err(format!("{path} was answered with {status}")) }
    }
}
