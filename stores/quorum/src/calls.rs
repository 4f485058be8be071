//! [`Quorum`]: the stores, and calls to several of them at once.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::chance::jitter;
use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use lock_core::internal::tasks::Tasks;
use lock_core::store::{
    Abilities, BoxFuture, Kind, LockStore, MAX_TOKENS, Notices, StoreError, StoreErrorKind,
};
use tokio::sync::{Semaphore, mpsc};

use super::strays::Strays;
use super::votes::majority;

/// Time for which a failed store is asked only if there are not enough others.
const SHUNNED: Duration = Duration::from_secs(1);
/// Minimum and maximum of the assumed round trip, in nanoseconds.
const ROUND_TRIP: std::ops::RangeInclusive<u64> = 200_000..=50_000_000;

/// Maximum number of holds that are being given back to unreachable stores, as long as these may
/// have them. Holds beyond that are left to their leases.
const MOST_LATE: usize = 4096;

/// Settings of a [`QuorumStore`](super::QuorumStore).
#[derive(Clone, Debug)]
pub struct QuorumOptions {
    /// The local clock, the same as the engine's.
    pub clock: Clock,
    /// The runtime of calls that go on after they are no longer needed.
    pub tasks: Tasks,
    /// Time-out of calls without one.
    pub call_timeout: Duration,
    /// Time-out of [`check`](LockStore::check).
    pub connect_timeout: Duration,
    /// Maximum lease. For this time, a store that lost its data is not believed. All managers that
    /// use the same stores must have the same value.
    pub max_lease: Duration,
}

/// The stores of a quorum.
pub(super) struct Quorum {
    pub(super) options: QuorumOptions,
    pub(super) abilities: Abilities,
    /// Maximum time for which a store keeps a place without a sign of life.
    pub(super) longest_place: Duration,
    nodes: Box<[Node]>,
    pub(super) strays: Arc<Strays>,
    /// Permits for calls that go on in the background.
    pub(super) late: Semaphore,
    /// Whether the first use is done with.
    pub(super) in_use: AtomicBool,
    /// Duration of a call, in nanoseconds.
    round_trip: AtomicU64,
}

struct Node {
    store: Arc<dyn LockStore>,
    /// Until when it is left out, if possible.
    shunned_until: Arc<AtomicU64>,
}

/// Returns the abilities of a quorum of these stores. They are those that all of them have, without
/// the steps that would happen at one store only.
fn abilities(stores: &[Arc<dyn LockStore>], max_lease: Duration) -> Abilities {
    let each = || stores.iter().map(|store| store.abilities());
    let all = |has: fn(&Abilities) -> bool| each().all(has);
    let longest = |of: fn(&Abilities) -> Duration| each().map(of).max().unwrap_or_default();
    // Places are renewed as often as the store needs it that forgets them first.
    let shortest = |of: fn(&Abilities) -> Duration| each().map(of).min().unwrap_or_default();
    Abilities {
        name: "a quorum of these servers",
        fair: all(|store| store.fair),
        read_write: all(|store| store.read_write),
        downgrade: all(|store| store.downgrade),
        several: all(|store| store.several),
        shortest_lease: longest(|store| store.shortest_lease),
        lease_grain: longest(|store| store.lease_grain),
        longest_lease: each().filter_map(|store| store.longest_lease).chain([max_lease]).min(),
        shortens: all(|store| store.shortens),
        waiter_life: shortest(|store| store.waiter_life),
        intent_life: shortest(|store| store.intent_life),
        notices: if all(|store| store.notices == Notices::Pushed) {
            Notices::Pushed
        } else {
            Notices::Polled
        },
        counts_listeners: all(|store| store.counts_listeners),
        own_tokens: all(|store| store.own_tokens),
        most_tokens: each().map(|store| store.most_tokens).min().unwrap_or(MAX_TOKENS),
        scan: all(|store| store.scan),
        ..Abilities::MUTEX
    }
}

impl Quorum {
    pub(super) fn new(stores: Vec<Arc<dyn LockStore>>, options: QuorumOptions) -> Arc<Self> {
        let abilities = abilities(&stores, options.max_lease);
        let lives = stores.iter().map(|store| store.abilities().waiter_life);
        let longest_place = lives.max().unwrap_or_default();
        let nodes = stores.into_iter().map(|store| Node { store, shunned_until: Arc::default() });
        Arc::new(Self {
            options,
            abilities,
            longest_place,
            nodes: nodes.collect(),
            strays: Arc::default(),
            late: Semaphore::new(MOST_LATE),
            in_use: AtomicBool::new(false),
            round_trip: AtomicU64::new(0),
        })
    }

