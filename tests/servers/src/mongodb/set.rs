//! [`MongoDbSet`]: three members of a replica set that fail.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bson::oid::ObjectId;

use super::{Bson, Document, MongoDbServer, Role, SET, ask, doc, initiate, is_primary, until};
use crate::ServerClock;

/// Number of members; two of them elect a primary.
const MEMBERS: usize = 3;

/// Settings of a [`MongoDbSet`].
#[derive(Clone, Debug)]
pub struct Options {
    election_timeout: Duration,
    settings: Vec<String>,
    clocks: Vec<ServerClock>,
    parent: PathBuf,
}

impl Default for Options {
    /// Returns members that elect another primary when it is silent for 1.5 s.
    fn default() -> Self {
        let (settings, clocks) = (Vec::new(), Vec::new());
        let election_timeout = Duration::from_millis(1500);
        Self { election_timeout, settings, clocks, parent: std::env::temp_dir() }
    }
}

impl Options {
    /// Sets how long a primary must be silent until the others elect another one.
    #[must_use]
    pub fn election_timeout(self, time: Duration) -> Self {
        Self { election_timeout: time, ..self }
    }

    /// Sets options of each member, like `setParameter=ttlMonitorSleepSecs=1`.
    #[must_use]
    pub fn settings(self, settings: &[&str]) -> Self {
        Self { settings: settings.iter().map(ToString::to_string).collect(), ..self }
    }

    /// Sets the clocks of the members, in their order. The others have the machine's clock.
    #[must_use]
    pub fn clocks(self, clocks: &[ServerClock]) -> Self {
        Self { clocks: clocks.to_vec(), ..self }
    }

    /// Sets the folder within which the members have their data.
    #[must_use]
    pub fn within(self, parent: &Path) -> Self {
        Self { parent: parent.to_owned(), ..self }
    }
}

/// A replica set of three members on free loopback ports. Ended and cleaned up on drop.
#[derive(Debug)]
pub struct MongoDbSet {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    server: MongoDbServer,
    /// Where clients and other members reach it.
    host: SocketAddr,
    /// Whether it is stopped, and so does not answer.
    is_stopped: bool,
}

