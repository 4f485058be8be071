//! [`ZooKeeper`]: the steps of an [`OrderedStore`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use lock_core::OwnerId;
use lock_core::internal::clock::Clock;
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::{Abilities, Cursor, Kind, StoreError, StoreErrorKind};
use lock_store_sequences::{
    Before, Class, Enter, Entered, Entry, Epoch, Gone, Leave, Left, Life, Listed, OrderedStore, Page, Place,
    Session,
};
use zookeeper_client::{Acls, CreateMode, CreateOptions, Error, EventType, MultiWriteResult, OneshotWatcher};

use crate::errors::{of_read, of_write};
use crate::link::{Change, Changes, EPHEMERAL, EPOCHS, Ensemble, Failed, Link, ended};
use crate::names::{self, Named};
use crate::own::{At, Node};
use crate::queue::Queue;

/// An entry of a queue.
const NUMBERED: CreateOptions<'static> = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());

/// Any version of a node.
const ANY: i32 = -1;

/// Maximum number of keys in a lock. The server takes a megabyte in one message.
const MOST_KEYS: usize = 128;

/// Number of directories in a page of a scan,
const PAGE: usize = 100;

/// and how many parts the name of a lock may have.
const DEPTH: usize = 8;

/// ZooKeeper in the role of an [`OrderedStore`].
pub struct ZooKeeper {
    ensemble: Ensemble,
    abilities: Abilities,
    clock: Clock,
    link: Mutex<Option<Arc<Link>>>,
    /// One session begins at a time.
    beginning: tokio::sync::Mutex<()>,
}

impl ZooKeeper {
    pub(crate) fn new(ensemble: Ensemble, abilities: Abilities) -> Self {
        let (clock, link) = (Clock::Boot, Mutex::new(None));
        Self { ensemble, abilities, clock, link, beginning: tokio::sync::Mutex::default() }
    }

    fn current(&self) -> Option<Arc<Link>> {
        lock(&self.link).as_ref().filter(|link| !link.has_ended()).map(Arc::clone)
    }

    /// Returns the session, and begins one if there is none that is good.
    async fn link(&self, is_good: impl Fn(&Link) -> bool) -> Result<Arc<Link>, StoreError> {
        if let Some(link) = self.current().filter(|link| is_good(link)) {
            return Ok(link);
        }
        let _only = self.beginning.lock().await;
        if let Some(link) = self.current().filter(|link| is_good(link)) {
            return Ok(link);
        }
        let link = Link::begin(&self.ensemble).await?;
        let old = lock(&self.link).replace(Arc::clone(&link));
        if let Some(old) = old {
            old.end();
        }
        Ok(link)
    }

    /// Returns this session; `None` if it has ended.
    fn of(&self, session: Session) -> Option<Arc<Link>> {
        self.current().filter(|link| link.id == session)
    }

    fn epoch(&self, session: Session, slot: usize) -> String {
        names::epoch(&self.ensemble.root, session, slot)
    }

    /// Lists the queue of a lock, with the revision of its directory. The caller has written
    /// before, if the list has to be of a certain moment.
    async fn queue(&self, link: &Link, lock: &str) -> Result<(u64, Queue), StoreError> {
        match link.client().await?.get_children(lock).await {
            Ok((names, stat)) => Ok((revision(stat.pzxid), Queue::read(lock, names)?)),
            Err(Error::NoNode) => Ok((0, Queue::default())),
            Err(error) => Err(link.failed(&error, of_read)),
        }
    }

