//! The options of the command line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use lock_runtime::Kind;

pub(crate) const HELP: &str = "\
Runs one workload and prints one line of JSON on stdout; logs go to stderr.

Usage: lock-bench --workload <workload> [flags]; of a flag given twice, the last one counts

Workloads:
  latency     1 task locks and releases --keys keys in turn, a PING between the pairs; ours, raw, ping; with --open-secs
              once more while a transaction is open
  throughput  --tasks tasks (64) lock and release, each its own part of --keys keys; ours, raw, ping
  hot         --tasks tasks (64) on one key, wait without limit, hold --hold-us; ours, raw, tokio
  multi       as hot with --procs processes (4) of --tasks tasks (16) each; ours, raw
  pingpong    two managers hand one key over, parked, a PING between the rounds; ours, raw
  held        holds --keys locks (10000) with a lease of --lease-ms (6000) for --secs (20); ours
  readers     --procs managers (200) hold a read lock on one key with a lease of --lease-ms (10000) for --secs (60); ours
  waiting     --tasks tasks (10000) of one manager wait for one lock for --secs, then --procs managers (400) with one task
              each; a fair lock beside a mutex, what that costs the server, and PINGs beside it; ours
  fair-hot    pingpong with the fair kind and a process for each side, for --secs; then multi with the fair kind for
              --secs, and every two waiters that were granted the lock in the wrong order; ours
  rw-hot      --tasks readers (64) and a writer, every 10 ms, on one key; ours, tokio (an RwLock)
  rw-mix      --tasks tasks (64) on one key, 9 of 10 locks are read locks; ours, tokio
  multi3      1 task locks and releases one key and three keys of one slot in turn, a PING between; ours
  layer       a service's calls with and without the tower layer (memory store), then an axum server over loopback, a
              bare request, a locked one and a PING in turn; half of --secs each; ours
  stock       --tasks tasks (64) sell from one stock: of ten segments and of one with --hold-us (1000) under the segment's
              lock, in one process and in --procs (4); by bare takes and by a DECRBY; and merges over ten segments; ours
  seed10k     10000 sequential pairs on one key; ours, raw, ping
  seed1000    1000 tasks at once, wait limit 10 ms, the winner holds to the end; ours, raw
  seed100     100 tasks at once, wait limit 10 s, hold 0; ours, raw

Flags:
  --lib <lib>          what is measured: ours (default); plain = ours in the plain layout, for the workloads of raw;
                       raw = SET NX PX and a compare-and-delete script, polling every 5 ms; ping = a PING for each
                       half of a pair; tokio = a bare tokio::sync::Mutex or RwLock. In PostgreSQL and MariaDB raw is
                       SELECT … FOR UPDATE in a transaction, for hot, multi and pingpong. The commit of one UPDATE
                       stands for a PING; in MongoDB, a findOneAndUpdate that a majority has in its journal. In etcd
                       raw is the mutex of etcd's Go client, which needs Go, and each transaction of it for a PING.
                       In ZooKeeper raw is Apache Curator's, for latency, hot and pingpong, and a setData a PING
  --store <store>      the server that is started and ended: redis (default); postgres, mariadb, mongodb (a replica set
                       of one), mongodb-set (of three), etcd and zookeeper, with data on disk (in TMPDIR);
                       postgres-shm, mariadb-shm, mongodb-shm, etcd-shm and zookeeper-shm, with data in
                       /dev/shm
  --redis <host:port>  use this server and start none
  --url <url>          the same as a lock URL; memory: is the memory store, sqlite: a file (both ours only). In
                       databases tables lock_bench_… are made, and the extension pg_stat_statements if it is there
  --secs <s>           counted seconds after a warm-up of 0.5 s, in ZooKeeper 5 s, fractions allowed (10, held 20, readers 60); not for seed…
  --tasks <n>          for throughput, hot, rw… and stock (64), for each process of multi and fair-hot (16), and for waiting (10000)
  --open-secs <s>      for latency in PostgreSQL and MariaDB: measures pairs again, for the last --secs of this time in
                       which a REPEATABLE READ transaction is open
  --keys <n>           for latency, throughput, multi3 and layer (1000), and for held (10000)
  --hold-us <µs>       for hot, multi, fair-hot and rw… (0), stock (1000); a tokio sleep, so the real hold is longer, see real_hold_p50_us
  --lease-ms <ms>      lease (30000, held 6000, readers 10000), renewed by ours
  --procs <n>          processes of multi, fair-hot and stock (4), managers of waiting (400) and readers (200)
  --workers <n>        worker threads of the tokio runtime (one for each core)
  --cpus <n>           processors for the program, its processes and the server (all); Linux only
  --rounds <n>         pingpong, and that part of fair-hot, ends after this many counted rounds instead of after --secs
  --delay-ms <ms>      adds this to every round trip (0), by a proxy that limits nothing else
  --id <n>             for the processes that multi, fair-hot and stock start themselves

