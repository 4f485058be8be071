//! `cargo xtask test`: all checks, and the table of their outcomes.
//!
//! It first builds everything that has tests. Then two lanes run side by side: the tests, which
//! mostly wait, and the compilers, whose output appears step by step. When the compilers are done,
//! their lane takes the last tests.

mod lane;
mod programs;
mod quick;
mod table;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use lock_tests::plain::Client;

pub(crate) use self::lane::{Lane, Step};
pub(crate) use self::programs::Programs;
pub(crate) use self::table::Outcome;
use self::table::Table;
use crate::api;
use crate::build;
use crate::cli::{Options, Scope};
use crate::direction;
use crate::examples;
use crate::install::{Found, Tool};
use crate::prose;
use crate::runner::{self, Output};
use crate::spec;
use crate::workspace::{self, Libraries};

/// One part of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Fmt,
    Prose,
    Direction,
    Clippy,
    Features,
    Docs,
    Api,
    Test,
    Topologies,
    Spec,
    Loom,
    Tls,
    Interop,
    Redlock,
    Postgres,
    MariaDb,
    MongoDb,
    Etcd,
    ZooKeeper,
    Examples,
    Page,
}

impl Part {
    pub(crate) const ALL: [Self; 21] = [
        Self::Fmt,
        Self::Prose,
        Self::Direction,
        Self::Clippy,
        Self::Features,
        Self::Docs,
        Self::Api,
        Self::Test,
        Self::Topologies,
        Self::Spec,
        Self::Loom,
        Self::Tls,
        Self::Interop,
        Self::Redlock,
        Self::Postgres,
        Self::MariaDb,
        Self::MongoDb,
        Self::Etcd,
        Self::ZooKeeper,
        Self::Examples,
        Self::Page,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Prose => "prose",
            Self::Direction => "direction",
            Self::Clippy => "clippy",
            Self::Features => "features",
            Self::Docs => "docs",
            Self::Api => "api",
            Self::Test => "test",
            Self::Topologies => "topologies",
            Self::Spec => "spec",
            Self::Loom => "loom",
            Self::Tls => "tls",
            Self::Interop => "interop",
            Self::Redlock => "redlock",
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
            Self::MongoDb => "mongodb",
            Self::Etcd => "etcd",
            Self::ZooKeeper => "zookeeper",
            Self::Examples => "examples",
            Self::Page => "page",
        }
    }

    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Whether a part of it belongs to `--quick`.
    pub(crate) fn is_quick(self) -> bool {
        matches!(self, Self::Fmt | Self::Prose | Self::Direction | Self::Clippy | Self::Test | Self::Examples)
    }

    /// Whether it belongs to the compilers' lane, since it runs no test program.
    fn compiles(self) -> bool {
        match self {
            Self::Fmt
            | Self::Prose
            | Self::Direction
            | Self::Clippy
            | Self::Features
            | Self::Docs
            | Self::Api
            | Self::Spec
            | Self::Loom
            | Self::Tls => true,
            Self::Test
            | Self::Topologies
            | Self::Interop
            | Self::Redlock
            | Self::Postgres
            | Self::MariaDb
            | Self::MongoDb
            | Self::Etcd
            | Self::ZooKeeper
            | Self::Examples
            | Self::Page => false,
        }
    }

    fn tools(self) -> &'static [Tool] {
        match self {
            Self::Fmt => &[Tool::Rustfmt],
            Self::Clippy => &[Tool::Clippy, Tool::OpenSsl],
            Self::Features => &[Tool::Clippy],
            Self::Prose | Self::Direction | Self::Loom => &[],
            Self::Docs | Self::Api => &[Tool::OpenSsl],
            Self::Spec => &[Tool::Jdk, Tool::Maven],
            Self::Test | Self::Topologies | Self::Tls => &[Tool::RedisServer, Tool::OpenSsl],
            Self::Interop => &[Tool::RedisServer, Tool::OpenSsl, Tool::Jdk, Tool::Maven],
            Self::Redlock => &[Tool::RedisServer, Tool::OpenSsl, Tool::Python, Tool::Go, Tool::Node],
            Self::Postgres => &[Tool::RedisServer, Tool::OpenSsl, Tool::PostgreSql, Tool::PgBouncer],
            Self::MariaDb => &[Tool::OpenSsl, Tool::MariaDb],
            Self::MongoDb => &[Tool::OpenSsl, Tool::MongoDb],
            Self::Etcd => &[Tool::OpenSsl, Tool::Etcd, Tool::Go],
            Self::ZooKeeper => &[Tool::RedisServer, Tool::OpenSsl, Tool::Etcd, Tool::Jdk, Tool::Maven],
            Self::Examples => &[
                Tool::RedisServer,
                Tool::PostgreSql,
                Tool::MariaDb,
                Tool::MongoDb,
                Tool::Etcd,
                Tool::Jdk,
                Tool::Maven,
            ],
            Self::Page => &[Tool::OpenSsl, Tool::Chromium],
        }
    }
}

