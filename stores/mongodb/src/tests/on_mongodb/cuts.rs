//! Connections that break between a write and its answer.

use lock_core::store::{StoreError, StoreErrorKind, Withdrawn};
use lock_test_servers::wire::{Fate, Wire};

use super::*;

/// Time-out of the calls that get no answer.
const SHORT: Duration = Duration::from_millis(500);

/// A step on one key is one command. One on several keys is a transaction.
const STEPS: [(&[&str], &str); 2] = [(&["cut"], "findAndModify"), (&["cut", "other"], "commitTransaction")];

/// All ways in which a write is not answered, and whether it is done.
const FATES: [(Fate, bool); 3] = [(Fate::Cut, true), (Fate::Unanswered, true), (Fate::Lost, false)];

/// A store behind a wire, and another one that always gets through.
struct Rig {
    wire: Wire,
    store: Arc<MongoStore>,
    direct: Arc<MongoStore>,
    keys: &'static [&'static str],
    text: &'static str,
    fate: Fate,
    is_done: bool,
}

/// One for each way. They share a server.
fn rigs() -> Vec<Rig> {
    let mut rigs = Vec::new();
    for (keys, text) in STEPS {
        for (fate, is_done) in FATES {
            let prefix = new_prefix();
            let wire = Wire::to(SERVER.addr());
            let url = format!("mongodb://{}/locks?directConnection=true", wire.addr());
            let (store, direct) = (store(&url, &prefix), store(&SERVER.url(), &prefix));
            rigs.push(Rig { wire, store, direct, keys, text, fate, is_done });
        }
    }
    rigs
}

impl Rig {
    /// Whether the driver may ask again in time: it does for a commit whose connection has ended.
    fn repeats(&self) -> bool {
        self.keys.len() > 1 && self.fate == Fate::Cut
    }

    fn breaks(&self) {
        self.wire.next(self.text, self.fate);
    }

    /// Asserts that the call has met its fault, and says that its outcome is unknown.
    #[track_caller]
    fn assert_unknown<T: std::fmt::Debug>(&self, answer: Result<T, StoreError>) {
        let what = format!("{:?} {:?}", self.fate, self.keys);
        assert!(self.wire.hits() > 0, "{what}: {answer:?}");
        self.wire.set(|_| Fate::Passes);
        if self.repeats() && answer.is_ok() {
            return;
        }
        let error = answer.unwrap_err();
        assert!(error.outcome_unknown() && error.kind() == StoreErrorKind::Unanswered, "{what}: {error}");
    }

    async fn assert_all_free(&self) {
        let Self { direct, keys, .. } = self;
        assert!(took(direct, keys, "last:1").await);
        assert!(direct.release(release(keys, "last:1", SLACK)).await.unwrap().held[0]);
    }
}

/// Neither lost nor doubled: the same request finds it, or takes it now. A withdrawal settles it.
#[tokio::test]
async fn an_acquire_without_an_answer_is_unknown_and_settled() {
    for rig in rigs() {
        let Rig { store, direct, keys, fate, is_done, .. } = &rig;
        assert!(granted(store, "warm", "owner:0").await);
        for is_repeated in [true, false] {
            rig.breaks();
            let unanswered = request(keys, "owner:1", 60 * SECOND, SHORT);
            rig.assert_unknown(store.acquire(Arc::clone(&unanswered)).await);
            assert_eq!(is_held(direct, "cut").await, *is_done, "{fate:?} {keys:?}");
            if is_repeated {
                assert!(took(store, keys, "owner:1").await, "{fate:?} {keys:?}");
            }
            assert_eq!(granted(direct, "cut", "owner:2").await, !is_done && !is_repeated);
            let _ = released(direct, "cut", "owner:2").await;
            // Until no copy of it can be executed any more.
            loop {
                match store.withdraw(Arc::clone(&unanswered)).await {
                    Ok(Withdrawn::Settled) => break,
                    Ok(Withdrawn::Pending(_)) => tokio::time::sleep(SHORT / 5).await,
                    Err(error) => assert!(error.is_transient(), "{fate:?} {keys:?}: {error}"),
                }
            }
            rig.assert_all_free().await;
        }
    }
}

#[tokio::test]
async fn a_release_without_an_answer_is_unknown_and_repeated() {
    for rig in rigs() {
        let Rig { store, direct, keys, fate, is_done, .. } = &rig;
        assert!(took(store, keys, "owner:1").await);
        rig.breaks();
        rig.assert_unknown(store.release(release(keys, "owner:1", SHORT)).await);
        assert_eq!(is_held(direct, "cut").await, !is_done, "{fate:?} {keys:?}");
        let again = store.release(release(keys, "owner:1", SLACK)).await.unwrap();
        assert!(again.held.iter().all(|held| held != is_done), "{fate:?} {keys:?}");
        rig.assert_all_free().await;
    }
}

