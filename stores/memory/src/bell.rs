//! [`Bell`]: whom a step has to tell, once the mutex is free again: telling wakes tasks.

use std::sync::Arc;

use lock_core::store::Notice;

use super::entry::{Channel, HandleId, Listener, Watcher};

/// Whether a watch of the handle that made the step has heard a release, which it should ignore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Echo(pub(super) bool);

#[derive(Default)]
#[must_use]
pub(super) struct Bell {
    told: Vec<Told>,
}

struct Told {
    watcher: Arc<Watcher>,
    notice: Notice,
    /// A release that everybody hears who watches the key; not a word to one waiter.
    public: bool,
}

impl Bell {
    /// A key of this listener was released, or may have been.
    pub(super) fn retry(&mut self, listener: &Listener) {
        let public = !matches!(listener.channel, Channel::Fair(_));
        self.told.push(Told { watcher: Arc::clone(&listener.watcher), notice: Notice::Retry, public });
    }

    /// The key was granted to this listener.
    pub(super) fn granted(&mut self, listener: &Listener, notice: Notice) {
        self.told.push(Told { watcher: Arc::clone(&listener.watcher), notice, public: false });
    }

    /// Tells them, those of other handles first.
    pub(super) fn ring(mut self, handle: HandleId) -> Echo {
        let own = |told: &Told| told.watcher.handle == handle;
        // A watch of several keys is told once.
        self.told.sort_unstable_by_key(|told| (own(told), told.watcher.id));
        self.told.dedup_by(|a, b| a.watcher.id == b.watcher.id && a.notice == b.notice);
        let mut echo = false;
        for told in &self.told {
            let heard = told.watcher.hears(told.notice);
            echo |= heard && told.public && own(told);
        }
        Echo(echo)
    }
}

impl Watcher {
    /// A full queue has a notice to try again already, and keeps its last place for a grant. A
    /// closed one is being dropped.
    fn hears(&self, notice: Notice) -> bool {
        let room = notice != Notice::Retry || self.notices.capacity() > 1;
        room && self.notices.try_send(notice).is_ok()
    }
}
