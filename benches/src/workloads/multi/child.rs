//! One of the processes: tasks as in `hot`, counted when the parent says so.

use std::fs::OpenOptions;
use std::io::BufRead;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::super::hot;
use super::process::{COUNT, END, READY};
use crate::args::Options;
use crate::backend::Backend;
use crate::inside::Inside;
use crate::meter::Meter;
use crate::report::Report;
use crate::server::Urls;

pub(super) async fn run(options: &Options, urls: &Urls) -> Result<Report, String> {
    let mut parent = listen()?;
    let path = parent.recv().await.ok_or("the parent says nothing")?;
    let backend = Backend::connect(options, urls).await?;
    work(options, &backend, &mut parent, path).await
}

/// Runs the process to the end; `path` is the file of the overlap check.
pub(in super::super) async fn work(
    options: &Options,
    backend: &Backend,
    parent: &mut UnboundedReceiver<String>,
    path: String,
) -> Result<Report, String> {
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let inside = Inside::shared(&file.map_err(|error| format!("{path}: {error}"))?)?;
    let crew = hot::start(options, backend, inside)?;
    println!("{READY}");

    // The parent reads the counters of the server for all processes.
    let mut meter = Meter::clocks(options);
    hear(parent, COUNT).await?;
    let start = meter.start().await?;
    crew.count();
    hear(parent, END).await?;
    let pending = crew.end();
    let cost = meter.end(&start).await?;
    Ok(hot::report(options, &crew.finish(pending, cost).await?, inside))
}

async fn hear(parent: &mut UnboundedReceiver<String>, expected: &str) -> Result<(), String> {
    match parent.recv().await {
        Some(line) if line == expected => Ok(()),
        other => Err(format!("the parent says {other:?} instead of {expected:?}")),
    }
}

/// Returns the parent's lines. A thread reads them, and ends this process when the parent is gone,
/// however busy the tasks are.
pub(in super::super) fn listen() -> Result<UnboundedReceiver<String>, String> {
    let (sender, lines) = unbounded_channel();
    std::thread::Builder::new()
        .name("parent".to_owned())
        .spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                // Nobody listens when this process is about to end.
                let _ = sender.send(line);
            }
            eprintln!(
                "error: --id is for the processes that a workload starts; the one that started this one is gone"
            );
            std::process::exit(1);
        })
        .map_err(|error| format!("no thread to listen to the parent: {error}"))?;
    Ok(lines)
}
