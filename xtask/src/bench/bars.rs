//! The bars: which runs each needs, how its number is computed, and what that number must be.

use serde_json::Value;

use crate::install::Tool;

/// Flags of `lock-bench`, behind `--workload`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run(pub(crate) &'static str);

/// A line that `lock-bench` printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a>(pub(crate) &'a Value);

impl Line<'_> {
    pub(crate) fn number(self, field: &str) -> Option<f64> {
        self.0[field].as_f64()
    }
}

/// The requirement on a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wanted {
    /// Upper bound for the median of the rounds.
    AtMost(f64),
    /// Lower bound for the median of the rounds.
    AtLeast(f64),
    /// Value in every round.
    Exactly(f64),
}

/// One bar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bar {
    pub(crate) workload: &'static str,
    pub(crate) name: &'static str,
    pub(crate) wanted: Wanted,
    pub(crate) of: &'static [Run],
    /// Computes the number from the lines of these runs in one round, in this order.
    pub(crate) value: fn(&[Line<'_>]) -> Option<f64>,
}

/// The workloads that `--only` accepts.
pub(crate) const WORKLOADS: [&str; 28] = [
    "latency",
    "throughput",
    "hot",
    "multi",
    "pingpong",
    "held",
    "waiting",
    "fair-hot",
    "rw-hot",
    "rw-mix",
    "multi3",
    "layer",
    "stock",
    "seed10k",
    "seed1000",
    "seed100",
    "delay",
    "postgres",
    "postgres-shm",
    "mariadb",
    "mariadb-shm",
    "mongodb",
    "mongodb-shm",
    "mongodb-set",
    "etcd",
    "etcd-shm",
    "zookeeper",
    "zookeeper-shm",
];

/// Those among them that run only if they are named: each needs a database, etcd or
/// ZooKeeper, and minutes a round.
const NAMED: [(&str, &[Tool]); 11] = [
    ("postgres", &[Tool::PostgreSql]),
    ("postgres-shm", &[Tool::PostgreSql]),
    ("mariadb", &[Tool::MariaDb]),
    ("mariadb-shm", &[Tool::MariaDb]),
    ("mongodb", &[Tool::MongoDb]),
    ("mongodb-shm", &[Tool::MongoDb]),
    ("mongodb-set", &[Tool::MongoDb]),
    ("etcd", &[Tool::Etcd, Tool::Go]),
    ("etcd-shm", &[Tool::Etcd, Tool::Go]),
    ("zookeeper", &[Tool::Jdk, Tool::Maven]),
    ("zookeeper-shm", &[Tool::Jdk, Tool::Maven]),
];

/// Returns what the runs of a workload need.
pub(crate) fn needs(workload: &str) -> &'static [Tool] {
    let named = NAMED.iter().find(|(name, _)| *name == workload);
    named.map_or(&[Tool::RedisServer], |(_, tools)| tools)
}

pub(crate) fn names() -> String {
    WORKLOADS.join(", ")
}

