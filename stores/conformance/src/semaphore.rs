//! Permits of semaphores.

use lock_core::store::{
    PermitCounts, PermitId, Permits, PermitsAcquired, PermitsBusy, PermitsChange, PermitsHold,
    PermitsRelease, PermitsRenew, PermitsRequest, SemaphoreStore,
};

use super::*;

type Store = Arc<dyn SemaphoreStore>;

/// Returns two handles on the semaphores of a subject, which the caller has to keep alive.
fn both(subject: &Subject) -> (Store, Store) {
    (subject.store.semaphores().unwrap(), subject.other.semaphores().unwrap())
}

fn ids(numbers: impl IntoIterator<Item = u8>) -> Vec<PermitId> {
    numbers.into_iter().map(|number| PermitId::from_bytes([number; 16])).collect()
}

fn wish(name: &str, numbers: impl IntoIterator<Item = u8>, lease: Duration) -> Arc<PermitsRequest> {
    Arc::new(PermitsRequest::new(key(name), ids(numbers), lease, PATIENCE))
}

async fn take(store: &Store, name: &str, numbers: impl IntoIterator<Item = u8>) {
    let answer = store.acquire(wish(name, numbers, long())).await.unwrap();
    assert!(matches!(answer, PermitsAcquired::Granted(_)), "{answer:?}");
}

async fn refused(store: &Store, request: Arc<PermitsRequest>) -> PermitsBusy {
    match store.acquire(request).await.unwrap() {
        PermitsAcquired::Busy(busy) => busy,
        PermitsAcquired::Granted(time) => panic!("granted at {time:?}"),
    }
}

async fn give_back(store: &Store, name: &str, numbers: impl IntoIterator<Item = u8>) -> Vec<bool> {
    let request = PermitsRelease { key: key(name), ids: ids(numbers), timeout: PATIENCE };
    store.release(request).await.unwrap()
}

async fn change(store: &Store, name: &str, permits: Permits) -> bool {
    store.change(PermitsChange { key: key(name), permits, timeout: PATIENCE }).await.unwrap()
}

async fn counts(store: &Store, name: &str) -> (i64, u64) {
    let PermitCounts { available, acquired } = store.counts(key(name), PATIENCE).await.unwrap();
    (available, acquired)
}

fn hold(name: &str, numbers: impl IntoIterator<Item = u8>, lease: Duration) -> PermitsHold {
    PermitsHold { key: key(name), ids: ids(numbers), lease }
}

async fn renew(store: &Store, holds: Vec<PermitsHold>) -> Vec<Vec<bool>> {
    let kept = store.renew(PermitsRenew { holds, timeout: PATIENCE }).await.unwrap();
    kept.into_iter().map(Option::unwrap).collect()
}

async fn listen(store: &Store, name: &str) -> Watch {
    let watch = store.watch(key(name), PATIENCE).await.unwrap();
    assert!(watch.is_confirmed(), "notices are pushed, and the watch is not confirmed");
    watch
}

pub async fn a_semaphore_without_permits_has_none(subject: Subject) {
    let (store, _) = both(&subject);
    assert_eq!(counts(&store, "s").await, (0, 0));
    let busy = refused(&store, wish("s", [1], long())).await;
    assert_eq!((busy.available, busy.remaining), (0, None));
    assert_eq!(give_back(&store, "s", [1]).await, [false]);
    assert_eq!(counts(&store, "s").await, (0, 0));
}

pub async fn permits_are_taken_until_none_are_left(subject: Subject) {
    let (store, other) = both(&subject);
    assert!(change(&store, "s", Permits::TrySet(3)).await);
    take(&store, "s", [1]).await;
    take(&other, "s", [2, 3]).await;
    assert_eq!(counts(&store, "s").await, (0, 3));
    let busy = refused(&other, wish("s", [4], long())).await;
    assert_eq!(busy.available, 0);
    let remaining = busy.remaining.unwrap();
    assert!(is_left_of(remaining, long()), "{remaining:?}");
    assert_eq!(give_back(&store, "s", [1]).await, [true]);
    take(&other, "s", [4]).await;
}

