//! The steps of the store except release: build a script's arguments, send them, and read the
//! answer.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::{
    AcquireRequest, Acquired, Item, Kind, RenewItem, Renewed, ServerTime, Standing, StoreError,
    StoreErrorKind, Watch,
};
use lock_core::{LockKey, TokenRetention};
use redis::Value;

use super::connection::{At, Connector, Ready};
use super::each::{Each, all, known};
use super::fair;
use super::fault::Fault;
use super::keyspace;
use super::kinds::{self, are_mutexes};
use super::names::{Name, Names};
use super::node::Node;
use super::reply::{self, Grant, Reason};
use super::script::{self, Invocation};

/// Longest time that is passed to the server, about 100 years. The server refuses times that
/// overflow, and would do so after a lock was written.
const LONGEST_MILLIS: u64 = 3_155_760_000_000;
/// Highest token floor; tokens above a larger floor would not fit the server's integers.
pub(super) const HIGHEST_FLOOR: u64 = i64::MAX as u64 - lock_core::store::MAX_TOKENS as u64;

/// How a step keeps holds.
#[derive(Clone, Copy)]
pub(super) enum Renewal {
    Renew,
    Downgrade,
}

impl Node {
    pub(super) fn deadline(&self, timeout: Duration) -> Tick {
        self.options.clock.now() + timeout
    }

    pub(super) fn name<'a>(&'a self, item: &'a Item) -> Result<Names<'a>, StoreError> {
        self.name_of(&item.key)
    }

    pub(super) fn name_of<'a>(&'a self, key: &'a LockKey) -> Result<Names<'a>, StoreError> {
        let names = Names::new(&self.options.prefix, key)?;
        Ok(names.laid_out(self.options.layout, self.has_peers))
    }

