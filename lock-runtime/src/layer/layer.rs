//! [`LockLayer`]: the settings, and the services made with them.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use http::Method;
use tower_layer::Layer;

use super::mode::{Detached, Inline};
use super::refusal::{LONGEST_RETRY_AFTER, ProblemDetails};
use super::service::LockService;
use crate::config::TokenRetention;
use crate::guarded::OnLost;
use crate::key::LockKey;
use crate::manager::LockManager;
use crate::metrics::Label;
use crate::replication::Replication;
use crate::store::Kind;
use crate::sync::{Mutex, lock};

/// For how long a body may hold its lock unless told otherwise: a client that reads slowly, or not at all, would have it
/// for as long as it pleases.
const LONGEST_BODY: Duration = Duration::from_secs(60);

/// Until when a request holds its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hold {
    /// Until the handler has returned its response. What the response's body does while it is sent is not locked.
    UntilResponse,
    /// Until the response's body has come to its end, has failed, or was dropped; it counts as lost after
    /// [`max_hold`](LockLayer::max_hold), by default 60 s.
    ///
    /// The body of a client that does not read is not polled, and so does not notice: its key is free when what was left
    /// of the lease then is over too. Give such locks a short [`lease`](LockLayer::lease).
    UntilBodyEnd,
}

/// What becomes of a request for which there is no key: the extractor returned `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// It is refused, by default with 400.
    Reject,
    /// It goes on without a lock, and so without a [`HeldLock`](crate::HeldLock) in its extensions.
    Skip,
    /// It is locked with this key.
    Fixed(LockKey),
}

/// What becomes of a request whose lock can't be taken because the store does not answer, or too few of its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreDown {
    /// It is refused, by default with 503.
    Reject,
    /// It goes on without a lock: several requests for one key may be in the handler at the same time. It does so when its
    /// wait is over, and those above a cap of waiters are refused nevertheless: keep the wait short. The extensions of
    /// request and response have [`Unlocked`](super::Unlocked) and no [`HeldLock`](crate::HeldLock), which in axum makes
    /// `Option<HeldLock>` the extractor to use; `lock_layer_unlocked_total` counts it, and the log is warned once a minute.
    PassThrough,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    Default,
    No,
    AtMost(Duration),
    Forever,
}

/// When the log was told something, so that it is not told with every request.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<Option<Instant>>);

impl Told {
    /// Whether it is time to tell it; once a minute.
    pub(super) fn is_due(&self) -> bool {
        let mut told = lock(&self.0);
        let due = told.is_none_or(|told| told.elapsed() >= Duration::from_secs(60));
        if due {
            *told = Some(Instant::now());
        }
        due
    }
}

/// Everything but the parts that are of types of the user's.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) kind: Kind,
    pub(super) wait: Wait,
    pub(super) lease: Option<Duration>,
    pub(super) max_hold: Option<Duration>,
    pub(super) min_hold: Duration,
    pub(super) token_retention: Option<TokenRetention>,
    pub(super) replication: Option<Replication>,
    pub(super) hold: Hold,
    pub(super) missing_key: MissingKey,
    pub(super) skipped: Vec<Method>,
    pub(super) max_waiters: usize,
    pub(super) max_waiters_per_key: Option<usize>,
    pub(super) on_store_down: StoreDown,
    pub(super) on_lost: OnLost,
    pub(super) longest_retry_after: Duration,
    pub(super) label: Label,
    /// Requests that wait, in all services of the layer.
    pub(super) waiting: Arc<AtomicUsize>,
    /// When the log was told that requests go on without their locks.
    pub(super) told: Arc<Told>,
    /// When the log was told what is set up wrongly.
    pub(super) mistake_told: Arc<Told>,
}

impl Settings {
    /// The longest time for which a request holds its lock.
    pub(super) fn max_hold(&self) -> Option<Duration> {
        match self.hold {
            Hold::UntilResponse => self.max_hold,
            Hold::UntilBodyEnd => Some(self.max_hold.unwrap_or(LONGEST_BODY)),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            kind: Kind::Mutex,
            wait: Wait::Default,
            lease: None,
            max_hold: None,
            min_hold: Duration::ZERO,
            token_retention: None,
            replication: None,
            hold: Hold::UntilResponse,
            missing_key: MissingKey::Reject,
            skipped: vec![Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE],
            max_waiters: usize::MAX,
            max_waiters_per_key: None,
            on_store_down: StoreDown::Reject,
            on_lost: OnLost::Cancel,
            longest_retry_after: LONGEST_RETRY_AFTER,
            label: Label::Borrowed("layer"),
            waiting: Arc::default(),
            told: Arc::default(),
            mistake_told: Arc::default(),
        }
    }
}

/// What all services of a layer share.
pub(super) struct Shared<K, R> {
    pub(super) locks: LockManager,
    pub(super) keys: Arc<K>,
    pub(super) refuse: Arc<R>,
    pub(super) settings: Settings,
}

