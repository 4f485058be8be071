//! Fair locks together with Redisson's: its deadlines, its waiters in our queue, ours in its queue,
//! and dead waiters of either side.

use lock_core::store::Renewed;

use super::fair_rig::{ALIVE, CHANNEL, FIVE, Java, LOCK, QUEUE, Rig, TIMEOUTS, fair};
use super::wire::Subscription;
use super::*;

const ENOUGH: Duration = Duration::from_secs(300);

fn close(left: i64, right: i64) -> bool {
    (left - right).abs() <= 2
}

/// Lets a thread of Redisson hold the lock for `lease`. Returns the thread, and when the lease
/// ends.
async fn held_by_java(rig: &Rig, lease: Duration) -> (Java, i64) {
    let holder = Java { lease: lease.as_millis().try_into().unwrap(), ..Java::new(1, FIVE) };
    assert_eq!(rig.java_lock(&holder, rig.now().await).await, None);
    (holder, rig.lease_ends().await)
}

async fn channel_of(rig: &Rig, owner: &str) -> Subscription {
    Subscription::start(&rig.server, &format!("{CHANNEL}:{owner}")).await
}

/// Redisson's `testAcquireFailedTimeoutDrift_Descrete`: 30, 35, 40, 45 s; giving up and a grant
/// each take 5 s off.
#[tokio::test]
async fn deadlines_are_redissons_when_waiters_give_up() {
    let rig = Rig::start().await;
    let (holder, ends) = held_by_java(&rig, Duration::from_secs(30)).await;
    let waiters: [Item; 3] = std::array::from_fn(|_| fair());
    for waiter in &waiters {
        rig.queue_up(waiter, FIVE).await;
    }
    rig.java_lock(&Java::new(2, FIVE), rig.now().await).await;
    let first = rig.deadline(waiters[0].owner.as_str()).await;
    assert!(close(first, ends + 5000), "{first} {ends}");
    assert_eq!(rig.gaps().await, [5000, 5000, 5000]);
    rig.withdraw(&waiters[1]).await;
    assert_eq!(rig.deadlines().await, [first, first + 5000, first + 10_000]);
    // Redisson's release wakes the head, which takes the lock.
    let mut channel = channel_of(&rig, waiters[0].owner.as_str()).await;
    assert_eq!(rig.java_unlock(&holder, rig.now().await).await, Some(1));
    assert_eq!(channel.next().await, "0");
    rig.get(&waiters[0]).await;
    assert_eq!(rig.deadlines().await, [first, first + 5000]);
}

/// The same with Redisson's waiters behind ours: they get the same times and deadlines.
#[tokio::test]
async fn deadlines_are_redissons_behind_ours() {
    let rig = Rig::start().await;
    let (holder, ends) = held_by_java(&rig, Duration::from_secs(30)).await;
    let (one, two) = (fair(), fair());
    rig.queue_up(&one, FIVE).await;
    rig.queue_up(&two, FIVE).await;
    let (three, four) = (Java::new(3, FIVE), Java::new(4, FIVE));
    let now = rig.now().await;
    let told = rig.java_lock(&three, now).await.unwrap();
    assert!(close(now + told, ends + 10_000), "{told}");
    let told = rig.java_lock(&four, now).await.unwrap();
    assert!(close(now + told, ends + 15_000), "{told}");
    rig.withdraw(&two).await;
    assert_eq!(rig.gaps().await, [5000, 5000]);
    assert!(close(rig.deadline(&four.owner).await, ends + 15_000));
    rig.java_gives_up(&three).await;
    assert_eq!(rig.gaps().await, [5000]);
    rig.java_unlock(&holder, rig.now().await).await;
    rig.get(&one).await;
    assert!(close(rig.deadline(&four.owner).await, ends + 5000));
}

/// Redisson's `testLockAcquiredTimeoutDrift_Descrete`: a grant takes 5 s off, and a newcomer is 5 s
/// behind the last waiter.
#[tokio::test]
async fn deadlines_are_redissons_when_a_waiter_is_granted() {
    let rig = Rig::start().await;
    let holder = fair();
    let long = AcquireRequest::new(vec![holder.clone()], ENOUGH, TIMEOUT);
    granted_by(&rig.store, long).await;
    let ends = rig.lease_ends().await;
    let (one, two, three) = (fair(), fair(), fair());
    rig.queue_up(&one, FIVE).await;
    rig.queue_up(&two, FIVE).await;
    assert!(close(rig.deadline(two.owner.as_str()).await, ends + 10_000));
    rig.release(&holder).await;
    let second = rig.deadline(two.owner.as_str()).await;
    assert!(close(second, ends + 5000));
    rig.queue_up(&three, FIVE).await;
    assert_eq!(rig.deadlines().await, [second, second + 5000]);
}

