//! Tests particular to the memory store; those common to all stores are in the conformance suite.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::store::{
    AcquireRequest, Acquired, Few, Item, Kind, ListenerPolicy, Notice, ReleaseRequest, Rivals,
    StoreErrorKind, Takeover, WAITER_LIFE,
};
use lock_core::{LockKey, OwnerId, TokenRetention};

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const RETENTION: TokenRetention = TokenRetention::For(SECOND);

fn request(keys: &[&str], owner: &str) -> Arc<AcquireRequest> {
    let items = keys.iter().map(|key| Item {
        key: LockKey::new(key).unwrap(),
        kind: Kind::Mutex,
        owner: OwnerId::new(owner),
    });
    Arc::new(AcquireRequest::new(items.collect::<Few<_>>(), SECOND, SECOND).retention(RETENTION))
}

fn giving_back(keys: &[&str], owner: &str, next: Option<Arc<AcquireRequest>>) -> Arc<ReleaseRequest> {
    let items = request(keys, owner).items.clone();
    let then = next.map(|request| Takeover { request, listeners: ListenerPolicy::Respect });
    Arc::new(ReleaseRequest { items, linger: Duration::ZERO, then, own_watch: None, timeout: SECOND })
}

fn sizes(store: &MemoryStore) -> (usize, usize, usize) {
    store.records.store().table().sizes()
}

