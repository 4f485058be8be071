//! Odd states of fair locks: damaged and foreign queues, long ones, full memory, missing rights.

use lock_core::store::{Renewed, StoreErrorKind};

use super::fair::{owners, with_waiters};
use super::fair_rig::{ALIVE, FIVE, Java, LOCK, QUEUE, Rig, TIMEOUTS, fair};
use super::*;

/// A queue of which a part was deleted repairs itself. Its waiters lose at most their place.
#[tokio::test]
async fn a_damaged_queue_heals() {
    let rig = Rig::start().await;
    let (holder, [first, second]) = with_waiters(&rig).await;
    for part in [QUEUE, TIMEOUTS, ALIVE] {
        let _: u64 = rig.run(&["DEL", part]).await;
        for waiter in [&first, &second] {
            if rig.stay(waiter).await == Renewed::Gone {
                rig.queue_up(waiter, FIVE).await;
            }
            assert!(matches!(rig.stay(waiter).await, Renewed::Waiting(_)), "without {part}");
        }
        assert_eq!(rig.queue().await, owners(&[&first, &second]), "without {part}");
        assert_eq!(rig.gaps().await, [5000], "without {part}");
    }
    rig.release(&holder).await;
    rig.release(&first).await;
    rig.release(&second).await;
    rig.no_keys_but_the_counter().await;
}

/// Queues that are too long for one command of a script are read in parts.
#[tokio::test]
async fn a_long_queue_is_kept_in_parts() {
    let rig = Rig::start().await;
    let holder = fair();
    rig.get(&holder).await;
    let waiters: Vec<Item> = (0..1200).map(|_| fair()).collect();
    for waiter in &waiters {
        rig.queue_up(waiter, FIVE).await;
    }
    let behind = rig.deadline(waiters[1199].owner.as_str()).await;
    rig.withdraw(&waiters[1]).await;
    rig.release(&holder).await;
    assert_eq!(rig.deadline(waiters[1199].owner.as_str()).await, behind - 10_000);
    assert_eq!(rig.run::<u64>(&["LLEN", QUEUE]).await, 1198);
    for waiter in &waiters[2..] {
        rig.die(waiter).await;
    }
    rig.release(&waiters[0]).await;
    rig.no_keys_but_the_counter().await;
}

/// A hand-over works without the right to publish; the waiter learns of it when it is kept.
#[tokio::test]
async fn a_hand_over_stands_without_the_right_to_publish() {
    let rig = Rig::start().await;
    let user = ["ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "resetchannels"];
    let _: () = rig.run(&user).await;
    let mute = RedisStore::new(&rig.server.client_as("mute", "secret"), options()).unwrap();
    let (holder, [first]) = with_waiters(&rig).await;
    assert_eq!(release(&mute, &[holder]).await.unwrap().held, [true]);
    assert_eq!(rig.stay(&first).await, Renewed::Held);
}

/// A key that is not a lock is left alone, as is a corrupt queue. A release stands in any case.
#[tokio::test]
async fn what_is_no_lock_is_left_alone() {
    let rig = Rig::start().await;
    for make in [
        &["HSET", LOCK, "other:1", "1"][..],
        &[
            "EVAL",
            "redis.call('HSET', KEYS[1], 'name', 'ann') redis.call('PEXPIRE', KEYS[1], 60000)",
            "1",
            LOCK,
        ],
        &["SET", LOCK, "data", "PX", "60000"],
        &["SET", QUEUE, "data"],
    ] {
        let _: redis::Value = rig.run(make).await;
        let before: Vec<String> = rig.server.keys().await;
        for wish in [request(&[fair()]), request(&[fair()]).queued(FIVE)] {
            let error = rig.store.acquire(Arc::new(wish)).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{make:?} {error}");
        }
        assert_eq!(rig.server.keys().await, before);
        let _: () = rig.run(&["FLUSHALL"]).await;
    }
    let mine = fair();
    rig.get(&mine).await;
    let _: () = rig.run(&["SET", QUEUE, "data"]).await;
    assert_eq!(rig.stay(&fair()).await, Renewed::Gone);
    assert_eq!(rig.release(&mine).await.held, [true]);
    rig.withdraw(&mine).await;
    assert_eq!(rig.holder().await, None);
}

/// Full memory refuses newcomers, but queued waiters are kept, granted and released.
#[tokio::test]
async fn full_memory_keeps_the_queue_going() {
    let rig = Rig::start().await;
    let (holder, one, two, three) = (fair(), fair(), fair(), fair());
    rig.get(&holder).await;
    for waiter in [&one, &two, &three] {
        rig.queue_up(waiter, FIVE).await;
    }
    let java = Java::new(2, FIVE);
    rig.java_lock(&java, rig.now().await).await;
    let _: () = rig.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = rig.store.acquire(Arc::new(request(&[fair()]).queued(FIVE))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
    assert_eq!(rig.queue().await.len(), 4);
    assert!(matches!(rig.stay(&one).await, Renewed::Waiting(_)));
    rig.release(&holder).await;
    assert_eq!(rig.holder().await.as_deref(), Some(one.owner.as_str()));
    assert_eq!(rig.stay(&one).await, Renewed::Held);
    rig.withdraw(&two).await;
    assert!(rig.store.force_release(key("a")).await.unwrap());
    assert_eq!(rig.holder().await.as_deref(), Some(three.owner.as_str()));
    assert_eq!(rig.release(&three).await.held, [true]);
    assert_eq!(rig.queue().await, [java.owner]);
}

/// `a` and `{a}` are two locks of Redisson's with one queue. A waiter for both has one place in it.
#[tokio::test]
async fn two_names_of_one_queue_are_one_place() {
    let rig = Rig::start().await;
    let store = store_with(&rig.server, |options| options.prefix = String::new());
    let (plain, holder) = (fair(), fair());
    let tagged = Item { key: LockKey::new("{a}").unwrap(), ..plain.clone() };
    assert!(matches!(acquire(&store, std::slice::from_ref(&holder)).await, Ok(Acquired::Granted(_))));
    let both = Arc::new(request(&[plain.clone(), tagged]).queued(FIVE));
    for _ in 0..2 {
        assert!(matches!(store.acquire(Arc::clone(&both)).await, Ok(Acquired::Busy(_))));
        let queue: Vec<String> = rig.run(&["LRANGE", "redisson_lock_queue:{a}", "0", "-1"]).await;
        assert_eq!(queue, [plain.owner.as_str()]);
    }
    release(&store, &[holder]).await.unwrap();
    assert!(matches!(store.acquire(Arc::clone(&both)).await, Ok(Acquired::Granted(_))));
    assert_eq!(rig.run::<u64>(&["EXISTS", "redisson_lock_queue:{a}", "lock_fair_alive:{a}"]).await, 0);
}
