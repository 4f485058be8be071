//! Chaos: the parent, which `cargo xtask chaos` starts, and its workers (`chaos worker …`, see
//! [`lock_tests::chaos`]).
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_tests::Layout;
use lock_tests::chaos::{
    Broken, Confirmed, Fault, Orders, Outcome, Plan, Topology, judge, markdown, run, work,
};
use lock_tests::dice::Dice;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args.split_first() {
        Some((first, rest)) if first == "worker" => worker(rest).map(|()| true),
        _ => Options::parse(&args).and_then(|options| parent(&options)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // A worker's parent reads its output.
            println!("!{error}");
            ExitCode::FAILURE
        }
    }
}

fn worker(args: &[String]) -> Result<(), String> {
    let orders = Orders::from_args(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(said)?.block_on(work(orders))?;
    // Returning from `main` would wait for threads that read.
    std::process::exit(0)
}

struct Options {
    topologies: Vec<Topology>,
    layout: Layout,
    time: Option<Duration>,
    seed: u64,
    only: Vec<Fault>,
    broken: Broken,
    replication: Confirmed,
    lease: Option<Duration>,
    skew: Duration,
    report: Option<PathBuf>,
    /// Whether to keep the logs of a run without violations.
    keep: bool,
    /// A folder with the logs of an earlier run.
    logs: Option<PathBuf>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self {
            topologies: Vec::new(),
            layout: Layout::Hash,
            time: Some(Duration::from_secs(60)),
            seed: Dice::draw_seed(),
            only: Vec::new(),
            broken: Broken::Nothing,
            replication: Confirmed::ByNobodyElse,
            lease: None,
            skew: Duration::ZERO,
            report: None,
            keep: false,
            logs: None,
        };
        // Accepts `--name value` and `--name=value`.
        let mut args = args.iter().flat_map(|arg| match arg.split_once('=') {
            Some((name, value)) if name.starts_with("--") => vec![name, value],
            _ => vec![arg.as_str()],
        });
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg {
                "--minutes" => {
                    let text = value()?;
                    let minutes: f64 = text.parse().map_err(|_| format!("{arg} {text:?} is not a number"))?;
                    let time =
                        Duration::try_from_secs_f64(minutes * 60.0).ok().filter(|time| !time.is_zero());
                    options.time =
                        Some(time.ok_or_else(|| format!("{arg} {text:?} is not a valid run time"))?);
                }
                "--once" => options.time = None,
                "--seed" => {
                    let text = value()?;
                    options.seed = text.parse().map_err(|_| format!("{arg} {text:?} is not a number"))?;
                }
                "--topology" => {
                    for name in value()?.split(',') {
                        options.topologies.push(name.parse()?);
                    }
                }
                "--layout" => options.layout = value()?.parse()?,
                "--only" => {
                    for name in value()?.split(',') {
                        options.only.push(name.parse()?);
                    }
                }
                "--break" => options.broken = value()?.parse()?,
                "--replication" => options.replication = value()?.parse()?,
                "--lease" => options.lease = Some(seconds(arg, value()?)?),
                "--skew" => options.skew = seconds(arg, value()?)?,
                "--judge" => options.logs = Some(value()?.into()),
                "--keep" => options.keep = true,
                "--report" => options.report = Some(value()?.into()),
                _ => {
                    return Err(format!(
                        "unknown argument {arg:?}; chaos takes --minutes, --once, --seed, --topology, --layout, \
                         --only, --break, --replication, --lease, --skew, --report, --keep, --judge"
                    ));
                }
            }
        }
        if options.topologies.is_empty() {
            options.topologies.push(Topology::Single);
        }
        if let Some(other) = options.topologies.iter().find(|topology| topology.is_database())
            && options.layout == Layout::Plain
        {
            return Err(format!("only Redis has the plain layout, and {} is not Redis", other.name()));
        }
        Ok(options)
    }
}

fn seconds(name: &str, text: &str) -> Result<Duration, String> {
    let seconds: u32 = text.parse().map_err(|_| format!("{name} {text:?} is not a number of seconds"))?;
    Ok(Duration::from_secs(u64::from(seconds.max(1))))
}

fn parent(options: &Options) -> Result<bool, String> {
    let program = std::env::current_exe().map_err(said)?;
    let interrupted = listen()?;
    let mut rows = Vec::new();
    let mut clean = true;
    for &topology in &options.topologies {
        let plan = Plan {
            layout: options.layout,
            time: options.time,
            only: options.only.clone(),
            broken: options.broken,
            replication: options.replication,
            skew: options.skew,
            ..Plan::new(program.clone(), topology, options.seed)
        };
        let plan = match options.lease {
            // Bodies last for seconds: with more tasks, requests would wait longer than their
            // patience.
            Some(lease) => Plan { lease, tasks: 3, settle: lease / 2, ..plan },
            None => plan,
        };
        if let Some(logs) = &options.logs {
            let outcome = judge(&plan, logs, &[]).map_err(said)?;
            println!("{outcome}");
            return Ok(outcome.is_clean());
        }
        println!("{}, {} layout, seed {}", topology.name(), plan.layout.name(), plan.seed);
        // Kept, also when a panic ends the run, unless the run was clean.
        let logs = tempfile::Builder::new().prefix("lock-chaos-").tempdir().map_err(said)?.keep();
        let outcome = run(&plan, &logs, &|| interrupted.load(Ordering::Relaxed), &|line| println!("{line}"))
            .map_err(said);
        if outcome.as_ref().is_ok_and(Outcome::is_clean) && !options.keep {
            let _ = std::fs::remove_dir_all(&logs);
        } else {
            println!("the logs are in {}; the seed was {}", logs.display(), plan.seed);
        }
        let outcome = outcome?;
        println!("{outcome}");
        clean &= outcome.is_clean();
        rows.extend(outcome.rows);
    }
    if let Some(path) = &options.report {
        std::fs::write(path, markdown(&rows)).map_err(said)?;
    }
    Ok(clean)
}

/// Returns a flag that becomes true when the program is told to end.
fn listen() -> Result<Arc<AtomicBool>, String> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(said)?;
    let mut signals = Vec::new();
    {
        let _entered = runtime.enter();
        for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
            signals.push(signal(kind).map_err(said)?);
        }
    }
    let heard = Arc::clone(&interrupted);
    std::thread::spawn(move || {
        runtime.block_on(async {
            let [first, second, third] = &mut signals[..] else { return };
            tokio::select! {
                _ = first.recv() => {}
                _ = second.recv() => {}
                _ = third.recv() => {}
            }
        });
        heard.store(true, Ordering::Relaxed);
    });
    Ok(interrupted)
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn said(error: io::Error) -> String {
    error.to_string()
}
