//! # A server that stops under load
//!
//! A deployment sends SIGTERM while requests are in flight. They must finish under their locks. A
//! lock that stays behind keeps other instances waiting until its lease ends.
//!
//! **Copy** `serve`: stop accepting, let requests finish, then shut the manager down.
//!
//! **Watch**
//! - `locks.shutdown` comes last, since no request gets a lock after it. Those that still wait are
//!   answered with 503. Those that hold a lock have `GRACE` to finish.
//! - Kubernetes kills the process after `terminationGracePeriodSeconds`, 30 by default. Set it to
//!   more than `DRAIN`, `GRACE` and `LAST_WORDS` together.
//! - Install the signal handler before the server is announced as ready.
//!
//! ```text
//! cargo run --example shutdown               # a server, which says what to type
//! cargo run --example shutdown -- check      # sends itself a request and a SIGTERM
//! ```
#![allow(clippy::print_stdout)]

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use axum::{Router, extract::Path, routing::post};
use lock_runtime::layer::{LockLayer, path_param};
use lock_runtime::{HeldLock, LockManager};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

/// Time for requests to finish. Those that still wait for a lock then are answered with 503.
const DRAIN: Duration = Duration::from_secs(5);
/// Time after that for requests that hold a lock.
const GRACE: Duration = Duration::from_secs(5);
/// Time after that to answer the requests that were refused.
const LAST_WORDS: Duration = Duration::from_secs(1);

async fn serve(listener: TcpListener, locks: LockManager) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let address = listener.local_addr()?;
    let per_order = LockLayer::new(locks.clone(), path_param("id").prefix("order:").parsed::<u32>());
    let app: Router = Router::new().route("/orders/{id}", post(ship)).route_layer(per_order);
    let (drain, drained) = tokio::sync::oneshot::channel::<()>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async { drop(drained.await) });
    let mut serving = tokio::spawn(server.into_future());
    println!("listening on http://{address}");
    println!("try: curl -X POST http://{address}/orders/7 & sleep 0.2; kill -TERM {}", std::process::id());

    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    println!("finishing the requests in flight");
    let _ = drain.send(());
    let served = timeout(DRAIN, &mut serving).await;
    let released = locks.shutdown(GRACE).await;
    match served {
        Ok(served) => served??,
        Err(_late) => drop(timeout(LAST_WORDS, &mut serving).await),
    }
    released?;
    println!("stopped, no lock is left");
    Ok(())
}

async fn ship(Path(id): Path<u32>, held: HeldLock) -> String {
    sleep(Duration::from_secs(1)).await;
    format!("order {id} is shipped, token {}\n", held.fencing_token())
}

/// Sends a request, and returns the whole answer.
async fn send(address: SocketAddr) -> Result<String> {
    let mut socket = TcpStream::connect(address).await?;
    socket.write_all(b"POST /orders/7 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n").await?;
    let mut answer = String::new();
    // The server keeps the connection for further requests, until it stops.
    socket.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Sends a request, and a SIGTERM when it has its lock.
async fn check(address: SocketAddr, locks: &LockManager) -> Result<()> {
    let request = tokio::spawn(send(address));
    while !locks.status("order:7").await?.is_locked() && !request.is_finished() {
        sleep(Duration::from_millis(1)).await;
    }
    let me = std::process::id().to_string();
    if !Command::new("kill").args(["-TERM", &me]).status()?.success() {
        bail!("can't send a SIGTERM");
    }
    let answer = request.await??;
    println!("the request was answered: {}", answer.lines().next().unwrap_or("not at all"));
    ensure!(answer.starts_with("HTTP/1.1 200"), answer);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("LOCK_URL").unwrap_or_else(|_| "memory:".to_owned());
    let locks = LockManager::connect(url).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    if std::env::args().nth(1).as_deref() != Some("check") {
        return serve(listener, locks).await;
    }
    tokio::try_join!(serve(listener, locks.clone()), check(address, &locks))?;
    ensure!(!locks.status("order:7").await?.is_locked(), "a lock is left");
    Ok(())
}
