//! Helpers for tests of both sides: starting them, time limits, and allowed leftovers.

use std::time::Duration;

use lock_runtime::LockManager;

use super::client::{Java, Settings};
use super::servers::{Servers, connect};
use crate::eventually;

/// Maximum time on a busy two-core machine for something that needs no time. Much shorter than the
/// default lease of both sides, so a hand-off never coincides with the end of a lease.
pub const SLACK: Duration = Duration::from_secs(10);
/// A lease for both sides that is short enough to wait for.
pub const LEASE: Duration = Duration::from_secs(3);

/// Returns a manager and a Java client with their default leases, 30 s.
pub async fn with_defaults(servers: &impl Servers) -> (LockManager, Java) {
    tokio::join!(connect(servers, |builder| builder), Java::start(servers))
}

/// Returns a manager and a Java client with a lease of [`LEASE`].
pub async fn with_short_lease(servers: &impl Servers) -> (LockManager, Java) {
    with_short_lease_and(servers, Settings::default()).await
}

/// Like [`with_short_lease`], with more settings of the Java client.
pub async fn with_short_lease_and(servers: &impl Servers, settings: Settings) -> (LockManager, Java) {
    let settings = settings.watchdog(LEASE);
    tokio::join!(connect(servers, |builder| builder.lease(LEASE)), Java::start_with(servers, settings))
}

/// Waits until only counters of fencing tokens are left.
pub async fn nothing_is_left(servers: &impl Servers) {
    let is_counter = |key: &String| key.starts_with("redisson_lock_token:");
    eventually(async || servers.keys().iter().all(is_counter), SLACK).await;
}

/// Prints how long hand-offs took. Each must be shorter than [`SLACK`], and half of them must be
/// quick.
///
/// # Panics
///
/// When they are not.
#[allow(clippy::print_stdout, reason = "figures, shown with --nocapture")]
pub fn judge(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!("{what}: median {median:.2?}, worst {worst:.2?} of {}", times.len());
    assert!(median <= Duration::from_millis(100) && worst <= SLACK, "{what}: {times:?}");
}
