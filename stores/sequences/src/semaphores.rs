//! [`Semaphores`]: permits as entries.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::kit::{Backoff, bounded};
use lock_core::store::{
    AcquireRequest, Acquired, BoxFuture, Busy, Item, Kind, Notice, PermitCounts, PermitId, PermitsAcquired,
    PermitsBusy, PermitsChange, PermitsHold, PermitsRelease, PermitsRenew, PermitsRequest, ReleaseRequest,
    RenewItem, RenewRequest, Renewed, SemaphoreStore, StoreError, StoreErrorKind, Watch, Withdrawn,
};
use lock_core::{LockKey, OwnerId};
use tokio::sync::{mpsc, watch};

use crate::entries::{State, tell};
use crate::locks::Inner;
use crate::store::{Entry, OrderedStore};

/// Maximum number of queued notices of a watch.
const QUEUE: usize = 4;

/// The semaphores of a manager.
pub(crate) struct Semaphores<S> {
    /// The permits, as entries.
    entries: Arc<Inner<S>>,
    /// The listeners of each semaphore. They share a task.
    heard: Mutex<HashMap<Arc<str>, Heard>>,
    me: Weak<Self>,
}

/// Those who listen to a semaphore.
struct Heard {
    ears: Vec<(u64, mpsc::Sender<Notice>)>,
    last_ear: u64,
    /// Whether the task hears of all permits that come back. It ends when this is dropped.
    is_on: watch::Receiver<bool>,
}

impl<S: OrderedStore> Semaphores<S> {
    pub(crate) fn new(entries: Arc<Inner<S>>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self { entries, heard: Mutex::default(), me: Weak::clone(me) })
    }

    /// Makes a call, after the permits whose lease is over were given back.
    fn call<T: Send + 'static, F>(
        &self,
        limit: Duration,
        call: impl FnOnce(Arc<Inner<S>>) -> F + Send + 'static,
    ) -> BoxFuture<Result<T, StoreError>>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let entries = Arc::clone(&self.entries);
        Box::pin(async move {
            bounded(limit, async {
                entries.delete_due().await;
                call(entries).await
            })
            .await
        })
    }

    /// Adds a listener. Returns its number, and when the task hears of everything.
    fn listen(&self, leases: &Arc<str>, notices: mpsc::Sender<Notice>) -> (u64, watch::Receiver<bool>) {
        let mut all = lock(&self.heard);
        let heard = all.entry(Arc::clone(leases)).or_insert_with(|| {
            let (switch, is_on) = watch::channel(false);
            let (me, store) = (Weak::clone(&self.me), Arc::clone(&self.entries.store));
            tokio::spawn(hear(me, store, Arc::clone(leases), switch));
            Heard { ears: Vec::new(), last_ear: 0, is_on }
        });
        heard.last_ear += 1;
        heard.ears.push((heard.last_ear, notices));
        (heard.last_ear, heard.is_on.clone())
    }

    fn tell(&self, leases: &str, notice: Notice) {
        let ears: Vec<_> = match lock(&self.heard).get(leases) {
            Some(heard) => heard.ears.iter().map(|(_, notices)| notices.clone()).collect(),
            None => return,
        };
        tell(&ears, notice);
    }
}

impl<S: OrderedStore> Inner<S> {
    /// Returns the name of the permits of a semaphore.
    fn leases_of(&self, key: &LockKey) -> Arc<str> {
        self.entry(&item(key, "")).lock
    }

    async fn acquire_permits(&self, request: &PermitsRequest) -> Result<PermitsAcquired, StoreError> {
        let leases = self.leases_of(&request.key);
        Ok(match self.acquire(as_locks(request)).await? {
            Acquired::Granted(granted) => PermitsAcquired::Granted(granted.moment),
            Acquired::Busy(busy) => PermitsAcquired::Busy(self.too_few(request, &leases, &busy).await?),
        })
    }

    /// Returns the answer for a semaphore with too few permits.
    async fn too_few(
        &self,
        request: &PermitsRequest,
        leases: &Arc<str>,
        busy: &Busy,
    ) -> Result<PermitsBusy, StoreError> {
        let now = self.clock.now();
        let (wanted, first) = {
            let own = lock(&self.entries);
            let held = |entry: &Entry| own.get(entry).filter(|own| own.state == State::Holds);
            let wanted = request.ids.iter().filter(|id| held(&self.entry(&of(&request.key, id))).is_none());
            (wanted.count(), own.first_end(leases))
        };
        let available = match i64::from(busy.ahead) {
            0 => self.store.permits(leases).await?.available,
            ahead => i64::try_from(wanted).unwrap_or(i64::MAX).saturating_sub(ahead),
        };
        let remaining = first.map(|until| until.since(now).max(Duration::from_millis(1)));
        Ok(PermitsBusy { available, remaining, moment: busy.moment })
    }
}

impl<S: OrderedStore> SemaphoreStore for Semaphores<S> {
    fn acquire(&self, request: Arc<PermitsRequest>) -> BoxFuture<Result<PermitsAcquired, StoreError>> {
        self.call(request.timeout, move |entries| async move { entries.acquire_permits(&request).await })
    }

