//! (5) At the end nothing is left except counters, Redisson's latches (20 s) and holds that end
//! within a lease.

use std::time::Duration;

use super::check::Limits;
use super::event::Remains;
use super::request::History;
use super::spans::nanos;

const LATCH: Duration = Duration::from_secs(20);

pub(super) fn left_behind(history: &History, limits: &Limits) -> Vec<String> {
    let mut found = Vec::new();
    for left in &history.left {
        let name = &left.name;
        let Some(ttl) = left.ttl else {
            found.push(format!("{name} ({:?}), which never ends", left.what));
            continue;
        };
        let ends = left.at.saturating_add(nanos(ttl));
        let quiet = history.quiet.unwrap_or(left.at);
        let allowed = match left.what {
            Remains::Counter => true,
            Remains::Latch => ttl <= LATCH,
            // Nobody renews the hold, so it ends a lease after the last call that was under way.
            Remains::Key => ends <= quiet.saturating_add(nanos(limits.lease + limits.call_timeout)),
            Remains::Other => false,
        };
        if !allowed {
            found.push(format!("{name} ({:?}), for another {ttl:.1?}", left.what));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::Check::Leftovers;
    use super::super::check::tests::found;

    #[test]
    fn only_what_ends_by_itself_may_be_left() {
        let left =
            |what: &str| found(Leftovers, &[("run", &format!("0 10 0 quiet\n0 20 0 remains {what} x"))]);
        assert_eq!((left("counter 86400000"), left("counter -")), (0, 1));
        assert_eq!((left("latch 20000"), left("latch 30000")), (0, 1));
        // The lease is 1 s, the call time-out 2 s.
        assert_eq!((left("key 2900"), left("key 3100"), left("key -")), (0, 1, 1));
        assert_eq!(left("other -"), 1);
    }
}
