//! [`ZooKeeperEnsemble`]: three members that fail.
//!
//! Each member reaches each other one through proxies of its own, so that one of them can be cut
//! off. Clients reach members directly.

use std::array;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Role, ZooKeeper, ZooKeeperServer, session, until};
use crate::Wire;
use crate::database::{self, Product, at};
use crate::redis::free_port;

/// Number of members; two of them elect a leader.
const MEMBERS: usize = 3;

/// Settings of a [`ZooKeeperEnsemble`].
#[derive(Clone, Debug)]
pub struct Options {
    tick: Duration,
    settings: Vec<String>,
    parent: PathBuf,
}

impl Default for Options {
    /// Returns members with a tick of 200 ms.
    fn default() -> Self {
        Self { tick: Duration::from_millis(200), settings: Vec::new(), parent: std::env::temp_dir() }
    }
}

impl Options {
    /// Sets the length of a tick. Members that hear nothing of each other for five ticks elect
    /// another leader.
    #[must_use]
    pub fn tick(self, tick: Duration) -> Self {
        Self { tick, ..self }
    }

    /// Sets lines of each member's configuration, like `maxSessionTimeout=20000`.
    #[must_use]
    pub fn settings(self, settings: &[&str]) -> Self {
        Self { settings: settings.iter().map(ToString::to_string).collect(), ..self }
    }

    /// Sets the folder within which the members have their data.
    #[must_use]
    pub fn within(self, parent: &Path) -> Self {
        Self { parent: parent.to_owned(), ..self }
    }
}

/// An ensemble of three members on free loopback ports. Ended and cleaned up on drop.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    members: Vec<ZooKeeperServer>,
    /// Which of them are cut off.
    cut: [bool; MEMBERS],
    links: Links,
}

impl ZooKeeperEnsemble {
    /// Starts an ensemble, and waits until all members follow a leader.
    ///
    /// # Panics
    ///
    /// When that does not work; the text says what is missing.
    #[track_caller]
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(Options::default())
    }

    /// Like [`start`](Self::start), with options.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[track_caller]
    #[must_use]
    pub fn start_with(options: Options) -> Self {
        match Self::try_start_with(options) {
            Ok(ensemble) => ensemble,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`start_with`](Self::start_with).
    ///
    /// # Errors
    ///
    /// When a program is missing, or the members find no leader.
    pub fn try_start_with(options: Options) -> io::Result<Self> {
        let Options { tick, settings, parent } = options;
        // In ticks: a new leader waits that long for followers, and both that long for a message.
        let ticks = [format!("tickTime={}", tick.as_millis()), "initLimit=15".into(), "syncLimit=5".into()];
        let settings: Vec<&str> = ticks.iter().chain(&settings).map(String::as_str).collect();
        let (settings, parent) = (&settings[..], &parent);
        let links = Links::new()?;
        let found = ZooKeeper::find()?;
        let started: Vec<io::Result<ZooKeeperServer>> = std::thread::scope(|scope| {
            let start = |at| {
                let role = Role::Member { id: at, members: links.members(at) };
                let product = ZooKeeper { jars: found.jars.clone(), role, tls: None };
                scope.spawn(move || {
                    ZooKeeperServer::try_make(product, parent, None, settings, ZooKeeper::make)
                })
            };
            let starting: Vec<_> = (0..MEMBERS).map(start).collect();
            let panicked = |_| Err(io::Error::other("the start of a member has panicked"));
            starting.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        });
        let members = started.into_iter().collect::<io::Result<_>>()?;
        let ensemble = Self { members, cut: [false; MEMBERS], links };
        ensemble.try_wait_until_ready()?;
        Ok(ensemble)
    }

    /// Returns `zookeeper://127.0.0.1:a,127.0.0.1:b,127.0.0.1:c`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("zookeeper://{}", self.connect_string())
    }

    /// Returns the addresses of all members with commas between them, for ZooKeeper's own clients.
    #[must_use]
    pub fn connect_string(&self) -> String {
        self.members().map(ZooKeeperServer::connect_string).collect::<Vec<_>>().join(",")
    }

    /// Returns the members, whatever their present roles.
    pub fn members(&self) -> impl Iterator<Item = &ZooKeeperServer> {
        self.members.iter()
    }

    /// Returns a member.
    #[must_use]
    pub fn member(&self, at: usize) -> &ZooKeeperServer {
        &self.members[at]
    }

    /// Returns the members that are neither killed nor stopped nor cut off.
    fn among(&self) -> impl Iterator<Item = (usize, &ZooKeeperServer)> {
        let members = self.members.iter().enumerate().zip(self.cut);
        members.filter(|((_, member), is_cut)| member.is_up() && !is_cut).map(|(member, _)| member)
    }

    /// Waits until a member that is not cut off is the leader, and returns which.
    ///
    /// # Panics
    ///
    /// When they elect none for a minute.
    #[track_caller]
    pub fn leader(&self) -> usize {
        let found = std::cell::Cell::new(None);
        let waited = until(|| {
            // A leader that was stopped may not know yet that it has a successor.
            let leaders = self.among().filter_map(|(at, member)| Some((epoch_led(member)?, at)));
            found.set(leaders.max());
            Ok(found.get().is_some())
        });
        match (waited, found.get()) {
            (Ok(()), Some((_, at))) => at,
            (waited, _) => panic!("no leader: {waited:?}\n{}", self.logs()),
        }
    }

    /// Waits until each member that is neither killed nor stopped nor cut off takes requests.
    ///
    /// # Panics
    ///
    /// When that takes more than a minute, for example because too few run.
    #[track_caller]
    pub fn wait_until_ready(&self) {
        if let Err(error) = self.try_wait_until_ready() {
            panic!("{error}\n{}", self.logs());
        }
    }

    fn try_wait_until_ready(&self) -> io::Result<()> {
        self.among().try_for_each(|(_, member)| until(|| session::is_healthy(member.addr())))
    }

    /// Whether a member takes requests, which needs the majority.
    #[must_use]
    pub fn has_quorum(&self, at: usize) -> bool {
        session::is_healthy(self.member(at).addr()).is_ok()
    }

    /// Sends SIGKILL to a member.
    pub fn kill(&mut self, at: usize) {
        self.members[at].kill();
    }

    /// Sends SIGSTOP to a member, and waits until it has stopped.
    pub fn stop(&mut self, at: usize) {
        self.members[at].stop();
    }

    /// Sends SIGCONT to a member.
    pub fn cont(&mut self, at: usize) {
        self.members[at].cont();
    }

    /// Starts a member again on the same ports, after a kill if it still runs. Returns when it
    /// accepts connections; [`wait_until_ready`](Self::wait_until_ready) waits until it follows.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[track_caller]
    pub fn restart(&mut self, at: usize) {
        self.members[at].restart();
    }

    /// Lets nothing pass between a member and the others. Its clients still reach it.
    pub fn part(&mut self, at: usize) {
        self.cut[at] = true;
        self.links.of(at).for_each(Wire::hold);
    }

    /// Lets everything pass again, what was sent meanwhile first.
    pub fn join(&mut self) {
        self.cut = [false; MEMBERS];
        (0..MEMBERS).flat_map(|at| self.links.of(at)).for_each(Wire::go_on);
    }

    /// Returns what a member has logged.
    #[must_use]
    pub fn log(&self, at: usize) -> String {
        self.member(at).log()
    }

    fn logs(&self) -> String {
        self.members().map(ZooKeeperServer::log).collect::<Vec<_>>().join("\n")
    }

    /// Returns a report on each member that has ended by itself.
    pub fn ended(&mut self) -> Vec<String> {
        database::ended(&mut self.members)
    }
}

