//! Renewals: sessions that are kept, and entries that are looked up.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::internal::sync::lock;
use lock_core::store::{LONGEST_WAIT, MAX_PERMITS, RenewItem, RenewRequest, Renewed, Standing, StoreError};

use tokio::task::AbortHandle;

use crate::entries::{Entries, Following, Own, State};
use crate::follow::guard;
use crate::leave::set;
use crate::locks::Inner;
use crate::sessions::Live;
use crate::store::{Entry, OrderedStore, Session};
use crate::sweep::Sweeper;

/// Delay before a waiter that nobody precedes asks again.
const AT_ONCE: Duration = Duration::from_millis(1);

/// Maximum number of entries that are looked up at once.
const BATCH: usize = 50;

impl<S: OrderedStore> Inner<S> {
    pub(crate) async fn renew(&self, request: &RenewRequest) -> Result<Vec<Renewed>, StoreError> {
        let mut answers = vec![Renewed::Gone; request.items.len()];
        let now = self.clock.now();
        let life = self.store.abilities().waiter_life;
        // The holds and waiters, by the session in which they were entered.
        let mut groups: Vec<Kept> = Vec::new();
        {
            let mut entries = lock(&self.entries);
            // A request for several may have left out locks that are free, and waits for others.
            let mut others: HashMap<&Entry, Duration> = HashMap::new();
            for item in request.items.iter().filter(|item| item.standing != Standing::Holder) {
                let Some(own) = entries.get(&self.own_entry(&entries, &item.item)) else { continue };
                if own.group.len() > 1 && own.until > now && own.state != State::Ends {
                    let own_places = own.group.iter().filter_map(|entry| entries.get(entry));
                    let is_first = own_places.clone().all(|own| own.is_first);
                    let pause = if is_first { AT_ONCE } else { LONGEST_WAIT };
                    if !own.group.first().is_some_and(|first| others.contains_key(first)) {
                        others.extend(own.group.iter().map(|entry| (entry, pause)));
                    }
                }
            }
            for (at, item) in request.items.iter().enumerate() {
                let entry = self.own_entry(&entries, &item.item);
                let lives = |own: &&Own| own.until > now && own.state != State::Ends;
                let Some(own) = entries.get(&entry).filter(lives) else {
                    if let Some(pause) = others.get(&entry).filter(|_| item.standing != Standing::Holder) {
                        set(&mut answers, at, Renewed::Waiting(*pause));
                    }
                    continue;
                };
                if (item.standing == Standing::Holder) && own.state != State::Holds {
                    continue;
                }
                let kept = (at, entry, own.born, item.standing == Standing::Holder);
                let of = |group: &&mut Kept| {
                    Arc::ptr_eq(&group.entered, &own.entered) && Arc::ptr_eq(&group.live, &own.live)
                };
                match groups.iter_mut().find(of) {
                    Some(group) => {
                        group.lease = group.lease.max(item.lease);
                        group.moves |= own.moves_to.is_some();
                        group.all.push(kept);
                    }
                    None => groups.push(Kept {
                        entered: Arc::clone(&own.entered),
                        live: Arc::clone(&own.live),
                        lease: item.lease,
                        moves: own.moves_to.is_some(),
                        all: vec![kept],
                    }),
                }
            }
            // Who asks is alive, also while the store does not answer.
            for (_, entry, ..) in groups.iter().flat_map(|group| &group.all).filter(|(.., holds)| !holds) {
                entries.change(entry, |own| own.until = own.until.max(now + life));
            }
        }
        let (mut failed, mut are_all_failed) = (None, true);
        for mut group in groups {
            match self.renew_group(&mut group, request, &mut answers).await {
                Ok(()) => are_all_failed = false,
                Err(error) => {
                    // What is wrong with these is no reason to lose others.
                    for (at, ..) in &group.all {
                        set(&mut answers, *at, Renewed::Unknown);
                    }
                    failed.get_or_insert(error);
                }
            }
        }
        match failed.filter(|_| are_all_failed) {
            Some(error) => Err(error),
            None => Ok(answers),
        }
    }

