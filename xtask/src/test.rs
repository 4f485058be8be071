//! `cargo xtask test`: the parts, one after the other, and the table of what became of them.

use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::cli::Options;
use crate::examples;
use crate::install::{Found, Tool};
use crate::runner;

/// One part of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Fmt,
    Clippy,
    Features,
    Docs,
    Test,
    Topologies,
    Loom,
    Tls,
    Interop,
    Postgres,
    Examples,
    Page,
}

impl Part {
    pub(crate) const ALL: [Self; 12] = [
        Self::Fmt,
        Self::Clippy,
        Self::Features,
        Self::Docs,
        Self::Test,
        Self::Topologies,
        Self::Loom,
        Self::Tls,
        Self::Interop,
        Self::Postgres,
        Self::Examples,
        Self::Page,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Clippy => "clippy",
            Self::Features => "features",
            Self::Docs => "docs",
            Self::Test => "test",
            Self::Topologies => "topologies",
            Self::Loom => "loom",
            Self::Tls => "tls",
            Self::Interop => "interop",
            Self::Postgres => "postgres",
            Self::Examples => "examples",
            Self::Page => "page",
        }
    }

    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    fn tools(self) -> &'static [Tool] {
        match self {
            Self::Fmt => &[Tool::Rustfmt],
            Self::Clippy => &[Tool::Clippy, Tool::OpenSsl],
            Self::Features => &[Tool::Clippy],
            Self::Loom => &[],
            Self::Docs => &[Tool::OpenSsl],
            Self::Test | Self::Topologies | Self::Tls => &[Tool::RedisServer, Tool::OpenSsl],
            Self::Interop => &[Tool::RedisServer, Tool::OpenSsl, Tool::Jdk, Tool::Maven],
            Self::Postgres => &[Tool::RedisServer, Tool::OpenSsl, Tool::PostgreSql],
            Self::Examples => &[Tool::RedisServer],
            Self::Page => &[Tool::OpenSsl, Tool::Chromium],
        }
    }
}

/// The features of `lock-runtime` that must work alone. `tls-native` is left to the parts that build everything.
const FEATURES: [&str; 10] =
    ["macros", "redis", "layer", "axum", "tonic", "metrics", "testing", "tls-rustls", "sqlite", "postgres"];

/// Tests mostly wait, so there are more of them at once than two cores.
const TEST_THREADS: &str = "4";

/// The tests that need the Java program, as cargo's `--test` takes them.
const INTEROP: &str = "interop_*";

/// What they run on, one after the other.
const INTEROP_SERVERS: [&str; 3] = ["single", "cluster", "sentinel"];

/// The test that needs a browser.
const PAGE: &str = "flash_sale_page";
/// The tests that need PostgreSQL.
const POSTGRES: &str = "stock_postgres";

/// What became of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    /// Why, in one line; more lines say what the tests that failed said.
    Failed(String),
    Skipped(String),
}

/// One line of the closing table.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
}

/// Collects the rows.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// Runs a step and notes what became of it.
    pub(crate) fn step(&mut self, name: &str, step: impl FnOnce() -> Outcome) {
        println!("\n=== {name} ===");
        let start = Instant::now();
        let outcome = step();
        match &outcome {
            Outcome::Ok => {}
            Outcome::Failed(why) => println!("{name} FAILED: {}", first_line(why)),
            Outcome::Skipped(why) => println!("{name} skipped: {why}"),
        }
        self.rows.push(Row { name: name.to_owned(), outcome, took: start.elapsed() });
    }

    /// Whether nothing failed; in CI nothing may be left out either.
    fn is_good(&self, ci: bool) -> bool {
        self.rows.iter().all(|row| match row.outcome {
            Outcome::Ok => true,
            Outcome::Failed(_) => false,
            Outcome::Skipped(_) => !ci,
        })
    }
}

