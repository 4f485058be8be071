//! [`Counted`] and [`OwnPlace`]: a caller's places among those that wait, given up when they are
//! dropped.

use std::sync::Arc;

use lock_core::LockKey;
use lock_core::internal::sync::atomic::Ordering;
use lock_core::internal::sync::catch_panics;

use super::Engine;
use super::lane::Lane;
use super::machine::Input;
use crate::metrics;

/// A place among the callers that wait, of all keys.
pub struct Counted(Arc<Engine>);

impl Counted {
    /// One more, and how many there were before.
    pub fn new(engine: &Arc<Engine>) -> (Self, usize) {
        let waiting = engine.waiting.fetch_add(1, Ordering::Relaxed);
        let counted = Self(Arc::clone(engine));
        metrics::waiters(1.0);
        (counted, waiting)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        catch_panics(|| metrics::waiters(-1.0));
    }
}

/// A place among those who wait for a key in lanes of their own, and in line if it is for permits.
pub struct OwnPlace {
    engine: Arc<Engine>,
    key: (LockKey, bool),
    lane: Option<Arc<Lane>>,
}

impl OwnPlace {
    /// An error has the number of those who wait, if they are `most`.
    pub fn new(engine: &Arc<Engine>, key: (LockKey, bool), most: usize) -> Result<Self, usize> {
        engine.registry.wait_in_own(&key, most)?;
        Ok(Self { engine: Arc::clone(engine), key, lane: None })
    }

    /// Its waiter asks the store when it is its turn.
    pub(crate) fn stand_in_line(&mut self, lane: &Arc<Lane>, waiter: u64) {
        self.lane = Some(Arc::clone(lane));
        if self.engine.registry.stand_in_line(lane, waiter) {
            self.engine.tell(lane, Input::Admit(waiter));
        }
    }
}

impl Drop for OwnPlace {
    fn drop(&mut self) {
        if let Some(lane) = &self.lane {
            self.engine.leave_line(lane);
        }
        self.engine.registry.stop_waiting_in_own(&self.key);
    }
}
