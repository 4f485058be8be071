//! [`OrderedStore`]: what a store with ordered entries has to do, and its words.

use std::fmt;
use std::future::{Future, Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use lock_core::OwnerId;
use lock_core::store::{Abilities, Cursor, Kind, PermitCounts, Permits, StoreError, StoreErrorKind};

/// The number of a session at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Session(pub i64);

/// The kind of an entry, by the others that it excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Everybody else: a mutex or a fair lock.
    Lock,
    /// Everybody but readers.
    Read,
    /// Everybody else.
    Write,
    /// Permits of a semaphore beyond its number.
    Permit,
}

impl Class {
    /// Returns the class of a lock of this kind.
    #[must_use]
    pub const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Read => Self::Read,
            Kind::Write => Self::Write,
            _ => Self::Lock,
        }
    }
}

/// An entry in the queue of a lock, or a permit of a semaphore: what it is for, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    /// The name of the lock, with the store's prefix. For a permit, that of the semaphore, with
    /// [`LEASES`](OrderedStore::LEASES) behind it.
    pub lock: Arc<str>,
    /// Its kind.
    pub class: Class,
    /// The owner.
    pub owner: OwnerId,
}

/// The epoch of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Which of the [`EPOCHS`](OrderedStore::EPOCHS).
    pub slot: usize,
    /// How many withdrawals have ended in it.
    pub version: i64,
}

/// Enters a queue of each lock, all or none.
#[derive(Clone, Debug)]
pub struct Enter {
    /// The session that the entries end with.
    pub session: Session,
    /// The entries, of different locks.
    pub entries: Arc<[Entry]>,
    /// The request is refused if this is no longer the epoch.
    pub epoch: Epoch,
    /// Entries of the session, with the revisions that made them: nothing is entered unless they
    /// are there.
    pub beside: Vec<(Entry, u64)>,
    /// Whether the entries stay if they have to wait. If not, nothing is entered unless none has
    /// to.
    pub stays: bool,
}

/// The answer to [`Enter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entered {
    /// All entries are there now.
    All {
        /// The revision of the store.
        moment: u64,
        /// The place of each.
        places: Vec<Place>,
    },
    /// Nothing was entered, because some of the entries are there already, or one of those beside
    /// is not; `true` for each entry that is there.
    Partly(Vec<bool>),
    /// Nothing was entered, because an entry would have to wait.
    Busy {
        /// The revision of the store.
        moment: u64,
        /// Indexes of the entries that would have to wait. None, if they need not by now.
        items: Vec<usize>,
        /// How many entries the first of them would wait for. For permits: how many have to come
        /// back until there are enough for all.
        ahead: u32,
    },
    /// Nothing was entered, because the epoch has this version.
    Late(i64),
    /// Nothing was entered, because the session has ended.
    Ended,
}

/// The place of an entry in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The revision that made the entry.
    pub born: u64,
    /// The last of the entries that it has to wait for; `None` if it has to wait for none. A
    /// permit has to wait if those before it are as many as the semaphore has.
    pub before: Option<Before>,
}

/// The entry before another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    /// Its name at the store.
    pub name: Arc<[u8]>,
    /// The revision that made it.
    pub born: u64,
    /// Whether it is known to be the only one to wait for, and no other can come in its place.
    pub is_only: bool,
}

/// Deletes entries of one session.
#[derive(Clone, Debug)]
pub struct Leave {
    /// The session.
    pub session: Session,
    /// The entries, each with the revision that made it if that is known. Those that are not there,
    /// or were made by another revision, are left out.
    pub entries: Vec<(Entry, Option<u64>)>,
    /// With an epoch: nothing is deleted unless it is the current one, and it ends.
    pub epoch: Option<Epoch>,
}

/// The answer to [`Leave`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// The entries are gone. For each: whether it was there.
    All(Vec<bool>),
    /// Nothing was deleted, because the epoch has this version.
    Late(i64),
    /// The session has ended, and its entries with it.
    Ended,
}

