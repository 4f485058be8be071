//! [`Hold`] and [`Grant`]: what this process has at the store, and which local generation may use it.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::is_of_permits;
use lock_core::internal::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use lock_core::internal::sync::{Mutex, lock};
use lock_core::internal::time;
use lock_core::store::{
    AcquireRequest, Few, Item, KeepItem, Kept, Kind, StoreError, StoreErrorKind, TokenRange,
};
use lock_core::{FencingToken, LockKey, Replication};
use tokio_util::sync::CancellationToken;

use super::caller::Caller;
use super::lane::Lane;
use super::machine::Pass;
use crate::failure::Loss;
use crate::terms::Lease;

/// What is taken off a lease for clocks that run at different rates: a hundredth of it and 2 ms.
pub(crate) fn drift_margin(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// The ticks of an engine: what is due at one tick shares calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ticks {
    /// As a part of one tick: engines that were started together do not call together.
    pub(crate) phase: f64,
}

impl Ticks {
    /// The last tick before `due`.
    pub(crate) fn before(self, due: Tick, length: Duration) -> Tick {
        let phase = length.mul_f64(self.phase);
        (due.saturating_sub(phase).rounded_down(length) + phase).min(due)
    }
}

/// One remote hold: (key, owner) at the store, with the time until which it is certain. It may be of several keys, which
/// are taken, renewed, lost and released together.
///
/// The deadline only grows, and once the hold is lost it stays lost: a late renewal does not revive it.
pub(crate) struct Hold {
    /// The key, or the first of several. Its kind is the one that was asked for, see [`Hold::kind`].
    pub item: Item,
    /// The other keys, with their tokens.
    more: Box<[(Item, FencingToken)]>,
    /// A hold for writing that has become one for reading, or is about to.
    reads: AtomicBool,
    /// An earlier copy of its request was not answered; it is withdrawn when the hold has been released.
    pub(crate) unanswered: Option<Arc<AcquireRequest>>,
    /// As it was asked for.
    pub(crate) lease: Lease,
    /// What has been confirmed of its grant.
    pub(crate) replication: Replication,
    deadline: AtomicU64,
    lost: OnceLock<Loss>,
    renewing: AtomicBool,
    /// What renewals ask for, in nanoseconds.
    renewal_lease: AtomicU64,
    /// Failed renewals since the last success.
    failures: AtomicU64,
}

