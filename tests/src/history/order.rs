//! (11) Fair locks are granted in turn, and neither readers nor writers are passed over forever.

use std::collections::{BTreeMap, HashSet};

use super::check::Limits;
use super::event::{Kind, Want};
use super::request::{Fault, History, Request, Seen};
use super::spans::nanos;

pub(super) fn out_of_turn(history: &History, limits: &Limits) -> Vec<String> {
    let mut found = Vec::new();
    for (key, looks) in &history.seen {
        // Observations after a loss of keys do not follow from those before it.
        let lost = |from: u64, to: u64| {
            let takes = |fault: &Fault| fault.takes(key) && fault.from <= to && from <= fault.to;
            history.faults.iter().any(takes)
        };
        let leases = history.requests.iter().filter(|request| request.key == *key);
        let leases = leases.map(|request| request.lease.unwrap_or(limits.lease));
        let shortest = nanos(leases.min().unwrap_or(limits.lease));
        let mut held: &[String] = &[];
        for (before, after) in looks.iter().zip(looks.iter().skip(1)) {
            if !before.holders.is_empty() {
                held = &before.holders;
            }
            if lost(before.since, after.at) {
                continue;
            }
            let holder = after.holders.first().map_or("", String::as_str);
            for id in passed_over(held, before, after, shortest) {
                found.push(format!(
                    "{key}: {holder} was granted before {id}, which had waited longer, at {} ns",
                    after.at
                ));
            }
        }
    }
    found.extend(too_often(history, limits));
    found
}

/// Returns the waiters that were passed over by the holder that appeared between two observations.
/// They were before it in the queue, count as alive and still wait. One that has joined the queue
/// again does not, if there was time for the shortest lease, `lease`. It may have had its turn, and
/// not heard of it in time. `held` are the last holders that were seen until then. One of them that
/// appears again has renewed its lock in time: nobody could have the row before the renewal's
/// commit, which came late. An owner's name is never used for a second grant.
fn passed_over(held: &[String], before: &Seen, after: &Seen, lease: u64) -> Vec<String> {
    let [holder] = &after.holders[..] else { return Vec::new() };
    let place = before.queue.iter().position(|(id, _)| id == holder);
    if before.holders.contains(holder) || (place.is_none() && held.contains(holder)) {
        return Vec::new();
    }
    let place = place.unwrap_or(before.queue.len());
    let still: HashSet<&str> = after.queue.iter().map(|(id, _)| id.as_str()).collect();
    let had_time = after.at - before.since >= lease;
    let waits = |(id, until): &&(String, u64)| {
        let came_back = || had_time && came_back(before, after, id);
        *until > after.at && still.contains(id.as_str()) && !came_back()
    };
    before.queue.iter().take(place).filter(waits).map(|(id, _)| id.clone()).collect()
}

/// Whether the waiter has left the queue and joined it again, which shows if one that came later is
/// now before it.
fn came_back(before: &Seen, after: &Seen, id: &str) -> bool {
    let place = |id: &str| before.queue.iter().position(|(other, _)| other == id);
    let was_behind = |other: &str| place(other).is_none_or(|other| Some(other) > place(id));
    after.queue.iter().take_while(|(other, _)| other != id).any(|(other, _)| was_behind(other))
}