pub async fn acquire_of_many_permits_is_all_or_nothing(subject: Subject) {
    let (store, _) = both(&subject);
    change(&store, "s", Permits::TrySet(3)).await;
    take(&store, "s", [1]).await;
    assert_eq!(refused(&store, wish("s", [2, 3, 4], long())).await.available, 2);
    assert_eq!(counts(&store, "s").await, (2, 1));
    take(&store, "s", [2, 3]).await;
}

pub async fn resent_acquire_of_permits_takes_no_more_and_never_shortens(subject: Subject) {
    let (store, _) = both(&subject);
    change(&store, "s", Permits::TrySet(2)).await;
    let request = wish("s", [1, 2], long());
    store.acquire(Arc::clone(&request)).await.unwrap();
    store.acquire(Arc::clone(&request)).await.unwrap();
    store.acquire(wish("s", [1, 2], short())).await.unwrap();
    rest(short_is_over()).await;
    assert_eq!(counts(&store, "s").await, (0, 2));
    // Even if the semaphore now has fewer permits in total.
    change(&store, "s", Permits::Set(0)).await;
    store.acquire(request).await.unwrap();
    assert_eq!(counts(&store, "s").await, (-2, 2));
}

pub async fn expired_permits_come_back_whoever_looks_first(subject: Subject) {
    let (store, other) = both(&subject);
    for name in ["by-acquire", "by-counts", "by-release", "by-keep", "by-change"] {
        change(&store, name, Permits::TrySet(2)).await;
        store.acquire(wish(name, [1], short())).await.unwrap();
        take(&store, name, [2]).await;
        let busy = refused(&other, wish(name, [3], long())).await;
        let is_soon = |remaining: Duration| !remaining.is_zero() && remaining <= short() + grain();
        // Of the permits of other sessions, a store does not know.
        let is_unknown = abilities(|store| store.late_requests == LateRequests::BySession);
        assert!(busy.remaining.map_or(is_unknown, is_soon), "{busy:?}");
    }
    rest(short_is_over()).await;
    take(&other, "by-acquire", [3]).await;
    assert_eq!(counts(&other, "by-counts").await, (1, 1));
    assert_eq!(give_back(&other, "by-release", [1, 2]).await, [false, true]);
    assert_eq!(counts(&other, "by-release").await, (2, 0));
    assert_eq!(renew(&other, vec![hold("by-keep", [1, 2], long())]).await, [[false, true]]);
    assert_eq!(counts(&other, "by-keep").await, (1, 1));
    change(&other, "by-change", Permits::Add(1)).await;
    assert_eq!(counts(&other, "by-change").await, (2, 1));
}

pub async fn waiting_as_long_as_a_busy_semaphore_says_is_enough(subject: Subject) {
    let (store, _) = both(&subject);
    change(&store, "s", Permits::TrySet(1)).await;
    store.acquire(wish("s", [1], short())).await.unwrap();
    let busy = refused(&store, wish("s", [2], long())).await;
    rest(busy.remaining.unwrap() + Duration::from_millis(1)).await;
    take(&store, "s", [2]).await;
}

pub async fn release_tells_which_permits_were_held_and_loses_none(subject: Subject) {
    let (store, _) = both(&subject);
    change(&store, "s", Permits::TrySet(3)).await;
    take(&store, "s", [1, 2, 3]).await;
    assert_eq!(give_back(&store, "s", [9, 1, 2]).await, [false, true, true]);
    assert_eq!(give_back(&store, "s", [1]).await, [false]);
    assert_eq!(counts(&store, "s").await, (2, 1));
}

pub async fn renew_treats_each_permit_on_its_own(subject: Subject) {
    let (store, _) = both(&subject);
    for name in ["a", "b"] {
        change(&store, name, Permits::TrySet(2)).await;
        store.acquire(wish(name, [1, 2], short())).await.unwrap();
    }
    let kept =
        renew(&store, vec![hold("a", [1, 9], long()), hold("none", [1], long()), hold("b", [2], long())])
            .await;
    assert_eq!(kept, [vec![true, false], vec![false], vec![true]]);
    rest(short_is_over()).await;
    assert_eq!(counts(&store, "a").await, (1, 1));
    assert_eq!(give_back(&store, "b", [1, 2]).await, [false, true]);
}