Exit status: 0 with the line, 1 without, 2 for a command line that is not understood.";

const FLAGS: &str = "--workload, --lib, --store, --redis, --url, --secs, --open-secs, --tasks, --keys, --hold-us, --lease-ms, --procs, \
                     --workers, --cpus, --rounds, --delay-ms, --id, --help";

/// Defines an enum of words: its variants, their names, and the noun for it in errors.
macro_rules! words {
    ($(#[$doc:meta])* $type:ident, $what:literal: $($variant:ident = $word:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $type { $($variant),+ }

        impl $type {
            const NAMES: &str = words!(@list $($word),+);
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(format!("unknown {} {text:?}; there are: {}", $what, Self::NAMES)),
                }
            }
        }
    };
    (@list $first:literal $(, $word:literal)*) => { concat!($first $(, ", ", $word)*) };
}

words! {
    /// The workload to run.
    Workload, "workload":
    Latency = "latency",
    Throughput = "throughput",
    Hot = "hot",
    Multi = "multi",
    Pingpong = "pingpong",
    Held = "held",
    Readers = "readers",
    Waiting = "waiting",
    FairHot = "fair-hot",
    RwHot = "rw-hot",
    RwMix = "rw-mix",
    Multi3 = "multi3",
    Layer = "layer",
    Stock = "stock",
    Seed10k = "seed10k",
    Seed1000 = "seed1000",
    Seed100 = "seed100",
}

words! {
    /// A server that this program starts and ends.
    Server, "store":
    Redis = "redis",
    Postgres = "postgres",
    PostgresShm = "postgres-shm",
    MariaDb = "mariadb",
    MariaDbShm = "mariadb-shm",
    MongoDb = "mongodb",
    MongoDbShm = "mongodb-shm",
    MongoDbSet = "mongodb-set",
    Etcd = "etcd",
    EtcdShm = "etcd-shm",
    ZooKeeper = "zookeeper",
    ZooKeeperShm = "zookeeper-shm",
}

impl Server {
    /// Whether its data is in memory.
    pub(crate) fn is_in_memory(self) -> bool {
        matches!(
            self,
            Self::PostgresShm | Self::MariaDbShm | Self::MongoDbShm | Self::EtcdShm | Self::ZooKeeperShm
        )
    }
}

words! {
    /// The library to measure.
    Lib, "lib":
    Ours = "ours",
    Plain = "plain",
    Raw = "raw",
    Ping = "ping",
    Tokio = "tokio",
}

impl Workload {
    /// Whether the workload starts child processes.
    pub(crate) fn has_processes(self) -> bool {
        matches!(self, Self::Multi | Self::FairHot | Self::Stock)
    }

    /// Returns the kind of its locks; `rw-hot` and `rw-mix` choose between read and write
    /// themselves.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::FairHot => Kind::Fair,
            _ => Kind::Mutex,
        }
    }
}

/// Where the locks are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// On a server that this program starts and ends.
    Own(Server),
    /// Any other store, at this URL.
    Redis(String),
    /// PostgreSQL, MariaDB, MongoDB, etcd or ZooKeeper.
    Database(String),
    Sqlite(String),
    /// In this process.
    Memory,
}

impl Store {
    fn is_redis(&self) -> bool {
        matches!(self, Self::Own(Server::Redis) | Self::Redis(_))
    }