/// The crates that users name, and their features. Each crate must work without features, and with
/// each one alone. Stores are compiled with the feature of `lock-runtime` that brings them.
/// `tls-native` is left to the parts that build everything.
const FEATURES: [(&str, &[&str]); 3] = [
    ("lock-core", &["testing", "tls"]),
    (CONFORMANCE, &[]),
    (
        workspace::PACKAGE,
        &[
            "macros",
            "redis",
            "layer",
            "axum",
            "tonic",
            "metrics",
            "testing",
            "tls-rustls",
            "sqlite",
            "postgres",
            "mysql",
            "mongodb",
            "etcd",
            "zookeeper",
            "zookeeper-tls",
        ],
    ),
];

/// The published crate that no other one depends on.
const CONFORMANCE: &str = "lock-store-conformance";

/// Servers for the tests with the Java program, in order.
const INTEROP_SERVERS: [&str; 3] = ["single", "cluster", "sentinel"];

/// The tests of the part `redlock`: a module of the program `interop`.
const REDLOCK: &str = "plain::";

/// The tests of the part `etcd` that need Go: a module of the program `etcd`.
const GO: &str = "go::";

/// Servers for the tests of every store, besides a single one in Redisson's layout.
const TOPOLOGIES: [&str; 4] = [PLAIN, "sentinel", "cluster", "quorum"];

/// One server in the plain layout, which has only mutexes.
const PLAIN: &str = "plain";

/// The modules that run there.
const MUTEXES: [&str; 8] = [
    "multi_locks::redis::",
    "mutex_leases::redis::",
    "mutex_ownership::redis::",
    "mutex_redisson::redis::",
    "mutex_renewals::redis::",
    "mutex_waiting::redis::",
    "mutex_wake_ups::redis::",
    "mutex_zeros::redis::",
];

/// Their tests of other kinds of locks.
const OTHER_KINDS: [&str; 6] = [
    "--skip",
    "a_fair_key_of_several_waits_in_its_queue",
    "--skip",
    "no_keys_and_one_key_in_two_kinds_are_refused",
    "--skip",
    "the_counter_outlives_a_hold_however_long_it_is_renewed",
];

