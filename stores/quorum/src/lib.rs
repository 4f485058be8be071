//! `QuorumStore`: locks on several independent stores, held by the owner that has a majority of
//! them.
//!
//! An acquire asks one store first, the gate, then all others for their votes, and then raises
//! their fencing counters. If it does not win a majority, it is undone everywhere. The algorithm is
//! Redlock (redis.io, *Distributed locks with Redis*), with the flaws that its critics found
//! repaired:
//!
//! - Validity counts from before the first request was sent, and goes by the store that granted
//!   last. The engine does that for every store, since all grants lie inside the call.
//! - A store that was restarted without its data has forgotten locks, and has no
//!   [marker](lock_core::store::Mark). Its votes don't count until the longest lease has passed
//!   since its marker was made anew. So leases have a maximum, the same for all users of the
//!   stores. The marker is checked after each grant, which may come from a store that has just lost
//!   its data.
//! - Tokens: see `tokens`.
//! - All contenders ask the same store first, the gate. A request that is refused there has nothing
//!   to undo and has disturbed nobody. The gate has the queue of fair locks and the intents of
//!   writers.
//! - When the gate fails, the next store in order is the gate. The fair order may then be broken,
//!   also by requests that still reach the old gate.
//!
//! A store may come back with its marker but without its last writes (from a snapshot, or an
//! append-only file that is synced every second). That is noticed if the marker names the run of
//! the server that made it, as it does for Redis.
//!
//! - `votes`, `tokens`, `merge`, `wake`: decisions, without I/O.
//! - `calls`: asks several stores at once. `ballots`, `strays`: the requests sent, so that they can
//!   be undone.
//! - `acquire`, `raise`, `undo`, `renew`, `release`, `admin`, `watch`, `first`: the methods.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::fmt;
use std::future::Future;
use std::sync::Arc;

mod acquire;
mod admin;
mod ballots;
mod calls;
mod first;
mod merge;
mod raise;
mod release;
mod renew;
mod strays;
#[cfg(test)]
mod tests;
mod tokens;
mod trace;
mod undo;
mod votes;
mod wake;
mod watch;

use calls::Quorum;
pub use calls::QuorumOptions;
use lock_core::LockKey;
use lock_core::store::{
    Abilities, AcquireRequest, Acquired, BoxFuture, LateRequests, LockStatus, LockStore, ReleaseRequest,
    Released, RenewRequest, Renewed, ScanRequest, Scanned, StoreError, StoreErrorKind, Tokens, Watch,
    Withdrawn,
};
use renew::Renewal;

/// Maximum number of stores in a quorum.
const MOST: usize = 15;

/// Locks on several independent stores.
pub struct QuorumStore {
    quorum: Arc<Quorum>,
}

impl QuorumStore {
    /// Creates a quorum of these independent stores. A lock belongs to the owner that has it on
    /// more than half of them. Their order must be the same for all users.
    ///
    /// # Errors
    ///
    /// `Unsupported` for another number of stores than 3, 5, … 15, and for a store that can't be a
    /// [member](LockStore::member) or does not go by a clock.
    pub fn new(stores: Vec<Arc<dyn LockStore>>, options: QuorumOptions) -> Result<Self, StoreError> {
        let refuse = |why: String| Err(StoreError::new(StoreErrorKind::Unsupported, why));
        match stores.len() {
            0 => return refuse("a quorum of no stores can't work; use three".to_owned()),
            1 => {
                return refuse(
                    "a quorum of one store is no safer than that store; use its URL alone, or add two"
                        .to_owned(),
                );
            }
            2 => {
                return refuse(
                    "a quorum of 2 stores tolerates no failure, like a single store; use 3".to_owned(),
                );
            }
            even if even % 2 == 0 => {
                let (fewer, more) = (even - 1, even + 1);
                return refuse(format!(
                    "a quorum of {even} stores tolerates no more failures than one of {fewer}; use {more} or {fewer}"
                ));
            }
            many if many > MOST => {
                return refuse(format!(
                    "a quorum of {many} stores is too large; use {MOST} at most, three or five are enough"
                ));
            }
            _ => {}
        }
        for (index, store) in stores.iter().enumerate() {
            if stores.iter().skip(index + 1).any(|other| Arc::ptr_eq(store, other)) {
                return refuse(format!("the quorum has {store:?} twice; give each store once"));
            }
        }
        for store in &stores {
            let Abilities { tokens, late_requests, .. } = store.abilities();
            if store.member().is_none() {
                return Err(first::no_member(&**store));
            }
            if (*tokens, *late_requests) != (Tokens::Clock, LateRequests::ByClock) {
                return refuse(format!(
                    "{store:?} can't be a server of a quorum: its tokens and the limits of its requests have to go \
                     by its clock"
                ));
            }
        }
        Ok(Self { quorum: Quorum::new(stores, options) })
    }

    /// Makes a call that runs to its end even if its caller is dropped.
    fn call<T, F>(&self, call: impl FnOnce(Arc<Quorum>) -> F) -> BoxFuture<Result<T, StoreError>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let quorum = Arc::clone(&self.quorum);
        let tasks = quorum.options.tasks.clone();
        let call = call(quorum);
        Box::pin(async move {
            tasks.spawn(call).await.unwrap_or_else(|gone| {
                let message = format!("the quorum's call did not end: {gone}");
                Err(StoreError::new(StoreErrorKind::Unanswered, message))
            })
        })
    }
}

impl fmt::Debug for QuorumStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumStore").field("stores", &self.quorum.stores()).finish_non_exhaustive()
    }
}

impl LockStore for QuorumStore {
    fn abilities(&self) -> &Abilities {
        &self.quorum.abilities
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        self.call(|quorum| acquire::acquire(quorum, request))
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        self.call(|quorum| release::release(quorum, request))
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        self.call(|quorum| renew::renew(quorum, request, Renewal::Renew))
    }

    fn downgrade(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        self.call(|quorum| renew::renew(quorum, request, Renewal::Downgrade))
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        self.call(|quorum| undo::withdraw(quorum, request))
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        self.call(|quorum| watch::watch(quorum, request))
    }

    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        self.call(|quorum| admin::status(quorum, key))
    }

    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>> {
        self.call(|quorum| admin::force_release(quorum, key))
    }

    fn scan(&self, request: ScanRequest) -> BoxFuture<Result<Scanned, StoreError>> {
        self.call(|quorum| admin::scan(quorum, request))
    }

    fn check(&self) -> BoxFuture<Result<(), StoreError>> {
        self.call(admin::check)
    }
}
