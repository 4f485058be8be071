//! A proxy that delays every byte, as a distant server would: `--delay-ms`.
//!
//! Every byte arrives half of the delay after it was sent, in either direction and however many are
//! in flight. So a request need not wait for the answer to the one before it, as on a long line.
//!
//! The delay is the same for all connections, so one queue in order of arrival is enough, with one
//! sleeping thread. Tokio's timers would round half of the delay up to whole milliseconds.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

const CHUNK: usize = 64 * 1024;

/// Bytes read from one side, on their way to the other; empty at the end of the stream.
#[derive(Debug)]
struct Parcel {
    due: Instant,
    bytes: Vec<u8>,
    to: UnboundedSender<Vec<u8>>,
}

/// Starts a proxy in front of `server` (`host:port`) that adds `delay` to every round trip, and
/// returns its address. It runs on its own threads until this program ends.
pub(crate) fn start(server: String, delay: Duration) -> Result<SocketAddr, String> {
    let failed = |error| format!("no proxy for --delay-ms: {error}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let (parcels, line) = channel();
    let start = |name: &str| thread::Builder::new().name(name.to_owned());
    start("delay").spawn(move || deliver(&line)).map_err(failed)?;
    start("proxy")
        .spawn(move || runtime.block_on(accept(listener, server, delay / 2, parcels)))
        .map_err(failed)?;
    Ok(address)
}

/// Holds every parcel until it is due.
fn deliver(line: &Receiver<Parcel>) {
    while let Ok(parcel) = line.recv() {
        thread::sleep(parcel.due.saturating_duration_since(Instant::now()));
        // The other side may have closed meanwhile.
        let _ = parcel.to.send(parcel.bytes);
    }
}

async fn accept(listener: TcpListener, server: String, way: Duration, parcels: Sender<Parcel>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Too many open files: some of them may be closed soon.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        let (server, parcels) = (server.clone(), parcels.clone());
        tokio::spawn(async move {
            // The client sees its connection close at once, as with a server that has none left.
            let Ok(server) = TcpStream::connect(server).await else { return };
            if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
                return;
            }
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::spawn(carry(from_client, to_server, way, parcels.clone()));
            carry(from_server, to_client, way, parcels).await;
        });
    }
}

/// Carries one direction of one connection.
async fn carry(from: OwnedReadHalf, to: OwnedWriteHalf, way: Duration, parcels: Sender<Parcel>) {
    let (arrivals, arrived) = unbounded_channel();
    tokio::spawn(write(to, arrived));
    read(from, way, &parcels, &arrivals).await;
}

async fn read(
    mut from: OwnedReadHalf,
    way: Duration,
    parcels: &Sender<Parcel>,
    to: &UnboundedSender<Vec<u8>>,
) {
    let mut buffer = vec![0; CHUNK];
    loop {
        // An error ends the stream too.
        let count = from.read(&mut buffer).await.unwrap_or(0);
        let bytes = buffer.get(..count).unwrap_or_default().to_vec();
        let parcel = Parcel { due: Instant::now() + way, bytes, to: to.clone() };
        if parcels.send(parcel).is_err() || count == 0 || to.is_closed() {
            return;
        }
    }
}

async fn write(mut to: OwnedWriteHalf, mut arrived: UnboundedReceiver<Vec<u8>>) {
    while let Some(bytes) = arrived.recv().await {
        // The half closes when it is dropped.
        if bytes.is_empty() || to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    const DELAY: Duration = Duration::from_millis(100);

    /// Opens a connection through the proxy to a server that sends back what it gets.
    fn echo() -> std::net::TcpStream {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            std::io::copy(&mut &stream, &mut &stream).unwrap();
        });
        let stream = std::net::TcpStream::connect(start(server, DELAY).unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    #[test]
    fn a_round_trip_takes_the_delay_and_the_bytes_are_those_that_were_sent() {
        let mut stream = echo();
        let mut answer = [0; 5];
        for _ in 0..2 {
            let sent = Instant::now();
            stream.write_all(b"hello").unwrap();
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"hello");
            assert!(sent.elapsed() >= DELAY, "{:?}", sent.elapsed());
        }
    }

    #[test]
    fn what_is_sent_without_awaiting_answers_is_delayed_once() {
        const COUNT: u8 = 50;
        let mut stream = echo();
        let sent = Instant::now();
        for byte in 0..COUNT {
            stream.write_all(&[byte]).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        let mut answers = [0; COUNT as usize];
        stream.read_exact(&mut answers).unwrap();
        assert!(answers.iter().copied().eq(0..COUNT));
        // Fifty round trips one after the other would take five seconds.
        assert!(sent.elapsed() < DELAY * u32::from(COUNT) / 2, "{:?}", sent.elapsed());
    }

    #[test]
    fn the_end_of_a_stream_comes_after_its_bytes() {
        let mut stream = echo();
        stream.write_all(b"last").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text, "last");
    }
}