pub(crate) fn run(options: &Options) -> ExitCode {
    let start = Instant::now();
    let ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let mut tools: Vec<Tool> = Vec::new();
    for tool in options.parts.iter().flat_map(|part| part.tools()) {
        if !tools.contains(tool) {
            tools.push(*tool);
        }
    }
    let found = Found::look(&tools, options.install || ci);
    let table = Table::default();
    let parts = Parts { scope: options.scope, found: &found };
    // Much can be tested without a server.
    let (tested, left_out): (Vec<Part>, Vec<Part>) =
        options.parts.iter().partition(|part| parts.missing(**part).is_empty());
    let live = Output::Live;
    let front = Lane::new(&table, &live);
    for part in left_out {
        front.skip(part, part.name(), &format!("missing: {}", parts.missing(part).join(", ")));
    }
    let (compilers, tests): (Vec<Part>, Vec<Part>) = tested.into_iter().partition(|part| part.compiles());
    let programs = if tests.is_empty() { None } else { Programs::build(&front, &tests) };
    let compiles = |part| tests.contains(&part) && options.scope == Scope::All;
    let (tests_compile, examples_compile) = (compiles(Part::Test), compiles(Part::Examples));
    let side_by_side = programs.is_some() && (tests_compile || examples_compile || !compilers.is_empty());
    let left = Mutex::new(VecDeque::from(tests));
    std::thread::scope(|scope| {
        let output = if side_by_side { Output::kept() } else { Output::Live };
        let (table, parts, programs) = (&table, &parts, programs.as_ref());
        let left = &left;
        scope.spawn(move || {
            let lane = Lane::new(table, &output);
            // A thread of its own, since the way back from a lower priority is closed.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    if side_by_side {
                        give_way();
                    }
                    for part in compilers {
                        parts.compile(&lane, part);
                    }
                    if let Some(programs) = programs.filter(|_| tests_compile) {
                        programs.run_compiling(&lane);
                    }
                    if examples_compile {
                        examples::run_as_newcomer(&lane);
                    }
                });
            });
            // Whatever tests are left by then.
            while side_by_side && let Some((part, programs)) = next(left, VecDeque::pop_back).zip(programs) {
                parts.test(&lane, part, programs);
            }
        });
        while let Some((part, programs)) = next(left, VecDeque::pop_front).zip(programs) {
            parts.test(&front, part, programs);
        }
    });
    let table = table.finish(start.elapsed());
    println!("\n{table}");
    if table.is_good(ci) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Lowers the priority of the programs that this thread starts. The tests beside them wait for
/// answers, and notice a busy machine.
fn give_way() {
    // On Linux this concerns one thread. Elsewhere the tests give way, too.
    let _ = rustix::process::nice(10);
}