    /// Lists the queues of locks.
    async fn queues<'a>(
        &self,
        link: &Link,
        locks: impl Iterator<Item = &'a Entry>,
    ) -> Result<Vec<(u64, Queue)>, StoreError> {
        try_join_all(locks.map(|entry| self.queue(link, &entry.lock))).await
    }

    /// Ends the epoch of a request of which a copy had no answer, and looks for its nodes.
    async fn settle(&self, link: &Link, enter: &Enter) -> Result<Entered, StoreError> {
        let entries = enter.entries.iter().map(|entry| (entry.clone(), None)).collect();
        match self.leave_epoch(link, entries, enter.epoch, false).await? {
            Left::All(_) => Ok(Entered::Late(enter.epoch.version + 1)),
            Left::Late(version) => Ok(Entered::Late(version)),
            Left::Ended => Ok(Entered::Ended),
        }
    }

    /// Returns the version of an epoch that is not the one which was sent.
    async fn version(&self, link: &Link, epoch: Epoch) -> Result<Option<i64>, StoreError> {
        match link.client().await?.check_stat(&self.epoch(link.id, epoch.slot)).await {
            Ok(Some(stat)) => Ok(Some(stat.version.into())),
            Ok(None) => Ok(None),
            Err(error) => Err(link.failed(&error, of_read)),
        }
    }

    /// Looks up the places of entries with these nodes.
    async fn found(
        &self,
        link: &Link,
        nodes: &[(Entry, Option<Node>)],
    ) -> Result<(u64, Vec<Option<Place>>), StoreError> {
        let queues = self.queues(link, nodes.iter().map(|(entry, _)| entry)).await?;
        let moment = queues.iter().map(|(moment, _)| *moment).max().unwrap_or_default();
        let places = nodes.iter().zip(&queues).map(|((_, node), (_, queue))| {
            let node = node.as_ref()?;
            let name = names::split(&node.path).1;
            let named = Named::read(name).filter(|_| queue.has(name))?;
            Some(Place { born: node.born, before: queue.before(named).0 })
        });
        Ok((moment, places.collect()))
    }

    /// Makes the nodes of entries. `Err` if they were not made.
    async fn make(&self, link: &Link, enter: &Enter) -> Result<Result<(), Entered>, StoreError> {
        let version = i32::try_from(enter.epoch.version).unwrap_or(i32::MAX);
        let mut beside = Vec::with_capacity(enter.beside.len());
        for (entry, born) in &enter.beside {
            match link.names.node(entry, *born) {
                Some(node) => beside.push(node.path.to_string()),
                None => return Ok(Err(Entered::Partly(vec![false; enter.entries.len()]))),
            }
        }
        loop {
            let mut changes = vec![Change::Check(self.epoch(link.id, enter.epoch.slot), version)];
            changes.extend(beside.iter().map(|path| Change::Check(path.clone(), ANY)));
            changes.extend(enter.entries.iter().map(|entry| {
                let owner = Arc::from(entry.owner.as_str());
                Change::Create(names::path_of(entry, link.id), owner, NUMBERED)
            }));
            let conditions = 1 + beside.len();
            enter.entries.iter().for_each(|entry| link.names.set(entry, At::Unknown));
            let made = link.commit(Changes(changes)).await;
            if let Err(Failed::Store(error)) = &made
                && error.outcome_unknown()
            {
                return Err(error.clone());
            }
            // Nothing was made, or it is known where.
            enter.entries.iter().for_each(|entry| link.names.set(entry, At::Nowhere));
            match made {
                Ok(results) => {
                    self.made(link, enter, &results).await?;
                    return Ok(Ok(()));
                }
                Err(Failed::At(0, Error::BadVersion)) => {
                    return Ok(Err(match self.version(link, enter.epoch).await? {
                        Some(version) => Entered::Late(version),
                        None => {
                            link.end();
                            Entered::Ended
                        }
                    }));
                }
                Err(Failed::At(0, Error::NoNode)) => {
                    // Epochs end with their session.
                    link.end();
                    return Ok(Err(Entered::Ended));
                }
                Err(Failed::At(at, Error::NoNode)) if at < conditions => {
                    return Ok(Err(Entered::Partly(vec![false; enter.entries.len()])));
                }
                Err(Failed::At(at, Error::NoNode)) => {
                    if let Some(entry) = enter.entries.get(at - conditions) {
                        link.make_directory(&entry.lock).await.map_err(|error| nothing_done(&error))?;
                    }
                }
                Err(Failed::At(_, error)) => return Err(link.failed(&error, of_write)),
                Err(Failed::Store(_)) if link.has_ended() => return Ok(Err(Entered::Ended)),
                Err(Failed::Store(error)) => return Err(error),
            }
        }
    }

    /// Records the nodes that were made.
    async fn made(&self, link: &Link, enter: &Enter, results: &[MultiWriteResult]) -> Result<(), StoreError> {
        let created = results.iter().filter_map(|result| match result {
            MultiWriteResult::Create { path, stat } => Some((path, *stat)),
            _ => None,
        });
        let all: Vec<_> = enter.entries.iter().zip(created).collect();
        for (entry, (path, _)) in &all {
            let node = Node { path: Arc::from(path.as_str()), born: 0, turned: None };
            link.names.set(entry, At::Node(node));
        }
        for (entry, (path, stat)) in all {
            // Servers before 3.9 leave it out (ZOOKEEPER-4026, ZOOKEEPER-4667).
            let stat = match stat.czxid {
                born if born > 0 => Some(stat),
                _ => {
                    let stat =
                        link.client().await.map_err(|error| unanswered(&error))?.check_stat(path).await;
                    stat.map_err(|error| unanswered(&link.failed(&error, of_read)))?
                }
            };
            let at = match stat {
                Some(stat) if stat.ephemeral_owner != link.id.0 => {
                    // The server has changed the session without a word.
                    link.end();
                    return Err(unanswered(&ended()));
                }
                Some(stat) => {
                    let born = revision(stat.czxid);
                    At::Node(Node { path: Arc::from(path.as_str()), born, turned: None })
                }
                None => At::Nowhere,
            };
            link.names.set(entry, at);
        }
        Ok(())
    }

    /// Returns the nodes of entries.
    fn nodes(link: &Link, entries: &[Entry]) -> Vec<(Entry, Option<Node>)> {
        let node = |entry: &Entry| match link.names.get(entry) {
            At::Node(node) => Some(node),
            At::Nowhere | At::Unknown => None,
        };
        entries.iter().map(|entry| (entry.clone(), node(entry))).collect()
    }

    /// Deletes the nodes of entries again.
    async fn undo(&self, link: &Link, entries: &[Entry]) -> Result<(), StoreError> {
        let entries = entries.iter().map(|entry| (entry.clone(), None)).collect();
        self.leave_at_once(link, entries).await.map(drop).map_err(|error| unanswered(&error))
    }

    /// Deletes the nodes of entries that are known. Returns which of them were there.
    async fn leave_at_once(
        &self,
        link: &Link,
        entries: Vec<(Entry, Option<u64>)>,
    ) -> Result<Vec<bool>, StoreError> {
        let client = link.client().await?;
        let deletions = entries.iter().map(|(entry, born)| async move {
            let node = match link.names.get(entry) {
                At::Node(node) if born.is_none_or(|born| node.born == born) => node,
                _ => return Ok(false),
            };
            let mut was_there = false;
            for path in [Some(&node.path), node.turned.as_ref()].into_iter().flatten() {
                match client.delete(path, None).await {
                    Ok(()) => was_there = true,
                    Err(Error::NoNode) => {}
                    Err(error) => return Err(link.failed(&error, of_write)),
                }
            }
            link.names.gone(entry, node.born);
            Ok(was_there)
        });
        // All are sent before one is awaited.
        join_all(deletions).await.into_iter().collect()
    }

    /// Ends an epoch, and deletes entries that its requests may have made. Those that were made
    /// stay if they are not to be `deleted`.
    async fn leave_epoch(
        &self,
        link: &Link,
        entries: Vec<(Entry, Option<u64>)>,
        epoch: Epoch,
        deleted: bool,
    ) -> Result<Left, StoreError> {
        let version = i32::try_from(epoch.version).unwrap_or(i32::MAX);
        let write = Change::Write(self.epoch(link.id, epoch.slot), version);
        match link.commit(Changes(vec![write])).await {
            Ok(_) => {}
            Err(Failed::At(_, Error::BadVersion)) => {
                return Ok(match self.version(link, epoch).await? {
                    Some(version) => Left::Late(version),
                    None => {
                        link.end();
                        Left::Ended
                    }
                });
            }
            Err(Failed::At(_, Error::NoNode)) => {
                link.end();
                return Ok(Left::Ended);
            }
            Err(Failed::At(_, error)) => return Err(link.failed(&error, of_write)),
            Err(Failed::Store(error)) => return Err(error),
        }
        // Every copy was executed before that, or is refused. So this list shows their nodes.
        for (entry, _) in &entries {
            if link.names.get(entry) == At::Unknown {
                self.look_for(link, entry).await?;
            }
        }
        if !deleted {
            return Ok(Left::All(Vec::new()));
        }
        self.leave_at_once(link, entries).await.map(Left::All)
    }

    /// Looks for the node of an entry.
    async fn look_for(&self, link: &Link, entry: &Entry) -> Result<(), StoreError> {
        let client = link.client().await?;
        let names = match client.list_children(&entry.lock).await {
            Ok(names) => names,
            Err(Error::NoNode) => Vec::new(),
            Err(error) => return Err(link.failed(&error, of_read)),
        };
        let tag = names::tag(entry, link.id);
        let is_own = |name: &&String| {
            name.starts_with(&tag) && Named::read(name).is_some_and(|named| named.class == entry.class)
        };
        let mut at = At::Nowhere;
        for name in names.iter().filter(is_own) {
            let path = format!("{}/{name}", entry.lock);
            let stat = client.check_stat(&path).await.map_err(|error| link.failed(&error, of_read))?;
            let Some(stat) = stat else { continue };
            if let At::Node(old) = at {
                // There is one entry for each owner. An older one was given up.
                match client.delete(&old.path, None).await {
                    Ok(()) | Err(Error::NoNode) => {}
                    Err(error) => return Err(link.failed(&error, of_write)),
                }
            }
            at = At::Node(Node { path: Arc::from(path), born: revision(stat.czxid), turned: None });
        }
        link.names.set(entry, at);
        Ok(())
    }

    /// Watches a node; `None` if it is not there.
    async fn watch<'a>(link: &'a Link, path: &str) -> Result<Option<OneshotWatcher>, StoreError> {
        match link.client().await?.get_and_watch_data(path).await {
            Ok((_, _, watcher)) => Ok(Some(watcher)),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(link.failed(&error, of_read)),
        }
    }

    /// Waits until a node is gone. Returns the revision that deleted it, if the server tells.
    async fn is_gone(link: &Link, path: &str) -> Result<Option<u64>, StoreError> {
        loop {
            let Some(watcher) = Self::watch(link, path).await? else { return Ok(None) };
            let event = watcher.changed().await;
            match event.event_type {
                EventType::NodeDeleted => {
                    return Ok(u64::try_from(event.zxid).ok().filter(|revision| *revision > 0));
                }
                EventType::Session => return Err(ended()),
                // Its data has changed. Curator asks a holder in this way to let go; it need not.
                _ => {}
            }
        }
    }

    /// Lists the queue of a lock, with what is known of the entries that hold it.
    async fn listed(&self, link: &Link, lock: &str) -> Result<Option<(u64, Vec<Listed>)>, StoreError> {
        let (moment, queue) = self.queue(link, lock).await?;
        let client = link.client().await?;
        let (mut all, mut are_holders) = (Vec::new(), true);
        for (named, name) in queue.into_order() {
            let path = format!("{lock}/{name}");
            let is_holder = are_holders && (all.is_empty() || named.class == Class::Read);
            // Nothing stands behind a mutex or a writer.
            are_holders = is_holder && named.class == Class::Read;
            let (owner, born, session) = if is_holder {
                match client.get_data(&path).await {
                    Ok((data, stat)) => {
                        let owner = owner(&data, &name, named.class, lock, Session(stat.ephemeral_owner));
                        (owner, revision(stat.czxid), Session(stat.ephemeral_owner))
                    }
                    // It has ended since the list was made.
                    Err(Error::NoNode) => return Ok(None),
                    Err(error) => return Err(link.failed(&error, of_read)),
                }
            } else {
                (OwnerId::new(name.as_str()), 0, Session(0))
            };
            let (name, class) = (Arc::from(path.into_bytes()), named.class);
            all.push(Listed { name, born, class, owner, session });
        }
        Ok(Some((moment, all)))
    }

    /// Lists the locks in a directory, and in those below.
    async fn scan_below(
        &self,
        link: &Link,
        directory: String,
        found: &mut Vec<(String, Vec<Listed>)>,
    ) -> Result<(), StoreError> {
        let mut below = vec![(directory, 1)];
        while let Some((directory, depth)) = below.pop() {
            let names = match link.client().await?.list_children(&directory).await {
                Ok(names) => names,
                Err(Error::NoNode) => continue,
                // Nobody may look into it.
                Err(Error::NoAuth) => continue,
                Err(error) => return Err(link.failed(&error, of_read)),
            };
            if names.iter().any(|name| names::is_entry(name)) {
                match self.listed(link, &directory).await {
                    Ok(Some((_, queue))) => found.push((directory, queue)),
                    Ok(None) => below.push((directory, depth)),
                    // It is no lock, or a lock that nobody can use.
                    Err(error) if error.kind() == StoreErrorKind::ForeignData => {}
                    Err(error) => return Err(error),
                }
            } else if depth < DEPTH {
                below.extend(names.into_iter().map(|name| (format!("{directory}/{name}"), depth + 1)));
            }
        }
        Ok(())
    }
}

