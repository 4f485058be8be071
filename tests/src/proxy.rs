//! [`Proxy`]: stands between a client and a redis-server, and breaks what passes when it is told to.
//!
//! It reads requests one by one, so that a fault hits one *before* the server sees it ([`Way::ToServer`]), or when the
//! server has carried it out and answers ([`Way::ToClient`]). It counts what passed and what was hit, so that a test
//! knows that its fault really happened. TLS is not understood.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

/// What happens to a message, and to its connection from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It arrives so much later, and so does what comes behind it.
    Delay(Duration),
    /// It vanishes, and so does all that comes behind it in this direction, the end of the stream included. The
    /// connection stays open: a firewall that has forgotten it.
    BlackHole,
    /// It vanishes, and both sides see the end of the stream.
    Close,
    /// It vanishes, and its receiver alone sees the end of the stream. The other direction goes on.
    HalfClose,
    /// It vanishes, and both sides see a reset (RST).
    Reset,
}

/// Which connection a message is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// One that is being made: `HELLO`, `AUTH`, `SELECT`, `CLIENT …` and `TIME`, until its first other request.
    Connecting,
    /// One for commands and scripts.
    Commands,
    /// One that has subscribed to something.
    PubSub,
}

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A request, before the server sees it.
    ToServer,
    /// An answer or a published message: what it answers has been carried out.
    ToClient,
}

/// A proxy to one server, on a free loopback port. Its connections end with it.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

/// A fault that waits for its messages, until it has hit all of them, is [lifted](Self::lift) or dropped.
#[derive(Debug)]
#[must_use = "a fault is lifted when its handle is dropped"]
pub struct Injection {
    shared: Arc<Shared>,
    id: usize,
    hits: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Shared {
    rules: Mutex<Rules>,
    accepted: AtomicUsize,
    delayed: AtomicUsize,
    passed: [[AtomicUsize; 2]; 3],
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
    /// How many more it hits.
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
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(accept(listener, server, Arc::clone(&shared))).abort_handle();
        Self { address, shared, task }
    }

    /// `redis://127.0.0.1:<port>`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// The address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The next `count` messages on `line` that go this `way` meet `fault`.
    pub fn next(&self, count: usize, line: Line, way: Way, fault: Fault) -> Injection {
        let hits = Arc::new(AtomicUsize::new(0));
        let mut rules = self.shared.rules();
        let id = rules.next;
        rules.next += 1;
        rules.list.push(Rule { id, line, way, fault, left: count, hits: Arc::clone(&hits) });
        Injection { shared: Arc::clone(&self.shared), id, hits }
    }

    /// All messages on `line` that go this `way` meet `fault`, until it is lifted.
    pub fn from_now(&self, line: Line, way: Way, fault: Fault) -> Injection {
        self.next(usize::MAX, line, way, fault)
    }

    /// How many messages have passed; what came in one piece from the server counts as one.
    #[must_use]
    pub fn passed(&self, line: Line, way: Way) -> usize {
        self.shared.passed[line as usize][way as usize].load(Ordering::SeqCst)
    }

    /// How many messages are delayed at present: they are still to arrive, also if their sender has gone.
    #[must_use]
    pub fn delayed(&self) -> usize {
        self.shared.delayed.load(Ordering::SeqCst)
    }

    /// How many connections were made.
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
    /// How many messages it has hit.
    #[must_use]
    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    /// Hits nothing more. Connections that it has broken stay broken.
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

