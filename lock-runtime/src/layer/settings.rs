//! [`Settings`]: what a layer is told to do, and [`Shared`], what its services have in common.

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

/// For how long a request may hold its lock unless told otherwise: a client that sends or reads a
/// body slowly, or not at all, could hold it indefinitely.
const MAX_HOLD: Duration = Duration::from_secs(60);

/// Maximum numbers of requests that wait, unless told otherwise: a tenth of the manager's, so that
/// the rest of the program is not refused its locks because of a crowd of requests.
const MAX_WAITERS: usize = 10_000;
const MAX_WAITERS_PER_KEY: usize = 1000;

/// Until when a request holds its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldUntil {
    /// Until the handler has returned its response. What the response's body does while it is sent
    /// is not locked.
    Response,
    /// Until the response's body has come to its end, has failed, or was dropped.
    ///
    /// The body of a client that does not read is not polled, and so does not notice: its key is
    /// free when what was left of the lease then is over too. Give such locks a short
    /// [`lease`](super::LockLayer::lease).
    BodyEnd,
}

/// What becomes of a request for which there is no key: the extractor returned `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// It is refused, by default with 400.
    Reject,
    /// It goes on without a lock, and without a [`HeldLock`](crate::HeldLock) in its extensions,
    /// not even that of a layer outside.
    Skip,
    /// It is locked with this key.
    Fixed(LockKey),
}

/// What becomes of a request whose lock can't be taken because the store does not answer, or too
/// few of its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreDown {
    /// It is refused, by default with 503.
    Reject,
    /// It goes on without a lock: several requests for one key may be in the handler at the same
    /// time. It does so when its wait is over, and those above a cap of waiters are refused
    /// nevertheless: keep the wait short. A gRPC request whose `grpc-timeout` is shorter than that
    /// is refused.
    ///
    /// The extensions of request and response have [`Unlocked`](super::Unlocked) and no
    /// [`HeldLock`](crate::HeldLock), not even that of a layer outside; in axum `Option<HeldLock>`
    /// is the extractor to use. `lock_layer_unlocked_total` counts such requests, and the log warns
    /// of them once a minute.
    PassThrough,
}

/// All settings except the user-supplied generic parts.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) enabled: bool,
    pub(super) kind: Kind,
    /// Kinds of their own, by method.
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
    /// The kind of the lock of a request with this method; `None`: it is not locked.
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

    /// Returns a lock with all settings that are the same for every request, and without a key.
    pub(super) fn template(&self, locks: &LockManager) -> Lock {
        let mut lock = locks.template().min_hold(self.min_hold).name(self.label.clone());
        lock = lock.max_waiters(self.max_waiters_per_key);
        let max_hold = match self.max_hold {
            MaxHold::Explicit(limit) => limit,
            // A fixed lease is a limit itself.
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

/// What the services of a layer know together, and no other layer.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Requests that wait.
    pub(super) waiting: Arc<AtomicUsize>,
    /// When the log was told that requests go on without their locks.
    pub(super) unlocked_told: Told,
    /// When the log was told about a mistake in the program.
    pub(super) mistake_told: Told,
}

/// What all services of a layer share.
pub(super) struct Shared<K, R> {
    pub(super) locks: LockManager,
    pub(super) keys: Arc<K>,
    pub(super) refuse: Arc<R>,
    pub(super) settings: Settings,
    pub(super) template: Lock,
    pub(super) state: State,
}
