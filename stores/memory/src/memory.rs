//! [`Memory`]: records in the memory of a process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::sync::{Mutex, MutexGuard, lock};
use lock_core::store::{Abilities, Cursor, Few, Mark, Marked, Notices, ServerTime, StoreError};
use lock_store_records::{Change, Changed, Listeners, Name, Page, Record, RecordStore, Work};

use super::stock::Stocks;
use super::table::Table;

/// The features of the store: everything but replication.
const ABILITIES: Abilities = Abilities {
    name: "the memory store",
    fair: true,
    read_write: true,
    downgrade: true,
    several: true,
    shortens: true,
    takeovers: true,
    direct_grants: true,
    notices: Notices::Pushed,
    counts_listeners: true,
    scan: true,
    ..Abilities::MUTEX
};

/// Maximum number of records that one page of a scan looks at.
const PAGE: usize = 256;

/// The data shared by all handles of one store.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) clock: Clock,
    /// The wall clock at the clock's origin, in microseconds since the Unix epoch.
    pub(super) epoch: u64,
    table: Mutex<Table>,
    pub(super) stocks: Stocks,
    /// Since when the store remembers everything, by prefix as for the locks; absent until first
    /// marked.
    pub(super) markers: Mutex<BTreeMap<Arc<str>, ServerTime>>,
}

impl Memory {
    pub(super) fn new() -> Arc<Self> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = u64::try_from(since_epoch.as_micros()).unwrap_or(0);
        Arc::new(Self::with(Clock::tokio(), epoch, Table::default()))
    }

    pub(super) fn with(clock: Clock, epoch: u64, table: Table) -> Self {
        let (stocks, markers) = Default::default();
        Self { clock, epoch, table: Mutex::new(table), stocks, markers }
    }

    pub(super) fn time_at(&self, tick: Tick) -> ServerTime {
        ServerTime::from_micros(self.epoch.saturating_add(tick.as_nanos() / 1000))
    }

    pub(super) fn now(&self) -> ServerTime {
        self.time_at(self.clock.now())
    }

    /// Locks the table. No step runs foreign code while the table is locked, so poison can be
    /// ignored.
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// Makes one atomic step. The time is read under the mutex, so a later step also has a later
    /// time. Watches are notified after the mutex is released.
    pub(super) fn step<T>(&self, change: &Change, step: impl FnOnce(&mut Work<'_>) -> T) -> Changed<T> {
        let names = &change.names;
        let mut table = self.table();
        let now = self.now();
        table.purge(now, 2 * names.len() + 2);
        let mut records: Few<Record> = names.iter().map(|name| table.take(name)).collect();
        let mut work = Work::new(&mut records, names, now, &table.listeners, &ABILITIES);
        let answer = step(&mut work);
        let bell = work.bell();
        for (name, record) in names.iter().zip(records) {
            table.put(name, record);
        }
        drop(table);
        Changed { answer, now, heard: bell.ring(change.handle) }
    }

    pub(super) fn mark(&self, prefix: &Arc<str>, mark: Mark) -> Marked {
        let server_time = self.now();
        let mut markers = lock(&self.markers);
        match mark {
            Mark::Look => {}
            Mark::Make => {
                let since = markers.entry(Arc::clone(prefix)).or_insert(server_time);
                *since = server_time.min(*since);
            }
            Mark::First { latest } if server_time > latest => {}
            Mark::First { .. } => drop(markers.insert(Arc::clone(prefix), ServerTime::from_micros(0))),
        }
        Marked { since: markers.get(prefix).copied(), server_time }
    }
}

impl RecordStore for Memory {
    fn abilities(&self) -> &Abilities {
        &ABILITIES
    }

    /// Nothing lies between sending and executing here, but requests are stamped all the same, so
    /// that an engine tested on this store meets the rule.
    async fn time(&self, _: Duration) -> Result<ServerTime, StoreError> {
        Ok(self.now())
    }

    async fn change<T, F>(&self, change: Change, step: F) -> Result<Changed<T>, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Work<'_>) -> T + Send + 'static,
    {
        Ok(self.step(&change, step))
    }

    async fn page(&self, prefix: &str, cursor: Option<Cursor>, _: Duration) -> Result<Page, StoreError> {
        let after = cursor.as_ref().map(|cursor| std::str::from_utf8(cursor.as_bytes()));
        let after = after.transpose().map_err(|_| Cursor::refusal())?;
        let table = self.table();
        let (locks, more) = table.page(prefix, after, PAGE);
        let last = locks.last().filter(|_| more).map(|(name, _)| Cursor::new(name.text.as_bytes()));
        Ok(Page { locks, next: last, now: self.now() })
    }

    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn listen(&self, _: Vec<Name>, _: Duration) -> Result<bool, StoreError> {
        Ok(true)
    }

    fn listeners<T>(&self, access: impl FnOnce(&mut Listeners) -> T) -> T {
        access(&mut self.table().listeners)
    }
}
