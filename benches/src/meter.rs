//! [`Meter`]: the cost of a run in time, processor time and commands at the server, and PINGs to
//! compare with. In a database a commit is made instead of a PING, and statements are counted. In
//! etcd a transaction is made, and in ZooKeeper a write; nothing is counted there.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use rustix::time::{ClockId, clock_gettime};

use crate::args::{Lib, Options};
use crate::backend;
use crate::etcd::Transactions;
use crate::mongo::Changes;
use crate::server::{Product, Urls};
use crate::sql::Commits;
use crate::zookeeper::Writes;

/// Commands that only clients send: scripts may not call them, or no script here does.
const CLIENT_ONLY: [&str; 24] = [
    "auth",
    "client",
    "config",
    "eval",
    "eval_ro",
    "evalsha",
    "evalsha_ro",
    "exec",
    "fcall",
    "fcall_ro",
    "hello",
    "multi",
    "ping",
    "psubscribe",
    "punsubscribe",
    "quit",
    "reset",
    "script",
    "ssubscribe",
    "subscribe",
    "sunsubscribe",
    "unsubscribe",
    "unwatch",
    "watch",
];

/// Commands among them that run a script.
const SCRIPTS: [&str; 5] = ["eval", "eval_ro", "evalsha", "evalsha_ro", "fcall"];

/// Reads the server's counters over its own connections. They are made by redis-rs, sqlx or
/// mongodb, as those of `raw` and `ping`.
pub(crate) struct Meter {
    server: Option<Server>,
    lib: Lib,
    pings: u64,
}

enum Server {
    Redis { pinged: MultiplexedConnection, asked: MultiplexedConnection },
    Sql(Box<Commits>),
    Mongo(Box<Changes>),
    Etcd(Box<Transactions>),
    ZooKeeper(Writes),
}

/// The counters at one moment.
#[derive(Debug)]
pub(crate) struct Reading {
    at: Instant,
    cpu: Duration,
    calls: Option<Calls>,
}

/// The cost between two readings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) time: Duration,
    pub(crate) cpu: Duration,
    /// `None` without a server.
    pub(crate) calls: Option<Calls>,
}

/// Commands that the server executed; in a database, statements of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) by_clients: u64,
    /// Commands among `by_clients` that run a script.
    pub(crate) scripts: u64,
    pub(crate) in_scripts: u64,
}

impl Calls {
    fn of(by_clients: u64) -> Self {
        Self { by_clients, ..Self::default() }
    }
}

impl Meter {
    /// Makes a meter without a server, for one process of several.
    pub(crate) fn clocks(options: &Options) -> Self {
        Self { server: None, lib: options.lib, pings: 0 }
    }

    pub(crate) async fn connect(options: &Options, urls: &Urls) -> Result<Self, String> {
        let mut meter = Self::clocks(options);
        if let Some((product, url)) = urls.database() {
            meter.server = Some(match product {
                Product::MongoDb => Server::Mongo(Box::new(Changes::connect(url).await?)),
                Product::Etcd => Server::Etcd(Box::new(Transactions::connect(url).await?)),
                Product::ZooKeeper => Server::ZooKeeper(Writes::connect(url).await?),
                _ => Server::Sql(Box::new(Commits::connect(url).await?)),
            });
        } else if let (Some(measured), Some(direct)) = (&urls.measured, &urls.direct) {
            let (pinged, asked) = (backend::connect(measured).await?, backend::connect(direct).await?);
            meter.server = Some(Server::Redis { pinged, asked });
        }
        Ok(meter)
    }

    /// Makes one round trip, which is not counted in [`Calls`]; `None` without a server.
    pub(crate) async fn ping(&mut self) -> Result<Option<Duration>, String> {
        let Some(server) = &mut self.server else { return Ok(None) };
        self.pings += 1;
        let sent = Instant::now();
        match server {
            Server::Redis { pinged, .. } => backend::ping(pinged).await?,
            Server::Sql(commits) => commits.commit().await?,
            Server::Mongo(changes) => changes.change().await?,
            Server::Etcd(transactions) => transactions.make().await?,
            Server::ZooKeeper(writes) => writes.write().await?,
        }
        Ok(Some(sent.elapsed()))
    }

