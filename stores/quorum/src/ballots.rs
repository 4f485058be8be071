//! [`Ballots`]: the requests to single stores that a quorum derives from one request.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::internal::clock::Tick;
use lock_core::store::AcquireRequest;

/// The purpose of a ballot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It waits at the store when refused.
    Gate,
    /// It asks for a vote, and leaves nothing behind when refused.
    Vote,
    /// It raises the counter of one key.
    Raise,
}

/// The attempt that makes ballots. After the request was withdrawn, earlier attempts make no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt(u64);

/// Everything that was sent for a request. Each store has its own ballots, because it has its own
/// clock.
#[derive(Default)]
pub(super) struct Ballots(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    attempt: u64,
    /// Whether an attempt is under way, or withdrawals of one that has ended.
    unsettled: bool,
    made: Vec<Ballot>,
}

struct Ballot {
    node: usize,
    role: Role,
    request: Arc<AcquireRequest>,
    sent: Tick,
}

/// The requests sent to one store.
#[derive(Debug)]
pub(super) struct SentTo {
    pub(super) node: usize,
    pub(super) requests: Vec<Arc<AcquireRequest>>,
    /// When the last of them was sent.
    pub(super) sent: Tick,
}

/// Returns the ballots of `request`, which are attached to it.
pub(super) fn ballots_of(request: &AcquireRequest) -> &Ballots {
    request.attachment()
}

impl Ballots {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an attempt. `None` while an earlier one is [unsettled](Self::settled), because
    /// undoing that one would undo this one too.
    pub(super) fn begin(&self) -> Option<Attempt> {
        let mut inner = self.inner();
        let settled = !std::mem::replace(&mut inner.unsettled, true);
        settled.then_some(Attempt(inner.attempt))
    }

    /// Records that the attempt was granted, or that all calls that undo it were answered.
    pub(super) fn settled(&self) {
        self.inner().unsettled = false;
    }

    /// Returns the ballot to send to `node` now, the same as before if there is one. `None` when
    /// the request was withdrawn.
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
        // A ballot that was withdrawn before it was sent can't be sent any more.
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

    /// Returns the requests that were sent to a node.
    pub(super) fn of(&self, node: usize) -> Vec<Arc<AcquireRequest>> {
        let inner = self.inner();
        let ballots = inner.made.iter().filter(|ballot| ballot.node == node);
        ballots.map(|ballot| Arc::clone(&ballot.request)).collect()
    }

    /// Returns the request that asked a node for its vote.
    pub(super) fn vote_of(&self, node: usize) -> Option<Arc<AcquireRequest>> {
        let inner = self.inner();
        let ballot = inner.made.iter().rev().find(|ballot| ballot.node == node && ballot.role == Role::Vote);
        ballot.map(|ballot| Arc::clone(&ballot.request))
    }

    /// Returns the nodes where the request may have a place in a queue or an intent, with the
    /// requests that put it there.
    pub(super) fn places(&self) -> Vec<(usize, Arc<AcquireRequest>)> {
        let inner = self.inner();
        let waits = |ballot: &&Ballot| ballot.role == Role::Gate && ballot.request.wait.is_some();
        inner.made.iter().filter(waits).map(|ballot| (ballot.node, Arc::clone(&ballot.request))).collect()
    }

    /// Returns the requests sent to all nodes. The attempts under way send no more.
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