/// Why [`OrderedStore::gone`] has resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The entry before was deleted at this revision.
    Before(u64),
    /// The own entry is gone.
    Own,
    /// Something has changed, or may have: look again.
    Unsure,
}

/// The time that a session has left if it sends no heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// This long.
    For(Duration),
    /// The store does not tell.
    Unknown,
    /// It has ended.
    Ended,
}

/// An entry that a list has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name at the store.
    pub name: Arc<[u8]>,
    /// The revision that made it.
    pub born: u64,
    /// Its kind.
    pub class: Class,
    /// The owner, or the name of the entry if it is not of this library.
    pub owner: OwnerId,
    /// The session.
    pub session: Session,
}

/// Locks that a scan has found: the name without the prefix, and the entries in their order.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The locks.
    pub locks: Vec<(String, Vec<Listed>)>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<Cursor>,
}

/// A store of entries in queues. An entry ends with its session.
///
/// Calls about entries get the session in which they were entered, which may be part of their
/// names.
///
/// Every call resolves within about the store's call time-out. A call whose outcome is unknown
/// fails with [`StoreErrorKind::Unanswered`](lock_core::store::StoreErrorKind::Unanswered).
pub trait OrderedStore: fmt::Debug + Send + Sync + 'static {
    /// Number of epochs of a session. A withdrawal ends the requests in flight of its own epoch
    /// only.
    const EPOCHS: usize = 256;

    /// Whether the tokens of a grant are those of the revision that made the entry. If not, they
    /// are those of the revision at which it was found to be the first.
    const TOKENS_OF_BIRTH: bool = false;

    /// Whether an entry can [end with another session](Self::attach). If not, all entries of a
    /// manager end with one session.
    const MOVES: bool = true;

    /// Where the permits of a semaphore are, behind its name. `None` if this store has no
    /// semaphores.
    const LEASES: Option<&'static str> = None;

    /// Returns what locks in this store can do.
    fn abilities(&self) -> &Abilities;

    /// Returns the time-out of a session for holds with this lease: longer than the lease.
    fn timeout_for(&self, lease: Duration) -> Duration;

    /// Checks that a lock may have this name.
    ///
    /// # Errors
    ///
    /// The reason why it may not.
    fn allows(&self, lock: &str, kind: Kind) -> Result<(), StoreError>;

    /// Keeps the name of an entry for this entry alone, until it is [forgotten](Self::forget) as
    /// often. Comes before the first `enter`.
    fn remember(&self, session: Session, entry: &Entry) {
        let _ = (session, entry);
    }

    /// Lets the name of an entry go: it is in no queue, and in no request on its way. If it is
    /// after all, because nobody could find out, it must not be taken for another entry.
    fn forget(&self, session: Session, entry: &Entry) {
        let _ = (session, entry);
    }

    /// Begins a session. Returns it, and for how long it is certain to live from the call on. That
    /// is not shorter than asked for, if the store can choose.
    fn begin(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<(Session, Duration), StoreError>> + Send;

    /// Sends heartbeats, so that the session lives for another `lease`. Returns for how long it is
    /// certain to live from the call on; `None` if it has ended.
    fn beat(
        &self,
        session: Session,
        lease: Duration,
    ) -> impl Future<Output = Result<Option<Duration>, StoreError>> + Send;

    /// Enters queues.
    fn enter(&self, enter: Enter) -> impl Future<Output = Result<Entered, StoreError>> + Send;

    /// Looks up the place of each entry of the session, and the revision of the store. Each entry
    /// comes with the revision that made it. A place is `None` if that entry is gone.
    fn places(
        &self,
        session: Session,
        entries: Vec<(Entry, u64)>,
    ) -> impl Future<Output = Result<(u64, Vec<Option<Place>>), StoreError>> + Send;

    /// Looks up whether each entry of the session is there, made by this revision.
    fn exist(
        &self,
        session: Session,
        entries: Vec<(Entry, u64)>,
    ) -> impl Future<Output = Result<Vec<bool>, StoreError>> + Send;

    /// Lets an entry end with this session, and keeps its place. Returns whether it is there, made
    /// by this revision. A copy that arrives after another such change does nothing. Needs
    /// [`MOVES`](Self::MOVES).
    fn attach(
        &self,
        entered: Session,
        entry: &Entry,
        born: u64,
        to: Session,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        let _ = (entered, entry, born, to);
        lacks(self.abilities(), "can't move an entry to another session")
    }

    /// Makes a new revision of the store, without a change of the entry. Returns it; `None` if the
    /// entry of this birth is not there. Not called if [tokens are those of the
    /// birth](Self::TOKENS_OF_BIRTH).
    fn advance(
        &self,
        entered: Session,
        entry: &Entry,
        born: u64,
    ) -> impl Future<Output = Result<Option<u64>, StoreError>> + Send {
        let _ = (entered, entry, born);
        lacks(self.abilities(), "makes no revisions without a change")
    }

    /// Turns a writer's entry into a reader's at the same place, in one step. Returns the revision
    /// that did so; `None` if the writer's entry of this birth is not there. Needs
    /// [`Abilities::downgrade`].
    fn downgrade(
        &self,
        entered: Session,
        entry: &Entry,
        born: u64,
    ) -> impl Future<Output = Result<Option<u64>, StoreError>> + Send {
        let _ = (entered, entry, born);
        lacks(self.abilities(), "can't turn a writer into a reader")
    }

    /// Leaves queues.
    fn leave(&self, leave: Leave) -> impl Future<Output = Result<Left, StoreError>> + Send;

    /// Waits until `before` is gone, or until the own entry is. Nothing that happens after the
    /// first poll is missed. Looks whether they are still there first. Without a `before`, it need
    /// not look, and may miss what happens soon after the first poll.
    fn gone(
        &self,
        session: Session,
        own: Entry,
        born: u64,
        before: Option<Before>,
    ) -> impl Future<Output = Result<Gone, StoreError>> + Send;

    /// Lists the queue of a lock in its order, with the revision of the store.
    fn list(&self, lock: &str) -> impl Future<Output = Result<(u64, Vec<Listed>), StoreError>> + Send;

    /// Returns after which time a session ends if it sends no heartbeat.
    fn remaining(&self, session: Session) -> impl Future<Output = Result<Life, StoreError>> + Send;

    /// Deletes this very entry, whoever made it. Returns whether it was there.
    fn remove(&self, entry: &Listed) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Lists locks whose names begin with a prefix.
    fn scan(
        &self,
        prefix: &str,
        after: Option<Cursor>,
    ) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Returns how many permits of a semaphore are left and held. Needs [`LEASES`](Self::LEASES),
    /// as all calls about semaphores.
    fn permits(&self, leases: &str) -> impl Future<Output = Result<PermitCounts, StoreError>> + Send {
        let _ = leases;
        lacks(self.abilities(), "has no semaphores")
    }

    /// Changes the number of permits of a semaphore. Returns `false` for [`Permits::TrySet`] on a
    /// semaphore that has been given permits before.
    fn change(
        &self,
        leases: &str,
        permits: Permits,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        let _ = (leases, permits);
        lacks(self.abilities(), "has no semaphores")
    }

    /// Calls `hears` as soon as it hears of all permits that come back, with `false`; then with
    /// `true` whenever permits have come back and some are left. Resolves when it is interrupted,
    /// or soon after `stop`. Until then, somebody waits for permits.
    fn hear(
        &self,
        leases: &str,
        hears: impl Fn(bool) + Send + Sync,
        stop: impl Future<Output = ()> + Send,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        let _ = (leases, hears, stop);
        lacks(self.abilities(), "has no semaphores")
    }

    /// Checks that the store can be used.
    fn check(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
}

fn lacks<T>(abilities: &Abilities, lacked: &str) -> Ready<Result<T, StoreError>> {
    ready(Err(StoreError::new(StoreErrorKind::Unsupported, format!("{} {lacked}", abilities.name))))
}