const LATENCY: Run = Run("latency --secs 3");
const LATENCY_RAW: Run = Run("latency --lib raw --secs 3");
const LATENCY_PLAIN: Run = Run("latency --lib plain --secs 3");
const THROUGHPUT: Run = Run("throughput --secs 3");
const THROUGHPUT_RAW: Run = Run("throughput --lib raw --secs 3");
const THROUGHPUT_PLAIN: Run = Run("throughput --lib plain --secs 3");
const THROUGHPUT_1_PLAIN: Run = Run("throughput --lib plain --workers 1 --secs 3");
const THROUGHPUT_1: Run = Run("throughput --workers 1 --secs 3");
const THROUGHPUT_1_RAW: Run = Run("throughput --lib raw --workers 1 --secs 3");
const HOT: Run = Run("hot --secs 3");
const HOT_RAW: Run = Run("hot --lib raw --secs 3");
const HOT_TOKIO: Run = Run("hot --lib tokio --secs 3");
const HOT_HOLD: Run = Run("hot --hold-us 1000 --secs 3");
const MULTI: Run = Run("multi --secs 5");
const PINGPONG: Run = Run("pingpong --secs 4");
const PINGPONG_LONG: Run = Run("pingpong --rounds 20000");
const HELD: Run = Run("held");
const WAITING: Run = Run("waiting");
const FAIR_HOT: Run = Run("fair-hot --secs 4");
const RW_HOT: Run = Run("rw-hot --secs 3");
const RW_HOT_TOKIO: Run = Run("rw-hot --lib tokio --secs 3");
const RW_MIX: Run = Run("rw-mix --secs 3");
const MULTI3: Run = Run("multi3 --secs 3");
const LAYER: Run = Run("layer --secs 6");
const STOCK: Run = Run("stock");
const SEED10K: Run = Run("seed10k");
const SEED10K_RAW: Run = Run("seed10k --lib raw");
const SEED1000: Run = Run("seed1000");
const SEED100: Run = Run("seed100");
const FAR_LATENCY: Run = Run("latency --secs 3 --delay-ms 25");
const FAR_PINGPONG: Run = Run("pingpong --rounds 200 --delay-ms 25");
const FAR_HOT: Run = Run("hot --hold-us 1000 --secs 5 --delay-ms 25");
const FAR_MULTI: Run = Run("multi --secs 5 --delay-ms 25");
const OPEN_LONG: Run = Run("latency --store postgres --secs 10 --open-secs 300");
const OPEN_LONG_SHM: Run = Run("latency --store postgres-shm --secs 10 --open-secs 300");

/// Runs that no bar needs: each runs after the one that it is compared with.
const COMPARISONS: [(&str, Run, Run); 7] = [
    ("latency", LATENCY, Run("latency --lib ping --secs 3")),
    ("throughput", THROUGHPUT_RAW, Run("throughput --lib ping --secs 3")),
    ("multi", MULTI, Run("multi --lib raw --secs 5")),
    ("pingpong", PINGPONG, Run("pingpong --lib raw --secs 4")),
    ("rw-mix", RW_MIX, Run("rw-mix --lib tokio --secs 3")),
    ("seed1000", SEED1000, Run("seed1000 --lib raw")),
    ("seed100", SEED100, Run("seed100 --lib raw")),
];

