//! [`ZooKeeper`]: the steps of an [`OrderedStore`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use lock_core::internal::clock::Clock;
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::{Abilities, Cursor, Kind, PermitCounts, Permits, StoreError, StoreErrorKind};
use lock_store_sequences::{
    Before, Class, Enter, Entered, Entry, Gone, Leave, Left, Life, Listed, OrderedStore, Page, Place, Session,
};

use crate::errors::{of_read, of_write};
use crate::link::{EPOCHS, Ensemble, Link, NUMBERED, revision};
use crate::names;
use crate::turn::Turn;
use crate::watched::MOST;

/// ZooKeeper in the role of an [`OrderedStore`].
pub struct ZooKeeper {
    ensemble: Arc<Ensemble>,
    abilities: Abilities,
    clock: Clock,
    link: Arc<Mutex<Option<Arc<Link>>>>,
    /// One session begins at a time.
    beginning: Arc<tokio::sync::Mutex<()>>,
}

impl ZooKeeper {
    pub(crate) fn new(ensemble: Ensemble, abilities: Abilities) -> Self {
        let (ensemble, link) = (Arc::new(ensemble), Arc::default());
        Self { ensemble, abilities, clock: Clock::Boot, link, beginning: Arc::default() }
    }

    fn current(&self) -> Option<Arc<Link>> {
        lock(&self.link).as_ref().filter(|link| !link.has_ended()).map(Arc::clone)
    }

    /// Returns the current session, and begins another one if it has ended. Never ends one: locks
    /// and permits share it.
    ///
    /// A session goes on to begin if the caller leaves. Its handshake may take longer than a call.
    async fn link(&self) -> Result<Arc<Link>, StoreError> {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let only = Arc::clone(&self.beginning).lock_owned().await;
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let (ensemble, current) = (Arc::clone(&self.ensemble), Arc::clone(&self.link));
        let begins = tokio::spawn(async move {
            let _only = only;
            let link = Link::begin(&ensemble).await?;
            let old = lock(&current).replace(Arc::clone(&link));
            drop(old);
            Ok(link)
        });
        match begins.await {
            Ok(begun) => begun,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => {
                let text = "the runtime of the manager is shutting down";
                Err(StoreError::new(StoreErrorKind::NotReady, text))
            }
        }
    }

    /// Returns this session; `None` if it has ended.
    fn of(&self, session: Session) -> Option<Arc<Link>> {
        self.current().filter(|link| link.id == session)
    }
}

impl OrderedStore for ZooKeeper {
    const EPOCHS: usize = EPOCHS;
    const TOKENS_OF_BIRTH: bool = true;
    const MOVES: bool = false;
    const LEASES: Option<&'static str> = Some(names::LEASES);

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
        // Heartbeats are awaited when a lease asks for them.
        let link = self.link().await?;
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
        match self.of(enter.session) {
            Some(link) => link.enter(&enter).await,
            None => Ok(Entered::Ended),
        }
    }

    async fn places(
        &self,
        session: Session,
        entries: Vec<(Entry, u64)>,
    ) -> Result<(u64, Vec<Option<Place>>), StoreError> {
        match self.of(session) {
            Some(link) => link.places(entries).await,
            None => Ok((0, vec![None; entries.len()])),
        }
    }

    async fn exist(&self, session: Session, entries: Vec<(Entry, u64)>) -> Result<Vec<bool>, StoreError> {
        let Some(link) = self.of(session) else { return Ok(vec![false; entries.len()]) };
        // A follower that is behind could still show what was deleted.
        match link.beat().await {
            Err(_) if link.has_ended() => return Ok(vec![false; entries.len()]),
            beat => beat?,
        }
        let link = &*link;
        if let [(first, _), ..] = &*entries
            && first.class == Class::Permit
        {
            return link.permits_exist(&entries).await;
        }
        let exist = entries.iter().map(|(entry, born)| async move {
            let Some(node) = link.names.node(entry, *born) else { return Ok(false) };
            for path in [Some(node.path), node.turned].into_iter().flatten() {
                if link.stat(&path).await?.is_some() {
                    return Ok(true);
                }
            }
            Ok(false)
        });
        try_join_all(exist).await
    }

    async fn downgrade(&self, entered: Session, entry: &Entry, born: u64) -> Result<Option<u64>, StoreError> {
        match self.of(entered) {
            Some(link) => link.downgrade(entry, born).await,
            None => Ok(None),
        }
    }

    async fn leave(&self, leave: Leave) -> Result<Left, StoreError> {
        let Leave { session, entries, epoch } = leave;
        let Some(link) = self.of(session) else { return Ok(Left::Ended) };
        let left = async {
            if let Some(epoch) = epoch
                && let Some(left) = link.end_epoch(epoch, entries.iter().map(|(entry, _)| entry)).await?
            {
                return Ok(left);
            }
            link.leave_at_once(&entries).await.map(Left::All)
        };
        match left.await {
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
        link.first_gone(&node.path, before_path.as_deref()).await
    }

    async fn list(&self, lock: &str) -> Result<(u64, Vec<Listed>), StoreError> {
        let link = self.link().await?;
        // As of now, and not as of when this server heard from its leader last.
        link.client().await?.sync("/").await.map_err(|error| link.failed(&error, of_read))?;
        loop {
            if let Some(listed) = link.listed(lock).await? {
                return Ok(listed);
            }
        }
    }

    async fn remaining(&self, _session: Session) -> Result<Life, StoreError> {
        Ok(Life::Unknown)
    }

    async fn remove(&self, entry: &Listed) -> Result<bool, StoreError> {
        // The name has a number that no other node of this directory had.
        self.link().await?.delete(&String::from_utf8_lossy(&entry.name)).await
    }

    async fn scan(&self, prefix: &str, after: Option<Cursor>) -> Result<Page, StoreError> {
        self.link().await?.scan(prefix, after).await
    }

    async fn permits(&self, leases: &str) -> Result<PermitCounts, StoreError> {
        let link = self.link().await?;
        link.client().await?.sync("/").await.map_err(|error| link.failed(&error, of_read))?;
        link.permit_counts(leases).await
    }

    async fn change(&self, leases: &str, permits: Permits) -> Result<bool, StoreError> {
        self.link().await?.change_permits(leases, permits).await
    }

    async fn hear(
        &self,
        leases: &str,
        hears: impl Fn(bool) + Send + Sync,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), StoreError> {
        let link = self.link().await?;
        let Some(_watches) = link.watched.add([leases, &names::permits(leases)], MOST) else {
            let text = "there are too many waiters to watch; this one asks again and again";
            return Err(StoreError::new(StoreErrorKind::NotReady, text));
        };
        let turn = Turn::new(&link, leases);
        let heard = tokio::select! {
            () = stop => Ok(()),
            () = link.ended() => Ok(()),
            heard = link.hear_of_permits(leases, hears, &turn) => heard,
        };
        turn.leave().await?;
        heard
    }

    async fn check(&self) -> Result<(), StoreError> {
        let link = self.link().await?;
        link.beat().await?;
        let path = format!("{}/check", names::sessions(&self.ensemble.root));
        let made = link.client().await?.create(&path, b"", &NUMBERED).await;
        let (stat, number) = made.map_err(|error| link.failed(&error, of_write))?;
        link.delete(&format!("{path}{number}")).await?;
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
