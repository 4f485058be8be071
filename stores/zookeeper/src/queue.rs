//! [`Queue`]: the entries of a lock or the permits of a semaphore, in their order. No I/O.

use lock_core::store::{StoreError, StoreErrorKind};
use lock_store_sequences::{Before, Class};

use crate::names::Named;

/// The entries in the directory of a lock.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The names, in no order.
    all: Vec<(Named, String)>,
    /// For a semaphore: how many of them may hold a permit.
    permits: Option<i64>,
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
                Some(named) if named.is_too_high() => return Err(too_high(lock, &name)),
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
        Ok(Self { all, permits: None })
    }

    /// Reads the names of the nodes with the permits of a semaphore that has this many. All nodes
    /// count, as for Curator.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::ForeignData`] if the server's numbers are about to end.
    pub(crate) fn of_permits(leases: &str, names: Vec<String>, permits: i64) -> Result<Self, StoreError> {
        let mut all = Vec::with_capacity(names.len());
        for name in names {
            // It may have come first.
            let first = Named { class: Class::Permit, number: -1 };
            match Named::of(Class::Permit, &name) {
                Some(named) if named.is_too_high() => return Err(too_high(leases, &name)),
                named => all.push((named.unwrap_or(first), name)),
            }
        }
        Ok(Self { all, permits: Some(permits) })
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
        // A writer may become a reader, which comes in its place.
        let may_turn = last.is_some_and(|(last, _)| last.class == Class::Write && of.class != Class::Read);
        let name = last.map(|(_, name)| name.as_bytes());
        let name = match self.permits {
            Some(permits) if i64::from(count) < permits => None,
            // There is not even one for the first.
            Some(_) => Some(name.unwrap_or_default()),
            None => name,
        };
        (name.map(|name| Before { name: name.into(), born: 0, is_only: count == 1 && !may_turn }), count)
    }

    /// Returns how many entries `wanted` new ones of this class would have to wait for.
    pub(crate) fn rivals(&self, class: Class, wanted: usize) -> u32 {
        if let Some(permits) = self.permits {
            let too_many = (self.all.len() + wanted) as i64 - permits;
            return u32::try_from(too_many.max(0)).unwrap_or(u32::MAX);
        }
        let last = Named { class, number: i64::MAX };
        self.before(last).1
    }

    /// Returns the entry of this name, if it is there.
    pub(crate) fn find(&self, name: &str) -> Option<Named> {
        self.all.iter().find(|(_, other)| other == name).map(|(named, _)| *named)
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

fn too_high(lock: &str, name: &str) -> StoreError {
    let text = format!(
        "the numbers of the entries of {lock} are about to end ({name}); let nobody ask for this lock for a \
         minute, so that ZooKeeper deletes its node and begins anew"
    );
    StoreError::new(StoreErrorKind::ForeignData, text)
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
        let rivals = [Class::Read, Class::Write, Class::Lock].map(|class| queue.rivals(class, 1));
        assert_eq!(rivals, [2, 5, 5]);
    }

    #[test]
    fn only_readers_get_in_with_the_end_of_a_writer() {
        for (first, later, is_only) in [
            ("a__WRIT__0000000001", "b__READ__0000000002", true),
            ("a__WRIT__0000000001", "b__WRIT__0000000002", false),
            ("a__WRIT__0000000001", "b-lock-0000000002", false),
            ("a-lock-0000000001", "b__WRIT__0000000002", true),
            ("a__READ__0000000001", "b__WRIT__0000000002", true),
        ] {
            let expected = Some((first.to_owned(), is_only));
            assert_eq!(before(&queue(&[first, later]), later), expected, "{later} behind {first}");
        }
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
    fn a_permit_holds_if_fewer_are_before_it_than_there_are() {
        let names = ["c-lease-0000000010", "a-lease-0000000003", "b-lease-0000000007"];
        let all = |more: &[&str]| names.iter().chain(more).map(ToString::to_string).collect();
        let holding = |queue: &Queue| {
            let holds = |name: &&&str| queue.before(queue.find(name).unwrap()).0.is_none();
            names.iter().filter(holds).copied().collect::<Vec<_>>()
        };
        for (permits, held) in [
            (-1, vec![]),
            (0, vec![]),
            (1, vec![names[1]]),
            (2, vec![names[1], names[2]]),
            (3, names.to_vec()),
        ] {
            let queue = Queue::of_permits("/a", all(&[]), permits).unwrap();
            assert_eq!(holding(&queue), held, "{permits}");
            assert_eq!(i64::from(queue.rivals(Class::Permit, 2)), 5 - permits);
        }
        // Curator counts every node, whatever its name.
        let queue = Queue::of_permits("/a", all(&["x"]), 2).unwrap();
        assert_eq!(holding(&queue), [names[1]]);
        assert_eq!(Queue::of_permits("/a", all(&[]), 9).unwrap().rivals(Class::Permit, 6), 0);
    }

    #[test]
    fn nodes_that_are_no_entries_are_named() {
        let few = Queue::of_permits("/a", vec!["x-lease-2147483000".to_owned()], 3);
        assert!(few.unwrap_err().to_string().contains("about to end"));
        for (name, said) in [("42", ": 42"), ("leases", "leases"), ("lock--2147483648", "about to end")] {
            let names = vec![ALL[0].to_owned(), name.to_owned()];
            let error = Queue::read("/locks/a", names).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::ForeignData);
            assert!(error.to_string().contains(said) && error.to_string().contains("/locks/a"), "{error}");
        }
    }
}
