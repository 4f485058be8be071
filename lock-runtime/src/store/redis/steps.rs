//! The steps of the store: builds the scripts' arguments, sends them, reads the answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;

use super::connection::Ready;
use super::fair;
use super::group;
use super::kinds::{self, are_mutexes};
use super::names::{Name, Names};
use super::reply::{self, Freed, Grant, Reason};
use super::script::{self, Invocation};
use super::singles::{AcquireOne, ReleaseOne};
use super::{HIGHEST_FLOOR, Inner, LONGEST_MILLIS};
use crate::clock::Tick;
use crate::config::TokenRetention;
use crate::store::{
    AcquireRequest, Acquired, Granted, Item, KeepItem, KeepRequest, Kept, Kind, ListenerPolicy,
    ReleaseRequest, Released, ServerTime, Standing, StoreError, StoreErrorKind, Takeover, Watch, Withdrawn,
};

impl Inner {
    pub(super) fn deadline(&self, timeout: Duration) -> Tick {
        self.options.clock.now() + timeout
    }

    pub(super) fn name<'a>(&'a self, item: &'a Item) -> Result<Names<'a>, StoreError> {
        Names::new(&self.options.prefix, &item.key)
    }

    pub(super) fn names<'a>(
        &'a self,
        items: impl IntoIterator<Item = &'a Item>,
    ) -> Result<Vec<Names<'a>>, StoreError> {
        items.into_iter().map(|item| self.name(item)).collect()
    }

    /// An answer that this version of the store does not know: nobody can tell what was done.
    pub(super) fn senseless(&self, value: &Value) -> StoreError {
        self.address.error(StoreErrorKind::Unanswered, format!("an answer that makes no sense: {value:?}"))
    }

    pub(super) fn foreign(&self, lock: Name<'_>, reason: Reason) -> StoreError {
        let what = format!(
            "the key {lock:?} is not a lock: {}. It is somebody's data and is left alone; use another key or prefix",
            reason.explain()
        );
        self.address.error(StoreErrorKind::ForeignData, what)
    }

    fn bad_counter(&self, counter: Name<'_>) -> StoreError {
        let what = format!("LOCKTOKEN the key {counter:?} is not a fencing counter: its value is no integer");
        self.address.error(StoreErrorKind::ForeignData, what)
    }

    /// Stamps requests for being sent now, in one call: it comes too late for all when it does for the first.
    pub(super) fn stamp<'a>(
        &self,
        requests: impl IntoIterator<Item = &'a Arc<AcquireRequest>>,
        now: Tick,
    ) -> Result<ServerTime, StoreError> {
        let estimate = self.server_clock.estimate(now).ok_or_else(|| {
            self.address.error(StoreErrorKind::Unreachable, "the server's time is not known")
        })?;
        let latest = requests.into_iter().map(|request| request.stamp(estimate)).min();
        Ok(latest.unwrap_or(estimate))
    }

    pub(super) fn too_late(&self, refused: Option<ServerTime>) -> StoreError {
        let what = format!("the request arrived too late, twice; the server's time is {refused:?}");
        self.address.error(StoreErrorKind::TooLate, what)
    }

    /// How long counters live after a grant for `lease`, in milliseconds; 0 for ever.
    pub(super) fn retention(&self, lease: Duration) -> u64 {
        match self.options.token_retention {
            TokenRetention::Keep => 0,
            TokenRetention::For(time) => millis(time.max(lease.saturating_mul(2))),
        }
    }

    /// The arguments of `grant` in grant_all.lua.
    fn grant_arguments<'a>(
        &self,
        invocation: &mut Invocation,
        request: &AcquireRequest,
        latest: ServerTime,
        owners: impl Iterator<Item = &'a Item>,
    ) {
        invocation
            .arg(millis(request.lease))
            .arg(request.tokens)
            .arg(self.retention(request.lease))
            .arg(latest.as_micros())
            .arg(request.token_floor);
        for item in owners {
            invocation.arg(item.owner.as_str());
        }
    }

    pub(super) async fn acquire(
        self: &Arc<Self>,
        request: Arc<AcquireRequest>,
    ) -> Result<Acquired, StoreError> {
        if request.token_floor > HIGHEST_FLOOR {
            return Err(self.address.error(StoreErrorKind::Unsupported, "the token floor is too high"));
        }
        if let ([item @ Item { kind: Kind::Mutex, .. }], 0) = (&*request.items, request.token_floor) {
            // Before it joins others: what is wrong with its name is no matter of theirs.
            self.name(item)?;
            return group::call::<AcquireOne>(self, request).await;
        }
        Box::pin(self.acquire_all(&request)).await
    }

    /// Every key of the request or none.
    async fn acquire_all(&self, request: &Arc<AcquireRequest>) -> Result<Acquired, StoreError> {
        let names = self.names(&request.items)?;
        let mutexes = are_mutexes(&request.items);
        let mut ready = self.connector.ready(request.timeout).await?;
        let mut refused = None;
        // The second try is for a server whose clock has jumped: the refusal brought its new time.
        for _ in 0..2 {
            let latest = self.stamp([request], ready.now)?;
            let invocation = if mutexes {
                let mut invocation = Invocation::new(&script::ACQUIRE_ALL, 2 * names.len(), 5 + names.len());
                locks_and_counters(&mut invocation, &names);
                self.grant_arguments(&mut invocation, request, latest, request.items.iter());
                invocation
            } else {
                self.acquisition(request, &names, latest)
            };
            let answer = self.connector.run(&ready, &invocation).await;
            let value = answer.map_err(|error| about(error, &names))?;
            match self.read_grant(&ready, &value, &names, request.tokens)? {
                Ok(acquired) => return Ok(acquired),
                Err(now) => refused = Some(now),
            }
            ready = self.connector.later(&ready);
        }
        Err(self.too_late(refused))
    }

    /// What a script that grants said; the inner error is a refusal because it came too late.
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
            Grant::Done(Acquired::Granted(granted)) => (granted.server_time, Ok(Acquired::Granted(granted))),
            Grant::Done(Acquired::Busy(busy)) => {
                named(busy.item)?;
                (busy.server_time, Ok(Acquired::Busy(busy)))
            }
            Grant::TooLate(now) => (now, Err(now)),
            Grant::Foreign(item, reason) => return Err(self.foreign(named(item)?.lock(), reason)),
            Grant::BadCounter(item) => return Err(self.bad_counter(named(item)?.counter())),
        };
        self.server_clock.observe(now, ready.now);
        Ok(result)
    }

    pub(super) async fn release(
        self: &Arc<Self>,
        request: Arc<ReleaseRequest>,
    ) -> Result<Released, StoreError> {
        if let ([item @ Item { kind: Kind::Mutex, .. }], Duration::ZERO, None) =
            (&*request.items, request.linger, &request.then)
        {
            self.name(item)?;
            return group::call::<ReleaseOne>(self, request).await;
        }
        Box::pin(self.release_all(&request)).await
    }

    async fn release_all(&self, request: &ReleaseRequest) -> Result<Released, StoreError> {
        let names = self.names(&request.items)?;
        let ready = self.connector.ready(request.timeout).await?;
        if !request.linger.is_zero() {
            return self.linger(request, &names, &ready).await;
        }
        if !are_mutexes(&request.items) {
            return self.release_kinds(request, &names, &ready).await;
        }
        let successors = request.then.as_ref().and_then(|then| successors(&request.items, then));
        match (&request.then, successors) {
            (Some(then), Some(order)) => self.take_over(request, then, &order, &names, &ready).await,
            _ => {
                let mut invocation = Invocation::new(&script::RELEASE, names.len(), 2 * names.len());
                locks(&mut invocation, &names);
                owners_and_channels(&mut invocation, &request.items, &names);
                self.freed(request, &names, &ready, &invocation).await
            }
        }
    }

    /// Runs a script that releases each item, whatever becomes of the others.
    pub(super) async fn freed(
        &self,
        request: &ReleaseRequest,
        names: &[Names<'_>],
        ready: &Ready,
        invocation: &Invocation,
    ) -> Result<Released, StoreError> {
        let value = self.connector.run(ready, invocation).await?;
        let answers = reply::each(&value, names.len()).ok_or_else(|| self.senseless(&value))?;
        let freed: Result<Vec<_>, _> = answers.iter().map(|answer| self.read_freed(ready, answer)).collect();
        Ok(self.released(&freed?, request, names))
    }

    /// What a script that releases said about one key.
    pub(super) fn read_freed(&self, ready: &Ready, value: &Value) -> Result<Freed, StoreError> {
        match value {
            Value::ServerError(error) => Err(self.connector.refused(ready, error)),
            value => reply::freed(value).ok_or_else(|| self.senseless(value)),
        }
    }

    async fn linger(
        &self,
        request: &ReleaseRequest,
        names: &[Names<'_>],
        ready: &Ready,
    ) -> Result<Released, StoreError> {
        let invocation = if are_mutexes(&request.items) {
            let mut invocation = Invocation::new(&script::LINGER, names.len(), 1 + 2 * names.len());
            locks(&mut invocation, names);
            invocation.arg(millis(request.linger));
            owners_and_channels(&mut invocation, &request.items, names);
            invocation
        } else {
            self.lingering(request, names)
        };
        let value = self.connector.run(ready, &invocation).await?;
        let held = reply::flags(&value, names.len()).ok_or_else(|| self.senseless(&value))?;
        Ok(Released { held, other_listeners: 0, echo: false, then: None })
    }

    async fn take_over(
        &self,
        request: &ReleaseRequest,
        then: &Takeover,
        order: &[usize],
        names: &[Names<'_>],
        ready: &Ready,
    ) -> Result<Released, StoreError> {
        let latest = self.stamp([&then.request], ready.now)?;
        let mut invocation = Invocation::new(&script::TAKEOVER, 2 * names.len(), 7 + 4 * names.len());
        locks_and_counters(&mut invocation, names);
        invocation.arg(2 + 3 * names.len()).arg(u8::from(then.listeners == ListenerPolicy::Respect));
        for (item, names) in request.items.iter().zip(names) {
            let channel = names.channel(item.kind);
            let own = self.subscriber.own(&channel.to_string());
            // Others who listen here have no subscription of their own that the script could count.
            let ours =
                if own.watches > u64::from(request.own_watches) { -1 } else { i32::from(own.subscribed) };
            invocation.arg(item.owner.as_str()).name(channel).arg(ours);
        }
        let owners = order.iter().filter_map(|&index| then.request.items.get(index));
        self.grant_arguments(&mut invocation, &then.request, latest, owners);
        let value = self.connector.run(ready, &invocation).await?;

        let (freed, grant) = reply::takeover(&value, names.len()).ok_or_else(|| self.senseless(&value))?;
        let mut released = self.released(&freed, request, names);
        if let Some(why) = reply::text(grant) {
            tracing::debug!(store = ?self.address, answer = why, "released, but could not acquire in the same step");
        } else if *grant != Value::Int(0) {
            // The release stands whatever the grant says.
            match self.read_grant(ready, grant, names, then.request.tokens) {
                Ok(Ok(Acquired::Granted(granted))) => released.then = Some(reorder(granted, order)),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "released, but could not acquire in the same step"),
            }
        }
        Ok(released)
    }

    pub(super) fn released(
        &self,
        freed: &[Freed],
        request: &ReleaseRequest,
        names: &[Names<'_>],
    ) -> Released {
        let mut released = Released { held: Vec::new(), other_listeners: 0, echo: false, then: None };
        for ((freed, item), names) in freed.iter().zip(&request.items).zip(names) {
            released.held.push(*freed != Freed::NotHeld);
            let told = match *freed {
                Freed::NotHeld | Freed::StillHeld => continue,
                Freed::Untold => {
                    if !self.warned_untold.swap(true, Ordering::Relaxed) {
                        tracing::warn!(
                            store = ?self.address,
                            channel = %names.channel(item.kind),
                            "locks are released, but the user may not PUBLISH: waiters elsewhere find out by polling"
                        );
                    }
                    0
                }
                // Only the next waiter was told.
                Freed::Told(told) if item.kind == Kind::Fair => {
                    released.other_listeners = released.other_listeners.saturating_add(told);
                    continue;
                }
                Freed::Told(told) => told,
            };
            if told == 0 && !self.subscriber.is_watched() {
                continue;
            }
            let own = self.subscriber.own(&names.channel(item.kind).to_string());
            let elsewhere = told.saturating_sub(u64::from(own.subscribed));
            let here = own.watches.saturating_sub(u64::from(request.own_watches));
            released.other_listeners =
                released.other_listeners.saturating_add(elsewhere).saturating_add(here);
            released.echo |= told > 0 && own.subscribed && own.watches > 0;
        }
        released
    }

    pub(super) async fn keep(&self, request: &KeepRequest) -> Result<Vec<Kept>, StoreError> {
        let names = self.names(request.items.iter().map(|keep| &keep.item))?;
        let ready = self.connector.ready(request.timeout).await?;
        let held_mutex = |keep: &KeepItem| keep.item.kind == Kind::Mutex && keep.standing == Standing::Holder;
        let invocation = if request.items.iter().all(held_mutex) {
            let mut invocation = Invocation::new(&script::KEEP, names.len(), 2 * names.len());
            locks(&mut invocation, &names);
            for keep in &request.items {
                invocation.arg(millis(keep.lease)).arg(keep.item.owner.as_str());
            }
            invocation
        } else {
            self.keeping(request, &names)
        };
        let value = self.connector.run(&ready, &invocation).await?;
        reply::kept(&value, names.len()).ok_or_else(|| self.senseless(&value))
    }

    pub(super) async fn withdraw(&self, request: &AcquireRequest) -> Result<Withdrawn, StoreError> {
        // Never stamped: never sent.
        let Some(latest) = request.seal() else { return Ok(Withdrawn::Settled) };
        let names = self.names(&request.items)?;
        let ready = self.connector.ready(request.timeout).await?;
        let invocation = if are_mutexes(&request.items) {
            let mut invocation = Invocation::new(&script::WITHDRAW, names.len(), 2 * names.len());
            locks(&mut invocation, &names);
            owners_and_channels(&mut invocation, &request.items, &names);
            invocation
        } else {
            kinds::withdrawal(&request.items, &names)
        };
        let value = self.connector.run(&ready, &invocation).await?;
        let now = reply::now(&value).ok_or_else(|| self.senseless(&value))?;
        self.server_clock.observe(now, ready.now);
        if now > latest {
            return Ok(Withdrawn::Settled);
        }
        let left =
            Duration::from_micros(latest.as_micros().saturating_sub(now.as_micros()).saturating_add(1));
        Ok(Withdrawn::Pending(left))
    }

    pub(super) async fn watch(&self, request: &AcquireRequest) -> Result<Watch, StoreError> {
        let names = self.names(&request.items)?;
        let channels = names.iter().zip(&request.items).map(|(names, item)| match item.kind {
            Kind::Fair => Arc::from(fair::channel(names, &item.owner)),
            kind => Arc::from(names.channel(kind).to_string()),
        });
        let channels = channels.collect();
        Ok(self.subscriber.watch(channels, self.deadline(request.timeout)).await)
    }
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

/// The arguments of scripts that give items back: who had each, and where it is announced.
fn owners_and_channels(invocation: &mut Invocation, items: &[Item], names: &[Names<'_>]) {
    for (item, names) in items.iter().zip(names) {
        invocation.arg(item.owner.as_str()).name(names.channel(item.kind));
    }
}

/// Whole milliseconds, rounded up, at least one.
pub(super) fn millis(time: Duration) -> u64 {
    let millis = u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(LONGEST_MILLIS);
    millis.clamp(1, LONGEST_MILLIS)
}

/// Says which keys an error about somebody's data is about.
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

/// For each released item the index of the takeover's item with the same key; `None` when they don't match.
fn successors(items: &[Item], then: &Takeover) -> Option<Vec<usize>> {
    if items.len() != then.request.items.len() || then.request.token_floor > HIGHEST_FLOOR {
        return None;
    }
    items.iter().map(|item| then.request.items.iter().position(|next| next.key == item.key)).collect()
}

/// Puts tokens that are in the order of the released items into the order of the takeover's.
fn reorder(granted: Granted, order: &[usize]) -> Granted {
    let mut tokens: Vec<_> = order.iter().zip(granted.tokens).collect();
    tokens.sort_by_key(|(index, _)| **index);
    Granted { tokens: tokens.into_iter().map(|(_, range)| range).collect(), server_time: granted.server_time }
}
