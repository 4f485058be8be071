//! [`TakeOne`]: takes from a stock, which travel in groups; see `scripts/stock_take.lua`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lock_core::internal::chance::jitter;
use lock_core::store::stock::{Part, State, TakeAnswer, TakeRequest};
use lock_core::store::{Few, StoreError};
use redis::Value;

use super::connection::{At, Connector, Ready};
use super::fault::Fault;
use super::group::Step;
use super::names::Names;
use super::node::Node;
use super::reply::{self, int, text};
use super::script;
use super::steps::{about_key, millis};
use super::stock::{Facts, number, read, segment, state, synced};

/// About one take in this many also looks at records that may be over. It looks at twice as many
/// records, so that they go faster than they come.
const LOOKED_AT: f64 = 128.0;

/// A take, and the known facts of its stock.
#[derive(Clone)]
pub(super) struct Take {
    pub(super) request: Arc<TakeRequest>,
    pub(super) facts: Arc<Facts>,
}

/// A take that can travel with others.
pub(super) struct TakeOne;

impl Step for TakeOne {
    type Request = Take;
    type Answer = TakeAnswer;

    /// One more take adds little to a call.
    const FULL: usize = 32;

    fn timeout(take: &Take) -> Duration {
        take.request.call.timeout
    }

    /// Whether two takes are of one stock and differ only in operation, quantity and segment. No
    /// take is executed later than its own time limit allows.
    fn alike(one: &Take, other: &Take) -> bool {
        let (one, other) = (&one.request, &other.request);
        let of = |request: &TakeRequest| {
            (request.call.timeout, request.call.retention, request.hold, request.only.is_some())
        };
        of(one) == of(other) && one.call.stock == other.call.stock
    }

    async fn send(
        node: &Node,
        takes: &[Take],
        ready: Ready,
        mut answer: impl FnMut(usize, Result<TakeAnswer, StoreError>) + Send,
    ) -> Result<(), Fault> {
        let answers = node.take_alike(&node.connector, ready, takes).await?;
        answers.into_iter().enumerate().for_each(|(index, one)| answer(index, one));
        Ok(())
    }
}

impl Node {
    /// Takes from a stock, without joining a group.
    pub(super) async fn take_stock(&self, one: &Take, at: At) -> Result<TakeAnswer, Fault> {
        let take = |connector: Arc<Connector>, ready| async move {
            let answers = self.take_alike(&connector, ready, std::slice::from_ref(one)).await?;
            Ok(answers.into_iter().next().unwrap_or(Ok(TakeAnswer::Contended))?)
        };
        let done = |answer: &TakeAnswer| matches!(answer, TakeAnswer::Done { .. });
        self.confirmed(one.request.call.replication, at, take, done).await
    }

