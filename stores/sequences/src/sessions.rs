//! [`Sessions`]: the sessions of a manager, by time-out, and until when each is certain to live.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::{StoreError, StoreErrorKind};

use crate::store::{Epoch, OrderedStore, Session};

/// A session of this manager.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) id: Session,
    /// The longest that it is certain to live after a heartbeat.
    pub(crate) timeout: Duration,
    /// A [`Tick`]. The store does not end the session before.
    certain: AtomicU64,
    has_ended: AtomicBool,
    slots: Box<[Slot]>,
    beating: tokio::sync::Mutex<()>,
}

/// One of the epochs of a session.
#[derive(Debug, Default)]
struct Slot {
    /// As far as it is known.
    version: AtomicI64,
    ending: tokio::sync::Mutex<()>,
}

impl Live {
    pub(crate) fn new(id: Session, timeout: Duration, sent: Tick, epochs: usize) -> Arc<Self> {
        Arc::new(Self {
            id,
            timeout,
            certain: AtomicU64::new((sent + timeout).as_nanos()),
            has_ended: AtomicBool::new(false),
            slots: (0..epochs).map(|_| Slot::default()).collect(),
            beating: tokio::sync::Mutex::default(),
        })
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Whether the session is certain to live at `tick`.
    fn lives_until(&self, tick: Tick) -> bool {
        Tick::from_nanos(self.certain.load(Ordering::Acquire)) >= tick
    }

    /// Returns the current epoch of a slot, as far as it is known.
    pub(crate) fn epoch(&self, slot: usize) -> Epoch {
        let version = self.slots.get(slot).map_or(0, |slot| slot.version.load(Ordering::Acquire));
        Epoch { slot, version }
    }

    /// Returns the mutex for those who end the epoch of a slot.
    pub(crate) fn ending(&self, slot: usize) -> Option<&tokio::sync::Mutex<()>> {
        self.slots.get(slot).map(|slot| &slot.ending)
    }

    /// Records the epoch that the store has answered. Epochs only grow.
    pub(crate) fn saw_epoch(&self, slot: usize, version: i64) {
        if let Some(known) = self.slots.get(slot) {
            known.version.fetch_max(version, Ordering::AcqRel);
        }
    }

    /// Records that the store has lost the epoch, although the session lives.
    fn lost_epoch(&self, slot: usize, version: i64) {
        if let Some(known) = self.slots.get(slot) {
            known.version.store(version, Ordering::Release);
        }
    }
}

/// The sessions of a manager.
#[derive(Debug)]
pub(crate) struct Sessions {
    clock: Clock,
    by_timeout: Mutex<HashMap<Duration, Arc<Live>>>,
    beginning: tokio::sync::Mutex<()>,
}

impl Sessions {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, by_timeout: Mutex::default(), beginning: tokio::sync::Mutex::default() }
    }

    fn find(&self, timeout: Duration) -> Option<Arc<Live>> {
        lock(&self.by_timeout).get(&timeout).map(Arc::clone)
    }

    /// Returns a session that is certain to live for another `lease`, and begins one if there is
    /// none.
    pub(crate) async fn lasting<S: OrderedStore>(
        &self,
        store: &S,
        lease: Duration,
        ended: impl Fn(&Live),
    ) -> Result<Arc<Live>, StoreError> {
        let timeout = store.timeout_for(lease);
        loop {
            let live = match self.find(timeout) {
                Some(live) => live,
                None => self.begin(store, timeout).await?,
            };
            if self.keep(store, &live, lease, &ended).await? {
                return Ok(live);
            }
        }
    }

    async fn begin<S: OrderedStore>(&self, store: &S, timeout: Duration) -> Result<Arc<Live>, StoreError> {
        let _only = self.beginning.lock().await;
        if let Some(live) = self.find(timeout) {
            return Ok(live);
        }
        let sent = self.clock.now();
        let (id, granted) = store.begin(timeout).await?;
        let live = Live::new(id, granted, sent, S::EPOCHS);
        lock(&self.by_timeout).insert(timeout, Arc::clone(&live));
        Ok(live)
    }

    /// Begins a session that is used for nothing else.
    pub(crate) async fn apart<S: OrderedStore>(
        &self,
        store: &S,
        timeout: Duration,
    ) -> Result<Arc<Live>, StoreError> {
        let sent = self.clock.now();
        let (id, granted) = store.begin(timeout).await?;
        Ok(Live::new(id, granted, sent, S::EPOCHS))
    }

    /// Makes certain that the session lives for another `lease`. Returns `false` if it has ended.
    pub(crate) async fn keep<S: OrderedStore>(
        &self,
        store: &S,
        live: &Live,
        lease: Duration,
        ended: impl Fn(&Live),
    ) -> Result<bool, StoreError> {
        let until = self.clock.now() + lease;
        if live.lives_until(until) || live.has_ended() {
            return Ok(!live.has_ended());
        }
        // One heartbeat for all that wait here.
        let _only = live.beating.lock().await;
        if live.lives_until(until) || live.has_ended() {
            return Ok(!live.has_ended());
        }
        let sent = self.clock.now();
        match store.beat(live.id, lease).await? {
            Some(timeout) => {
                live.certain.fetch_max((sent + timeout).as_nanos(), Ordering::AcqRel);
                if live.lives_until(until) {
                    return Ok(true);
                }
                let text = format!(
                    "the server lets a session live for {timeout:?}, too short for a lease of {lease:?}"
                );
                Err(StoreError::new(StoreErrorKind::Refused, text))
            }
            None => {
                self.end(live);
                ended(live);
                Ok(false)
            }
        }
    }

    /// Handles the answer that the epoch is not the one that was sent, but `version`.
    pub(crate) async fn late<S: OrderedStore>(
        &self,
        store: &S,
        live: &Live,
        sent: Epoch,
        version: i64,
        ended: impl Fn(&Live),
    ) -> Result<(), StoreError> {
        if version > sent.version {
            live.saw_epoch(sent.slot, version);
        } else if store.beat(live.id, Duration::ZERO).await?.is_none() {
            // Epochs end with their session.
            self.end(live);
            ended(live);
        } else {
            live.lost_epoch(sent.slot, version);
        }
        Ok(())
    }

    /// Records that the session has ended.
    pub(crate) fn end(&self, live: &Live) {
        live.has_ended.store(true, Ordering::Release);
        lock(&self.by_timeout).retain(|_, other| other.id != live.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_certain_from_the_sending_of_its_last_answered_heartbeat() {
        let sent = Tick::from_nanos(5_000_000_000);
        let live = Live::new(Session(1), Duration::from_secs(4), sent, 8);
        assert!(live.lives_until(sent + Duration::from_secs(4)));
        assert!(!live.lives_until(sent + Duration::from_nanos(4_000_000_001)));
    }

    #[test]
    fn epochs_only_grow_unless_the_store_has_lost_them() {
        let live = Live::new(Session(1), Duration::from_secs(4), Tick::default(), 8);
        live.saw_epoch(3, 5);
        live.saw_epoch(3, 4);
        assert_eq!((live.epoch(3).version, live.epoch(4).version), (5, 0));
        live.lost_epoch(3, 0);
        assert_eq!(live.epoch(3).version, 0);
    }
}
