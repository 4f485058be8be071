//! Leases of readers and writers beside each other: none shortens another's, and each ends by
//! itself.

use std::time::Duration;

use lock_runtime::{Kind, LockManagerBuilder};
use lock_tests::kinds::{is_free, nothing_is_left, status};
use lock_tests::{eventually, on_every_store, validity};
use tokio::time::{Instant, timeout};

const LONG: Duration = Duration::from_secs(60);

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

on_every_store! {
    async fn a_short_reader_does_not_cut_a_long_one(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        for release in [false, true] {
            let start = Instant::now();
            let long = locks.read("lengths").lease(secs(4)).acquire().await.unwrap();
            let short = other.read("lengths").lease(secs(1)).acquire().await.unwrap();
            if release {
                short.release().await.unwrap();
            } else {
                timeout(LONG, short.lost()).await.expect("it is short");
                assert!(short.release().await.is_err());
            }
            assert!(!long.is_lost());
            let writer = other.write("lengths").wait(LONG).acquire().await.unwrap();
            let took = start.elapsed();
            assert!(took >= validity(secs(4)) && took < site.at_most(secs(4)), "{took:?}");
            assert!(writer.fencing_token() > long.fencing_token());
            writer.release().await.unwrap();
            assert!(long.is_lost());
        }
        nothing_is_left(&site, &[&locks, &other], &["lengths"]).await;
    }

    async fn readers_enter_when_the_lease_of_a_writer_is_over(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let start = Instant::now();
        let writer = locks.write("over").lease(secs(2)).acquire().await.unwrap();
        let (one, two) = tokio::join!(
            locks.read("over").wait(LONG).acquire(),
            other.read("over").wait(LONG).acquire(),
        );
        let took = start.elapsed();
        assert!(took >= validity(secs(2)) && took < site.at_most(secs(2)), "{took:?}");
        assert!(writer.is_lost());
        one.unwrap().release().await.unwrap();
        two.unwrap().release().await.unwrap();
    }

    async fn a_writer_enters_when_the_last_lease_of_a_reader_is_over(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let start = Instant::now();
        let leased = locks.read("last").lease(secs(4)).acquire().await.unwrap();
        let released = other.read("last").acquire().await.unwrap();
        let (writer, ()) = tokio::join!(other.write("last").wait(LONG).acquire(), async {
            tokio::time::sleep(secs(2)).await;
            released.release().await.unwrap();
        });
        let took = start.elapsed();
        assert!(took >= validity(secs(4)) && took < site.at_most(secs(4)), "{took:?}");
        assert!(leased.is_lost());
        writer.unwrap().release().await.unwrap();
    }

    /// A reader that comes and goes beside a renewed one does not shorten its lease.
    async fn fifty_readers_are_renewed_beside_others_that_come_and_go(site: Site) {
        let lease = secs(2);
        let settings = |builder: LockManagerBuilder| builder.lease(lease);
        let managers = [site.manager_with(settings).await, site.manager_with(settings).await];
        let mut readers = Vec::new();
        for n in 0..50_usize {
            let locks = managers[n % 2].clone();
            readers.push(tokio::spawn(async move {
                let guard = match n % 3 {
                    0 => locks.read("fifty").lease(lease * 3).acquire().await.unwrap(),
                    _ => locks.read("fifty").wait(LONG).acquire().await.unwrap(),
                };
                for _ in 0..10 {
                    tokio::time::sleep(lease / 5).await;
                    assert!(!guard.is_lost(), "{n}");
                }
                guard.release().await.unwrap();
            }));
            tokio::time::sleep(ms(10)).await;
        }
        for reader in readers {
            reader.await.unwrap();
        }
        let [a, b] = &managers;
        assert!(is_free(a.write("fifty")).await);
        nothing_is_left(&site, &[a, b], &["fifty"]).await;
    }

    /// Written, then written and read, then read only: the remaining lease never falls below two
    /// thirds.
    async fn what_is_left_of_a_lease_is_kept_up_through_a_downgrade(site: Site) {
        let lease = secs(6);
        let (locks, other) = (site.manager_with(|builder| builder.lease(lease)).await, site.manager().await);
        let look = async |phase: &str, time: Duration| {
            let start = Instant::now();
            while start.elapsed() < time {
                let seen = status(&other, "ttl").await;
                let remaining = seen.remaining.unwrap_or_default();
                // A busy machine renews late, but long before the end.
                let least = if site.is_remote() { lease / 6 } else { lease * 2 / 3 - ms(50) };
                assert!(remaining >= least, "{phase}: {remaining:?} left after {:?}", start.elapsed());
                tokio::time::sleep(ms(250)).await;
            }
        };
        let writer = locks.write("ttl").acquire().await.unwrap();
        look("written", lease).await;
        let reader = writer.scope(locks.read("ttl").acquire()).await.unwrap();
        look("written and read", lease).await;
        writer.release().await.unwrap();
        look("read", lease * 2).await;
        assert!(!reader.is_lost());
        assert_eq!(status(&other, "ttl").await.kind, Some(Kind::Read));
        reader.release().await.unwrap();
        assert!(is_free(other.write("ttl")).await);
    }

    /// Their processes are gone: nobody renews them, releases them, or looks at them again.
    async fn readers_that_nobody_ends_let_a_writer_in_with_the_last_of_their_leases(site: Site) {
        let lease = secs(2);
        let live = site.manager().await;
        let start = Instant::now();
        let mut zombies = Vec::new();
        for _ in 0..20 {
            let dead = site.manager().await;
            for _ in 0..3 {
                zombies.push(dead.read("zombies").lease(lease).acquire().await.unwrap());
            }
        }
        let reader = live.read("zombies").acquire().await.unwrap();
        let holders = status(&live, "zombies").await.holders.len();
        assert!(holders == 61 || start.elapsed() > lease / 2, "{holders}");
        let granted = Instant::now();
        let writer = tokio::spawn(live.write("zombies").wait(LONG).acquire());
        eventually(async || status(&live, "zombies").await.holders.len() == 1, LONG).await;
        assert!(!writer.is_finished(), "one reader lives");
        reader.release().await.unwrap();
        let writer = writer.await.unwrap().unwrap();
        assert!(granted.elapsed() < site.at_most(lease + ms(100)), "{:?}", granted.elapsed());
        assert!(zombies.iter().all(lock_runtime::LockGuard::is_lost));
        writer.release().await.unwrap();
    }

    async fn readers_and_a_writer_of_other_names_do_not_disturb_each_other(site: Site) {
        let locks = site.manager().await;
        let mut tasks = Vec::new();
        for n in 0..10 {
            let locks = locks.clone();
            tasks.push(tokio::spawn(async move {
                // Names with a hash tag are Redis Cluster's way to keep keys together.
                for round in 0..10 {
                    let key = format!("{{test}}:abc:{}", round % 2);
                    let guard = locks.read(&key).wait(LONG).acquire().await.unwrap();
                    tokio::task::yield_now().await;
                    guard.release().await.unwrap();
                    let own = locks.write(format!("{{test}}:own:{n}")).acquire().await.unwrap();
                    own.release().await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        nothing_is_left(&site, &[&locks], &["{test}:abc:0", "{test}:abc:1"]).await;
    }
}
