//! [`Subscriber`]: one connection for all release channels of a store.
//!
//! A task owns the connection while there is a channel. It sends SUBSCRIBE and UNSUBSCRIBE one
//! after the other, and the server's pushes alone decide which channels are confirmed. So a watch
//! that begins while its channel is being left is subscribed again. Watches never fail: without a
//! subscription they are unconfirmed, and their owner polls.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::sync::lock;
use lock_core::store::kit::Backoff;
use lock_core::store::{Notice, Watch};
use redis::aio::{MultiplexedConnection, SendError};
use redis::{PushInfo, PushKind, Value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

use super::dialer::Dialer;
use super::registry::{Own, Readiness, Registry, Ring};
use super::script::Dialect;
use super::{fair, keyspace, reply};
use crate::trace::TARGET;

mod commands;

use commands::{subscribe, unsubscribe};

/// Capacity of a watch's queue of notices.
pub(super) const NOTICES: usize = 8;
/// Maximum number of channels in one command.
const BATCH: usize = 256;
/// Time that a connection must have lasted to reset the back-off.
const LASTED: Duration = Duration::from_secs(1);

/// Times of the subscriber.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// How long a channel is kept after its last watcher has left.
    pub(super) linger: Duration,
    /// Interval between PINGs on a quiet connection.
    pub(super) ping_every: Duration,
    /// Time-out of an answer.
    pub(super) timeout: Duration,
}

/// Receives what a subscriber learns about other servers.
pub(super) trait Channels: Send + Sync {
    /// Notes that the slot of a channel is at `to` now.
    fn moved(&self, slot: u16, to: &str);
}

/// The [`Channels`] of a server that is the only one.
pub(super) struct Alone;

impl Channels for Alone {
    fn moved(&self, _: u16, _: &str) {}
}

pub(super) struct Subscriber {
    shared: Arc<Shared>,
    runtime: Handle,
}

struct Shared {
    dialer: Dialer,
    dialect: Dialect,
    channels: Arc<dyn Channels>,
    timing: Timing,
    inner: Mutex<Inner>,
    wake: Notify,
    /// Number of watches that have not been dropped. Read by releases, which mostly find none.
    watches: AtomicUsize,
    /// Whether a refusal was warned of; only the first one is.
    warned: AtomicBool,
}

struct Inner {
    registry: Registry,
    task: Option<AbortHandle>,
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber").field("timing", &self.shared.timing).finish_non_exhaustive()
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let mut inner = self.shared.inner();
        if let Some(task) = inner.task.take() {
            task.abort();
        }
        let registry = std::mem::take(&mut inner.registry);
        drop(inner);
        // Dropping it wakes all watchers.
        drop(registry);
    }
}

impl Subscriber {
    pub(super) fn new(
        dialer: Dialer,
        timing: Timing,
        runtime: Handle,
        dialect: Dialect,
        channels: Arc<dyn Channels>,
    ) -> Self {
        let inner = Mutex::new(Inner { registry: Registry::default(), task: None });
        let (watches, warned) = (AtomicUsize::new(0), AtomicBool::new(false));
        let wake = Notify::new();
        let shared = Shared { dialer, dialect, channels, timing, inner, wake, watches, warned };
        Self { shared: Arc::new(shared), runtime }
    }

    /// Watches `channels`. Resolves when each is subscribed or will not be for now, at `deadline`
    /// at the latest.
    pub(super) async fn watch(&self, channels: Vec<Arc<str>>, deadline: Tick) -> Watch {
        let (sender, notices) = mpsc::channel(NOTICES);
        let (registration, pending) = self.register(channels, &sender);
        let confirmed = confirmed(pending, self.shared.dialer.clock, deadline).await;
        Watch::new(notices, confirmed, Box::new(registration))
    }

