//! [`Version`]: a number whose change tasks can await. Unlike `tokio::sync::watch` it wakes tasks
//! in the order in which they came; otherwise a seed would not repeat the same run.

use std::pin::pin;
use std::sync::Mutex;

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(super) struct Version {
    number: Mutex<u64>,
    changed: Notify,
}

impl Version {
    pub(super) fn get(&self) -> u64 {
        *self.number.lock().unwrap()
    }

    pub(super) fn raise(&self) {
        *self.number.lock().unwrap() += 1;
        self.changed.notify_waiters();
    }

    /// Returns as soon as the number differs from `known`.
    pub(super) async fn is_not(&self, known: u64) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.get() != known {
                return;
            }
            changed.await;
        }
    }
}
