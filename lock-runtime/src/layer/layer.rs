//! [`LockLayer`]: sets the settings, and makes services with them.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use lock_core::store::Kind;
use lock_core::{Replication, TokenRetention};
use lock_engine::terms::Wait;
use tower_layer::Layer;

use super::key::KeyExtractor;
use super::mode::{Detached, Inline};
use super::refusal::ProblemDetails;
use super::service::LockService;
use super::settings::{HeldUntil, MaxHold, Methods, MissingKey, Settings, Shared, State, StoreDown};
use crate::guarded::OnLost;
use crate::manager::LockManager;

/// Locks each request with a key of its own; see the [module](super) for what that means in detail.
///
/// `K` finds the key, `R` makes the response of a request that is refused, and `M` is where
/// handlers run.
#[must_use = "a layer does nothing before it is put around a service"]
pub struct LockLayer<K, R = ProblemDetails, M = Inline> {
    shared: Arc<Shared<K, R>>,
    mode: PhantomData<fn() -> M>,
}

/// A [`LockLayer`] whose handlers run in tasks of their own, and to their end although the client
/// has left; made by [`LockLayer::detached`]. The futures of the service have to be
/// `Send + 'static`.
pub type DetachedLockLayer<K, R = ProblemDetails> = LockLayer<K, R, Detached>;

impl<K> LockLayer<K> {
    /// Locks each request with the key that `keys` finds in its head, at the store of `locks`.
    ///
    /// | setting | default |
    /// |---|---|
    /// | [`kind`](Self::kind), [`kind_for`](Self::kind_for) | a [mutex](LockManager::mutex) |
    /// | [`wait`](Self::wait) | the manager's `default_wait`, 10 s |
    /// | [`lease`](Self::lease) | the manager's, 30 s, renewed |
    /// | [`max_hold`](Self::max_hold) | 60 s; none with a fixed lease |
    /// | [`min_hold`](Self::min_hold) | none |
    /// | [`token_retention`](Self::token_retention), [`replication`](Self::replication) | the manager's |
    /// | [`hold`](Self::hold) | until the handler returns |
    /// | [`skip_methods`](Self::skip_methods), [`only_methods`](Self::only_methods) | GET, HEAD, OPTIONS, TRACE and CONNECT are not locked |
    /// | [`on_missing_key`](Self::on_missing_key) | refused with 400 |
    /// | [`on_store_down`](Self::on_store_down) | refused with 503 |
    /// | [`on_lost`](Self::on_lost) | the handler is dropped; 500 |
    /// | [`max_waiters`](Self::max_waiters) | 10 000 |
    /// | [`max_waiters_per_key`](Self::max_waiters_per_key) | 1000 |
    /// | [`longest_retry_after`](Self::longest_retry_after) | 5 s |
    /// | [`refuse_with`](Self::refuse_with) | [`ProblemDetails`] |
    /// | [`name`](Self::name) | `layer` |
    /// | [`enabled`](Self::enabled) | yes |
    pub fn new(locks: LockManager, keys: K) -> Self
    where
        K: KeyExtractor,
    {
        Self::new_async(locks, keys)
    }

    /// As [`new`](Self::new), for a key that has to be waited for or is in the body, such as
    /// [`body`](super::body()) and `extractor`: any
    /// [`AsyncKeyExtractor`](super::AsyncKeyExtractor).
    pub fn new_async(locks: LockManager, keys: K) -> Self {
        Self::made(locks, Arc::new(keys), Arc::new(ProblemDetails), Settings::default())
    }
}

impl<K, R, M> LockLayer<K, R, M> {
    fn made(locks: LockManager, keys: Arc<K>, refuse: Arc<R>, settings: Settings) -> Self {
        let template = settings.template(&locks);
        let state = State::default();
        let shared = Shared { locks, keys, refuse, settings, template, state };
        Self { shared: Arc::new(shared), mode: PhantomData }
    }

    /// With other settings: a layer of its own, which counts for itself.
    #[track_caller]
    #[expect(clippy::panic, reason = "a mistake in the program, known when it starts")]
    fn set(self, set: impl FnOnce(&mut Settings)) -> Self {
        let shared = &self.shared;
        let mut settings = shared.settings.clone();
        set(&mut settings);
        let (keys, refuse) = (Arc::clone(&shared.keys), Arc::clone(&shared.refuse));
        let made = Self::made(shared.locks.clone(), keys, refuse, settings);
        if let Some(reason) = made.shared.template.refusal() {
            panic!("a layer can't lock with these settings: {reason}");
        }
        made
    }

    /// A request waits at most this long for its lock; then it is refused, by default with 429.
    /// Zero is the same as [`no_wait`](Self::no_wait). Without it, the manager's `default_wait` (10
    /// s) holds.
    ///
    /// A request with a [`LockWait`](super::LockWait) in its extensions waits for as long as that
    /// says instead. A gRPC request does not wait for longer than its `grpc-timeout`.
    pub fn wait(self, limit: Duration) -> Self {
        self.set(|settings| settings.wait = Some(Wait::at_most(limit)))
    }

