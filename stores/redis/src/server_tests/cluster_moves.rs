//! Slots that move from one server of a cluster to another, completely or half.

use lock_core::store::{Notice, StoreErrorKind, Watch, Withdrawn};

use super::cluster::{Cluster, ClusterExt as _, SlotMove, home, slot_of};
use super::*;

const LOCK: &str = "lock:a";
const COUNTER: &str = "redisson_lock_token:{lock:a}";
const CHANNEL: &str = "redisson_lock__channel:{lock:a}";

/// Returns the server that has the lock `a`, and another one.
fn ends() -> (usize, usize) {
    let from = home(LOCK);
    (from, (from + 1) % 3)
}

/// Begins to move the slot of the lock `a`.
fn begin_move(cluster: &Cluster) -> SlotMove {
    cluster.begin_move(slot_of(LOCK), ends().1)
}

async fn notice(watch: &mut Watch) -> Notice {
    tokio::time::timeout(Duration::from_secs(10), watch.notice()).await.expect("no notice within 10 s")
}

async fn exists(cluster: &Cluster, server: usize, key: &str) -> bool {
    cluster.nodes()[server].keys().await.iter().any(|found| found == key)
}

/// Moves the slot of the lock `a` with these keys.
async fn move_all(cluster: &Cluster, keys: &[&str]) {
    let moving = begin_move(cluster);
    for key in keys {
        cluster.move_key(moving, key).await;
    }
    cluster.end_move(moving);
}

#[tokio::test]
async fn a_slot_that_has_moved_is_found() {
    let cluster = Cluster::start();
    let store = cluster.store();
    store.check().await.unwrap();
    let (_, to) = ends();
    move_all(&cluster, &[]).await;
    let mine = [item("a")];
    granted(&store, &mine).await;
    assert!(exists(&cluster, to, LOCK).await);
    assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
    assert_eq!(cluster.keys().await, [COUNTER]);
}

#[tokio::test]
async fn a_user_without_the_right_to_asking_gets_an_error() {
    let cluster = Cluster::start();
    for server in cluster.nodes() {
        let _: () =
            server.ask(&["ACL", "SETUSER", "ann", "on", ">hunter2", "~*", "&*", "+@all", "-asking"]).await;
    }
    let url = cluster.seed().replace("://", "://ann:hunter2@");
    let store = store_at(&url, options());
    store.check().await.unwrap();
    let moving = begin_move(&cluster);
    let error = store.acquire(Arc::new(request(&[item("a")]))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("asking"), "{error}");
    cluster.end_move(moving);
}

#[tokio::test]
async fn a_hold_survives_the_move_of_its_slot() {
    let cluster = Cluster::start();
    let store = cluster.store();
    let mine = [item("a")];
    let before = granted(&store, &mine).await;
    move_all(&cluster, &[LOCK, COUNTER]).await;
    assert_eq!(renew(&store, &mine, LEASE * 2).await, [Renewed::Held]);
    assert_eq!(busy(&store, &[item("a")]).await.item, 0);
    assert_eq!(store.status(key("a")).await.unwrap().holders.len(), 1);
    assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
    let after = granted(&store, &[item("a")]).await;
    assert!(after.tokens[0].first > before.tokens[0].last);
}

#[tokio::test]
async fn a_waiter_is_woken_by_the_move_of_its_slot_and_hears_of_the_release_after_it() {
    let cluster = Cluster::start();
    let (holder, waiter) = (cluster.store(), cluster.store());
    let mine = [item("a")];
    granted(&holder, &mine).await;
    let mut watch = waiter.watch(Arc::new(request(&[item("a")]))).await.unwrap();
    assert!(watch.is_confirmed());
    let (from, to) = ends();
    let subscribers = async |server: usize| -> u64 {
        let (_, count): (String, u64) =
            cluster.nodes()[server].ask(&["PUBSUB", "SHARDNUMSUB", CHANNEL]).await;
        count
    };
    assert_eq!((subscribers(from).await, subscribers(to).await), (1, 0));

    move_all(&cluster, &[LOCK, COUNTER]).await;
    while notice(&mut watch).await != Notice::Resubscribed {}
    assert_eq!((subscribers(from).await, subscribers(to).await), (0, 1));
    while watch.try_notice().is_some() {}

    let released = release(&holder, &mine).await.unwrap();
    assert_eq!((released.held, released.rivals), (vec![true].into(), Rivals::Some));
    assert_eq!(notice(&mut watch).await, Notice::Retry);
    granted(&waiter, &[item("a")]).await;
}

