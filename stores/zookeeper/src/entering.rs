//! Entries that enter queues, and their places.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::try_join_all;
use lock_core::store::{StoreError, StoreErrorKind};
use lock_store_sequences::{Class, Enter, Entered, Entry, Left, Place};
use zookeeper_client::{Error, MultiWriteResult};

use crate::errors::{of_write, unanswered};
use crate::link::{Change, EPHEMERAL, Failed, Link, NUMBERED, revision};
use crate::names::{self, Named};
use crate::own::{At, Node};
use crate::queue::Queue;

/// Any version of a node.
const ANY: i32 = -1;

/// Maximum number of keys in a lock. The server takes a megabyte in one message.
const MOST_KEYS: usize = 128;

/// Maximum number of bytes in the paths of all permits of a request, for the same reason.
const MOST_BYTES: usize = 800_000;

impl Link {
    /// Enters queues.
    pub(crate) async fn enter(&self, enter: &Enter) -> Result<Entered, StoreError> {
        let are_permits = enter.entries.iter().any(|entry| entry.class == Class::Permit);
        if are_permits {
            let bytes = |entry: &Entry| names::path_of(entry, self.id).len() + 100;
            if enter.entries.iter().map(bytes).sum::<usize>() > MOST_BYTES {
                let text =
                    "ZooKeeper takes no request of this size; use a shorter name, or ask for fewer permits";
                return Err(StoreError::new(StoreErrorKind::Unsupported, text));
            }
        } else if enter.entries.len() > MOST_KEYS {
            let text = format!("a lock in ZooKeeper has at most {MOST_KEYS} keys; use fewer");
            return Err(StoreError::new(StoreErrorKind::Unsupported, text));
        }
        if enter.entries.iter().any(|entry| self.names.get(entry) == At::Unknown) {
            return self.settle(enter).await;
        }
        let nodes = self.nodes(&enter.entries);
        if nodes.iter().any(|(_, node)| node.is_some()) {
            let (moment, places) = self.found(&nodes).await?;
            let found: Vec<bool> = places.iter().map(Option::is_some).collect();
            for ((entry, node), place) in nodes.iter().zip(&places) {
                if let (Some(node), None) = (node, place) {
                    self.names.gone(entry, node.born);
                }
            }
            if found.contains(&true) {
                return Ok(match places.into_iter().collect() {
                    Some(places) if enter.beside.is_empty() => Entered::All { moment, places },
                    _ => Entered::Partly(found),
                });
            }
        }
        loop {
            if !enter.stays {
                let queues = self.queues(enter.entries.iter()).await?;
                if let Some(busy) = busy(&enter.entries, &queues) {
                    return Ok(busy);
                }
            }
            if let Err(entered) = self.make(enter).await? {
                return Ok(entered);
            }
            let nodes = self.nodes(&enter.entries);
            let (moment, places) = match self.found(&nodes).await {
                Err(foreign) if foreign.kind() == StoreErrorKind::ForeignData => {
                    self.undo(&enter.entries).await?;
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
            if enter.stays || places.iter().all(|place| place.before.is_none()) {
                return Ok(Entered::All { moment, places });
            }
            // Somebody else came first.
            self.undo(&enter.entries).await?;
            if are_permits {
                // Those that came first may have been too many as well.
                continue;
            }
            let has_to_wait = |(at, place): (usize, &Place)| place.before.is_some().then_some(at);
            let items = places.iter().enumerate().filter_map(has_to_wait).collect();
            return Ok(Entered::Busy { moment, items, ahead: 1 });
        }
    }

    /// Looks up the place of each entry that was made by this revision.
    pub(crate) async fn places(
        &self,
        entries: Vec<(Entry, u64)>,
    ) -> Result<(u64, Vec<Option<Place>>), StoreError> {
        let with_node = |(entry, born): (Entry, u64)| {
            let node = self.names.node(&entry, born);
            (entry, node)
        };
        self.found(&entries.into_iter().map(with_node).collect::<Vec<_>>()).await
    }

    /// Turns a writer's node into a reader's. Returns the revision that did so.
    pub(crate) async fn downgrade(&self, entry: &Entry, born: u64) -> Result<Option<u64>, StoreError> {
        let reader = Entry { class: Class::Read, ..entry.clone() };
        let Some(node) = self.names.node(entry, born) else { return Ok(None) };
        let Some(named) = Named::read(names::split(&node.path).1) else { return Ok(None) };
        // The reader has the writer's number, as with Curator.
        let path = names::numbered(&reader, self.id, named.number);
        let turned = Node { turned: Some(Arc::from(path.as_str())), ..node.clone() };
        self.names.set(entry, At::Node(turned));
        let owner = Arc::from(entry.owner.as_str());
        let create = Change::Create(path.clone(), owner, EPHEMERAL);
        match self.commit(&[Change::Delete(node.path.to_string()), create]).await {
            Ok(_) => {}
            // An earlier copy of this request may have done so.
            Err(Failed::At(_, Error::NoNode | Error::NodeExists)) => {}
            Err(Failed::At(_, error)) => return Err(self.failed(&error, of_write)),
            Err(Failed::Store(error)) => return Err(error),
        }
        let Some(stat) = self.stat(&path).await? else { return Ok(None) };
        let born = revision(stat.czxid);
        self.names.set(&reader, At::Node(Node { path: Arc::from(path), born, turned: None }));
        Ok(Some(born))
    }

    /// Lists the queue of a lock, with the revision of its directory. The caller has written
    /// before, if the list has to be of a certain moment.
    pub(crate) async fn queue(&self, lock: &str) -> Result<(u64, Queue), StoreError> {
        let (names, moment) = self.children(lock).await?.unwrap_or_default();
        Ok((moment, Queue::read(lock, names)?))
    }

    /// Lists the queues of locks, or the permits of semaphores, by their names.
    async fn queues<'a>(
        &self,
        entries: impl Iterator<Item = &'a Entry>,
    ) -> Result<HashMap<&'a str, (u64, Queue)>, StoreError> {
        let names: HashMap<&str, Class> = entries.map(|entry| (&*entry.lock, entry.class)).collect();
        let queues = names.into_iter().map(|(name, class)| async move {
            let queue = match class {
                Class::Permit => self.permits_in_order(name).await?,
                Class::Lock | Class::Read | Class::Write => self.queue(name).await?,
            };
            Ok::<_, StoreError>((name, queue))
        });
        Ok(try_join_all(queues).await?.into_iter().collect())
    }