    /// A request waits for as long as it takes, also while the store is down, until its client is
    /// seen to have left: see [the module](super) about when that is.
    pub fn wait_forever(self) -> Self {
        self.set(|settings| settings.wait = Some(Wait::Forever))
    }

    /// A request does not wait: if somebody else has the lock it is refused, by default with 409.
    ///
    /// A client that repeats its request as soon as it has the response is not refused because of
    /// its own previous one as long as both come to the same process. At another process that one
    /// may be under way for a moment, and so it may be with [`Kind::Fair`] and for a request with
    /// several keys, which don't queue behind their own release: give those a short
    /// [`wait`](Self::wait).
    pub fn no_wait(self) -> Self {
        self.set(|settings| settings.wait = Some(Wait::No))
    }

    /// A fixed lease, after which the lock is lost: at least 100 ms and four round trips, see
    /// [`Lock::lease`](crate::Lock::lease). Without it, locks are renewed. One that is too short
    /// for the store's round trips is refused with each request, with 500, and the log says why.
    ///
    /// # Panics
    ///
    /// If no lock can have this lease: below 100 ms, or shorter than [`min_hold`](Self::min_hold).
    #[track_caller]
    pub fn lease(self, lease: Duration) -> Self {
        self.set(|settings| settings.lease = Some(lease))
    }

    /// The longest time for which a request may hold its lock, from the grant on; then the lock
    /// counts as lost, and [`on_lost`](Self::on_lost) says what becomes of the handler. The key is
    /// free when the handler is gone, or when what is left of the lease is over. At least 1 ms. A
    /// request that enters a lock which an outer layer holds has the limit of that one.
    ///
    /// By default 60 s, or `min_hold` if that is longer; with a fixed [`lease`](Self::lease) none
    /// but that. A client that sends the request's body slowly, or reads the response slowly, has
    /// the lock meanwhile. `max_hold(None)` lets it: for handlers that take longer by themselves,
    /// with a time-out of another layer or of the server for the clients.
    ///
    /// # Panics
    ///
    /// If it is below 1 ms, or shorter than [`min_hold`](Self::min_hold).
    #[track_caller]
    pub fn max_hold(self, limit: impl Into<Option<Duration>>) -> Self {
        let limit = limit.into();
        self.set(|settings| settings.max_hold = MaxHold::Explicit(limit))
    }

    /// The key stays taken for at least this long after the grant, see
    /// [`Lock::min_hold`](crate::Lock::min_hold).
    ///
    /// # Panics
    ///
    /// If it is longer than a [`max_hold`](Self::max_hold) or a [`lease`](Self::lease) that is set.
    #[track_caller]
    pub fn min_hold(self, time: Duration) -> Self {
        self.set(|settings| settings.min_hold = time)
    }

    /// How long fencing counters outlive their holds, see
    /// [`Lock::token_retention`](crate::Lock::token_retention). Clients may bring many keys, and
    /// each leaves its counter at the store for so long: see [what a key
    /// costs](super#what-a-key-costs).
    ///
    /// # Panics
    ///
    /// If it is below one second.
    #[track_caller]
    pub fn token_retention(self, retention: TokenRetention) -> Self {
        self.set(|settings| settings.token_retention = Some(retention))
    }

    /// How many replicas have to confirm the grant, see
    /// [`Lock::replication`](crate::Lock::replication).
    pub fn replication(self, replication: Replication) -> Self {
        self.set(|settings| settings.replication = Some(replication))
    }

    /// The kind of the lock; a mutex by default. With [`Kind::Read`], handlers of one key run side
    /// by side, and exclude those that have it as [`Kind::Write`]. With a `max_hold`, also the
    /// default one, each reader asks the store for itself. What a handler takes of the same key has
    /// to be of the same kind, or a read inside a write: anything else is
    /// [`KindConflict`](crate::LockError::KindConflict).
    pub fn kind(self, kind: Kind) -> Self {
        self.set(|settings| settings.kind = kind)
    }

    /// The kind of the lock for requests of these methods. They are locked even if
    /// [`skip_methods`](Self::skip_methods) names them. A later `kind_for` replaces an earlier one.
    ///
    /// ```
    /// use http::Method;
    /// use lock_runtime::Kind;
    /// use lock_runtime::layer::{LockLayer, path_segment};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = lock_runtime::LockManager::connect("memory:").await?;
    /// // Requests that read an order run side by side, and none of them beside one that changes it.
    /// let layer = LockLayer::new(locks, path_segment(1).prefix("order:"))
    ///     .kind(Kind::Write)
    ///     .kind_for([Method::GET, Method::HEAD], Kind::Read);
    /// # Ok(()) }
    /// ```
    pub fn kind_for(self, methods: impl IntoIterator<Item = Method>, kind: Kind) -> Self {
        self.set(|settings| {
            for method in methods {
                settings.kinds.retain(|(other, _)| *other != method);
                settings.kinds.push((method, kind));
            }
        })
    }

    /// Until when the lock is held.
    pub fn hold(self, hold: HeldUntil) -> Self {
        self.set(|settings| settings.hold = hold)
    }

