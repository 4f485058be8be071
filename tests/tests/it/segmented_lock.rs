//! One of n locks, or all of them: on every store, and with a store that fails for some of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_runtime::segmented::{MAX_SEGMENTS, SegmentGuard, SegmentedLock};
use lock_runtime::testing::{leftovers, lose};
use lock_runtime::{LockError, LockManager};
use lock_tests::clock::now_nanos;
use lock_tests::overlap::{Recorder, Report};
use lock_tests::stocks::poll_at_most;
use lock_tests::{Cluster, RedisServer, cluster, eventually, first_poll, on_every_store, poll_once_and_drop};
use tokio::task::JoinSet;
use tokio::time::Instant;

const LONG: Duration = Duration::from_secs(60);
const NAME: &str = "stock:1001";

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn segments(locks: &LockManager, count: u32) -> SegmentedLock {
    locks.segmented(NAME, count).wait(LONG)
}

async fn any(lock: &SegmentedLock) -> SegmentGuard {
    lock.acquire_any().await.unwrap()
}

/// Returns the segments that are held.
async fn held(locks: &LockManager, count: u32) -> Vec<u32> {
    let mut held = Vec::new();
    for index in 0..count {
        if locks.status(format!("{NAME}:{index}")).await.unwrap().is_locked() {
            held.push(index);
        }
    }
    held
}

/// Waits until no segment is held.
fn all_are_free(locks: &LockManager, count: u32) -> impl Future<Output = ()> {
    let locks = locks.clone();
    eventually(async move || held(&locks, count).await.is_empty(), LONG)
}