    /// Ends the epoch of a request of which a copy had no answer, and looks for its nodes.
    async fn settle(&self, enter: &Enter) -> Result<Entered, StoreError> {
        Ok(match self.end_epoch(enter.epoch, enter.entries.iter()).await? {
            None => Entered::Late(enter.epoch.version + 1),
            Some(Left::Late(version)) => Entered::Late(version),
            Some(_) => Entered::Ended,
        })
    }

    /// Looks up the places of entries with these nodes.
    async fn found(&self, nodes: &[(Entry, Option<Node>)]) -> Result<(u64, Vec<Option<Place>>), StoreError> {
        let queues = self.queues(nodes.iter().map(|(entry, _)| entry)).await?;
        let moment = queues.values().map(|(moment, _)| *moment).max().unwrap_or_default();
        let places = nodes.iter().map(|(entry, node)| {
            let (node, (_, queue)) = (node.as_ref()?, queues.get(&*entry.lock)?);
            let named = queue.find(names::split(&node.path).1)?;
            Some(Place { born: node.born, before: queue.before(named).0 })
        });
        Ok((moment, places.collect()))
    }

    /// Makes the nodes of entries. `Err` if they were not made.
    async fn make(&self, enter: &Enter) -> Result<Result<(), Entered>, StoreError> {
        let version = i32::try_from(enter.epoch.version).unwrap_or(i32::MAX);
        let mut beside = Vec::with_capacity(enter.beside.len());
        for (entry, born) in &enter.beside {
            match self.names.node(entry, *born) {
                Some(node) => beside.push(node.path.to_string()),
                None => return Ok(Err(Entered::Partly(vec![false; enter.entries.len()]))),
            }
        }
        loop {
            let mut changes = vec![Change::Check(self.epoch(enter.epoch.slot), version)];
            changes.extend(beside.iter().map(|path| Change::Check(path.clone(), ANY)));
            changes.extend(enter.entries.iter().map(|entry| {
                let owner = Arc::from(entry.owner.as_str());
                Change::Create(names::path_of(entry, self.id), owner, NUMBERED)
            }));
            let conditions = 1 + beside.len();
            enter.entries.iter().for_each(|entry| self.names.set(entry, At::Unknown));
            let made = self.commit(&changes).await;
            if let Err(Failed::Store(error)) = &made
                && error.outcome_unknown()
            {
                return Err(error.clone());
            }
            let failed = match made {
                Ok(results) => {
                    self.made(enter, &results).await?;
                    return Ok(Ok(()));
                }
                Err(failed) => failed,
            };
            // Nothing was made.
            enter.entries.iter().for_each(|entry| self.names.set(entry, At::Nowhere));
            match failed {
                Failed::At(0, Error::BadVersion | Error::NoNode) => {
                    let version = self.version(enter.epoch).await?;
                    return Ok(Err(version.map_or(Entered::Ended, Entered::Late)));
                }
                Failed::At(at, Error::NoNode) if at < conditions => {
                    return Ok(Err(Entered::Partly(vec![false; enter.entries.len()])));
                }
                Failed::At(at, Error::NoNode) => {
                    if let Some(entry) = enter.entries.get(at - conditions) {
                        let made = match entry.class {
                            Class::Permit => self.make_semaphore(&entry.lock).await,
                            Class::Lock | Class::Read | Class::Write => {
                                self.make_directory(&entry.lock).await
                            }
                        };
                        made.map_err(|error| nothing_done(&error))?;
                    }
                }
                Failed::At(_, error) => return Err(self.failed(&error, of_write)),
                Failed::Store(_) if self.has_ended() => return Ok(Err(Entered::Ended)),
                Failed::Store(error) => return Err(error),
            }
        }
    }

