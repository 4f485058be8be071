//! Who held a key when, and with which token.

use std::collections::HashMap;
use std::fmt;

use super::log::{Granted, Mode, Request};

/// A time in which a key was held.
struct Window<'a> {
    id: &'a str,
    key: &'a str,
    process: &'a str,
    token: u64,
    mode: Mode,
    from: u64,
    to: u64,
}

impl fmt::Display for Window<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, key, token, mode, from, to, .. } = self;
        write!(f, "{key} by {id} ({mode:?}) with token {token} from {from} to {to} ns")
    }
}

fn windows<'a>(grants: &[(&'a Request, &'a Granted)]) -> Vec<Window<'a>> {
    let mut found = Vec::new();
    for &(request, grant) in grants {
        let mut add = |mode, from, to| {
            let Request { id, key, process, .. } = request;
            if from < to {
                found.push(Window { id, key, process, token: grant.token, mode, from, to });
            }
        };
        match grant.shared_from {
            None => add(request.mode, grant.at, grant.to),
            Some(shared) => {
                add(request.mode, grant.at, shared.min(grant.to));
                add(Mode::Shared, shared, grant.to);
            }
        }
    }
    found.sort_by_key(|window| window.from);
    found
}

/// Windows of one key that excluded each other and overlap.
pub(super) fn overlaps(grants: &[(&Request, &Granted)]) -> Vec<String> {
    let windows = windows(grants);
    let (mut latest, mut exclusive): (Option<&Window<'_>>, Option<&Window<'_>>) = (None, None);
    let mut found = Vec::new();
    for window in &windows {
        let other = if window.mode == Mode::Exclusive { latest } else { exclusive };
        if let Some(other) = other.filter(|other| window.from < other.to) {
            found.push(format!("{window} while {other}"));
        }
        let later = |other: Option<&Window<'_>>| other.is_none_or(|other| window.to > other.to);
        if later(latest) {
            latest = Some(window);
        }
        if window.mode == Mode::Exclusive && later(exclusive) {
            exclusive = Some(window);
        }
    }
    found
}

/// The tokens of one key's grants that are not in their order:
///
/// - that two grants share, unless both read, or did in the end, in the same process;
/// - that are not larger than those of a grant whose reply came before they were asked for. Two readers may be in any
///   order: who joins a hold has its token, and others may have come meanwhile;
/// - that are not larger than those of whoever held the key before.
pub(super) fn out_of_order(grants: &[(&Request, &Granted)]) -> Vec<String> {
    let mut found = shared_tokens(grants);
    let mut by_request = grants.to_vec();
    by_request.sort_by_key(|(request, _)| request.asked);
    let mut by_reply = grants.to_vec();
    by_reply.sort_by_key(|(_, grant)| grant.at);
    let mut replies = by_reply.into_iter().peekable();
    let mut highest: Option<(u64, &str)> = None;
    let mut exclusive: Option<(u64, &str)> = None;
    for (request, grant) in by_request {
        while let Some((earlier, reply)) = replies.next_if(|(_, reply)| reply.at < request.asked) {
            let one = Some((reply.token, earlier.id.as_str()));
            highest = highest.max(one);
            if earlier.mode == Mode::Exclusive {
                exclusive = exclusive.max(one);
            }
        }
        let before = if request.mode == Mode::Exclusive { highest } else { exclusive };
        if let Some((token, before)) = before
            && grant.token < token
        {
            let (key, id) = (&request.key, &request.id);
            found.push(format!("{key}: {id} has {} although {before} had got {token} before", grant.token));
        }
    }
    found.extend(not_grown(grants));
    found
}

fn shared_tokens(grants: &[(&Request, &Granted)]) -> Vec<String> {
    let shares =
        |request: &Request, grant: &Granted| request.mode == Mode::Shared || grant.shared_from.is_some();
    let mut found = Vec::new();
    let mut owners: HashMap<u64, (&Request, bool)> = HashMap::new();
    for (request, grant) in grants {
        let readable = shares(request, grant);
        if let Some((other, other_readable)) = owners.insert(grant.token, (request, readable))
            && !(readable && other_readable && request.process == other.process)
        {
            let (key, id, other) = (&request.key, &request.id, &other.id);
            found.push(format!("{key}: {id} and {other} both have token {}", grant.token));
        }
    }
    found
}

fn not_grown(grants: &[(&Request, &Granted)]) -> Vec<String> {
    let windows = windows(grants);
    let (mut highest, mut exclusive): (Option<&Window<'_>>, Option<&Window<'_>>) = (None, None);
    let mut found = Vec::new();
    for window in &windows {
        let before = if window.mode == Mode::Exclusive { highest } else { exclusive };
        // A writer that reads keeps its token, and may share it with readers of its process.
        let own = |before: &Window<'_>| {
            window.mode == Mode::Shared && window.token == before.token && window.process == before.process
        };
        if let Some(before) = before.filter(|before| window.token <= before.token && !own(before)) {
            found.push(format!("{window} after {before}"));
        }
        let higher = |other: Option<&Window<'_>>| other.is_none_or(|other| window.token > other.token);
        if higher(highest) {
            highest = Some(window);
        }
        if window.mode == Mode::Exclusive && higher(exclusive) {
            exclusive = Some(window);
        }
    }
    found
}
