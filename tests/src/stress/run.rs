//! The parent: starts, stops and kills workers, and checks the leftovers.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::judge::Verdict;
use super::schedule::{Deed, Fault, schedule};
use super::turns::Watcher;
use super::{Kinds, Lock, Orders};
use crate::dice::Dice;
use crate::history::{ErrorClass, Event, History, Log, Loses, Remains, WITNESS};
use crate::witness::{self, Ping, watch_ways};
use crate::{Helper, Layout, RedisServer};

/// Maximum time for a program to start or to end. Generous: the machine is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a fair queue outlives its last waiter, if all of them die.
const QUEUE_LIFE: Duration = Duration::from_secs(10);

/// Returns the keys that are only used for fair locks, with their names in the store.
fn fair_keys() -> Vec<String> {
    (0..2).map(|n| format!("lock:stress:fair{n}")).collect()
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program `stress`.
    pub program: PathBuf,
    /// The seed of kills, stops and the workers' choices.
    pub seed: u64,
    /// How long faults happen.
    pub time: Duration,
    /// How long the workers go on after that.
    pub calm: Duration,
    /// Number of worker processes.
    pub processes: usize,
    /// Number of tasks in each process.
    pub tasks: usize,
    /// Number of keys that tasks compete for.
    pub keys: usize,
    /// Lease of renewed locks; stops last longer.
    pub lease: Duration,
    /// How long patient requests wait.
    pub patience: Duration,
    /// The lock that workers use.
    pub lock: Lock,
    /// The kinds of locks.
    pub kinds: Kinds,
    /// How the server keeps them.
    pub layout: Layout,
}

impl Plan {
    /// Returns a plan of four processes with sixteen tasks on eight keys, for `time` and a few
    /// quiet seconds.
    #[must_use]
    pub fn new(program: PathBuf, seed: u64, time: Duration) -> Self {
        Self {
            program,
            seed,
            time,
            calm: Duration::from_secs(3),
            processes: 4,
            tasks: 16,
            keys: 8,
            lease: Duration::from_secs(1),
            patience: Duration::from_secs(60),
            lock: Lock::Real,
            kinds: Kinds::Mutex,
            layout: Layout::Hash,
        }
    }

    /// Returns the schedule of the run.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        schedule(self.seed, self.processes, self.time, self.lease)
    }

    /// Returns the allowance for a busy machine on top of every bound.
    pub(super) fn slack(&self) -> Duration {
        Duration::from_secs(15).min(self.patience)
    }
}

struct Worker {
    helper: Helper,
    name: String,
    log: Log,
}

impl Worker {
    fn start(plan: &Plan, url: &str, logs: &Path, place: usize, life: u64) -> io::Result<Self> {
        let name = format!("{place}.{life}");
        let log = logs.join(format!("{name}.log"));
        let orders = Orders {
            url: url.to_owned(),
            log: log.clone(),
            name: name.clone(),
            seed: Dice::new(plan.seed).fork(place as u64 + 1).fork(life).roll(),
            tasks: plan.tasks,
            keys: plan.keys,
            lease: plan.lease,
            patience: plan.patience,
            lock: plan.lock,
            kinds: plan.kinds,
        };
        let helper = Helper::spawn_command(std::process::Command::new(&plan.program).args(orders.to_args()));
        Ok(Self { helper, name, log: Log::open(&log)? })
    }

    /// Notes a stop or kill of the process. A stop's signals are sent between its two notes, so the
    /// noted stop is never shorter than the real one.
    fn note(&self, event: &Event) {
        self.log.say(event);
    }
}

/// Notes the beginning of a fault of the server that callers notice.
fn begins(name: &str, run: &Log) {
    let errors = vec![ErrorClass::Unavailable];
    run.say(&Event::Fault { name: name.to_owned(), loses: Loses::Nothing, errors });
}

fn is_over(name: &str, run: &Log) {
    run.say(&Event::FaultOver { name: name.to_owned() });
}

