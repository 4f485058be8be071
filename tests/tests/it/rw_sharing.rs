//! Readers together, and writers alone: which readers share a hold and a token, and which callers
//! are let in when.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use lock_runtime::{Kind, LockError, LockGuard, LockManager, LockManagerBuilder};
use lock_tests::kinds::{is_free, is_locked, nothing_is_left, status, waiters_are};
use lock_tests::{Site, eventually, first_poll, on_every_store};
use tokio::sync::Barrier;
use tokio::time::{Instant, timeout};

const LONG: Duration = Duration::from_secs(60);
/// Lease that does not expire during these tests.
const ENDLESS: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn two(site: &Site) -> [LockManager; 2] {
    let endless = |builder: LockManagerBuilder| builder.lease(ENDLESS);
    [site.manager_with(endless).await, site.manager_with(endless).await]
}

/// Acquires two readers, the second while the shared hold was young. That window lasts
/// milliseconds, so on a busy machine it may take several tries.
async fn pair_in_one_window(locks: &LockManager, key: &str) -> (LockGuard, LockGuard) {
    let start = Instant::now();
    loop {
        let first = locks.read(key).acquire().await.unwrap();
        let second = locks.read(key).acquire().await.unwrap();
        if first.fencing_token() == second.fencing_token() || start.elapsed() > LONG {
            return (first, second);
        }
        first.release().await.unwrap();
        second.release().await.unwrap();
    }
}

/// Makes 20 readers, spread over the managers, wait behind the writer that is in. When `let_in` is
/// done, all of them must be inside at the same time.
async fn readers_enter_together(site: &Site, locks: &[LockManager; 2], let_in: impl Future<Output = ()>) {
    const READERS: usize = 20;
    let inside = Arc::new(Barrier::new(READERS));
    let mut waiting = Vec::new();
    for reader in 0..READERS {
        let (locks, inside) = (locks[reader % 2].clone(), inside.clone());
        let first = first_poll(locks.read("together").wait(LONG).acquire()).await;
        waiting.push(tokio::spawn(async move {
            let guard = first.await.unwrap();
            let entered = Instant::now();
            // Passed when everybody is in.
            timeout(LONG, inside.wait()).await.expect("all are inside together");
            guard.release().await.unwrap();
            entered
        }));
    }
    // The other manager's readers wait at the store by now, those of the writer's own manager here.
    waiters_are(&locks[0], "together", 2).await;
    let start = Instant::now();
    let_in.await;
    for reader in waiting {
        let took = reader.await.unwrap().duration_since(start);
        assert!(took < site.at_most(ms(100)), "woken, not found by chance: {took:?}");
    }
}

