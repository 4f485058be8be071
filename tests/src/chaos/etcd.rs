//! [`Etcd`]: a cluster of etcd with locks. It is asked for its keys in JSON, which needs no client
//! of the library.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::database::{Act, Database, FOREIGN};
use super::observe::Observer;
use super::peers::Peers;
use super::want::stored_keys;
use crate::clock::{now_nanos, whole_millis_since};
use crate::etcd::Options;
use crate::history::{Event, Log, Remains};
use crate::witness::Ping;
use crate::{EtcdCluster, EtcdServer, Proxy};

/// Duration of silence after which another leader is elected. Longer than by default in tests: the
/// machine is busy.
const DEAD_AFTER: Duration = Duration::from_secs(1);
/// Maximum time for an answer outside of faults.
const ANSWER: Duration = Duration::from_secs(10);
/// The epochs of sessions are under this name. They end with their sessions.
const EPOCHS: &str = "lock-epochs/";

/// A cluster of three members, with proxies between them.
pub(super) struct Etcd {
    pub(super) cluster: EtcdCluster,
    pub(super) peers: Peers,
}

/// Starts a cluster with proxies between its members.
///
/// # Errors
///
/// When it does not start.
pub fn etcd_with_peers(options: Options) -> io::Result<(EtcdCluster, Peers)> {
    let peers = Peers::start()?;
    let (listens, advertised) = peers.ports();
    let cluster = EtcdCluster::try_start_with(options.peer_ports(listens, advertised))?;
    for (at, member) in cluster.members().enumerate() {
        peers.name(at, id(&status(member.addr())?["header"]["member_id"]));
    }
    Ok((cluster, peers))
}

/// An entry in the queue of a lock.
#[derive(Clone, Debug)]
struct Entry {
    key: String,
    value: String,
    /// The revision that made it.
    born: u64,
    /// Zero: it has none.
    lease: u64,
}

impl Etcd {
    pub(super) fn start() -> io::Result<Self> {
        let (cluster, peers) = etcd_with_peers(Options::default().election_timeout(DEAD_AFTER))?;
        Ok(Self { cluster, peers })
    }

    /// Does something to a member.
    pub(super) fn act(&mut self, at: usize, act: Act) {
        match act {
            Act::Stop => self.cluster.stop(at),
            Act::Cont => self.cluster.cont(at),
            Act::Kill => self.cluster.kill(at),
            Act::Restart => self.cluster.restart(at),
        }
    }

    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        self.cluster.members().map(EtcdServer::addr).collect()
    }

    /// Makes the leader give its role to another member.
    pub(super) fn step_down(&self) -> io::Result<()> {
        let leader = self.cluster.leader();
        let next = (leader + 1) % self.addrs().len();
        let next = id(&status(self.cluster.member(next).addr())?["header"]["member_id"]);
        let command = json!({ "targetID": next.to_string() });
        let leader = self.cluster.member(leader).addr();
        post(leader, "maintenance/transfer-leadership", &command, ANSWER).map(drop)
    }

    /// Removes the history of the keys, up to the present.
    pub(super) fn compact(&self) -> io::Result<()> {
        let answer = self.ask("kv/range", &json!({ "key": encoded("x"), "count_only": true }))?;
        let revision = id(&answer["header"]["revision"]).to_string();
        match self.cluster.try_etcdctl(&["compact", "--physical", &revision]) {
            // Its endpoints come one after the other, and a late answer makes it ask again.
            Err(error) if error.to_string().contains("has been compacted") => Ok(()),
            done => done.map(drop),
        }
    }

    fn ask(&self, what: &str, command: &Value) -> io::Result<Value> {
        post(self.cluster.member(self.cluster.leader()).addr(), what, command, ANSWER)
    }

    /// Returns the holder's entry of a key.
    fn first(&self, key: &str) -> io::Result<Option<Entry>> {
        let (key, end) = (format!("{key}/"), format!("{key}0"));
        let command = json!({
            "key": encoded(&key), "range_end": encoded(&end), "limit": "1", "sort_target": "CREATE",
            "sort_order": "ASCEND",
        });
        Ok(entries(&self.ask("kv/range", &command)?).into_iter().next())
    }

    /// Changes the holder's entry of a key, if there is one.
    fn change(&self, key: &str, change: impl Fn(&str) -> Value) -> io::Result<bool> {
        let Some(first) = self.first(key)? else { return Ok(false) };
        let name = encoded(&first.key);
        let is_there = json!({
            "key": name, "target": "CREATE", "result": "EQUAL", "create_revision": first.born.to_string(),
        });
        let command = json!({ "compare": [is_there], "success": [change(&name)] });
        Ok(self.ask("kv/txn", &command)?["succeeded"] == true)
    }
}

