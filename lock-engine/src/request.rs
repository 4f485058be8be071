//! [`Request`]: a caller's request to the engine.

use std::sync::Arc;

use lock_core::LockKey;
use lock_core::internal::clock::Tick;
use lock_core::store::Lacked;

use super::Engine;
use super::failure::Failure;
use super::spec::Spec;
use super::terms::Terms;
use crate::metrics::Label;

/// A request, as collected by a lock builder.
#[derive(Clone, Debug)]
pub struct Request {
    pub engine: Arc<Engine>,
    pub key: LockKey,
    pub spec: Spec,
    pub terms: Terms,
    pub label: Label,
    /// The request's own cap on waiters.
    pub max_waiters: usize,
    /// When the wait began; it may have to start over.
    pub asked: Option<Tick>,
}

impl Request {
    /// Returns the failure if the store can't do what is requested, or if the lease cannot be kept
    /// up.
    pub fn refusal(&self) -> Option<Failure> {
        let store = self.engine.store.abilities();
        let lacked = match self.spec.permits {
            0 => store.lacked(self.spec.kinds(), self.terms.replication),
            _ => None,
        };
        let lingers = !self.terms.min_hold.is_zero();
        let lacked = lacked.or((lingers && !store.shortens).then_some(Lacked::Shortens));
        if let Some(lacked) = lacked {
            return Some(Failure::misconfigured(format!("lock {}: {}", self.key, store.lack(lacked))));
        }
        let mut reason = self.engine.refuse_lease(&self.key, self.terms.lease.duration)?;
        if self.terms.lease.is_renewed && self.terms.min_hold > self.engine.settings.lease {
            reason.push_str("; the lease is that long because of `min_hold`");
        }
        Some(Failure::misconfigured(reason))
    }
}
