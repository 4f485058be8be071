//! [`RedisOptions`]: the settings of a store.

use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::clock::Clock;
use tokio::runtime::Handle;

use super::login::Login;

/// Settings of a [`RedisStore`](super::RedisStore).
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// In front of every key.
    pub prefix: String,
    /// Time-out of calls that carry none.
    pub call_timeout: Duration,
    /// Time-out of making a connection, and of [`check`](lock_core::store::LockStore::check).
    pub connect_timeout: Duration,
    /// How long a channel stays subscribed after its last watcher has left.
    pub subscription_linger: Duration,
    /// How often a subscriber connection is asked whether it lives.
    pub ping_every: Duration,
    /// How many replicas a single primary has.
    pub replicas: Option<u32>,
    /// Doubtful server settings are errors.
    pub strict: bool,
    /// How connections log in.
    pub login: Login,
    /// Our time; one that counts suspend.
    pub clock: Clock,
    /// Where connections live.
    pub runtime: Handle,
}

impl RedisOptions {
    /// A key that no lock has.
    pub(super) fn nobodys_key(&self) -> Option<LockKey> {
        LockKey::new(format!("rights-of-{}", self.login.name())).ok()
    }
}
