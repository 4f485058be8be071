//! [`SegmentedStock`]: a stock in segments.

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

/// For how long the records of operations are kept unless told otherwise.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest a call takes unless told otherwise.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum of segments that are locked for one sale before the units are taken without a lock.
const LOCKED: u32 = 3;

/// What was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    parts: Few<Part>,
    repeated: bool,
}

impl Taken {
    /// Where the units are from.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Whether it took several segments to have enough.
    #[must_use]
    pub fn is_merged(&self) -> bool {
        self.parts.len() > 1
    }

    /// Whether the same request had been done before, so that nothing was taken now. Of all answers
    /// to one id, one is new. Do not rely on it for a stock that is [spread](Layout::Spread):
    /// there, two answers may be new, or none.
    #[must_use]
    pub fn is_repeated(&self) -> bool {
        self.repeated
    }
}

impl Taken {
    /// With the lock of the segment that the units are from: `guard`, unless an earlier call took
    /// them.
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

/// What is reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    taken: Taken,
    remaining: Option<Duration>,
}

impl Reservation {
    /// Where the units are from.
    #[must_use]
    pub fn taken(&self) -> &Taken {
        &self.taken
    }

    /// For how long from the answer on; `None`: it is confirmed already.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }
}

/// A stock of one item that many sell from at once; made by
/// [`LockManager::stock`](crate::LockManager::stock), or on a store of its own by [`on`](Self::on).
///
/// Its units are in segments, so that those who hold the lock of one, or sell at another server or
/// row, do not wait for each other. A sale takes from the segment that it looks at first if that
/// has enough, else from another one that has, and else from several at once: all or nothing. What
/// there is in all segments, reserved, and sold always adds up to what was put in.
///
/// # Operations
///
/// Every operation has an [id](OperationId), such as the number of the order line. Sent again under
/// its id it has no second effect: after [`StockError::Unavailable`], and after a future that was
/// dropped, send the same again to be told what came of it. If that is [`StockError::SoldOut`], the
/// first copy may be on its way still, for as long as its [time-out](Self::timeout), and find what
/// others bring back meanwhile: who gives up then sends [`cancel`](Self::cancel), whose answer is
/// final. Ids are known for as long as [`retention`](Self::retention) says.
///
/// | record | `take`, `reserve` | `confirm` | `cancel` | `give_back` |
/// |---|---|---|---|---|
/// | none | tried | `UnknownOperation` | refused when it comes | `UnknownOperation` |
/// | taken | as before | `NotReserved` | `NotReserved` | **back** |
/// | reserved | as before | **sold** | **back** | `StillHeld` |
/// | reserved, deadline over | `Expired` | `Expired` | as before | `Expired` |
/// | confirmed | as before | as before | `Confirmed` | **back** |
/// | cancelled | `Cancelled` | `Cancelled` | as before | `Cancelled` |
/// | given back | `GivenBack` | `GivenBack` | as before | as before |
///
/// Another quantity, or a reservation for a sale, under an id that is known is
/// [`StockError::Different`].
///
/// # Cancel safety
///
/// A future that is dropped may have done its operation or not, and not half of it.
#[derive(Clone)]
pub struct SegmentedStock {
    /// Why there is none is told by every call.
    place: Result<(Arc<dyn StockStore>, LockKey), StockError>,
    timeout: Duration,
    retention: Duration,
    replication: Replication,
    layout: Layout,
    /// Each take travels by itself.
    alone: bool,
}

impl SegmentedStock {
    /// The stock of this name on this store.
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

    /// For how long the id of an operation is known once that is over: 24 h by default. It has to
    /// be longer than anybody repeats a request, and than a call may take. What is kept of it may
    /// stay in the store for longer, until others take or it is [swept](Self::sweep).
    #[must_use]
    pub fn retention(self, retention: Duration) -> Self {
        Self { retention, ..self }
    }

    /// The longest a call takes: 2 s by default. The store refuses to execute it later.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// How many replicas have to confirm an operation before it counts as done:
    /// [`StockError::NotReplicated`] when too few do so within the policy's time, or within
    /// [`timeout`](Self::timeout) if that is less. An operation that is repeated is waited for like
    /// a new one. Each call has a connection of its own meanwhile, of eight, and travels by itself.
    ///
    /// A store without replicas refuses, as `memory:` does.
    #[must_use]
    pub fn replication(self, replication: Replication) -> Self {
        Self { replication, ..self }
    }