    /// Records the nodes that were made. Until the revision that made one is known, it counts as
    /// unknown, so that it is looked for.
    async fn made(&self, enter: &Enter, results: &[MultiWriteResult]) -> Result<(), StoreError> {
        let created = results.iter().filter_map(|result| match result {
            MultiWriteResult::Create { path, stat } => Some((path, *stat)),
            _ => None,
        });
        // One step makes all, so what is known of one is true of all.
        let mut known = None;
        for (entry, (path, stat)) in enter.entries.iter().zip(created) {
            // Servers before 3.9 leave it out (ZOOKEEPER-4026, ZOOKEEPER-4667).
            let stat = match known {
                Some(_) => known,
                None if stat.czxid > 0 => Some(stat),
                None => self.stat(path).await.map_err(|error| unanswered(&error))?,
            };
            known = stat;
            let at = match stat {
                Some(stat) if stat.ephemeral_owner != self.id.0 => {
                    // The server has changed the session without a word.
                    return Err(unanswered(&self.over()));
                }
                Some(stat) => {
                    let born = revision(stat.czxid);
                    At::Node(Node { path: Arc::from(path.as_str()), born, turned: None })
                }
                None => At::Nowhere,
            };
            self.names.set(entry, at);
        }
        Ok(())
    }

    /// Returns the nodes of entries.
    fn nodes(&self, entries: &[Entry]) -> Vec<(Entry, Option<Node>)> {
        let node = |entry: &Entry| match self.names.get(entry) {
            At::Node(node) => Some(node),
            At::Nowhere | At::Unknown => None,
        };
        entries.iter().map(|entry| (entry.clone(), node(entry))).collect()
    }

    /// Deletes the nodes of entries again.
    async fn undo(&self, entries: &[Entry]) -> Result<(), StoreError> {
        let entries: Vec<_> = entries.iter().map(|entry| (entry.clone(), None)).collect();
        self.leave_at_once(&entries).await.map(drop).map_err(|error| unanswered(&error))
    }
}

/// Returns the answer for entries that would have to wait; `None` if none would.
fn busy(entries: &[Entry], queues: &HashMap<&str, (u64, Queue)>) -> Option<Entered> {
    let moment = queues.values().map(|(moment, _)| *moment).max().unwrap_or_default();
    let rivals = entries.iter().map(|entry| {
        let (_, queue) = queues.get(&*entry.lock)?;
        Some(queue.rivals(entry.class, entries.len()))
    });
    let rivals = rivals.map(Option::unwrap_or_default);
    let taken: Vec<_> = rivals.enumerate().filter(|(_, rivals)| *rivals > 0).collect();
    let (_, ahead) = *taken.first()?;
    Some(Entered::Busy { moment, items: taken.into_iter().map(|(item, _)| item).collect(), ahead })
}

/// The error of a step before the one that counts.
fn nothing_done(error: &StoreError) -> StoreError {
    match error.outcome_unknown() {
        true => StoreError::new(StoreErrorKind::NotReady, error.to_string()),
        false => error.clone(),
    }
}