on_every_store! {
    async fn any_spreads_over_the_segments(site: Site) {
        let locks = site.manager().await;
        let lock = segments(&locks, 8);
        let mut first = HashSet::new();
        for _ in 0..100 {
            let guard = any(&lock).await;
            first.insert(guard.index());
            guard.release().await.unwrap();
        }
        assert!(first.len() >= 6, "of 8: {first:?}");
        // All at once: no waiting.
        let mut guards = Vec::new();
        for _ in 0..8 {
            guards.push(any(&lock.clone().no_wait()).await);
        }
        let all: HashSet<_> = guards.iter().map(SegmentGuard::index).collect();
        assert_eq!(all.len(), 8);
        let error = lock.no_wait().acquire_any().await.unwrap_err();
        assert!(matches!(error, LockError::Busy { .. }), "{error:?}");
    }

    async fn any_falls_through_those_that_others_have(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        for free in 0..5 {
            let mut theirs = Vec::new();
            for index in (0..5).filter(|index| *index != free) {
                theirs.push(segments(&other, 5).acquire(index).await.unwrap());
            }
            for lock in [segments(&locks, 5), segments(&locks, 5).no_wait()] {
                // It may be the last one that is tried, or not.
                let guard = any(&lock).await;
                assert_eq!(guard.index(), free);
                guard.release().await.unwrap();
            }
            for guard in theirs {
                guard.release().await.unwrap();
            }
        }
    }

    async fn any_waits_for_one_of_them_and_has_it_when_it_is_free(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let theirs = segments(&other, 3).acquire_all().await.unwrap();
        let lock = segments(&locks, 3);
        let waiter = tokio::spawn(async move { any(&lock).await });
        tokio::time::sleep(ms(200)).await;
        assert!(!waiter.is_finished());
        theirs.release().await.unwrap();
        let guard = waiter.await.unwrap();
        assert!(guard.index() < 3);
        guard.release().await.unwrap();
    }

    async fn one_wait_is_enough_for_all_segments(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let theirs = segments(&other, 20).acquire_all().await.unwrap();
        let wait = ms(400);
        let lock = segments(&locks, 20).wait(wait);
        let start = Instant::now();
        let error = lock.acquire_any().await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        assert!(start.elapsed() >= wait && start.elapsed() < site.at_most(wait), "{:?}", start.elapsed());
        // All of them together too: the first ones are free and cost nothing.
        theirs.release().await.unwrap();
        let theirs = segments(&other, 20).acquire(15).await.unwrap();
        let start = Instant::now();
        let error = lock.acquire_all().await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        assert!(error.to_string().contains("stock:1001:15"), "{error}");
        assert!(start.elapsed() >= wait && start.elapsed() < site.at_most(wait), "{:?}", start.elapsed());
        // The segments it held until then are released.
        eventually(async || held(&other, 20).await == [15], LONG).await;
        theirs.release().await.unwrap();
    }

    async fn several_segments_that_become_free_late_share_the_wait(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let theirs = [0, 1, 2, 3].map(|index| {
            let lock = segments(&other, 4);
            async move { lock.acquire(index).await.unwrap() }
        });
        let wait = ms(600);
        let start = Instant::now();
        let mut releases = JoinSet::new();
        for (index, guard) in theirs.into_iter().enumerate() {
            let guard = guard.await;
            releases.spawn(async move {
                // The last one is released too late: a separate wait for each would be long enough.
                tokio::time::sleep_until(start + ms(250) * (index as u32 + 1)).await;
                guard.release().await
            });
        }
        let error = segments(&locks, 4).wait(wait).acquire_all().await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        assert!(start.elapsed() >= wait && start.elapsed() < site.at_most(wait), "{:?}", start.elapsed());
        assert!(releases.join_all().await.iter().all(Result::is_ok));
        all_are_free(&other, 4).await;
    }

    async fn no_wait_looks_at_each_and_waits_for_none(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let theirs = segments(&other, 4).acquire_all().await.unwrap();
        for lock in [segments(&locks, 4).no_wait(), segments(&locks, 4).wait(Duration::ZERO)] {
            let start = Instant::now();
            assert!(matches!(lock.acquire_any().await.unwrap_err(), LockError::Busy { .. }));
            assert!(matches!(lock.acquire(2).await.unwrap_err(), LockError::Busy { .. }));
            assert!(matches!(lock.acquire_all().await.unwrap_err(), LockError::Busy { .. }));
            assert!(start.elapsed() < site.at_most(Duration::ZERO), "{:?}", start.elapsed());
        }
        theirs.release().await.unwrap();
    }

    async fn a_segment_is_the_mutex_of_its_name(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let guard = segments(&locks, 3).acquire(1).await.unwrap();
        assert_eq!((guard.index(), guard.key().as_str()), (1, "stock:1001:1"));
        assert!(other.mutex("stock:1001:1").try_acquire().await.unwrap().is_none());
        for key in ["stock:1001", "stock:1001:0", "stock:1001:2", "stock:1001:01"] {
            other.mutex(key).try_acquire().await.unwrap().expect(key).release().await.unwrap();
        }
        let inner = guard.into_inner();
        assert!(!inner.is_lost());
        inner.release().await.unwrap();
        let mutex = other.mutex("stock:1001:1").acquire().await.unwrap();
        let error = segments(&locks, 3).no_wait().acquire(1).await.unwrap_err();
        assert!(matches!(error, LockError::Busy { .. }), "{error:?}");
        mutex.release().await.unwrap();
    }

    async fn tokens_of_each_segment_grow(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let mut tokens: HashMap<u32, u64> = HashMap::new();
        for round in 0..30 {
            let lock = segments(if round % 2 == 0 { &locks } else { &other }, 3);
            let guard = any(&lock).await;
            let token = guard.fencing_token().get();
            let before = tokens.insert(guard.index(), token);
            assert!(before < Some(token), "{token} after {before:?}");
            guard.release().await.unwrap();
        }
        let all = segments(&locks, 3).acquire_all().await.unwrap();
        for guard in all.segments() {
            let token = guard.fencing_token().get();
            assert!(tokens.insert(guard.index(), token) < Some(token));
        }
        all.release().await.unwrap();
    }

    async fn all_are_taken_in_their_order_and_given_back(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let all = segments(&locks, 7).acquire_all().await.unwrap();
        assert_eq!(all.segments().iter().map(SegmentGuard::index).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
        assert!(!all.is_lost());
        assert_eq!(held(&other, 8).await, [0, 1, 2, 3, 4, 5, 6]);
        all.release().await.unwrap();
        assert_eq!(held(&other, 8).await, [0_u32; 0]);
        drop(segments(&locks, 7).acquire_all().await.unwrap());
        all_are_free(&other, 7).await;
    }

    async fn all_wait_for_whoever_has_one(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let theirs = segments(&other, 5).acquire(3).await.unwrap();
        let lock = segments(&locks, 5);
        let waiter = tokio::spawn(async move { lock.acquire_all().await.unwrap() });
        eventually(async || held(&other, 5).await == [0, 1, 2, 3], LONG).await;
        tokio::time::sleep(ms(50)).await;
        assert!(!waiter.is_finished());
        // In ascending order: those behind it are still free.
        segments(&other, 5).no_wait().acquire(4).await.unwrap().release().await.unwrap();
        theirs.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
    }

    async fn who_takes_all_and_who_takes_all_take_turns(site: Site) {
        let managers = [site.manager().await, site.manager().await];
        let inside = Arc::new(AtomicU32::new(0));
        let mut callers = JoinSet::new();
        for n in 0..8 {
            let (lock, inside) = (segments(&managers[n % 2], 5), Arc::clone(&inside));
            callers.spawn(async move {
                for _ in 0..5 {
                    let all = lock.acquire_all().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "somebody else has all of them");
                    tokio::time::sleep(ms(1)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    all.release().await.unwrap();
                }
            });
        }
        // And some tasks that take one segment, in between.
        for n in 0..4 {
            let (lock, inside) = (segments(&managers[n % 2], 5), Arc::clone(&inside));
            callers.spawn(async move {
                for _ in 0..10 {
                    let guard = any(&lock).await;
                    assert_eq!(inside.load(Ordering::SeqCst), 0, "somebody has all of them");
                    tokio::task::yield_now().await;
                    assert_eq!(inside.load(Ordering::SeqCst), 0, "somebody has all of them");
                    guard.release().await.unwrap();
                }
            });
        }
        callers.join_all().await;
        all_are_free(&managers[0], 5).await;
    }

    async fn the_loss_of_one_segment_is_told_and_no_other_is_lost(site: Site) {
        let locks = site.manager().await;
        let all = segments(&locks, 4).acquire_all().await.unwrap();
        assert!(tokio::time::timeout(ms(20), all.lost()).await.is_err());
        assert!(lose(&locks, "stock:1001:2"));
        all.lost().await;
        assert!(all.is_lost());
        let lost: Vec<_> = all.segments().iter().filter(|guard| guard.is_lost()).map(SegmentGuard::index).collect();
        assert_eq!(lost, [2]);
        // The others are released, and the first error is returned.
        let error = all.release().await.unwrap_err();
        assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
        all_are_free(&locks, 4).await;
        let guard = segments(&locks, 4).acquire(1).await.unwrap();
        assert!(lose(&locks, "stock:1001:1"));
        guard.lost().await;
        assert!(guard.is_lost());
    }

    async fn futures_that_are_dropped_at_any_poll_leave_nothing(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let mut completed = 0;
        for polls in 0..12 {
            let lock = segments(&locks, 3);
            completed += u32::from(poll_at_most(lock.acquire_any(), polls).await.is_some());
            completed += u32::from(poll_at_most(lock.acquire(1), polls).await.is_some());
            completed += u32::from(poll_at_most(lock.acquire_all(), polls).await.is_some());
            all_are_free(&other, 3).await;
        }
        assert!(completed > 0);
        // While they wait, too.
        let theirs = segments(&other, 3).acquire(1).await.unwrap();
        for polls in 0..12 {
            let lock = segments(&locks, 3);
            let (all, one) = (lock.acquire_all(), lock.acquire(1));
            assert!(tokio::time::timeout(ms(30), poll_at_most(all, polls)).await.is_ok_and(|it| it.is_none()) || polls > 1);
            assert!(tokio::time::timeout(ms(30), poll_at_most(one, polls)).await.is_ok_and(|it| it.is_none()) || polls > 1);
        }
        let all_busy = segments(&other, 3);
        let rest = [all_busy.acquire(0).await.unwrap(), all_busy.acquire(2).await.unwrap()];
        poll_once_and_drop(segments(&locks, 3).acquire_any()).await;
        let lock = segments(&locks, 3);
        drop(first_poll(lock.acquire_any()).await);
        drop((theirs, rest));
        all_are_free(&other, 3).await;
        eventually(async || leftovers(&locks).waiters == 0 && leftovers(&locks).keys == 0, LONG).await;
    }

    async fn one_segment_and_as_many_as_there_may_be(site: Site) {
        let locks = site.manager().await;
        let one = segments(&locks, 1);
        assert_eq!(one.segments().unwrap(), 1);
        let guard = any(&one).await;
        assert_eq!(guard.index(), 0);
        assert!(matches!(one.clone().no_wait().acquire_any().await.unwrap_err(), LockError::Busy { .. }));
        guard.release().await.unwrap();
        one.acquire_all().await.unwrap().release().await.unwrap();

        let many = segments(&locks, MAX_SEGMENTS);
        assert_eq!(many.segments().unwrap(), 1024);
        let all = many.acquire_all().await.unwrap();
        assert_eq!(all.segments().len(), 1024);
        assert!(matches!(many.clone().no_wait().acquire_any().await.unwrap_err(), LockError::Busy { .. }));
        all.release().await.unwrap();
        let guard = many.acquire(1023).await.unwrap();
        assert_eq!(guard.key().as_str(), "stock:1001:1023");
        guard.release().await.unwrap();
    }

    async fn numbers_and_names_that_are_none_are_told(site: Site) {
        let locks = site.manager().await;
        for count in [0, 1025, u32::MAX] {
            let lock = locks.segmented(NAME, count);
            let errors = [
                lock.acquire_any().await.map(drop).unwrap_err(),
                lock.acquire(0).await.map(drop).unwrap_err(),
                lock.acquire_all().await.map(drop).unwrap_err(),
                lock.segments().map(drop).unwrap_err(),
            ];
            for error in errors {
                assert!(matches!(error, LockError::Misconfigured { .. }), "{count}: {error:?}");
                assert!(error.to_string().contains("1024"), "{error}");
            }
        }
        let error = segments(&locks, 3).acquire(3).await.unwrap_err();
        assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
        assert!(error.to_string().contains("0 to 2"), "{error}");
        let error = locks.segmented("a{b", 3).acquire_any().await.unwrap_err();
        assert!(matches!(error, LockError::InvalidKey { .. }), "{error:?}");
        let error = locks.segmented("", 3).acquire_all().await.unwrap_err();
        assert!(matches!(error, LockError::InvalidKey { .. }), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segments_exclude_in_the_middle_of_a_crowd() {
    let server = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut crowd = JoinSet::new();
    let end = now_nanos() + 2_000_000_000;
    for manager in 0..3 {
        let locks = LockManager::connect(server.url()).await.unwrap();
        for task in 0..12 {
            let (lock, log) = (segments(&locks, 4), log.clone());
            crowd.spawn(async move {
                let recorder = Recorder::open(&log).unwrap();
                let mut round = 0;
                while now_nanos() < end {
                    round += 1;
                    if task == 0 && round % 5 == 0 {
                        let all = lock.acquire_all().await.unwrap();
                        let sections: Vec<_> = all
                            .segments()
                            .iter()
                            .map(|guard| {
                                recorder.enter(guard.key().as_str(), guard.fencing_token().get(), || {
                                    guard.remaining()
                                })
                            })
                            .collect();
                        tokio::time::sleep(ms(1)).await;
                        for (section, guard) in sections.into_iter().zip(all.segments()) {
                            recorder.leave(section, || guard.remaining());
                        }
                        all.release().await.unwrap();
                        continue;
                    }
                    let guard = if (task + round) % 3 == 0 {
                        lock.acquire((manager + task + round) % 4).await.unwrap()
                    } else {
                        any(&lock).await
                    };
                    let section = recorder
                        .enter(guard.key().as_str(), guard.fencing_token().get(), || guard.remaining());
                    if round % 4 == 0 {
                        tokio::time::sleep(ms(1)).await;
                    }
                    recorder.leave(section, || guard.remaining());
                    if round % 2 == 0 { guard.release().await.unwrap() } else { drop(guard) }
                }
            });
        }
    }
    crowd.join_all().await;
    let report = Report::read(&log).unwrap();
    assert!(report.total() > 50 && report.sections.len() == 4, "{report}");
    report.assert_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_fails_for_some_segments_is_no_hindrance_for_the_others() {
    let mut cluster = Cluster::start_with(cluster::Options::default().node_timeout(LONG));
    let connect =
        async || LockManager::builder().call_timeout(ms(300)).connect(&cluster.url()).await.unwrap();
    let count = 24;
    // Each of them begins at another segment, and finds out by itself.
    let mut all = Vec::new();
    for _ in 0..12 {
        let locks = connect().await;
        segments(&locks, count).acquire_all().await.unwrap().release().await.unwrap();
        all.push(locks);
    }
    let lock = segments(&all[0], count);
    let node_of = |index: u32| cluster.node_of(&format!("lock:{NAME}:{index}"));
    let on_first: HashSet<u32> = (0..count).filter(|index| node_of(*index) == 0).collect();
    assert!(!on_first.is_empty() && on_first.len() < count as usize, "{on_first:?}");
    cluster.nodes_mut()[0].stop();
    for locks in &all {
        for lock in [segments(locks, count), segments(locks, count).no_wait()] {
            let guard = any(&lock).await;
            assert!(!on_first.contains(&guard.index()), "{}", guard.index());
            guard.release().await.unwrap();
        }
    }
    // A caller that wants all, or one of those, gets `Unavailable`.
    let silent = *on_first.iter().next().unwrap();
    let hasty = lock.clone().wait(ms(500));
    let error = hasty.acquire(silent).await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    let error = hasty.acquire_all().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    cluster.nodes_mut()[0].cont();
    lock.acquire_all().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_silent_is_waited_for_once() {
    let mut server = RedisServer::start();
    let timeout = Duration::from_millis(300);
    let locks = LockManager::builder().call_timeout(timeout).connect(server.url()).await.unwrap();
    let segments = locks.segmented("item", 50);
    segments.acquire_any().await.unwrap().release().await.unwrap();
    server.stop();
    let begun = Instant::now();
    let error = segments.clone().no_wait().acquire_any().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    // The time of one of fifty, and not of each for as long as a call may take.
    assert!(begun.elapsed() < timeout * 25, "{:?}", begun.elapsed());
    let error = segments.clone().wait(Duration::from_millis(20)).acquire_any().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. } | LockError::TimedOut { .. }), "{error:?}");
    server.cont();
    segments.acquire_any().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn all_segments_are_held_at_once_or_taken_again() {
    let locks = lock_runtime::testing::memory_manager();
    let segments = locks.segmented("item", 4);
    let third = segments.acquire(3).await.unwrap();
    let all = tokio::spawn({
        let segments = segments.clone().lease(Duration::from_secs(5)).wait(Duration::from_secs(60));
        async move { segments.acquire_all().await }
    });
    // The leases of those before it end meanwhile.
    tokio::time::sleep(Duration::from_secs(8)).await;
    third.release().await.unwrap();
    let all = all.await.unwrap().unwrap();
    assert!(!all.is_lost());
    assert_eq!(all.segments().iter().map(SegmentGuard::index).collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_gone_is_told_for_any_segment() {
    let mut server = RedisServer::start();
    let locks = LockManager::builder().call_timeout(ms(300)).connect(&server.url()).await.unwrap();
    let lock = locks.segmented(NAME, 5);
    any(&lock).await.release().await.unwrap();
    server.kill();
    let wait = ms(700);
    let start = Instant::now();
    let error = lock.clone().wait(wait).acquire_any().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    assert!(start.elapsed() < wait + LONG / 2, "{:?}", start.elapsed());
    let error = lock.no_wait().acquire_all().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
}