impl Database for Etcd {
    fn delete(&self, key: &str) -> io::Result<bool> {
        self.change(key, |name| json!({ "request_delete_range": { "key": name } }))
    }

    /// The key has no lease any more.
    fn overwrite(&self, key: &str) -> io::Result<bool> {
        self.change(key, |name| json!({ "request_put": { "key": name, "value": encoded(FOREIGN) } }))
    }

    fn delete_foreign(&self) -> io::Result<()> {
        for entry in entries(&self.ask("kv/range", &all())?) {
            if entry.value == FOREIGN {
                self.ask("kv/deleterange", &json!({ "key": encoded(&entry.key) }))?;
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.ask("kv/deleterange", &all()).map(drop)
    }

    fn left(&self) -> io::Result<Vec<(Remains, Option<Duration>, String)>> {
        let mut found = Vec::new();
        for Entry { key, lease, .. } in entries(&self.ask("kv/range", &all())?) {
            let what = if key.starts_with(EPOCHS) { Remains::Counter } else { Remains::Key };
            let left = match lease {
                0 => None,
                lease => {
                    let left = self.ask("lease/timetolive", &json!({ "ID": lease.to_string() }))?;
                    Some(Duration::from_secs(id(&left["TTL"])))
                }
            };
            found.push((what, left, key));
        }
        Ok(found)
    }

    fn observer(&self, within: Duration) -> Box<dyn Observer> {
        Box::new(Eyes { addrs: self.addrs(), within })
    }

    /// Asks whether the server knows a leader, and a majority has what it has.
    fn ping(&self, proxy: &Proxy, within: Duration) -> Ping {
        let way = proxy.addr();
        Box::new(move || drop(ask(way, "GET /health HTTP/1.0\r\n\r\n", within)))
    }
}

/// Returns the request for all keys.
fn all() -> Value {
    json!({ "key": encoded("\0"), "range_end": encoded("\0") })
}

fn encoded(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

fn decoded(text: &Value) -> String {
    let bytes = text.as_str().and_then(|text| BASE64_STANDARD.decode(text).ok()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads a number of 64 bits, which is in quotes. One that is missing or negative is zero.
fn id(number: &Value) -> u64 {
    number.as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns the keys in an answer, in the order in which they were made.
fn entries(answer: &Value) -> Vec<Entry> {
    let read = |kv: &Value| Entry {
        key: decoded(&kv["key"]),
        value: decoded(&kv["value"]),
        born: id(&kv["create_revision"]),
        lease: id(&kv["lease"]),
    };
    let mut entries: Vec<Entry> = answer["kvs"].as_array().into_iter().flatten().map(read).collect();
    entries.sort_by_key(|entry| entry.born);
    entries
}

fn status(addr: SocketAddr) -> io::Result<Value> {
    post(addr, "maintenance/status", &json!({}), ANSWER)
}

fn post(addr: SocketAddr, what: &str, command: &Value, within: Duration) -> io::Result<Value> {
    let body = command.to_string();
    let head = format!("POST /v3/{what} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
    let answer = ask(addr, &format!("{head}{body}"), within)?;
    let (_, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let answer: Value = serde_json::from_str(body).map_err(io::Error::other)?;
    match answer.get("error") {
        Some(error) => Err(io::Error::other(format!("{what} {command}: {error}"))),
        None => Ok(answer),
    }
}

fn ask(addr: SocketAddr, request: &str, within: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&addr, within)?;
    stream.set_read_timeout(Some(within))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Looks at the keys, as a majority has them. The member that answered last comes first.
struct Eyes {
    addrs: Vec<SocketAddr>,
    within: Duration,
}

impl Observer for Eyes {
    fn look(&mut self, log: &Log) {
        let (began, lock) = (now_nanos(), json!({ "key": encoded("lock:"), "range_end": encoded("lock;") }));
        let Ok(answer) = post(self.addrs[0], "kv/range", &lock, self.within) else {
            return self.addrs.rotate_left(1);
        };
        let took = whole_millis_since(began);
        let entries = entries(&answer);
        for (key, stored) in stored_keys() {
            let (holders, queue) = queue(&entries, &stored);
            // Nobody passes an entry, however long it stays. Its end is that of the session, which
            // is the same for all locks of a manager.
            let expires = if holders.is_empty() { 0 } else { u64::MAX };
            let queue = queue.into_iter().map(|owner| (owner, u64::MAX)).collect();
            log.say(&Event::Seen { key: key.to_owned(), took, holders, expires, queue });
        }
    }

    fn count(&mut self, log: &Log) {
        let Ok(metrics) = ask(self.addrs[0], "GET /metrics HTTP/1.0\r\n\r\n", self.within) else { return };
        let calls = metrics.lines().filter(|line| line.starts_with("grpc_server_started_total{"));
        let counts = calls.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        log.say(&Event::Commands { server: self.addrs[0].to_string(), total: counts.sum::<f64>() as u64 });
    }
}

/// Returns the entries that hold a lock, and those that wait, from all in their order. An owner
/// that has left the queue and joined it again has another entry.
fn queue(entries: &[Entry], lock: &str) -> (Vec<String>, Vec<String>) {
    let of_it = |entry: &Entry| {
        let rest = entry.key.strip_prefix(lock)?.strip_prefix('/')?;
        let is_reader = rest.starts_with("read/");
        Some((format!("{}/{}", entry.value, entry.born), is_reader))
    };
    let all: Vec<(String, bool)> = entries.iter().filter_map(of_it).collect();
    let readers = all.iter().take_while(|(_, is_reader)| *is_reader).count();
    let (holders, waiters) = all.split_at(readers.max(1).min(all.len()));
    let owners = |all: &[(String, bool)]| all.iter().map(|(owner, _)| owner.clone()).collect();
    (owners(holders), owners(waiters))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_entry_or_all_readers_before_a_writer_hold_the_lock() {
        let queue = |all: &[(&str, &str)]| {
            let entry = |(born, (key, owner)): (u64, &(&str, &str))| Entry {
                key: format!("lock:k/{key}"),
                value: (*owner).to_owned(),
                born,
                lease: 1,
            };
            let entries: Vec<Entry> = (1..).zip(all).map(entry).collect();
            queue(&entries, "lock:k")
        };
        let owners = |owners: &[&str]| owners.iter().map(|owner| (*owner).to_owned()).collect::<Vec<_>>();
        assert_eq!(queue(&[]), (owners(&[]), owners(&[])));
        assert_eq!(queue(&[("5-0", "a:1"), ("5-1", "b:2")]), (owners(&["a:1/1"]), owners(&["b:2/2"])));
        let shared = [("read/5-0", "a:1"), ("read/6-0", "b:1"), ("write/5-0", "c:1"), ("read/5-1", "d:1")];
        assert_eq!(queue(&shared), (owners(&["a:1/1", "b:1/2"]), owners(&["c:1/3", "d:1/4"])));
        assert_eq!(queue(&shared[2..]), (owners(&["c:1/1"]), owners(&["d:1/2"])));
    }
}
