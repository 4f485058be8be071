//! Status, and forced releases.

use super::*;

pub async fn status_of_an_unknown_key_is_free(Subject { store, .. }: Subject) {
    let status = status(&store, "a").await;
    assert_eq!(status, LockStatus::free());
}

pub async fn status_shows_holder_lease_and_token(Subject { store, other, .. }: Subject) {
    let granted = grant(&store, request(&["a"], 1).tokens(4)).await;
    let status = status(&other, "a").await;
    assert!(status.is_locked());
    assert_eq!(status.holders, [(owner(1), 1)]);
    assert_last_token(&status, granted.tokens[0].last);
    assert_remaining(&other, "a", long()).await;
}

pub async fn status_shows_the_kind(Subject { store, other, .. }: Subject) {
    // A fair lock without waiters looks like a mutex.
    for kind in kinds_of_locks() {
        let shown = if kind == Kind::Fair { Kind::Mutex } else { kind };
        grant(&store, wish(kind, "a", 1)).await;
        assert_kind(&other, "a", shown, &[1]).await;
        release(&store, giving_back(vec![item_of(kind, "a", 1)])).await;
        assert_eq!(status(&other, "a").await.kind, None);
    }
}

pub async fn status_counts_who_listens(Subject { store, other, .. }: Subject) {
    let kinds = [("a", Kind::Mutex), ("b", Kind::Write)];
    for (name, kind) in kinds.into_iter().filter(|(_, kind)| abilities(|store| store.has(*kind))) {
        grant(&store, wish(kind, name, 1)).await;
        assert_waiters(&store, name, 0).await;
        let _waiter = watch_for(&other, &Arc::new(waiting(kind, name, 2))).await;
        assert!(status(&store, name).await.waiters >= 1);
    }
}

pub async fn status_remembers_the_token_of_a_free_key(Subject { store, .. }: Subject) {
    let expired = grant(&store, leased(&["a"], 1, short())).await;
    let released = grant(&store, leased(&["b"], 1, short())).await;
    release(&store, giving_back(items(&["b"], 1))).await;
    rest(short_is_over()).await;
    use_other_keys(&store).await;
    for (name, range) in [("a", expired.tokens[0]), ("b", released.tokens[0])] {
        let status = status(&store, name).await;
        assert!(!status.is_locked());
        assert_eq!(status.last_token.map(u64::from), Some(range.last), "the counter of {name} was forgotten");
    }
}

pub async fn force_release_frees_whoever_holds(Subject { store, other, .. }: Subject) {
    grant_each(&store, &["a", "b"], 1, long()).await;
    assert!(force_release(&other, "a").await);
    assert_free(&store, "a").await;
    assert_held_by(&store, "b", 1).await;
    grant(&other, request(&["a"], 2)).await;
    assert!(force_release(&other, "a").await);
}

pub async fn force_release_keeps_the_counter(Subject { store, .. }: Subject) {
    let granted = grant(&store, request(&["a"], 1).tokens(1000)).await;
    let last = granted.tokens[0].last;
    force_release(&store, "a").await;
    if has_counters() {
        let known = status(&store, "a").await.last_token.map(u64::from);
        assert_eq!(known, Some(last), "the forced release has changed the counter");
    }
    let next = grant(&store, request(&["a"], 2)).await.tokens[0].first;
    assert!(next > last, "token {next} after {last}: the forced release has changed the counter");
}

pub async fn force_release_of_a_free_key_says_so(Subject { store, .. }: Subject) {
    assert!(!force_release(&store, "a").await);
    grant(&store, leased(&["a"], 1, short())).await;
    rest(short_is_over()).await;
    assert!(!force_release(&store, "a").await);
}

pub async fn a_holder_after_force_release_is_a_stranger(Subject { store, .. }: Subject) {
    grant(&store, request(&["a"], 1)).await;
    force_release(&store, "a").await;
    assert_eq!(renew(&store, items(&["a"], 1), long()).await, [Renewed::Gone]);
    assert_eq!(release(&store, giving_back(items(&["a"], 1))).await.held, [false]);
    grant(&store, request(&["a"], 2)).await;
    assert_eq!(renew(&store, items(&["a"], 1), 3 * long()).await, [Renewed::Gone]);
    assert_eq!(release(&store, giving_back(items(&["a"], 1))).await.held, [false]);
    assert_held_by(&store, "a", 2).await;
    assert_remaining(&store, "a", long()).await;
}
