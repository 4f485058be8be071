//! [`LockGuard`], which holds a lock, and [`HeldLock`], a view of one that is held.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lock_core::{FencingToken, LockKey, OwnerId};
use lock_engine::admission::Admission;
use lock_engine::failure::{Failure, Loss};
use lock_engine::grant::Grant;
use lock_engine::scope::{Scope, Scoped};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::error::LockError;

/// A held lock. Dropping it releases the lock in the background; [`release`](Self::release) awaits
/// the outcome.
///
/// A guard is owned and `'static`: it can be stored, sent to another task, and dropped anywhere,
/// even outside a runtime. Unless the lock was taken with a fixed lease, the watchdog renews it for
/// as long as the guard lives.
///
/// # What is certain
///
/// While [`is_lost`](Self::is_lost) returns `false`, no other guard of this key is live, under the
/// conditions in `docs/book/src/guarantees.md`, P1. The answer comes from the local clock at the
/// moment of the call; the code after it may be paused for any time. Where that matters, pass
/// [`fencing_token`](Self::fencing_token) to the resource and let it refuse smaller tokens.
#[must_use = "the guard releases its lock when it is dropped, and `let _ = …` drops it at once: write `let _guard = …`"]
pub struct LockGuard {
    admission: Admission,
    /// Guards of further keys that belong to this one: keys of a lock of several that enclosing
    /// calls already held.
    inside: Option<Box<Inside>>,
}

/// The further guards, behind one small pointer since most guards have none.
struct Inside(Vec<LockGuard>);

impl LockGuard {
    pub(crate) fn new(admission: Admission) -> Self {
        Self { admission, inside: None }
    }

    /// Makes the other guards part of this one.
    pub(crate) fn and(mut self, inside: Vec<Self>) -> Self {
        self.inside = (!inside.is_empty()).then(|| Box::new(Inside(inside)));
        self
    }

    pub(crate) fn inside(&self) -> &[Self] {
        self.inside.as_ref().map_or(&[], |inside| &inside.0)
    }

    pub(crate) fn grant(&self) -> &Arc<Grant> {
        self.admission.grant()
    }

    fn refused(&self, failure: Failure) -> LockError {
        LockError::of(self.key().clone(), failure)
    }

    /// Returns the key; of a guard of several keys, the first, see [`tokens`](Self::tokens).
    #[must_use]
    pub fn key(&self) -> &LockKey {
        self.grant().first().0
    }

