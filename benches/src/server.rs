//! [`Target`]: the store that is measured, and our own server, which ends with this program.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use lock_tests::{
    EtcdServer, MariaDbServer, MongoDbServer, MongoDbSet, PostgresServer, RedisServer, ZooKeeperServer,
    mongodb,
};
use redis::{Client, ConnectionAddr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::{Lib, Options, Server, Store};
use crate::proxy;

/// The store. Our own server is stopped on drop.
#[derive(Debug)]
pub(crate) struct Target {
    urls: Urls,
    server: Slot,
}

/// A server that stops on drop.
type Running = Box<dyn Send + fmt::Debug>;

type Slot = Arc<Mutex<Option<Running>>>;

/// Settings of our own PostgreSQL: room for the connections of hundreds of managers, and a count of
/// all statements. `fsync` and `synchronous_commit` are on by default.
const POSTGRES: [&str; 2] = ["max_connections=1500", "shared_preload_libraries=pg_stat_statements"];

/// Settings of our own MariaDB. It syncs each commit by default.
const MARIADB: [&str; 1] = ["max_connections=1500"];

/// The database that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    Postgres,
    MariaDb,
    MongoDb,
    Etcd,
    ZooKeeper,
}

/// The URLs of the store. They may have a password, so they are not for logs.
#[derive(Clone, Default)]
pub(crate) struct Urls {
    /// The store under test, and of the PINGs to compare with; `None` for workloads that need no
    /// store.
    pub(crate) measured: Option<String>,
    /// The address of the same server without the proxy of `--delay-ms`, for calls that are not
    /// measured. `None` without a server.
    pub(crate) direct: Option<String>,
}

impl Urls {
    /// Returns the URL of the measured server, if it is not a Redis.
    pub(crate) fn database(&self) -> Option<(Product, &str)> {
        let url = self.direct.as_deref()?;
        let product = match url.split(':').next()? {
            "postgres" | "postgresql" => Product::Postgres,
            "mysql" => Product::MariaDb,
            "mongodb" => Product::MongoDb,
            "etcd" | "etcds" => Product::Etcd,
            "zookeeper" | "zookeepers" => Product::ZooKeeper,
            _ => return None,
        };
        Some((product, url))
    }
}

impl fmt::Debug for Urls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Urls").finish_non_exhaustive()
    }
}

impl Target {
    /// Finds the store, or starts a server for it.
    pub(crate) fn prepare(options: &Options) -> Result<Self, String> {
        let server = Arc::new(Mutex::new(None));
        let direct = match (&options.store, options.lib) {
            (_, Lib::Tokio) => None,
            (Store::Memory, _) => {
                // Named, since `pingpong` connects two managers to one store.
                let urls = Urls { measured: Some("memory:lock-bench".to_owned()), direct: None };
                return Ok(Self { urls, server });
            }
            (Store::Sqlite(url), _) => {
                return Ok(Self { urls: Urls { measured: Some(url.clone()), direct: None }, server });
            }
            (Store::Redis(url) | Store::Database(url), _) => Some(url.clone()),
            (Store::Own(own), _) => Some(start(&server, *own)?),
        };
        let measured = match &direct {
            Some(url) if !options.delay.is_zero() => {
                let proxy = proxy::start(server_of(url)?, options.delay)?;
                Some(with_server(url, &proxy.to_string()))
            }
            _ => direct.clone(),
        };
        Ok(Self { urls: Urls { measured, direct }, server })
    }

    pub(crate) fn urls(&self) -> &Urls {
        &self.urls
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        end(&self.server);
    }
}

/// Starts the server, and a thread that stops it and this program on a signal.
fn start(slot: &Slot, own: Server) -> Result<String, String> {
    // Locked until the server is in it: a signal during the start waits for that.
    let mut server = slot.lock().unwrap_or_else(PoisonError::into_inner);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| format!("can't listen for signals: {error}"))?;
    let ended = Arc::clone(slot);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                end(&ended);
                std::process::exit(128 + signal);
            }
        })
        .map_err(|error| format!("no thread for signals: {error}"))?;
    let (url, started) = launch(own)?;
    eprintln!("{own} at {url}");
    *server = Some(started);
    Ok(url)
}

fn launch(own: Server) -> Result<(String, Running), String> {
    let said = |error: std::io::Error| error.to_string();
    let folder = if own.is_in_memory() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
    match own {
        Server::Redis => {
            let server = RedisServer::try_start_with(&[]).map_err(|error| error.to_string())?;
            Ok((server.url(), Box::new(server)))
        }
        Server::Postgres | Server::PostgresShm => {
            let server = PostgresServer::try_start_in(&folder, &POSTGRES).map_err(said)?;
            Ok((server.url(), Box::new(server)))
        }
        Server::MariaDb | Server::MariaDbShm => {
            let server = MariaDbServer::try_start_in(&folder, &MARIADB).map_err(said)?;
            Ok((server.url(), Box::new(server)))
        }
        Server::MongoDbSet => {
            let set = MongoDbSet::try_start_with(mongodb::Options::default()).map_err(said)?;
            Ok((set.url(), Box::new(set)))
        }
        Server::Etcd | Server::EtcdShm => {
            let server = EtcdServer::try_start_in(&folder, &[]).map_err(said)?;
            Ok((server.url(), Box::new(server)))
        }
        Server::ZooKeeper | Server::ZooKeeperShm => {
            let server = ZooKeeperServer::try_start_in(&folder, &[]).map_err(said)?;
            Ok((server.url(), Box::new(server)))
        }
        Server::MongoDb | Server::MongoDbShm => {
            let server = MongoDbServer::try_start_in(&folder, &[]).map_err(said)?;
            Ok((server.url(), Box::new(server)))
        }
    }
}

fn end(slot: &Slot) {
    // The server is dropped, and so stopped, before the lock is.
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    drop(slot.take());
}

/// Returns the `host:port` of a store URL that a proxy can be put in front of.
fn server_of(url: &str) -> Result<String, String> {
    let client = Client::open(url).map_err(|error| format!("bad store URL: {}", error.category()))?;
    match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, port) if host.contains(':') => Ok(format!("[{host}]:{port}")),
        ConnectionAddr::Tcp(host, port) => Ok(format!("{host}:{port}")),
        _ => Err("--delay-ms needs a `redis://` URL: its proxy can't stand in for a certificate".to_owned()),
    }
}

/// Replaces `host:port` in `url`, and keeps user, password and the rest.
fn with_server(url: &str, server: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let user = authority.rfind('@').map_or("", |at| authority.get(..=at).unwrap_or_default());
    format!("{scheme}://{user}{server}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_takes_the_place_of_the_server_in_the_url() {
        for (url, server, through) in [
            ("redis://localhost:7000", "localhost:7000", "redis://here:1"),
            ("redis://localhost", "localhost:6379", "redis://here:1"),
            (
                "redis://me:p%40ss@10.0.0.1:7/3?protocol=resp3",
                "10.0.0.1:7",
                "redis://me:p%40ss@here:1/3?protocol=resp3",
            ),
            ("redis://[::1]:7/", "[::1]:7", "redis://here:1/"),
        ] {
            assert_eq!(server_of(url).as_deref(), Ok(server), "{url}");
            assert_eq!(with_server(url, "here:1"), through, "{url}");
        }
    }

    #[test]
    fn a_server_that_has_to_prove_its_name_is_not_delayed() {
        for url in ["rediss://localhost:7000", "unix:///tmp/socket", "nonsense"] {
            assert!(server_of(url).is_err(), "{url}");
        }
    }
}