/// Locks each request with a key of its own; see the [module](super) for what that means in detail.
///
/// `K` finds the key, `R` makes the response of a request that is refused, and `M` is where handlers run.
#[must_use = "a layer does nothing before it is put around a service"]
pub struct LockLayer<K, R = ProblemDetails, M = Inline> {
    shared: Arc<Shared<K, R>>,
    mode: PhantomData<fn() -> M>,
}

/// A [`LockLayer`] whose handlers run in tasks of their own, and to their end although the client has left; made by
/// [`LockLayer::detached`]. The futures of the service have to be `Send + 'static`.
pub type DetachedLockLayer<K, R = ProblemDetails> = LockLayer<K, R, Detached>;

impl<K> LockLayer<K> {
    /// Locks each request with the key that `keys` finds in it, at the store of `locks`.
    ///
    /// Without further settings: a [mutex](LockManager::mutex); the manager's default wait (10 s) and lease (30 s,
    /// renewed); held until the handler returns; GET, HEAD, OPTIONS and TRACE are not locked; a request without a key
    /// is refused, and so is every one that gets no lock; a handler whose lock is lost is dropped.
    pub fn new(locks: LockManager, keys: K) -> Self {
        let shared = Shared {
            locks,
            keys: Arc::new(keys),
            refuse: Arc::new(ProblemDetails),
            settings: Settings::default(),
        };
        Self { shared: Arc::new(shared), mode: PhantomData }
    }
}

