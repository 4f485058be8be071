//! Acquires: entries that enter the queues, and their grants.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::lock;
use lock_core::store::{AcquireRequest, Acquired, Busy, Few, Granted, Moment, StoreError, StoreErrorKind};

use crate::entries::{Entries, Following, Own, State, TokensOf, tell};
use crate::follow::follow;
use crate::leave::Leaving;
use crate::locks::Inner;
use crate::named::Name;
use crate::renew::Kept;
use crate::sent::{Sent, slot_of};
use crate::sessions::Live;
use crate::store::{Before, Class, Enter, Entered, Entry, OrderedStore, Place};

impl<S: OrderedStore> Inner<S> {
    pub(crate) async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired, StoreError> {
        self.store.abilities().allow(request)?;
        let entries: Arc<[Entry]> = request.items.iter().map(|item| self.entry(item)).collect();
        for (entry, item) in entries.iter().zip(request.items.iter()) {
            self.store.allows(&entry.lock, item.kind)?;
        }
        let slot = slot_of(request, S::EPOCHS);
        let sent: &Sent = request.attachment();
        if self.may_leave_out(request, &entries) {
            return self.acquire_several(request, &entries).await;
        }
        // What is entered now: all, or what is missing of a hold.
        let mut wanted = Arc::clone(&entries);
        let mut stays = request.wait.is_some();
        loop {
            let Some((entered, live)) = self.place_of(&entries, request.lease).await? else { continue };
            let asked_at = self.clock.now();
            let sent_epoch = entered.epoch(slot);
            let (session, beside) = (entered.id, Vec::new());
            let enter = Enter { session, entries: Arc::clone(&wanted), epoch: sent_epoch, beside, stays };
            match self.enter(sent, &entered, enter).await? {
                Entered::All { moment, mut places } if wanted.len() == entries.len() => {
                    if !self.keep_permits(&entered, &live, &entries, &mut places, slot).await? {
                        return Ok(busy(0, moment, 0));
                    }
                    let Some(moment) = self.moment_of(&entered, &entries, &places, moment).await? else {
                        continue;
                    };
                    let (group, of) = (&entries, &*entries);
                    let found = Found { entered: &entered, live: &live, group, of, moment, asked_at, slot };
                    if let Some(acquired) = self.entered(request, sent, &found, places)? {
                        return Ok(acquired);
                    }
                }
                Entered::All { places, .. } => {
                    // The missing ones are there now: ask for all.
                    self.attach_new(&entered, &live, &wanted, &places).await?;
                    (wanted, stays) = (Arc::clone(&entries), request.wait.is_some());
                }
                Entered::Partly(found) if self.holds_all(&wanted, &found) => {
                    let missing = wanted.iter().zip(&found).filter(|(_, found)| !**found);
                    (wanted, stays) = (missing.map(|(entry, _)| entry.clone()).collect(), false);
                }
                Entered::Partly(found) => {
                    // A place was lost. All are taken anew, together.
                    let there = wanted.iter().zip(&found).filter(|(_, found)| **found);
                    let there = there.map(|(entry, _)| (entry.clone(), None)).collect();
                    // In a new epoch: a copy that arrives late does not delete the new ones.
                    self.leave_in(&Leaving::by_epoch(&entered, &live, slot), there).await?;
                    (wanted, stays) = (Arc::clone(&entries), request.wait.is_some());
                }
                Entered::Busy { moment, items, ahead } => {
                    let wanted_item = items.first().and_then(|item| wanted.get(*item));
                    let item = entries.iter().position(|entry| Some(entry) == wanted_item).unwrap_or(0);
                    return Ok(busy(item, moment, ahead));
                }
                Entered::Late(version) => self.late(&entered, sent_epoch, version).await?,
                Entered::Ended => self.end(&entered),
            }
        }
    }