    /// The fault that a message meets: the one that was injected first.
    fn meet(&self, line: Line, way: Way) -> Option<Fault> {
        let mut rules = self.rules();
        let rule =
            rules.list.iter_mut().find(|rule| rule.line == line && rule.way == way && rule.left > 0)?;
        rule.left -= 1;
        rule.hits.fetch_add(1, Ordering::SeqCst);
        Some(rule.fault)
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, shared: Arc<Shared>) {
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            // Nobody there: closing is all that a proxy can say.
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
    // Both sockets are closed here: with an RST if `pump` has asked for it.
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

    /// Passes on what comes, message by message, until the stream ends.
    async fn pump(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, way: Way) {
        let mut buffer = vec![0; 16 * 1024];
        let mut bytes = Vec::new();
        let mut swallowing = false;
        loop {
            match from.read(&mut buffer).await {
                Ok(0) => {
                    if !swallowing {
                        let _ = to.shutdown().await;
                    }
                    return;
                }
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                // What was done to one side is done to the other.
                Err(_) => return self.reset(&from, &to),
            }
            while let Some(length) = self.message(&bytes, way) {
                let message: Vec<u8> = bytes.drain(..length).collect();
                if swallowing {
                    continue;
                }
                let line = *self.line();
                let mut delayed = None;
                match self.shared.meet(line, way) {
                    None => {}
                    Some(Fault::Delay(time)) => {
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

    /// The length of the first message in `bytes`, if it is there as a whole. A request tells what the line is.
    fn message(&self, bytes: &[u8], way: Way) -> Option<usize> {
        if way == Way::ToClient {
            return (!bytes.is_empty()).then_some(bytes.len());
        }
        // A replica sends an empty line now and then while it is busy with the data that it was given.
        let blank = bytes.iter().take_while(|byte| b"\r\n".contains(byte)).count();
        if blank > 0 {
            return Some(blank);
        }
        let (command, length) = request(bytes)?;
        let mut line = self.line();
        match command.as_str() {
            "SUBSCRIBE" | "SSUBSCRIBE" | "PSUBSCRIBE" => *line = Line::PubSub,
            "HELLO" | "AUTH" | "SELECT" | "CLIENT" | "TIME" => {}
            _ if *line == Line::Connecting => *line = Line::Commands,
            _ => {}
        }
        Some(length)
    }
}

/// A message that is delayed, until this is dropped.
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

/// The first request in `bytes`: its command, and its length.
fn request(bytes: &[u8]) -> Option<(String, usize)> {
    // `*3\r\n` and the like: the number, and where the next line starts.
    let number = |from: usize| {
        let end = bytes.get(from..)?.windows(2).position(|two| two == b"\r\n")? + from;
        let text = std::str::from_utf8(bytes.get(from + 1..end)?).expect("requests are arrays of texts");
        Some((text.parse::<usize>().expect("requests are arrays of texts"), end + 2))
    };
    let (count, mut at) = number(0)?;
    let mut command = String::new();
    for word in 0..count {
        let (length, start) = number(at)?;
        at = start + length + 2;
        let text = bytes.get(start..start + length)?;
        if word == 0 {
            command = String::from_utf8_lossy(text).to_ascii_uppercase();
        }
    }
    (bytes.len() >= at).then_some((command, at))
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};
    use std::time::Instant;

    use super::*;
    use crate::RedisServer;
    use crate::eventually_blocking;
    use crate::redis::{Connection, Reply};

    const LONG: Duration = Duration::from_secs(20);
    /// How long an answer is awaited that must not come.
    const SHORT: Duration = Duration::from_millis(300);

    /// A proxy whose runtime runs beside the test, so that the test may block.
    fn proxied() -> (tokio::runtime::Runtime, RedisServer, Proxy) {
        let server = RedisServer::start();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let proxy = runtime.block_on(Proxy::start(server.addr()));
        (runtime, server, proxy)
    }

    fn outcome(reply: &io::Result<Reply>) -> &'static str {
        match reply {
            Ok(_) => "answer",
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => "silence",
                ErrorKind::UnexpectedEof => "end",
                ErrorKind::ConnectionReset => "reset",
                _ => panic!("{error}"),
            },
        }
    }

    #[test]
    fn each_fault_is_seen_by_the_client_and_hits_before_or_after_the_server() {
        let (_runtime, server, proxy) = proxied();
        for (fault, seen) in [
            (Fault::BlackHole, "silence"),
            (Fault::Close, "end"),
            (Fault::HalfClose, "end"),
            (Fault::Reset, "reset"),
        ] {
            for (way, carried_out) in [(Way::ToServer, ""), (Way::ToClient, "1")] {
                server.cli(&["FLUSHALL"]);
                let mut connection = Connection::open(proxy.addr(), LONG).unwrap();
                connection.command(&["GET", "warm-up"]).unwrap();
                if fault == Fault::BlackHole {
                    connection = Connection::open(proxy.addr(), SHORT).unwrap();
                }
                let injection = proxy.next(1, Line::Commands, way, fault);
                let reply = connection.command(&["INCR", "n"]);
                assert_eq!(outcome(&reply), seen, "{fault:?} {way:?}");
                eventually_blocking(|| injection.hits() == 1, LONG);
                assert_eq!(server.cli(&["GET", "n"]), carried_out, "{fault:?} {way:?}");
                // Only this connection was hit.
                let mut next = Connection::open(proxy.addr(), LONG).unwrap();
                assert_eq!(next.command(&["INCR", "other"]).unwrap(), Reply::Number(1));
            }
        }
    }

    #[test]
    fn the_server_sees_ends_and_resets_and_no_black_holes() {
        let (_runtime, server, proxy) = proxied();
        let clients = || server.cli(&["CLIENT", "LIST"]).lines().count();
        assert_eq!(clients(), 1, "the one that asks");
        for (fault, left) in [(Fault::Close, 1), (Fault::Reset, 1), (Fault::BlackHole, 2)] {
            let mut connection = Connection::open(proxy.addr(), SHORT).unwrap();
            let _injection = proxy.next(1, Line::Commands, Way::ToServer, fault);
            assert!(connection.command(&["INCR", "n"]).is_err());
            eventually_blocking(|| clients() == left, LONG);
            drop(connection);
            assert_eq!(clients(), left, "{fault:?}");
        }
    }

    #[test]
    fn a_half_closed_connection_still_sends() {
        let (_runtime, server, proxy) = proxied();
        let mut connection = Connection::open(proxy.addr(), LONG).unwrap();
        let injection = proxy.next(1, Line::Commands, Way::ToClient, Fault::HalfClose);
        assert_eq!(outcome(&connection.command(&["INCR", "n"])), "end");
        assert_eq!(outcome(&connection.command(&["INCR", "n"])), "end");
        eventually_blocking(|| server.cli(&["GET", "n"]) == "2", LONG);
        assert_eq!(injection.hits(), 1);
    }

    #[test]
    fn a_delay_keeps_the_order_and_is_no_shorter_than_it_says() {
        let (_runtime, _server, proxy) = proxied();
        let mut connection = Connection::open(proxy.addr(), LONG).unwrap();
        for way in [Way::ToServer, Way::ToClient] {
            let injection = proxy.next(2, Line::Commands, way, Fault::Delay(SHORT));
            let start = Instant::now();
            connection.command(&["SET", "n", "1"]).unwrap();
            assert_eq!(connection.command(&["INCR", "n"]).unwrap(), Reply::Number(2));
            assert!(start.elapsed() >= SHORT * 2, "{:?}", start.elapsed());
            connection.command(&["GET", "n"]).unwrap();
            assert_eq!(injection.hits(), 2);
        }
    }

    #[test]
    fn a_delayed_request_arrives_although_its_sender_has_gone() {
        let (_runtime, server, proxy) = proxied();
        let mut connection = Connection::open(proxy.addr(), SHORT / 3).unwrap();
        let injection = proxy.next(1, Line::Commands, Way::ToServer, Fault::Delay(SHORT * 6));
        assert_eq!(outcome(&connection.command(&["INCR", "n"])), "silence");
        drop(connection);
        eventually_blocking(|| injection.hits() == 1 && proxy.delayed() == 0, LONG);
        eventually_blocking(|| server.cli(&["GET", "n"]) == "1", LONG);
    }

    #[test]
    fn lines_are_told_apart_and_counted() {
        let (_runtime, server, proxy) = proxied();
        let mut subscriber = Connection::open(proxy.addr(), LONG).unwrap();
        let mut commands = Connection::open(proxy.addr(), LONG).unwrap();
        let connecting = proxy.next(1, Line::Connecting, Way::ToClient, Fault::Delay(Duration::ZERO));
        commands.command(&["TIME"]).unwrap();
        assert_eq!(connecting.hits(), 1);
        commands.command(&["GET", "n"]).unwrap();
        subscriber.command(&["SUBSCRIBE", "news"]).unwrap();
        assert_eq!(proxy.accepted(), 2);
        eventually_blocking(|| proxy.passed(Line::PubSub, Way::ToClient) == 1, LONG);
        assert_eq!(proxy.passed(Line::Connecting, Way::ToServer), 1);
        assert_eq!(proxy.passed(Line::Commands, Way::ToServer), 1);

        let news = proxy.from_now(Line::PubSub, Way::ToClient, Fault::Reset);
        assert_eq!(commands.command(&["PUBLISH", "news", "x"]).unwrap(), Reply::Number(1));
        assert_eq!(outcome(&subscriber.read()), "reset");
        commands.command(&["GET", "n"]).unwrap();
        assert_eq!(news.hits(), 1);
        eventually_blocking(|| server.cli(&["PUBLISH", "news", "x"]) == "0", LONG);
    }

    #[test]
    fn a_fault_that_is_lifted_hits_nothing_more() {
        let (_runtime, _server, proxy) = proxied();
        let injection = proxy.from_now(Line::Commands, Way::ToServer, Fault::Reset);
        for _ in 0..3 {
            let mut connection = Connection::open(proxy.addr(), LONG).unwrap();
            assert_eq!(outcome(&connection.command(&["GET", "n"])), "reset");
        }
        assert_eq!(injection.hits(), 3);
        injection.lift();
        let mut connection = Connection::open(proxy.addr(), LONG).unwrap();
        connection.command(&["GET", "n"]).unwrap();
        drop(proxy.from_now(Line::Commands, Way::ToServer, Fault::Reset));
        connection.command(&["GET", "n"]).unwrap();
        assert_eq!(injection.hits(), 3);
    }

    #[test]
    fn requests_are_found_however_they_arrive() {
        let bytes = b"*2\r\n$4\r\necho\r\n$4\r\n\r\n\r\n\r\n*1\r\n$4\r\nPING\r\n";
        assert_eq!(request(bytes), Some(("ECHO".to_owned(), 24)));
        assert_eq!(request(&bytes[24..]), Some(("PING".to_owned(), 14)));
        for end in 0..24 {
            assert_eq!(request(&bytes[..end]), None, "{end}");
        }
    }
}