impl<K, R, M> LockLayer<K, R, M> {
    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        let shared = &self.shared;
        // A layer of its own, which counts for itself.
        let mut settings = Settings {
            waiting: Arc::default(),
            told: Arc::default(),
            mistake_told: Arc::default(),
            ..shared.settings.clone()
        };
        set(&mut settings);
        self.shared = Arc::new(Shared {
            locks: shared.locks.clone(),
            keys: Arc::clone(&shared.keys),
            refuse: Arc::clone(&shared.refuse),
            settings,
        });
        self
    }

    /// A request waits at most this long for its lock; then it is refused, by default with 429. Zero is the same as
    /// [`no_wait`](Self::no_wait). Without it, the manager's `default_wait` (10 s) holds.
    pub fn wait(self, limit: Duration) -> Self {
        self.set(|settings| settings.wait = if limit.is_zero() { Wait::No } else { Wait::AtMost(limit) })
    }

    /// A request waits for as long as it takes, also while the store is down, until its client is seen to have left: see
    /// [the module](super) about when that is.
    pub fn wait_forever(self) -> Self {
        self.set(|settings| settings.wait = Wait::Forever)
    }

    /// A request does not wait: if somebody else has the lock it is refused, by default with 409.
    ///
    /// A client that repeats its request as soon as it has the response is not refused because of its own previous one
    /// as long as both come to the same process. At another process that one may be under way for a moment, and so it may
    /// be with [`Kind::Fair`] and for a request with several keys, which don't queue behind their own release: give
    /// those a short [`wait`](Self::wait).
    pub fn no_wait(self) -> Self {
        self.set(|settings| settings.wait = Wait::No)
    }

    /// A fixed lease, after which the lock is lost: at least 100 ms and four round trips, see
    /// [`Lock::lease`](crate::Lock::lease). Without it, locks are renewed. With one that is refused, so is every request,
    /// with 500, and the log says why.
    pub fn lease(self, lease: Duration) -> Self {
        self.set(|settings| settings.lease = Some(lease))
    }

    /// The longest time for which a request may hold its lock, from the grant on; then the lock counts as lost, and
    /// [`on_lost`](Self::on_lost) says what becomes of the handler. The key is free when the handler is gone, or when
    /// what is left of the lease is over. At least 1 ms. By default there is none with [`Hold::UntilResponse`], and 60 s
    /// with [`Hold::UntilBodyEnd`]. A request that enters a lock which an outer layer holds has the limit of that one.
    pub fn max_hold(self, limit: Duration) -> Self {
        self.set(|settings| settings.max_hold = Some(limit))
    }

    /// The key stays taken for at least this long after the grant, see
    /// [`Lock::min_hold`](crate::Lock::min_hold).
    pub fn min_hold(self, time: Duration) -> Self {
        self.set(|settings| settings.min_hold = time)
    }

    /// How long fencing counters outlive their holds, see
    /// [`Lock::token_retention`](crate::Lock::token_retention).
    pub fn token_retention(self, retention: TokenRetention) -> Self {
        self.set(|settings| settings.token_retention = Some(retention))
    }

    /// How many replicas have to confirm the grant, see [`Lock::replication`](crate::Lock::replication).
    pub fn replication(self, replication: Replication) -> Self {
        self.set(|settings| settings.replication = Some(replication))
    }

    /// The kind of the lock; a mutex by default. With [`Kind::Read`], handlers of one key run side by side, and
    /// exclude those that have it as [`Kind::Write`]; with a `max_hold`, so also until the end of a body, each reader asks
    /// the store for itself. What a handler takes of the same key has to be of the same kind, or a read inside a write:
    /// anything else is [`KindConflict`](crate::AcquireError::KindConflict).
    pub fn kind(self, kind: Kind) -> Self {
        self.set(|settings| settings.kind = kind)
    }

    /// Until when the lock is held.
    pub fn hold(self, hold: Hold) -> Self {
        self.set(|settings| settings.hold = hold)
    }

    /// What becomes of a request for which there is no key; [`MissingKey::Reject`] by default.
    pub fn missing_key(self, policy: MissingKey) -> Self {
        self.set(|settings| settings.missing_key = policy)
    }

    /// Requests of these methods are not locked: the inner service is called as if there were no layer. GET, HEAD,
    /// OPTIONS and TRACE by default; with an empty list all requests are locked.
    pub fn skip_methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.set(|settings| settings.skipped = methods.into_iter().collect())
    }

    /// At most this many requests of this layer may wait for their locks at a time, of all keys together; one more is
    /// refused at once, by default with 429. At least 1; no cap by default, apart from the manager's.
    ///
    /// Every request counts from when it asks until it has its lock or is refused, also for a key that nobody has: leave room
    /// for those that come together. Those that have their locks do not count.
    pub fn max_waiters(self, cap: usize) -> Self {
        self.set(|settings| settings.max_waiters = cap.max(1))
    }

    /// At most this many callers of this process may wait for one key when a request comes; one more is refused at
    /// once, by default with 429. At least 1; the manager's `max_waiters_per_key` (10 000) holds too. Of several keys, the
    /// first one counts.
    pub fn max_waiters_per_key(self, cap: usize) -> Self {
        self.set(|settings| settings.max_waiters_per_key = Some(cap.max(1)))
    }

    /// What becomes of a request whose lock can't be taken because the store does not answer, or too few of its replicas.
    /// [`StoreDown::Reject`] by default. It is asked again until the [`wait`](Self::wait) is over, so that a short
    /// interruption, such as a failover, is bridged: who lets requests pass gives them a short wait.
    pub fn on_store_down(self, policy: StoreDown) -> Self {
        self.set(|settings| settings.on_store_down = policy)
    }

    /// What becomes of a handler whose lock is lost. By default it is dropped where it is suspended, and the request is
    /// refused with 503; a body that is being sent ends with an error. With [`OnLost::Finish`] it goes on, and so does a body
    /// that is sent already; then only the log and `lock_lost_total` know.
    ///
    /// A handler that does not wait is not interrupted. The response of one that has returned is sent, with
    /// [`LostLock`](super::LostLock) in its extensions.
    pub fn on_lost(self, policy: OnLost) -> Self {
        self.set(|settings| settings.on_lost = policy)
    }

    /// The longest time that a refused client is told to stay away. 5 s by default: what is left of a renewed lock's
    /// lease says little about when it is released. HTTP has whole seconds, at least one.
    pub fn longest_retry_after(self, limit: Duration) -> Self {
        self.set(|settings| settings.longest_retry_after = limit)
    }

    /// The name under which metrics count these locks (label `lock`); `layer` by default. Use few different names.
    pub fn name(self, name: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        self.set(|settings| settings.label = name.into())
    }

    /// Makes the responses of refused requests with `refuse`.
    pub fn refuse_with<R2>(self, refuse: R2) -> LockLayer<K, R2, M> {
        let shared = Shared {
            locks: self.shared.locks.clone(),
            keys: Arc::clone(&self.shared.keys),
            refuse: Arc::new(refuse),
            settings: self.shared.settings.clone(),
        };
        LockLayer { shared: Arc::new(shared), mode: PhantomData }
    }

    /// Runs each handler in a task of its own: once it is called, it runs to its end although the client has left, unless
    /// its lock is lost and [`on_lost`](Self::on_lost) drops it. A request that still waits for its lock when the client
    /// leaves is given up; one that needs no lock runs as without the layer.
    ///
    /// A server that has shut down does not know of these tasks: call
    /// [`LockManager::shutdown`](crate::LockManager::shutdown) after it, which gives those that hold locks the time to
    /// finish.
    pub fn detached(self) -> DetachedLockLayer<K, R> {
        LockLayer { shared: self.shared, mode: PhantomData }
    }
}

impl<K, R, M> Clone for LockLayer<K, R, M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), mode: PhantomData }
    }
}

impl<S, K, R, M> Layer<S> for LockLayer<K, R, M> {
    type Service = LockService<S, K, R, M>;

    fn layer(&self, inner: S) -> Self::Service {
        LockService::new(inner, Arc::clone(&self.shared))
    }
}

impl<K, R, M> fmt::Debug for LockLayer<K, R, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("locks", &self.shared.locks)
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}
