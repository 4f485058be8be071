//! Requests for keys in several slots: all or nothing, nothing left behind, and no two requests
//! block each other forever.

use lock_core::FencingToken;
use lock_core::store::{Acquired, StoreErrorKind, Withdrawn};

use super::cluster::{Cluster, ClusterExt as _, home, slot_of};
use super::*;

/// Returns names in three slots, at three servers, not in the order of their slots.
fn apart() -> [String; 3] {
    let find = |index| {
        let mut names = (0..).map(|number| format!("k{number}"));
        names.find(|name| home(&format!("lock:{name}")) == index).unwrap()
    };
    [find(2), find(0), find(1)]
}

#[tokio::test]
async fn keys_of_three_servers_are_taken_renewed_and_given_back_together() {
    let cluster = Cluster::start();
    let store = cluster.store();
    let mine = apart().map(|name| item(&name));
    let granted = granted(&store, &mine).await;
    assert_eq!(granted.tokens.len(), 3);
    for (item, range) in mine.iter().zip(&granted.tokens) {
        let status = store.status(item.key.clone()).await.unwrap();
        assert_eq!(status.holders, [(item.owner.clone(), 1)]);
        assert_eq!(status.last_token.map(FencingToken::get), Some(range.last), "each has its own token");
    }
    assert_eq!(renew(&store, &mine, LEASE * 2).await, [Renewed::Held; 3]);
    let stranger = item(mine[1].key.as_str());
    let some = [mine[0].clone(), stranger, mine[2].clone()];
    assert_eq!(release(&store, &some).await.unwrap().held, [true, false, true]);
    assert_eq!(release(&store, &mine).await.unwrap().held, [false, true, false]);
    assert_eq!(cluster.keys().await.len(), 3, "counters");
}

#[tokio::test]
async fn a_refused_request_leaves_nothing_behind() {
    let cluster = Cluster::start();
    let store = cluster.store();
    let names = apart();
    for index in 0..3 {
        let held = [item(&names[index])];
        granted(&store, &held).await;
        for kind in [Kind::Mutex, Kind::Write, Kind::Fair] {
            let wish = names.clone().map(|name| item_of(kind, &name));
            assert_eq!(waits(&store, &wish).await.item, index);
            assert_eq!(busy(&store, &wish).await.item, index);
            for (at, name) in names.iter().enumerate() {
                let status = store.status(key(name)).await.unwrap();
                assert_eq!(status.is_locked(), at == index, "{kind:?} {name}");
                assert!(at == index || status.waiters == 0, "{kind:?} {name} {status:?}");
            }
        }
        release(&store, &held).await.unwrap();
    }
    let keys = cluster.keys().await;
    assert!(keys.iter().all(|key| key.starts_with("redisson_lock_token:")), "{keys:?}");
}

#[tokio::test]
async fn a_refused_request_does_not_wake_itself_for_ever() {
    let cluster = Cluster::start();
    let store = cluster.store();
    let names = apart();
    let wished = || Arc::new(request(&names.clone().map(|name| item(&name))));
    // Whichever slot comes first, and whether or not each attempt has its own owner.
    for (held, anew) in names.iter().flat_map(|name| [(name, false), (name, true)]) {
        let held = [item(held)];
        granted(&store, &held).await;
        let mut wish = wished();
        let mut watch = store.watch(Arc::clone(&wish)).await.unwrap();
        let mut tries = 0;
        loop {
            tries += 1;
            if anew {
                wish = wished();
            }
            let answer = store.acquire(Arc::clone(&wish)).await.unwrap();
            assert!(matches!(answer, Acquired::Busy(_)), "{answer:?}");
            if tokio::time::timeout(Duration::from_millis(300), watch.notice()).await.is_err() {
                break;
            }
            assert!(tries < 20, "it wakes itself");
        }
        release(&store, &held).await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), watch.notice()).await.expect("the release is heard");
        assert!(matches!(store.acquire(Arc::clone(&wish)).await.unwrap(), Acquired::Granted(_)));
        release(&store, &wish.items).await.unwrap();
    }
}

#[tokio::test]
async fn rivals_for_the_same_keys_all_get_them_one_after_the_other() {
    let cluster = Cluster::start();
    let names = apart();
    let inside = Arc::new(AtomicU64::new(0));
    let mut rivals = tokio::task::JoinSet::new();
    for rival in 0..4 {
        let (store, inside) = (cluster.store(), Arc::clone(&inside));
        let mut names = names.clone();
        names.rotate_left(rival % 3);
        rivals.spawn(async move {
            for _ in 0..5 {
                let mine = names.clone().map(|name| item(&name));
                let wish = Arc::new(request(&mine).queued(LEASE));
                while let Acquired::Busy(_) = store.acquire(Arc::clone(&wish)).await.unwrap() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                release(&store, &mine).await.unwrap();
            }
        });
    }
    tokio::time::timeout(Duration::from_secs(60), rivals.join_all()).await.expect("they block each other");
}

#[tokio::test]
async fn a_withdrawal_reaches_every_slot() {
    let cluster = Cluster::start();
    let store = cluster.store();
    let mine = apart().map(|name| item(&name));
    let sent = Arc::new(AcquireRequest::new(mine.to_vec(), LEASE, Duration::from_millis(300)));
    assert!(matches!(store.acquire(Arc::clone(&sent)).await.unwrap(), Acquired::Granted(_)));
    loop {
        match store.withdraw(Arc::clone(&sent)).await.unwrap() {
            Withdrawn::Settled => break,
            Withdrawn::Pending(left) => tokio::time::sleep(left).await,
        }
        for item in &mine {
            assert!(!store.status(item.key.clone()).await.unwrap().is_locked());
        }
    }

    // A request that was withdrawn before it was sent takes nothing at any server.
    let never = Arc::new(request(&mine));
    assert_eq!(store.withdraw(Arc::clone(&never)).await.unwrap(), Withdrawn::Settled);
    let error = store.acquire(never).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TooLate, "{error}");
    for item in &mine {
        assert!(!store.status(item.key.clone()).await.unwrap().is_locked());
    }
}

#[tokio::test]
async fn keys_of_a_half_moved_slot_have_their_own_tokens() {
    let cluster = Cluster::start();
    let store = cluster.store();
    let from = home("lock:{t}x");
    let mut others = (0..).map(|number| format!("k{number}"));
    let other = others.find(|name| home(&format!("lock:{name}")) != from).unwrap();
    // Not in the order of their slots.
    let names = ["{t}x", &other, "{t}y"];
    let mine = names.map(item);
    let before = granted(&store, &mine).await;
    assert_eq!(release(&store, &mine).await.unwrap().held, [true; 3]);
    let to = (from + 1) % 3;
    cluster.begin_move(slot_of("lock:{t}x"), to);

    let next = names.map(item);
    let after = loop {
        match store.acquire(Arc::new(request(&next))).await {
            Ok(Acquired::Granted(granted)) => break granted,
            Err(error) if error.kind() == StoreErrorKind::NotReady => {}
            other => panic!("{other:?}"),
        }
    };
    for ((name, before), after) in names.iter().zip(before.tokens).zip(after.tokens) {
        assert!(after.first > before.last, "{name}: {after:?} after {before:?}");
    }
    assert_eq!(release(&store, &next).await.unwrap().held, [true; 3]);
}
