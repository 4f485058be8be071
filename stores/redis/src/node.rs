//! [`Node`]: one server, with its connection, its clock and its subscriber.
//!
//! Each step adds methods to it in its own file. The node itself uses none of them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lock_core::store::kit::ServerClock;

use super::classify::Address;
use super::connection::{At, Connector};
use super::dialer::Dialer;
use super::options::RedisOptions;
use super::pool::Pool;
use super::script::{self, Dialect, Invocation, Script};
use super::subscriber::{Alone, Channels, Subscriber, Timing};

/// One server. Aligned so that its reference count shares no cache line with data that all threads
/// read.
#[repr(align(128))]
pub(super) struct Node {
    pub(super) options: RedisOptions,
    pub(super) address: Address,
    pub(super) dialect: Dialect,
    /// Whether other servers have other slots, so that no script may use keys of several slots.
    pub(super) has_peers: bool,
    pub(super) connector: Arc<Connector>,
    pub(super) server_clock: Arc<ServerClock>,
    pub(super) subscriber: Subscriber,
    pub(super) synced: Arc<Pool>,
    pub(super) rights_known: AtomicBool,
    pub(super) warned_untold: AtomicBool,
    /// Whether the server refuses keys of several hash slots in one call.
    pub(super) one_by_one: AtomicBool,
}

impl Node {
    /// Returns the only server, to which `dialer` leads. It connects on first use.
    pub(super) fn new(dialer: Dialer, options: RedisOptions) -> Arc<Self> {
        Self::made(dialer, options, Dialect::Classic, None)
    }

    /// Returns one of several servers.
    pub(super) fn of(
        dialer: Dialer,
        options: RedisOptions,
        dialect: Dialect,
        channels: Arc<dyn Channels>,
    ) -> Arc<Self> {
        Self::made(dialer, options, dialect, Some(channels))
    }

    fn made(
        dialer: Dialer,
        options: RedisOptions,
        dialect: Dialect,
        peers: Option<Arc<dyn Channels>>,
    ) -> Arc<Self> {
        let has_peers = peers.is_some();
        let channels = peers.unwrap_or_else(|| Arc::new(Alone));
        let server_clock = Arc::new(ServerClock::default());
        let timing = Timing {
            linger: options.subscription_linger,
            ping_every: options.ping_every,
            timeout: options.call_timeout,
        };
        let runtime = options.runtime.clone();
        Arc::new(Self {
            address: dialer.address.clone(),
            connector: Connector::new(dialer.clone(), runtime.clone(), Arc::clone(&server_clock)),
            subscriber: Subscriber::new(dialer.clone(), timing, runtime.clone(), dialect, channels),
            synced: Pool::new(dialer, runtime, Arc::clone(&server_clock)),
            dialect,
            has_peers,
            options,
            server_clock,
            rights_known: AtomicBool::new(false),
            warned_untold: AtomicBool::new(false),
            one_by_one: AtomicBool::new(false),
        })
    }

    /// Tells all listeners on these channels to look again, without knowing whether they received
    /// it.
    pub(super) async fn publish(&self, channels: &[Arc<str>], message: &str, at: At) {
        let Ok(ready) = self.connector.ready(at).await else { return };
        let command = if self.dialect == Dialect::Sharded { "SPUBLISH" } else { "PUBLISH" };
        for channel in channels {
            let mut publish = redis::cmd(command);
            publish.arg(&**channel).arg(message);
            drop(self.connector.call(&ready, &publish).await);
        }
    }

    /// Returns a call with `keys` keys and about `arguments` arguments.
    pub(super) fn invocation(&self, script: &'static Script, keys: usize, arguments: usize) -> Invocation {
        let script = if self.options.layout.is_plain() { script::in_plain(script) } else { script };
        Invocation::new(script, self.dialect, keys, arguments)
    }
}