    /// Starts the count. The clocks are read last.
    pub(crate) async fn start(&mut self) -> Result<Reading, String> {
        let calls = self.calls().await?;
        Ok(Reading { cpu: cpu(), at: Instant::now(), calls })
    }

    /// Ends the count. The clocks are read first.
    pub(crate) async fn end(&mut self, start: &Reading) -> Result<Cost, String> {
        let (at, cpu) = (Instant::now(), cpu());
        let calls = match (start.calls, self.calls().await?) {
            (Some(before), Some(after)) => Some(Calls {
                by_clients: after.by_clients.saturating_sub(before.by_clients),
                scripts: after.scripts.saturating_sub(before.scripts),
                in_scripts: after.in_scripts.saturating_sub(before.in_scripts),
            }),
            _ => None,
        };
        Ok(Cost { time: at.duration_since(start.at), cpu: cpu.saturating_sub(start.cpu), calls })
    }

    async fn calls(&mut self) -> Result<Option<Calls>, String> {
        let asked = match &mut self.server {
            // The counters of these two are in another protocol.
            None | Some(Server::Etcd(_) | Server::ZooKeeper(_)) => return Ok(None),
            Some(Server::Sql(commits)) => return Ok(commits.statements().await?.map(Calls::of)),
            Some(Server::Mongo(changes)) => {
                return Ok(Some(Calls::of(changes.commands().await?.saturating_sub(self.pings))));
            }
            Some(Server::Redis { asked, .. }) => asked,
        };
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(asked)
            .await
            .map_err(|error| format!("INFO: {error}"))?;
        let mut calls = parse(&info, self.lib);
        calls.by_clients = calls.by_clients.saturating_sub(self.pings);
        Ok(Some(calls))
    }
}

/// Sorts the counts of `INFO commandstats` by the name of the command, since it counts those called
/// by scripts too. Our own INFO is left out.
fn parse(info: &str, lib: Lib) -> Calls {
    let mut by_name: HashMap<&str, u64> = HashMap::new();
    for line in info.lines() {
        let Some((name, numbers)) =
            line.trim().strip_prefix("cmdstat_").and_then(|line| line.split_once(':'))
        else {
            continue;
        };
        let calls = numbers.split(',').find_map(|number| number.strip_prefix("calls="));
        // `client|setinfo` is a kind of `client`.
        let name = name.split('|').next().unwrap_or(name);
        *by_name.entry(name).or_default() += calls.and_then(|calls| calls.parse().ok()).unwrap_or(0);
    }
    let mut calls = Calls::default();
    for (name, count) in by_name {
        if name == "info" {
            continue;
        }
        if SCRIPTS.contains(&name) {
            calls.scripts += count;
        }
        // The bare lock is a client's SET; its script reads and deletes. The plain layout adds an
        // INCRBY.
        let of_client = match lib {
            Lib::Raw => name == "set",
            Lib::Plain => matches!(name, "set" | "incrby"),
            _ => false,
        };
        if of_client || CLIENT_ONLY.contains(&name) {
            calls.by_clients += count;
        } else {
            calls.in_scripts += count;
        }
    }
    calls
}

/// Returns the user and system time of this process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Commandstats\r\n\
        cmdstat_evalsha:calls=7,usec=100,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_client|setinfo:calls=2,usec=3,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_time:calls=7,usec=1,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_set:calls=5,usec=1,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_info:calls=9,usec=1,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n";

    #[test]
    fn commands_of_clients_and_of_scripts_are_told_apart() {
        assert_eq!(parse(INFO, Lib::Ours), Calls { by_clients: 9, scripts: 7, in_scripts: 12 });
    }

    #[test]
    fn the_bare_locks_set_is_a_command_of_the_client() {
        assert_eq!(parse(INFO, Lib::Raw), Calls { by_clients: 14, scripts: 7, in_scripts: 7 });
    }

    #[test]
    fn processor_time_grows_with_work() {
        let before = cpu();
        while cpu() == before {
            std::hint::spin_loop();
        }
    }
}
