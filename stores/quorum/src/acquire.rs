//! Acquire: asks the gate first, then all other stores at once, then raises the
//! [counters](super::raise).

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::{
    AcquireRequest, Acquired, BoxFuture, Busy, Few, Granted, Item, Kind, LockStore, ServerTime, StoreError,
    StoreErrorKind,
};

use super::ballots::{Attempt, Role, ballots_of};
use super::calls::{Answers, Quorum, unanswered};
use super::first;
use super::strays::Stray;
use super::tokens::Counters;
use super::undo;
use super::votes::{Tally, Verdict, Vote};

/// Maximum number of rounds in which busy stores are asked while the gate is held, unless giving up
/// would lose a place in a queue.
const ROUNDS: u32 = 3;
/// Maximum number of rounds whose pauses double.
const DOUBLINGS: u32 = 6;

/// Refuses a lease that exceeds the quarantine of a restarted store.
pub(super) fn refuse_lease(quorum: &Quorum, lease: Duration) -> Result<(), StoreError> {
    let longest = quorum.options.max_lease;
    if lease <= longest {
        return Ok(());
    }
    let message = format!(
        "a lease of {lease:?} exceeds the maximum of this quorum, {longest:?}, for which the vote of a store that \
         lost its data does not count. Use a shorter lease or a shorter `min_hold`; a renewed lock can be held for \
         any time"
    );
    Err(StoreError::new(StoreErrorKind::Unsupported, message))
}

pub(super) async fn acquire(
    quorum: Arc<Quorum>,
    request: Arc<AcquireRequest>,
) -> Result<Acquired, StoreError> {
    quorum.abilities.allow(&request)?;
    refuse_lease(&quorum, request.lease)?;
    // The request is sent now, whatever the clocks of the stores say: a later withdrawal has to ask
    // them.
    if request.stamp(ServerTime::from_micros(1)) == ServerTime::from_micros(0) {
        return Err(withdrawn());
    }
    let Some(attempt) = ballots_of(&request).begin() else { return Err(unsettled()) };
    // The gates have three eighths of the time, the votes a quarter, raising and undoing an eighth
    // each.
    let step = (request.timeout / 8).max(Duration::from_millis(1));
    first::first_use(&quorum, step).await;
    let ballot =
        Election { attempt, tally: Tally::new(quorum.len()), began: quorum.now(), step, quorum, request };
    ballot.hold().await
}

pub(super) fn withdrawn() -> StoreError {
    StoreError::new(StoreErrorKind::TooLate, "the request was withdrawn before it was sent")
}

fn unsettled() -> StoreError {
    let message = "an earlier attempt of this request is under way, or being undone; use a new owner";
    StoreError::new(StoreErrorKind::Unsettled, message)
}

/// One attempt.
pub(super) struct Election {
    pub(super) quorum: Arc<Quorum>,
    pub(super) request: Arc<AcquireRequest>,
    pub(super) attempt: Attempt,
    pub(super) tally: Tally,
    pub(super) began: Tick,
    /// Time-out of one call.
    pub(super) step: Duration,
}

/// The answer of the gate.
enum Gate {
    Passed(usize, Granted),
    Busy(Busy),
    /// No store answers.
    None,
}

impl Election {
    async fn hold(mut self) -> Result<Acquired, StoreError> {
        let granted = match self.gate().await? {
            Gate::None => None,
            Gate::Busy(busy) => {
                // The gate has spoken for all stores.
                let busy = Ok(busy);
                self.undo(&busy).await?;
                return busy.map(Acquired::Busy);
            }
            Gate::Passed(gate, granted) => self.vote(gate, granted).await?,
        };
        if let Some(granted) = granted {
            ballots_of(&self.request).settled();
            return Ok(Acquired::Granted(granted));
        }
        let held = !self.tally.remnants().is_empty();
        let again = self.quorum.pause(1.0, 4.0).max(Duration::from_millis(1));
        let won = self.tally.verdict(0) == Verdict::Won;
        let refusal = if won {
            // Its tokens could not be recorded, or others have got them: it is retried soon.
            let moment = self.tally.grants().first().map(|(_, granted)| granted.moment).unwrap_or_default();
            Ok(Busy { item: 0, remaining: Some(again), moment, listeners: 0, ahead: 0 })
        } else {
            self.tally.refusal()
        };
        self.undo(&refusal).await?;
        let busy = refusal?;
        if held && !won {
            // Prevents rivals that have split the votes from meeting again.
            tokio::time::sleep(again).await;
        }
        Ok(Acquired::Busy(busy))
    }