    /// Lets permits that are held stay, even if there are too many by now. Returns `false` if
    /// others were found to be too many, and deletes them: nobody had looked at their places.
    async fn keep_permits(
        &self,
        entered: &Arc<Live>,
        live: &Arc<Live>,
        entries: &[Entry],
        places: &mut [Place],
        slot: usize,
    ) -> Result<bool, StoreError> {
        if self.leases.is_none() {
            return Ok(true);
        }
        let mut new = Vec::new();
        {
            let own = lock(&self.entries);
            for (entry, place) in entries.iter().zip(places.iter_mut()) {
                let holds = |own: &Own| own.born == place.born && own.state == State::Holds;
                if own.get(entry).is_some_and(holds) {
                    place.before = None;
                } else {
                    new.push((entry.clone(), None));
                }
            }
        }
        if places.iter().all(|place| place.before.is_none()) {
            return Ok(true);
        }
        self.leave_in(&Leaving::by_epoch(entered, live, slot), new).await?;
        Ok(false)
    }

    /// Lets entries that were just made end with the session that other entries of the request have
    /// moved to.
    pub(crate) async fn attach_new(
        &self,
        entered: &Arc<Live>,
        live: &Arc<Live>,
        new: &[Entry],
        places: &[Place],
    ) -> Result<(), StoreError> {
        if Arc::ptr_eq(entered, live) {
            return Ok(());
        }
        for (entry, place) in new.iter().zip(places) {
            let attached = self.store.attach(entered.id, entry, place.born, live.id).await;
            // The entries are there.
            attached.map_err(|error| StoreError::new(StoreErrorKind::Unanswered, error.to_string()))?;
        }
        Ok(())
    }

    /// Returns the revision from which a grant takes its tokens; `None` if an entry is gone.
    pub(crate) async fn moment_of(
        &self,
        entered: &Live,
        entries: &[Entry],
        places: &[Place],
        moment: u64,
    ) -> Result<Option<u64>, StoreError> {
        if S::TOKENS_OF_BIRTH {
            return Ok(Some(moment));
        }
        // Readers that hear of the same deletion would have the same tokens, and so would a grant
        // that is asked for again.
        let is_late = |(entry, place): (&Entry, &Place)| entry.class == Class::Read && place.born != moment;
        let is_late_reader =
            places.iter().all(|place| place.before.is_none()) && entries.iter().zip(places).any(is_late);
        match entries.first().zip(places.first()) {
            Some((first, place)) if is_late_reader || self.is_repeated(entries, moment) => {
                self.store.advance(entered.id, first, place.born).await
            }
            _ => Ok(Some(moment)),
        }
    }

    /// Sends a copy of a request.
    pub(crate) async fn enter(
        &self,
        sent: &Sent,
        entered: &Arc<Live>,
        enter: Enter,
    ) -> Result<Entered, StoreError> {
        sent.begin(entered, &enter.entries, |entry| Name::new(&self.store, entered.id, entry))?;
        let answer = self.store.enter(enter).await;
        if answer.as_ref().err().is_none_or(|error| !error.outcome_unknown()) {
            sent.answered(entered);
        }
        answer
    }

