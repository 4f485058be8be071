//! [`SemaphoreStore`]: where the permits of semaphores are kept.

use std::any::Any;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use super::latest::Latest;
use super::request::Attachment;
use super::{AcquireRequest, BoxFuture, Moment, ServerTime, StoreError, Watch, Withdrawn};
use crate::key::LockKey;
use crate::token::OwnerId;

/// Maximum number of permits in one request.
pub const MAX_PERMITS: u32 = 1000;

/// The id of one held permit: 16 bytes, as in Redisson; displayed as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitId([u8; 16]);

impl PermitId {
    /// Creates the permit id with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, as a store keeps them.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns the ids of the `permits` permits of `owner`. They are the same in each call of one
    /// program: a re-sent or withdrawn request has the ids of the first.
    #[doc(hidden)]
    pub fn of(owner: &OwnerId, permits: u32) -> Vec<Self> {
        // Keyed with constants: two 64-bit hashes make a fingerprint of 128 bits. Owners are
        // random, so no stronger hash is needed.
        let half = |which: u8, permit: u32| {
            let mut hasher = DefaultHasher::new();
            (which, owner.as_str(), permit).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        (0..permits).map(|permit| Self((half(0, permit) << 64 | half(1, permit)).to_be_bytes())).collect()
    }
}

/// Makes the owner of `permits` permits, whose text contains that number.
pub fn owner_of(owner: &OwnerId, permits: u32) -> OwnerId {
    OwnerId::new(format!("{owner}#{permits}"))
}

/// Whether the owner was made by [`owner_of`].
pub fn is_of_permits(owner: &OwnerId) -> bool {
    owner.as_str().contains('#')
}

/// Returns the permits of an owner made by [`owner_of`].
pub fn ids_of(owner: &OwnerId) -> Vec<PermitId> {
    let permits = owner.as_str().rsplit_once('#').and_then(|(_, permits)| permits.parse().ok());
    PermitId::of(owner, permits.unwrap_or(1))
}

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PermitId({self})")
    }
}

/// A request for permits, all or nothing.
#[derive(Debug)]
pub struct PermitsRequest {
    /// The semaphore.
    pub key: LockKey,
    /// The permits' ids: 1 to [`MAX_PERMITS`], all different.
    pub ids: Vec<PermitId>,
    /// Time to live of the permits, counted by the store from the moment it grants them.
    pub lease: Duration,
    /// The store refuses to execute the request later than this after it was sent.
    pub timeout: Duration,
    stamped: Stamped,
}

#[derive(Debug)]
enum Stamped {
    Here(Latest, Attachment),
    /// The engine's request, which this one translates for the store.
    There(Arc<AcquireRequest>),
}

impl PermitsRequest {
    /// Creates a request for these permits.
    #[must_use]
    pub fn new(key: LockKey, ids: Vec<PermitId>, lease: Duration, timeout: Duration) -> Self {
        Self { key, ids, lease, timeout, stamped: Stamped::Here(Latest::default(), Attachment::default()) }
    }

    /// Translates the engine's `request` into permits. Shares its lease, time-out and stamp.
    #[doc(hidden)]
    pub fn of(request: Arc<AcquireRequest>, key: LockKey, ids: Vec<PermitId>) -> Self {
        let (lease, timeout) = (request.lease, request.timeout);
        Self { key, ids, lease, timeout, stamped: Stamped::There(request) }
    }

    /// Stamps the request, as [`AcquireRequest::stamp`] does.
    pub fn stamp(&self, estimate: ServerTime) -> ServerTime {
        match &self.stamped {
            Stamped::Here(latest, _) => latest.stamp(estimate, self.timeout),
            Stamped::There(request) => request.stamp(estimate),
        }
    }

    /// Seals the request, as [`AcquireRequest::seal`] does.
    pub fn seal(&self) -> Option<ServerTime> {
        match &self.stamped {
            Stamped::Here(latest, _) => latest.seal(),
            Stamped::There(request) => request.seal(),
        }
    }

    /// Returns the latest time of execution, as [`AcquireRequest::latest`] does.
    #[must_use]
    pub fn latest(&self) -> Option<ServerTime> {
        match &self.stamped {
            Stamped::Here(latest, _) => latest.get(),
            Stamped::There(request) => request.latest(),
        }
    }

    /// Returns what a store keeps beside the request, as [`AcquireRequest::attachment`] does.
    #[doc(hidden)]
    pub fn attachment<T: Any + Default + Send + Sync>(&self) -> &T {
        match &self.stamped {
            Stamped::Here(_, attachment) => attachment.get(),
            Stamped::There(request) => request.attachment(),
        }
    }
}

/// The answer to a [`PermitsRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitsAcquired {
    /// Every permit is held, since this moment.
    Granted(Moment),
    /// Not enough permits are left; none was taken.
    Busy(PermitsBusy),
}

/// Not enough permits are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitsBusy {
    /// How many are left. Negative when the number of permits was set to fewer than are held.
    pub available: i64,
    /// When the first held permit comes back if nobody renews it, never zero; `None` when no permit
    /// ends by itself. Of the permits of other [sessions](super::LateRequests::BySession), the
    /// store does not know.
    pub remaining: Option<Duration>,
    /// When the store looked.
    pub moment: Moment,
}

