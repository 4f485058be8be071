//! [`EngineSettings`]: the settings of a manager that its engine follows.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::Owners;
use lock_core::internal::sync::CachePadded;
#[cfg(feature = "testing")]
use lock_core::internal::tasks::Process;
use lock_core::{Replication, TokenRetention};

/// Minimum of [`fallback_poll`](EngineSettings::fallback_poll): a shorter one would ask
/// continuously.
pub const SHORTEST_POLL: Duration = Duration::from_millis(10);
/// Minimum lease; shorter ones are refused.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// Maximum of leases, which are refused above it, and of other settings, which are cut to it. A
/// year is as good as forever, and can be added to a point in time.
pub const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Settings of an engine; the defaults are the documented ones.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Lease of renewed holds, which are renewed every third of it.
    pub lease: Duration,
    /// Wait of a request without a `wait` setting.
    pub default_wait: Duration,
    /// Time-out of one store call.
    pub call_timeout: Duration,
    /// Maximum number of callers that wait for one key in this process.
    pub max_waiters_per_key: usize,
    /// Maximum number of callers that wait for one fair lock; each has a place at the store.
    pub max_fair_waiters_per_key: usize,
    /// Maximum number of callers that wait in this process.
    pub max_waiters: usize,
    /// Maximum number of pending releases of dropped guards.
    pub max_pending_releases: usize,
    /// Maximum time for which a hold is handed off inside the process before it is released for
    /// everybody.
    pub cohort_window: Duration,
    /// Maximum time for which a waiter sleeps without asking the store, when no message comes.
    pub fallback_poll: Duration,
    /// Retention of requests without a retention setting.
    pub token_retention: TokenRetention,
    /// Number of replicas that have to confirm a grant, for requests without a policy.
    pub replication: Replication,
    /// Generates the owners of the manager.
    pub owners: Arc<CachePadded<Owners>>,
    /// The simulated process that the manager belongs to.
    #[cfg(feature = "testing")]
    pub process: Option<Process>,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            default_wait: Duration::from_secs(10),
            call_timeout: Duration::from_secs(2),
            max_waiters_per_key: 10_000,
            max_fair_waiters_per_key: 10_000,
            max_waiters: 100_000,
            max_pending_releases: 100_000,
            cohort_window: Duration::from_millis(250),
            fallback_poll: Duration::from_secs(5),
            token_retention: TokenRetention::default(),
            replication: Replication::NONE,
            owners: Arc::new(CachePadded(Owners::default())),
            #[cfg(feature = "testing")]
            process: None,
        }
    }
}

/// Returns why this lease is invalid on any store.
pub fn out_of_range(lease: Duration) -> Option<String> {
    if lease < SHORTEST_LEASE {
        Some(format!("a lease of {lease:?} is too short; use {SHORTEST_LEASE:?} or more"))
    } else if lease > LONGEST {
        Some(format!("a lease of {lease:?} is too long; use {LONGEST:?} or less"))
    } else {
        None
    }
}
