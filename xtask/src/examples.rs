//! The examples, run as a newcomer runs them: in memory, on a Redis server in each layout, in
//! databases, and as two processes at once. Servers are also run with an
//! instance that joins later. Recipes run in memory and on single stores only. The flash sale needs
//! a stock, which stores of the plain layout don't have.

use std::cell::LazyCell;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::cli::Scope;
use crate::install::{Found, Tool};
use crate::servers::{Running as Servers, Topology};
use crate::test::{Lane, Outcome, Part, Programs};
use lock_tests::process::Process;
use lock_tests::{Layout, RedisServer};

/// Names of the examples, with the arguments that make them check themselves and end.
const EXAMPLES: [(&str, &[&str]); 5] = [
    ("quickstart", &[]),
    ("fencing", &[]),
    ("axum-orders", &["load"]),
    ("tonic-orders", &["client"]),
    (FLASH_SALE, &[]),
];

/// Names of the recipes, with the arguments that make them check themselves and end.
const RECIPES: [(&str, &[&str]); 10] = [
    ("service", &[]),
    ("cron", &[]),
    ("json_body", &[]),
    ("tenants", &[]),
    ("shutdown", &["check"]),
    ("outbox", &[]),
    (COMMIT, &[]),
    ("anyhow_program", &[]),
    ("migration", &[]),
    ("blocking", &[]),
];

/// The example whose instances sell from one stock, and whose books are compared afterwards.
const FLASH_SALE: &str = "flash-sale";

/// The recipe whose locks are in the same database as its data: in a file, unless it gets a URL.
const COMMIT: &str = "commit";

/// Servers that an instance joins while they run, with the arguments that let a client check them.
const SERVERS: [(&str, &[&str]); 2] = [("axum-orders", &["--journal"]), ("tonic-orders", &[])];

/// Databases on servers, what they need, and what starts them.
const DATABASES: [(&str, &[Tool], Topology); 5] = [
    ("PostgreSQL", &[Tool::PostgreSql], Topology::Postgres),
    ("MariaDB", &[Tool::MariaDb], Topology::MariaDb),
    ("MongoDB", &[Tool::MongoDb], Topology::MongoDb),
    ("etcd", &[Tool::Etcd], Topology::Etcd),
    ("ZooKeeper", &[Tool::Jdk, Tool::Maven], Topology::ZooKeeper),
];

/// Those without SQL.
const WITHOUT_SQL: [&str; 3] = ["MongoDB", "etcd", "ZooKeeper"];

/// Those without stocks.
const WITHOUT_STOCKS: [&str; 2] = ["etcd", "ZooKeeper"];