#[tokio::test]
async fn a_renewal_without_an_answer_is_unknown_and_repeated() {
    for rig in rigs() {
        let Rig { store, direct, keys, fate, is_done, .. } = &rig;
        assert!(took(store, keys, "owner:1").await);
        // One of several is no transaction.
        let is_one = keys.len() == 1;
        rig.wire.next(if is_one { "findAndModify" } else { "updates" }, *fate);
        let answer = store.renew(renewal(keys, "owner:1", SHORT)).await;
        assert!(rig.wire.hits() > 0);
        rig.wire.set(|_| Fate::Passes);
        // That of several is looked at, and made again.
        match answer {
            Ok(answer) => assert!(!is_one && !answer.contains(&Renewed::Gone), "{fate:?} {keys:?}"),
            Err(error) => assert!(error.is_transient(), "{fate:?} {keys:?}: {error}"),
        }
        let left = direct.status(item("cut", "x").key).await.unwrap().remaining.unwrap();
        assert!(!is_one || (left > 60 * SECOND) == *is_done, "{fate:?} {keys:?}: {left:?}");
        let again = renewed(store, keys, "owner:1").await;
        assert_eq!(again, vec![Renewed::Held; keys.len()]);
        assert!(store.release(release(keys, "owner:1", SLACK)).await.unwrap().held[0]);
        rig.assert_all_free().await;
    }
}

#[tokio::test]
async fn a_withdrawal_without_an_answer_is_unknown_and_repeated() {
    for rig in rigs() {
        let Rig { store, direct, keys, fate, is_done, .. } = &rig;
        let unwanted = request(keys, "owner:1", 60 * SECOND, SLACK);
        store.acquire(Arc::clone(&unwanted)).await.unwrap();
        rig.breaks();
        rig.assert_unknown(store.withdraw(request(keys, "owner:1", 60 * SECOND, SHORT)).await);
        assert_eq!(is_held(direct, "cut").await, !is_done, "{fate:?} {keys:?}");
        store.withdraw(unwanted).await.unwrap();
        rig.assert_all_free().await;
    }
}

/// A request that is torn off before the server has it keeps nothing locked.
#[tokio::test]
async fn a_transaction_that_is_cut_in_the_middle_is_made_again() {
    for (fate, is_done) in FATES {
        let prefix = new_prefix();
        let wire = Wire::to(SERVER.addr());
        let url = format!("mongodb://{}/locks?directConnection=true", wire.addr());
        let (store, direct) = (store(&url, &prefix), store(&SERVER.url(), &prefix));
        assert!(took(&store, &["a", "b"], "owner:1").await);
        wire.next("updates", fate);
        let answer = store.release(release(&["a", "b"], "owner:1", SECOND)).await;
        assert_eq!(wire.hits(), 1, "{fate:?}");
        wire.set(|_| Fate::Passes);
        match answer {
            Ok(released) => assert!(released.held[1], "{fate:?} {is_done}"),
            Err(error) => {
                assert!(error.is_transient() && !error.outcome_unknown(), "{fate:?}: {error}");
                assert!(is_held(&direct, "a").await && is_held(&direct, "b").await, "{fate:?}");
                // Its documents are not locked any more, or not for long.
                assert!(direct.release(release(&["a", "b"], "owner:1", SLACK)).await.unwrap().held[1]);
            }
        }
        assert!(took(&direct, &["a", "b"], "owner:2").await, "{fate:?}");
    }
}

/// The driver makes two connections at a time, and waits for the login of each without end.
#[tokio::test]
async fn logins_that_hear_nothing_are_given_up() {
    let (prefix, wire) = (new_prefix(), Wire::to(SERVER.addr()));
    let url = format!("mongodb://{}/locks?directConnection=true", wire.addr());
    let target = Target::Address(Box::new(ConnectionString::parse(url).unwrap()));
    let settings = Settings { call_timeout: 2 * SECOND, ..settings(&prefix) };
    let store = open(target, &settings).unwrap();
    assert!(granted(&store, "before", "owner:1").await);
    wire.set(|_| Fate::Lost);
    let timeout = 2 * SECOND;
    for round in 0..4 {
        let keys: Vec<String> = (0..8).map(|key| format!("{round} {key}")).collect();
        let calls = keys.iter().map(|key| store.acquire(request(&[key], "owner:1", SECOND, timeout)));
        assert!(futures_util::future::join_all(calls).await.iter().all(Result::is_err), "{round}");
    }
    wire.set(|_| Fate::Passes);
    let deadline = std::time::Instant::now() + SLACK;
    while !matches!(
        store.acquire(request(&["after"], "owner:1", 60 * SECOND, timeout)).await,
        Ok(Acquired::Granted(_))
    ) {
        assert!(std::time::Instant::now() < deadline);
    }
}
