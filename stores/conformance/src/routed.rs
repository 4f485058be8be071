//! [`pair`]: two handles of which each gets the calls of its own owners.

use std::collections::HashMap;
use std::sync::Mutex;

use lock_core::store::{Forward, ScanRequest, Scanned};

use super::*;

type Homes = Arc<Mutex<HashMap<OwnerId, Arc<dyn LockStore>>>>;

/// A handle that passes on the calls of other handles' owners.
#[derive(Debug)]
struct Routed {
    store: Arc<dyn LockStore>,
    homes: Homes,
}

/// Returns both handles, which pass on the calls of each other's owners.
pub(super) fn pair(store: Arc<dyn LockStore>, other: Arc<dyn LockStore>) -> [Arc<dyn LockStore>; 2] {
    let homes = Homes::default();
    [store, other]
        .map(|store| -> Arc<dyn LockStore> { Arc::new(Routed { store, homes: Arc::clone(&homes) }) })
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
}
