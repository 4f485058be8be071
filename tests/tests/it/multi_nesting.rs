//! Locks of several keys inside others, and the other way round: which keys are entered again,
//! which are taken, and which calls siblings exclude.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{Kind, LockError, MultiKey};
use lock_tests::kinds::{is_free, is_locked, lock, locked, nothing_is_left, rival_of, status};
use lock_tests::on_every_store;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns one key of each kind.
fn mixed() -> [MultiKey; 4] {
    [MultiKey::write("w"), MultiKey::mutex("m"), MultiKey::fair("f"), MultiKey::read("r")]
}

const MIXED: [(Kind, &str); 4] =
    [(Kind::Fair, "f"), (Kind::Mutex, "m"), (Kind::Read, "r"), (Kind::Write, "w")];

on_every_store! {
    async fn a_call_inside_enters_one_of_the_keys_again(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let outer = locks.multi(mixed()).acquire().await.unwrap();
        for ((kind, key), (name, token)) in MIXED.into_iter().zip(outer.tokens()) {
            assert_eq!(name.as_str(), key);
            let inner = outer.scope(lock(&locks, kind, key).try_acquire()).await.unwrap().expect("an own key");
            assert_eq!((inner.key().as_str(), inner.fencing_token()), (key, token), "{kind:?}");
            assert_eq!(inner.tokens().len(), 1, "{kind:?}");
            inner.release().await.unwrap();
            assert!(!is_free(lock(&other, rival_of(kind), key)).await, "{kind:?} is still held outside");
        }
        // The written key may also be read; other kinds conflict.
        outer.scope(locks.read("w").try_acquire()).await.unwrap().expect("read inside write").release().await.unwrap();
        let error = outer.scope(locks.write("r").try_acquire()).await.unwrap_err();
        assert!(matches!(error, LockError::KindConflict { .. }), "{error:?}");
        // All together, and re-entered by the guard.
        let again = outer.scope(locks.multi(mixed()).try_acquire()).await.unwrap().expect("own keys");
        assert_eq!(again.tokens(), outer.tokens());
        let third = outer.reenter().unwrap();
        assert_eq!(third.tokens(), outer.tokens());
        outer.release().await.unwrap();
        again.release().await.unwrap();
        assert_eq!(locked(&other, &["f", "m", "r", "w"]).await, [true; 4]);
        third.release().await.unwrap();
        assert_eq!(locked(&other, &["f", "m", "r", "w"]).await, [false; 4]);
        nothing_is_left(&site, &[&locks, &other], &["f", "m", "r", "w"]).await;
    }

    async fn a_key_that_is_held_outside_is_entered_and_the_others_are_taken(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        for outside in ["a", "b", "c"] {
            let outer = locks.mutex(outside).acquire().await.unwrap();
            let inner = outer.scope(locks.multi(["a", "b", "c"]).wait(LONG).acquire()).await.unwrap();
            let tokens = inner.tokens();
            assert_eq!(tokens.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
            let own = tokens.iter().find(|(key, _)| key.as_str() == outside).unwrap();
            assert_eq!(own.1, outer.fencing_token(), "it has one token, and one hold");
            assert_eq!(locked(&other, &["a", "b", "c"]).await, [true; 3]);
            assert_eq!(status(&other, outside).await.holders.len(), 1);
            // Inside it, each of the keys counts as held.
            let nested = inner.scope(locks.multi(["c", "a"]).try_acquire()).await.unwrap().expect("own keys");
            nested.release().await.unwrap();
            inner.release().await.unwrap();
            for key in ["a", "b", "c"] {
                assert_eq!(is_locked(&other, key).await, key == outside, "{key}");
            }
            assert!(!outer.is_lost());
            outer.release().await.unwrap();
        }
        nothing_is_left(&site, &[&locks, &other], &["a", "b", "c"]).await;
    }

    /// The key that was held outside is lost, and so is the guard of several keys that entered it.
    async fn a_guard_of_several_is_lost_with_the_key_that_was_held_outside(site: Site) {
        let locks = site.manager().await;
        let outer = locks.mutex("b").acquire().await.unwrap();
        let inner = outer.scope(locks.multi(["a", "b"]).acquire()).await.unwrap();
        let view = inner.view();
        assert!(lock_runtime::testing::lose(&locks, "b"));
        timeout(LONG, inner.lost()).await.expect("one of its keys is gone");
        assert!(inner.is_lost() && view.is_lost() && inner.cancellation_token().is_cancelled());
        assert!(inner.reenter().is_err());
        let error = inner.release().await.unwrap_err();
        assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
        drop(outer);
        nothing_is_left(&site, &[&locks], &["a", "b"]).await;
    }

    async fn siblings_inside_a_lock_of_several_exclude_each_other(site: Site) {
        let locks = site.manager().await;
        let outer = locks.multi(["a", "b"]).acquire().await.unwrap();
        let inside = AtomicU64::new(0);
        let stay = async |key: &str| {
            let guard = locks.mutex(key).wait(LONG).acquire().await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "{key}");
            tokio::time::sleep(ms(10)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            guard.release().await.unwrap();
        };
        let siblings = async { tokio::join!(stay("a"), stay("a"), stay("a")) };
        timeout(LONG, outer.scope(siblings)).await.expect("one after the other");
        outer.release().await.unwrap();
    }
}
