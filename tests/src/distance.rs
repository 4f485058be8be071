//! [`Distance`]: a long way to a server.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// A port of the loopback interface that simulates a distant server: every byte takes the same time
/// in each direction. Any number of bytes can be under way at once. Closed on drop.
#[derive(Debug)]
pub struct Distance {
    port: u16,
    task: JoinHandle<()>,
}

impl Distance {
    /// Opens a port from which the server at `addr` is `way` away. A round trip takes twice that.
    ///
    /// # Panics
    ///
    /// When no port is free.
    pub async fn to(addr: SocketAddr, way: Duration) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let task = tokio::spawn(async move {
            let mut lines = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(addr).await else { continue };
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                lines.spawn(carry(near_in, far_out, way));
                lines.spawn(carry(far_in, near_out, way));
            }
        });
        Self { port, task }
    }

    /// Returns the address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Returns `redis://127.0.0.1:<port>`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Distance {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, way: Duration) {
    let (sender, mut under_way) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let bytes = buffer.get(..length).unwrap_or_default().to_vec();
            if sender.send((Instant::now() + way, bytes)).is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((arrives, bytes)) = under_way.recv().await {
            tokio::time::sleep_until(arrives).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn there_and_back_takes_two_ways() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let way = Duration::from_millis(50);
        let distance = Distance::to(server.local_addr().unwrap(), way).await;
        let echo = std::thread::spawn(move || {
            let (mut connection, _) = server.accept().unwrap();
            let mut bytes = [0; 4];
            connection.read_exact(&mut bytes).unwrap();
            connection.write_all(&bytes).unwrap();
        });
        let mut connection = TcpStream::connect(("127.0.0.1", distance.port)).await.unwrap();
        let start = Instant::now();
        connection.write_all(b"ping").await.unwrap();
        let mut bytes = [0; 4];
        connection.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"ping");
        assert!(start.elapsed() >= way * 2, "{:?}", start.elapsed());
        echo.join().unwrap();
    }
}
