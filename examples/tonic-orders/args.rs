//! The command line.

use std::path::PathBuf;
use std::time::Duration;

pub(crate) const HELP: &str = "\
cargo run --example tonic-orders [-- [client] OPTIONS]

Without `client`, a server:
  --port N         where it listens, on 127.0.0.1; 50051. 0 is any free port
  --database FILE  file for the orders, for several servers with one LOCK_URL; in memory
  --work-ms N      how long a call works between its read and its write, and for each line of a list; 20

`client` starts two servers of its own and calls them:
  --target URL     a running server; repeat it for several, which need one --database
  --work-ms N      as above; 20

LOCK_URL is the URL of the lock store; without it, locks are in memory.";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Serve(Serve),
    Client(Client),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    pub(crate) port: u16,
    pub(crate) database: Option<PathBuf>,
    pub(crate) work: Duration,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Client {
    /// Servers to call; the client starts its own if there are none.
    pub(crate) targets: Vec<String>,
    pub(crate) work: Duration,
}

pub(crate) fn parse(args: &[String]) -> Result<Command, String> {
    let mut args = args.iter().map(String::as_str).peekable();
    let is_client = args.next_if_eq(&"client").is_some();
    let mut serve = Serve { port: 50051, database: None, work: Duration::from_millis(20) };
    let mut targets = Vec::new();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg {
            "-h" | "--help" => return Ok(Command::Help),
            "--work-ms" => serve.work = Duration::from_millis(number(arg, value()?)?),
            "--target" if is_client => targets.push(value()?.to_owned()),
            "--port" if !is_client => serve.port = number(arg, value()?)?,
            "--database" if !is_client => serve.database = Some(value()?.into()),
            _ => return Err(format!("{arg:?} is not understood, see --help")),
        }
    }
    Ok(if is_client { Command::Client(Client { targets, work: serve.work }) } else { Command::Serve(serve) })
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{name} {text:?} is not a number that can be used"))
}
