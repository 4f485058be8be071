//! [`Bell`]: the watches that a step has to notify. Rings after the mutex is released, because it
//! wakes tasks.

use std::sync::Arc;

use lock_core::store::Notice;

use super::entry::{Channel, HandleId, Listener, Watcher};

/// Whether a watch of the handle that made the step has heard its release, which it should ignore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heard(pub(super) bool);

#[derive(Default)]
#[must_use]
pub(super) struct Bell {
    told: Vec<Told>,
}

struct Told {
    watcher: Arc<Watcher>,
    notice: Notice,
    /// Whether it is a release that all watches of the key hear, not a message to one waiter.
    public: bool,
}

impl Bell {
    /// Notes that a key of this listener was released, or may have been.
    pub(super) fn retry(&mut self, listener: &Listener) {
        let public = !matches!(listener.channel, Channel::Fair(_));
        self.told.push(Told { watcher: Arc::clone(&listener.watcher), notice: Notice::Retry, public });
    }

    /// Notes that the key was granted to this listener.
    pub(super) fn granted(&mut self, listener: &Listener, notice: Notice) {
        self.told.push(Told { watcher: Arc::clone(&listener.watcher), notice, public: false });
    }

    /// Notifies the watches, those of other handles first.
    pub(super) fn ring(mut self, handle: HandleId) -> Heard {
        let own = |told: &Told| told.watcher.handle == handle;
        // A watch of several keys is notified once.
        self.told.sort_unstable_by_key(|told| (own(told), told.watcher.id));
        self.told.dedup_by(|a, b| a.watcher.id == b.watcher.id && a.notice == b.notice);
        let mut echo = false;
        for told in &self.told {
            let heard = told.watcher.hears(told.notice);
            echo |= heard && told.public && own(told);
        }
        Heard(echo)
    }
}

impl Watcher {
    /// Sends a notice; returns whether it was queued. A full queue has a notice to try again
    /// already, and keeps its last place for a grant. A closed queue is being dropped.
    fn hears(&self, notice: Notice) -> bool {
        let room = notice != Notice::Retry || self.notices.capacity() > 1;
        room && self.notices.try_send(notice).is_ok()
    }
}
