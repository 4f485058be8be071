//! Background tasks whose first poll happens in [`spawn`] itself, and not in the scheduler.
//!
//! This way a request is sent at once, and not when the scheduler reaches the task that sends it.
//! The rest of the task is spawned when something wakes it. The task does not belong to the caller,
//! which need not be polled again.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::Handle;

use crate::internal::sync::{Mutex, lock};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Eager {
    runtime: Handle,
    slot: Slot<Task>,
}

/// A place where a task waits to be woken; waking hands it to exactly one thread.
pub struct Slot<T>(Mutex<State<T>>);

impl<T> std::fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}

enum State<T> {
    /// Being polled, or about to be.
    Polled {
        woken: bool,
    },
    Parked(T),
    /// Ended, or handed to the runtime.
    Gone,
}

impl<T> Default for Slot<T> {
    /// Creates the slot of a task that is being polled.
    fn default() -> Self {
        Self(Mutex::new(State::Polled { woken: false }))
    }
}

impl<T> Slot<T> {
    /// Parks a task that was polled and is pending. Returns it when it was woken meanwhile; it is
    /// not parked again after that.
    pub fn park(&self, task: T) -> Option<T> {
        let mut state = lock(&self.0);
        if matches!(*state, State::Polled { woken: false }) {
            *state = State::Parked(task);
            return None;
        }
        *state = State::Gone;
        Some(task)
    }

    /// Marks the task as ended.
    fn end(&self) {
        *lock(&self.0) = State::Gone;
    }

    /// Wakes the task; returns it if it was parked.
    pub fn wake(&self) -> Option<T> {
        let mut state = lock(&self.0);
        match std::mem::replace(&mut *state, State::Gone) {
            State::Polled { .. } => {
                *state = State::Polled { woken: true };
                None
            }
            State::Gone => None,
            State::Parked(task) => Some(task),
        }
    }
}

impl Eager {
    /// Polls the task; if it is pending, parks it until it is woken.
    fn poll(self: &Arc<Self>, mut task: Task) {
        let waker = Waker::from(Arc::clone(self));
        // As in a spawned task, a panic is reported by the panic hook and by what the task drops.
        let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut Context::from_waker(&waker))));
        if !matches!(polled, Ok(Poll::Pending)) {
            self.slot.end();
        } else if let Some(task) = self.slot.park(task) {
            drop(self.runtime.spawn(task));
        }
    }
}

impl Wake for Eager {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(task) = self.slot.wake() {
            drop(self.runtime.spawn(task));
        }
    }
}

/// Polls `task` once, and leaves the rest to `runtime`, which must be the current one.
pub fn spawn(runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
    Arc::new(Eager { runtime: runtime.clone(), slot: Slot::default() }).poll(Box::pin(task));
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn the_first_poll_is_at_once_and_the_rest_is_spawned_when_it_is_woken() {
        let (go, gone) = oneshot::channel::<()>();
        let (begun, mut has_begun) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        spawn(&Handle::current(), async move {
            begun.send(tokio::task::try_id()).unwrap();
            gone.await.unwrap();
            end.send(tokio::task::try_id()).unwrap();
        });
        assert_eq!(has_begun.try_recv(), Ok(tokio::task::try_id()), "where it was begun");
        go.send(()).unwrap();
        assert!(ended.await.unwrap().is_some(), "a task of its own");
    }

    #[tokio::test]
    async fn a_task_that_is_woken_in_its_first_poll_goes_on() {
        let (end, ended) = oneshot::channel();
        spawn(&Handle::current(), async move {
            let mut first = true;
            std::future::poll_fn(|cx| {
                if !std::mem::take(&mut first) {
                    return Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
            end.send(()).unwrap();
        });
        ended.await.unwrap();
    }

    #[tokio::test]
    async fn a_panic_stays_in_the_task_and_drops_it() {
        let (held, dropped) = oneshot::channel::<()>();
        spawn(&Handle::current(), async move {
            let _held = held;
            panic!("expected: in the first poll");
        });
        assert!(dropped.await.is_err());
    }

    #[test]
    fn a_task_ends_with_its_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (held, mut dropped) = oneshot::channel::<()>();
        let (_never, gone) = oneshot::channel::<()>();
        runtime.block_on(async {
            spawn(runtime.handle(), async move {
                let _held = held;
                tokio::select! {
                    _ = gone => {}
                    () = tokio::time::sleep(std::time::Duration::from_secs(3600)) => {}
                }
            });
        });
        drop(runtime);
        assert_eq!(dropped.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }
}
