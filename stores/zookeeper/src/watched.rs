//! [`Watched`]: the length of the paths that a session watches. No I/O.

use lock_core::internal::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of bytes in the paths of all watches.
///
/// The client sends them again when it has connected anew, at most 128 KiB in one request. It can't
/// tell the answers of two such requests apart, and connects again and again until the session is
/// over.
pub(crate) const MOST: usize = 120 * 1024;

/// Maximum number of bytes if one more waiter for a lock is watched. The rest is left to
/// semaphores, which have few.
pub(crate) const MOST_FOR_LOCKS: usize = 112 * 1024;

/// Maximum number of bytes if one more hold is watched. The rest is left to those who wait.
pub(crate) const MOST_FOR_HOLDS: usize = 64 * 1024;

/// How many bytes there are in the paths of all watches. Paths that are watched twice count twice.
#[derive(Debug, Default)]
pub(crate) struct Watched(AtomicUsize);

impl Watched {
    /// Adds the watches of some paths, unless they would be more than `most` with all others.
    pub(crate) fn add<const N: usize>(&self, paths: [&str; N], most: usize) -> Option<Watches<'_>> {
        let bytes = paths.iter().map(|path| path.len()).sum();
        let sum = |all: usize| all.checked_add(bytes).filter(|all| *all <= most);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, sum).ok()?;
        Some(Watches { all: self, bytes })
    }
}

/// Watches that count until this is dropped. They end before.
#[derive(Debug)]
pub(crate) struct Watches<'a> {
    all: &'a Watched,
    bytes: usize,
}

impl Drop for Watches<'_> {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_count_until_they_end() {
        let watched = Watched::default();
        let first = watched.add(["/a/b", "/a"], 7).unwrap();
        assert!(watched.add(["/a"], 7).is_none());
        let second = watched.add(["/"], 7).unwrap();
        drop(first);
        assert!(watched.add(["/a/b", "/a"], 6).is_none());
        drop(second);
        assert!(watched.add(["/a/b", "/a"], 6).is_some());
    }
}