impl OrderedStore for ZooKeeper {
    const EPOCHS: usize = EPOCHS;
    const TOKENS_OF_BIRTH: bool = true;
    const MOVES: bool = false;

    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn timeout_for(&self, _lease: Duration) -> Duration {
        self.ensemble.timeout
    }

    fn allows(&self, lock: &str, _kind: Kind) -> Result<(), StoreError> {
        let fault = names::fault(&self.ensemble.root, lock);
        fault.map_or(Ok(()), |fault| {
            let text = format!("ZooKeeper can't have a lock {lock:?}: the name {fault}");
            Err(StoreError::new(StoreErrorKind::Unsupported, text))
        })
    }

    fn remember(&self, session: Session, entry: &Entry) {
        if let Some(link) = self.of(session) {
            link.names.remember(entry);
        }
    }

    fn forget(&self, session: Session, entry: &Entry) {
        if let Some(link) = self.of(session)
            && link.names.forget(entry)
        {
            link.make_tidy();
        }
    }

    async fn begin(&self, _timeout: Duration) -> Result<(Session, Duration), StoreError> {
        let called_at = self.clock.now();
        let longest = self.abilities.longest_lease.unwrap_or_default();
        let link = self.link(|link| link.certain_until() >= self.clock.now() + longest).await?;
        Ok((link.id, link.certain_until().since(called_at)))
    }

