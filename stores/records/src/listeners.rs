//! [`Listeners`]: the watches of a process, and what they have to hear.

use std::collections::HashMap;
use std::sync::Arc;

use lock_core::store::{Abilities, Item, Kind, Notice, ServerTime};
use lock_core::{FencingToken, OwnerId};
use tokio::sync::mpsc;

use crate::queue::ListenerId;
use crate::record::Name;

/// Maximum number of queued notices per watch. More than one, because our own release in the queue
/// will be ignored as an echo, and must not hide another owner's.
const QUEUE: usize = 16;

/// One handle on a store. The releases of a manager are echoes to the watches of the same manager.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HandleId(u64);

impl HandleId {
    /// A handle of another process.
    pub const ELSEWHERE: Self = Self(0);
}

/// The number of a watch within a process.
type WatchId = u64;

/// Something that a step did, and that listeners have to hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Index of the record in the step.
    pub index: usize,
    /// The change.
    pub what: What,
    /// Where the waiter is that it concerns; `None` if all who listen have to hear of it.
    pub to: Option<ListenerId>,
}

/// A change of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A hold has ended, or ends sooner: all waiters but those in the queue may try.
    Freed,
    /// Readers may try.
    Readable,
    /// This waiter in the queue may try.
    Told(OwnerId),
    /// This waiter in the queue was granted the lock.
    Granted(OwnerId, FencingToken),
    /// Permits of the semaphore have come back, or the latch has changed.
    Changed,
}

/// Whether a watch of the handle that made a step has heard its release, which it should ignore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard(pub bool);

/// The events that a listener wants to hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Releases, waiting for a mutex.
    Mutex,
    /// Releases, waiting to read or write.
    ReadWrite,
    /// Events of this waiter in the queue.
    Queue(OwnerId),
    /// Changes of a semaphore or a latch.
    Changes,
}

impl Channel {
    pub(crate) fn of(item: &Item, abilities: &Abilities) -> Self {
        match item.kind {
            Kind::Read | Kind::Write => Self::ReadWrite,
            kind if abilities.queues(kind) => Self::Queue(item.owner.clone()),
            _ => Self::Mutex,
        }
    }

    /// Whether every release of the key has to be heard here.
    pub(crate) fn is_public(&self) -> bool {
        !matches!(self, Self::Queue(_))
    }

    /// Whether this channel hears of the end of holds of this kind.
    fn is_of(&self, kind: Kind) -> bool {
        match self {
            Self::Mutex => kind == Kind::Mutex,
            Self::ReadWrite => matches!(kind, Kind::Read | Kind::Write),
            Self::Queue(_) => kind == Kind::Fair,
            Self::Changes => false,
        }
    }

    fn hears(&self, what: &What) -> bool {
        match what {
            What::Freed => matches!(self, Self::Mutex | Self::ReadWrite),
            What::Readable => *self == Self::ReadWrite,
            What::Told(owner) | What::Granted(owner, _) => matches!(self, Self::Queue(of) if of == owner),
            What::Changed => *self == Self::Changes,
        }
    }
}

/// The sending side of a watch.
#[derive(Debug)]
struct Watcher {
    id: WatchId,
    handle: HandleId,
    notices: mpsc::Sender<Notice>,
}

/// A watch of one record.
#[derive(Debug)]
struct Listener {
    watcher: Arc<Watcher>,
    channel: Channel,
}

/// A watch, and the names where its listeners are. Drop it outside the mutex: that may wake a task.
#[derive(Debug)]
pub(crate) struct Watched {
    watcher: Arc<Watcher>,
    names: Vec<Name>,
}

/// The way in which grants are heard.
#[derive(Debug, Default)]
enum Station {
    /// All steps are made in this process.
    #[default]
    Here,
    /// Others make steps, too, and send what this listener has to hear; `None` if nothing arrives.
    Shared(Option<ListenerId>),
}

/// The watches of all handles of a process on one database.
#[derive(Debug, Default)]
pub struct Listeners {
    by_name: HashMap<Name, Vec<Listener>>,
    /// Where the waiters of this process hear of grants by other processes.
    station: Station,
    last_watch: WatchId,
    last_handle: u64,
}

impl Listeners {
    /// Makes the identity of another handle.
    pub fn handle(&mut self) -> HandleId {
        self.last_handle += 1;
        HandleId(self.last_handle)
    }

    /// Says where this process hears of the steps of other processes; `None` if it does not.
    pub fn listen_at(&mut self, listener: Option<ListenerId>) {
        self.station = Station::Shared(listener);
    }

    /// Returns what a waiter of this process leaves in the record, so that others know where it is.
    pub(crate) fn here(&self) -> Option<ListenerId> {
        match &self.station {
            Station::Here => None,
            Station::Shared(listener) => listener.clone(),
        }
    }

    /// Returns where this waiter hears of its grant, if it has left `listener` in the record.
    pub(crate) fn reach(
        &self,
        name: &Name,
        owner: &OwnerId,
        listener: Option<&ListenerId>,
    ) -> Option<ListenerId> {
        match &self.station {
            Station::Here => self.hears(name, owner).then(ListenerId::default),
            Station::Shared(_) => listener.cloned(),
        }
    }

    /// Returns the records of which some watch has to hear every release.
    #[must_use]
    pub fn public_names(&self) -> Vec<Name> {
        let is_public =
            |listeners: &[Listener]| listeners.iter().any(|listener| listener.channel.is_public());
        let names = self.by_name.iter().filter(|(_, listeners)| is_public(listeners));
        names.map(|(name, _)| name.clone()).collect()
    }

