//! Who is killed and stopped when: a function of the seed.

use std::time::Duration;

use crate::dice::Dice;

/// Something that is done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// SIGKILL; another one takes its place at once.
    Kill,
    /// SIGSTOP.
    Stop,
    /// SIGCONT.
    Continue,
}

/// One deed of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// After the start.
    pub at: Duration,
    /// The place of the process.
    pub process: usize,
    /// What is done to it.
    pub deed: Deed,
}

/// The deeds of one run, in order of time. Stops last longer than `lease`, and end by a continuation or a kill before
/// `time` is over. A process that has just been started or continued is left alone for a while.
#[must_use]
pub fn schedule(seed: u64, processes: usize, time: Duration, lease: Duration) -> Vec<Fault> {
    const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(1000));
    let rest = lease.max(Duration::from_millis(500));
    let mut dice = Dice::new(seed);
    let mut faults = Vec::new();
    let mut left_alone_until = vec![Duration::ZERO; processes];
    let mut at = dice.between(PAUSE.0, PAUSE.1);
    while at < time {
        let victims: Vec<usize> = (0..processes).filter(|&p| left_alone_until[p] <= at).collect();
        if !victims.is_empty() {
            let process = victims[usize::try_from(dice.below(victims.len() as u64)).unwrap_or(0)];
            let (kill, until) = (dice.once_in(3), at + dice.between(lease * 6 / 5, lease * 5 / 2));
            if kill {
                faults.push(Fault { at, process, deed: Deed::Kill });
                left_alone_until[process] = at + rest;
            } else if until < time {
                let end = if dice.once_in(4) { Deed::Kill } else { Deed::Continue };
                faults.push(Fault { at, process, deed: Deed::Stop });
                faults.push(Fault { at: until, process, deed: end });
                left_alone_until[process] = until + rest;
            }
        }
        at += dice.between(PAUSE.0, PAUSE.1);
    }
    faults.sort_by_key(|fault| fault.at);
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn the_same_seed_makes_the_same_schedule() {
        assert_eq!(schedule(42, 4, MINUTE, LEASE), schedule(42, 4, MINUTE, LEASE));
        assert_ne!(schedule(42, 4, MINUTE, LEASE), schedule(43, 4, MINUTE, LEASE));
    }

    #[test]
    fn everybody_is_killed_and_stopped_past_the_lease_and_none_stays_stopped() {
        let faults = schedule(42, 4, MINUTE, LEASE);
        assert!(faults.is_sorted_by_key(|fault| fault.at));
        assert!(faults.iter().all(|fault| fault.at < MINUTE));
        for process in 0..4 {
            let own: Vec<&Fault> = faults.iter().filter(|fault| fault.process == process).collect();
            let mut stops = 0;
            for pair in own.windows(2) {
                assert!(pair[0].deed != Deed::Stop || pair[1].at > pair[0].at + LEASE, "{pair:?}");
                assert!(pair[1].deed != Deed::Stop || pair[0].deed != Deed::Stop, "{pair:?}");
                assert!(pair[1].deed != Deed::Continue || pair[0].deed == Deed::Stop, "{pair:?}");
                stops += usize::from(pair[0].deed == Deed::Stop);
            }
            assert!(stops > 0 && own.iter().any(|fault| fault.deed == Deed::Kill), "{own:?}");
            assert!(own.last().is_none_or(|fault| fault.deed != Deed::Stop), "{own:?}");
        }
    }
}
