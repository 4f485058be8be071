//! Calls inside locked calls, of every kind: which ones re-enter, which ones fail at once, and
//! which calls siblings exclude.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::{Kind, LockError, LockGuard, LockManager, MultiKey};
use lock_tests::kinds::{EXCLUSIVE, KINDS, is_free, is_locked, lock, nothing_is_left, rival_of, status};
use lock_tests::{eventually, on_every_store, validity};
use tokio::sync::Barrier;
use tokio::time::{Instant, timeout};

const LONG: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Asserts the error of a call of kind `wanted` inside one of kind `held`.
fn assert_conflict(error: &LockError, held: Kind, wanted: Kind) {
    match error {
        LockError::KindConflict { held: h, wanted: w, key } if (*h, *w) == (held, wanted) => {
            assert_eq!(key.as_str(), "conflict");
        }
        other => panic!("{wanted:?} in {held:?}: {other:?}"),
    }
}

/// Counts the maximum number of holders inside at the same time.
#[derive(Default)]
struct Crowd {
    inside: AtomicUsize,
    most: AtomicUsize,
}

impl Crowd {
    async fn stay(&self) {
        let now = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(ms(20)).await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn stay_in(locks: &LockManager, kind: Kind, key: &str, crowd: &Crowd) {
    let guard = lock(locks, kind, key).wait(LONG).acquire().await.unwrap();
    guard.scope(crowd.stay()).await;
    guard.release().await.unwrap();
}

on_every_store! {
    async fn a_call_inside_enters_again_with_the_same_token(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        for kind in KINDS {
            let outer = lock(&locks, kind, "again").acquire().await.unwrap();
            let inner = outer.scope(lock(&locks, kind, "again").acquire()).await.unwrap();
            let tried = inner.scope(lock(&locks, kind, "again").try_acquire()).await.unwrap();
            let again = outer.reenter().unwrap();
            let tokens = [Some(&inner), tried.as_ref(), Some(&again)].map(|guard| guard.map(LockGuard::fencing_token));
            assert_eq!(tokens, [Some(outer.fencing_token()); 3], "{kind:?}");
            let seen = status(&other, "again").await;
            assert_eq!((seen.kind.is_some(), seen.holders.len()), (true, 1), "{kind:?}: {seen:?}");
            // The last one gives it back, whichever it is.
            outer.release().await.unwrap();
            inner.release().await.unwrap();
            drop(tried);
            assert!(lock(&other, rival_of(kind), "again").try_acquire().await.unwrap().is_none(), "{kind:?}");
            again.release().await.unwrap();
            assert!(is_free(lock(&other, rival_of(kind), "again")).await, "{kind:?}");
        }
    }

    async fn kinds_that_do_not_fit_into_each_other_conflict_at_once(site: Site) {
        let locks = site.manager().await;
        for held in KINDS {
            for wanted in KINDS {
                if wanted == held || (held, wanted) == (Kind::Write, Kind::Read) {
                    continue;
                }
                let outer = lock(&locks, held, "conflict").acquire().await.unwrap();
                let start = Instant::now();
                let wish = || lock(&locks, wanted, "conflict").wait(LONG);
                assert_conflict(&outer.scope(wish().acquire()).await.unwrap_err(), held, wanted);
                assert_conflict(&outer.scope(wish().try_acquire()).await.unwrap_err(), held, wanted);
                let error = outer.scope(wish().with(async |_| ())).await.unwrap_err();
                assert!(matches!(error, LockError::KindConflict { .. }), "{error:?}");
                assert!(!error.is_busy() && !error.is_retryable() && !error.body_started());
                let several = [wanted_key(wanted, "conflict"), MultiKey::mutex("unrelated")];
                let error = outer.scope(locks.multi(several).wait(LONG).acquire()).await.unwrap_err();
                assert_conflict(&error, held, wanted);
                assert!(start.elapsed() < site.at_most(ms(0)), "{wanted:?} in {held:?}: {:?}", start.elapsed());
                assert!(!is_locked(&locks, "unrelated").await, "nothing of it was taken");
                assert!(!outer.is_lost());
                outer.release().await.unwrap();
            }
        }
        nothing_is_left(&site, &[&locks], &["conflict", "unrelated"]).await;
    }

    /// Two readers that tried would wait for each other forever.
    async fn a_reader_can_not_become_a_writer(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let (one, two) = (locks.read("up").acquire().await.unwrap(), other.read("up").acquire().await.unwrap());
        for (reader, manager) in [(&one, &locks), (&two, &other)] {
            let error = reader.scope(manager.write("up").wait_forever().acquire()).await.unwrap_err();
            assert!(
                matches!(error, LockError::KindConflict { held: Kind::Read, wanted: Kind::Write, .. }),
                "{error:?}"
            );
            assert!(!reader.is_lost());
        }
        // Outside of the read lock it is an ordinary writer.
        one.release().await.unwrap();
        two.release().await.unwrap();
        locks.write("up").acquire().await.unwrap().release().await.unwrap();
    }

    async fn a_writer_may_read_inside(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let writer = locks.write("inside").acquire().await.unwrap();
        let reader = writer.scope(locks.read("inside").acquire()).await.unwrap();
        assert_eq!(reader.fencing_token(), writer.fencing_token());
        let nested = reader.scope(locks.read("inside").acquire()).await;
        // Inside the read lock it counts as a reader, though the writer is around it.
        nested.unwrap().release().await.unwrap();
        assert!(other.read("inside").try_acquire().await.unwrap().is_none(), "it is still a writer's");
        reader.release().await.unwrap();
        assert!(other.read("inside").try_acquire().await.unwrap().is_none(), "it is still a writer's");
        assert_eq!(status(&other, "inside").await.kind, Some(Kind::Write));
        writer.release().await.unwrap();
        assert!(is_free(other.read("inside")).await);
    }

    /// The read lock that was taken inside remains of the write lock, and no writer gets in
    /// between.
    async fn a_writer_that_leaves_before_its_reader_becomes_a_reader(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let writer = locks.write("downgraded").acquire().await.unwrap();
        let reader = writer.scope(locks.read("downgraded").acquire()).await.unwrap();
        writer.release().await.unwrap();
        assert_eq!(status(&other, "downgraded").await.kind, Some(Kind::Read));
        for manager in [&locks, &other] {
            assert!(manager.write("downgraded").try_acquire().await.unwrap().is_none());
            assert!(is_free(manager.read("downgraded")).await);
        }
        // It is not a writer any more.
        let error = reader.scope(locks.write("downgraded").try_acquire()).await.unwrap_err();
        assert!(matches!(error, LockError::KindConflict { .. }), "{error:?}");
        assert!(!reader.is_lost());
        reader.release().await.unwrap();
        assert!(is_free(other.write("downgraded")).await);
        nothing_is_left(&site, &[&locks, &other], &["downgraded"]).await;
    }

    async fn only_a_write_lock_of_one_key_can_be_downgraded(site: Site) {
        let locks = site.manager().await;
        for kind in [Kind::Mutex, Kind::Fair] {
            let guard = lock(&locks, kind, "other kind").acquire().await.unwrap();
            let error = guard.downgrade().await.unwrap_err();
            assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
        }
        let several = locks.multi([MultiKey::write("a"), MultiKey::write("b")]).acquire().await.unwrap();
        let error = several.downgrade().await.unwrap_err();
        assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
        // A reader already is one.
        let reader = locks.read("reader").acquire().await.unwrap();
        let token = reader.fencing_token();
        let reader = reader.downgrade().await.unwrap();
        assert_eq!(reader.fencing_token(), token);
        reader.release().await.unwrap();
        nothing_is_left(&site, &[&locks], &["other kind", "a", "b", "reader"]).await;
    }

    async fn siblings_inside_a_hold_exclude_each_other(site: Site) {
        let locks = site.manager().await;
        for kind in EXCLUSIVE {
            let crowd = Crowd::default();
            let outer = lock(&locks, kind, "siblings").acquire().await.unwrap();
            let siblings = async {
                tokio::join!(
                    stay_in(&locks, kind, "siblings", &crowd),
                    stay_in(&locks, kind, "siblings", &crowd),
                    stay_in(&locks, kind, "siblings", &crowd),
                )
            };
            timeout(LONG, outer.scope(siblings)).await.expect("they enter one after the other");
            assert_eq!(crowd.most.load(Ordering::SeqCst), 1, "{kind:?}");
            outer.release().await.unwrap();
        }
        nothing_is_left(&site, &[&locks], &["siblings"]).await;
    }

    async fn sibling_readers_are_inside_at_the_same_time(site: Site) {
        let locks = site.manager().await;
        let inside = Arc::new(Barrier::new(3));
        let read = async |locks: &LockManager| {
            let guard = locks.read("siblings").wait(LONG).acquire().await.unwrap();
            guard.scope(inside.wait()).await;
            guard.release().await.unwrap();
        };
        let outer = locks.read("siblings").acquire().await.unwrap();
        let siblings = async { tokio::join!(read(&locks), read(&locks), read(&locks)) };
        timeout(LONG, outer.scope(siblings)).await.expect("all are inside together");
        outer.release().await.unwrap();
    }

    /// A write and a read as siblings, inside a write lock.
    async fn a_sibling_that_writes_excludes_one_that_reads(site: Site) {
        let locks = site.manager().await;
        let crowd = Crowd::default();
        let outer = locks.write("siblings").acquire().await.unwrap();
        let siblings = async {
            tokio::join!(
                stay_in(&locks, Kind::Write, "siblings", &crowd),
                stay_in(&locks, Kind::Read, "siblings", &crowd),
                stay_in(&locks, Kind::Write, "siblings", &crowd),
            )
        };
        timeout(LONG, outer.scope(siblings)).await.expect("they enter one after the other");
        assert_eq!(crowd.most.load(Ordering::SeqCst), 1);
        outer.release().await.unwrap();
    }

    /// A plain guard is not a scope: a task that asks again waits for itself like any other.
    /// Redisson's non-reentrant locks do the same, with an error.
    async fn a_plain_guard_is_not_entered_again_by_the_task_that_has_it(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        for kind in EXCLUSIVE {
            let guard = lock(&locks, kind, "plain").acquire().await.unwrap();
            for manager in [&locks, &other] {
                assert!(!is_free(lock(manager, kind, "plain")).await, "{kind:?}");
                let error = lock(manager, kind, "plain").wait(ms(100)).acquire().await.unwrap_err();
                assert!(matches!(error, LockError::TimedOut { .. }), "{kind:?}: {error:?}");
            }
            // One release frees it.
            guard.release().await.unwrap();
            eventually(async || is_free(lock(&other, kind, "plain")).await, LONG).await;
        }
        nothing_is_left(&site, &[&locks, &other], &["plain"]).await;
    }

    /// Tasks that a locked call spawns are strangers to its lock.
    async fn a_spawned_task_is_a_stranger(site: Site) {
        let locks = site.manager().await;
        for kind in KINDS {
            let outer = lock(&locks, kind, "stranger").acquire().await.unwrap();
            let stranger = outer.scope(async {
                tokio::spawn(lock(&locks, rival_of(kind), "stranger").try_acquire()).await.unwrap()
            });
            assert!(stranger.await.unwrap().is_none(), "{kind:?}");
            outer.release().await.unwrap();
        }
    }

    async fn a_write_lock_is_renewed_after_a_read_inside_it_has_ended(site: Site) {
        let lease = ms(900);
        let (locks, other) = (site.manager_with(|builder| builder.lease(lease)).await, site.manager().await);
        let writer = locks.write("renewed").acquire().await.unwrap();
        let reader = writer.scope(locks.read("renewed").acquire()).await.unwrap();
        reader.release().await.unwrap();
        // Nor does one with a fixed short lease.
        let fixed = writer.scope(locks.read("renewed").lease(ms(300)).acquire()).await.unwrap();
        fixed.release().await.unwrap();
        let start = Instant::now();
        while start.elapsed() < lease * 5 {
            tokio::time::sleep(lease / 3).await;
            assert!(!writer.is_lost(), "after {:?}", start.elapsed());
            assert!(other.read("renewed").try_acquire().await.unwrap().is_none(), "after {:?}", start.elapsed());
        }
        writer.release().await.unwrap();
    }

    async fn a_lock_is_renewed_after_a_nested_one_has_ended(site: Site) {
        let lease = ms(900);
        let (locks, other) = (site.manager_with(|builder| builder.lease(lease)).await, site.manager().await);
        let mut outer = Vec::new();
        for (kind, key) in KINDS.into_iter().zip(["a", "b", "c", "d"]) {
            let guard = lock(&locks, kind, key).acquire().await.unwrap();
            let inner = guard.scope(lock(&locks, kind, key).acquire()).await.unwrap();
            inner.release().await.unwrap();
            outer.push((guard, kind, key));
        }
        let start = Instant::now();
        while start.elapsed() < lease * 10 {
            tokio::time::sleep(lease / 2).await;
            for (guard, kind, key) in &outer {
                assert!(!guard.is_lost(), "{kind:?} after {:?}", start.elapsed());
                let rival = lock(&other, rival_of(*kind), key).try_acquire().await.unwrap();
                assert!(rival.is_none(), "{kind:?} after {:?}", start.elapsed());
            }
        }
        for (guard, ..) in outer {
            guard.release().await.unwrap();
        }
    }

    /// A downgraded lock is renewed as the write lock was, and its deadline never moves back.
    async fn a_downgraded_lock_is_renewed(site: Site) {
        let lease = ms(900);
        let (locks, other) = (site.manager_with(|builder| builder.lease(lease)).await, site.manager().await);
        let writer = locks.write("kept").acquire().await.unwrap();
        tokio::time::sleep(lease * 3).await;
        let reader = writer.downgrade().await.unwrap();
        let start = Instant::now();
        while start.elapsed() < lease * 5 {
            assert!(!reader.is_lost(), "after {:?}", start.elapsed());
            assert!(other.write("kept").try_acquire().await.unwrap().is_none(), "after {:?}", start.elapsed());
            tokio::time::sleep(lease / 3).await;
        }
        reader.release().await.unwrap();
        assert!(is_free(other.write("kept")).await);
    }

    async fn a_nested_lease_never_shortens_and_ends_with_the_longest(site: Site) {
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(4));
        let (locks, other) = (site.manager().await, site.manager().await);
        for kind in KINDS {
            let start = Instant::now();
            let outer = lock(&locks, kind, "leases").lease(long).acquire().await.unwrap();
            let inner = outer.scope(lock(&locks, kind, "leases").lease(short).acquire()).await.unwrap();
            inner.release().await.unwrap();
            let remaining = status(&other, "leases").await.remaining.expect("it is held");
            assert!(remaining > short && remaining <= long, "{kind:?}: {remaining:?}");
            let next = lock(&other, rival_of(kind), "leases").wait(LONG).acquire().await.unwrap();
            let took = start.elapsed();
            assert!(took >= validity(long) && took < site.at_most(long), "{kind:?}: {took:?}");
            assert!(outer.is_lost());
            next.release().await.unwrap();

            // The other way round: a longer lease inside extends it.
            let outer = lock(&locks, kind, "leases").lease(short).acquire().await.unwrap();
            let start = Instant::now();
            let inner = outer.scope(lock(&locks, kind, "leases").lease(long).acquire()).await.unwrap();
            assert!(inner.remaining() > short, "{kind:?}: {:?}", inner.remaining());
            let next = lock(&other, rival_of(kind), "leases").wait(LONG).acquire().await.unwrap();
            let took = start.elapsed();
            assert!(took >= validity(long) && took < site.at_most(long), "{kind:?}: {took:?}");
            next.release().await.unwrap();
        }
    }
}

fn wanted_key(kind: Kind, key: &str) -> MultiKey {
    match kind {
        Kind::Fair => MultiKey::fair(key),
        Kind::Read => MultiKey::read(key),
        Kind::Write => MultiKey::write(key),
        _ => MultiKey::mutex(key),
    }
}
