//! Connections that break between a commit and its answer.

use std::sync::Arc;

use lock_core::store::{
    Acquired, LockStore, RenewItem, RenewRequest, Renewed, StoreError, StoreErrorKind, Withdrawn,
};
use lock_test_servers::wire::{Fate, Wire};

use super::*;
use crate::SqlStore;
use crate::tests::rows::{SECOND, granted, item, release, released, request};

/// Time-out of the calls that get no answer.
const SHORT: Duration = Duration::from_millis(500);

/// A step on one key is one statement with a record in it. One on several keys is a transaction.
const STEPS: [(&[&str], &str); 2] = [(&["cut"], "{"), (&["cut", "other"], "COMMIT\0")];

/// All ways in which a commit is not answered, and whether it is done.
const FATES: [(Fate, bool); 3] = [(Fate::Cut, true), (Fate::Unanswered, true), (Fate::Lost, false)];

/// A store behind a wire, and another one that always gets through.
struct Rig {
    wire: Wire,
    store: Arc<SqlStore>,
    direct: Arc<SqlStore>,
}

/// One for each way. They share a server.
fn rigs() -> Vec<(Rig, &'static [&'static str], &'static str, Fate, bool)> {
    let mut rigs = Vec::new();
    for (keys, text) in STEPS {
        for (fate, is_done) in FATES {
            let prefix = settings(&format!("{}:", SUBJECTS.fetch_add(1, Ordering::Relaxed)));
            let wire = Wire::to(SERVER.addr());
            let store =
                postgres(format!("postgres://test@{}/postgres", wire.addr()).parse().unwrap(), &prefix);
            let direct = postgres(SERVER.url().parse().unwrap(), &prefix);
            rigs.push((Rig { wire, store, direct }, keys, text, fate, is_done));
        }
    }
    rigs
}

impl Rig {
    /// Asserts that the call has met its fault, and says that its outcome is unknown.
    #[track_caller]
    fn assert_unknown<T: std::fmt::Debug>(&self, answer: Result<T, StoreError>) {
        let error = answer.unwrap_err();
        assert_eq!(self.wire.hits(), 1, "{error}");
        assert!(error.outcome_unknown() && error.kind() == StoreErrorKind::Unanswered, "{error}");
        self.wire.set(|_| Fate::Passes);
    }

    async fn take(&self, keys: &[&str], owner: &str) {
        let answer = self.store.acquire(request(keys, owner, 60 * SECOND, 5 * SECOND)).await.unwrap();
        assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
    }

    async fn is_held(&self, key: &str) -> bool {
        self.direct.status(item(key, "x").key).await.unwrap().is_locked()
    }

    async fn assert_all_free(&self, keys: &[&str]) {
        for key in keys {
            assert!(
                granted(&self.direct, key, "last:1").await && released(&self.direct, key, "last:1").await
            );
        }
    }
}

/// Neither lost nor doubled: the same request finds it, or takes it now. A withdrawal settles it.
#[tokio::test]
async fn an_acquire_without_an_answer_is_unknown_and_settled() {
    for (rig, keys, text, fate, is_done) in rigs() {
        rig.take(&["warm"], "owner:0").await;
        for is_repeated in [true, false] {
            rig.wire.next(text, fate);
            let unanswered = request(keys, "owner:1", 60 * SECOND, SHORT);
            let answer = rig.store.acquire(Arc::clone(&unanswered)).await;
            let error = answer.unwrap_err();
            assert!(error.outcome_unknown(), "{fate:?}: {error}");
            rig.wire.set(|_| Fate::Passes);
            assert_eq!(rig.is_held("cut").await, is_done, "{fate:?} {keys:?}");
            assert_eq!(granted(&rig.direct, "cut", "owner:2").await, !is_done);
            assert_eq!(released(&rig.direct, "cut", "owner:2").await, !is_done);
            if is_repeated {
                rig.take(keys, "owner:1").await;
                assert!(!granted(&rig.direct, "cut", "owner:2").await);
            }
            // Until no copy of it can be executed any more.
            while rig.store.withdraw(Arc::clone(&unanswered)).await.unwrap() != Withdrawn::Settled {
                tokio::time::sleep(SHORT / 5).await;
            }
            rig.assert_all_free(keys).await;
        }
        assert_eq!(rig.wire.hits(), 2);
    }
}

