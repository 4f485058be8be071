//! [`SegmentedStock`]: a stock whose units are in segments.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::chance::jitter;
use lock_core::store::stock::{
    Audit, AuditAnswer, IntoOperationId, Layout, MAX_QUANTITY, OperationId, Part, RestockAnswer,
    RestockRequest, SegmentCounts, Settle, SettleAnswer, SettleRequest, Snapshot, State, StockCall,
    StockStore, Swept, TakeAnswer, TakeRequest,
};
use lock_core::store::{Few, StoreError};
use lock_core::{FencingToken, IntoLockKey, LockKey, Replication};

use super::error::StockError;
use super::lock::{MAX_SEGMENTS, SegmentGuard, SegmentedLock};
use crate::error::LockError;

/// Time for which records of operations are kept, unless set otherwise.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum duration of a call, unless set otherwise.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of segments that are locked for one sale before the units are taken without a
/// lock.
const LOCKED: u32 = 3;

/// The result of a sale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    parts: Few<Part>,
    repeated: bool,
}

impl Taken {
    /// Returns the segments that the units come from.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Whether the units come from several segments.
    #[must_use]
    pub fn is_merged(&self) -> bool {
        self.parts.len() > 1
    }

    /// Whether the same request had been done before, so that nothing was taken now. Of all answers
    /// to one id, exactly one is new. Do not rely on this for a stock that is
    /// [spread](Layout::Spread): there, two answers may be new, or none.
    #[must_use]
    pub fn is_repeated(&self) -> bool {
        self.repeated
    }
}

impl Taken {
    /// Returns this with the lock of the segment that the units are from. That is `guard`, unless
    /// an earlier call took them.
    async fn under(
        self,
        locks: &SegmentedLock,
        guard: SegmentGuard,
    ) -> Result<(Self, Option<SegmentGuard>), StockError> {
        let guard = match *self.parts {
            [part] if part.segment == guard.index() => Some(guard),
            [part] => {
                drop(guard);
                Some(locks.acquire(part.segment).await?)
            }
            _ => None,
        };
        Ok((self, guard))
    }
}

/// The result of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    taken: Taken,
    remaining: Option<Duration>,
}

impl Reservation {
    /// Returns the segments that the units come from.
    #[must_use]
    pub fn taken(&self) -> &Taken {
        &self.taken
    }

    /// Returns how long the reservation lasts, counted from the answer; `None` if it is already
    /// confirmed.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }
}

/// The stock of an item that many buyers buy at once; made by
/// [`LockManager::stock`](crate::LockManager::stock), or by [`on`](Self::on) for your own store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// # let locks = lock_runtime::LockManager::connect("memory:").await?;
/// let stock = locks.stock("console");
/// stock.initialize(1000, 10).await?; // 1000 units in 10 segments, before the sale
/// stock.take("order-41", 2).await?;
/// stock.reserve("order-42", 1, Duration::from_secs(600)).await?;
/// stock.confirm("order-42").await?; // once it is paid
/// assert_eq!(stock.available().await?, 997);
/// # Ok(()) }
/// ```
///
/// | method | sets | default |
/// |---|---|---|
/// | [`retention`](Self::retention) | how long the id of an operation is known | 24 h |
/// | [`timeout`](Self::timeout) | the maximum duration of a call | 2 s |
/// | [`replication`](Self::replication) | the replicas that confirm an operation | none |
/// | [`layout`](Self::layout) | where the store keeps the stock | [one slot](Layout::OneSlot) |
///
/// | number | bounds |
/// |---|---|
/// | segments, for [`initialize`](Self::initialize) and [`resize`](Self::resize) | 1 to [`MAX_SEGMENTS`] |
/// | units of a stock, and of one operation | at most 9 007 199 254 740 991 (2^53 - 1) |
/// | the time of a [reservation](Self::reserve) | at least 1 ms, less than the retention |
///
/// Its units are in segments, so that sales under different locks, at different servers or in
/// different rows do not wait for each other. A sale takes from the segment that it looks at first
/// if that has enough. Otherwise it takes from another one that has enough, or from several at
/// once: all or nothing. The available, reserved and sold units of all segments always add up to
/// what was put in.
///
/// # Operations
///
/// Every operation has an [id](OperationId), such as the number of the order line. If it is sent
/// again under its id, it has no second effect. After [`StockError::Unavailable`], or if a future
/// was dropped, send the same operation again to learn its outcome.
///
/// If the outcome is then [`StockError::SoldOut`], the first copy may still be on its way, for as
/// long as its [time-out](Self::timeout). It may find units that others bring back meanwhile. A
/// caller that gives up then sends [`cancel`](Self::cancel), whose answer is final. Ids are known
/// for as long as [`retention`](Self::retention) says.
///
/// | record | `take`, `reserve` | `confirm` | `cancel` | `give_back` |
/// |---|---|---|---|---|
/// | none | tried | `UnknownOperation` | refused when it arrives | `UnknownOperation` |
/// | taken | as before | `NotReserved` | `NotReserved` | **back** |
/// | reserved | as before | **sold** | **back** | `StillHeld` |
/// | reserved, deadline over | `Expired` | `Expired` | as before | `Expired` |
/// | confirmed | as before | as before | `Confirmed` | **back** |
/// | cancelled | `Cancelled` | `Cancelled` | as before | `Cancelled` |
/// | given back | `GivenBack` | `GivenBack` | as before | as before |
///
/// A known id with another quantity, or with a reservation instead of a sale, is
/// [`StockError::Different`].
///
/// # Cancel safety
///
/// A future that is dropped may have done its operation or not, but never half of it.
#[derive(Clone)]
pub struct SegmentedStock {
    /// The store and the name, or the error that every call returns.
    place: Result<(Arc<dyn StockStore>, LockKey), StockError>,
    timeout: Duration,
    retention: Duration,
    replication: Replication,
    layout: Layout,
    /// Whether each take is a call by itself.
    alone: bool,
}

