//! Watches whose channels are at several servers, and follow their slots.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, watch as cell};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::super::registry::Readiness;
use super::super::subscriber::{NOTICES, Registration, confirmed};
use super::Cluster;
use super::slots::{Place, SlotMap, slot};
use crate::store::{AcquireRequest, Notice, StoreError, Watch};
use crate::sync::lock;

/// While a slot moves, messages may be published where nobody listens: so often watchers are told to look.
const LOOK: Duration = Duration::from_millis(250);

/// Between two moves of a watch.
const PAUSE: Duration = Duration::from_millis(100);

/// What a watch listens to.
struct Places {
    sender: mpsc::Sender<Notice>,
    /// `None` when the watch has gone.
    channels: Mutex<Option<Vec<Channel>>>,
}

struct Channel {
    name: Arc<str>,
    slot: u16,
    at: Option<(Place, Registration)>,
}

/// Ends with the watch.
struct Following {
    places: Arc<Places>,
    task: AbortHandle,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.task.abort();
        let channels = lock(&self.places.channels).take();
        drop(channels);
    }
}

impl Cluster {
    pub(in super::super) async fn watch(&self, request: &AcquireRequest) -> Result<Watch, StoreError> {
        let channels: Result<Vec<_>, _> = request.items.iter().map(|item| self.channel(item)).collect();
        self.watch_channels(channels?, request.timeout).await
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
            channels.into_iter().map(|name| Channel { slot: slot(&name), name, at: None }).collect();
        let places = Arc::new(Places { sender, channels: Mutex::new(Some(channels)) });
        let mut changes = self.map.subscribe();
        let map = changes.borrow_and_update().clone();
        let pending = map.map_or_else(Vec::new, |map| self.place(&places, &map));
        let task = follow(self.weak.clone(), Arc::downgrade(&places), changes);
        let task = self.options.runtime.spawn(task).abort_handle();
        let following = Following { places, task };
        let confirmed = confirmed(pending, self.options.clock, deadline).await;
        Ok(Watch::new(notices, confirmed, Box::new(following)))
    }

    /// Listens to each channel where its slot is now. Called for one watch by one task at a time.
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
            // Where it was; or all of it, when the watch has gone meanwhile.
            left.push(new);
        }
        pending
    }

    /// Whether messages for this watch may be published where nobody listens.
    fn is_deaf(&self, places: &Places) -> bool {
        let moving = lock(&self.moving);
        lock(&places.channels).iter().flatten().any(|channel| moving.is_moving(channel.slot, self.now()))
    }
}

/// Follows the channels of a watch for as long as it is there.
async fn follow(
    cluster: Weak<Cluster>,
    places: Weak<Places>,
    mut changes: cell::Receiver<Option<Arc<SlotMap>>>,
) {
    let mut deaf = false;
    let mut placed: Option<Instant> = None;
    loop {
        let changed = if deaf {
            tokio::time::timeout(LOOK, changes.changed()).await
        } else {
            Ok(changes.changed().await)
        };
        if let (Ok(Ok(())), Some(since)) = (&changed, placed) {
            // Servers may name each other for the slot: not back and forth without a pause.
            tokio::time::sleep_until(since + PAUSE).await;
        }
        let (Some(cluster), Some(places)) = (cluster.upgrade(), places.upgrade()) else { return };
        match changed {
            Ok(Err(_)) => return,
            Ok(Ok(())) => {
                placed = Some(Instant::now());
                let map = changes.borrow_and_update().clone();
                for readiness in map.map_or_else(Vec::new, |map| cluster.place(&places, &map)) {
                    // Confirmed later, it is told by the subscriber.
                    if let Readiness::Known(known) = readiness {
                        let notice = if known { Notice::Resubscribed } else { Notice::Retry };
                        let _ = places.sender.try_send(notice);
                    }
                }
            }
            Err(_) => drop(places.sender.try_send(Notice::Retry)),
        }
        deaf = cluster.is_deaf(&places);
    }
}