#[tokio::test]
async fn a_release_without_an_answer_is_unknown_and_repeated() {
    for (rig, keys, text, fate, is_done) in rigs() {
        rig.take(keys, "owner:1").await;
        rig.wire.next(text, fate);
        rig.assert_unknown(rig.store.release(release(keys, "owner:1", SHORT)).await);
        assert_eq!(rig.is_held("cut").await, !is_done, "{fate:?} {keys:?}");
        let again = rig.store.release(release(keys, "owner:1", 5 * SECOND)).await.unwrap();
        assert!(again.held.iter().all(|held| *held != is_done), "{fate:?} {keys:?}");
        rig.assert_all_free(keys).await;
    }
}

#[tokio::test]
async fn a_renewal_without_an_answer_is_unknown_and_repeated() {
    for (rig, keys, text, fate, is_done) in rigs() {
        rig.take(keys, "owner:1").await;
        let renewal = |timeout| {
            let items = keys.iter().map(|key| RenewItem::hold(item(key, "owner:1"), 600 * SECOND));
            Arc::new(RenewRequest { items: items.collect(), timeout })
        };
        rig.wire.next(text, fate);
        rig.assert_unknown(rig.store.renew(renewal(SHORT)).await);
        let left = rig.direct.status(item("cut", "x").key).await.unwrap().remaining.unwrap();
        assert_eq!(left > 60 * SECOND, is_done, "{fate:?} {keys:?}: {left:?}");
        let again = rig.store.renew(renewal(5 * SECOND)).await.unwrap();
        assert!(again.iter().all(|each| *each == Renewed::Held), "{again:?}");
        for key in keys {
            assert!(released(&rig.store, key, "owner:1").await);
        }
        rig.assert_all_free(keys).await;
    }
}

#[tokio::test]
async fn a_withdrawal_without_an_answer_is_unknown_and_repeated() {
    for (rig, keys, _, fate, is_done) in rigs() {
        let unwanted = request(keys, "owner:1", 60 * SECOND, 5 * SECOND);
        rig.store.acquire(Arc::clone(&unwanted)).await.unwrap();
        // A withdrawal is always a transaction.
        rig.wire.next("COMMIT\0", fate);
        rig.assert_unknown(rig.store.withdraw(request(keys, "owner:1", 60 * SECOND, SHORT)).await);
        if is_done {
            assert!(!rig.is_held("cut").await, "{fate:?} {keys:?}");
        }
        rig.store.withdraw(unwanted).await.unwrap();
        rig.assert_all_free(keys).await;
    }
}

/// A client that is stopped, or whose network is gone, keeps a row locked for about a second.
#[tokio::test]
async fn a_transaction_that_stalls_is_ended_by_the_server() {
    for (rig, keys, text, fate, _) in rigs() {
        if keys.len() == 1 || fate != Fate::Lost {
            continue;
        }
        rig.take(keys, "owner:1").await;
        rig.wire.next(text, fate);
        let stalled = tokio::spawn(rig.store.release(release(keys, "owner:1", 600 * SECOND)));
        while rig.wire.hits() == 0 {
            tokio::time::sleep(SHORT / 50).await;
        }
        let others = release(keys, "owner:1", 20 * SECOND);
        assert!(rig.direct.release(others).await.unwrap().held.iter().all(|held| *held));
        let error = stalled.await.unwrap().unwrap_err();
        assert!(error.outcome_unknown(), "{error}");
        rig.assert_all_free(keys).await;
    }
}
