//! The order in which segments are tried. It has no I/O, and its randomness is passed in.

/// Returns the order in which to try the segments. The better of two random ones is first, then
/// come the others in random order. The last one is the one to wait for, so it is also the better
/// of two random ones.
///
/// `load` returns how many callers of this process have or want a segment. Of two random choices,
/// the less loaded one is taken (Mitzenmacher, *The power of two choices in randomized load
/// balancing*, 2001). The load from other processes is not known here. The choice also keeps
/// callers from all running after the one segment that was free a moment ago.
pub(super) fn order(
    mut segments: Vec<u32>,
    load: impl Fn(u32) -> usize,
    mut random: impl FnMut() -> f64,
) -> Vec<u32> {
    // Fisher-Yates shuffle.
    for last in (1..segments.len()).rev() {
        segments.swap(last, below(last + 1, random()));
    }
    if let [first, second, ..] = &mut segments[..]
        && load(*second) < load(*first)
    {
        std::mem::swap(first, second);
    }
    // With two segments there is no choice: the first is tried and the second waited for.
    if let [_, .., other, last] = &mut segments[..]
        && load(*other) < load(*last)
    {
        std::mem::swap(other, last);
    }
    segments
}

fn below(limit: usize, random: f64) -> usize {
    ((random * limit as f64) as usize).min(limit - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chance() -> impl FnMut() -> f64 {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1_u64 << 53) as f64
        }
    }

    #[test]
    fn every_segment_is_tried_once() {
        let mut random = chance();
        for count in 0..20 {
            let mut tried = order((0..count).collect(), |_| 0, &mut random);
            tried.sort_unstable();
            assert_eq!(tried, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn all_are_first_about_equally_often() {
        let mut random = chance();
        let mut first = [0_u32; 10];
        for _ in 0..10_000 {
            first[order((0..10).collect(), |_| 0, &mut random)[0] as usize] += 1;
        }
        assert!(first.iter().all(|times| (800..1200).contains(times)), "{first:?}");
    }

    #[test]
    fn the_better_of_two_is_first_and_waited_for() {
        let mut random = chance();
        for count in [2, 3, 10] {
            for _ in 0..1000 {
                let tried = order((0..count).collect(), |segment| segment as usize, &mut random);
                assert!(tried[0] < tried[1] || count == 3, "{tried:?}");
                assert!(count < 4 || tried[8] > tried[9], "{tried:?}");
                assert!(tried[0] != count - 1, "the most loaded one is not tried first");
            }
        }
    }

    #[test]
    fn chance_at_its_edges_stays_inside() {
        for random in [0.0, 0.999_999_999_999, 1.0] {
            assert_eq!(order((0..3).collect(), |_| 0, || random).len(), 3);
        }
    }
}
