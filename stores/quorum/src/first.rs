//! The marker: whether a store remembers its grants, and the first use of new stores.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::sync::atomic::Ordering;
use lock_core::store::{
    BoxFuture, LockStore, Mark, MarkRequest, Marked, ServerTime, StoreError, StoreErrorKind,
};

use super::calls::Quorum;

/// Returns for how much longer a store is not believed; `None` when it is believed.
pub(super) fn quarantine(marked: Marked, max_lease: Duration) -> Option<Duration> {
    let since = marked.since.unwrap_or(marked.server_time);
    if since == ServerTime::from_micros(0) {
        // It was marked when it was new.
        return None;
    }
    // Allows for clocks that run at different rates.
    let margin = max_lease / 100 + Duration::from_millis(2);
    let over = Duration::from_micros(since.as_micros()) + max_lease + margin;
    over.checked_sub(Duration::from_micros(marked.server_time.as_micros())).filter(|left| !left.is_zero())
}

/// Returns the reason why the store's vote does not count.
pub(super) fn distrust(left: Duration) -> StoreError {
    let message = format!(
        "this store has lost its marker or was restarted, so it may have forgotten locks; its vote counts again after \
         {left:?}, when their leases have ended"
    );
    StoreError::new(StoreErrorKind::NotReady, message)
}

/// Looks at the marker of the store, or makes it.
fn mark(store: &Arc<dyn LockStore>, request: MarkRequest) -> BoxFuture<Result<Marked, StoreError>> {
    let Some(member) = store.member() else {
        let refusal = no_member(&**store);
        return Box::pin(async { Err(refusal) });
    };
    member.mark(request)
}

/// Returns the error about a store that keeps no marker.
pub(super) fn no_member(store: &dyn LockStore) -> StoreError {
    let message = format!(
        "{store:?} can't be a server of a quorum: it keeps no marker that shows a loss of locks; use single servers"
    );
    StoreError::new(StoreErrorKind::Unsupported, message)
}

/// Checks that the store is believed; marks it if it has no marker.
pub(super) async fn is_believed(
    store: &Arc<dyn LockStore>,
    max_lease: Duration,
    timeout: Duration,
) -> Result<(), StoreError> {
    let marked = mark(store, MarkRequest { mark: Mark::Make, timeout }).await?;
    quarantine(marked, max_lease).map_or(Ok(()), |left| Err(distrust(left)))
}

/// Marks all stores as new, if all of them answer and none has a marker. They are then believed at
/// once.
///
/// Stores that have all lost their data at the same moment look new, too. Before starting the first
/// program after that, an operator has to wait for the longest lease.
pub(super) async fn first_use(quorum: &Arc<Quorum>, limit: Duration) {
    if quorum.in_use.load(Ordering::Acquire) {
        return;
    }
    let look = MarkRequest { mark: Mark::Look, timeout: limit };
    let mut answers = quorum.ask(quorum.all(), limit, |_, store| mark(store, look));
    let (mut new, mut marked) = (Vec::new(), 0);
    while let Some((node, answer)) = answers.next().await {
        match answer {
            Ok(Marked { since: None, server_time }) => new.push((node, server_time)),
            Ok(_) => marked += 1,
            Err(_) => {}
        }
    }
    if marked > 0 {
        quorum.in_use.store(true, Ordering::Release);
    } else if new.len() == quorum.len() {
        let limit_micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        let mut answers = quorum.ask(quorum.all(), limit, |node, store| {
            let looked = new.iter().find(|(of, _)| *of == node).map_or(0, |(_, time)| time.as_micros());
            let latest = ServerTime::from_micros(looked.saturating_add(limit_micros));
            mark(store, MarkRequest { mark: Mark::First { latest }, timeout: limit })
        });
        while answers.next().await.is_some() {}
        quorum.in_use.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn marked(since: Option<u64>, now: u64) -> Marked {
        let since = since.map(|seconds| ServerTime::from_micros(seconds * 1_000_000));
        Marked { since, server_time: ServerTime::from_micros(now * 1_000_000) }
    }

    #[test]
    fn a_store_is_believed_when_the_longest_lease_is_over() {
        assert_eq!(quarantine(marked(Some(0), 1), MINUTE), None);
        assert!(quarantine(marked(None, 1000), MINUTE).is_some_and(|left| left > MINUTE));
        assert!(quarantine(marked(Some(1000), 1000), MINUTE).is_some_and(|left| left > MINUTE));
        assert!(quarantine(marked(Some(1000), 1060), MINUTE).is_some(), "clocks differ a little");
        assert_eq!(quarantine(marked(Some(1000), 1061), MINUTE), None);
        // A clock that was set back; making the marker anew repairs that.
        assert!(quarantine(marked(Some(1000), 10), MINUTE).is_some_and(|left| left > MINUTE));
    }
}