    async fn beat(&self, session: Session, lease: Duration) -> Result<Option<Duration>, StoreError> {
        let called_at = self.clock.now();
        let Some(link) = self.of(session) else { return Ok(None) };
        if lease.is_zero() {
            // The caller asks whether the session lives.
            match link.beat().await {
                Err(_) if link.has_ended() => return Ok(None),
                beat => beat?,
            }
        }
        Ok(link.last(lease).await.map(|until| until.since(called_at)))
    }

    async fn enter(&self, enter: Enter) -> Result<Entered, StoreError> {
        let Some(link) = self.of(enter.session) else { return Ok(Entered::Ended) };
        if enter.entries.len() > MOST_KEYS {
            let text = format!("a lock in ZooKeeper has at most {MOST_KEYS} keys; use fewer");
            return Err(StoreError::new(StoreErrorKind::Unsupported, text));
        }
        if enter.entries.iter().any(|entry| link.names.get(entry) == At::Unknown) {
            return self.settle(&link, &enter).await;
        }
        let nodes = Self::nodes(&link, &enter.entries);
        if nodes.iter().any(|(_, node)| node.is_some()) {
            let (moment, places) = self.found(&link, &nodes).await?;
            let found: Vec<bool> = places.iter().map(Option::is_some).collect();
            for ((entry, node), place) in nodes.iter().zip(&places) {
                if let (Some(node), None) = (node, place) {
                    link.names.gone(entry, node.born);
                }
            }
            if found.contains(&true) {
                return Ok(match places.into_iter().collect() {
                    Some(places) if enter.beside.is_empty() => Entered::All { moment, places },
                    _ => Entered::Partly(found),
                });
            }
        }
        if !enter.stays {
            let queues = self.queues(&link, enter.entries.iter()).await?;
            if let Some(busy) = busy(&enter.entries, &queues) {
                return Ok(busy);
            }
        }
        if let Err(entered) = self.make(&link, &enter).await? {
            return Ok(entered);
        }
        let nodes = Self::nodes(&link, &enter.entries);
        let (moment, places) = match self.found(&link, &nodes).await {
            Err(foreign) if foreign.kind() == StoreErrorKind::ForeignData => {
                self.undo(&link, &enter.entries).await?;
                return Err(foreign);
            }
            // The entries are there.
            Err(error) => return Err(unanswered(&error)),
            Ok(found) => found,
        };
        // One of them is gone already: it has to begin anew.
        let found: Vec<bool> = places.iter().map(Option::is_some).collect();
        let Some(places) = places.into_iter().collect::<Option<Vec<Place>>>() else {
            return Ok(Entered::Partly(found));
        };
        if !enter.stays && places.iter().any(|place| place.before.is_some()) {
            // Somebody else came first.
            self.undo(&link, &enter.entries).await?;
            let has_to_wait = |(at, place): (usize, &Place)| place.before.is_some().then_some(at);
            let items = places.iter().enumerate().filter_map(has_to_wait).collect();
            return Ok(Entered::Busy { moment, items, ahead: 1 });
        }
        Ok(Entered::All { moment, places })
    }