    fn release(&self, request: PermitsRelease) -> BoxFuture<Result<Vec<bool>, StoreError>> {
        self.call(request.timeout, move |entries| async move {
            let items = request.ids.iter().map(|id| of(&request.key, id)).collect();
            let (linger, timeout) = (Duration::ZERO, request.timeout);
            let request = ReleaseRequest { items, linger, then: None, own_watch: None, timeout };
            Ok(entries.release(&request).await?.held.iter().copied().collect())
        })
    }

    fn renew(&self, request: PermitsRenew) -> BoxFuture<Result<Vec<Option<Vec<bool>>>, StoreError>> {
        self.call(request.timeout, move |entries| async move {
            let items = request.holds.iter().flat_map(|PermitsHold { key, ids, lease }| {
                ids.iter().map(|id| RenewItem::hold(of(key, id), *lease))
            });
            let renewal = RenewRequest { items: items.collect(), timeout: request.timeout };
            let mut renewed = entries.renew(&renewal).await?.into_iter();
            let mut kept = |hold: &PermitsHold| {
                let of_it: Vec<_> = renewed.by_ref().take(hold.ids.len()).collect();
                let is_known = !of_it.contains(&Renewed::Unknown);
                is_known.then(|| of_it.iter().map(|renewed| *renewed == Renewed::Held).collect())
            };
            Ok(request.holds.iter().map(&mut kept).collect())
        })
    }

    fn withdraw(&self, request: Arc<PermitsRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        self.call(request.timeout, move |entries| async move { entries.withdraw(as_locks(&request)).await })
    }

    fn watch(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<Watch, StoreError>> {
        let me = Weak::clone(&self.me);
        let ended = || StoreError::new(StoreErrorKind::NotReady, "the store is being dropped");
        Box::pin(async move {
            let (notices, receiver) = mpsc::channel(QUEUE);
            let (ear, mut is_on) = {
                let semaphores = me.upgrade().ok_or_else(ended)?;
                let leases = semaphores.entries.leases_of(&key);
                let (ear, is_on) = semaphores.listen(&leases, notices);
                (Ear { semaphores: me, leases, ear }, is_on)
            };
            bounded(timeout, async { is_on.wait_for(|is_on| *is_on).await.map(drop).map_err(|_| ended()) })
                .await?;
            Ok(Watch::new(receiver, true, Box::new(ear)))
        })
    }

    fn change(&self, request: PermitsChange) -> BoxFuture<Result<bool, StoreError>> {
        self.call(request.timeout, move |entries| async move {
            let leases = entries.leases_of(&request.key);
            entries.store.allows(&leases, Kind::Mutex)?;
            entries.store.change(&leases, request.permits).await
        })
    }

    fn counts(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<PermitCounts, StoreError>> {
        self.call(timeout, move |entries| async move {
            let leases = entries.leases_of(&key);
            entries.store.allows(&leases, Kind::Mutex)?;
            entries.store.permits(&leases).await
        })
    }
}

/// A listener, which ends with its watch.
struct Ear<S> {
    semaphores: Weak<Semaphores<S>>,
    leases: Arc<str>,
    ear: u64,
}

impl<S> Drop for Ear<S> {
    fn drop(&mut self) {
        let Some(semaphores) = self.semaphores.upgrade() else { return };
        let mut all = lock(&semaphores.heard);
        let Some(heard) = all.get_mut(&self.leases) else { return };
        let at = heard.ears.iter().position(|(id, _)| *id == self.ear);
        let gone = at.map(|at| heard.ears.swap_remove(at));
        let last = if heard.ears.is_empty() { all.remove(&self.leases) } else { None };
        drop(all);
        // The end of a channel may wake a task.
        drop((gone, last));
    }
}

/// Tells the listeners of a semaphore when permits come back, until there are none.
async fn hear<S: OrderedStore>(
    semaphores: Weak<Semaphores<S>>,
    store: Arc<S>,
    leases: Arc<str>,
    switch: watch::Sender<bool>,
) {
    let mut backoff = Backoff::default();
    loop {
        let hears = |have_come_back: bool| {
            let notice = match have_come_back {
                true => Notice::Retry,
                // It heard of everything before, and was interrupted.
                false if switch.send_replace(true) => Notice::Resubscribed,
                false => return,
            };
            if let Some(semaphores) = semaphores.upgrade() {
                semaphores.tell(&leases, notice);
            }
        };
        if store.hear(&leases, hears, switch.closed()).await.is_ok() {
            backoff = Backoff::default();
        }
        tokio::select! {
            () = switch.closed() => return,
            () = tokio::time::sleep(backoff.next_pause()) => {}
        }
    }
}

/// Returns the request for the entries of permits. It is the same for all copies.
fn as_locks(request: &PermitsRequest) -> &AcquireRequest {
    let made: &OnceLock<AcquireRequest> = request.attachment();
    made.get_or_init(|| {
        let items: Vec<_> = request.ids.iter().map(|id| of(&request.key, id)).collect();
        AcquireRequest::new(items, request.lease, request.timeout).indirect()
    })
}

fn of(key: &LockKey, id: &PermitId) -> Item {
    item(key, &id.to_string())
}

fn item(key: &LockKey, owner: &str) -> Item {
    Item { key: key.clone(), kind: Kind::Mutex, owner: OwnerId::new(owner) }
}

impl<S: fmt::Debug> fmt::Debug for Semaphores<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphores").field("store", &self.entries.store).finish_non_exhaustive()
    }
}
