//! `waiting`: what a crowd costs the server while it waits for a lock that nobody releases.
//! Compares a fair lock with a mutex, in one process and in many. The many are managers of this
//! process, each with its own connections.

use std::time::Duration;

use lock_runtime::{Kind, Lock, LockError, LockManager};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::common::Errors;
use crate::args::Options;
use crate::backend;
use crate::meter::Meter;
use crate::report::Report;
use crate::server::{Product, Urls};
use crate::stats::{Samples, Waits, round};

/// Time before anything is counted, in which all waiters join and have waited for a while; not
/// longer than the time that is counted.
const SETTLED: Duration = Duration::from_secs(6);
/// Time after the counted part at which each waiter gives up; likewise.
const REST: Duration = Duration::from_secs(3);
/// Pause between two PINGs of a bystander.
const PAUSE: Duration = Duration::from_millis(2);
/// Lease of a bystander's lock, which is lost if its renewals are held up for that long.
const LEASE: Duration = Duration::from_secs(3);

/// The tasks that wait: `tasks` of each of `managers`.
#[derive(Clone, Copy)]
struct Crowd {
    managers: usize,
    tasks: usize,
}

/// The load that a crowd puts on the server.
struct Load {
    /// Processor time of the server, in ms per second; known of Redis only.
    cpu: Option<f64>,
    /// Commands of all clients, without PINGs, per second.
    commands: Option<f64>,
    pings: Samples,
}

pub(super) async fn run(options: &Options, urls: &Urls) -> Result<Report, String> {
    let mut meter = Meter::connect(options, urls).await?;
    let (mut errors, mut lost, mut extra, mut worst) = (Errors::default(), 0, Vec::new(), None);
    let start = meter.start().await?;
    for (crowd, names) in [
        (
            Crowd { managers: 1, tasks: options.tasks },
            ["one", "one_mutex", "one_fair", "one_cpu", "one_ping"],
        ),
        (
            Crowd { managers: options.procs, tasks: 1 },
            ["many", "many_mutex", "many_fair", "many_cpu", "many_ping"],
        ),
    ] {
        let mut loads = Vec::new();
        for kind in [None, Some(Kind::Mutex), Some(Kind::Fair)] {
            let (load, bystander_lost) = measure(options, urls, crowd, kind, &mut errors).await?;
            lost += u64::from(bystander_lost);
            loads.push(load);
        }
        let [idle, mutex, fair] = &*loads else { continue };
        let p99 = |load: &Load| load.pings.percentile(99.0).unwrap_or_default();
        let ratio = |over: f64, under: f64| round(over / under.max(1e-6));
        extra.push((names[0], json!({"managers": crowd.managers, "tasks": crowd.tasks})));
        for (name, load) in [(names[1], mutex), (names[2], fair)] {
            let load: Value = json!({
                "server_ms_per_s": load.cpu.map(round),
                "cmds_per_s": load.commands.map(round),
                "ping_p99_us": p99(load),
            });
            extra.push((name, load));
        }
        let cpu = fair.cpu.zip(mutex.cpu).map(|(fair, mutex)| ratio(fair, mutex));
        extra.push((names[3], json!(cpu)));
        extra.push((names[4], json!(ratio(p99(fair), p99(idle)))));
        worst = cpu.into_iter().chain(worst).reduce(f64::max);
    }
    extra.push(("worst_cpu", json!(worst)));
    extra.push(("lost", json!(lost)));
    Ok(Report {
        tasks: options.tasks,
        hold_us: 0,
        grants: 0,
        errors: errors.0,
        waits: Waits::from(&Samples::new()),
        cost: meter.end(&start).await?,
        extra,
    })
}

