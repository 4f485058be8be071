//! The plain layout: a lock is a string with the owner, as `SET NX PX` writes it.
//!
//! A free mutex is taken without a script, by [`Take`]: SET NX PX, and INCRBY of the one counter of
//! the server, or of the slot in a cluster. Everything else is a script, which also handles what
//! SET and INCRBY leave open: a busy lock, a lock that its owner holds already, and a counter that
//! is lost.
//!
//! SET and INCRBY are no transaction. Others may hold the lock between the two only after the lease
//! has ended or the lock was released. So a token that came after its lease is heard of too late to
//! be believed. A forced release or a DEL between the two breaks this.
//!
//! The counter begins at the server's clock on each connection: its seed. A token that is not above
//! the seed shows that the counter was lost meanwhile. It is no grant: the script moves the counter
//! to the clock again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::store::{AcquireRequest, Acquired, Granted, Item, ServerTime, StoreError, StoreErrorKind};
use redis::{Cmd, Pipeline, RedisWrite, Value};

use super::connection::{At, Ready};
use super::fault::Fault;
use super::group::Step;
use super::join::join;
use super::names::Names;
use super::node::Node;
use super::reply;
use super::script::{self, Invocation};
use super::steps::{about, millis};

/// Approximate size of a command, so that it is rarely reallocated while it grows.
const USUAL: usize = 128;

/// Whether SET has taken the lock of a request that has no token yet. A request that fails then has
/// to give it back.
#[derive(Default)]
struct Untokened(AtomicBool);

impl Untokened {
    fn set(request: &AcquireRequest, is: bool) {
        if is || Self::is(request) {
            request.attachment::<Self>().0.store(is, Ordering::Relaxed);
        }
    }

    fn is(request: &AcquireRequest) -> bool {
        request.attached().is_some_and(|Self(is)| is.load(Ordering::Relaxed))
    }
}

/// Returns the error of a request that has failed. If SET has taken something for it, `give_back`
/// runs first; if that fails too, the error says that the outcome is unknown.
pub(super) async fn failed<T>(
    request: &AcquireRequest,
    error: StoreError,
    give_back: impl Future<Output = Result<T, StoreError>>,
) -> StoreError {
    if error.outcome_unknown() || !Untokened::is(request) {
        return error;
    }
    match give_back.await {
        Ok(_) => error,
        Err(why) => {
            StoreError::new(StoreErrorKind::Unanswered, format!("{error}; and not given back: {why}"))
        }
    }
}

/// Acquires free mutexes that travel together.
pub(super) struct Take;

impl Step for Take {
    type Request = Arc<AcquireRequest>;
    type Answer = Acquired;

    fn timeout(request: &Self::Request) -> Duration {
        request.timeout
    }

