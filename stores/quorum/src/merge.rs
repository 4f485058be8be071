//! Merges the answers of a quorum's stores, for all calls except acquires. No I/O.

use std::time::Duration;

use lock_core::OwnerId;
use lock_core::store::{Kind, LockStatus, Renewed};

use super::votes::majority;

/// Returns the state of a hold from the stores' answers, which are `None` for stores that have not
/// answered. Of these, `open` may still do so. Returns `None` while the result depends on them.
pub(super) fn kept(answers: &[Option<Renewed>], open: usize) -> Option<Renewed> {
    let majority = majority(answers.len());
    let count = |of: Renewed| answers.iter().filter(|kept| **kept == Some(of)).count();
    let renewed = count(Renewed::Held);
    if renewed >= majority {
        return Some(Renewed::Held);
    }
    // Stores with another answer don't hold it; nothing is known about those that failed.
    let silent = answers.iter().filter(|kept| kept.is_none_or(|kept| kept == Renewed::Unknown)).count();
    if renewed + silent < majority {
        return Some(Renewed::Gone);
    }
    (open == 0).then_some(Renewed::Unknown)
}

/// Returns whether a released hold existed, from arguments like those of [`kept`]. A store without
/// an answer is assumed to have had it: a hold is reported lost only when that is certain.
pub(super) fn held(answers: &[Option<bool>], open: usize) -> Option<bool> {
    let majority = majority(answers.len());
    let count = |of: Option<bool>| answers.iter().filter(|held| **held == of).count();
    let (held, silent) = (count(Some(true)), count(None));
    if held >= majority {
        Some(true)
    } else if held + silent < majority {
        Some(false)
    } else {
        (open == 0).then_some(true)
    }
}

/// Returns the status of a key according to most stores. Stores that have not answered are `None`,
/// and may know of any hold.
pub(super) fn status(answers: &[Option<LockStatus>]) -> LockStatus {
    let majority = majority(answers.len());
    let silent = answers.iter().filter(|status| status.is_none()).count();
    let known: Vec<&LockStatus> = answers.iter().flatten().collect();
    let has =
        |status: &&&LockStatus, owner: &OwnerId| status.holders.iter().any(|(holder, _)| holder == owner);

    let mut merged = LockStatus::free();
    for status in &known {
        let unseen = |owner: &OwnerId| !merged.holders.iter().any(|(seen, _)| seen == owner);
        let held =
            |owner: &OwnerId| known.iter().filter(|status| has(status, owner)).count() + silent >= majority;
        // A writer that also reads is listed twice.
        let more = status.holders.iter().filter(|(owner, _)| unseen(owner) && held(owner)).cloned();
        let more: Vec<_> = more.collect();
        merged.holders.extend(more);
    }
    merged.waiters = known.iter().map(|status| status.waiters).max().unwrap_or(0);
    merged.last_token = known.iter().filter_map(|status| status.last_token).max();
    let holding: Vec<&&LockStatus> =
        known.iter().filter(|status| merged.holders.iter().any(|(owner, _)| has(status, owner))).collect();
    merged.kind = holding.first().and_then(|status| status.kind);
    let times = |kind| holding.iter().filter(|status| status.kind == Some(kind)).count();
    let (readers, writers) = (times(Kind::Read), times(Kind::Write));
    if readers + writers > 0 {
        // A store that missed a downgrade still says `Write`. In a tie, a silent one may know.
        merged.kind = Some(if readers >= writers { Kind::Read } else { Kind::Write });
    }
    // The hold ends when fewer than a majority have it.
    let mut ends: Vec<Duration> = holding.iter().filter_map(|status| status.remaining).collect();
    ends.sort_unstable_by(|a, b| b.cmp(a));
    merged.remaining = ends.get(majority - 1).or(ends.last()).copied();
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::FencingToken;

    const R: Option<Renewed> = Some(Renewed::Held);
    const G: Option<Renewed> = Some(Renewed::Gone);
    const U: Option<Renewed> = Some(Renewed::Unknown);

    #[test]
    fn a_majority_renews() {
        assert_eq!(kept(&[R, R, None], 1), Some(Renewed::Held));
        assert_eq!(kept(&[R, G, R], 0), Some(Renewed::Held));
        assert_eq!(kept(&[R, None, None], 2), None);
        assert_eq!(kept(&[R, R, G, G, None], 1), None);
    }

    #[test]
    fn it_is_gone_when_no_majority_can_be() {
        assert_eq!(kept(&[R, G, G], 0), Some(Renewed::Gone));
        assert_eq!(kept(&[G, G, None], 1), Some(Renewed::Gone));
        assert_eq!(kept(&[R, Some(Renewed::Waiting(Duration::ZERO)), G], 0), Some(Renewed::Gone));
    }

    #[test]
    fn it_is_unknown_when_those_that_failed_decide() {
        assert_eq!(kept(&[R, G, None], 0), Some(Renewed::Unknown));
        assert_eq!(kept(&[R, G, U], 0), Some(Renewed::Unknown));
        assert_eq!(kept(&[None, None, R], 0), Some(Renewed::Unknown));
    }

    #[test]
    fn a_hold_existed_unless_a_majority_had_none() {
        assert_eq!(held(&[Some(true), Some(true), None], 1), Some(true));
        assert_eq!(held(&[Some(true), Some(false), None], 1), None);
        assert_eq!(held(&[Some(true), Some(false), None], 0), Some(true));
        assert_eq!(held(&[Some(false), Some(false), None], 1), Some(false));
        assert_eq!(held(&[Some(true), Some(false), Some(false)], 0), Some(false));
    }

    fn holding(owner: &str, seconds: u64, token: u64) -> Option<LockStatus> {
        let mut status = LockStatus::free();
        status.kind = Some(Kind::Mutex);
        status.holders = vec![(OwnerId::new(owner), 1)];
        status.remaining = Some(Duration::from_secs(seconds));
        status.last_token = Some(FencingToken::new(token));
        Some(status)
    }

    #[test]
    fn who_holds_a_majority_is_the_holder() {
        let merged = status(&[holding("a", 30, 7), holding("b", 50, 9), holding("a", 20, 8)]);
        assert_eq!(merged.holders, [(OwnerId::new("a"), 1)]);
        assert_eq!(merged.remaining, Some(Duration::from_secs(20)));
        assert_eq!(merged.last_token, Some(FencingToken::new(9)));
        assert_eq!(merged.kind, Some(Kind::Mutex));

        let free = status(&[holding("a", 30, 7), Some(LockStatus::free()), Some(LockStatus::free())]);
        assert!(!free.is_locked() && free.remaining.is_none() && free.kind.is_none());
        assert_eq!(free.last_token, Some(FencingToken::new(7)));

        // The third may have it too.
        assert!(status(&[holding("a", 30, 7), Some(LockStatus::free()), None]).is_locked());
    }

    #[test]
    fn a_downgrade_counts_once_most_stores_know_it() {
        let of = |kind| {
            let mut status = holding("a", 30, 7)?;
            status.kind = Some(kind);
            Some(status)
        };
        for late in 0..3 {
            let mut answers = vec![of(Kind::Read); 3];
            answers[late] = of(Kind::Write);
            assert_eq!(status(&answers).kind, Some(Kind::Read), "{late}");
            answers[(late + 1) % 3] = None;
            assert_eq!(status(&answers).kind, Some(Kind::Read), "{late}");
        }
    }
}
