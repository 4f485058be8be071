//! Permits of semaphores: how many there are, and when they come back.

use std::collections::{HashMap, HashSet};

use futures_util::future::{Either, select, try_join, try_join_all};
use lock_core::store::{PermitCounts, Permits, StoreError, StoreErrorKind};
use lock_store_sequences::Entry;
use zookeeper_client::{Acls, CreateMode, CreateOptions, Error, EventType, OneshotWatcher, Stat};

use crate::errors::{of_read, of_write};
use crate::link::Link;
use crate::names;
use crate::queue::Queue;
use crate::turn::Turn;

/// A node that stays.
const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());

/// The number of permits of a semaphore, and what is known of its node.
type Number = (i32, Stat);

impl Link {
    /// Lists the permits that are held or asked for, with the revision of their directory.
    pub(crate) async fn permits_in_order(&self, leases: &str) -> Result<(u64, Queue), StoreError> {
        let (found, number) = try_join(self.children(leases), self.number(leases)).await?;
        let (names, moment) = found.unwrap_or_default();
        let permits = number.map_or(0, |(number, _)| number.into());
        Ok((moment, Queue::of_permits(leases, names, permits)?))
    }

    /// Returns how many permits are left and held.
    pub(crate) async fn permit_counts(&self, leases: &str) -> Result<PermitCounts, StoreError> {
        let (found, number) = try_join(self.children(leases), self.number(leases)).await?;
        let acquired = found.unwrap_or_default().0.len() as u64;
        let total = number.map_or(0, |(number, _)| i64::from(number));
        Ok(PermitCounts { available: total.saturating_sub_unsigned(acquired), acquired })
    }

    /// Looks up which permits are there. The caller has just written.
    pub(crate) async fn permits_exist(&self, entries: &[(Entry, u64)]) -> Result<Vec<bool>, StoreError> {
        let all: HashSet<&str> = entries.iter().map(|(entry, _)| &*entry.lock).collect();
        let lists = all.into_iter().map(|leases| async move {
            let names = self.children(leases).await?.unwrap_or_default().0;
            Ok::<_, StoreError>((leases, names.into_iter().collect::<HashSet<_>>()))
        });
        let lists: HashMap<_, _> = try_join_all(lists).await?.into_iter().collect();
        let is_there = |(entry, born): &(Entry, u64)| {
            let node = self.names.node(entry, *born);
            let list = lists.get(&*entry.lock);
            node.zip(list).is_some_and(|(node, list)| list.contains(names::split(&node.path).1))
        };
        Ok(entries.iter().map(is_there).collect())
    }

    /// Changes the number of permits. Returns `false` if there is one that has to stay.
    pub(crate) async fn change_permits(&self, leases: &str, change: Permits) -> Result<bool, StoreError> {
        let path = names::permits(leases);
        loop {
            let known = self.number(leases).await?;
            let number = known.as_ref().map_or(0, |(number, _)| i64::from(*number));
            let number = match change {
                // A `SharedCount` of Curator begins with zero.
                Permits::TrySet(_) if known.as_ref().is_some_and(|known| !is_untouched(known)) => {
                    return Ok(false);
                }
                Permits::TrySet(number) | Permits::Set(number) => i64::from(number),
                Permits::Add(0) => return Ok(true),
                Permits::Add(more) => number + i64::from(more),
            };
            let Ok(number) = i32::try_from(number) else {
                let text =
                    format!("the semaphore {path:?} would have {number} permits; use {} at most", i32::MAX);
                return Err(StoreError::new(StoreErrorKind::Refused, text));
            };
            let bytes = number.to_be_bytes();
            if known.is_none() {
                self.make_semaphore(leases).await?;
            }
            let mut multi = self.client().await?.new_multi_writer();
            let version = match &known {
                Some((_, stat)) => stat.version,
                None => {
                    multi.add_create(&path, &bytes, &PERSISTENT).map_err(|error| of_write(&error))?;
                    0
                }
            };
            multi.add_set_data(&path, &bytes, Some(version)).map_err(|error| of_write(&error))?;
            match multi.commit().await.map(drop).map_err(Error::from) {
                Ok(()) => return Ok(true),
                // Somebody else has changed it.
                Err(Error::BadVersion | Error::NodeExists | Error::NoNode) => {}
                Err(error) => return Err(self.failed(&error, of_write)),
            }
        }
    }

