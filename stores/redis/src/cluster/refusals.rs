//! [`Refusals`]: the slots where requests for keys in several slots were refused.

use std::collections::HashMap;
use std::sync::Mutex;

use lock_core::LockKey;
use lock_core::internal::sync::lock;
use lock_core::store::AcquireRequest;

/// Maximum number of refusals that are remembered.
const MOST: usize = 4096;

/// The slot of the last refusal for each set of keys. Owners do not count, since each attempt for
/// mutexes has its own.
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
            // Without them requests are only slower.
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
