//! (4) No key with a waiter is free for long. (6) A dead process's keys are free within the lease.
//!
//! The checkers only know what the processes know, so a key counts as held as long as it may be
//! held. That is from a grant to its confirmed release. When the outcome of a call is unknown, or
//! its process was killed, it is a lease longer. Time does not count while faults keep callers from
//! the store. After each such outage, waiters have time to ask again.

use std::collections::BTreeMap;
use std::time::Duration;

use super::check::Limits;
use super::event::{ErrorClass, Kind, Outcome, Want};
use super::request::{Fault, History, Life, Request};
use super::spans::{Spans, nanos};

/// How long a dead writer keeps new readers out: `lock_core::store::INTENT_LIFE`.
const INTENT_LIFE: Duration = Duration::from_secs(1);

/// Returns when the store may be out of reach.
pub(super) fn outages(history: &History, limits: &Limits) -> Spans {
    let hinders = |fault: &&Fault| fault.hinders() && !limits.reachable.contains(&fault.name.as_str());
    Spans::of(history.faults.iter().filter(hinders).map(|fault| (fault.from, fault.to)))
}

/// Computes when a request may have a hold in the store. Mere waiting does not count.
pub(super) struct Open<'a> {
    outages: &'a Spans,
    lease: u64,
    call: u64,
    waiter: u64,
}

impl<'a> Open<'a> {
    pub(super) fn new(outages: &'a Spans, limits: &Limits) -> Self {
        let (lease, call) = (nanos(limits.lease), nanos(limits.call_timeout));
        Self { outages, lease, call, waiter: nanos(limits.waiter_life) }
    }

    /// Returns when a call that was under way at `at` is settled: soon, or a lease later if
    /// something hindered it.
    fn settled(&self, at: u64, life: &Life) -> u64 {
        let soon = at.saturating_add(self.call);
        let hindered = self.outages.touches(at.saturating_sub(self.call), soon)
            || life.pauses.iter().any(|(from, to)| *from <= soon && *to >= at.saturating_sub(self.call))
            || life.killed.is_some_and(|killed| killed <= soon);
        if hindered { soon.saturating_add(self.lease) } else { soon }
    }

    fn spans(&self, request: &Request, life: &Life, end: u64) -> Vec<(u64, u64)> {
        let dead = |killed: u64| killed.saturating_add(self.lease).saturating_add(self.call);
        let mut spans = Vec::new();
        // A stopped or dead waiter keeps its place in a queue for a while, and may be granted the
        // key there.
        let waited_until = request.answered.or(life.killed).unwrap_or(end);
        let stops = life.pauses.iter().map(|(from, _)| *from).chain(life.killed);
        for stop in stops.filter(|stop| (request.asked..=waited_until).contains(stop)) {
            spans.push((stop, stop.saturating_add(self.waiter).saturating_add(self.lease)));
        }
        if let Some(grant) = &request.grant {
            let to = match (&grant.out, &grant.ended, life.killed) {
                (Some((at, Outcome::Released)), ..) => *at,
                (Some((at, _)), ..) => self.settled(*at, life),
                (None, _, Some(killed)) => dead(killed),
                (None, Some(_) | None, None) => u64::MAX,
            };
            spans.push((grant.at, to));
        } else if request.refused.as_ref().is_some_and(|(error, _)| *error == ErrorClass::Busy) {
            // The request took nothing.
        } else if let Some(answered) = request.answered {
            spans.push((answered, self.settled(answered, life)));
        } else if let Some(killed) = life.killed {
            spans.push((killed, dead(killed)));
        }
        spans
    }
}

/// Returns when each key may be held.
fn held(history: &History, outages: &Spans, limits: &Limits) -> BTreeMap<String, Spans> {
    let open = Open::new(outages, limits);
    let mut spans: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    for request in &history.requests {
        let Some(life) = history.lives.get(&request.process) else { continue };
        spans.entry(&request.key).or_default().extend(open.spans(request, life, history.end));
    }
    // A store that has lost its latest writes may have holders and waiters that are gone.
    let rest = nanos(limits.lease.max(limits.waiter_life));
    let all = spans.into_iter().map(|(key, spans)| {
        let losses = history.faults.iter().filter(|fault| fault.takes(key));
        let losses = losses.map(|fault| (fault.from, fault.to.saturating_add(rest)));
        (key.to_owned(), Spans::of(spans.into_iter().chain(losses)))
    });
    all.collect()
}