#[tokio::test]
async fn a_lock_whose_counter_has_stayed_behind_is_kept_released_and_taken() {
    let cluster = Cluster::start();
    let (store, other) = (cluster.store(), cluster.store());
    let mine = [item("a")];
    let before = granted(&store, &mine).await;
    let moving = begin_move(&cluster);
    cluster.move_key(moving, LOCK).await;

    // The server that is asked has never seen these scripts.
    assert_eq!(renew(&store, &mine, LEASE * 2).await, [Renewed::Held]);
    assert_eq!(busy(&other, &[item("a")]).await.item, 0);
    let released = release(&store, &mine).await.unwrap();
    assert_eq!(released.held, [true]);

    let next = [item("a")];
    let after = granted(&other, &next).await;
    assert!(after.tokens[0].first > before.tokens[0].last, "{after:?} {before:?}");
    assert_eq!(after.tokens[0].first, after.tokens[0].last, "one token only");
    assert_eq!(
        (exists(&cluster, moving.to, LOCK).await, exists(&cluster, moving.from, COUNTER).await),
        (true, true)
    );

    cluster.move_key(moving, COUNTER).await;
    cluster.end_move(moving);
    assert_eq!(renew(&other, &next, LEASE).await, [Renewed::Held]);
    assert_eq!(release(&other, &next).await.unwrap().held, [true]);
    let last = granted(&store, &[item("a")]).await;
    assert!(last.tokens[0].first > after.tokens[0].last, "the counter goes on above it");
}

#[tokio::test]
async fn a_lock_whose_counter_has_gone_ahead_is_kept_released_and_taken() {
    let cluster = Cluster::start();
    let (store, other) = (cluster.store(), cluster.store());
    let mine = [item("a")];
    let before = granted(&store, &mine).await;
    let moving = begin_move(&cluster);
    cluster.move_key(moving, COUNTER).await;

    assert_eq!(renew(&store, &mine, LEASE * 2).await, [Renewed::Held]);
    assert_eq!(busy(&other, &[item("a")]).await.item, 0);
    assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
    let next = [item("a")];
    let after = granted(&other, &next).await;
    assert!(after.tokens[0].first > before.tokens[0].last);
    assert!(exists(&cluster, moving.to, LOCK).await, "new keys are made where the slot goes");
    assert_eq!(release(&other, &next).await.unwrap().held, [true]);
    assert_eq!(cluster.keys().await, [COUNTER]);
}

#[tokio::test]
async fn a_lock_that_never_was_is_taken_while_its_slot_moves() {
    let cluster = Cluster::start();
    let store = cluster.store();
    begin_move(&cluster);
    let mine = [item("a")];
    let begun = tokio::time::Instant::now();
    granted(&store, &mine).await;
    assert!(begun.elapsed() >= Duration::from_millis(500), "the counter is waited for");
    release(&store, &mine).await.unwrap();
    // The move is known by now.
    let begun = tokio::time::Instant::now();
    granted(&store, &mine).await;
    assert!(begun.elapsed() < Duration::from_millis(500));
    release(&store, &mine).await.unwrap();
    assert_eq!(cluster.keys().await, [""; 0]);
}

