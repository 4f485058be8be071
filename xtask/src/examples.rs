//! The examples, run as a newcomer runs them: in memory, on a Redis server, two processes at once; servers also with an
//! instance that comes later.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lock_tests::RedisServer;
use lock_tests::process::Process;
use serde_json::Value;

use crate::build;
use crate::servers::{Running as Servers, Topology};
use crate::test::{Outcome, Table};

/// Their names, and how they are asked to look after themselves and end.
const EXAMPLES: [(&str, &[&str]); 4] =
    [("quickstart", &[]), ("fencing", &[]), ("axum-orders", &["load"]), ("tonic-orders", &["client"])];

/// Those that are servers, to which an instance is added while they run, and what they need for a client to look closely.
const SERVERS: [(&str, &[&str]); 2] = [("axum-orders", &["--journal"]), ("tonic-orders", &[])];

/// Examples take seconds; one that hangs must not hang CI.
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn run(table: &mut Table, server_missing: bool) {
    for (name, args) in EXAMPLES {
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
        table.step(&format!("examples: {name}, in memory"), || finish(start(&program, args, None)));
        if server_missing {
            let why = Outcome::Skipped("missing: redis-server".to_owned());
            table.step(&format!("examples: {name}, on Redis"), || why);
            continue;
        }
        table.step(&format!("examples: {name}, on Redis"), || on_redis(&program, args, Topology::Single, 1));
        for topology in Topology::ALL {
            let step = format!("examples: {name}, two processes, {}", topology.name());
            table.step(&step, || on_redis(&program, args, topology, 2));
        }
        for (_, serve) in SERVERS.into_iter().filter(|(server, _)| *server == name) {
            let step = format!("examples: {name}, a second instance");
            table.step(&step, || second_instance(&program, serve, args));
        }
    }
}

/// Runs `count` processes at once on fresh servers; afterwards no lock may be left.
fn on_redis(program: &Path, args: &[&str], topology: Topology, count: usize) -> Outcome {
    let servers = match Servers::start(topology) {
        Ok(servers) => servers,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    let url = servers.url();
    let running: Vec<_> = (0..count).map(|_| start(program, args, Some(&url))).collect();
    let outcomes: Vec<Outcome> = running.into_iter().map(finish).collect();
    for outcome in outcomes {
        if outcome != Outcome::Ok {
            return outcome;
        }
    }
    nothing_is_left(&servers)
}

/// Adds an instance to one that is in use, puts load on both, and then asks both to stop.
fn second_instance(program: &Path, serve: &[&str], args: &[&str]) -> Outcome {
    match try_second_instance(program, serve, args) {
        Ok(outcome) => outcome,
        Err(why) => Outcome::Failed(why),
    }
}

fn try_second_instance(program: &Path, serve: &[&str], args: &[&str]) -> Result<Outcome, String> {
    let servers = Servers::start(Topology::Single).map_err(|error| error.to_string())?;
    let url = servers.url();
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let database = folder.path().join("orders.sqlite");
    let database = database.to_str().ok_or("the name of a folder is not text")?;
    let serve = [&["--port", "0", "--database", database], serve].concat();
    let (mut instances, mut args) =
        (Vec::new(), args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
    for _ in 0..2 {
        let (instance, target) = start_server(program, &serve, &url)?;
        instances.push(instance);
        args.extend(["--target".to_owned(), target]);
        match finish(start(program, &args, Some(&url))) {
            Outcome::Ok => {}
            failed => return Ok(failed),
        }
    }
    for instance in &mut instances {
        instance.terminate();
    }
    for instance in instances {
        match finish(Ok(instance)) {
            Outcome::Ok => {}
            failed => return Ok(failed),
        }
    }
    Ok(nothing_is_left(&servers))
}

/// A server says in its first line where it listens.
fn start_server(program: &Path, args: &[&str], url: &str) -> Result<(Process, String), String> {
    let mut command = command(program, args, Some(url));
    let mut process = spawn(command.stdout(Stdio::piped()))?;
    let mut output = BufReader::new(process.stdout().ok_or("a process without output")?);
    let mut line = String::new();
    output.read_line(&mut line).map_err(|error| error.to_string())?;
    let listens = line.split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned);
    // Its other lines are shown as they come.
    std::thread::spawn(move || output.lines().map_while(Result::ok).for_each(|line| println!("{line}")));
    Ok((process, listens.ok_or_else(|| format!("{} does not say where it listens", program.display()))?))
}

/// Locks are hashes; what stays for a while on purpose are the counters of fencing tokens.
fn nothing_is_left(servers: &Servers) -> Outcome {
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

type Running = Result<Process, String>;

fn start<S: AsRef<OsStr>>(program: &Path, args: &[S], url: Option<&str>) -> Running {
    spawn(&mut command(program, args, url))
}

fn command<S: AsRef<OsStr>>(program: &Path, args: &[S], url: Option<&str>) -> Command {
    let mut command = Command::new(program);
    match url {
        Some(url) => command.env("LOCK_URL", url),
        None => command.env_remove("LOCK_URL"),
    };
    command.args(args).current_dir(crate::root()).stdin(Stdio::null());
    command
}

fn spawn(command: &mut Command) -> Running {
    Process::spawn(command, None)
        .map_err(|error| format!("can't run {}: {error}", command.get_program().display()))
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
