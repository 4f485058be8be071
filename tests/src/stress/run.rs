//! The parent: starts, stops and kills workers, and looks at what is left.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::judge::{Bounds, Verdict, judge};
use super::log::{Event, History, Writer};
use super::schedule::{Deed, Fault, schedule};
use super::turns::Watcher;
use super::{Kinds, Lock, Orders};
use crate::clock::now_nanos;
use crate::dice::Dice;
use crate::{Helper, RedisServer};

/// How long programs may take to start and to end. Generous: the machine is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// For how long a fair queue outlives the last of its waiters, if they all die.
const QUEUE_LIFE: Duration = Duration::from_secs(10);

/// The keys that are only wanted as fair locks, as the store names them.
fn fair_keys() -> Vec<String> {
    (0..2).map(|n| format!("lock:stress:fair{n}")).collect()
}

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program `stress`.
    pub program: PathBuf,
    /// Kills, stops and the workers' choices follow from it.
    pub seed: u64,
    /// How long faults happen.
    pub time: Duration,
    /// How long the workers go on after that.
    pub calm: Duration,
    /// Processes at work.
    pub processes: usize,
    /// Tasks of each.
    pub tasks: usize,
    /// Keys that they fight for.
    pub keys: usize,
    /// Of renewed locks; stops last longer.
    pub lease: Duration,
    /// How long patient requests wait.
    pub patience: Duration,
    /// Which lock.
    pub lock: Lock,
    /// Of which kinds.
    pub kinds: Kinds,
}

impl Plan {
    /// Four processes of sixteen tasks on eight keys, for `time` and a few quiet seconds.
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
        }
    }

    /// What is done to whom and when.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        schedule(self.seed, self.processes, self.time, self.lease)
    }

    /// What is granted to a busy machine on top of every bound.
    fn slack(&self) -> Duration {
        Duration::from_secs(15).min(self.patience)
    }
}

struct Worker {
    helper: Helper,
    name: String,
    log: Writer,
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
        Ok(Self { helper, name, log: Writer::open(&log)? })
    }

    /// Notes what is done to the process. The signals of a stop are given between its two notes: what counts as stopped
    /// is never less than it was.
    fn note(&self, event: &Event) {
        self.log.note(0, event, || Duration::ZERO);
    }
}

/// Runs the plan with logs in the folder `logs`, which must be empty. `interrupted` is asked often; when it says so,
/// everything is ended.
///
/// # Errors
///
/// When it was interrupted, or the logs can't be written.
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
    let url = server.url();
    let mut workers = Vec::new();
    for place in 0..plan.processes {
        workers.push(Worker::start(plan, &url, logs, place, 0)?);
    }
    for worker in &mut workers {
        assert_eq!(worker.helper.line(PATIENCE), "ready");
    }
    let watcher = (plan.kinds == Kinds::All).then(|| Watcher::start(server.addr(), fair_keys()));
    let mut lives = vec![0; plan.processes];
    let (mut cuts, mut freezes) = (0, 0);
    let start = Instant::now();
    for fault in plan.faults() {
        sleep_until(start + fault.at)?;
        match fault.deed {
            Deed::Stop(place) => {
                workers[place].note(&Event::Stopped);
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
                cuts += 1;
                server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
                server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
            }
            Deed::Freeze => {
                freezes += 1;
                server.stop();
            }
            Deed::Thaw => server.cont(),
        }
    }
    sleep_until(start + plan.time)?;
    let calm_from = now_nanos();
    sleep_until(start + plan.time + plan.calm)?;

    let mut left = Vec::new();
    for worker in &mut workers {
        worker.helper.send("end");
    }
    // Tasks get as long as their patience to end what they have begun, and the manager its lease to become quiet.
    let limit = plan.patience + plan.lease + PATIENCE;
    for worker in &mut workers {
        match quiet(&mut worker.helper, limit) {
            Some(rest) if rest == "0 0 0" => {}
            Some(rest) => left.push(format!("{} has keys, timers, tasks: {rest}", worker.name)),
            None => left.push(format!("{} did not become quiet within {limit:?}", worker.name)),
        }
    }
    let turns = watcher.map(Watcher::end).unwrap_or_default();
    // The locks of those that were killed last, and queues in which nobody is left.
    let queues = if plan.kinds == Kinds::All { QUEUE_LIFE } else { Duration::ZERO };
    let clean_by = Instant::now() + plan.lease.max(queues) + plan.slack().min(Duration::from_secs(5));
    while !left_on(&server).is_empty() && Instant::now() < clean_by {
        sleep_until(Instant::now() + Duration::from_millis(50))?;
    }
    left.extend(left_on(&server));
    for worker in workers {
        worker.helper.finish(PATIENCE);
    }
    left.extend(connections(&server));

    let mut verdict = judge(&History::read(logs)?, Bounds { slack: plan.slack(), calm_from });
    verdict.left = left;
    (verdict.counts.cuts, verdict.counts.freezes) = (cuts, freezes);
    (verdict.counts.turns, verdict.order) = turns;
    Ok(verdict)
}

/// Awaits what a worker has left after its tasks have ended. `ready` of one that was started late comes first.
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

/// What is on the server that should not be there when nobody holds or wants a lock.
fn left_on(server: &RedisServer) -> Vec<String> {
    let mut left = Vec::new();
    for key in server.cli(&["KEYS", "*"]).lines().filter(|key| !key.is_empty()) {
        if !key.starts_with("redisson_lock_token:") {
            left.push(format!("key {key}"));
        } else if server.cli(&["PTTL", key]).starts_with('-') {
            left.push(format!("counter {key}, which never expires"));
        }
    }
    for channel in server.cli(&["PUBSUB", "CHANNELS", "*"]).lines().filter(|channel| !channel.is_empty()) {
        let listeners = server.cli(&["PUBSUB", "NUMSUB", channel]);
        left.push(format!("listeners to {}", listeners.replace('\n', ": ")));
    }
    left
}

/// Connections that outlive their processes.
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
