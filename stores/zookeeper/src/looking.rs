//! Lists of locks, and waits for the end of nodes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use lock_core::OwnerId;
use lock_core::internal::sync::atomic::{AtomicBool, Ordering};
use lock_core::store::{Cursor, StoreError, StoreErrorKind};
use lock_store_sequences::{Class, Entry, Gone, Listed, Page, Session};
use zookeeper_client::{Error, EventType, OneshotWatcher};

use crate::errors::of_read;
use crate::link::{AT_ONCE, Link, revision};
use crate::names::{self, Named};
use crate::watched::{MOST_FOR_HOLDS, MOST_FOR_LOCKS};

/// Number of directories in a page of a scan,
const PAGE: usize = 100;

/// and how many parts the name of a lock may have.
const DEPTH: usize = 8;

/// Delay before a waiter looks again, if there are too many watches.
const PAUSE: Duration = Duration::from_secs(1);

impl Link {
    /// Waits until an own node is gone, or the one before it.
    pub(crate) async fn first_gone(&self, own: &str, before: Option<&str>) -> Result<Gone, StoreError> {
        let room = || match before {
            Some(before) => self.watched.add([own, before], MOST_FOR_LOCKS),
            None => self.watched.add([own], MOST_FOR_HOLDS),
        };
        let mut watches = room();
        while watches.is_none() {
            tokio::select! {
                () = self.ended() => return Ok(Gone::Own),
                () = tokio::time::sleep(PAUSE), if before.is_some() => {}
            }
            if self.stat(own).await?.is_none() {
                return Ok(Gone::Own);
            }
            if let Some(before) = before
                && self.stat(before).await?.is_none()
            {
                return Ok(Gone::Unsure);
            }
            watches = room();
        }
        let (is_watched, is_before_watched) = (AtomicBool::new(false), AtomicBool::new(false));
        let its_end = async {
            match before {
                Some(path) => self.is_gone(path, &is_before_watched).await,
                None => std::future::pending().await,
            }
        };
        let gone = tokio::select! {
            // The own end comes first, if both have come.
            biased;
            () = self.ended() => return Ok(Gone::Own),
            gone = self.is_gone(own, &is_watched) => gone.map(|_| Gone::Own),
            // The own end may have come before, if nobody watched.
            gone = its_end => gone.map(|moment| match moment {
                Some(moment) if is_watched.load(Ordering::Acquire) => Gone::Before(moment),
                _ => Gone::Unsure,
            }),
        };
        match gone {
            Err(_) if self.has_ended() => Ok(Gone::Own),
            gone => gone,
        }
    }

    /// Waits until a node is gone. Returns the revision that deleted it, if the server tells.
    async fn is_gone(&self, path: &str, is_watched: &AtomicBool) -> Result<Option<u64>, StoreError> {
        loop {
            let Some(watcher) = self.watch(path).await? else { return Ok(None) };
            is_watched.store(true, Ordering::Release);
            let event = watcher.changed().await;
            is_watched.store(false, Ordering::Release);
            match event.event_type {
                EventType::NodeDeleted => {
                    return Ok(u64::try_from(event.zxid).ok().filter(|revision| *revision > 0));
                }
                EventType::Session => return Err(self.over()),
                // Its data has changed. Curator asks a holder in this way to let go; it need not.
                _ => {}
            }
        }
    }

    /// Watches a node; `None` if it is not there.
    async fn watch(&self, path: &str) -> Result<Option<OneshotWatcher>, StoreError> {
        match self.client().await?.get_and_watch_data(path).await {
            Ok((_, _, watcher)) => Ok(Some(watcher)),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(self.failed(&error, of_read)),
        }
    }

    /// Lists the queue of a lock, with what is known of the entries that hold it. `None` if none of
    /// these is there any more, and so others hold it.
    pub(crate) async fn listed(&self, lock: &str) -> Result<Option<(u64, Vec<Listed>)>, StoreError> {
        let (moment, queue) = self.queue(lock).await?;
        let queue = queue.into_order();
        let readers = queue.iter().take_while(|(named, _)| named.class == Class::Read).count();
        let (holders, waiters) = queue.split_at(readers.max(1).min(queue.len()));
        let mut all = Vec::with_capacity(queue.len());
        for holders in holders.chunks(AT_ONCE) {
            let found = try_join_all(holders.iter().map(|(named, name)| self.holder(lock, *named, name)));
            // Readers that have ended since the list was made are left out.
            all.extend(found.await?.into_iter().flatten());
        }
        if all.is_empty() && !holders.is_empty() {
            return Ok(None);
        }
        all.extend(waiters.iter().map(|(named, name)| Listed {
            name: Arc::from(format!("{lock}/{name}").into_bytes()),
            born: 0,
            class: named.class,
            owner: OwnerId::new(name.as_str()),
            session: Session(0),
        }));
        Ok(Some((moment, all)))
    }

    /// Looks up an entry that holds a lock; `None` if it is not there.
    async fn holder(&self, lock: &str, named: Named, name: &str) -> Result<Option<Listed>, StoreError> {
        let (path, class) = (format!("{lock}/{name}"), named.class);
        let (data, stat) = match self.client().await?.get_data(&path).await {
            Ok(found) => found,
            Err(Error::NoNode) => return Ok(None),
            Err(error) => return Err(self.failed(&error, of_read)),
        };
        let (born, session) = (revision(stat.czxid), Session(stat.ephemeral_owner));
        let owner = owner(&data, name, class, lock, session);
        Ok(Some(Listed { name: Arc::from(path.into_bytes()), born, class, owner, session }))
    }

    /// Lists locks whose names begin with a prefix.
    pub(crate) async fn scan(&self, prefix: &str, after: Option<Cursor>) -> Result<Page, StoreError> {
        let root = &self.root;
        let mut names = self.children(names::directory(root)).await?.unwrap_or_default().0;
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
            self.scan_below(format!("{root}{name}"), &mut page.locks).await?;
        }
        page.locks.retain(|(lock, _)| lock.starts_with(prefix));
        Ok(page)
    }

    /// Lists the locks in a directory, and in those below.
    async fn scan_below(
        &self,
        directory: String,
        found: &mut Vec<(String, Vec<Listed>)>,
    ) -> Result<(), StoreError> {
        let mut below = vec![(directory, 1)];
        while let Some((directory, depth)) = below.pop() {
            let names = match self.children(&directory).await {
                Ok(found) => found.unwrap_or_default().0,
                // It is not for this user.
                Err(error) if error.kind() == StoreErrorKind::Denied => continue,
                Err(error) => return Err(error),
            };
            if names.iter().any(|name| names::is_entry(name)) {
                match self.listed(&directory).await {
                    Ok(Some((_, queue))) => found.push((directory, queue)),
                    Ok(None) => below.push((directory, depth)),
                    // It is no lock, or a lock that nobody can use.
                    Err(error) if error.kind() == StoreErrorKind::ForeignData => {}
                    Err(error) => return Err(error),
                }
            } else if depth < DEPTH {
                let others = names.iter().filter(|name| !names::is_part_of_semaphore(&names, name));
                below.extend(others.map(|name| (format!("{directory}/{name}"), depth + 1)));
            }
        }
        Ok(())
    }
}

/// Returns the owner of an entry. For a foreign one, that is its own name.
fn owner(data: &[u8], name: &str, class: Class, lock: &str, session: Session) -> OwnerId {
    let owner = OwnerId::new(String::from_utf8_lossy(data));
    let entry = Entry { lock: Arc::from(lock), class, owner: owner.clone() };
    if name.starts_with(&names::tag(&entry, session)) { owner } else { OwnerId::new(name) }
}