/// Keeps more permits than one request may acquire.
pub async fn many_permits_are_kept_together(subject: Subject) {
    let (store, _) = both(&subject);
    let ids = |from: u16| {
        let id = |number: u16| PermitId::from_bytes([number.to_be_bytes(); 8].concat().try_into().unwrap());
        (from..from + 900).map(id).collect::<Vec<_>>()
    };
    change(&store, "s", Permits::TrySet(2700)).await;
    for from in [0, 900, 1800] {
        let wish = PermitsRequest::new(key("s"), ids(from), long(), PATIENCE);
        assert!(matches!(store.acquire(Arc::new(wish)).await.unwrap(), PermitsAcquired::Granted(_)));
    }
    assert_eq!(give_back(&store, "s", [0]).await, [true]);
    let holds = [0, 900, 1800, 2700].map(|from| PermitsHold { key: key("s"), ids: ids(from), lease: long() });
    let kept = renew(&store, holds.to_vec()).await;
    let counted: Vec<_> = kept.iter().map(|held| held.iter().filter(|held| **held).count()).collect();
    assert_eq!(counted, [899, 900, 900, 0]);
    assert!(!kept[0][0] && kept[0][1]);
}

pub async fn renew_of_permits_never_shortens(subject: Subject) {
    let (store, _) = both(&subject);
    change(&store, "s", Permits::TrySet(1)).await;
    take(&store, "s", [1]).await;
    assert_eq!(renew(&store, vec![hold("s", [1], short())]).await, [[true]]);
    rest(short_is_over()).await;
    assert_eq!(counts(&store, "s").await, (0, 1));
}

pub async fn withdraw_gives_permits_back_and_settles_after_latest(subject: Subject) {
    let (store, other) = both(&subject);
    change(&store, "s", Permits::TrySet(2)).await;
    take(&other, "s", [2]).await;
    let sent = Arc::new(PermitsRequest::new(key("s"), ids([1]), long(), Duration::from_secs(1)));
    store.acquire(Arc::clone(&sent)).await.unwrap();
    let latest = sent.latest();
    let mut withdrawn = store.withdraw(Arc::clone(&sent)).await.unwrap();
    assert_eq!(counts(&store, "s").await, (1, 1));
    let mut waited = Duration::ZERO;
    while let Withdrawn::Pending(time) = withdrawn {
        assert!(!time.is_zero() && waited <= PATIENCE, "{time:?} after {waited:?}");
        rest(time).await;
        waited += time;
        withdrawn = store.withdraw(Arc::clone(&sent)).await.unwrap();
    }
    let busy = refused(&store, wish("s", [3, 4], long())).await;
    assert_past(busy.moment, latest);
    assert_eq!(counts(&store, "s").await, (1, 1));
}

pub async fn permits_that_were_withdrawn_before_they_were_asked_for_are_not_taken(subject: Subject) {
    let (store, _) = both(&subject);
    change(&store, "s", Permits::TrySet(1)).await;
    let unsent = wish("s", [1], long());
    assert_eq!(store.withdraw(Arc::clone(&unsent)).await, Ok(Withdrawn::Settled));
    let error = store.acquire(unsent).await.unwrap_err();
    assert_eq!(error.kind(), lock_core::store::StoreErrorKind::TooLate);
    assert_eq!(counts(&store, "s").await, (1, 0));
}