on_every_store! {
    async fn readers_are_in_at_the_same_time_and_writers_are_not(site: Site) {
        let locks = two(&site).await;
        let (one, two) = (locks[0].read("rw").acquire().await.unwrap(), locks[1].read("rw").acquire().await.unwrap());
        for manager in &locks {
            assert!(manager.write("rw").try_acquire().await.unwrap().is_none(), "readers are in");
            assert!(is_free(manager.read("rw")).await);
        }
        one.release().await.unwrap();
        assert!(locks[0].write("rw").try_acquire().await.unwrap().is_none(), "one reader is left");
        two.release().await.unwrap();
        let writer = locks[0].write("rw").try_acquire().await.unwrap().expect("nobody is in");
        for manager in &locks {
            assert!(manager.write("rw").try_acquire().await.unwrap().is_none(), "a writer is in");
            assert!(manager.read("rw").try_acquire().await.unwrap().is_none(), "a writer is in");
        }
        writer.release().await.unwrap();
        assert!(is_free(locks[1].read("rw")).await);
        let [a, b] = &locks;
        nothing_is_left(&site, &[a, b], &["rw"]).await;
    }

    async fn readers_of_one_manager_share_a_hold_and_a_token(site: Site) {
        let locks = two(&site).await;
        let (first, second) = pair_in_one_window(&locks[0], "shared").await;
        assert_eq!(first.fencing_token(), second.fencing_token());
        let seen = status(&locks[1], "shared").await;
        assert_eq!((seen.kind, seen.holders.len()), (Some(Kind::Read), 1), "{seen:?}");
        // Another process has a separate hold and token.
        let third = locks[1].read("shared").acquire().await.unwrap();
        assert!(third.fencing_token() > first.fencing_token());
        assert_eq!(status(&locks[1], "shared").await.holders.len(), 2);
        // The last of its readers releases the hold.
        first.release().await.unwrap();
        third.release().await.unwrap();
        assert!(is_locked(&locks[1], "shared").await);
        assert!(!second.is_lost());
        second.release().await.unwrap();
        assert!(!is_locked(&locks[1], "shared").await);
    }

    async fn readers_with_a_fixed_lease_have_holds_and_tokens_of_their_own(site: Site) {
        let locks = two(&site).await;
        let shared = locks[0].read("own").acquire().await.unwrap();
        let fixed = locks[0].read("own").lease(ENDLESS).acquire().await.unwrap();
        let second = locks[0].read("own").lease(ENDLESS).acquire().await.unwrap();
        assert!(fixed.fencing_token() > shared.fencing_token());
        assert!(second.fencing_token() > fixed.fencing_token());
        assert_eq!(status(&locks[0], "own").await.holders.len(), 3);
        // Each ends alone.
        shared.release().await.unwrap();
        fixed.release().await.unwrap();
        assert!(locks[1].write("own").try_acquire().await.unwrap().is_none());
        second.release().await.unwrap();
        assert!(is_free(locks[1].write("own")).await);
    }

    async fn a_reader_that_comes_after_the_window_has_a_hold_of_its_own(site: Site) {
        let locks = site.manager_with(|builder| builder.lease(ENDLESS).cohort_window(ms(50))).await;
        let first = locks.read("window").acquire().await.unwrap();
        tokio::time::sleep(ms(300)).await;
        let second = locks.read("window").acquire().await.unwrap();
        assert!(second.fencing_token() > first.fencing_token());
        assert_eq!(status(&locks, "window").await.holders.len(), 2);
        first.release().await.unwrap();
        assert!(!second.is_lost());
        assert!(is_locked(&locks, "window").await);
        second.release().await.unwrap();
        nothing_is_left(&site, &[&locks], &["window"]).await;
    }

    async fn waiting_readers_enter_together_when_a_writer_leaves(site: Site) {
        let locks = two(&site).await;
        let writer = locks[0].write("together").acquire().await.unwrap();
        readers_enter_together(&site, &locks, async { writer.release().await.unwrap() }).await;
        let [a, b] = &locks;
        nothing_is_left(&site, &[a, b], &["together"]).await;
    }

    /// They are inside together with the former writer, which is still there as a reader.
    async fn waiting_readers_enter_together_when_a_writer_becomes_a_reader(site: Site) {
        let locks = two(&site).await;
        let writer = locks[0].write("together").acquire().await.unwrap();
        let token = writer.fencing_token();
        let kept = Arc::new(std::sync::Mutex::new(None));
        let slot = kept.clone();
        readers_enter_together(&site, &locks, async move {
            *slot.lock().unwrap() = Some(writer.downgrade().await.unwrap());
        })
        .await;
        let reader = kept.lock().unwrap().take().expect("it was downgraded");
        assert!(!reader.is_lost());
        assert_eq!(reader.fencing_token(), token, "the token stays");
        let seen = status(&locks[1], "together").await;
        assert_eq!((seen.kind, seen.holders.len()), (Some(Kind::Read), 1), "{seen:?}");
        reader.release().await.unwrap();
        let [a, b] = &locks;
        nothing_is_left(&site, &[a, b], &["together"]).await;
    }

    /// There is a reader at every moment; the writer gets in all the same, and readers after it.
    async fn a_writer_gets_in_although_readers_keep_coming(site: Site) {
        let locks = two(&site).await;
        let stop = Arc::new(AtomicBool::new(false));
        let readings = Arc::new(AtomicI64::new(0));
        let mut readers = Vec::new();
        for reader in 0..6 {
            let (locks, stop, readings) = (locks[reader % 2].clone(), stop.clone(), readings.clone());
            readers.push(tokio::spawn(async move {
                tokio::time::sleep(ms(7) * reader as u32).await;
                while !stop.load(Ordering::SeqCst) {
                    let guard = locks.read("busy").wait(LONG).acquire().await.unwrap();
                    readings.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(ms(40)).await;
                    guard.release().await.unwrap();
                }
            }));
        }
        tokio::time::sleep(ms(200)).await;
        for writer in [0, 1, 0, 1] {
            let before = readings.load(Ordering::SeqCst);
            eventually(async || is_locked(&locks[0], "busy").await, LONG).await;
            let start = Instant::now();
            let guard = locks[writer].write("busy").wait(LONG).acquire().await.expect("the writer has its turn");
            let took = start.elapsed();
            // The readers inside, 40 ms, and those that the writer's own process may let in before
            // it asks.
            assert!(took < site.at_most(ms(300)), "{took:?}");
            let inside = readings.load(Ordering::SeqCst);
            tokio::time::sleep(ms(30)).await;
            assert_eq!(readings.load(Ordering::SeqCst), inside, "nobody reads beside a writer");
            guard.release().await.unwrap();
            eventually(async || readings.load(Ordering::SeqCst) > inside.max(before) + 6, LONG).await;
        }
        stop.store(true, Ordering::SeqCst);
        for reader in readers {
            reader.await.unwrap();
        }
        let [a, b] = &locks;
        nothing_is_left(&site, &[a, b], &["busy"]).await;
    }

    async fn a_waiting_writer_keeps_new_readers_out_and_one_that_leaves_lets_them_in(site: Site) {
        let locks = two(&site).await;
        let reader = locks[0].read("intent").acquire().await.unwrap();
        let writer = first_poll(locks[1].write("intent").wait(LONG).acquire()).await;
        let writer = tokio::spawn(writer);
        waiters_are(&locks[0], "intent", 1).await;
        // For longer than an intent lives without renewal.
        let start = Instant::now();
        let (mut tries, mut let_in) = (0, 0);
        while start.elapsed() < Duration::from_secs(4) {
            tries += 2;
            let_in += usize::from(is_free(locks[1].read("intent")).await);
            let_in += usize::from(is_free(locks[0].read("intent").lease(ENDLESS)).await);
            tokio::time::sleep(ms(300)).await;
        }
        // A machine that stalls for most of a second does not renew it.
        let tolerated = if site.is_remote() { tries / 2 } else { 0 };
        assert!(let_in <= tolerated, "{let_in} of {tries}");
        let waiting = first_poll(locks[1].read("intent").wait(LONG).acquire()).await;
        writer.abort();
        let start = Instant::now();
        let second = waiting.await.unwrap();
        assert!(start.elapsed() < site.at_most(ms(100)), "{:?}", start.elapsed());
        second.release().await.unwrap();
        reader.release().await.unwrap();
        let [a, b] = &locks;
        nothing_is_left(&site, &[a, b], &["intent"]).await;
    }

    async fn a_try_to_write_keeps_no_reader_out(site: Site) {
        let locks = two(&site).await;
        let reader = locks[0].read("try").acquire().await.unwrap();
        assert!(locks[1].write("try").try_acquire().await.unwrap().is_none());
        assert!(is_free(locks[1].read("try")).await);
        let error = locks[1].write("try").wait(ms(100)).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        // A writer that has waited in vain does not, either, once it has gone.
        eventually(async || is_free(locks[1].read("try")).await, LONG).await;
        reader.release().await.unwrap();
        let [a, b] = &locks;
        nothing_is_left(&site, &[a, b], &["try"]).await;
    }

    /// Adds to a number in two steps under the write lock, and reads it twice under the read lock.
    async fn random_readers_and_writers_of_sixteen_managers_see_whole_numbers(site: Site) {
        let number = Arc::new(AtomicI64::new(0));
        let mut tasks = Vec::new();
        for manager in 0..16_i64 {
            let (locks, number) = (site.manager().await, number.clone());
            tasks.push(tokio::spawn(async move {
                let mut writes = 0;
                for round in 0..25 {
                    if (manager * 7 + round * 11) % 5 < 2 {
                        let guard = locks.write("numbers").wait(LONG).acquire().await.unwrap();
                        let seen = number.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(seen % 2, 0, "somebody is half way");
                        tokio::time::sleep(ms(1)).await;
                        assert_eq!(number.fetch_add(1, Ordering::SeqCst), seen + 1);
                        guard.release().await.unwrap();
                        writes += 1;
                    } else {
                        let guard = locks.read("numbers").wait(LONG).acquire().await.unwrap();
                        let seen = number.load(Ordering::SeqCst);
                        assert_eq!(seen % 2, 0, "somebody is half way");
                        tokio::time::sleep(ms(1)).await;
                        assert_eq!(number.load(Ordering::SeqCst), seen, "nobody writes beside a reader");
                        guard.release().await.unwrap();
                    }
                }
                writes
            }));
        }
        let mut writes = 0;
        for task in tasks {
            writes += task.await.unwrap();
        }
        assert_eq!(number.load(Ordering::SeqCst), 2 * writes);
    }

    async fn a_hundred_managers_read_and_write(site: Site) {
        let number = Arc::new(AtomicI64::new(0));
        let mut tasks = Vec::new();
        for manager in 0..100 {
            let (locks, number) = (site.manager().await, number.clone());
            tasks.push(tokio::spawn(async move {
                if manager % 3 == 0 {
                    let guard = locks.write("hundred").wait(LONG).acquire().await.unwrap();
                    let seen = number.load(Ordering::SeqCst);
                    tokio::time::sleep(ms(1)).await;
                    number.store(seen + 1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                } else {
                    let guard = locks.read("hundred").wait(LONG).acquire().await.unwrap();
                    let seen = number.load(Ordering::SeqCst);
                    tokio::time::sleep(ms(1)).await;
                    assert_eq!(number.load(Ordering::SeqCst), seen);
                    guard.release().await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(number.load(Ordering::SeqCst), 34);
    }
}
