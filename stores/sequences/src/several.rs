//! Acquires of several locks that wait: mutexes that are free are left to others.
//!
//! If a request had places in the queues of free locks as well, it would keep others from them
//! while it waits. A holder that asks for such a lock would then wait for the request, and the
//! request for the holder.
//!
//! All places of a request are made in one step. A request that needs another one takes all anew.
//! Otherwise, two requests could each be the first of one queue, and wait for each other.

use std::sync::Arc;

use lock_core::internal::sync::lock;
use lock_core::store::{AcquireRequest, Acquired, Item, Kind, StoreError};

use crate::acquire::{Found, busy};
use crate::entries::State;
use crate::leave::Leaving;
use crate::locks::Inner;
use crate::sent::{Sent, slot_of};
use crate::sessions::Live;
use crate::store::{Enter, Entered, Entry, OrderedStore, Place};

impl<S: OrderedStore> Inner<S> {
    /// Whether the request leaves out mutexes that are free. It queues for all others in any case.
    pub(crate) fn may_leave_out(&self, request: &AcquireRequest, entries: &[Entry]) -> bool {
        let own = lock(&self.entries);
        let holds = |entry: &Entry| own.get(entry).is_some_and(|own| own.state == State::Holds);
        request.wait.is_some()
            && entries.len() > 1
            && request.items.iter().any(|item| item.kind == Kind::Mutex)
            && !entries.iter().any(holds)
    }

    pub(crate) async fn acquire_several(
        &self,
        request: &AcquireRequest,
        entries: &Arc<[Entry]>,
    ) -> Result<Acquired, StoreError> {
        let (slot, sent): (usize, &Sent) = (slot_of(request, S::EPOCHS), request.attachment());
        loop {
            let Some((entered, live)) = self.place_of(entries, request.lease).await? else { continue };
            let asked_at = self.clock.now();
            // Its places, and whether it is the first in those queues.
            let queued = self.queued(entries);
            let found = |of, moment| Found {
                entered: &entered,
                live: &live,
                group: entries,
                of,
                moment,
                asked_at,
                slot,
            };
            if !queued.is_empty() {
                let of: Vec<Entry> = queued.iter().map(|(entry, _)| entry.clone()).collect();
                let (moment, places) = self.store.places(entered.id, queued.clone()).await?;
                let Some(places) = places.into_iter().collect::<Option<Vec<Place>>>() else {
                    self.begin_anew(&entered, &live, entries, slot).await?;
                    continue;
                };
                if let Some(at) = places.iter().position(|place| place.before.is_some()) {
                    let item = entries.iter().position(|entry| Some(entry) == of.get(at)).unwrap_or(0);
                    if self.entered(request, sent, &found(&of, moment), places)?.is_some() {
                        return Ok(busy(item, moment, 0));
                    }
                    self.begin_anew(&entered, &live, entries, slot).await?;
                    continue;
                }
            }
            let rest: Arc<[Entry]> = entries
                .iter()
                .filter(|entry| !queued.iter().any(|(other, _)| other == *entry))
                .cloned()
                .collect();
            let epoch = entered.epoch(slot);
            let (session, beside) = (entered.id, queued.clone());
            let all = Enter { session, entries: Arc::clone(&rest), epoch, beside, stays: false };
            let taken = match self.enter(sent, &entered, all).await? {
                Entered::All { moment, places } => {
                    self.attach_new(&entered, &live, &rest, &places).await?;
                    let mut new = places.into_iter();
                    let place = |entry: &Entry| {
                        let old = queued.iter().find(|(other, _)| other == entry);
                        old.map(|(_, born)| Place { born: *born, before: None }).or_else(|| new.next())
                    };
                    let places: Vec<Place> = entries.iter().map_while(place).collect();
                    let Some(moment) = self.moment_of(&entered, entries, &places, moment).await? else {
                        self.begin_anew(&entered, &live, entries, slot).await?;
                        continue;
                    };
                    if let Some(acquired) = self.entered(request, sent, &found(entries, moment), places)? {
                        return Ok(acquired);
                    }
                    self.begin_anew(&entered, &live, entries, slot).await?;
                    continue;
                }
                Entered::Busy { items, .. } if items.is_empty() => continue,
                Entered::Busy { items, .. } => items,
                Entered::Partly(_) => {
                    self.begin_anew(&entered, &live, entries, slot).await?;
                    continue;
                }
                Entered::Late(version) => {
                    self.late(&entered, epoch, version).await?;
                    continue;
                }
                Entered::Ended => {
                    self.end(&entered);
                    continue;
                }
            };
            if !queued.is_empty() {
                self.begin_anew(&entered, &live, entries, slot).await?;
            }
            let is_queued_for = |(entry, item): &(&Entry, &Item)| {
                let at = rest.iter().position(|other| other == *entry);
                item.kind != Kind::Mutex || at.is_none_or(|at| taken.contains(&at))
            };
            let all = entries.iter().zip(request.items.iter()).filter(is_queued_for);
            let of: Arc<[Entry]> = all.map(|(entry, _)| entry.clone()).collect();
            let epoch = entered.epoch(slot);
            let beside = Vec::new();
            let wait = Enter { session: entered.id, entries: Arc::clone(&of), epoch, beside, stays: true };
            match self.enter(sent, &entered, wait).await? {
                Entered::All { moment, places } => {
                    self.attach_new(&entered, &live, &of, &places).await?;
                    let at = places.iter().position(|place| place.before.is_some());
                    let Some(moment) = self.moment_of(&entered, &of, &places, moment).await? else {
                        self.begin_anew(&entered, &live, entries, slot).await?;
                        continue;
                    };
                    match (self.entered(request, sent, &found(&of, moment), places)?, at) {
                        (Some(Acquired::Busy(_)), Some(at)) => {
                            let item =
                                entries.iter().position(|entry| Some(entry) == of.get(at)).unwrap_or(0);
                            return Ok(busy(item, moment, 0));
                        }
                        // It is the first in all queues by now.
                        (Some(Acquired::Busy(_)), None) => {}
                        (Some(granted), _) => return Ok(granted),
                        (None, _) => self.begin_anew(&entered, &live, entries, slot).await?,
                    }
                }
                Entered::Busy { .. } => {}
                Entered::Partly(_) => self.begin_anew(&entered, &live, entries, slot).await?,
                Entered::Late(version) => self.late(&entered, epoch, version).await?,
                Entered::Ended => self.end(&entered),
            }
        }
    }

    /// Returns the entries that wait, with the revisions that made them.
    fn queued(&self, entries: &[Entry]) -> Vec<(Entry, u64)> {
        let own = lock(&self.entries);
        entries.iter().filter_map(|entry| Some((entry.clone(), own.get(entry)?.born))).collect()
    }

    /// Gives up all places, in a new epoch: a late copy deletes none of the next ones.
    async fn begin_anew(
        &self,
        entered: &Arc<Live>,
        live: &Arc<Live>,
        entries: &[Entry],
        slot: usize,
    ) -> Result<(), StoreError> {
        let all = entries.iter().map(|entry| (entry.clone(), None)).collect();
        self.leave_in(&Leaving::by_epoch(entered, live, slot), all).await?;
        let mut own = lock(&self.entries);
        let gone: Vec<_> = entries.iter().filter_map(|entry| own.remove(entry)).collect();
        drop(own);
        drop(gone);
        Ok(())
    }
}
