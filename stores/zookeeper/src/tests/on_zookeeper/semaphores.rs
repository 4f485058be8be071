//! Permits that are dropped, withdrawn, deleted or foreign, and semaphores beside locks.

use lock_core::store::{
    PermitCounts, PermitId, Permits, PermitsAcquired, PermitsChange, PermitsHold, PermitsRelease,
    PermitsRenew, PermitsRequest, ScanRequest, SemaphoreStore, StoreErrorKind,
};

use super::*;

fn permits(key: &str, number: u8) -> Arc<PermitsRequest> {
    let ids = vec![PermitId::from_bytes([number; 16]), PermitId::from_bytes([number + 1; 16])];
    Arc::new(PermitsRequest::new(LockKey::new(key).unwrap(), ids, 60 * SECOND, SLACK))
}

async fn set(semaphores: &dyn SemaphoreStore, key: &str, permits: Permits) -> Result<bool, StoreError> {
    semaphores.change(PermitsChange { key: LockKey::new(key).unwrap(), permits, timeout: SLACK }).await
}

async fn counts(semaphores: &dyn SemaphoreStore, key: &str) -> (i64, u64) {
    let counts = semaphores.counts(LockKey::new(key).unwrap(), SLACK).await.unwrap();
    let PermitCounts { available, acquired } = counts;
    (available, acquired)
}

async fn is_granted(semaphores: &dyn SemaphoreStore, request: &Arc<PermitsRequest>) -> bool {
    matches!(semaphores.acquire(Arc::clone(request)).await.unwrap(), PermitsAcquired::Granted(_))
}

/// Although the server lets no session live for the time that was asked for.
#[tokio::test]
async fn locks_and_permits_share_a_session_and_neither_ends_it() {
    let store = store(&format!("{}{}?timeout=2000s&tick=200ms", SERVER.url(), new_root()), "");
    let semaphores = store.semaphores().unwrap();
    set(&*semaphores, "s", Permits::TrySet(4)).await.unwrap();
    let locks = [trying(Kind::Mutex, "a", 1, 60 * SECOND), trying(Kind::Mutex, "b", 2, 60 * SECOND)];
    assert!(granted(&store, &locks[0]).await);
    assert!(is_granted(&*semaphores, &permits("s", 0)).await);
    assert!(granted(&store, &locks[1]).await);
    assert!(is_granted(&*semaphores, &permits("s", 10)).await);
    assert_eq!(counts(&*semaphores, "s").await, (0, 4));
    for lock in &locks {
        assert_eq!(renew(&store, lock, 60 * SECOND).await, [Renewed::Held]);
        assert!(release(&store, lock).await);
    }
}

/// Wherever it was interrupted, the same request finds its own nodes, or they are withdrawn.
#[tokio::test]
async fn a_request_that_was_dropped_is_sent_again_or_withdrawn() {
    let (store, root) = new_store();
    let semaphores = store.semaphores().unwrap();
    set(&*semaphores, "s", Permits::TrySet(2)).await.unwrap();
    assert!(is_granted(&*semaphores, &permits("s", 200)).await);
    for round in 0..60_u64 {
        let other = round % 3;
        if other == 0 {
            // None is left for the new one.
            set(&*semaphores, "s", Permits::Set(2)).await.unwrap();
        } else {
            set(&*semaphores, "s", Permits::Set(4)).await.unwrap();
        }
        let request = permits("s", u8::try_from(2 * round).unwrap());
        let limit = Duration::from_micros(200 * round);
        let _ = tokio::time::timeout(limit, semaphores.acquire(Arc::clone(&request))).await;
        if other == 1 {
            semaphores.withdraw(request).await.unwrap();
            assert_eq!(counts(&*semaphores, "s").await, (2, 2), "{round}");
            continue;
        }
        // Fewer by now: what was made and not granted is too many.
        assert_eq!(is_granted(&*semaphores, &request).await, other == 2, "{round}");
        assert_eq!(counts(&*semaphores, "s").await.1, if other == 2 { 4 } else { 2 }, "{round}");
        let (key, ids) = (request.key.clone(), request.ids.clone());
        let released = semaphores.release(PermitsRelease { key, ids, timeout: SLACK }).await.unwrap();
        assert_eq!(released, [other == 2; 2], "{round}");
    }
    assert_eq!(nodes(&format!("{root}/s/leases")).await.len(), 2);
}

