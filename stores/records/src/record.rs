//! [`Record`]: everything that a database knows about one name.

use std::fmt;
use std::sync::Arc;

use lock_core::store::ServerTime;

use crate::latch::Latch;
use crate::lock::Lock;
use crate::semaphore::Semaphore;

/// The subject of a record. A lock, a semaphore and a latch may have the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A lock of any kind.
    Lock,
    /// A semaphore.
    Semaphore,
    /// A latch.
    Latch,
}

/// The name of a record: the prefix of the store's handle and the key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// The subject of the record.
    pub class: Class,
    /// Prefix and key.
    pub text: Arc<str>,
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.class, self.text)
    }
}

/// Everything that a database knows about one name. Expired data counts as absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A lock of any kind.
    Lock(Lock),
    /// A semaphore.
    Semaphore(Semaphore),
    /// A latch.
    Latch(Latch),
}

/// Runs the same code for each class of records.
macro_rules! each {
    ($record:expr, $it:ident => $body:expr) => {
        match $record {
            Record::Lock($it) => $body,
            Record::Semaphore($it) => $body,
            Record::Latch($it) => $body,
        }
    };
}

impl Record {
    /// Creates the record of a name about which nothing is known.
    #[must_use]
    pub fn empty(class: Class) -> Self {
        match class {
            Class::Lock => Self::Lock(Lock::default()),
            Class::Semaphore => Self::Semaphore(Semaphore::default()),
            Class::Latch => Self::Latch(Latch::default()),
        }
    }

    /// Whether nothing is known about the name, so that there need be no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        each!(self, it => it.is_empty())
    }

    /// Returns the earliest time at which some of the record can be thrown away; `None` if nothing
    /// of it ever expires.
    #[must_use]
    pub fn due(&self) -> Option<ServerTime> {
        each!(self, it => it.due())
    }

    /// Returns the part of time around `at` in which the record means the same. It begins with the
    /// last end until then, if there was one, and ends before the first one after it.
    #[must_use]
    pub fn same_around(&self, at: ServerTime) -> (Option<ServerTime>, Option<ServerTime>) {
        let (mut from, mut to) = (None, None);
        let mut visit = |end: ServerTime| match end <= at {
            true => from = from.max(Some(end)),
            false => to = Some(to.map_or(end, |to: ServerTime| to.min(end))),
        };
        each!(self, it => it.ends_of_all(&mut visit));
        (from, to)
    }

    /// Whether several owners are in it, so that others change it often.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        each!(self, it => it.owners() > 1)
    }

    /// Throws expired data away, except what a later step still has to see.
    pub fn drop_expired(&mut self, now: ServerTime) {
        each!(self, it => it.drop_expired(now));
    }

    /// Throws all expired data away, whatever a later step would see of it.
    #[doc(hidden)]
    pub fn purge(&mut self, now: ServerTime) {
        if let Self::Lock(lock) = self {
            lock.queue.purge(now);
        }
        self.drop_expired(now);
    }

    /// Returns the lock; an empty one replaces a record of another class.
    pub(crate) fn lock(&mut self) -> &mut Lock {
        if !matches!(self, Self::Lock(_)) {
            *self = Self::empty(Class::Lock);
        }
        match self {
            Self::Lock(lock) => lock,
            _ => unreachable!("it was made a lock"),
        }
    }

    /// Returns the semaphore; an empty one replaces a record of another class.
    pub(crate) fn semaphore(&mut self) -> &mut Semaphore {
        if !matches!(self, Self::Semaphore(_)) {
            *self = Self::empty(Class::Semaphore);
        }
        match self {
            Self::Semaphore(semaphore) => semaphore,
            _ => unreachable!("it was made a semaphore"),
        }
    }

    /// Returns the latch; an empty one replaces a record of another class.
    pub(crate) fn latch(&mut self) -> &mut Latch {
        if !matches!(self, Self::Latch(_)) {
            *self = Self::empty(Class::Latch);
        }
        match self {
            Self::Latch(latch) => latch,
            _ => unreachable!("it was made a latch"),
        }
    }
}
