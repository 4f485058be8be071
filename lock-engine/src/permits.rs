//! [`PermitsAsLocks`]: the engine's view of permits as locks.
//!
//! A hold of the engine has one owner. The ids of its permits are derived from the owner's text,
//! which also contains their number. So whatever the engine re-sends, renews, releases or withdraws
//! concerns the same permits.

use std::sync::Arc;
use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::ids_of;
use lock_core::store::{
    AcquireRequest, Acquired, BoxFuture, Busy, Few, Granted, KeepRequest, Kept, LockStatus, LockStore,
    PermitsAcquired, PermitsHold, PermitsKeep, PermitsRelease, PermitsRequest, ReleaseRequest, Released,
    ScanRequest, Scanned, SemaphoreStore, StoreError, StoreErrorKind, TokenRange, Watch, Withdrawn,
};

use crate::LONGEST;

/// Remaining time when no held permit ends by itself: longer than any lease, so that it is never
/// mistaken for one. Without a message, the fallback lets waiters look again long before.
const LONG: Duration = Duration::from_secs(2 * LONGEST.as_secs());

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
    fn acquire(&self, request: Arc<AcquireRequest>) -> Answer<Acquired> {
        let Some(permits) = permits_of(&request) else { return refused() };
        let answer = self.0.acquire(permits);
        Box::pin(async move {
            Ok(match answer.await? {
                // Nobody uses the token of a permit, but the engine needs one.
                PermitsAcquired::Granted(server_time) => Acquired::Granted(Granted {
                    tokens: Few::one(TokenRange::ending_at(server_time.as_micros(), request.tokens)),
                    server_time,
                }),
                PermitsAcquired::Busy(busy) => Acquired::Busy(Busy {
                    item: 0,
                    remaining: busy.remaining.unwrap_or(LONG),
                    server_time: busy.server_time,
                    listeners: 0,
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
            Ok(Released { held: Few::one(held), other_listeners: 0, echo: false, then: None })
        })
    }

    fn keep(&self, request: Arc<KeepRequest>) -> Answer<Vec<Kept>> {
        let holds = request.items.iter().map(|keep| PermitsHold {
            key: keep.item.key.clone(),
            ids: ids_of(&keep.item.owner),
            lease: keep.lease,
        });
        let answer = self.0.keep(PermitsKeep { holds: holds.collect(), timeout: request.timeout });
        Box::pin(async move {
            // If one permit of several is gone, the request as a whole is no longer held.
            let kept = |permits: Option<Vec<bool>>| match permits {
                Some(permits) if permits.contains(&false) => Kept::Gone,
                Some(_) => Kept::Renewed,
                None => Kept::Unknown,
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

    fn downgrade(&self, _: Arc<KeepRequest>) -> Answer<Vec<Kept>> {
        refused()
    }

    fn status(&self, _: LockKey) -> Answer<LockStatus> {
        refused()
    }

    fn force_release(&self, _: LockKey) -> Answer<bool> {
        refused()
    }

    fn scan(&self, _: ScanRequest) -> Answer<Scanned> {
        refused()
    }

    fn check(&self) -> Answer<()> {
        Box::pin(async { Ok(()) })
    }
}