/// Redisson's `testAbandonedTimeoutDrift_Descrete`: the third waiter is 200 ms behind the first. It
/// gets the lock when the abandoned ones have had their time. Ours are dead by then, since nobody
/// keeps them.
#[tokio::test]
async fn abandoned_waiters_give_way() {
    let rig = Rig::start().await;
    let tenth = Duration::from_millis(100);
    let (_, ends) = held_by_java(&rig, Duration::from_millis(500)).await;
    let (one, two) = (fair(), fair());
    rig.queue_up(&one, tenth).await;
    rig.queue_up(&two, tenth).await;
    let three = Java { lease: 500, ..Java::new(3, tenth) };
    rig.java_lock(&three, rig.now().await).await;
    assert_eq!(rig.gaps().await, [100, 100]);
    assert!(close(rig.deadline(&three.owner).await, ends + 300));
    rig.die(&one).await;
    rig.die(&two).await;
    let last = fair();
    until("the last has the lock", async || {
        matches!(rig.ask(request(std::slice::from_ref(&last)).queued(FIVE)).await, Acquired::Granted(_))
    })
    .await;
    assert!(rig.now().await > ends);
    assert!(rig.queue().await.is_empty());
}

/// A Redisson head whose deadline is over leaves as in Redisson: nothing is taken off those behind.
#[tokio::test]
async fn an_overdue_head_of_redissons_is_purged_as_there() {
    let rig = Rig::start().await;
    let (holder, _) = held_by_java(&rig, Duration::from_secs(30)).await;
    let (one, two) = (Java::new(2, FIVE), Java::new(3, ENOUGH));
    rig.java_lock(&one, rig.now().await).await;
    rig.java_lock(&two, rig.now().await).await;
    let _: f64 = rig.run(&["ZINCRBY", TIMEOUTS, "-100000", &one.owner]).await;
    let before = rig.deadline(&two.owner).await;
    let mine = fair();
    rig.queue_up(&mine, FIVE).await;
    assert_eq!(rig.queue().await, [two.owner.clone(), mine.owner.as_str().to_owned()]);
    assert_eq!(rig.deadline(&two.owner).await, before);
    rig.java_unlock(&holder, rig.now().await).await;
}

/// A mixed queue with dead waiters of both sides keeps its order, and the next waiter is notified.
#[tokio::test]
async fn a_mixed_queue_keeps_its_order() {
    let rig = Rig::start().await;
    let holder = fair();
    rig.get(&holder).await;
    let (java_one, java_two, java_dead) = (Java::new(2, ENOUGH), Java::new(3, ENOUGH), Java::new(4, FIVE));
    let (one, dead, two) = (fair(), fair(), fair());
    rig.queue_up(&one, FIVE).await;
    rig.java_lock(&java_one, rig.now().await).await;
    rig.queue_up(&dead, FIVE).await;
    rig.java_lock(&java_two, rig.now().await).await;
    rig.java_lock(&java_dead, rig.now().await).await;
    rig.queue_up(&two, FIVE).await;
    rig.die(&dead).await;

    // Our release grants to our waiter, and tells the next that it is the head.
    let mut channel = channel_of(&rig, &java_one.owner).await;
    rig.release(&holder).await;
    assert_eq!(rig.holder().await.as_deref(), Some(one.owner.as_str()));
    assert_eq!(channel.next().await, "0");
    assert!(rig.java_lock(&java_one, rig.now().await).await.is_some());
    // Redisson's waiter is next.
    rig.release(&one).await;
    assert_eq!(channel.next().await, "0");
    assert_eq!(rig.holder().await, None);
    busy(&rig.store, &[fair()]).await;
    assert_eq!(rig.java_lock(&java_one, rig.now().await).await, None);
    // Behind a dead waiter of ours, which keeping another removes.
    let mut channel = channel_of(&rig, &java_two.owner).await;
    rig.java_unlock(&java_one, rig.now().await).await;
    assert!(matches!(rig.stay(&two).await, Renewed::Waiting(_)));
    assert_eq!(channel.next().await, "0");
    assert_eq!(rig.java_lock(&java_two, rig.now().await).await, None);
    // Behind a dead waiter of Redisson's, which has its time.
    rig.java_unlock(&java_two, rig.now().await).await;
    busy(&rig.store, std::slice::from_ref(&two)).await;
    let over = rig.now().await - 1;
    let _: u64 = rig.run(&["ZADD", TIMEOUTS, &over.to_string(), &java_dead.owner]).await;
    rig.get(&two).await;
    rig.release(&two).await;
    rig.no_keys_but_the_counter().await;
}

/// Our waiters behind Redisson's long waiters survive the grants to these, even after a long wait.
#[tokio::test]
async fn grants_of_redissons_do_not_purge_ours() {
    let rig = Rig::start().await;
    let (holder, _) = held_by_java(&rig, Duration::from_secs(30)).await;
    let (java_one, java_two) = (Java::new(2, ENOUGH), Java::new(3, ENOUGH));
    rig.java_lock(&java_one, rig.now().await).await;
    rig.java_lock(&java_two, rig.now().await).await;
    // Simulates that they have waited for 4 minutes.
    for java in [&java_one, &java_two] {
        let _: f64 = rig.run(&["ZINCRBY", TIMEOUTS, "-240000", &java.owner]).await;
    }
    let mine = fair();
    rig.queue_up(&mine, FIVE).await;
    let mut last = holder;
    for java in [java_one, java_two] {
        rig.java_unlock(&last, rig.now().await).await;
        assert_eq!(rig.java_lock(&java, rig.now().await).await, None);
        last = java;
    }
    rig.java_unlock(&last, rig.now().await).await;
    assert_eq!(rig.queue().await, [mine.owner.as_str()]);
    rig.get(&mine).await;
}

