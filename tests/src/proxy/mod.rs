//! [`Proxy`]: stands between a client and a server, and breaks messages when told to. The server is
//! a redis-server, a PostgreSQL, a MariaDB, a `mongod`, an etcd or a ZooKeeper.
//!
//! It reads requests one by one. So a fault can hit a request *before* the server sees it
//! ([`Way::ToServer`]), or its answer after the server has carried it out ([`Way::ToClient`]). The
//! proxy counts the messages that passed and that were hit, so a test knows that its fault really
//! happened. It does not understand TLS.

mod http2;
mod mongodb;
mod mysql;
mod postgres;
mod request;
#[cfg(test)]
mod tests;
mod zookeeper;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

use self::request::refused;
use crate::dice::Dice;

/// The fate of a message, and of its connection from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It arrives this much later, and so does everything behind it.
    Delay(Duration),
    /// It vanishes, with everything behind it in this direction, including the end of the stream.
    /// The connection stays open, as behind a firewall that has forgotten it.
    BlackHole,
    /// It vanishes, and both sides see the end of the stream.
    Close,
    /// It vanishes, and only its receiver sees the end of the stream. The other direction goes on.
    HalfClose,
    /// It vanishes, and both sides see a reset (RST).
    Reset,
    /// Half of it arrives, and then both sides see a reset.
    Torn,
    /// It arrives later by a random time up to this one.
    Jitter(Duration),
    /// It vanishes, but everything behind it passes. For published messages: a missing answer would
    /// confuse the connection.
    Lost,
    /// It arrives twice. For published messages.
    Twice,
    /// The server does not see it, and its sender reads this error (`LOADING …`) as the answer. For
    /// requests to Redis.
    Refused(&'static str),
}

/// The kind of connection that carries a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// A new connection: until its first request other than `HELLO`, `AUTH`, `SELECT`, `CLIENT …`
    /// and `TIME`, or to a database, other than settings of the session and a ping.
    Connecting,
    /// A connection for commands and scripts.
    Commands,
    /// A connection that has subscribed to a channel.
    PubSub,
    /// A connection through which a replica receives its primary's data.
    Replication,
    /// A connection of a Redis Sentinel.
    Sentinel,
}

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A request, before the server sees it.
    ToServer,
    /// An answer or a published message. An answered request has been carried out.
    ToClient,
}

/// A proxy to one server, on a free loopback port. Its connections end when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

/// A fault that waits for messages, until it has hit all of them, is [lifted](Self::lift) or
/// dropped.
#[derive(Debug)]
#[must_use = "a fault is lifted when its handle is dropped"]
pub struct Injection {
    shared: Arc<Shared>,
    id: usize,
    hits: Arc<AtomicUsize>,
}

/// Parses the first request, if it is complete: its length, and the kind that it makes of its
/// connection.
type Parse = fn(&[u8], Line) -> Option<(usize, Line)>;

#[derive(Debug)]
struct Shared {
    parse: Parse,
    rules: Mutex<Rules>,
    accepted: AtomicUsize,
    delayed: AtomicUsize,
    passed: [[AtomicUsize; 2]; 5],
    /// Wakes connections that one side has ended without the other side hearing of it: they close.
    buried: Notify,
}

#[derive(Debug, Default)]
struct Rules {
    next: usize,
    list: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    id: usize,
    line: Line,
    way: Way,
    fault: Fault,
    /// How many more messages it hits.
    left: usize,
    hits: Arc<AtomicUsize>,
}

impl Proxy {
    /// Starts a proxy to the server at `server`, on the current runtime.
    ///
    /// # Panics
    ///
    /// When no port of the loopback interface is free.
    pub async fn start(server: SocketAddr) -> Self {
        Self::start_with(server, request::parse).await
    }