    pub(crate) async fn renew_group(
        &self,
        group: &mut Kept,
        request: &RenewRequest,
        answers: &mut [Renewed],
    ) -> Result<(), StoreError> {
        if S::MOVES && (group.lease > group.live.timeout || group.moves) {
            self.attach(group).await?;
        }
        let asked_at = self.clock.now();
        if !self.keep(&group.live, group.lease).await? {
            return Ok(());
        }
        // The waiters have tasks that see their entries end.
        let holds = group.all.iter().filter(|(.., holds)| *holds);
        let holds: Vec<_> = holds.map(|(_, entry, born, _)| (entry.clone(), *born)).collect();
        let mut exist = Vec::with_capacity(holds.len());
        let most = if self.leases.is_some() { MAX_PERMITS as usize } else { BATCH };
        for holds in holds.chunks(most) {
            exist.extend(self.exist_each(group.entered.id, holds).await?);
        }
        let (mut exist, mut gone) = (exist.into_iter(), Vec::new());
        let mut entries = lock(&self.entries);
        let mut wake = Sweeper::Sleeps;
        for (at, entry, born, holds) in &group.all {
            let is_there = if *holds { exist.next().unwrap_or(None) } else { Some(true) };
            let lives = |own: &&Own| own.born == *born && own.state != State::Ends;
            let Some(own) = entries.get(entry).filter(lives) else {
                let is_other = |item: &RenewItem| self.own_entry(&entries, &item.item) != *entry;
                if request.items.get(*at).is_some_and(is_other) {
                    // A writer has become a reader meanwhile, whose entry was not looked up.
                    set(answers, *at, Renewed::Unknown);
                }
                continue;
            };
            let (state, is_first, has_doubt) = (own.state, own.is_first, own.doubt.is_some());
            let answer = match is_there {
                Some(false) if has_doubt => {
                    // A late copy could still enter. The sweeper ends its epoch.
                    entries.change(entry, |own| (own.state, own.until) = (State::Ends, asked_at));
                    wake = self.sweep_by(&mut entries, asked_at);
                    continue;
                }
                Some(false) => {
                    gone.extend(entries.remove(entry));
                    continue;
                }
                None => Renewed::Unknown,
                Some(true) => match state {
                    State::Holds => Renewed::Held,
                    State::Waits if is_first => Renewed::Waiting(AT_ONCE),
                    State::Waits | State::Ends => Renewed::Waiting(LONGEST_WAIT),
                },
            };
            if answer != Renewed::Unknown {
                let lease = request.items.get(*at).map_or(Duration::ZERO, |item| item.lease);
                if *holds {
                    entries.change(entry, |own| own.until = own.until.max(asked_at + lease));
                }
                if state == State::Holds && self.leases.is_none() {
                    self.guard(&mut entries, entry, &group.entered, *born);
                }
            }
            set(answers, *at, answer);
        }
        drop(entries);
        drop(gone);
        self.wake(wake);
        Ok(())
    }

    /// Starts to wait for the end of a hold, unless a task does. Most holds end before they are
    /// renewed, and need none.
    fn guard(&self, entries: &mut Entries, entry: &Entry, entered: &Live, born: u64) {
        let (me, store) = (Weak::clone(&self.me), &self.store);
        entries.change(entry, |own| {
            if own.following.0.as_ref().is_none_or(AbortHandle::is_finished) {
                let task = tokio::spawn(guard(me, Arc::clone(store), entered.id, entry.clone(), born));
                own.following = Following(Some(task.abort_handle()));
            }
        });
    }

    /// Looks up which entries are there; `None` if that is not known of one.
    pub(crate) async fn exist_each(
        &self,
        entered: Session,
        entries: &[(Entry, u64)],
    ) -> Result<Vec<Option<bool>>, StoreError> {
        match self.store.exist(entered, entries.to_vec()).await {
            Ok(exist) => Ok(exist.into_iter().map(Some).collect()),
            // The rights to one key may be missing.
            Err(error) if !error.is_transient() && entries.len() > 1 => {
                let mut each = Vec::with_capacity(entries.len());
                for same in entries.chunk_by(|one, next| one.0.lock == next.0.lock) {
                    match self.store.exist(entered, same.to_vec()).await {
                        Ok(exist) => each.extend(exist.into_iter().map(Some)),
                        Err(_) => each.extend(same.iter().map(|_| None)),
                    }
                }
                Ok(each)
            }
            Err(error) => Err(error),
        }
    }

    /// Lets the entries end with a session that lasts for long enough.
    pub(crate) async fn attach(&self, group: &mut Kept) -> Result<(), StoreError> {
        // One after the other: otherwise, answers could come in another order than the changes.
        let _only = self.attaching.lock().await;
        let to = self.lasting(group.lease).await?;
        for (_, entry, born, _) in &group.all {
            self.move_to(&group.entered, entry, *born, &to).await?;
        }
        (group.live, group.moves) = (to, false);
        Ok(())
    }

    /// Lets an entry end with another session. The caller has locked `attaching`.
    pub(crate) async fn move_to(
        &self,
        entered: &Live,
        entry: &Entry,
        born: u64,
        to: &Arc<Live>,
    ) -> Result<(), StoreError> {
        let change = |change: &dyn Fn(&mut Own)| {
            let mut entries = lock(&self.entries);
            if entries.get(entry).is_some_and(|own| own.born == born) {
                entries.change(entry, change);
            }
        };
        // It may end with either one until the store has answered.
        change(&|own| own.moves_to = Some(Arc::clone(to)));
        // If it is gone, the next look finds that.
        let _ = self.store.attach(entered.id, entry, born, to.id).await?;
        change(&|own| (own.live, own.moves_to) = (Arc::clone(to), None));
        Ok(())
    }
}

/// Entries that are kept together.
pub(crate) struct Kept {
    pub(crate) entered: Arc<Live>,
    pub(crate) live: Arc<Live>,
    pub(crate) lease: Duration,
    /// Whether it is unclear which session one of them ends with.
    pub(crate) moves: bool,
    /// Index in the request, entry, its birth, and whether it holds.
    pub(crate) all: Vec<(usize, Entry, u64, bool)>,
}
