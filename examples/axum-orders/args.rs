//! The command line.

use std::path::PathBuf;
use std::time::Duration;

pub(crate) const HELP: &str = "\
cargo run --example axum-orders [-- [load] OPTIONS]

Without `load`, a server:
  --port N         where it listens, on 127.0.0.1; 3000. 0 is any free port
  --database FILE  file for the orders, for several servers with one LOCK_URL; in memory
  --work-ms N      how long a handler works between its read and its write; 20
  --journal        record when requests enter and leave a handler, for `load`; GET /journal
  --until-eof      stop at the end of the standard input too

`load` starts two servers of its own and sends them requests from many clients:
  --target URL     a running server; repeat it for several, which need one --database
  --requests N     how many items are added to orders; 400
  --work-ms N      as above; 20

LOCK_URL is the URL of the lock store; without it, locks are in memory.";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Serve(Serve),
    Load(Load),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    pub(crate) port: u16,
    pub(crate) database: Option<PathBuf>,
    pub(crate) work: Duration,
    pub(crate) journal: Journaling,
    pub(crate) parent: Parent,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Servers to load; the run starts its own if there are none.
    pub(crate) targets: Vec<String>,
    pub(crate) requests: u32,
    pub(crate) work: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Journaling {
    On,
    Off,
}

/// Whether this process ends with its parent, which then holds the other end of standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    HoldsStdin,
    DoesNotMatter,
}

pub(crate) fn parse(args: &[String]) -> Result<Command, String> {
    let mut args = args.iter().map(String::as_str).peekable();
    let is_load = args.next_if_eq(&"load").is_some();
    let mut serve = Serve {
        port: 3000,
        database: None,
        work: Duration::from_millis(20),
        journal: Journaling::Off,
        parent: Parent::DoesNotMatter,
    };
    let mut load = Load { targets: Vec::new(), requests: 400, work: serve.work };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg {
            "-h" | "--help" => return Ok(Command::Help),
            "--work-ms" => {
                serve.work = Duration::from_millis(number(arg, value()?)?);
                load.work = serve.work;
            }
            "--target" if is_load => load.targets.push(value()?.trim_end_matches('/').to_owned()),
            "--requests" if is_load => load.requests = number(arg, value()?)?,
            "--port" if !is_load => serve.port = number(arg, value()?)?,
            "--database" if !is_load => serve.database = Some(value()?.into()),
            "--journal" if !is_load => serve.journal = Journaling::On,
            "--until-eof" if !is_load => serve.parent = Parent::HoldsStdin,
            _ => return Err(format!("{arg:?} is not understood, see --help")),
        }
    }
    Ok(if is_load { Command::Load(load) } else { Command::Serve(serve) })
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{name} {text:?} is not a number that can be used"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn without_arguments_a_server_listens_on_port_3000() {
        assert!(matches!(parsed(""), Ok(Command::Serve(Serve { port: 3000, database: None, .. }))));
        assert!(matches!(parsed("--port 0 --journal"), Ok(Command::Serve(Serve { port: 0, .. }))));
    }

    #[test]
    fn a_load_run_may_have_servers_given() {
        let Ok(Command::Load(load)) = parsed("load --target http://a/ --target http://b --requests 7") else {
            panic!("it is a load run");
        };
        assert_eq!((load.targets, load.requests), (vec!["http://a".to_owned(), "http://b".to_owned()], 7));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (line, word) in
            [("now", "now"), ("--port x", "--port"), ("--port", "value"), ("load --port 1", "--port")]
        {
            assert!(parsed(line).unwrap_err().contains(word), "{line}");
        }
    }
}
