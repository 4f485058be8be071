//! Stocks that are spread over slots: each segment, and each operation's record, is where its name
//! says.
//!
//! What an operation wants of which segments is written at its [home](names) before the first
//! segment is touched. One step moves what a segment has of an operation to what is wanted, and
//! refuses what is older than what it has heard: so whoever finds a record can carry it out again,
//! side by side with others. What the home says is the verdict.
//!
//! - [`record`]: what a record says, and what it means for the segments. [`steps`]: the scripts.
//!   [`names`]: the keys.
//! - [`take`]: units are looked for, and found or not. [`settle`]: what was decided is carried out.
//! - [`layout`]: segments are made, retired and evened out. [`look`]: what all of them have.
//!   [`sweep`]: what others left.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::options::RedisOptions;
use super::topology::Topology;

mod layout;
mod look;
mod names;
mod record;
mod settle;
mod steps;
mod stocks;
mod sweep;
mod take;

use lock_core::LockKey;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::atomic::{AtomicU64, Ordering};
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::stock::StockCall;
use lock_core::store::{StoreError, StoreErrorKind};
use look::Seen;
use names::SpreadNames;
pub(super) use stocks::RedisLayouts;

/// After this long somebody else looks at what is not decided or not carried out, besides twice the
/// call's time-out: whoever has begun it may still be at it.
const GRACE: Duration = Duration::from_secs(1);
/// So often others may come in between.
const TRIES: u32 = 12;
/// Stocks whose number of segments is remembered.
const REMEMBERED: usize = 1024;

/// What is remembered of stocks, so that a take need not ask for it.
#[derive(Clone, Debug, Default)]
struct Known(Arc<Mutex<HashMap<LockKey, Memory>>>);

#[derive(Clone, Debug)]
struct Memory {
    /// How many segments there were.
    count: u32,
    /// In which epoch. A segment that has heard of another one says so.
    epoch: u64,
    /// What the segments had when there was too little for somebody.
    short: Option<Arc<Seen>>,
}

/// One call for a stock that is spread.
pub(super) struct Spread {
    topology: Topology,
    known: Known,
    key: LockKey,
    names: SpreadNames,
    deadline: Tick,
    grace: Duration,
    retention: Duration,
    /// What the home said last of its time, in ms, upwards. All records that a call looks at one by
    /// one have the same.
    home_time: AtomicU64,
}

impl Spread {
    fn new(topology: &Topology, known: &Known, call: &StockCall) -> Result<Self, StoreError> {
        let options = topology.options();
        let names = SpreadNames::new(&options.prefix, &call.stock)?;
        if !call.replication.is_none() {
            let what = "replicas are not waited for where a stock is spread; keep it in one slot, or leave the policy out";
            return Err(StoreError::new(StoreErrorKind::Unsupported, what));
        }
        Ok(Self {
            key: call.stock.clone(),
            names,
            deadline: options.clock.now() + call.timeout,
            grace: call.timeout.saturating_mul(2).saturating_add(GRACE),
            retention: call.retention,
            topology: topology.clone(),
            known: known.clone(),
            home_time: AtomicU64::new(0),
        })
    }

    fn options(&self) -> &RedisOptions {
        self.topology.options()
    }

    fn now(&self) -> Tick {
        self.options().clock.now()
    }

    fn left(&self) -> Duration {
        self.deadline.since(self.now())
    }

    fn remember(&self, count: u32, epoch: u64) {
        let mut known = lock(&self.known.0);
        if known.len() >= REMEMBERED && !known.contains_key(&self.key) {
            known.clear();
        }
        let short = known.remove(&self.key).and_then(|memory| memory.short);
        known.insert(self.key.clone(), Memory { count, epoch, short });
    }

    fn remembered(&self) -> Option<Memory> {
        lock(&self.known.0).get(&self.key).cloned()
    }

    fn remember_short(&self, seen: Seen) {
        if let Some(memory) = lock(&self.known.0).get_mut(&self.key) {
            memory.short = Some(Arc::new(seen));
        }
    }

    fn doubt(&self) {
        lock(&self.known.0).remove(&self.key);
    }

    /// A segment has heard of this epoch.
    fn heard_of(&self, epoch: u64) {
        if self.remembered().is_some_and(|memory| memory.epoch != epoch) {
            self.doubt();
        }
    }

    /// What is left until a time of the home (ms).
    fn until(&self, ends: u64) -> Duration {
        Duration::from_millis(ends.saturating_sub(self.home_time.load(Ordering::Relaxed)))
    }

    /// A little while, longer with each try, in which others get through.
    async fn step_back(&self, nth: u32) {
        let most = Duration::from_millis(1 << nth.min(6));
        let most = most.min(self.left() / 8);
        tokio::time::sleep(most.mul_f64(lock_core::internal::chance::jitter())).await;
    }
}
