//! Sessions of ZooKeeper, opened and ended without a client.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::database::dial;

/// Time-to-live of a session that is ended at once.
const TIMEOUT: i32 = 10_000;

/// How often the end of a session is tried again, if its client keeps it.
const TRIES: usize = 50;

/// The operation `closeSession`.
const CLOSE: i32 = -11;

/// The server's secret: `superSecret` in its class `ZooKeeperServer`.
const SECRET: i64 = 0xB341_5C00;

/// Whether the server serves. To open a session is a write, so a member needs the majority.
pub(super) fn is_healthy(addr: SocketAddr) -> io::Result<bool> {
    close(&mut open(addr)?)?;
    Ok(true)
}

/// Opens a session on a new connection.
pub(super) fn open(addr: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = dial(addr)?;
    connect(&mut stream, 0)?;
    Ok(stream)
}

/// Ends the session with this id. Fails if no session has it.
pub(super) fn end(addr: SocketAddr, id: i64) -> io::Result<()> {
    let once = || {
        let mut stream = dial(addr)?;
        connect(&mut stream, id)?;
        close(&mut stream)
    };
    let mut ended = once();
    for _ in 0..TRIES {
        match &ended {
            // Its client has moved it back to a connection of its own, or it has ended just now.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            _ => return ended,
        }
        ended = match once() {
            Err(error) if error.kind() == io::ErrorKind::Other => Ok(()),
            ended => ended,
        };
    }
    ended
}

/// Moves a session to this connection; 0 opens a new one.
fn connect(stream: &mut TcpStream, id: i64) -> io::Result<()> {
    let mut request = Vec::new();
    // The version of the protocol, and the latest change that the client knows.
    request.extend([0; 4 + 8]);
    request.extend(TIMEOUT.to_be_bytes());
    request.extend(id.to_be_bytes());
    request.extend(16_i32.to_be_bytes());
    request.extend(password(id));
    // A server that may only read is not wanted.
    request.push(0);
    let answer = call(stream, &request)?;
    // The version, the granted time, and the id.
    match answer.get(8..16) {
        Some(granted) if granted != [0; 8] => Ok(()),
        _ => Err(io::Error::other("the session has ended")),
    }
}

fn close(stream: &mut TcpStream) -> io::Result<()> {
    let request = [1_i32.to_be_bytes(), CLOSE.to_be_bytes()].concat();
    // The number of the request, the latest change, and the error.
    match call(stream, &request)?.get(12..16) {
        Some([0, 0, 0, 0]) => Ok(()),
        error => Err(io::Error::other(format!("closeSession: error {error:?}"))),
    }
}

/// Sends a request, and returns the answer.
fn call(stream: &mut TcpStream, request: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(request.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), request].concat())?;
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
