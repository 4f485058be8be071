//! [`Settings`]: the settings of a layer, and [`Shared`]: what its services share.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use http::Method;
use lock_core::store::Kind;
use lock_core::{LockKey, Replication, TokenRetention};
use lock_engine::metrics::Label;
use lock_engine::terms::Wait;

use super::refusal::LONGEST_RETRY_AFTER;
use super::told::Told;
use crate::guarded::OnLost;
use crate::kinds::Lock;
use crate::manager::LockManager;

/// Maximum time for which a request may hold its lock, unless set otherwise. Without it, a client
/// that sends or reads a body slowly, or not at all, could hold the lock indefinitely.
const MAX_HOLD: Duration = Duration::from_secs(60);

/// Maximum numbers of waiting requests, unless set otherwise: a tenth of the manager's. A burst of
/// requests then can't make the manager refuse the locks of the rest of the program.
const MAX_WAITERS: usize = 10_000;
const MAX_WAITERS_PER_KEY: usize = 1000;

/// Until when a request holds its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldUntil {
    /// Until the handler has returned its response. The response's body is sent without the lock.
    Response,
    /// Until the response's body has ended, failed, or was dropped.
    ///
    /// If the client does not read, the body is not polled, and so does not notice a loss. Its key
    /// only becomes free when the rest of the lease has expired. Give such locks a short
    /// [`lease`](super::LockLayer::lease).
    BodyEnd,
}

/// The policy for requests without a key, for which the extractor returned `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// The request is refused, by default with 400.
    Reject,
    /// The request goes on without a lock. Its extensions contain no [`HeldLock`](crate::HeldLock),
    /// not even that of an outer layer.
    Skip,
    /// The request is locked with this key.
    Fixed(LockKey),
}

/// The policy for requests whose lock can't be taken because the store, or too many of its
/// replicas, don't answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreDown {
    /// The request is refused, by default with 503.
    Reject,
    /// The request goes on without a lock: several requests for one key may be in the handler at
    /// the same time. It goes on only when its wait is over, and requests above a cap of waiters
    /// are still refused, so keep the wait short. A gRPC request whose `grpc-timeout` is shorter
    /// than the wait is refused.
    ///
    /// The extensions of request and response contain [`Unlocked`](super::Unlocked) and no
    /// [`HeldLock`](crate::HeldLock), not even that of an outer layer. In axum, use the extractor
    /// `Option<HeldLock>`. `lock_layer_unlocked_total` counts such requests, and the log warns of
    /// them once a minute.
    PassThrough,
}

/// All settings except the user-supplied generic parts.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) enabled: bool,
    pub(super) kind: Kind,
    /// Methods that have their own kind.
    pub(super) kinds: Vec<(Method, Kind)>,
    pub(super) wait: Option<Wait>,
    pub(super) lease: Option<Duration>,
    pub(super) max_hold: MaxHold,
    pub(super) min_hold: Duration,
    pub(super) token_retention: Option<TokenRetention>,
    pub(super) replication: Option<Replication>,
    pub(super) hold: HeldUntil,
    pub(super) on_missing_key: MissingKey,
    pub(super) methods: Methods,
    pub(super) max_waiters: usize,
    pub(super) max_waiters_per_key: usize,
    pub(super) on_store_down: StoreDown,
    pub(super) on_lost: OnLost,
    pub(super) longest_retry_after: Duration,
    pub(super) label: Label,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum MaxHold {
    Default,
    Explicit(Option<Duration>),
}

/// Which methods are locked.
#[derive(Clone, Debug)]
pub(super) enum Methods {
    AllBut(Vec<Method>),
    Only(Vec<Method>),
}

impl Settings {
    /// Returns the kind of the lock of a request with this method, or `None` if it is not locked.
    pub(super) fn kind_of(&self, method: &Method) -> Option<Kind> {
        if let Some((_, kind)) = self.kinds.iter().find(|(other, _)| other == method) {
            return Some(*kind);
        }
        let locked = match &self.methods {
            Methods::AllBut(skipped) => !skipped.contains(method),
            Methods::Only(only) => only.contains(method),
        };
        locked.then_some(self.kind)
    }

    /// Returns a lock without a key, with all settings that are the same for every request.
    pub(super) fn template(&self, locks: &LockManager) -> Lock {
        let mut lock = locks.template().min_hold(self.min_hold).name(self.label.clone());
        lock = lock.max_waiters(self.max_waiters_per_key);
        let max_hold = match self.max_hold {
            MaxHold::Explicit(limit) => limit,
            // A fixed lease is already a limit.
            MaxHold::Default => self.lease.is_none().then(|| MAX_HOLD.max(self.min_hold)),
        };
        if let Some(limit) = max_hold {
            lock = lock.max_hold(limit);
        }
        if let Some(wait) = self.wait {
            lock = lock.wait_as(wait);
        }
        if let Some(lease) = self.lease {
            lock = lock.lease(lease);
        }
        if let Some(retention) = self.token_retention {
            lock = lock.token_retention(retention);
        }
        if let Some(replication) = self.replication {
            lock = lock.replication(replication);
        }
        lock
    }
}

impl Default for Settings {
    fn default() -> Self {
        let skipped = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::CONNECT];
        Self {
            enabled: true,
            kind: Kind::Mutex,
            kinds: Vec::new(),
            wait: None,
            lease: None,
            max_hold: MaxHold::Default,
            min_hold: Duration::ZERO,
            token_retention: None,
            replication: None,
            hold: HeldUntil::Response,
            on_missing_key: MissingKey::Reject,
            methods: Methods::AllBut(skipped.to_vec()),
            max_waiters: MAX_WAITERS,
            max_waiters_per_key: MAX_WAITERS_PER_KEY,
            on_store_down: StoreDown::Reject,
            on_lost: OnLost::Cancel,
            longest_retry_after: LONGEST_RETRY_AFTER,
            label: Label::Borrowed("layer"),
        }
    }
}

/// Counters and log limits that the services of one layer share.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The number of waiting requests.
    pub(super) waiting: Arc<AtomicUsize>,
    /// Limits how often the log says that requests go on without their locks.
    pub(super) unlocked_told: Told,
    /// Limits how often the log reports a mistake in the program.
    pub(super) mistake_told: Told,
}

/// The data that all services of a layer share.
pub(super) struct Shared<K, R> {
    pub(super) locks: LockManager,
    pub(super) keys: Arc<K>,
    pub(super) refuse: Arc<R>,
    pub(super) settings: Settings,
    pub(super) template: Lock,
    pub(super) state: State,
}