    /// Whether it is a database server.
    fn is_database(&self) -> bool {
        match self {
            Self::Own(server) => *server != Server::Redis,
            Self::Database(_) => true,
            _ => false,
        }
    }

    fn is_sql(&self) -> bool {
        match self {
            Self::Own(server) => matches!(
                server,
                Server::Postgres | Server::PostgresShm | Server::MariaDb | Server::MariaDbShm
            ),
            Self::Database(url) => {
                !["mongodb", "etcd", "zookeeper"].iter().any(|scheme| url.starts_with(scheme))
            }
            _ => false,
        }
    }

    fn is_etcd(&self) -> bool {
        match self {
            Self::Own(server) => matches!(server, Server::Etcd | Server::EtcdShm),
            Self::Database(url) => url.starts_with("etcd"),
            _ => false,
        }
    }

    pub(crate) fn is_zookeeper(&self) -> bool {
        match self {
            Self::Own(server) => matches!(server, Server::ZooKeeper | Server::ZooKeeperShm),
            Self::Database(url) => url.starts_with("zookeeper"),
            _ => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) workload: Workload,
    pub(crate) lib: Lib,
    pub(crate) store: Store,
    pub(crate) secs: Duration,
    /// Time for which a transaction is open in `latency`, if any.
    pub(crate) open: Option<Duration>,
    pub(crate) tasks: usize,
    pub(crate) keys: usize,
    pub(crate) hold: Duration,
    pub(crate) lease: Duration,
    pub(crate) procs: usize,
    /// Worker threads of the runtime; tokio's default if `None`.
    pub(crate) workers: Option<usize>,
    /// Processors for everything; all if `None`.
    pub(crate) cpus: Option<usize>,
    pub(crate) rounds: Option<u64>,
    /// Added to every round trip.
    pub(crate) delay: Duration,
    /// The number of this process in `multi`, `fair-hot` or `stock`; `None` in the one that the
    /// user started.
    pub(crate) id: Option<usize>,
}

impl Options {
    fn defaults(workload: Workload) -> Self {
        let held = workload == Workload::Held;
        let default = |held, readers, others| {
            Duration::from_secs(match workload {
                Workload::Held => held,
                Workload::Readers => readers,
                _ => others,
            })
        };
        Self {
            workload,
            lib: Lib::Ours,
            store: Store::Own(Server::Redis),
            secs: default(20, 60, 10),
            open: None,
            tasks: match workload {
                Workload::Multi | Workload::FairHot => 16,
                Workload::Waiting => 10_000,
                _ => 64,
            },
            keys: if held { 10_000 } else { 1000 },
            hold: Duration::from_millis(if workload == Workload::Stock { 1 } else { 0 }),
            lease: default(6, 10, 30),
            procs: match workload {
                Workload::Waiting => 400,
                Workload::Readers => 200,
                _ => 4,
            },
            workers: None,
            cpus: None,
            rounds: None,
            delay: Duration::ZERO,
            id: None,
        }
    }

