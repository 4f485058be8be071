//! Sessions that end, and holds that move to another one.

use super::*;
use crate::tests::*;

/// Returns the leases of the keys under a prefix, in hex.
pub(super) fn leases(prefix: &str) -> Vec<String> {
    let keys = keys(prefix);
    let lease = |key: &String| {
        let fields = SERVER.etcdctl(&["get", "-w", "fields", key]);
        let line = fields.lines().find(|line| line.contains("\"Lease\"")).expect("a lease");
        let number: i64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        format!("{number:x}")
    };
    keys.iter().map(lease).collect()
}

#[tokio::test]
async fn all_holds_with_about_the_same_lease_share_a_session() {
    let (store, prefix) = new_store();
    for (owner, lease) in [(1, 58), (2, 60), (3, 55)] {
        assert!(granted(&store, &trying(Kind::Mutex, &format!("k{owner}"), owner, lease * SECOND)).await);
    }
    let mut all = leases(&prefix);
    all.dedup();
    assert_eq!(all.len(), 1);
}

#[tokio::test]
async fn a_session_that_was_revoked_ends_its_holds_and_the_next_one_begins() {
    let (store, prefix) = new_store();
    let (holder, waiter) = (waiting(Kind::Mutex, "a", 1), waiting(Kind::Mutex, "a", 2));
    assert!(granted(&store, &holder).await);
    let mut watch = queue(&store, &waiter).await;
    SERVER.etcdctl(&["lease", "revoke", &leases(&prefix)[0]]);
    // The waiter's entry is gone as well. It asks again.
    assert_eq!(tokio::time::timeout(SLACK, watch.notice()).await.unwrap(), Notice::Retry);
    assert_eq!(renew(&store, &holder, 60 * SECOND).await, [Renewed::Gone]);
    assert!(granted(&store, &waiter).await);
    assert!(!release(&store, &holder).await);
    assert!(release(&store, &waiter).await);
}

#[tokio::test]
async fn a_hold_that_is_extended_outlives_its_first_session() {
    let (store, prefix) = new_store();
    let request = trying(Kind::Mutex, "a", 1, SECOND);
    let token = ask(&store, &request).await.unwrap().unwrap().tokens[0].last;
    let first = leases(&prefix).remove(0);
    assert_eq!(renew(&store, &request, 60 * SECOND).await, [Renewed::Held]);
    assert_ne!(leases(&prefix), [&*first]);
    SERVER.etcdctl(&["lease", "revoke", &first]);
    assert_eq!(renew(&store, &request, 60 * SECOND).await, [Renewed::Held]);
    let other = waiting(Kind::Mutex, "a", 2);
    let mut watch = queue(&store, &other).await;
    assert!(release(&store, &request).await);
    assert!(hears_grant(&mut watch).await > token);
}

#[tokio::test]
async fn another_handle_sees_when_the_session_would_end() {
    let (store, prefix) = new_store();
    assert!(granted(&store, &trying(Kind::Mutex, "a", 1, 30 * SECOND)).await);
    let key = LockKey::new("a").unwrap();
    let own = store.status(key.clone()).await.unwrap().remaining.unwrap();
    assert!(own <= 30 * SECOND);
    let afar = crate::tests::store(&SERVER.url(), &prefix).status(key).await.unwrap().remaining.unwrap();
    assert!(afar > own - SECOND && afar <= 40 * SECOND, "{afar:?}, {own:?}");
}

/// A hold ends at the server when its process is gone, as here its handle.
#[tokio::test]
async fn a_hold_ends_with_its_session_when_nobody_renews_it() {
    let (store, prefix) = new_store();
    let request = trying(Kind::Mutex, "a", 1, SECOND);
    assert!(granted(&store, &request).await);
    drop(store);
    let other = crate::tests::store(&SERVER.url(), &prefix);
    let waiter = waiting(Kind::Mutex, "a", 2);
    let mut watch = queue(&other, &waiter).await;
    hears_grant(&mut watch).await;
}

#[tokio::test]
async fn a_lingering_release_ends_in_time_although_its_process_has_ended() {
    let (store, prefix) = new_store();
    let request = trying(Kind::Mutex, "a", 1, 600 * SECOND);
    assert!(granted(&store, &request).await);
    let (items, linger) = (request.items.clone(), SECOND);
    let release = ReleaseRequest { items, linger, then: None, own_watch: None, timeout: SLACK };
    assert_eq!(*store.release(Arc::new(release)).await.unwrap().held, [true]);
    let released = std::time::Instant::now();
    drop(store);
    let other = crate::tests::store(&SERVER.url(), &prefix);
    let waiter = waiting(Kind::Mutex, "a", 2);
    let mut watch = queue(&other, &waiter).await;
    hears_grant(&mut watch).await;
    assert!(released.elapsed() >= SECOND);
}

/// Deletes a hold that was renewed once, by any means. Returns what the store says of it, and of
/// earlier holds.
async fn lost_by(store: &EtcdStore, delete: impl Fn()) -> Vec<Item> {
    let mut lost = store.lost().expect("it looks after holds");
    for _ in 0..20 {
        let hold = trying(Kind::Mutex, "lost", 1, 60 * SECOND);
        assert!(granted(store, &hold).await);
        assert_eq!(renew(store, &hold, 60 * SECOND).await, [Renewed::Held]);
        // Nothing tells when its watch has begun. If that is too late, it is tried again.
        tokio::time::sleep(SECOND / 2).await;
        delete();
        let told = tokio::time::timeout(3 * SECOND, &mut lost).await;
        assert_eq!(renew(store, &hold, 60 * SECOND).await, [Renewed::Gone]);
        if let Ok(told) = told {
            return told;
        }
    }
    panic!("nothing was told")
}

#[tokio::test]
async fn a_renewed_hold_that_is_deleted_is_told_without_another_renewal() {
    let (store, prefix) = new_store();
    let hold = [item(Kind::Mutex, "lost", 1)];
    assert_eq!(lost_by(&store, || drop(SERVER.etcdctl(&["del", "--prefix", &prefix]))).await, hold);
    let revoke = || drop(SERVER.etcdctl(&["lease", "revoke", &leases(&prefix)[0]]));
    assert_eq!(lost_by(&store, revoke).await, hold);
}

/// Its task would take the deletion for a loss, if it went on until then.
#[tokio::test]
async fn a_hold_that_is_given_back_is_not_told_as_lost() {
    let (store, prefix) = new_store();
    drop(store.lost());
    give_back_renewed_holds(&store).await;
    let told = lost_by(&store, || drop(SERVER.etcdctl(&["del", "--prefix", &prefix]))).await;
    assert_eq!(told, [item(Kind::Mutex, "lost", 1)]);
}

/// The entry is named by a session that has ended, which the manager has heard.
#[tokio::test]
async fn a_hold_that_has_moved_is_held_at_its_release_although_its_first_session_has_ended() {
    let (store, prefix) = new_store();
    let hold = trying(Kind::Mutex, "k", 1, 2 * SECOND);
    assert!(granted(&store, &hold).await);
    let first = leases(&prefix);
    assert_eq!(renew(&store, &hold, 60 * SECOND).await, [Renewed::Held]);
    assert_ne!(leases(&prefix), first, "it has moved");
    SERVER.etcdctl(&["lease", "revoke", &first[0]]);
    // Another one with the first lease hears that the session has ended.
    let other = trying(Kind::Mutex, "other", 2, 2 * SECOND);
    assert!(granted(&store, &other).await && release(&store, &other).await);
    assert!(release(&store, &hold).await);
    assert_eq!(keys(&prefix), [""; 0]);
}
