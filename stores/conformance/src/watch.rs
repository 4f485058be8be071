//! Notices of releases.

use super::*;

pub async fn watch_hears_release_force_release_and_withdraw(Subject { store, other, .. }: Subject) {
    let mut waiter = watch(&other, &["a"]).await;

    grant(&store, request(&["a"], 1)).await;
    assert_rivals(&release(&store, giving_back(items(&["a"], 1))).await, Rivals::Some);
    assert_hears(&mut waiter).await;

    grant(&store, request(&["a"], 2)).await;
    force_release(&store, "a").await;
    assert_hears(&mut waiter).await;

    let sent = Arc::new(request(&["a"], 3));
    grant(&store, Arc::clone(&sent)).await;
    withdraw(&store, &sent).await;
    assert_hears(&mut waiter).await;

    assert_hears_nothing(&mut waiter).await;
}

pub async fn watch_does_not_hear_its_owners_releases(Subject { store, .. }: Subject) {
    let mut own = watch(&store, &["a"]).await;
    for _ in 0..3 {
        grant(&store, request(&["a"], 1)).await;
        let request = ReleaseRequest { own_watch: Some(own.echo()), ..giving_back(items(&["a"], 1)) };
        assert_rivals(&release(&store, request).await, Rivals::None);
        assert_hears_nothing(&mut own).await;
        // Another owner's release is no echo.
        grant(&store, self::request(&["a"], 2)).await;
        release(&store, giving_back(items(&["a"], 2))).await;
        assert_hears(&mut own).await;
    }
}

pub async fn watch_of_two_keys_hears_both(Subject { store, other, .. }: Subject) {
    let mut waiter = watch(&other, &["a", "b"]).await;
    for name in ["a", "b", "a"] {
        grant(&store, request(&[name], 1)).await;
        let released = release(&store, giving_back(items(&[name], 1))).await;
        assert_rivals(&released, Rivals::Some);
        assert_hears(&mut waiter).await;
    }
    grant(&store, request(&["a", "b"], 1)).await;
    let released = release(&store, giving_back(items(&["a", "b"], 1))).await;
    assert_rivals(&released, Rivals::Some);
    assert_hears(&mut waiter).await;
}

/// Otherwise a waiter that sleeps until the end of the old lease would not learn of the earlier
/// end.
pub async fn watch_hears_a_lingering_release(Subject { store, other, .. }: Subject) {
    let mut waiter = watch(&other, &["a"]).await;
    grant(&store, request(&["a"], 1)).await;
    let linger = ReleaseRequest { linger: long() / 2, ..giving_back(items(&["a"], 1)) };
    release(&store, linger).await;
    assert_hears(&mut waiter).await;
}

pub async fn watch_does_not_hear_what_frees_nothing(Subject { store, other, .. }: Subject) {
    let mut waiter = watch(&other, &["a"]).await;
    assert!(!force_release(&store, "a").await);
    assert_rivals(&release(&store, giving_back(items(&["a"], 1))).await, Rivals::None);

    grant(&store, request(&["a"], 1)).await;
    grant(&store, request(&["a"], 1)).await;
    busy(&store, request(&["a"], 2)).await;
    release(&store, giving_back(items(&["a"], 2))).await;
    renew(&store, items(&["a"], 1), 3 * long()).await;
    withdraw(&store, &Arc::new(request(&["a"], 2))).await;
    assert_hears_nothing(&mut waiter).await;

    // The end of a lease is silent: waiters know when it comes.
    force_release(&store, "a").await;
    drain(&mut waiter).await;
    grant(&store, leased(&["a"], 1, short())).await;
    rest(short_is_over()).await;
    grant(&store, request(&["a"], 2)).await;
    assert_hears_nothing(&mut waiter).await;
}

pub async fn watch_does_not_hear_other_keys(Subject { store, other, .. }: Subject) {
    let mut waiter = watch(&other, together(&["a", "b"])).await;
    grant(&store, request(&["c"], 1)).await;
    assert_rivals(&release(&store, giving_back(items(&["c"], 1))).await, Rivals::None);
    assert_hears_nothing(&mut waiter).await;
}

pub async fn all_watches_of_a_key_hear(Subject { store, other, .. }: Subject) {
    let mut ours = watch(&store, &["a"]).await;
    let mut theirs = watch(&other, &["a"]).await;
    let mut more = watch(&other, together(&["a", "b"])).await;
    grant(&store, request(&["a"], 1)).await;
    force_release(&store, "a").await;
    assert_hears(&mut ours).await;
    assert_hears(&mut theirs).await;
    assert_hears(&mut more).await;
    drop(more);
    drain(&mut theirs).await;
    grant(&store, request(&["a"], 1)).await;
    force_release(&store, "a").await;
    assert_hears(&mut theirs).await;
}

/// Returns whether others listen for a release by the owner of this watch. A store may go on
/// listening for a while after a watch is gone, so every case has its own key.
async fn rivals(store: &Arc<dyn LockStore>, kind: Kind, name: &str, own: Option<&Watch>) -> Rivals {
    grant(store, wish(kind, name, 1)).await;
    let own_watch = own.map(Watch::echo);
    release(store, ReleaseRequest { own_watch, ..giving_back(vec![item_of(kind, name, 1)]) }).await.rivals
}

pub async fn listeners_are_counted_without_our_own(Subject { store, other, .. }: Subject) {
    let kinds = [("a", Kind::Mutex), ("b", Kind::Read), ("c", Kind::Write)];
    for (name, kind) in kinds.into_iter().filter(|(_, kind)| abilities(|store| store.has(*kind))) {
        let wish = Arc::new(wish(kind, name, 9));
        assert_eq!(rivals(&store, kind, name, None).await, Rivals::None);
        let ours = watch_for(&store, &wish).await;
        assert_eq!(rivals(&store, kind, name, Some(&ours)).await, Rivals::None);
        assert_eq!(rivals(&store, kind, name, None).await, Rivals::Some, "another owner holds it here");
        let another = watch_for(&store, &wish).await;
        assert_eq!(rivals(&store, kind, name, Some(&ours)).await, Rivals::Some);
        drop(another);
        let theirs = watch_for(&other, &wish).await;
        assert_eq!(rivals(&store, kind, name, Some(&ours)).await, Rivals::Some);
        assert_eq!(rivals(&other, kind, name, Some(&theirs)).await, Rivals::Some);
    }
}

pub async fn readers_and_writers_listen_to_each_other(Subject { store, other, .. }: Subject) {
    for (name, holds, listens) in [("a", Kind::Read, Kind::Write), ("b", Kind::Write, Kind::Read)] {
        let theirs = watch_for(&other, &Arc::new(wish(listens, name, 9))).await;
        assert_eq!(rivals(&store, holds, name, None).await, Rivals::Some);
        assert_eq!(rivals(&other, holds, name, None).await, Rivals::Some);
        assert_eq!(rivals(&other, holds, name, Some(&theirs)).await, Rivals::None);
    }
}
