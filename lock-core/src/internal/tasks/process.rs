//! [`Process`]: one of several simulated processes in one thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::internal::sync::{Mutex, lock};

/// A process, whose tasks are polled only while it runs. To all others, a process stopped forever
/// looks like a killed one: none of its code runs any more, including destructors.
#[derive(Clone, Debug, Default)]
pub struct Process(Arc<Mutex<Running>>);

#[derive(Debug, Default)]
struct Running {
    stopped: bool,
    /// Wakers of the tasks that were woken while it was stopped.
    woken: Vec<Waker>,
}

impl Process {
    /// Creates a running process.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops the process, as by SIGSTOP: no task is polled from now on. A task that calls this goes
    /// on to its next await.
    pub fn stop(&self) {
        lock(&self.0).stopped = true;
    }

    /// Resumes the process, as by SIGCONT.
    pub fn resume(&self) {
        let mut running = lock(&self.0);
        running.stopped = false;
        let woken = std::mem::take(&mut running.woken);
        drop(running);
        for waker in woken {
            waker.wake();
        }
    }

    /// Whether the process is stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        lock(&self.0).stopped
    }

    /// Makes `task` a part of this process.
    pub fn run<F: Future>(&self, task: F) -> impl Future<Output = F::Output> + use<F> {
        Part { process: self.clone(), task }
    }
}

#[pin_project::pin_project]
struct Part<F> {
    process: Process,
    #[pin]
    task: F,
}

impl<F: Future> Future for Part<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let part = self.project();
        let mut running = lock(&part.process.0);
        if running.stopped {
            running.woken.push(cx.waker().clone());
            return Poll::Pending;
        }
        drop(running);
        part.task.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nothing_of_a_stopped_process_runs() {
        let process = Process::new();
        let mut task = tokio::spawn(process.run(tokio::time::sleep(Duration::from_secs(1))));
        process.stop();
        assert!(tokio::time::timeout(Duration::from_secs(9), &mut task).await.is_err());
        process.resume();
        task.await.unwrap();
    }
}