    fn set(&mut self, flag: &str, value: &str) -> Result<(), String> {
        match flag {
            // Read before the others, since their defaults depend on it.
            "--workload" => {}
            "--lib" => self.lib = value.parse()?,
            "--store" => self.store = Store::Own(value.parse()?),
            "--redis" => self.store = Store::Redis(format!("redis://{value}")),
            "--url" => self.store = parse_url(value),
            "--secs" => self.secs = seconds(flag, value)?,
            "--open-secs" => self.open = Some(seconds(flag, value)?),
            "--tasks" => self.tasks = number(flag, value, 1, 100_000)?,
            "--keys" => self.keys = number(flag, value, 1, 10_000_000)?,
            "--hold-us" => self.hold = Duration::from_micros(number(flag, value, 0, 60_000_000)?),
            "--lease-ms" => self.lease = Duration::from_millis(number(flag, value, 100, 3_600_000)?),
            "--procs" => self.procs = number(flag, value, 1, 1000)?,
            "--workers" => self.workers = Some(number(flag, value, 1, 1000)?),
            "--cpus" => self.cpus = Some(number(flag, value, 1, 1024)?),
            "--rounds" => self.rounds = Some(number(flag, value, 1, u64::MAX)?),
            "--delay-ms" => self.delay = Duration::from_millis(number(flag, value, 0, 10_000)?),
            "--id" => self.id = Some(number(flag, value, 0, 999)?),
            _ => return Err(format!("unknown argument {flag:?}; there are: {FLAGS}")),
        }
        Ok(())
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help,
    Run(Box<Options>),
}

pub(crate) fn parse(args: &[String]) -> Result<Task, String> {
    let mut given = Vec::new();
    let mut args = args.iter().map(String::as_str);
    while let Some(arg) = args.next() {
        let (flag, attached) = match arg.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (arg, None),
        };
        if ["-h", "--help"].contains(&flag) {
            return Ok(Task::Help);
        }
        if !FLAGS.split(", ").any(|known| known == flag) {
            return Err(format!("unknown argument {arg:?}; there are: {FLAGS}"));
        }
        let value = attached.or_else(|| args.next());
        given.push((flag, value.ok_or_else(|| format!("{flag} needs a value; --help says which"))?));
    }
    let workload = given.iter().rev().find(|(flag, _)| *flag == "--workload").map(|(_, value)| value);
    let workload =
        workload.ok_or_else(|| format!("--workload is missing; there are: {}", Workload::NAMES))?;
    let mut options = Options::defaults(workload.parse()?);
    for (flag, value) in given {
        options.set(flag, value)?;
    }
    make_sense(&options)?;
    Ok(Task::Run(Box::new(options)))
}

fn parse_url(url: &str) -> Store {
    // The name of a shared memory store has no meaning here: nobody else is in this process.
    match url.split(':').next() {
        Some("memory") => Store::Memory,
        Some(
            "postgres" | "postgresql" | "mysql" | "mongodb" | "etcd" | "etcds" | "zookeeper" | "zookeepers",
        ) => Store::Database(url.to_owned()),
        Some("sqlite") => Store::Sqlite(url.to_owned()),
        _ => Store::Redis(url.to_owned()),
    }
}

fn seconds(flag: &str, text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds >= 0.001 && *seconds <= 86_400.0);
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("{flag} takes seconds from 0.001 to 86400, not {text:?}"))
}

fn number<N: FromStr + PartialOrd + fmt::Display + Copy>(
    flag: &str,
    text: &str,
    least: N,
    most: N,
) -> Result<N, String> {
    match text.parse() {
        Ok(number) if number >= least && number <= most => Ok(number),
        _ => Err(format!("{flag} takes a whole number from {least} to {most}, not {text:?}")),
    }
}