#[tokio::test]
async fn permits_that_an_operator_deletes_are_gone_at_the_next_renewal() {
    let (store, root) = new_store();
    let semaphores = store.semaphores().unwrap();
    set(&*semaphores, "s", Permits::TrySet(2)).await.unwrap();
    let request = permits("s", 1);
    assert!(is_granted(&*semaphores, &request).await);
    let renew = async || {
        let holds =
            vec![PermitsHold { key: request.key.clone(), ids: request.ids.clone(), lease: 60 * SECOND }];
        semaphores.renew(PermitsRenew { holds, timeout: SLACK }).await.unwrap()
    };
    assert_eq!(renew().await, [Some(vec![true, true])]);
    let names = nodes(&format!("{root}/s/leases")).await;
    client().await.delete(&format!("{root}/s/leases/{}", names[0]), None).await.unwrap();
    let kept = renew().await.remove(0).unwrap();
    assert_eq!(kept.iter().filter(|kept| **kept).count(), 1);
    assert_eq!(counts(&*semaphores, "s").await, (1, 1));
}

#[tokio::test]
async fn a_session_that_ends_gives_permits_back_and_waiters_ask_again() {
    let (store, root) = new_store();
    let other = crate::tests::store(&url(&root), "");
    let (semaphores, others) = (store.semaphores().unwrap(), other.semaphores().unwrap());
    set(&*semaphores, "s", Permits::TrySet(2)).await.unwrap();
    assert!(is_granted(&*semaphores, &permits("s", 1)).await);
    assert!(!is_granted(&*others, &permits("s", 7)).await);
    let mut watch = others.watch(LockKey::new("s").unwrap(), SLACK).await.unwrap();
    let mut own = semaphores.watch(LockKey::new("s").unwrap(), SLACK).await.unwrap();
    SERVER.end_session(session(&store).await.0);
    hears(&mut watch).await;
    hears(&mut own).await;
    assert!(is_granted(&*semaphores, &permits("s", 7)).await);
}

#[tokio::test]
async fn a_semaphore_is_no_lock_and_a_lock_no_semaphore() {
    let (store, root) = new_store();
    let semaphores = store.semaphores().unwrap();
    set(&*semaphores, "s", Permits::TrySet(2)).await.unwrap();
    assert!(is_granted(&*semaphores, &permits("s", 1)).await);
    // A client of Curator is about to take a permit.
    let other = client().await;
    other.mkdir(&format!("{root}/s/locks"), &PERSISTENT).await.unwrap();
    other.create(&format!("{root}/s/locks/x-lock-"), b"", &NUMBERED).await.unwrap();
    let (mutex, below) = (waiting(Kind::Mutex, "m", 1), waiting(Kind::Mutex, "s/below", 1));
    assert!(granted(&store, &mutex).await && granted(&store, &below).await);
    let all = ScanRequest { prefix: String::new(), cursor: None, timeout: SLACK };
    let found = store.scan(all).await.unwrap().locks;
    let mut keys: Vec<_> = found.iter().map(|(key, _)| key.as_str()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["m", "s/below"]);
    let error = ask(&store, &waiting(Kind::Mutex, "s", 1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ForeignData);
    let error = set(&*semaphores, "m", Permits::Set(1)).await.unwrap_err();
    assert!(error.to_string().contains("is a lock with an entry"), "{error}");
    assert_eq!(nodes(&format!("{root}/m")).await.len(), 1);
}

#[tokio::test]
async fn a_number_of_permits_that_is_none_is_named() {
    let (store, root) = new_store();
    let semaphores = store.semaphores().unwrap();
    let other = client().await;
    other.mkdir(&format!("{root}/s"), &PERSISTENT).await.unwrap();
    other.create(&format!("{root}/s/permits"), b"three", &PERSISTENT).await.unwrap();
    let error = semaphores.acquire(permits("s", 1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ForeignData);
    assert!(error.to_string().contains("/s/permits"), "{error}");
    assert!(set(&*semaphores, "s", Permits::Set(3)).await.is_err());
}

/// Curator's `SharedCount` begins with zero, which was not set by anybody.
#[tokio::test]
async fn a_zero_that_was_set_is_told_from_that_of_a_shared_count() {
    let (store, root) = new_store();
    let semaphores = store.semaphores().unwrap();
    assert_eq!(set(&*semaphores, "s", Permits::TrySet(0)).await, Ok(true));
    assert_eq!(set(&*semaphores, "s", Permits::TrySet(2)).await, Ok(false));
    client().await.mkdir(&format!("{root}/java"), &PERSISTENT).await.unwrap();
    client().await.create(&format!("{root}/java/permits"), &[0; 4], &PERSISTENT).await.unwrap();
    assert_eq!(set(&*semaphores, "java", Permits::TrySet(2)).await, Ok(true));
    assert_eq!(set(&*semaphores, "java", Permits::TrySet(3)).await, Ok(false));
    assert_eq!(counts(&*semaphores, "java").await, (2, 0));
}
