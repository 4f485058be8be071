//! [`Queue`]: the entries of a lock, in their order. No I/O.

use lock_core::store::{StoreError, StoreErrorKind};
use lock_store_sequences::{Before, Class};

use crate::names::Named;

/// The entries in the directory of a lock.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The names, in no order.
    all: Vec<(Named, String)>,
}

impl Queue {
    /// Reads the names of the nodes in the directory of a lock.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::ForeignData`] if one of them is no entry. Nobody knows its place.
    pub(crate) fn read(lock: &str, names: Vec<String>) -> Result<Self, StoreError> {
        let mut all = Vec::with_capacity(names.len());
        for name in names {
            match Named::read(&name) {
                Some(named) if named.is_too_high() => {
                    let text = format!(
                        "the numbers of the entries of {lock} are about to end ({name}); let nobody ask for \
                         this lock for a minute, so that ZooKeeper deletes its node and begins anew"
                    );
                    return Err(StoreError::new(StoreErrorKind::ForeignData, text));
                }
                Some(named) => all.push((named, name)),
                None => {
                    let text = format!(
                        "the node {lock} has a child that is no entry of a lock: {name}; use a name that is \
                         no directory of other locks, and delete that child if nobody needs it"
                    );
                    return Err(StoreError::new(StoreErrorKind::ForeignData, text));
                }
            }
        }
        Ok(Self { all })
    }

    /// Returns the last entry that this one has to wait for, and how many there are.
    pub(crate) fn before(&self, of: Named) -> (Option<Before>, u32) {
        let rivals = self.all.iter().filter(|(named, _)| named.number < of.number && excludes(*named, of));
        let (mut last, mut count): (Option<&(Named, String)>, u32) = (None, 0);
        for rival in rivals {
            count = count.saturating_add(1);
            if last.is_none_or(|last| last.0.number < rival.0.number) {
                last = Some(rival);
            }
        }
        let before =
            last.map(|(_, name)| Before { name: name.as_bytes().into(), born: 0, is_only: count == 1 });
        (before, count)
    }

    /// Returns how many entries one of this class would have to wait for.
    pub(crate) fn rivals(&self, class: Class) -> u32 {
        let last = Named { class, number: i64::MAX };
        self.before(last).1
    }

    /// Whether there is an entry of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.all.iter().any(|(_, other)| other == name)
    }

    /// Returns the entries in their order. Of those with the same number, a reader comes first: its
    /// writer is about to end.
    pub(crate) fn into_order(mut self) -> Vec<(Named, String)> {
        self.all.sort_by(|(a, name), (b, other)| {
            (a.number, a.class == Class::Write, name).cmp(&(b.number, b.class == Class::Write, other))
        });
        self.all
    }
}

/// Whether an entry that comes later has to wait for this one.
fn excludes(first: Named, later: Named) -> bool {
    first.class != Class::Read || later.class != Class::Read
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(names: &[&str]) -> Queue {
        Queue::read("/a", names.iter().map(ToString::to_string).collect()).unwrap()
    }

    fn before(queue: &Queue, name: &str) -> Option<(String, bool)> {
        let (before, count) = queue.before(Named::read(name).unwrap());
        assert_eq!(before.is_some(), count > 0);
        before.map(|before| (String::from_utf8(before.name.to_vec()).unwrap(), before.is_only))
    }

    const ALL: [&str; 5] = [
        "z__READ__0000000002",
        "x__READ__0000000001",
        "a__WRIT__0000000003",
        "b__READ__0000000010",
        "c-lock-0000000011",
    ];

    #[test]
    fn an_entry_waits_for_all_that_exclude_it_and_watches_the_last() {
        let queue = queue(&ALL);
        assert_eq!(before(&queue, ALL[1]), None);
        assert_eq!(before(&queue, ALL[0]), None);
        assert_eq!(before(&queue, ALL[2]), Some((ALL[0].to_owned(), false)));
        assert_eq!(before(&queue, ALL[3]), Some((ALL[2].to_owned(), true)));
        assert_eq!(before(&queue, ALL[4]), Some((ALL[3].to_owned(), false)));
        let rivals = [Class::Read, Class::Write, Class::Lock].map(|class| queue.rivals(class));
        assert_eq!(rivals, [2, 5, 5]);
    }

    #[test]
    fn the_order_is_that_of_the_numbers_and_not_of_the_names() {
        let order: Vec<_> = queue(&ALL).into_order().into_iter().map(|(_, name)| name).collect();
        assert_eq!(order, [ALL[1], ALL[0], ALL[2], ALL[3], ALL[4]]);
        let turned = ["a__WRIT__0000000003", "b__READ__0000000003"];
        let order: Vec<_> = queue(&turned).into_order().into_iter().map(|(_, name)| name).collect();
        assert_eq!(order, [turned[1], turned[0]]);
        assert_eq!(before(&queue(&turned), turned[1]), None);
    }

    #[test]
    fn nodes_that_are_no_entries_are_named() {
        for (name, said) in [("42", ": 42"), ("leases", "leases"), ("lock--2147483648", "about to end")] {
            let names = vec![ALL[0].to_owned(), name.to_owned()];
            let error = Queue::read("/locks/a", names).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::ForeignData);
            assert!(error.to_string().contains(said) && error.to_string().contains("/locks/a"), "{error}");
        }
    }
}