    /// Returns the number of this grant, which is larger than that of every earlier grant of the
    /// key. Re-entrant guards share it, and so do readers that share a hold. A guard of several
    /// keys returns the token of [`key`](Self::key).
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.grant().first().1
    }

    /// Returns each key with its token, in key order; a single pair unless the guard is of several
    /// keys.
    #[must_use]
    pub fn tokens(&self) -> Vec<(LockKey, FencingToken)> {
        self.view().tokens()
    }

    /// Returns for how long the lock is certain if it is not renewed; zero when it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let inside = self.inside().iter().map(Self::remaining);
        inside.fold(self.grant().remaining(), Duration::min)
    }

    /// Whether the lock is lost: its lease is over by the local clock, the store said so, or
    /// `max_hold` is over. A guard of several keys is lost as soon as one of them is.
    ///
    /// This is computed from the local clock, and needs neither a task nor a message. Once `true`,
    /// it stays `true`.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.grant().is_lost() || self.inside().iter().any(Self::is_lost)
    }

    /// Waits until the lock is lost: at the local deadline at the latest, and without help from the
    /// store.
    ///
    /// Cancel safe.
    pub async fn lost(&self) {
        self.view().lost().await;
    }

    /// Returns a token that is cancelled when the lock is lost, but not when it is released.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.view().cancellation_token()
    }

    /// Returns a view that can be cloned and kept; it keeps nothing alive.
    #[must_use]
    pub fn view(&self) -> HeldLock {
        let inside =
            (!self.inside().is_empty()).then(|| Arc::new(self.inside().iter().map(Self::view).collect()));
        HeldLock { grant: Arc::clone(self.grant()), inside }
    }

    /// Runs `future` inside this lock: calls in it that ask for the same key enter again instead of
    /// waiting.
    ///
    /// Concurrent calls in `future` (`join!`) still exclude each other. Tasks that it spawns are
    /// outside the lock, see [`in_current_scope`](crate::in_current_scope). Losing the lock does
    /// not end the future; use [`with`](crate::Lock::with) for that.
    ///
    /// Cancel safe if `future` is.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        Scoped::new(self.inner_scope(), future)
    }

    pub(crate) fn inner_scope(&self) -> Scope {
        self.inside_of(Scope::current())
    }

    /// Returns the scope of code that runs inside this lock, nested in `scope`.
    pub(crate) fn inside_of(&self, scope: Scope) -> Scope {
        let grants = self.inside().iter().map(Self::grant).chain([self.grant()]);
        grants.fold(scope, |scope, grant| scope.with(Arc::clone(grant)))
    }

    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    pub(crate) fn engine(&self) -> &Arc<lock_engine::Engine> {
        self.admission.engine()
    }

    /// Returns the owner of the hold at the store.
    pub(crate) fn owner(&self) -> &OwnerId {
        self.admission.owner()
    }

    /// Returns the time-out of a store call, and the runtime that counts it.
    pub(crate) fn call_limit(&self) -> (Duration, Handle) {
        self.admission.call_limit()
    }

    /// Returns why the lock is lost; to be called only when it is.
    pub(crate) fn loss(&self) -> Loss {
        match self.inside().iter().find(|guard| guard.is_lost()) {
            Some(guard) if !self.grant().is_lost() => guard.loss(),
            _ => self.grant().loss(),
        }
    }

    /// Enters the lock once more, without a store call. The lock is released when the last of its
    /// guards is.
    ///
    /// # Errors
    ///
    /// [`LockError::Lost`] when this guard's lock is lost: the key then has to be acquired anew.
    pub fn reenter(&self) -> Result<Self, LockError> {
        let inside: Result<Vec<_>, _> = self.inside().iter().map(Self::reenter).collect();
        let again = self.admission.reenter();
        let again = again.ok_or_else(|| LockError::Lost { key: self.key().clone(), why: self.loss() })?;
        Ok(Self::new(again).and(inside?))
    }

    /// Turns a write lock into a read lock without letting another writer in between, and lets
    /// waiting readers in. The token and the views stay valid. A guard of a read lock is returned
    /// as it is.
    ///
    /// The same happens when a write lock's guard is released while a read lock that was taken
    /// inside it (see [`scope`](Self::scope)) is still held. There is no way back: a reader can't
    /// become a writer.
    ///
    /// # Errors
    ///
    /// - [`LockError::Lost`]: the lock is lost, and the guard is gone.
    /// - [`LockError::Misconfigured`]: the guard is of another kind, or of several keys. It is
    ///   released.
    /// - [`LockError::Unconfirmed`]: the store did not confirm. The downgrade is sent again in the
    ///   background; the guard is gone, and the lock with it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: the lock is released.
    pub async fn downgrade(self) -> Result<Self, LockError> {
        if !self.inside().is_empty() || !self.admission.can_be_downgraded() {
            let reason = format!(
                "lock {}: only a write lock of one key can be downgraded; the guard was released",
                self.key()
            );
            return Err(LockError::Misconfigured { reason: reason.into() });
        }
        self.admission.downgrade().await.map_err(|failure| self.refused(failure))?;
        Ok(self)
    }

    /// Extends a fixed lease so that at least `lease` remains, counted from the call. Never
    /// shortens it.
    ///
    /// # Errors
    ///
    /// - [`LockError::Lost`]: the lock is lost; extending does not bring it back.
    /// - [`LockError::Misconfigured`]: the lock is renewed by the watchdog, or `lease` is under 100
    ///   ms, under four round trips, or longer than the store allows.
    /// - [`LockError::NotHeld`]: the grant ended while the call was under way.
    /// - [`LockError::Unconfirmed`]: the store did not confirm; the lock is held until its old
    ///   deadline at least.
    ///
    /// # Cancel safety
    ///
    /// When this future is dropped, the call goes on in the background; the lease may or may not be
    /// longer then.
    #[doc(alias = "renew")]
    #[doc(alias = "expire")]
    pub async fn extend(&self, lease: Duration) -> Result<(), LockError> {
        for guard in self.inside() {
            Box::pin(guard.extend(lease)).await?;
        }
        self.admission.extend(lease).await.map_err(|failure| self.refused(failure))
    }

    /// Releases the lock and awaits the store's answer, for at most two call time-outs (default 4
    /// s). Returns `Ok` also when the lock was handed on inside this process, when outer guards
    /// still hold it, or when [`min_hold`](crate::Lock::min_hold) keeps the key taken for a while.
    ///
    /// # Errors
    ///
    /// - [`LockError::Lost`]: the lock had been lost before, so another caller may have held it
    ///   meanwhile.
    /// - [`LockError::NotHeld`]: the grant had already ended in good order, which is a mistake in
    ///   the program.
    /// - [`LockError::Unconfirmed`]: the store did not confirm. The release is sent again in the
    ///   background until the store answers.
    ///
    /// # Cancel safety
    ///
    /// The first poll dispatches the release, which goes on when this future is dropped. A future
    /// that is dropped before its first poll dispatches the release in its drop.
    #[doc(alias = "unlock")]
    pub async fn release(self) -> Result<(), LockError> {
        let key = self.key().clone();
        let mut result = self.admission.release().await.map_err(|failure| LockError::of(key, failure));
        for guard in self.inside.map(|inside| inside.0).unwrap_or_default() {
            result = result.and(Box::pin(guard.release()).await);
        }
        result
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("key", self.key())
            .field("token", &self.fencing_token())
            .field("remaining", &self.remaining())
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

/// A view of a held lock: its key, its token, and whether it is lost.
///
/// Cheap to clone. It keeps nothing alive: when the guard goes, the lock is released and the view
/// says so.
#[derive(Clone)]
pub struct HeldLock {
    grant: Arc<Grant>,
    inside: Option<Arc<Vec<HeldLock>>>,
}

impl HeldLock {
    fn inside(&self) -> &[Self] {
        self.inside.as_ref().map_or(&[], |inside| inside)
    }

    fn grants(&self) -> impl Iterator<Item = &Arc<Grant>> {
        std::iter::once(&self.grant).chain(self.inside().iter().map(|view| &view.grant))
    }

    /// Returns the key; of a lock of several keys, the first.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        self.grant.first().0
    }

    /// Returns the number of the grant; of a lock of several keys, that of [`key`](Self::key).
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.grant.first().1
    }

    /// Returns each key with its token, in key order; a single pair unless the lock is of several
    /// keys.
    #[must_use]
    pub fn tokens(&self) -> Vec<(LockKey, FencingToken)> {
        let tokens = self.grants().flat_map(|grant| grant.tokens()).map(|(key, token)| (key.clone(), token));
        let mut tokens: Vec<_> = tokens.collect();
        tokens.sort_by(|(a, _), (b, _)| a.as_str().cmp(b.as_str()));
        tokens
    }

    /// Returns for how long the lock is certain if it is not renewed; zero when it is lost or
    /// released.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.grants().map(|grant| grant.remaining()).min().unwrap_or_default()
    }

    /// Whether the lock is held: neither released nor lost.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.grants().all(|grant| grant.is_live())
    }

    /// Whether the lock was lost while it was held. A release in good order is not a loss.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.grants().any(|grant| grant.is_lost())
    }

    /// Waits until the lock is lost, at the local deadline at the latest. After a release in good
    /// order, it stays pending forever.
    ///
    /// Cancel safe.
    pub async fn lost(&self) {
        if self.inside.is_none() {
            return self.grant.lost().await;
        }
        let mut signals: Vec<_> = self.grants().map(|grant| Box::pin(grant.lost())).collect();
        std::future::poll_fn(|cx| {
            let lost = signals.iter_mut().any(|signal| signal.as_mut().poll(cx).is_ready());
            if lost { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Returns a token that is cancelled when the lock is lost, but not when it is released.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        if self.inside.is_none() {
            return self.grant.cancellation_token();
        }
        let token = CancellationToken::new();
        self.grants().for_each(|grant| grant.cancel_with_it(&token));
        token
    }
}

impl fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldLock")
            .field("key", self.key())
            .field("token", &self.fencing_token())
            .field("held", &self.is_held())
            .field("lost", &self.is_lost())
            .finish()
    }
}
