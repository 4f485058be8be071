//! Releases holds: at once, later, or with a takeover. Also finds out who was listening.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lock_core::store::{
    Acquired, Few, Granted, Item, Kind, ListenerPolicy, ReleaseRequest, Released, Rivals, Takeover,
};
use redis::Value;

use super::connection::{At, Ready};
use super::each::{Each, all};
use super::fault::Fault;
use super::kinds::{self, are_mutexes};
use super::names::{Name, Names};
use super::node::Node;
use super::reply::{self, Freed};
use super::script;
use super::steps::{HIGHEST_FLOOR, locks, locks_and_counters, millis, owners, owners_and_channels};
use crate::trace::TARGET;

impl Node {
    pub(super) async fn release_all(&self, request: &ReleaseRequest, at: At) -> Result<Released, Fault> {
        let successors = request.then.as_ref().and_then(|then| successors(&request.items, then));
        if let (Some(then), Some(order)) = (&request.then, successors)
            && request.linger.is_zero()
            && are_mutexes(&request.items)
        {
            let ready = self.connector.ready(at).await?;
            match self.take_over(request, then, &order, &self.names(&request.items)?, &ready).await {
                Err(fault) if self.takes_each(&fault) => {}
                released => return released,
            }
        }
        let freed = self.each(&request.items, at, |items, at| self.free(items, request.linger, at)).await?;
        Ok(self.released(&all(freed)?, request, &self.names(&request.items)?))
    }

    /// Gives each item back, whatever happens to the others: now, or when `linger` is over.
    async fn free(&self, items: &[Item], linger: Duration, at: At) -> Each<Freed> {
        let names = self.names(items)?;
        let ready = self.connector.ready(at).await?;
        let lingers = !linger.is_zero();
        let invocation = match (are_mutexes(items), lingers) {
            (true, _) => {
                let script = if lingers { &script::LINGER } else { &script::RELEASE };
                let mut invocation = self.invocation(script, names.len(), 1 + 2 * names.len());
                locks(&mut invocation, &names);
                if lingers {
                    invocation.arg(millis(linger));
                }
                owners_and_channels(&mut invocation, items, &names);
                invocation
            }
            (false, true) => self.lingering(linger, items, &names),
            (false, false) => kinds::release(self, items, &names),
        };
        let value = self.connector.run(&ready, &invocation).await?;
        let (answers, read): (_, fn(&Value) -> Option<Freed>) = match lingers {
            true => (reply::several(&value, names.len()), reply::lingers),
            false => (reply::each(&value, names.len()), reply::freed),
        };
        self.read_each(&ready, &value, answers, |_, answer| read(answer))
    }

