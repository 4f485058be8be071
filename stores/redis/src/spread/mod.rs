//! Stocks that are spread over slots: each segment is in its own slot, and the records of
//! operations are in the slots of 16 homes.
//!
//! An operation first writes at its [home](names) how many units it wants of which segments. Only
//! then does it touch the segments. A put moves a segment's units until the operation has what the
//! record wants, and refuses a version older than one seen before. So anyone who finds a record can
//! carry it out again, concurrently with others. The home's record decides.
//!
//! - [`record`]: the content of a record, and what it means for the segments. [`steps`]: the
//!   scripts. [`names`]: the keys.
//! - [`take`]: looks for units. [`settle`]: changes what was decided, and carries it out.
//! - [`layout`]: makes, retires and evens out segments. [`look`]: the content of all segments.
//!   [`sweep`]: finishes what others left.

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

/// Time, besides twice the call's time-out, after which others look at an operation that is not
/// decided or not carried out: its caller may still be at it.
const GRACE: Duration = Duration::from_secs(1);
/// Maximum number of tries when others come in between.
const TRIES: u32 = 12;
/// Maximum number of stocks whose number of segments is remembered.
const REMEMBERED: usize = 1024;

/// Remembered facts of stocks, so that a take need not ask for them.
#[derive(Clone, Debug, Default)]
struct Known(Arc<Mutex<HashMap<LockKey, Memory>>>);

#[derive(Clone, Debug)]
struct Memory {
    /// Number of segments.
    count: u32,
    /// Epoch of that number. A segment that knows another epoch says so.
    epoch: u64,
    /// Content of the segments when there were too few units for a take.
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
    /// Latest time that a home has told, in ms. All records that a call looks at one by one have
    /// the same home.
    home_time: AtomicU64,
}

impl Spread {
    fn new(topology: &Topology, known: &Known, call: &StockCall) -> Result<Self, StoreError> {
        let options = topology.options();
        let names = SpreadNames::new(&options.prefix, &call.stock)?;
        if !call.replication.is_none() {
            let what =
                "a spread stock does not wait for replicas; keep it in one slot, or leave out `replication`";
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

    /// Forgets the stock's facts if a segment knows another epoch.
    fn heard_of(&self, epoch: u64) {
        if self.remembered().is_some_and(|memory| memory.epoch != epoch) {
            self.doubt();
        }
    }

    /// Returns the time left until a time of the home (ms).
    fn until(&self, ends: u64) -> Duration {
        Duration::from_millis(ends.saturating_sub(self.home_time.load(Ordering::Relaxed)))
    }

    /// Sleeps for a short random time, longer with each try, so that others get through.
    async fn step_back(&self, nth: u32) {
        let most = Duration::from_millis(1 << nth.min(6));
        let most = most.min(self.left() / 8);
        tokio::time::sleep(most.mul_f64(lock_core::internal::chance::jitter())).await;
    }
}
