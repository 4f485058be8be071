//! [`Sql`]: records in a database.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::lock;
use lock_core::store::{Abilities, Cursor, ServerTime, StoreError};
#[cfg(feature = "postgres")]
use lock_store_records::rows::Station;
use lock_store_records::rows::{Grouped, Groups, Rows, Tried, time, travel};
use lock_store_records::{Access, Change, Changed, Class, Listeners, Name, Page, RecordStore, Work as Step};

use crate::call::{Call, NO_TABLE, attempts};
use crate::links::Links;
use crate::notices::Notices;
use crate::plumbing::Arg;
#[cfg(feature = "postgres")]
use crate::plumbing::During;
use crate::row::read_row;
use crate::statements::{Statements, TABLE};
#[cfg(feature = "postgres")]
use crate::station::{Postgres, station};
use crate::sweep::Sweeper;

/// Number of rows in a page of a scan.
const PAGE: i64 = 500;

/// Maximum time of a check. Its caller has a shorter one.
const CHECK: Duration = Duration::from_secs(60);

/// A database that keeps records.
pub struct Sql {
    /// For steps.
    links: Links,
    /// For renewals, so that no queue of steps delays them.
    steady: Links,
    pub(crate) statements: Statements,
    pub(crate) rows: Rows,
    pub(crate) notices: Notices,
    /// Where this manager hears of the steps of others.
    #[cfg(feature = "postgres")]
    station: Option<Arc<Station<Postgres>>>,
    pub(crate) groups: Groups,
    /// For tasks that go on with the steps of others.
    me: Weak<Self>,
    sweeper: Arc<Sweeper>,
}

impl Sql {
    pub(crate) fn new(links: Links, steady: Links, abilities: Abilities) -> Arc<Self> {
        let statements = Statements::of(&links.options);
        let rows = Rows::new(links.options.name(), TABLE, abilities);
        let notices = Notices::of(&links.options);
        if links.options.is_server() {
            // Until messages arrive.
            lock(&rows.listeners).listen_at(None);
        }
        #[cfg(feature = "postgres")]
        let station = station(&notices, &links, &statements, &rows.listeners).map(Arc::new);
        let sweeper = Arc::new(Sweeper::new(steady.clone(), statements.clone()));
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        let steady = if links.options.is_server() { steady.or_from(&links) } else { steady };
        Arc::new_cyclic(|me| Self {
            groups: Groups::default(),
            me: Weak::clone(me),
            sweeper,
            links,
            steady,
            statements,
            rows,
            notices,
            #[cfg(feature = "postgres")]
            station,
        })
    }

    /// Returns the name of the database in errors.
    pub(crate) fn database(&self) -> &'static str {
        self.links.options.name()
    }

    /// Records that the database said its time in answer to a statement sent at `sent`.
    pub(crate) fn observe(&self, now: ServerTime, sent: Tick) {
        self.rows.observe(now, sent);
    }

    /// Sweeps a page of the table.
    #[cfg(test)]
    pub(crate) async fn sweep(&self) -> Result<(), sqlx::Error> {
        self.sweeper.page().await.map(drop)
    }

    /// Returns the row of a step that others on it can travel with.
    fn grouped(&self, change: &Change) -> Option<Name> {
        // In SQLite a transaction needs no round trips.
        change.alone().filter(|_| self.links.options.is_server()).cloned()
    }

    /// Returns the row that a change can compare and swap.
    fn swapped(&self, change: &Change) -> Option<Name> {
        self.grouped(change).filter(|_| change.access != Access::Settle)
    }

    async fn read_page(
        &self,
        prefix: &str,
        cursor: Option<Cursor>,
        timeout: Duration,
    ) -> Result<Page, StoreError> {
        let after = cursor.as_ref().map(|cursor| std::str::from_utf8(cursor.as_bytes()));
        let after = after.transpose().map_err(|_| Cursor::refusal())?.unwrap_or_default();
        // No key has a larger character behind the prefix.
        let last = format!("{prefix}{}", char::MAX);
        let args = [Arg::Text(after), Arg::Text(prefix), Arg::Text(&last), Arg::Int(PAGE)];
        let call = self.call(timeout);
        let page = &self.statements.page;
        let rows: Result<_, StoreError> = attempts!(call, call.read(page, &args));
        let (_, rows) = rows?;
        let read = || {
            let mut page = Page { locks: Vec::new(), next: None, now: time(0) };
            for row in &rows {
                page.now = page.now.max(time(row.int(0)?));
                let name = row.maybe_text(1)?.unwrap_or_default();
                page.next = Some(Cursor::new(name.as_bytes()));
                let name = Name { class: Class::Lock, text: name.into() };
                // Somebody else's data is no lock.
                let record = read_row(row, 2)?.and_then(|found| found.row.record(Class::Lock).ok());
                page.locks.extend(record.map(|record| (name, record)));
            }
            page.next = page.next.filter(|_| rows.len() as i64 == PAGE);
            Ok(page)
        };
        read().map_err(|error| call.unreadable(&error).error(NO_TABLE))
    }

    fn call(&self, timeout: Duration) -> Call<'_> {
        Call::new(self, &self.links, timeout)
    }
}

