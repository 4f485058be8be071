//! The steps of the store: builds the scripts' arguments, sends them, reads the answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;

use super::connection::Link;
use super::names::Names;
use super::reply::{self, Freed, Grant, Reason};
use super::script::{self, Invocation};
use super::{HIGHEST_FLOOR, Inner, LONGEST_MILLIS};
use crate::clock::Tick;
use crate::config::TokenRetention;
use crate::key::LockKey;
use crate::store::{
    AcquireRequest, Acquired, Granted, Item, KeepRequest, Kept, ListenerPolicy, LockStatus, ReleaseRequest,
    Released, ServerTime, StoreError, StoreErrorKind, Takeover, Watch, Withdrawn,
};

impl Inner {
    pub(super) fn deadline(&self, timeout: Duration) -> Tick {
        self.options.clock.now() + timeout
    }

    fn names<'a>(&self, items: impl IntoIterator<Item = &'a Item>) -> Result<Vec<Names>, StoreError> {
        items.into_iter().map(|item| Names::new(&self.options.prefix, &item.key)).collect()
    }

    /// An answer that this version of the store does not know: nobody can tell what was done.
    fn senseless(&self, value: &Value) -> StoreError {
        self.address.error(StoreErrorKind::Unanswered, format!("an answer that makes no sense: {value:?}"))
    }

    fn foreign(&self, lock: &str, reason: Reason) -> StoreError {
        let what = format!(
            "the key {lock:?} is not a lock: {}. It is somebody's data and is left alone; use another key or prefix",
            reason.explain()
        );
        self.address.error(StoreErrorKind::ForeignData, what)
    }

    fn bad_counter(&self, counter: &str) -> StoreError {
        let what = format!("LOCKTOKEN the key {counter:?} is not a fencing counter: its value is no integer");
        self.address.error(StoreErrorKind::ForeignData, what)
    }

    /// Stamps `request` for being sent now.
    fn stamp(&self, request: &AcquireRequest) -> Result<(Tick, ServerTime), StoreError> {
        let sent = self.options.clock.now();
        let estimate = self.server_clock.estimate(sent).ok_or_else(|| {
            self.address.error(StoreErrorKind::Unreachable, "the server's time is not known")
        })?;
        Ok((sent, request.stamp(estimate)))
    }

    /// The arguments of `grant` in grant.lua.
    fn grant_arguments<'a>(
        &self,
        invocation: &mut Invocation,
        request: &AcquireRequest,
        latest: ServerTime,
        owners: impl Iterator<Item = &'a Item>,
    ) {
        let retention = match self.options.token_retention {
            TokenRetention::Keep => 0,
            TokenRetention::For(time) => millis(time.max(request.lease.saturating_mul(2))),
        };
        invocation
            .arg(millis(request.lease))
            .arg(request.tokens)
            .arg(retention)
            .arg(latest.as_micros())
            .arg(request.token_floor);
        for item in owners {
            invocation.arg(item.owner.as_str());
        }
    }

    pub(super) async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired, StoreError> {
        if request.token_floor > HIGHEST_FLOOR {
            return Err(self.address.error(StoreErrorKind::Unsupported, "the token floor is too high"));
        }
        let names = self.names(&request.items)?;
        let deadline = self.deadline(request.timeout);
        let mut refused = None;
        // The second try is for a server whose clock has jumped: the refusal brought its new time.
        for _ in 0..2 {
            let link = self.connector.link(deadline).await?;
            let (sent, latest) = self.stamp(request)?;
            let keys = names.iter().flat_map(|names| [names.lock.as_str(), names.counter.as_str()]);
            let mut invocation = Invocation::new(&script::ACQUIRE, keys);
            self.grant_arguments(&mut invocation, request, latest, request.items.iter());
            let answer = self.connector.run(&link, &invocation, deadline).await;
            let value = answer.map_err(|error| about(error, &names))?;
            match self.read_grant(&value, &names, request.tokens, sent)? {
                Ok(acquired) => return Ok(acquired),
                Err(now) => refused = Some(now),
            }
        }
        let what = format!("the request arrived too late, twice; the server's time is {refused:?}");
        Err(self.address.error(StoreErrorKind::TooLate, what))
    }

    /// What `grant` said; the inner error is a refusal because it came too late.
    fn read_grant(
        &self,
        value: &Value,
        names: &[Names],
        tokens: u32,
        sent: Tick,
    ) -> Result<Result<Acquired, ServerTime>, StoreError> {
        let grant = reply::grant(value, names.len(), tokens).ok_or_else(|| self.senseless(value))?;
        let named = |index: usize| names.get(index).ok_or_else(|| self.senseless(value));
        let (now, result) = match grant {
            Grant::Done(Acquired::Granted(granted)) => (granted.server_time, Ok(Acquired::Granted(granted))),
            Grant::Done(Acquired::Busy(busy)) => {
                named(busy.item)?;
                (busy.server_time, Ok(Acquired::Busy(busy)))
            }
            Grant::TooLate(now) => (now, Err(now)),
            Grant::Foreign(item, reason) => return Err(self.foreign(&named(item)?.lock, reason)),
            Grant::BadCounter(item) => return Err(self.bad_counter(&named(item)?.counter)),
        };
        self.server_clock.observe(now, sent);
        Ok(result)
    }

    pub(super) async fn release(&self, request: &ReleaseRequest) -> Result<Released, StoreError> {
        let names = self.names(&request.items)?;
        let deadline = self.deadline(request.timeout);
        let link = self.connector.link(deadline).await?;
        if !request.linger.is_zero() {
            return self.linger(request, &names, &link, deadline).await;
        }
        let successors = request.then.as_ref().and_then(|then| successors(&request.items, then));
        match (&request.then, successors) {
            (Some(then), Some(order)) => self.take_over(request, then, &order, &names, &link, deadline).await,
            _ => {
                let mut invocation = Invocation::new(&script::RELEASE, locks(&names));
                owners_and_channels(&mut invocation, &request.items, &names);
                let value = self.connector.run(&link, &invocation, deadline).await?;
                let freed = reply::freed(&value, names.len()).ok_or_else(|| self.senseless(&value))?;
                Ok(self.released(&freed, &names))
            }
        }
    }

    async fn linger(
        &self,
        request: &ReleaseRequest,
        names: &[Names],
        link: &Arc<Link>,
        deadline: Tick,
    ) -> Result<Released, StoreError> {
        let mut invocation = Invocation::new(&script::LINGER, locks(names));
        invocation.arg(millis(request.linger));
        owners_and_channels(&mut invocation, &request.items, names);
        let value = self.connector.run(link, &invocation, deadline).await?;
        let held = reply::flags(&value, names.len()).ok_or_else(|| self.senseless(&value))?;
        Ok(Released { held, other_listeners: 0, echo: false, then: None })
    }

    async fn take_over(
        &self,
        request: &ReleaseRequest,
        then: &Takeover,
        order: &[usize],
        names: &[Names],
        link: &Arc<Link>,
        deadline: Tick,
    ) -> Result<Released, StoreError> {
        let (sent, latest) = self.stamp(&then.request)?;
        let keys = names.iter().flat_map(|names| [names.lock.as_str(), names.counter.as_str()]);
        let mut invocation = Invocation::new(&script::TAKEOVER, keys);
        invocation.arg(2 + 3 * names.len()).arg(u8::from(then.listeners == ListenerPolicy::Respect));
        for (item, names) in request.items.iter().zip(names) {
            let (subscribed, _) = self.subscriber.own(&names.channel);
            invocation.arg(item.owner.as_str()).arg(&names.channel).arg(u8::from(subscribed));
        }
        let owners = order.iter().filter_map(|&index| then.request.items.get(index));
        self.grant_arguments(&mut invocation, &then.request, latest, owners);
        let value = self.connector.run(link, &invocation, deadline).await?;

        let (freed, grant) = reply::takeover(&value, names.len()).ok_or_else(|| self.senseless(&value))?;
        let mut released = self.released(&freed, names);
        if let Some(why) = reply::text(grant) {
            tracing::debug!(store = ?self.address, answer = why, "released, but could not acquire in the same step");
        } else if *grant != Value::Int(0) {
            // The release stands whatever the grant says.
            match self.read_grant(grant, names, then.request.tokens, sent) {
                Ok(Ok(Acquired::Granted(granted))) => released.then = Some(reorder(granted, order)),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "released, but could not acquire in the same step"),
            }
        }
        Ok(released)
    }

    fn released(&self, freed: &[Freed], names: &[Names]) -> Released {
        let mut released = Released { held: Vec::new(), other_listeners: 0, echo: false, then: None };
        for (freed, names) in freed.iter().zip(names) {
            released.held.push(*freed != Freed::NotHeld);
            match freed {
                Freed::NotHeld => {}
                Freed::Untold => {
                    if !self.warned_untold.swap(true, Ordering::Relaxed) {
                        tracing::warn!(
                            store = ?self.address,
                            channel = names.channel,
                            "locks are released, but the user may not PUBLISH: waiters elsewhere find out by polling"
                        );
                    }
                }
                Freed::Told(listeners) => {
                    let (subscribed, watched) = self.subscriber.own(&names.channel);
                    let others = listeners.saturating_sub(u64::from(subscribed));
                    released.other_listeners = released.other_listeners.saturating_add(others);
                    released.echo |= subscribed && watched && *listeners > 0;
                }
            }
        }
        released
    }

    pub(super) async fn keep(&self, request: &KeepRequest) -> Result<Vec<Kept>, StoreError> {
        let names = self.names(request.items.iter().map(|keep| &keep.item))?;
        let deadline = self.deadline(request.timeout);
        let link = self.connector.link(deadline).await?;
        let mut invocation = Invocation::new(&script::KEEP, locks(&names));
        for keep in &request.items {
            invocation.arg(millis(keep.lease)).arg(keep.item.owner.as_str());
        }
        let value = self.connector.run(&link, &invocation, deadline).await?;
        reply::kept(&value, names.len()).ok_or_else(|| self.senseless(&value))
    }

    pub(super) async fn withdraw(&self, request: &AcquireRequest) -> Result<Withdrawn, StoreError> {
        // Never stamped: never sent.
        let Some(latest) = request.latest() else { return Ok(Withdrawn::Settled) };
        let names = self.names(&request.items)?;
        let deadline = self.deadline(request.timeout);
        let link = self.connector.link(deadline).await?;
        let mut invocation = Invocation::new(&script::WITHDRAW, locks(&names));
        owners_and_channels(&mut invocation, &request.items, &names);
        let sent = self.options.clock.now();
        let value = self.connector.run(&link, &invocation, deadline).await?;
        let now = reply::now(&value).ok_or_else(|| self.senseless(&value))?;
        self.server_clock.observe(now, sent);
        if now > latest {
            return Ok(Withdrawn::Settled);
        }
        let left =
            Duration::from_micros(latest.as_micros().saturating_sub(now.as_micros()).saturating_add(1));
        Ok(Withdrawn::Pending(left))
    }

    pub(super) async fn watch(&self, request: &AcquireRequest) -> Result<Watch, StoreError> {
        let names = self.names(&request.items)?;
        let channels = names.into_iter().map(|names| Arc::from(names.channel)).collect();
        Ok(self.subscriber.watch(channels, self.deadline(request.timeout)).await)
    }

    pub(super) async fn status(&self, key: &LockKey) -> Result<LockStatus, StoreError> {
        let names = Names::new(&self.options.prefix, key)?;
        let deadline = self.deadline(self.options.call_timeout);
        let link = self.connector.link(deadline).await?;
        let invocation =
            Invocation::new(&script::STATUS, [names.lock.as_str(), names.counter.as_str()].into_iter());
        let answer = self.connector.run(&link, &invocation, deadline).await;
        let value = answer.map_err(|error| about(error, std::slice::from_ref(&names)))?;
        let status = reply::status(&value).ok_or_else(|| self.senseless(&value))?;
        status.map_err(|reason| self.foreign(&names.lock, reason))
    }

    pub(super) async fn force_release(&self, key: &LockKey) -> Result<bool, StoreError> {
        let names = Names::new(&self.options.prefix, key)?;
        let deadline = self.deadline(self.options.call_timeout);
        let link = self.connector.link(deadline).await?;
        let mut invocation = Invocation::new(&script::FORCE_RELEASE, std::iter::once(names.lock.as_str()));
        invocation.arg(&names.channel);
        let answer = self.connector.run(&link, &invocation, deadline).await;
        let value = answer.map_err(|error| about(error, std::slice::from_ref(&names)))?;
        let freed = reply::force_released(&value).ok_or_else(|| self.senseless(&value))?;
        freed.map_err(|reason| self.foreign(&names.lock, reason))
    }
}

fn locks(names: &[Names]) -> impl Iterator<Item = &str> + Clone {
    names.iter().map(|names| names.lock.as_str())
}

/// The arguments of scripts that give items back: who had each, and where it is announced.
fn owners_and_channels(invocation: &mut Invocation, items: &[Item], names: &[Names]) {
    for (item, names) in items.iter().zip(names) {
        invocation.arg(item.owner.as_str()).arg(&names.channel);
    }
}

/// Whole milliseconds, rounded up, at least one.
fn millis(time: Duration) -> u64 {
    let millis = u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(LONGEST_MILLIS);
    millis.clamp(1, LONGEST_MILLIS)
}

/// Says which keys an error about somebody's data is about.
fn about(error: StoreError, names: &[Names]) -> StoreError {
    if error.kind() != StoreErrorKind::ForeignData {
        return error;
    }
    let keys: Vec<String> = names
        .iter()
        .take(8)
        .map(|names| format!("{:?} with counter {:?}", names.lock, names.counter))
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
