//! Calls for several items: what is wrong with one is no matter of the others.

use std::time::Duration;

use super::*;
use crate::store::{
    PermitId, Permits, PermitsAcquired, PermitsChange, PermitsHold, PermitsKeep, PermitsRequest,
    StoreErrorKind,
};

const USER: &str = "ann";
const PASSWORD: &str = "hunter2";
const LONGER: Duration = Duration::from_secs(20);
/// All names that belong to a lock whose key begins with `k`, for each kind.
const RIGHTS: [&str; 4] = ["~lock:k*", "~{lock:k*", "~redisson_*{lock:k*", "~lock_*{lock:k*"];

/// A user that has lost the rights to everything but `patterns`.
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
        let kept = keep(&store, &items, LONGER).await;
        for (item, kept) in items.iter().zip(kept) {
            assert_eq!(kept, if is_other(item) { Kept::Unknown } else { Kept::Renewed }, "{item:?}");
            assert_eq!(left(&server, item).await > LEASE, !is_other(item), "{item:?}");
        }
        let refused = store.keep(keep_request(&others(&items), LONGER, Standing::Holder)).await;
        assert_eq!(refused.unwrap_err().kind(), StoreErrorKind::Denied);
    }
}

/// The server refuses the script for none of its keys; a command inside fails.
#[tokio::test]
async fn each_hold_is_renewed_although_the_script_fails_for_another() {
    let server = RedisServer::start();
    let store = user(&server).await;
    let items = taken(&store, &[Kind::Write, Kind::Read]).await;
    // The lock itself, without the hold keys of its readers.
    may_only(&server, &[&RIGHTS[..], &["~lock:other*", "~redisson_*", "~lock_*"]].concat()).await;
    let unknown = |item: &Item| is_other(item) && item.kind == Kind::Read;
    for (item, kept) in items.iter().zip(keep(&store, &items, LONGER).await) {
        assert_eq!(kept, if unknown(item) { Kept::Unknown } else { Kept::Renewed }, "{item:?}");
    }
    let writers: Vec<_> = items.into_iter().filter(|item| item.kind == Kind::Write).collect();
    for (item, kept) in writers.iter().zip(downgrade(&store, &writers, LONGER).await) {
        assert_eq!(kept, if is_other(item) { Kept::Unknown } else { Kept::Renewed }, "{item:?}");
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
        assert_eq!(kept == Kept::Unknown, is_other(item), "{item:?}: {kept:?}");
        assert!(is_other(item) || matches!(kept, Kept::Waiting(_)), "{item:?}: {kept:?}");
    }
}

/// Now, and later.
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
    for kinds in [MUTEXES, ALL] {
        let server = RedisServer::start();
        let store = user(&server).await;
        let names = ["k0", "other", "k1"];
        let items: Vec<_> =
            names.iter().zip(kinds.iter().cycle()).map(|(name, &kind)| item_of(kind, name)).collect();
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
    let request = PermitsKeep { holds: holds.to_vec(), timeout: TIMEOUT };
    assert_eq!(semaphores.keep(request).await.unwrap(), [Some(vec![true]), None, Some(vec![true])]);
}

/// Of a server in cluster mode that has all slots. It refuses the first call, and is asked for no other one in vain.
#[tokio::test]
async fn a_server_that_looks_at_slots_is_asked_for_each_item() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    server.take_all_slots().await;
    let store = store(&server);
    for kinds in [MUTEXES, ALL] {
        let items = taken(&store, kinds).await;
        for _ in 0..2 {
            assert!(keep(&store, &items, LONGER).await.iter().all(|kept| *kept == Kept::Renewed));
        }
        let refused: String = server.ask(&["INFO", "errorstats"]).await;
        let count = refused.lines().find_map(|line| line.strip_prefix("errorstat_CROSSSLOT:count="));
        assert_eq!(count.map(str::trim), Some("1"), "{refused}");
        let writers: Vec<_> = items.iter().filter(|item| item.kind == Kind::Write).cloned().collect();
        assert_eq!(downgrade(&store, &writers, LONGER).await, vec![Kept::Renewed; writers.len()]);
        assert_eq!(release(&store, &items).await.unwrap().held, vec![true; items.len()]);
    }
}
