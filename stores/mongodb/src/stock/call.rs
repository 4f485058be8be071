//! [`Call`]: one call on a stock, and its transactions.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use futures_util::future::try_join_all;
use lock_core::internal::clock::{Clock, Tick};
use lock_core::store::stock::StockCall;
use lock_core::store::{StoreError, StoreErrorKind};
use lock_store_records::RecordStore;
use lock_store_records::rows::time;
use lock_store_records::stock::{Calls, StockDatabase, Stocks, Terms, pass};
use mongodb::bson::{Document, doc};
use tokio::sync::{
    Mutex, OnceCell, OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, Semaphore,
};

use super::commands;
use crate::call::count_of;
use crate::classify::{During, Fault, answered, failed, fault_of_commit};
use crate::documents::batch_of;
use crate::records::Mongo;
use crate::server::{Bounds, Connected, Transaction};

/// Maximum number of commands of transactions that are under way at once. Others of the connections
/// are for locks.
const COMMANDS: usize = 5;

/// Maximum number of looks that are under way at once. Open transactions do not wait behind them.
const LOOKS: usize = 3;

/// Number of turns. Stocks, or segments, that share one by chance wait for each other.
const TURNS: usize = 64;

/// A database, as one manager sees it.
pub(crate) struct Place {
    /// The locks of the same database, with its clock.
    mongo: Arc<Mongo>,
    prefix: String,
    /// Whether there are collections and indexes.
    made: OnceCell<()>,
    commands: Semaphore,
    looks: Semaphore,
    turns: Turns,
}

/// Transactions that change the same document undo each other. So those of one manager take turns:
/// at the segments that they change, or at their stock.
struct Turns {
    stocks: Vec<Arc<RwLock<()>>>,
    segments: Vec<Arc<Mutex<()>>>,
}

/// The turn of a transaction.
enum Turn {
    Stock { _stock: OwnedRwLockWriteGuard<()> },
    Segments { _stock: OwnedRwLockReadGuard<()>, _segments: Vec<OwnedMutexGuard<()>> },
}

impl Turns {
    fn new() -> Self {
        Self {
            stocks: (0..TURNS).map(|_| Arc::default()).collect(),
            segments: (0..TURNS).map(|_| Arc::default()).collect(),
        }
    }

    /// Takes the turn of these segments, or that of the whole stock.
    async fn turn(&self, stock: &str, segments: Option<Vec<u32>>) -> Turn {
        let index = |what: (&str, u32)| {
            let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(what);
            (hash % TURNS as u64) as usize
        };
        let of_stock = self.stocks.get(index((stock, 0))).map(Arc::clone).unwrap_or_default();
        let Some(segments) = segments else { return Turn::Stock { _stock: of_stock.write_owned().await } };
        // In one order, and each once. The stock comes last, so whoever waits for all of it waits
        // for no queue of a segment.
        let indexes: BTreeSet<_> = segments.into_iter().map(|segment| index((stock, segment))).collect();
        let mut turns = Vec::with_capacity(indexes.len());
        for turn in indexes.into_iter().filter_map(|index| self.segments.get(index)) {
            turns.push(Arc::clone(turn).lock_owned().await);
        }
        Turn::Segments { _stock: of_stock.read_owned().await, _segments: turns }
    }
}

/// Makes the stocks of a database.
pub(crate) fn stocks(mongo: Arc<Mongo>, prefix: &str) -> Stocks<Place> {
    Stocks::new(Place {
        mongo,
        prefix: prefix.to_owned(),
        made: OnceCell::new(),
        commands: Semaphore::new(COMMANDS),
        looks: Semaphore::new(LOOKS),
        turns: Turns::new(),
    })
}

impl StockDatabase for Place {
    type Call = Call;

