//! Locks in slots that are moving from one server to another.
//!
//! While a slot moves, each of its keys is at one of two servers, and a script may use keys of one
//! server only. A free mutex has no key, so no server ever finds it together with its counter.
//! After some time it is taken without the counter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::internal::chance::jitter;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::lock;
use lock_core::store::{AcquireRequest, Acquired, Item, Kind, StoreError, StoreErrorKind};

use super::super::connection::At;
use super::super::fault::{Fault, Redirect};
use super::super::kinds::are_mutexes;
use super::super::node::Node;
use super::super::script::Dialect;
use super::Cluster;
use super::steps::SlotShare;

/// Average pause between two tries while keys are at two servers.
const PAUSE: Duration = Duration::from_millis(50);

/// Message to watchers that may have missed one.
pub(super) struct Hint<'a> {
    pub(super) channels: &'a [Arc<str>],
    pub(super) message: &'static str,
}

impl<'a> Hint<'a> {
    /// Returns a message that makes all watchers look again, whatever the channel is for.
    pub(super) fn new(channels: &'a [Arc<str>]) -> Self {
        Self { channels, message: "1" }
    }
}

impl Cluster {
    /// Refuses a step at the server that imports the slot, unless it is about mutexes only. Locks
    /// of other kinds have further keys that the server is not told, so it would take keys that
    /// have not arrived for deleted.
    pub(super) fn whole(&self, items: &[Item], at: At) -> Result<(), Fault> {
        if !at.asking || are_mutexes(items) {
            return Ok(());
        }
        let what = "TRYAGAIN the slot is moving, and parts of the lock may be at either server";
        let error = self.error(StoreErrorKind::NotReady, what);
        Err(Fault { redirect: Some(Box::new(Redirect::TryAgain)), ..error.into() })
    }

    /// Takes the request's items in one slot, all or none.
    pub(super) async fn acquire_part(
        &self,
        request: &Arc<AcquireRequest>,
        share: &SlotShare<Item>,
        wait: Option<Duration>,
        deadline: Tick,
    ) -> Result<Acquired, StoreError> {
        let floor = request.floor();
        let replicated = !request.replication.is_none();
        let single = !replicated && matches!((&*request.items, floor), ([Item { kind: Kind::Mutex, .. }], 0));
        loop {
            let acquired = self
                .at_slot(share.slot, deadline, |node, at| async move {
                    self.whole(&share.items, at)?;
                    if single {
                        node.acquire_alone(request, at).await
                    } else {
                        node.acquire_all(request, &share.items, wait, at).await
                    }
                })
                .await;
            let fault = match acquired {
                Err(fault) if fault.is_split() => fault,
                acquired => return Ok(acquired?),
            };
            self.in_between(share.slot);
            let patient = !lock(&self.moving).split(share.slot, self.now());
            // The further keys of other kinds are at both servers, whichever is asked. The
            // token is the server's time then. It is above 1, the floor of requests that replicas
            // confirm, but perhaps not above a larger floor.
            if floor > 1 || !are_mutexes(&share.items) {
                return Err(fault.error);
            }
            if !patient {
                return self.acquire_without_counter(request, share, deadline).await;
            }
            let pause = PAUSE.mul_f64(0.5 + jitter());
            if deadline.since(self.now()) <= pause * 2 {
                return Err(fault.error);
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn acquire_without_counter(
        &self,
        request: &Arc<AcquireRequest>,
        share: &SlotShare<Item>,
        deadline: Tick,
    ) -> Result<Acquired, StoreError> {
        if let [item] = &*share.items {
            let acquire = |node: Arc<Node>, at| async move { node.acquire_one_key(request, item, at).await };
            let acquired = self.at_slot(share.slot, deadline, acquire).await?;
            if !self.options.layout.is_plain() || !matches!(acquired, Acquired::Granted(_)) {
                return Ok(acquired);
            }
            let count = |node: Arc<Node>, at| async move { node.take_tokens(request, item, at).await };
            return match self.at_slot(share.slot, deadline, count).await {
                Ok(granted) => Ok(Acquired::Granted(granted)),
                Err(fault) => {
                    self.undo(std::iter::once(share), deadline).await?;
                    Err(fault.error)
                }
            };
        }
        // Places within the share, which the caller maps to places in the request.
        let each = share.items.iter().enumerate().map(|(place, item)| SlotShare {
            slot: share.slot,
            places: vec![place],
            items: vec![item.clone()],
        });
        let each: Vec<_> = each.collect();
        Box::pin(self.acquire_several(request, &each, deadline)).await
    }

    /// Runs a step that may free something. If `freed` says that it did, publishes a hint to the
    /// waiters: while a slot moves, the freed lock and its listeners may be at different servers.
    /// Must not be used for a step that only looks, since a waiter would then wake itself forever.
    pub(super) async fn telling<T, F>(
        &self,
        slot: u16,
        deadline: Tick,
        hint: Hint<'_>,
        freed: impl Fn(&T) -> bool,
        step: impl Fn(Arc<Node>, At) -> F,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let asked = AtomicBool::new(false);
        let done = self
            .at_slot(slot, deadline, |node, at| {
                asked.store(at.asking, Ordering::Relaxed);
                step(node, at)
            })
            .await?;
        if asked.load(Ordering::Relaxed) && freed(&done) && self.dialect.get() == Some(&Dialect::Sharded) {
            // Only a hint: a waiter that misses it looks by itself.
            if let Ok(place) = self.owner(slot, deadline).await
                && let Ok(node) = self.node(&place)
            {
                node.publish(hint.channels, hint.message, At::once(deadline.since(self.now()))).await;
            }
        }
        Ok(done)
    }
}