    /// What becomes of a request for which there is no key; [`MissingKey::Reject`] by default.
    pub fn on_missing_key(self, policy: MissingKey) -> Self {
        self.set(|settings| settings.on_missing_key = policy)
    }

    /// Requests of these methods are not locked, unless [`kind_for`](Self::kind_for) names them,
    /// and have no [`HeldLock`](crate::HeldLock). GET, HEAD, OPTIONS, TRACE and CONNECT by default;
    /// with an empty list all requests are locked. CONNECT is how a WebSocket begins over HTTP/2,
    /// as GET is over HTTP/1.
    pub fn skip_methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.set(|settings| settings.methods = Methods::AllBut(methods.into_iter().collect()))
    }

    /// Only requests of these methods are locked, and those of [`kind_for`](Self::kind_for). Of
    /// this and [`skip_methods`](Self::skip_methods), the last one holds.
    pub fn only_methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.set(|settings| settings.methods = Methods::Only(methods.into_iter().collect()))
    }

    /// Whether there is a layer at all: with `false` all requests go on as if there were none. For
    /// a switch in the configuration.
    pub fn enabled(self, enabled: bool) -> Self {
        self.set(|settings| settings.enabled = enabled)
    }

    /// At most this many requests of this layer may wait for their locks at a time, of all keys
    /// together; one more is refused at once, by default with 429. At least 1; 10 000 by default, a
    /// tenth of the manager's own cap, which holds too.
    ///
    /// A request counts until it gets its lock or is refused, even when the key is free: leave room
    /// for bursts. Requests that have their locks do not count.
    pub fn max_waiters(self, cap: usize) -> Self {
        self.set(|settings| settings.max_waiters = cap.max(1))
    }

    /// At most this many callers of this process may wait for one key when a request comes; one
    /// more is refused at once, by default with 429. At least 1; 1000 by default, a tenth of the
    /// manager's own cap, which holds too. Of several keys, the first one counts.
    pub fn max_waiters_per_key(self, cap: usize) -> Self {
        self.set(|settings| settings.max_waiters_per_key = cap.max(1))
    }

    /// What becomes of a request whose lock can't be taken because the store does not answer, or
    /// too few of its replicas. [`StoreDown::Reject`] by default. It is asked again until the
    /// [`wait`](Self::wait) is over, so that a short interruption, such as a failover, is bridged.
    /// If you let requests pass, set a short wait.
    pub fn on_store_down(self, policy: StoreDown) -> Self {
        self.set(|settings| settings.on_store_down = policy)
    }

    /// What becomes of a handler whose lock is lost. By default it is dropped where it is
    /// suspended, and the request is answered with 500; a body that is being sent ends with an
    /// error. With [`OnLost::Finish`] it goes on, and so does a body that is sent already; then
    /// only the log and `lock_lost_total` know.
    ///
    /// A handler that does not wait is not interrupted. The response of one that has returned is
    /// sent, with [`LostLock`](super::LostLock) in its extensions.
    pub fn on_lost(self, policy: OnLost) -> Self {
        self.set(|settings| settings.on_lost = policy)
    }

    /// The longest time that a refused client is told to stay away. 5 s by default: what is left of
    /// a renewed lock's lease says little about when it is released. HTTP has whole seconds, at
    /// least one. Each client is told a random time between the half and the whole, so that those
    /// who were refused together don't come back together.
    pub fn longest_retry_after(self, limit: Duration) -> Self {
        self.set(|settings| settings.longest_retry_after = limit)
    }

    /// The name under which metrics count these locks (label `lock`); `layer` by default. Use few
    /// different names.
    pub fn name(self, name: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        self.set(|settings| settings.label = name.into())
    }

    /// Builds the responses to refused requests with `refuse`.
    pub fn refuse_with<R2>(self, refuse: R2) -> LockLayer<K, R2, M> {
        let Shared { locks, keys, settings, .. } = &*self.shared;
        LockLayer::made(locks.clone(), Arc::clone(keys), Arc::new(refuse), settings.clone())
    }

    /// Runs each handler in a task of its own: once it is called, it runs to its end although the
    /// client has left, unless its lock is lost and [`on_lost`](Self::on_lost) drops it. A request
    /// that still waits for its lock when the client leaves is given up; one that needs no lock
    /// runs as without the layer.
    ///
    /// A server that has shut down does not know of these tasks: call
    /// [`LockManager::shutdown`](crate::LockManager::shutdown) after it, which gives those that
    /// hold locks the time to finish. A task has the span of its request; task-locals, and so
    /// [`with_default`](crate::with_default), stay behind. Of layers that are one inside the other,
    /// detach all or none: else the lock of the outer one is released when the client leaves, and
    /// the handler goes on without it.
    pub fn detached(self) -> DetachedLockLayer<K, R> {
        let Shared { locks, keys, refuse, settings, .. } = &*self.shared;
        LockLayer::made(locks.clone(), Arc::clone(keys), Arc::clone(refuse), settings.clone())
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
