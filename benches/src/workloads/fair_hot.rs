//! `fair-hot`: how long a hand-off of a fair lock between two processes takes, and whether
//! hand-offs among many processes follow the order of the queue.
//!
//! The first part is `pingpong` with the holder in a separate process: the stamps are readings of a
//! clock that both share. The second part is `multi`, in which each process also records when its
//! waiters were queued and released. The parent's first line to a child says which part it is for:
//!
//! | to a child | | from it |
//! |---|---|---|
//! | `holder` | → | |
//! | `go`, for each round | → | |
//! | | ← | `held` |
//! | | ← | `released` and the stamp; or, for either, `failed` and why |
//! | the file of the overlap check | → | from here on as in `multi` |

use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::multi::process::Process;
use super::multi::{self, child};
use super::pingpong::{self, HOLD, Partner, Step};
use crate::args::Options;
use crate::backend::Backend;
use crate::journal::{Journal, Place, violations};
use crate::meter::Meter;
use crate::report::Report;
use crate::server::Urls;
use crate::stamp::Stamp;

const HOLDER: &str = "holder";
const GO: &str = "go";
/// Field of a child's line with its places in the queue.
const PLACES: &str = "places";

pub(super) async fn run(options: &Options, urls: &Urls) -> Result<Report, String> {
    if options.id.is_some() {
        return in_child(options, urls).await;
    }
    let mut meter = Meter::connect(options, urls).await?;
    let partner = of_process(Process::start(options, multi::shared(urls)?, options.procs)?)?;
    let handoffs = pingpong::measure(options, urls, &mut meter, partner).await?;
    let (mut report, lines) = multi::measure(options, urls, &mut meter).await?;
    let mut places = Vec::new();
    for line in &lines {
        let of_child = line[PLACES].as_array().ok_or("a process does not report its places in the queue")?;
        for place in of_child {
            places.push(Place::from_json(place).ok_or_else(|| format!("{place} is not a place in a queue"))?);
        }
    }
    report.errors += handoffs.errors.0;
    report.extra.extend([
        ("ping_p50_us", json!(handoffs.pings.percentile(50.0))),
        ("handoff_p50_us", json!(handoffs.handoffs.percentile(50.0))),
        ("handoff_p99_us", json!(handoffs.handoffs.percentile(99.0))),
        ("handoff_max_us", json!(handoffs.handoffs.max())),
        ("handoffs", json!(handoffs.handoffs.count())),
        ("stalls", json!(handoffs.stalls)),
        ("queued", json!(places.iter().filter(|place| place.queued.is_some()).count())),
        ("order_violations", json!(violations(places))),
    ]);
    Ok(report)
}

async fn in_child(options: &Options, urls: &Urls) -> Result<Report, String> {
    let mut parent = child::listen()?;
    let role = parent.recv().await.ok_or("the parent says nothing")?;
    if role == HOLDER {
        return hold(options, urls, parent).await;
    }
    let journal = Journal::default();
    let backend = Backend::connect(options, urls).await?.watched_by(&journal, options).await?;
    let mut report = child::work(options, &backend, &mut parent, role).await?;
    let places = journal.places().into_iter().map(Place::to_json).collect();
    report.extra.push((PLACES, Value::Array(places)));
    Ok(report)
}

/// Runs the holder process: one of its threads holds, as in `pingpong`. The parent ends it.
async fn hold(
    options: &Options,
    urls: &Urls,
    mut parent: UnboundedReceiver<String>,
) -> Result<Report, String> {
    let mut partner = Partner::start(options, urls)?;
    while let Some(line) = parent.recv().await {
        if line != GO {
            return Err(format!("the parent says {line:?} instead of {GO:?}"));
        }
        partner.ask()?;
        for _ in 0..2 {
            let step = partner.next().await?;
            println!("{}", to_line(&step));
            if matches!(step, Step::Failed(_)) {
                break;
            }
        }
    }
    Err(format!("the parent is gone, so no more holds of {HOLD:?} are needed"))
}

/// Connects the waiter to a holder in another process.
fn of_process(mut process: Process) -> Result<Partner, String> {
    let (start, mut orders) = unbounded_channel();
    let (report, steps) = unbounded_channel();
    process.say(HOLDER)?;
    tokio::spawn(async move {
        while orders.recv().await.is_some() {
            let mut said = process.say(GO);
            for _ in 0..2 {
                let step = match said {
                    Ok(()) => match process.hear(multi::START).await {
                        Ok(line) => from_line(&line),
                        Err(error) => Step::Failed(error),
                    },
                    Err(error) => Step::Failed(error),
                };
                said = Ok(());
                let failed = matches!(step, Step::Failed(_));
                // Nobody listens at the end.
                let _ = report.send(step);
                if failed {
                    break;
                }
            }
        }
    });
    Ok(Partner { start, steps })
}

fn to_line(step: &Step) -> String {
    match step {
        Step::Held => "held".to_owned(),
        Step::Released(stamp) => format!("released {}", stamp.0),
        Step::Failed(error) => format!("failed {}", error.replace('\n', " ")),
    }
}

fn from_line(line: &str) -> Step {
    match line.split_once(' ') {
        None if line == "held" => Step::Held,
        Some(("released", stamp)) => match stamp.parse() {
            Ok(stamp) => Step::Released(Stamp(stamp)),
            Err(_) => Step::Failed(format!("the holder says {line:?}")),
        },
        Some(("failed", error)) => Step::Failed(error.to_owned()),
        _ => Step::Failed(format!("the holder says {line:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_holder_says_is_understood() {
        for step in [Step::Held, Step::Released(Stamp(12)), Step::Failed("a b".to_owned())] {
            assert_eq!(format!("{step:?}"), format!("{:?}", from_line(&to_line(&step))));
        }
        for line in ["", "released", "released x", "hold"] {
            assert!(matches!(from_line(line), Step::Failed(_)), "{line:?}");
        }
    }
}
