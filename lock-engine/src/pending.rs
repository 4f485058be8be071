//! [`InFlightCount`]: how many releases are under way, counted from the drop of their guards.

use std::sync::Arc;

use lock_core::internal::sync::atomic::{AtomicUsize, Ordering};

/// Counts releases, up to a cap.
#[derive(Debug)]
pub(crate) struct InFlightCount {
    count: Arc<AtomicUsize>,
    cap: usize,
}

/// One release that is under way, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Pending(Arc<AtomicUsize>);

impl InFlightCount {
    pub(crate) fn new(cap: usize) -> Self {
        Self { count: Arc::default(), cap }
    }

    /// Counts one more, if the cap allows it.
    pub(crate) fn reserve(&self) -> Option<Pending> {
        let below_cap = |count: usize| (count < self.cap).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below_cap).ok()?;
        Some(Pending(Arc::clone(&self.count)))
    }

    /// Counts one more, regardless of the cap: its caller awaits it.
    pub(crate) fn count(&self) -> Pending {
        self.count.fetch_add(1, Ordering::Relaxed);
        Pending(Arc::clone(&self.count))
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cap_counts_what_is_not_dropped_yet() {
        let releases = InFlightCount::new(2);
        let awaited = releases.count();
        let reserved = releases.reserve();
        assert!(reserved.is_some());
        assert!(releases.reserve().is_none());
        let over = releases.count();
        drop((awaited, over));
        assert!(releases.reserve().is_some());
        drop(reserved);
        assert_eq!(releases.len(), 0);
    }
}