impl Hold {
    /// A hold whose request was sent at `sent`.
    pub(crate) fn new(item: Item, lease: Lease, sent: Tick) -> Self {
        let duration = lease.duration;
        let deadline = (sent + duration).saturating_sub(drift_margin(duration));
        Self {
            item,
            more: Box::default(),
            reads: AtomicBool::new(false),
            unanswered: None,
            lease,
            replication: Replication::NONE,
            deadline: AtomicU64::new(deadline.as_nanos()),
            lost: OnceLock::new(),
            renewing: AtomicBool::new(lease.is_renewed),
            renewal_lease: AtomicU64::new(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
            failures: AtomicU64::new(0),
        }
    }

    /// The hold that the store has granted to `request`, which was sent at `sent`; `None` without tokens.
    pub(crate) fn granted(
        request: &AcquireRequest,
        tokens: &[TokenRange],
        lease: Lease,
        sent: Tick,
    ) -> Option<Self> {
        let items = request.items.iter().zip(tokens);
        let mut items = items.map(|(item, range)| (item.clone(), FencingToken::new(range.last)));
        let (first, _) = items.next()?;
        let (more, replication) = (items.collect(), request.replication);
        Some(Self { more, replication, ..Self::new(first, lease, sent) })
    }

    /// A hold that the store has granted for less than was asked for, at some time after `since`.
    pub(crate) fn until(mut self, since: Tick, lease: Duration) -> Self {
        let deadline = (since + lease).saturating_sub(drift_margin(lease));
        self.deadline = AtomicU64::new(deadline.as_nanos());
        self
    }

    /// Its (first) key's kind.
    pub(crate) fn kind(&self) -> Kind {
        if self.reads.load(Ordering::Acquire) { Kind::Read } else { self.item.kind }
    }

    /// From now on it is one for reading; `false` when it was that already.
    pub(crate) fn mark_downgraded(&self) -> bool {
        !self.reads.swap(true, Ordering::AcqRel)
    }

    /// All its keys, as they are held.
    pub(crate) fn items(&self) -> Few<Item> {
        let first = Item { kind: self.kind(), ..self.item.clone() };
        std::iter::once(first).chain(self.more.iter().map(|(item, _)| item.clone())).collect()
    }

    /// What a renewal of all its keys asks for.
    pub(crate) fn keep_items(&self, lease: Duration) -> impl Iterator<Item = KeepItem> {
        let retention = self.lease.retention;
        self.items().into_iter().map(move |item| KeepItem::hold(item, lease).retention(retention))
    }

    /// Whether it is of permits, which are at the store's semaphores.
    pub(crate) fn is_of_permits(&self) -> bool {
        is_of_permits(&self.item.owner)
    }

    /// How many keys it has.
    pub(crate) fn width(&self) -> usize {
        1 + self.more.len()
    }

    pub(crate) fn is_single(&self) -> bool {
        self.more.is_empty()
    }

    /// The other keys and their tokens.
    pub(crate) fn more(&self) -> impl Iterator<Item = (&LockKey, FencingToken)> {
        self.more.iter().map(|(item, token)| (&item.key, *token))
    }

    /// How it holds `key`, if it does, and which of its keys that is.
    pub(crate) fn find(&self, key: &LockKey) -> Option<(Kind, u16)> {
        if self.item.key == *key {
            return Some((self.kind(), 0));
        }
        let at = self.more.iter().position(|(item, _)| item.key == *key)?;
        self.more.get(at).and_then(|(item, _)| Some((item.kind, u16::try_from(at + 1).ok()?)))
    }

    /// Until when the hold is certain.
    pub(crate) fn deadline(&self) -> Tick {
        Tick::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    pub(crate) fn is_valid(&self, now: Tick) -> bool {
        !self.is_marked_lost() && now < self.deadline()
    }

    /// Whether it was declared lost (its deadline may be over without anybody having noticed yet).
    pub(crate) fn is_marked_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Why it was declared lost.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.lost.get().copied()
    }

    /// Declares it lost; `true` for the first caller, whose reason stays.
    pub(crate) fn mark_lost(&self, why: Loss) -> bool {
        self.lost.set(why).is_ok()
    }

    /// A renewal to `lease` that was sent at `sent` succeeded. `false` when the hold was over already, by the clock or
    /// by declaration: who has seen it lost never sees it held again, and the caller declares it lost.
    pub(crate) fn renewed(&self, sent: Tick, now: Tick, lease: Duration) -> bool {
        let deadline = (sent + lease).saturating_sub(drift_margin(lease));
        let longer = |old: u64| (now.as_nanos() < old).then(|| old.max(deadline.as_nanos()));
        if self.is_marked_lost()
            || self.deadline.fetch_update(Ordering::AcqRel, Ordering::Acquire, longer).is_err()
        {
            return false;
        }
        self.failures.store(0, Ordering::Release);
        true
    }

    /// A renewal failed; returns how many have in a row.
    pub(crate) fn renewal_failed(&self) -> u64 {
        self.failures.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Whether the last renewal failed; such a hold is not handed on.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.failures.load(Ordering::Acquire) > 0
    }

    /// What a renewal asks for.
    pub(crate) fn renewal_lease(&self) -> Duration {
        Duration::from_nanos(self.renewal_lease.load(Ordering::Acquire))
    }

    /// The watchdog renews it to this from now on: a renewed call was made inside it.
    pub(crate) fn renew_to(&self, lease: Duration) {
        let nanos = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        // First: the timekeeper looks whether it is renewed, then to what.
        self.renewal_lease.store(nanos, Ordering::Release);
        self.renewing.store(true, Ordering::Release);
    }

    /// Whether the watchdog renews it at present.
    pub(crate) fn is_renewing(&self) -> bool {
        self.renewing.load(Ordering::Acquire)
    }

    /// When it is to be renewed, a third of the lease from now, or else its deadline. A hold with less than half of what
    /// renewals ask for is renewed at once: it had a shorter fixed lease before.
    pub(crate) fn next_renewal(&self, ticks: Ticks, now: Tick) -> Tick {
        if !self.is_renewing() {
            return self.deadline();
        }
        let lease = self.renewal_lease();
        if self.deadline() < now + lease / 2 {
            return now;
        }
        // Holds of about the same age share a call.
        ticks.before(now + lease / 3, lease / 60).min(self.deadline())
    }

    pub(crate) fn stop_renewing(&self) {
        self.renewing.store(false, Ordering::Release);
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("key", &self.item.key)
            .field("owner", &self.item.owner)
            .field("lease", &self.lease)
            .field("deadline", &self.deadline())
            .field("lost", &self.is_marked_lost())
            .finish_non_exhaustive()
    }
}

/// What became of a hold of several keys: it is lost when one of them is. An error when that can't be told.
pub(super) fn all_kept(each: impl IntoIterator<Item = Kept>) -> Result<Kept, StoreError> {
    let each = each.into_iter().map(|kept| match kept {
        Kept::Renewed => Ok(Kept::Renewed),
        Kept::Unknown => {
            let message = "no answer for one of its keys";
            Err(StoreError::new(StoreErrorKind::Unreachable, message))
        }
        Kept::Gone | Kept::Waiting(_) => Ok(Kept::Gone),
    });
    let worse = |all, one| match (all, one) {
        (Ok(Kept::Gone), _) | (_, Ok(Kept::Gone)) => Ok(Kept::Gone),
        (Err(error), _) | (_, Err(error)) => Err(error),
        (Ok(kept), Ok(_)) => Ok(kept),
    };
    // None at all is no answer.
    each.reduce(worse).unwrap_or(Ok(Kept::Gone))
}

/// A guard's part in a hold.
#[derive(Clone, Debug)]
pub struct Entry {
    pub grant: Arc<Grant>,
    /// It was made inside another one: no store call was needed.
    pub(crate) reentrant: bool,
    /// The grant came from a local hand-off.
    pub(crate) handed_off: bool,
    /// It is only of this one of the grant's several keys. Small: an entry is in every guard, and so in every locked body.
    pub(crate) part: Option<u16>,
}

impl Entry {
    /// Its (first) key and token.
    pub fn first(&self) -> (&LockKey, FencingToken) {
        let hold = &self.grant.hold;
        let part = self.part.and_then(|part| hold.more().nth(usize::from(part).checked_sub(1)?));
        part.unwrap_or((&hold.item.key, self.grant.token))
    }

