//! [`Grant`]: one guard's share of a hold, and the signals of its loss.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::atomic::{AtomicU8, Ordering};
use lock_core::internal::sync::{Mutex, lock};
use lock_core::internal::time;
use lock_core::{FencingToken, LockKey};
use tokio_util::sync::CancellationToken;

use super::caller::Caller;
use super::lane::Lane;
use super::machine::Pass;
use crate::failure::Loss;

/// Bit of [`Grant::state`]: the loss was observed.
const LOST: u8 = 1;
/// Bit of [`Grant::state`]: the guard was released.
const ENDED: u8 = 2;

/// One guard's share of a hold. Guards, scope nodes and views refer to it.
///
/// A local hand-off ends a grant and makes the next one on the same hold, with the next token and a
/// new lost signal. Re-entrant calls, and readers that share the hold, have a grant each, with the
/// same token.
#[derive(Debug)]
pub struct Grant {
    pub(crate) pass: Pass,
    /// The lane that has its entry.
    pub(crate) lane: Arc<Lane>,
    /// When its guard was made.
    pub(crate) granted_at: Tick,
    /// The task that acquired it.
    pub(crate) task: Option<Caller>,
    signals: Mutex<Signals>,
    /// Why it was lost, once the loss has been signalled.
    told: OnceLock<Loss>,
    /// [`LOST`] and [`ENDED`]. `LOST` is never removed, and not added after the end.
    state: AtomicU8,
}

/// The signals that are cancelled when a grant is lost.
#[derive(Debug, Default)]
struct Signals {
    /// Created on first use, since it is rarely needed.
    lost: Option<CancellationToken>,
    /// Cancelled with `lost`: tokens of guards of several grants.
    followers: Vec<CancellationToken>,
}

impl Grant {
    pub(crate) fn new(pass: Pass, lane: Arc<Lane>, task: Option<Caller>, now: Tick) -> Self {
        Self {
            pass,
            lane,
            granted_at: now,
            task,
            signals: Mutex::default(),
            told: OnceLock::new(),
            state: AtomicU8::new(0),
        }
    }

    /// Returns its (first) key and token.
    pub fn first(&self) -> (&LockKey, FencingToken) {
        let Pass { hold, token, part, .. } = &self.pass;
        let part = part.and_then(|part| hold.more().nth(usize::from(part).checked_sub(1)?));
        part.unwrap_or((&hold.item.key, *token))
    }

    /// Returns all its keys and tokens.
    pub fn tokens(&self) -> impl Iterator<Item = (&LockKey, FencingToken)> {
        let more = self.pass.part.is_none().then(|| self.pass.hold.more());
        std::iter::once(self.first()).chain(more.into_iter().flatten())
    }

    /// Whether its hold is being renewed.
    pub(crate) fn is_renewed(&self) -> bool {
        lock(&self.lane.state).machine.renews(&self.pass.hold).is_some()
    }

    pub(crate) fn now(&self) -> Tick {
        self.lane.clock.now()
    }

    /// Returns until when this grant may be used, if nothing is renewed.
    pub(crate) fn deadline(&self) -> Tick {
        self.pass.hold.deadline().min(self.pass.max_hold_end)
    }

    /// Whether the lock was lost while this grant lasted. A function of the clock; needs no task
    /// and no store. A loss that was seen is recorded, because a late renewal or the end of the
    /// grant would hide it.
    pub fn is_lost(&self) -> bool {
        self.is_lost_at(self.now())
    }

    /// Whether it was lost, for a caller that has just read the clock.
    pub(crate) fn is_lost_at(&self, now: Tick) -> bool {
        match self.state.load(Ordering::Acquire) {
            0 => (!self.pass.hold.is_valid(now) || now >= self.pass.max_hold_end) && self.note_lost(),
            state => state & LOST != 0,
        }
    }

    /// Records the loss; returns `false` when the grant had already ended in good order.
    fn note_lost(&self) -> bool {
        match self.state.compare_exchange(0, LOST, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(state) => state & LOST != 0,
        }
    }

    /// Returns why it is lost; only for a lost grant.
    pub fn loss(&self) -> Loss {
        if let Some(&why) = self.told.get() {
            return why;
        }
        match self.pass.hold.loss() {
            Some(why) if why != Loss::LeaseOver => why,
            _ if self.pass.max_hold_end <= self.pass.hold.deadline() => Loss::MaxHold,
            _ => Loss::LeaseOver,
        }
    }

