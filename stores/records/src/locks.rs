//! [`Records`]: the contract of a store on any [`RecordStore`].

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::LockKey;
use lock_core::store::stock::StockStore;
use lock_core::store::{
    Abilities, AcquireRequest, Acquired, BoxFuture, Busy, Few, Granted, Item, LatchStore, LockStatus,
    LockStore, Notices, ReleaseRequest, Released, RenewItem, RenewRequest, Renewed, ScanRequest, Scanned,
    SemaphoreStore, ServerTime, StoreError, StoreErrorKind, TokenRange, Watch, Withdrawn,
};

use tokio::time::Instant;

use crate::latches::Latches;
use crate::listeners::{Channel, HandleId, Listeners, Watched};
use crate::record::{Class, Name, Record};
use crate::semaphores::Semaphores;
use crate::step::status_of;
use crate::store::{Access, Change, Changed, RecordStore, Work};

/// One manager's handle on a database: locks, semaphores, latches, and stocks if there are any.
pub struct Records<R> {
    pub(crate) store: Arc<R>,
    pub(crate) handle: HandleId,
    pub(crate) prefix: Arc<str>,
    /// Time-out of a call whose request has none.
    timeout: Duration,
    stocks: Option<Arc<dyn StockStore>>,
}

impl<R> Clone for Records<R> {
    fn clone(&self) -> Self {
        let (store, prefix) = (Arc::clone(&self.store), Arc::clone(&self.prefix));
        Self { store, prefix, stocks: self.stocks.clone(), ..*self }
    }
}

impl<R> fmt::Debug for Records<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records")
            .field("prefix", &self.prefix)
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

impl<R: RecordStore> Records<R> {
    /// Creates another handle on `store`. `prefix` is put in front of every key, and `timeout` is
    /// that of calls whose request has none.
    #[must_use]
    pub fn new(store: Arc<R>, prefix: &str, timeout: Duration) -> Self {
        let handle = store.listeners(Listeners::handle);
        Self { store, handle, prefix: Arc::from(prefix), timeout, stocks: None }
    }

    /// Adds the stocks of the same database.
    #[must_use]
    pub fn with_stocks(self, stocks: Arc<dyn StockStore>) -> Self {
        Self { stocks: Some(stocks), ..self }
    }

    /// Returns the database.
    #[must_use]
    pub fn store(&self) -> &Arc<R> {
        &self.store
    }

    /// Returns what is put in front of every key.
    #[must_use]
    pub fn prefix(&self) -> &Arc<str> {
        &self.prefix
    }

    pub(crate) fn name(&self, class: Class, key: &LockKey) -> Name {
        Name { class, text: key.prefixed(&self.prefix) }
    }