impl SegmentedStock {
    /// Returns the stock of this name on your own store: a type that implements the trait
    /// [`StockStore`] of the crate `lock-core`.
    #[must_use]
    pub fn on(store: Arc<dyn StockStore>, name: impl IntoLockKey) -> Self {
        let name = name.into_lock_key().map_err(|error| StockError::Lock(error.into()));
        Self::at(name.map(|name| (store, name)))
    }

    pub(crate) fn at(place: Result<(Arc<dyn StockStore>, LockKey), StockError>) -> Self {
        Self {
            place,
            timeout: TIMEOUT,
            retention: RETENTION,
            replication: Replication::NONE,
            layout: Layout::OneSlot,
            alone: false,
        }
    }

    /// Sets how long the id of an operation is known once the operation is over: 24 h by default.
    /// It has to be longer than anybody repeats a request, and than a call may take. Records may
    /// stay in the store for longer, until other takes or a [sweep](Self::sweep) delete them.
    #[must_use]
    pub fn retention(self, retention: Duration) -> Self {
        Self { retention, ..self }
    }

    /// Sets the maximum duration of a call: 2 s by default. The store refuses to execute it later.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sets how many replicas have to confirm an operation before it counts as done. If too few do
    /// so within the policy's time, or within [`timeout`](Self::timeout) if that is less, it is
    /// [`StockError::NotReplicated`]. A repeated operation waits for replicas like a new one. Each
    /// call uses its own connection meanwhile, of eight, and is not sent together with others.
    ///
    /// A store without replicas refuses, as `memory:` does.
    #[must_use]
    pub fn replication(self, replication: Replication) -> Self {
        Self { replication, ..self }
    }

