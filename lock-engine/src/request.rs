//! [`Request`]: what a caller wants of the engine.

use std::sync::Arc;

use lock_core::LockKey;
use lock_core::internal::clock::Tick;

use super::Engine;
use super::failure::Failure;
use super::spec::Spec;
use super::terms::Terms;
use crate::metrics::Label;

/// What a lock builder has collected.
#[derive(Clone, Debug)]
pub struct Request {
    pub engine: Arc<Engine>,
    pub key: LockKey,
    pub spec: Spec,
    pub terms: Terms,
    pub label: Label,
    /// Its own cap of those who wait.
    pub max_waiters: usize,
    /// Since when it waits; it may have to begin again.
    pub asked: Option<Tick>,
}

impl Request {
    /// Returns why nobody can have what is asked for, if its lease can't be kept up.
    pub fn refusal(&self) -> Option<Failure> {
        let mut reason = self.engine.refuse_lease(&self.key, self.terms.lease.duration)?;
        if self.terms.lease.is_renewed && self.terms.min_hold > self.engine.settings.lease {
            reason.push_str("; it is that long because of `min_hold`");
        }
        Some(Failure::misconfigured(reason))
    }
}