    /// Returns the names of these keys, each once, and for each key the index of its name.
    pub(crate) fn distinct<'a>(
        &self,
        class: Class,
        keys: impl ExactSizeIterator<Item = &'a LockKey>,
    ) -> (Few<Name>, Few<usize>) {
        let (mut names, mut indexes) = (Few::new(), Few::new());
        if keys.len() == 1 {
            names.extend(keys.map(|key| self.name(class, key)));
            return (names, Few::one(0));
        }
        let mut found = HashMap::new();
        for key in keys {
            let index = *found.entry(key).or_insert_with(|| {
                names.push(self.name(class, key));
                names.len() - 1
            });
            indexes.push(index);
        }
        (names, indexes)
    }

    fn names<'a>(&self, items: impl IntoIterator<Item = &'a Item>) -> Few<Name> {
        items.into_iter().map(|item| self.name(Class::Lock, &item.key)).collect()
    }

    pub(crate) fn change(&self, names: Few<Name>, access: Access, timeout: Duration) -> Change {
        Change { names, access, handle: self.handle, latest: None, timeout }
    }

    /// Acquires, unless the database's time is past `latest`.
    ///
    /// # Errors
    ///
    /// As for [`LockStore::acquire`].
    pub async fn acquire_by(
        &self,
        request: Arc<AcquireRequest>,
        latest: ServerTime,
    ) -> Result<Acquired, StoreError> {
        check_items(&request)?;
        let change = self.change(self.names(&request.items), Access::Change, request.timeout);
        let change = Change { latest: Some(latest), ..change };
        let step = move |work: &mut Work<'_>| work.acquire(&request, latest);
        let Changed { answer, now, .. } = self.store.change(change, step).await?;
        Ok(match answer? {
            Ok(tokens) => Acquired::Granted(granted(tokens, now)),
            Err(busy) => Acquired::Busy(Busy { moment: now.into(), ..busy }),
        })
    }

    /// Releases; `latest` is the latest time of the takeover, if there is one.
    ///
    /// # Errors
    ///
    /// As for [`LockStore::release`].
    pub async fn release_by(
        &self,
        request: Arc<ReleaseRequest>,
        latest: Option<ServerTime>,
    ) -> Result<Released, StoreError> {
        let (names, places) = self.distinct(Class::Lock, request.items.iter().map(|item| &item.key));
        let change = self.change(names, Access::Change, request.timeout);
        let change = Change { latest, ..change };
        let (own_watch, handle) = (request.own_watch.clone(), self.handle);
        let step = move |work: &mut Work<'_>| work.release(&request, &places, latest, handle);
        let Changed { answer, now, heard } = self.store.change(change, step).await?;
        if let Some(own) = own_watch.filter(|_| heard.0) {
            own.expect();
        }
        let then = answer.then.map(|tokens| granted(tokens, now));
        Ok(Released { held: answer.held, rivals: answer.rivals, then })
    }

    /// Makes a step for each item. An error of one costs no other.
    async fn each(
        &self,
        request: Arc<RenewRequest>,
        step: fn(&mut Work<'_>, usize, &RenewItem) -> Renewed,
    ) -> Result<Vec<Renewed>, StoreError> {
        let started = Instant::now();
        let mut answers = self.all(request.items.clone(), request.timeout, step).await?;
        if request.items.len() == 1 {
            return Ok(answers);
        }
        // A record that somebody else had locked is waited for, now that the others are done.
        for (kept, answer) in request.items.iter().zip(&mut answers) {
            let left = request.timeout.saturating_sub(started.elapsed());
            if *answer == Renewed::Unknown && !left.is_zero() {
                let again = self.all(vec![kept.clone()], left, step).await;
                *answer = again.ok().and_then(|again| again.first().copied()).unwrap_or(Renewed::Unknown);
            }
        }
        Ok(answers)
    }

    /// Makes a step for each item, at once.
    async fn all(
        &self,
        items: Vec<RenewItem>,
        timeout: Duration,
        step: fn(&mut Work<'_>, usize, &RenewItem) -> Renewed,
    ) -> Result<Vec<Renewed>, StoreError> {
        let (names, places) = self.distinct(Class::Lock, items.iter().map(|kept| &kept.item.key));
        let change = self.change(names, Access::Each, timeout);
        let all = move |work: &mut Work<'_>| {
            let one = |(index, kept): (&usize, _)| match work.skipped.contains(index) {
                true => Renewed::Unknown,
                false => step(work, *index, kept),
            };
            places.iter().zip(&items).map(one).collect()
        };
        Ok(self.store.change(change, all).await?.answer)
    }
}

fn renew(work: &mut Work<'_>, index: usize, kept: &RenewItem) -> Renewed {
    work.renew(index, kept)
}

fn downgrade(work: &mut Work<'_>, index: usize, kept: &RenewItem) -> Renewed {
    work.downgrade(index, kept)
}

fn granted(tokens: Few<TokenRange>, now: ServerTime) -> Granted {
    Granted { tokens, moment: now.into() }
}

impl<R: RecordStore> LockStore for Records<R> {
    fn abilities(&self) -> &Abilities {
        self.store.abilities()
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        let records = self.clone();
        Box::pin(async move {
            records.abilities().allow(&request)?;
            let latest = request.stamp(records.store.time(request.timeout).await?);
            records.acquire_by(request, latest).await
        })
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        let records = self.clone();
        Box::pin(async move {
            let latest = match &request.then {
                Some(takeover) => Some(takeover.request.stamp(records.store.time(request.timeout).await?)),
                None => None,
            };
            records.release_by(request, latest).await
        })
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        let records = self.clone();
        Box::pin(async move { records.each(request, renew).await })
    }

