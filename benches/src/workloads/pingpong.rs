//! `pingpong`: how long a hand-off between two managers takes when the waiter is parked.
//!
//! The holder, A, runs on a separate thread and runtime, as if it were another process, so its
//! sleep does not disturb B. In each round A locks and tells B, which then waits for the lock. A
//! sleeps 3 ms, stamps and releases. B stamps when it is granted the lock, releases, and sends a
//! PING.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::common::{AFTER_ERROR, Errors, GAVE_UP, warm_up};
use crate::args::Options;
use crate::backend::{Backend, Limit, Lock};
use crate::meter::{Cost, Meter};
use crate::report::Report;
use crate::server::Urls;
use crate::stamp::Stamp;
use crate::stats::{Samples, Waits};

const KEY: &str = "pingpong";
pub(super) const HOLD: Duration = Duration::from_millis(3);
/// Delay after which a hand-off counts as a stall.
pub(super) const STALL: Duration = Duration::from_secs(1);
/// Delay after which a waiter is taken to be forgotten.
const DEAD: Duration = Duration::from_secs(90);

/// A's reports.
#[derive(Debug)]
pub(super) enum Step {
    Held,
    Released(Stamp),
    Failed(String),
}

/// The waiter's channels to the holder: B starts rounds, and hears of each step.
pub(super) struct Partner {
    pub(super) start: UnboundedSender<()>,
    pub(super) steps: UnboundedReceiver<Step>,
}

#[derive(Debug)]
pub(super) struct Tally {
    pub(super) handoffs: Samples,
    pub(super) pings: Samples,
    pub(super) stalls: u64,
    pub(super) grants: u64,
    pub(super) errors: Errors,
    pub(super) cost: Cost,
}

pub(super) async fn run(options: &Options, urls: &Urls) -> Result<Report, String> {
    let mut meter = Meter::connect(options, urls).await?;
    let tally = measure(options, urls, &mut meter, Partner::start(options, urls)?).await?;
    Ok(Report {
        tasks: 2,
        hold_us: u64::try_from(HOLD.as_micros()).unwrap_or(u64::MAX),
        grants: tally.grants,
        errors: tally.errors.0,
        waits: Waits::from(&tally.handoffs),
        cost: tally.cost,
        extra: vec![("ping_p50_us", json!(tally.pings.percentile(50.0))), ("stalls", json!(tally.stalls))],
    })
}