    /// All its keys and tokens.
    pub fn tokens(&self) -> impl Iterator<Item = (&LockKey, FencingToken)> {
        let more = self.part.is_none().then(|| self.grant.hold.more());
        std::iter::once(self.first()).chain(more.into_iter().flatten())
    }
}

/// [`Grant::state`]: somebody has seen that it is lost.
const LOST: u8 = 1;
/// [`Grant::state`]: its guard was released.
const ENDED: u8 = 2;

/// One guard's share of a hold. Guards, scope nodes and views refer to it.
///
/// A local hand-off ends a grant and makes the next one, with the next token and a new lost signal,
/// on the same hold. Calls that enter again, and readers that share the hold, have a grant each,
/// with one token.
pub struct Grant {
    pub(crate) hold: Arc<Hold>,
    /// Where its entry is, and the entry's number there.
    pub(crate) lane: Arc<Lane>,
    pub(crate) number: u64,
    pub(crate) token: FencingToken,
    /// End of `max_hold`, [`Tick::MAX`] without one.
    pub(crate) max_hold_end: Tick,
    /// When its guard was made.
    pub(crate) granted_at: Tick,
    /// The task that acquired it.
    pub(crate) task: Option<Caller>,
    signals: Mutex<Signals>,
    /// Why it was lost, once somebody has been told.
    told: OnceLock<Loss>,
    /// [`LOST`] and [`ENDED`]. Lost is never taken back, and not added after the end.
    state: AtomicU8,
}

/// Who is told that a grant is lost.
#[derive(Default)]
struct Signals {
    /// Made for the first who wants to hear of it: mostly nobody does.
    lost: Option<CancellationToken>,
    /// Cancelled with it: tokens of guards of several grants.
    followers: Vec<CancellationToken>,
}

impl Grant {
    pub(crate) fn new(pass: Pass, lane: Arc<Lane>, task: Option<Caller>, now: Tick) -> Self {
        let Pass { number, hold, token, max_hold_end, .. } = pass;
        Self {
            hold,
            lane,
            number,
            token,
            max_hold_end,
            granted_at: now,
            task,
            signals: Mutex::default(),
            told: OnceLock::new(),
            state: AtomicU8::new(0),
        }
    }

    pub(crate) fn now(&self) -> Tick {
        self.lane.clock.now()
    }

    /// Until when this grant may be used, if nothing is renewed.
    pub(crate) fn deadline(&self) -> Tick {
        self.hold.deadline().min(self.max_hold_end)
    }

    /// Whether the lock was lost while this grant lasted. A function of the clock; needs no task and no store. Whoever
    /// finds it lost writes that down: a renewal that was under way, or the end of the grant, would hide it.
    pub fn is_lost(&self) -> bool {
        self.is_lost_by(|| self.now())
    }

