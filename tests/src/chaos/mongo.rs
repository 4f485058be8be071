//! [`Mongo`]: a replica set with locks.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::database::{Act, Database, FOREIGN, Row, note_rows};
use super::inject::TRIES;
use super::observe::Observer;
use crate::clock::now_nanos;
use crate::history::{Event, Log, Remains};
use crate::mongodb::{self, Bson, Connection, Document, Options, Uuid, doc};
use crate::witness::{self, Ping};
use crate::{MongoDbSet, Proxy, ServerClock};

/// The name of a lock's document is this and its name in the store.
const CLASS: &str = "lock:";

/// A replica set of three members.
pub(super) struct Mongo {
    pub(super) set: MongoDbSet,
    /// The sessions of the transactions that lock all documents.
    open: RefCell<Vec<Uuid>>,
}

impl Mongo {
    pub(super) fn start(clocks: &[ServerClock]) -> io::Result<Self> {
        let set = MongoDbSet::try_start_with(Options::default().clocks(clocks))?;
        Ok(Self { set, open: RefCell::default() })
    }

    /// Does something to a member.
    pub(super) fn act(&mut self, at: usize, act: Act) {
        match act {
            Act::Stop => self.set.stop(at),
            Act::Cont => self.set.cont(at),
            Act::Kill => self.set.kill(at),
            Act::Restart => self.set.restart(at),
        }
    }

    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        self.set.members().map(crate::MongoDbServer::addr).collect()
    }

    /// Makes the primary step down for ten seconds. It comes back if the others elect nobody: after
    /// a step of their clocks, they may wait for a minute.
    pub(super) fn step_down(&self) -> io::Result<()> {
        let command = doc! { "replSetStepDown": 10, "secondaryCatchUpPeriodSecs": 5, "force": true };
        self.set.member(self.set.primary()).try_command(command).map(drop)
    }

    /// Returns an action for each member that waits until a majority has everything, if that member
    /// is the primary. Members may find no majority for a minute after a step of their clocks.
    pub(super) fn pulses(&self) -> Vec<Ping> {
        let pulse = |addr| -> Ping {
            let mut line = Line::new(addr, witness::PATIENCE);
            let nothing = doc! { "q": { "_id": "" }, "limit": 1 };
            let majority = doc! { "w": "majority", "wtimeout": witness::PATIENCE.as_millis() as i64 };
            let wait = doc! {
                "delete": "witness", "deletes": [nothing], "$db": "locks", "writeConcern": majority,
            };
            Box::new(move || drop(line.ask(wait.clone())))
        };
        self.addrs().into_iter().map(pulse).collect()
    }

    /// Runs a command in the database of the locks, on the primary. Waits for some time until a
    /// majority has what it writes.
    fn write(&self, mut command: Document) -> io::Result<Option<Document>> {
        command.insert("writeConcern", doc! { "w": "majority", "wtimeout": 10_000 });
        command.insert("$db", "locks");
        match self.set.member(self.set.primary()).try_command(command) {
            Err(error) if error.to_string().contains("writeConcernError") => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Changes the document of a key, if it is held.
    fn change(&self, key: &str, change: Document) -> io::Result<bool> {
        let query = doc! {
            "_id": format!("{CLASS}{key}"),
            "record": { "$regex": "^\\{\"held\"" },
            "$expr": { "$gt": ["$until", clock()] },
        };
        let mut command = doc! { "findAndModify": "lock_records", "query": query };
        command.extend(change);
        Ok(self.write(command)?.is_none_or(|answer| answer.get_document("value").is_ok()))
    }

    fn rows(&self) -> io::Result<Vec<Row>> {
        Ok(rows_of(&self.set.member(self.set.primary()).try_command(find())?))
    }

    /// Begins a transaction that writes a document.
    fn try_lock(&self, name: &str) -> io::Result<()> {
        let session = Uuid::new();
        let update = doc! { "q": { "_id": format!("{CLASS}{name}") }, "u": { "$set": { "locked": true } } };
        self.set.member(self.set.primary()).try_command(doc! {
            "update": "lock_records", "updates": [update], "$db": "locks", "lsid": { "id": session },
            "txnNumber": 1_i64, "startTransaction": true, "autocommit": false,
        })?;
        self.open.borrow_mut().push(session);
        Ok(())
    }
}

impl Database for Mongo {
    fn delete(&self, key: &str) -> io::Result<bool> {
        self.change(key, doc! { "remove": true })
    }

    fn overwrite(&self, key: &str) -> io::Result<bool> {
        self.change(key, doc! { "update": { "$set": { "record": FOREIGN, "version": FOREIGN } } })
    }

    fn delete_foreign(&self) -> io::Result<()> {
        let deletes = [doc! { "q": { "record": FOREIGN }, "limit": 0 }];
        self.write(doc! { "delete": "lock_records", "deletes": deletes.to_vec() }).map(drop)
    }

    /// Drops the collection, which also ends all change streams. An open transaction of a process
    /// that was killed may keep it from that.
    fn flush(&self) -> io::Result<()> {
        if self.write(doc! { "drop": "lock_records", "maxTimeMS": 2000 }).is_ok() {
            return Ok(());
        }
        let deletes = [doc! { "q": {}, "limit": 0 }];
        self.write(doc! { "delete": "lock_records", "deletes": deletes.to_vec(), "maxTimeMS": 9000 })
            .map(drop)
    }

    /// Locks each in a transaction of its own. A conflict ends a transaction, so one for all hardly
    /// ever succeeds.
    fn lock_rows(&self) -> io::Result<()> {
        let deadline = now_nanos() + u64::try_from(TRIES.as_nanos()).unwrap_or(u64::MAX);
        for row in self.rows()? {
            while let Err(error) = self.try_lock(&row.name) {
                if now_nanos() > deadline {
                    let left = self.left().map(|left| format!("{left:?}"));
                    return Err(io::Error::other(format!("{error}; the database has {left:?}")));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Locks nothing: no hold ends until the clock is stepped, which comes at once.
    fn lock_living_rows(&self) -> io::Result<bool> {
        // The members may be electing a primary just now.
        Ok(self.rows().is_ok_and(|rows| rows.iter().all(Row::has_nothing_over)))
    }

    fn unlock_rows(&self) -> io::Result<()> {
        for session in self.open.take() {
            // A primary that has stepped down has undone it, and refuses. `left` finds what stays
            // open.
            let _ = self.set.member(self.set.primary()).try_command(doc! {
                "abortTransaction": 1, "lsid": { "id": session }, "txnNumber": 1_i64, "autocommit": false,
            });
        }
        Ok(())
    }

    /// A server has no command for it.
    fn cut_clients(&self) -> io::Result<bool> {
        Ok(false)
    }

    fn left(&self) -> io::Result<Vec<(Remains, Option<Duration>, String)>> {
        let mut found = Vec::new();
        self.rows()?.into_iter().for_each(|row| row.left(&mut found));
        let open = doc! { "currentOp": 1, "$all": true, "transaction": { "$exists": true } };
        let open = self.set.member(self.set.primary()).try_command(open)?;
        for transaction in open.get_array("inprog").into_iter().flatten() {
            found.push((Remains::Other, None, format!("an open transaction: {transaction}")));
        }
        Ok(found)
    }

    fn observer(&self, within: Duration) -> Box<dyn Observer> {
        Box::new(Eyes { lines: self.addrs().into_iter().map(|addr| Line::new(addr, within)).collect() })
    }

    fn ping(&self, proxy: &Proxy, within: Duration) -> Ping {
        let mut way = Line::new(proxy.addr(), within);
        Box::new(move || drop(way.ask(doc! { "ping": 1 })))
    }
}

/// Returns the time of the primary in microseconds, as an expression.
fn clock() -> Document {
    doc! { "$multiply": [{ "$toLong": "$$NOW" }, 1000_i64] }
}

/// Returns the command that reads the documents of all locks, as a majority has them.
fn find() -> Document {
    doc! {
        "find": "lock_records", "$db": "locks", "filter": { "_id": { "$regex": "^lock:" } },
        "projection": { "until": 1, "kept_until": 1, "token": 1, "record": 1, "now": clock() },
        "readConcern": { "level": "linearizable" }, "maxTimeMS": 5000,
    }
}

/// Reads an answer to [`find`].
fn rows_of(answer: &Document) -> Vec<Row> {
    let read = |document: &Document| {
        let number = |field: &str| document.get_i64(field).ok();
        Some(Row {
            name: document.get_str("_id").ok()?.strip_prefix(CLASS)?.to_owned(),
            now: number("now")?,
            until: number("until")?,
            kept_until: number("kept_until")?,
            token: number("token")?,
            record: document.get_str("record").ok()?.to_owned(),
        })
    };
    let batch = answer.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
    batch.into_iter().flatten().filter_map(Bson::as_document).filter_map(read).collect()
}

/// A connection to a member that is made when it is needed.
struct Line {
    addr: SocketAddr,
    within: Duration,
    open: Option<Connection>,
}

impl Line {
    fn new(addr: SocketAddr, within: Duration) -> Self {
        Self { addr, within, open: None }
    }

    fn ask(&mut self, command: Document) -> io::Result<Document> {
        let mut connection = match self.open.take() {
            Some(connection) => connection,
            None => Connection::open(self.addr, self.within)?,
        };
        let answer = connection.run(command)?;
        self.open = Some(connection);
        if mongodb::is_ok(&answer) { Ok(answer) } else { Err(io::Error::other(answer.to_string())) }
    }
}

/// Looks at the documents. The primary's line comes first.
struct Eyes {
    lines: Vec<Line>,
}

impl Observer for Eyes {
    fn look(&mut self, log: &Log) {
        note_rows(log, || {
            let seen = self.lines[0].ask(find()).map(|answer| rows_of(&answer));
            if seen.is_err() {
                self.lines.rotate_left(1);
            }
            seen
        });
    }

    fn count(&mut self, log: &Log) {
        let command = doc! { "serverStatus": 1, "metrics": 0, "wiredTiger": 0, "repl": 0, "tcmalloc": 0 };
        let Ok(status) = self.lines[0].ask(command) else { return };
        let total = status.get_document("network").map(|network| network.get("numRequests"));
        if let Ok(Some(total)) = total.map(|total| total.and_then(Bson::as_i64)) {
            let server = self.lines[0].addr.to_string();
            log.say(&Event::Commands { server, total: total.unsigned_abs() });
        }
    }
}
