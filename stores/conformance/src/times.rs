//! How long the tests let leases and waiters last, from what the store can do.

use super::*;

/// Maximum time that a test waits for something that has to happen.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Time that a test waits for something that must not happen.
pub(super) const SILENCE: Duration = Duration::from_millis(150);
/// Upper bound of a wait that a store calls short.
pub(super) const SOON: Duration = Duration::from_millis(200);

/// Returns a lease that does not end during a test. The store also grants three times as much.
pub(super) fn long() -> Duration {
    let most = Duration::from_secs(60);
    abilities(|store| store.longest_lease.map_or(most, |longest| most.min(longest / 3)))
}

/// Returns a lease that is meant to end, and begins now. Whenever the test runs again, it is three
/// times as long, if the store allows that and waiters live for longer.
pub(super) fn short() -> Duration {
    let least = abilities(|store| {
        let (least, grain) = (store.shortest_lease.max(Duration::from_millis(200)), store.lease_grain);
        let grains = least.as_nanos().div_ceil(grain.as_nanos().max(1));
        grain.saturating_mul(u32::try_from(grains).unwrap_or(u32::MAX)).max(least)
    });
    let most = (long() / 4).min(waiter_life() * 4 / 5);
    let longer = (0..=run::begins_short()).rev().map(|failed| least * 3_u32.pow(failed));
    longer.into_iter().find(|lease| *lease <= most).unwrap_or(least)
}

/// Returns the time after which a [`short`] lease has ended.
pub(super) fn short_is_over() -> Duration {
    short() + grain().max(Duration::from_millis(100))
}

/// Returns a lease of at least this time, but no longer than the store allows.
pub(super) fn allowed(lease: Duration) -> Duration {
    abilities(|store| {
        store.longest_lease.map_or(lease, |longest| lease.min(longest)).max(store.shortest_lease)
    })
}

/// Returns the resolution of leases, by which a lease may be longer than it was asked for.
pub(super) fn grain() -> Duration {
    abilities(|store| store.lease_grain)
}

/// Returns at least the time that has passed since a lease began: all of the test's, and some more
/// for stores that round what is left.
fn slack() -> Duration {
    run::elapsed() + Duration::from_secs(1).min(long() / 6)
}

/// Returns the time after which a waiter counts as dead.
pub(super) fn waiter_life() -> Duration {
    abilities(|store| store.waiter_life)
}

/// Returns the lifetime of a waiting writer's intent.
pub(super) fn intent_life() -> Duration {
    abilities(|store| store.intent_life)
}

/// Whether `left` may be left of a lease of `lease` that began during this test.
pub(super) fn is_left_of(left: Duration, lease: Duration) -> bool {
    // Seen from afar, a hold ends with its session.
    let most =
        if abilities(|store| store.late_requests == LateRequests::BySession) { 2 * lease } else { lease };
    left <= most + grain() && left + slack() > lease
}

/// Checks that a busy key is free after at most `time`, if the store knows.
pub(super) fn assert_busy_at_most(busy: &Busy, time: Duration) {
    let holds = busy.remaining.is_none_or(|left| !left.is_zero() && left <= time + grain());
    assert!(holds, "busy for more than {time:?}: {busy:?}");
}

/// Checks that a busy key is free after more than `time`, if the store knows.
pub(super) fn assert_busy_longer_than(busy: &Busy, time: Duration) {
    assert!(busy.remaining.is_none_or(|left| left > time), "busy for no more than {time:?}: {busy:?}");
}

/// Checks that a busy key is held with this lease, if the store knows.
pub(super) fn assert_busy_for(busy: &Busy, lease: Duration) {
    assert!(busy.remaining.is_none_or(|left| is_left_of(left, lease)), "not busy for {lease:?}: {busy:?}");
}