    /// Returns all watches: some messages were lost.
    pub fn missed(&self) -> Bell {
        let told = |listener: &Listener| Told {
            watcher: Arc::clone(&listener.watcher),
            notice: Notice::Resubscribed,
            public: false,
        };
        Bell { told: self.by_name.values().flatten().map(told).collect() }
    }

    /// Returns how many records have a listener.
    #[must_use]
    pub fn names(&self) -> usize {
        self.by_name.len()
    }

    /// Makes a watch of these records.
    pub(crate) fn watch(
        &mut self,
        handle: HandleId,
        channels: Vec<(Name, Channel)>,
    ) -> (mpsc::Receiver<Notice>, Watched) {
        let (notices, receiver) = mpsc::channel(QUEUE);
        self.last_watch += 1;
        let watcher = Arc::new(Watcher { id: self.last_watch, handle, notices });
        let listen = |(name, channel): (Name, Channel)| {
            let listener = Listener { watcher: Arc::clone(&watcher), channel };
            self.by_name.entry(name.clone()).or_default().push(listener);
            name
        };
        let names = channels.into_iter().map(listen).collect();
        (receiver, Watched { watcher, names })
    }

    /// Removes a watch.
    pub(crate) fn unwatch(&mut self, watched: &Watched) {
        for name in &watched.names {
            let Some(listeners) = self.by_name.get_mut(name) else { continue };
            listeners.retain(|listener| listener.watcher.id != watched.watcher.id);
            if listeners.is_empty() {
                self.by_name.remove(name);
            }
        }
    }

    fn of(&self, name: &Name) -> impl Iterator<Item = &Listener> {
        self.by_name.get(name).into_iter().flatten()
    }

    /// Whether a waiter in the queue listens.
    fn hears(&self, name: &Name, owner: &OwnerId) -> bool {
        let mine = |listener: &Listener| matches!(&listener.channel, Channel::Queue(of) if of == owner);
        self.of(name).any(|listener| mine(listener) && !listener.watcher.notices.is_closed())
    }

    /// Returns the watches that hear of the end of holds of this kind.
    pub(crate) fn of_kind(&self, name: &Name, kind: Kind) -> impl Iterator<Item = (WatchId, HandleId)> {
        let listeners = self.of(name).filter(move |listener| listener.channel.is_of(kind));
        listeners.map(|listener| (listener.watcher.id, listener.watcher.handle))
    }

    /// Returns how many handles listen for releases.
    pub(crate) fn handles(&self, name: &Name) -> usize {
        let public = self.of(name).filter(|listener| listener.channel.is_public());
        let mut handles = public.map(|listener| listener.watcher.handle).collect::<Vec<_>>();
        handles.sort_unstable();
        handles.dedup();
        handles.len()
    }

    /// Returns the watches that have to hear of the events of a step, which was made at `now`.
    pub fn bell(&self, names: &[Name], events: &[Event], now: ServerTime) -> Bell {
        let mut told = Vec::new();
        for Event { index, what, .. } in events {
            let Some(name) = names.get(*index) else { continue };
            let notice = match what {
                What::Granted(_, token) => Notice::Granted { token: *token, moment: now.into() },
                _ => Notice::Retry,
            };
            for listener in self.of(name).filter(|listener| listener.channel.hears(what)) {
                let public = listener.channel.is_public();
                told.push(Told { watcher: Arc::clone(&listener.watcher), notice, public });
            }
        }
        Bell { told }
    }
}

/// Returns how many listeners are not among the `own` watches that the releasing caller has on its
/// handle.
pub(crate) fn count_others(mut listeners: Vec<(WatchId, HandleId)>, handle: HandleId, own: usize) -> u64 {
    // A watch of several keys counts as one listener.
    listeners.sort_unstable();
    listeners.dedup();
    let here = listeners.iter().filter(|(_, of)| *of == handle).count();
    let others = listeners.len() - here + here.saturating_sub(own);
    u64::try_from(others).unwrap_or(u64::MAX)
}

/// The watches that a step has to notify. Rings after every mutex is released, because it wakes
/// tasks.
#[derive(Debug, Default)]
#[must_use]
pub struct Bell {
    told: Vec<Told>,
}

#[derive(Debug)]
struct Told {
    watcher: Arc<Watcher>,
    notice: Notice,
    /// Whether it is a release that all watches of the key hear, not a message to one waiter.
    public: bool,
}

impl Bell {
    /// Lets the watches look, because nobody knows whether the step was made.
    pub fn doubt(mut self, handle: HandleId) {
        self.told.iter_mut().for_each(|told| told.notice = Notice::Retry);
        self.ring(handle);
    }

    /// Notifies the watches, those of other handles first.
    pub fn ring(mut self, handle: HandleId) -> Heard {
        let own = |told: &Told| told.watcher.handle == handle;
        // A watch of several keys is notified once.
        self.told.sort_unstable_by_key(|told| (own(told), told.watcher.id));
        self.told.dedup_by(|a, b| a.watcher.id == b.watcher.id && a.notice == b.notice);
        let mut echo = false;
        for told in &self.told {
            let heard = told.watcher.hears(told.notice);
            echo |= heard && told.public && own(told);
        }
        Heard(echo)
    }
}

impl Watcher {
    /// Sends a notice; returns whether it was queued. A full queue has a notice to try again
    /// already, and keeps its last place for a grant. A closed queue is being dropped.
    fn hears(&self, notice: Notice) -> bool {
        let room = notice != Notice::Retry || self.notices.capacity() > 1;
        room && self.notices.try_send(notice).is_ok()
    }
}
