//! Renewal: a hold is renewed when a majority has renewed it; stores that have lost it are taken
//! again.

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::kit::Backoff;
use lock_core::store::{
    AcquireRequest, Item, Kind, LockStore, RenewItem, RenewRequest, Renewed, Standing, StoreError,
    StoreErrorKind,
};

use super::acquire::refuse_lease;
use super::calls::{Answers, Quorum, unanswered};
use super::merge;
use super::strays::{Renewing, Stray};

/// The kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewal {
    Renew,
    Downgrade,
}

pub(super) async fn renew(
    quorum: Arc<Quorum>,
    request: Arc<RenewRequest>,
    how: Renewal,
) -> Result<Vec<Renewed>, StoreError> {
    let waits = |renewal: &&RenewItem| renewal.standing != Standing::Holder;
    let too_long = |renewal: &&RenewItem| !waits(renewal) && refuse_lease(&quorum, renewal.lease).is_err();
    let part = |items: Vec<RenewItem>| (!items.is_empty()).then_some(items);
    let waiters = part(request.items.iter().filter(waits).cloned().collect());
    let holders = request.items.iter().filter(|renewal| !waits(renewal) && !too_long(renewal));
    let holders = part(holders.cloned().collect());
    if let (None, None, Some(renewal)) = (&waiters, &holders, request.items.first()) {
        refuse_lease(&quorum, renewal.lease)?;
    }
    let timeout = request.timeout * 3 / 4;

    // Places are kept only at the gate, where they are.
    let gate = quorum.gates().into_iter().take(1);
    let waiting = waiters.map(|items| {
        let request = Arc::new(RenewRequest { items, timeout });
        quorum.ask(gate, timeout, |_, store| store.renew(Arc::clone(&request)))
    });
    let held = match holders {
        Some(items) => Some(renew_all(&quorum, items, timeout, how).await),
        None => None,
    };
    let waiting = match waiting {
        Some(mut answer) => answer.next().await.map(|(_, answer)| answer),
        None => None,
    };
    // The answer is unknown only if all calls have failed.
    match (&held, &waiting) {
        (Some(Err(error)), None | Some(Err(_))) | (None, Some(Err(error))) => return Err(error.clone()),
        _ => {}
    }
    let mut held = held.and_then(Result::ok).unwrap_or_default().into_iter();
    let mut waiting = waiting.and_then(Result::ok).unwrap_or_default().into_iter();
    let answer = |renewal: &RenewItem| {
        let next = match renewal {
            renewal if waits(&renewal) => waiting.next(),
            // An item whose lease is too long does not affect the others.
            renewal if too_long(&renewal) => None,
            _ => held.next(),
        };
        next.unwrap_or(Renewed::Unknown)
    };
    Ok(request.items.iter().map(answer).collect())
}

/// The stores' answers about some holds.
struct Count {
    items: Vec<RenewItem>,
    /// By item, then by node.
    answers: Vec<Vec<Option<Renewed>>>,
    error: Option<StoreError>,
    answered: bool,
}