    async fn send(
        node: &Node,
        requests: &[Self::Request],
        ready: Ready,
        mut answer: impl FnMut(usize, Result<Acquired, StoreError>) + Send,
    ) -> Result<(), Fault> {
        let items = || requests.iter().flat_map(|request| &request.items);
        let all = requests.iter().map(|request| &**request);
        let Some(names) = items().next().map(|item| node.name(item)).transpose()? else { return Ok(()) };
        let counter = names.slot_of_counter();
        let mut ready = node.prepared(all.clone(), &node.connector, ready).await?;
        let seed = match ready.session().seed(counter) {
            Some(seed) => seed,
            None => {
                let seed = node.seed(&ready, &names).await?;
                ready = node.connector.later(&ready);
                seed
            }
        };
        // From here to the send nothing is awaited: a withdrawal finds all of it done, or nothing.
        let now = node.server_time(ready.now)?;
        if requests.iter().any(|request| request.stamp(now) == ServerTime::from_micros(0)) {
            // One of them was withdrawn meanwhile and must not be sent any more.
            return Err(node.too_late(None).into());
        }
        // `SET` says no time. That of a later answer must not be smaller, and `now` may be ahead.
        let moment = node.server_clock.last().unwrap_or(now);
        let mut commands = Pipeline::with_capacity(requests.len() + 1);
        let mut wanted = 0;
        for (request, item) in requests.iter().zip(items()) {
            let mut set = Cmd::with_capacity(6, USUAL);
            set.arg("SET").write_arg_fmt(node.name(item)?.lock());
            set.arg(item.owner.as_str()).arg("NX").arg("PX").arg(millis(request.lease));
            commands.add_command(set);
            wanted += u64::from(request.tokens);
        }
        let mut count_on = Cmd::with_capacity(3, USUAL);
        count_on.arg("INCRBY").write_arg_fmt(names.counter());
        count_on.arg(wanted);
        commands.add_command(count_on);

        let sent = async { Ok(node.connector.call_each(&ready, &commands).await?) };
        let values = node.noted(all, &ready, sent).await?;
        let split = values.split_last().filter(|(_, sets)| sets.len() == requests.len());
        let (last, sets) = split.ok_or_else(|| node.senseless(&Value::Array(values.clone())))?;
        let mut token = count(last).and_then(|top| top.checked_sub(wanted)).filter(|first| *first >= seed);
        if token.is_none() {
            if count(last).is_some() {
                ready.session().forget_seeds(|slot| slot == counter);
            }
            let took = requests.iter().zip(sets).filter(|(_, set)| **set == Value::Okay);
            took.for_each(|(request, _)| Untokened::set(request, true));
        }
        let mut rest = Vec::new();
        for (index, (request, set)) in requests.iter().zip(sets).enumerate() {
            let top = token.map(|token| token + u64::from(request.tokens));
            match (set, top) {
                (Value::Okay, Some(top)) => {
                    answer(index, Ok(Acquired::Granted(Granted::one(top, request.tokens, moment))));
                }
                // A full server refuses SET even if the lock is busy.
                (Value::ServerError(error), _) if error.code() != "OOM" => {
                    let fault = node.connector.fault(&ready, error);
                    if fault.redirect.is_some() && requests.len() == 1 {
                        return Err(fault);
                    }
                    answer(index, Err(fault.error));
                }
                _ => rest.push((index, request)),
            }
            token = top;
        }
        if rest.is_empty() {
            return Ok(());
        }
        let left = node.connector.later(&ready).left();
        let asked = rest.iter().map(|(_, request)| {
            Box::pin(node.acquire_all(request, &request.items, request.wait, At::once(left)))
        });
        let answers = join(asked).await;
        for ((index, request), acquired) in rest.into_iter().zip(answers) {
            match acquired {
                Err(fault) if fault.redirect.is_some() && requests.len() == 1 => return Err(fault),
                Err(fault) => answer(index, Err(fault.error)),
                Ok(acquired) => {
                    Untokened::set(request, false);
                    answer(index, Ok(acquired));
                }
            }
        }
        Ok(())
    }
}

impl Node {
    /// Asks for the number that the next tokens of these locks' counter have to exceed on this
    /// connection.
    async fn seed(&self, ready: &Ready, names: &Names<'_>) -> Result<u64, Fault> {
        let granted = self.more_tokens(ready, names, 1, 0).await?;
        let seed = granted.tokens.first().map_or(0, |range| range.last);
        ready.session().set_seed(names.slot_of_counter(), seed);
        Ok(seed)
    }

    /// Takes tokens from the counter.
    async fn more_tokens(
        &self,
        ready: &Ready,
        names: &Names<'_>,
        tokens: u32,
        floor: u64,
    ) -> Result<Granted, Fault> {
        let mut invocation = Invocation::new(&script::PLAIN_COUNT, self.dialect, 1, 2);
        invocation.name(names.counter()).arg(tokens).arg(floor);
        let value = self.connector.run(ready, &invocation).await?;
        match self.read_grant(ready, &value, std::slice::from_ref(names), tokens)? {
            Ok(Acquired::Granted(granted)) => Ok(granted),
            _ => Err(self.senseless(&value).into()),
        }
    }

    /// Takes the tokens of a lock that was taken without its counter.
    pub(super) async fn take_tokens(
        &self,
        request: &AcquireRequest,
        item: &Item,
        at: At,
    ) -> Result<Granted, Fault> {
        let names = self.name(item)?;
        let ready = self.connector.ready(at).await?;
        let counted = self.more_tokens(&ready, &names, request.tokens, request.floor()).await;
        counted.map_err(|fault| fault.map(|error| about(error, &[names])))
    }
}

/// Reads the answer to INCRBY.
fn count(value: &Value) -> Option<u64> {
    reply::int(value).and_then(|count| u64::try_from(count).ok())
}
