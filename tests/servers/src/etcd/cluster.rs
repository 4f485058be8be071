//! [`EtcdCluster`]: three members that fail.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Etcd, EtcdServer, Peer, Role, endpoint, is_healthy, until, url};
use crate::Helper;
use crate::database::{self, Product, ask, at};
use crate::redis::free_port;

/// Number of members; two of them elect a leader.
const MEMBERS: usize = 3;

/// Settings of an [`EtcdCluster`].
#[derive(Clone, Debug)]
pub struct Options {
    election_timeout: Duration,
    settings: Vec<String>,
    /// The ports that members listen on for each other, and those at which others reach them.
    peers: Option<([u16; MEMBERS], [u16; MEMBERS])>,
    parent: PathBuf,
}

impl Default for Options {
    /// Returns members that elect another leader when it is silent for half a second. This is less
    /// than by default, and so is the shortest lease: 1 s.
    fn default() -> Self {
        let election_timeout = Duration::from_millis(500);
        Self { election_timeout, settings: Vec::new(), peers: None, parent: std::env::temp_dir() }
    }
}

impl Options {
    /// Sets how long a leader must be silent until the others elect another one. No lease is
    /// shorter than one and a half times that.
    #[must_use]
    pub fn election_timeout(self, time: Duration) -> Self {
        Self { election_timeout: time, ..self }
    }

    /// Sets flags of each member, without dashes, like `max-txn-ops=256`.
    #[must_use]
    pub fn settings(self, settings: &[&str]) -> Self {
        Self { settings: settings.iter().map(ToString::to_string).collect(), ..self }
    }

    /// Sets the ports that members listen on for each other, and those at which others reach them,
    /// where proxies pass messages on. Without it, both are the same free ports.
    ///
    /// Each of two members connects to the other. The header `X-Server-From` of a connection names
    /// the member that opened it.
    #[must_use]
    pub fn peer_ports(self, listens: [u16; MEMBERS], advertised: [u16; MEMBERS]) -> Self {
        Self { peers: Some((listens, advertised)), ..self }
    }

    /// Sets the folder within which the members have their data.
    #[must_use]
    pub fn within(self, parent: &Path) -> Self {
        Self { parent: parent.to_owned(), ..self }
    }
}

/// A cluster of three members on free loopback ports. Ended and cleaned up on drop.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<EtcdServer>,
}

/// A member's knowledge of the leader.
struct Status {
    id: u64,
    leader: u64,
    term: u64,
}