/// Rejects a workload that the library can't run. PING excludes nobody, the bare lock renews
/// nothing, and a tokio mutex only shows the limit of one process on one key.
fn make_sense(options: &Options) -> Result<(), String> {
    let Options { workload, lib, store, .. } = options;
    let possible: &[Workload] = match lib {
        Lib::Ours => std::slice::from_ref(workload),
        Lib::Raw if store.is_sql() => &[Workload::Hot, Workload::Multi, Workload::Pingpong],
        Lib::Raw if store.is_etcd() => {
            &[Workload::Latency, Workload::Hot, Workload::Multi, Workload::Pingpong]
        }
        Lib::Raw if store.is_zookeeper() => &[Workload::Latency, Workload::Hot, Workload::Pingpong],
        Lib::Plain | Lib::Raw => &[
            Workload::Latency,
            Workload::Throughput,
            Workload::Hot,
            Workload::Multi,
            Workload::Pingpong,
            Workload::Seed10k,
            Workload::Seed1000,
            Workload::Seed100,
        ],
        Lib::Ping => &[Workload::Latency, Workload::Throughput, Workload::Seed10k],
        Lib::Tokio => &[Workload::Hot, Workload::RwHot, Workload::RwMix],
    };
    if !possible.contains(workload) {
        let names: Vec<String> = possible.iter().map(ToString::to_string).collect();
        return Err(format!(
            "--lib {lib} makes no sense with workload {workload}; it runs: {}",
            names.join(", ")
        ));
    }
    let (is_redis, is_sql) = (store.is_redis(), store.is_sql());
    let has_raw = is_redis || is_sql || store.is_etcd() || store.is_zookeeper();
    if *store == Store::Memory && workload.has_processes() {
        return Err(format!("processes of workload {workload} share no memory; leave out `--url memory:`"));
    }
    let speaks_to_redis = matches!(lib, Lib::Plain | Lib::Ping) || (*lib == Lib::Raw && !has_raw);
    if !is_redis && speaks_to_redis {
        return Err(format!("--lib {lib} speaks to a Redis server; leave out --url and --store"));
    }
    let asks_redis = *workload == Workload::Stock || (*workload == Workload::Waiting && !store.is_database());
    if !is_redis && asks_redis {
        return Err(format!("workload {workload} measures a Redis server; leave out --url and --store"));
    }
    if !options.delay.is_zero() && (*lib == Lib::Tokio || !is_redis) {
        return Err("there is no round trip to Redis for --delay-ms to lengthen".to_owned());
    }
    if let Some(open) = options.open {
        if *workload != Workload::Latency || !is_sql {
            return Err(
                "--open-secs is for workload latency in PostgreSQL and MariaDB; leave it out".to_owned()
            );
        }
        if open < options.secs {
            return Err("--open-secs has to be at least as long as --secs".to_owned());
        }
    }
    if options.id.is_some() && !workload.has_processes() {
        return Err(format!(
            "--id is for the processes of multi, fair-hot and stock; leave it out with workload {workload}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Task, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    fn options(line: &str) -> Options {
        match parsed(line) {
            Ok(Task::Run(options)) => *options,
            other => panic!("{line}: {other:?}"),
        }
    }

    /// Asserts that each line is refused with an error that contains the word.
    #[track_caller]
    fn refused(cases: &[(&str, &str)]) {
        for (line, word) in cases {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_contract() {
        let expected = Options {
            workload: Workload::Hot,
            lib: Lib::Ours,
            store: Store::Own(Server::Redis),
            secs: Duration::from_secs(10),
            open: None,
            tasks: 64,
            keys: 1000,
            hold: Duration::ZERO,
            lease: Duration::from_secs(30),
            procs: 4,
            workers: None,
            cpus: None,
            rounds: None,
            delay: Duration::ZERO,
            id: None,
        };
        assert_eq!(options("--workload hot"), expected);
        let multi = options("--workload multi");
        assert_eq!((multi.procs, multi.tasks, multi.secs), (4, 16, Duration::from_secs(10)));
        let stock = options("--workload stock");
        assert_eq!((stock.procs, stock.tasks, stock.hold), (4, 64, Duration::from_millis(1)));
        let readers = options("--workload readers");
        assert_eq!(
            (readers.procs, readers.lease, readers.secs),
            (200, Duration::from_secs(10), Duration::from_secs(60))
        );
        let held = options("--workload held");
        assert_eq!(
            (held.keys, held.lease, held.secs),
            (10_000, Duration::from_secs(6), Duration::from_secs(20))
        );
    }

    #[test]
    fn every_flag_is_read() {
        let expected = Options {
            workload: Workload::Multi,
            lib: Lib::Raw,
            store: Store::Redis("redis://localhost:7000".to_owned()),
            secs: Duration::from_millis(250),
            open: None,
            tasks: 3,
            keys: 4,
            hold: Duration::from_micros(5),
            lease: Duration::from_millis(6000),
            procs: 2,
            workers: Some(5),
            cpus: Some(2),
            rounds: Some(7),
            delay: Duration::from_millis(25),
            id: Some(1),
        };
        let line = "--tasks 3 --workload=multi --lib raw --redis localhost:7000 --secs 0.25 --keys=4 --hold-us 5 \
                    --lease-ms 6000 --procs 2 --workers 5 --cpus 2 --rounds 7 --delay-ms 25 --id 1";
        assert_eq!(options(line), expected);
    }

    #[test]
    fn the_last_of_two_flags_counts() {
        let twice = options("--workload hot --secs 9 --lib raw --workload latency --secs 2 --lib ours");
        assert_eq!(twice, options("--workload latency --secs 2"));
        assert_eq!(options("--workload hot --redis a:1 --url memory:").store, Store::Memory);
        assert_eq!(
            options("--workload hot --url memory: --store postgres").store,
            Store::Own(Server::Postgres)
        );
        let redis = Store::Redis("redis://a:1".to_owned());
        assert_eq!(options("--workload hot --url memory: --redis a:1").store, redis);
    }

    #[test]
    fn the_scheme_of_a_url_says_which_store_it_is() {
        let postgres = "postgres://me@here/db".to_owned();
        assert_eq!(options(&format!("--workload hot --url {postgres}")).store, Store::Database(postgres));
        assert_eq!(options("--workload hot --url sqlite:a").store, Store::Sqlite("sqlite:a".to_owned()));
        let line = "--workload latency --store postgres-shm --secs 2 --open-secs 20";
        assert_eq!(options(line).open, Some(Duration::from_secs(20)));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        refused(&[
            ("", "--workload is missing"),
            ("--workload nonsense", "latency, throughput"),
            ("--workload hot --nonsense 1", "--nonsense"),
            ("--workload hot extra", "extra"),
            ("--workload hot --lib redlock", "ours, plain, raw, ping, tokio"),
            ("--workload hot --secs", "needs a value"),
            ("--workload hot --secs 0", "--secs"),
            ("--workload hot --secs NaN", "NaN"),
            ("--workload hot --tasks 0", "from 1"),
            ("--workload hot --tasks many", "many"),
            ("--workload hot --lease-ms 1", "from 100"),
            ("--workload multi --procs 0", "from 1"),
            ("--workload hot --delay-ms -1", "--delay-ms"),
        ]);
    }

    #[test]
    fn a_library_that_cannot_run_a_workload_is_refused() {
        refused(&[
            ("--workload hot --lib ping", "latency, throughput, seed10k"),
            ("--workload latency --lib tokio", "it runs: hot"),
            ("--workload latency --lib raw --url memory:", "Redis server"),
            ("--workload latency --lib ping --url memory:", "Redis server"),
            ("--workload held --lib raw", "it runs: latency"),
            ("--workload multi --lib tokio", "it runs: hot"),
            ("--workload multi --url memory:", "share no memory"),
            ("--workload fair-hot --url memory:", "share no memory"),
            ("--workload stock --url memory:", "share no memory"),
            ("--workload waiting --url memory:", "Redis server"),
            ("--workload fair-hot --lib raw", "it runs: latency"),
            ("--workload multi3 --lib tokio", "rw-hot, rw-mix"),
            ("--workload hot --lib tokio --delay-ms 1", "no round trip"),
            ("--workload hot --url memory: --delay-ms 1", "no round trip"),
            ("--workload hot --id 1", "multi"),
            ("--workload hot --store oracle", "postgres-shm, mariadb"),
            ("--workload hot --lib raw --store mongodb", "Redis server"),
            ("--workload throughput --lib raw --store postgres", "it runs: hot, multi, pingpong"),
            ("--workload throughput --lib raw --store etcd", "it runs: latency, hot, multi, pingpong"),
            ("--workload multi --lib raw --store zookeeper", "it runs: latency, hot, pingpong"),
            ("--workload latency --lib ping --store postgres", "Redis server"),
            ("--workload stock --url postgres://here", "Redis server"),
            ("--workload waiting --url sqlite:a", "Redis server"),
            ("--workload hot --store postgres --delay-ms 1", "round trip to Redis"),
            ("--workload latency --open-secs 20", "PostgreSQL"),
            ("--workload hot --store postgres --open-secs 20", "PostgreSQL"),
            ("--workload latency --store postgres --secs 9 --open-secs 8", "at least"),
        ]);
    }

    #[test]
    fn help_names_every_workload_and_flag() {
        assert_eq!(parsed("--workload hot --help"), Ok(Task::Help));
        for word in Workload::NAMES.split(", ").chain(FLAGS.split(", ")) {
            assert!(word == "--help" || HELP.contains(word), "{word}");
        }
    }
}
