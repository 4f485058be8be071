//! [`ZooKeeper`]: an ensemble of ZooKeeper with locks. It is asked for its nodes without a client
//! of the library.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::database::{Act, Database, FOREIGN};
use super::observe::Observer;
use super::want::stored_keys;
use crate::clock::{now_nanos, whole_millis_since};
use crate::history::{Event, Log, Remains};
use crate::witness::Ping;
use crate::zookeeper::{Connection, Options};
use crate::{Proxy, ZooKeeperEnsemble, ZooKeeperServer};

/// Longest tick of the members.
const TICK: Duration = Duration::from_millis(200);
/// Maximum time for an answer outside of faults.
const ANSWER: Duration = Duration::from_secs(10);
/// The directory with everything that locks need.
const ROOT: &str = "/chaos";
/// The epochs of sessions are in this directory. They end with their sessions.
const SESSIONS: &str = "lock-sessions";
/// A node that is written before others are read, which are not older then.
const BESIDE: &str = "/observer";

/// An ensemble of three members.
pub(super) struct ZooKeeper {
    pub(super) ensemble: ZooKeeperEnsemble,
    line: RefCell<Line>,
    /// The member that is cut off from the others.
    cut: Option<usize>,
}

/// Returns the URL of an ensemble, for locks of this lease.
pub(super) fn url(members: &[SocketAddr], lease: Duration) -> String {
    let members: Vec<String> = members.iter().map(SocketAddr::to_string).collect();
    // A session ends four seconds after a process that has locks of 2.4 s.
    let timeout = lease * 5 / 3;
    let (timeout, tick) = (timeout.as_millis(), TICK.as_millis());
    format!("zookeeper://{}{ROOT}?timeout={timeout}ms&tick={tick}ms", members.join(","))
}

impl ZooKeeper {
    pub(super) fn start() -> io::Result<Self> {
        let ensemble = ZooKeeperEnsemble::try_start_with(Options::default().tick(TICK))?;
        let addrs = ensemble.members().map(ZooKeeperServer::addr).collect();
        let mut line = Line::new(addrs, ANSWER);
        line.ask(|connection| connection.create(BESIDE))?;
        Ok(Self { ensemble, line: RefCell::new(line), cut: None })
    }

    /// Does something to a member.
    pub(super) fn act(&mut self, at: usize, act: Act) {
        match act {
            Act::Stop => self.ensemble.stop(at),
            Act::Cont => self.ensemble.cont(at),
            Act::Kill => self.ensemble.kill(at),
            Act::Restart => self.ensemble.restart(at),
        }
    }

    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        self.ensemble.members().map(ZooKeeperServer::addr).collect()
    }

    /// Lets no message pass between a member and the others.
    pub(super) fn part(&mut self, at: usize) {
        self.cut = Some(at);
        self.ensemble.part(at);
    }

    /// Lets all messages pass, those that were held up first. Returns whether a member without the
    /// others served nobody.
    pub(super) fn join(&mut self) -> bool {
        let was_alone = self.cut.take().is_some_and(|at| !self.ensemble.has_quorum(at));
        self.ensemble.join();
        was_alone
    }

    /// Puts a node that is no entry beside the entries of a key. Returns whether somebody had the
    /// key.
    pub(super) fn make_foreign(&self, key: &str) -> io::Result<bool> {
        if self.holder(key)?.is_none() {
            return Ok(false);
        }
        self.ask(|connection| connection.create(&format!("{}/{FOREIGN}", directory(key))))
    }

    /// Ends the session that has a key. Returns whether there is one.
    pub(super) fn end_session(&self, key: &str) -> io::Result<bool> {
        let Some(holder) = self.holder(key)? else { return Ok(false) };
        let session = self.ask(|connection| connection.session_of(&holder))?;
        let leader = self.ensemble.member(self.ensemble.leader());
        Ok(session.is_some_and(|session| leader.try_end_session(session).is_ok()))
    }

    fn ask<T>(&self, question: impl Fn(&mut Connection) -> io::Result<T>) -> io::Result<T> {
        self.line.borrow_mut().ask(question)
    }

    /// Returns the path of the holder's entry.
    fn holder(&self, key: &str) -> io::Result<Option<String>> {
        let directory = directory(key);
        let names = self.ask(|connection| {
            connection.write(BESIDE)?;
            connection.children(&directory)
        })?;
        Ok(queue(names).0.first().map(|name| format!("{directory}/{name}")))
    }

    /// Returns all nodes that locks need, without directories.
    fn nodes(&self) -> io::Result<Vec<(String, String)>> {
        self.ask(|connection| {
            connection.write(BESIDE)?;
            let mut found = Vec::new();
            for directory in connection.children(ROOT)? {
                let names = connection.children(&format!("{ROOT}/{directory}"))?;
                found.extend(names.into_iter().map(|name| (directory.clone(), name)));
            }
            Ok(found)
        })
    }
}