    /// Sends all messages on `channels` to `sender` until the registration is dropped.
    pub(super) fn register(
        &self,
        channels: Vec<Arc<str>>,
        sender: &mpsc::Sender<Notice>,
    ) -> (Registration, Vec<Readiness>) {
        let clock = self.shared.dialer.clock;
        let mut registration = Registration { shared: Arc::downgrade(&self.shared), entries: Vec::new() };
        let mut pending = Vec::with_capacity(channels.len());
        self.shared.watches.fetch_add(1, Ordering::Relaxed);
        {
            let mut inner = self.shared.inner();
            let mut work = false;
            for channel in channels {
                let (id, readiness, new) = inner.registry.add(&channel, sender.clone(), clock.now());
                registration.entries.push((channel, id));
                pending.push(readiness);
                work |= new;
            }
            if inner.task.as_ref().is_none_or(AbortHandle::is_finished) {
                let shared = Arc::clone(&self.shared);
                inner.task = Some(self.runtime.spawn(serve(shared)).abort_handle());
            } else if work {
                self.shared.wake.notify_one();
            }
        }
        (registration, pending)
    }

    /// Returns the share of this process in `channel`.
    pub(super) fn own(&self, channel: &str) -> Own {
        self.shared.inner().registry.own(channel)
    }

    /// Whether any watcher of this process may be listening.
    pub(super) fn is_watched(&self) -> bool {
        self.shared.watches.load(Ordering::Relaxed) > 0
    }
}

/// Waits, until `deadline` at the latest, for all of these to be decided. Returns whether all are
/// confirmed.
pub(super) async fn confirmed(pending: Vec<Readiness>, clock: Clock, deadline: Tick) -> bool {
    let mut confirmed = true;
    for readiness in pending {
        confirmed &= match readiness {
            Readiness::Known(confirmed) => confirmed,
            Readiness::Awaited(ready) => {
                let left = deadline.since(clock.now());
                matches!(tokio::time::timeout(left, ready).await, Ok(Ok(true)))
            }
        };
    }
    confirmed
}

/// The locked mutex of a subscriber. Watchers get their messages after it is released.
struct Locked<'a> {
    inner: MutexGuard<'a, Inner>,
    // Declared after the mutex, so that it is dropped after it.
    rings: Rings,
}

#[derive(Default)]
struct Rings(Vec<Ring>);

impl Drop for Rings {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Ring::ring);
    }
}

impl Deref for Locked<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.rings.0 = std::mem::take(&mut self.inner.registry.rings);
    }
}

/// The places of a watch at its channels, which it leaves when dropped.
pub(super) struct Registration {
    shared: Weak<Shared>,
    entries: Vec<(Arc<str>, u64)>,
}

impl Registration {
    /// Whether the subscriber still exists.
    pub(super) fn is_live(&self) -> bool {
        self.shared.strong_count() > 0
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        shared.watches.fetch_sub(1, Ordering::Relaxed);
        let now = shared.dialer.clock.now();
        let mut inner = shared.inner();
        let mut timer = false;
        for (channel, id) in &self.entries {
            timer |= inner.registry.remove(channel, *id, now);
        }
        drop(inner);
        if timer {
            shared.wake.notify_one();
        }
    }
}

impl Shared {
    fn inner(&self) -> Locked<'_> {
        Locked { inner: lock(&self.inner), rings: Rings::default() }
    }

    /// Ends the task when there is nothing to watch. Decided under the lock, so that no watch is
    /// left without a task.
    fn retire(&self) -> bool {
        let mut inner = self.inner();
        let done = inner.registry.is_empty();
        if done {
            inner.task = None;
        }
        done
    }

    /// Notes that the server refused a channel.
    fn refused(&self, channel: &Arc<str>, answer: &dyn fmt::Display) {
        let store = &self.dialer.address;
        if keyspace::key_of(channel).is_some() || self.warned.swap(true, Ordering::Relaxed) {
            tracing::debug!(target: TARGET, ?store, %channel, %answer, "SUBSCRIBE was refused");
        } else {
            tracing::warn!(target: TARGET, ?store, %channel, %answer, "SUBSCRIBE was refused, so waiters poll");
        }
        self.inner().registry.refused(channel, self.dialer.clock.now());
    }

    /// Handles a push of the server. Runs on the connection's task and must not block.
    fn push(&self, generation: u64, push: &PushInfo) {
        let channel = match push.data.first() {
            Some(Value::BulkString(bytes)) => std::str::from_utf8(bytes).unwrap_or_default(),
            Some(Value::SimpleString(text)) => text,
            _ => "",
        };
        let mut inner = self.inner();
        let registry = &mut inner.registry;
        let wake = match push.kind {
            PushKind::Message | PushKind::SMessage => {
                let message = push.data.get(1).and_then(reply::text).unwrap_or_default();
                let ended = registry.ended.take();
                if let Some(key) = keyspace::key_of(channel) {
                    if keyspace::is_end(message) {
                        registry.ended = Some(key.to_owned());
                        registry.message(generation, channel, Notice::Retry);
                    }
                } else if !ended.is_some_and(|key| keyspace::repeats(channel, &key)) {
                    registry.message(generation, channel, fair::notice(message));
                }
                false
            }
            PushKind::Subscribe | PushKind::SSubscribe => {
                registry.subscribed(generation, channel);
                false
            }
            PushKind::Unsubscribe | PushKind::SUnsubscribe => registry.unsubscribed(generation, channel),
            PushKind::Disconnection => {
                registry.disconnected(generation);
                true
            }
            _ => false,
        };
        drop(inner);
        if wake {
            self.wake.notify_one();
        }
    }
}

