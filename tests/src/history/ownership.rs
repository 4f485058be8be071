//! (9) No holder releases the lock of another: a valid hold that no fault took is found when the
//! library looks for it.

use super::check::Limits;
use super::event::{Loses, Outcome};
use super::request::{Fault, Grant, History};
use super::spans::nanos;

/// Text of the library's error when the store does not have the hold any more.
const TAKEN: &str = "gone";

pub(super) fn taken_away(history: &History, limits: &Limits) -> Vec<String> {
    let mut found = Vec::new();
    for request in &history.requests {
        let Some(grant) = &request.grant else { continue };
        let (key, id) = (&request.key, &request.id);
        // A hold that was granted before or during the loss may be gone afterwards. Until a lease
        // after the loss it may have been handed on.
        let lease = nanos(limits.lease);
        let lost = |by: u64| {
            let until = |fault: &Fault| fault.to.saturating_add(lease);
            let all = history.faults.iter().filter(|fault| fault.takes(key));
            let all = all.map(|fault| fault.from <= by && grant.at <= until(fault));
            // A lease after the loss, a quorum has renewed the hold, which restores what one store
            // has lost.
            let copies = history.faults.iter().filter(|fault| fault.loses == Loses::Copies);
            let copies =
                copies.map(|fault| fault.from <= by && by <= until(fault) && request.asked <= fault.to);
            all.chain(copies).any(|excused| excused)
        };
        let valid = grant.looks.iter().filter(|(at, until)| until > at).map(|(_, until)| *until).max();
        let Some(valid_until) = valid else { continue };
        if let Some((at, why)) = taken(grant)
            && at < valid_until
            && !lost(at)
        {
            found.push(format!("{key}: {id} was valid until {valid_until} ns, and at {at} ns {why}"));
        }
    }
    found
}

/// Returns when the holder was told that the store does not have its hold any more, and the reason.
/// A release may tell it too.
fn taken(grant: &Grant) -> Option<(u64, &str)> {
    let told = grant.lost.as_ref().map(|(at, why)| (*at, why.as_str()));
    let out = match &grant.out {
        Some((at, Outcome::Lost(why))) => Some((told.map_or(*at, |(told, _)| told), why.as_str())),
        _ => None,
    };
    out.or(told).filter(|(_, why)| why.contains(TAKEN))
}

#[cfg(test)]
mod tests {
    use super::super::Check::Ownership;
    use super::super::check::tests::found;

    fn with(events: &str, run: &str) -> usize {
        let log = format!("1 10 10 ask mutex patient 60000 - 1 a\n1 20 900 granted 5\n{events}");
        found(Ownership, &[("0.0", &log), ("run", run)])
    }

    #[test]
    fn a_lock_that_is_gone_while_it_is_valid_is_found() {
        let out = |at: u64| format!("1 30 900 end\n1 {at} 0 out lost the store says that it is gone");
        assert_eq!((with(&out(899), ""), with(&out(900), "")), (1, 0), "its release may have come too late");
        let lost = |at: u64| format!("1 {at} 0 lost the store says that it is gone");
        assert_eq!((with(&lost(500), ""), with(&lost(900), "")), (1, 0));
        assert_eq!(with("1 500 0 lost the lock manager was shut down", ""), 0);
        let flush = "0 100 0 fault keys - flush\n0 110 0 fault-over flush";
        assert_eq!(with(&out(899), flush) + with(&lost(500), flush), 0, "a fault has taken it");
        assert_eq!(with(&lost(90), flush), 1, "before the fault");
        // Requested before the fault, and granted more than a lease after it.
        let late = |at: u64| {
            let log = format!(
                "1 10 10 ask mutex patient 60000 - 1 a\n1 {at} 9000000000 granted 5\n1 {} 0 lost the store says that it is gone",
                at + 10
            );
            found(Ownership, &[("0.0", &log), ("run", flush)])
        };
        assert_eq!((late(1_000_000_110), late(1_000_000_111)), (0, 1));
        let aimed = |key: &str| flush.replace("\n", &format!("\n0 100 0 aimed {key} flush\n"));
        assert_eq!((with(&lost(500), &aimed("a")), with(&lost(500), &aimed("b"))), (0, 1));
        let one = flush.replace("keys", "copies");
        assert_eq!(with(&lost(500), &one), 0, "the fault has taken the last copy but one");
        let early = one.replace("100", "12").replace("110", "15");
        assert_eq!(with(&lost(500), &early), 0);
        let before = one.replace("100", "5").replace("110", "8");
        assert_eq!(with(&lost(500), &before), 1, "it was asked for afterwards");
    }
}
