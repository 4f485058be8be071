//! [`Mongo`]: records in MongoDB.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::{Abilities, Cursor, ServerTime, StoreError};
use lock_store_records::rows::{Grouped, Groups, Pace, Rows, Station, new_version, travel};
use lock_store_records::{
    Access, Change, Changed, Class, ListenerId, Listeners, Name, Page, RecordStore, Work,
};
use mongodb::bson::Document;

use crate::call::{Call, batch};
use crate::classify::{DATABASE, During, Fault};
use crate::documents::{self, COLLECTION, PAGE, Read};
use crate::server::{Bounds, Server, Shared, Target};
use crate::station::{Stream, station};

/// Maximum time of a check. Its caller has a shorter one.
const CHECK: Duration = Duration::from_secs(60);

/// Time for sweeping a page.
const SWEEP: Duration = Duration::from_secs(5);

/// A database that keeps records.
pub struct Mongo {
    pub(crate) server: Shared,
    pub(crate) rows: Rows,
    /// Where this manager hears of the steps of others.
    pub(crate) here: ListenerId,
    station: Station<Stream>,
    groups: Groups,
    pace: Arc<Pace>,
    /// The last document that was swept.
    swept: Mutex<String>,
    /// For tasks that go on with the steps of others.
    me: Weak<Self>,
}

impl Mongo {
    pub(crate) fn new(target: Target, timeout: Duration, abilities: Abilities) -> Arc<Self> {
        let server = Arc::new(Server::new(target, timeout));
        let rows = Rows::new(DATABASE, COLLECTION, abilities);
        // Until messages arrive.
        lock(&rows.listeners).listen_at(None);
        let here: ListenerId = new_version().chars().take(12).collect::<String>().into();
        let station = station(Arc::clone(&here), &server, &rows.listeners);
        Arc::new_cyclic(|me| Self {
            server,
            rows,
            here,
            station,
            groups: Groups::default(),
            pace: Arc::default(),
            swept: Mutex::default(),
            me: Weak::clone(me),
        })
    }

    async fn read_page(
        &self,
        prefix: &str,
        cursor: Option<Cursor>,
        timeout: Duration,
    ) -> Result<Page, StoreError> {
        let after = cursor.as_ref().map(|cursor| std::str::from_utf8(cursor.as_bytes()));
        let after = after.transpose().map_err(|_| Cursor::refusal())?;
        let call = Call::new(self, timeout);
        let documents = call.retrying(|| call.list(documents::page(prefix, after))).await?;
        let mut page = Page { locks: Vec::new(), next: None, now: ServerTime::from_micros(0) };
        for document in &documents {
            let id = document.get_str("_id").unwrap_or_default();
            let Some((_, name)) = id.split_once(':') else { continue };
            page.next = Some(Cursor::new(name.as_bytes()));
            // Somebody else's data is no lock.
            let Ok(read) = Read::of(document) else { continue };
            page.now = page.now.max(read.now);
            let name = Name { class: Class::Lock, text: name.into() };
            page.locks.extend(read.found.row.record(Class::Lock).ok().map(|record| (name, record)));
        }
        page.next = page.next.filter(|_| documents.len() == PAGE);
        Ok(page)
    }

    /// Sweeps a page; returns when the next one is due.
    pub(crate) async fn sweep(&self) -> Result<Duration, StoreError> {
        let after = lock(&self.swept).clone();
        let call = Call::new(self, SWEEP);
        let documents = call.list(documents::over(&after)).await.map_err(Fault::error)?;
        let id = |document: &Document| document.get_str("_id").unwrap_or_default().to_owned();
        let over = documents.iter().filter(|document| document.get_bool("over").unwrap_or(false));
        let over: Vec<String> = over.map(id).collect();
        // After the last page, the first one.
        let is_last = documents.len() < PAGE;
        *lock(&self.swept) = documents.last().filter(|_| !is_last).map(id).unwrap_or_default();
        if !over.is_empty() {
            call.bounds.write(&self.server, documents::remove(&over)).await.map_err(Fault::error)?;
        }
        Ok(Pace::after(documents.len(), over.len(), is_last))
    }
}

impl fmt::Debug for Mongo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mongo").field("here", &self.here).finish_non_exhaustive()
    }
}

impl Grouped for Mongo {
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
        F: FnMut(&mut Work<'_>) -> T + Send,
    {
        let call = Call::new(self, change.timeout);
        // Renewals never wait for steps.
        let _permit = match change.access {
            Access::Each => None,
            _ => call.permit().await?,
        };
        if change.access == Access::Look {
            return call.look_at(&change, &mut step).await;
        }
        let made = async {
            match (&*change.names, change.access) {
                ([name], _) => call.one(&change, name, &mut step).await,
                (_, Access::Each) => batch(&call, &change, &mut step).await,
                _ => call.several(&change, &mut step).await,
            }
        };
        call.bounds.patiently(&self.server, made).await
    }
}

impl RecordStore for Mongo {
    fn abilities(&self) -> &Abilities {
        &self.rows.abilities
    }

    async fn time(&self, timeout: Duration) -> Result<ServerTime, StoreError> {
        if let Some(estimate) = self.rows.stamp() {
            return Ok(estimate);
        }
        let call = Call::new(self, timeout);
        call.retrying(|| call.time()).await
    }

    async fn change<T, F>(&self, change: Change, mut step: F) -> Result<Changed<T>, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Work<'_>) -> T + Send + 'static,
    {
        let me = self.me();
        if let Some(me) = me.clone() {
            self.pace.go_on(|| async move { me.sweep().await });
        }
        match (change.alone().cloned(), me) {
            (Some(name), Some(me)) => travel(me, &name, change, step).await,
            _ => self.in_task(|me| async move { me.make(change, &mut step).await }).await,
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
        let call = Call::new(self, CHECK);
        call.retrying(|| call.check()).await
    }

    async fn listen(&self, names: Vec<Name>, timeout: Duration) -> Result<bool, StoreError> {
        let bounds = Bounds::new(timeout);
        let listen = |me: Arc<Self>| async move {
            let connected = bounds.connected(&me.server).await;
            if !connected.map_err(Fault::error)?.is_set {
                return Ok(false);
            }
            let listening = bounds.within(During::Work, me.station.listen(&names)).await;
            listening.map_err(Fault::error)?;
            Ok(true)
        };
        self.in_task(listen).await
    }

    fn listeners<T>(&self, access: impl FnOnce(&mut Listeners) -> T) -> T {
        access(&mut lock(&self.rows.listeners))
    }
}