impl Count {
    fn put(&mut self, node: usize, answer: Result<Vec<Renewed>, StoreError>) {
        match answer {
            Ok(kept) => {
                self.answered = true;
                for (answers, kept) in self.answers.iter_mut().zip(kept) {
                    if let Some(place) = answers.get_mut(node) {
                        *place = Some(kept);
                    }
                }
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// Returns the result for each item; `None` while it depends on `open` more answers.
    fn outcome(&self, open: usize) -> Option<Vec<Renewed>> {
        self.answers.iter().map(|answers| merge::kept(answers, open)).collect()
    }

    /// Returns the nodes that have not answered.
    fn silent(&self) -> Vec<usize> {
        let nodes = self.answers.first().into_iter().flatten().enumerate();
        nodes.filter(|(_, kept)| kept.is_none()).map(|(node, _)| node).collect()
    }

    /// Returns the items that a majority holds, and the nodes that have lost them.
    fn lost(&self) -> Vec<(RenewItem, Vec<usize>)> {
        let mut lost = Vec::new();
        for (item, answers) in self.items.iter().zip(&self.answers) {
            let gone = answers.iter().enumerate().filter(|(_, kept)| **kept == Some(Renewed::Gone));
            let gone: Vec<usize> = gone.map(|(node, _)| node).collect();
            if !gone.is_empty() && merge::kept(answers, 0) == Some(Renewed::Held) {
                lost.push((item.clone(), gone));
            }
        }
        lost
    }
}

async fn renew_all(
    quorum: &Arc<Quorum>,
    items: Vec<RenewItem>,
    timeout: Duration,
    how: Renewal,
) -> Result<Vec<Renewed>, StoreError> {
    let renewing = quorum.strays.renewing(items.iter().map(|renewal| renewal.item.clone()).collect());
    let request = Arc::new(RenewRequest { items: items.clone(), timeout });
    let mut answers = quorum.ask(quorum.all(), timeout, |_, store| match how {
        Renewal::Renew => store.renew(Arc::clone(&request)),
        Renewal::Downgrade => store.downgrade(Arc::clone(&request)),
    });
    let unknown = vec![vec![None; quorum.len()]; items.len()];
    let mut count = Count { items, answers: unknown, error: None, answered: false };
    let outcome = loop {
        if let Some(outcome) = count.outcome(answers.open()) {
            break outcome;
        }
        match answers.next().await {
            Some((node, answer)) => count.put(node, answer),
            None => break count.outcome(0).unwrap_or_default(),
        }
    };
    let failed = if count.answered { None } else { count.error.take() };
    // A hold that is being downgraded is taken again only by the next renewal.
    match how {
        Renewal::Renew if answers.open() > 0 || !count.lost().is_empty() => {
            quorum.options.tasks.spawn(retake(Arc::clone(quorum), count, answers, renewing, timeout));
        }
        Renewal::Downgrade if outcome.contains(&Renewed::Held) => {
            quorum.options.tasks.spawn(downgrade_on(Arc::clone(quorum), count, answers, renewing, timeout));
        }
        _ => {}
    }
    match failed {
        Some(error) => Err(StoreError::new(error.kind(), format!("no store has renewed the lease: {error}"))),
        None => Ok(outcome),
    }
}

/// Repeats a downgrade at the stores that missed it, as long as the requested lease lasts.
/// Otherwise such a store would keep readers out, all of them if it is the gate.
async fn downgrade_on(
    quorum: Arc<Quorum>,
    mut count: Count,
    mut answers: Answers<Vec<Renewed>>,
    renewing: Renewing,
    timeout: Duration,
) {
    let Ok(_late) = quorum.late.try_acquire() else { return };
    let began = quorum.now();
    let mut backoff = Backoff::default();
    loop {
        while let Some((node, answer)) = answers.next().await {
            count.put(node, answer);
        }
        let nodes = count.silent();
        if nodes.is_empty() {
            return;
        }
        tokio::time::sleep(backoff.next_pause()).await;
        let passed = quorum.now().since(began);
        let left = |renewal: &RenewItem| {
            let lease = renewal.lease.saturating_sub(passed).max(Duration::from_millis(1));
            RenewItem { lease, ..renewal.clone() }
        };
        if renewing.has_ended() || count.items.iter().all(|renewal| renewal.lease <= passed) {
            return;
        }
        let request = Arc::new(RenewRequest { items: count.items.iter().map(left).collect(), timeout });
        answers = quorum.ask(nodes, timeout, |_, store| store.downgrade(Arc::clone(&request)));
    }
}

/// Takes a hold again at stores that have lost it while a majority held it. Since then, no other
/// owner can have got it.
async fn retake(
    quorum: Arc<Quorum>,
    mut count: Count,
    mut answers: Answers<Vec<Renewed>>,
    renewing: Renewing,
    timeout: Duration,
) {
    while let Some((node, answer)) = answers.next().await {
        count.put(node, answer);
    }
    let mut calls = Vec::new();
    for (renewal, nodes) in count.lost() {
        for node in nodes {
            // Ignores the queue at this store: the majority has already decided.
            let kind = if renewal.item.kind == Kind::Fair { Kind::Mutex } else { renewal.item.kind };
            let item = Item { kind, ..renewal.item.clone() };
            let timeout = timeout.min(renewal.lease / 4);
            let request = AcquireRequest::new(vec![item.clone()], renewal.lease, timeout);
            let request = Arc::new(request.indirect().retention(renewal.retention));
            if !renewing.retakes(&item.owner, Stray::new(node, Arc::clone(&request), quorum.now())) {
                continue;
            }
            let ask = |_, store: &Arc<dyn LockStore>| store.acquire(Arc::clone(&request));
            let answer = quorum.ask([node], timeout, ask);
            calls.push((item, request, answer));
        }
    }
    for (item, request, mut answer) in calls {
        let answer = answer.next().await.map_or_else(|| Err(unanswered("no answer")), |(_, answer)| answer);
        match answer {
            Err(error) if error.kind() == StoreErrorKind::Unanswered => {}
            _ => renewing.answered(&item, &request),
        }
    }
}
