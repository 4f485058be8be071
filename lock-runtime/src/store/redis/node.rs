//! [`Node`]: one server, with what is known of it and what is connected to it. The steps are its methods.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::RedisOptions;
use super::classify::Address;
use super::connection::{Connector, Dialer};
use super::group::Group;
use super::server_clock::ServerClock;
use super::singles::{AcquireOne, ReleaseOne};
use super::subscriber::{Subscriber, Timing};
use crate::sync::Apart;

/// Aligned, so that its count is not beside what all threads read.
#[repr(align(128))]
pub(super) struct Node {
    pub(super) options: RedisOptions,
    pub(super) address: Address,
    pub(super) connector: Arc<Connector>,
    pub(super) server_clock: Arc<ServerClock>,
    pub(super) subscriber: Subscriber,
    pub(super) acquires: Apart<Group<AcquireOne>>,
    pub(super) releases: Apart<Group<ReleaseOne>>,
    pub(super) warned_untold: AtomicBool,
}

impl Node {
    /// The server that `dialer` leads to. Connects on first use.
    pub(super) fn new(dialer: Dialer, options: RedisOptions) -> Arc<Self> {
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
            subscriber: Subscriber::new(dialer, timing, runtime),
            options,
            server_clock,
            acquires: Apart::default(),
            releases: Apart::default(),
            warned_untold: AtomicBool::new(false),
        })
    }
}

/// How a step is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    /// The step resolves within about this time.
    pub(super) timeout: Duration,
    /// The server is only about to get the keys: it serves them to those who say that they know.
    pub(super) asking: bool,
}

impl At {
    /// As usual.
    pub(super) fn once(timeout: Duration) -> Self {
        Self { timeout, asking: false }
    }
}
