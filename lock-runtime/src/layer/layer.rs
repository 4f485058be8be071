//! [`LockLayer`]: holds the settings and makes services with them.

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

/// A tower layer that locks each request with its own key; see the [module](super) for details.
///
/// ```
/// use std::time::Duration;
/// use lock_runtime::layer::{LockLayer, header};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = lock_runtime::LockManager::connect("memory:").await?;
/// let per_customer = LockLayer::new(locks, header("x-customer-id").prefix("customer:"))
///     .wait(Duration::from_secs(2))
///     .max_waiters_per_key(20)
///     .name("orders");
/// # Ok(()) }
/// ```
///
/// | method | sets | default | bounds |
/// |---|---|---|---|
/// | [`kind`](Self::kind), [`kind_for`](Self::kind_for) | the kind of lock, for all or for some methods | a [mutex](LockManager::mutex) | |
/// | [`wait`](Self::wait) | how long a request waits for its lock | the manager's `default_wait`, 10 s | zero is `no_wait` |
/// | [`wait_forever`](Self::wait_forever) | a wait without limit | | |
/// | [`no_wait`](Self::no_wait) | a single attempt, refused with 409 | | |
/// | [`lease`](Self::lease) | a fixed lease, which is not renewed | the manager's `lease`, 30 s, renewed | 100 ms to 366 days, at least `min_hold` |
/// | [`max_hold`](Self::max_hold) | the longest time for which a request holds its lock | 60 s; none with a fixed lease | at least 1 ms and `min_hold` |
/// | [`min_hold`](Self::min_hold) | the shortest time for which the key stays taken | none | at most a fixed `lease`, and `max_hold` |
/// | [`hold`](Self::hold) | until when the lock is held | the [response](HeldUntil::Response) | |
/// | [`skip_methods`](Self::skip_methods), [`only_methods`](Self::only_methods) | which methods are locked | all but GET, HEAD, OPTIONS, TRACE and CONNECT | |
/// | [`on_missing_key`](Self::on_missing_key) | the answer to a request without a key | 400 | |
/// | [`on_store_down`](Self::on_store_down) | the answer while the store is down | 503 | |
/// | [`on_lost`](Self::on_lost) | the fate of a handler whose lock is lost | dropped; 500 | |
/// | [`max_waiters`](Self::max_waiters) | the cap on waiting requests | 10 000 | at least 1 |
/// | [`max_waiters_per_key`](Self::max_waiters_per_key) | the cap on waiting callers for one key | 1000 | at least 1 |
/// | [`longest_retry_after`](Self::longest_retry_after) | the longest `Retry-After` | 5 s | |
/// | [`refuse_with`](Self::refuse_with) | what builds refusals | [`ProblemDetails`] | |
/// | [`token_retention`](Self::token_retention) | how long fencing counters are kept | the manager's, 15 min | at least 1 s |
/// | [`replication`](Self::replication) | the replicas that confirm a grant | the manager's, none | |
/// | [`detached`](Self::detached) | handlers run in their own tasks | in the task of the request | |
/// | [`name`](Self::name) | the label `lock` in metrics | `layer` | |
/// | [`enabled`](Self::enabled) | whether the layer does anything | yes | |
///
/// Caps of zero count as 1. Other values out of bounds panic when they are set.
///
/// `K` finds the key, `R` builds the response to a refused request, and `M` is where handlers run.
#[must_use = "a layer does nothing before it is put around a service"]
pub struct LockLayer<K, R = ProblemDetails, M = Inline> {
    shared: Arc<Shared<K, R>>,
    mode: PhantomData<fn() -> M>,
}

/// A [`LockLayer`] whose handlers run in their own tasks, to their end even if the client leaves;
/// made by [`LockLayer::detached`]. The futures of the service have to be `Send + 'static`.
pub type DetachedLockLayer<K, R = ProblemDetails> = LockLayer<K, R, Detached>;

impl<K> LockLayer<K> {
    /// Returns a layer that locks each request with the key that `keys` finds in its head. `locks`
    /// takes the locks. The table [above](Self) lists the settings and their defaults.
    pub fn new(locks: LockManager, keys: K) -> Self
    where
        K: KeyExtractor,
    {
        Self::new_async(locks, keys)
    }

    /// Like [`new`](Self::new), for any [`AsyncKeyExtractor`](super::AsyncKeyExtractor): a key that
    /// has to be awaited or is in the body, such as those of [`body`](super::body()) and
    /// `extractor`.
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

    /// Returns a new layer with one setting changed. It counts its waiters separately.
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

    /// Sets how long a request may wait for its lock before it is refused, by default with 429.
    /// Zero is the same as [`no_wait`](Self::no_wait). By default, the manager's `default_wait` (10
    /// s) applies.
    ///
    /// A [`LockWait`](super::LockWait) in the extensions of a request overrides this. A gRPC
    /// request does not wait for longer than its `grpc-timeout`.
    pub fn wait(self, limit: Duration) -> Self {
        self.set(|settings| settings.wait = Some(Wait::at_most(limit)))
    }