    /// Asks the stores in order, until one answers.
    async fn gate(&mut self) -> Result<Gate, StoreError> {
        let quorum = Arc::clone(&self.quorum);
        // With this many stores down there is no majority.
        let most = quorum.len() - quorum.majority() + 1;
        let limit = self.request.timeout * 3 / 8 / u32::try_from(most).unwrap_or(u32::MAX);
        for node in quorum.gates().into_iter().take(most) {
            let ballot = self.ballot(node, Role::Gate)?;
            let asked = quorum.now();
            let answer =
                quorum.ask([node], limit, |_, store| store.acquire(Arc::clone(&ballot))).next().await;
            self.note_latest(&ballot);
            match answer.map_or_else(|| Err(unanswered("no answer")), |(_, answer)| answer) {
                Ok(Acquired::Granted(granted)) => {
                    quorum.round_trip_was(quorum.now().since(asked));
                    // Until its marker shows whether the vote counts.
                    self.tally.put(node, Vote::Void(unanswered("its marker has not been checked")));
                    return Ok(Gate::Passed(node, granted));
                }
                Ok(Acquired::Busy(busy)) => {
                    quorum.round_trip_was(quorum.now().since(asked));
                    return Ok(Gate::Busy(busy));
                }
                Err(error) => self.tally.put(node, Vote::from_error(error)),
            }
        }
        Ok(Gate::None)
    }

    /// Asks the other stores, while `gate` is held.
    async fn vote(&mut self, gate: usize, granted: Granted) -> Result<Option<Granted>, StoreError> {
        let quorum = Arc::clone(&self.quorum);
        // Skips stores that have just failed, unless every vote is needed.
        let failed = self.tally.unknown();
        let up = quorum.up();
        let enough = up.len() >= quorum.majority() && up.contains(&gate);
        let mut nodes = if enough { up } else { quorum.all() };
        nodes.retain(|node| !failed.contains(node));
        let mut gate_granted = Some(granted);
        let in_line =
            self.request.wait.is_some() && self.request.items.iter().any(|item| item.kind == Kind::Fair);
        for round in 1.. {
            let mut answers = self.ask_for_votes(&nodes, gate, &mut gate_granted)?;
            let verdict = self.count(&mut answers).await;
            if verdict == Verdict::Won {
                return self.won(gate, answers).await;
            }
            // No other request gets past the gate meanwhile. So it is worth waiting for the end of
            // a release, or of rivals that came through another gate.
            nodes = self.tally.worth_asking_again();
            let late = quorum.now().since(self.began) >= self.request.timeout * 3 / 8;
            if nodes.is_empty() || late || (round >= ROUNDS && !in_line) {
                break;
            }
            let pause = quorum.pause(1.0, 4.0) * (1 << round.saturating_sub(ROUNDS).min(DOUBLINGS));
            tokio::time::sleep(pause.min(self.step / 4)).await;
        }
        Ok(None)
    }

    fn ask_for_votes(
        &self,
        nodes: &[usize],
        gate: usize,
        granted: &mut Option<Granted>,
    ) -> Result<Answers<Vote>, StoreError> {
        let max_lease = self.quorum.options.max_lease;
        let step = self.step;
        let mut calls = Vec::with_capacity(nodes.len());
        for &node in nodes {
            let ballot = if node == gate { None } else { Some(self.ballot(node, Role::Vote)?) };
            calls.push((node, ballot));
        }
        let mut ballots = calls.into_iter();
        Ok(self.quorum.ask(nodes.iter().copied(), step * 2, |_, store| {
            let (store, ballot) = (Arc::clone(store), ballots.next().and_then(|(_, ballot)| ballot));
            let granted = granted.take_if(|_| ballot.is_none());
            Box::pin(vote_of(store, ballot, granted, max_lease, step))
        }))
    }

    /// Counts until the ballot is won, or all stores have answered.
    async fn count(&mut self, answers: &mut Answers<Vote>) -> Verdict {
        while self.tally.verdict(answers.open()) != Verdict::Won {
            let Some((node, answer)) = answers.next().await else { break };
            self.tally.put(node, answer.unwrap_or_else(|error| self.tally.failed(node, error)));
            ballots_of(&self.request).of(node).iter().for_each(|ballot| self.note_latest(ballot));
        }
        self.tally.verdict(0)
    }

    /// Raises the counters. A store that has not answered yet may hold the key too, or will.
    async fn won(&mut self, gate: usize, mut late: Answers<Vote>) -> Result<Option<Granted>, StoreError> {
        let quorum = Arc::clone(&self.quorum);
        for &node in late.silent() {
            self.tally.put(node, Vote::Unknown(unanswered("its answer was not needed")));
        }
        let grants = self.tally.grants();
        let moment = grants.iter().map(|(_, granted)| granted.moment).max().unwrap_or_default();
        let mut counters = Counters::new(quorum.majority(), self.request.items.len(), &grants);
        let mut unlifted = self.raise(&mut counters, moment).await?;
        if !counters.is_settled() {
            for stray in unlifted {
                let error = unanswered("its fencing counter could not be raised");
                self.tally.put(stray.node, Vote::Unknown(error));
            }
            // Then it is known what has to be undone.
            while let Some((node, answer)) = late.next().await {
                self.tally.put(node, answer.unwrap_or_else(Vote::from_error));
            }
            return Ok(None);
        }
        let now = quorum.now();
        for node in self.tally.unknown() {
            let ballots =
                ballots_of(&self.request).of(node).into_iter().filter(|ballot| ballot.wait.is_none());
            unlifted.extend(ballots.map(|ballot| Stray::new(node, ballot, now)));
        }
        for (node, ballot) in ballots_of(&self.request).places() {
            // Its place at an earlier gate would keep others waiting there after its release.
            if node != gate {
                let stray = Stray::new(node, ballot, now);
                unlifted.push(Stray { until: stray.until.max(now + quorum.longest_place), ..stray });
            }
        }
        quorum.strays.add(&self.request.items, &unlifted, now);
        if late.open() > 0 {
            let (strays, request) = (Arc::clone(&quorum.strays), Arc::clone(&self.request));
            quorum.options.tasks.spawn(async move {
                while let Some((node, answer)) = late.next().await {
                    let answered = !answer.is_err_and(|error| error.outcome_unknown());
                    if let Some(ballot) = ballots_of(&request).vote_of(node).filter(|_| answered) {
                        strays.answered(&request.items, &ballot);
                    }
                }
            });
        }
        Ok(Some(Granted { tokens: counters.tokens().into(), moment }))
    }

