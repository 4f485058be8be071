//! Count-down latches.

use lock_core::store::{CountDownRequest, LatchStore, StoreErrorKind};

use super::*;

type Store = Arc<dyn LatchStore>;

/// Returns two handles on the latches of a subject, which the caller has to keep alive.
fn both(subject: &Subject) -> (Store, Store) {
    (subject.store.latches().unwrap(), subject.other.latches().unwrap())
}

fn call(name: &str, id: &str) -> Arc<CountDownRequest> {
    Arc::new(CountDownRequest::new(key(name), id.to_owned(), PATIENCE, long()))
}

async fn set(store: &Store, name: &str, count: u32) -> bool {
    store.try_set_count(key(name), count, PATIENCE).await.unwrap()
}

async fn count_down(store: &Store, name: &str, id: &str) -> u64 {
    store.count_down(call(name, id)).await.unwrap()
}

async fn count(store: &Store, name: &str) -> u64 {
    store.count(key(name), PATIENCE).await.unwrap()
}

async fn listen(store: &Store, name: &str) -> Watch {
    let watch = store.watch(key(name), PATIENCE).await.unwrap();
    assert!(watch.is_confirmed(), "notices are pushed, and the watch is not confirmed");
    watch
}

pub async fn a_latch_is_set_once_until_it_is_at_zero(subject: Subject) {
    let (store, other) = both(&subject);
    assert_eq!(count(&store, "l").await, 0);
    assert!(set(&store, "l", 2).await);
    assert!(!set(&other, "l", 5).await);
    assert_eq!(count_down(&other, "l", "a").await, 1);
    assert!(!set(&other, "l", 5).await);
    assert_eq!(count_down(&store, "l", "b").await, 0);
    assert_eq!(count(&other, "l").await, 0);
    assert!(set(&other, "l", 1).await);
}

pub async fn a_count_down_that_is_sent_again_counts_once(subject: Subject) {
    let (store, other) = both(&subject);
    set(&store, "l", 3).await;
    let sent = call("l", "a");
    assert_eq!(store.count_down(Arc::clone(&sent)).await, Ok(2));
    assert_eq!(store.count_down(Arc::clone(&sent)).await, Ok(2));
    assert_eq!(count_down(&other, "l", "b").await, 1);
    assert_eq!(store.count_down(Arc::clone(&sent)).await, Ok(1));
    assert_eq!(count_down(&other, "l", "c").await, 0);
    assert_eq!(store.count_down(Arc::clone(&sent)).await, Ok(0));
    // Nor does it count for the next latch of that name.
    set(&store, "l", 2).await;
    assert_eq!(store.count_down(sent).await, Ok(2));
    assert_eq!(count_down(&store, "l", "d").await, 1);
}

pub async fn counting_below_zero_leaves_nothing(subject: Subject) {
    let (store, _) = both(&subject);
    assert_eq!(count_down(&store, "l", "a").await, 0);
    assert_eq!(count_down(&store, "l", "b").await, 0);
    assert_eq!(count(&store, "l").await, 0);
    assert!(set(&store, "l", 1).await);
    // It did not count before, so it was not remembered.
    assert_eq!(count_down(&store, "l", "a").await, 0);
}

pub async fn an_id_is_forgotten_after_its_time(subject: Subject) {
    let (store, _) = both(&subject);
    set(&store, "l", 3).await;
    let brief = || Arc::new(CountDownRequest::new(key("l"), "a".to_owned(), PATIENCE, short()));
    assert_eq!(store.count_down(brief()).await, Ok(2));
    rest(short_is_over()).await;
    assert_eq!(store.count_down(brief()).await, Ok(1));
}

pub async fn a_deleted_latch_is_gone(subject: Subject) {
    let (store, other) = both(&subject);
    assert_eq!(store.delete(key("l"), PATIENCE).await, Ok(false));
    set(&store, "l", 2).await;
    assert_eq!(other.delete(key("l"), PATIENCE).await, Ok(true));
    assert_eq!(count(&store, "l").await, 0);
}

pub async fn a_watch_hears_zero_and_deletion_and_a_new_count(subject: Subject) {
    let (store, other) = both(&subject);
    let mut waiter = listen(&other, "l").await;
    set(&store, "l", 2).await;
    assert_hears(&mut waiter).await;
    count_down(&store, "l", "a").await;
    assert_hears_nothing(&mut waiter).await;
    count_down(&store, "l", "b").await;
    assert_hears(&mut waiter).await;
    set(&store, "l", 2).await;
    assert_hears(&mut waiter).await;
    store.delete(key("l"), PATIENCE).await.unwrap();
    assert_hears(&mut waiter).await;
    // There is no latch any more.
    count_down(&store, "l", "c").await;
    store.delete(key("l"), PATIENCE).await.unwrap();
    assert_hears_nothing(&mut waiter).await;
}

pub async fn a_latch_with_a_hash_tag_is_refused(subject: Subject) {
    let (store, _) = both(&subject);
    let name = || key("{u}:1");
    let errors = [
        store.try_set_count(name(), 1, PATIENCE).await.err(),
        store.count(name(), PATIENCE).await.err(),
        store.count_down(call("{u}:1", "a")).await.err(),
        store.delete(name(), PATIENCE).await.err(),
        store.watch(name(), PATIENCE).await.err(),
    ];
    for error in errors {
        let error = error.expect("refused");
        assert_eq!(error.kind(), StoreErrorKind::Unsupported);
        assert!(error.to_string().contains("hash tag"), "{error}");
    }
}