    /// Lets a request wait without a limit, even while the store is down, until its client is seen
    /// to have left. See [the module](super) for when that is.
    pub fn wait_forever(self) -> Self {
        self.set(|settings| settings.wait = Some(Wait::Forever))
    }

    /// Refuses a request at once if its lock is taken, by default with 409.
    ///
    /// A client may repeat its request as soon as it has the response. Its own previous request
    /// does not make the layer refuse the new one if both reach the same process. At another
    /// process, the release may still be on its way. [`Kind::Fair`] and requests with several keys
    /// don't queue behind their own release in any case: give those a short [`wait`](Self::wait).
    pub fn no_wait(self) -> Self {
        self.set(|settings| settings.wait = Some(Wait::No))
    }

    /// Sets a fixed lease, after which the lock is lost. The minimum is 100 ms and four round
    /// trips; see [`Lock::lease`](crate::Lock::lease). Without a fixed lease, locks are renewed. If
    /// it is too short for the store's round trips, each request is refused with 500, and the log
    /// says why.
    ///
    /// # Panics
    ///
    /// If no lock can have this lease: below 100 ms, or shorter than [`min_hold`](Self::min_hold).
    #[track_caller]
    pub fn lease(self, lease: Duration) -> Self {
        self.set(|settings| settings.lease = Some(lease))
    }

    /// Sets how long a request may hold its lock, counted from the grant. After that the lock
    /// counts as lost, and [`on_lost`](Self::on_lost) decides what happens to the handler. The key
    /// becomes free when the handler is gone, or when the rest of the lease has expired. The
    /// minimum is 1 ms. A request that re-enters the lock of an outer layer has the limit of that
    /// layer.
    ///
    /// The default is 60 s, or `min_hold` if that is longer; with a fixed [`lease`](Self::lease)
    /// there is no other limit. A client that sends the request's body slowly, or reads the
    /// response slowly, holds the lock meanwhile. `max_hold(None)` removes the limit, for handlers
    /// that themselves take longer. Then limit slow clients with a time-out of another layer or of
    /// the server.
    ///
    /// # Panics
    ///
    /// If it is below 1 ms, or shorter than [`min_hold`](Self::min_hold).
    #[track_caller]
    pub fn max_hold(self, limit: impl Into<Option<Duration>>) -> Self {
        let limit = limit.into();
        self.set(|settings| settings.max_hold = MaxHold::Explicit(limit))
    }

    /// Sets how long the key stays taken after the grant, at least; see
    /// [`Lock::min_hold`](crate::Lock::min_hold).
    ///
    /// # Panics
    ///
    /// If it is longer than a [`max_hold`](Self::max_hold) or a [`lease`](Self::lease) that is set.
    #[track_caller]
    pub fn min_hold(self, time: Duration) -> Self {
        self.set(|settings| settings.min_hold = time)
    }

    /// Sets how long fencing counters outlive their holds; see
    /// [`Lock::token_retention`](crate::Lock::token_retention). Clients may send many different
    /// keys, and each leaves its counter at the store for that time: see [what a key
    /// costs](super#what-a-key-costs).
    ///
    /// # Panics
    ///
    /// If it is below one second.
    #[track_caller]
    pub fn token_retention(self, retention: TokenRetention) -> Self {
        self.set(|settings| settings.token_retention = Some(retention))
    }

    /// Sets how many replicas have to confirm the grant; see
    /// [`Lock::replication`](crate::Lock::replication).
    pub fn replication(self, replication: Replication) -> Self {
        self.set(|settings| settings.replication = Some(replication))
    }

    /// Sets the kind of the lock; a mutex by default. With [`Kind::Read`], handlers for one key run
    /// side by side, and exclude those that hold it as [`Kind::Write`]. With a `max_hold`, which
    /// includes the default, each reader asks the store for itself. A handler that takes the same
    /// key has to use the same kind, or read inside a write. Anything else is a
    /// [`KindConflict`](crate::LockError::KindConflict).
    pub fn kind(self, kind: Kind) -> Self {
        self.set(|settings| settings.kind = kind)
    }

    /// Sets the kind of the lock for requests with these methods. They are locked even if
    /// [`skip_methods`](Self::skip_methods) names them. A later `kind_for` replaces an earlier one.
    ///
    /// ```
    /// use http::Method;
    /// use lock_runtime::Kind;
    /// use lock_runtime::layer::{LockLayer, path_segment};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = lock_runtime::LockManager::connect("memory:").await?;
    /// // Requests that read an order run side by side; one that changes it runs alone.
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

    /// Sets until when the lock is held.
    pub fn hold(self, hold: HeldUntil) -> Self {
        self.set(|settings| settings.hold = hold)
    }

