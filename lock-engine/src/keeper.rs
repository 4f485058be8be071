//! The timekeeper: renews holds in batches, and handles everything that is due. Beside it, holds
//! that the store has seen end are renewed at once.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::internal::chance::jitter;
use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::sync::{catch_panics, lock};
use lock_core::store::{AcquireRequest, BoxFuture, Item, RenewItem, Renewed, Standing, StoreError};
use tokio_util::sync::CancellationToken;

use super::hold::{Hold, all_renewed};
use super::lane::Lane;
use super::machine::{Input, PlaceKept};
use super::timers::Timers;
use super::{Engine, LONGEST_SLEEP};
use crate::metrics;
use crate::trace::TARGET;

/// Maximum number of holds renewed by one store call.
const BATCH: usize = 100;
/// Maximum number of lanes handled before other tasks of the runtime get their turn.
const TURN: usize = 10 * BATCH;

/// Tells the engine when the timekeeper is dropped with its runtime.
#[derive(Debug)]
pub(crate) struct OnTaskGone(pub(crate) Weak<Engine>);

impl Drop for OnTaskGone {
    fn drop(&mut self) {
        if let Some(engine) = self.0.upgrade() {
            engine.on_runtime_gone();
        }
    }
}

/// A hold, and the lane that it belongs to.
type InLane = (Arc<Lane>, Arc<Hold>);

/// Runs until the engine ends.
pub(crate) async fn run(alive: OnTaskGone, timers: Arc<Timers>, clock: Clock, ended: CancellationToken) {
    loop {
        let sleep = timers.sleep_until().since(clock.now()).min(LONGEST_SLEEP);
        tokio::select! {
            biased;
            () = ended.cancelled() => return,
            () = timers.earlier() => continue,
            () = tokio::time::sleep(sleep) => {}
        }
        let lanes = timers.due(clock.now(), TURN);
        let more = lanes.len() == TURN;
        let Some(engine) = alive.0.upgrade() else { return };
        engine.carry_out(lanes);
        drop(engine);
        if more {
            tokio::task::yield_now().await;
        }
    }
}

/// Renews at once what the store has seen end, until the engine ends.
pub(crate) async fn look_after_holds(
    engine: Weak<Engine>,
    mut lost: BoxFuture<Vec<Item>>,
    ended: CancellationToken,
) {
    loop {
        let items = tokio::select! {
            biased;
            () = ended.cancelled() => return,
            items = lost => items,
        };
        let Some(engine) = engine.upgrade() else { return };
        // A panic must not end this task: holds would be looked after no more.
        catch_panics(|| engine.look_at(&items));
        let Some(next) = engine.store.lost() else { return };
        lost = next;
        drop(engine);
        tokio::task::yield_now().await;
    }
}

impl Engine {
    /// Renews the holds with these items at once.
    fn look_at(self: &Arc<Self>, items: &[Item]) {
        let keys: HashSet<_> = items.iter().map(|item| &item.key).collect();
        let names: HashSet<_> = items.iter().map(|item| (&item.key, &item.owner)).collect();
        let is_named =
            |hold: &Arc<Hold>| hold.items().iter().any(|item| names.contains(&(&item.key, &item.owner)));
        let named = |lane: Arc<Lane>| {
            if !lane.spec.keys(&lane.key).any(|(key, _)| keys.contains(key)) {
                return None;
            }
            let hold = lock(&lane.state).machine.held().filter(|hold| is_named(hold)).cloned()?;
            Some((lane, hold))
        };
        let holds: Vec<InLane> = self.registry.all().into_iter().filter_map(named).collect();
        for batch in holds.chunks(BATCH) {
            self.spawn(renew_batch(Arc::clone(self), batch.to_vec()));
        }
    }

    fn carry_out(self: &Arc<Self>, lanes: Vec<(Tick, Weak<Lane>)>) {
        let (mut renew, mut waiting) = (Vec::new(), Vec::new());
        for (timer, lane) in lanes {
            let Some(lane) = lane.upgrade() else { continue };
            // A panic must not end the timekeeper, and with it every lock.
            catch_panics(|| {
                let due = self.with(&lane, |state, now| {
                    if state.timer == timer {
                        state.timer = Tick::MAX;
                    }
                    state.machine.on_time(now)
                });
                renew.extend(due.renew.map(|hold| (Arc::clone(&lane), hold)));
                waiting.extend(due.keep_place.then_some(lane));
            });
        }
        let (permits, locks): (Vec<_>, Vec<_>) =
            renew.into_iter().partition(|(_, hold): &InLane| hold.is_of_permits());
        for batch in locks.chunks(BATCH).chain(permits.chunks(BATCH)) {
            self.spawn(renew_batch(Arc::clone(self), batch.to_vec()));
        }
        for batch in waiting.chunks(BATCH) {
            self.spawn(keep_places(Arc::clone(self), batch.to_vec()));
        }
    }
}