pub async fn permits_are_set_once_and_changed_at_will(subject: Subject) {
    let (store, other) = both(&subject);
    assert!(change(&store, "s", Permits::TrySet(5)).await);
    assert!(!change(&other, "s", Permits::TrySet(7)).await);
    take(&store, "s", [1, 2]).await;
    assert_eq!(counts(&other, "s").await, (3, 2));
    assert!(change(&other, "s", Permits::Add(-4)).await);
    assert_eq!(counts(&store, "s").await, (-1, 2));
    assert!(change(&store, "s", Permits::Set(3)).await);
    assert_eq!(counts(&store, "s").await, (1, 2));
    assert!(change(&store, "s", Permits::Set(1)).await);
    assert_eq!(counts(&store, "s").await, (-1, 2));
    assert_eq!(give_back(&store, "s", [1]).await, [true]);
    refused(&store, wish("s", [3], long())).await;
    assert_eq!(give_back(&store, "s", [2]).await, [true]);
    take(&store, "s", [3]).await;
    // Both create a semaphore.
    assert!(change(&store, "added", Permits::Add(2)).await);
    assert!(change(&store, "set", Permits::Set(2)).await);
    assert_eq!((counts(&store, "added").await, counts(&store, "set").await), ((2, 0), (2, 0)));
}

pub async fn more_permits_than_java_can_count_are_refused(subject: Subject) {
    let (store, _) = both(&subject);
    change(&store, "s", Permits::Set(i32::MAX as u32)).await;
    let more = PermitsChange { key: key("s"), permits: Permits::Add(1), timeout: PATIENCE };
    let error = store.change(more).await.unwrap_err();
    assert_eq!(error.kind(), lock_core::store::StoreErrorKind::Refused);
    assert_eq!(counts(&store, "s").await, (i32::MAX.into(), 0));
}

pub async fn a_watch_hears_whenever_permits_come_back(subject: Subject) {
    let (store, other) = both(&subject);
    let mut waiter = listen(&other, "s").await;
    change(&store, "s", Permits::TrySet(2)).await;
    assert_hears(&mut waiter).await;
    let sent = wish("s", [1], short());
    store.acquire(Arc::clone(&sent)).await.unwrap();
    take(&store, "s", [2]).await;
    assert_hears_nothing(&mut waiter).await;
    give_back(&store, "s", [2]).await;
    assert_hears(&mut waiter).await;
    // Reading the counts gives expired permits back, which waiters hear.
    rest(short_is_over()).await;
    counts(&store, "s").await;
    assert_hears(&mut waiter).await;
    change(&store, "s", Permits::Add(1)).await;
    assert_hears(&mut waiter).await;
    let sent = wish("s", [3], long());
    store.acquire(Arc::clone(&sent)).await.unwrap();
    store.withdraw(sent).await.unwrap();
    assert_hears(&mut waiter).await;
}

pub async fn a_watch_hears_nothing_of_permits_that_nobody_can_take(subject: Subject) {
    let (store, other) = both(&subject);
    change(&store, "s", Permits::TrySet(2)).await;
    take(&store, "s", [1, 2]).await;
    change(&store, "s", Permits::Set(1)).await;
    let mut waiter = listen(&other, "s").await;
    give_back(&store, "s", [1]).await;
    give_back(&store, "s", [1]).await;
    renew(&store, vec![hold("s", [2], long())]).await;
    change(&store, "s", Permits::Add(-1)).await;
    change(&store, "else", Permits::TrySet(1)).await;
    assert_hears_nothing(&mut waiter).await;
}

pub async fn permits_are_never_more_than_there_are(subject: Subject) {
    let (store, other) = both(&subject);
    change(&store, "s", Permits::TrySet(5)).await;
    let mut rivals = Vec::new();
    for number in 0..20_u8 {
        let store = if number % 2 == 0 { Arc::clone(&store) } else { Arc::clone(&other) };
        let wish = wish("s", [2 * number, 2 * number + 1], long());
        rivals.push(tokio::spawn(async move {
            matches!(store.acquire(wish).await.unwrap(), PermitsAcquired::Granted(_))
        }));
    }
    let mut granted = 0;
    for rival in rivals {
        granted += usize::from(rival.await.unwrap());
    }
    assert_eq!(granted, 2);
    assert_eq!(counts(&store, "s").await, (1, 4));
}
