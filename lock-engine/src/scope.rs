//! The task-local chain of grants, which makes re-entrancy lexical.
//!
//! A scope is the list of the grants of all enclosing locked calls. It is captured when an acquire
//! future is first polled, and set around every poll of a locked body and around its drop.
//!
//! A scope belongs to the task that polls the body. Spawned tasks start without one, even if a
//! `LocalSet` or a runtime inside the body polls them on the same thread. `in_current_scope`
//! carries it over on purpose.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use lock_core::store::Few;
use pin_project::{pin_project, pinned_drop};
use tokio::task;

use crate::grant::Grant;
use crate::lane::Lane;

thread_local! {
    static CURRENT: RefCell<Entered> =
        const { RefCell::new(Entered { scope: Scope { innermost: None, outer: None }, task: None }) };
}

/// A scope, and the task that entered it. A future polled by `block_on` has no task id, or that of
/// the surrounding task.
#[derive(Default)]
struct Entered {
    scope: Scope,
    task: Option<task::Id>,
}

/// The chain of grants of the enclosing locked calls, innermost first. A chain of one grant, as
/// most are, needs no allocation.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    innermost: Option<Arc<Grant>>,
    outer: Option<Arc<Outer>>,
}

#[derive(Debug)]
struct Outer {
    scope: Scope,
    /// Number of grants from here outwards.
    depth: usize,
}

impl Drop for Outer {
    /// Drops the chain iteratively, because it may be too long for recursive drops.
    fn drop(&mut self) {
        let mut outer = self.scope.outer.take();
        while let Some(mut next) = outer.and_then(Arc::into_inner) {
            outer = next.scope.outer.take();
        }
    }
}

impl Scope {
    /// Returns the scope in which the caller runs.
    pub fn current() -> Self {
        let current = CURRENT.try_with(|current| {
            let Entered { scope, task } = &*current.borrow();
            // Another task is no part of the call, although it is polled inside.
            if scope.is_empty() || *task != task::try_id() { Self::default() } else { scope.clone() }
        });
        current.unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.innermost.is_none()
    }

    /// Adds a grant inside this scope. Removes grants that have ended, since nobody re-enters them;
    /// a chain of tasks that each pass their scope on would collect them without end.
    pub fn with(self, grant: Arc<Grant>) -> Self {
        // Checked whenever the chain has doubled, so that a long one costs no more than a short
        // one.
        let look = self.depth().is_power_of_two();
        let ended = look && self.grants().any(|grant| grant.has_ended());
        let outer = if ended { self.without_ended() } else { self };
        outer.and(grant)
    }

    fn and(self, grant: Arc<Grant>) -> Self {
        let depth = self.depth();
        let outer = (depth > 0).then(|| Arc::new(Outer { scope: self, depth }));
        Self { innermost: Some(grant), outer }
    }

    fn depth(&self) -> usize {
        usize::from(!self.is_empty()) + self.outer.as_ref().map_or(0, |outer| outer.depth)
    }

    /// Returns the grants, innermost first.
    pub(crate) fn grants(&self) -> impl Iterator<Item = &Arc<Grant>> {
        let scopes =
            std::iter::successors(Some(self), |scope| scope.outer.as_ref().map(|outer| &outer.scope));
        scopes.filter_map(|scope| scope.innermost.as_ref())
    }

    fn without_ended(&self) -> Self {
        let live: Vec<_> = self.grants().filter(|grant| !grant.has_ended()).collect();
        live.into_iter().rev().fold(Self::default(), |outer, grant| outer.and(Arc::clone(grant)))
    }

    /// Returns the numbers of the enclosing calls' grants in `lane`.
    pub(crate) fn inside(&self, lane: &Arc<Lane>) -> Few<u64> {
        self.grants().filter(|grant| Arc::ptr_eq(&grant.lane, lane)).map(|grant| grant.pass.number).collect()
    }

    /// Runs `f` in this scope.
    pub fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        // While a thread ends, its thread-locals are gone: code that runs in drops then has no
        // scope.
        let entered = Entered { scope: self.clone(), task: task::try_id() };
        let _reset = CURRENT.try_with(|current| Reset(current.replace(entered)));
        f()
    }
}

/// Restores the outer scope, even when the body panics.
struct Reset(Entered);

impl Drop for Reset {
    fn drop(&mut self) {
        let outer = std::mem::take(&mut self.0);
        let _ = CURRENT.try_with(|current| drop(current.replace(outer)));
    }
}

/// A future, or a body, that is polled and dropped in a scope.
#[pin_project(PinnedDrop)]
pub struct Scoped<F> {
    scope: Scope,
    #[pin]
    future: Option<F>,
}

impl<F> Scoped<F> {
    pub fn new(scope: Scope, future: F) -> Self {
        Self { scope, future: Some(future) }
    }

    /// Returns the content, unless it was cancelled.
    pub fn get(&self) -> Option<&F> {
        self.future.as_ref()
    }

    /// Runs `f` on the content, in its scope; `None` when it was cancelled.
    pub fn with<R>(self: Pin<&mut Self>, f: impl FnOnce(Pin<&mut F>) -> R) -> Option<R> {
        let mut this = self.project();
        this.scope.enter(|| this.future.as_mut().as_pin_mut().map(f))
    }

    /// Drops the future where it is suspended, in its scope.
    pub fn cancel(self: Pin<&mut Self>) {
        let mut this = self.project();
        this.scope.enter(|| this.future.set(None));
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.as_mut().with(|future| future.poll(cx)) {
            Some(Poll::Ready(output)) => {
                // The body's locals are gone already; the rest of the future is dropped in the
                // scope, too.
                self.cancel();
                Poll::Ready(output)
            }
            Some(Poll::Pending) => Poll::Pending,
            None => lock_core::internal::sync::polled_again(),
        }
    }
}

#[pinned_drop]
impl<F> PinnedDrop for Scoped<F> {
    fn drop(self: Pin<&mut Self>) {
        self.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;
    use crate::tests::{acquire, engine, inside, mutex};

    fn depth() -> usize {
        Scope::current().depth()
    }

    /// Runs a task that passes its scope on to its successor.
    fn generation(engine: Arc<Engine>, left: u32) -> Pin<Box<dyn Future<Output = usize> + Send>> {
        Box::pin(async move {
            let admission = acquire(mutex(&engine, &format!("k{}", left % 2))).await;
            let successor = Scoped::new(inside(&admission), async {
                let next = Arc::clone(&engine);
                (left > 0).then(|| tokio::spawn(Scoped::new(Scope::current(), generation(next, left - 1))))
            });
            let successor = successor.await;
            drop(admission);
            match successor {
                Some(successor) => successor.await.unwrap().max(depth()),
                None => depth(),
            }
        })
    }

    #[tokio::test(start_paused = true)]
    async fn scopes_forget_grants_that_have_ended() {
        assert!(generation(engine(), 200).await <= 8);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_chain_is_dropped_without_deep_recursion() {
        let admission = acquire(mutex(&engine(), "k")).await;
        let mut scope = inside(&admission);
        for _ in 0..200_000 {
            scope = scope.with(Arc::clone(admission.grant()));
        }
        assert_eq!(scope.depth(), 200_001);
        drop(scope);
    }
}
