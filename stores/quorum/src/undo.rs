//! Undoing: gives back the votes of a lost ballot, and withdraws acquires of unknown outcome.

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::kit::Backoff;
use lock_core::store::{AcquireRequest, LockStore, StoreError, Withdrawn};

use super::ballots::ballots_of;
use super::calls::Quorum;
use super::strays::Stray;
use super::votes::{Certain, Tally};

/// Maximum delay before a store that can't be reached is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Gives back everything that the ballot has left behind; returns the nodes where that is
/// uncertain. Unanswered withdrawals go on, and undo whatever they find on arrival, even a later
/// grant to the same owner.
pub(super) async fn undo(
    quorum: &Arc<Quorum>,
    request: &AcquireRequest,
    tally: &Tally,
    limit: Duration,
) -> Vec<usize> {
    let remnants = tally.remnants();
    let nodes = remnants.iter().map(|remnant| remnant.node);
    let mut answers = quorum.ask(nodes, limit, |node, store| {
        Box::pin(withdraw_all(Arc::clone(store), ballots_of(request).of(node)))
    });
    let mut unsettled = Vec::new();
    while let Some((node, answer)) = answers.next().await {
        let certain = remnants.iter().any(|remnant| remnant.node == node && remnant.certain == Certain::Held);
        match answer {
            Ok(Withdrawn::Settled) => {}
            Ok(Withdrawn::Pending(_)) if certain => {}
            Ok(Withdrawn::Pending(_)) | Err(_) => unsettled.push(node),
        }
    }
    unsettled
}

/// Withdraws requests from one store.
async fn withdraw_all(
    store: Arc<dyn LockStore>,
    requests: Vec<Arc<AcquireRequest>>,
) -> Result<Withdrawn, StoreError> {
    let mut all = Withdrawn::Settled;
    for request in requests {
        all = later(all, store.withdraw(request).await?);
    }
    Ok(all)
}

fn later(one: Withdrawn, other: Withdrawn) -> Withdrawn {
    match (one, other) {
        (Withdrawn::Pending(one), Withdrawn::Pending(other)) => Withdrawn::Pending(one.max(other)),
        (Withdrawn::Settled, either) | (either, Withdrawn::Settled) => either,
    }
}

/// Undoes the request at every store that it was sent to. A store that can't be reached is settled
/// when everything it could have granted has expired.
pub(super) async fn withdraw(
    quorum: Arc<Quorum>,
    request: Arc<AcquireRequest>,
) -> Result<Withdrawn, StoreError> {
    quorum.strays.end(&request.items, quorum.now(), request.timeout);
    if request.seal().is_none() {
        return Ok(Withdrawn::Settled);
    }
    let sent = ballots_of(&request).withdraw();
    let limit = request.timeout * 7 / 8;
    let mut answers = quorum.ask(sent.iter().map(|sent| sent.node), limit, |node, store| {
        let requests = sent.iter().filter(|sent| sent.node == node).flat_map(|sent| sent.requests.clone());
        Box::pin(withdraw_all(Arc::clone(store), requests.collect()))
    });
    let mut all = Withdrawn::Settled;
    let (mut failed, mut answered) = (None, answers.open() == 0);
    while let Some((node, answer)) = answers.next().await {
        match answer {
            Ok(withdrawn) => {
                answered = true;
                all = later(all, withdrawn);
            }
            Err(error) => {
                let last =
                    sent.iter().find(|sent| sent.node == node).map_or_else(|| quorum.now(), |sent| sent.sent);
                // The local clock may be a little faster than the store's.
                let over = last + request.timeout + request.lease + request.lease / 50;
                let left = over.since(quorum.now());
                if !left.is_zero() {
                    all = later(all, Withdrawn::Pending(left.min(ASK_AGAIN)));
                    failed = Some(error);
                }
            }
        }
    }
    match failed {
        Some(error) if !answered => Err(error),
        _ => Ok(all),
    }
}

/// Withdraws, in the background, requests that may still be executed although their owner has
/// released its keys.
pub(super) fn settle(quorum: &Arc<Quorum>, strays: Vec<Stray>) {
    for stray in strays {
        let quorum = Arc::clone(quorum);
        quorum.options.tasks.clone().spawn(async move {
            let _late = quorum.late.try_acquire();
            let mut backoff = Backoff::default();
            loop {
                let limit = stray.request.timeout.max(ASK_AGAIN);
                let call = |_, store: &Arc<dyn LockStore>| store.withdraw(Arc::clone(&stray.request));
                let answer = quorum.ask([stray.node], limit, call).next().await;
                let wait = match answer {
                    Some((_, Ok(Withdrawn::Settled))) | None => return,
                    Some((_, Ok(Withdrawn::Pending(wait)))) => wait,
                    Some((_, Err(_))) => backoff.next_pause(),
                };
                // A hold taken after that ends with its lease.
                if quorum.now() >= stray.until + ASK_AGAIN {
                    return;
                }
                tokio::time::sleep(wait.clamp(Duration::from_millis(1), limit)).await;
            }
        });
    }
}