#[tokio::test]
async fn a_call_without_time_for_that_says_that_the_slot_moves() {
    let cluster = Cluster::start();
    let store = cluster.store();
    store.check().await.unwrap();
    let moving = begin_move(&cluster);
    let short = AcquireRequest::new(vec![item("a")], LEASE, Duration::from_millis(200));
    let error = store.acquire(Arc::new(short)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotReady, "{error}");
    assert!(error.to_string().contains("TRYAGAIN"), "{error}");
    // Other kinds need more than one key.
    for kind in [Kind::Fair, Kind::Write, Kind::Read] {
        let error = acquire(&store, &[item_of(kind, "a")]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::NotReady, "{kind:?}: {error}");
    }
    cluster.end_move(moving);
    for kind in [Kind::Fair, Kind::Write, Kind::Read] {
        let mine = [item_of(kind, "a")];
        granted(&store, &mine).await;
        assert_eq!(release(&store, &mine).await.unwrap().held, [true], "{kind:?}");
    }
}

#[tokio::test]
async fn locks_that_moved_in_part_are_kept_and_given_back_one_by_one() {
    let cluster = Cluster::start();
    let store = cluster.store_with(|options| options.prefix.clear());
    let mine = [item("{t}a"), item("{t}b")];
    granted(&store, &mine).await;
    let moving = cluster.begin_move(slot_of("{t}"), (home("{t}") + 1) % 3);
    cluster.move_key(moving, "{t}b").await;
    assert_eq!(renew(&store, &mine, LEASE * 2).await, [Renewed::Held, Renewed::Held]);
    assert_eq!(release(&store, &mine).await.unwrap().held, [true, true]);

    let sent = Arc::new(request(&[item("{t}a"), item("{t}b")]));
    assert!(matches!(store.acquire(Arc::clone(&sent)).await.unwrap(), Acquired::Granted(_)));
    let withdrawn = store.withdraw(sent).await.unwrap();
    assert!(matches!(withdrawn, Withdrawn::Pending(_)), "a late copy may come: {withdrawn:?}");
    let counters: Vec<_> = cluster.keys().await;
    assert!(counters.iter().all(|key| key.starts_with("redisson_lock_token:")), "{counters:?}");
}

/// The server that imports the slot is told only the name of the lock, and lacks its further keys.
#[tokio::test]
async fn readers_do_not_take_each_other_for_gone_while_their_lock_moves_in_part() {
    let cluster = Cluster::start();
    let (store, other) = (cluster.store(), cluster.store());
    let (mine, theirs) = ([item_of(Kind::Read, "a")], [item_of(Kind::Read, "a")]);
    granted(&store, &mine).await;
    granted(&other, &theirs).await;
    let moving = begin_move(&cluster);
    let keys = cluster.keys().await;
    let is_of = |key: &str, items: &[Item]| key.contains(items[0].owner.as_str());
    let (last, first): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| is_of(key, &theirs));
    assert_eq!(last.len(), 1, "{last:?}");
    for key in &first {
        cluster.move_key(moving, key).await;
    }

    assert_eq!(renew(&store, &mine, LEASE).await, [Renewed::Held]);
    assert_eq!(renew(&other, &theirs, LEASE).await, [Renewed::Unknown], "it is at the other server");
    let error = release(&store, &mine).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotReady, "{error}");
    for key in &last {
        cluster.move_key(moving, key).await;
    }
    cluster.end_move(moving);

    assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
    assert_eq!(renew(&other, &theirs, LEASE).await, [Renewed::Held]);
    busy(&store, &[item_of(Kind::Write, "a")]).await;
    assert_eq!(release(&other, &theirs).await.unwrap().held, [true]);
    granted(&store, &[item_of(Kind::Write, "a")]).await;
}

#[tokio::test]
async fn a_waiter_hears_of_a_release_where_the_slot_is_only_about_to_be() {
    let cluster = Cluster::start();
    let (holder, waiter) = (cluster.store(), cluster.store());
    let mine = [item("a")];
    granted(&holder, &mine).await;
    let mut watch = waiter.watch(Arc::new(request(&[item("a")]))).await.unwrap();
    let moving = begin_move(&cluster);
    cluster.move_key(moving, LOCK).await;
    assert_eq!(watch.try_notice(), None);
    release(&holder, &mine).await.unwrap();
    assert_eq!(notice(&mut watch).await, Notice::Retry);
}