impl Database for ZooKeeper {
    fn delete(&self, key: &str) -> io::Result<bool> {
        let Some(holder) = self.holder(key)? else { return Ok(false) };
        self.ask(|connection| connection.delete(&holder))
    }

    /// Nobody reads the text of an entry before its release: its place is in its name.
    fn overwrite(&self, _key: &str) -> io::Result<bool> {
        Ok(false)
    }

    fn delete_foreign(&self) -> io::Result<()> {
        for (_, key) in stored_keys() {
            self.ask(|connection| connection.delete(&format!("{}/{FOREIGN}", directory(&key))))?;
        }
        Ok(())
    }

    /// Leaves the directories, which the server deletes by itself.
    fn flush(&self) -> io::Result<()> {
        for (directory, name) in self.nodes()? {
            self.ask(|connection| connection.delete(&format!("{ROOT}/{directory}/{name}")))?;
        }
        Ok(())
    }

    /// Nothing but the epochs of sessions that live may stay.
    fn left(&self) -> io::Result<Vec<(Remains, Option<Duration>, String)>> {
        let mut living = Vec::new();
        for member in self.ensemble.members() {
            living.extend(member.sessions()?.into_iter().map(|id| format!("{id:016x}-")));
        }
        let lives = |name: &str| living.iter().any(|session| name.starts_with(session));
        let left = self.nodes()?.into_iter().map(|(directory, name)| {
            let is_epoch = directory == SESSIONS && lives(&name);
            let (what, left) = if is_epoch { (Remains::Counter, Some(ANSWER)) } else { (Remains::Key, None) };
            (what, left, format!("{directory}/{name}"))
        });
        Ok(left.collect())
    }

    fn observer(&self, within: Duration) -> Box<dyn Observer> {
        Box::new(Eyes { line: Line::new(self.addrs(), within) })
    }

    /// Asks whether the member follows a leader.
    fn ping(&self, proxy: &Proxy, within: Duration) -> Ping {
        let mut way = Line::new(vec![proxy.addr()], within);
        Box::new(move || drop(way.ask(Connection::sync)))
    }
}

/// Returns the directory of a lock.
fn directory(stored: &str) -> String {
    format!("{ROOT}/{stored}")
}

/// A connection to one of the members that is made when it is needed.
struct Line {
    /// The member that answered last comes first.
    addrs: Vec<SocketAddr>,
    within: Duration,
    open: Option<Connection>,
}

impl Line {
    fn new(addrs: Vec<SocketAddr>, within: Duration) -> Self {
        Self { addrs, within, open: None }
    }

    /// Asks on a connection, which is closed if that fails. If it was an older one, asks again on a
    /// new one: a session that was not used has ended.
    fn ask<T>(&mut self, question: impl Fn(&mut Connection) -> io::Result<T>) -> io::Result<T> {
        if let Some(mut old) = self.open.take()
            && let Ok(answer) = question(&mut old)
        {
            self.open = Some(old);
            return Ok(answer);
        }
        let asked = Connection::open(self.addrs[0], self.within).and_then(|mut connection| {
            let answer = question(&mut connection)?;
            Ok((connection, answer))
        });
        match asked {
            Ok((connection, answer)) => {
                self.open = Some(connection);
                Ok(answer)
            }
            Err(error) => {
                self.addrs.rotate_left(1);
                Err(error)
            }
        }
    }
}

