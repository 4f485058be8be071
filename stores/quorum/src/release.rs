//! Release: sent to all stores at once; answered once a majority has, and the gate if it is quick.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::kit::Backoff;
use lock_core::store::{Echo, Few, ReleaseRequest, Released, Rivals, StoreError};

use super::calls::{Answers, Quorum};
use super::{merge, undo};

/// Maximum wait of a release for the gate once a majority has answered: the gate refuses tries
/// until it has heard of the release. A gate that is down costs each release this time, until it is
/// known to be down.
const GATE_TIME: Duration = Duration::from_millis(50);

/// The stores' answers.
struct Count {
    /// By item, then by node.
    held: Vec<Vec<Option<bool>>>,
    answered: usize,
    released: Released,
    errors: Vec<(usize, StoreError)>,
}

impl Count {
    fn put(&mut self, node: usize, answer: Result<Released, StoreError>) {
        match answer {
            Ok(released) => {
                self.answered += 1;
                for (held, at_node) in self.held.iter_mut().zip(released.held) {
                    if let Some(place) = held.get_mut(node) {
                        *place = Some(at_node);
                    }
                }
                self.released.rivals = self.released.rivals.max(released.rivals);
            }
            Err(error) => self.errors.push((node, error)),
        }
    }
}

pub(super) async fn release(
    quorum: Arc<Quorum>,
    request: Arc<ReleaseRequest>,
) -> Result<Released, StoreError> {
    let strays = quorum.strays.end(&request.items, quorum.now(), request.timeout);
    let began = quorum.now();
    let timeout = request.timeout * 3 / 4;
    // No takeover could be made at all stores in the same step.
    // The stores may answer after this call has: they get a separate echo.
    let echo = Echo::default();
    let own_watch = request.own_watch.as_ref().map(|_| echo.clone());
    let part = Arc::new(ReleaseRequest { then: None, timeout, own_watch, ..(*request).clone() });
    let mut answers = quorum.ask(quorum.all(), timeout, |_, store| store.release(Arc::clone(&part)));
    let mut count = Count {
        held: vec![vec![None; quorum.len()]; request.items.len()],
        answered: 0,
        released: Released { held: Few::new(), rivals: Rivals::None, then: None },
        errors: Vec::new(),
    };
    // A lingering release leaves the key taken at the gate.
    let gate = quorum.gates().first().copied().filter(|_| request.linger.is_zero());
    let mut gate_until: Option<Tick> = None;
    loop {
        let open = answers.open();
        let held: Option<Few<bool>> = count.held.iter().map(|held| merge::held(held, open)).collect();
        let enough = count.answered >= quorum.majority();
        if let Some(held) = held.filter(|_| enough || open == 0) {
            count.released.held = held;
            gate_until.get_or_insert(quorum.now() + GATE_TIME);
            if !gate.is_some_and(|gate| answers.silent().contains(&gate)) {
                break;
            }
        }
        let answer = match gate_until {
            None => answers.next().await,
            Some(until) => {
                let left = until.since(quorum.now());
                tokio::time::timeout(left, answers.next()).await.unwrap_or_default()
            }
        };
        match answer {
            Some((node, answer)) => count.put(node, answer),
            None => break,
        }
    }
    undo::settle(&quorum, strays);
    if let Some(own) = request.own_watch.as_ref().filter(|_| echo.is_expected()) {
        own.expect();
    }
    let Count { answered, released, errors, .. } = count;
    let outcome = if answered >= quorum.majority() { Ok(released) } else { Err(too_few(&quorum, &errors)) };
    // After an error, the engine re-sends the release.
    let patience = if outcome.is_ok() { quorum.options.max_lease } else { request.timeout };
    let failed: Vec<usize> =
        errors.into_iter().filter(|(_, error)| error.is_transient()).map(|(node, _)| node).collect();
    if answers.open() > 0 || !failed.is_empty() {
        quorum.options.tasks.clone().spawn(go_on(quorum, part, answers, failed, began, patience));
    }
    outcome
}

/// Repeats the release at stores that could not be reached, at most for the longest lease.
/// Otherwise such a store would hold up waiters, especially the gate, which they ask first.
async fn go_on(
    quorum: Arc<Quorum>,
    part: Arc<ReleaseRequest>,
    mut answers: Answers<Released>,
    mut failed: Vec<usize>,
    began: Tick,
    patience: Duration,
) {
    let late = quorum.late.try_acquire();
    // With too many such releases, the rest are left to their leases.
    let patience = if late.is_ok() { patience } else { patience.min(part.timeout) };
    let mut backoff = Backoff::default();
    loop {
        while let Some((node, answer)) = answers.next().await {
            if answer.is_err_and(|error| error.is_transient()) {
                failed.push(node);
            }
        }
        let pause = backoff.next_pause();
        if failed.is_empty() || quorum.now() + pause >= began + patience {
            return;
        }
        tokio::time::sleep(pause).await;
        // The hold lingers until the same moment as at other stores.
        let linger = part.linger.saturating_sub(quorum.now().since(began));
        let again = Arc::new(ReleaseRequest { linger, ..(*part).clone() });
        let nodes = std::mem::take(&mut failed);
        answers = quorum.ask(nodes, part.timeout, |_, store| store.release(Arc::clone(&again)));
    }
}

/// Makes the error for fewer than a majority of answers. The engine re-sends the release, whatever
/// the stores have done.
pub(super) fn too_few(quorum: &Quorum, errors: &[(usize, StoreError)]) -> StoreError {
    let mut message = format!("fewer than a majority of {} stores have answered", quorum.len());
    for (node, error) in errors {
        message.push_str(&format!("; {}: {error}", node + 1));
    }
    // An error with an unknown outcome is worse than one without an effect.
    let error = errors.iter().find(|(_, error)| error.outcome_unknown()).or(errors.first());
    let kind = error.map_or(lock_core::store::StoreErrorKind::Unanswered, |(_, error)| error.kind());
    StoreError::new(kind, message)
}