/// Takes a part from one end.
fn next(left: &Mutex<VecDeque<Part>>, take: fn(&mut VecDeque<Part>) -> Option<Part>) -> Option<Part> {
    take(&mut left.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Prints the names of all tests, each after the program that has it.
pub(crate) fn list() -> Result<(), String> {
    programs::list()?.iter().for_each(|name| println!("{name}"));
    Ok(())
}

/// The parts to run, and their circumstances.
struct Parts<'a> {
    scope: Scope,
    found: &'a Found,
}

impl Parts<'_> {
    /// Returns the missing tools without which a part can't run at all.
    fn missing(&self, part: Part) -> Vec<&'static str> {
        let needed = part.tools().iter().filter(|tool| match part {
            // These parts have tests that need no server.
            Part::Test | Part::Tls => **tool != Tool::RedisServer,
            Part::Examples => false,
            // Each client needs only its own language.
            Part::Redlock => !Client::ALL.map(language).contains(tool),
            Part::Etcd => **tool != Tool::Go,
            _ => true,
        });
        needed.filter(|tool| self.found.is_missing(**tool)).map(|tool| tool.name()).collect()
    }

    fn has_servers(&self) -> bool {
        !self.found.is_missing(Tool::RedisServer)
    }

    fn compile(&self, lane: &Lane<'_>, part: Part) {
        match part {
            Part::Fmt => {
                lane.step(part, "fmt", |step| step.cargo(&["fmt", "--all", "--check"]));
            }
            Part::Prose => {
                lane.step(part, "prose", prose::check);
            }
            Part::Direction => {
                lane.step(part, "direction", direction::check);
            }
            Part::Clippy => {
                lane.step(part, "clippy", |step| {
                    let start = ["clippy", "--workspace", "--all-features"];
                    // The tests that need other languages, databases or a browser must be named.
                    for targets in [&["--all-targets"][..], &programs::NAMED] {
                        let outcome = step.cargo(&[&start, targets, &["--", "-D", "warnings"]].concat());
                        if outcome != Outcome::Ok {
                            return outcome;
                        }
                    }
                    Outcome::Ok
                });
            }
            Part::Features => features(lane),
            Part::Docs => {
                lane.step(part, "docs", |step| {
                    let mut doc = crate::cargo();
                    doc.args(["doc", "--workspace", "--no-deps", "--all-features"])
                        .env("RUSTDOCFLAGS", "-D warnings");
                    step.run(&mut doc)
                });
            }
            Part::Api => {
                lane.step(part, "api", api::check);
            }
            Part::Spec => {
                lane.step(part, "spec", spec::check);
            }
            Part::Loom => {
                lane.step(part, "loom", run_loom);
            }
            Part::Tls => self.tls(lane),
            Part::Test
            | Part::Topologies
            | Part::Interop
            | Part::Redlock
            | Part::Postgres
            | Part::MariaDb
            | Part::MongoDb
            | Part::Etcd
            | Part::ZooKeeper
            | Part::Examples
            | Part::Page => {}
        }
    }

    fn test(&self, lane: &Lane<'_>, part: Part, programs: &Programs) {
        match part {
            Part::Test => programs.run_tests(lane, self.scope, self.has_servers()),
            Part::Topologies => {
                for topology in TOPOLOGIES {
                    lane.step(part, &format!("topologies: {topology}"), |step| {
                        let mut test = match topology {
                            PLAIN => programs.integration(&[&MUTEXES[..], &OTHER_KINDS].concat()),
                            _ => programs.integration(&["::redis::"]),
                        };
                        if topology == "quorum" {
                            // A quorum has no latches and no semaphores.
                            test.args(["--skip", "latch::", "--skip", "semaphore::"]);
                        }
                        step.run(test.env("LOCK_TESTS_TOPOLOGY", topology))
                    });
                }
            }
            Part::Interop => interop(lane, programs),
            Part::Redlock => self.redlock(lane, programs),
            Part::Postgres => {
                lane.step(part, "postgres", |step| step.run(&mut programs.named("postgres")));
                let mut contract = programs.sql_store(programs::ON_POSTGRES);
                lane.step(part, "postgres: the contract", |step| step.run(&mut contract));
                lane.step(part, "postgres: lock-bench", |step| step.run(&mut programs.bench_on_postgres()));
            }
            Part::MariaDb => {
                lane.step(part, "mariadb", |step| step.run(&mut programs.named("mariadb")));
                lane.step(part, "mariadb: the server", |step| {
                    step.run(&mut programs.server(programs::ON_MARIADB))
                });
                let mut contract = programs.sql_store(programs::ON_MARIADB);
                lane.step(part, "mariadb: the contract", |step| step.run(&mut contract));
            }
            Part::MongoDb => {
                lane.step(part, "mongodb", |step| step.run(&mut programs.named("mongodb")));
                lane.step(part, "mongodb: the server", |step| {
                    step.run(&mut programs.server(programs::ON_MONGODB))
                });
                let mut contract = programs.mongodb_store();
                lane.step(part, "mongodb: the contract", |step| step.run(&mut contract));
            }
            Part::Etcd => {
                self.etcd(lane, programs);
                lane.step(part, "etcd: the server", |step| step.run(&mut programs.server(programs::ON_ETCD)));
                lane.step(part, "etcd: the contract", |step| step.run(&mut programs.etcd_store()));
            }
            Part::ZooKeeper => zookeeper(lane, programs),
            Part::Examples => examples::run(lane, self.scope, self.found, programs),
            Part::Page => {
                lane.step(part, "page", |step| {
                    let mut test = programs.named("flash_sale_page");
                    if let Some(shop) = programs.example("flash-sale") {
                        test.env("LOCK_TESTS_FLASH_SALE", shop);
                    }
                    step.run(&mut test)
                });
            }
            Part::Fmt
            | Part::Prose
            | Part::Direction
            | Part::Clippy
            | Part::Features
            | Part::Docs
            | Part::Api
            | Part::Spec
            | Part::Loom
            | Part::Tls => {}
        }
    }

    /// Runs clients of other languages beside ours, in the plain layout. Each build is a separate
    /// step, to tell an unreachable registry from a failed test.
    fn redlock(&self, lane: &Lane<'_>, programs: &Programs) {
        let mut test = programs.named("interop");
        test.args([REDLOCK, "--show-output"]);
        let mut any = false;
        for client in Client::ALL {
            let name = format!("redlock: build {}", client.name());
            let built = self.build(lane, Part::Redlock, &name, language(client), || client.build().map(drop));
            any |= built;
            if !built {
                test.args(["--skip", &format!("::{}", client.name())]);
            }
        }
        if any {
            lane.step(Part::Redlock, "redlock", |step| step.run(&mut test));
        }
    }

    /// Runs the tests on etcd, with those of its Go client if that can be built.
    fn etcd(&self, lane: &Lane<'_>, programs: &Programs) {
        let build = || lock_tests::concurrency::build().map(drop);
        let built = self.build(lane, Part::Etcd, "etcd: build concurrency", Tool::Go, build);
        let mut test = programs.named("etcd");
        if !built {
            test.args(["--skip", GO]);
        }
        lane.step(Part::Etcd, "etcd", |step| step.run(&mut test));
    }

    /// Builds a program in another language. Returns whether it is there.
    fn build(
        &self,
        lane: &Lane<'_>,
        part: Part,
        name: &str,
        language: Tool,
        build: impl FnOnce() -> Result<(), String>,
    ) -> bool {
        if self.found.is_missing(language) {
            lane.skip(part, name, &format!("missing: {}", language.name()));
            return false;
        }
        lane.step(part, name, |_| match build() {
            Ok(()) => Outcome::Ok,
            Err(why) => Outcome::Failed(why),
        })
    }

    /// Tests `rediss://` with both TLS libraries, with none, and with each one alone.
    fn tls(&self, lane: &Lane<'_>) {
        let test = |step: &Step<'_>, features: &[&str]| {
            step.cargo(&[&["test", "--package", "lock-tls-tests"], features].concat())
        };
        // First: all variants share one helper program, which the last build decides. With the
        // features of `build`, nothing is compiled here.
        lane.step(Part::Tls, "tls: both", |step| {
            step.cargo(&["test", "--workspace", "--all-features", "--test", "redis_tls"])
        });
        lane.step(Part::Tls, "tls: none", |step| test(step, &[]));
        for feature in ["tls-rustls", "tls-native"] {
            lane.step(Part::Tls, &format!("tls: {feature}"), |step| {
                if !self.has_servers() {
                    Outcome::Skipped("missing: redis-server".to_owned())
                } else if !lock_tests::redis::knows_tls() {
                    Outcome::Skipped("missing: a redis-server that was built with TLS".to_owned())
                } else {
                    test(step, &["--features", feature])
                }
            });
        }
    }
}