#[tokio::test]
async fn a_waiter_looks_by_itself_while_it_knows_that_the_slot_moves() {
    let cluster = Cluster::start();
    let (holder, waiter) = (cluster.store(), cluster.store());
    let mine = [item("a")];
    granted(&holder, &mine).await;
    let mut watch = waiter.watch(Arc::new(request(&[item("a")]))).await.unwrap();
    let moving = begin_move(&cluster);
    cluster.move_key(moving, LOCK).await;
    cluster.move_key(moving, COUNTER).await;
    assert_eq!(busy(&waiter, &[item("a")]).await.item, 0);
    // Without a message, as from a client whose message nobody receives.
    let _: () = cluster.nodes()[moving.to].ask(&["ASKING"]).await;
    assert_eq!(notice(&mut watch).await, Notice::Retry);
    assert_eq!(notice(&mut watch).await, Notice::Retry);
}

#[tokio::test]
async fn a_slot_between_two_servers_is_not_waited_for_when_it_comes_back() {
    let cluster = Cluster::start();
    let store = cluster.store();
    let mine = [item("a")];
    granted(&store, &mine).await;
    let (from, _) = ends();
    move_all(&cluster, &[LOCK, COUNTER]).await;
    assert_eq!(renew(&store, &mine, LEASE).await, [Renewed::Held]);
    let moving = cluster.begin_move(slot_of(LOCK), from);
    cluster.move_key(moving, LOCK).await;
    cluster.move_key(moving, COUNTER).await;
    cluster.end_move(moving);
    assert_eq!(renew(&store, &mine, LEASE).await, [Renewed::Held]);
    assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
}

#[tokio::test]
async fn who_only_looks_at_a_slot_that_moves_wakes_nobody() {
    let cluster = Cluster::start();
    let store = cluster.store();
    let latches = store.latches().unwrap();
    assert!(latches.try_set_count(key("l"), 2, TIMEOUT).await.unwrap());
    let moving = cluster.begin_move(slot_of("lock:l"), (home("lock:l") + 1) % 3);
    cluster.move_key(moving, "lock:l").await;
    for server in cluster.nodes() {
        let _: () = server.ask(&["CONFIG", "RESETSTAT"]).await;
    }
    let published = async || {
        let mut published = false;
        for server in cluster.nodes() {
            let info: String = server.ask(&["INFO", "commandstats"]).await;
            published |= info.contains("cmdstat_spublish");
        }
        published
    };
    assert_eq!(latches.count(key("l"), TIMEOUT).await.unwrap(), 2);
    assert!(!published().await, "nothing has changed");
    assert!(latches.delete(key("l"), TIMEOUT).await.unwrap());
    assert!(published().await, "it is open");
}

/// As between the last two commands of a manual move of a slot.
#[tokio::test]
async fn servers_that_name_each_other_are_not_asked_in_a_circle() {
    let cluster = Cluster::start();
    let store = cluster.store();
    let (from, to) = ends();
    let rejected = async |server: usize| -> u64 {
        let stats: String = cluster.nodes()[server].ask(&["INFO", "commandstats"]).await;
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_ssubscribe:"));
        let count = line.and_then(|line| line.split_once("rejected_calls=")?.1.split(',').next());
        count.map_or(0, |count| count.parse().unwrap())
    };
    let moving = SlotMove { slot: slot_of(LOCK), from, to };
    let (slot, id) = (moving.slot.to_string(), cluster.nodes()[to].cli(&["CLUSTER", "MYID"]));
    let _: () = cluster.nodes()[from].ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]).await;
    let watch = store.watch(Arc::new(request(&[item("a")]))).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let circles = rejected(from).await.max(rejected(to).await);
    // The cluster may repair itself meanwhile.
    assert!(circles <= 50, "{circles} subscriptions in a second");
    cluster.end_move(moving);
    drop(watch);
}