    /// Gives back everything that the attempt has got, before `refusal` is returned.
    async fn undo(&self, refusal: &Result<Busy, StoreError>) -> Result<(), StoreError> {
        let unsettled = undo::undo(&self.quorum, &self.request, &self.tally, self.step).await;
        if unsettled.is_empty() {
            ballots_of(&self.request).settled();
            return Ok(());
        }
        if refusal.is_ok() && self.request.wait.is_none() && self.quorum.late.available_permits() > 0 {
            // Nobody will re-send it, and a store that does not answer makes no difference: the
            // request is undone there in the background.
            self.undo_later(&unsettled);
            return Ok(());
        }
        let nodes: Vec<usize> = unsettled.iter().map(|node| node + 1).collect();
        let message = format!("{}; not yet undone at {nodes:?}", self.tally.lack());
        Err(StoreError::new(StoreErrorKind::Unsettled, message))
    }

    fn undo_later(&self, nodes: &[usize]) {
        let now = self.quorum.now();
        let strays = nodes.iter().flat_map(|&node| {
            let ballots = ballots_of(&self.request).of(node).into_iter();
            ballots.map(move |ballot| {
                let stray = Stray::new(node, ballot, now);
                // The store may hold the key already.
                Stray { until: stray.until.max(now + self.request.lease), ..stray }
            })
        });
        undo::settle(&self.quorum, strays.collect());
    }

    /// Returns the request to send to a node.
    fn ballot(&self, node: usize, role: Role) -> Result<Arc<AcquireRequest>, StoreError> {
        let request = &self.request;
        // A direct grant by a release would happen at one store only.
        let queues = |item: &Item| item.kind == Kind::Fair || self.quorum.queues(node, item.kind);
        let indirect = request.items.iter().any(queues);
        let make = || {
            // The gate has the order. Places at other stores date from when another store was the
            // gate. Requests that obeyed several queues could wait for each other.
            let items = request.items.iter().map(|item| match (role, item.kind) {
                (Role::Vote, Kind::Fair) => Item { kind: Kind::Mutex, ..item.clone() },
                _ => item.clone(),
            });
            let ballot = AcquireRequest::new(items.collect::<Few<_>>(), request.lease, self.step);
            let ballot = ballot.tokens(request.tokens).retention(request.retention);
            let ballot = if indirect { ballot.indirect() } else { ballot };
            match request.wait {
                Some(wait) if role == Role::Gate => ballot.queued(wait),
                _ => ballot,
            }
        };
        let ballot = ballots_of(request).ballot(self.attempt, node, role, self.quorum.now(), make);
        ballot.ok_or_else(withdrawn)
    }

    /// Extends the latest time at which the request may be executed by any store.
    pub(super) fn note_latest(&self, ballot: &AcquireRequest) {
        if let Some(latest) = ballot.latest() {
            self.request.raise_latest(latest);
        }
    }
}

/// Asks a store for its vote, and whether it counts. Without a ballot, the store has already
/// `granted` it.
fn vote_of(
    store: Arc<dyn LockStore>,
    ballot: Option<Arc<AcquireRequest>>,
    granted: Option<Granted>,
    max_lease: Duration,
    timeout: Duration,
) -> BoxFuture<Result<Vote, StoreError>> {
    Box::pin(async move {
        let granted = match (ballot, granted) {
            (Some(ballot), _) => match store.acquire(ballot).await? {
                Acquired::Granted(granted) => granted,
                Acquired::Busy(busy) => return Ok(Vote::No(busy)),
            },
            (None, Some(granted)) => granted,
            (None, None) => return Err(unanswered("asked twice")),
        };
        // Asked after the grant: a store that has lost its data would have granted it to anyone.
        Ok(match first::is_believed(&store, max_lease, timeout).await {
            Ok(()) => Vote::Yes(granted),
            Err(error) => Vote::Void(error),
        })
    })
}