/// Runs the real Redisson client beside ours. The Java program is a separate step, to tell an
/// unreachable registry from a failed test.
fn interop(lane: &Lane<'_>, programs: &Programs) {
    let built = lane.step(Part::Interop, "interop: build", |_| match lock_tests::java::Program::build() {
        Ok(_) => Outcome::Ok,
        Err(why) => Outcome::Failed(why),
    });
    for servers in INTEROP_SERVERS.into_iter().filter(|_| built) {
        lane.step(Part::Interop, &format!("interop: {servers}"), |step| {
            // The figures are worth seeing.
            let mut test = programs.named("interop");
            test.args(["--skip", REDLOCK]);
            step.run(test.arg("--show-output").env("LOCK_INTEROP_SERVERS", servers))
        });
    }
}

/// Runs the tests on ZooKeeper. The jars are a separate step, as in [`interop`].
fn zookeeper(lane: &Lane<'_>, programs: &Programs) {
    let part = Part::ZooKeeper;
    let built = lane.step(part, "zookeeper: build", |_| match lock_tests::zookeeper::Jars::build() {
        Ok(_) => Outcome::Ok,
        Err(why) => Outcome::Failed(why),
    });
    if built {
        lane.step(part, "zookeeper", |step| step.run(&mut programs.named("zookeeper")));
        let mut server = programs.server(programs::ON_ZOOKEEPER);
        lane.step(part, "zookeeper: the server", |step| step.run(&mut server));
        lane.step(part, "zookeeper: the contract", |step| step.run(&mut programs.zookeeper_store()));
    }
}

/// Returns the language of a client.
fn language(client: Client) -> Tool {
    match client {
        Client::RedisPy => Tool::Python,
        Client::Redsync => Tool::Go,
        Client::NodeRedlock => Tool::Node,
    }
}

