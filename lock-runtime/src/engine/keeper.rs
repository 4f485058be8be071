//! The timekeeper: renews holds in batches, and notices what is over.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::hold::Hold;
use super::timers::{Job, Timers};
use super::{Engine, WeakEngine};
use crate::clock::{Clock, Tick};
use crate::error::Loss;
use crate::store::KeepItem;
use crate::sync::shielded;

/// Most holds renewed by one store call.
const BATCH: usize = 100;
/// The longest sleep, so that a resumed machine is noticed: tokio's timers do not count suspend.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);

/// Tells the engine when the timekeeper is dropped with its runtime.
#[derive(Debug)]
pub(crate) struct Alive(WeakEngine);

impl Alive {
    pub(crate) fn new(engine: WeakEngine) -> Self {
        Self(engine)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if let Some(engine) = self.0.upgrade() {
            engine.on_runtime_gone();
        }
    }
}

/// Runs until the engine goes.
pub(crate) async fn run(alive: Alive, timers: Arc<Timers>, clock: Clock, ended: CancellationToken) {
    loop {
        let sleep = timers.sleep_until().since(clock.now()).min(LONGEST_SLEEP);
        tokio::select! {
            biased;
            () = ended.cancelled() => return,
            () = timers.earlier() => continue,
            () = tokio::time::sleep(sleep) => {}
        }
        let Some(engine) = alive.0.upgrade() else { return };
        engine.carry_out(timers.due(clock.now()));
    }
}

/// When the hold's job is due: its renewal, a third of the lease from now, or its deadline.
///
/// Renewals are rounded down to ticks of a sixtieth of the lease, so that holds of about the same age share a call. A
/// hold with less than half of what renewals ask for is renewed at once: it had a shorter fixed lease before.
pub(crate) fn next_renewal(hold: &Hold, now: Tick) -> Tick {
    if !hold.is_renewing() {
        return hold.deadline();
    }
    let lease = hold.renewal_lease();
    if hold.deadline() < now + lease / 2 {
        return now;
    }
    let due = now + lease / 3;
    let grain = u64::try_from((lease / 60).as_nanos()).unwrap_or(u64::MAX).max(1);
    let tick = Tick::from_nanos(due.as_nanos() / grain * grain);
    tick.min(hold.deadline())
}

/// When to try again after `failures` renewals in a row have failed: quickly, then slower, always before the
/// deadline.
fn next_retry(hold: &Hold, now: Tick, failures: u64) -> Tick {
    let longest = (hold.renewal_lease() / 15).min(Duration::from_secs(1));
    let pause =
        Duration::from_millis(20) * 2u32.saturating_pow(u32::try_from(failures.min(10)).unwrap_or(10));
    (now + pause.min(longest)).min(hold.deadline())
}

impl Engine {
    fn carry_out(self: &Arc<Self>, jobs: Vec<Job>) {
        let now = self.clock.now();
        let mut renew = Vec::new();
        for job in jobs {
            // A panic must not take the timekeeper with it, and so every lock.
            shielded(|| self.carry_out_one(job, now, &mut renew));
        }
        for batch in renew.chunks(BATCH) {
            self.spawn(renew_batch(Arc::clone(self), batch.to_vec()));
        }
    }

    fn carry_out_one(self: &Arc<Self>, job: Job, now: Tick, renew: &mut Vec<Arc<Hold>>) {
        match job {
            Job::Hold(hold) if !hold.is_valid(now) => self.lose(&hold, Loss::LeaseOver),
            Job::Hold(hold) => {
                // Until the answer comes, only the deadline matters.
                self.watch_at(&hold, || hold.deadline());
                if hold.is_renewing() {
                    renew.push(hold);
                }
            }
            Job::MaxHold(grant) => {
                if let Some(grant) = grant.upgrade()
                    && let Some(key) = self.registry.find(&grant.hold.item.key)
                {
                    self.act(&key, |machine, now, effects| machine.end_max_hold(&grant, now, effects));
                }
            }
            Job::Sweep(key) => {
                if let Some(key) = key.upgrade() {
                    self.act(&key, super::machine::Machine::sweep);
                }
            }
        }
    }
}

/// One renewal call; what it says about one hold does not touch the others.
async fn renew_batch(engine: Arc<Engine>, mut holds: Vec<Arc<Hold>>) {
    // Released meanwhile: nothing to renew.
    holds.retain(|hold| hold.is_renewing() && !hold.is_marked_lost());
    if holds.is_empty() {
        return;
    }
    let items: Vec<KeepItem> =
        holds.iter().map(|hold| KeepItem::hold(hold.item.clone(), hold.renewal_lease())).collect();
    let leases: Vec<Duration> = items.iter().map(|item| item.lease).collect();
    let (sent, result) = engine.keep(items).await;
    match result {
        Ok(kept) => {
            for ((hold, lease), kept) in holds.iter().zip(leases).zip(kept) {
                // Nothing happens to a hold that is being released meanwhile: it is gone in good order.
                let _ = engine.kept(hold, kept, sent, lease);
            }
        }
        Err(error) => {
            let now = engine.clock.now();
            tracing::debug!(%error, holds = holds.len(), "renewal failed");
            for hold in &holds {
                let failures = hold.renewal_failed();
                engine.watch_at(hold, || next_retry(hold, now, failures));
            }
        }
    }
}
