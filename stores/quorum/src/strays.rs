//! [`Strays`]: requests that may still be executed for an owner that holds its keys without them.
//!
//! Such a request was not answered when its ballot was won, or takes a lost store again. It may be
//! executed after the owner has released its keys, and then take them for nobody. So it is noted
//! here as long as that can happen, and withdrawn after the release.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lock_core::OwnerId;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::{AcquireRequest, Item};

/// An unanswered request to one store.
#[derive(Clone, Debug)]
pub(super) struct Stray {
    pub(super) node: usize,
    pub(super) request: Arc<AcquireRequest>,
    /// When the store begins to refuse it.
    pub(super) until: Tick,
}

impl Stray {
    pub(super) fn new(node: usize, request: Arc<AcquireRequest>, sent: Tick) -> Self {
        // A store that has to connect first sends it later, and its clock may be a little slow.
        let until = sent + request.timeout * 3 + Duration::from_secs(1);
        Self { node, request, until }
    }
}

#[derive(Debug, Default)]
pub(super) struct Strays(Mutex<Inner>);

impl Owner {
    fn is_over(&self, now: Tick) -> bool {
        self.renewals == 0 && self.strays.is_empty() && self.ended.is_none_or(|until| now >= until)
    }
}

#[derive(Debug, Default)]
struct Inner {
    owners: HashMap<OwnerId, Owner>,
    /// When to look for expired strays next.
    sweep: Tick,
}

#[derive(Debug, Default)]
struct Owner {
    /// Number of renewals under way.
    renewals: u32,
    /// Set once it has released its keys; then nothing is taken for it any more. It is forgotten
    /// after this time, unless a renewal was under way since the release was sent.
    ended: Option<Tick>,
    strays: Vec<Stray>,
}

const SWEEP: Duration = Duration::from_secs(1);

impl Inner {
    /// Forgets expired entries, from time to time.
    fn sweep(&mut self, now: Tick) {
        if now >= self.sweep {
            self.sweep = now + SWEEP;
            self.owners.retain(|_, owner| {
                owner.strays.retain(|stray| now < stray.until);
                !owner.is_over(now)
            });
        }
    }
}

impl Strays {
    /// Notes strays of one request.
    pub(super) fn add(&self, items: &[Item], strays: &[Stray], now: Tick) {
        if strays.is_empty() {
            return;
        }
        let mut inner = lock(&self.0);
        inner.sweep(now);
        // Items of one request are released together and have the same strays, so one entry is
        // enough.
        if let Some(item) = items.first() {
            inner.owners.entry(item.owner.clone()).or_default().strays.extend_from_slice(strays);
        }
    }

    /// Forgets this request, made for these items, because it was answered.
    pub(super) fn answered(&self, items: &[Item], request: &Arc<AcquireRequest>) {
        let mut inner = lock(&self.0);
        let Some(item) = items.first() else { return };
        let Some(owner) = inner.owners.get_mut(&item.owner) else { return };
        owner.strays.retain(|stray| !Arc::ptr_eq(&stray.request, request));
        if owner.strays.is_empty() && owner.renewals == 0 && owner.ended.is_none() {
            inner.owners.remove(&item.owner);
        }
    }

    /// Notes that the owners release their keys; returns the strays to withdraw after that. A
    /// renewal that was due earlier takes nothing for them if it begins within `memory`.
    pub(super) fn end<'a>(
        &self,
        items: impl IntoIterator<Item = &'a Item>,
        now: Tick,
        memory: Duration,
    ) -> Vec<Stray> {
        let mut inner = lock(&self.0);
        inner.sweep(now);
        let mut strays = Vec::new();
        for item in items {
            let owner = inner.owners.entry(item.owner.clone()).or_default();
            owner.ended = Some(now + memory);
            strays.append(&mut owner.strays);
        }
        strays
    }

    /// Notes that renewals of these items are under way until the returned value is dropped.
    pub(super) fn renewing(self: &Arc<Self>, items: Vec<Item>) -> Renewing {
        let mut inner = lock(&self.0);
        for item in &items {
            inner.owners.entry(item.owner.clone()).or_default().renewals += 1;
        }
        drop(inner);
        Renewing { strays: Arc::clone(self), items }
    }
}

/// See [`Strays::renewing`].
#[derive(Debug)]
pub(super) struct Renewing {
    strays: Arc<Strays>,
    items: Vec<Item>,
}

impl Renewing {
    /// Notes a request that is about to be sent; returns `false` when it must not be, because the
    /// owner has released its key.
    pub(super) fn retakes(&self, owner: &OwnerId, stray: Stray) -> bool {
        let mut inner = lock(&self.strays.0);
        match inner.owners.get_mut(owner) {
            Some(owner) if owner.ended.is_none() => {
                owner.strays.push(stray);
                true
            }
            _ => false,
        }
    }

    /// Whether all owners have released their keys.
    pub(super) fn has_ended(&self) -> bool {
        let inner = lock(&self.strays.0);
        let ended = |item: &Item| inner.owners.get(&item.owner).is_none_or(|owner| owner.ended.is_some());
        self.items.iter().all(ended)
    }

    /// Forgets a request, because it was answered.
    pub(super) fn answered(&self, item: &Item, request: &Arc<AcquireRequest>) {
        self.strays.answered(std::slice::from_ref(item), request);
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        let mut inner = lock(&self.strays.0);
        for item in &self.items {
            let Some(owner) = inner.owners.get_mut(&item.owner) else { continue };
            owner.renewals -= 1;
            if owner.renewals == 0 && owner.strays.is_empty() && owner.ended.is_none() {
                inner.owners.remove(&item.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::LockKey;
    use lock_core::store::Kind;

    #[test]
    fn what_was_not_answered_is_withdrawn_although_another_request_was() {
        let (strays, owner) = (Strays::default(), OwnerId::new("c0ffee00-0000-4000-8000-000000000000:1"));
        let items = [Item { key: LockKey::new("a").unwrap(), kind: Kind::Read, owner }];
        let request = || Arc::new(AcquireRequest::new(items.to_vec(), SWEEP, SWEEP));
        let (vote, raise) = (request(), request());
        let stray = |request: &Arc<AcquireRequest>| Stray::new(2, Arc::clone(request), Tick::default());
        strays.add(&items, &[stray(&vote), stray(&raise)], Tick::default());
        strays.answered(&items, &vote);
        let left = strays.end(&items, Tick::default(), SWEEP);
        assert!(matches!(&*left, [stray] if Arc::ptr_eq(&stray.request, &raise)), "{left:?}");
    }
}