pub(super) fn free_with_waiter(history: &History, limits: &Limits) -> Vec<String> {
    let outages = outages(history, limits);
    let held = held(history, &outages, limits);
    let mut calls: BTreeMap<(&str, u64), Vec<&Request>> = BTreeMap::new();
    for request in history.requests.iter().filter(|request| request.want != Want::Try) {
        calls.entry((&request.process, request.call)).or_default().push(request);
    }
    let mut found = Vec::new();
    for ((process, _), requests) in calls {
        let Some(life) = history.lives.get(process) else { continue };
        let Some(first) = requests.first() else { continue };
        // Another checker finds late answers.
        let until = first.answered.or(life.killed).unwrap_or(history.end);
        let mut free = Spans::one(first.asked, until);
        for request in &requests {
            if let Some(held) = held.get(&request.key) {
                free = free.without(held);
            }
        }
        let pauses = Spans::of(life.pauses.iter().copied());
        for (from, to) in free.iter() {
            let counted = Spans::one(from, to).without(&outages).without(&pauses);
            let pieces = u32::try_from(counted.iter().count()).unwrap_or(u32::MAX);
            let allowed = limits.free_with_waiter() + limits.again() * pieces.saturating_sub(1);
            let took = Duration::from_nanos(counted.total());
            if took > allowed {
                let keys: Vec<&str> = requests.iter().map(|request| request.key.as_str()).collect();
                let (keys, id) = (keys.join(", "), &first.id);
                found.push(format!("{keys}: free for {took:.1?} from {from} ns while {id} waited"));
            }
        }
    }
    found
}

pub(super) fn held_by_the_dead(history: &History, limits: &Limits) -> Vec<String> {
    let outages = outages(history, limits);
    let mut keys: BTreeMap<&str, Vec<&Request>> = BTreeMap::new();
    let mut calls: BTreeMap<(&str, u64), usize> = BTreeMap::new();
    for request in &history.requests {
        keys.entry(&request.key).or_default().push(request);
        *calls.entry((&request.process, request.call)).or_default() += 1;
    }
    let keys = keys.into_iter().map(|(key, requests)| {
        let stops = stops(history, &requests, limits);
        (key, requests, stops)
    });
    let keys: Vec<_> = keys.collect();
    let mut found = Vec::new();
    for (process, life) in &history.lives {
        let Some(killed) = life.killed else { continue };
        for (key, requests, stops) in &keys {
            let may_hold = |request: &Request| {
                let is_open = match &request.grant {
                    Some(grant) => grant.out.is_none(),
                    None => request.answered.is_none(),
                };
                is_open && request.process == *process
            };
            let held_meanwhile = |request: &Request, by: u64| {
                request.process != *process
                    && request.grant.as_ref().is_some_and(|grant| {
                        let out = grant.out.as_ref().map_or(u64::MAX, |(at, _)| *at);
                        grant.at <= by && out >= killed
                    })
            };
            let waits = |request: &Request, by: u64| {
                let alone = |life: &Life| nanos(life.running(killed, by)) == by - killed;
                request.answered.map_or(history.end >= by, |at| at > by)
                    && history.lives.get(&request.process).is_some_and(alone)
                    && calls.get(&(&*request.process, request.call)) == Some(&1)
            };
            if !requests.iter().any(|request| may_hold(request)) {
                continue;
            }
            let waiters =
                requests.iter().filter(|request| request.want == Want::Patient && request.asked <= killed);
            let forgotten =
                waiters.filter(|waiter| waiter.answered.is_none_or(|at| at > killed)).find_map(|waiter| {
                    let by = kept_until(stops, waiter, killed, limits);
                    let by = by_with(&outages, limits, killed, by.saturating_sub(killed), history.end);
                    let kept = || requests.iter().any(|request| held_meanwhile(request, by));
                    (waits(waiter, by) && !kept()).then_some((waiter, by))
                });
            if let Some((waiter, by)) = forgotten {
                let id = &waiter.id;
                found.push(format!(
                    "{key}: {process} was killed at {killed} ns, and {id} had no grant by {by} ns"
                ));
            }
        }
    }
    found
}

/// Returns `from` plus `bound` on a clock that stands still during outages, and for a while after
/// each.
fn by_with(outages: &Spans, limits: &Limits, from: u64, bound: u64, end: u64) -> u64 {
    let mut by = from.saturating_add(bound);
    while by < end {
        let within = outages.and(&Spans::one(from, by));
        let count = u64::try_from(within.iter().count()).unwrap_or(u64::MAX);
        let stands = within.total().saturating_add(count.saturating_mul(nanos(limits.again())));
        let later = from.saturating_add(bound).saturating_add(stands);
        if later == by {
            break;
        }
        by = later;
    }
    by
}

/// A process that died or was stopped while it had a request for the key.
struct Stop<'a> {
    process: &'a str,
    at: u64,
    /// Until when it may keep the key: for a lease, plus the life of its place in a queue or of its
    /// intent to write.
    until: u64,
}

/// How long a dead holder may keep a key.
fn rest(limits: &Limits) -> u64 {
    nanos(limits.lease + limits.call_timeout + limits.slack)
}

