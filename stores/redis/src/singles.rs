//! [`AcquireOne`], [`ReleaseOne`], [`TakeoverOne`], [`WithdrawOne`]: the steps for single keys,
//! which travel in groups.

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{
    AcquireRequest, Acquired, Item, Kind, ListenerPolicy, ReleaseRequest, Released, ServerTime, StoreError,
};

use super::connection::{At, Ready};
use super::fault::Fault;
use super::group::{Step, alone};
use super::layout::Layout;
use super::node::Node;
use super::plain::Take;
use super::reply;
use super::script;
use super::steps::{about, life, millis};

/// An acquire that can travel with others.
pub(super) struct AcquireOne;

impl Step for AcquireOne {
    type Request = Arc<AcquireRequest>;
    type Answer = Acquired;

    fn timeout(request: &Self::Request) -> Duration {
        request.timeout
    }

    fn alike(one: &Self::Request, other: &Self::Request) -> bool {
        one.retention == other.retention
    }

    async fn send(
        node: &Node,
        requests: &[Self::Request],
        mut ready: Ready,
        mut answer: impl FnMut(usize, Result<Acquired, StoreError>) + Send,
    ) -> Result<(), Fault> {
        let lease = requests.iter().map(|request| request.lease).max().unwrap_or_default();
        let tokens = requests.iter().map(|request| request.tokens).max().unwrap_or_default();
        let alike = requests.iter().all(|request| (request.lease, request.tokens) == (lease, tokens));
        let items = || requests.iter().flat_map(|request| &request.items);
        let mut refused = None;
        // The second try is for a server whose clock has jumped: the refusal has brought its new
        // time.
        for _ in 0..2 {
            let latest = node.stamp(requests, ready.now)?;
            if latest == ServerTime::from_micros(0) {
                // One of them was withdrawn meanwhile and must not be sent any more.
                break;
            }
            let count = requests.len();
            let mut invocation =
                node.invocation(&script::ACQUIRE, 2 * count, if alike { 4 + count } else { 2 + 3 * count });
            for item in items() {
                let names = node.name(item)?;
                invocation.name(names.lock()).name(names.counter());
            }
            invocation.arg(latest.as_micros()).arg(requests.first().map_or(0, |one| life(one.retention)));
            if alike {
                invocation.arg(millis(lease)).arg(tokens);
            }
            for (request, item) in requests.iter().zip(items()) {
                invocation.arg(item.owner.as_str());
                if !alike {
                    invocation.arg(millis(request.lease)).arg(request.tokens);
                }
            }
            let value = match (node.connector.run(&ready, &invocation).await, requests) {
                (Err(fault), [request]) => {
                    let names = node.names(&request.items)?;
                    return Err(fault.map(|error| about(error, &names)));
                }
                (value, _) => value?,
            };
            let answers = reply::each(&value, count).ok_or_else(|| node.senseless(&value))?;
            refused = None;
            for (index, (value, (request, item))) in
                answers.iter().zip(requests.iter().zip(items())).enumerate()
            {
                match node.read_grant(&ready, value, &[node.name(item)?], request.tokens) {
                    Ok(Ok(acquired)) => answer(index, Ok(acquired)),
                    Ok(Err(now)) => refused = Some(now),
                    Err(error) => answer(index, Err(error)),
                }
            }
            if refused.is_none() {
                return Ok(());
            }
            ready = node.connector.later(&ready);
        }
        Err(node.too_late(refused).into())
    }
}

impl Node {
    /// Acquires the only mutex of the request, without joining a group.
    pub(super) async fn acquire_alone(
        &self,
        request: &Arc<AcquireRequest>,
        at: At,
    ) -> Result<Acquired, Fault> {
        let (by, one) = (move |now| now + at.timeout, Arc::clone(request));
        match self.options.layout {
            Layout::Hash => alone::<AcquireOne>(self, one, by, at.asking).await,
            Layout::Plain if !at.asking => Box::pin(alone::<Take>(self, one, by, false)).await,
            _ => Box::pin(self.acquire_all(request, &request.items, request.wait, at)).await,
        }
    }
}

/// A release that can travel with others.
pub(super) struct ReleaseOne;

impl Step for ReleaseOne {
    type Request = Arc<ReleaseRequest>;
    type Answer = Released;

    fn timeout(request: &Self::Request) -> Duration {
        request.timeout
    }

