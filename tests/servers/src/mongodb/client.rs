//! [`Connection`]: a minimal client, independent of the library under test.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bson::Document;

/// The operation of a message with a command, or with the answer to one.
const OP_MSG: i32 = 2013;

/// Length of a message before its document: length, id, id of the request, operation, flags, and
/// the kind of the section.
const HEAD: usize = 21;

/// Maximum length of an answer. The server's own limit is 48 MB.
const MAX: usize = 64 << 20;

/// A connection to a `mongod` that sends one command at a time.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
}

impl Connection {
    /// Connects. Every answer must come within `timeout`.
    ///
    /// # Errors
    ///
    /// When no server listens.
    pub fn open(addr: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream })
    }

    /// Runs a command in the database that its field `$db` names, or else in `admin`. Returns the
    /// answer, which may be an error.
    ///
    /// # Errors
    ///
    /// When no answer comes.
    pub fn run(&mut self, mut command: Document) -> io::Result<Document> {
        if !command.contains_key("$db") {
            command.insert("$db", "admin");
        }
        let document = command.to_vec().map_err(io::Error::other)?;
        let length = i32::try_from(HEAD + document.len()).map_err(io::Error::other)?;
        let mut message = Vec::with_capacity(HEAD + document.len());
        for number in [length, 1, 0, OP_MSG, 0] {
            message.extend(number.to_le_bytes());
        }
        message.push(0);
        message.extend(document);
        self.stream.write_all(&message)?;
        let mut head = [0; HEAD];
        self.stream.read_exact(&mut head)?;
        let [a, b, c, d, ..] = head;
        let length = usize::try_from(i32::from_le_bytes([a, b, c, d])).unwrap_or_default();
        if !(HEAD..MAX).contains(&length) {
            return Err(io::Error::other("the server's answer is not a message"));
        }
        let mut document = vec![0; length - HEAD];
        self.stream.read_exact(&mut document)?;
        Document::from_reader(&document[..]).map_err(io::Error::other)
    }
}
