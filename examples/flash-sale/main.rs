//! A flash sale with axum: a thousand units, twenty thousand requests, and not one unit too many
//! sold.
//!
//! ```text
//! cargo run --example flash-sale                # a service, its page, its buyers, and an audit
//! cargo run --example flash-sale -- serve       # the service alone; the README beside this has the curl lines
//! cargo run --example flash-sale -- --help
//! ```
//!
//! Stock and locks are in memory, or at the store that `LOCK_URL` names, such as
//! `LOCK_URL=redis://127.0.0.1:6379`. Databases need `--features postgres,mysql,sqlite`. Start
//! reading in `routes.rs`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod audit;
mod journal;
mod load;
mod routes;
mod sale;
mod server;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use args::{Command, HELP, Load, Serve, Then};
use audit::Sellers;
use lock_runtime::segmented::Layout;
use lock_runtime::{ConnectError, LockManager};
use sale::Sale;
use server::Server;
use tokio::signal::unix::{SignalKind, signal};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

fn url() -> Option<String> {
    std::env::var("LOCK_URL").ok().filter(|url| !url.is_empty())
}

/// Connects to the locks that `LOCK_URL` names, or else to some in memory.
async fn locks() -> Result<LockManager, ConnectError> {
    let builder = LockManager::builder().lease(Duration::from_secs(10));
    builder.connect(url().as_deref().unwrap_or("memory:")).await
}

async fn start(options: &Serve) -> Result<Server> {
    let locks = locks().await?;
    let name = match &options.sale {
        Some(name) => name.clone(),
        None => format!("{:08x}", rand::random::<u32>()),
    };
    let sale = Sale::open(&locks, &name, options).await?;
    let stores = if url().is_some() { "at LOCK_URL" } else { "in memory" };
    let server = Server::start(locks, sale, options.port).await?;
    println!("the sale {name} is on: {}/  (stock {stores})", server.url());
    Ok(server)
}

async fn serve(options: &Serve) -> Result<()> {
    // Before the server is announced: a signal that comes now stops it as later ones do.
    let stop = asked_to_stop()?;
    let server = start(options).await?;
    say(&format!("{}: requests under way are finished", stop.await));
    server.stop().await
}

async fn run(options: &Serve, buyers: &Load, then: Then) -> Result<()> {
    let mut stop = std::pin::pin!(asked_to_stop()?);
    let server = start(options).await?;
    let sellers = if options.sale.is_some() { Sellers::Several } else { Sellers::Alone };
    let target = server.url();
    let sold = tokio::select! {
        sold = sell(&target, buyers, sellers) => sold,
        reason = &mut stop => Err(format!("stopped by {reason} before the end").into()),
    };
    if then == Then::KeepServing && sold.is_ok() {
        say(&format!("{target}/ stays until Ctrl-C"));
        stop.await;
    }
    let stopped = server.stop().await;
    sold.and(stopped)
}

async fn sell(target: &str, buyers: &Load, sellers: Sellers) -> Result<()> {
    let report = load::run(target, buyers).await?;
    println!("{report}");
    println!("audit");
    let (text, problems) = audit::check(&report.state, &report.journal.books(), sellers);
    println!("{text}");
    audit::verdict(&problems)
}

async fn audit(sale: &str, layout: Layout, journals: &[std::path::PathBuf]) -> Result<()> {
    if url().is_none() {
        return Err("an audit needs the LOCK_URL that the sale had".into());
    }
    let locks = locks().await?;
    audit::audit(sale, &sale::stock(&locks, sale, layout), journals).await
}

/// Prints a line. The reader may have gone; `println!` would panic then, before the locks are
/// released.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
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
        Ok(Command::Run { serve, load, then }) => run(&serve, &load, then).await,
        Ok(Command::Serve(options)) => serve(&options).await,
        Ok(Command::Load { target, load }) => sell(&target, &load, Sellers::Several).await,
        Ok(Command::Audit { sale, layout, journals }) => audit(&sale, layout, &journals).await,
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