    /// Where the store keeps the stock: in one slot by default. All who use the stock have to say
    /// the same.
    #[must_use]
    pub fn layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// Each take is a call of its own, also where several that are ready could share one: to
    /// measure what that brings.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn one_by_one(self) -> Self {
        Self { alone: true, ..self }
    }

    fn place(&self) -> Result<At<'_>, StockError> {
        let (store, name) = self.place.as_ref().map_err(Clone::clone)?;
        Ok(At { store, name, stock: self })
    }

    /// Makes the stock, with `units` spread over `segments`; `false` when there is one of this name
    /// already, whatever it has.
    ///
    /// In one slot of Redis each stock has a generation: when it was made. An instance that has
    /// used one generation refuses to make the stock again after its server has lost it, and to
    /// [take](Self::take) from one that others have made anew.
    ///
    /// # Errors
    ///
    /// - [`StockError::Misconfigured`]: a number is out of range, the stock has another layout,
    ///   or another generation than before.
    /// - [`StockError::Unavailable`]: send the same again.
    pub async fn initialize(&self, units: u64, segments: u32) -> Result<bool, StockError> {
        let at = self.place()?;
        if units > MAX_QUANTITY {
            return Err(at.mistake(format_args!("{units} units are more than {MAX_QUANTITY}")));
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

    /// Sells `quantity` units of the segment that the caller has locked, and of no other: for who
    /// has to do something else under that lock, such as a sale at another system. Always use the
    /// same [`SegmentedLock`](super::SegmentedLock) for a stock: the token of the lock is shown to
    /// the store, which remembers the largest for each segment. With `SqlStocks` that is the lock
    /// of the stock's own name from the same manager, as `locks.segmented("<stock name>", n)` makes
    /// it (with another one sales may be `Stale`, and nothing is lost), and whoever holds a segment
    /// does not [`take`](Self::take), which may wait for it.
    ///
    /// # Errors
    ///
    /// - [`StockError::SegmentShort`]: others may have enough; [`take_locked`](Self::take_locked)
    ///   goes on with them.
    /// - [`StockError::Stale`]: the lock was lost, and somebody else has sold under it since.
    ///   Nothing was taken.
    /// - As [`take`](Self::take), but for `SoldOut` and `Contended`.
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
    /// with them: for work that only one at a time may do for each segment.
    ///
    /// When the segment is short, another one that has enough is tried, three in all. When none
    /// has, the units come from several segments as by [`take`](Self::take), under no lock: `None`.
    /// No segment is passed by later because it was short once. `locks` are those that
    /// [`take_at`](Self::take_at) needs. Sent again, the lock is that of the segment from which the
    /// first call has taken; `None`, if these were several.
    ///
    /// # Errors
    ///
    /// - [`StockError::Lock`]: no lock was to be had. This call has taken nothing; an earlier one
    ///   under the same id may have.
    /// - As [`take`](Self::take) and [`take_at`](Self::take_at), but for `SegmentShort`.
    ///
    /// # Cancel safety
    ///
    /// As all operations; the lock is released.
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

    /// Puts `quantity` units aside for `hold`, to be [confirmed](Self::confirm) or
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
                "a reservation for {hold:?} was asked for; ask for 1 ms or more, and less than the retention ({:?})",
                self.retention
            )));
        }
        at.taken(operation.into_operation_id()?, quantity, Whence::Any(Some(hold))).await
    }

    /// Turns a reservation into a sale.
    ///
    /// # Errors
    ///
    /// - [`StockError::Expired`]: it is too late, swept or not.
    /// - [`StockError::Cancelled`], [`StockError::GivenBack`], [`StockError::NotReserved`],
    ///   [`StockError::UnknownOperation`].
    /// - [`StockError::Unavailable`]: send the same again.
    pub async fn confirm(&self, operation: impl IntoOperationId) -> Result<(), StockError> {
        self.place()?.settle(operation.into_operation_id()?, Settle::Confirm).await
    }

    /// Gives up a reservation; one that has not come yet is refused when it comes. One that is over
    /// already stays as it is.
    ///
    /// # Errors
    ///
    /// - [`StockError::Confirmed`], [`StockError::NotReserved`]: it is sold; give it back.
    /// - [`StockError::Unavailable`]: send the same again.
    pub async fn cancel(&self, operation: impl IntoOperationId) -> Result<(), StockError> {
        self.place()?.settle(operation.into_operation_id()?, Settle::Cancel).await
    }

    /// Makes available again what an operation has sold.
    ///
    /// # Errors
    ///
    /// - [`StockError::StillHeld`]: it is reserved; cancel it.
    /// - [`StockError::Cancelled`], [`StockError::Expired`], [`StockError::UnknownOperation`].
    /// - [`StockError::Unavailable`]: send the same again.
    pub async fn give_back(&self, operation: impl IntoOperationId) -> Result<(), StockError> {
        self.place()?.settle(operation.into_operation_id()?, Settle::GiveBack).await
    }

    /// Puts `quantity` units in, where there are fewest.
    ///
    /// # Errors
    ///
    /// [`StockError::Different`]; [`StockError::Misconfigured`] when there would be too many;
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
                Err(StockError::Different { stock, operation, was: format!("used for {quantity} units") })
            }
            RestockAnswer::TooMany => {
                Err(at.mistake(format_args!("with {quantity} more there would be more than {MAX_QUANTITY}")))
            }
            RestockAnswer::Missing => Err(at.missing()),
        }
    }

    /// How many units can be taken, at one moment.
    ///
    /// # Errors
    ///
    /// As [`snapshot`](Self::snapshot).
    pub async fn available(&self) -> Result<u64, StockError> {
        Ok(self.snapshot().await?.available())
    }

    /// What there is, at one moment.
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
    /// do.
    ///
    /// It is for a stock at rest, as before or after a sale. What others do meanwhile does not make
    /// it differ: then the records are looked through again, eight times at most. In memory and in
    /// SQL, and in one slot with up to about 500 records, one look is one moment, and sales may go
    /// on.
    ///
    /// A look at a million records takes the store about two seconds: in one slot in steps of about
    /// a millisecond, between which others are served; in SQL by one statement, for which
    /// [`timeout`](Self::timeout) has to be long enough; in memory in about a tenth of that, while
    /// others wait. The time-out is that of each step.
    ///
    /// # Errors
    ///
    /// - [`StockError::Contended`]: others changed something in each look.
    /// - [`StockError::Misconfigured`]: a stock that is [spread](Layout::Spread) has no audit.
    /// - [`StockError::Missing`], [`StockError::Unavailable`].
    ///
    /// # Cancel safety
    ///
    /// It changes nothing, and may be dropped at any time.
    pub async fn audit(&self) -> Result<Audit, StockError> {
        let at = self.place()?;
        match at.store.audit(at.call()).await.map_err(|error| at.failed(error))? {
            AuditAnswer::Audited(audit) => Ok(audit),
            AuditAnswer::Contended => Err(StockError::Contended { stock: at.name.clone() }),
            AuditAnswer::Missing => Err(at.missing()),
        }
    }

    /// Evens out what the segments have.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`], [`StockError::Unavailable`]: it may be done, in part or in full,
    /// and may be sent again.
    pub async fn rebalance(&self) -> Result<(), StockError> {
        let at = self.place()?;
        let done = at.store.rebalance(at.call()).await.map_err(|error| at.failed(error))?;
        done.ok_or_else(|| at.missing())
    }

    /// From now on the stock has this many segments, while it is sold from. Those that go give what
    /// they have to the others.
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

    /// Ends reservations that are over, at most about `limit`, finishes or undoes what others have
    /// left half-done, and forgets operations whose retention is over. Any instance may do it at
    /// any time, and one has to now and then; a [sweeper](Self::sweeper) does. In one slot a
    /// hundred reservations end in one call, which takes about a millisecond.
    ///
    /// # Errors
    ///
    /// [`StockError::Unavailable`].
    pub async fn sweep(&self, limit: u32) -> Result<Swept, StockError> {
        let at = self.place()?;
        at.store.sweep(at.call(), limit).await.map_err(|error| at.failed(error))
    }
}

/// What is taken from where.
enum Whence {
    /// Any segment, reserved for so long or sold.
    Any(Option<Duration>),
    /// This segment, whose lock the caller has: sold.
    Locked(u32, FencingToken),
}

/// A stock whose place is known.
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
        Err(self.mistake(format_args!("a quantity of {quantity} was given; give 1 to {MAX_QUANTITY}")))
    }

    fn check_segments(&self, segments: u32) -> Result<(), StockError> {
        if (1..=MAX_SEGMENTS).contains(&segments) {
            return Ok(());
        }
        Err(self.mistake(format_args!("{segments} segments were asked for; ask for 1 to {MAX_SEGMENTS}")))
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
                let how = if reserved { "a reservation of" } else { "used for" };
                StockError::Different { stock, operation, was: format!("{how} {quantity} units") }
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