    /// Runs all takes in one script. An error concerns all of them.
    async fn take_alike(
        &self,
        connector: &Connector,
        mut ready: Ready,
        takes: &[Take],
    ) -> Result<Vec<Result<TakeAnswer, StoreError>>, Fault> {
        let Some(Take { request: one, facts }) = takes.first() else { return Ok(Vec::new()) };
        let requests = || takes.iter().map(|take| &*take.request);
        let names = self.stock_names(&one.call.stock)?;
        // Many takes have the same quantity, which is then sent once.
        let alike = requests().all(|request| request.quantity == one.quantity);
        let each = if one.only.is_some() { 4 } else { 2 - usize::from(alike) };
        // One call in many does some of the work of a sweep.
        let looks = if jitter() * LOOKED_AT < takes.len() as f64 { 2 * LOOKED_AT as u32 } else { 0 };
        let mut refused = None;
        // The second try is for a server whose clock has jumped: the refusal has brought its new
        // time.
        for _ in 0..2 {
            let estimate = self.server_time(ready.now)?;
            // No take is executed later than its own time limit allows.
            let latest = requests().map(|request| request.call.stamp(estimate)).min().unwrap_or(estimate);
            let mut invocation = self.invocation(&script::STOCK_TAKE, 3, 9 + each * takes.len());
            invocation.name(names.stock()).name(names.stock_holds()).name(names.stock_operations());
            let hold = one.hold.map_or(-1, |hold| i64::try_from(millis(hold)).unwrap_or(i64::MAX));
            invocation.arg(latest.as_micros()).arg(millis(one.call.retention)).arg(hold);
            // If this is an active segment, the script need not look up the number of segments
            // first.
            let segments = facts.segments.load(Ordering::Relaxed);
            invocation.arg(one.first.checked_rem(segments).unwrap_or(one.first));
            invocation.arg(synced(&one.call)).arg(looks).arg(one.quantity).arg(each);
            invocation.arg(one.call.generation.load(Ordering::Relaxed));
            for request in requests() {
                invocation.arg(request.operation.as_str());
                if each > 1 {
                    invocation.arg(request.quantity);
                }
                if let Some((segment, token)) = request.only {
                    invocation.arg(segment).arg(token.map_or(0, lock_core::FencingToken::get));
                }
            }
            let value = connector.run(&ready, &invocation).await;
            let value =
                value.map_err(|fault| fault.map(|error| about_key(error, &names.stock().to_string())))?;
            let Some((code, now, rest)) = read(&value) else { return Err(self.senseless(&value).into()) };
            self.server_clock.observe(now, ready.now);
            match (code, rest) {
                (1, [Value::Int(-2), all]) => {
                    let read = |request| self.read_taken(connector, &ready, all, request, names);
                    return Ok(requests().map(read).collect());
                }
                (1, [segments, rest @ ..]) if rest.len() == takes.len() => {
                    // The script omits the number when it did not need it.
                    if let Some(segments) = segment(segments) {
                        facts.segments.store(segments, Ordering::Relaxed);
                    }
                    let read = |(value, request): (&Value, &TakeRequest)| {
                        self.read_taken(connector, &ready, value, request, names)
                    };
                    return Ok(rest.iter().zip(requests()).map(read).collect());
                }
                (2, []) => refused = Some(now),
                (3, []) => return Err(self.foreign_stock(names)),
                (7, []) => return Err(self.spread_stock(names)),
                (9, []) => return Err(self.another_generation(names)),
                (4, []) => return Ok(requests().map(|_| Ok(TakeAnswer::Missing)).collect()),
                _ => return Err(self.senseless(&value).into()),
            }
            ready = connector.later(&ready);
        }
        Err(self.too_late(refused).into())
    }

    fn read_taken(
        &self,
        connector: &Connector,
        ready: &Ready,
        value: &Value,
        request: &TakeRequest,
        names: Names<'_>,
    ) -> Result<TakeAnswer, StoreError> {
        if let Value::ServerError(error) = value {
            return Err(about_key(connector.refused(ready, error), &names.stock().to_string()));
        }
        match taken(value, request) {
            Some(Some(answer)) => Ok(answer),
            Some(None) => Err(self.foreign_stock(names).into()),
            None => Err(self.senseless(value)),
        }
    }
}

/// Reads a script's answer about one take. The inner `None` stands for foreign data.
fn taken(value: &Value, request: &TakeRequest) -> Option<Option<TakeAnswer>> {
    if let Value::Int(_) = value {
        let part = Part { segment: segment(value)?, quantity: request.quantity };
        let state = if request.hold.is_some() { State::Held } else { State::Sold };
        let parts = Few::one(part);
        return Some(Some(TakeAnswer::Done { parts, state, remaining: request.hold, repeated: false }));
    }
    let [kind, rest @ ..] = reply::array(value)? else { return None };
    Some(Some(match (text(kind)?, rest) {
        ("D", [repeated, state_now, remaining, parts @ ..]) => {
            let each = parts.chunks_exact(2).map(|part| match part {
                [at, units] => Some(Part { segment: segment(at)?, quantity: number(units)? }),
                _ => None,
            });
            TakeAnswer::Done {
                parts: each.collect::<Option<Few<_>>>()?,
                state: state(state_now)?,
                remaining: number(remaining).map(Duration::from_millis),
                repeated: int(repeated)? == 1,
            }
        }
        ("O", [over]) => TakeAnswer::Over(state(over)?),
        ("X", [quantity, reserved]) => {
            TakeAnswer::Different { quantity: number(quantity)?, reserved: int(reserved)? == 1 }
        }
        ("L", [available]) => TakeAnswer::Short { available: number(available)? },
        ("C", []) => TakeAnswer::Contended,
        ("F", []) => TakeAnswer::Stale,
        ("?", []) => return Some(None),
        _ => return None,
    }))
}