impl fmt::Display for Table {
    /// What failed, in full, and the table below it: the end of a long output is what one sees first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Row { name, outcome, .. } in &self.rows {
            if let Outcome::Failed(why) = outcome {
                writeln!(f, "--- {name} FAILED: {why}\n")?;
            }
        }
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max("part".len());
        writeln!(f, "{:width$}  {:7}  {:>7}", "part", "result", "seconds")?;
        for Row { name, outcome, took } in &self.rows {
            let (result, why) = match outcome {
                Outcome::Ok => ("ok", ""),
                Outcome::Failed(why) => ("FAILED", first_line(why)),
                Outcome::Skipped(why) => ("skipped", why.as_str()),
            };
            let line = format!("{name:width$}  {result:7}  {:7.1}  {why}", took.as_secs_f64());
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

pub(crate) fn run(options: &Options) -> ExitCode {
    let ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let mut tools: Vec<Tool> = Vec::new();
    for tool in options.parts.iter().flat_map(|part| part.tools()) {
        if !tools.contains(tool) {
            tools.push(*tool);
        }
    }
    let found = Found::look(&tools, options.install || ci);
    let mut table = Table::default();
    for &part in &options.parts {
        run_part(part, &found, &mut table);
    }
    println!("\n{table}");
    if table.is_good(ci) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_part(part: Part, found: &Found, table: &mut Table) {
    // Without a server there is still much that can be tested.
    let needed = part.tools().iter().filter(|&&tool| tool != Tool::RedisServer);
    let missing: Vec<&str> = needed.filter(|&&tool| found.is_missing(tool)).map(|tool| tool.name()).collect();
    if !missing.is_empty() {
        let why = format!("missing: {}", missing.join(", "));
        table.step(part.name(), || Outcome::Skipped(why));
        return;
    }
    let server_missing = found.is_missing(Tool::RedisServer);
    match part {
        Part::Fmt => table.step("fmt", || cargo(&["fmt", "--all", "--check"])),
        Part::Clippy => table.step("clippy", || {
            let start = ["clippy", "--workspace", "--all-features"];
            // What needs a JDK, PostgreSQL or a browser is a target that must be named.
            for targets in [&["--all-targets"][..], &["--test", INTEROP, "--test", POSTGRES, "--test", PAGE]]
            {
                let outcome = cargo(&[&start, targets, &["--", "-D", "warnings"]].concat());
                if outcome != Outcome::Ok {
                    return outcome;
                }
            }
            Outcome::Ok
        }),
        Part::Features => {
            table.step("features: none", || lint_runtime(&[]));
            for feature in FEATURES {
                table.step(&format!("features: {feature}"), || lint_runtime(&["--features", feature]));
            }
        }
        Part::Docs => table.step("docs", || {
            let mut doc = crate::cargo();
            doc.args(["doc", "--workspace", "--no-deps", "--all-features"])
                .env("RUSTDOCFLAGS", "-D warnings");
            runner::run(&mut doc)
        }),
        Part::Test if server_missing => {
            table.step("test", || {
                let start = ["test", "--workspace", "--all-features", "--no-fail-fast"];
                cargo(&[&start[..], &["--exclude", "lock-tests", "--exclude", "lock-bench"]].concat())
            });
            table.step("test: integration", || Outcome::Skipped("missing: redis-server".to_owned()));
        }
        Part::Test => {
            table.step("test", || {
                let start = ["test", "--workspace", "--all-features", "--no-fail-fast"];
                cargo(&[&start[..], &["--", "--test-threads", TEST_THREADS]].concat())
            });
        }
        Part::Topologies => run_topologies(table, server_missing),
        Part::Loom => table.step("loom", run_loom),
        Part::Tls => run_tls(table, server_missing),
        Part::Interop if server_missing => {
            table.step("interop", || Outcome::Skipped("missing: redis-server".to_owned()));
        }
        Part::Interop => run_interop(table),
        Part::Postgres if server_missing => {
            table.step("postgres", || Outcome::Skipped("missing: redis-server".to_owned()));
        }
        Part::Postgres => table.step("postgres", || {
            // All features, as in the part `test`: nothing is compiled twice.
            let start = ["test", "--workspace", "--all-features", "--no-fail-fast", "--test", POSTGRES];
            cargo(&[&start[..], &["--", "--test-threads", TEST_THREADS]].concat())
        }),
        Part::Examples => examples::run(table, server_missing),
        Part::Page => table.step("page", || {
            // All features, as in the part `test`: nothing is compiled twice.
            cargo(&["test", "--workspace", "--all-features", "--no-fail-fast", "--test", PAGE])
        }),
    }
}

/// The real Redisson client beside ours. The Java program is built on its own, so that a registry that can't be reached
/// is told apart from a test that fails.
fn run_interop(table: &mut Table) {
    let mut built = false;
    table.step("interop: build", || match lock_tests::java::Program::build() {
        Ok(_) => {
            built = true;
            Outcome::Ok
        }
        Err(why) => Outcome::Failed(why),
    });
    for servers in INTEROP_SERVERS.into_iter().filter(|_| built) {
        table.step(&format!("interop: {servers}"), || {
            // All features, as in the part `test`: nothing is compiled twice. Figures are worth seeing.
            let start = ["test", "--workspace", "--all-features", "--no-fail-fast", "--test", INTEROP];
            let mut test = crate::cargo();
            test.args(start).args(["--", "--show-output", "--test-threads", TEST_THREADS]);
            test.env("LOCK_INTEROP_SERVERS", servers);
            runner::run(&mut test)
        });
    }
}

/// What else the tests of every store run on, besides one server.
const TOPOLOGIES: [&str; 3] = ["sentinel", "cluster", "quorum"];

/// The tests of every store again, on several servers.
fn run_topologies(table: &mut Table, server_missing: bool) {
    let tests = match shared_tests() {
        Ok(tests) => tests,
        Err(error) => {
            table.step("topologies", || Outcome::Failed(format!("the tests can't be listed: {error}")));
            return;
        }
    };
    for topology in TOPOLOGIES {
        table.step(&format!("topologies: {topology}"), || {
            if server_missing {
                return Outcome::Skipped("missing: redis-server".to_owned());
            }
            let mut test = crate::cargo();
            // All features, as in the part `test`: nothing is compiled twice.
            test.args(["test", "--workspace", "--all-features", "--no-fail-fast"]);
            // A quorum has neither.
            let counting = |name: &str| topology == "quorum" && matches!(name, "latch" | "semaphore");
            for name in tests.iter().filter(|name| !counting(name)) {
                test.args(["--test", name]);
            }
            test.args(["--", "--test-threads", TEST_THREADS, "redis::"]).env("LOCK_TESTS_TOPOLOGY", topology);
            runner::run(&mut test)
        });
    }
}

/// The integration tests whose functions are tests of every store.
fn shared_tests() -> std::io::Result<Vec<String>> {
    let folder = crate::root().join("tests/tests");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is_source = path.extension().is_some_and(|extension| extension == "rs");
        if is_source && std::fs::read_to_string(&path)?.contains("on_every_store! {") {
            names.extend(path.file_stem().and_then(|name| name.to_str()).map(str::to_owned));
        }
    }
    names.sort();
    Ok(names)
}

/// The models of what threads share. The flag puts `lock-runtime` on the primitives of `loom`, on which its other tests
/// can't run.
fn run_loom() -> Outcome {
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    flags.push_str(" --cfg lock_loom");
    let mut test = crate::cargo();
    test.args(["test", "--package", "lock-runtime", "--no-default-features", "--features", "testing"])
        .args(["--lib", "loom_models"])
        .env("RUSTFLAGS", flags.trim());
    runner::run(&mut test)
}

/// `rediss://` without a TLS library and with each one alone; the part `test` has both at once.
fn run_tls(table: &mut Table, server_missing: bool) {
    let test = |features: &str| {
        let start = ["test", "--package", "lock-tests", "--test", "redis_tls", "--no-default-features"];
        cargo(&[&start[..], &["--features", features]].concat())
    };
    table.step("tls: none", || test("helpers"));
    for feature in ["tls-rustls", "tls-native"] {
        table.step(&format!("tls: {feature}"), || {
            if server_missing {
                Outcome::Skipped("missing: redis-server".to_owned())
            } else if !lock_tests::redis::knows_tls() {
                Outcome::Skipped("missing: a redis-server that was built with TLS".to_owned())
            } else {
                test(feature)
            }
        });
    }
}

/// `lock-runtime` as a user with exactly these features compiles it.
fn lint_runtime(features: &[&str]) -> Outcome {
    let start = ["clippy", "--package", "lock-runtime", "--no-default-features"];
    cargo(&[&start, features, &["--", "-D", "warnings"]].concat())
}

fn cargo(args: &[&str]) -> Outcome {
    runner::run(crate::cargo().args(args))
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(outcomes: &[Outcome]) -> Table {
        let mut table = Table::default();
        for outcome in outcomes {
            table.step("part", || outcome.clone());
        }
        table
    }

    #[test]
    fn a_failure_is_a_failure_everywhere() {
        let table = table(&[Outcome::Ok, Outcome::Failed("why".to_owned())]);
        assert!(!table.is_good(false));
        assert!(!table.is_good(true));
    }

    #[test]
    fn what_the_tests_said_is_above_the_table_and_not_in_it() {
        let text =
            table(&[Outcome::Failed("exit status: 101\n---- b stdout ----\nboom".to_owned())]).to_string();
        let (above, below) = text.split_once("part  result").expect("a table");
        assert!(above.contains("boom"), "{text}");
        assert!(below.contains("exit status: 101") && !below.contains("boom"), "{text}");
    }

    #[test]
    fn what_is_left_out_fails_in_ci_only() {
        let table = table(&[Outcome::Ok, Outcome::Skipped("why".to_owned())]);
        assert!(table.is_good(false));
        assert!(!table.is_good(true));
    }

    #[test]
    fn the_table_says_what_became_of_each_part() {
        let text = table(&[Outcome::Ok, Outcome::Skipped("missing: x".to_owned())]).to_string();
        assert!(text.contains("part  ok"), "{text}");
        assert!(text.contains("skipped      0.0  missing: x"), "{text}");
    }
}
