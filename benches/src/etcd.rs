//! etcd's side of a measurement: a transaction that stands for a PING, and the mutex of etcd's own
//! Go client.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::uri::PathAndQuery;
use lock_tests::concurrency;
use lock_tests::process::Process;
use prost::Message;
use tokio::sync::oneshot;
use tonic::Request;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// Keys that are put and deleted in turn: as many as `latency` has.
const KEYS: u32 = 1000;

/// Time-to-live of the sessions of the Go client, in seconds. It is etcd's default.
const TTL: u32 = 60;

/// Returns etcd's own form of a store URL: `http://host:port`.
fn endpoint_of(url: &str) -> Result<String, String> {
    let hosts = url.strip_prefix("etcd://").filter(|hosts| !hosts.contains('@'));
    let hosts =
        hosts.ok_or("etcd can be measured without a user and without TLS only: `etcd://host:port`")?;
    let host = hosts.split(['/', ',']).next().unwrap_or_default();
    Ok(format!("http://{host}"))
}

#[derive(Clone, PartialEq, Message)]
struct Grant {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Granted {
    #[prost(int64, tag = "2")]
    id: i64,
}

/// The condition that no key of this name is there, if `target` is [`CREATION`].
#[derive(Clone, PartialEq, Message)]
struct Compare {
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(int64, optional, tag = "5")]
    revision: Option<i64>,
}

const CREATION: i32 = 1;

#[derive(Clone, PartialEq, Message)]
struct First {
    #[prost(bytes = "vec", tag = "1")]
    from: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    to: Vec<u8>,
    #[prost(int64, tag = "3")]
    limit: i64,
    #[prost(int32, tag = "5")]
    order: i32,
    #[prost(int32, tag = "6")]
    by: i32,
}

/// The order of keys by their creation.
const BY_CREATION: i32 = 2;
const ASCENDING: i32 = 1;

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

/// One of them: they are a `oneof` of etcd's interface, which looks the same.
#[derive(Clone, PartialEq, Message)]
struct Step {
    #[prost(message, optional, tag = "1")]
    first: Option<First>,
    #[prost(message, optional, tag = "2")]
    put: Option<Put>,
    #[prost(message, optional, tag = "3")]
    delete: Option<Delete>,
}

#[derive(Clone, PartialEq, Message)]
struct Txn {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<Step>,
}

/// A client that makes the two transactions of etcd's own mutex, without a lock around them.
#[derive(Debug)]
pub(crate) struct Transactions {
    grpc: Grpc<Channel>,
    lease: i64,
    next: u32,
}

impl Transactions {
    pub(crate) async fn connect(url: &str) -> Result<Self, String> {
        let endpoint = Endpoint::from_shared(endpoint_of(url)?).map_err(|error| error.to_string())?;
        let channel = endpoint.tcp_nodelay(true).connect().await.map_err(|error| format!("etcd: {error}"))?;
        let mut transactions = Self { grpc: Grpc::new(channel), lease: 0, next: 0 };
        // Longer than any run, which so needs no keep-alives.
        let grant = Grant { ttl: 36_000 };
        let granted: Granted = transactions.call("/etcdserverpb.Lease/LeaseGrant", grant).await?;
        transactions.lease = granted.id;
        Ok(transactions)
    }

    /// Makes one transaction: puts a key with a lease and reads the first one of its name, or
    /// deletes that key.
    pub(crate) async fn make(&mut self) -> Result<(), String> {
        let name = format!("lock-bench-ping/{}", self.next / 2 % KEYS);
        let key = format!("{name}/{:x}", self.lease).into_bytes();
        let txn = if self.next.is_multiple_of(2) {
            let compare = Compare { target: CREATION, key: key.clone(), revision: Some(0) };
            // `0` follows `/`.
            let (from, to) = (format!("{name}/").into_bytes(), format!("{name}0").into_bytes());
            let first = First { from, to, limit: 1, order: ASCENDING, by: BY_CREATION };
            let put = Put { key, lease: self.lease };
            let put = Step { put: Some(put), ..Step::default() };
            let success = vec![put, Step { first: Some(first), ..Step::default() }];
            Txn { compare: vec![compare], success }
        } else {
            let delete = Step { delete: Some(Delete { key }), ..Step::default() };
            Txn { compare: Vec::new(), success: vec![delete] }
        };
        self.next = self.next.wrapping_add(1);
        self.call("/etcdserverpb.KV/Txn", txn).await
    }

