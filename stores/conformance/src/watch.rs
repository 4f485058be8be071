//! Notices of releases.

use super::*;

pub async fn watch_hears_release_force_release_and_withdraw(Subject { store, other, .. }: Subject) {
    let mut waiter = watch(&other, &["a"]).await;

    grant(&store, request(&["a"], 1)).await;
    assert_eq!(release(&store, giving_back(items(&["a"], 1))).await.other_listeners, 1);
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

pub async fn watch_hears_the_releases_of_its_own_handle_as_announced(Subject { store, .. }: Subject) {
    let mut own = watch(&store, &["a"]).await;
    for _ in 0..3 {
        grant(&store, request(&["a"], 1)).await;
        let request = ReleaseRequest { own_watches: 1, ..giving_back(items(&["a"], 1)) };
        let released = release(&store, request).await;
        assert_eq!(released.other_listeners, 0);
        if released.echo {
            assert_hears(&mut own).await;
        }
        assert_hears_nothing(&mut own).await;
    }
}

pub async fn watch_of_two_keys_hears_both(Subject { store, other, .. }: Subject) {
    let mut waiter = watch(&other, &["a", "b"]).await;
    for name in ["a", "b", "a"] {
        grant(&store, request(&[name], 1)).await;
        let released = release(&store, giving_back(items(&[name], 1))).await;
        assert_eq!(released.other_listeners, 1);
        assert_hears(&mut waiter).await;
    }
    grant(&store, request(&["a", "b"], 1)).await;
    let released = release(&store, giving_back(items(&["a", "b"], 1))).await;
    assert!(released.other_listeners >= 1);
    assert_hears(&mut waiter).await;
}

/// Otherwise a waiter that sleeps until the end of the old lease would not learn of the earlier
/// end.
pub async fn watch_hears_a_lingering_release(Subject { store, other, .. }: Subject) {
    let mut waiter = watch(&other, &["a"]).await;
    grant(&store, request(&["a"], 1)).await;
    let linger = ReleaseRequest { linger: LONG / 2, ..giving_back(items(&["a"], 1)) };
    release(&store, linger).await;
    assert_hears(&mut waiter).await;
}

pub async fn watch_does_not_hear_what_frees_nothing(Subject { store, other, .. }: Subject) {
    let mut waiter = watch(&other, &["a"]).await;
    assert!(!force_release(&store, "a").await);
    assert_eq!(release(&store, giving_back(items(&["a"], 1))).await.other_listeners, 0);

    grant(&store, request(&["a"], 1)).await;
    grant(&store, request(&["a"], 1)).await;
    busy(&store, request(&["a"], 2)).await;
    release(&store, giving_back(items(&["a"], 2))).await;
    keep(&store, items(&["a"], 1), 3 * LONG).await;
    withdraw(&store, &Arc::new(request(&["a"], 2))).await;
    assert_hears_nothing(&mut waiter).await;

    // The end of a lease is silent: waiters know when it comes.
    force_release(&store, "a").await;
    drain(&mut waiter).await;
    grant(&store, leased(&["a"], 1, SHORT)).await;
    rest(SHORT_IS_OVER).await;
    grant(&store, request(&["a"], 2)).await;
    assert_hears_nothing(&mut waiter).await;
}

pub async fn watch_does_not_hear_other_keys(Subject { store, other, .. }: Subject) {
    let mut waiter = watch(&other, &["a", "b"]).await;
    grant(&store, request(&["c"], 1)).await;
    assert_eq!(release(&store, giving_back(items(&["c"], 1))).await.other_listeners, 0);
    assert_hears_nothing(&mut waiter).await;
}

pub async fn all_watches_of_a_key_hear(Subject { store, other, .. }: Subject) {
    let mut ours = watch(&store, &["a"]).await;
    let mut theirs = watch(&other, &["a"]).await;
    let mut more = watch(&other, &["b", "a"]).await;
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

/// Returns the number of other listeners on a release by an owner with `own_watches` watches. A
/// store may go on listening for a while after a watch is gone, so every case has its own key.
async fn others(store: &Arc<dyn LockStore>, kind: Kind, name: &str, own_watches: u32) -> u64 {
    grant(store, wish(kind, name, 1)).await;
    let released = ReleaseRequest { own_watches, ..giving_back(vec![item_of(kind, name, 1)]) };
    release(store, released).await.other_listeners
}

pub async fn listeners_are_counted_without_our_own(Subject { store, other, .. }: Subject) {
    for (name, kind) in [("a", Kind::Mutex), ("b", Kind::Read), ("c", Kind::Write)] {
        let wish = Arc::new(wish(kind, name, 9));
        assert_eq!(others(&store, kind, name, 0).await, 0);
        let _ours = watch_for(&store, &wish).await;
        assert_eq!(others(&store, kind, name, 1).await, 0);
        assert!(others(&store, kind, name, 0).await >= 1, "another owner holds it here");
        let _another = watch_for(&store, &wish).await;
        assert_eq!(others(&store, kind, name, 2).await, 0);
        assert!(others(&store, kind, name, 1).await >= 1);
        let _theirs = watch_for(&other, &wish).await;
        assert!(others(&store, kind, name, 2).await >= 1);
        assert!(others(&other, kind, name, 1).await >= 1);
    }
}

pub async fn readers_and_writers_listen_to_each_other(Subject { store, other, .. }: Subject) {
    for (name, holds, listens) in [("a", Kind::Read, Kind::Write), ("b", Kind::Write, Kind::Read)] {
        let _theirs = watch_for(&other, &Arc::new(wish(listens, name, 9))).await;
        assert!(others(&store, holds, name, 0).await >= 1);
        assert!(others(&other, holds, name, 0).await >= 1);
        assert_eq!(others(&other, holds, name, 1).await, 0);
    }
}