    /// Starts a proxy to the PostgreSQL at `server`, on the current runtime.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn start_postgres(server: SocketAddr) -> Self {
        Self::start_with(server, postgres::parse).await
    }

    /// Starts a proxy to the MariaDB at `server`, on the current runtime.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn start_mariadb(server: SocketAddr) -> Self {
        Self::start_with(server, mysql::parse).await
    }

    /// Starts a proxy to the `mongod` at `server`, on the current runtime.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn start_mongodb(server: SocketAddr) -> Self {
        Self::start_with(server, mongodb::parse).await
    }

    /// Starts a proxy to the etcd at `server`, on the current runtime.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn start_etcd(server: SocketAddr) -> Self {
        Self::start_with(server, http2::parse).await
    }

    /// Starts a proxy to the ZooKeeper at `server`, on the current runtime.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn start_zookeeper(server: SocketAddr) -> Self {
        Self::start_with(server, zookeeper::parse).await
    }

    async fn start_with(server: SocketAddr, parse: Parse) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            parse,
            rules: Mutex::default(),
            accepted: AtomicUsize::default(),
            delayed: AtomicUsize::default(),
            passed: Default::default(),
            buried: Notify::default(),
        });
        let task = tokio::spawn(accept(listener, server, Arc::clone(&shared))).abort_handle();
        Self { address, shared, task }
    }

    /// Returns `redis://127.0.0.1:<port>`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Returns the address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Makes the next `count` messages on `line` in direction `way` meet `fault`.
    pub fn next(&self, count: usize, line: Line, way: Way, fault: Fault) -> Injection {
        let hits = Arc::new(AtomicUsize::new(0));
        let mut rules = self.shared.rules();
        let id = rules.next;
        rules.next += 1;
        rules.list.push(Rule { id, line, way, fault, left: count, hits: Arc::clone(&hits) });
        Injection { shared: Arc::clone(&self.shared), id, hits }
    }

    /// Makes all messages on `line` in direction `way` meet `fault`, until it is lifted.
    pub fn from_now(&self, line: Line, way: Way, fault: Fault) -> Injection {
        self.next(usize::MAX, line, way, fault)
    }

    /// Returns how many messages have passed. Bytes that came from the server in one piece count as
    /// one.
    #[must_use]
    pub fn passed(&self, line: Line, way: Way) -> usize {
        self.shared.passed[line as usize][way as usize].load(Ordering::SeqCst)
    }

    /// Returns how many messages are delayed at present. They will arrive even if their sender has
    /// gone.
    #[must_use]
    pub fn delayed(&self) -> usize {
        self.shared.delayed.load(Ordering::SeqCst)
    }

    /// Closes the connections that one side has ended while a fault kept that from the other side.
    /// Connections that both sides still have open stay.
    pub fn bury_dead(&self) {
        self.shared.buried.notify_waiters();
    }

    /// Returns how many connections were accepted.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Injection {
    /// Returns how many messages it has hit.
    #[must_use]
    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    /// Stops hitting messages. Connections that it has broken stay broken.
    pub fn lift(&self) {
        self.shared.rules().list.retain(|rule| rule.id != self.id);
    }
}

impl Drop for Injection {
    fn drop(&mut self) {
        self.lift();
    }
}