    async fn call(self: &Arc<Self>, call: &StockCall) -> Result<Call, StoreError> {
        let refuse = |text| Err(self.mongo.rows.error(StoreErrorKind::Unsupported, text));
        if !call.replication.is_none() {
            return refuse(
                "a stock in MongoDB cannot ask for replicas: each commit waits for a majority of the members; leave \
                 `replication` away",
            );
        }
        let bounds = Bounds::new(call.timeout);
        let retrying = crate::call::Call { mongo: &self.mongo, bounds };
        let connected = retrying.retrying(|| bounds.connected(&self.mongo.server)).await?;
        if !connected.is_set {
            return refuse(
                "stocks need transactions, which only a replica set has; start the server with `--replSet`, also if it \
                 is the only one",
            );
        }
        self.made.get_or_try_init(|| retrying.retrying(|| self.make(&connected, bounds))).await?;
        let terms = Terms::new(call, &self.prefix, self.mongo.time(bounds.left()).await?);
        Ok(Call { place: Arc::clone(self), bounds, terms })
    }
}

impl Place {
    /// Makes what is missing of collections and indexes, if this user may.
    async fn make(&self, connected: &Connected, bounds: Bounds) -> Result<(), Fault> {
        let collections = [commands::STOCKS, commands::SEGMENTS, commands::OPERATIONS];
        let make = try_join_all(collections.map(|collection| connected.make(collection)));
        bounds.within(During::Work, make).await?;
        match bounds.write(&self.mongo.server, commands::indexes()).await {
            Err(Fault::Failed(error)) if error.kind() != StoreErrorKind::Denied => Err(error.into()),
            Err(fault @ Fault::Again(_)) => Err(fault),
            _ => Ok(()),
        }
    }
}

/// One call on a stock.
pub(crate) struct Call {
    pub(super) place: Arc<Place>,
    pub(super) bounds: Bounds,
    pub(super) terms: Terms,
}

/// An open transaction, and its turn.
pub(crate) struct Open {
    transaction: Transaction,
    /// Whether its last command was answered, so that the driver can end it.
    is_clear: bool,
    _turn: Turn,
}

impl Call {
    pub(super) fn mongo(&self) -> &Mongo {
        &self.place.mongo
    }

