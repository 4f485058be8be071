//! (12) Every process gets its share. Of a key that it always wants, its part is not too small. No
//! process takes a mutex again and again while others wait. After the faults, every process that
//! waits gets a grant.

use std::collections::BTreeMap;
use std::time::Duration;

use super::check::Limits;
use super::event::{Kind, Want};
use super::request::{Grant, History, Request};
use super::spans::{Spans, nanos};

/// Minimum number of grants that says something about shares.
const ENOUGH: usize = 100;

pub(super) fn too_small(history: &History, limits: &Limits) -> Vec<String> {
    let mut found = starved(history, limits);
    let mut wants: BTreeMap<(&str, &str), Vec<(u64, u64)>> = BTreeMap::new();
    for request in history.requests.iter().filter(|request| request.want == Want::Patient) {
        let span = (request.asked, request.answered.unwrap_or(history.end));
        wants.entry((&request.key, &request.process)).or_default().push(span);
    }
    let wants: BTreeMap<(&str, &str), Spans> =
        wants.into_iter().map(|(who, spans)| (who, Spans::of(spans))).collect();
    for (key, mut grants) in history.grants() {
        if grants.iter().any(|(request, _)| request.kind != Kind::Mutex) {
            continue;
        }
        grants.sort_by_key(|(_, grant)| grant.at);
        found.extend(small_shares(history, limits, key, &grants, &wants));
        found.extend(long_stints(history, limits, key, &grants, &wants));
    }
    found
}

type Granted<'a> = (&'a Request, &'a Grant);
type Wants<'a> = BTreeMap<(&'a str, &'a str), Spans>;

