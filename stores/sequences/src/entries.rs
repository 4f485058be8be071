//! [`Entries`]: the entries of this manager, what they are for, and until when they are wanted.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use lock_core::FencingToken;
use lock_core::internal::clock::Tick;
use lock_core::store::{Moment, Notice, TokenRange};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::named::Name;
use crate::sessions::Live;
use crate::store::{Class, Entry, OrderedStore};

/// How many grants of all tokens have their tokens from the birth of one entry. Later ones get
/// fewer.
const FULL_GRANTS: u32 = 4;

/// The purpose of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Waits,
    Holds,
    /// Nobody has kept it, and it is being deleted. It is neither kept nor granted any more.
    Ends,
}

/// An entry of this manager.
#[derive(Debug)]
pub(crate) struct Own {
    /// The session in which it was entered,
    pub(crate) entered: Arc<Live>,
    /// the one that it ends with,
    pub(crate) live: Arc<Live>,
    /// and the one that it may end with, until the store has answered.
    pub(crate) moves_to: Option<Arc<Live>>,
    pub(crate) born: u64,
    pub(crate) state: State,
    /// When it is deleted, unless it is kept.
    pub(crate) until: Tick,
    pub(crate) lease: Duration,
    /// The epoch of its request, if a copy of that had no answer.
    pub(crate) doubt: Option<usize>,
    /// The entries of its request.
    pub(crate) group: Arc<[Entry]>,
    /// Whether it may be granted by a notice.
    pub(crate) is_direct: bool,
    /// Whether no entry is before it.
    pub(crate) is_first: bool,
    /// The grant by a notice, until the owner asks again.
    pub(crate) told: Option<(FencingToken, Moment)>,
    pub(crate) last_token: u64,
    /// The task that waits for the entry before it, or for its own end.
    pub(crate) following: Following,
    /// Keeps the name of the entry. `None` in tests without a store.
    pub(crate) _name: Option<Name>,
}

/// A task that ends when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Following(pub(crate) Option<AbortHandle>);

impl Drop for Following {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Tells listeners, who may have a notice already. Wakes tasks, so the caller has released every
/// mutex.
pub(crate) fn tell(ears: &[mpsc::Sender<Notice>], notice: Notice) {
    for notices in ears {
        // A full queue has a notice already; a closed one is being dropped.
        let _ = notices.try_send(notice);
    }
}

impl Own {
    /// Whether a token of this revision is left.
    pub(crate) fn has_token(&self, moment: u64, tokens: TokensOf) -> bool {
        self.last_token + 1 < tokens.behind(self.revision(moment, tokens))
    }

    /// Takes tokens, as many as are left: those of this revision, or those of the entry's birth.
    /// The latter are all that the entry ever has, so one grant gets half of the rest at most.
    pub(crate) fn take_tokens(&mut self, moment: u64, count: u32, tokens: TokensOf) -> Option<TokenRange> {
        let revision = self.revision(moment, tokens);
        let first = tokens.first(revision).max(self.last_token + 1);
        let left = tokens.behind(revision).checked_sub(first).filter(|left| *left > 0)?;
        let most = if tokens.of_birth { left.div_ceil(2) } else { left };
        let count = u64::from(count.min(tokens.most)).min(most);
        self.last_token = first + count - 1;
        Some(TokenRange { first, last: self.last_token })
    }

    fn revision(&self, moment: u64, tokens: TokensOf) -> u64 {
        if tokens.of_birth { self.born } else { moment }
    }
}

/// The revisions that tokens come from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokensOf {
    /// Maximum number of tokens in a grant.
    pub(crate) most: u32,
    /// Whether the revision is that of the entry's birth.
    pub(crate) of_birth: bool,
}

impl TokensOf {
    pub(crate) fn of<S: OrderedStore>(store: &S) -> Self {
        Self { most: store.abilities().most_tokens, of_birth: S::TOKENS_OF_BIRTH }
    }

    /// Returns the first token behind those of a revision.
    fn behind(self, revision: u64) -> u64 {
        self.first(revision.saturating_add(1))
    }

    /// Returns the first token of a revision.
    fn first(self, revision: u64) -> u64 {
        let grants = if self.of_birth { FULL_GRANTS } else { 1 };
        revision.saturating_mul(u64::from(self.most * grants))
    }
}

