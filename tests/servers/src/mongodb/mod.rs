//! [`MongoDbServer`]: a real `mongod` for one test, and [`MongoDbSet`], a replica set of three.
//!
//! No package manager of ours has the program, so xtask installs it in cargo's target folder.

mod client;
#[cfg(test)]
mod on_mongodb;
mod set;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub use bson::{Bson, Document, Uuid, doc};

pub use self::client::Connection;
pub use self::set::{MongoDbSet, Options};
use crate::ServerClock;
use crate::database::{self, DatabaseServer, Product, find};
use crate::folders;
use crate::process::Process;

/// The version that xtask installs. `tests/servers/mongod` has the download.
const VERSION: &str = "6.0.5";

/// The name of every replica set.
const SET: &str = "rs0";

/// Maximum time of a command on a busy machine.
const ANSWER: Duration = Duration::from_secs(20);

/// Returns the path of `mongod`: on the `PATH`, or [`installed`] by xtask.
#[must_use]
pub fn program() -> Option<PathBuf> {
    find("mongod").or_else(|| installed().ok().filter(|path| path.is_file()))
}

/// Returns the path at which xtask installs `mongod`.
///
/// # Errors
///
/// When the folder that cargo builds in is unknown.
pub fn installed() -> io::Result<PathBuf> {
    Ok(folders::tools()?.join(format!("mongodb-{VERSION}")).join("mongod"))
}

/// A `mongod` on a free loopback port, with its own folder. It lets every client in. Ended and
/// cleaned up on drop.
///
/// [`start`](DatabaseServer::start) and its variants start a replica set of this one member, and
/// wait until it takes writes. [`start_alone`](MongoDbServer::start_alone) starts a server without
/// a set.
pub type MongoDbServer = DatabaseServer<MongoDb>;

/// The program, and what it is run as.
#[derive(Debug)]
pub struct MongoDb {
    program: PathBuf,
    role: Role,
}

/// A server's place in a replica set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It is in no set.
    Alone,
    /// It is the only member.
    Only,
    /// It is one of several members, which somebody else makes a set.
    Member,
}

impl MongoDb {
    fn find_as(role: Role) -> io::Result<Self> {
        let missing = "`mongod` is missing: `cargo xtask test mongodb --install` installs it";
        Ok(Self { program: program().ok_or_else(|| io::Error::other(missing))?, role })
    }
}

impl Product for MongoDb {
    const NAME: &'static str = "mongod";

    const READY: &'static str = "\"Waiting for connections\"";

    fn find() -> io::Result<Self> {
        Self::find_as(Role::Only)
    }

    fn prepare(&self, dir: &Path) -> io::Result<()> {
        std::fs::create_dir(dir.join("data"))
    }

    fn make(&self, _dir: &Path) -> Option<Command> {
        None
    }

    fn serve(&self, dir: &Path, port: u16, settings: &[String]) -> Command {
        let mut mongod = database::command(&self.program, &["MONGO"]);
        mongod.arg("--dbpath").arg(dir.join("data")).arg(format!("--port={port}"));
        mongod.args(["--bind_ip=127.0.0.1", "--nounixsocket", "--wiredTigerCacheSizeGB=0.25"]);
        // Its files are small.
        mongod.arg("--wiredTigerEngineConfigString=log=(file_max=2MB)");
        mongod.arg("--setParameter=diagnosticDataCollectionEnabled=false");
        if self.role != Role::Alone {
            mongod.arg(format!("--replSet={SET}")).arg("--oplogSize=256");
        }
        mongod.args(settings.iter().map(|setting| format!("--{setting}")));
        mongod
    }

    fn complete(&self, port: u16) -> io::Result<()> {
        if self.role != Role::Only {
            return Ok(());
        }
        let addr = at(port);
        initiate(&[addr], Duration::from_secs(1))?;
        until(|| Ok(is_primary(&ask(addr)?)))
    }

    fn shut_down(process: &mut Process) {
        // It is a single process; an orderly shutdown takes a second.
        process.kill();
    }
}

impl MongoDbServer {
    /// Starts a server that is in no replica set. It has no transactions.
    ///
    /// # Panics
    ///
    /// When that does not work; the text says what is missing.
    #[track_caller]
    #[must_use]
    pub fn start_alone() -> Self {
        Self::start_alone_with(&[])
    }

