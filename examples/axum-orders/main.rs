//! An order service with axum: in all instances, requests for the same order wait for each other,
//! and requests for different orders do not.
//!
//! ```text
//! cargo run --example axum-orders                # a server on port 3000; the README beside this has the curl lines
//! cargo run --example axum-orders -- load        # two servers and many clients: is every update there?
//! cargo run --example axum-orders -- --help
//! ```
//!
//! Locks are in memory, or on Redis with `LOCK_URL=redis://127.0.0.1:6379` in front. Start reading
//! in `routes.rs`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod instances;
mod journal;
mod load;
mod routes;
mod server;
mod shop;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use args::{Command, HELP, Parent, Serve};
use lock_runtime::{ConnectError, LockManager};
use server::Server;
use shop::Shop;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Connects to the locks that `LOCK_URL` names, or else to those of `else_url`.
async fn locks(else_url: &str) -> Result<LockManager, ConnectError> {
    let url = std::env::var("LOCK_URL").ok().filter(|url| !url.is_empty());
    // The lock is renewed for as long as a request takes. The lease is how long an instance that
    // was killed keeps others waiting.
    let builder = LockManager::builder().lease(Duration::from_secs(10));
    builder.connect(url.as_deref().unwrap_or(else_url)).await
}

fn on_redis() -> bool {
    std::env::var_os("LOCK_URL").is_some_and(|url| !url.is_empty())
}

async fn serve(options: Serve) -> Result<()> {
    let locks = locks("memory:").await?;
    let shop = Shop::open(options.database.as_deref(), options.work).await?;
    // Before the server is announced: a signal that comes now stops it as later ones do.
    let stop = asked_to_stop(options.parent)?;
    let server = Server::start(locks, shop, options.port, options.journal).await?;
    let stores = if on_redis() { "with the locks of LOCK_URL" } else { "with locks in memory" };
    println!("listening on {} {stores}", server.url());

    say(&format!("{}: requests under way are finished", stop.await));
    server.stop().await?;
    say("stopped, no lock is left");
    Ok(())
}

/// Prints a line. The reader may have gone; `println!` would panic then, before the locks are
/// released.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Returns a future that ends with the reason to stop: Ctrl-C, SIGTERM, or, with `parent`, the end
/// of the parent process.
fn asked_to_stop(parent: Parent) -> Result<impl Future<Output = &'static str>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (ended, parent_ended) = oneshot::channel::<()>();
    if parent == Parent::HoldsStdin {
        // A plain thread, since the runtime would wait for the end of the read when it is dropped.
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            let _ = ended.send(());
        });
    }
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
            Ok(()) = parent_ended => "end of input",
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
        Ok(Command::Load(options)) => instances::load(&options).await,
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
