//! [`World`]: the servers, the network between them and their clients, and its effect on messages.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::store::{Item, Mark, RenewItem, RenewRequest, ServerTime};
use lock_runtime::LockKey;
use lock_runtime::testing::simulation::{MemoryServer, SimClock};
use tokio::time::Instant;

use super::Lie;
use super::net::{Event as Later, Net};
use super::register::Register;
use super::version::Version;
use crate::dice::Dice;
use crate::history::{Event, Log};

/// Time on the servers' clocks when a run begins: 2026, in microseconds.
const EPOCH: u64 = 1_767_225_600_000_000;

/// The quality of the network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// Chance of trouble. About half of this percentage of requests is lost, breaks its connection,
    /// gets stuck, or is executed twice. A stuck request breaks its connection, and the server
    /// executes it later. The same percentage of answers is lost.
    pub(super) storm: u64,
    /// Percentage of notices that are lost.
    pub(super) deaf: u64,
    /// Maximum delay of most messages, in milliseconds.
    pub(super) delay: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    /// Requests that arrive are executed later.
    Stopped,
    /// Connections are refused.
    Down,
}

/// The directions that are cut between a process and a server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cut {
    pub(super) up: bool,
    pub(super) down: bool,
}

pub(super) struct Server {
    name: String,
    pub(super) clock: SimClock,
    inner: Mutex<Inner>,
    /// Raised by each restart, which breaks all earlier connections.
    pub(super) generation: Version,
}

struct Inner {
    data: MemoryServer,
    state: State,
    backlog: Vec<Later>,
    commands: u64,
    seen: BTreeMap<String, Event>,
    /// The replica's data at earlier times.
    copies: VecDeque<(Instant, MemoryServer)>,
}

impl Server {
    fn new(name: String, parts_per_million: i64) -> Self {
        let clock = SimClock::new(parts_per_million);
        let inner = Inner {
            data: used(MemoryServer::new(clock, ServerTime::from_micros(EPOCH))),
            state: State::Running,
            backlog: Vec::new(),
            commands: 0,
            seen: BTreeMap::new(),
            copies: VecDeque::new(),
        };
        Self { name, clock, inner: Mutex::new(inner), generation: Version::default() }
    }

    pub(super) fn data(&self) -> MemoryServer {
        self.inner.lock().unwrap().data.clone()
    }

    pub(super) fn state(&self) -> State {
        self.inner.lock().unwrap().state
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Executes a request now, or when the server runs again.
    pub(super) fn receive(&self, work: Later) {
        let mut inner = self.inner.lock().unwrap();
        if inner.state == State::Stopped {
            inner.backlog.push(work);
        } else {
            drop(inner);
            work();
        }
    }

    pub(super) fn stop(&self) {
        self.inner.lock().unwrap().state = State::Stopped;
    }

    pub(super) fn resume(&self) {
        let mut inner = self.inner.lock().unwrap();
        inner.state = State::Running;
        let backlog = std::mem::take(&mut inner.backlog);
        drop(inner);
        for work in backlog {
            work();
        }
    }

    /// Refuses new connections, and breaks existing ones.
    pub(super) fn end(&self) {
        let mut inner = self.inner.lock().unwrap();
        inner.state = State::Down;
        inner.backlog.clear();
        drop(inner);
        self.generation.raise();
    }

    /// Runs the server with this data.
    pub(super) fn start(&self, data: MemoryServer) {
        let mut inner = self.inner.lock().unwrap();
        inner.data = data;
        inner.state = State::Running;
        inner.copies.clear();
        drop(inner);
        self.generation.raise();
    }

    pub(super) fn empty(&self) -> MemoryServer {
        MemoryServer::new(self.clock, ServerTime::from_micros(EPOCH))
    }

    /// Copies the present data to the replica.
    pub(super) fn replicate(&self) {
        let mut inner = self.inner.lock().unwrap();
        let copy = inner.data.copy();
        inner.copies.push_back((Instant::now(), copy));
        if inner.copies.len() > 4 {
            inner.copies.pop_front();
        }
    }

    /// Returns the replica's data, which lags behind.
    pub(super) fn replica(&self) -> Option<MemoryServer> {
        self.inner.lock().unwrap().copies.front().map(|(_, data)| data.clone())
    }
}

/// The state that all processes of a run share.
pub(super) struct World {
    pub(super) net: Arc<Net>,
    pub(super) servers: Vec<Server>,
    pub(super) log: Log,
    pub(super) register: Register,
    pub(super) lie: Option<Lie>,
    start: Instant,
    dice: Mutex<Dice>,
    weather: Mutex<Weather>,
    cuts: Mutex<BTreeMap<(usize, usize), Cut>>,
}

impl World {
    pub(super) fn new(mut dice: Dice, servers: usize, lie: Option<Lie>) -> Arc<Self> {
        let start = Instant::now();
        let log = Log::in_memory(move || nanos(start.elapsed()));
        let rates: Vec<i64> = (0..servers).map(|_| rate(&mut dice)).collect();
        let servers = rates.into_iter().enumerate().map(|(n, rate)| Server::new(format!("server {n}"), rate));
        let weather = Weather { storm: 0, deaf: [0, 10, 100][pick(&mut dice, 3)], delay: 1 + dice.below(4) };
        Arc::new(Self {
            net: Arc::default(),
            servers: servers.collect(),
            register: Register::new(log.clone()),
            log,
            lie,
            start,
            dice: Mutex::new(dice),
            weather: Mutex::new(weather),
            cuts: Mutex::default(),
        })
    }