    async fn take_over(
        &self,
        request: &ReleaseRequest,
        then: &Takeover,
        order: &[usize],
        names: &[Names<'_>],
        ready: &Ready,
    ) -> Result<Released, Fault> {
        let latest = self.stamp([&then.request], ready.now)?;
        let mut invocation = self.invocation(&script::TAKEOVER, 2 * names.len(), 7 + 4 * names.len());
        locks_and_counters(&mut invocation, names);
        invocation.arg(2 + 3 * names.len()).arg(u8::from(then.listeners == ListenerPolicy::Respect));
        for (item, names) in request.items.iter().zip(names) {
            let channel = names.channel(item.kind);
            invocation.arg(item.owner.as_str()).name(channel).arg(self.own_listeners(channel, request));
        }
        self.grant_arguments(&mut invocation, &then.request, latest);
        owners(&mut invocation, order.iter().filter_map(|&index| then.request.items.get(index)));
        let value = self.connector.run(ready, &invocation).await?;

        let (freed, grant) = reply::takeover(&value, names.len()).ok_or_else(|| self.senseless(&value))?;
        let mut released = self.released(&freed, request, names);
        released.then = self.read_takeover(ready, grant, names, then).map(|granted| reorder(granted, order));
        Ok(released)
    }

    /// Returns how many listeners on a released lock's channel are its releasers. Returns -1 when
    /// other watchers of this process listen too: they share its subscription, so a script cannot
    /// count them.
    pub(super) fn own_listeners(&self, channel: Name<'_>, request: &ReleaseRequest) -> i32 {
        let own = self.subscriber.own(&channel.to_string());
        if own.watches > u64::from(request.own_watch.is_some()) { -1 } else { i32::from(own.subscribed) }
    }

    /// Reads the grant of a takeover. The release stands whatever the grant is.
    pub(super) fn read_takeover(
        &self,
        ready: &Ready,
        grant: &Value,
        names: &[Names<'_>],
        then: &Takeover,
    ) -> Option<Granted> {
        if *grant == Value::Int(0) {
            return None;
        }
        if let Some(why) = reply::text(grant) {
            tracing::debug!(target: TARGET, store = ?self.address, answer = why, "released, but failed to acquire \
                                                                                  in the same step");
            return None;
        }
        match self.read_grant(ready, grant, names, then.request.tokens) {
            Ok(Ok(Acquired::Granted(granted))) => Some(granted),
            Ok(_) => None,
            Err(error) => {
                tracing::debug!(target: TARGET, %error, "released, but failed to acquire in the same step");
                None
            }
        }
    }

    pub(super) fn released(
        &self,
        freed: &[Freed],
        request: &ReleaseRequest,
        names: &[Names<'_>],
    ) -> Released {
        // Other programs that lock in the plain layout poll, and are not counted.
        let rivals = if self.options.layout.is_plain() { Rivals::Unknown } else { Rivals::None };
        let mut released = Released { held: Few::new(), rivals, then: None };
        for ((freed, item), names) in freed.iter().zip(&request.items).zip(names) {
            released.held.push(*freed != Freed::NotHeld);
            let told = match *freed {
                Freed::NotHeld | Freed::StillHeld | Freed::Lingers => continue,
                Freed::Untold => {
                    if !self.warned_untold.swap(true, Ordering::Relaxed) {
                        tracing::warn!(
                            target: TARGET,
                            store = ?self.address,
                            channel = %names.channel(item.kind),
                            "locks are released, but the user may not PUBLISH, so waiters in other processes poll"
                        );
                    }
                    0
                }
                // Only the next waiter was told.
                Freed::Told(told) if item.kind == Kind::Fair => {
                    released.rivals = released.rivals.max(Rivals::counted(told));
                    continue;
                }
                Freed::Told(told) => told,
            };
            if told == 0 && !self.subscriber.is_watched() {
                continue;
            }
            let own = self.subscriber.own(&names.channel(item.kind).to_string());
            let elsewhere = told.saturating_sub(u64::from(own.subscribed));
            let here = own.watches.saturating_sub(u64::from(request.own_watch.is_some()));
            released.rivals = released.rivals.max(Rivals::counted(elsewhere.saturating_add(here)));
            let hears = told > 0 && own.subscribed && own.watches > 0;
            if let Some(own_watch) = request.own_watch.as_ref().filter(|_| hears) {
                own_watch.expect();
            }
        }
        released
    }
}

/// Returns for each released item the index of the takeover's item with the same key, or `None`
/// when they don't match.
fn successors(items: &[Item], then: &Takeover) -> Option<Vec<usize>> {
    let request = &then.request;
    if items.len() != request.items.len()
        || request.floor() > HIGHEST_FLOOR
        // Releases share their connection and cannot wait for replicas on it.
        || !request.replication.is_none()
    {
        return None;
    }
    items.iter().map(|item| then.request.items.iter().position(|next| next.key == item.key)).collect()
}

/// Puts tokens from the order of the released items into the order of the takeover's items.
fn reorder(granted: Granted, order: &[usize]) -> Granted {
    let mut tokens: Vec<_> = order.iter().zip(granted.tokens).collect();
    tokens.sort_by_key(|(index, _)| **index);
    Granted { tokens: tokens.into_iter().map(|(_, range)| range).collect(), moment: granted.moment }
}