    /// Sets where the store keeps the stock: in one slot by default. All users of the stock have to
    /// set the same layout.
    #[must_use]
    pub fn layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// Makes each take a call by itself, even if several that are ready could share one. This is
    /// for measuring the effect of sharing.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn one_by_one(self) -> Self {
        Self { alone: true, ..self }
    }

    fn place(&self) -> Result<At<'_>, StockError> {
        let (store, name) = self.place.as_ref().map_err(Clone::clone)?;
        Ok(At { store, name, stock: self })
    }

    /// Creates the stock, with `units` spread over `segments`. Returns `false` if a stock of this
    /// name exists already, whatever it contains.
    ///
    /// In one slot of Redis, each stock has a generation: the time at which it was created. An
    /// instance remembers the generation that it has used. If the server loses the stock, that
    /// instance refuses to create it again, and to [take](Self::take) from a stock that others have
    /// created anew.
    ///
    /// # Errors
    ///
    /// - [`StockError::Misconfigured`]: a number is out of range, the stock has another layout,
    ///   or another generation than before.
    /// - [`StockError::Unavailable`]: send the same again.
    pub async fn initialize(&self, units: u64, segments: u32) -> Result<bool, StockError> {
        let at = self.place()?;
        if units > MAX_QUANTITY {
            return Err(at.mistake(format_args!("{units} units are too many; use at most {MAX_QUANTITY}")));
        }
        at.check_segments(segments)?;
        let each = lock_core::internal::plan::fill(&vec![0; segments as usize], units);
        at.store.initialize(at.call(), each).await.map_err(|error| at.failed(error))
    }

    /// Sells `quantity` units.
    ///
    /// # Errors
    ///
    /// - [`StockError::SoldOut`], [`StockError::Contended`].
    /// - [`StockError::Different`], [`StockError::Cancelled`], [`StockError::GivenBack`]: see the
    ///   table above.
    /// - [`StockError::Misconfigured`]: the stock has another layout, or another generation than
    ///   this instance has used.
    /// - [`StockError::Unavailable`]: send the same again.
    pub async fn take(&self, operation: impl IntoOperationId, quantity: u64) -> Result<Taken, StockError> {
        let whence = Whence::Any(None);
        Ok(self.place()?.taken(operation.into_operation_id()?, quantity, whence).await?.taken)
    }

    /// Sells `quantity` units of the segment that the caller has locked, and of no other. Use it if
    /// you have to do something else under that lock, such as a sale at another system.
    ///
    /// Always use the same [`SegmentedLock`](super::SegmentedLock) for a stock: the store gets the
    /// token of the lock, and remembers the largest for each segment. With
    /// another lock, sales may be `Stale` although nothing is lost. A caller that holds a
    /// segment must not [`take`](Self::take), which may wait for it.
    ///
    /// # Errors
    ///
    /// - [`StockError::SegmentShort`]: other segments may have enough;
    ///   [`take_locked`](Self::take_locked) goes on with them.
    /// - [`StockError::Stale`]: the lock was lost, and a later holder has sold under it since.
    ///   Nothing was taken.
    /// - As [`take`](Self::take), except for `SoldOut` and `Contended`.
    pub async fn take_at(
        &self,
        segment: &SegmentGuard,
        operation: impl IntoOperationId,
        quantity: u64,
    ) -> Result<Taken, StockError> {
        let whence = Whence::Locked(segment.index(), segment.fencing_token());
        Ok(self.place()?.taken(operation.into_operation_id()?, quantity, whence).await?.taken)
    }

    /// Sells `quantity` units under the lock of a segment that has enough, and returns the lock
    /// with them. Use it for work that must be exclusive for each segment.
    ///
    /// If the segment has too few units, another one that has enough is tried, three in all. If
    /// none has enough, the units come from several segments as with [`take`](Self::take), under no
    /// lock: `None`. Later calls still try a segment that was short. `locks` are those that
    /// [`take_at`](Self::take_at) needs. If the operation is sent again, the lock is that of the
    /// segment from which the first call took the units. It is `None` if these were several.
    ///
    /// # Errors
    ///
    /// - [`StockError::Lock`]: no lock could be taken. This call has taken nothing; an earlier one
    ///   under the same id may have.
    /// - As [`take`](Self::take) and [`take_at`](Self::take_at), except for `SegmentShort`.
    ///
    /// # Cancel safety
    ///
    /// As for all operations; the lock is released.
    pub async fn take_locked(
        &self,
        locks: &SegmentedLock,
        operation: impl IntoOperationId,
        quantity: u64,
    ) -> Result<(Taken, Option<SegmentGuard>), StockError> {
        let operation = operation.into_operation_id()?;
        let count = locks.segments()?;
        let mut among: Vec<u32> = (0..count).collect();
        for _ in 0..LOCKED {
            let Some(guard) = locks.acquire_of(among).await? else { break };
            match self.take_at(&guard, &operation, quantity).await {
                Err(StockError::SegmentShort { .. }) => {}
                Err(error) => return Err(error),
                Ok(taken) => return taken.under(locks, guard).await,
            }
            let segments = self.snapshot().await?.segments;
            let enough =
                |(_, segment): &(u32, SegmentCounts)| segment.active && segment.available >= quantity;
            among = (0..count).zip(segments).filter(enough).map(|(index, _)| index).collect();
        }
        Ok((self.take(operation, quantity).await?, None))
    }

    /// Reserves `quantity` units for the time `hold`, to be [confirmed](Self::confirm) or
    /// [cancelled](Self::cancel).
    ///
    /// # Errors
    ///
    /// As [`take`](Self::take), and [`StockError::Expired`].
    pub async fn reserve(
        &self,
        operation: impl IntoOperationId,
        quantity: u64,
        hold: Duration,
    ) -> Result<Reservation, StockError> {
        let at = self.place()?;
        if hold < Duration::from_millis(1) || hold >= self.retention {
            return Err(at.mistake(format_args!(
                "a reservation can't last for {hold:?}; use 1 ms or more, and less than the retention of {:?}",
                self.retention
            )));
        }
        at.taken(operation.into_operation_id()?, quantity, Whence::Any(Some(hold))).await
    }

    /// Turns a reservation into a sale.
    ///
    /// # Errors
    ///
    /// - [`StockError::Expired`]: the deadline is over, whether or not the stock was swept.
    /// - [`StockError::Cancelled`], [`StockError::GivenBack`], [`StockError::NotReserved`],
    ///   [`StockError::UnknownOperation`].
    /// - [`StockError::Unavailable`]: send the same again.
    pub async fn confirm(&self, operation: impl IntoOperationId) -> Result<(), StockError> {
        self.place()?.settle(operation.into_operation_id()?, Settle::Confirm).await
    }

    /// Gives up a reservation. One that has not arrived yet is refused when it arrives. One that is
    /// already over stays as it is.
    ///
    /// # Errors
    ///
    /// - [`StockError::Confirmed`], [`StockError::NotReserved`]: the units are sold; give them
    ///   back.
    /// - [`StockError::Unavailable`]: send the same again.
    pub async fn cancel(&self, operation: impl IntoOperationId) -> Result<(), StockError> {
        self.place()?.settle(operation.into_operation_id()?, Settle::Cancel).await
    }

    /// Makes the units available again that an operation has sold.
    ///
    /// # Errors
    ///
    /// - [`StockError::StillHeld`]: the units are reserved; cancel the reservation.
    /// - [`StockError::Cancelled`], [`StockError::Expired`], [`StockError::UnknownOperation`].
    /// - [`StockError::Unavailable`]: send the same again.
    pub async fn give_back(&self, operation: impl IntoOperationId) -> Result<(), StockError> {
        self.place()?.settle(operation.into_operation_id()?, Settle::GiveBack).await
    }

    /// Adds `quantity` units, to the segments that have the fewest.
    ///
    /// # Errors
    ///
    /// [`StockError::Different`]; [`StockError::Misconfigured`] if there would be too many units;
    /// [`StockError::Unavailable`]: send the same again.
    pub async fn restock(&self, operation: impl IntoOperationId, quantity: u64) -> Result<(), StockError> {
        let at = self.place()?;
        at.check(quantity)?;
        let operation = operation.into_operation_id()?;
        let request = Arc::new(RestockRequest { call: at.call(), operation, quantity });
        match at.store.restock(Arc::clone(&request)).await.map_err(|error| at.failed(error))? {
            RestockAnswer::Done { .. } => Ok(()),
            RestockAnswer::Different { quantity } => {
                let (stock, operation) = (at.name.clone(), request.operation.clone());
                Err(StockError::Different { stock, operation, was: format!("{quantity} units") })
            }
            RestockAnswer::TooMany => Err(at.mistake(format_args!(
                "with {quantity} more units, the stock would have more than {MAX_QUANTITY}"
            ))),
            RestockAnswer::Missing => Err(at.missing()),
        }
    }

    /// Returns how many units are available, at one moment.
    ///
    /// # Errors
    ///
    /// As [`snapshot`](Self::snapshot).
    pub async fn available(&self) -> Result<u64, StockError> {
        Ok(self.snapshot().await?.available())
    }

    /// Returns the counts of all segments, at one moment.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`], [`StockError::Unavailable`].
    pub async fn snapshot(&self) -> Result<Snapshot, StockError> {
        let at = self.place()?;
        let snapshot = at.store.snapshot(at.call()).await.map_err(|error| at.failed(error))?;
        snapshot.ok_or_else(|| at.missing())
    }

    /// Compares the counts with the records of all operations; [`Audit::agrees`] says whether they
    /// match.
    ///
    /// It is for a stock at rest, as before or after a sale. Changes by others meanwhile do not
    /// make the result wrong: the records are then read again, at most eight times. Some looks are
    /// one moment, so sales may go on: in memory, in SQL, and in one slot with up to about 500
    /// records.
    ///
    /// For a million records, a look takes the store about two seconds:
    ///
    /// - In one slot, it is done in steps of about a millisecond, between which other calls are
    ///   served.
    /// - In SQL it is one statement, for which [`timeout`](Self::timeout) has to be long enough.
    /// - In memory it takes about a tenth of that time, while other calls wait.
    ///
    /// The time-out applies to each step.
    ///
    /// # Errors
    ///
    /// - [`StockError::Contended`]: others changed something during each look.
    /// - [`StockError::Misconfigured`]: a stock that is [spread](Layout::Spread) has no audit.
    /// - [`StockError::Missing`], [`StockError::Unavailable`].
    ///
    /// # Cancel safety
    ///
    /// It changes nothing, and its future may be dropped at any time.
    pub async fn audit(&self) -> Result<Audit, StockError> {
        let at = self.place()?;
        match at.store.audit(at.call()).await.map_err(|error| at.failed(error))? {
            AuditAnswer::Audited(audit) => Ok(audit),
            AuditAnswer::Contended => Err(StockError::Contended { stock: at.name.clone() }),
            AuditAnswer::Missing => Err(at.missing()),
        }
    }

    /// Evens out the units of the segments.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`]; [`StockError::Unavailable`]: it may be done, in part or in full,
    /// and may be sent again.
    pub async fn rebalance(&self) -> Result<(), StockError> {
        let at = self.place()?;
        let done = at.store.rebalance(at.call()).await.map_err(|error| at.failed(error))?;
        done.ok_or_else(|| at.missing())
    }

    /// Changes the number of segments, even while the stock is sold from. Segments that are removed
    /// give their units to the others.
    ///
    /// # Errors
    ///
    /// As [`rebalance`](Self::rebalance), and [`StockError::Misconfigured`] for a number that is
    /// out of range.
    pub async fn resize(&self, segments: u32) -> Result<(), StockError> {
        let at = self.place()?;
        at.check_segments(segments)?;
        let done = at.store.resize(at.call(), segments).await.map_err(|error| at.failed(error))?;
        done.ok_or_else(|| at.missing())
    }

    /// Ends overdue reservations, at most about `limit`, and forgets operations whose retention is
    /// over. It also finishes or undoes operations that others have left half-done. Any instance
    /// may do it at any time, and one has to now and then; a [sweeper](Self::sweeper) does. In one
    /// slot, a hundred reservations end in one call, which takes about a millisecond.
    ///
    /// # Errors
    ///
    /// [`StockError::Unavailable`].
    pub async fn sweep(&self, limit: u32) -> Result<Swept, StockError> {
        let at = self.place()?;
        at.store.sweep(at.call(), limit).await.map_err(|error| at.failed(error))
    }
}