async fn granted(store: &MemoryStore, keys: &[&str], owner: &str) -> bool {
    matches!(store.acquire(request(keys, owner)).await.unwrap(), Acquired::Granted(_))
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_for_keys_that_are_long_gone() {
    let store = MemoryStore::new("");
    for i in 0..5_000 {
        assert!(granted(&store, &[&format!("key-{i}")], "a").await);
    }
    assert_eq!(sizes(&store).0, 5_000);
    tokio::time::advance(Duration::from_secs(61)).await;
    for _ in 0..5_000 {
        store.check().await.unwrap();
        store.status(LockKey::new("other").unwrap()).await.unwrap();
    }
    assert_eq!(sizes(&store), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn purging_keeps_up_with_a_stream_of_new_keys() {
    let store = MemoryStore::new("");
    for i in 0..20_000 {
        let key = format!("key-{i}");
        assert!(granted(&store, &[&key, &format!("{key}/b")], "a").await);
        tokio::time::advance(Duration::from_millis(10)).await;
        // Lease and retention are 1 s each: the keys of about 200 requests are alive.
        assert!(sizes(&store).0 <= 500, "{:?}", sizes(&store));
        assert!(sizes(&store).1 <= 500, "{:?}", sizes(&store));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hot_key_takes_no_more_room_than_a_cold_one() {
    let store = MemoryStore::new("");
    for _ in 0..1_000 {
        assert!(granted(&store, &["a"], "a").await);
        tokio::time::advance(Duration::from_millis(700)).await;
    }
    assert_eq!(sizes(&store), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_kept_counter_outlives_its_key() {
    let store = MemoryStore::new("");
    let request = wish(Kind::Mutex, "a", "a").retention(TokenRetention::Keep);
    store.acquire(Arc::new(request)).await.unwrap();
    tokio::time::advance(Duration::from_secs(1_000_000)).await;
    let status = store.status(LockKey::new("a").unwrap()).await.unwrap();
    assert!(!status.is_locked());
    assert!(status.last_token.is_some());
    assert_eq!(sizes(&store), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_watch_leaves_nothing() {
    let store = MemoryStore::new("");
    let watch = store.watch(request(&["a", "b"], "a")).await.unwrap();
    assert_eq!(sizes(&store), (0, 0, 2));
    drop(watch);
    assert_eq!(sizes(&store), (0, 0, 0));

    let watch = store.watch(request(&["a"], "a")).await.unwrap();
    assert!(granted(&store, &["a"], "a").await);
    drop(watch);
    assert_eq!(sizes(&store), (1, 1, 0));
    tokio::time::advance(Duration::from_secs(61)).await;
    store.status(LockKey::new("b").unwrap()).await.unwrap();
    assert_eq!(sizes(&store), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_drops_notices_and_nothing_else() {
    let store = MemoryStore::new("");
    let mut watch = store.watch(request(&["a"], "w")).await.unwrap();
    for _ in 0..100 {
        assert!(granted(&store, &["a"], "a").await);
        assert!(store.force_release(LockKey::new("a").unwrap()).await.unwrap());
    }
    let mut heard = 0;
    while watch.try_notice() == Some(Notice::Retry) {
        heard += 1;
    }
    assert!((1..100).contains(&heard), "{heard}");
}

#[tokio::test(start_paused = true)]
async fn a_request_executed_after_its_time_takes_nothing() {
    let store = MemoryStore::new("");
    let request = request(&["a", "b"], "a");
    let latest = request.stamp(store.records.store().now());
    tokio::time::advance(SECOND).await;
    assert!(
        store.records.acquire_by(Arc::clone(&request), latest).await.is_ok(),
        "the last microsecond is still in time"
    );
    store.withdraw(Arc::clone(&request)).await.unwrap();
    tokio::time::advance(Duration::from_millis(1)).await;
    let error = store.records.acquire_by(request, latest).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TooLate);
    assert!(!store.status(LockKey::new("a").unwrap()).await.unwrap().is_locked());
}

fn wish(kind: Kind, key: &str, owner: &str) -> AcquireRequest {
    let item = Item { key: LockKey::new(key).unwrap(), kind, owner: OwnerId::new(owner) };
    AcquireRequest::new(vec![item], SECOND, SECOND).retention(RETENTION)
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_waiters_that_vanish() {
    let store = MemoryStore::new("");
    for i in 0..2_000 {
        for kind in [Kind::Fair, Kind::Read, Kind::Write] {
            let key = format!("key-{kind:?}-{i}");
            store.acquire(Arc::new(wish(kind, &key, "a"))).await.unwrap();
            store.acquire(Arc::new(wish(kind, &key, "b").queued(SECOND))).await.unwrap();
        }
    }
    assert_eq!(sizes(&store).0, 6_000);
    tokio::time::advance(WAITER_LIFE + SECOND).await;
    for _ in 0..6_000 {
        store.status(LockKey::new("other").unwrap()).await.unwrap();
    }
    assert_eq!(sizes(&store), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_hot_key_keeps_nothing_of_waiters_and_readers_that_vanish() {
    let store = MemoryStore::new("");
    for i in 0..1_000 {
        let fair = wish(Kind::Fair, "fair", &format!("owner:{i}")).queued(SECOND);
        store.acquire(Arc::new(fair)).await.unwrap();
        let read = wish(Kind::Read, "read", &format!("owner:{i}"));
        store.acquire(Arc::new(read)).await.unwrap();
        tokio::time::advance(Duration::from_millis(100)).await;
        let waiters = store.status(LockKey::new("fair").unwrap()).await.unwrap().waiters;
        let readers = store.status(LockKey::new("read").unwrap()).await.unwrap().holders.len();
        assert!(waiters <= 31 && readers <= 11, "{waiters} {readers}");
    }
}

/// The calendar can't determine who is next, so it removes no waiter as long as one behind it is
/// alive.
#[tokio::test(start_paused = true)]
async fn purging_loses_nobodys_turn() {
    let store = MemoryStore::new("");
    store.acquire(Arc::new(wish(Kind::Fair, "a", "holder"))).await.unwrap();
    store.acquire(Arc::new(wish(Kind::Fair, "a", "dead").queued(SECOND))).await.unwrap();
    tokio::time::advance(WAITER_LIFE / 2).await;
    let alive = Arc::new(wish(Kind::Fair, "a", "alive").queued(SECOND));
    store.acquire(Arc::clone(&alive)).await.unwrap();
    let mut watch = store.watch(alive).await.unwrap();
    tokio::time::advance(WAITER_LIFE * 2 / 3).await;
    for _ in 0..10 {
        store.status(LockKey::new("other").unwrap()).await.unwrap();
    }
    assert_eq!(watch.try_notice(), None);
    store.acquire(Arc::new(wish(Kind::Fair, "a", "newcomer"))).await.unwrap();
    assert_eq!(watch.try_notice(), Some(Notice::Retry));
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_heard_through_a_full_queue() {
    let store = MemoryStore::new("");
    let waiter = Arc::new(wish(Kind::Fair, "a", "waiter").queued(SECOND));
    let holder = wish(Kind::Fair, "a", "holder");
    let linger = ReleaseRequest { linger: SECOND, ..(*giving_back(&["a"], "holder", None)).clone() };
    store.acquire(Arc::new(holder)).await.unwrap();
    store.acquire(Arc::clone(&waiter)).await.unwrap();
    let mut watch = store.watch(waiter).await.unwrap();
    for _ in 0..100 {
        store.release(Arc::new(linger.clone())).await.unwrap();
    }
    store.release(giving_back(&["a"], "holder", None)).await.unwrap();
    let heard: Vec<_> = std::iter::from_fn(|| watch.try_notice()).collect();
    assert!(matches!(heard[..], [Notice::Retry, .., Notice::Granted { .. }]), "{heard:?}");
}

/// Nor to one that is just being dropped: its receiving part is dropped first.
#[tokio::test(start_paused = true)]
async fn nothing_is_granted_to_a_watch_that_was_dropped() {
    let store = MemoryStore::new("");
    for key in ["dropped", "half dropped"] {
        let waiter = Arc::new(wish(Kind::Fair, key, "waiter").queued(SECOND));
        store.acquire(Arc::new(wish(Kind::Fair, key, "holder"))).await.unwrap();
        store.acquire(Arc::clone(&waiter)).await.unwrap();
        let (notices, registration) = store.watch(waiter).await.unwrap().into_parts();
        drop(notices);
        let registration = Some(registration).filter(|_| key != "dropped");
        store.release(giving_back(&[key], "holder", None)).await.unwrap();
        assert!(!store.status(LockKey::new(key).unwrap()).await.unwrap().is_locked(), "{key}");
        drop(registration);
    }
}

/// A direct grant can give only one token of any number.
#[tokio::test(start_paused = true)]
async fn a_waiter_with_a_floor_is_told_and_not_granted() {
    let store = MemoryStore::new("");
    let waiter = Arc::new(wish(Kind::Fair, "a", "waiter").queued(SECOND).above(1 << 52));
    store.acquire(Arc::new(wish(Kind::Fair, "a", "holder"))).await.unwrap();
    store.acquire(Arc::clone(&waiter)).await.unwrap();
    let mut watch = store.watch(Arc::clone(&waiter)).await.unwrap();
    store.release(giving_back(&["a"], "holder", None)).await.unwrap();
    assert_eq!(watch.try_notice(), Some(Notice::Retry));
    let Acquired::Granted(granted) = store.acquire(waiter).await.unwrap() else { panic!("busy") };
    assert!(granted.tokens[0].first > 1 << 52);
}

#[tokio::test(start_paused = true)]
async fn kinds_that_wait_for_one_key_are_woken_by_each_other() {
    let store = MemoryStore::new("");
    let waiters = [Kind::Mutex, Kind::Read, Kind::Write];
    for held in [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write] {
        let holder = Arc::new(wish(held, "a", "holder"));
        store.acquire(Arc::clone(&holder)).await.unwrap();
        let mut watches = Vec::new();
        for kind in waiters {
            watches.push(store.watch(Arc::new(wish(kind, "a", "waiter"))).await.unwrap());
        }
        store.withdraw(holder).await.unwrap();
        for watch in &mut watches {
            assert_eq!(watch.try_notice(), Some(Notice::Retry), "{held:?}");
        }
    }
}

#[tokio::test]
async fn stores_of_one_name_are_one_store_and_go_with_their_last_handle() {
    let name = "stores_of_one_name";
    let one = MemoryStore::named(name, "");
    let two = MemoryStore::named(name, "");
    let stranger = MemoryStore::named("another name", "");
    assert!(granted(&one, &["a"], "a").await);
    assert!(!granted(&two, &["a"], "b").await);
    assert!(granted(&stranger, &["a"], "b").await);
    let watch = two.watch(request(&["a"], "b")).await.unwrap();
    drop((one, two));
    let again = MemoryStore::named(name, "");
    assert!(granted(&again, &["a"], "b").await);
    drop((watch, again));

    let _stranger = MemoryStore::named("another name", "");
    assert!(!NAMED.lock().unwrap().contains_key(name), "names of stores that are gone are forgotten");
}

#[tokio::test]
async fn the_prefix_belongs_to_the_handle_and_not_to_the_store() {
    let name = "the_prefix_belongs_to_the_handle";
    let plain = MemoryStore::named(name, "");
    let prefixed = MemoryStore::named(name, "p:");
    assert!(granted(&prefixed, &["a"], "a").await);
    assert!(granted(&plain, &["a"], "b").await);
    assert!(!granted(&plain, &["p:a"], "b").await);
}

#[tokio::test]
async fn requests_without_keys_or_with_a_key_twice_are_refused() {
    let store = MemoryStore::new("");
    for keys in [&[][..], &["a", "a"], &["a", "b", "a"]] {
        let error = store.acquire(request(keys, "a")).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused);
    }
    assert_eq!(sizes(&store), (0, 0, 0));
}

#[test]
fn a_store_is_made_and_used_outside_a_runtime() {
    let store = MemoryStore::new("");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(granted(&store, &["a"], "a")));
    assert!(!runtime.block_on(granted(&store, &["a"], "b")));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_watch_is_no_listener() {
    let one = MemoryStore::named("no_listener", "");
    let two = MemoryStore::named("no_listener", "");
    let mut watch = Some(two.watch(request(&["a"], "b")).await.unwrap());
    for rivals in [Rivals::Some, Rivals::None] {
        assert!(granted(&one, &["a"], "a").await);
        let released = one.release(giving_back(&["a"], "a", None)).await.unwrap();
        assert_eq!(released.rivals, rivals);
        watch.take();
    }
}

#[tokio::test(start_paused = true)]
async fn what_expires_while_somebody_watches_is_purged_later_too() {
    let store = MemoryStore::new("");
    let watch = store.watch(request(&["a"], "w")).await.unwrap();
    for _ in 0..3 {
        assert!(granted(&store, &["a"], "a").await);
        tokio::time::advance(2 * SECOND).await;
        store.status(LockKey::new("other").unwrap()).await.unwrap();
        assert_eq!(sizes(&store), (0, 0, 1));
    }
    assert!(granted(&store, &["a"], "a").await);
    drop(watch);
    tokio::time::advance(2 * SECOND).await;
    store.status(LockKey::new("other").unwrap()).await.unwrap();
    assert_eq!(sizes(&store), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_two_keys_is_told_and_counted_once() {
    let shared = Memory::new();
    let one = MemoryStore::on(Arc::clone(&shared), "");
    let two = MemoryStore::on(shared, "");
    let mut watch = two.watch(request(&["a", "b"], "w")).await.unwrap();
    assert!(granted(&one, &["a", "b"], "a").await);
    let released = one.release(giving_back(&["a", "b"], "a", None)).await.unwrap();
    assert_eq!(released.rivals, Rivals::Some);
    assert_eq!(watch.try_notice(), Some(Notice::Retry));
    assert_eq!(watch.try_notice(), None);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_woken_for_a_key_that_was_taken_over() {
    let store = MemoryStore::new("");
    let mut watch = store.watch(request(&["a"], "w")).await.unwrap();
    assert!(granted(&store, &["a"], "a").await);
    let request = giving_back(&["a"], "a", Some(request(&["a"], "b")));
    let request = ReleaseRequest { own_watch: Some(watch.echo()), ..(*request).clone() };
    let released = store.release(Arc::new(request)).await.unwrap();
    assert!(released.then.is_some() && !watch.echo().is_expected());
    assert_eq!(watch.try_notice(), None);
}

#[tokio::test(start_paused = true)]
async fn a_takeover_that_fails_is_no_error_of_the_release() {
    let store = MemoryStore::new("");
    let mut watch = store.watch(request(&["a"], "w")).await.unwrap();

    let items = request(&["a"], "b").items.clone();
    let impossible = AcquireRequest::new(items, SECOND, SECOND).above(u64::MAX);
    assert!(granted(&store, &["a"], "a").await);
    let released = store.release(giving_back(&["a"], "a", Some(Arc::new(impossible)))).await.unwrap();
    assert_eq!((released.held, released.then), (vec![true].into(), None));
    assert_eq!(watch.try_notice(), Some(Notice::Retry));

    // A late takeover is no error either.
    let late = request(&["a"], "b");
    let latest = late.stamp(store.records.store().now());
    assert!(granted(&store, &["a"], "a").await);
    tokio::time::advance(SECOND / 2).await;
    assert!(granted(&store, &["a"], "a").await);
    tokio::time::advance(SECOND * 3 / 4).await;
    let request = giving_back(&["a"], "a", Some(late));
    let request = ReleaseRequest { own_watch: Some(watch.echo()), ..(*request).clone() };
    let released = store.records.release_by(Arc::new(request), Some(latest)).await.unwrap();
    assert_eq!((released.held, released.then), (vec![true].into(), None));
    assert!(watch.echo().is_expected());
    assert!(!store.status(LockKey::new("a").unwrap()).await.unwrap().is_locked());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn holders_on_many_threads_never_overlap() {
    let store = MemoryStore::new("");
    let inside = Arc::new(AtomicU64::new(0));
    let last_token = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8 {
        let (store, inside, last_token) = (Arc::clone(&store), Arc::clone(&inside), Arc::clone(&last_token));
        tasks.spawn(async move {
            let mut grants = 0;
            while grants < 200 {
                let name = format!("{task}:{grants}");
                let wish = AcquireRequest::new(request(&["a"], &name).items.clone(), 60 * SECOND, SECOND);
                match store.acquire(Arc::new(wish)).await.unwrap() {
                    Acquired::Granted(granted) => {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        let token = granted.tokens[0].first;
                        assert!(last_token.swap(token, Ordering::SeqCst) < token);
                        tokio::task::yield_now().await;
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                        store.release(giving_back(&["a"], &name, None)).await.unwrap();
                        grants += 1;
                    }
                    Acquired::Busy(_) => tokio::task::yield_now().await,
                }
            }
        });
    }
    tasks.join_all().await;
}

mod conformance {
    use super::*;
    use lock_store_conformance::{Subject, conformance};

    async fn subject() -> Subject {
        let shared = Memory::new();
        let store = MemoryStore::on(Arc::clone(&shared), "p:");
        let other = MemoryStore::on(shared, "p:");
        let late = store.records.clone();
        Subject::new(store, other).late_through(Box::new(move |request| {
            let records = late.clone();
            Box::pin(async move {
                let latest = request.stamp(records.store().now());
                tokio::time::sleep(request.timeout + Duration::from_millis(1)).await;
                records.acquire_by(request, latest).await
            })
        }))
    }

    conformance!(subject, start_paused = true);
}
