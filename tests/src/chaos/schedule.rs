//! The order of the faults: a function of the seed.

use super::arena::Topology;
use super::fault::Fault;
use crate::dice::Dice;

/// Returns an endless sequence of a topology's faults: all of them in a random order, then all in
/// another order, and so on. Each fault happens as often as the others.
pub fn schedule(seed: u64, topology: Topology) -> impl Iterator<Item = Fault> {
    let mut dice = Dice::new(seed).fork(1);
    let mut deck: Vec<Fault> = Vec::new();
    std::iter::from_fn(move || {
        if deck.is_empty() {
            deck = Fault::at(topology).collect();
            for at in (1..deck.len()).rev() {
                let other = usize::try_from(dice.below(at as u64 + 1)).unwrap_or(0);
                deck.swap(at, other);
            }
        }
        deck.pop()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_sequence_and_no_fault_is_left_out() {
        let faults = |seed| schedule(seed, Topology::Single).take(100).collect::<Vec<_>>();
        assert_eq!(faults(7), faults(7));
        assert_ne!(faults(7), faults(8));
        let first: Vec<Fault> = faults(7).into_iter().take(Fault::at(Topology::Single).count()).collect();
        assert!(Fault::at(Topology::Single).all(|fault| first.contains(&fault)));
    }
}