    pub(super) fn lies(&self, lie: Lie) -> bool {
        self.lie == Some(lie)
    }

    pub(super) fn new_log(&self) -> Log {
        let start = self.start;
        Log::in_memory(move || nanos(start.elapsed()))
    }

    pub(super) fn dice<T>(&self, roll: impl FnOnce(&mut Dice) -> T) -> T {
        roll(&mut self.dice.lock().unwrap())
    }

    pub(super) fn weather(&self) -> Weather {
        *self.weather.lock().unwrap()
    }

    pub(super) fn set_weather(&self, change: impl FnOnce(&mut Weather)) {
        change(&mut self.weather.lock().unwrap());
    }

    pub(super) fn cut(&self, process: usize, server: usize) -> Cut {
        self.cuts.lock().unwrap().get(&(process, server)).copied().unwrap_or_default()
    }

    pub(super) fn set_cut(&self, process: usize, server: usize, cut: Cut) {
        self.cuts.lock().unwrap().insert((process, server), cut);
    }

    /// Returns how long the next message is under way.
    pub(super) fn way(&self) -> Duration {
        let longest = self.weather().delay;
        self.dice(|dice| {
            let longest = if dice.once_in(50) { longest * 5 } else { longest };
            Duration::from_millis(1 + dice.below(longest))
        })
    }

    /// Counts a command that was executed, and notes the keys that have changed.
    pub(super) fn executed(&self, server: usize, keys: &[LockKey]) {
        let Some(server) = self.servers.get(server) else { return };
        let mut inner = server.inner.lock().unwrap();
        inner.commands += 1;
        // The state of one server says little about a quorum.
        for key in keys.iter().filter(|_| self.servers.len() == 1) {
            let looked = inner.data.look(key);
            let now = nanos(self.start.elapsed());
            let until = |left: Duration| now + nanos(left);
            // Keys that are requested in all kinds are not granted in turn.
            let in_turn = key.as_str().contains("fair");
            let queue = looked.queue.iter().filter(|_| in_turn);
            let event = Event::Seen {
                key: key.as_str().to_owned(),
                took: Duration::ZERO,
                holders: looked.holders.iter().map(|owner| owner.as_str().to_owned()).collect(),
                expires: looked.remaining.map_or(0, until),
                queue: queue.map(|(owner, left)| (owner.as_str().to_owned(), until(*left))).collect(),
            };
            if inner.seen.get(key.as_str()) != Some(&event) {
                self.log.say(&event);
                inner.seen.insert(key.as_str().to_owned(), event);
            }
        }
    }

    /// Renews all holds.
    pub(super) fn renew(&self, keys: &[LockKey], lease: Duration) {
        for (place, server) in self.servers.iter().enumerate() {
            let handle = server.data().connect();
            for key in keys {
                let status = handle.status(key);
                let Some(kind) = status.kind else { continue };
                let item = |(owner, _)| Item { key: key.clone(), kind, owner };
                let items = status.holders.into_iter().map(item).map(|item| RenewItem::hold(item, lease));
                let request = RenewRequest { items: items.collect(), timeout: lease };
                let _ = handle.renew(&Arc::new(request));
            }
            self.executed(place, keys);
        }
    }

    /// Notes how many commands the servers have executed.
    pub(super) fn note_commands(&self) {
        for server in &self.servers {
            let total = server.inner.lock().unwrap().commands;
            self.log.say(&Event::Commands { server: server.name.clone(), total });
        }
    }
}

/// Marks a new server as used, so that a quorum trusts it.
fn used(server: MemoryServer) -> MemoryServer {
    let latest = ServerTime::from_micros(u64::MAX);
    server.connect().mark(Mark::First { latest });
    server
}

/// Returns a clock's error in parts per million. Two clocks differ by less than the hundredth that
/// leases allow for.
pub(super) fn rate(dice: &mut Dice) -> i64 {
    i64::try_from(dice.below(8001)).unwrap_or_default() - 4000
}

pub(super) fn pick(dice: &mut Dice, end: usize) -> usize {
    usize::try_from(dice.below(end as u64)).unwrap_or_default()
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