    /// Returns the same call as one on records.
    pub(super) fn on_records(&self) -> crate::call::Call<'_> {
        crate::call::Call { mongo: self.mongo(), bounds: self.bounds }
    }

    /// Records that the primary reported the time `now` in answer to a command sent at `sent`.
    pub(super) fn observe(&self, now: i64, sent: Tick) {
        self.mongo().rows.observe(time(now), sent);
    }

    /// Begins one step of the call, if there is time.
    async fn before(&self, what: &str) -> Result<(), Fault> {
        pass("before", what).await;
        if self.left().is_zero() { Err(self.too_late().into()) } else { Ok(()) }
    }

    /// Runs a command beside few others, within the time of the call.
    async fn bounded<T>(
        &self,
        permits: &Semaphore,
        during: During,
        command: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let permit = async { Ok(permits.acquire().await) };
        let _permit = self.bounds.within(During::Work, permit).await?;
        self.bounds.within(during, command).await
    }

    /// Runs one command that reads what a majority has, at one moment. Returns also when it was
    /// sent, and the first document of its answer.
    pub(super) async fn read(&self, command: Document) -> Result<(Tick, Option<Document>), Fault> {
        self.before("look").await?;
        let read = self.bounds.read_at(&self.mongo().server, "snapshot", command);
        let (sent, answer) = self.bounded(&self.place.looks, During::Work, read).await?;
        pass("after", "look").await;
        Ok((sent, batch_of(&answer).into_iter().next()))
    }

    /// Runs one command that reads, and sees everything that was committed before, also after an
    /// election. Returns the same as [`read`](Self::read).
    pub(super) async fn read_current(&self, command: Document) -> Result<(Tick, Option<Document>), Fault> {
        self.before("look").await?;
        let sent = Clock::Boot.now();
        let read = self.bounds.read_current(&self.mongo().server, [command]);
        let answers = self.bounded(&self.place.looks, During::Work, read).await?;
        pass("after", "look").await;
        Ok((sent, answers.first().and_then(|answer| batch_of(answer).into_iter().next())))
    }

    /// Begins a transaction in the turn of these segments, or in that of the whole stock.
    pub(super) async fn open(&self, segments: Option<Vec<u32>>) -> Result<Open, Fault> {
        self.before("begin").await?;
        let turn = async { Ok(self.place.turns.turn(&self.terms.stock, segments).await) };
        let turn = self.bounds.within(During::Work, turn).await?;
        let transaction = self.bounds.begin(&self.mongo().server).await?;
        pass("after", "begin").await;
        Ok(Open { transaction, is_clear: true, _turn: turn })
    }

    /// Runs one command of a transaction, if there is time.
    pub(super) async fn run(
        &self,
        what: &str,
        open: &mut Open,
        mut command: Document,
    ) -> Result<Document, Fault> {
        self.before(what).await?;
        command.insert("maxTimeMS", self.bounds.milliseconds());
        let run = async {
            open.is_clear = false;
            let answer = open.transaction.run(command).await.map_err(failed)?;
            open.is_clear = true;
            answered(answer, During::Work)
        };
        let answer = self.bounded(&self.place.commands, During::Work, run).await?;
        pass("after", what).await;
        Ok(answer)
    }

    /// Runs a command that finds documents.
    pub(super) async fn find(&self, open: &mut Open, command: Document) -> Result<Vec<Document>, Fault> {
        Ok(batch_of(&self.run("read", open, command).await?))
    }

    /// Runs a command that changes documents, and returns how many.
    pub(super) async fn execute(&self, open: &mut Open, command: Document) -> Result<u64, Fault> {
        let answer = self.run("change", open, command).await?;
        Ok(count_of(&answer).unwrap_or_default() as u64)
    }

    /// Runs a command that must change exactly this many documents.
    pub(super) async fn change(&self, open: &mut Open, command: Document, count: usize) -> Result<(), Fault> {
        let changed = self.execute(open, command).await?;
        Ok(self.all(changed, count)?)
    }

    pub(super) async fn commit(&self, mut open: Open) -> Result<(), Fault> {
        if let Err(fault) = self.before("commit").await {
            self.undo(open).await;
            return Err(fault);
        }
        let commit = async { open.transaction.commit().await.map_err(|error| fault_of_commit(&error)) };
        self.bounded(&self.place.commands, During::Commit, commit).await?;
        pass("after", "commit").await;
        Ok(())
    }

    /// Undoes a transaction now, or else when it is dropped.
    pub(super) async fn undo(&self, mut open: Open) {
        if open.is_clear {
            let undo = async { open.transaction.abort().await.map_err(failed) };
            let _ = self.bounded(&self.place.commands, During::Work, undo).await;
        }
    }

    /// Waits until a majority has everything that an open transaction has read. No failover undoes
    /// it then.
    pub(super) async fn settle(&self, open: &mut Open) -> Result<(), Fault> {
        let settle = open.transaction.settle(self.bounds);
        match self.bounded(&self.place.commands, During::Work, settle).await {
            Err(Fault::Failed(error)) if error.outcome_unknown() => {
                return Err(Fault::Again(error.to_string()));
            }
            other => other?,
        }
        // A primary that is deposed ends its transactions. So it was this one that has waited.
        self.find(open, commands::find_one(commands::STOCKS, "", doc! { "_id": 1 })).await.map(drop)
    }

    pub(super) fn int(&self, document: &Document, field: &str) -> Result<i64, StoreError> {
        document.get_i64(field).map_err(|_| self.unreadable(field, document))
    }

    pub(super) fn unreadable(&self, field: &str, document: &Document) -> StoreError {
        self.broken(format_args!("its field `{field}` is missing or has the wrong type in {document}"))
    }
}
