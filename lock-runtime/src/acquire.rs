//! [`Acquire`]: the future that a caller polls.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use lock_core::LockKey;
use lock_core::internal::sync::polled_again;
use lock_core::store::Kind;
use lock_engine::acquire::Acquire as Admit;
use lock_engine::registry::Spec;
use lock_engine::request::Request;
use lock_engine::scope::{Scope, Scoped};

use crate::error::LockError;
use crate::guard::LockGuard;

/// Waits for a lock; made by [`Lock::acquire`](crate::Lock::acquire).
///
/// Nothing happens before the first poll.
///
/// # Cancel safety
///
/// Dropping it leaves the queue. If the lock has just been granted to it, the grant goes to the next waiter or is
/// released in the background; nothing stays behind.
#[must_use = "futures do nothing unless polled"]
pub struct Acquire {
    state: State,
}

enum State {
    Refused(LockError),
    /// All keys are in one lane.
    One(Admit),
    /// A lock of several keys, before its first poll.
    Keys(Box<Request>),
    /// A lock of several keys, of which enclosing calls hold some.
    Several(Pin<Box<dyn Future<Output = Result<LockGuard, LockError>> + Send>>),
    Done,
}

impl Acquire {
    pub(crate) fn new(request: Result<Request, LockError>) -> Self {
        let state = match request {
            Ok(request) if !request.spec.more.is_empty() => State::Keys(Box::new(request)),
            Ok(request) => State::One(Admit::new(Box::new(request))),
            Err(error) => State::Refused(error),
        };
        Self { state }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Refused(_) => "refused",
            State::One(admit) => admit.state(),
            State::Keys(_) => "new",
            State::Several(_) => "waiting",
            State::Done => "done",
        };
        f.debug_struct("Acquire").field("state", &state).finish()
    }
}

impl Future for Acquire {
    type Output = Result<LockGuard, LockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let progress = ready!(tokio::task::coop::poll_proceed(cx));
        let result = ready!(self.poll_inner(cx));
        progress.made_progress();
        Poll::Ready(result)
    }
}

impl Acquire {
    fn poll_inner(&mut self, cx: &mut Context<'_>) -> Poll<Result<LockGuard, LockError>> {
        if let State::Refused(_) | State::Keys(_) = self.state {
            self.state = match std::mem::replace(&mut self.state, State::Done) {
                State::Refused(error) => return Poll::Ready(Err(error)),
                State::Keys(request) => split(request)?,
                state => state,
            };
        }
        match &mut self.state {
            State::One(admit) => match ready!(Pin::new(admit).poll(cx)) {
                Ok(admission) => Poll::Ready(Ok(LockGuard::new(admission))),
                Err((key, failure)) => Poll::Ready(Err(LockError::of(key, failure))),
            },
            State::Several(several) => {
                let result = ready!(several.as_mut().poll(cx));
                self.state = State::Done;
                Poll::Ready(result)
            }
            State::Refused(_) | State::Keys(_) | State::Done => polled_again(),
        }
    }
}

type KindedKeys = Vec<(LockKey, Kind)>;

/// Decides how a lock of several keys is taken: in one lane, or, where enclosing calls hold some of
/// the keys, one after the other.
fn split(mut request: Box<Request>) -> Result<State, LockError> {
    if let Some(failure) = request.refusal() {
        return Err(LockError::of(request.key, failure));
    }
    let scope = Scope::current();
    let (mut held, mut free) = (KindedKeys::new(), KindedKeys::new());
    if !scope.is_empty() {
        for (key, kind) in request.spec.keys(&request.key) {
            let host = request.engine.is_hosted(key, kind, &scope);
            let hosted = host.map_err(|failure| LockError::of(key.clone(), failure))?;
            if hosted { &mut held } else { &mut free }.push((key.clone(), kind));
        }
    }
    if held.is_empty() {
        return Ok(State::One(Admit::new(request)));
    }
    request.asked.get_or_insert(request.engine.clock.now());
    Ok(State::Several(Box::pin(several(*request, held, free))))
}

/// Enters again what enclosing calls hold, one after the other in the order of the keys, then takes
/// the others together.
async fn several(request: Request, held: KindedKeys, free: KindedKeys) -> Result<LockGuard, LockError> {
    let bare = Request { spec: Spec::one(request.spec.kind), ..request.clone() };
    let of = |key: LockKey, kind, more: KindedKeys| {
        let spec = Spec { kind, more: more.into(), permits: 0 };
        Acquire::new(Ok(Request { key, spec, ..bare.clone() }))
    };
    let mut guards = Vec::with_capacity(held.len() + 1);
    let mut scope = Scope::current();
    for (key, kind) in held {
        // Each inside the ones before: two of the keys may belong to one grant.
        let guard = Scoped::new(scope.clone(), of(key, kind, Vec::new())).await?;
        scope = guard.inside_of(scope);
        guards.push(guard);
    }
    let mut free = free.into_iter();
    if let Some((key, kind)) = free.next() {
        guards.push(Scoped::new(scope, of(key, kind, free.collect())).await?);
    }
    match guards.pop().map(|guard| guard.and(guards)) {
        // What was entered first may be over: the call stands in line like everybody else.
        Some(guard) if guard.is_lost() => {
            drop(guard);
            Box::pin(Acquire::new(Ok(request))).await
        }
        Some(guard) => Ok(guard),
        None => Err(LockError::misconfigured("a lock of no keys")),
    }
}
