//! The parent: starts servers and workers, injects faults, and checks the leftovers.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::arena::{Arena, Topology, tell};
use super::fault::Fault;
use super::observe;
use super::orders::Orders;
use super::plan::Plan;
use super::report::{Losses, Outcome};
use super::want::{WANTED, stored_keys};
use super::{CALL_TIMEOUT, LEASE};
use crate::dice::Dice;
use crate::fenced::FencedRegister;
use crate::history::{Check, ECHO, ErrorClass, Event, History, Log, Loses, Remains, Request, WITNESS, check};
use crate::witness::watch_ways;
use crate::{Helper, Layout};

/// Maximum time for a program to start or to end. Generous: the machine is busy.
const STARTS: Duration = Duration::from_secs(60);
/// How long a fair queue outlives its last waiter, if all of them die.
const QUEUE_LIFE: Duration = Duration::from_secs(10);

struct Worker {
    helper: Helper,
    name: String,
    log: Log,
}

/// The servers and workers that faults act on.
pub(super) struct Stage<'a> {
    plan: &'a Plan,
    logs: &'a Path,
    log: Log,
    pub(super) arena: Arena,
    pub(super) dice: Dice,
    workers: Vec<Worker>,
    lives: Vec<u64>,
    /// The server of a quorum that may have lost data, and until when.
    pub(super) weak: Option<(usize, Instant)>,
    /// When the last place in a queue and the last hold of killed workers have ended.
    pub(super) forgotten: Instant,
    interrupted: &'a dyn Fn() -> bool,
}

/// Runs the plan with logs in the folder `logs`, which must be empty. Ends everything as soon as
/// `interrupted` returns true; it is called often. Reports progress to `say`.
///
/// # Errors
///
/// When the run was interrupted, a server refuses a command, or the logs can't be written.
///
/// # Panics
///
/// When a server or a worker does not start, or a worker fails by itself.
pub fn run(
    plan: &Plan,
    logs: &Path,
    interrupted: &dyn Fn() -> bool,
    say: &dyn Fn(&str),
) -> io::Result<Outcome> {
    let arena = Arena::start(plan.topology, plan.layout, plan.skew)?;
    let log = Log::open(&logs.join("parent.log"))?;
    let mut stage = Stage {
        plan,
        logs,
        log: log.clone(),
        arena,
        dice: Dice::new(plan.seed).fork(2),
        workers: Vec::new(),
        lives: vec![0; plan.processes],
        weak: None,
        forgotten: Instant::now(),
        interrupted,
    };
    for place in 0..plan.processes {
        let worker = stage.start_worker(place)?;
        stage.workers.push(worker);
    }
    for worker in &mut stage.workers {
        assert_eq!(worker.helper.line(STARTS), "ready");
    }
    let observer = observe::start(Log::open(&logs.join("observer.log"))?, stage.arena.observer());
    let mut ways = Vec::new();
    for (at, ping) in stage.arena.pings()?.into_iter().enumerate() {
        ways.push((ping, Log::open(&logs.join(format!("{WITNESS}-{at}.log")))?));
    }
    let witness = watch_ways(ways);
    stage.rest(Duration::from_secs(2))?;
    let start = Instant::now();
    let mut missed = Vec::new();
    for fault in plan.faults() {
        if plan.time.is_some_and(|time| start.elapsed() >= time) {
            break;
        }
        let target = stage.aim();
        log.say(&Event::Fault {
            name: fault.name().to_owned(),
            loses: stage.loses(fault, &target),
            errors: plan.errors(fault),
        });
        if let Some(key) = target.only(fault) {
            log.say(&Event::Aimed { name: fault.name().to_owned(), key: key.to_owned() });
        }
        let happened = stage
            .inject(fault, target)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", fault.name())))?;
        // Grants from just before the end of the fault may still be on their way to their callers.
        stage.rest(ECHO)?;
        log.say(&Event::FaultOver { name: fault.name().to_owned() });
        say(&format!(
            "{:7.1} s  {}{}",
            start.elapsed().as_secs_f64(),
            fault.name(),
            if happened { "" } else { " (hit nothing)" }
        ));
        if !happened {
            missed.push(fault);
        }
        let settle = stage.dice.between(plan.settle / 2, plan.settle * 3 / 2);
        stage.rest(settle)?;
    }
    log.say(&Event::Calm);
    stage.rest(plan.calm)?;
    let left = stage.end_work()?;
    log.say(&Event::Quiet);
    for what in left {
        log.say(&Event::Remains { what: Remains::Other, ttl: None, name: what });
    }
    stage.note_what_is_left(&log)?;
    drop((observer, witness));
    for key in WANTED {
        let value = FencedRegister::open(stage.arena.resource.addr(), key).value();
        let elements = value.split(',').filter(|element| !element.is_empty()).map(str::to_owned).collect();
        log.say(&Event::Contents { set: key.to_owned(), elements });
    }
    for worker in stage.workers.drain(..) {
        worker.helper.finish(STARTS);
    }
    stage.arena.keep_logs(logs)?;
    judge(plan, logs, &missed)
}

