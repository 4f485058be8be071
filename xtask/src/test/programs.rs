//! [`Programs`]: all test programs, built once and run without cargo, whose lock the compilers hold
//! meanwhile.

use std::path::Path;
use std::process::Command;

use super::quick;
use super::{Lane, Outcome, Part};
use crate::build::{self, Program};
use crate::cli::Scope;
use crate::runner::{self, Output};

/// The tests that need other languages, a database on a server, or a browser. They only run if they
/// are named.
pub(super) const NAMED: [&str; 16] = [
    "--test",
    "interop",
    "--test",
    "postgres",
    "--test",
    "on_postgres",
    "--test",
    "mariadb",
    "--test",
    "mongodb",
    "--test",
    "etcd",
    "--test",
    "zookeeper",
    "--test",
    "flash_sale_page",
];

/// The command for the tests in the documentation. The attribute's are part of `lock-runtime`'s,
/// since `lock-macros` alone has no runtime.
const DOCUMENTATION: [&str; 6] =
    ["test", "--doc", "--workspace", "--all-features", "--exclude", "lock-macros"];

/// Number of tests that run at once. They mostly wait, so there are more of them than processors.
const TEST_THREADS: &str = "8";

/// As [`TEST_THREADS`], of the programs that start many ZooKeepers: Java works while it starts.
const JAVA_THREADS: &str = "4";

/// Label of the program with the integration tests, which need servers.
const INTEGRATION: &str = "tests/it";

/// Label of the store whose `server_tests` need servers.
const REDIS: &str = "stores/redis/lib";

/// Label of the store whose modules [`ON_POSTGRES`] and [`ON_MARIADB`] need their databases.
const SQL: &str = "stores/sql/lib";

/// Label of the store whose module [`ON_MONGODB`] needs its database.
const MONGODB: &str = "stores/mongodb/lib";

/// Label of the store whose module [`ON_ETCD`] needs etcd.
const ETCD: &str = "stores/etcd/lib";

/// Label of the store whose module [`ON_ZOOKEEPER`] needs ZooKeeper.
const ZOOKEEPER: &str = "stores/zookeeper/lib";

/// Label of the starter of servers, whose modules [`ON_MARIADB`], [`ON_MONGODB`], [`ON_ETCD`] and
/// [`ON_ZOOKEEPER`] need these databases.
const SERVERS: &str = "tests/servers/lib";

/// The tests of [`SQL`] that belong to the part `postgres`.
pub(super) const ON_POSTGRES: &str = "on_postgres::";

/// The tests of [`SQL`] and [`SERVERS`] that belong to the part `mariadb`.
pub(super) const ON_MARIADB: &str = "on_mariadb::";

/// The tests of [`MONGODB`] and [`SERVERS`] that belong to the part `mongodb`.
pub(super) const ON_MONGODB: &str = "on_mongodb::";

/// The tests of [`ETCD`] and [`SERVERS`] that belong to the part `etcd`.
pub(super) const ON_ETCD: &str = "on_etcd::";

/// The tests of [`ZOOKEEPER`] and [`SERVERS`] that belong to the part `zookeeper`.
pub(super) const ON_ZOOKEEPER: &str = "on_zookeeper::";

/// Label of the program whose `targets` need servers.
const TELEMETRY: &str = "lock-runtime/telemetry";

/// Prefix of the programs whose tests run compilers.
const UI: &str = "tests/compile/";

/// Prefix of the programs of the part `tls`.
const TLS: &str = "tests/tls/";

/// All programs that have tests, and the examples.
pub(crate) struct Programs {
    all: Vec<Program>,
    examples: Vec<Program>,
}

impl Programs {
    /// Builds the programs; `None` if that fails.
    pub(super) fn build(lane: &Lane<'_>, parts: &[Part]) -> Option<Self> {
        let mut built = None;
        lane.step(Part::Test, "build", |step| {
            let named = [
                Part::Interop,
                Part::Redlock,
                Part::Postgres,
                Part::MariaDb,
                Part::MongoDb,
                Part::Etcd,
                Part::ZooKeeper,
                Part::Page,
            ];
            let named = parts.iter().any(|part| named.contains(part));
            match Self::with(named, step.output()) {
                Ok(programs) => {
                    built = Some(programs);
                    Outcome::Ok
                }
                Err(why) => Outcome::Failed(why),
            }
        });
        built
    }

    fn with(named: bool, output: &Output) -> Result<Self, String> {
        let start = ["--no-run", "--workspace", "--all-features"];
        let mut all = build::programs("test", &start, output)?;
        if named {
            all.extend(build::programs("test", &[&start[..], &NAMED].concat(), output)?);
        }
        all.retain(|program| program.is_test);
        all.sort_by_key(Program::label);
        // Of an example with tests, cargo has so far built only the tests.
        let examples = build::programs("build", &["--workspace", "--all-features", "--examples"], output)?;
        Ok(Self { all, examples })
    }

    /// Returns the command that runs a program, as cargo does it.
    fn command(program: &Program, args: &[&str]) -> Command {
        let threads = match ["tests/zookeeper", ZOOKEEPER].contains(&program.label().as_str()) {
            true => JAVA_THREADS,
            false => TEST_THREADS,
        };
        let mut command = Command::new(&program.path);
        command
            .current_dir(&program.folder)
            .env("CARGO_MANIFEST_DIR", &program.folder)
            .args(args)
            .args(["--test-threads", threads]);
        command
    }