impl Shared {
    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the fault that a message meets: the one that was injected first.
    fn meet(&self, line: Line, way: Way) -> Option<Fault> {
        let mut rules = self.rules();
        let rule =
            rules.list.iter_mut().find(|rule| rule.line == line && rule.way == way && rule.left > 0)?;
        rule.left -= 1;
        let hits = rule.hits.fetch_add(1, Ordering::SeqCst);
        Some(match rule.fault {
            Fault::Jitter(most) => Fault::Jitter(Dice::new(hits as u64).between(Duration::ZERO, most)),
            fault => fault,
        })
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, shared: Arc<Shared>) {
    // Dropped with this task, which ends all connections.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            // No server listens: a proxy can only close the connection.
            if let Ok(server) = TcpStream::connect(server).await {
                serve(client, server, shared).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut client: TcpStream, mut server: TcpStream, shared: Arc<Shared>) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let connection = Connection { shared, line: Mutex::new(Line::Connecting), cut: Notify::new() };
    {
        let (client_in, client_out) = client.split();
        let (server_in, server_out) = server.split();
        let pumps = async {
            tokio::join!(
                connection.pump(client_in, server_out, Way::ToServer),
                connection.pump(server_in, client_out, Way::ToClient),
            )
        };
        tokio::select! {
            biased;
            () = connection.cut.notified() => {}
            _ = pumps => {}
        }
    }
    // Both sockets are closed here: with an RST if `pump` has requested it.
}

struct Connection {
    shared: Arc<Shared>,
    line: Mutex<Line>,
    /// Ends both directions.
    cut: Notify,
}

impl Connection {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes messages on, one by one, until the stream ends.
    async fn pump(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, way: Way) {
        let mut buffer = vec![0; 16 * 1024];
        let mut bytes = Vec::new();
        let mut swallowing = false;
        loop {
            match from.read(&mut buffer).await {
                Ok(0) => {
                    if swallowing {
                        self.shared.buried.notified().await;
                        self.cut.notify_one();
                    } else {
                        let _ = to.shutdown().await;
                    }
                    return;
                }
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                // A reset of one side becomes a reset of the other.
                Err(_) => return self.reset(&from, &to),
            }
            while let Some(length) = self.message(&bytes, way) {
                let mut message: Vec<u8> = bytes.drain(..length).collect();
                if swallowing {
                    continue;
                }
                let line = *self.line();
                let mut delayed = None;
                match self.shared.meet(line, way) {
                    None => {}
                    Some(Fault::Delay(time) | Fault::Jitter(time)) => {
                        delayed = Some(Delayed::count(&self.shared));
                        tokio::time::sleep(time).await;
                    }
                    Some(Fault::BlackHole) => {
                        swallowing = true;
                        continue;
                    }
                    Some(Fault::HalfClose) => {
                        let _ = to.shutdown().await;
                        swallowing = true;
                        continue;
                    }
                    Some(Fault::Close) => return self.cut.notify_one(),
                    Some(Fault::Reset) => return self.reset(&from, &to),
                    Some(Fault::Torn) => {
                        let _ = to.write_all(&message[..message.len() / 2]).await;
                        return self.reset(&from, &to);
                    }
                    Some(Fault::Lost) => continue,
                    Some(Fault::Twice) => message.extend_from_within(..),
                    Some(Fault::Refused(error)) => message = refused(error),
                }
                if to.write_all(&message).await.is_err() {
                    return self.reset(&from, &to);
                }
                self.shared.passed[line as usize][way as usize].fetch_add(1, Ordering::SeqCst);
                drop(delayed);
            }
        }
    }

    fn reset(&self, from: &ReadHalf<'_>, to: &WriteHalf<'_>) {
        let _ = (from.as_ref().set_zero_linger(), to.as_ref().set_zero_linger());
        self.cut.notify_one();
    }

    /// Returns the length of the first message in `bytes`, if it is complete. A request also
    /// determines the kind of the connection.
    fn message(&self, bytes: &[u8], way: Way) -> Option<usize> {
        if way == Way::ToClient {
            return (!bytes.is_empty()).then_some(bytes.len());
        }
        let mut line = self.line();
        let (length, becomes) = (self.shared.parse)(bytes, *line)?;
        *line = becomes;
        Some(length)
    }
}

/// Counts a message as delayed until this is dropped.
struct Delayed<'a>(&'a Shared);

impl<'a> Delayed<'a> {
    fn count(shared: &'a Shared) -> Self {
        shared.delayed.fetch_add(1, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for Delayed<'_> {
    fn drop(&mut self) {
        self.0.delayed.fetch_sub(1, Ordering::SeqCst);
    }
}
