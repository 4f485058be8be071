//! [`RedisOptions`]: the settings of a store.

use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::clock::Clock;
use tokio::runtime::Handle;

use super::layout::Layout;
use super::login::Login;

/// Settings of a [`RedisStore`](super::RedisStore).
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Prefix of every key.
    pub prefix: String,
    /// How locks are written.
    pub layout: Layout,
    /// Time-out of calls that carry none.
    pub call_timeout: Duration,
    /// Time-out for making a connection, and of [`check`](lock_core::store::LockStore::check).
    pub connect_timeout: Duration,
    /// Time that a channel stays subscribed after its last watcher has left.
    pub subscription_linger: Duration,
    /// Interval between PINGs on a subscriber connection.
    pub ping_every: Duration,
    /// Number of replicas of a single primary.
    pub replicas: Option<u32>,
    /// Whether doubtful server settings are errors.
    pub strict: bool,
    /// How connections log in.
    pub login: Login,
    /// The local clock, which counts time in suspend.
    pub clock: Clock,
    /// The runtime of the connections.
    pub runtime: Handle,
}

impl RedisOptions {
    /// Returns a key that no lock has.
    pub(super) fn nobodys_key(&self) -> Option<LockKey> {
        LockKey::new(format!("rights-of-{}", self.login.name())).ok()
    }
}
