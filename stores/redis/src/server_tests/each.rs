//! Calls for several items: an error on one does not affect the others.

use std::time::Duration;

use lock_core::store::{
    ListenerPolicy, PermitId, Permits, PermitsAcquired, PermitsChange, PermitsHold, PermitsRenew,
    PermitsRequest, StoreErrorKind, Takeover,
};

use super::cluster::{Cluster, ClusterExt as _};
use super::*;

const USER: &str = "ann";
const PASSWORD: &str = "hunter2";
const LONGER: Duration = Duration::from_secs(20);
/// All names that belong to a lock whose key begins with `k`, for each kind.
const RIGHTS: [&str; 4] = ["~lock:k*", "~{lock:k*", "~redisson_*{lock:k*", "~lock_*{lock:k*"];

/// Removes all rights of the user except those to `patterns`.
async fn may_only(server: &RedisServer, patterns: &[&str]) {
    let _: () = server.ask(&[&["ACL", "SETUSER", USER, "resetkeys"], patterns].concat()).await;
}

async fn user(server: &RedisServer) -> RedisStore {
    let password = format!(">{PASSWORD}");
    let _: () = server.ask(&["ACL", "SETUSER", USER, "on", &password, "~*", "&*", "+@all"]).await;
    RedisStore::new(&server.client_as(USER, PASSWORD), options()).unwrap()
}

async fn left(server: &RedisServer, item: &Item) -> Duration {
    let millis: i64 = server.ask(&["PTTL", &format!("lock:{}", item.key)]).await;
    Duration::from_millis(millis.max(0).unsigned_abs())
}

/// Takes each item alone: "k0", "other" and "k1" in each of the kinds.
async fn taken(store: &RedisStore, kinds: &[Kind]) -> Vec<Item> {
    let mut items = Vec::new();
    for name in ["k0", "other", "k1"] {
        for &kind in kinds {
            let item = item_of(kind, &format!("{name}:{kind:?}"));
            granted(store, std::slice::from_ref(&item)).await;
            items.push(item);
        }
    }
    items
}

fn is_other(item: &Item) -> bool {
    item.key.as_str().starts_with("other")
}

fn others(items: &[Item]) -> Vec<Item> {
    items.iter().filter(|item| is_other(item)).cloned().collect()
}

const MUTEXES: &[Kind] = &[Kind::Mutex];
const ALL: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];

#[tokio::test]
async fn each_hold_is_renewed_that_the_user_may_renew() {
    for kinds in [MUTEXES, ALL] {
        let server = RedisServer::start();
        let store = user(&server).await;
        let items = taken(&store, kinds).await;
        may_only(&server, &RIGHTS).await;
        let kept = renew(&store, &items, LONGER).await;
        for (item, kept) in items.iter().zip(kept) {
            assert_eq!(kept, if is_other(item) { Renewed::Unknown } else { Renewed::Held }, "{item:?}");
            assert_eq!(left(&server, item).await > LEASE, !is_other(item), "{item:?}");
        }
        let refused = store.renew(renew_request(&others(&items), LONGER, Standing::Holder)).await;
        assert_eq!(refused.unwrap_err().kind(), StoreErrorKind::Denied);
    }
}

/// The server does not refuse the script for any of its keys, but a command inside fails.
#[tokio::test]
async fn each_hold_is_renewed_although_the_script_fails_for_another() {
    let server = RedisServer::start();
    let store = user(&server).await;
    let items = taken(&store, &[Kind::Write, Kind::Read]).await;
    // Rights to the lock itself, without the hold keys of its readers.
    may_only(&server, &[&RIGHTS[..], &["~lock:other*", "~redisson_*", "~lock_*"]].concat()).await;
    let unknown = |item: &Item| is_other(item) && item.kind == Kind::Read;
    for (item, kept) in items.iter().zip(renew(&store, &items, LONGER).await) {
        assert_eq!(kept, if unknown(item) { Renewed::Unknown } else { Renewed::Held }, "{item:?}");
    }
    let writers: Vec<_> = items.into_iter().filter(|item| item.kind == Kind::Write).collect();
    for (item, kept) in writers.iter().zip(downgrade(&store, &writers, LONGER).await) {
        assert_eq!(kept, if is_other(item) { Renewed::Unknown } else { Renewed::Held }, "{item:?}");
    }
}

