//! The faults of a run and their times: a function of the seed.

use std::time::Duration;

use crate::dice::Dice;

/// A fault of a process, given by its place, or of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// SIGKILL; another process takes its place at once.
    Kill(usize),
    /// SIGSTOP.
    Stop(usize),
    /// SIGCONT.
    Continue(usize),
    /// All connections are cut: requests under way have an unknown outcome.
    Cut,
    /// SIGSTOP for the server: requests wait in its buffers, and are carried out late.
    Freeze,
    /// SIGCONT for the server.
    Thaw,
}

/// One fault of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Time since the start.
    pub at: Duration,
    /// The fault.
    pub deed: Deed,
}

/// Returns the faults of one run in the order of their times. Stops last longer than `lease`, and
/// end by a continuation or a kill before `time` is over. A process that has just been started or
/// continued is left alone for a while.
#[must_use]
pub fn schedule(seed: u64, processes: usize, time: Duration, lease: Duration) -> Vec<Fault> {
    let dice = Dice::new(seed);
    let mut faults = of_processes(dice.fork(1), processes, time, lease);
    faults.extend(of_the_server(dice.fork(2), time, lease));
    faults.sort_by_key(|fault| fault.at);
    faults
}

fn of_processes(mut dice: Dice, processes: usize, time: Duration, lease: Duration) -> Vec<Fault> {
    const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(1000));
    let rest = lease.max(Duration::from_millis(500));
    let mut faults = Vec::new();
    let mut left_alone_until = vec![Duration::ZERO; processes];
    let mut at = dice.between(PAUSE.0, PAUSE.1);
    while at < time {
        let victims: Vec<usize> = (0..processes).filter(|&p| left_alone_until[p] <= at).collect();
        if !victims.is_empty() {
            let process = victims[usize::try_from(dice.below(victims.len() as u64)).unwrap_or(0)];
            let (kill, until) = (dice.once_in(3), at + dice.between(lease * 6 / 5, lease * 5 / 2));
            if kill {
                faults.push(Fault { at, deed: Deed::Kill(process) });
                left_alone_until[process] = at + rest;
            } else if until < time {
                let end = if dice.once_in(4) { Deed::Kill(process) } else { Deed::Continue(process) };
                faults.push(Fault { at, deed: Deed::Stop(process) });
                faults.push(Fault { at: until, deed: end });
                left_alone_until[process] = until + rest;
            }
        }
        at += dice.between(PAUSE.0, PAUSE.1);
    }
    faults
}

/// The server may be stopped for shorter or longer than a lease.
fn of_the_server(mut dice: Dice, time: Duration, lease: Duration) -> Vec<Fault> {
    const PAUSE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(6));
    let mut faults = Vec::new();
    let mut at = dice.between(PAUSE.0, PAUSE.1);
    while at < time {
        let until = at + dice.between(lease / 5, lease * 5 / 2);
        if dice.once_in(2) {
            faults.push(Fault { at, deed: Deed::Cut });
        } else if until < time {
            faults.push(Fault { at, deed: Deed::Freeze });
            faults.push(Fault { at: until, deed: Deed::Thaw });
            at = until;
        }
        at += dice.between(PAUSE.0, PAUSE.1);
    }
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
            let its = |deed: Deed| {
                [Deed::Kill(process), Deed::Stop(process), Deed::Continue(process)].contains(&deed)
            };
            let own: Vec<&Fault> = faults.iter().filter(|fault| its(fault.deed)).collect();
            let stops = |fault: &Fault| fault.deed == Deed::Stop(process);
            for pair in own.windows(2) {
                let [first, second] = pair else { panic!("{pair:?}") };
                if stops(first) {
                    assert!(!stops(second) && second.at > first.at + LEASE, "{pair:?}");
                } else {
                    assert!(second.deed != Deed::Continue(process), "{pair:?}");
                }
            }
            assert!(own.iter().any(|fault| stops(fault)), "{own:?}");
            assert!(own.iter().any(|fault| fault.deed == Deed::Kill(process)), "{own:?}");
            assert!(own.last().is_none_or(|fault| !stops(fault)), "{own:?}");
        }
    }

    #[test]
    fn the_server_is_cut_off_and_frozen_and_never_stays_so() {
        let faults = schedule(42, 4, MINUTE, LEASE);
        let deeds = faults.iter().map(|fault| fault.deed);
        let own: Vec<Deed> =
            deeds.filter(|deed| [Deed::Cut, Deed::Freeze, Deed::Thaw].contains(deed)).collect();
        assert!(own.contains(&Deed::Cut) && own.contains(&Deed::Freeze), "{own:?}");
        for (at, deed) in own.iter().enumerate() {
            assert_eq!(*deed == Deed::Freeze, own.get(at + 1) == Some(&Deed::Thaw), "{own:?}");
        }
    }
}