/// The entries of this manager.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    own: HashMap<Entry, Own>,
    due: BTreeSet<(Tick, Entry)>,
    ears: HashMap<Entry, Vec<(u64, mpsc::Sender<Notice>)>>,
    last_ear: u64,
    /// When the sweeper wakes by itself; `None` if there is no sweeper.
    pub(crate) sweeps: Option<Tick>,
}

impl Entries {
    pub(crate) fn get(&self, entry: &Entry) -> Option<&Own> {
        self.own.get(entry)
    }

    /// Changes an entry, and keeps the order of ends.
    pub(crate) fn change<T>(&mut self, entry: &Entry, change: impl FnOnce(&mut Own) -> T) -> Option<T> {
        let own = self.own.get_mut(entry)?;
        let before = own.until;
        let result = change(own);
        if own.until != before {
            self.due.remove(&(before, entry.clone()));
            self.due.insert((own.until, entry.clone()));
        }
        Some(result)
    }

    /// Adds an entry; returns the one that was there.
    #[must_use]
    pub(crate) fn add(&mut self, entry: Entry, own: Own) -> Option<Own> {
        let old = self.remove(&entry);
        self.due.insert((own.until, entry.clone()));
        self.own.insert(entry, own);
        old
    }

    /// Removes an entry. Drop it outside of a mutex: a task may end.
    #[must_use]
    pub(crate) fn remove(&mut self, entry: &Entry) -> Option<Own> {
        let own = self.own.remove(entry)?;
        self.due.remove(&(own.until, entry.clone()));
        Some(own)
    }

    /// Removes all entries of a session that has ended. Those that may end with another one are due
    /// now.
    #[must_use]
    pub(crate) fn remove_all_of(&mut self, live: &Live, now: Tick) -> Vec<(Entry, Own)> {
        let of_it = self.own.iter().filter(|(_, own)| own.live.id == live.id);
        let (gone, unclear): (Vec<_>, Vec<_>) = of_it.partition(|(_, own)| own.moves_to.is_none());
        let [gone, unclear] =
            [gone, unclear].map(|all| all.into_iter().map(|(entry, _)| entry.clone()).collect::<Vec<_>>());
        for entry in unclear {
            self.change(&entry, |own| {
                if let Some(live) = own.moves_to.take() {
                    own.live = live;
                }
                (own.state, own.until) = (State::Ends, now);
            });
        }
        gone.into_iter().filter_map(|entry| self.remove(&entry).map(|own| (entry, own))).collect()
    }

    /// Returns the entries that are due at `now`, and when the next one is.
    pub(crate) fn due(&self, now: Tick) -> (Vec<Entry>, Option<Tick>) {
        let mut due = Vec::new();
        for (until, entry) in &self.due {
            if *until > now {
                return (due, Some(*until));
            }
            due.push(entry.clone());
        }
        (due, None)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Returns when the first of the entries with this name is due.
    pub(crate) fn first_end(&self, name: &str) -> Option<Tick> {
        self.due.iter().find(|(_, entry)| &*entry.lock == name).map(|(until, _)| *until)
    }

    /// Adds a listener, which hears at once if it was granted the lock already.
    pub(crate) fn listen(&mut self, entry: &Entry, notices: mpsc::Sender<Notice>) -> u64 {
        self.last_ear += 1;
        if let Some((token, moment)) = self.own.get(entry).and_then(|own| own.told) {
            // The channel is new and has room.
            let _ = notices.try_send(Notice::Granted { token, moment });
        }
        self.ears.entry(entry.clone()).or_default().push((self.last_ear, notices));
        self.last_ear
    }

    /// Removes a listener. Drop it outside of a mutex.
    #[must_use]
    pub(crate) fn unlisten(&mut self, entry: &Entry, ear: u64) -> Option<mpsc::Sender<Notice>> {
        let ears = self.ears.get_mut(entry)?;
        let at = ears.iter().position(|(id, _)| *id == ear)?;
        let (_, gone) = ears.swap_remove(at);
        if ears.is_empty() {
            self.ears.remove(entry);
        }
        Some(gone)
    }

    /// Returns the listeners of an entry, to be told outside of a mutex.
    #[must_use]
    pub(crate) fn ears(&self, entry: &Entry) -> Vec<mpsc::Sender<Notice>> {
        let ears = self.ears.get(entry).into_iter().flatten();
        ears.map(|(_, notices)| notices.clone()).collect()
    }

    /// Records that no entry is before this one, since `moment`. Returns what its listeners hear.
    pub(crate) fn is_first(
        &mut self,
        entry: &Entry,
        born: u64,
        moment: u64,
        tokens: TokensOf,
        until: impl FnOnce(Duration) -> Tick,
    ) -> Option<Notice> {
        let own = self.own.get_mut(entry).filter(|own| own.born == born && own.state == State::Waits)?;
        own.is_first = true;
        // Several readers hear of the same deletion, and each needs a revision of its own.
        let has_revision = tokens.of_birth || entry.class != Class::Read;
        if own.group.len() == 1 && own.is_direct && has_revision {
            let token = own.take_tokens(moment, 1, tokens)?;
            let told = (FencingToken::new(token.first), Moment::new(moment));
            let lease = own.lease;
            self.change(entry, |own| {
                own.state = State::Holds;
                own.until = until(lease);
                own.told = Some(told);
            });
            return Some(Notice::Granted { token: told.0, moment: told.1 });
        }
        let group = Arc::clone(&own.group);
        let is_first = |own: &Own| own.is_first && own.state != State::Ends;
        // It may have left out those that are free.
        let all = group.iter().filter_map(|entry| self.own.get(entry)).all(is_first);
        all.then_some(Notice::Retry)
    }
}

#[cfg(test)]
mod tests {
    use lock_core::OwnerId;

