//! [`Counted`] and [`OwnPlace`]: a caller's places among the waiters, given up on drop.

use std::sync::Arc;

use lock_core::LockKey;
use lock_core::internal::sync::atomic::Ordering;
use lock_core::internal::sync::catch_panics;

use super::Engine;
use super::lane::Lane;
use super::machine::Input;
use crate::metrics;

/// A place in the count of waiting callers, of all keys.
pub struct Counted(Arc<Engine>);

impl Counted {
    /// Takes a place, and returns it with the number of places taken before.
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

/// A place among the callers that wait for a key in their own lanes, and in the line if it is for
/// permits.
pub struct OwnPlace {
    engine: Arc<Engine>,
    key: (LockKey, bool),
    lane: Option<Arc<Lane>>,
}

impl OwnPlace {
    /// Takes a place. When `most` callers wait already, returns their number as the error.
    pub fn new(engine: &Arc<Engine>, key: (LockKey, bool), most: usize) -> Result<Self, usize> {
        engine.registry.wait_in_own(&key, most)?;
        Ok(Self { engine: Arc::clone(engine), key, lane: None })
    }

    /// Puts the waiter in line; it asks the store when its turn comes.
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
