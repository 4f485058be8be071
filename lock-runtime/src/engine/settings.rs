//! [`EngineSettings`]: the settings of a manager that its engine follows.

use std::sync::Arc;
use std::time::Duration;

use crate::replication::Replication;
use crate::retention::TokenRetention;
use crate::sync::Apart;
#[cfg(feature = "testing")]
use crate::tasks::Process;
use crate::token::Owners;

/// Settings of an engine; the defaults are the documented ones.
#[derive(Clone, Debug)]
pub(crate) struct EngineSettings {
    /// Lease of watchdog holds, renewed every third of it.
    pub(crate) lease: Duration,
    /// Wait of a request that names none.
    pub(crate) default_wait: Duration,
    /// Time-out of one store call.
    pub(crate) call_timeout: Duration,
    /// Maximum number of callers that wait for one key in this process.
    pub(crate) max_waiters_per_key: usize,
    /// The same for fair locks, whose waiters have each a place at the store.
    pub(crate) max_fair_waiters_per_key: usize,
    /// Maximum number of callers that wait in this process.
    pub(crate) max_waiters: usize,
    /// Maximum number of releases of dropped guards that are under way at once.
    pub(crate) max_pending_releases: usize,
    /// Longest time for which a hold is handed on inside the process before it is released for
    /// everybody.
    pub(crate) cohort_window: Duration,
    /// Longest time for which a waiter sleeps without asking the store, when no message comes.
    pub(crate) fallback_poll: Duration,
    /// Retention of requests that name none.
    pub(crate) token_retention: TokenRetention,
    /// Replicas that have to confirm a grant, for requests that name none.
    pub(crate) replication: Replication,
    /// Makes the owners of the manager.
    pub(crate) owners: Arc<Apart<Owners>>,
    /// The simulated process that the manager belongs to.
    #[cfg(feature = "testing")]
    pub(crate) process: Option<Process>,
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
            owners: Arc::new(Apart(Owners::new())),
            #[cfg(feature = "testing")]
            process: None,
        }
    }
}
