//! The examples, run as a newcomer runs them: in memory, on a Redis server, and two processes at once.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lock_tests::RedisServer;
use serde_json::Value;

use crate::build;
use crate::servers::{Running as Servers, Topology};
use crate::test::{Outcome, Table};

const EXAMPLES: [&str; 2] = ["quickstart", "fencing"];

/// Examples take seconds; one that hangs must not hang CI.
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn run(table: &mut Table, server_missing: bool) {
    for name in EXAMPLES {
        let mut program = None;
        table.step(&format!("examples: {name}, build"), || match find(name) {
            Err(why) => Outcome::Failed(why),
            Ok(false) => Outcome::Skipped(format!("missing: there is no example {name}")),
            Ok(true) => match build::program(&["--example", name], "example", name) {
                Ok(path) => {
                    program = Some(path);
                    Outcome::Ok
                }
                Err(why) => Outcome::Failed(why),
            },
        });
        let Some(program) = program else { continue };
        table.step(&format!("examples: {name}, in memory"), || finish(start(&program, None)));
        if server_missing {
            let why = Outcome::Skipped("missing: redis-server".to_owned());
            table.step(&format!("examples: {name}, on Redis"), || why);
            continue;
        }
        table.step(&format!("examples: {name}, on Redis"), || on_redis(&program, Topology::Single, 1));
        for topology in Topology::ALL {
            let step = format!("examples: {name}, two processes, {}", topology.name());
            table.step(&step, || on_redis(&program, topology, 2));
        }
    }
}

/// Runs `count` processes at once on fresh servers; afterwards no lock may be left.
fn on_redis(program: &Path, topology: Topology, count: usize) -> Outcome {
    let servers = match Servers::start(topology) {
        Ok(servers) => servers,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    let url = servers.url();
    let running: Vec<_> = (0..count).map(|_| start(program, Some(&url))).collect();
    let outcomes: Vec<Outcome> = running.into_iter().map(finish).collect();
    for outcome in outcomes {
        if outcome != Outcome::Ok {
            return outcome;
        }
    }
    // Locks are hashes; what stays for a while on purpose are the counters of fencing tokens.
    let locks = |server: &&RedisServer| {
        let keys = server.cli(&["KEYS", "*"]);
        let locks = keys.lines().filter(|key| server.cli(&["TYPE", key]) == "hash").map(str::to_owned);
        locks.collect::<Vec<_>>()
    };
    let left: Vec<String> = servers.primaries().iter().flat_map(locks).collect();
    if left.is_empty() {
        Outcome::Ok
    } else {
        Outcome::Failed(format!("locks left behind: {}", left.join(", ")))
    }
}

type Running = Result<lock_tests::process::Process, String>;

fn start(program: &Path, url: Option<&str>) -> Running {
    let mut command = Command::new(program);
    match url {
        Some(url) => command.env("LOCK_URL", url),
        None => command.env_remove("LOCK_URL"),
    };
    command.current_dir(crate::root()).stdin(Stdio::null());
    lock_tests::process::Process::spawn(&mut command, None)
        .map_err(|error| format!("can't run {}: {error}", program.display()))
}

fn finish(running: Running) -> Outcome {
    let mut process = match running {
        Ok(process) => process,
        Err(why) => return Outcome::Failed(why),
    };
    let deadline = Instant::now() + LIMIT;
    loop {
        match process.ended() {
            Some(status) if status.success() => return Outcome::Ok,
            Some(status) => return Outcome::Failed(status.to_string()),
            None if Instant::now() >= deadline => {
                return Outcome::Failed(format!("not done within {LIMIT:?}"));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Whether the workspace has the example.
fn find(name: &str) -> Result<bool, String> {
    let output = crate::cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    Ok(build::list(&metadata["packages"])
        .flat_map(|package| build::list(&package["targets"]))
        .any(|target| build::is(target, "example", name)))
}