/// Runs the checkers over the logs of a run of this plan. Faults in `missed` count as having hit
/// nothing.
///
/// # Errors
///
/// When the logs can't be read.
pub fn judge(plan: &Plan, logs: &Path, missed: &[Fault]) -> io::Result<Outcome> {
    let mut history = History::read(logs)?;
    let violations = check(&history, &plan.limits());
    let outcome = Outcome::new(plan.topology, &history, violations, missed);
    // Checks again as if no fault were an excuse, to count all losses.
    history.faults.iter_mut().for_each(|fault| fault.loses = Loses::Nothing);
    let found = check(&history, &plan.limits());
    let count = |check| found.iter().filter(|violation| violation.check == check).count();
    let losses = Losses {
        overlaps: count(Check::Exclusion),
        taken: count(Check::Ownership),
        tokens: count(Check::Tokens),
        not_replicated: refused(&history, ErrorClass::NotReplicated),
    };
    Ok(Outcome { losses, ..outcome })
}

fn refused(history: &History, error: ErrorClass) -> usize {
    let refused = |request: &&Request| request.refused.as_ref().is_some_and(|(class, _)| *class == error);
    history.requests.iter().filter(refused).count()
}

impl Stage<'_> {
    /// Waits for this long, unless the run is interrupted.
    pub(super) fn rest(&self, time: Duration) -> io::Result<()> {
        let until = Instant::now() + time;
        loop {
            if (self.interrupted)() {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
            }
            match until.checked_duration_since(Instant::now()) {
                None | Some(Duration::ZERO) => return Ok(()),
                Some(left) => std::thread::sleep(left.min(Duration::from_millis(50))),
            }
        }
    }

    /// Notes that the part of the fault that takes keys begins or ends. Call it just before and
    /// just after that part.
    pub(super) fn strikes(&self, fault: Fault) {
        self.log.say(&Event::Struck { name: fault.name().to_owned() });
    }

    fn start_worker(&self, place: usize) -> io::Result<Worker> {
        let life = self.lives[place];
        let name = format!("{place}.{life}");
        let log = self.logs.join(format!("{name}.log"));
        let orders = Orders {
            url: self.arena.url(place, self.plan.lease),
            layout: self.plan.layout,
            resource: self.arena.resource.addr(),
            log: log.clone(),
            name: name.clone(),
            seed: Dice::new(self.plan.seed).fork(place as u64 + 3).fork(life).roll(),
            tasks: self.plan.tasks,
            lease: self.plan.lease,
            patience: self.plan.patience(),
            broken: self.plan.broken,
            replication: self.plan.replication,
        };
        let mut command = std::process::Command::new(&self.plan.program);
        let helper = Helper::spawn_command(command.arg("worker").args(orders.to_args()));
        Ok(Worker { helper, name, log: Log::open(&log)? })
    }

    fn any_worker(&mut self) -> usize {
        usize::try_from(self.dice.below(self.workers.len() as u64)).unwrap_or(0)
    }

    /// Stops a worker for longer than leases.
    pub(super) fn stop_worker(&mut self) -> io::Result<()> {
        let at = self.any_worker();
        let time = match self.arena.topology.has_sessions() {
            // For longer than its session.
            true => self.dice.between(LEASE * 2, LEASE * 3),
            false => self.dice.between(LEASE * 6 / 5, LEASE * 2),
        };
        self.workers[at].log.say(&Event::Paused);
        self.workers[at].helper.stop();
        let rest = self.rest(time);
        self.workers[at].helper.cont();
        self.workers[at].log.say(&Event::Continued);
        rest
    }

    /// Stops a server and a worker for longer than sessions. Which one goes on first is left to
    /// chance.
    pub(super) fn stop_server_and_worker(&mut self, fault: Fault, server: usize) -> io::Result<()> {
        let at = self.any_worker();
        let (time, later) =
            (self.dice.between(LEASE * 2, LEASE * 4), Duration::from_millis(self.dice.below(300)));
        let is_worker_first = self.dice.once_in(2);
        self.workers[at].log.say(&Event::Paused);
        self.workers[at].helper.stop();
        self.arena.stop(server);
        let mut rest = self.rest(time);
        self.strikes(fault);
        for is_worker in [is_worker_first, !is_worker_first] {
            if is_worker {
                self.workers[at].helper.cont();
                self.workers[at].log.say(&Event::Continued);
            } else {
                self.arena.cont(server);
            }
            rest = rest.and(self.rest(later));
        }
        self.arena.heal();
        rest = rest.and(self.rest(Duration::from_secs(1)));
        self.strikes(fault);
        rest
    }

    pub(super) fn block_worker(&mut self, time: Duration) -> io::Result<()> {
        let at = self.any_worker();
        self.workers[at].helper.send(&format!("block {}", time.as_millis()));
        self.rest(time + Duration::from_millis(200))
    }

    /// Makes a worker kill itself at the next occasion of this kind, and replaces it.
    pub(super) fn doom_worker(&mut self, how: &str) -> io::Result<()> {
        let at = self.any_worker();
        self.workers[at].helper.send(how);
        self.workers[at].helper.process().wait(STARTS + self.plan.patience());
        // A dead waiter may be granted the lock at the end of its place.
        self.forgotten = Instant::now() + QUEUE_LIFE + self.plan.lease + Duration::from_secs(1);
        self.lives[at] += 1;
        self.workers[at] = self.start_worker(at)?;
        self.rest(Duration::from_millis(500))
    }

    /// Ends the work, and returns the leftovers of the processes.
    fn end_work(&mut self) -> io::Result<Vec<String>> {
        let mut left = Vec::new();
        for worker in &mut self.workers {
            worker.helper.send("end");
        }
        let limit = Instant::now() + self.plan.patience() + STARTS;
        for at in 0..self.workers.len() {
            let rest = loop {
                self.rest(Duration::ZERO)?;
                match self.workers[at].helper.try_line(Duration::from_millis(200)) {
                    Some(line) if line == "ready" => {}
                    Some(line) => break Some(line),
                    None if Instant::now() > limit => break None,
                    None => {}
                }
            };
            if rest.as_deref() != Some("quiet 0 0 0") {
                left.push(format!("{} has keys, timers, tasks: {rest:?}", self.workers[at].name));
            }
        }
        Ok(left)
    }

    /// Waits until only counters are left, and notes the remaining keys.
    fn note_what_is_left(&mut self, log: &Log) -> io::Result<()> {
        let by = Instant::now() + QUEUE_LIFE.max(self.plan.lease) + CALL_TIMEOUT + self.plan.slack / 2;
        loop {
            // A process that has closed a connection no longer listens, although a black hole may
            // keep that from the server. Listeners that remain belong to living processes.
            self.arena.bury_dead();
            let left = self.left()?;
            let lasting = |(what, ..): &(Remains, Option<Duration>, String)| *what != Remains::Counter;
            if Instant::now() >= by || !left.iter().any(lasting) {
                for (what, ttl, name) in left {
                    log.say(&Event::Remains { what, ttl, name });
                }
                return Ok(());
            }
            self.rest(Duration::from_millis(100))?;
        }
    }

    fn left(&mut self) -> io::Result<Vec<(Remains, Option<Duration>, String)>> {
        if let Some(database) = self.arena.database() {
            return database.left();
        }
        let mut found = Vec::new();
        let mut primaries: Vec<usize> =
            stored_keys().map(|(_, stored)| self.arena.serving(&stored, &mut self.dice)).collect();
        if self.plan.topology == Topology::Quorum {
            primaries = (0..self.arena.servers().len()).collect();
        }
        primaries.sort_unstable();
        primaries.dedup();
        for server in primaries.into_iter().map(|at| &self.arena.servers()[at]) {
            let keys = tell(server, &["KEYS", "*"])?;
            // Every server of a quorum keeps a marker. In the plain layout, a counter for all keys
            // stays too.
            let counts_all = |key: &str| key.starts_with(Layout::Plain.counters()) && key.ends_with(":lock:");
            let stays = |key: &str| key.starts_with("lock_quorum_marker:") || counts_all(key);
            for key in keys.lines().filter(|key| !key.is_empty() && !stays(key)) {
                let what = match key {
                    _ if key.starts_with(Layout::Hash.counters()) => Remains::Counter,
                    _ if key.starts_with("redisson_unlock_latch") => Remains::Latch,
                    _ => Remains::Key,
                };
                // -2: the key has gone meanwhile. Another negative number becomes `None` below.
                let ttl = match tell(server, &["PTTL", key])?.parse::<i64>() {
                    Ok(-2) => continue,
                    Ok(millis) => u64::try_from(millis).ok().map(Duration::from_millis),
                    Err(_) => None,
                };
                found.push((what, ttl, key.to_owned()));
            }
        }
        for server in self.arena.servers() {
            for list in ["CHANNELS", "SHARDCHANNELS"] {
                for channel in tell(server, &["PUBSUB", list])?.lines() {
                    if !channel.is_empty() && !channel.starts_with("__sentinel__") {
                        found.push((Remains::Other, None, format!("listeners to {channel}")));
                    }
                }
            }
        }
        Ok(found)
    }
}