/// Runs the plan with logs in the folder `logs`, which must be empty. Ends everything as soon as
/// `interrupted` returns true; it is called often.
///
/// # Errors
///
/// When the run was interrupted, or the logs can't be written.
///
/// # Panics
///
/// When the server or a worker does not start, or a worker fails by itself.
pub fn run(plan: &Plan, logs: &Path, interrupted: &dyn Fn() -> bool) -> io::Result<Verdict> {
    let sleep_until = |until: Instant| loop {
        if interrupted() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
        }
        match until.checked_duration_since(Instant::now()) {
            None | Some(Duration::ZERO) => return Ok(()),
            Some(left) => std::thread::sleep(left.min(Duration::from_millis(50))),
        }
    };
    let mut server = RedisServer::start();
    let url = plan.layout.url(&server.url());
    let run = Log::open(&logs.join("run.log"))?;
    let mut workers = Vec::new();
    for place in 0..plan.processes {
        workers.push(Worker::start(plan, &url, logs, place, 0)?);
    }
    for worker in &mut workers {
        assert_eq!(worker.helper.line(PATIENCE), "ready");
    }
    let watcher = (plan.kinds == Kinds::All).then(|| Watcher::start(server.addr(), fair_keys(), run.clone()));
    let ping: Ping = Box::new(witness::ping(server.addr()));
    let witness = watch_ways([(ping, Log::open(&logs.join(format!("{WITNESS}.log")))?)]);
    let mut lives = vec![0; plan.processes];
    let start = Instant::now();
    for fault in plan.faults() {
        sleep_until(start + fault.at)?;
        match fault.deed {
            Deed::Stop(place) => {
                workers[place].note(&Event::Paused);
                workers[place].helper.stop();
            }
            Deed::Continue(place) => {
                workers[place].helper.cont();
                workers[place].note(&Event::Continued);
            }
            Deed::Kill(place) => {
                workers[place].helper.kill();
                workers[place].note(&Event::Killed);
                lives[place] += 1;
                workers[place] = Worker::start(plan, &url, logs, place, lives[place])?;
            }
            Deed::Cut => {
                begins("cut", &run);
                server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
                server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
                is_over("cut", &run);
            }
            Deed::Freeze => {
                begins("freeze", &run);
                server.stop();
            }
            Deed::Thaw => {
                server.cont();
                is_over("freeze", &run);
            }
        }
    }
    sleep_until(start + plan.time)?;
    run.say(&Event::Calm);
    sleep_until(start + plan.time + plan.calm)?;

    for worker in &mut workers {
        worker.helper.send("end");
    }
    let other = |name: String| run.say(&Event::Remains { what: Remains::Other, ttl: None, name });
    // Tasks may use their patience to end what they have begun; managers get their lease to become
    // quiet.
    let limit = plan.patience + plan.lease + PATIENCE;
    for worker in &mut workers {
        match quiet(&mut worker.helper, limit) {
            Some(rest) if rest == "0 0 0" => {}
            Some(rest) => other(format!("{} has keys, timers, tasks: {rest}", worker.name)),
            None => other(format!("{} did not become quiet within {limit:?}", worker.name)),
        }
    }
    run.say(&Event::Quiet);
    if let Some(watcher) = watcher {
        watcher.end();
    }
    drop(witness);
    // Locks of processes that were killed last, and queues without living waiters.
    let queues = if plan.kinds == Kinds::All { QUEUE_LIFE } else { Duration::ZERO };
    let clean_by = Instant::now() + plan.lease.max(queues) + plan.slack().min(Duration::from_secs(5));
    while !left_on(&server).is_empty() && Instant::now() < clean_by {
        sleep_until(Instant::now() + Duration::from_millis(50))?;
    }
    left_on(&server).iter().for_each(|left| run.say(left));
    for worker in workers {
        worker.helper.finish(PATIENCE);
    }
    connections(&server).into_iter().for_each(other);
    Ok(Verdict::of(&History::read(logs)?, plan))
}

/// Waits for a worker's leftovers after its tasks have ended. The line `ready` of a worker that was
/// started late comes first.
fn quiet(helper: &mut Helper, limit: Duration) -> Option<String> {
    let deadline = Instant::now() + limit;
    loop {
        let line = helper.try_line(deadline.saturating_duration_since(Instant::now()))?;
        if let Some(rest) = line.strip_prefix("quiet ") {
            return Some(rest.to_owned());
        }
        assert_eq!(line, "ready");
    }
}

/// Returns leftovers on the server: all that should not exist when nobody holds or wants a lock.
/// The counters of the plain layout stay.
fn left_on(server: &RedisServer) -> Vec<Event> {
    let mut left = Vec::new();
    let stays = |key: &str| key.is_empty() || key.starts_with(Layout::Plain.counters());
    for key in server.cli(&["KEYS", "*"]).lines().filter(|key| !stays(key)) {
        let ttl = server.cli(&["PTTL", key]).trim().parse().ok().map(Duration::from_millis);
        if !key.starts_with(Layout::Hash.counters()) {
            // It has had enough time to end.
            left.push(Event::Remains { what: Remains::Other, ttl, name: format!("key {key}") });
        } else if ttl.is_none() {
            left.push(Event::Remains { what: Remains::Counter, ttl, name: key.to_owned() });
        }
    }
    for channel in server.cli(&["PUBSUB", "CHANNELS", "*"]).lines().filter(|channel| !channel.is_empty()) {
        let listeners = server.cli(&["PUBSUB", "NUMSUB", channel]);
        let name = format!("listeners to {}", listeners.replace('\n', ": "));
        left.push(Event::Remains { what: Remains::Other, ttl: None, name });
    }
    left
}

/// Returns the connections that outlive their processes.
fn connections(server: &RedisServer) -> Vec<String> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let list = server.cli(&["CLIENT", "LIST"]);
        let others: Vec<String> = list
            .lines()
            .filter(|line| !line.is_empty() && !line.contains("cmd=client"))
            .map(|line| format!("connection {line}"))
            .collect();
        if others.is_empty() || Instant::now() >= deadline {
            return others;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
