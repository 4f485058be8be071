//! [`Pace`]: when the table is swept.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::sync::{Mutex, lock};
use tokio::time::timeout;

/// Time between two pages, while there is little to remove.
const PAUSE: Duration = Duration::from_secs(5);

/// Time between the last page and the first one.
const REST: Duration = Duration::from_secs(60);

/// When the next page of a table is swept. Every process goes through the table, as long as it
/// makes steps.
#[derive(Debug, Default)]
pub struct Pace(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// When to go on; `None` while a page is being swept.
    due: Option<Tick>,
    started: bool,
}

impl Pace {
    /// Sweeps the next page in the background, if it is time. `page` returns when the next one is
    /// due.
    pub fn go_on<F, E>(self: &Arc<Self>, page: impl FnOnce() -> F)
    where
        F: Future<Output = Result<Duration, E>> + Send + 'static,
        E: Send + 'static,
    {
        let now = Clock::Boot.now();
        let mut state = lock(&self.0);
        if !state.started {
            (state.started, state.due) = (true, Some(now + PAUSE));
        }
        if state.due.is_none_or(|due| due > now) {
            return;
        }
        state.due = None;
        drop(state);
        let sweep = Sweep { pace: Arc::clone(self), pause: PAUSE };
        tokio::spawn(sweep.run(page()));
    }

    /// Returns when the next page is due after one of `rows`, of which `removed` were removed.
    #[must_use]
    pub fn after(rows: usize, removed: usize, is_last: bool) -> Duration {
        match is_last {
            true => REST,
            false if removed > rows / 2 => PAUSE / 50,
            false => PAUSE,
        }
    }
}

/// A page that is being swept. The next one is due some time after its end, whatever that is.
struct Sweep {
    pace: Arc<Pace>,
    pause: Duration,
}

impl Sweep {
    async fn run<E>(mut self, page: impl Future<Output = Result<Duration, E>>) {
        // A failure is no reason to tell anyone: the next page is tried later.
        if let Ok(Ok(pause)) = timeout(PAUSE, page).await {
            self.pause = pause;
        }
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        lock(&self.pace.0).due = Some(Clock::Boot.now() + self.pause);
    }
}