    /// Returns the command that runs the integration tests.
    pub(super) fn integration(&self, args: &[&str]) -> Command {
        self.labelled(INTEGRATION, args)
    }

    /// Returns the command that runs one of [`NAMED`].
    pub(super) fn named(&self, name: &str) -> Command {
        self.labelled(&format!("tests/{name}"), &[])
    }

    /// Returns the command that runs the tests of the SQL store on a database.
    pub(super) fn sql_store(&self, on: &str) -> Command {
        self.labelled(SQL, &[on])
    }

    /// Returns the command that runs the tests of the MongoDB store on its database.
    pub(super) fn mongodb_store(&self) -> Command {
        self.labelled(MONGODB, &[ON_MONGODB])
    }

    /// Returns the command that runs the tests of the etcd store on its servers.
    pub(super) fn etcd_store(&self) -> Command {
        self.labelled(ETCD, &[ON_ETCD])
    }

    /// Returns the command that runs the tests of the ZooKeeper store on its servers.
    pub(super) fn zookeeper_store(&self) -> Command {
        self.labelled(ZOOKEEPER, &[ON_ZOOKEEPER])
    }

    /// Returns the command that runs the tests of a database server that tests start.
    pub(super) fn server(&self, on: &str) -> Command {
        self.labelled(SERVERS, &[on])
    }

    /// Returns the command that runs the tests of `lock-bench` on PostgreSQL.
    pub(super) fn bench_on_postgres(&self) -> Command {
        self.labelled("benches/on_postgres", &[])
    }

    /// Returns the path of an example.
    pub(crate) fn example(&self, name: &str) -> Option<&Path> {
        self.examples.iter().find(|program| program.name == name).map(|program| program.path.as_path())
    }

    fn labelled(&self, label: &str, args: &[&str]) -> Command {
        let found = self.all.iter().find(|program| program.label() == label);
        // Without the program, the step reports that it can't be run.
        found.map_or_else(|| Command::new(label), |program| Self::command(program, args))
    }

    /// Returns the programs of the part `test` that do not compile anything.
    fn waiting(&self) -> impl Iterator<Item = &Program> {
        let is_named = |program: &&Program| NAMED.contains(&program.name.as_str());
        let elsewhere = |program: &&Program| [UI, TLS].iter().any(|label| program.label().starts_with(label));
        self.all.iter().filter(move |program| !is_named(program) && !elsewhere(program))
    }

    pub(super) fn run_tests(&self, lane: &Lane<'_>, scope: Scope, has_servers: bool) {
        for program in self.waiting() {
            let label = program.label();
            let mut args = match scope {
                Scope::All => Vec::new(),
                Scope::Quick => match quick::args(&label) {
                    Some(args) => args,
                    None => continue,
                },
            };
            let name = format!("test: {label}");
            if [SQL, MONGODB, ETCD, ZOOKEEPER, SERVERS].contains(&label.as_str()) {
                let elsewhere = [ON_POSTGRES, ON_MARIADB, ON_MONGODB, ON_ETCD, ON_ZOOKEEPER];
                args.extend(elsewhere.into_iter().flat_map(|on| ["--skip", on]));
            }
            if !has_servers {
                let needs = ["tests/", "benches/", "examples/my-store/suite", "examples/my-store/with"];
                if needs.iter().any(|needs| label.starts_with(needs)) {
                    lane.skip(Part::Test, &name, "missing: redis-server");
                    continue;
                }
                match label.as_str() {
                    REDIS => args.extend(["--skip", "server_tests::"]),
                    TELEMETRY => args.extend(["--skip", "targets::"]),
                    _ => {}
                }
            }
            lane.step(Part::Test, &name, |step| step.run(&mut Self::command(program, &args)));
        }
    }

    /// Runs the tests that run compilers, and those in the documentation.
    pub(super) fn run_compiling(&self, lane: &Lane<'_>) {
        for program in self.all.iter().filter(|program| program.label().starts_with(UI)) {
            let name = format!("test: {}", program.label());
            lane.step(Part::Test, &name, |step| step.run(&mut Self::command(program, &[])));
        }
        lane.step(Part::Test, "test: documentation", |step| {
            step.cargo(&[&DOCUMENTATION[..], &["--no-fail-fast"]].concat())
        });
    }
}

/// Returns the names of all tests, each after the program that has it.
pub(super) fn list() -> Result<Vec<String>, String> {
    // Cargo's output is kept off standard output, which is for the names.
    let quiet = Output::kept();
    list_with(&quiet).map_err(|why| format!("{why}\n{}", String::from_utf8_lossy(&quiet.take())))
}

fn list_with(quiet: &Output) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let mut add = |label: &str, listed: &str| {
        let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        names.extend(tests.map(|test| format!("{label}: {test}")));
    };
    for program in Programs::with(true, quiet)?.all {
        let mut command = Programs::command(&program, &["--list", "--format", "terse"]);
        add(&program.label(), &runner::read(&mut command, quiet)?);
    }
    let mut docs = crate::cargo();
    docs.args(DOCUMENTATION).args(["--", "--list", "--format", "terse"]);
    add("documentation", &runner::read(&mut docs, quiet)?);
    Ok(names)
}