    use super::*;
    use crate::store::Session;

    const LEASE: Duration = Duration::from_secs(30);
    const MOST: TokensOf = TokensOf { most: 1024, of_birth: false };
    const OF_BIRTH: TokensOf = TokensOf { most: 256, of_birth: true };

    fn entry(lock: &str, class: Class) -> Entry {
        Entry { lock: Arc::from(lock), class, owner: OwnerId::new("tester:1") }
    }

    fn at(seconds: u64) -> Tick {
        Tick::default() + Duration::from_secs(seconds)
    }

    fn own(live: &Arc<Live>, group: &Arc<[Entry]>, until: Tick) -> Own {
        Own {
            entered: Arc::clone(live),
            live: Arc::clone(live),
            moves_to: None,
            born: 7,
            state: State::Waits,
            until,
            lease: LEASE,
            doubt: None,
            group: Arc::clone(group),
            is_direct: true,
            is_first: false,
            told: None,
            last_token: 0,
            following: Following::default(),
            _name: None,
        }
    }

    fn session(id: i64) -> Arc<Live> {
        Live::new(Session(id), LEASE, Tick::default(), 8)
    }

    /// Adds entries that wait together.
    fn add(entries: &mut Entries, live: &Arc<Live>, group: &[Entry], until: Tick) {
        let group: Arc<[Entry]> = group.into();
        for entry in group.iter() {
            assert!(entries.add(entry.clone(), own(live, &group, until)).is_none());
        }
    }

    #[test]
    fn tokens_of_a_revision_are_given_once_and_below_those_of_the_next() {
        let group: Arc<[Entry]> = [entry("a", Class::Lock)].into();
        let mut own = own(&session(1), &group, at(1));
        assert_eq!(own.take_tokens(3, 1000, MOST), Some(TokenRange { first: 3072, last: 4071 }));
        assert_eq!(own.take_tokens(3, 1000, MOST), Some(TokenRange { first: 4072, last: 4095 }));
        assert_eq!(own.take_tokens(3, 1, MOST), None);
        assert_eq!(own.take_tokens(4, 1, MOST), Some(TokenRange { first: 4096, last: 4096 }));
    }

    #[test]
    fn tokens_of_a_birth_last_for_several_grants() {
        let group: Arc<[Entry]> = [entry("a", Class::Lock)].into();
        let mut own = own(&session(1), &group, at(1));
        let mut last = own.born * 1024 - 1;
        for grants in 0.. {
            let Some(range) = own.take_tokens(99, 1000, OF_BIRTH) else {
                assert!(grants > 10, "{grants} grants");
                break;
            };
            assert!(range.first == last + 1 && own.has_token(99, OF_BIRTH) == (range.last < 8 * 1024 - 1));
            last = range.last;
        }
        assert_eq!(last, 8 * 1024 - 1);
    }