    async fn send(
        node: &Node,
        requests: &[Self::Request],
        ready: Ready,
        mut answer: impl FnMut(usize, Result<Released, StoreError>) + Send,
    ) -> Result<(), Fault> {
        let items = || requests.iter().flat_map(|request| &request.items);
        let mut invocation = node.invocation(&script::RELEASE, requests.len(), 2 * requests.len());
        for item in items() {
            invocation.name(node.name(item)?.lock());
        }
        for item in items() {
            invocation.arg(item.owner.as_str()).name(node.name(item)?.channel(item.kind));
        }
        let value = node.connector.run(&ready, &invocation).await?;
        let answers = reply::each(&value, requests.len()).ok_or_else(|| node.senseless(&value))?;
        for (index, (value, (request, item))) in answers.iter().zip(requests.iter().zip(items())).enumerate()
        {
            let freed = node.read_one(&ready, value, reply::freed);
            let names = node.name(item)?;
            answer(index, freed.map(|freed| node.released(&[freed], request, &[names])));
        }
        Ok(())
    }
}

/// A withdrawal that can travel with others. The answer is the server's time.
pub(super) struct WithdrawOne;

impl Step for WithdrawOne {
    type Request = Arc<AcquireRequest>;
    type Answer = ServerTime;

    fn timeout(request: &Self::Request) -> Duration {
        request.timeout
    }

    async fn send(
        node: &Node,
        requests: &[Self::Request],
        ready: Ready,
        mut answer: impl FnMut(usize, Result<ServerTime, StoreError>) + Send,
    ) -> Result<(), Fault> {
        let items: Vec<Item> = requests.iter().flat_map(|request| request.items.iter().cloned()).collect();
        let now = node.withdraw_together(&items, &ready).await?;
        (0..requests.len()).for_each(|index| answer(index, Ok(now)));
        Ok(())
    }
}

/// A release with a takeover that can travel with others.
pub(super) struct TakeoverOne;

impl TakeoverOne {
    /// Whether `request` can be such a release.
    pub(super) fn is(request: &ReleaseRequest) -> bool {
        let Some(then) = &request.then else { return false };
        matches!(
            (&*request.items, &*then.request.items),
            ([Item { kind: Kind::Mutex, key, .. }], [next]) if *key == next.key && next.kind == Kind::Mutex
        ) && then.request.floor() == 0
            // Releases share their connection and cannot wait for replicas on it.
            && then.request.replication.is_none()
    }
}

impl Step for TakeoverOne {
    type Request = Arc<ReleaseRequest>;
    type Answer = Released;

    fn timeout(request: &Self::Request) -> Duration {
        request.timeout
    }

    fn alike(one: &Self::Request, other: &Self::Request) -> bool {
        let retention = |release: &ReleaseRequest| release.then.as_ref().map(|then| then.request.retention);
        retention(one) == retention(other)
    }

    async fn send(
        node: &Node,
        requests: &[Self::Request],
        ready: Ready,
        mut answer: impl FnMut(usize, Result<Released, StoreError>) + Send,
    ) -> Result<(), Fault> {
        let all = || requests.iter().filter_map(|request| Some((request, request.then.as_ref()?)));
        let latest = node.stamp(all().map(|(_, then)| &then.request), ready.now)?;
        let count = requests.len();
        if latest == ServerTime::from_micros(0) && count > 1 {
            // One of them was withdrawn meanwhile; the others take over without it.
            return Err(node.too_late(None).into());
        }
        let mut invocation = node.invocation(&script::ACQUIRE, 2 * count, 2 + 6 * count);
        for item in requests.iter().flat_map(|request| &request.items) {
            let names = node.name(item)?;
            invocation.name(names.lock()).name(names.counter());
        }
        let retention = all().next().map_or(0, |(_, then)| life(then.request.retention));
        invocation.arg(latest.as_micros()).arg(retention);
        for (request, then) in all() {
            for (item, next) in request.items.iter().zip(&then.request.items) {
                let channel = node.name(item)?.channel(item.kind);
                invocation.arg(next.owner.as_str()).arg(millis(then.request.lease)).arg(then.request.tokens);
                invocation.arg(item.owner.as_str()).name(channel);
                match then.listeners {
                    ListenerPolicy::Respect => invocation.arg(node.own_listeners(channel, request)),
                    ListenerPolicy::Ignore => invocation.arg(""),
                };
            }
        }
        let value = node.connector.run(&ready, &invocation).await?;
        let (grants, freed) = reply::each_taken_over(&value, count).ok_or_else(|| node.senseless(&value))?;
        for (index, ((request, then), (grant, freed))) in all().zip(grants.iter().zip(freed)).enumerate() {
            let names = node.names(&request.items)?;
            let freed = node.read_one(&ready, freed, reply::freed);
            answer(
                index,
                freed.map(|freed| {
                    let mut released = node.released(&[freed], request, &names);
                    released.then = node.read_takeover(&ready, grant, &names, then);
                    released
                }),
            );
        }
        Ok(())
    }
}
