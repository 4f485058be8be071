//! [`begin`]: a background task whose first poll is here and now.
//!
//! A request leaves at once, and not when the scheduler comes to the task that sends it; what is left of the task is
//! spawned when something wakes it. Whoever begins it need not be polled again: it does not belong to the caller.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::Handle;

use crate::sync::{Mutex, lock};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Begun {
    runtime: Handle,
    state: Mutex<State>,
}

enum State {
    FirstPoll { woken: bool },
    Parked(Task),
    Gone,
}

impl Wake for Begun {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut *state, State::Gone) {
            State::FirstPoll { .. } => *state = State::FirstPoll { woken: true },
            State::Parked(task) => {
                drop(state);
                drop(self.runtime.spawn(task));
            }
            State::Gone => {}
        }
    }
}

/// Whether tasks of `runtime` can be begun here: its timers and sockets are at hand.
pub(crate) fn is_inside(runtime: &Handle) -> bool {
    Handle::try_current().is_ok_and(|current| current.id() == runtime.id())
}

/// Polls `task` once, and leaves the rest to `runtime`, in which the caller is.
pub(crate) fn begin(runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
    let begun =
        Arc::new(Begun { runtime: runtime.clone(), state: Mutex::new(State::FirstPoll { woken: false }) });
    let mut task: Task = Box::pin(task);
    let waker = Waker::from(Arc::clone(&begun));
    // As in a task of its own, a panic is told of by its hook and by what the task drops.
    let first = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut Context::from_waker(&waker))));
    if !matches!(first, Ok(Poll::Pending)) {
        return;
    }
    let mut state = lock(&begun.state);
    if matches!(*state, State::FirstPoll { woken: false }) {
        *state = State::Parked(task);
    } else {
        *state = State::Gone;
        drop(state);
        drop(runtime.spawn(task));
    }
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
        begin(&Handle::current(), async move {
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
        begin(&Handle::current(), async move {
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
        begin(&Handle::current(), async move {
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
            begin(runtime.handle(), async move {
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