    async fn places(
        &self,
        session: Session,
        entries: Vec<(Entry, u64)>,
    ) -> Result<(u64, Vec<Option<Place>>), StoreError> {
        let Some(link) = self.of(session) else { return Ok((0, vec![None; entries.len()])) };
        let nodes: Vec<_> = entries
            .into_iter()
            .map(|(entry, born)| {
                let node = link.names.node(&entry, born);
                (entry, node)
            })
            .collect();
        self.found(&link, &nodes).await
    }

    async fn exist(&self, session: Session, entries: Vec<(Entry, u64)>) -> Result<Vec<bool>, StoreError> {
        let Some(link) = self.of(session) else { return Ok(vec![false; entries.len()]) };
        // A follower that is behind could still show what was deleted.
        match link.beat().await {
            Err(_) if link.has_ended() => return Ok(vec![false; entries.len()]),
            beat => beat?,
        }
        let link = &*link;
        let client = link.client().await?;
        let exist = entries.iter().map(|(entry, born)| {
            let node = link.names.node(entry, *born);
            let paths = node.into_iter().flat_map(|node| [Some(node.path), node.turned]).flatten();
            let looks: Vec<_> = paths.map(|path| client.check_stat(&path)).collect();
            async move {
                for stat in join_all(looks).await {
                    if stat.map_err(|error| link.failed(&error, of_read))?.is_some() {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        });
        try_join_all(exist).await
    }

    async fn downgrade(&self, entered: Session, entry: &Entry, born: u64) -> Result<Option<u64>, StoreError> {
        let Some(link) = self.of(entered) else { return Ok(None) };
        let reader = Entry { class: Class::Read, ..entry.clone() };
        let Some(node) = link.names.node(entry, born) else { return Ok(None) };
        let Some(named) = Named::read(names::split(&node.path).1) else { return Ok(None) };
        // The reader has the writer's number, as with Curator.
        let path = names::numbered(&reader, link.id, named.number);
        let turned = Node { turned: Some(Arc::from(path.as_str())), ..node.clone() };
        link.names.set(entry, At::Node(turned));
        let owner = Arc::from(entry.owner.as_str());
        let create = Change::Create(path.clone(), owner, EPHEMERAL);
        let changes = Changes(vec![Change::Delete(node.path.to_string()), create]);
        match link.commit(changes).await {
            Ok(_) => {}
            // An earlier copy of this request may have done so.
            Err(Failed::At(_, Error::NoNode | Error::NodeExists)) => {}
            Err(Failed::At(_, error)) => return Err(link.failed(&error, of_write)),
            Err(Failed::Store(error)) => return Err(error),
        }
        let stat = link.client().await?.check_stat(&path).await;
        match stat.map_err(|error| link.failed(&error, of_read))? {
            Some(stat) => {
                let born = revision(stat.czxid);
                link.names.set(&reader, At::Node(Node { path: Arc::from(path), born, turned: None }));
                Ok(Some(born))
            }
            None => Ok(None),
        }
    }

    async fn leave(&self, leave: Leave) -> Result<Left, StoreError> {
        let Leave { session, entries, epoch } = leave;
        let Some(link) = self.of(session) else { return Ok(Left::Ended) };
        let left = match epoch {
            Some(epoch) => self.leave_epoch(&link, entries, epoch, true).await,
            None => self.leave_at_once(&link, entries).await.map(Left::All),
        };
        match left {
            Err(_) if link.has_ended() => Ok(Left::Ended),
            left => left,
        }
    }

    async fn gone(
        &self,
        session: Session,
        own: Entry,
        born: u64,
        before: Option<Before>,
    ) -> Result<Gone, StoreError> {
        let Some(link) = self.of(session) else { return Ok(Gone::Own) };
        let Some(node) = link.names.node(&own, born) else { return Ok(Gone::Own) };
        let before_path =
            before.map(|before| format!("{}/{}", own.lock, String::from_utf8_lossy(&before.name)));
        let its_end = async {
            match &before_path {
                Some(path) => Self::is_gone(&link, path).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The own end comes first, if both have come.
            biased;
            () = link.ended() => Ok(Gone::Own),
            gone = Self::is_gone(&link, &node.path) => gone.map(|_| Gone::Own),
            gone = its_end => gone.map(|moment| moment.map_or(Gone::Unsure, Gone::Before)),
        }
    }

    async fn list(&self, lock: &str) -> Result<(u64, Vec<Listed>), StoreError> {
        let link = self.link(|_| true).await?;
        // As of now, and not as of when this server heard from its leader last.
        link.client().await?.sync("/").await.map_err(|error| link.failed(&error, of_read))?;
        loop {
            if let Some(listed) = self.listed(&link, lock).await? {
                return Ok(listed);
            }
        }
    }

    async fn remaining(&self, _session: Session) -> Result<Life, StoreError> {
        Ok(Life::Unknown)
    }

    async fn remove(&self, entry: &Listed) -> Result<bool, StoreError> {
        let link = self.link(|_| true).await?;
        // The name has a number that no other node of this directory had.
        match link.client().await?.delete(&String::from_utf8_lossy(&entry.name), None).await {
            Ok(()) => Ok(true),
            Err(Error::NoNode) => Ok(false),
            Err(error) => Err(link.failed(&error, of_write)),
        }
    }

    async fn scan(&self, prefix: &str, after: Option<Cursor>) -> Result<Page, StoreError> {
        let link = self.link(|_| true).await?;
        let root = &self.ensemble.root;
        let top = root.trim_end_matches('/');
        let mut names = match link.client().await?.list_children(if top.is_empty() { "/" } else { top }).await
        {
            Ok(names) => names,
            Err(Error::NoNode) => return Ok(Page::default()),
            Err(error) => return Err(link.failed(&error, of_read)),
        };
        let is_after = |name: &String| after.as_ref().is_none_or(|after| name.as_bytes() > after.as_bytes());
        let is_of = |name: &String| {
            let path = format!("{root}{name}");
            let may_have = path.starts_with(prefix) || prefix.starts_with(&format!("{path}/"));
            may_have && names::fault(root, &path).is_none()
        };
        names.retain(|name| is_after(name) && is_of(name));
        names.sort();
        let mut page = Page::default();
        if names.len() > PAGE {
            names.truncate(PAGE);
            page.next = names.last().map(|name| Cursor::new(name.as_bytes()));
        }
        for name in names {
            self.scan_below(&link, format!("{root}{name}"), &mut page.locks).await?;
        }
        page.locks.retain(|(lock, _)| lock.starts_with(prefix));
        Ok(page)
    }

    async fn check(&self) -> Result<(), StoreError> {
        let link = self.link(|_| true).await?;
        link.beat().await?;
        let path = format!("{}{}/check", self.ensemble.root, names::SESSIONS);
        let client = link.client().await?;
        let made = client.create(&path, b"", &NUMBERED).await;
        let (stat, number) = made.map_err(|error| link.failed(&error, of_write))?;
        let deleted = client.delete(&format!("{path}{number}"), None).await;
        deleted.map_err(|error| link.failed(&error, of_write))?;
        if revision(stat.czxid) >> (53 - 10) > 0 {
            tracing::warn!(
                target: "lock_runtime::store",
                "this ensemble has elected so many leaders that fencing tokens exceed 2^53: keep them as integers \
                 of 64 bits, and not as floating-point numbers",
            );
        }
        Ok(())
    }
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeper").field("ensemble", &self.ensemble).finish_non_exhaustive()
    }
}

/// Returns the answer for entries that would have to wait; `None` if none would.
fn busy(entries: &[Entry], queues: &[(u64, Queue)]) -> Option<Entered> {
    let moment = queues.iter().map(|(moment, _)| *moment).max().unwrap_or_default();
    let rivals = entries.iter().zip(queues).map(|(entry, (_, queue))| queue.rivals(entry.class));
    let taken: Vec<_> = rivals.enumerate().filter(|(_, rivals)| *rivals > 0).collect();
    let (_, ahead) = *taken.first()?;
    Some(Entered::Busy { moment, items: taken.into_iter().map(|(item, _)| item).collect(), ahead })
}

/// Returns the owner of an entry. For a foreign one, that is its own name.
fn owner(data: &[u8], name: &str, class: Class, lock: &str, session: Session) -> OwnerId {
    let owner = OwnerId::new(String::from_utf8_lossy(data));
    let entry = Entry { lock: Arc::from(lock), class, owner: owner.clone() };
    if name.starts_with(&names::tag(&entry, session)) { owner } else { OwnerId::new(name) }
}

fn revision(zxid: i64) -> u64 {
    u64::try_from(zxid).unwrap_or_default()
}

/// The error after which the outcome is not known.
fn unanswered(error: &StoreError) -> StoreError {
    StoreError::new(StoreErrorKind::Unanswered, error.to_string())
}

/// The error of a step before the one that counts.
fn nothing_done(error: &StoreError) -> StoreError {
    match error.outcome_unknown() {
        true => StoreError::new(StoreErrorKind::NotReady, error.to_string()),
        false => error.clone(),
    }
}