    /// Whether the grant lasts and is not lost.
    pub fn is_live(&self) -> bool {
        !self.has_ended() && !self.is_lost()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) & ENDED != 0
    }

    /// Records that its guard is released at `now`. Returns whether the lock was lost before, which
    /// the clock decides now for good.
    pub(crate) fn end(&self, now: Tick) -> bool {
        self.is_lost_at(now);
        self.state.fetch_or(ENDED, Ordering::AcqRel) & LOST != 0
    }

    /// Fires the lost signal.
    pub(crate) fn signal_lost(&self) {
        self.note_lost();
        // The first reason stays.
        let _ = self.told.set(self.loss());
        self.fire();
    }

    fn fire(&self) {
        let mut signals = lock(&self.signals);
        let (lost, followers) = (signals.lost.clone(), std::mem::take(&mut signals.followers));
        drop(signals);
        lost.iter().chain(&followers).for_each(CancellationToken::cancel);
    }

    /// Returns the lost signal. Its receiver then checks whether the grant is lost, and fires the
    /// signal if so. The loss is always recorded before firing, so that one of the two sides sees
    /// the other.
    fn signal(&self) -> CancellationToken {
        lock(&self.signals).lost.get_or_insert_default().clone()
    }

    /// Returns a token that is cancelled when the lock is lost.
    pub fn cancellation_token(&self) -> CancellationToken {
        let signal = self.signal();
        if self.is_lost() {
            self.fire();
        }
        signal.child_token()
    }

    /// Cancels `token` when the lock is lost.
    pub fn cancel_with_it(&self, token: &CancellationToken) {
        let mut signals = lock(&self.signals);
        signals.followers.retain(|follower| !follower.is_cancelled());
        signals.followers.push(token.clone());
        drop(signals);
        // Checked after the token is registered, see `signal`.
        if self.is_lost() {
            self.fire();
        }
    }

    /// Returns how long the grant is certain, if nothing is renewed.
    pub fn remaining(&self) -> Duration {
        if !self.is_live() {
            return Duration::ZERO;
        }
        self.deadline().since(self.now())
    }

    /// Waits until the lock is lost, at the latest until the local deadline, without help from the
    /// store.
    ///
    /// Stays pending forever after the grant ended in good order. Cancel safe.
    pub async fn lost(&self) {
        let signal = self.signal();
        loop {
            if self.is_lost() {
                // The first observer tells the others.
                self.fire();
                return;
            }
            if self.has_ended() {
                return std::future::pending().await;
            }
            let left = self.deadline().since(self.now());
            if time::timeout(&self.lane.runtime, left, signal.cancelled()).await.is_some() {
                return;
            }
            // Woken early: the manager's runtime is gone, so the hold is lost or has ended.
            if self.deadline() > self.now() {
                tokio::task::yield_now().await;
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use lock_core::internal::clock::Clock;
    use tokio::runtime::Handle;

    use crate::hold::tests::{LEASE, hold};
    use crate::hold::{Hold, Ticks};
    use crate::machine::{Machine, Rules};
    use crate::spec::{LaneKind, Spec};
    use crate::terms::Lease;
    use lock_core::store::{Abilities, Kind};

    /// Makes a grant of a lane that no other code knows.
    pub(crate) fn grant(hold: &Arc<Hold>, clock: Clock, runtime: Handle, max_hold_end: Tick) -> Arc<Grant> {
        let abilities = Abilities::MUTEX;
        let rules = Arc::new(Rules {
            call_timeout: LEASE,
            window: LEASE,
            fallback: LEASE,
            ticks: Ticks::default(),
            abilities,
        });
        let spec = Spec::one(Kind::Mutex);
        let machine = Machine::new(hold.item.key.clone(), LaneKind::Mutex, spec, rules, false);
        let lane = Lane::new(machine, (0, 1), clock, runtime);
        let pass = Pass {
            number: 1,
            hold: Arc::clone(hold),
            token: FencingToken::new(1),
            max_hold_end,
            reentrant: false,
            handed_off: false,
            part: None,
        };
        Arc::new(Grant::new(pass, lane, None, clock.now()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_grant_that_said_lost_says_so_for_ever() {
        let clock = Clock::tokio();
        let hold = hold(clock, Lease::renewed(LEASE));
        let grant = grant(&hold, clock, Handle::current(), Tick::MAX);
        tokio::time::advance(LEASE - Duration::from_secs(1)).await;
        let sent = clock.now();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(grant.is_lost());
        // The answer arrives before the timekeeper has noticed the end.
        assert!(!hold.renewed(sent, clock.now(), LEASE));
        assert!(grant.is_lost());
    }

    #[tokio::test(start_paused = true)]
    async fn lost_fires_at_the_deadline_without_a_task() {
        let clock = Clock::tokio();
        let grant = grant(&hold(clock, Lease::fixed(LEASE)), clock, Handle::current(), Tick::MAX);
        let start = clock.now();
        grant.lost().await;
        assert!(grant.is_lost());
        assert!(clock.now().since(start) <= LEASE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_grant_that_ended_in_time_is_never_lost() {
        let clock = Clock::tokio();
        let grant = grant(&hold(clock, Lease::fixed(LEASE)), clock, Handle::current(), Tick::MAX);
        grant.end(clock.now());
        tokio::time::advance(LEASE * 2).await;
        assert!(!grant.is_lost());
        assert_eq!(grant.remaining(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn max_hold_ends_a_grant_although_the_hold_is_renewed() {
        let clock = Clock::tokio();
        let hold = hold(clock, Lease::renewed(LEASE));
        let end = clock.now() + Duration::from_secs(3);
        let grant = grant(&hold, clock, Handle::current(), end);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(grant.is_lost());
        assert!(hold.is_valid(clock.now()));
    }
}