    pub(super) fn names<'a>(
        &'a self,
        items: impl IntoIterator<Item = &'a Item>,
    ) -> Result<Vec<Names<'a>>, StoreError> {
        items.into_iter().map(|item| self.name(item)).collect()
    }

    /// Returns the error for an answer that this version does not know: what was done is unknown.
    pub(super) fn senseless(&self, value: &Value) -> StoreError {
        self.address.error(StoreErrorKind::Unanswered, format!("unexpected answer: {value:?}"))
    }

    pub(super) fn foreign(&self, lock: Name<'_>, reason: Reason) -> StoreError {
        let what = format!(
            "the key {lock:?} is not a lock: {}. Its data is left unchanged; use another key or prefix",
            reason.explain()
        );
        self.address.error(StoreErrorKind::ForeignData, what)
    }

    fn bad_counter(&self, counter: Name<'_>) -> StoreError {
        let what =
            format!("LOCKTOKEN the key {counter:?} is not a fencing counter: its value is not an integer");
        self.address.error(StoreErrorKind::ForeignData, what)
    }

    /// Stamps requests that are sent now in one call, which comes too late for all of them when it
    /// does for the first.
    pub(super) fn stamp<'a>(
        &self,
        requests: impl IntoIterator<Item = &'a Arc<AcquireRequest>>,
        now: Tick,
    ) -> Result<ServerTime, StoreError> {
        let estimate = self.server_time(now)?;
        let latest = requests.into_iter().map(|request| request.stamp(estimate)).min();
        Ok(latest.unwrap_or(estimate))
    }

    /// Returns the server's present time, for the stamp of a request.
    pub(super) fn server_time(&self, now: Tick) -> Result<ServerTime, StoreError> {
        self.server_clock
            .estimate(now)
            .ok_or_else(|| self.address.error(StoreErrorKind::Unreachable, "the server's time is not known"))
    }

    pub(super) fn too_late(&self, refused: Option<ServerTime>) -> StoreError {
        let what = format!("the request arrived too late, twice; the server's time is {refused:?}");
        self.address.error(StoreErrorKind::TooLate, what)
    }

    /// Adds the arguments that every script for several items takes first; the owners follow.
    pub(super) fn grant_arguments(
        &self,
        invocation: &mut Invocation,
        request: &AcquireRequest,
        latest: ServerTime,
    ) {
        invocation
            .arg(millis(request.lease))
            .arg(request.tokens)
            .arg(life(request.retention))
            .arg(latest.as_micros())
            .arg(match request.replication.is_none() {
                true => request.floor(),
                // A release must not grant it directly, since the releaser would not wait for the
                // replicas.
                false => request.floor().max(1),
            });
    }

    /// Acquires all of these items of the request, or none.
    pub(super) async fn acquire_all(
        &self,
        request: &AcquireRequest,
        items: &[Item],
        wait: Option<Duration>,
        at: At,
    ) -> Result<Acquired, Fault> {
        let names = self.names(items)?;
        let mutexes = are_mutexes(items);
        let ask = |now| {
            let latest = request.stamp(now);
            if !mutexes {
                return self.acquisition(request, items, wait, &names, latest);
            }
            let mut invocation = self.invocation(&script::ACQUIRE_ALL, 2 * names.len(), 5 + names.len());
            locks_and_counters(&mut invocation, &names);
            self.grant_arguments(&mut invocation, request, latest);
            owners(&mut invocation, items);
            invocation
        };
        let read = |ready: &Ready, answer: Result<Value, Fault>| {
            let value = answer.map_err(|fault| fault.map(|error| about(error, &names)))?;
            Ok(self.read_grant(ready, &value, &names, request.tokens)?)
        };
        self.grant(request, at, ask, read).await
    }

    /// Acquires one mutex of the request without its counter, which is at another server.
    pub(super) async fn acquire_one_key(
        &self,
        request: &AcquireRequest,
        item: &Item,
        at: At,
    ) -> Result<Acquired, Fault> {
        let names = [self.name(item)?];
        let ask = |now| {
            let latest = request.stamp(now);
            let mut invocation = self.invocation(&script::ACQUIRE_ONE_KEY, 1, 3);
            locks(&mut invocation, &names);
            invocation.arg(latest.as_micros()).arg(millis(request.lease)).arg(item.owner.as_str());
            invocation
        };
        let read = |ready: &Ready, answer: Result<Value, Fault>| {
            let value = answer.map_err(|fault| fault.map(|error| about(error, &names)))?;
            Ok(self.read_grant(ready, &value, &names, 1)?)
        };
        self.grant(request, at, ask, read).await
    }

    /// Runs a script that may grant this request.
    async fn grant(
        &self,
        request: &AcquireRequest,
        at: At,
        ask: impl Fn(ServerTime) -> Invocation,
        read: impl Fn(&Ready, Result<Value, Fault>) -> Result<Result<Acquired, ServerTime>, Fault>,
    ) -> Result<Acquired, Fault> {
        self.granting(request.replication, at, |connector, ready| async move {
            let all = std::iter::once(request);
            let ready = self.prepared(all.clone(), &connector, ready).await?;
            let sent = self.in_time_over(&connector, ready.clone(), ask, read);
            self.noted(all, &ready, sent).await
        })
        .await
    }

    /// Runs a script that refuses late requests. `ask` is given the server's time; the inner error
    /// of `read` is such a refusal.
    pub(super) async fn in_time<T>(
        &self,
        at: At,
        ask: impl Fn(ServerTime) -> Invocation,
        read: impl Fn(&Ready, Result<Value, Fault>) -> Result<Result<T, ServerTime>, Fault>,
    ) -> Result<T, Fault> {
        let ready = self.connector.ready(at).await?;
        self.in_time_over(&self.connector, ready, ask, read).await
    }

    /// Does the same as [`in_time`](Self::in_time) over a connection of this connector.
    pub(super) async fn in_time_over<T>(
        &self,
        connector: &Connector,
        mut ready: Ready,
        ask: impl Fn(ServerTime) -> Invocation,
        read: impl Fn(&Ready, Result<Value, Fault>) -> Result<Result<T, ServerTime>, Fault>,
    ) -> Result<T, Fault> {
        let mut refused = None;
        // The second try is for a server whose clock has jumped: the refusal has brought its new
        // time.
        for _ in 0..2 {
            let invocation = ask(self.server_time(ready.now)?);
            let answer = connector.run(&ready, &invocation).await;
            match read(&ready, answer)? {
                Ok(done) => return Ok(done),
                Err(now) => refused = Some(now),
            }
            ready = connector.later(&ready);
        }
        Err(self.too_late(refused).into())
    }

    /// Reads the answer of a script that grants. The inner error is a refusal of a late request.
    pub(super) fn read_grant(
        &self,
        ready: &Ready,
        value: &Value,
        names: &[Names<'_>],
        tokens: u32,
    ) -> Result<Result<Acquired, ServerTime>, StoreError> {
        if let Value::ServerError(error) = value {
            return Err(about(self.connector.refused(ready, error), names));
        }
        let grant = reply::grant(value, names.len(), tokens).ok_or_else(|| self.senseless(value))?;
        let named = |index: usize| names.get(index).ok_or_else(|| self.senseless(value));
        let (now, result) = match grant {
            Grant::Done(Acquired::Granted(granted)) => (granted.moment, Ok(Acquired::Granted(granted))),
            Grant::Done(Acquired::Busy(busy)) => {
                named(busy.item)?;
                (busy.moment, Ok(Acquired::Busy(busy)))
            }
            Grant::TooLate(now) => (now.into(), Err(now)),
            Grant::Foreign(item, reason) => return Err(self.foreign(named(item)?.lock(), reason)),
            Grant::BadCounter(item) => return Err(self.bad_counter(named(item)?.counter())),
        };
        self.server_clock.observe(ServerTime::from_micros(now.get()), ready.now);
        Ok(result)
    }

    /// Renews or downgrades each item. An error on one does not affect the others, unless all
    /// belong to one hold.
    pub(super) async fn renew(
        &self,
        items: &[RenewItem],
        how: Renewal,
        at: At,
    ) -> Result<Vec<Renewed>, Fault> {
        let kept = self.each(items, at, |items, at| self.renew_together(items, how, at)).await?;
        let owner = items.first().map(|renewal| &renewal.item.owner);
        if items.iter().all(|renewal| Some(&renewal.item.owner) == owner) {
            return Ok(all(kept)?);
        }
        Ok(known(kept)?.into_iter().map(|kept| kept.unwrap_or(Renewed::Unknown)).collect())
    }

    async fn renew_together(&self, items: &[RenewItem], how: Renewal, at: At) -> Each<Renewed> {
        if self.options.layout.is_plain() {
            // The counter has no end.
            return self.renew_with(items, how, at, |_| 0).await;
        }
        let deadline = self.deadline(at.timeout);
        match self.renew_with(items, how, at, counter_life).await {
            // While a slot moves, a counter may be at another server than its lock. Nor may a hold
            // be lost for lack of the right to its counter.
            Err(fault) if items.len() == 1 && (fault.is_split() || fault.several.is_some()) => {
                let at = At { timeout: deadline.since(self.options.clock.now()), ..at };
                self.renew_with(items, how, at, |_| 0).await
            }
            kept => kept,
        }
    }

    /// Renews or downgrades each item. `lives` says how long an item's counter may outlive the
    /// hold, with 0 for no change.
    async fn renew_with(
        &self,
        items: &[RenewItem],
        how: Renewal,
        at: At,
        lives: fn(&RenewItem) -> u64,
    ) -> Each<Renewed> {
        let names = self.names(items.iter().map(|renewal| &renewal.item))?;
        let ready = self.connector.ready(at).await?;
        let held_mutex =
            |renewal: &RenewItem| renewal.item.kind == Kind::Mutex && renewal.standing == Standing::Holder;
        let invocation = match how {
            Renewal::Downgrade => self.downgrading(items, &names, lives),
            Renewal::Renew if items.iter().all(held_mutex) => {
                let mut invocation = self.renewing(&script::RENEW, items, &names, lives, false);
                for renewal in items {
                    invocation
                        .arg(millis(renewal.lease))
                        .arg(renewal.item.owner.as_str())
                        .arg(lives(renewal));
                }
                invocation
            }
            Renewal::Renew => self.renewing_kinds(items, &names, lives),
        };
        let value = self.connector.run(&ready, &invocation).await?;
        self.read_each(&ready, &value, reply::several(&value, names.len()), |_, kept| reply::kept(kept))
    }

    /// Gives back all that the owners of these items hold. Returns the server's time in the
    /// earliest of the calls.
    pub(super) async fn withdraw_all(&self, items: &[Item], at: At) -> Result<ServerTime, Fault> {
        let each = self.each(items, at, |items, at| async move {
            let ready = self.connector.ready(at).await?;
            let now = self.withdraw_together(items, &ready).await?;
            Ok(items.iter().map(|_| Ok(now)).collect())
        });
        let earliest = all(each.await?)?.into_iter().min();
        Ok(earliest.ok_or_else(|| self.address.error(StoreErrorKind::Unanswered, "nothing to withdraw"))?)
    }

    pub(super) async fn withdraw_together(&self, items: &[Item], ready: &Ready) -> Result<ServerTime, Fault> {
        let names = self.names(items)?;
        let invocation = if are_mutexes(items) {
            let mut invocation = self.invocation(&script::WITHDRAW, names.len(), 2 * names.len());
            locks(&mut invocation, &names);
            owners_and_channels(&mut invocation, items, &names);
            invocation
        } else {
            kinds::withdrawal(self, items, &names)
        };
        let value = self.connector.run(ready, &invocation).await?;
        let now = reply::now(&value).ok_or_else(|| self.senseless(&value))?;
        self.server_clock.observe(now, ready.now);
        Ok(now)
    }

    pub(super) async fn watch(&self, request: &AcquireRequest) -> Result<Watch, StoreError> {
        let names = self.names(&request.items)?;
        let database = self.connector.dialer().database();
        let channels = names.iter().zip(&request.items);
        let channels = channels.flat_map(|(names, item)| channels_of(names, item, database)).collect();
        Ok(self.subscriber.watch(channels, self.deadline(request.timeout)).await)
    }
}

