//! [`Hold`]: one hold of this process at the store, and until when it is certain.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::is_of_permits;
use lock_core::internal::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use lock_core::store::{
    AcquireRequest, Few, Item, Kind, RenewItem, Renewed, StoreError, StoreErrorKind, TokenRange,
};
use lock_core::{FencingToken, LockKey, Replication};

use crate::failure::Loss;
use crate::terms::Lease;

/// Returns the margin subtracted from a lease for clock drift: a hundredth of it and 2 ms.
pub(crate) fn drift_margin(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// The ticks of an engine: work that is due at the same tick shares calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ticks {
    /// Offset as a fraction of one tick: engines that were started together do not call together.
    pub(crate) phase: f64,
}

impl Ticks {
    /// Returns the last tick before `due`.
    pub(crate) fn before(self, due: Tick, length: Duration) -> Tick {
        let phase = length.mul_f64(self.phase);
        (due.saturating_sub(phase).rounded_down(length) + phase).min(due)
    }
}

/// One hold at the store, by (key, owner), and the time until which it is certain. It may have
/// several keys, which are taken, renewed, lost and released together.
///
/// The deadline only grows, and a lost hold stays lost: a late renewal does not revive it.
#[derive(Debug)]
pub(crate) struct Hold {
    /// The key, or the first of several. Its kind is the requested one, see [`Hold::kind`].
    pub item: Item,
    /// The other keys, with their tokens.
    more: Box<[(Item, FencingToken)]>,
    /// Whether this hold for writing has become one for reading, or is about to.
    reads: AtomicBool,
    /// The request, if an earlier copy of it was not answered; withdrawn once the hold is released.
    pub(crate) unanswered: Option<Arc<AcquireRequest>>,
    /// The lease, as requested.
    pub(crate) lease: Lease,
    /// How the grant was confirmed by replicas.
    pub(crate) replication: Replication,
    deadline: AtomicU64,
    lost: OnceLock<Loss>,
}

impl Hold {
    /// Creates a hold whose request was sent at `sent`.
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
        }
    }

    /// Creates the hold that the store has granted to `request`, which was sent at `sent`; `None`
    /// without tokens.
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

    /// Shortens the deadline of a hold that the store granted some time after `since`, for less
    /// than requested.
    pub(crate) fn until(mut self, since: Tick, lease: Duration) -> Self {
        let deadline = (since + lease).saturating_sub(drift_margin(lease));
        self.deadline = AtomicU64::new(deadline.as_nanos());
        self
    }

    /// Returns the kind of its (first) key.
    pub(crate) fn kind(&self) -> Kind {
        if self.reads.load(Ordering::Acquire) { Kind::Read } else { self.item.kind }
    }

    /// Turns it into a hold for reading; returns `false` when it was one already.
    pub(crate) fn mark_downgraded(&self) -> bool {
        !self.reads.swap(true, Ordering::AcqRel)
    }

    /// Returns all its items, as they are held.
    pub(crate) fn items(&self) -> Few<Item> {
        let first = Item { kind: self.kind(), ..self.item.clone() };
        std::iter::once(first).chain(self.more.iter().map(|(item, _)| item.clone())).collect()
    }

    /// Returns the items of a renewal of all its keys.
    pub(crate) fn renew_items(&self, lease: Duration) -> impl Iterator<Item = RenewItem> {
        let retention = self.lease.retention;
        self.items().into_iter().map(move |item| RenewItem::hold(item, lease).retention(retention))
    }

    /// Whether it holds permits, which are kept by the store's semaphores.
    pub(crate) fn is_of_permits(&self) -> bool {
        is_of_permits(&self.item.owner)
    }

    /// Returns how many keys it has.
    pub(crate) fn width(&self) -> usize {
        1 + self.more.len()
    }

    pub(crate) fn is_single(&self) -> bool {
        self.width() == 1
    }

    /// Returns the other keys and their tokens.
    pub(crate) fn more(&self) -> impl Iterator<Item = (&LockKey, FencingToken)> {
        self.more.iter().map(|(item, token)| (&item.key, *token))
    }

    /// Returns how it holds `key`, if it does, and the index of that key.
    pub(crate) fn find(&self, key: &LockKey) -> Option<(Kind, u16)> {
        if self.item.key == *key {
            return Some((self.kind(), 0));
        }
        let at = self.more.iter().position(|(item, _)| item.key == *key)?;
        self.more.get(at).and_then(|(item, _)| Some((item.kind, u16::try_from(at + 1).ok()?)))
    }

    /// Returns until when the hold is certain.
    pub(crate) fn deadline(&self) -> Tick {
        Tick::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    pub(crate) fn is_valid(&self, now: Tick) -> bool {
        !self.is_marked_lost() && now < self.deadline()
    }

    /// Whether it was declared lost. Its deadline may be over although nobody has noticed yet.
    pub(crate) fn is_marked_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Returns why it was declared lost.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.lost.get().copied()
    }

    /// Declares it lost; returns `true` to the first caller, whose reason stays.
    pub(crate) fn mark_lost(&self, why: Loss) -> bool {
        self.lost.set(why).is_ok()
    }

    /// Records a successful renewal to `lease`, sent at `sent`. Returns `false` when the hold was
    /// over already, by the clock or by declaration. A caller that has seen it lost must never see
    /// it held again, so the renewing caller then declares it lost.
    pub(crate) fn renewed(&self, sent: Tick, now: Tick, lease: Duration) -> bool {
        let deadline = (sent + lease).saturating_sub(drift_margin(lease));
        let longer = |old: u64| (now.as_nanos() < old).then(|| old.max(deadline.as_nanos()));
        !self.is_marked_lost()
            && self.deadline.fetch_update(Ordering::AcqRel, Ordering::Acquire, longer).is_ok()
    }
}

/// Combines the results for a hold of several keys, which is lost when one of its keys is. Returns
/// an error when the result is unknown.
pub(super) fn all_renewed(each: impl IntoIterator<Item = Renewed>) -> Result<Renewed, StoreError> {
    let severity = |kept: &Renewed| match kept {
        Renewed::Held => 0,
        Renewed::Unknown => 1,
        Renewed::Gone | Renewed::Waiting(_) => 2,
    };
    match each.into_iter().max_by_key(severity) {
        Some(Renewed::Held) => Ok(Renewed::Held),
        Some(Renewed::Unknown) => {
            Err(StoreError::new(StoreErrorKind::Unreachable, "no answer for one of its keys"))
        }
        // An empty answer counts as gone.
        Some(Renewed::Gone | Renewed::Waiting(_)) | None => Ok(Renewed::Gone),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use lock_core::OwnerId;
    use lock_core::internal::clock::Clock;

    pub(crate) fn hold(clock: Clock, lease: Lease) -> Arc<Hold> {
        let item = Item { key: LockKey::new("k").unwrap(), kind: Kind::Mutex, owner: OwnerId::new("o:1") };
        Arc::new(Hold::new(item, lease, clock.now()))
    }

    pub(crate) const LEASE: Duration = Duration::from_secs(10);

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
}