/// Returns the epoch of a leader, and nothing of another member.
fn epoch_led(member: &ZooKeeperServer) -> Option<u64> {
    let said = member.four_letters("srvr").ok()?;
    let value = |name: &str| said.lines().find_map(|line| line.strip_prefix(name));
    let zxid = value("Zxid: 0x")?;
    // The latest change has the epoch in its upper half.
    value("Mode: leader").and_then(|_| u64::from_str_radix(zxid, 16).ok()).map(|zxid| zxid >> 32)
}

/// The ports of a member for the others.
#[derive(Debug)]
struct Ports {
    /// Followers connect to it while it leads.
    quorum: u16,
    election: u16,
}

/// The network between the members.
#[derive(Debug)]
struct Links {
    ports: [Ports; MEMBERS],
    /// The proxies through which the first member reaches the second one: for the quorum, and for
    /// elections. No member reaches itself through them.
    wires: [[[Wire; 2]; MEMBERS]; MEMBERS],
}

impl Links {
    fn new() -> io::Result<Self> {
        let port = || Ok(Ports { quorum: free_port()?, election: free_port()? });
        let ports: Vec<Ports> = (0..MEMBERS).map(|_| port()).collect::<io::Result<_>>()?;
        let ports = <[Ports; MEMBERS]>::try_from(ports).expect("as many as members");
        let to = |to: usize| [ports[to].quorum, ports[to].election].map(|port| Wire::to(at(port)));
        let wires: [[[Wire; 2]; MEMBERS]; MEMBERS] = array::from_fn(|_| array::from_fn(to));
        for (from, to) in (0..MEMBERS).flat_map(|from| (0..MEMBERS).map(move |to| (from, to))) {
            // A member says at which address it listens, and one with a greater id connects to
            // that instead: it must be told the address of a proxy.
            let [_, back] = &wires[to][from];
            let said = at(ports[from].election).to_string();
            wires[from][to][1].replace(&said, &back.addr().to_string());
        }
        Ok(Self { ports, wires })
    }

    /// Returns the lines of the configuration with all members, as `from` reaches them.
    fn members(&self, from: usize) -> String {
        (0..MEMBERS).fold(String::new(), |mut lines, to| {
            let [quorum, election] = if to == from {
                [self.ports[to].quorum, self.ports[to].election]
            } else {
                self.wires[from][to].each_ref().map(|wire| wire.addr().port())
            };
            let _ = writeln!(lines, "server.{to}=127.0.0.1:{quorum}:{election}");
            lines
        })
    }

    /// Returns the proxies to a member, and those from it.
    fn of(&self, at: usize) -> impl Iterator<Item = &Wire> {
        let from = self.wires[at].iter().flatten();
        from.chain(self.wires.iter().flat_map(move |to| &to[at]))
    }
}
