//! Tests of abilities that a store does not claim are left out; wrong claims are noticed.

mod stores;

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{Abilities, LockStore};
use lock_store_conformance::{
    Need, Subject, acquire, claims, fair, kinds, renew, run, scan, watch, withdraw,
};
use lock_store_memory::MemoryStore;
use stores::{Coarse, Fault, Faulty, Plain, Polled};

/// A store with the least that the contract asks for passes.
mod plain {
    use super::*;

    async fn plain() -> Arc<Plain> {
        Arc::new(Plain::new(MemoryStore::new("")))
    }

    lock_store_conformance::conformance!(plain, start_paused = true);
}

/// So does a store with long leases in whole seconds, that can't say when a busy key is free.
mod coarse {
    use super::*;

    async fn coarse() -> Subject {
        let memory = MemoryStore::new("");
        Subject::new(Arc::new(Coarse::new(memory.clone())), Arc::new(Coarse::new(memory)))
    }

    lock_store_conformance::conformance!(coarse, start_paused = true);
}

/// So does a store with everything but notices.
mod polled {
    use super::*;

    async fn polled() -> Subject {
        let memory = MemoryStore::new("");
        Subject::new(Arc::new(Polled::new(memory.clone())), Arc::new(Polled::new(memory)))
    }

    lock_store_conformance::conformance!(polled, start_paused = true);
}

/// Runs a test of the suite on this store, and returns how it fails.
async fn failure<T>(store: impl LockStore, needs: &'static [Need], test: fn(Subject) -> T) -> String
where
    T: Future<Output = ()> + Send + 'static,
{
    let store = Arc::new(store);
    let run = async move { run(|| std::future::ready(Arc::clone(&store)), "a::test", needs, test).await };
    let failure = tokio::spawn(run).await.expect_err("the test has passed").into_panic();
    let text = failure.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| failure.downcast_ref().cloned()).unwrap_or_default()
}

/// Returns a store that has this fault.
fn with(fault: Fault) -> Faulty {
    Faulty::new(MemoryStore::new(""), fault)
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_not_kept_is_noticed() {
    let claims = |abilities| Plain::claiming(MemoryStore::new(""), abilities);
    let store = claims(Abilities { fair: true, ..Plain::ABILITIES });
    failure(store, &[Need::Fair], fair::a_free_key_is_granted_and_a_held_one_is_busy).await;
    let store = claims(Abilities { several: true, ..Plain::ABILITIES });
    failure(store, &[Need::Several], acquire::acquire_of_two_items_is_all_or_nothing).await;
    let store = claims(Abilities { read_write: true, ..Plain::ABILITIES });
    failure(store, &[], kinds::kinds_exclude_each_other).await;
    let store = claims(Abilities { scan: true, ..Plain::ABILITIES });
    failure(store, &[Need::Scan], scan::scan_finds_locks_of_every_kind).await;
    let store = claims(Abilities { notices: lock_core::store::Notices::Pushed, ..Plain::ABILITIES });
    failure(store, &[Need::Pushed], watch::watch_hears_release_force_release_and_withdraw).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_done_without_a_claim_is_noticed() {
    let why = failure(with(Fault::ClaimsNothing), &[], claims::all_that_is_not_claimed_is_refused).await;
    assert!(why.contains("not claimed, and not refused"), "{why}");
    // A test that is left out looks for it, too.
    for need in [&[Need::Fair], &[Need::Downgrade], &[Need::Shortens], &[Need::Takeovers], &[Need::Scan]] {
        failure(with(Fault::ClaimsNothing), need, claims::abilities_are_consistent).await;
    }
    let why = failure(with(Fault::RefusesTooLate), &[], claims::all_that_is_not_claimed_is_refused).await;
    assert!(why.contains("left a trace"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_broken_store_is_noticed() {
    failure(with(Fault::GrantsWhileHeld), &[], acquire::a_free_key_is_granted_and_a_held_one_is_busy).await;
    failure(with(Fault::GrantsWhileHeld), &[], acquire::one_of_many_rivals_gets_the_key).await;
    failure(with(Fault::RenewsWhatIsGone), &[], renew::renew_does_not_revive).await;
    failure(with(Fault::RenewsWhatIsGone), &[], renew::renew_by_a_stranger_touches_nothing).await;
    let test = withdraw::withdraw_frees_what_was_taken_and_settles_after_latest;
    failure(with(Fault::WithdrawsNothing), &[], test).await;
    let why = failure(with(Fault::SettlesAtOnce), &[], test).await;
    assert!(why.contains("settled too early"), "{why}");
    let test = withdraw::withdraw_of_a_busy_acquire_touches_nothing_of_the_holder;
    let why = failure(with(Fault::SettlesAtOnce), &[], test).await;
    assert!(why.contains("settled too early"), "{why}");
    let why = failure(with(Fault::ForgetsTheLimit), &[Need::ByClock], acquire::late_request_is_refused).await;
    assert!(why.contains("a late request was granted"), "{why}");
    let why = failure(with(Fault::HalvesLeases), &[], acquire::a_lease_lasts).await;
    assert!(why.contains("a lease of 200ms has ended"), "{why}");
    failure(with(Fault::HalvesLeases), &[], renew::a_renewed_lease_lasts).await;
    failure(with(Fault::HalvesLeases), &[], acquire::a_free_key_is_granted_and_a_held_one_is_busy).await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_names_the_request_and_its_line() {
    let why = failure(with(Fault::GrantsWhileHeld), &[], acquire::both_handles_see_the_same_locks).await;
    for part in ["granted, and not busy", "\"a\" for ", ":2", "acquire.rs:"] {
        assert!(why.contains(part), "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn abilities_that_contradict_each_other_are_noticed() {
    let (plain, zero) = (Plain::ABILITIES, Duration::ZERO);
    let long = Some(Duration::from_millis(50));
    for (abilities, named) in [
        (Abilities { direct_grants: true, ..plain.clone() }, "direct_grants"),
        (Abilities { far_waiters: true, ..plain.clone() }, "far_waiters"),
        (Abilities { downgrade: true, ..plain.clone() }, "downgrade"),
        (Abilities { lease_grain: zero, ..plain.clone() }, "lease_grain"),
        (Abilities { lease_grain: Duration::from_secs(1), ..plain.clone() }, "lease_grain"),
        (Abilities { longest_lease: long, ..plain.clone() }, "longest_lease"),
        (Abilities { waiter_life: zero, ..plain.clone() }, "waiter_life"),
        (Abilities { intent_life: zero, ..plain.clone() }, "intent_life"),
        (Abilities { most_tokens: 0, ..plain.clone() }, "most_tokens"),
        (Abilities { name: "", ..plain.clone() }, "name"),
    ] {
        let store = Plain::claiming(MemoryStore::new(""), abilities);
        let why = failure(store, &[], claims::abilities_are_consistent).await;
        assert!(why.contains(named), "{named}: {why}");
    }
}

#[tokio::test]
async fn a_test_is_skipped_by_its_name_with_or_without_its_group() {
    let fails = |_: Subject| async { panic!("it was not skipped") };
    for skips in [&[("release_frees_the_key", "a reason")], &[("release::release_frees_the_key", "a reason")]]
    {
        let make = || async move { Subject::of(MemoryStore::new("")).skipping(skips) };
        run(make, "release::release_frees_the_key", &[], fails).await;
    }
}

#[test]
#[should_panic(expected = "the suite has no test \"release_frees_all\"")]
fn only_tests_that_exist_can_be_skipped() {
    let _ = Subject::of(MemoryStore::new("")).skipping(&[("release_frees_all", "a reason")]);
}
