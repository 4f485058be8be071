//! [`Connection`]: a session with ZooKeeper, opened, used and ended without a client.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::database::{ANSWER, dial};

/// Time-to-live of a session. Those of tests are ended before, or used all the time.
const TIMEOUT: i32 = 10_000;

/// The operations `create`, `delete`, `exists`, `setData`, `getChildren`, `sync` and
/// `closeSession`.
const CREATE: i32 = 1;
/// Deletes a node.
pub const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const WRITE: i32 = 5;
const CHILDREN: i32 = 8;
const SYNC: i32 = 9;
const CLOSE: i32 = -11;
/// Makes several changes: enters a queue, or ends an epoch.
pub const MULTI: i32 = 14;

/// The errors of an operation on a node that is not there, and of one that makes a node that is.
const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;

/// Any version of a node.
const ANY: [u8; 4] = (-1_i32).to_be_bytes();

/// Where a node's session is among what is known of the node.
const OWNER: usize = 44;

/// The errors of a connection that the server has closed.
const CLOSED: [ErrorKind; 3] = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];

/// Delay before the end of a session is tried again.
const PAUSE: Duration = Duration::from_millis(1);

/// The server's secret: `superSecret` in its class `ZooKeeperServer`.
const SECRET: i64 = 0xB341_5C00;

/// A session on a connection of its own. Its calls block the thread.
///
/// It makes and sees nodes without the library or ZooKeeper's client. A connection that has failed
/// must not be used again.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
}

impl Connection {
    /// Connects to a server, and opens a session there. Waits for each answer for this long.
    ///
    /// # Errors
    ///
    /// When the server does not answer. To open a session is a write, so a member needs the
    /// majority.
    pub fn open(addr: SocketAddr, within: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, within)?;
        stream.set_read_timeout(Some(within))?;
        stream.set_nodelay(true)?;
        let mut connection = Self { stream };
        send(&mut connection.stream, &opening(0))?;
        is_opened(&receive(&mut connection.stream)?)?;
        Ok(connection)
    }

    /// Makes a node that stays, unless it is there. Returns whether there is a directory for it.
    ///
    /// # Errors
    ///
    /// When the server does not answer or refuses it.
    pub fn create(&mut self, path: &str) -> io::Result<bool> {
        let (all, scheme, who) = (31_i32.to_be_bytes(), text("world"), text("anyone"));
        let (data, rights, stays) = (text(""), 1_i32.to_be_bytes(), 0_i32.to_be_bytes());
        match self.call(CREATE, &[&text(path), &data, &rights, &all, &scheme, &who, &stays]) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(true),
            done => Ok(done?.is_some()),
        }
    }

    /// Deletes a node. Returns whether it was there.
    ///
    /// # Errors
    ///
    /// When the server does not answer or refuses it, for example because it has children.
    pub fn delete(&mut self, path: &str) -> io::Result<bool> {
        self.call(DELETE, &[&text(path), &ANY]).map(|done| done.is_some())
    }

    /// Writes nothing to a node. Later reads of the session are not older. Returns whether the node
    /// is there.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn write(&mut self, path: &str) -> io::Result<bool> {
        self.call(WRITE, &[&text(path), &text(""), &ANY]).map(|done| done.is_some())
    }

    /// Returns the names of the nodes in a directory; none if it is not there.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn children(&mut self, path: &str) -> io::Result<Vec<String>> {
        let Some(answer) = self.call(CHILDREN, &[&text(path), &[0]])? else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        let mut rest = answer.get(4..).unwrap_or_default();
        while let Some((length, after)) = rest.split_first_chunk() {
            let length = usize::try_from(u32::from_be_bytes(*length)).map_err(io::Error::other)?;
            let Some((name, after)) = after.split_at_checked(length) else { break };
            names.push(String::from_utf8_lossy(name).into_owned());
            rest = after;
        }
        Ok(names)
    }

    /// Returns the session of an ephemeral node; 0 if the node stays, `None` if it is not there.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn session_of(&mut self, path: &str) -> io::Result<Option<i64>> {
        let known = self.call(EXISTS, &[&text(path), &[0]])?;
        Ok(known.and_then(|known| Some(i64::from_be_bytes(*known.get(OWNER..)?.first_chunk()?))))
    }

    /// Waits until the server has what its leader had.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn sync(&mut self) -> io::Result<()> {
        self.call(SYNC, &[&text("/")]).map(drop)
    }

    fn close(mut self) -> io::Result<()> {
        self.call(CLOSE, &[]).map(drop)
    }

    /// Returns the answer to an operation; `None` if its node is not there.
    fn call(&mut self, operation: i32, fields: &[&[u8]]) -> io::Result<Option<Vec<u8>>> {
        send(&mut self.stream, &request(operation, fields))?;
        answer(operation, &receive(&mut self.stream)?)
    }
}