    /// Returns the session that names the entries, and the one that they end with, which is certain
    /// to live for another `lease`. An owner that has entries keeps its sessions. `None`: look
    /// again.
    pub(crate) async fn place_of(
        &self,
        entries: &Arc<[Entry]>,
        lease: Duration,
    ) -> Result<Option<(Arc<Live>, Arc<Live>)>, StoreError> {
        let now = self.clock.now();
        let (mut found, mut over): (Option<Leaving>, _) = (None, None);
        let mut is_unclear = false;
        {
            let own = lock(&self.entries);
            for (entry, own) in entries.iter().filter_map(|entry| Some((entry, own.get(entry)?))) {
                let first = found.get_or_insert_with(|| Leaving::of(own));
                is_unclear |= own.moves_to.is_some() || !Arc::ptr_eq(&first.live, &own.live);
                // One that is over may be deleted at any time. The epochs of a session that has
                // ended are gone, so nothing can be entered under its names.
                let is_over = own.until <= now || own.state == State::Ends || own.entered.has_ended();
                if is_over {
                    over.get_or_insert_with(|| (Leaving::of(own), entry.clone(), own.born));
                }
            }
        }
        if let Some((group, entry, born)) = over {
            self.leave_in(&group, vec![(entry.clone(), Some(born))]).await?;
            self.forget(&entry, born);
            return Ok(None);
        }
        let Some(found) = found else {
            let live = self.lasting(lease).await?;
            return Ok(Some((Arc::clone(&live), live)));
        };
        if !S::MOVES || (lease <= found.live.timeout && !is_unclear) {
            let lives = self.keep(&found.live, lease).await?;
            return Ok(lives.then_some((found.entered, found.live)));
        }
        let all: Vec<_> = {
            let own = lock(&self.entries);
            let known =
                entries.iter().enumerate().filter_map(|(at, entry)| Some((at, entry, own.get(entry)?)));
            known.map(|(at, entry, own)| (at, entry.clone(), own.born, true)).collect()
        };
        let mut kept =
            Kept { entered: Arc::clone(&found.entered), live: found.live, lease, moves: false, all };
        self.attach(&mut kept).await?;
        Ok(Some((found.entered, kept.live)))
    }

    /// Whether these are holds that were granted before, so that they need tokens of another
    /// revision.
    pub(crate) fn is_repeated(&self, entries: &[Entry], moment: u64) -> bool {
        let tokens = TokensOf::of(&*self.store);
        let own = lock(&self.entries);
        let is_repeated = |own: &Own| own.state == State::Holds && own.told.is_none();
        let is_used_up = |own: &Own| !own.has_token(moment, tokens);
        let mut all = entries.iter().map(|entry| own.get(entry));
        all.clone().all(|own| own.is_some_and(is_repeated)) || all.any(|own| own.is_some_and(is_used_up))
    }

    /// Whether each of the entries that were found is a hold of this manager.
    pub(crate) fn holds_all(&self, entries: &[Entry], found: &[bool]) -> bool {
        let own = lock(&self.entries);
        let mut there = entries.iter().zip(found).filter(|(_, found)| **found);
        found.contains(&true)
            && there.all(|(entry, _)| own.get(entry).is_some_and(|own| own.state == State::Holds))
    }