/// The wait of a Redisson waiter is read from the deadlines, so that ours are not raised further
/// than needed.
#[tokio::test]
async fn deadlines_are_raised_by_what_redissons_waits_need() {
    let rig = Rig::start().await;
    let (_, _) = held_by_java(&rig, Duration::from_secs(30)).await;
    for thread in 2..6 {
        rig.java_lock(&Java::new(thread, FIVE), rig.now().await).await;
    }
    let mine = fair();
    rig.queue_up(&mine, FIVE).await;
    let ahead = rig.deadline(mine.owner.as_str()).await - rig.now().await;
    // The first one's wait is unknown; that of the others is 5 s.
    assert!((600_000..=615_000).contains(&ahead), "{ahead}");
    // A waiter that leaves takes off what it has added.
    let later = fair();
    rig.queue_up(&later, FIVE).await;
    assert_eq!(rig.gaps().await.last(), Some(&5000));
}

/// Our waiter that Redisson has purged learns that its place is gone, and joins again at the end.
#[tokio::test]
async fn a_purged_waiter_joins_again() {
    let rig = Rig::start().await;
    let (holder, _) = held_by_java(&rig, Duration::from_secs(30)).await;
    let (mine, java) = (fair(), Java::new(2, ENOUGH));
    rig.queue_up(&mine, FIVE).await;
    rig.java_lock(&java, rig.now().await).await;
    let far_ahead = rig.now().await + 50_000;
    assert!(!rig.java_try(&Java::new(3, FIVE), far_ahead).await);
    assert_eq!(rig.queue().await, std::slice::from_ref(&java.owner));
    assert_eq!(rig.stay(&mine).await, Renewed::Gone);
    assert_eq!(rig.run::<u64>(&["EXISTS", ALIVE]).await, 0);
    rig.queue_up(&mine, FIVE).await;
    assert_eq!(rig.queue().await, [java.owner.clone(), mine.owner.as_str().to_owned()]);
    assert!(matches!(rig.stay(&mine).await, Renewed::Waiting(_)));
    rig.java_unlock(&holder, rig.now().await).await;
}

/// A queue with waiters of both sides expires six minutes after the last deadline. A queue without
/// ours stays as Redisson leaves it.
#[tokio::test]
async fn a_mixed_queue_ends_after_the_last_deadline() {
    let rig = Rig::start().await;
    let holder = fair();
    rig.get(&holder).await;
    let (mine, java) = (fair(), Java::new(2, ENOUGH));
    rig.queue_up(&mine, FIVE).await;
    rig.java_lock(&java, rig.now().await).await;
    rig.stay(&mine).await;
    let latest = rig.deadlines().await.into_iter().max().unwrap() + 360_000;
    for key in [QUEUE, TIMEOUTS, ALIVE] {
        let ends = rig.now().await + rig.run::<i64>(&["PTTL", key]).await;
        assert!((ends - latest).abs() < 2000, "{key} {ends} {latest}");
    }
    rig.withdraw(&mine).await;
    for (key, left) in [(QUEUE, -1), (TIMEOUTS, -1), (ALIVE, -2)] {
        assert_eq!(rig.run::<i64>(&["PTTL", key]).await, left, "{key}");
    }
    rig.java_gives_up(&java).await;
    rig.release(&holder).await;
    rig.no_keys_but_the_counter().await;
}

/// Redisson's `tryLock()` respects our queue. A plain lock of either side does not, as in Redisson.
#[tokio::test]
async fn only_plain_locks_pass_the_queue() {
    let rig = Rig::start().await;
    let (holder, waiter) = (fair(), fair());
    rig.get(&holder).await;
    rig.queue_up(&waiter, FIVE).await;
    let _: u64 = rig.run(&["DEL", LOCK]).await;
    assert!(!rig.java_try(&Java::new(2, FIVE), rig.now().await).await);
    let mutex = [item("a")];
    granted(&rig.store, &mutex).await;
    rig.queue_up(&waiter, FIVE).await;
    release(&rig.store, &mutex).await.unwrap();
    assert_eq!(rig.stay(&waiter).await, Renewed::Waiting(Duration::from_millis(1)));
    rig.get(&waiter).await;
}

/// A lock that is held for reading or writing is busy, whoever reads.
#[tokio::test]
async fn a_lock_with_a_mode_is_busy() {
    let rig = Rig::start().await;
    let mine = fair();
    let words = ["HSET", LOCK, "mode", "read", mine.owner.as_str(), "1", "other:1", "1"];
    let _: u64 = rig.run(&words).await;
    let _: u64 = rig.run(&["PEXPIRE", LOCK, "30000"]).await;
    let refused = busy(&rig.store, &[mine]).await;
    assert!(refused.remaining.unwrap() > FIVE);
}