#[tokio::test]
async fn each_waiter_keeps_its_place_that_the_user_may_keep() {
    let server = RedisServer::start();
    let store = user(&server).await;
    let items = taken(&store, &[Kind::Fair]).await;
    let waiters: Vec<_> = items.iter().map(|item| Item { owner: owner(), ..item.clone() }).collect();
    for waiter in &waiters {
        waits(&store, std::slice::from_ref(waiter)).await;
    }
    may_only(&server, &RIGHTS).await;
    for (item, kept) in waiters.iter().zip(stay(&store, &waiters).await) {
        assert_eq!(kept == Renewed::Unknown, is_other(item), "{item:?}: {kept:?}");
        assert!(is_other(item) || matches!(kept, Renewed::Waiting(_)), "{item:?}: {kept:?}");
    }
}

/// At once, and after a linger.
#[tokio::test]
async fn each_hold_is_given_back_that_the_user_may_give_back() {
    for kinds in [MUTEXES, ALL] {
        let server = RedisServer::start();
        let store = user(&server).await;
        let items = taken(&store, kinds).await;
        may_only(&server, &RIGHTS).await;
        let linger = Duration::from_secs(5);
        let later = ReleaseRequest { linger, ..release_request(&items) };
        assert_eq!(store.release(Arc::new(later)).await.unwrap_err().kind(), StoreErrorKind::Denied);
        for item in &items {
            assert_eq!(left(&server, item).await > linger, is_other(item), "{item:?}");
        }
        assert_eq!(release(&store, &items).await.unwrap_err().kind(), StoreErrorKind::Denied);
        for item in &items {
            assert_eq!(left(&server, item).await.is_zero(), !is_other(item), "{item:?}");
        }
    }
}

#[tokio::test]
async fn each_item_is_withdrawn_that_the_user_may_withdraw() {
    // The item without rights is of each kind in turn.
    for kinds in
        [[Kind::Mutex; 3]].into_iter().chain(ALL.iter().map(|&kind| [Kind::Mutex, kind, Kind::Write]))
    {
        let server = RedisServer::start();
        let store = user(&server).await;
        let items: Vec<_> =
            ["k0", "other", "k1"].iter().zip(kinds).map(|(name, kind)| item_of(kind, name)).collect();
        let sent = Arc::new(request(&items));
        assert!(matches!(store.acquire(Arc::clone(&sent)).await.unwrap(), Acquired::Granted(_)));
        may_only(&server, &RIGHTS).await;
        assert_eq!(store.withdraw(sent).await.unwrap_err().kind(), StoreErrorKind::Denied);
        for item in &items {
            assert_eq!(left(&server, item).await.is_zero(), !is_other(item), "{item:?}");
        }
    }
}

#[tokio::test]
async fn each_permit_is_renewed_that_the_user_may_renew() {
    let server = RedisServer::start();
    let store = user(&server).await;
    let semaphores = store.semaphores().unwrap();
    let names = ["k0", "other", "k1"];
    let id = || vec![PermitId::from_bytes([7; 16])];
    for name in names {
        let change = PermitsChange { key: key(name), permits: Permits::Set(1), timeout: TIMEOUT };
        assert!(semaphores.change(change).await.unwrap());
        let wish = PermitsRequest::new(key(name), id(), LEASE, TIMEOUT);
        let acquired = semaphores.acquire(Arc::new(wish)).await.unwrap();
        assert!(matches!(acquired, PermitsAcquired::Granted(_)), "{acquired:?}");
    }
    may_only(&server, &RIGHTS).await;
    let holds = names.map(|name| PermitsHold { key: key(name), ids: id(), lease: LONGER });
    let request = PermitsRenew { holds: holds.to_vec(), timeout: TIMEOUT };
    assert_eq!(semaphores.renew(request).await.unwrap(), [Some(vec![true]), None, Some(vec![true])]);
}

