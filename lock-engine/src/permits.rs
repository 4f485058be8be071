//! [`PermitsAsLocks`]: the engine's view of permits as locks.
//!
//! A hold of the engine has one owner. The ids of its permits are derived from the owner's text,
//! which also contains their number. So whatever the engine re-sends, renews, releases or withdraws
//! concerns the same permits.

use std::sync::Arc;

use lock_core::LockKey;
use lock_core::internal::ids_of;
use lock_core::store::{
    Abilities, AcquireRequest, Acquired, BoxFuture, Busy, Few, Granted, LockStatus, LockStore,
    PermitsAcquired, PermitsHold, PermitsRelease, PermitsRenew, PermitsRequest, ReleaseRequest, Released,
    RenewRequest, Renewed, Rivals, SemaphoreStore, StoreError, StoreErrorKind, TokenRange, Watch, Withdrawn,
};

/// The permits of a store, as locks.
#[derive(Debug)]
pub(crate) struct PermitsAsLocks(pub(crate) Arc<dyn SemaphoreStore>);

type Answer<T> = BoxFuture<Result<T, StoreError>>;

fn refused<T: Send + 'static>() -> Answer<T> {
    Box::pin(async {
        Err(StoreError::new(StoreErrorKind::Unsupported, "semaphores don't support this call"))
    })
}

fn permits_of(request: &Arc<AcquireRequest>) -> Option<Arc<PermitsRequest>> {
    let [item] = &*request.items else { return None };
    let ids = ids_of(&item.owner);
    Some(Arc::new(PermitsRequest::of(Arc::clone(request), item.key.clone(), ids)))
}

impl LockStore for PermitsAsLocks {
    fn abilities(&self) -> &Abilities {
        &Abilities::MUTEX
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> Answer<Acquired> {
        let Some(permits) = permits_of(&request) else { return refused() };
        let answer = self.0.acquire(permits);
        Box::pin(async move {
            Ok(match answer.await? {
                // Nobody uses the token of a permit, but the engine needs one.
                PermitsAcquired::Granted(moment) => Acquired::Granted(Granted {
                    tokens: Few::one(TokenRange::ending_at(moment.get(), request.tokens)),
                    moment,
                }),
                PermitsAcquired::Busy(busy) => Acquired::Busy(Busy {
                    item: 0,
                    remaining: busy.remaining,
                    moment: busy.moment,
                    listeners: 0,
                    ahead: 0,
                }),
            })
        })
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> Answer<Released> {
        let [item] = &*request.items else { return refused() };
        let (key, ids) = (item.key.clone(), ids_of(&item.owner));
        let answer = self.0.release(PermitsRelease { key, ids, timeout: request.timeout });
        Box::pin(async move {
            let held = answer.await?.into_iter().all(|held| held);
            Ok(Released { rivals: Rivals::None, ..Released::one(held) })
        })
    }

    fn renew(&self, request: Arc<RenewRequest>) -> Answer<Vec<Renewed>> {
        let holds = request.items.iter().map(|renewal| PermitsHold {
            key: renewal.item.key.clone(),
            ids: ids_of(&renewal.item.owner),
            lease: renewal.lease,
        });
        let answer = self.0.renew(PermitsRenew { holds: holds.collect(), timeout: request.timeout });
        Box::pin(async move {
            // If one permit of several is gone, the request as a whole is no longer held.
            let kept = |permits: Option<Vec<bool>>| match permits {
                Some(permits) if permits.contains(&false) => Renewed::Gone,
                Some(_) => Renewed::Held,
                None => Renewed::Unknown,
            };
            Ok(answer.await?.into_iter().map(kept).collect())
        })
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> Answer<Withdrawn> {
        permits_of(&request).map_or_else(refused, |permits| self.0.withdraw(permits))
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> Answer<Watch> {
        let [item] = &*request.items else { return refused() };
        self.0.watch(item.key.clone(), request.timeout)
    }

    fn status(&self, _: LockKey) -> Answer<LockStatus> {
        refused()
    }

    fn force_release(&self, _: LockKey) -> Answer<bool> {
        refused()
    }

    fn check(&self) -> Answer<()> {
        Box::pin(async { Ok(()) })
    }
}