/// Makes one renewal call; the result for one hold does not affect the others.
async fn renew_batch(engine: Arc<Engine>, holds: Vec<InLane>) {
    // A hold that was released meanwhile needs no renewal.
    let now = engine.clock.now();
    let renewed = |(lane, hold): &InLane| {
        let machine = &lock(&lane.state).machine;
        // A hold that is not renewed is only looked up, for what is left of its lease.
        let left = || machine.has(hold).then(|| hold.deadline().since(now).max(Duration::from_millis(1)));
        let lease = machine.renews(hold).or_else(left)?;
        Some((lease, Arc::clone(lane), Arc::clone(hold)))
    };
    let holds: Vec<_> = holds.iter().filter_map(renewed).collect();
    if holds.is_empty() {
        return;
    }
    let items = holds.iter().flat_map(|(lease, _, hold)| hold.renew_items(*lease)).collect();
    let (sent, result) = engine.renew(items).await;
    match result {
        Ok(kept) => {
            let mut kept = kept.into_iter();
            for (lease, lane, hold) in &holds {
                match all_renewed(kept.by_ref().take(hold.width())) {
                    // This does not affect a hold that is being released meanwhile: it is gone in
                    // good order.
                    Ok(kept) => drop(engine.kept(lane, hold, kept, sent, *lease)),
                    Err(error) => renewal_failed(&engine, lane, hold, &error),
                }
            }
        }
        Err(error) => holds.iter().for_each(|(_, lane, hold)| renewal_failed(&engine, lane, hold, &error)),
    }
}

fn renewal_failed(engine: &Arc<Engine>, lane: &Arc<Lane>, hold: &Arc<Hold>, error: &StoreError) {
    engine.tell(lane, Input::NotKept { hold });
    // Last, and with panics caught: the other holds of the call have to be retried, too.
    catch_panics(|| tracing::debug!(target: TARGET, key = %hold.item.key, %error, "renewal failed"));
}

/// Makes these lanes keep their places soon, and so look at the store.
fn keep_places_soon(engine: &Arc<Engine>, lanes: &[Arc<Lane>]) {
    // All at the same tick, so that they share calls.
    let life = engine.store.abilities().waiter_life;
    let due = engine.ticks.before(engine.clock.now() + life / 6, life / 8);
    lanes.iter().for_each(|lane| engine.tell(lane, Input::KeepPlace(due)));
}

/// Adds the lane's request, which the store has queued, to the key's crowd, if it waits for a
/// single fair lock.
pub(super) fn join_crowd(engine: &Engine, lane: &Arc<Lane>, request: &AcquireRequest) {
    // Only such requests are granted directly. Any other could block a free lock for as long as it
    // counts as alive.
    let direct = request.items.len() == 1 && request.direct;
    if direct && lane.spec.is_fair() && engine.store.abilities().far_waiters {
        engine.crowds.join(&lane.key, lane.id, Arc::downgrade(lane), engine.clock.now());
    }
}

/// Removes the lane from its crowd, because its request no longer waits at the store.
pub(super) fn leave_crowd(engine: &Arc<Engine>, lane: &Lane) {
    let near = engine.crowds.leave(&lane.key, lane.id, engine.clock.now());
    keep_places_soon(engine, &near);
}

/// Makes one call that keeps the places of waiters, and informs those that have lost theirs or were
/// granted their lock.
async fn keep_places(engine: Arc<Engine>, mut lanes: Vec<Arc<Lane>>) {
    let mut queued = Vec::with_capacity(lanes.len());
    lanes.retain(|lane| {
        let waits = lock(&lane.state).machine.queued.clone().filter(|queued| queued.is_noted);
        queued.extend(waits.clone());
        waits.is_some()
    });
    if lanes.is_empty() {
        return;
    }
    let standings: Vec<_> = lanes.iter().map(|lane| engine.crowds.standing(lane)).collect();
    let wait = |request: &AcquireRequest, standing| {
        let (items, lease) = (request.items.clone(), request.lease);
        items.into_iter().map(move |item| RenewItem { standing, ..RenewItem::hold(item, lease) })
    };
    let items = queued.iter().zip(&standings).flat_map(|(queued, at)| wait(&queued.request, *at)).collect();
    let sent = engine.clock.now();
    // Short enough to leave time for another call when one is lost.
    let timeout = engine.settings.call_timeout.min(engine.store.abilities().waiter_life / 5);
    let result = engine.kept_within(timeout, items).await;
    if let Err(error) = &result {
        catch_panics(
            || tracing::debug!(target: TARGET, %error, waiters = lanes.len(), "failed to keep places in queues"),
        );
    }
    let mut kept = result.unwrap_or_default().into_iter();
    let abilities = engine.store.abilities();
    for ((lane, queued), standing) in lanes.iter().zip(queued).zip(standings) {
        let each: Vec<Renewed> = kept.by_ref().take(queued.request.items.len()).collect();
        let about = PlaceKept {
            request: &queued.request,
            each: &each,
            sent,
            standing,
            // A far waiter may have come near meanwhile.
            next: if standing == Standing::Far { engine.crowds.standing(lane) } else { standing },
            is_seen: abilities.far_waiters || abilities.queues_mutexes,
        };
        // The answer is outdated for a request that is gone meanwhile, or is being re-sent.
        if !engine.with(lane, |state, now| state.machine.place_kept(&about, jitter(), now)) {
            continue;
        }
        let lost = each.contains(&Renewed::Gone);
        if lost {
            catch_panics(|| {
                metrics::requeued();
                tracing::debug!(target: TARGET, key = %lane.key, "lost its place in the queue");
            });
        }
        if standing != Standing::Far {
            keep_places_soon(&engine, &engine.crowds.kept(&lane.key, sent, lost));
        }
    }
}
