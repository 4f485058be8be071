//! An order service with tonic: in all instances, calls for the same order wait for each other, and
//! calls for different orders do not. A stream holds its order until its end.
//!
//! ```text
//! cargo run --example tonic-orders                # a server on port 50051
//! cargo run --example tonic-orders -- client      # two servers and many clients: is every update there?
//! cargo run --example tonic-orders -- --help
//! ```
//!
//! Locks are in memory, or on Redis with `LOCK_URL=redis://127.0.0.1:6379` in front. Start reading
//! in `service.rs`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod client;
mod server;
mod service;
mod shop;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use args::{Client, Command, HELP, Serve};
use lock_runtime::{ConnectError, LockManager};
use server::Server;
use shop::Shop;
use tokio::signal::unix::{SignalKind, signal};

/// The code that `build.rs` generates from `proto/orders.proto`.
mod proto {
    #![allow(missing_docs, unreachable_pub, clippy::all)]
    tonic::include_proto!("orders.v1");
}

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Connects to the locks that `LOCK_URL` names, or else to those of `else_url`.
async fn locks(else_url: &str) -> Result<LockManager, ConnectError> {
    let url = std::env::var("LOCK_URL").ok().filter(|url| !url.is_empty());
    // The lock is renewed for as long as a call takes. The lease is how long an instance that was
    // killed keeps others waiting.
    let builder = LockManager::builder().lease(Duration::from_secs(10));
    builder.connect(url.as_deref().unwrap_or(else_url)).await
}

fn on_redis() -> bool {
    std::env::var_os("LOCK_URL").is_some_and(|url| !url.is_empty())
}

async fn serve(options: Serve) -> Result<()> {
    let locks = locks("memory:").await?;
    let shop = Shop::open(locks, options.database.as_deref(), options.work).await?;
    // Before the server is announced: a signal that comes now stops it as later ones do.
    let stop = asked_to_stop()?;
    let server = Server::start(shop, options.port).await?;
    let stores = if on_redis() { "with the locks of LOCK_URL" } else { "with locks in memory" };
    println!("listening on {} {stores}", server.url());

    say(&format!("{}: calls under way are finished", stop.await));
    server.stop().await?;
    say("stopped, no lock is left");
    Ok(())
}

/// Prints a line. The reader may have gone; `println!` would panic then, before the locks are
/// released.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Runs the client against running servers, or against two in this process, each with its own
/// manager.
async fn run_client(options: Client) -> Result<()> {
    let stop = asked_to_stop()?;
    let folder = tempfile::tempdir()?;
    let mut servers = Vec::new();
    let mut targets = options.targets;
    if targets.is_empty() {
        for _ in 0..2 {
            let locks = locks("memory:tonic-orders").await?;
            let database = folder.path().join("orders.sqlite");
            let shop = Shop::open(locks, Some(&database), options.work).await?;
            let server = Server::start(shop, 0).await?;
            targets.push(server.url());
            servers.push(server);
        }
    }
    // Whatever happens, the servers are stopped, so that no lock is left.
    let ran = tokio::select! {
        ran = client::run(&targets) => ran,
        reason = stop => Err(format!("stopped by {reason}").into()),
    };
    let mut stopped = Ok(());
    for server in servers {
        stopped = server.stop().await.and(stopped);
    }
    ran.and(stopped)
}

/// Returns a future that ends with the reason to stop: Ctrl-C or SIGTERM.
fn asked_to_stop() -> Result<impl Future<Output = &'static str>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        }
    })
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match args::parse(&arguments) {
        Ok(Command::Help) => {
            println!("{HELP}");
            Ok(())
        }
        Ok(Command::Serve(options)) => serve(options).await,
        Ok(Command::Client(options)) => run_client(options).await,
        Err(why) => Err(why.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