/// Returns the stops of processes with requests for one key, by time.
fn stops<'a>(history: &History, requests: &[&'a Request], limits: &Limits) -> Vec<Stop<'a>> {
    let call = nanos(limits.call_timeout);
    let mut stops = Vec::new();
    for request in requests {
        let Some(life) = history.lives.get(&request.process) else { continue };
        let place = match request.kind {
            Kind::Fair => limits.waiter_life,
            Kind::Write => INTENT_LIFE.saturating_sub(limits.lease),
            Kind::Mutex | Kind::Read => Duration::ZERO,
        };
        // The request's last message may not arrive.
        let over = match &request.grant {
            None => request.answered.map(|at| at.saturating_add(call)),
            Some(grant) => match &grant.out {
                Some((at, Outcome::Released)) => Some(*at),
                Some((at, _)) => Some(at.saturating_add(call)),
                None => None,
            },
        };
        let at = life.pauses.iter().map(|(from, _)| *from).chain(life.killed);
        let at = at.filter(|at| (request.asked..=over.unwrap_or(u64::MAX)).contains(at));
        stops.extend(at.map(|at| {
            let waited = request.grant.as_ref().is_none_or(|grant| at < grant.at);
            let place = if waited { nanos(place) } else { 0 };
            let until = at.saturating_add(place).saturating_add(rest(limits));
            Stop { process: &request.process, at, until }
        }));
    }
    stops.sort_unstable_by_key(|stop| (stop.at, stop.until));
    stops
}