/// Returns the operations of the requests in this message.
#[must_use]
pub fn operations(mut message: &[u8]) -> Vec<i32> {
    let number = |bytes: Option<&[u8]>| bytes.and_then(|bytes| bytes.try_into().ok()).map(i32::from_be_bytes);
    let mut found = Vec::new();
    // A length, the number of the request, and its operation.
    while let (Some(length), Some(operation)) = (number(message.get(..4)), number(message.get(8..12))) {
        found.push(operation);
        let end = usize::try_from(length).map_or(usize::MAX, |length| 4 + length);
        message = message.get(end..).unwrap_or_default();
    }
    found
}

/// Whether the server serves. To open a session is a write, so a member needs the majority.
pub(super) fn is_healthy(addr: SocketAddr) -> io::Result<bool> {
    Connection::open(addr, ANSWER)?.close()?;
    Ok(true)
}

/// Ends the session with this id. Fails if no session has it.
pub(super) fn end(addr: SocketAddr, id: i64) -> io::Result<()> {
    let (mut is_first, until) = (true, Instant::now() + 5 * ANSWER);
    loop {
        match end_at(addr, id) {
            // Its own client moves it back at once. That may have come before the end, or after it.
            Err(error) if CLOSED.contains(&error.kind()) && Instant::now() < until => {}
            Err(error) if error.kind() == ErrorKind::NotFound && !is_first => return Ok(()),
            ended => return ended,
        }
        is_first = false;
        std::thread::sleep(PAUSE);
    }
}

fn end_at(addr: SocketAddr, id: i64) -> io::Result<()> {
    let mut stream = dial(addr)?;
    // Both at once, or its own client would move it back between them.
    send(&mut stream, &opening(id))?;
    send(&mut stream, &request(CLOSE, &[]))?;
    is_opened(&receive(&mut stream)?)?;
    answer(CLOSE, &receive(&mut stream)?).map(drop)
}

/// Returns the request that moves a session to a connection; 0 opens a new one.
fn opening(id: i64) -> Vec<u8> {
    let mut request = Vec::new();
    // The version of the protocol, and the latest change that the client knows.
    request.extend([0; 4 + 8]);
    request.extend(TIMEOUT.to_be_bytes());
    request.extend(id.to_be_bytes());
    request.extend(16_i32.to_be_bytes());
    request.extend(password(id));
    // A server that may only read is not wanted.
    request.push(0);
    request
}

fn is_opened(answer: &[u8]) -> io::Result<()> {
    // The version, the granted time, and the id.
    match answer.get(8..16) {
        Some(granted) if granted != [0; 8] => Ok(()),
        _ => Err(io::Error::new(ErrorKind::NotFound, "the session has ended")),
    }
}

/// Returns the request for an operation.
fn request(operation: i32, fields: &[&[u8]]) -> Vec<u8> {
    [&1_i32.to_be_bytes(), &operation.to_be_bytes(), &*fields.concat()].concat()
}

/// Returns the result of an operation; `None` if its node is not there.
fn answer(operation: i32, answer: &[u8]) -> io::Result<Option<Vec<u8>>> {
    // The number of the request, the latest change, and the error.
    let error = answer.get(12..16).and_then(<[u8]>::first_chunk).map(|error| i32::from_be_bytes(*error));
    match error {
        Some(0) => Ok(Some(answer[16..].to_vec())),
        Some(NO_NODE) => Ok(None),
        Some(NODE_EXISTS) => Err(ErrorKind::AlreadyExists.into()),
        error => Err(io::Error::other(format!("operation {operation}: error {error:?}"))),
    }
}

/// Returns a text or data, as a field of a request.
fn text(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), text.as_bytes()].concat()
}

fn send(stream: &mut TcpStream, request: &[u8]) -> io::Result<()> {
    let length = u32::try_from(request.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), request].concat())
}

fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; u32::from_be_bytes(length).min(1 << 20) as usize];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

/// Returns the password of a session, which the server makes with `java.util.Random`.
fn password(id: i64) -> [u8; 16] {
    const MULTIPLIER: u64 = 0x5_DEEC_E66D;
    const MASK: u64 = (1 << 48) - 1;
    let mut seed = ((id ^ SECRET).cast_unsigned() ^ MULTIPLIER) & MASK;
    let mut password = [0; 16];
    for bytes in password.chunks_mut(4) {
        seed = seed.wrapping_mul(MULTIPLIER).wrapping_add(0xB) & MASK;
        bytes.copy_from_slice(&(seed >> 16).to_le_bytes()[..4]);
    }
    password
}