/// Maximum time for an example. They take seconds; one that hangs must not hang CI.
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn run(lane: &Lane<'_>, scope: Scope, found: &Found, programs: &Programs) {
    let step = |name: &str, step: &dyn Fn() -> Outcome| lane.step(Part::Examples, name, |_| step());
    let databases = DATABASES.map(|(name, tools, topology)| {
        let start = move || {
            if tools.iter().any(|tool| found.is_missing(*tool)) {
                return Err(Outcome::Skipped(format!("missing: {name}")));
            }
            Servers::start(topology).map_err(|error| Outcome::Failed(error.to_string()))
        };
        (name, LazyCell::new(start))
    });
    for (name, args) in EXAMPLES.into_iter().chain(RECIPES) {
        let Some(program) = programs.example(name) else {
            step(&format!("examples: {name}"), &|| Outcome::Failed("cargo has not built it".to_owned()));
            continue;
        };
        let place = if name == COMMIT { "in a file" } else { "in memory" };
        step(&format!("examples: {name}, {place}"), &|| finish(start(program, args, None)));
        if scope == Scope::Quick {
            continue;
        }
        // A recipe runs once, and other examples as two processes.
        let (args, count) = match name {
            FLASH_SALE => (&FEW[..], 1),
            _ if RECIPES.contains(&(name, args)) => (args, 1),
            _ => (args, 2),
        };
        step(&format!("examples: {name}, on SQLite"), &|| {
            on_sqlite(|url| all_at_once(program, args, url, count))
        });
        let databases = databases.iter().filter(|(database, _)| match name {
            COMMIT => !WITHOUT_SQL.contains(database),
            FLASH_SALE => !WITHOUT_STOCKS.contains(database),
            _ => true,
        });
        for (database, servers) in databases.clone() {
            step(&format!("examples: {name}, on {database}"), &|| {
                on_started(servers, |url| all_at_once(program, args, url, count))
            });
        }
        if name == FLASH_SALE {
            let sale = |url: &str| or_failed(joint_sale(program, url, "one-slot", Joins::AndIsKilled));
            let text = |database: &str| format!("examples: {name}, one of two is killed, {database}");
            step(&text("SQLite"), &|| on_sqlite(sale));
            for (database, servers) in databases {
                step(&text(database), &|| on_started(servers, sale));
            }
        }
        if name == COMMIT {
            continue;
        }
        if found.is_missing(Tool::RedisServer) {
            lane.skip(Part::Examples, &format!("examples: {name}, on Redis"), "missing: redis-server");
            continue;
        }
        if name == FLASH_SALE {
            flash_sales(lane, program);
            continue;
        }
        for layout in Layout::ALL {
            let text = format!("examples: {name}, on Redis, {} layout", layout.name());
            step(&text, &|| on_redis(program, args, (Topology::Single, layout), 1));
        }
        if name == "cron" {
            step("examples: cron, three processes", &|| or_failed(one_of_three(program)));
        }
        if name == "shutdown" {
            step("examples: shutdown, SIGTERM", &|| or_failed(terminated(program)));
        }
        if RECIPES.contains(&(name, args)) {
            continue;
        }
        for topology in Topology::REDIS {
            let text = format!("examples: {name}, two processes, {}", topology.name());
            step(&text, &|| on_redis(program, args, (topology, Layout::Hash), 2));
        }
        for (_, serve) in SERVERS.into_iter().filter(|(server, _)| *server == name) {
            let text = format!("examples: {name}, a second instance");
            step(&text, &|| or_failed(second_instance(program, serve, args)));
        }
    }
}

