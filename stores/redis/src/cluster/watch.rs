//! Watches whose channels are at several servers and follow their slots.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lock_core::internal::sync::lock;
use lock_core::store::{AcquireRequest, Notice, StoreError, Watch};
use tokio::sync::{mpsc, watch as cell};

use super::super::hash_slot::slot;
use super::super::keyspace;
use super::super::registry::Readiness;
use super::super::subscriber::{NOTICES, Registration, confirmed};
use super::Cluster;
use super::slots::{Place, SlotMap};

/// Interval at which watchers are told to look while a slot moves, since messages may be published
/// where nobody listens.
const LOOK: Duration = Duration::from_millis(250);

/// Pause between two moves of watches.
const PAUSE: Duration = Duration::from_millis(100);

/// Number of watches that are moved before yielding to other tasks.
const AT_ONCE: usize = 128;

/// The channels of a watch and their servers.
pub(super) struct Places {
    sender: mpsc::Sender<Notice>,
    /// `None` when the watch has been dropped.
    channels: Mutex<Option<Vec<Channel>>>,
}

struct Channel {
    name: Arc<str>,
    slot: u16,
    at: Option<(Place, Registration)>,
}

/// All watches of a cluster. One task follows them, started with the first watch.
#[derive(Default)]
pub(super) struct Watches {
    all: HashMap<u64, Weak<Places>>,
    next: u64,
    followed: bool,
}

/// Removes a watch when it is dropped.
struct Following {
    cluster: Weak<Cluster>,
    id: u64,
    places: Arc<Places>,
}

impl Drop for Following {
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster.upgrade() {
            lock(&cluster.watches).all.remove(&self.id);
        }
        let channels = lock(&self.places.channels).take();
        drop(channels);
    }
}

impl Cluster {
    pub(in super::super) async fn watch(&self, request: &AcquireRequest) -> Result<Watch, StoreError> {
        self.watch_channels(self.watched(&request.items)?, request.timeout).await
    }

    pub(in super::super) async fn watch_channels(
        &self,
        channels: Vec<Arc<str>>,
        timeout: Duration,
    ) -> Result<Watch, StoreError> {
        let deadline = self.deadline(timeout);
        self.map(deadline).await?;
        let (sender, notices) = mpsc::channel(NOTICES);
        let channels =
            channels.into_iter().map(|name| Channel { slot: slot_of(&name), name, at: None }).collect();
        let places = Arc::new(Places { sender, channels: Mutex::new(Some(channels)) });
        let mut changes = self.map.subscribe();
        let map = changes.borrow_and_update().clone();
        let pending = map.map_or_else(Vec::new, |map| self.place(&places, &map));
        let following = self.follow(Arc::clone(&places));
        if changes.has_changed().unwrap_or(false) || !self.deaf(&[places]).is_empty() {
            // The following task may have looked before this watch was registered.
            self.map.send_modify(|_| {});
        }
        let confirmed = confirmed(pending, self.options.clock, deadline).await;
        Ok(Watch::new(notices, confirmed, Box::new(following)))
    }

    fn follow(&self, places: Arc<Places>) -> Following {
        let mut watches = lock(&self.watches);
        let id = watches.next;
        watches.next += 1;
        watches.all.insert(id, Arc::downgrade(&places));
        if !std::mem::replace(&mut watches.followed, true) {
            let task = follow(self.weak.clone(), self.map.subscribe());
            drop(self.options.runtime.spawn(task));
        }
        Following { cluster: self.weak.clone(), id, places }
    }

    /// Listens to each channel at the server of its slot. Only one task at a time may call it for a
    /// watch.
    fn place(&self, places: &Places, map: &SlotMap) -> Vec<Readiness> {
        let misplaced: Vec<_> = lock(&places.channels)
            .iter()
            .flatten()
            .enumerate()
            .filter_map(|(index, channel)| {
                let owner = map.owner(channel.slot)?;
                let here =
                    channel.at.as_ref().is_some_and(|(place, there)| place == owner && there.is_live());
                (!here).then(|| (index, Arc::clone(&channel.name), owner.clone()))
            })
            .collect();
        let (mut pending, mut left) = (Vec::new(), Vec::new());
        for (index, name, owner) in misplaced {
            let Ok(node) = self.node(&owner) else { continue };
            let (registration, readiness) = node.subscriber.register(vec![name], &places.sender);
            pending.extend(readiness);
            let mut new = Some((owner, registration));
            let mut channels = lock(&places.channels);
            if let Some(channel) = channels.as_mut().and_then(|channels| channels.get_mut(index)) {
                std::mem::swap(&mut channel.at, &mut new);
            }
            drop(channels);
            // The former registration, or the new one if the watch has been dropped meanwhile.
            left.push(new);
        }
        pending
    }

    /// Returns the watches that may miss messages because their slots are moving.
    fn deaf(&self, watches: &[Arc<Places>]) -> Vec<Weak<Places>> {
        let (moving, now) = (lock(&self.moving), self.now());
        let is_deaf = |places: &&Arc<Places>| {
            lock(&places.channels).iter().flatten().any(|channel| moving.is_moving(channel.slot, now))
        };
        watches.iter().filter(is_deaf).map(Arc::downgrade).collect()
    }
}

/// Returns the slot whose server has the messages of a channel.
fn slot_of(channel: &str) -> u16 {
    slot(keyspace::key_of(channel).unwrap_or(channel))
}

/// Follows the channels of all watches as long as the cluster exists.
async fn follow(cluster: Weak<Cluster>, mut changes: cell::Receiver<Option<Arc<SlotMap>>>) {
    let mut deaf: Vec<Weak<Places>> = Vec::new();
    loop {
        let changed = if deaf.is_empty() {
            Ok(changes.changed().await)
        } else {
            tokio::time::timeout(LOOK, changes.changed()).await
        };
        let Some(cluster) = cluster.upgrade() else { return };
        let watches: Vec<_> = lock(&cluster.watches).all.values().filter_map(Weak::upgrade).collect();
        match &changed {
            Ok(Err(_)) => return,
            Ok(Ok(())) => {
                let map = changes.borrow_and_update().clone();
                for (number, places) in watches.iter().enumerate() {
                    for readiness in map.iter().flat_map(|map| cluster.place(places, map)) {
                        // A later confirmation is reported by the subscriber.
                        if let Readiness::Known(known) = readiness {
                            let notice = if known { Notice::Resubscribed } else { Notice::Retry };
                            let _ = places.sender.try_send(notice);
                        }
                    }
                    if number % AT_ONCE == AT_ONCE - 1 {
                        tokio::task::yield_now().await;
                    }
                }
            }
            Err(_) => {
                for places in deaf.iter().filter_map(Weak::upgrade) {
                    let _ = places.sender.try_send(Notice::Retry);
                }
            }
        }
        deaf = cluster.deaf(&watches);
        drop((cluster, watches));
        if changed.is_ok() {
            // Servers may name each other for a slot; the pause keeps watches from moving back and
            // forth all the time.
            tokio::time::sleep(PAUSE).await;
        }
    }
}
