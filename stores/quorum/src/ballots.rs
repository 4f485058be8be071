//! [`Ballots`]: the requests that a quorum makes of one, for its stores.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::internal::clock::Tick;
use lock_core::store::AcquireRequest;

/// What a ballot is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It waits at the store when it is refused.
    Gate,
    /// It asks for a vote, and leaves nothing behind when it is refused.
    Vote,
    /// It raises the counter of one key.
    Raise,
}

/// Which attempt makes ballots: an earlier one makes no more after the request was withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt(u64);

/// Everything that was sent for a request. Each store has ballots of its own, since each has its
/// own clock.
#[derive(Default)]
pub(super) struct Ballots(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    attempt: u64,
    /// An attempt is under way, or has ended without knowing that no withdrawal of it is.
    unsettled: bool,
    made: Vec<Ballot>,
}

struct Ballot {
    node: usize,
    role: Role,
    request: Arc<AcquireRequest>,
    sent: Tick,
}

/// What was sent to one store.
#[derive(Debug)]
pub(super) struct SentTo {
    pub(super) node: usize,
    pub(super) requests: Vec<Arc<AcquireRequest>>,
    /// When any of them was sent last.
    pub(super) sent: Tick,
}

/// Returns what was sent for `request`, which carries it along.
pub(super) fn ballots_of(request: &AcquireRequest) -> &Ballots {
    request.attachment()
}

impl Ballots {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` while an earlier attempt is [unsettled](Self::settled): what undoes it would undo
    /// this one too.
    pub(super) fn begin(&self) -> Option<Attempt> {
        let mut inner = self.inner();
        let settled = !std::mem::replace(&mut inner.unsettled, true);
        settled.then_some(Attempt(inner.attempt))
    }

    /// The attempt under way was granted, or everything that undoes it was answered.
    pub(super) fn settled(&self) {
        self.inner().unsettled = false;
    }

    /// The ballot to send to `node` now, the same as before if there is one. `None` when the
    /// request was withdrawn.
    pub(super) fn ballot(
        &self,
        attempt: Attempt,
        node: usize,
        role: Role,
        now: Tick,
        make: impl FnOnce() -> AcquireRequest,
    ) -> Option<Arc<AcquireRequest>> {
        let mut inner = self.inner();
        if inner.attempt != attempt.0 {
            return None;
        }
        let ballot = inner.made.iter_mut().find(|ballot| ballot.node == node && ballot.role == role);
        // One that was withdrawn before it was sent can't be sent any more.
        if let Some(ballot) =
            ballot.filter(|ballot| ballot.role != Role::Raise && !ballot.request.is_sealed())
        {
            ballot.sent = now;
            return Some(Arc::clone(&ballot.request));
        }
        let request = Arc::new(make());
        inner.made.push(Ballot { node, role, request: Arc::clone(&request), sent: now });
        Some(request)
    }

    /// What was sent to a node.
    pub(super) fn of(&self, node: usize) -> Vec<Arc<AcquireRequest>> {
        let inner = self.inner();
        let ballots = inner.made.iter().filter(|ballot| ballot.node == node);
        ballots.map(|ballot| Arc::clone(&ballot.request)).collect()
    }

    /// What asked a node for its vote.
    pub(super) fn vote_of(&self, node: usize) -> Option<Arc<AcquireRequest>> {
        let inner = self.inner();
        let ballot = inner.made.iter().rev().find(|ballot| ballot.node == node && ballot.role == Role::Vote);
        ballot.map(|ballot| Arc::clone(&ballot.request))
    }

    /// Where it may have a place in a queue, or an intent, and what has put it there.
    pub(super) fn places(&self) -> Vec<(usize, Arc<AcquireRequest>)> {
        let inner = self.inner();
        let waits = |ballot: &&Ballot| ballot.role == Role::Gate && ballot.request.wait.is_some();
        inner.made.iter().filter(waits).map(|ballot| (ballot.node, Arc::clone(&ballot.request))).collect()
    }

    /// What was sent to all nodes. The attempts under way send no more.
    pub(super) fn withdraw(&self) -> Vec<SentTo> {
        let mut inner = self.inner();
        inner.attempt += 1;
        let mut sent: Vec<SentTo> = Vec::new();
        for ballot in &inner.made {
            let request = Arc::clone(&ballot.request);
            match sent.iter_mut().find(|sent| sent.node == ballot.node) {
                Some(sent) => {
                    sent.requests.push(request);
                    sent.sent = sent.sent.max(ballot.sent);
                }
                None => sent.push(SentTo { node: ballot.node, requests: vec![request], sent: ballot.sent }),
            }
        }
        sent
    }
}

impl fmt::Debug for Ballots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<usize> = self.inner().made.iter().map(|ballot| ballot.node).collect();
        f.debug_tuple("Ballots").field(&nodes).finish()
    }
}
