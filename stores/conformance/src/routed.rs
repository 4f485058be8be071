//! [`pair`]: two handles of which each gets the calls of its own owners.

use std::collections::HashMap;
use std::sync::Mutex;

use lock_core::store::{
    Forward, PermitCounts, PermitId, PermitsAcquired, PermitsChange, PermitsHold, PermitsRelease,
    PermitsRenew, PermitsRequest, ScanRequest, Scanned, SemaphoreStore,
};

use super::*;

type Homes = Arc<Mutex<HashMap<OwnerId, Arc<dyn LockStore>>>>;

/// A handle that passes on the calls of other handles' owners.
#[derive(Debug)]
struct Routed {
    store: Arc<dyn LockStore>,
    homes: Homes,
    permits: Arc<PermitHomes>,
}

/// The semaphores of a handle that passes on the calls about other handles' permits.
#[derive(Debug)]
struct RoutedPermits {
    permits: Arc<dyn SemaphoreStore>,
    homes: Arc<PermitHomes>,
}

type PermitHomes = Mutex<HashMap<(LockKey, PermitId), Arc<dyn SemaphoreStore>>>;

/// Returns both handles, which pass on the calls of each other's owners.
pub(super) fn pair(store: Arc<dyn LockStore>, other: Arc<dyn LockStore>) -> [Arc<dyn LockStore>; 2] {
    let (homes, permits) = (Homes::default(), Arc::<PermitHomes>::default());
    [store, other].map(|store| -> Arc<dyn LockStore> {
        Arc::new(Routed { store, homes: Arc::clone(&homes), permits: Arc::clone(&permits) })
    })
}

/// Returns the status with the remaining time that the holder's handle knows. Others know only
/// when its session would end.
async fn by_the_holder(homes: &Homes, key: LockKey, status: LockStatus) -> Result<LockStatus, StoreError> {
    let owner = status.holders.first().map(|(owner, _)| owner);
    let home = owner.and_then(|owner| homes.lock().unwrap().get(owner).map(Arc::clone));
    let mut status = status;
    if let Some(home) = home {
        status.remaining = home.status(key).await?.remaining;
    }
    Ok(status)
}

impl Routed {
    /// Returns the handle that an owner belongs to: this one, if it was not seen before.
    fn home(&self, owner: &OwnerId) -> Arc<dyn LockStore> {
        let mut homes = self.homes.lock().unwrap();
        Arc::clone(homes.entry(owner.clone()).or_insert_with(|| Arc::clone(&self.store)))
    }

    fn home_of(&self, items: &Few<Item>) -> Arc<dyn LockStore> {
        self.home(&items[0].owner)
    }
}

impl Forward for Routed {
    fn inner(&self) -> &dyn LockStore {
        &*self.store
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        self.home_of(&request.items).acquire(request)
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        self.home_of(&request.items).release(request)
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        let homes: Vec<_> = request.items.iter().map(|item| self.home(&item.item.owner)).collect();
        if homes.iter().all(|home| Arc::ptr_eq(home, &homes[0])) {
            return homes[0].renew(request);
        }
        Box::pin(async move {
            let mut answers = Vec::new();
            for (home, item) in homes.iter().zip(&request.items) {
                let items = vec![item.clone()];
                answers.extend(home.renew(Arc::new(RenewRequest { items, ..*request })).await?);
            }
            Ok(answers)
        })
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        self.home_of(&request.items).withdraw(request)
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        self.home_of(&request.items).watch(request)
    }

    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        let (status, homes) = (self.store.status(key.clone()), Arc::clone(&self.homes));
        Box::pin(async move { by_the_holder(&homes, key, status.await?).await })
    }

    fn scan(&self, request: ScanRequest) -> BoxFuture<Result<Scanned, StoreError>> {
        let (scanned, homes) = (self.store.scan(request), Arc::clone(&self.homes));
        Box::pin(async move {
            let Scanned { locks, next } = scanned.await?;
            let mut all = Vec::new();
            for (key, status) in locks {
                all.push((key.clone(), by_the_holder(&homes, key, status).await?));
            }
            Ok(Scanned { locks: all, next })
        })
    }

    fn semaphores(&self) -> Option<Arc<dyn SemaphoreStore>> {
        let (permits, homes) = (self.store.semaphores()?, Arc::clone(&self.permits));
        Some(Arc::new(RoutedPermits { permits, homes }))
    }
}

impl RoutedPermits {
    /// Returns the semaphores that a permit belongs to: these, if it was not seen before.
    fn home(&self, key: &LockKey, id: PermitId) -> Arc<dyn SemaphoreStore> {
        let mut homes = self.homes.lock().unwrap();
        Arc::clone(homes.entry((key.clone(), id)).or_insert_with(|| Arc::clone(&self.permits)))
    }

    /// Splits permits into those that are next to each other and have the same home.
    fn runs(&self, key: &LockKey, ids: &[PermitId]) -> Vec<(Arc<dyn SemaphoreStore>, Vec<PermitId>)> {
        let mut runs: Vec<(Arc<dyn SemaphoreStore>, Vec<PermitId>)> = Vec::new();
        for id in ids {
            let home = self.home(key, *id);
            match runs.last_mut().filter(|(last, _)| Arc::ptr_eq(last, &home)) {
                Some((_, ids)) => ids.push(*id),
                None => runs.push((home, vec![*id])),
            }
        }
        runs
    }
}

impl SemaphoreStore for RoutedPermits {
    fn acquire(&self, request: Arc<PermitsRequest>) -> BoxFuture<Result<PermitsAcquired, StoreError>> {
        self.home(&request.key, request.ids[0]).acquire(request)
    }

    fn release(&self, request: PermitsRelease) -> BoxFuture<Result<Vec<bool>, StoreError>> {
        let runs = self.runs(&request.key, &request.ids);
        Box::pin(async move {
            let mut held = Vec::new();
            for (home, ids) in runs {
                held.extend(home.release(PermitsRelease { ids, ..request.clone() }).await?);
            }
            Ok(held)
        })
    }

    fn renew(&self, request: PermitsRenew) -> BoxFuture<Result<Vec<Option<Vec<bool>>>, StoreError>> {
        let runs: Vec<_> = request.holds.iter().map(|hold| self.runs(&hold.key, &hold.ids)).collect();
        let first = runs.iter().flatten().map(|(home, _)| home).next().map(Arc::clone);
        let first = first.expect("a renewal has permits");
        if runs.iter().flatten().all(|(home, _)| Arc::ptr_eq(home, &first)) {
            return first.renew(request);
        }
        Box::pin(async move {
            let mut answers = Vec::new();
            for (hold, runs) in request.holds.iter().zip(runs) {
                let mut kept = Some(Vec::new());
                for (home, ids) in runs {
                    let holds = vec![PermitsHold { ids, ..hold.clone() }];
                    let answer =
                        home.renew(PermitsRenew { holds, timeout: request.timeout }).await?.remove(0);
                    kept = kept.zip(answer).map(|(kept, more)| [kept, more].concat());
                }
                answers.push(kept);
            }
            Ok(answers)
        })
    }

    fn withdraw(&self, request: Arc<PermitsRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        self.home(&request.key, request.ids[0]).withdraw(request)
    }

    fn watch(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<Watch, StoreError>> {
        self.permits.watch(key, timeout)
    }

    fn change(&self, request: PermitsChange) -> BoxFuture<Result<bool, StoreError>> {
        self.permits.change(request)
    }

    fn counts(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<PermitCounts, StoreError>> {
        self.permits.counts(key, timeout)
    }
}