/// Runs something on a fresh file.
fn on_sqlite(run: impl FnOnce(&str) -> Outcome) -> Outcome {
    match tempfile::tempdir() {
        Ok(folder) => run(&format!("sqlite:{}", folder.path().join("locks.db").display())),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

/// Runs something on servers, if they have started.
fn on_started(servers: &Result<Servers, Outcome>, run: impl FnOnce(&str) -> Outcome) -> Outcome {
    match servers {
        Ok(servers) => run(&servers.url()),
        Err(outcome) => outcome.clone(),
    }
}

/// Runs the command of the README, with the features that a newcomer gets.
pub(crate) fn run_as_newcomer(lane: &Lane<'_>) {
    lane.step(Part::Examples, "examples: cargo run --example quickstart", |step| {
        let mut cargo = crate::cargo();
        step.run(cargo.args(["run", "--example", "quickstart"]).env_remove("LOCK_URL"))
    });
}

/// Runs `count` processes at once on fresh servers; afterwards no lock may be left.
fn on_redis(program: &Path, args: &[&str], (topology, layout): (Topology, Layout), count: usize) -> Outcome {
    let servers = match Servers::start(topology) {
        Ok(servers) => servers,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    let url = layout.url(&servers.url());
    match all_at_once(program, args, &url, count) {
        Outcome::Ok => nothing_is_left(&servers, layout),
        failed => failed,
    }
}

/// Runs `count` processes at once on the store at `url`.
fn all_at_once(program: &Path, args: &[&str], url: &str, count: usize) -> Outcome {
    let running: Vec<_> = (0..count).map(|_| start(program, args, Some(url))).collect();
    let outcomes: Vec<Outcome> = running.into_iter().map(finish).collect();
    outcomes.into_iter().find(|outcome| *outcome != Outcome::Ok).unwrap_or(Outcome::Ok)
}

fn or_failed(outcome: Result<Outcome, String>) -> Outcome {
    outcome.unwrap_or_else(Outcome::Failed)
}

/// Starts two instances of the job at once, and a third one when they are done. One does the job.
fn one_of_three(program: &Path) -> Result<Outcome, String> {
    let servers = Servers::start(Topology::Single).map_err(|error| error.to_string())?;
    let url = servers.url();
    let start = || spawn(command(program, &["one"], Some(&url)).stdout(Stdio::piped()));
    let text = |instance: Running| {
        let (mut instance, mut text) = (instance?, String::new());
        let mut output = instance.stdout().ok_or("a process without output")?;
        let outcome = finish(Ok(instance));
        output.read_to_string(&mut text).map_err(|error| error.to_string())?;
        print!("{text}");
        if outcome == Outcome::Ok { Ok(text) } else { Err(format!("{outcome:?}")) }
    };
    let (first, second) = (start(), start());
    let texts = [text(first)?, text(second)?, text(start())?];
    match texts.iter().filter(|text| text.contains("sent")).count() {
        1 => Ok(Outcome::Ok),
        count => Err(format!("{count} of three processes have done the job")),
    }
}

/// Sends a SIGTERM to a server with a request in flight, which must be answered.
fn terminated(program: &Path) -> Result<Outcome, String> {
    let failed = |error: std::io::Error| error.to_string();
    let servers = Servers::start(Topology::Single).map_err(|error| error.to_string())?;
    let (mut server, target) = start_server(program, &[], &servers.url())?;
    let mut client = TcpStream::connect(target.trim_start_matches("http://")).map_err(failed)?;
    let request = b"POST /orders/7 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
    client.write_all(request).map_err(failed)?;
    client.set_read_timeout(Some(Duration::from_millis(2))).map_err(failed)?;
    let deadline = Instant::now() + LIMIT;
    while nothing_is_left(&servers, Layout::Hash) == Outcome::Ok {
        if Instant::now() >= deadline {
            return Err(format!("the request has no lock after {LIMIT:?}"));
        }
        // On a busy machine, the request may have come and gone.
        if client.read(&mut [0; 4096]).is_ok() {
            client.write_all(request).map_err(failed)?;
        }
    }
    client.set_read_timeout(Some(LIMIT)).map_err(failed)?;
    server.terminate();
    let mut answer = String::new();
    client.read_to_string(&mut answer).map_err(failed)?;
    if !answer.starts_with("HTTP/1.1 200") {
        return Err(format!("the request in flight was answered with {answer:?}"));
    }
    match finish(Ok(server)) {
        Outcome::Ok => Ok(nothing_is_left(&servers, Layout::Hash)),
        failed => Ok(failed),
    }
}

/// Adds an instance to a running one, puts load on both, and then asks both to stop.
fn second_instance(program: &Path, serve: &[&str], args: &[&str]) -> Result<Outcome, String> {
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
    Ok(nothing_is_left(&servers, Layout::Hash))
}

/// Servers for a stock, and its layout on them.
const STOCKED: [(Topology, &str); 3] =
    [(Topology::Single, "one-slot"), (Topology::Sentinel, "one-slot"), (Topology::Cluster, "spread")];

/// The fate of the instance that joins a sale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joins {
    ToTheEnd,
    /// It is killed when it has sold some units, but not all.
    AndIsKilled,
}

/// A sale with so few buyers that it takes seconds only.
const FEW: [&str; 4] = ["--requests", "4000", "--over", "1"];

fn flash_sales(lane: &Lane<'_>, program: &Path) {
    let step = |name: &str, step: &dyn Fn() -> Outcome| lane.step(Part::Examples, name, |_| step());
    step(&format!("examples: {FLASH_SALE}, on Redis"), &|| {
        on_redis(program, &FEW, (Topology::Single, Layout::Hash), 1)
    });
    for (topology, layout) in STOCKED {
        for (joins, what) in
            [(Joins::ToTheEnd, "a second instance"), (Joins::AndIsKilled, "one of two is killed")]
        {
            let text = format!("examples: {FLASH_SALE}, {what}, {}, {layout}", topology.name());
            step(&text, &|| or_failed(joint_sale_on_redis(program, topology, layout, joins)));
        }
    }
}

/// Sells from one stock with two instances; the second one joins when the first has sold something.
/// In the end, the stock must have sold what the buyers of both were told.
fn joint_sale(program: &Path, url: &str, layout: &str, joins: Joins) -> Result<Outcome, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let journals = ["first", "second"].map(|name| folder.path().join(name).display().to_string());
    // One that is to be killed finds enough units and orders, even if it comes last.
    let (units, orders) = match joins {
        Joins::ToTheEnd => ("1000", "600"),
        Joins::AndIsKilled => ("2500", "6000"),
    };
    let sell = |journal: &str, requests: &str| {
        let sale = ["--sale", "ci", "--layout", layout, "--units", units];
        let load = ["--requests", requests, "--over", "3", "--journal", journal];
        start(program, &[&sale[..], &load].concat(), Some(url))
    };
    let [first, second] = &journals;
    let mut running = vec![sell(first, "600")?];
    sold_some(&mut running, first, 10)?;
    running.push(sell(second, orders)?);
    if joins == Joins::AndIsKilled {
        sold_some(&mut running, second, 50)?;
        if let Some(mut second) = running.pop() {
            if let Some(status) = second.ended() {
                return Err(format!("the second instance was to be killed, and has ended with {status}"));
            }
            second.kill();
        }
    }
    for instance in running {
        match finish(Ok(instance)) {
            Outcome::Ok => {}
            failed => return Ok(failed),
        }
    }
    let audit = |journals: &[&str]| {
        let each = journals.iter().flat_map(|journal| ["--journal", journal]);
        let args: Vec<&str> = ["audit", "--sale", "ci", "--layout", layout].into_iter().chain(each).collect();
        finish(start(program, &args, Some(url)))
    };
    match audit(&[first, second]) {
        Outcome::Ok => {}
        failed => return Ok(failed),
    }
    // The second one has certainly sold something, so the sums can't agree without its books.
    if joins == Joins::AndIsKilled && audit(&[first]) == Outcome::Ok {
        return Err("the audit does not see that a journal is missing".to_owned());
    }
    Ok(Outcome::Ok)
}

fn joint_sale_on_redis(
    program: &Path,
    topology: Topology,
    layout: &str,
    joins: Joins,
) -> Result<Outcome, String> {
    let servers = Servers::start(topology).map_err(|error| error.to_string())?;
    let sold = joint_sale(program, &servers.url(), layout, joins)?;
    // The locks of the killed one are free when their leases end.
    let is_to_be_empty = sold == Outcome::Ok && joins == Joins::ToTheEnd;
    Ok(if is_to_be_empty { nothing_is_left(&servers, Layout::Hash) } else { sold })
}

/// Waits until the buyers of the last process have this many good answers.
fn sold_some(running: &mut [Process], journal: &str, answers: usize) -> Result<(), String> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let text = std::fs::read_to_string(journal).unwrap_or_default();
        if text.matches(r#""answer":"done""#).count() >= answers {
            return Ok(());
        }
        if let Some(status) = running.last_mut().and_then(Process::ended) {
            return Err(format!("it has ended with {status}, without {answers} good answers"));
        }
        if Instant::now() >= deadline {
            return Err(format!("no {answers} good answers within {LIMIT:?}"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Starts a server, and returns its URL from the first line of its output.
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

/// Checks that no lock is left. Stocks stay on purpose.
fn nothing_is_left(servers: &Servers, layout: Layout) -> Outcome {
    let locks = |server: &&RedisServer| layout.locks(server);
    let mut left: Vec<String> = servers.primaries().iter().flat_map(locks).collect();
    left.retain(|key| !key.starts_with("lock_stock"));
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