/// The source of the units, and whether they are sold or reserved.
enum Whence {
    /// Any segment: reserved for this time, or sold if there is none.
    Any(Option<Duration>),
    /// This segment, whose lock the caller has: sold.
    Locked(u32, FencingToken),
}

/// A stock with a valid store and name.
struct At<'a> {
    store: &'a Arc<dyn StockStore>,
    name: &'a LockKey,
    stock: &'a SegmentedStock,
}

impl At<'_> {
    fn call(&self) -> StockCall {
        let SegmentedStock { timeout, retention, replication, layout, .. } = self.stock;
        let call = StockCall::new(self.name.clone(), *timeout, *retention);
        let call = call.replicated(*replication).laid_out(*layout);
        if self.stock.alone { call.by_itself() } else { call }
    }

    fn failed(&self, cause: StoreError) -> StockError {
        match LockError::from_store(self.name.clone(), cause.clone()) {
            LockError::Unavailable { key: stock, cause } => StockError::Unavailable { stock, cause },
            LockError::NotReplicated { key: stock, cause } => StockError::NotReplicated { stock, cause },
            LockError::Misconfigured { .. } => self.mistake(cause),
            error => StockError::Lock(error),
        }
    }

    fn missing(&self) -> StockError {
        StockError::Missing { stock: self.name.clone() }
    }

    fn mistake(&self, what: impl fmt::Display) -> StockError {
        StockError::Misconfigured { reason: format!("stock {}: {what}", self.name).into() }
    }

    fn check(&self, quantity: u64) -> Result<(), StockError> {
        if (1..=MAX_QUANTITY).contains(&quantity) {
            return Ok(());
        }
        Err(self.mistake(format_args!("a quantity of {quantity} is out of range; use 1 to {MAX_QUANTITY}")))
    }

    fn check_segments(&self, segments: u32) -> Result<(), StockError> {
        if (1..=MAX_SEGMENTS).contains(&segments) {
            return Ok(());
        }
        Err(self.mistake(format_args!("{segments} segments are out of range; use 1 to {MAX_SEGMENTS}")))
    }

    async fn taken(
        &self,
        operation: OperationId,
        quantity: u64,
        whence: Whence,
    ) -> Result<Reservation, StockError> {
        self.check(quantity)?;
        let (first, hold, only) = match whence {
            Whence::Any(hold) => ((jitter() * f64::from(u32::MAX)) as u32, hold, None),
            Whence::Locked(segment, token) => (segment, None, Some((segment, Some(token)))),
        };
        let call = self.call();
        let request = TakeRequest { call, operation, quantity, hold, first, only };
        let request = Arc::new(request);
        let answer = self.store.take(Arc::clone(&request)).await.map_err(|error| self.failed(error))?;
        let (stock, operation) = (self.name.clone(), request.operation.clone());
        Err(match answer {
            TakeAnswer::Done { parts, remaining, repeated, .. } => {
                return Ok(Reservation { taken: Taken { parts, repeated }, remaining });
            }
            TakeAnswer::Over(State::Expired) => StockError::Expired { stock, operation },
            TakeAnswer::Over(State::GivenBack) => StockError::GivenBack { stock, operation },
            TakeAnswer::Over(_) => StockError::Cancelled { stock, operation },
            TakeAnswer::Different { quantity, reserved } => {
                let how = if reserved { "a reservation of " } else { "" };
                StockError::Different { stock, operation, was: format!("{how}{quantity} units") }
            }
            TakeAnswer::Short { available } => match request.only {
                None => StockError::SoldOut { stock, wanted: quantity, available },
                Some((segment, _)) => {
                    StockError::SegmentShort { stock, segment, wanted: quantity, available }
                }
            },
            TakeAnswer::Contended => StockError::Contended { stock },
            TakeAnswer::Stale => StockError::Stale { stock },
            TakeAnswer::Missing => self.missing(),
        })
    }

    async fn settle(&self, operation: OperationId, settle: Settle) -> Result<(), StockError> {
        let request = Arc::new(SettleRequest { call: self.call(), operation, settle });
        let answer = self.store.settle(Arc::clone(&request)).await.map_err(|error| self.failed(error))?;
        let (stock, operation) = (self.name.clone(), request.operation.clone());
        let (now, reserved) = match answer {
            SettleAnswer::Known { now, reserved, .. } => (now, reserved),
            SettleAnswer::Unknown => return Err(StockError::UnknownOperation { stock, operation }),
            SettleAnswer::Missing => return Err(self.missing()),
        };
        Err(match (settle, now) {
            (Settle::Confirm, State::Sold) if reserved => return Ok(()),
            (Settle::Cancel, State::Cancelled | State::Expired | State::GivenBack)
            | (Settle::GiveBack, State::GivenBack) => return Ok(()),
            (Settle::Cancel, State::Sold) if reserved => StockError::Confirmed { stock, operation },
            (_, State::Sold) => StockError::NotReserved { stock, operation },
            (_, State::Held) => StockError::StillHeld { stock, operation },
            (_, State::Cancelled) => StockError::Cancelled { stock, operation },
            (_, State::Expired) => StockError::Expired { stock, operation },
            (_, State::GivenBack) => StockError::GivenBack { stock, operation },
        })
    }
}

impl fmt::Debug for SegmentedStock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SegmentedStock").field("place", &self.place).finish_non_exhaustive()
    }
}