/// Returns until when dead and stopped processes may keep the key from `waiter` after one was
/// killed. More processes may die or stop before that is over.
fn kept_until(stops: &[Stop<'_>], waiter: &Request, killed: u64, limits: &Limits) -> u64 {
    let by = killed.saturating_add(rest(limits));
    let others = stops.iter().filter(|stop| stop.process != waiter.process);
    others.fold(by, |by, stop| if stop.at <= by { by.max(stop.until) } else { by })
}

#[cfg(test)]
mod tests {
    use super::super::Check::{Crashes, Waiting};
    use super::super::check::tests::found;

    /// In these tests: lease 1 s, fallback 5 s, call time-out 2 s, slack 5 s.
    const S: u64 = 1_000_000_000;

    const HOLDER: &str =
        "1 10 10 ask mutex patient 60000 - 1 a\n1 20 900 granted 5\n1 30 900 end\n1 40 40 out released";

    fn waiter(until: u64) -> String {
        format!("1 15 15 ask mutex patient 60000 - 1 a\n1 {until} 99000000000 granted 6")
    }

    #[cfg(feature = "helpers")]
    #[test]
    fn an_intent_lives_for_as_long_as_the_store_says() {
        assert_eq!(super::INTENT_LIFE, lock_core::store::INTENT_LIFE);
    }

    #[test]
    fn a_free_key_with_a_waiter_is_found() {
        let waits =
            |until: u64, run: &str| found(Waiting, &[("0.0", HOLDER), ("1.0", &waiter(until)), ("run", run)]);
        assert_eq!(waits(11 * S, ""), 0);
        assert_eq!(waits(13 * S, ""), 1);
        let fault =
            |errors: &str| format!("0 {} 0 fault nothing {errors} cut\n0 {} 0 fault-over cut", 4 * S, 8 * S);
        assert_eq!(waits(13 * S, &fault("unavailable")), 0, "no process could ask");
        assert_eq!(waits(13 * S, &fault("-")), 1, "not kept from asking");
        assert_eq!(waits(13 * S, &fault("unavailable").replace("cut", "slow")), 1, "slow, and within reach");
    }

    fn cuts(at: &[u64]) -> String {
        let cut = |at: &u64| {
            let (from, to) = (at * S, (at + 1) * S);
            format!("0 {from} 0 fault nothing unavailable cut\n0 {to} 0 fault-over cut\n")
        };
        at.iter().map(cut).collect()
    }

    #[test]
    fn time_adds_up_over_outages() {
        let waits = |until: u64, at: &[u64]| {
            found(Waiting, &[("0.0", HOLDER), ("1.0", &waiter(until)), ("run", &cuts(at))])
        };
        // 12 s are allowed, plus 7 s after each outage. 10 s and 9 s pass before the outages.
        assert_eq!((waits(27 * S, &[10, 20]), waits(29 * S, &[10, 20])), (0, 1));
        let stops = "0 10000000000 0 paused\n0 11000000000 0 continued";
        let stopped = |until: u64| format!("{}\n{stops}", waiter(until));
        let waits = |until: u64| found(Waiting, &[("0.0", HOLDER), ("1.0", &stopped(until))]);
        // The stopped process may be granted the key until 14 s.
        assert_eq!((waits(25 * S), waits(27 * S)), (0, 1), "its process was stopped");
    }

    #[test]
    fn a_key_of_unknown_state_is_not_free() {
        let dropped = HOLDER.replace("released", "dropped");
        let cut = "0 40 0 fault nothing unavailable cut\n0 50 0 fault-over cut";
        let waits = |until: u64| found(Waiting, &[("0.0", &*dropped), ("1.0", &waiter(until)), ("run", cut)]);
        assert_eq!((waits(14 * S), waits(16 * S)), (0, 1));
    }

    #[test]
    fn a_fault_that_takes_one_key_leaves_the_others_as_they_are() {
        let del = |key: &str| {
            let at = |seconds: u64, what: &str| format!("0 {} 0 {what} del\n", seconds * S);
            at(4, "fault keys -") + &at(4, &format!("aimed {key}")) + &at(6, "fault-over")
        };
        let waits = |key| found(Waiting, &[("0.0", HOLDER), ("1.0", &waiter(13 * S)), ("run", &del(key))]);
        assert_eq!((waits("a"), waits("b")), (0, 1));
    }

    #[test]
    fn who_waits_for_several_keys_waits_until_all_are_free() {
        let both = "1 15 0 ask mutex patient 60000 - 1 a\n2 15 0 ask mutex patient 60000 - 1 b";
        let other = |out: u64| {
            format!(
                "1 10 10 ask mutex patient 60000 - 1 b\n1 20 900 granted 5\n1 {out} 0 end\n1 {out} 0 out released"
            )
        };
        let end = format!("0 {} 0 calm", 20 * S);
        let with =
            |out: u64| found(Waiting, &[("0.0", HOLDER), ("1.0", both), ("2.0", &other(out)), ("run", &end)]);
        assert_eq!((with(10 * S), with(3 * S)), (0, 1));
    }

    #[test]
    fn what_a_dead_process_keeps_is_found() {
        let dead = format!("1 10 10 ask mutex patient 60000 - 1 a\n1 20 900 granted 5\n0 {S} 0 killed");
        let waits = |until: u64| found(Crashes, &[("0.0", &*dead), ("1.0", &waiter(until))]);
        assert_eq!((waits(8 * S), waits(10 * S)), (0, 1));
        let unknown = format!("1 10 10 ask mutex patient 60000 - 1 a\n0 {S} 0 killed");
        assert_eq!(found(Crashes, &[("0.0", &*unknown), ("1.0", &waiter(10 * S))]), 1, "it may have had it");
        let cut = |until: u64, at: &[u64]| {
            found(Crashes, &[("0.0", &*dead), ("1.0", &waiter(until)), ("run", &cuts(at))])
        };
        // Until 9 s without the outage, which adds 8 s.
        assert_eq!((cut(16 * S, &[4]), cut(18 * S, &[4])), (0, 1));
        assert_eq!((cut(18 * S, &[4, 13]), cut(26 * S, &[4, 13])), (0, 1), "another one meanwhile");
        let third = format!("1 10 10 ask mutex patient 60000 - 1 a\n1 {} 0 granted 6", 5 * S);
        let logs = [("0.0", &*dead), ("1.0", &waiter(10 * S)), ("2.0", &third)];
        assert_eq!(found(Crashes, &logs), 0, "another had it");
    }

    #[test]
    fn others_that_die_or_stop_may_keep_it_after_the_first() {
        let dead = format!("1 10 10 ask mutex patient 60000 - 1 a\n1 20 900 granted 5\n0 {S} 0 killed");
        let with = |until: u64, kind: &str, end: &str| {
            let other = format!("1 12 12 ask {kind} patient 60000 - 1 a\n{end}");
            let logs = [("0.0", &*dead), ("1.0", &waiter(until)), ("2.0", &other)];
            found(Crashes, &logs)
        };
        let killed = |at: u64| format!("0 {at} 0 killed");
        let answers = |untils: [u64; 2], kind, end: &str| untils.map(|until| with(until * S, kind, end));
        assert_eq!(answers([15, 17], "fair", &killed(5 * S)), [0, 1], "its place, and its lease");
        assert_eq!(answers([12, 14], "read", &killed(5 * S)), [0, 1], "its lease");
        assert_eq!(answers([12, 14], "write", &killed(5 * S)), [0, 1], "its intent");
        let stopped = format!("0 {} 0 paused\n0 {} 0 continued", 5 * S, 20 * S);
        assert_eq!(answers([15, 17], "fair", &stopped), [0, 1]);
        assert_eq!(answers([8, 10], "fair", &killed(12 * S)), [0, 1], "it lived");
        let left = format!("1 {} 0 left\n{}", 2 * S, killed(5 * S));
        assert_eq!(answers([8, 10], "fair", &left), [0, 1], "it had gone");
    }
}
