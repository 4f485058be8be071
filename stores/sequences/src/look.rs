//! Answers to operators: who holds a lock.

use std::collections::HashMap;
use std::sync::Arc;

use lock_core::LockKey;
use lock_core::internal::sync::lock;
use lock_core::store::{Kind, LockStatus, ScanRequest, Scanned, StoreError};

use crate::locks::Inner;
use crate::store::{Class, Entry, Life, Listed, OrderedStore, Page, Session};

impl<S: OrderedStore> Inner<S> {
    pub(crate) async fn status(&self, key: &LockKey) -> Result<LockStatus, StoreError> {
        let name = key.prefixed(&self.settings.prefix);
        let (_, queue) = self.store.list(&name).await?;
        self.status_of(&name, &queue, &mut HashMap::new()).await
    }

    /// Returns the status of a lock. Looks up each session once.
    async fn status_of(
        &self,
        name: &Arc<str>,
        queue: &[Listed],
        sessions: &mut HashMap<Session, Life>,
    ) -> Result<LockStatus, StoreError> {
        let (holders, waiters) = holders(queue);
        let now = self.clock.now();
        let (mut found, mut last) = (Vec::new(), None);
        for holder in holders {
            let entry = Entry { lock: Arc::clone(name), class: holder.class, owner: holder.owner.clone() };
            let known = {
                let own = lock(&self.entries);
                own.get(&entry).filter(|own| own.born == holder.born).map(|own| own.until.since(now))
            };
            let life = match (known, sessions.get(&holder.session)) {
                (Some(remaining), _) => Life::For(remaining),
                (None, Some(life)) => *life,
                (None, None) => {
                    let life = self.store.remaining(holder.session).await?;
                    *sessions.entry(holder.session).or_insert(life)
                }
            };
            match life {
                Life::For(remaining) => last = last.max(Some(remaining)),
                Life::Unknown => {}
                // It has ended since the list was made.
                Life::Ended => continue,
            }
            found.push((holder.owner.clone(), 1));
        }
        let kind = match holders.first().map(|holder| holder.class) {
            _ if found.is_empty() => return Ok(LockStatus::free()),
            Some(Class::Read) => Kind::Read,
            Some(Class::Write) => Kind::Write,
            _ if waiters.is_empty() => Kind::Mutex,
            _ => Kind::Fair,
        };
        let mut status = LockStatus::free();
        (status.kind, status.holders, status.remaining) = (Some(kind), found, last);
        status.waiters = waiters.len() as u64;
        Ok(status)
    }

    pub(crate) async fn force_release(&self, key: &LockKey) -> Result<bool, StoreError> {
        let name = key.prefixed(&self.settings.prefix);
        let (_, queue) = self.store.list(&name).await?;
        let mut was_held = false;
        for holder in holders(&queue).0 {
            was_held |= self.store.remove(holder).await?;
        }
        Ok(was_held)
    }

    pub(crate) async fn scan(&self, request: ScanRequest) -> Result<Scanned, StoreError> {
        let prefix = format!("{}{}", self.settings.prefix, request.prefix);
        let Page { locks, next } = self.store.scan(&prefix, request.cursor).await?;
        let (mut found, mut sessions) = (Vec::with_capacity(locks.len()), HashMap::new());
        for (name, queue) in locks {
            let Some(key) = name.strip_prefix(&self.settings.prefix) else { continue };
            // Names that are no keys are not of this library.
            let Ok(key) = LockKey::new(key) else { continue };
            let status = self.status_of(&Arc::from(name), &queue, &mut sessions).await?;
            if status.is_locked() {
                found.push((key, status));
            }
        }
        Ok(Scanned { locks: found, next })
    }
}

/// Splits a queue into those who hold the lock, and those who wait.
fn holders(queue: &[Listed]) -> (&[Listed], &[Listed]) {
    let readers = queue.iter().take_while(|entry| entry.class == Class::Read).count();
    queue.split_at(readers.max(1).min(queue.len()))
}
