//! What the user asked for.

use crate::bench::{self, bars};
use crate::test::Part;

const HELP: &str = "\
The commands of this workspace.

Usage: cargo xtask <command>

Commands:
  test      everything that CI checks: formatting, lints, docs, tests, examples
  bench     the benchmarks, and whether the bars hold that are set for them
  servers   a redis-server to try things on, until Ctrl-C

`cargo xtask <command> --help` says more.";

const HELP_TEST: &str = "\
Checks everything that CI checks.

Usage: cargo xtask test [--install] [--only <part>]...

  --install      install what is missing with the system's package manager (as root, or with sudo);
                 without it the commands are printed and what needs them is skipped
  --only <part>  only this part; may be given several times, or as a list: --only fmt,clippy

Parts, in this order:
  fmt       cargo fmt --check
  clippy    cargo clippy on everything, all features, warnings are errors
  features  lock-runtime without features and with each one alone, warnings are errors
  docs      cargo doc, warnings are errors
  test      unit, documentation, UI and integration tests (needs redis-server)
  tls       rediss:// without TLS, with tls-rustls, with tls-native (needs a redis-server that was built with TLS)
  examples  quickstart and fencing, in memory and on a Redis server, two processes at once (needs redis-server)

With CI=true in the environment, --install is implied and a part that is left out is a failure.
LOCK_URL is not read: tests start their own servers.

Exit status: 0 if nothing failed, 1 if something did, 2 for a command line that is not understood.";

const HELP_BENCH: &str = "\
Builds lock-bench in release, runs its workloads beside what they are compared with, and says which bars hold.

Usage: cargo xtask bench [--rounds <n>] [--only <workload>]... [--long] [--strict]

  --rounds <n>       each bar is judged by the median of n rounds (5); in a round every run has its turn
  --only <workload>  only the bars of this workload; may be given several times, or as a list: --only hot,multi
  --long             pingpong has 20000 rounds more, once
  --strict           a bar that does not hold is a failure

Workloads: those of `lock-bench --help`; delay has the runs with a round trip of 25 ms more.
All of it takes about two minutes a round. The machine should have nothing else to do.

Exit status: 0 if everything ran, 1 if something did not, 2 for a command line that is not understood.";

const HELP_SERVERS: &str = "\
Starts a redis-server on a free port of the loopback interface and prints the line that makes examples use it:

  export LOCK_URL=redis://127.0.0.1:<port>

Usage: cargo xtask servers

Its data is in a temporary folder. Ctrl-C or SIGTERM ends the server and removes the folder.";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help(&'static str),
    Test(Options),
    Bench(bench::Options),
    Servers,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) install: bool,
    /// In the order of [`Part::ALL`].
    pub(crate) parts: Vec<Part>,
}

pub(crate) fn parse(args: &[String]) -> Result<Task, String> {
    let mut args = args.iter().map(String::as_str);
    match args.next() {
        None => Err(format!("which command?\n\n{HELP}")),
        Some("-h" | "--help" | "help") => Ok(Task::Help(HELP)),
        Some("test") => parse_test(args),
        Some("bench") => parse_bench(args),
        Some("servers") => match args.next() {
            None => Ok(Task::Servers),
            Some("-h" | "--help") => Ok(Task::Help(HELP_SERVERS)),
            Some(other) => Err(format!("`cargo xtask servers` takes no argument {other:?}")),
        },
        Some(other) => Err(format!("unknown command {other:?}; there are: test, bench, servers")),
    }
}

fn parse_test<'a>(mut args: impl Iterator<Item = &'a str>) -> Result<Task, String> {
    let mut install = false;
    let mut only = Vec::new();
    while let Some(arg) = args.next() {
        match arg {
            "-h" | "--help" => return Ok(Task::Help(HELP_TEST)),
            "--install" => install = true,
            "--only" => {
                let list = args.next().ok_or_else(|| format!("--only needs a part: {}", Part::names()))?;
                only.extend(parts(list)?);
            }
            _ => match arg.strip_prefix("--only=") {
                Some(list) => only.extend(parts(list)?),
                None => {
                    return Err(format!(
                        "`cargo xtask test` knows no {arg:?}; it takes --install, --only <part>, --help"
                    ));
                }
            },
        }
    }
    let chosen = |part: &Part| only.is_empty() || only.contains(part);
    Ok(Task::Test(Options { install, parts: Part::ALL.into_iter().filter(chosen).collect() }))
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
                    "`cargo xtask bench` knows no {arg:?}; it takes --rounds <n>, --only <workload>, --long, \
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
        let all = Options { install: false, parts: Part::ALL.to_vec() };
        assert_eq!(parsed("test"), Ok(Task::Test(all)));
    }

    #[test]
    fn parts_run_in_their_own_order() {
        let some = Options { install: true, parts: vec![Part::Fmt, Part::Clippy, Part::Docs] };
        assert_eq!(parsed("test --only docs,fmt --install --only=clippy"), Ok(Task::Test(some)));
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
    fn help_is_given_everywhere() {
        for line in ["--help", "help", "test --help", "bench --help", "servers -h", "test --install --help"] {
            assert!(matches!(parsed(line), Ok(Task::Help(_))), "{line}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (line, word) in [
            ("nonsense", "nonsense"),
            ("test --nonsense", "--nonsense"),
            ("test --only nonsense", "nonsense"),
            ("test --only", "needs a part"),
            ("bench --nonsense", "--strict"),
            ("bench --only nonsense", "pingpong"),
            ("bench --only", "needs a workload"),
            ("bench --rounds 0", "--rounds"),
            ("servers now", "now"),
            ("", "which command"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
