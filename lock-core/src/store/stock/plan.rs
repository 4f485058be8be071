//! How the units of a stock are distributed to its segments, and taken from them.

use super::Part;

/// Maximum number of overdue reservations that one take ends when it finds too few units.
pub const AT_ONCE: u32 = 32;

/// Takes `quantity` units from segments that together have enough: from the largest first, so that
/// few segments are touched.
pub fn few_parts(mut segments: Vec<Part>, quantity: u64) -> Vec<Part> {
    segments.sort_by_key(|part| std::cmp::Reverse(part.quantity));
    let mut missing = quantity;
    let parts = segments.into_iter().map_while(|part| {
        let taken = part.quantity.min(missing);
        missing -= taken;
        (taken > 0).then_some(Part { quantity: taken, ..part })
    });
    parts.collect()
}

/// Distributes `more` units to segments so that they become as equal as possible. Returns how many
/// each segment gets.
pub fn fill(units: &[u64], more: u64) -> Vec<u64> {
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by_key(|&at| units.get(at).copied());
    // The level up to which the lowest ones are filled.
    let (mut left, mut filled) = (more, 0);
    let mut level = order.first().and_then(|&at| units.get(at)).copied().unwrap_or_default();
    let mut added = vec![0; units.len()];
    while filled < order.len() {
        while order.get(filled).and_then(|&at| units.get(at)) == Some(&level) {
            filled += 1;
        }
        let next = order.get(filled).and_then(|&at| units.get(at)).copied();
        let step = next.map_or(u64::MAX, |next| next - level);
        let wanted = u128::from(step) * filled as u128;
        if let Some(next) = next
            && wanted <= u128::from(left)
        {
            left -= step * filled as u64;
            level = next;
            continue;
        }
        let (each, rest) = (left / filled as u64, left % filled as u64);
        for (nth, &at) in order.iter().take(filled).enumerate() {
            let before = units.get(at).copied().unwrap_or_default();
            if let Some(added) = added.get_mut(at) {
                *added = level - before + each + u64::from((nth as u64) < rest);
            }
        }
        break;
    }
    added
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_are_filled_first() {
        assert_eq!(fill(&[0, 5, 10], 3), [3, 0, 0]);
        assert_eq!(fill(&[0, 5, 10], 7), [6, 1, 0]);
        assert_eq!(fill(&[0, 5, 10], 21), [12, 7, 2]);
        assert_eq!(fill(&[3, 3], 3), [2, 1]);
        assert_eq!(fill(&[7], 0), [0]);
        assert_eq!(fill(&[], 3), Vec::<u64>::new());
    }
}
