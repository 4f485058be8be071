//! Watches the entries before an own one until the own one is the first, and holds until they end.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::internal::sync::lock;
use lock_core::store::kit::{Backoff, bounded};
use lock_core::store::{Notice, StoreError};

use crate::entries::{Own, State, tell};
use crate::locks::Inner;
use crate::store::{Before, Entry, Gone, OrderedStore, Session};

/// Waits until nothing is before the entry, and tells its listeners. A look takes `limit` at most.
pub(crate) async fn follow<S: OrderedStore>(
    locks: Weak<Inner<S>>,
    store: Arc<S>,
    session: Session,
    entry: Entry,
    born: u64,
    mut before: Before,
    limit: Duration,
) {
    let mut backoff = Backoff::default();
    let first_at = loop {
        match store.gone(session, entry.clone(), born, Some(before.clone())).await {
            Ok(Gone::Before(moment)) if before.is_only => break moment,
            Ok(_) => {}
            Err(error) => failed(&locks, &entry, &error, &mut backoff).await,
        }
        let places = store.places(session, vec![(entry.clone(), born)]);
        match bounded(limit, places).await {
            Ok((moment, places)) => match places.into_iter().next().flatten() {
                Some(place) => match place.before {
                    Some(next) => before = next,
                    None => break moment,
                },
                None => return lost(&locks, &entry, born),
            },
            Err(error) => failed(&locks, &entry, &error, &mut backoff).await,
        }
    };
    if let Some(locks) = locks.upgrade() {
        locks.is_first(&entry, born, first_at);
    }
}

/// Waits until the entry of a hold is gone, and says so.
pub(crate) async fn guard<S: OrderedStore>(
    locks: Weak<Inner<S>>,
    store: Arc<S>,
    session: Session,
    entry: Entry,
    born: u64,
) {
    // If it is interrupted, the next renewal looks, and begins anew.
    if !matches!(store.gone(session, entry.clone(), born, None).await, Ok(Gone::Own)) {
        return;
    }
    let Some(locks) = locks.upgrade() else { return };
    let is_held = |own: &Own| own.born == born && own.state == State::Holds;
    if lock(&locks.entries).get(&entry).is_some_and(is_held) {
        locks.lost.add([&entry], &locks.settings.prefix);
    }
}

/// Pauses after an error. If it stays, such as a right that is missing, the listeners ask again,
/// and get it.
async fn failed<S: OrderedStore>(
    locks: &Weak<Inner<S>>,
    entry: &Entry,
    error: &StoreError,
    backoff: &mut Backoff,
) {
    if let Some(locks) = locks.upgrade().filter(|_| !error.is_transient()) {
        let ears = lock(&locks.entries).ears(entry);
        tell(&ears, Notice::Retry);
    }
    tokio::time::sleep(backoff.next_pause()).await;
}

/// Records that the entry is gone. Its listeners ask again.
fn lost<S: OrderedStore>(locks: &Weak<Inner<S>>, entry: &Entry, born: u64) {
    let Some(locks) = locks.upgrade() else { return };
    let mut entries = lock(&locks.entries);
    let gone = match entries.get(entry) {
        Some(own) if own.born == born => entries.remove(entry),
        _ => return,
    };
    let ears = entries.ears(entry);
    drop(entries);
    drop(gone);
    tell(&ears, Notice::Retry);
}
