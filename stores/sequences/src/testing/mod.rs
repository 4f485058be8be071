//! Tests of a store on [`Sequences`](crate::Sequences) with a real server, and what they share.
#![allow(clippy::missing_panics_doc, clippy::missing_errors_doc, clippy::unwrap_used)]
#![allow(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod queues;

pub use std::sync::Arc;
pub use std::time::Duration;

pub use lock_core::store::{
    AcquireRequest, Acquired, Granted, Item, Kind, LockStore, Notice, ReleaseRequest, RenewItem,
    RenewRequest, Renewed, StoreError, Watch,
};
pub use lock_core::{LockKey, OwnerId};

pub use self::queues::*;
use crate::{OrderedStore, Sequences};

/// A second.
pub const SECOND: Duration = Duration::from_secs(1);

/// Time for something that takes none, on a busy machine.
pub const SLACK: Duration = Duration::from_secs(30);

/// Makes an item of an owner with this number.
pub fn item(kind: Kind, key: &str, owner: u32) -> Item {
    Item { key: LockKey::new(key).unwrap(), kind, owner: OwnerId::new(format!("tester:{owner}")) }
}

/// Makes a request that waits.
pub fn waiting(kind: Kind, key: &str, owner: u32) -> Arc<AcquireRequest> {
    Arc::new(AcquireRequest::new([item(kind, key, owner)], 60 * SECOND, SLACK).queued(60 * SECOND))
}

/// Makes a request that does not wait.
pub fn trying(kind: Kind, key: &str, owner: u32, lease: Duration) -> Arc<AcquireRequest> {
    Arc::new(AcquireRequest::new([item(kind, key, owner)], lease, SLACK))
}

/// Sends a request; `None` if the key is busy.
pub async fn ask(
    store: &Sequences<impl OrderedStore>,
    request: &Arc<AcquireRequest>,
) -> Result<Option<Granted>, StoreError> {
    Ok(match store.acquire(Arc::clone(request)).await? {
        Acquired::Granted(granted) => Some(granted),
        Acquired::Busy(_) => None,
    })
}

/// Sends a request, and returns whether it was granted.
pub async fn granted(store: &Sequences<impl OrderedStore>, request: &Arc<AcquireRequest>) -> bool {
    ask(store, request).await.unwrap().is_some()
}

/// Sends a request, and drops it in flight, which leaves its outcome open.
pub async fn drop_in_flight(store: &Sequences<impl OrderedStore>, request: &Arc<AcquireRequest>) {
    tokio::select! {
        biased;
        answer = store.acquire(Arc::clone(request)) => drop(answer),
        () = tokio::task::yield_now() => {}
    }
}

/// Queues behind others and listens.
pub async fn queue(store: &Sequences<impl OrderedStore>, request: &Arc<AcquireRequest>) -> Watch {
    let watch = store.watch(Arc::clone(request)).await.unwrap();
    assert!(!granted(store, request).await);
    watch
}

/// Waits for a grant by a notice, and returns its token.
pub async fn hears_grant(watch: &mut Watch) -> u64 {
    match tokio::time::timeout(SLACK, watch.notice()).await.expect("nothing was heard") {
        Notice::Granted { token, .. } => token.get(),
        notice => panic!("{notice:?}"),
    }
}

/// Releases the items of a request. Returns whether all were held.
pub async fn release(store: &Sequences<impl OrderedStore>, request: &AcquireRequest) -> bool {
    let items = request.items.clone();
    let request =
        ReleaseRequest { items, linger: Duration::ZERO, then: None, own_watch: None, timeout: SLACK };
    store.release(Arc::new(request)).await.unwrap().held.iter().all(|held| *held)
}

/// Renews the holds of a request.
pub async fn renew(
    store: &Sequences<impl OrderedStore>,
    request: &AcquireRequest,
    lease: Duration,
) -> Vec<Renewed> {
    let items = request.items.iter().map(|item| RenewItem::hold(item.clone(), lease)).collect();
    store.renew(Arc::new(RenewRequest { items, timeout: SLACK })).await.unwrap()
}

/// Waits for a notice of any kind.
pub async fn hears(watch: &mut Watch) {
    tokio::time::timeout(SLACK, watch.notice()).await.expect("nothing was heard");
}

/// Renews holds and gives them back, by releases and by withdrawals.
pub async fn give_back_renewed_holds(store: &Sequences<impl OrderedStore>) {
    for round in 0..20 {
        let hold = trying(Kind::Mutex, "k", round, 60 * SECOND);
        assert!(granted(store, &hold).await);
        assert_eq!(renew(store, &hold, 60 * SECOND).await, [Renewed::Held]);
        if round % 2 == 0 {
            assert!(release(store, &hold).await);
        } else {
            store.withdraw(hold).await.unwrap();
        }
    }
}

/// Makes a test of each of the shared ones. `$new_store` makes a handle whose names no other test
/// has.
#[macro_export]
macro_rules! test_queues {
    ($new_store:expr) => {
        $crate::test_queues!($new_store;
            a_writer_waits_for_readers_and_later_readers_wait_for_the_writer
            readers_behind_a_writer_are_let_in_together
            a_forced_release_of_readers_lets_the_writer_in
            a_mutex_excludes_readers_and_writers_in_both_orders
            a_hold_that_ends_by_itself_passes_the_lock_on
            a_waiter_in_front_that_gives_up_lets_nobody_in_early
            a_request_for_several_locks_is_told_when_it_is_first_in_all_queues
            fair_locks_of_one_request_are_all_queued_for
            readers_of_several_locks_get_tokens_of_their_own
            only_mutexes_that_are_free_are_left_out
            two_requests_for_the_same_locks_never_wait_for_each_other
            a_contender_that_asks_again_is_one_entry
        );
    };
    ($new_store:expr; $($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                $crate::testing::$name(&*$new_store()).await;
            }
        )*
    };
}
