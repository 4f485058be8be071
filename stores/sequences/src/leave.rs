//! Releases and withdrawals: entries that leave the queues.

use std::sync::Arc;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::lock;
use lock_core::store::{AcquireRequest, Few, ReleaseRequest, Released, Rivals, StoreError, Withdrawn};

use crate::entries::{Own, State};
use crate::locks::Inner;
use crate::sent::{Sent, slot_of};
use crate::sessions::Live;
use crate::store::{Entry, Leave, Left, OrderedStore};

impl<S: OrderedStore> Inner<S> {
    pub(crate) async fn release(&self, request: &ReleaseRequest) -> Result<Released, StoreError> {
        let mut held: Few<bool> = request.items.iter().map(|_| false).collect();
        let now = self.clock.now();
        // The holds, by how they are released.
        let mut groups: Vec<Leaving> = Vec::new();
        let mut stopped = Vec::new();
        {
            let mut entries = lock(&self.entries);
            for (at, item) in request.items.iter().enumerate() {
                let entry = self.own_entry(&entries, item);
                let holds = |own: &&Own| own.state == State::Holds && own.until > now;
                let Some(own) = entries.get(&entry).filter(holds) else { continue };
                let of = |group: &&mut Leaving| group.is_of(own);
                match groups.iter_mut().find(of) {
                    Some(group) => group.all.push((at, entry.clone(), own.born)),
                    None => {
                        let all = vec![(at, entry.clone(), own.born)];
                        groups.push(Leaving { all, ..Leaving::of(own) });
                    }
                }
                // Its task would take the deletion for a loss.
                stopped.extend(entries.change(&entry, |own| std::mem::take(&mut own.following)));
            }
        }
        drop(stopped);
        if !request.linger.is_zero() {
            for (at, ..) in groups.iter().flat_map(|group| &group.all) {
                set(&mut held, *at, true);
            }
            let until = self.linger(&groups, now + request.linger);
            for group in groups.iter().filter(|_| S::MOVES) {
                // It ends in time even if this process ends before. If that fails, the sweeper is
                // left.
                let _ = self.rest(group, until).await;
            }
            return Ok(Released { held, rivals: Rivals::None, then: None });
        }
        for group in groups {
            let entries = group.all.iter().map(|(_, entry, born)| (entry.clone(), Some(*born))).collect();
            let left = self.leave_in(&group, entries).await?;
            let mut gone = Vec::new();
            let mut own = lock(&self.entries);
            for ((at, entry, born), found) in group.all.iter().zip(left) {
                set(&mut held, *at, found);
                if own.get(entry).is_some_and(|own| own.born == *born) {
                    gone.extend(own.remove(entry));
                }
            }
            drop(own);
            drop(gone);
        }
        // All kinds are queued.
        Ok(Released { held, rivals: Rivals::Unknown, then: None })
    }

    /// Lets holds end at `until`, or before. Returns when the last one does.
    fn linger(&self, groups: &[Leaving], until: Tick) -> Tick {
        let mut entries = lock(&self.entries);
        let mut last = self.clock.now();
        for (_, entry, _) in groups.iter().flat_map(|group| &group.all) {
            let shortened = entries.change(entry, |own| {
                own.until = own.until.min(until);
                own.until
            });
            last = last.max(shortened.unwrap_or_default());
        }
        let wake = self.sweep_by(&mut entries, until);
        drop(entries);
        self.wake(wake);
        last
    }

    /// Lets entries end with a session of their own, to which nobody sends heartbeats.
    async fn rest(&self, group: &Leaving, until: Tick) -> Result<(), StoreError> {
        let _only = self.attaching.lock().await;
        let last = self.sessions.apart(&*self.store, until.since(self.clock.now())).await?;
        for (_, entry, born) in &group.all {
            self.move_to(&group.entered, entry, *born, &last).await?;
        }
        Ok(())
    }

    /// Deletes entries, and ends the epoch of their request if a copy of it had no answer. Returns
    /// which of them were there.
    pub(crate) async fn leave_in(
        &self,
        group: &Leaving,
        entries: Vec<(Entry, Option<u64>)>,
    ) -> Result<Vec<bool>, StoreError> {
        let mut left = self.leave(&group.entered, entries.clone(), group.doubt).await?;
        if group.entered.has_ended() && !group.live.has_ended() {
            // They have moved to another session, and the copies are refused.
            let again = self.leave(&group.entered, entries, None).await?;
            left.iter_mut().zip(again).for_each(|(left, again)| *left |= again);
        }
        Ok(left)
    }