    /// Handles the places of a request. `None`: one of its entries is being deleted, so look again.
    pub(crate) fn entered(
        &self,
        request: &AcquireRequest,
        sent: &Sent,
        found: &Found<'_>,
        places: Vec<Place>,
    ) -> Result<Option<Acquired>, StoreError> {
        let is_granted =
            found.of.len() == found.group.len() && places.iter().all(|place| place.before.is_none());
        let busy_item = places.iter().position(|place| place.before.is_some());
        let (life, tokens_of) = (self.store.abilities().waiter_life, TokensOf::of(&*self.store));
        let (state, until) = match is_granted {
            true => (State::Holds, found.asked_at + request.lease),
            false => (State::Waits, self.clock.now() + life),
        };
        let mut entries = lock(&self.entries);
        // A withdrawal that began meanwhile deletes the entries, and takes them from here later.
        let doubt = sent.is_doubtful()?.then_some(found.slot);
        // An entry that was made since then is another one, and stays.
        let is_new = |entry: &Entry, born: u64| {
            found.of.iter().zip(&places).any(|(other, place)| other == entry && place.born != born)
        };
        let is_ending = |entry: &Entry| {
            entries.get(entry).is_some_and(|own| own.state == State::Ends && !is_new(entry, own.born))
        };
        if found.group.iter().any(is_ending) {
            return Ok(None);
        }
        let (mut tokens, mut gone, mut stopped) = (Few::new(), Vec::new(), Vec::new());
        for (entry, place) in found.of.iter().zip(places) {
            let (before, born) = (place.before, place.born);
            let is_known = entries.get(entry).is_some_and(|own| own.born == born);
            if !is_known {
                let own = Own {
                    entered: Arc::clone(found.entered),
                    live: Arc::clone(found.live),
                    moves_to: None,
                    born,
                    state,
                    until,
                    lease: request.lease,
                    doubt,
                    group: Arc::clone(found.group),
                    is_direct: request.direct,
                    is_first: before.is_none(),
                    told: None,
                    last_token: 0,
                    following: Following::default(),
                    _name: Some(Name::new(&self.store, found.entered.id, entry)),
                };
                gone.extend(entries.add(entry.clone(), own));
            }
            let range = entries.change(entry, |own| {
                own.doubt = own.doubt.or(doubt);
                own.told = None;
                own.is_first |= before.is_none();
                if !is_granted {
                    own.until = own.until.max(until);
                    return None;
                }
                own.until = if own.state == State::Holds { own.until.max(until) } else { until };
                own.state = State::Holds;
                stopped.push(std::mem::take(&mut own.following));
                own.take_tokens(found.moment, request.tokens, tokens_of)
            });
            tokens.extend(range.flatten());
            if let Some(before) = before.filter(|_| !is_granted) {
                self.follow(&mut entries, entry, found.entered, born, before);
            }
        }
        let wake = self.sweep_by(&mut entries, until);
        drop(entries);
        drop((gone, stopped));
        self.wake(wake);
        match busy_item {
            None if !is_granted => Ok(Some(busy(0, found.moment, 0))),
            None if tokens.len() < found.group.len() => {
                let text = "the revision of the store has no more tokens for this hold; ask again";
                Err(StoreError::new(StoreErrorKind::NotReady, text))
            }
            None => Ok(Some(Acquired::Granted(Granted { tokens, moment: Moment::new(found.moment) }))),
            Some(item) => Ok(Some(busy(item, found.moment, 0))),
        }
    }

    /// Starts to wait for the entry before an own one, unless a task does.
    pub(crate) fn follow(
        &self,
        entries: &mut Entries,
        entry: &Entry,
        entered: &Arc<Live>,
        born: u64,
        before: Before,
    ) {
        let me = Weak::clone(&self.me);
        entries.change(entry, |own| {
            if own.following.0.is_none() {
                let (store, session) = (Arc::clone(&self.store), entered.id);
                let limit = self.settings.call_timeout;
                let task = tokio::spawn(follow(me, store, session, entry.clone(), born, before, limit));
                own.following = Following(Some(task.abort_handle()));
            }
        });
    }

    /// Records that nothing is before an entry any more.
    pub(crate) fn is_first(&self, entry: &Entry, born: u64, moment: u64) {
        let (direct_lease, tokens) = (self.store.abilities().direct_lease, TokensOf::of(&*self.store));
        let mut entries = lock(&self.entries);
        let now = self.clock.now();
        let notice = entries.is_first(entry, born, moment, tokens, |lease| now + lease.min(direct_lease));
        let Some(notice) = notice else { return };
        let group = entries.get(entry).map(|own| (Arc::clone(&own.group), own.until));
        let Some((group, until)) = group else { return };
        let ears: Vec<_> = group.iter().flat_map(|entry| entries.ears(entry)).collect();
        let wake = self.sweep_by(&mut entries, until);
        drop(entries);
        self.wake(wake);
        tell(&ears, notice);
    }
}

/// The answer of the store to a request.
pub(crate) struct Found<'a> {
    pub(crate) entered: &'a Arc<Live>,
    pub(crate) live: &'a Arc<Live>,
    /// All entries of the request,
    pub(crate) group: &'a Arc<[Entry]>,
    /// and those of them that have entered.
    pub(crate) of: &'a [Entry],
    pub(crate) moment: u64,
    pub(crate) asked_at: Tick,
    pub(crate) slot: usize,
}

pub(crate) fn busy(item: usize, moment: u64, ahead: u32) -> Acquired {
    Acquired::Busy(Busy { item, ahead, ..Busy::until(None, Moment::new(moment)) })
}