/// Looks at the nodes, as the leader has them.
struct Eyes {
    line: Line,
}

impl Observer for Eyes {
    fn look(&mut self, log: &Log) {
        let began = now_nanos();
        let seen = self.line.ask(|connection| {
            connection.write(BESIDE)?;
            let see =
                |(key, stored): (&'static str, String)| Ok((key, connection.children(&directory(&stored))?));
            stored_keys().map(see).collect::<io::Result<Vec<_>>>()
        });
        for (key, names) in seen.into_iter().flatten() {
            let took = whole_millis_since(began);
            let (holders, queue) = queue(names);
            // Nobody passes an entry, however long it stays. Its end is that of the session, which
            // is the same for all locks of a manager.
            let expires = if holders.is_empty() { 0 } else { u64::MAX };
            let queue = queue.into_iter().map(|name| (name, u64::MAX)).collect();
            log.say(&Event::Seen { key: key.to_owned(), took, holders, expires, queue });
        }
    }

    fn count(&mut self, log: &Log) {
        let server = self.line.addrs[0];
        let Ok(said) = about(server, self.line.within) else { return };
        let received = said.lines().find_map(|line| line.strip_prefix("Received: "));
        if let Some(total) = received.and_then(|total| total.parse().ok()) {
            log.say(&Event::Commands { server: server.to_string(), total });
        }
    }
}

/// Returns what a member says of itself.
fn about(addr: SocketAddr, within: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&addr, within)?;
    stream.set_read_timeout(Some(within))?;
    stream.write_all(b"srvr")?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

/// Returns the entries that hold a lock, and those that wait, from all nodes in its directory. An
/// owner that has left the queue and joined it again has another entry.
fn queue(names: Vec<String>) -> (Vec<String>, Vec<String>) {
    const READ: &str = "__READ__";
    let place = |name: &str| {
        let at = ["-lock-", READ, "__WRIT__"].iter().find_map(|kind| Some(name.rfind(kind)? + kind.len()))?;
        name[at..].parse::<i64>().ok()
    };
    let mut all: Vec<(i64, String)> =
        names.into_iter().filter_map(|name| Some((place(&name)?, name))).collect();
    all.sort();
    let readers = all.iter().take_while(|(_, name)| name.contains(READ)).count();
    let waiters = all.split_off(readers.max(1).min(all.len()));
    let names = |all: Vec<(i64, String)>| all.into_iter().map(|(_, name)| name).collect();
    (names(all), names(waiters))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_entry_or_all_readers_before_a_writer_hold_the_lock() {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let queue = |names: &[&str]| queue(owned(names));
        assert_eq!(queue(&["mine"]), (owned(&[]), owned(&[])));
        let [first, second] = ["_c_b-lock-0000000009", "_c_a-lock-0000000010"];
        assert_eq!(queue(&[second, "mine", first]), (owned(&[first]), owned(&[second])));
        let shared =
            ["a__READ__0000000003", "z__READ__0000000001", "m__WRIT__0000000004", "b__READ__0000000005"];
        let [third, first, fourth, fifth] = shared;
        assert_eq!(queue(&shared), (owned(&[first, third]), owned(&[fourth, fifth])));
        assert_eq!(queue(&[fourth, fifth]), (owned(&[fourth]), owned(&[fifth])));
    }

    #[test]
    fn a_session_is_longer_than_a_lease() {
        let members = ["127.0.0.1:1", "127.0.0.1:2"].map(|addr| addr.parse().unwrap());
        let url = url(&members, super::super::LEASE);
        assert_eq!(url, "zookeeper://127.0.0.1:1,127.0.0.1:2/chaos?timeout=4000ms&tick=200ms");
    }
}