impl EtcdCluster {
    /// Starts a cluster, and waits until all members follow a leader.
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
            Ok(cluster) => cluster,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`start_with`](Self::start_with).
    ///
    /// # Errors
    ///
    /// When the programs are missing, or the members find no leader.
    pub fn try_start_with(options: Options) -> io::Result<Self> {
        let Options { election_timeout, settings, peers, parent } = options;
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let (settings, parent) = (&settings[..], &parent);
        let (listens, advertised) = match peers {
            Some(peers) => peers,
            None => {
                let ports = [free_port()?, free_port()?, free_port()?];
                (ports, ports)
            }
        };
        let [listens, advertised] = [listens, advertised].map(|ports| ports.map(|port| endpoint(at(port))));
        let named = |(at, url): (usize, &String)| format!("m{at}={url}");
        let all = advertised.iter().enumerate().map(named).collect::<Vec<_>>().join(",");
        let products: Vec<Etcd> = listens
            .into_iter()
            .zip(advertised)
            .enumerate()
            .map(|(at, (listens, advertised))| {
                let peer = Peer { name: format!("m{at}"), listens, advertised, all: all.clone() };
                Ok(Etcd { role: Role::Member(peer), election_timeout, ..Etcd::find()? })
            })
            .collect::<io::Result<_>>()?;
        let started: Vec<io::Result<EtcdServer>> = std::thread::scope(|scope| {
            let start = |product| {
                scope.spawn(move || EtcdServer::try_make(product, parent, None, settings, Etcd::make))
            };
            let starting: Vec<_> = products.into_iter().map(start).collect();
            let panicked = |_| Err(io::Error::other("the start of a member has panicked"));
            starting.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        });
        let cluster = Self { members: started.into_iter().collect::<io::Result<_>>()? };
        cluster.try_wait_until_ready()?;
        Ok(cluster)
    }

    /// Returns `etcd://127.0.0.1:a,127.0.0.1:b,127.0.0.1:c/`.
    #[must_use]
    pub fn url(&self) -> String {
        url(self.members().map(EtcdServer::addr))
    }

    /// Returns the [endpoints](EtcdServer::endpoint) of all members, with commas between them.
    #[must_use]
    pub fn endpoints(&self) -> String {
        joined(self.members())
    }

    /// Returns the members, whatever their present roles.
    pub fn members(&self) -> impl Iterator<Item = &EtcdServer> {
        self.members.iter()
    }

    /// Returns a member.
    #[must_use]
    pub fn member(&self, at: usize) -> &EtcdServer {
        &self.members[at]
    }

    /// Returns the members that are neither killed nor stopped.
    fn up(&self) -> impl Iterator<Item = &EtcdServer> {
        self.members.iter().filter(|member| member.is_up())
    }

    /// Waits until a member that runs is the leader, and returns which.
    ///
    /// # Panics
    ///
    /// When they elect none for a minute.
    #[track_caller]
    pub fn leader(&self) -> usize {
        let found = std::cell::Cell::new(None);
        let waited = until(|| {
            found.set(self.latest_leader());
            Ok(found.get().is_some())
        });
        match (waited, found.get()) {
            (Ok(()), Some(at)) => at,
            (waited, _) => panic!("no leader: {waited:?}\n{}", self.logs()),
        }
    }

    /// Returns the leader of the latest term, if it runs. One that was stopped may not know yet
    /// that it has a successor.
    fn latest_leader(&self) -> Option<usize> {
        let status = |at: usize| {
            let member = &self.members[at];
            let status = member.is_up().then(|| status(member.addr()))?.ok()?;
            Some((status.term, status.leader == status.id, at))
        };
        // Of those in the same term, the leader is the greatest.
        let (_, is_leader, at) = (0..self.members.len()).filter_map(status).max()?;
        is_leader.then_some(at)
    }

    /// Waits until all members that are neither killed nor stopped follow a leader.
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
        self.up().try_for_each(|member| until(|| is_healthy(member.addr())))
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

    /// Runs `etcdctl` on the members that are neither killed nor stopped, and returns its output.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[track_caller]
    pub fn etcdctl(&self, args: &[&str]) -> String {
        match self.try_etcdctl(args) {
            Ok(said) => said,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`etcdctl`](Self::etcdctl).
    ///
    /// # Errors
    ///
    /// When it fails, for example because the leader has changed meanwhile.
    pub fn try_etcdctl(&self, args: &[&str]) -> io::Result<String> {
        self.member(0).product().run(&joined(self.up()), args)
    }

    /// Starts an [`etcdctl`](EtcdServer::spawn_etcdctl) on all members that runs until it is ended.
    ///
    /// # Panics
    ///
    /// When it can't be started.
    #[track_caller]
    #[must_use]
    pub fn spawn_etcdctl(&self, args: &[&str]) -> Helper {
        self.member(0).product().spawn(&self.endpoints(), args)
    }

    /// Returns what a member has logged.
    #[must_use]
    pub fn log(&self, at: usize) -> String {
        self.member(at).log()
    }

    fn logs(&self) -> String {
        self.members().map(EtcdServer::log).collect::<Vec<_>>().join("\n")
    }

    /// Returns a report on each member that has ended by itself.
    pub fn ended(&mut self) -> Vec<String> {
        database::ended(&mut self.members)
    }
}

fn joined<'a>(servers: impl Iterator<Item = &'a EtcdServer>) -> String {
    servers.map(EtcdServer::endpoint).collect::<Vec<_>>().join(",")
}

/// Asks a member for its status.
fn status(addr: SocketAddr) -> io::Result<Status> {
    let answer = ask(addr, "POST /v3/maintenance/status HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")?;
    // A number that is missing is 0: there is no leader.
    let number = |name: &str| number(&answer, name).unwrap_or_default();
    Ok(Status { id: number("member_id"), leader: number("leader"), term: number("raftTerm") })
}

/// Returns a number in JSON. Those of 64 bits are in quotes.
fn number(json: &str, name: &str) -> Option<u64> {
    let (_, rest) = json.split_once(&format!("\"{name}\":\""))?;
    rest.split('"').next()?.parse().ok()
}