impl MongoDbSet {
    /// Starts a set. Returns when the first member is the primary and the others follow it.
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
            Ok(set) => set,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`start_with`](Self::start_with).
    ///
    /// # Errors
    ///
    /// When the program is missing, or the members become no set.
    pub fn try_start_with(options: Options) -> io::Result<Self> {
        let Options { election_timeout, settings, clocks, parent } = options;
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let (settings, parent) = (&settings[..], &parent);
        let started: Vec<io::Result<MongoDbServer>> = std::thread::scope(|scope| {
            let start = |at| {
                let clock = clocks.get(at).cloned();
                scope.spawn(move || MongoDbServer::try_start_as(Role::Member, parent, clock, settings))
            };
            let starting: Vec<_> = (0..MEMBERS).map(start).collect();
            let panicked = |_| Err(io::Error::other("the start of a member has panicked"));
            starting.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        });
        let mut members = Vec::new();
        for server in started {
            let server = server?;
            members.push(Member { host: server.addr(), server, is_stopped: false });
        }
        let set = Self { members };
        initiate(&set.hosts(), election_timeout)?;
        // Sooner than an election time-out, and the others find a primary to follow at once.
        let first = set.member(0);
        let step_up = || first.try_command(doc! { "replSetStepUp": 1 });
        until(|| Ok(is_primary(&ask(first.addr())?) || step_up().is_ok()))?;
        set.try_settle()?;
        Ok(set)
    }

    /// Makes clients and the other members reach each member at another port of the loopback
    /// interface, where a proxy passes messages on.
    ///
    /// # Panics
    ///
    /// When the members do not take these ports.
    #[track_caller]
    pub fn stand_behind(&mut self, ports: &[u16]) {
        for (member, port) in self.members.iter_mut().zip(ports) {
            member.host.set_port(*port);
        }
        let primary = self.primary();
        let mut config = self.command(primary, doc! { "replSetGetConfig": 1 });
        let Ok(config) = config.get_document_mut("config") else { panic!("no configuration: {config}") };
        let version = config.get_i32("version").unwrap_or_default();
        config.insert("version", version + 1);
        let members = config.get_array_mut("members").into_iter().flatten();
        for (member, host) in members.filter_map(Bson::as_document_mut).zip(self.hosts()) {
            member.insert("host", host.to_string());
        }
        self.command(primary, doc! { "replSetReconfig": config.clone(), "force": true });
        self.settle();
    }

    /// Returns `mongodb://127.0.0.1:a,127.0.0.1:b,127.0.0.1:c/locks?replicaSet=rs0`.
    #[must_use]
    pub fn url(&self) -> String {
        url(self.hosts())
    }

    /// Returns the [URL](MongoDbServer::direct_url) of one member, for clients that look for no
    /// other.
    #[must_use]
    pub fn url_of(&self, at: usize) -> String {
        self.member(at).direct_url()
    }

    /// Returns the members, whatever their present roles.
    pub fn members(&self) -> impl Iterator<Item = &MongoDbServer> {
        self.members.iter().map(|member| &member.server)
    }

    /// Returns a member.
    #[must_use]
    pub fn member(&self, at: usize) -> &MongoDbServer {
        &self.members[at].server
    }

    fn hosts(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.host).collect()
    }

    /// Waits until a member that runs takes writes, and returns which.
    ///
    /// # Panics
    ///
    /// When they elect none for a minute.
    #[track_caller]
    pub fn primary(&self) -> usize {
        self.primary_that(|_| true)
    }

    #[track_caller]
    fn primary_that(&self, suits: impl Fn(usize) -> bool) -> usize {
        let find = || self.latest_primary().filter(|at| suits(*at));
        let found = std::cell::Cell::new(None);
        let waited = until(|| {
            found.set(find());
            Ok(found.get().is_some())
        });
        match (waited, found.get()) {
            (Ok(()), Some(at)) => at,
            (waited, _) => panic!("no primary: {waited:?}\n{}", self.logs()),
        }
    }

    /// Returns the member that was elected last, if it takes writes. One that was stopped may not
    /// know yet that it has a successor.
    fn latest_primary(&self) -> Option<usize> {
        let elected = |at: usize| -> Option<(ObjectId, usize)> {
            let hello = ask(self.running(at)?).ok()?;
            let election = hello.get_object_id("electionId").ok()?;
            is_primary(&hello).then_some((election, at))
        };
        (0..self.members.len()).filter_map(elected).max().map(|(_, at)| at)
    }

    /// Returns the address of a member that is not stopped.
    fn running(&self, at: usize) -> Option<SocketAddr> {
        let member = &self.members[at];
        (!member.is_stopped).then(|| member.server.addr())
    }

    /// Waits until one member is the primary and both others follow it.
    ///
    /// # Panics
    ///
    /// When that takes more than a minute, for example because a member is stopped.
    #[track_caller]
    pub fn settle(&self) {
        if let Err(error) = self.try_settle() {
            panic!("{error}\n{}", self.logs());
        }
    }

    fn try_settle(&self) -> io::Result<()> {
        until(|| {
            if self.members.iter().any(|member| member.is_stopped) {
                return Err(io::Error::other("a member is stopped"));
            }
            let Some(primary) = self.latest_primary() else { return Ok(false) };
            // A note that all of them have. A follower may be a second late after its first copy.
            let all = i32::try_from(self.members.len()).unwrap_or(i32::MAX);
            let concern = doc! { "w": all, "wtimeout": 5000 };
            let note = doc! { "appendOplogNote": 1, "data": { "settle": 1 }, "writeConcern": concern };
            self.member(primary).try_command(note).map(|_| true)
        })
    }

    /// Sends SIGKILL to a member.
    pub fn kill(&mut self, at: usize) {
        self.members[at].server.kill();
        self.members[at].is_stopped = false;
    }

    /// Sends SIGSTOP to a member, and waits until it has stopped.
    pub fn stop(&mut self, at: usize) {
        self.members[at].server.stop();
        self.members[at].is_stopped = true;
    }

    /// Sends SIGCONT to a member.
    pub fn cont(&mut self, at: usize) {
        self.members[at].server.cont();
        self.members[at].is_stopped = false;
    }

    /// Starts a member again on the same port, after a kill if it still runs. Returns when it
    /// accepts connections; [`settle`](Self::settle) waits until it follows.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[track_caller]
    pub fn restart(&mut self, at: usize) {
        self.members[at].is_stopped = false;
        self.members[at].server.restart();
    }

    /// Makes the primary step down for ten seconds. Waits for the next primary and returns it.
    ///
    /// # Panics
    ///
    /// When the primary refuses, or nobody takes its place.
    #[track_caller]
    pub fn step_down(&self) -> usize {
        let old = self.primary();
        self.command(old, doc! { "replSetStepDown": 10, "secondaryCatchUpPeriodSecs": 5, "force": true });
        self.primary_that(|at| at != old)
    }

    /// Runs a [command](MongoDbServer::command) on a member, and returns the answer.
    ///
    /// # Panics
    ///
    /// When the member does not answer, or refuses the command.
    #[track_caller]
    pub fn command(&self, at: usize, command: Document) -> Document {
        self.member(at).command(command)
    }

    /// Returns what a member has logged.
    #[must_use]
    pub fn log(&self, at: usize) -> String {
        self.member(at).log()
    }

    fn logs(&self) -> String {
        self.members().map(MongoDbServer::log).collect::<Vec<_>>().join("\n")
    }

    /// Returns a report on each member that has ended by itself.
    pub fn ended(&mut self) -> Vec<String> {
        let report = |(at, member): (usize, &mut Member)| {
            let status = member.server.ended()?;
            Some(format!("member {at} ended with {status}:\n{}", member.server.log()))
        };
        self.members.iter_mut().enumerate().filter_map(report).collect()
    }
}

/// Returns the URL of the set with these members.
pub(super) fn url(members: impl IntoIterator<Item = SocketAddr>) -> String {
    let members: Vec<String> = members.into_iter().map(|addr| addr.to_string()).collect();
    format!("mongodb://{}/locks?replicaSet={SET}", members.join(","))
}
