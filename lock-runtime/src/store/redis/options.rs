//! [`RedisOptions`]: the settings of a store.

use std::time::Duration;

use tokio::runtime::Handle;

use super::login::Login;
use crate::clock::Clock;
use crate::key::LockKey;

/// Settings of a [`RedisStore`](super::RedisStore).
#[derive(Clone, Debug)]
pub(crate) struct RedisOptions {
    /// In front of every key.
    pub(crate) prefix: String,
    /// Time-out of calls that carry none.
    pub(crate) call_timeout: Duration,
    /// Time-out of making a connection, and of [`check`](crate::store::LockStore::check).
    pub(crate) connect_timeout: Duration,
    /// How long a channel stays subscribed after its last watcher has left.
    pub(crate) subscription_linger: Duration,
    /// How often a subscriber connection is asked whether it lives.
    pub(crate) ping_every: Duration,
    /// How many replicas a single primary has.
    pub(crate) replicas: Option<u32>,
    /// Doubtful server settings are errors.
    pub(crate) strict: bool,
    /// How connections log in.
    pub(crate) login: Login,
    /// Our time; one that counts suspend.
    pub(crate) clock: Clock,
    /// Where connections live.
    pub(crate) runtime: Handle,
}

impl RedisOptions {
    /// A key that no lock has.
    pub(super) fn nobodys_key(&self) -> Option<LockKey> {
        LockKey::new(format!("rights-of-{}", self.login.name())).ok()
    }
}
