//! [`Waiters`]: who waits for a key in this process, in the order in which they came.

use std::collections::BTreeMap;

use super::Waiter;

/// Waiters by number. The first has a place of its own: most keys have one waiter at a time, or none, and the smallest map
/// has a node for eleven.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// `None` only when nobody waits.
    first: Option<(u64, Box<Waiter>)>,
    /// All with larger numbers.
    rest: BTreeMap<u64, Box<Waiter>>,
    /// How many were looked at one after the other.
    #[cfg(test)]
    pub(super) seen: std::cell::Cell<usize>,
}

impl Waiters {
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Puts one in whose number is larger than all that are there.
    pub(super) fn push(&mut self, id: u64, waiter: Box<Waiter>) {
        if self.first.is_none() {
            self.first = Some((id, waiter));
        } else {
            self.rest.insert(id, waiter);
        }
    }

    pub(super) fn get(&self, id: u64) -> Option<&Waiter> {
        match &self.first {
            Some((first, waiter)) if *first == id => Some(waiter),
            _ => self.rest.get(&id).map(|waiter| &**waiter),
        }
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Waiter> {
        match &mut self.first {
            Some((first, waiter)) if *first == id => Some(waiter),
            _ => self.rest.get_mut(&id).map(|waiter| &mut **waiter),
        }
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Box<Waiter>> {
        let removed = match self.first.take_if(|(first, _)| *first == id) {
            Some((_, waiter)) => {
                self.first = self.rest.pop_first();
                Some(waiter)
            }
            None => self.rest.remove(&id),
        };
        if self.rest.is_empty() {
            // An empty map keeps its last node for as long as the key is held.
            self.rest = BTreeMap::new();
        }
        removed
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Waiter)> {
        self.starting(0)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Waiter> {
        self.iter().map(|(_, waiter)| waiter)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Waiter> {
        self.starting_mut(0).map(|(_, waiter)| waiter)
    }

    /// Those with this number or a larger one.
    pub(super) fn starting(&self, id: u64) -> impl Iterator<Item = (u64, &Waiter)> {
        let first = self.first.iter().filter(move |(first, _)| *first >= id);
        let first = first.map(|(id, waiter)| (*id, &**waiter));
        let all = first.chain(self.rest.range(id..).map(|(id, waiter)| (*id, &**waiter)));
        #[cfg(test)]
        let all = all.inspect(|_| self.seen.update(|seen| seen + 1));
        all
    }

    /// The same, to be changed.
    pub(super) fn starting_mut(&mut self, id: u64) -> impl Iterator<Item = (u64, &mut Waiter)> {
        let first = self.first.iter_mut().filter(move |(first, _)| *first >= id);
        let first = first.map(|(id, waiter)| (*id, &mut **waiter));
        let all = first.chain(self.rest.range_mut(id..).map(|(id, waiter)| (*id, &mut **waiter)));
        #[cfg(test)]
        let all = all.inspect(|_| self.seen.update(|seen| seen + 1));
        all
    }
}
