//! The task-local chain of grants: what makes re-entrancy lexical.
//!
//! A scope is the list of the entries of all enclosing locked calls. It is captured when an acquire future is first
//! polled, set around every poll of a locked body and around its drop. Spawned tasks start without one;
//! [`in_current_scope`] carries it over on purpose.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project::{pin_project, pinned_drop};

use crate::engine::hold::Grant;

thread_local! {
    static CURRENT: RefCell<Scope> = const { RefCell::new(Scope(None)) };
}

/// The chain of entries of the enclosing locked calls, innermost first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope(Option<Arc<Node>>);

#[derive(Debug)]
struct Node {
    grant: Arc<Grant>,
    entry: u64,
    outer: Scope,
    /// Nodes from here outwards, this one included.
    depth: usize,
}

impl Drop for Node {
    /// One by one, not each inside the drop of the next: a chain may be longer than the stack is deep.
    fn drop(&mut self) {
        let mut outer = self.outer.0.take();
        while let Some(mut node) = outer.and_then(Arc::into_inner) {
            outer = node.outer.0.take();
        }
    }
}

impl Scope {
    /// The scope in which this code runs.
    pub(crate) fn current() -> Self {
        CURRENT.try_with(|current| current.borrow().clone()).unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// This scope with one more entry inside. Grants that have ended are left out: nobody enters them again, and a
    /// task that hands its scope on to its successor would collect them for ever.
    pub(crate) fn with(self, grant: Arc<Grant>, entry: u64) -> Self {
        // Looked for whenever the chain has doubled, so that a long one costs no more than a short one.
        let look = self.depth().is_power_of_two();
        let ended = look && self.nodes().any(|node| node.grant.has_ended());
        let outer = if ended { self.without_ended() } else { self };
        outer.and(grant, entry)
    }

    fn and(self, grant: Arc<Grant>, entry: u64) -> Self {
        let depth = self.depth() + 1;
        Self(Some(Arc::new(Node { grant, entry, outer: self, depth })))
    }

    fn depth(&self) -> usize {
        self.0.as_ref().map_or(0, |node| node.depth)
    }

    fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        std::iter::successors(self.0.as_ref(), |node| node.outer.0.as_ref())
    }

    fn without_ended(&self) -> Self {
        let live: Vec<_> = self.nodes().filter(|node| !node.grant.has_ended()).collect();
        live.into_iter().rev().fold(Self(None), |outer, node| outer.and(Arc::clone(&node.grant), node.entry))
    }

    /// Whether the entry belongs to an enclosing call.
    pub(crate) fn contains(&self, grant: &Arc<Grant>, entry: u64) -> bool {
        self.nodes().any(|node| node.entry == entry && Arc::ptr_eq(&node.grant, grant))
    }

    /// What `find` makes of the innermost enclosing call, its grant and its entry, of which it makes something.
    pub(crate) fn innermost<T>(&self, find: impl Fn(&Arc<Grant>, u64) -> Option<T>) -> Option<T> {
        self.nodes().find_map(|node| find(&node.grant, node.entry))
    }

    /// Runs `f` in this scope.
    pub(crate) fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        // While a thread ends its thread-locals are gone: what is dropped then is dropped without a scope.
        let _reset = CURRENT.try_with(|current| Reset(current.replace(self.clone())));
        f()
    }
}

/// Puts the outer scope back, also when the body panics.
struct Reset(Scope);

impl Drop for Reset {
    fn drop(&mut self) {
        let outer = std::mem::take(&mut self.0);
        let _ = CURRENT.try_with(|current| drop(current.replace(outer)));
    }
}

/// A future that is polled, and dropped, in a scope.
#[pin_project(PinnedDrop)]
pub(crate) struct Scoped<F> {
    scope: Scope,
    #[pin]
    future: Option<F>,
}

impl<F> Scoped<F> {
    pub(crate) fn new(scope: Scope, future: F) -> Self {
        Self { scope, future: Some(future) }
    }

    /// Drops the future where it is suspended, in its scope.
    pub(crate) fn cancel(self: Pin<&mut Self>) {
        let mut this = self.project();
        this.scope.enter(|| this.future.set(None));
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let polled = this.scope.enter(|| this.future.as_mut().as_pin_mut().map(|future| future.poll(cx)));
        match polled {
            Some(Poll::Ready(output)) => {
                // The body's locals are gone already; what is left of the future is dropped in the scope too.
                this.scope.enter(|| this.future.set(None));
                Poll::Ready(output)
            }
            // A cancelled or finished body is never polled again by its wrapper.
            Some(Poll::Pending) | None => Poll::Pending,
        }
    }
}

#[pinned_drop]
impl<F> PinnedDrop for Scoped<F> {
    fn drop(self: Pin<&mut Self>) {
        self.cancel();
    }
}

/// Runs `future` in the scope of the calling code, wherever it is polled: a task spawned with it re-enters the locks
/// of its spawner.
///
/// The scope names grants, it does not keep them: once the spawner's lock is released, the task is a stranger and
/// waits like everybody else.
///
/// Cancel safe if `future` is.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lock_runtime::{LockManager, in_current_scope};
///
/// let locks = LockManager::connect("memory:").await?;
/// let inner = locks.clone();
/// locks
///     .mutex("order:42")
///     .with(async |_| {
///         let child = in_current_scope(async move { inner.mutex("order:42").try_acquire().await });
///         let entered = tokio::spawn(child).await.unwrap().unwrap();
///         assert!(entered.is_some(), "the same lock, entered once more");
///     })
///     .await?;
/// # Ok(()) }
/// ```
pub fn in_current_scope<F: Future>(future: F) -> impl Future<Output = F::Output> {
    Scoped::new(Scope::current(), future)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockManager;
    use crate::testing::memory_manager;

    fn depth() -> usize {
        Scope::current().depth()
    }

    /// A task that hands its scope on to its successor.
    fn generation(locks: LockManager, left: u32) -> Pin<Box<dyn Future<Output = usize> + Send>> {
        Box::pin(async move {
            let guard = locks.mutex(format!("k{}", left % 2)).acquire().await.unwrap();
            let successor = guard.scope(async {
                (left > 0).then(|| tokio::spawn(in_current_scope(generation(locks.clone(), left - 1))))
            });
            let successor = successor.await;
            drop(guard);
            match successor {
                Some(successor) => successor.await.unwrap().max(depth()),
                None => depth(),
            }
        })
    }

    #[tokio::test(start_paused = true)]
    async fn scopes_forget_grants_that_have_ended() {
        assert!(generation(memory_manager(), 200).await <= 8);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_chain_is_dropped_without_deep_recursion() {
        let locks = memory_manager();
        let guard = locks.mutex("k").acquire().await.unwrap();
        let mut scope = guard.inner_scope();
        for entry in 0..200_000 {
            scope = scope.with(guard.grant(), entry);
        }
        assert_eq!(scope.depth(), 200_001);
        drop(scope);
    }
}