/// In cluster mode, with all slots. The server refuses the first call for several items, and gets
/// no other.
#[tokio::test]
async fn a_server_that_looks_at_slots_is_asked_for_each_item() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    server.take_all_slots().await;
    let store = store(&server);
    for kinds in [MUTEXES, ALL] {
        let items = taken(&store, kinds).await;
        for _ in 0..2 {
            assert!(renew(&store, &items, LONGER).await.iter().all(|kept| *kept == Renewed::Held));
        }
        let refused: String = server.ask(&["INFO", "errorstats"]).await;
        let count = refused.lines().find_map(|line| line.strip_prefix("errorstat_CROSSSLOT:count="));
        assert_eq!(count.map(str::trim), Some("1"), "{refused}");
        let writers: Vec<_> = items.iter().filter(|item| item.kind == Kind::Write).cloned().collect();
        if kinds == ALL {
            assert_eq!(downgrade(&store, &writers, LONGER).await, [Renewed::Held; 3]);
        }
        assert_eq!(release(&store, &items).await.unwrap().held, vec![true; items.len()]);
    }
}

/// A release with a takeover in the same step.
#[tokio::test]
async fn each_lock_is_given_back_when_they_cannot_be_taken_over() {
    let server = RedisServer::start();
    let store = user(&server).await;
    let items: Vec<_> = ["k0", "other", "k1"].map(item).into();
    granted(&store, &items).await;
    may_only(&server, &RIGHTS).await;
    let next: Vec<_> = items.iter().map(|item| Item { owner: owner(), ..item.clone() }).collect();
    let then = Takeover { request: Arc::new(request(&next)), listeners: ListenerPolicy::Ignore };
    let handed_off = ReleaseRequest { then: Some(then), ..release_request(&items) };
    assert_eq!(store.release(Arc::new(handed_off)).await.unwrap_err().kind(), StoreErrorKind::Denied);
    for item in &items {
        assert_eq!(left(&server, item).await.is_zero(), !is_other(item), "{item:?}");
    }
}

/// The items of one hold have one outcome.
#[tokio::test]
async fn a_hold_is_told_why_one_of_its_items_is_refused() {
    let server = RedisServer::start();
    let store = user(&server).await;
    let one = owner();
    let items = ["k0", "other", "k1"].map(|name| Item { owner: one.clone(), ..item(name) });
    granted(&store, &items).await;
    may_only(&server, &RIGHTS).await;
    let refused = store.renew(renew_request(&items, LONGER, Standing::Holder)).await;
    assert_eq!(refused.unwrap_err().kind(), StoreErrorKind::Denied);
}

/// A user without the right to run scripts is not asked again for each item.
#[tokio::test]
async fn a_user_who_may_do_nothing_is_refused_once() {
    let server = RedisServer::start();
    let store = user(&server).await;
    let items = taken(&store, MUTEXES).await;
    let _: () = server.ask(&["ACL", "SETUSER", USER, "-evalsha"]).await;
    assert_eq!(
        store.renew(renew_request(&items, LONGER, Standing::Holder)).await.unwrap_err().kind(),
        StoreErrorKind::Denied
    );
    let refused: String = server.ask(&["INFO", "errorstats"]).await;
    assert!(refused.contains("errorstat_NOPERM:count=1\r\n"), "{refused}");
}

/// In one slot of a cluster, whose servers check rights before slots.
#[tokio::test]
async fn each_item_of_a_slot_is_served_that_the_user_has_rights_to() {
    let cluster = Cluster::start();
    let store = cluster.store();
    let items = ["{t}k0", "{t}other", "{t}k1"].map(item);
    for item in &items {
        granted(&store, std::slice::from_ref(item)).await;
    }
    let sent = Arc::new(request(&["{t}k2", "{t}other2", "{t}k3"].map(item)));
    assert!(matches!(store.acquire(Arc::clone(&sent)).await.unwrap(), Acquired::Granted(_)));
    let all_may = async |rights: &[&str]| {
        for node in cluster.nodes() {
            let _: () = node.ask(&[&["ACL", "SETUSER", "default", "resetkeys"], rights].concat()).await;
        }
    };
    all_may(&["~lock:{t}k*"]).await;
    assert_eq!(renew(&store, &items, LONGER).await, [Renewed::Held, Renewed::Unknown, Renewed::Held]);
    assert!(release(&store, &items).await.is_err());
    assert!(store.withdraw(sent).await.is_err());
    all_may(&["~*"]).await;
    let locked: Vec<String> =
        cluster.keys().await.into_iter().filter(|key| key.starts_with("lock:")).collect();
    assert_eq!(locked, ["lock:{t}other", "lock:{t}other2"]);
}