impl fmt::Debug for Sql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sql").field("database", &self.database()).finish_non_exhaustive()
    }
}

impl Grouped for Sql {
    fn groups(&self) -> &Groups {
        &self.groups
    }

    fn rows(&self) -> &Rows {
        &self.rows
    }

    fn me(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    async fn make<T, F>(&self, change: Change, mut step: F) -> Result<Changed<T>, StoreError>
    where
        T: Send,
        F: FnMut(&mut Step<'_>) -> T + Send,
    {
        let links = if change.access == Access::Each { &self.steady } else { &self.links };
        let call = Call::new(self, links, change.timeout);
        call.check_names(&change.names)?;
        if let Some(name) = self.swapped(&change) {
            let swapped: Result<_, StoreError> = attempts!(call, call.swap(&change, &name, &mut step));
            // A row that can't be swapped is locked.
            if let Tried::Made(changed) = swapped? {
                return Ok(changed);
            }
        }
        attempts!(call, call.attempt(&change, &mut step))
    }
}

impl RecordStore for Sql {
    fn abilities(&self) -> &Abilities {
        &self.rows.abilities
    }

    async fn time(&self, timeout: Duration) -> Result<ServerTime, StoreError> {
        if let Some(estimate) = self.rows.stamp() {
            return Ok(estimate);
        }
        let call = self.call(timeout);
        attempts!(call, call.time())
    }

    async fn change<T, F>(&self, change: Change, step: F) -> Result<Changed<T>, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Step<'_>) -> T + Send + 'static,
    {
        self.sweeper.go_on();
        // Users poll the calls that only look.
        if change.access == Access::Look {
            return self.in_task(|me| async move { me.make(change, step).await }).await;
        }
        match (self.grouped(&change), self.me()) {
            (Some(name), Some(me)) => travel(me, &name, change, step).await,
            _ => self.make(change, step).await,
        }
    }

    async fn page(
        &self,
        prefix: &str,
        cursor: Option<Cursor>,
        timeout: Duration,
    ) -> Result<Page, StoreError> {
        let prefix = prefix.to_owned();
        self.in_task(|me| async move { me.read_page(&prefix, cursor, timeout).await }).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        let call = self.call(CHECK);
        attempts!(call, call.check())
    }

    async fn listen(&self, names: Vec<Name>, timeout: Duration) -> Result<bool, StoreError> {
        #[cfg(feature = "postgres")]
        if let Some(station) = self.station.clone() {
            // Others wait until it is registered.
            let listen = |me: Arc<Self>| async move {
                let call = Call::new(&me, &me.steady, timeout);
                attempts!(call, call.bounded(During::Work, station.listen(&names)))
            };
            return self.in_task(listen).await.map(|()| true);
        }
        let _ = (names, timeout);
        Ok(false)
    }

    fn listeners<T>(&self, access: impl FnOnce(&mut Listeners) -> T) -> T {
        access(&mut lock(&self.rows.listeners))
    }
}