/// Runs the models of state that threads share. The flag puts `lock-core` and `lock-engine` on the
/// primitives of `loom`, on which other tests can't run, so they have their own target folder.
fn run_loom(step: &Step<'_>) -> Outcome {
    let target = match Libraries::find(step.output()) {
        Ok(libraries) => libraries.target.join("loom"),
        Err(why) => return Outcome::Failed(why),
    };
    let mut test = crate::cargo();
    test.args(["test", "--package", "lock-engine", "--lib", "--no-run"])
        .env("CARGO_TARGET_DIR", target)
        .env("RUSTFLAGS", "--cfg lock_loom");
    match build::programs_of(test, step.output()) {
        Err(why) => Outcome::Failed(why),
        Ok(programs) => match programs.iter().find(|program| program.is_test) {
            None => Outcome::Failed("cargo does not say where the models are".to_owned()),
            Some(program) => step.run(Command::new(&program.path).arg("loom_models")),
        },
    }
}

/// Packs the crates that users compile, and lints them as users compile them: from the packages,
/// and with few features.
fn features(lane: &Lane<'_>) {
    let mut folder = None;
    lane.step(Part::Features, "features: package", |step| match packages(step.output()) {
        Ok(unpacked) => {
            folder = Some(unpacked);
            Outcome::Ok
        }
        Err(why) => Outcome::Failed(why),
    });
    let Some(Unpacked { folder, target }) = folder else { return };
    for (package, features) in FEATURES {
        for feature in [None].into_iter().chain(features.iter().map(Some)) {
            let name = format!("features: {package} {}", feature.unwrap_or(&"none"));
            lane.step(Part::Features, &name, |step| {
                let mut lint = crate::cargo();
                // What they depend on is shared with the other checks.
                lint.current_dir(&folder).env("CARGO_TARGET_DIR", &target);
                lint.args(["clippy", "--package", package, "--no-default-features"]);
                lint.args(feature.into_iter().flat_map(|feature| ["--features", feature]));
                step.run(lint.args(["--", "-D", "warnings"]))
            });
        }
    }
}

/// A workspace of packages.
struct Unpacked {
    folder: PathBuf,
    /// The folder that cargo builds in.
    target: PathBuf,
}

/// Packs the crates that users compile as they would be published, and unpacks them into a new
/// workspace, in which they find each other.
fn packages(output: &Output) -> Result<Unpacked, String> {
    let Libraries { all, target } = Libraries::find(output)?;
    let packages: Vec<&str> =
        all.iter().map(|library| library.package.as_str()).chain([CONFORMANCE]).collect();
    let mut package = crate::cargo();
    // Cargo's own verification would compile all that they depend on once more. Uncommitted changes
    // are packed too.
    package.args(["package", "--no-verify", "--allow-dirty"]);
    package.args(packages.iter().flat_map(|package| ["--package", package]));
    runner::read(&mut package, output)?;
    let folder = target.join("packages");
    let said = |error: std::io::Error| format!("{}: {error}", folder.display());
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(said)?;
    }
    std::fs::create_dir_all(&folder).map_err(said)?;
    let manifest = std::fs::read_to_string(crate::root().join("Cargo.toml")).map_err(said)?;
    // With other profiles, all that they depend on would be compiled once more.
    let profiles = manifest.find("[profile.").map_or("", |at| manifest[at..].trim_end());
    let mut manifest =
        format!("[workspace]\nresolver = \"3\"\nmembers = [\"*-*\"]\n\n{profiles}\n\n[patch.crates-io]\n");
    for package in packages {
        let name = format!("{package}-{}", env!("CARGO_PKG_VERSION"));
        let packed = target.join("package").join(format!("{name}.crate"));
        let mut tar = Command::new("tar");
        // In packages, all files have one old time. Cargo would not notice that they change.
        tar.arg("-xmzf").arg(packed).arg("-C").arg(&folder);
        runner::read(&mut tar, output)?;
        manifest.push_str(&format!("{package} = {{ path = \"{name}\" }}\n"));
    }
    std::fs::write(folder.join("Cargo.toml"), manifest).map_err(said)?;
    std::fs::copy(crate::root().join("Cargo.lock"), folder.join("Cargo.lock")).map_err(said)?;
    Ok(Unpacked { folder, target })
}