    /// Like [`start_alone`](Self::start_alone), with settings like `auth`.
    ///
    /// # Panics
    ///
    /// As [`start_alone`](Self::start_alone).
    #[track_caller]
    #[must_use]
    pub fn start_alone_with(settings: &[&str]) -> Self {
        match Self::try_start_as(Role::Alone, &std::env::temp_dir(), None, settings) {
            Ok(server) => server,
            Err(error) => panic!("{error}"),
        }
    }

    fn try_start_as(
        role: Role,
        parent: &Path,
        clock: Option<ServerClock>,
        settings: &[&str],
    ) -> io::Result<Self> {
        Self::try_make(MongoDb::find_as(role)?, parent, clock, settings, MongoDb::make)
    }

    /// Returns `mongodb://127.0.0.1:<port>/locks?replicaSet=rs0`, without the name of the set for a
    /// server that is in none.
    #[must_use]
    pub fn url(&self) -> String {
        match self.product().role {
            Role::Alone => format!("mongodb://{}/locks", self.addr()),
            Role::Only | Role::Member => set::url([self.addr()]),
        }
    }

    /// Returns `mongodb://127.0.0.1:<port>/locks?directConnection=true`. Its clients look for no
    /// other member.
    #[must_use]
    pub fn direct_url(&self) -> String {
        format!("mongodb://{}/locks?directConnection=true", self.addr())
    }

    /// Runs a command and returns the answer. The field `$db` of the command names the database,
    /// which is `admin` without it.
    ///
    /// # Panics
    ///
    /// When the server does not answer, or refuses the command.
    #[track_caller]
    pub fn command(&self, command: Document) -> Document {
        match self.try_command(command) {
            Ok(answer) => answer,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`command`](Self::command).
    ///
    /// # Errors
    ///
    /// When the server does not answer, or refuses the command; the text has its error.
    pub fn try_command(&self, command: Document) -> io::Result<Document> {
        run(self.addr(), command)
    }
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Runs a command over its own connection. An answer with an error is one.
fn run(addr: SocketAddr, command: Document) -> io::Result<Document> {
    let name = command.keys().next().cloned().unwrap_or_default();
    let told = |why: &dyn std::fmt::Display| io::Error::other(format!("{name} at {addr}: {why}"));
    let answer = Connection::open(addr, ANSWER).and_then(|mut connection| connection.run(command));
    let answer = answer.map_err(|error| told(&error))?;
    if is_ok(&answer) { Ok(answer) } else { Err(told(&answer)) }
}

/// Whether a server has done what it was asked to.
#[must_use]
pub fn is_ok(answer: &Document) -> bool {
    let failed = ["writeErrors", "writeConcernError"].iter().any(|field| answer.contains_key(field));
    answer.get_f64("ok").is_ok_and(|ok| ok == 1.0) && !failed
}

/// Returns what a server says of its role.
fn ask(addr: SocketAddr) -> io::Result<Document> {
    run(addr, doc! { "hello": 1 })
}

/// Whether a server that says `hello` takes writes.
fn is_primary(hello: &Document) -> bool {
    hello.get_bool("isWritablePrimary").unwrap_or_default()
}

/// Makes the servers a replica set, unless they are one.
fn initiate(members: &[SocketAddr], election_timeout: Duration) -> io::Result<()> {
    let Some(first) = members.first() else { return Ok(()) };
    let places = members.iter().zip(0..).map(|(addr, at)| doc! { "_id": at, "host": addr.to_string() });
    let config = doc! {
        "_id": SET,
        "members": places.collect::<Vec<_>>(),
        "settings": {
            "electionTimeoutMillis": i32::try_from(election_timeout.as_millis()).unwrap_or(i32::MAX),
            "heartbeatIntervalMillis": 200,
        },
    };
    // A busy member may be too late to tell that it is there.
    until(|| match run(*first, doc! { "replSetInitiate": config.clone() }) {
        Ok(_) => Ok(true),
        Err(error) if error.to_string().contains("AlreadyInitialized") => Ok(true),
        Err(error) => Err(error),
    })
}

/// As [`database::until`].
fn until(condition: impl Fn() -> io::Result<bool>) -> io::Result<()> {
    database::until("a replica set", condition)
}
