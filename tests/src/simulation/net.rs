//! [`Net`]: the queue of future events. They happen in the order of their times; events at the same
//! time in the order in which they were sent.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

pub(super) type Event = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(super) struct Net {
    queue: Mutex<Queue>,
    sooner: Notify,
}

#[derive(Default)]
struct Queue {
    events: BTreeMap<(Instant, u64), Event>,
    last: u64,
}

impl Net {
    pub(super) fn at(&self, when: Instant, event: impl FnOnce() + Send + 'static) {
        let mut queue = self.queue.lock().unwrap();
        queue.last += 1;
        let n = queue.last;
        queue.events.insert((when, n), Box::new(event));
        if queue.events.first_key_value().is_some_and(|((_, first), _)| *first == n) {
            self.sooner.notify_one();
        }
    }

    fn due(&self) -> Option<Event> {
        let mut queue = self.queue.lock().unwrap();
        let first = queue.events.first_entry().filter(|first| first.key().0 <= Instant::now())?;
        Some(first.remove())
    }

    /// Executes events; never ends.
    pub(super) async fn run(&self) {
        loop {
            while let Some(event) = self.due() {
                event();
            }
            let next = self.queue.lock().unwrap().events.first_key_value().map(|((at, _), _)| *at);
            tokio::select! {
                biased;
                () = self.sooner.notified() => {}
                () = async { sleep_until(next.unwrap_or_else(Instant::now)).await }, if next.is_some() => {}
            }
        }
    }
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Net").finish_non_exhaustive()
    }
}