/// Lets a crowd wait for a lock of `kind`, or only connect if `None`, and returns whether a
/// bystander lost a lock.
async fn measure(
    options: &Options,
    urls: &Urls,
    crowd: Crowd,
    kind: Option<Kind>,
    errors: &mut Errors,
) -> Result<(Load, bool), String> {
    let url = urls.measured.as_deref().ok_or("there is no server")?;
    // In a database, the first sign of life makes another connection.
    let [settled, rest] = [SETTLED, REST].map(|most| most.min(options.secs));
    let settled = if urls.database().is_some() { settled * 2 } else { settled };
    let connect = || {
        let builder = LockManager::builder().max_waiters_per_key(crowd.tasks.max(1));
        builder.max_fair_waiters_per_key(crowd.tasks.max(1)).connect(url)
    };
    let said = |error: lock_runtime::ConnectError| error.to_string();
    let mut managers = Vec::new();
    for _ in 0..crowd.managers {
        managers.push(connect().await.map_err(said)?);
    }
    let bystander = LockManager::builder().lease(LEASE).connect(url).await.map_err(said)?;
    let other = bystander.mutex("bystander").acquire().await.map_err(|error| error.to_string())?;
    let mut waiters = JoinSet::new();
    let mut held = None;
    if let Some(kind) = kind {
        held = Some(lock(&bystander, kind).acquire().await.map_err(|error| error.to_string())?);
        for manager in &managers {
            for _ in 0..crowd.tasks {
                waiters.spawn(lock(manager, kind).wait(settled + options.secs + rest).acquire());
            }
        }
    }
    tokio::time::sleep(settled).await;
    let mut server = match urls.database() {
        Some(_) => None,
        None => Some(backend::connect(url).await?),
    };
    let mut meter = Meter::connect(options, urls).await?;
    let (before, start) = (cpu_of(&mut server).await?, meter.start().await?);
    let bystanding = (options.clone(), urls.clone());
    let pings = tokio::task::spawn_blocking(move || ping(&bystanding.0, &bystanding.1));
    let pings = pings.await.map_err(|error| error.to_string())??;
    let cost = meter.end(&start).await?;
    let per_second = |count: f64| count / cost.time.as_secs_f64();
    let cpu = cpu_of(&mut server).await?.zip(before).map(|(after, before)| per_second(after - before));
    // The bystander's commits are not counted in PostgreSQL.
    let not_ours = if matches!(urls.database(), Some((Product::Postgres, _))) { 0 } else { pings.count() };
    let commands = cost.calls.map(|calls| per_second(calls.by_clients.saturating_sub(not_ours) as f64));
    // All give up at about the same time.
    while let Some(waited) = waiters.join_next().await {
        match waited.map_err(|error| error.to_string())? {
            Err(LockError::TimedOut { .. }) => {}
            Err(error) => errors.add(&error.to_string()),
            Ok(_) => errors.add("a held lock was granted"),
        }
    }
    let lost = other.is_lost() || held.as_ref().is_some_and(lock_runtime::LockGuard::is_lost);
    for guard in held.into_iter().chain([other]) {
        if let Err(error) = guard.release().await {
            errors.add(&error.to_string());
        }
    }
    for manager in managers {
        manager.shutdown(REST).await.map_err(|error| error.to_string())?;
    }
    Ok((Load { cpu, commands, pings }, lost))
}

/// Sends the PINGs of another program, on a thread that the crowd does not use.
fn ping(options: &Options, urls: &Urls) -> Result<Samples, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let mut meter = Meter::connect(options, urls).await?;
        let (began, mut pings) = (tokio::time::Instant::now(), Samples::new());
        while began.elapsed() < options.secs {
            if let Some(ping) = meter.ping().await? {
                pings.record(ping);
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(pings)
    })
}

fn lock(manager: &LockManager, kind: Kind) -> Lock {
    match kind {
        Kind::Fair => manager.fair("waiting:fair"),
        _ => manager.mutex("waiting"),
    }
}

/// Returns the processor time of a Redis server so far, in ms.
async fn cpu_of(server: &mut Option<redis::aio::MultiplexedConnection>) -> Result<Option<f64>, String> {
    let Some(server) = server else { return Ok(None) };
    let info: String =
        redis::cmd("INFO").arg("cpu").query_async(server).await.map_err(|error| format!("INFO: {error}"))?;
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|seconds| seconds.trim().parse::<f64>().ok())
            .ok_or_else(|| format!("no {name} in INFO"))
    };
    Ok(Some((field("used_cpu_user:")? + field("used_cpu_sys:")?) * 1000.0))
}
