//! The settings of a manager.

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "redis")]
use crate::credentials::Provider;
use crate::replication::Replication;
use crate::sync::Apart;
use crate::token::Owners;

/// How long the fencing counter of a key outlives its last hold. Default 15 minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRetention {
    /// The counter lives for at least this long after the end of each hold, released or not, and
    /// for a quarter of it and a lease longer at most. At least a second. A counter that is gone
    /// begins again at the server's clock, in microseconds: tokens still grow unless that clock has
    /// been set back to before the last grant.
    For(Duration),
    /// The counter never expires. Required when Java's `RFencedLock` uses the same names: its `INCR` does not refresh
    /// a time to live and would start at 1 again.
    Keep,
}

/// A shorter retention is a mistake, such as the wrong unit.
const SHORTEST_RETENTION: Duration = Duration::from_secs(1);

impl TokenRetention {
    /// Why no lock can have it.
    pub(crate) fn refusal(self) -> Option<String> {
        match self {
            Self::For(time) if time < SHORTEST_RETENTION => Some(format!(
                "a token retention of {time:?} is too short; use a second or more, or `TokenRetention::Keep`"
            )),
            Self::For(_) | Self::Keep => None,
        }
    }
}

impl Default for TokenRetention {
    fn default() -> Self {
        Self::For(Duration::from_secs(15 * 60))
    }
}

/// All settings; the defaults are the documented ones.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Put in front of every key by the store.
    pub(crate) prefix: String,
    /// Lease of watchdog holds, renewed every third of it.
    pub(crate) lease: Duration,
    /// Wait of a request that names none.
    pub(crate) default_wait: Duration,
    /// Time-out of one store call.
    pub(crate) call_timeout: Duration,
    /// Time-out of making a connection.
    pub(crate) connect_timeout: Duration,
    /// Most callers that may wait for one key in this process.
    pub(crate) max_waiters_per_key: usize,
    /// The same for fair locks, whose waiters have each a place at the store.
    pub(crate) max_fair_waiters_per_key: usize,
    /// Most callers that may wait in this process.
    pub(crate) max_waiters: usize,
    /// Most releases of dropped guards that may be under way at once.
    pub(crate) max_pending_releases: usize,
    /// Longest time for which a hold is handed on inside the process before it is released for everybody.
    pub(crate) cohort_window: Duration,
    /// How long a release channel stays subscribed after its last waiter left.
    pub(crate) subscription_linger: Duration,
    /// Longest time a waiter sleeps without asking the store, when no message comes.
    pub(crate) fallback_poll: Duration,
    /// Of requests that don't say.
    pub(crate) token_retention: TokenRetention,
    /// How many replicas have to confirm a grant, for requests that don't say.
    pub(crate) replication: Replication,
    /// The longest lease on a quorum of servers.
    pub(crate) max_lease: Duration,
    /// How many replicas a single primary has.
    pub(crate) replicas: Option<u32>,
    /// Warnings about the server's configuration are errors.
    pub(crate) strict: bool,
    /// Makes the owners of the manager.
    pub(crate) owners: Arc<Apart<Owners>>,
    /// Asked for user and password at each connection.
    #[cfg(feature = "redis")]
    pub(crate) credentials: Option<Provider>,
    /// The simulated process that the manager belongs to.
    #[cfg(feature = "testing")]
    pub(crate) process: Option<crate::testing::simulation::Process>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            prefix: "lock:".to_owned(),
            lease: Duration::from_secs(30),
            default_wait: Duration::from_secs(10),
            call_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(5),
            max_waiters_per_key: 10_000,
            max_fair_waiters_per_key: 10_000,
            max_waiters: 100_000,
            max_pending_releases: 100_000,
            cohort_window: Duration::from_millis(250),
            subscription_linger: Duration::from_secs(5),
            fallback_poll: Duration::from_secs(5),
            token_retention: TokenRetention::default(),
            replication: Replication::NONE,
            replicas: None,
            max_lease: Duration::from_secs(60),
            strict: false,
            owners: Arc::new(Apart(Owners::new())),
            #[cfg(feature = "redis")]
            credentials: None,
            #[cfg(feature = "testing")]
            process: None,
        }
    }
}