    async fn call<Q, A>(&mut self, method: &'static str, request: Q) -> Result<A, String>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.grpc.ready().await.map_err(|error| format!("etcd: {error}"))?;
        let (path, codec) = (PathAndQuery::from_static(method), ProstCodec::<Q, A>::default());
        let answer = self.grpc.unary(Request::new(request), path, codec).await;
        answer.map(tonic::Response::into_inner).map_err(|status| format!("etcd: {status}"))
    }
}

/// A process that takes locks of etcd's Go client. It ends with the last handle.
#[derive(Clone)]
pub(crate) struct GoClient(Arc<Inner>);

struct Inner {
    input: Mutex<ChildStdin>,
    callers: Mutex<Callers>,
    _process: Process,
}

/// The callers of the process. Each has a session of its own.
#[derive(Default)]
struct Callers {
    count: usize,
    idle: Vec<usize>,
    asked: HashMap<usize, oneshot::Sender<String>>,
}

/// The holder of a lock of the process.
#[derive(Debug)]
pub(crate) struct Caller(usize);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GoClient {
    pub(crate) async fn connect(url: &str) -> Result<Self, String> {
        let mut command = Command::new(concurrency::build()?);
        command.arg(endpoint_of(url)?).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command, None).map_err(|error| error.to_string())?;
        let (input, output) =
            process.stdin().zip(process.stdout()).ok_or("the Go client has no input or output")?;
        let mut callers = Callers::default();
        let (ready, is_ready) = oneshot::channel();
        // The first line names no caller.
        callers.asked.insert(usize::MAX, ready);
        let inner = Inner { input: Mutex::new(input), callers: Mutex::new(callers), _process: process };
        let client = Self(Arc::new(inner));
        let read = Arc::downgrade(&client.0);
        std::thread::Builder::new()
            .name("go".to_owned())
            .spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let Some(inner) = read.upgrade() else { return };
                    let (caller, answer) = line.split_once(' ').unwrap_or(("", &line));
                    let caller = caller.parse().unwrap_or(usize::MAX);
                    let asked = lock(&inner.callers).asked.remove(&caller);
                    // Nobody listens if the caller has given up.
                    let _ = asked.map(|asked| asked.send(answer.to_owned()));
                }
                // Whoever still waits hears that the process has ended.
                if let Some(inner) = read.upgrade() {
                    lock(&inner.callers).asked.clear();
                }
            })
            .map_err(|error| format!("no thread for the Go client: {error}"))?;
        is_ready.await.map_err(|_| "the Go client has ended".to_owned())?;
        Ok(client)
    }

    pub(crate) async fn acquire(&self, key: &str) -> Result<Caller, String> {
        let caller = {
            let mut callers = lock(&self.0.callers);
            callers.idle.pop().unwrap_or_else(|| {
                callers.count += 1;
                callers.count - 1
            })
        };
        let answer = self.ask(caller, &format!("lock {key} {TTL}")).await?;
        answer.starts_with("granted ").then_some(Caller(caller)).ok_or(answer)
    }

    pub(crate) async fn release(&self, key: &str, caller: Caller) -> Result<(), String> {
        let answer = self.ask(caller.0, &format!("release {key}")).await?;
        lock(&self.0.callers).idle.push(caller.0);
        if answer == "released" { Ok(()) } else { Err(answer) }
    }

    async fn ask(&self, caller: usize, command: &str) -> Result<String, String> {
        let (asked, answer) = oneshot::channel();
        lock(&self.0.callers).asked.insert(caller, asked);
        writeln!(lock(&self.0.input), "{caller} {command}").map_err(|error| error.to_string())?;
        answer.await.map_err(|_| "the Go client has ended".to_owned())
    }
}