/// Finds patient readers and writers that were passed over too often by later requests of the other
/// kind.
fn too_often(history: &History, limits: &Limits) -> Vec<String> {
    let mut keys: BTreeMap<&str, Vec<&Request>> = BTreeMap::new();
    for request in history.requests.iter().filter(|request| matches!(request.kind, Kind::Read | Kind::Write))
    {
        keys.entry(&request.key).or_default().push(request);
    }
    let mut found = Vec::new();
    for (key, mut requests) in keys {
        requests.sort_by_key(|request| request.asked);
        for (at, waiter) in requests.iter().enumerate().filter(|(_, waiter)| waiter.want == Want::Patient) {
            let killed = history.lives.get(&waiter.process).and_then(|life| life.killed);
            let until = waiter.answered.or(killed).unwrap_or(history.end);
            let later = requests.iter().skip(at + 1).take_while(|other| other.asked <= until);
            let before = |other: &&&Request| {
                other.kind != waiter.kind && other.grant.as_ref().is_some_and(|grant| grant.at < until)
            };
            let times = later.filter(before).count();
            if times > limits.passed_over {
                let (id, kind) = (&waiter.id, waiter.kind);
                found.push(format!("{key}: {id} ({kind:?}) was passed over {times} times"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::Check::Order;
    use super::super::check::tests::found;
    use super::*;

    /// The shortest lease.
    const LEASE: u64 = 50;

    fn look(holder: &str, at: u64, queue: &[(&str, u64)]) -> Seen {
        let queue = queue.iter().map(|&(id, until)| (id.to_owned(), until)).collect();
        let holders = if holder.is_empty() { Vec::new() } else { vec![holder.to_owned()] };
        Seen { since: at, at, holders, expires: 0, queue }
    }

    #[test]
    fn who_comes_before_a_living_waiter_is_found() {
        let before = look("x", 10, &[("a", 100), ("b", 100), ("c", 100)]);
        let passed = |after: Seen| passed_over(&[], &before, &after, LEASE).len();
        assert_eq!(passed(look("x", 20, &[("a", 100), ("b", 100)])), 0, "the same holder");
        assert_eq!(passed(look("", 20, &[("a", 100), ("b", 100)])), 0, "free");
        assert_eq!(passed(look("a", 20, &[("b", 100), ("c", 100)])), 0, "in turn");
        assert_eq!(passed(look("c", 20, &[])), 0, "those before have gone");
        assert_eq!(passed(look("b", 20, &[("a", 100), ("c", 100)])), 1, "before the first");
        assert_eq!(passed(look("new", 20, &[("a", 100), ("b", 100), ("c", 100)])), 3, "past the queue");
        assert_eq!(passed(look("b", 200, &[("a", 300)])), 0, "the first counted as dead meanwhile");
        let late = look("x", 10, &[("a", 5), ("b", 100)]);
        assert_eq!(
            passed_over(&[], &late, &look("a", 20, &[("b", 100)]), LEASE).len(),
            0,
            "the first was late, and asked again"
        );
        assert_eq!(
            passed_over(&[], &late, &look("b", 20, &[("a", 5)]), LEASE).len(),
            0,
            "the first counted as dead before"
        );
    }

    #[test]
    fn who_may_have_had_its_turn_meanwhile_is_not_passed_over() {
        let before = look("x", 10, &[("a", 900), ("b", 900), ("c", 900)]);
        let at =
            |at: u64, queue: &[(&str, u64)]| passed_over(&[], &before, &look("b", at, queue), LEASE).len();
        let (behind, behind_a_new_one) = ([("c", 900), ("a", 900)], [("new", 900), ("a", 900)]);
        assert_eq!((at(60, &behind), at(60, &behind_a_new_one)), (0, 0));
        assert_eq!((at(59, &behind), at(59, &behind_a_new_one)), (1, 1), "too soon for the end of a hold");
        assert_eq!((at(60, &[("a", 900), ("c", 900)]), at(60, &[("a", 900)])), (1, 1), "it kept its place");
        assert_eq!((at(60, &[("c", 900)]), at(899, &[("c", 900)])), (0, 0));
        let slow = Seen { since: 10, at: 55, ..before.clone() };
        assert_eq!(passed_over(&[], &slow, &look("b", 60, &behind), LEASE).len(), 0, "a slow look");
    }

    #[test]
    fn a_renewal_that_is_seen_late_is_no_grant() {
        let seen = |looks: [&str; 3]| {
            let looks = looks.iter().enumerate().map(|(at, look)| format!("0 {at}0 0 seen 90 {look} k"));
            found(Order, &[("run", &looks.collect::<Vec<_>>().join("\n"))])
        };
        let (held, free, again) = ("x:1 a:1@900", "- a:1@900", "x:1 a:1@900");
        assert_eq!(seen([held, free, again]), 0);
        assert_eq!(seen([held, free, "x:2 a:1@900"]), 1, "another owner of the same process");
        assert_eq!(seen([held, "y:1 a:1@900", again]), 2, "somebody held it meanwhile: two grants");
        assert_eq!(seen([held, "- a:1@900,x:1@900", again]), 1, "it waits again");
    }

    #[test]
    fn looks_of_a_history_are_compared() {
        let run = "0 10 0 seen 90 x:1 a:1@900,b:1@900 k\n0 20 0 seen 90 b:1 a:1@900 k";
        assert_eq!(found(Order, &[("run", run)]), 1);
        let apart = |at: u64| {
            let ask = "1 5 5 ask fair patient 60000 300 1 k";
            let before = "0 10 0 seen 90 x:1 a:1@900000000,b:1@900000000 k";
            let after = format!("0 {at} 0 seen 90 b:1 c:1@900000000,a:1@900000000 k");
            found(Order, &[("0.0", ask), ("run", &format!("{before}\n{after}"))])
        };
        assert_eq!((apart(300_000_009), apart(300_000_010)), (1, 0), "a lease of 300 ms");
        let flush = "0 15 0 fault keys - flush\n0 16 0 fault-over flush";
        assert_eq!(found(Order, &[("run", run), ("faults", flush)]), 0, "keys were lost between");
    }

    #[test]
    fn a_writer_that_readers_pass_again_and_again_is_found() {
        // The tests allow three times.
        let readers = |n: u64| -> String {
            (1..=n)
                .map(|n| format!("{n} 20 0 ask read patient 60000 - {n} a\n{n} 30 90 granted {n}\n"))
                .collect()
        };
        let writer = "1 10 0 ask write patient 60000 - 1 a\n1 900 1000 granted 99";
        let with = |n: u64| found(Order, &[("0.0", &readers(n)), ("1.0", writer)]);
        assert_eq!((with(3), with(4)), (0, 1));
    }
}
