//! [`Refusals`]: where requests for keys in several slots were refused.

use std::collections::HashMap;
use std::sync::Mutex;

use lock_core::LockKey;
use lock_core::internal::sync::lock;
use lock_core::store::AcquireRequest;

/// Refusals that are remembered.
const MOST: usize = 4096;

/// Where requests for the same keys were refused last; each attempt for mutexes has an owner of its
/// own.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<HashMap<Vec<LockKey>, u16>>);

fn keys(request: &AcquireRequest) -> Vec<LockKey> {
    request.items.iter().map(|item| item.key.clone()).collect()
}

impl Refusals {
    pub(super) fn of(&self, request: &AcquireRequest) -> Option<u16> {
        lock(&self.0).get(&keys(request)).copied()
    }

    pub(super) fn note(&self, request: &AcquireRequest, slot: u16) {
        let mut refusals = lock(&self.0);
        if refusals.len() >= MOST {
            // Nothing is wrong without them, but slower.
            refusals.clear();
        }
        refusals.insert(keys(request), slot);
    }

    pub(super) fn forget(&self, request: &AcquireRequest) {
        if request.items.len() > 1 {
            lock(&self.0).remove(&keys(request));
        }
    }
}