    fn downgrade(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        let records = self.clone();
        Box::pin(async move { records.each(request, downgrade).await })
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        let records = self.clone();
        Box::pin(async move {
            let latest = request.seal();
            let (names, places) = records.distinct(Class::Lock, request.items.iter().map(|item| &item.key));
            let change = records.change(names, Access::Settle, request.timeout);
            let step = move |work: &mut Work<'_>| work.withdraw(&request, &places);
            let Changed { now, .. } = records.store.change(change, step).await?;
            Ok(latest.map_or(Withdrawn::Settled, |latest| Withdrawn::by(latest, now)))
        })
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        let records = self.clone();
        Box::pin(async move {
            let abilities = records.abilities();
            let channel = |item: &Item| (records.name(Class::Lock, &item.key), Channel::of(item, abilities));
            records.listen(request.items.iter().map(channel).collect(), request.timeout).await
        })
    }

    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        let records = self.clone();
        Box::pin(async move {
            let change =
                records.change(Few::one(records.name(Class::Lock, &key)), Access::Look, records.timeout);
            let step = move |work: &mut Work<'_>| work.status();
            Ok(records.store.change(change, step).await?.answer)
        })
    }

    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>> {
        let records = self.clone();
        Box::pin(async move {
            let change =
                records.change(Few::one(records.name(Class::Lock, &key)), Access::Change, records.timeout);
            let step = move |work: &mut Work<'_>| work.force_release(&key);
            Ok(records.store.change(change, step).await?.answer)
        })
    }

    fn scan(&self, request: ScanRequest) -> BoxFuture<Result<Scanned, StoreError>> {
        let records = self.clone();
        Box::pin(async move {
            let ScanRequest { prefix, cursor, timeout } = request;
            let prefix = format!("{}{prefix}", records.prefix);
            let page = records.store.page(&prefix, cursor, timeout).await?;
            let found = page.locks.into_iter().filter_map(|(name, record)| {
                let Record::Lock(lock) = &record else { return None };
                lock.ends(page.now)?;
                // Handles with other prefixes may have keys that are invalid here.
                let key = LockKey::new(name.text.strip_prefix(&*records.prefix)?).ok()?;
                let status = records.store.listeners(|listeners| status_of(&name, lock, page.now, listeners));
                Some((key, status))
            });
            Ok(Scanned { locks: found.collect(), next: page.next })
        })
    }

    fn check(&self) -> BoxFuture<Result<(), StoreError>> {
        let store = Arc::clone(&self.store);
        Box::pin(async move { store.check().await })
    }

    fn semaphores(&self) -> Option<Arc<dyn SemaphoreStore>> {
        Some(Arc::new(Semaphores(self.clone())))
    }

    fn stocks(&self) -> Option<Arc<dyn StockStore>> {
        self.stocks.clone()
    }

    fn latches(&self) -> Option<Arc<dyn LatchStore>> {
        Some(Arc::new(Latches(self.clone())))
    }
}

impl<R: RecordStore> Records<R> {
    /// Makes a watch, if listeners can hear of every change.
    pub(crate) async fn listen(
        &self,
        channels: Vec<(Name, Channel)>,
        timeout: Duration,
    ) -> Result<Watch, StoreError> {
        if self.store.abilities().notices == Notices::Polled {
            return Ok(Watch::polled());
        }
        let public = channels.iter().filter(|(_, channel)| channel.is_public());
        let public = public.map(|(name, _)| name.clone()).collect();
        let (notices, watched) = self.store.listeners(|listeners| listeners.watch(self.handle, channels));
        let registration = Registration { store: Arc::downgrade(&self.store), watched };
        Ok(match self.store.listen(public, timeout).await? {
            true => Watch::new(notices, true, Box::new(registration)),
            false => Watch::polled(),
        })
    }
}

/// Removes a watch on drop. Weak, so that a leaked watch does not keep a store alive.
struct Registration<R: RecordStore> {
    store: Weak<R>,
    watched: Watched,
}

impl<R: RecordStore> Drop for Registration<R> {
    fn drop(&mut self) {
        let Some(store) = self.store.upgrade() else { return };
        store.listeners(|listeners| listeners.unwatch(&self.watched));
    }
}

/// Refuses a request without keys, or with one twice.
fn check_items(request: &AcquireRequest) -> Result<(), StoreError> {
    let items = &request.items;
    let mut seen = HashSet::new();
    let problem = match items.len() {
        0 => "a request without keys",
        1 => return Ok(()),
        _ if items.iter().all(|item| seen.insert(&item.key)) => return Ok(()),
        _ => "a request that names a key twice",
    };
    Err(StoreError::new(StoreErrorKind::Refused, format!("the store refuses {problem}")))
}
