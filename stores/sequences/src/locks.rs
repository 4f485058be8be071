//! [`Sequences`]: the contract of a store on any [`OrderedStore`].

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::clock::Clock;
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::kit::bounded;
use lock_core::store::{
    Abilities, AcquireRequest, Acquired, BoxFuture, Item, LateRequests, LockStatus, LockStore, Notice,
    Notices, ReleaseRequest, Released, RenewRequest, Renewed, ScanRequest, Scanned, SemaphoreStore,
    StoreError, Tokens, Watch, Withdrawn,
};
use tokio::sync::{Notify, mpsc};

use crate::entries::{Entries, State, tell};
use crate::lost::Lost;
use crate::semaphores::Semaphores;
use crate::sessions::{Live, Sessions};
use crate::store::{Class, Entry, Epoch, OrderedStore};

/// The abilities of every store of ordered entries. The tokens of a grant are its revision times
/// `most_tokens`, and those behind it.
pub const ABILITIES: Abilities = Abilities {
    fair: true,
    read_write: true,
    queues_read_write: true,
    several: true,
    queues_mutexes: true,
    shortens: true,
    direct_grants: true,
    notices: Notices::Pushed,
    tokens: Tokens::Revision,
    own_tokens: false,
    most_tokens: 1024,
    late_requests: LateRequests::BySession,
    scan: true,
    ..Abilities::MUTEX
};

/// Maximum number of queued notices of a watch.
const QUEUE: usize = 4;

/// The settings of a manager's handle.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Put in front of every key.
    pub prefix: String,
    /// Time-out of a call whose request has none.
    pub call_timeout: Duration,
}

/// One manager's handle on a store of ordered entries.
pub struct Sequences<S> {
    locks: Arc<Inner<S>>,
    permits: Arc<Semaphores<S>>,
}

pub(crate) struct Inner<S> {
    pub(crate) store: Arc<S>,
    pub(crate) settings: Settings,
    /// For permits: what is behind the name of their semaphore.
    pub(crate) leases: Option<&'static str>,
    pub(crate) clock: Clock,
    pub(crate) sessions: Sessions,
    /// Entries move to other sessions one after the other.
    pub(crate) attaching: tokio::sync::Mutex<()>,
    pub(crate) entries: Mutex<Entries>,
    pub(crate) lost: Arc<Lost>,
    /// Wakes the sweeper for an earlier end.
    pub(crate) earlier: Arc<Notify>,
    pub(crate) me: Weak<Self>,
}

impl<S: OrderedStore> Sequences<S> {
    /// Creates a handle on `store`.
    #[must_use]
    pub fn new(store: S, settings: Settings) -> Self {
        let store = Arc::new(store);
        let permits = Inner::new(Arc::clone(&store), settings.clone(), S::LEASES);
        Self { locks: Inner::new(store, settings, None), permits: Semaphores::new(permits) }
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.locks.store
    }

    fn call<T: Send + 'static, F>(
        &self,
        limit: Duration,
        call: impl FnOnce(Arc<Inner<S>>) -> F + Send + 'static,
    ) -> BoxFuture<Result<T, StoreError>>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let inner = Arc::clone(&self.locks);
        Box::pin(async move { bounded(limit, call(inner)).await })
    }
}

impl<S: OrderedStore> LockStore for Sequences<S> {
    fn abilities(&self) -> &Abilities {
        self.locks.store.abilities()
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        self.call(request.timeout, |inner| async move { inner.acquire(&request).await })
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        self.call(request.timeout, |inner| async move { inner.release(&request).await })
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        self.call(request.timeout, |inner| async move { inner.renew(&request).await })
    }

    fn downgrade(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        self.call(request.timeout, |inner| async move { inner.downgrade(&request).await })
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        self.call(request.timeout, |inner| async move { inner.withdraw(&request).await })
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        let inner = Arc::clone(&self.locks);
        Box::pin(async move { Ok(inner.watch(&request)) })
    }

    fn lost(&self) -> Option<BoxFuture<Vec<Item>>> {
        self.locks.lost.begin();
        let lost = Arc::clone(&self.locks.lost);
        Some(Box::pin(async move { lost.take().await }))
    }

    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        self.call(self.locks.settings.call_timeout, |inner| async move { inner.status(&key).await })
    }

    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>> {
        self.call(self.locks.settings.call_timeout, |inner| async move { inner.force_release(&key).await })
    }

    fn scan(&self, request: ScanRequest) -> BoxFuture<Result<Scanned, StoreError>> {
        self.call(request.timeout, |inner| async move { inner.scan(request).await })
    }

    fn check(&self) -> BoxFuture<Result<(), StoreError>> {
        let inner = Arc::clone(&self.locks);
        Box::pin(async move { inner.store.check().await })
    }

    fn semaphores(&self) -> Option<Arc<dyn SemaphoreStore>> {
        S::LEASES.map(|_| Arc::clone(&self.permits) as _)
    }
}