const fn bar(
    workload: &'static str,
    name: &'static str,
    wanted: Wanted,
    of: &'static [Run],
    value: fn(&[Line<'_>]) -> Option<f64>,
) -> Bar {
    Bar { workload, name, wanted, of, value }
}

/// Makes a bar on a field of one run.
macro_rules! field {
    ($workload:expr, $name:literal, $wanted:expr, $run:ident, $field:literal) => {
        bar($workload, $name, $wanted, &[$run], |lines| lines.first()?.number($field))
    };
}

/// Makes a bar on the ratio of two fields, of one run or of two.
macro_rules! ratio {
    ($workload:expr, $name:literal, $wanted:expr, $run:ident $field:literal / $other:ident $of:literal) => {
        bar($workload, $name, $wanted, &[$run, $other], |lines| {
            ratio(lines.first()?.number($field)?, lines.get(1)?.number($of)?)
        })
    };
}

use Wanted::{AtLeast, AtMost, Exactly};

const BARS: [Bar; 69] = [
    ratio!("latency", "acquire p50 / ping p50", AtMost(1.4), LATENCY "p50_us" / LATENCY "ping_p50_us"),
    ratio!("latency", "plain layout: acquire p50 / raw p50", AtMost(1.1), LATENCY_PLAIN "p50_us" / LATENCY_RAW "p50_us"),
    field!("latency", "allocations a pair", AtMost(40.0), LATENCY, "allocs_per_pair"),
    field!("latency", "errors", Exactly(0.0), LATENCY, "errors"),
    ratio!("throughput", "grants / raw", AtLeast(0.75), THROUGHPUT "grants_per_s" / THROUGHPUT_RAW "grants_per_s"),
    ratio!("throughput", "one worker thread: grants / raw", AtLeast(0.75), THROUGHPUT_1 "grants_per_s" / THROUGHPUT_1_RAW "grants_per_s"),
    ratio!("throughput", "plain layout: grants / raw", AtLeast(0.9), THROUGHPUT_PLAIN "grants_per_s" / THROUGHPUT_RAW "grants_per_s"),
    ratio!("throughput", "plain layout, one worker thread: grants / raw", AtLeast(0.9), THROUGHPUT_1_PLAIN "grants_per_s" / THROUGHPUT_1_RAW "grants_per_s"),
    field!("throughput", "errors", Exactly(0.0), THROUGHPUT, "errors"),
    ratio!("hot", "grants / raw", AtLeast(100.0), HOT "grants_per_s" / HOT_RAW "grants_per_s"),
    ratio!("hot", "grants / tokio", AtLeast(0.15), HOT "grants_per_s" / HOT_TOKIO "grants_per_s"),
    field!("hot", "commands a grant", AtMost(0.05), HOT, "cmds_per_grant"),
    field!("hot", "fairness (Jain)", AtLeast(0.95), HOT, "jain"),
    field!("hot", "overlaps", Exactly(0.0), HOT, "overlaps"),
    field!("hot", "errors", Exactly(0.0), HOT, "errors"),
    bar("hot", "hold 1 ms: grants x real hold", AtLeast(0.9), &[HOT_HOLD], busy),
    ratio!("multi", "grants / own hot", AtLeast(0.25), MULTI "grants_per_s" / HOT "grants_per_s"),
    bar("multi", "longest wait, ms", AtMost(500.0), &[MULTI], |lines| {
        let line = lines.first()?;
        Some(line.number("max_us")?.max(line.number("pending_max_us")?) / 1000.0)
    }),
    field!("multi", "fairness (Jain) of processes", AtLeast(0.9), MULTI, "jain"),
    field!("multi", "overlaps", Exactly(0.0), MULTI, "overlaps"),
    field!("multi", "errors", Exactly(0.0), MULTI, "errors"),
    ratio!("pingpong", "hand-off p50 / ping p50", AtMost(3.5), PINGPONG "p50_us" / PINGPONG "ping_p50_us"),
    field!("pingpong", "stalls", Exactly(0.0), PINGPONG, "stalls"),
    field!("held", "lost", Exactly(0.0), HELD, "lost"),
    field!("held", "scripts a second", AtMost(60.0), HELD, "scripts_per_s"),
    bar("held", "% of a core", AtMost(5.0), &[HELD], |lines| {
        let line = lines.first()?;
        ratio(line.number("cpu_ms")?, line.number("secs")? * 10.0)
    }),
    field!("held", "bytes a hold", AtMost(2047.0), HELD, "bytes_per_hold"),
    field!("waiting", "server's time, 10 000 in one process, fair / mutex", AtMost(3.0), WAITING, "one_cpu"),
    field!(
        "waiting",
        "server's time, one in 400 managers each, fair / mutex",
        AtMost(3.0),
        WAITING,
        "many_cpu"
    ),
    field!("waiting", "PING p99, 10 000 in one process, fair / idle", AtMost(3.0), WAITING, "one_ping"),
    field!("waiting", "PING p99, one in 400 managers each, fair / idle", AtMost(3.0), WAITING, "many_ping"),
    field!("waiting", "lost", Exactly(0.0), WAITING, "lost"),
    field!("waiting", "errors", Exactly(0.0), WAITING, "errors"),
    ratio!("fair-hot", "hand-off p50 / ping p50", AtMost(2.5), FAIR_HOT "handoff_p50_us" / FAIR_HOT "ping_p50_us"),
    field!("fair-hot", "order violations", Exactly(0.0), FAIR_HOT, "order_violations"),
    field!("fair-hot", "stalls", Exactly(0.0), FAIR_HOT, "stalls"),
    field!("fair-hot", "overlaps", Exactly(0.0), FAIR_HOT, "overlaps"),
    field!("fair-hot", "errors", Exactly(0.0), FAIR_HOT, "errors"),
    ratio!("rw-hot", "reads / tokio", AtLeast(0.15), RW_HOT "reads_per_s" / RW_HOT_TOKIO "reads_per_s"),
    field!("rw-hot", "writer's wait p99, µs", AtMost(20_000.0), RW_HOT, "writer_wait_p99_us"),
    field!("rw-hot", "overlaps", Exactly(0.0), RW_HOT, "overlaps"),
    field!("rw-hot", "errors", Exactly(0.0), RW_HOT, "errors"),
    field!("rw-mix", "overlaps", Exactly(0.0), RW_MIX, "overlaps"),
    field!("rw-mix", "errors", Exactly(0.0), RW_MIX, "errors"),
    field!("multi3", "three keys / one", AtMost(1.5), MULTI3, "ratio"),
    field!("multi3", "errors", Exactly(0.0), MULTI3, "errors"),
    ratio!("layer", "added to a call / a lock alone", AtMost(1.5), LAYER "added_ns_p50" / LAYER "pair_ns_p50"),
    field!("layer", "allocations added to a call, beside the lock's", AtMost(8.0), LAYER, "allocs_added"),
    field!("layer", "skipped: added, ns", AtMost(100.0), LAYER, "skip_added_ns"),
    field!("layer", "skipped: allocations added", Exactly(0.0), LAYER, "skip_allocs_added"),
    ratio!("layer", "added over HTTP, p50 / ping p50", AtMost(2.6), LAYER "http_added_p50_us" / LAYER "ping_p50_us"),
    field!("layer", "errors", Exactly(0.0), LAYER, "errors"),
    field!("stock", "hold 1 ms: ten segments / one", AtLeast(9.0), STOCK, "ratio"),
    field!("stock", "hold 1 ms, four processes: ten segments / one", AtLeast(8.0), STOCK, "ratio_multi"),
    field!("stock", "one take a call / DECRBY", AtLeast(0.25), STOCK, "script_ratio"),
    field!("stock", "takes / DECRBY", AtLeast(0.7), STOCK, "grouped_ratio"),
    field!("stock", "merge over ten segments: round trips", Exactly(1.0), STOCK, "merge_round_trips"),
    field!("stock", "errors", Exactly(0.0), STOCK, "errors"),
    ratio!("seed10k", "time / raw", AtMost(1.2), SEED10K "total_ms" / SEED10K_RAW "total_ms"),
    field!("seed1000", "acquired", Exactly(1.0), SEED1000, "acquired"),
    field!("seed100", "time, ms", AtMost(20.0), SEED100, "total_ms"),
    field!("seed100", "acquired", Exactly(100.0), SEED100, "acquired"),
    field!("delay", "latency: errors", Exactly(0.0), FAR_LATENCY, "errors"),
    ratio!("delay", "latency: acquire p50 / ping p50", AtMost(1.4), FAR_LATENCY "p50_us" / FAR_LATENCY "ping_p50_us"),
    field!("delay", "pingpong: stalls", Exactly(0.0), FAR_PINGPONG, "stalls"),
    field!("delay", "pingpong: errors", Exactly(0.0), FAR_PINGPONG, "errors"),
    bar("delay", "hot, hold 1 ms: grants x real hold", AtLeast(0.75), &[FAR_HOT], busy),
    field!("delay", "multi: overlaps", Exactly(0.0), FAR_MULTI, "overlaps"),
    field!("delay", "multi: errors", Exactly(0.0), FAR_MULTI, "errors"),
];

/// The bars of `--long`, whose runs happen once.
const LONG: [Bar; 3] = [
    field!("pingpong", "stalls in 20000 rounds", Exactly(0.0), PINGPONG_LONG, "stalls"),
    field!("postgres", "transaction open for 300 s: pair / without", AtMost(2.0), OPEN_LONG, "open_ratio"),
    field!(
        "postgres-shm",
        "transaction open for 300 s: pair / without",
        AtMost(2.0),
        OPEN_LONG_SHM,
        "open_ratio"
    ),
];

/// Makes the bars that every database has. A PING is a commit there: of an UPDATE, or of a
/// findOneAndUpdate.
macro_rules! database {
    ($store:literal, pair: $pair:literal, on: $cpus:literal) => {{
        const LATENCY: Run = Run(concat!("latency --store ", $store, " --secs 5", $cpus));
        const HOT: Run = Run(concat!("hot --store ", $store, " --secs 5"));
        const PINGPONG: Run = Run(concat!("pingpong --store ", $store, " --secs 10"));
        [
            bar($store, "pair p50 / two commits", AtMost($pair), &[LATENCY], |lines| {
                let line = lines.first()?;
                ratio(line.number("pair_p50_us")?, 2.0 * line.number("ping_p50_us")?)
            }),
            field!($store, "latency: errors", Exactly(0.0), LATENCY, "errors"),
            field!($store, "hot: overlaps", Exactly(0.0), HOT, "overlaps"),
            field!($store, "hot: errors", Exactly(0.0), HOT, "errors"),
            field!($store, "pingpong: stalls", Exactly(0.0), PINGPONG, "stalls"),
        ]
    }};
}

/// Makes the bar on a hand-off, in milliseconds beside this number of commits.
macro_rules! handoff {
    ($store:literal, $name:literal, $wanted:literal, $commits:literal) => {{
        const PINGPONG: Run = Run(concat!("pingpong --store ", $store, " --secs 10"));
        bar($store, $name, AtMost($wanted), &[PINGPONG], |lines| {
            let line = lines.first()?;
            Some((line.number("p50_us")? - $commits * line.number("ping_p50_us")?) / 1000.0)
        })
    }};
}

/// Makes the bar on a hot key beside a lock by `SELECT … FOR UPDATE`.
macro_rules! hot {
    ($store:literal) => {{
        const HOT: Run = Run(concat!("hot --store ", $store, " --secs 5"));
        const RAW: Run = Run(concat!("hot --lib raw --store ", $store, " --secs 5"));
        ratio!($store, "hot: grants / SELECT FOR UPDATE", AtLeast(100.0), HOT "grants_per_s" / RAW "grants_per_s")
    }};
}

/// Makes the bar on pairs beside a transaction that is open for a while.
macro_rules! open {
    ($store:literal) => {{
        const OPEN: Run = Run(concat!("latency --store ", $store, " --secs 5 --open-secs 30"));
        field!($store, "transaction open for 30 s: pair / without", AtMost(2.0), OPEN, "open_ratio")
    }};
}

/// Makes the bars on a store in which processes wait.
macro_rules! crowd {
    ($store:literal) => {{
        const WAITING: Run = Run(concat!("waiting --tasks 100 --procs 100 --store ", $store));
        const FAIR: Run = Run(concat!(
            "fair-hot --procs 8 --tasks 125 --hold-us 100000 --rounds 50 --secs 20 --store ",
            $store
        ));
        const READERS: Run = Run(concat!("readers --store ", $store));
        [
            bar($store, "100 processes wait: statements a second", AtMost(50.0), &[WAITING], |lines| {
                Line(&lines.first()?.0["many_mutex"]).number("cmds_per_s")
            }),
            field!($store, "waiting: lost", Exactly(0.0), WAITING, "lost"),
            field!($store, "waiting: errors", Exactly(0.0), WAITING, "errors"),
            bar(
                $store,
                "1000 fair waiters: statements a second beside 3 a hand-off",
                AtMost(50.0),
                &[FAIR],
                |lines| {
                    let line = lines.first()?;
                    Some(line.number("cmds_per_s")? - 3.0 * line.number("grants_per_s")?)
                },
            ),
            field!($store, "1000 fair waiters: hand-offs a second", AtLeast(5.0), FAIR, "grants_per_s"),
            field!($store, "fair-hot: order violations", Exactly(0.0), FAIR, "order_violations"),
            field!($store, "fair-hot: errors", Exactly(0.0), FAIR, "errors"),
            field!($store, "200 readers for a minute: lost", Exactly(0.0), READERS, "lost"),
            field!($store, "readers: errors", Exactly(0.0), READERS, "errors"),
        ]
    }};
}

/// Makes the bars of etcd. A PING is a transaction there, and `raw` the mutex of etcd's Go client.
macro_rules! etcd {
    ($store:literal, on: $cpus:literal) => {{
        const LATENCY: Run = Run(concat!("latency --store ", $store, " --secs 5", $cpus));
        const LATENCY_GO: Run = Run(concat!("latency --lib raw --store ", $store, " --secs 5", $cpus));
        const HOT: Run = Run(concat!("hot --store ", $store, " --secs 5"));
        const HOT_GO: Run = Run(concat!("hot --lib raw --store ", $store, " --secs 5"));
        const PINGPONG: Run = Run(concat!("pingpong --store ", $store, " --secs 10"));
        const PINGPONG_GO: Run = Run(concat!("pingpong --lib raw --store ", $store, " --secs 10"));
        [
            bar($store, "pair p50 / two transactions", AtMost(1.1), &[LATENCY], |lines| {
                let line = lines.first()?;
                ratio(line.number("pair_p50_us")?, 2.0 * line.number("ping_p50_us")?)
            }),
            ratio!($store, "pair p50 / Go's", AtMost(1.1), LATENCY "pair_p50_us" / LATENCY_GO "pair_p50_us"),
            field!($store, "latency: errors", Exactly(0.0), LATENCY, "errors"),
            ratio!($store, "hot: grants / Go's", AtLeast(100.0), HOT "grants_per_s" / HOT_GO "grants_per_s"),
            field!($store, "hot: overlaps", Exactly(0.0), HOT, "overlaps"),
            field!($store, "hot: errors", Exactly(0.0), HOT, "errors"),
            ratio!($store, "hand-off p50 / Go's", AtMost(0.15), PINGPONG "p50_us" / PINGPONG_GO "p50_us"),
            field!($store, "pingpong: stalls", Exactly(0.0), PINGPONG, "stalls"),
            field!($store, "pingpong: errors", Exactly(0.0), PINGPONG, "errors"),
        ]
    }};
}

/// Makes the bars of ZooKeeper. A PING is a write there, and `raw` the mutex of Apache Curator.
macro_rules! zookeeper {
    ($store:literal) => {{
        const LATENCY: Run = Run(concat!("latency --store ", $store, " --secs 5"));
        const LATENCY_CURATOR: Run = Run(concat!("latency --lib raw --store ", $store, " --secs 5"));
        const HOT: Run = Run(concat!("hot --store ", $store, " --secs 5"));
        const HOT_CURATOR: Run = Run(concat!("hot --lib raw --store ", $store, " --secs 5"));
        const PINGPONG: Run = Run(concat!("pingpong --store ", $store, " --secs 10"));
        const PINGPONG_CURATOR: Run = Run(concat!("pingpong --lib raw --store ", $store, " --secs 10"));
        [
            ratio!($store, "pair p50 / Curator's", AtMost(1.1), LATENCY "pair_p50_us" / LATENCY_CURATOR "pair_p50_us"),
            field!($store, "latency: errors", Exactly(0.0), LATENCY, "errors"),
            ratio!($store, "hot: grants / Curator's", AtLeast(100.0), HOT "grants_per_s" / HOT_CURATOR "grants_per_s"),
            field!($store, "hot: overlaps", Exactly(0.0), HOT, "overlaps"),
            field!($store, "hot: errors", Exactly(0.0), HOT, "errors"),
            ratio!($store, "hand-off p50 / Curator's", AtMost(1.0), PINGPONG "p50_us" / PINGPONG_CURATOR "p50_us"),
            field!($store, "pingpong: stalls", Exactly(0.0), PINGPONG, "stalls"),
            field!($store, "pingpong: errors", Exactly(0.0), PINGPONG, "errors"),
        ]
    }};
}

/// A commit that waits for no disk takes twice as long if the kernel wakes the server on another
/// processor, which is left to luck. So a pair is compared on one.
const DATABASES: [[Bar; 5]; 7] = [
    database!("postgres", pair: 1.25, on: ""),
    database!("postgres-shm", pair: 1.6, on: " --cpus 1"),
    database!("mariadb", pair: 1.25, on: ""),
    database!("mariadb-shm", pair: 1.6, on: " --cpus 1"),
    database!("mongodb", pair: 1.4, on: ""),
    database!("mongodb-shm", pair: 1.4, on: " --cpus 1"),
    database!("mongodb-set", pair: 1.4, on: ""),
];
const CROWDS: [[Bar; 9]; 4] =
    [crowd!("postgres"), crowd!("postgres-shm"), crowd!("mariadb"), crowd!("mongodb")];
const ETCD: [[Bar; 9]; 2] = [etcd!("etcd", on: ""), etcd!("etcd-shm", on: "")];
const ZOOKEEPER: [[Bar; 8]; 2] = [zookeeper!("zookeeper"), zookeeper!("zookeeper-shm")];
const OTHERS: [Bar; 11] = [
    open!("postgres"),
    open!("postgres-shm"),
    hot!("postgres"),
    hot!("postgres-shm"),
    hot!("mariadb"),
    hot!("mariadb-shm"),
    handoff!("postgres", "hand-off p50 less two commits, ms", 5.0, 2.0),
    handoff!("postgres-shm", "hand-off p50 less two commits, ms", 5.0, 2.0),
    handoff!("mongodb", "hand-off p50 less a commit, ms", 15.0, 1.0),
    handoff!("mongodb-shm", "hand-off p50 less a commit, ms", 15.0, 1.0),
    handoff!("mongodb-set", "hand-off p50 less a commit, ms", 15.0, 1.0),
];

fn all() -> impl Iterator<Item = Bar> {
    let databases = DATABASES.into_iter().flatten().chain(OTHERS).chain(CROWDS.into_iter().flatten());
    let coordinators = ETCD.into_iter().flatten().chain(ZOOKEEPER.into_iter().flatten());
    BARS.into_iter().chain(databases).chain(coordinators)
}

/// Returns the part of the time in which the lock is held.
fn busy(lines: &[Line<'_>]) -> Option<f64> {
    let line = lines.first()?;
    Some(line.number("grants_per_s")? * line.number("real_hold_p50_us")? / 1e6)
}

fn ratio(value: f64, of: f64) -> Option<f64> {
    (of > 0.0).then(|| value / of)
}

/// The runs of every round, and those that happen once, in this order.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) bars: Vec<Bar>,
    pub(crate) rounds: Vec<Run>,
    pub(crate) once: Vec<Run>,
}

impl Plan {
    /// Plans the runs for these workloads, or for all that need not be named if `only` is empty.
    pub(crate) fn new(only: &[&str], long: bool) -> Self {
        let chosen = |workload: &str| match only {
            [] => needs(workload) == [Tool::RedisServer],
            _ => only.contains(&workload),
        };
        let mut bars: Vec<Bar> = all().filter(|bar| chosen(bar.workload)).collect();
        let mut rounds: Vec<Run> = Vec::new();
        let mut add = |run| {
            if !rounds.contains(&run) {
                rounds.push(run);
            }
        };
        for bar in &bars {
            for &run in bar.of {
                add(run);
                let beside = COMPARISONS.iter().filter(|(workload, to, _)| *to == run && chosen(workload));
                beside.for_each(|(_, _, comparison)| add(*comparison));
            }
        }
        let mut once = Vec::new();
        if long {
            let long = LONG.into_iter().filter(|bar| chosen(bar.workload));
            bars.extend(long.inspect(|bar| once.extend(bar.of)));
        }
        Self { bars, rounds, once }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bar(workload: &str, name: &str) -> Bar {
        all().find(|bar| bar.workload == workload && bar.name == name).unwrap()
    }

    fn value(bar: Bar, lines: &[Value]) -> Option<f64> {
        (bar.value)(&lines.iter().map(Line).collect::<Vec<_>>())
    }

    #[test]
    fn every_workload_has_a_bar_and_every_bar_a_workload() {
        for workload in WORKLOADS {
            assert!(all().any(|bar| bar.workload == workload), "{workload}");
        }
        assert!(all().all(|bar| WORKLOADS.contains(&bar.workload)));
    }

    #[test]
    fn a_bar_brings_the_runs_that_it_is_computed_from() {
        let plan = Plan::new(&["multi"], false);
        assert_eq!(plan.rounds, [MULTI, Run("multi --lib raw --secs 5"), HOT]);
        assert!(plan.bars.iter().all(|bar| bar.workload == "multi"));
        let all = Plan::new(&[], true);
        assert!(
            all.bars
                .iter()
                .flat_map(|bar| bar.of)
                .all(|run| all.rounds.contains(run) || all.once.contains(run))
        );
        assert_eq!(all.once, [PINGPONG_LONG]);
    }

    #[test]
    fn postgres_runs_if_it_is_named() {
        let named = Plan::new(&["postgres-shm"], true);
        assert!(named.bars.iter().all(|bar| bar.workload == "postgres-shm"));
        assert!(named.rounds.iter().all(|run| run.0.contains("--store postgres-shm")));
        assert_eq!(named.once, [OPEN_LONG_SHM]);
        assert!(Plan::new(&[], true).rounds.iter().all(|run| !run.0.contains("--store")));
    }

    #[test]
    fn what_is_compared_runs_one_after_the_other() {
        let plan = Plan::new(&["hot", "latency"], false);
        let names: Vec<_> = plan.rounds.iter().map(|run| run.0).collect();
        assert_eq!(
            names,
            [
                "latency --secs 3",
                "latency --lib ping --secs 3",
                "latency --lib plain --secs 3",
                "latency --lib raw --secs 3",
                "hot --secs 3",
                "hot --lib raw --secs 3",
                "hot --lib tokio --secs 3",
                "hot --hold-us 1000 --secs 3",
            ]
        );
    }

    #[test]
    fn values_are_computed_from_the_fields() {
        let hot = [json!({"grants_per_s": 450.0, "real_hold_p50_us": 2000.0})];
        assert_eq!(value(bar("hot", "hold 1 ms: grants x real hold"), &hot), Some(0.9));
        let waits = [json!({"max_us": 1000.0, "pending_max_us": 600_000.0})];
        assert_eq!(value(bar("multi", "longest wait, ms"), &waits), Some(600.0));
        let held = [json!({"cpu_ms": 500.0, "secs": 20.0})];
        assert_eq!(value(bar("held", "% of a core"), &held), Some(2.5));
        let fair = json!({"handoff_p50_us": 100.0, "ping_p50_us": 50.0});
        assert_eq!(value(bar("fair-hot", "hand-off p50 / ping p50"), &[fair.clone(), fair]), Some(2.0));
        let rw = [json!({"reads_per_s": 30.0}), json!({"reads_per_s": 100.0})];
        assert_eq!(value(bar("rw-hot", "reads / tokio"), &rw), Some(0.3));
        let pair = [json!({"pair_p50_us": 500.0, "ping_p50_us": 200.0})];
        assert_eq!(value(bar("postgres", "pair p50 / two commits"), &pair), Some(1.25));
        let handoff = [json!({"p50_us": 9000.0, "ping_p50_us": 2000.0})];
        assert_eq!(value(bar("postgres", "hand-off p50 less two commits, ms"), &handoff), Some(5.0));
        let waiting = [json!({"many_mutex": {"cmds_per_s": 42.0}})];
        assert_eq!(value(bar("postgres", "100 processes wait: statements a second"), &waiting), Some(42.0));
        let queue = [json!({"cmds_per_s": 50.0, "grants_per_s": 10.0})];
        let name = "1000 fair waiters: statements a second beside 3 a hand-off";
        assert_eq!(value(bar("postgres", name), &queue), Some(20.0));
        let seeds = [json!({"total_ms": 12.0}), json!({"total_ms": 10.0})];
        assert_eq!(value(bar("seed10k", "time / raw"), &seeds), Some(1.2));
    }

    #[test]
    fn without_a_number_there_is_no_value() {
        let line = json!({"p50_us": null, "ping_p50_us": 20.0});
        assert_eq!(value(bar("latency", "acquire p50 / ping p50"), &[line.clone(), line]), None);
        let none = json!({"p50_us": 1.0, "ping_p50_us": 0.0});
        assert_eq!(value(bar("latency", "acquire p50 / ping p50"), &[none.clone(), none]), None);
        assert_eq!(value(bar("latency", "errors"), &[]), None);
    }
}
