//! [`Inside`]: detects two holders inside one lock at the same time, in one process or in several.

use std::fs::File;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Weight of an exclusive visit; larger than the sum of any number of shared visits.
const ALONE: u64 = 1 << 32;

/// Counts the visits inside a lock, and those that began during a visit they exclude. It is aligned
/// to 128 bytes (two cache lines, as they are fetched in pairs), and can lie in a file that several
/// processes map.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Inside {
    now: AtomicU64,
    overlaps: AtomicU64,
}

/// A visit inside the lock. It ends on drop, also when its task is aborted.
#[derive(Debug)]
#[must_use]
pub(crate) struct Visit<'a> {
    inside: &'a Inside,
    weight: u64,
}

impl Inside {
    /// Returns a counter for the tasks of this process. It is leaked on purpose.
    pub(crate) fn local() -> &'static Self {
        Box::leak(Box::default())
    }

    /// Maps a counter that all processes with the same `file` share. Nobody may shorten the file.
    /// The mapping lasts until this process ends.
    #[allow(
        unsafe_code,
        reason = "memory that processes share is a mapping, and there is no safe call for it"
    )]
    pub(crate) fn shared(file: &File) -> Result<&'static Self, String> {
        let size = size_of::<Self>();
        // New bytes are zero, which means nobody is inside; old ones keep what other processes
        // counted.
        file.set_len(size as u64).map_err(|error| format!("no room for the overlap check: {error}"))?;
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the system chooses an address that nothing else uses.
        let address = unsafe { mmap(ptr::null_mut(), size, rights, flags, file, 0) };
        let address = address.map_err(|error| format!("can't map the overlap check: {error}"))?;
        // SAFETY: the mapping is aligned to pages, as long as the type, and never unmapped; any
        // bytes are a value of the type, and all access to them is atomic.
        Ok(unsafe { &*address.cast::<Self>() })
    }

    /// Begins an exclusive visit. Call it first thing under the lock, and drop the visit last.
    pub(crate) fn enter(&self) -> Visit<'_> {
        self.come_in(ALONE, 1)
    }

    /// Begins a shared visit, which excludes exclusive visits only.
    pub(crate) fn enter_shared(&self) -> Visit<'_> {
        self.come_in(1, ALONE)
    }

    fn come_in(&self, weight: u64, too_many: u64) -> Visit<'_> {
        if self.now.fetch_add(weight, Ordering::AcqRel) >= too_many {
            self.overlaps.fetch_add(1, Ordering::AcqRel);
        }
        Visit { inside: self, weight }
    }

    /// Returns the number of visits that began during a visit they exclude.
    pub(crate) fn overlaps(&self) -> u64 {
        self.overlaps.load(Ordering::Acquire)
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.inside.now.fetch_sub(self.weight, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visits_one_after_the_other_do_not_overlap() {
        let inside = Inside::default();
        drop(inside.enter());
        drop(inside.enter());
        assert_eq!(inside.overlaps(), 0);
    }

    #[test]
    fn everybody_who_is_not_alone_is_counted() {
        let inside = Inside::default();
        let first = inside.enter();
        drop(inside.enter());
        // The first visit still lasts.
        drop(inside.enter());
        assert_eq!(inside.overlaps(), 2);
        drop(first);
        drop(inside.enter());
        assert_eq!(inside.overlaps(), 2);
    }

    #[test]
    fn readers_are_together_and_a_writer_is_not_with_them() {
        let inside = Inside::default();
        let readers = [inside.enter_shared(), inside.enter_shared()];
        assert_eq!(inside.overlaps(), 0);
        drop(inside.enter());
        assert_eq!(inside.overlaps(), 1);
        drop(readers);
        let writer = inside.enter();
        drop(inside.enter_shared());
        assert_eq!(inside.overlaps(), 2);
        drop(writer);
        drop(inside.enter_shared());
        assert_eq!(inside.overlaps(), 2);
    }

    #[test]
    fn an_overlap_is_seen_through_every_mapping_of_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let one = Inside::shared(file.as_file()).unwrap();
        let visit = one.enter();
        // Mapped during a visit, as by a process that starts late.
        let other = Inside::shared(&file.reopen().unwrap()).unwrap();
        assert!(!ptr::eq(one, other));
        drop(other.enter());
        drop(visit);
        drop(other.enter());
        assert_eq!((one.overlaps(), other.overlaps()), (1, 1));
    }
}