/// Runs from warm-up to end.
pub(super) async fn measure(
    options: &Options,
    urls: &Urls,
    meter: &mut Meter,
    mut partner: Partner,
) -> Result<Tally, String> {
    let mut lock = Backend::connect(options, urls).await?.lock_as(options.workload.kind(), KEY)?;
    let warm = rounds(&mut lock, &mut partner, meter, End::At(Instant::now() + warm_up(options))).await?;
    let start = meter.start().await?;
    let end = options.rounds.map_or_else(|| End::At(Instant::now() + options.secs), End::After);
    let mut tally = rounds(&mut lock, &mut partner, meter, end).await?;
    tally.cost = meter.end(&start).await?;
    // A forgotten waiter counts, also during the warm-up.
    tally.stalls += warm.stalls;
    Ok(tally)
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
enum End {
    At(Instant),
    After(u64),
}

impl End {
    fn is_over(self, rounds: u64) -> bool {
        match self {
            Self::At(time) => Instant::now() >= time,
            Self::After(most) => rounds >= most,
        }
    }
}

async fn rounds(
    lock: &mut Lock,
    partner: &mut Partner,
    meter: &mut Meter,
    end: End,
) -> Result<Tally, String> {
    let mut tally = Tally {
        handoffs: Samples::new(),
        pings: Samples::new(),
        stalls: 0,
        grants: 0,
        errors: Errors::default(),
        cost: Cost::default(),
    };
    let mut rounds = 0;
    while !end.is_over(rounds) {
        rounds += 1;
        if let Err(error) = round(lock, partner, &mut tally).await? {
            tally.errors.add(&error);
            tokio::time::sleep(AFTER_ERROR).await;
        }
        if let Some(trip) = meter.ping().await? {
            tally.pings.record(trip);
        }
    }
    Ok(tally)
}

/// Plays one round. The inner error spoils the round, the outer one the run.
async fn round(
    lock: &mut Lock,
    partner: &mut Partner,
    tally: &mut Tally,
) -> Result<Result<(), String>, String> {
    partner.ask()?;
    match partner.next().await? {
        Step::Held => tally.grants += 1,
        Step::Failed(error) => return Ok(Err(error)),
        Step::Released(_) => return Err("the holder released a lock that it did not hold".to_owned()),
    }
    let outcome = tokio::time::timeout(DEAD, lock.acquire(Limit::Forever)).await.unwrap_or_else(|_| {
        tally.stalls += 1;
        Err(format!("the waiter was not woken within {DEAD:?}"))
    });
    let granted = Stamp::now();
    // A's report is read in any case: the next round begins with the next report.
    let released = partner.next().await?;
    let held = match outcome {
        Ok(Some(held)) => held,
        Ok(None) => return Ok(Err(GAVE_UP.to_owned())),
        Err(error) => return Ok(Err(error)),
    };
    tally.grants += 1;
    let freed = lock.release(held).await;
    match released {
        Step::Released(stamp) => {
            let handoff = granted.since(stamp);
            tally.handoffs.record(handoff);
            tally.stalls += u64::from(handoff > STALL);
            Ok(freed)
        }
        Step::Failed(error) => Ok(Err(error)),
        Step::Held => Err("the holder locked twice".to_owned()),
    }
}

impl Partner {
    /// Starts a holder in a thread of this process.
    pub(super) fn start(options: &Options, urls: &Urls) -> Result<Self, String> {
        let (start, orders) = unbounded_channel();
        let (report, steps) = unbounded_channel();
        let (options, urls) = (options.clone(), urls.clone());
        std::thread::Builder::new()
            .name("holder".to_owned())
            .spawn(move || {
                if let Err(error) = hold(&options, &urls, orders, &report) {
                    eprintln!("the holder failed: {error}");
                }
            })
            .map_err(|error| format!("no thread for the holder: {error}"))?;
        Ok(Self { start, steps })
    }

    pub(super) fn ask(&self) -> Result<(), String> {
        self.start.send(()).map_err(|_| "the holder has ended".to_owned())
    }

    pub(super) async fn next(&mut self) -> Result<Step, String> {
        self.steps.recv().await.ok_or_else(|| "the holder has ended".to_owned())
    }
}

/// Runs the holder, A.
fn hold(
    options: &Options,
    urls: &Urls,
    mut orders: UnboundedReceiver<()>,
    report: &UnboundedSender<Step>,
) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no tokio runtime: {error}"))?;
    runtime.block_on(async {
        let backend = Backend::connect(options, urls).await?;
        let mut lock = backend.lock_as(options.workload.kind(), KEY)?;
        while orders.recv().await.is_some() {
            let held = match lock.acquire(Limit::Default).await {
                Ok(Some(held)) => held,
                outcome => {
                    let error = outcome.err().unwrap_or_else(|| GAVE_UP.to_owned());
                    // Nobody listens at the end.
                    let _ = report.send(Step::Failed(error));
                    continue;
                }
            };
            let _ = report.send(Step::Held);
            std::thread::sleep(HOLD);
            let stamp = Stamp::now();
            let step = match lock.release(held).await {
                Ok(()) => Step::Released(stamp),
                Err(error) => Step::Failed(error),
            };
            let _ = report.send(step);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Task, parse};

    /// Plays two rounds with a holder that releases at once and a waiter that gets the lock after
    /// `wait`.
    async fn two_rounds(wait: Duration) -> Tally {
        let (start, mut orders) = unbounded_channel();
        let (report, steps) = unbounded_channel();
        tokio::spawn(async move {
            while orders.recv().await.is_some() {
                let _ = report.send(Step::Held);
                let _ = report.send(Step::Released(Stamp::now()));
            }
        });
        let Ok(Task::Run(options)) = parse(&["--workload", "pingpong"].map(str::to_owned)) else {
            panic!("the flags are good")
        };
        let mut lock = Backend::Broken(wait).lock(KEY).unwrap();
        let mut partner = Partner { start, steps };
        rounds(&mut lock, &mut partner, &mut Meter::clocks(&options), End::After(2)).await.unwrap()
    }

    #[tokio::test]
    async fn a_waiter_that_is_woken_does_not_stall() {
        let tally = two_rounds(Duration::ZERO).await;
        assert_eq!((tally.stalls, tally.errors.0, tally.grants), (0, 0, 4));
    }

    #[tokio::test]
    async fn a_waiter_that_is_woken_late_stalls() {
        let tally = two_rounds(STALL + Duration::from_millis(10)).await;
        assert_eq!((tally.stalls, tally.errors.0, tally.grants), (2, 0, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_is_never_woken_stalls_and_the_run_goes_on() {
        let tally = two_rounds(2 * DEAD).await;
        assert_eq!((tally.stalls, tally.errors.0, tally.grants), (2, 2, 2));
    }
}