    /// Deletes entries, and ends the epoch of this slot. Returns which of them were there.
    pub(crate) async fn leave(
        &self,
        entered: &Live,
        entries: Vec<(Entry, Option<u64>)>,
        slot: Option<usize>,
    ) -> Result<Vec<bool>, StoreError> {
        // Of two that end an epoch at once, one would be too late, and look and send again.
        let _only = match slot.and_then(|slot| entered.ending(slot)) {
            Some(ending) => Some(ending.lock().await),
            None => None,
        };
        loop {
            let epoch = slot.map(|slot| entered.epoch(slot));
            let leave = Leave { session: entered.id, entries: entries.clone(), epoch };
            match self.store.leave(leave).await? {
                Left::All(found) => {
                    if let Some(epoch) = epoch {
                        entered.saw_epoch(epoch.slot, epoch.version + 1);
                    }
                    return Ok(found);
                }
                Left::Late(version) => {
                    if let Some(epoch) = epoch {
                        self.late(entered, epoch, version).await?;
                        // Then so have its epochs.
                        if entered.has_ended() {
                            return Ok(vec![false; entries.len()]);
                        }
                    }
                }
                Left::Ended => {
                    self.end(entered);
                    return Ok(vec![false; entries.len()]);
                }
            }
        }
    }

    pub(crate) async fn withdraw(&self, request: &AcquireRequest) -> Result<Withdrawn, StoreError> {
        let entries: Arc<[Entry]> = {
            let own = lock(&self.entries);
            request.items.iter().map(|item| self.own_entry(&own, item)).collect()
        };
        let sent: &Sent = request.attachment();
        let (used, is_open) = sent.withdraw();
        let doubt = is_open.then(|| slot_of(request, S::EPOCHS));
        let mut groups: Vec<Leaving> = Vec::new();
        let mut stopped = Vec::new();
        {
            let mut own = lock(&self.entries);
            for entry in entries.iter() {
                stopped.extend(own.change(entry, |own| std::mem::take(&mut own.following)));
            }
            for own in entries.iter().filter_map(|entry| own.get(entry)) {
                if !groups.iter().any(|group| Arc::ptr_eq(&group.entered, &own.entered)) {
                    groups.push(Leaving { doubt: doubt.or(own.doubt), ..Leaving::of(own) });
                }
            }
        }
        drop(stopped);
        if let Some(live) = used
            && !groups.iter().any(|group| Arc::ptr_eq(&group.entered, &live))
        {
            groups.push(Leaving { entered: Arc::clone(&live), live, doubt, all: Vec::new() });
        }
        for group in groups {
            if !(group.entered.has_ended() && group.live.has_ended()) {
                let all = entries.iter().map(|entry| (entry.clone(), None)).collect();
                self.leave_in(&group, all).await?;
            }
        }
        sent.settled();
        let mut own = lock(&self.entries);
        let gone: Vec<_> = entries.iter().filter_map(|entry| own.remove(entry)).collect();
        drop(own);
        drop(gone);
        Ok(Withdrawn::Settled)
    }
}

/// Sets one of the answers.
pub(crate) fn set<T>(answers: &mut [T], at: usize, answer: T) {
    if let Some(place) = answers.get_mut(at) {
        *place = answer;
    }
}

/// Entries that are left together.
pub(crate) struct Leaving {
    pub(crate) entered: Arc<Live>,
    pub(crate) live: Arc<Live>,
    /// The epoch of a request of which a copy had no answer.
    pub(crate) doubt: Option<usize>,
    /// Index in the request, entry, and its birth.
    pub(crate) all: Vec<(usize, Entry, u64)>,
}

impl Leaving {
    pub(crate) fn of(own: &Own) -> Self {
        let (entered, live) = (Arc::clone(&own.entered), Arc::clone(&own.live));
        Self { entered, live, doubt: own.doubt, all: Vec::new() }
    }

    /// Those of a request of which a copy may be on its way.
    pub(crate) fn by_epoch(entered: &Arc<Live>, live: &Arc<Live>, slot: usize) -> Self {
        let (entered, live) = (Arc::clone(entered), Arc::clone(live));
        Self { entered, live, doubt: Some(slot), all: Vec::new() }
    }

    pub(crate) fn is_of(&self, own: &Own) -> bool {
        Arc::ptr_eq(&self.entered, &own.entered) && self.doubt == own.doubt
    }
}