/// Finds processes with too few grants of the key in calm time, among those that wanted it most of
/// the time.
fn small_shares(
    history: &History,
    limits: &Limits,
    key: &str,
    grants: &[Granted<'_>],
    wants: &Wants<'_>,
) -> Vec<String> {
    let Some(calm) = history.calm else { return Vec::new() };
    let until = history.quiet.unwrap_or(history.end);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (process, life) in &history.lives {
        let wanted =
            wants.get(&(key, process)).map_or(0, |wants| wants.and(&Spans::one(calm, until)).total());
        if life.killed.is_none() && wanted.saturating_mul(2) > until.saturating_sub(calm) {
            counts.insert(process, 0);
        }
    }
    let mut total = 0;
    for (request, _) in grants.iter().filter(|(_, grant)| (calm..until).contains(&grant.at)) {
        if let Some(count) = counts.get_mut(request.process.as_str()) {
            *count += 1;
            total += 1;
        }
    }
    if total < ENOUGH {
        return Vec::new();
    }
    #[expect(clippy::cast_precision_loss, reason = "few grants")]
    let least = limits.share * total as f64 / counts.len() as f64;
    #[expect(clippy::cast_precision_loss, reason = "few grants")]
    let small = counts.iter().filter(|(_, count)| (**count as f64) < least);
    small.map(|(process, count)| format!("{key}: {process} got {count} of {total} grants")).collect()
}

/// Finds a process that takes the key again and again, while another waits from the first grant to
/// the last.
fn long_stints(
    history: &History,
    limits: &Limits,
    key: &str,
    grants: &[Granted<'_>],
    wants: &Wants<'_>,
) -> Vec<String> {
    let mut found = Vec::new();
    for stint in grants.chunk_by(|(before, _), (after, _)| before.process == after.process) {
        let ([(request, first), ..], [.., (_, last)]) = (stint, stint) else { continue };
        let span = (first.at, last.at);
        // While the process is stopped, or kept from the store, it can't give the key back.
        let hindered = hindered(history, &request.process);
        let took = Duration::from_nanos(Spans::one(span.0, span.1).without(&hindered).total());
        if took <= limits.stint {
            continue;
        }
        let waits = |((wanted, process), spans): &(&(&str, &str), &Spans)| {
            let whole = spans.iter().any(|(from, to)| from <= span.0 && to >= span.1);
            let life = history.lives.get(*process);
            let runs = life.is_some_and(|life| nanos(life.running(span.0, span.1)) == span.1 - span.0);
            *wanted == key && *process != request.process && whole && runs
        };
        if let Some(((_, other), _)) = wants.iter().find(waits) {
            let process = &request.process;
            found.push(format!(
                "{key}: {process} had it for {took:.1?} from {} ns while {other} waited",
                span.0
            ));
        }
    }
    found
}

fn hindered(history: &History, process: &str) -> Spans {
    let faults = history.faults.iter().filter(|fault| fault.hinders());
    let pauses = history.lives.get(process).into_iter().flat_map(|life| life.pauses.iter().copied());
    Spans::of(faults.map(|fault| (fault.from, fault.to)).chain(pauses))
}

/// Finds processes that ask and get nothing once the faults are over.
fn starved(history: &History, limits: &Limits) -> Vec<String> {
    let Some(calm) = history.calm else { return Vec::new() };
    // An earlier request may take this long.
    let long = history.quiet.unwrap_or(history.end).saturating_sub(calm) > nanos(limits.free_with_waiter());
    let mut found = Vec::new();
    for (process, life) in history.lives.iter().filter(|(_, life)| life.killed.is_none()) {
        let own = |request: &&Request| request.process == *process;
        let got = |request: &Request| request.grant.as_ref().is_some_and(|grant| grant.at > calm);
        let waits = |request: &Request| {
            request.want == Want::Patient && request.answered.is_none_or(|answered| answered > calm)
        };
        let mut requests = history.requests.iter().filter(own);
        let (mut wanted, mut any) = (false, false);
        for request in &mut requests {
            wanted |= waits(request);
            any |= got(request);
        }
        if wanted && !any && long && life.pauses.iter().all(|(_, to)| *to < calm) {
            found.push(format!("{process} got nothing after the faults were over"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::Check::Shares;
    use super::super::check::tests::found;

    const S: u64 = 1_000_000_000;

    /// Returns grants of `a` from second `from` on, one every hundredth of a second.
    fn grants(from: u64, count: u64) -> String {
        let grant = |n: u64| {
            let at = from * S + n * S / 100;
            format!(
                "{n} {at} 0 ask mutex patient 60000 - {n} a\n{n} {} {} granted {at}\n",
                at + S / 100,
                at + S
            )
        };
        (1..=count).map(grant).collect()
    }

    fn waiter(from: u64, to: u64) -> String {
        format!("1 {0} 0 ask mutex patient 60000 - 1 a\n1 {1} {1} granted {1}\n", from * S, to * S)
    }

    #[test]
    fn a_process_that_keeps_the_key_is_found() {
        // The tests allow two seconds.
        let with = |count: u64, waits: &str| found(Shares, &[("0.0", &grants(1, count)), ("1.0", waits)]);
        assert_eq!((with(150, &waiter(1, 60)), with(300, &waiter(1, 60))), (0, 1));
        assert_eq!(with(300, &waiter(2, 60)), 0, "it came later");
        assert_eq!(with(300, &format!("{}0 2 0 paused", waiter(1, 60))), 0, "it was stopped");
    }

    #[test]
    fn a_process_that_can_not_give_the_key_back_does_not_keep_it() {
        let waits = waiter(1, 60);
        let with = |own: &str, run: &str| {
            let own = format!("{}{own}", grants(1, 300));
            found(Shares, &[("0.0", &own), ("1.0", &waits), ("run", run)])
        };
        let of = |from: u64, to: u64| (from * S / 10, to * S / 10);
        let paused = |from, to| {
            let (from, to) = of(from, to);
            format!("0 {from} 0 paused\n0 {to} 0 continued\n")
        };
        let fault = |(from, to)| format!("0 {from} 0 fault nothing unavailable f\n0 {to} 0 fault-over f");
        assert_eq!((with(&paused(15, 30), ""), with(&paused(15, 20), "")), (0, 1));
        assert_eq!((with("", &fault(of(15, 30))), with("", &fault(of(15, 20)))), (0, 1));
    }

    #[test]
    fn a_share_that_is_too_small_is_found() {
        let run = format!("0 {} 0 calm\n0 {} 0 quiet", S, 3 * S);
        let with = |own: &str| found(Shares, &[("0.0", &grants(1, 190)), ("1.0", own), ("run", &run)]);
        assert_eq!(with(&waiter(1, 3)), 1);
        assert_eq!(with(&grants(1, 190)), 0);
        assert_eq!(with(""), 0, "it wanted nothing");
    }

    #[test]
    fn a_process_that_gets_nothing_after_the_faults_is_found() {
        let run = format!("0 {} 0 calm\n0 {} 0 quiet", 2 * S, 30 * S);
        let with = |own: &str| found(Shares, &[("0.0", own), ("run", &run)]);
        assert_eq!(with(&waiter(1, 3)), 0);
        assert_eq!(with(&format!("1 {S} 0 ask mutex patient 60000 - 1 a")), 1);
        assert_eq!(with(&waiter(0, 1)), 0, "it no longer waited");
    }
}
