//! [`AcquireOne`], [`ReleaseOne`]: the steps for single keys, which travel in groups.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::connection::Ready;
use super::group::{Group, Step};
use super::reply;
use super::script::{self, Invocation};
use super::steps::{about, millis};
use crate::store::{AcquireRequest, Acquired, ReleaseRequest, Released, ServerTime, StoreError};

/// One of the acquires that can travel together.
pub(super) struct AcquireOne;

impl Step for AcquireOne {
    type Request = Arc<AcquireRequest>;
    type Answer = Acquired;

    fn group(inner: &Inner) -> &Group<Self> {
        &inner.acquires
    }

    fn timeout(request: &Self::Request) -> Duration {
        request.timeout
    }

    async fn send(
        inner: &Inner,
        requests: &[Self::Request],
        mut ready: Ready,
        mut answer: impl FnMut(usize, Result<Acquired, StoreError>) + Send,
    ) -> Result<(), StoreError> {
        let lease = requests.iter().map(|request| request.lease).max().unwrap_or_default();
        let tokens = requests.iter().map(|request| request.tokens).max().unwrap_or_default();
        let alike = requests.iter().all(|request| (request.lease, request.tokens) == (lease, tokens));
        let items = || requests.iter().flat_map(|request| &request.items);
        let mut refused = None;
        // The second try is for a server whose clock has jumped: the refusal brought its new time.
        for _ in 0..2 {
            let latest = inner.stamp(requests, ready.now)?;
            if latest == ServerTime::from_micros(0) {
                // One of them was withdrawn meanwhile, and must not be sent any more.
                break;
            }
            let count = requests.len();
            let mut invocation =
                Invocation::new(&script::ACQUIRE, 2 * count, if alike { 4 + count } else { 2 + 3 * count });
            for item in items() {
                let names = inner.name(item)?;
                invocation.name(names.lock()).name(names.counter());
            }
            invocation.arg(latest.as_micros()).arg(inner.retention(lease));
            if alike {
                invocation.arg(millis(lease)).arg(tokens);
            }
            for (request, item) in requests.iter().zip(items()) {
                invocation.arg(item.owner.as_str());
                if !alike {
                    invocation.arg(millis(request.lease)).arg(request.tokens);
                }
            }
            let value = match (inner.connector.run(&ready, &invocation).await, requests) {
                (Err(error), [request]) => return Err(about(error, &inner.names(&request.items)?)),
                (value, _) => value?,
            };
            let answers = reply::each(&value, count).ok_or_else(|| inner.senseless(&value))?;
            refused = None;
            for (index, (value, (request, item))) in
                answers.iter().zip(requests.iter().zip(items())).enumerate()
            {
                match inner.read_grant(&ready, value, &[inner.name(item)?], request.tokens) {
                    Ok(Ok(acquired)) => answer(index, Ok(acquired)),
                    Ok(Err(now)) => refused = Some(now),
                    Err(error) => answer(index, Err(error)),
                }
            }
            if refused.is_none() {
                return Ok(());
            }
            ready = inner.connector.later(&ready);
        }
        Err(inner.too_late(refused))
    }
}

/// One of the releases that can travel together.
pub(super) struct ReleaseOne;

impl Step for ReleaseOne {
    type Request = Arc<ReleaseRequest>;
    type Answer = Released;

    fn group(inner: &Inner) -> &Group<Self> {
        &inner.releases
    }

    fn timeout(request: &Self::Request) -> Duration {
        request.timeout
    }

    async fn send(
        inner: &Inner,
        requests: &[Self::Request],
        ready: Ready,
        mut answer: impl FnMut(usize, Result<Released, StoreError>) + Send,
    ) -> Result<(), StoreError> {
        let items = || requests.iter().flat_map(|request| &request.items);
        let mut invocation = Invocation::new(&script::RELEASE, requests.len(), 2 * requests.len());
        for item in items() {
            invocation.name(inner.name(item)?.lock());
        }
        for item in items() {
            invocation.arg(item.owner.as_str()).name(inner.name(item)?.channel(item.kind));
        }
        let value = inner.connector.run(&ready, &invocation).await?;
        let answers = reply::each(&value, requests.len()).ok_or_else(|| inner.senseless(&value))?;
        for (index, (value, (request, item))) in answers.iter().zip(requests.iter().zip(items())).enumerate()
        {
            let freed = inner.read_freed(&ready, value);
            let names = inner.name(item)?;
            answer(index, freed.map(|freed| inner.released(&[freed], request, &[names])));
        }
        Ok(())
    }
}
