//! [`Acquire`]: the future that waits for a lock.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use lock_core::LockKey;
use lock_core::internal::sync::polled_again;
use lock_core::store::Kind;
use lock_engine::acquire::{Refused, acquire};
use lock_engine::admission::Admission;
use lock_engine::request::Request;
use lock_engine::scope::{Scope, Scoped};
use lock_engine::spec::Spec;

use crate::error::LockError;
use crate::guard::LockGuard;

/// A future that waits for a lock; made by [`Lock::acquire`](crate::Lock::acquire).
///
/// Nothing happens before the first poll.
///
/// # Cancel safety
///
/// Dropping it leaves the queue. A lock that was just granted goes to the next waiter or is
/// released in the background; nothing stays behind.
#[must_use = "futures do nothing unless polled"]
pub struct Acquire {
    state: State,
    polled: bool,
}

type Running<T> = Pin<Box<dyn Future<Output = T> + Send>>;

enum State {
    Refused(LockError),
    /// A request of one key.
    One(Running<Result<Admission, Refused>>),
    Several(Running<Result<LockGuard, LockError>>),
    Done,
}

impl Acquire {
    pub(crate) fn new(request: Result<Request, LockError>) -> Self {
        let state = match request {
            Ok(request) if request.spec.more.is_empty() => State::One(Box::pin(acquire(request))),
            Ok(request) => State::Several(Box::pin(all(request))),
            Err(error) => State::Refused(error),
        };
        Self { state, polled: false }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Refused(_) => "refused",
            State::Done => "done",
            _ if self.polled => "waiting",
            _ => "new",
        };
        f.debug_struct("Acquire").field("state", &state).finish()
    }
}

impl Future for Acquire {
    type Output = Result<LockGuard, LockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let progress = ready!(tokio::task::coop::poll_proceed(cx));
        self.polled = true;
        let result = match &mut self.state {
            State::One(running) => guarded(ready!(running.as_mut().poll(cx))),
            State::Several(running) => ready!(running.as_mut().poll(cx)),
            State::Refused(error) => Err(error.clone()),
            State::Done => polled_again(),
        };
        progress.made_progress();
        self.state = State::Done;
        Poll::Ready(result)
    }
}

fn guarded(admission: Result<Admission, Refused>) -> Result<LockGuard, LockError> {
    admission.map(LockGuard::new).map_err(|(key, failure)| LockError::of(key, failure))
}

/// Takes several keys together. If enclosing calls hold some of them, enters those again first.
async fn all(request: Request) -> Result<LockGuard, LockError> {
    let (held, free) = split(&request)?;
    if held.is_empty() { guarded(acquire(request).await) } else { several(request, held, free).await }
}

type KindedKeys = Vec<(LockKey, Kind)>;

/// Splits the keys into those that enclosing calls hold and the others.
fn split(request: &Request) -> Result<(KindedKeys, KindedKeys), LockError> {
    if let Some(failure) = request.refusal() {
        return Err(LockError::of(request.key.clone(), failure));
    }
    let scope = Scope::current();
    let (mut held, mut free) = (KindedKeys::new(), KindedKeys::new());
    for (key, kind) in request.spec.keys(&request.key) {
        let host = request.engine.is_hosted(key, kind, &scope);
        let hosted = host.map_err(|failure| LockError::of(key.clone(), failure))?;
        if hosted { &mut held } else { &mut free }.push((key.clone(), kind));
    }
    Ok((held, free))
}

/// Enters the `held` keys again, one after the other in key order, then takes the `free` ones
/// together.
async fn several(mut request: Request, held: KindedKeys, free: KindedKeys) -> Result<LockGuard, LockError> {
    request.asked.get_or_insert(request.engine.clock.now());
    let bare = Request { spec: Spec::one(request.spec.kind), ..request.clone() };
    let of = |key: LockKey, kind, more: KindedKeys| {
        let spec = Spec { kind, more: more.into(), permits: 0 };
        Acquire::new(Ok(Request { key, spec, ..bare.clone() }))
    };
    let mut guards = Vec::with_capacity(held.len() + 1);
    let mut scope = Scope::current();
    for (key, kind) in held {
        // Each key is entered inside the ones before it: two of them may belong to one grant.
        let guard = Scoped::new(scope.clone(), of(key, kind, Vec::new())).await?;
        scope = guard.inside_of(scope);
        guards.push(guard);
    }
    let mut free = free.into_iter();
    if let Some((key, kind)) = free.next() {
        guards.push(Scoped::new(scope, of(key, kind, free.collect())).await?);
    }
    match guards.pop().map(|guard| guard.and(guards)) {
        // A key that was entered first may be lost by now: the call then waits like any other.
        Some(guard) if guard.is_lost() => {
            drop(guard);
            Box::pin(Acquire::new(Ok(request))).await
        }
        Some(guard) => Ok(guard),
        None => Err(LockError::misconfigured("a lock of no keys")),
    }
}