    /// The same for who has just looked at the clock.
    pub(crate) fn is_lost_at(&self, now: Tick) -> bool {
        self.is_lost_by(|| now)
    }

    fn is_lost_by(&self, now: impl FnOnce() -> Tick) -> bool {
        match self.state.load(Ordering::Acquire) {
            0 => {
                let now = now();
                (!self.hold.is_valid(now) || now >= self.max_hold_end) && self.note_lost()
            }
            state => state & LOST != 0,
        }
    }

    /// `false` when it has ended in good order.
    fn note_lost(&self) -> bool {
        match self.state.compare_exchange(0, LOST, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(state) => state & LOST != 0,
        }
    }

    /// Why it is lost; asked of a grant that is.
    pub fn loss(&self) -> Loss {
        if let Some(&why) = self.told.get() {
            return why;
        }
        match self.hold.loss() {
            Some(why) if why != Loss::LeaseOver => why,
            _ if self.max_hold_end <= self.hold.deadline() => Loss::MaxHold,
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

    /// Its guard was released at `now`. The clock decides finally whether the lock was lost before.
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

    /// The lost signal. Whoever gets it looks afterwards whether the grant is lost, and fires it then: who fires it first
    /// writes down that it is lost, so that one of the two sees the other.
    fn signal(&self) -> CancellationToken {
        lock(&self.signals).lost.get_or_insert_default().clone()
    }

    /// Cancelled when the lock is lost.
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
        // Looked at after it is there, as of the signal.
        if self.is_lost() {
            self.fire();
        }
    }

    /// Time for which the grant is certain, if nothing is renewed.
    pub fn remaining(&self) -> Duration {
        if !self.is_live() {
            return Duration::ZERO;
        }
        self.deadline().since(self.now())
    }

    /// Resolves when the lock is lost, at the local deadline at the latest, without help from the store.
    ///
    /// Pending for ever after the grant ended in good order. Cancel safe.
    pub async fn lost(&self) {
        let signal = self.signal();
        loop {
            if self.is_lost() {
                // Whoever learns it first tells the others.
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
            // Early: the manager's runtime is gone, and so the hold is lost or has ended.
            if self.deadline() > self.now() {
                tokio::task::yield_now().await;
            }
        }
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("hold", &self.hold)
            .field("token", &self.token)
            .field("lost", &self.is_lost())
            .field("ended", &self.has_ended())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use lock_core::OwnerId;
    use lock_core::internal::clock::Clock;
    use tokio::runtime::Handle;

    use crate::machine::{Machine, Rules};
    use crate::spec::{LaneKind, Spec};

    fn hold(clock: Clock, lease: Lease) -> Arc<Hold> {
        let item = Item { key: LockKey::new("k").unwrap(), kind: Kind::Mutex, owner: OwnerId::new("o:1") };
        Arc::new(Hold::new(item, lease, clock.now()))
    }

    /// Makes a grant of a lane that nobody else knows.
    pub(crate) fn grant(hold: &Arc<Hold>, clock: Clock, runtime: Handle, max_hold_end: Tick) -> Arc<Grant> {
        let rules = Rules { call_timeout: LEASE, window: LEASE, ticks: Ticks::default() };
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

    const LEASE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_hold_ends_before_its_lease_by_the_margin() {
        let clock = Clock::tokio();
        let hold = hold(clock, Lease::fixed(LEASE));
        tokio::time::advance(LEASE - drift_margin(LEASE) - Duration::from_millis(1)).await;
        assert!(hold.is_valid(clock.now()));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!hold.is_valid(clock.now()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_renewal_does_not_revive_a_lost_hold() {
        let clock = Clock::tokio();
        let hold = hold(clock, Lease::renewed(LEASE));
        assert!(hold.mark_lost(Loss::TakenAway));
        assert!(!hold.mark_lost(Loss::LeaseOver));
        assert_eq!(hold.loss(), Some(Loss::TakenAway));
        assert!(!hold.renewed(clock.now(), clock.now(), LEASE));
        assert!(!hold.is_valid(clock.now()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_never_shortens() {
        let clock = Clock::tokio();
        let hold = hold(clock, Lease::renewed(LEASE));
        let before = hold.deadline();
        assert!(hold.renewed(clock.now(), clock.now(), Duration::from_secs(1)));
        assert_eq!(hold.deadline(), before);
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
        // The reply comes before the timekeeper has noticed.
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