impl<S: OrderedStore> Inner<S> {
    fn new(store: Arc<S>, settings: Settings, leases: Option<&'static str>) -> Arc<Self> {
        let clock = Clock::Boot;
        Arc::new_cyclic(|me| Self {
            store,
            settings,
            leases,
            clock,
            sessions: Sessions::new(clock),
            attaching: tokio::sync::Mutex::default(),
            entries: Mutex::default(),
            lost: Arc::default(),
            earlier: Arc::default(),
            me: Weak::clone(me),
        })
    }

    pub(crate) fn entry(&self, item: &Item) -> Entry {
        let (class, owner) = (Class::of(item.kind), item.owner.clone());
        let lock = item.key.prefixed(&self.settings.prefix);
        match self.leases {
            Some(leases) => Entry { lock: Arc::from(format!("{lock}{leases}")), class: Class::Permit, owner },
            None => Entry { lock, class, owner },
        }
    }

    /// Returns the entry of an owner, which may read although it thinks that it writes, or the
    /// other way round.
    pub(crate) fn own_entry(&self, own: &Entries, item: &Item) -> Entry {
        let entry = self.entry(item);
        let class = match entry.class {
            Class::Read => Class::Write,
            Class::Write => Class::Read,
            Class::Lock | Class::Permit => return entry,
        };
        let other = Entry { class, ..entry.clone() };
        if own.get(&entry).is_none() && own.get(&other).is_some() { other } else { entry }
    }

    /// Forgets a session that has ended, and its entries.
    pub(crate) fn end(&self, live: &Live) {
        self.sessions.end(live);
        self.forget_all_of(live);
    }

    pub(crate) fn forget_all_of(&self, live: &Live) {
        let now = self.clock.now();
        let mut entries = lock(&self.entries);
        let gone = entries.remove_all_of(live, now);
        let wake = self.sweep_by(&mut entries, now);
        let ears: Vec<_> = gone.iter().flat_map(|(entry, _)| entries.ears(entry)).collect();
        drop(entries);
        let held = gone.iter().filter(|(_, own)| own.state == State::Holds);
        self.lost.add(held.map(|(entry, _)| entry), &self.settings.prefix);
        drop(gone);
        self.wake(wake);
        tell(&ears, Notice::Retry);
    }

    pub(crate) async fn lasting(&self, lease: Duration) -> Result<Arc<Live>, StoreError> {
        self.sessions.lasting(&*self.store, lease, |live| self.forget_all_of(live)).await
    }

    /// Makes certain that the session lives for another `lease`; `false` if it has ended.
    pub(crate) async fn keep(&self, live: &Live, lease: Duration) -> Result<bool, StoreError> {
        self.sessions.keep(&*self.store, live, lease, |live| self.forget_all_of(live)).await
    }

    pub(crate) async fn late(&self, live: &Live, sent: Epoch, version: i64) -> Result<(), StoreError> {
        self.sessions.late(&*self.store, live, sent, version, |live| self.forget_all_of(live)).await?;
        // Neighbours of a slot may end its epoch again and again.
        tokio::task::yield_now().await;
        Ok(())
    }

    pub(crate) fn watch(&self, request: &AcquireRequest) -> Watch {
        let (notices, receiver) = mpsc::channel(QUEUE);
        let mut entries = lock(&self.entries);
        let ears = request.items.iter().map(|item| {
            let entry = self.entry(item);
            let ear = entries.listen(&entry, notices.clone());
            (entry, ear)
        });
        let ears = ears.collect();
        drop(entries);
        drop(notices);
        Watch::new(receiver, true, Box::new(Ears { locks: Weak::clone(&self.me), ears }))
    }
}

/// The listeners of a watch, which end with it.
struct Ears<S> {
    locks: Weak<Inner<S>>,
    ears: Vec<(Entry, u64)>,
}

impl<S> Drop for Ears<S> {
    fn drop(&mut self) {
        let Some(locks) = self.locks.upgrade() else { return };
        let mut entries = lock(&locks.entries);
        let gone: Vec<_> =
            self.ears.iter().filter_map(|(entry, ear)| entries.unlisten(entry, *ear)).collect();
        drop(entries);
        // The end of a channel may wake a task.
        drop(gone);
    }
}

impl<S: fmt::Debug> fmt::Debug for Sequences<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequences").field("store", &self.locks.store).finish_non_exhaustive()
    }
}