    /// Makes the directory of permits, and those above it.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::ForeignData`] if the semaphore would be a lock.
    pub(crate) async fn make_semaphore(&self, leases: &str) -> Result<(), StoreError> {
        let semaphore = names::split(leases).0;
        let nodes = self.children(semaphore).await?.unwrap_or_default().0;
        if let Some(entry) = nodes.iter().find(|name| names::is_entry(name)) {
            let text = format!("the node {semaphore} is a lock with an entry {entry}; use another name");
            return Err(StoreError::new(StoreErrorKind::ForeignData, text));
        }
        self.make_directory(leases).await
    }

    /// Calls `hears` with `false` when it hears of all that happens, and with `true` whenever
    /// permits have come back and some are left. Enters the queue of Curator's clients if
    /// there is one.
    pub(crate) async fn hear_of_permits(
        &self,
        leases: &str,
        hears: impl Fn(bool),
        turn: &Turn<'_>,
    ) -> Result<(), StoreError> {
        let mut before: Option<(i64, Past)> = None;
        loop {
            let ((number, changed), (held, past, left)) =
                try_join(self.watch_number(leases), self.watch_permits(leases)).await?;
            match before {
                None => hears(false),
                Some((number_before, past_before)) => {
                    let has_come_back = number > number_before || past.has_more_than(past_before);
                    if has_come_back && number > held {
                        hears(true);
                    }
                }
            }
            before = Some((number, past));
            turn.enter().await?;
            let event = match select(Box::pin(changed.changed()), Box::pin(left.changed())).await {
                Either::Left((event, _)) | Either::Right((event, _)) => event,
            };
            if event.event_type == EventType::Session {
                return Err(self.over());
            }
        }
    }

    /// Returns the number of permits; `None` if the semaphore was never given any.
    async fn number(&self, leases: &str) -> Result<Option<Number>, StoreError> {
        let path = names::permits(leases);
        match self.client().await?.get_data(&path).await {
            Ok((data, stat)) => Ok(Some((number_of(&path, &data)?, stat))),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(self.failed(&error, of_read)),
        }
    }

    /// Returns the number of permits, and what tells of its changes.
    async fn watch_number(&self, leases: &str) -> Result<(i64, OneshotWatcher), StoreError> {
        let (path, client) = (names::permits(leases), self.client().await?);
        loop {
            match client.get_and_watch_data(&path).await {
                Ok((data, _, watcher)) => return Ok((number_of(&path, &data)?.into(), watcher)),
                Err(Error::NoNode) => {}
                Err(error) => return Err(self.failed(&error, of_read)),
            }
            match client.check_and_watch_stat(&path).await {
                Ok((None, watcher)) => return Ok((0, watcher)),
                Ok((Some(_), _)) => {}
                Err(error) => return Err(self.failed(&error, of_read)),
            }
        }
    }

    /// Returns how many permits are held, what has come back, and what tells of changes.
    async fn watch_permits(&self, leases: &str) -> Result<(i64, Past, OneshotWatcher), StoreError> {
        let client = self.client().await?;
        loop {
            match client.get_and_watch_children(leases).await {
                Ok((_, stat, watcher)) => {
                    let held = i64::from(stat.num_children);
                    let past = Past { made: stat.czxid, deleted: (i64::from(stat.cversion) - held) / 2 };
                    return Ok((held, past, watcher));
                }
                Err(Error::NoNode) => {}
                Err(error) => return Err(self.failed(&error, of_read)),
            }
            match client.check_and_watch_stat(leases).await {
                Ok((None, watcher)) => return Ok((0, Past::default(), watcher)),
                Ok((Some(_), _)) => {}
                Err(error) => return Err(self.failed(&error, of_read)),
            }
        }
    }
}

/// The past of a directory with permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Past {
    /// The revision that made it.
    made: i64,
    /// How many nodes were deleted in it. The server counts all changes, those and the new ones.
    deleted: i64,
}

impl Past {
    /// Whether permits have come back since `before`.
    const fn has_more_than(self, before: Self) -> bool {
        // A directory that was made anew had lost all of them.
        let was_there = before.made != 0;
        if self.made == before.made { self.deleted > before.deleted } else { was_there || self.deleted > 0 }
    }
}

/// Whether the number is the one that a `SharedCount` of Curator begins with. Ours is written once
/// more when its node is made.
const fn is_untouched((number, stat): &Number) -> bool {
    *number == 0 && stat.version == 0
}

fn number_of(path: &str, data: &[u8]) -> Result<i32, StoreError> {
    let bytes = data.try_into().map_err(|_| {
        let text =
            format!("the node {path} has no number of permits, which has four bytes; use another name");
        StoreError::new(StoreErrorKind::ForeignData, text)
    })?;
    Ok(i32::from_be_bytes(bytes))
}