    /// Sets what happens to a request without a key; [`MissingKey::Reject`] by default.
    pub fn on_missing_key(self, policy: MissingKey) -> Self {
        self.set(|settings| settings.on_missing_key = policy)
    }

    /// Excludes requests with these methods from locking, unless [`kind_for`](Self::kind_for) names
    /// them. They have no [`HeldLock`](crate::HeldLock). The default is GET, HEAD, OPTIONS, TRACE
    /// and CONNECT; with an empty list, all requests are locked. CONNECT is how a WebSocket begins
    /// over HTTP/2, as GET is over HTTP/1.
    pub fn skip_methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.set(|settings| settings.methods = Methods::AllBut(methods.into_iter().collect()))
    }

    /// Locks only requests with these methods, and those of [`kind_for`](Self::kind_for). This and
    /// [`skip_methods`](Self::skip_methods) replace each other; the last call applies.
    pub fn only_methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.set(|settings| settings.methods = Methods::Only(methods.into_iter().collect()))
    }

    /// Sets whether the layer does anything: with `false`, all requests go on as if there were no
    /// layer. Use it as a switch in the configuration.
    pub fn enabled(self, enabled: bool) -> Self {
        self.set(|settings| settings.enabled = enabled)
    }

    /// Sets how many requests of this layer may wait for their locks at a time, for all keys
    /// together. Any further request is refused at once, by default with 429. The minimum is 1. The
    /// default is 10 000, a tenth of the manager's own cap, which also applies.
    ///
    /// A request counts until it gets its lock or is refused, even when the key is free, so leave
    /// room for bursts. Requests that have their locks do not count.
    pub fn max_waiters(self, cap: usize) -> Self {
        self.set(|settings| settings.max_waiters = cap.max(1))
    }

    /// Sets how many callers of this process may be waiting for a key when a request for it
    /// arrives. Any further request is refused at once, by default with 429. The minimum is 1. The
    /// default is 1000, a tenth of the manager's own cap, which also applies. For a request with
    /// several keys, the first one counts.
    pub fn max_waiters_per_key(self, cap: usize) -> Self {
        self.set(|settings| settings.max_waiters_per_key = cap.max(1))
    }

    /// Sets what happens to a request whose lock can't be taken because the store, or too many of
    /// its replicas, don't answer. The default is [`StoreDown::Reject`]. The store is asked again
    /// until the [`wait`](Self::wait) ends, so a short interruption, such as a failover, is
    /// bridged. If you let requests pass, set a short wait.
    pub fn on_store_down(self, policy: StoreDown) -> Self {
        self.set(|settings| settings.on_store_down = policy)
    }

    /// Sets what happens to a handler whose lock is lost. By default, it is dropped where it is
    /// suspended, and the request is answered with 500. A body that is being sent ends with an
    /// error. With [`OnLost::Finish`], the handler goes on, and so does a body that is already
    /// being sent. Then only the log and `lock_lost_total` report the loss.
    ///
    /// A handler is only interrupted where it awaits. If it has already returned, its response is
    /// sent, with [`LostLock`](super::LostLock) in the extensions.
    pub fn on_lost(self, policy: OnLost) -> Self {
        self.set(|settings| settings.on_lost = policy)
    }

    /// Sets the maximum time that a refused client is told to stay away. The default is 5 s: the
    /// rest of a renewed lease says little about when the lock is released. HTTP has whole seconds,
    /// at least one. Each client is told a random time between half of the time and all of it. So
    /// clients that are refused together don't come back together.
    pub fn longest_retry_after(self, limit: Duration) -> Self {
        self.set(|settings| settings.longest_retry_after = limit)
    }

    /// Sets the name under which metrics count these locks (label `lock`); `layer` by default. Use
    /// few different names.
    pub fn name(self, name: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        self.set(|settings| settings.label = name.into())
    }

    /// Builds the responses to refused requests with `refuse`.
    pub fn refuse_with<R2>(self, refuse: R2) -> LockLayer<K, R2, M> {
        let Shared { locks, keys, settings, .. } = &*self.shared;
        LockLayer::made(locks.clone(), Arc::clone(keys), Arc::new(refuse), settings.clone())
    }

    /// Runs each handler in its own task. Once called, a handler runs to its end even if the client
    /// leaves, unless its lock is lost and [`on_lost`](Self::on_lost) drops it. A request that is
    /// still waiting for its lock when the client leaves is given up. A request that needs no lock
    /// runs as without the layer.
    ///
    /// A server that has shut down does not know of these tasks. Call
    /// [`LockManager::shutdown`](crate::LockManager::shutdown) after it, which gives handlers that
    /// hold locks time to finish. A task has the span of its request, but not its task-locals, and
    /// so not [`with_default`](crate::with_default). If layers are nested, detach all of them or
    /// none. Otherwise the outer layer's lock is released when the client leaves, and the handler
    /// goes on without it.
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