/// Returns the channel on which a waiter for this item listens.
pub(super) fn channel(names: &Names<'_>, item: &Item) -> Arc<str> {
    match item.kind {
        Kind::Fair => Arc::from(fair::channel(names, &item.owner)),
        kind => Arc::from(names.channel(kind).to_string()),
    }
}

/// Returns all channels with notices for a waiter for this item.
pub(super) fn channels_of(names: &Names<'_>, item: &Item, database: i64) -> impl Iterator<Item = Arc<str>> {
    // Other programs that lock in the plain layout announce nothing, but the server may.
    let events = names.is_plain().then(|| keyspace::channel(names, database));
    [channel(names, item)].into_iter().chain(events)
}

pub(super) fn locks(invocation: &mut Invocation, names: &[Names<'_>]) {
    for names in names {
        invocation.name(names.lock());
    }
}

pub(super) fn locks_and_counters(invocation: &mut Invocation, names: &[Names<'_>]) {
    for names in names {
        invocation.name(names.lock()).name(names.counter());
    }
}

pub(super) fn owners<'a>(invocation: &mut Invocation, items: impl IntoIterator<Item = &'a Item>) {
    for item in items {
        invocation.arg(item.owner.as_str());
    }
}

/// Adds the arguments of scripts that give items back: the owner and the channel of each.
pub(super) fn owners_and_channels(invocation: &mut Invocation, items: &[Item], names: &[Names<'_>]) {
    for (item, names) in items.iter().zip(names) {
        invocation.arg(item.owner.as_str()).name(names.channel(item.kind));
    }
}

/// Returns how long a counter may outlive its hold, in milliseconds: a quarter more than required,
/// or 0 for forever.
pub(super) fn life(retention: TokenRetention) -> u64 {
    match retention {
        TokenRetention::Keep => 0,
        TokenRetention::For(time) => millis(time.saturating_add(time / 4)),
    }
}

/// Returns the same for a hold that is renewed, or 0 if there is nothing to lengthen.
fn counter_life(renewal: &RenewItem) -> u64 {
    match renewal.standing {
        Standing::Holder => life(renewal.retention),
        Standing::Waiter | Standing::Far => 0,
    }
}

/// Returns whole milliseconds, rounded up, at least one.
pub(super) fn millis(time: Duration) -> u64 {
    let millis = u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(LONGEST_MILLIS);
    millis.clamp(1, LONGEST_MILLIS)
}

/// Adds the key to an error about foreign data.
pub(super) fn about_key(error: StoreError, key: &str) -> StoreError {
    if error.kind() != StoreErrorKind::ForeignData {
        return error;
    }
    StoreError::new(error.kind(), format!("{error} (asked for: {key:?})"))
}

/// Adds the keys to an error about foreign data.
pub(super) fn about(error: StoreError, names: &[Names<'_>]) -> StoreError {
    if error.kind() != StoreErrorKind::ForeignData {
        return error;
    }
    let keys: Vec<String> = names
        .iter()
        .take(8)
        .map(|names| format!("{:?} with counter {:?}", names.lock(), names.counter()))
        .collect();
    StoreError::new(error.kind(), format!("{error} (asked for: {})", keys.join(", ")))
}