/// Runs the subscriber's task: connects, keeps the subscriptions up to date, and ends when there
/// are none.
async fn serve(shared: Arc<Shared>) {
    let mut backoff = Backoff::default();
    loop {
        let generation = shared.inner().registry.begin();
        let pushed = Arc::downgrade(&shared);
        let dialed = shared.dialer.dial(move |push: PushInfo| {
            if let Some(shared) = pushed.upgrade() {
                shared.push(generation, &push);
            }
            Ok::<(), SendError>(())
        });
        match dialed.await {
            Ok(connection) => {
                shared.inner().registry.established(generation);
                let since = shared.dialer.clock.now();
                match attend(&shared, connection, generation).await {
                    End::Idle => return,
                    End::Lost(reason) => {
                        tracing::debug!(target: TARGET, store = ?shared.dialer.address, reason, "lost the subscriber connection");
                        shared.inner().registry.disconnected(generation);
                    }
                }
                if shared.dialer.clock.now().since(since) > LASTED {
                    backoff = Backoff::default();
                    continue;
                }
            }
            Err(error) => {
                tracing::debug!(target: TARGET, %error, "no subscriber connection");
                shared.inner().registry.unreachable();
                if shared.retire() {
                    return;
                }
            }
        }
        tokio::time::sleep(backoff.next_pause()).await;
    }
}

enum End {
    /// Nothing is watched any more.
    Idle,
    Lost(&'static str),
}

async fn attend(shared: &Shared, mut connection: MultiplexedConnection, generation: u64) -> End {
    let Timing { linger, ping_every, timeout } = shared.timing;
    let clock = shared.dialer.clock;
    let mut ping_at = clock.now() + ping_every;
    loop {
        loop {
            let batch = shared.inner().registry.take_todo(BATCH);
            if batch.is_empty() {
                break;
            }
            if let Err(end) = subscribe(shared, &mut connection, batch).await {
                return end;
            }
        }
        let batch = shared.inner().registry.take_idle(clock.now(), linger, BATCH);
        if !batch.is_empty() {
            let left = tokio::time::timeout(timeout, unsubscribe(shared, &mut connection, &batch)).await;
            if !matches!(left, Ok(true)) {
                return End::Lost("UNSUBSCRIBE failed");
            }
            continue;
        }
        if shared.retire() {
            return End::Idle;
        }
        let next = {
            let inner = shared.inner();
            if !inner.registry.is_connected(generation) {
                return End::Lost("disconnected");
            }
            inner.registry.next_idle(linger).map_or(ping_at, |idle| idle.min(ping_at))
        };
        // Timers have a resolution of one millisecond, and the clock must have passed `next`.
        let sleep = next.since(clock.now()) + Duration::from_millis(1);
        let _ = tokio::time::timeout(sleep, shared.wake.notified()).await;
        if clock.now() >= ping_at {
            let ping = redis::cmd("PING");
            let pong = tokio::time::timeout(timeout, connection.send_packed_command(&ping)).await;
            if let Ok(Ok(Value::ServerError(error))) = &pong
                && shared.dialer.address.is_logged_out(error.code())
            {
                return End::Lost("the server has dropped the login of this connection");
            }
            // A push may come in its place, see `sharded`.
            if !matches!(pong, Ok(Ok(ref pong)) if !matches!(pong, Value::Push { .. })) {
                return End::Lost("PING was not answered");
            }
            ping_at = clock.now() + ping_every;
        }
    }
}
