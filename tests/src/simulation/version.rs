//! [`Version`]: a number that others await to change. Unlike `tokio::sync::watch` it wakes them in
//! the order in which they came, or a seed would not make the same run again.

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

    /// Returns when it is not `known` any more.
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
