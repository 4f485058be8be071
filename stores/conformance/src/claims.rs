//! The abilities that a store claims.

use lock_core::store::MAX_TOKENS;

use super::*;

/// Panics if the abilities of a store contradict each other.
fn assert_consistent(store: &Abilities) {
    let queues = store.fair || store.queues_mutexes;
    let name = store.name;
    assert!(!name.is_empty(), "`name` is empty: errors need it");
    assert!(!store.downgrade || store.read_write, "{name}: `downgrade` needs `read_write`");
    assert!(
        !store.direct_grants || queues,
        "{name}: `direct_grants` needs a queue: `fair`, `queues_mutexes`"
    );
    assert!(
        !store.direct_grants || store.direct_lease > store.waiter_life * 3 / 4,
        "{name}: `direct_lease` is too short for `waiter_life`: grants would be over when they are heard"
    );
    assert!(!store.far_waiters || queues, "{name}: `far_waiters` needs a queue: `fair` or `queues_mutexes`");
    assert!(!store.lease_grain.is_zero(), "{name}: `lease_grain` is zero; use a millisecond or less");
    let (grain, shortest) = (store.lease_grain, store.shortest_lease);
    assert!(grain <= shortest, "{name}: `lease_grain` {grain:?} is more than `shortest_lease` {shortest:?}");
    if let Some(longest) = store.longest_lease {
        assert!(longest >= shortest, "{name}: `longest_lease` {longest:?} is less than the shortest");
    }
    assert!(!store.waiter_life.is_zero(), "{name}: `waiter_life` is zero: each waiter would be dead at once");
    assert!(!store.intent_life.is_zero(), "{name}: `intent_life` is zero: no writer could keep readers out");
    let tokens = store.most_tokens;
    assert!((1..=MAX_TOKENS).contains(&tokens), "{name}: `most_tokens` is {tokens}, not 1 to {MAX_TOKENS}");
}

pub async fn abilities_are_consistent(Subject { store, other, .. }: Subject) {
    assert_consistent(store.abilities());
    assert_eq!(store.abilities(), other.abilities(), "both handles can do the same");
    // They stay the same while the store works.
    let before = store.abilities().clone();
    store.check().await.unwrap();
    grant(&store, request(&["a"], 1)).await;
    assert_eq!(*store.abilities(), before);
}

/// Also what no other test needs.
pub async fn all_that_is_not_claimed_is_refused(subject: Subject) {
    let store = Arc::clone(&subject.store);
    let lacked = needs::lacked(&*store, &Need::ALL);
    if !store.abilities().replication {
        refusals::replicas(&store).await;
    }
    refusals::check(subject, lacked).await;
}