    #[test]
    fn entries_are_due_when_nobody_has_kept_them() {
        let (mut entries, live) = (Entries::default(), session(1));
        let [a, b] = ["a", "b"].map(|lock| entry(lock, Class::Lock));
        add(&mut entries, &live, std::slice::from_ref(&a), at(5));
        add(&mut entries, &live, std::slice::from_ref(&b), at(3));
        assert_eq!(entries.due(at(2)), (vec![], Some(at(3))));
        entries.change(&b, |own| own.until = at(9));
        assert_eq!(entries.due(at(6)), (vec![a.clone()], Some(at(9))));
        assert!(entries.remove(&a).is_some() && entries.remove(&b).is_some());
        assert_eq!((entries.due(at(10)), entries.is_empty()), ((vec![], None), true));
    }

    #[test]
    fn entries_end_with_their_session_except_those_that_may_have_moved() {
        let (mut entries, first, second) = (Entries::default(), session(1), session(2));
        let [a, b, c] = ["a", "b", "c"].map(|lock| entry(lock, Class::Lock));
        add(&mut entries, &first, std::slice::from_ref(&a), at(5));
        add(&mut entries, &first, std::slice::from_ref(&b), at(5));
        add(&mut entries, &second, std::slice::from_ref(&c), at(5));
        entries.change(&b, |own| own.moves_to = Some(Arc::clone(&second)));
        let gone: Vec<_> = entries.remove_all_of(&first, at(1)).into_iter().map(|(entry, _)| entry).collect();
        assert_eq!(gone, [a]);
        // It is deleted by name, because it may end with the other session.
        let found = entries.get(&b).map(|own| (own.live.id, own.state, own.until));
        assert_eq!(found, Some((second.id, State::Ends, at(1))));
        assert!(entries.get(&c).is_some_and(|own| own.state == State::Waits));
    }

    #[test]
    fn a_grant_is_told_to_those_who_listen_later() {
        let (mut entries, a) = (Entries::default(), entry("a", Class::Write));
        add(&mut entries, &session(1), std::slice::from_ref(&a), at(3));
        let told = entries.is_first(&a, 7, 40, MOST, |lease| at(10) + lease);
        let granted = Notice::Granted { token: FencingToken::new(40 << 10), moment: Moment::new(40) };
        assert_eq!(told, Some(granted));
        let (notices, mut heard) = mpsc::channel(1);
        let ear = entries.listen(&a, notices);
        assert_eq!(heard.try_recv(), Ok(granted));
        assert!(entries.unlisten(&a, ear).is_some() && entries.unlisten(&a, ear).is_none());
        assert_eq!(entries.get(&a).map(|own| own.until), Some(at(10) + LEASE));
    }

    #[test]
    fn nothing_is_granted_to_an_entry_that_is_deleted_or_was_made_anew() {
        let (mut entries, a) = (Entries::default(), entry("a", Class::Lock));
        add(&mut entries, &session(1), std::slice::from_ref(&a), at(3));
        assert_eq!(entries.is_first(&a, 6, 40, MOST, |_| at(9)), None);
        entries.change(&a, |own| own.state = State::Ends);
        assert_eq!(entries.is_first(&a, 7, 40, MOST, |_| at(9)), None);
    }

    #[test]
    fn a_request_for_several_is_told_when_all_its_places_are_the_first() {
        let (mut entries, live) = (Entries::default(), session(1));
        let all = ["a", "b", "c"].map(|lock| entry(lock, Class::Lock));
        add(&mut entries, &live, &all, at(3));
        // One was left out, because it was free.
        assert!(entries.remove(&all[2]).is_some());
        assert_eq!(entries.is_first(&all[0], 7, 40, MOST, |_| at(9)), None);
        assert_eq!(entries.is_first(&all[1], 7, 41, MOST, |_| at(9)), Some(Notice::Retry));
    }

    #[test]
    fn a_reader_asks_again_for_tokens_of_its_own() {
        let (mut entries, a) = (Entries::default(), entry("a", Class::Read));
        add(&mut entries, &session(1), std::slice::from_ref(&a), at(3));
        assert_eq!(entries.is_first(&a, 7, 40, MOST, |_| at(9)), Some(Notice::Retry));
    }
}
