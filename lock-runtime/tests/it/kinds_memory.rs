//! Fair, read, write and multi locks of the engine on the memory store, under paused time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::testing::{leftovers, manager_on, named_memory_store};
use lock_runtime::{Kind, LockError, LockKey, LockManager, MultiKey};
use tokio::time::{Instant, sleep, timeout};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Returns managers that relate to each other as separate processes do.
fn processes<const N: usize>() -> [LockManager; N] {
    static STORES: AtomicUsize = AtomicUsize::new(0);
    let name = format!("kinds-{}", STORES.fetch_add(1, Ordering::Relaxed));
    std::array::from_fn(|_| manager_on(LockManager::builder(), named_memory_store(&name)))
}

/// Asserts that nothing is held, wanted or under way any more.
async fn assert_clean(locks: &LockManager) {
    for _ in 0..400 {
        let left = leftovers(locks);
        if left.keys + left.timers + left.tasks + left.waiters == 0 {
            return;
        }
        sleep(10 * MS).await;
    }
    panic!("left behind: {:?}", leftovers(locks));
}

#[tokio::test(start_paused = true)]
async fn a_fair_lock_goes_to_waiters_in_the_order_in_which_they_came() {
    let managers: [LockManager; 3] = processes();
    let held = managers[0].fair("k").acquire().await.unwrap();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for n in 0..9 {
        let (locks, sender) = (managers[n % 3].clone(), sender.clone());
        tokio::spawn(async move {
            let guard = locks.fair("k").wait_forever().acquire().await.unwrap();
            sender.send(n).unwrap();
            sleep(3 * MS).await;
            guard.release().await.unwrap();
        });
        sleep(MS).await;
    }
    held.release().await.unwrap();
    for n in 0..9 {
        assert_eq!(order.recv().await, Some(n));
    }
    for locks in &managers {
        assert_clean(locks).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_fair_hand_off_needs_no_attempt_of_the_waiter() {
    let [a, b] = processes();
    let held = a.fair("k").acquire().await.unwrap();
    let waiter = tokio::spawn(async move { b.fair("k").wait_forever().acquire().await.unwrap() });
    sleep(10 * SECOND).await;
    let start = Instant::now();
    let token = held.fencing_token();
    held.release().await.unwrap();
    let guard = waiter.await.unwrap();
    assert!(guard.fencing_token() > token);
    assert!(start.elapsed() < 2 * MS, "{:?}", start.elapsed());
    // The direct grant lasts a few seconds; then the watchdog renews it.
    sleep(60 * SECOND).await;
    assert!(!guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_fair_try_does_not_overtake() {
    let [a, b] = processes();
    let held = a.fair("k").acquire().await.unwrap();
    let waiter = tokio::spawn({
        let b = b.clone();
        async move { b.fair("k").wait_forever().acquire().await.unwrap() }
    });
    sleep(MS).await;
    assert!(a.fair("k").try_acquire().await.unwrap().is_none());
    drop(held);
    let next = waiter.await.unwrap();
    assert!(a.fair("k").try_acquire().await.unwrap().is_none());
    drop(next);
    sleep(MS).await;
    assert!(a.fair("k").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn whoever_gives_up_leaves_the_fair_queue() {
    let [a, b] = processes();
    let held = a.fair("k").acquire().await.unwrap();
    let given_up = b.fair("k").wait(500 * MS).acquire().await;
    assert!(matches!(given_up, Err(LockError::TimedOut { .. })), "{given_up:?}");
    let dropped = timeout(500 * MS, b.fair("k").wait_forever().acquire()).await;
    assert!(dropped.is_err());
    sleep(10 * MS).await;
    assert_eq!(a.status("k").await.unwrap().waiters, 0);
    held.release().await.unwrap();
    assert!(a.fair("k").try_acquire().await.unwrap().is_some());
    assert_clean(&b).await;
}

#[tokio::test(start_paused = true)]
async fn a_fixed_fair_lease_is_whole_after_a_direct_grant() {
    let [a, b] = processes();
    let held = a.fair("k").acquire().await.unwrap();
    let waiter =
        tokio::spawn(async move { b.fair("k").lease(20 * SECOND).wait_forever().acquire().await.unwrap() });
    sleep(10 * SECOND).await;
    held.release().await.unwrap();
    let guard = waiter.await.unwrap();
    sleep(15 * SECOND).await;
    assert!(!guard.is_lost());
    sleep(6 * SECOND).await;
    assert!(guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn readers_of_one_process_share_a_hold_and_a_token() {
    let [a, b] = processes();
    let first = a.read("k").acquire().await.unwrap();
    let second = a.read("k").acquire().await.unwrap();
    assert_eq!(first.fencing_token(), second.fencing_token());
    let status = a.status("k").await.unwrap();
    assert_eq!((status.kind, status.holders.len()), (Some(Kind::Read), 1));
    let other = b.read("k").acquire().await.unwrap();
    let fixed = a.read("k").lease(SECOND).acquire().await.unwrap();
    assert_ne!(fixed.fencing_token(), first.fencing_token());
    assert_eq!(b.status("k").await.unwrap().holders.len(), 3);
    assert!(b.write("k").try_acquire().await.unwrap().is_none());
    drop((first, second, fixed));
    sleep(MS).await;
    assert!(b.write("k").try_acquire().await.unwrap().is_none());
    drop(other);
    sleep(MS).await;
    assert!(b.write("k").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_long_reader_does_not_keep_later_readers_waiting() {
    let [a] = processes();
    let long = a.read("k").acquire().await.unwrap();
    sleep(SECOND).await;
    let start = Instant::now();
    let late = a.read("k").acquire().await.unwrap();
    assert!(start.elapsed() < 50 * MS, "{:?}", start.elapsed());
    assert_ne!(late.fencing_token(), long.fencing_token());
    assert!(a.read("k").try_acquire().await.unwrap().is_some());
    drop((long, late));
    assert_clean(&a).await;
}

#[tokio::test(start_paused = true)]
async fn a_writer_gets_in_although_readers_keep_coming() {
    let [a, b] = processes();
    let stop = Arc::new(AtomicUsize::new(0));
    let readers: Vec<_> = (0..16)
        .map(|n| {
            let (locks, stop) = (if n % 2 == 0 { a.clone() } else { b.clone() }, Arc::clone(&stop));
            tokio::spawn(async move {
                while stop.load(Ordering::Relaxed) == 0 {
                    let guard = locks.read("k").wait_forever().acquire().await.unwrap();
                    sleep(3 * MS).await;
                    drop(guard);
                }
            })
        })
        .collect();
    for _ in 0..20 {
        sleep(20 * MS).await;
        let start = Instant::now();
        let guard = a.write("k").wait_forever().acquire().await.unwrap();
        assert!(start.elapsed() < 300 * MS, "{:?}", start.elapsed());
        drop(guard);
    }
    stop.store(1, Ordering::Relaxed);
    for reader in readers {
        reader.await.unwrap();
    }
    assert_clean(&a).await;
    assert_clean(&b).await;
}

#[tokio::test(start_paused = true)]
async fn readers_that_wait_enter_together_after_a_writer() {
    let [a, b] = processes();
    let writer = a.write("k").acquire().await.unwrap();
    let readers: Vec<_> = (0..20)
        .map(|n| {
            let locks = if n % 2 == 0 { a.clone() } else { b.clone() };
            tokio::spawn(async move {
                let _guard = locks.read("k").wait_forever().acquire().await.unwrap();
                sleep(800 * MS).await;
            })
        })
        .collect();
    sleep(100 * MS).await;
    let start = Instant::now();
    drop(writer);
    for reader in readers {
        reader.await.unwrap();
    }
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_reader_cannot_become_a_writer() {
    let [a] = processes();
    let reader = a.read("k").acquire().await.unwrap();
    let upgrade = reader.scope(a.write("k").acquire()).await;
    let expected =
        matches!(&upgrade, Err(LockError::KindConflict { held: Kind::Read, wanted: Kind::Write, .. }));
    assert!(expected, "{upgrade:?}");
    let mixed = reader.scope(a.mutex("k").acquire()).await;
    assert!(matches!(mixed, Err(LockError::KindConflict { .. })), "{mixed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_write_lock_released_around_a_read_lock_becomes_one() {
    let [a, b] = processes();
    let writer = a.write("k").acquire().await.unwrap();
    let inner = writer.scope(a.read("k").acquire()).await.unwrap();
    let waiting = tokio::spawn({
        let b = b.clone();
        async move { b.read("k").wait_forever().acquire().await.unwrap() }
    });
    sleep(10 * MS).await;
    assert!(!waiting.is_finished());
    let start = Instant::now();
    writer.release().await.unwrap();
    let other = waiting.await.unwrap();
    assert!(start.elapsed() < 10 * MS, "{:?}", start.elapsed());
    assert!(b.write("k").try_acquire().await.unwrap().is_none());
    sleep(100 * SECOND).await;
    assert!(!inner.is_lost());
    drop((inner, other));
    sleep(10 * MS).await;
    assert!(b.write("k").try_acquire().await.unwrap().is_some());
    assert_clean(&a).await;
}

#[tokio::test(start_paused = true)]
async fn a_guard_can_be_downgraded() {
    let [a, b] = processes();
    let writer = a.write("k").acquire().await.unwrap();
    let token = writer.fencing_token();
    let reader = writer.downgrade().await.unwrap();
    assert_eq!(reader.fencing_token(), token);
    assert!(b.read("k").try_acquire().await.unwrap().is_some());
    sleep(10 * MS).await;
    assert!(b.write("k").try_acquire().await.unwrap().is_none());
    let mutex = a.mutex("m").acquire().await.unwrap();
    assert!(matches!(mutex.downgrade().await, Err(LockError::Misconfigured { .. })));
    reader.release().await.unwrap();
    assert_clean(&a).await;
}

#[tokio::test(start_paused = true)]
async fn an_inner_read_does_not_end_the_renewal_of_the_write_lock() {
    let [a, b] = processes();
    let writer = a.write("k").acquire().await.unwrap();
    let inner = writer.scope(a.read("k").lease(SECOND).acquire()).await.unwrap();
    inner.release().await.unwrap();
    sleep(100 * SECOND).await;
    assert!(!writer.is_lost());
    assert!(b.read("k").try_acquire().await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn several_keys_are_taken_all_or_none() {
    let [a, b] = processes();
    let c = b.mutex("c").acquire().await.unwrap();
    assert!(a.multi(["b", "c", "a"]).try_acquire().await.unwrap().is_none());
    assert!(b.mutex("a").try_acquire().await.unwrap().is_some());
    let waiter = tokio::spawn({
        let a = a.clone();
        async move { a.multi(["b", "c", "a", "a"]).wait_forever().acquire().await.unwrap() }
    });
    sleep(SECOND).await;
    c.release().await.unwrap();
    let guard = waiter.await.unwrap();
    let keys: Vec<_> = guard.tokens().into_iter().map(|(key, _)| key.to_string()).collect();
    assert_eq!(keys, ["a", "b", "c"]);
    sleep(100 * SECOND).await;
    assert!(!guard.is_lost());
    for key in ["a", "b", "c"] {
        assert!(b.mutex(key).try_acquire().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
    for key in ["a", "b", "c"] {
        assert!(b.mutex(key).try_acquire().await.unwrap().is_some());
    }
    assert_clean(&a).await;
}

#[tokio::test(start_paused = true)]
async fn several_keys_in_opposite_orders_do_not_block_each_other() {
    let [a, b] = processes();
    let tasks: Vec<_> = (0..20)
        .map(|n| {
            let locks = if n % 2 == 0 { a.clone() } else { b.clone() };
            tokio::spawn(async move {
                let keys = if n % 4 < 2 { ["x", "y"] } else { ["y", "x"] };
                let guard = locks.multi(keys).wait_forever().acquire().await.unwrap();
                sleep(3 * MS).await;
                drop(guard);
            })
        })
        .collect();
    for task in tasks {
        timeout(100 * SECOND, task).await.unwrap().unwrap();
    }
    assert_clean(&a).await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_of_several_keys_enters_held_keys_again() {
    let [a, b] = processes();
    let outer = a.mutex("b").acquire().await.unwrap();
    let guard = outer.scope(a.multi(["a", "b", "c"]).acquire()).await.unwrap();
    assert_eq!(guard.tokens().len(), 3);
    assert_eq!(guard.tokens()[1].1, outer.fencing_token());
    // A lock of several keys can be re-entered by one of them.
    let inner = guard.scope(a.mutex("c").acquire()).await.unwrap();
    assert_eq!(inner.key().as_str(), "c");
    assert_eq!(inner.fencing_token(), guard.tokens()[2].1);
    drop(inner);
    let lost = guard.cancellation_token();
    assert!(lock_runtime::testing::lose(&a, "b"));
    assert!(guard.is_lost() && lost.is_cancelled());
    timeout(SECOND, guard.lost()).await.unwrap();
    drop((guard, outer));
    sleep(MS).await;
    assert!(b.multi(["a", "b", "c"]).try_acquire().await.unwrap().is_some());
    assert_clean(&a).await;
}

#[tokio::test(start_paused = true)]
async fn kinds_may_be_mixed() {
    let [a, b] = processes();
    let mixed = [MultiKey::read("r"), MultiKey::write("w"), MultiKey::fair("f"), MultiKey::mutex("m")];
    let guard = a.multi(mixed.clone()).acquire().await.unwrap();
    assert!(b.read("r").try_acquire().await.unwrap().is_some());
    assert!(b.read("w").try_acquire().await.unwrap().is_none());
    assert!(b.fair("f").try_acquire().await.unwrap().is_none());
    let waiter = tokio::spawn(async move { b.multi(mixed).wait_forever().acquire().await.unwrap() });
    sleep(SECOND).await;
    drop(guard);
    drop(timeout(SECOND, waiter).await.unwrap().unwrap());
    let twice = a.multi([MultiKey::read("k"), MultiKey::write("k")]).acquire().await;
    assert!(matches!(twice, Err(LockError::Misconfigured { .. })), "{twice:?}");
    let none = a.multi(Vec::<LockKey>::new()).acquire().await;
    assert!(matches!(none, Err(LockError::Misconfigured { .. })), "{none:?}");
}

#[tokio::test(start_paused = true)]
async fn a_local_lock_of_several_has_its_turn_beside_a_busy_mutex() {
    let [a] = processes();
    let stop = Arc::new(AtomicUsize::new(0));
    let busy: Vec<_> = (0..4)
        .map(|_| {
            let (a, stop) = (a.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                while stop.load(Ordering::Relaxed) == 0 {
                    let guard = a.mutex("x").wait_forever().acquire().await.unwrap();
                    sleep(MS).await;
                    drop(guard);
                }
            })
        })
        .collect();
    for _ in 0..10 {
        let start = Instant::now();
        drop(a.multi(["x", "y"]).wait(60 * SECOND).acquire().await.unwrap());
        assert!(start.elapsed() < 10 * SECOND, "{:?}", start.elapsed());
    }
    stop.store(1, Ordering::Relaxed);
    for task in busy {
        task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn reads_side_by_side_inside_a_write_lock_do_not_exclude_each_other() {
    let [a] = processes();
    let writer = a.write("k").acquire().await.unwrap();
    let barrier = tokio::sync::Barrier::new(2);
    let read = || async {
        let _guard = a.read("k").wait(SECOND).acquire().await.unwrap();
        barrier.wait().await;
    };
    let both = writer.scope(async { tokio::join!(read(), read()) });
    timeout(SECOND, both).await.expect("they are in together");
    // A writer next to a reader waits for it.
    let start = Instant::now();
    let write = || async {
        let _guard = a.write("k").acquire().await.unwrap();
        sleep(10 * MS).await;
    };
    let slow_read = || async {
        let _guard = a.read("k").acquire().await.unwrap();
        sleep(10 * MS).await;
    };
    writer.scope(async { tokio::join!(slow_read(), write(), slow_read()) }).await;
    assert!(start.elapsed() >= 20 * MS, "{:?}", start.elapsed());
    drop(writer);
    assert_clean(&a).await;
}

/// A reader that has to open its own hold, next to readers that stay, is subject to the caps as
/// before.
#[tokio::test(start_paused = true)]
async fn a_reader_that_finds_a_closed_hold_is_under_the_caps() {
    let locks = LockManager::builder().max_waiters(1).connect("memory:").await.unwrap();
    let reader = locks.read("k").acquire().await.unwrap();
    let held = locks.mutex("m").acquire().await.unwrap();
    let waiter = tokio::spawn(locks.mutex("m").acquire());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let refused = locks.read("k").acquire().await;
    assert!(matches!(refused, Err(LockError::TooManyWaiters { .. })), "{refused:?}");
    drop(held);
    drop(waiter.await.unwrap().unwrap());
    drop((locks.read("k").acquire().await.unwrap(), reader));
}