/// Gives permits back.
#[derive(Clone, Debug)]
pub struct PermitsRelease {
    /// The semaphore.
    pub key: LockKey,
    /// The permits.
    pub ids: Vec<PermitId>,
    /// The call resolves within about this time.
    pub timeout: Duration,
}

/// Permits to renew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitsHold {
    /// The semaphore.
    pub key: LockKey,
    /// The permits.
    pub ids: Vec<PermitId>,
    /// The remaining time of each becomes at least this.
    pub lease: Duration,
}

/// Renews permits, each on its own.
#[derive(Clone, Debug)]
pub struct PermitsRenew {
    /// The permits, of any semaphores.
    pub holds: Vec<PermitsHold>,
    /// The call resolves within about this time.
    pub timeout: Duration,
}

/// A change of the number of permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permits {
    /// Sets the number, unless the semaphore has been given one before.
    TrySet(u32),
    /// Sets the total number, including the held permits. The number left may become negative.
    Set(u32),
    /// Adds to the number, or subtracts from it.
    Add(i32),
}

/// Changes the number of permits of a semaphore.
#[derive(Clone, Debug)]
pub struct PermitsChange {
    /// The semaphore.
    pub key: LockKey,
    /// The change.
    pub permits: Permits,
    /// The call resolves within about this time.
    pub timeout: Duration,
}

/// How many permits a semaphore has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PermitCounts {
    /// How many are left. Negative when the number was set to fewer than are held.
    pub available: i64,
    /// How many are held.
    pub acquired: u64,
}

impl PermitCounts {
    /// Returns how many there are in total, left and held.
    #[must_use]
    pub fn total(&self) -> i64 {
        self.available.saturating_add_unsigned(self.acquired)
    }
}

/// A place where the permits of semaphores are kept.
///
/// A semaphore has a number of permits that are left, and held permits, each with an id and a
/// lease. The [rules](super) are those of a [`LockStore`](super::LockStore), with permit ids in the
/// place of owners:
///
/// - Every step first gives back the permits whose lease is over, and wakes the waiters if some are
///   left afterwards.
/// - `acquire` treats ids that are already held as its own, from the same request sent before, and
///   only lengthens their lease.
/// - `release`, `renew` and `withdraw` touch no other ids. They report missing ids, which do not
///   affect the rest of the call.
/// - A semaphore that was never given permits has none.
pub trait SemaphoreStore: Send + Sync + fmt::Debug + 'static {
    /// Takes every permit of the request or none.
    fn acquire(&self, request: Arc<PermitsRequest>) -> BoxFuture<Result<PermitsAcquired, StoreError>>;

    /// Gives the permits back and wakes waiters. Returns for each permit whether it was still held.
    fn release(&self, request: PermitsRelease) -> BoxFuture<Result<Vec<bool>, StoreError>>;

    /// Renews each permit independently. Returns for each permit of each hold whether it is held
    /// and was renewed; `None` for a hold without an answer, see
    /// [`Renewed::Unknown`](super::Renewed::Unknown).
    fn renew(&self, request: PermitsRenew) -> BoxFuture<Result<Vec<Option<Vec<bool>>>, StoreError>>;

    /// Undoes an acquire whose outcome is unknown: the permits it holds are given back.
    fn withdraw(&self, request: Arc<PermitsRequest>) -> BoxFuture<Result<Withdrawn, StoreError>>;

    /// Delivers a notice whenever permits of the semaphore may have come back. After an `Err` or
    /// with an unconfirmed watch, the caller has to poll.
    fn watch(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<Watch, StoreError>>;

    /// Changes the number of permits, and wakes waiters if there are more. Returns `false` for
    /// [`Permits::TrySet`] on a semaphore that has been given permits before.
    fn change(&self, request: PermitsChange) -> BoxFuture<Result<bool, StoreError>>;

    /// Returns how many permits are left and how many are held.
    fn counts(&self, key: LockKey, timeout: Duration) -> BoxFuture<Result<PermitCounts, StoreError>>;
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A re-sent request has the same ids, and no two permits share one.
    #[test]
    fn ids_belong_to_owner_and_number() {
        let owners = ["a:1", "a:2", "b:1"].map(OwnerId::new);
        let mut seen = HashSet::new();
        for owner in &owners {
            let ids = PermitId::of(owner, 100);
            assert_eq!(ids, PermitId::of(owner, 100));
            assert_eq!(ids[..7], PermitId::of(owner, 7));
            seen.extend(ids);
        }
        assert_eq!(seen.len(), 300);
    }

    #[test]
    fn an_id_is_shown_as_redisson_shows_it() {
        let mut bytes = [0; 16];
        bytes[1] = 0xab;
        bytes[15] = 7;
        assert_eq!(PermitId::from_bytes(bytes).to_string(), "00ab0000000000000000000000000007");
    }

    #[test]
    fn an_owner_says_how_many_permits_it_has() {
        let owner = OwnerId::new("8743c9c0-0795-4907-87fd-6c719a6b4586:7");
        for permits in [1, 2, 17] {
            let owner = owner_of(&owner, permits);
            assert_eq!(ids_of(&owner).len(), permits as usize);
            assert_eq!(ids_of(&owner), ids_of(&owner));
        }
        assert_ne!(ids_of(&owner_of(&owner, 1))[0], ids_of(&owner_of(&owner, 2))[0]);
    }
}