    pub(super) fn stores(&self) -> Vec<&Arc<dyn LockStore>> {
        self.nodes.iter().map(|node| &node.store).collect()
    }

    /// Whether the store keeps a queue for keys of this kind.
    pub(super) fn queues(&self, node: usize, kind: Kind) -> bool {
        self.nodes.get(node).is_some_and(|node| node.store.abilities().queues(kind))
    }

    pub(super) fn now(&self) -> Tick {
        self.options.clock.now()
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn majority(&self) -> usize {
        majority(self.len())
    }

    /// Returns all nodes, in order.
    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.len()).collect()
    }

    /// Returns the nodes that have not failed recently, in order.
    pub(super) fn up(&self) -> Vec<usize> {
        let now = self.now().as_nanos();
        let up = self.nodes.iter().enumerate();
        up.filter(|(_, node)| node.shunned_until.load(Ordering::Relaxed) <= now)
            .map(|(index, _)| index)
            .collect()
    }

    /// Returns the candidates for the gate, in order; nodes that have failed recently come last.
    pub(super) fn gates(&self) -> Vec<usize> {
        let mut gates = self.up();
        let down = self.all().into_iter().filter(|node| !gates.contains(node)).collect::<Vec<_>>();
        gates.extend(down);
        gates
    }

    /// Calls several stores at once. [`Answers::next`] returns each answer, or an error after
    /// `limit`. The calls run to their ends whatever becomes of the answers.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        nodes: impl IntoIterator<Item = usize>,
        limit: Duration,
        mut call: impl FnMut(usize, &Arc<dyn LockStore>) -> BoxFuture<Result<T, StoreError>>,
    ) -> Answers<T> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut open = Vec::new();
        for index in nodes {
            let Some(node) = self.nodes.get(index) else { continue };
            open.push(index);
            let (mut call, sender) = (call(index, &node.store), sender.clone());
            let (clock, shunned_until) = (self.options.clock, Arc::clone(&node.shunned_until));
            self.options.tasks.spawn(async move {
                let answer = tokio::time::timeout(limit, &mut call).await;
                let overdue = answer.is_err();
                let answer =
                    answer.unwrap_or_else(|_| Err(unanswered(&format!("no answer within {limit:?}"))));
                let down = answer.as_ref().is_err_and(is_down);
                let until = if down { clock.now() + SHUNNED } else { Tick::default() };
                shunned_until.store(until.as_nanos(), Ordering::Relaxed);
                // The receiver may be gone.
                let _ = sender.send((index, answer));
                if overdue {
                    // Stores have time-outs; this is for one that has none.
                    let _ = tokio::time::timeout(limit * 8, call).await;
                }
            });
        }
        Answers { receiver, open }
    }

    pub(super) fn round_trip_was(&self, time: Duration) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let known = self.round_trip.load(Ordering::Relaxed);
        let mean = if known == 0 { time } else { (known / 8 * 7).saturating_add(time / 8) };
        self.round_trip.store(mean, Ordering::Relaxed);
    }

    /// Returns a random pause of between `least` and `most` round trips.
    pub(super) fn pause(&self, least: f64, most: f64) -> Duration {
        let round_trip =
            self.round_trip.load(Ordering::Relaxed).clamp(*ROUND_TRIP.start(), *ROUND_TRIP.end());
        Duration::from_nanos(round_trip).mul_f64(least + (most - least) * jitter())
    }
}

/// Whether a store with this error should not be asked for a while.
fn is_down(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::Unreachable | StoreErrorKind::Unanswered | StoreErrorKind::ReadOnly
    )
}

pub(super) fn unanswered(message: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unanswered, message)
}

/// The answers of several stores.
#[derive(Debug)]
pub(super) struct Answers<T> {
    receiver: mpsc::UnboundedReceiver<(usize, Result<T, StoreError>)>,
    /// The nodes that have not answered.
    open: Vec<usize>,
}

impl<T> Answers<T> {
    /// Returns how many have not answered.
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// Returns the nodes that have not answered.
    pub(super) fn silent(&self) -> &[usize] {
        &self.open
    }

    /// Waits for the next answer and its node; returns `None` after the last.
    pub(super) async fn next(&mut self) -> Option<(usize, Result<T, StoreError>)> {
        if self.open.is_empty() {
            return None;
        }
        match self.receiver.recv().await {
            Some((node, answer)) => {
                self.open.retain(|open| *open != node);
                Some((node, answer))
            }
            // The task has panicked, or its runtime is gone.
            None => Some((self.open.pop()?, Err(unanswered("the call did not end")))),
        }
    }
}
