//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use lock_runtime::segmented::Layout;

pub(crate) const HELP: &str = "\
cargo run --example flash-sale [-- [serve|load|audit] OPTIONS]

Without a command: a service, buyers that send it requests, and an audit.
  --port N         where it listens, on 127.0.0.1; any free port
  --sale NAME      join the sale of this name, or open it; a new sale
  --units N        units for sale, if this instance opens the sale; 1000
  --segments N     segments of the stock; 10
  --layout L       one-slot: in one place of the store; spread: each segment in a place of its own; one-slot
  --requests N     number of orders; 20000
  --over SECONDS   time in which the orders are sent, few at first; 0: as fast as possible; 6
  --hold-ms N      how long a reservation lasts; 1000
  --journal FILE   log requests and answers to this file, for `audit`
  --keep-serving   keep serving afterwards, until Ctrl-C

`serve` is the service alone, on port 3000, until Ctrl-C: --port, --sale, --units, --segments,
  --layout, --hold-ms.
`load` is the buyers alone: --target URL, --requests, --over, --journal.
`audit` compares a finished sale with the answers to its buyers: --sale NAME, --layout, and --journal FILE
  of each process. Run it within an hour of the first order: the stock would sell a forgotten order again.

LOCK_URL is the URL of the store of locks and stock, for several processes; without it, they are in memory.";

#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    Help,
    Run { serve: Serve, load: Load, then: Then },
    Serve(Serve),
    Load { target: String, load: Load },
    Audit { sale: String, layout: Layout, journals: Vec<PathBuf> },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Serve {
    pub(crate) port: u16,
    /// The name of the sale; without one, no other instance takes part.
    pub(crate) sale: Option<String>,
    pub(crate) units: u64,
    pub(crate) segments: u32,
    pub(crate) layout: Layout,
    pub(crate) hold: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Load {
    pub(crate) requests: u32,
    pub(crate) over: Duration,
    pub(crate) journal: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Then {
    Exit,
    KeepServing,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Word {
    Run,
    Serve,
    Load,
    Audit,
}

pub(crate) fn parse(args: &[String]) -> Result<Command, String> {
    use Word::{Audit, Load as Buyers, Run, Serve as Service};

    let mut args = args.iter().map(String::as_str).peekable();
    let mut word = Run;
    for (name, of) in [("serve", Service), ("load", Buyers), ("audit", Audit)] {
        if args.next_if_eq(&name).is_some() {
            word = of;
        }
    }
    let port = if word == Service { 3000 } else { 0 };
    let (hold, layout) = (Duration::from_secs(1), Layout::OneSlot);
    let mut serve = Serve { port, sale: None, units: 1000, segments: 10, layout, hold };
    let mut load = Load { requests: 20_000, over: Duration::from_secs(6), journal: None };
    let (mut target, mut journals, mut then) = (None, Vec::new(), Then::Exit);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match (arg, word) {
            ("-h" | "--help", _) => return Ok(Command::Help),
            ("--port", Run | Service) => serve.port = number(arg, value()?)?,
            ("--sale", Run | Service | Audit) => serve.sale = Some(value()?.to_owned()),
            ("--units", Run | Service) => serve.units = number(arg, value()?)?,
            ("--segments", Run | Service) => serve.segments = number(arg, value()?)?,
            ("--layout", Run | Service | Audit) => {
                serve.layout = match value()? {
                    "one-slot" => Layout::OneSlot,
                    "spread" => Layout::Spread,
                    other => return Err(format!("{arg} {other:?} is not a layout; use one-slot or spread")),
                };
            }
            ("--hold-ms", Run | Service) => serve.hold = Duration::from_millis(number(arg, value()?)?),
            ("--requests", Run | Buyers) => load.requests = number(arg, value()?)?,
            ("--over", Run | Buyers) => {
                load.over = Duration::try_from_secs_f64(number(arg, value()?)?)
                    .map_err(|_| format!("{arg} is a number of seconds"))?;
            }
            ("--journal", Run | Buyers) => load.journal = Some(value()?.into()),
            ("--journal", Audit) => journals.push(value()?.into()),
            ("--target", Buyers) => target = Some(value()?.trim_end_matches('/').to_owned()),
            ("--keep-serving", Run) => then = Then::KeepServing,
            _ => return Err(format!("{arg:?} is not understood here, see --help")),
        }
    }
    Ok(match word {
        Run => Command::Run { serve, load, then },
        Service => Command::Serve(serve),
        Buyers => Command::Load { target: target.ok_or("load needs a --target URL")?, load },
        Audit if journals.is_empty() => return Err("audit needs a --journal FILE, or several".to_owned()),
        Audit => {
            let sale = serve.sale.ok_or("audit needs a --sale NAME")?;
            Command::Audit { sale, layout: serve.layout, journals }
        }
    })
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
    fn without_arguments_a_thousand_units_are_sold_to_twenty_thousand_requests() {
        let Ok(Command::Run { serve, load, then }) = parsed("") else { panic!("it is a run") };
        assert_eq!((serve.port, serve.sale, serve.units, serve.segments), (0, None, 1000, 10));
        assert_eq!((load.requests, then), (20_000, Then::Exit));
    }

    #[test]
    fn each_word_has_its_options() {
        assert!(matches!(parsed("serve"), Ok(Command::Serve(Serve { port: 3000, .. }))));
        let Ok(Command::Load { target, load }) = parsed("load --target http://a/ --over 0.5 --journal j")
        else {
            panic!("it is a load run");
        };
        assert_eq!((target.as_str(), load.over), ("http://a", Duration::from_millis(500)));
        let Ok(Command::Audit { sale, layout, journals }) =
            parsed("audit --sale s --layout spread --journal a --journal b")
        else {
            panic!("it is an audit");
        };
        assert_eq!((sale.as_str(), layout), ("s", Layout::Spread));
        assert_eq!(journals, [PathBuf::from("a"), PathBuf::from("b")]);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (line, word) in [
            ("now", "now"),
            ("--port x", "--port"),
            ("--port", "value"),
            ("--over -1", "--over"),
            ("--layout round", "spread"),
            ("load", "--target"),
            ("load --target http://a --sale s", "--sale"),
            ("serve --requests 1", "--requests"),
            ("audit --sale s", "--journal"),
            ("audit --journal a", "--sale"),
        ] {
            assert!(parsed(line).unwrap_err().contains(word), "{line}");
        }
    }
}
