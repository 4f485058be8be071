//! [`RedisStocks`]: stocks in one slot; see `scripts/stock.lua`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::stock::{
    Audit, AuditAnswer, MAX_QUANTITY, RestockAnswer, RestockRequest, SegmentCounts, Settle, SettleAnswer,
    SettleRequest, Snapshot, State, StockCall, StockStore, Swept, TakeAnswer, TakeRequest,
};
use lock_core::store::{BoxFuture, ServerTime, StoreError, StoreErrorKind};
use redis::Value;

use super::connection::{At, Connector, Ready};
use super::fault::Fault;
use super::group::Group;
use super::names::Names;
use super::node::Node;
use super::reply::{self, int, text};
use super::script::{self, Invocation};
use super::steps::{about_key, millis};
use super::stock_take::{Take, TakeOne};
use super::topology::{Topology, call, step};

/// Records that one call of a sweep or an audit looks at, which takes the server about a
/// millisecond.
const RECORDS: u32 = 512;
/// Maximum number of reservations that one call of a sweep ends, which takes the server about a
/// millisecond.
const ENDED: u32 = 100;
/// Maximum number of passes through all records before an audit reports contention.
const PASSES: u32 = 8;
/// Maximum number of calls per sweep for old records, so that one sweeper gets through a million in
/// a minute.
const LOOKS: u32 = 32;

pub(super) fn number(value: &Value) -> Option<u64> {
    int(value).and_then(|number| u64::try_from(number).ok())
}

pub(super) fn segment(value: &Value) -> Option<u32> {
    int(value).and_then(|number| u32::try_from(number).ok())
}

pub(super) fn state(value: &Value) -> Option<State> {
    Some(match text(value)? {
        "H" => State::Held,
        "S" => State::Sold,
        "C" => State::Cancelled,
        "E" => State::Expired,
        "B" => State::GivenBack,
        _ => return None,
    })
}

/// Whether a script repeats the write of an operation that was done before, so that replicas can be
/// waited for: WAIT covers only writes of its own connection.
pub(super) fn synced(call: &StockCall) -> u8 {
    u8::from(!call.replication.is_none())
}

/// Reads the code, the server's time, and the script's own values.
pub(super) fn read(value: &Value) -> Option<(i64, ServerTime, &[Value])> {
    let [code, now, rest @ ..] = reply::array(value)? else { return None };
    Some((int(code)?, reply::now(now)?, rest))
}

impl Node {
    pub(super) fn stock_names<'a>(&'a self, key: &'a LockKey) -> Result<Names<'a>, StoreError> {
        Names::new(&self.options.prefix, key)
    }

    pub(super) fn foreign_stock(&self, names: Names<'_>) -> Fault {
        self.foreign_to(
            "stock",
            &names.stock().to_string(),
            "it, or a record of one of its operations, has data of another kind",
        )
        .into()
    }

    pub(super) fn spread_stock(&self, names: Names<'_>) -> Fault {
        let what = format!(
            "the stock {} is spread and not in one slot: use Layout::Spread for it, or another name",
            names.stock()
        );
        self.address.error(StoreErrorKind::ForeignData, what).into()
    }

    pub(super) fn another_generation(&self, names: Names<'_>) -> Fault {
        let what = format!(
            "the stock {} is not the one that this instance has used before: the server has lost it, or it was \
             created again, and its units could be sold twice. Find out which units were sold; then restart the \
             instance to go on, or use another name",
            names.stock()
        );
        self.address.error(StoreErrorKind::ForeignData, what).into()
    }

    /// Runs a step that is refused when it comes too late. `mean` interprets its code and its own
    /// values. `done` says whether replicas then have something to confirm.
    async fn stock_step<T>(
        &self,
        call: &StockCall,
        names: Names<'_>,
        at: At,
        ask: impl Fn(ServerTime) -> Invocation,
        mean: impl Fn(i64, &[Value]) -> Option<T>,
        done: impl Fn(&T) -> bool,
    ) -> Result<T, Fault> {
        let read = |ready: &Ready, answer: Result<Value, Fault>| {
            let value =
                answer.map_err(|fault| fault.map(|error| about_key(error, &names.stock().to_string())))?;
            let Some((code, now, rest)) = read(&value) else { return Err(self.senseless(&value).into()) };
            self.server_clock.observe(now, ready.now);
            match code {
                2 => Ok(Err(now)),
                3 => Err(self.foreign_stock(names)),
                7 => Err(self.spread_stock(names)),
                9 => Err(self.another_generation(names)),
                code => mean(code, rest).map(Ok).ok_or_else(|| self.senseless(&value).into()),
            }
        };
        let ask = |now| ask(call.stamp(now));
        let step = |connector: Arc<Connector>, ready| async move {
            self.in_time_over(&connector, ready, ask, read).await
        };
        self.confirmed(call.replication, at, step, done).await
    }

    pub(super) async fn settle_stock(&self, request: &SettleRequest, at: At) -> Result<SettleAnswer, Fault> {
        let how = match request.settle {
            Settle::Confirm => "confirm",
            Settle::Cancel => "cancel",
            Settle::GiveBack => "give_back",
        };
        let SettleRequest { call, operation, .. } = request;
        let names = self.stock_names(&call.stock)?;
        let ask = |latest: ServerTime| {
            let mut invocation = self.invocation(&script::STOCK_SETTLE, 3, 5);
            invocation.name(names.stock()).name(names.stock_holds()).name(names.stock_operations());
            invocation.arg(latest.as_micros()).arg(millis(call.retention));
            invocation.arg(operation.as_str()).arg(how).arg(synced(call));
            invocation
        };
        let mean = |code, rest: &[Value]| match (code, rest) {
            (0, []) => Some(SettleAnswer::Unknown),
            (4, []) => Some(SettleAnswer::Missing),
            (1, [before, now, quantity, reserved]) => Some(SettleAnswer::Known {
                before: if text(before)?.is_empty() { None } else { Some(state(before)?) },
                now: state(now)?,
                quantity: number(quantity)?,
                reserved: int(reserved)? == 1,
            }),
            _ => None,
        };
        let known = |answer: &SettleAnswer| matches!(answer, SettleAnswer::Known { .. });
        self.stock_step(call, names, at, ask, mean, known).await
    }

    pub(super) async fn restock(&self, request: &RestockRequest, at: At) -> Result<RestockAnswer, Fault> {
        let names = self.stock_names(&request.call.stock)?;
        let ask = |latest: ServerTime| {
            let mut invocation = self.invocation(&script::STOCK_CHANGE, 2, 7);
            invocation.name(names.stock()).name(names.stock_operations());
            invocation.arg(latest.as_micros()).arg("restock").arg(millis(request.call.retention));
            invocation.arg(request.quantity).arg(MAX_QUANTITY).arg(synced(&request.call));
            invocation.arg(request.operation.as_str());
            invocation
        };
        let mean = |code, rest: &[Value]| match (code, rest) {
            (0 | 1, []) => Some(RestockAnswer::Done { repeated: code == 0 }),
            (4, []) => Some(RestockAnswer::Missing),
            (5, [quantity]) => Some(RestockAnswer::Different { quantity: number(quantity)? }),
            (6, []) => Some(RestockAnswer::TooMany),
            _ => None,
        };
        let done = |answer: &RestockAnswer| matches!(answer, RestockAnswer::Done { .. });
        self.stock_step(&request.call, names, at, ask, mean, done).await
    }

    /// Makes a stock unless it exists. Returns whether this call made it, and its generation.
    /// `known` is the generation that was used before.
    async fn make_stock(
        &self,
        call: &StockCall,
        known: Option<u64>,
        units: &[u64],
        at: At,
    ) -> Result<(bool, u64), Fault> {
        let names = self.stock_names(&call.stock)?;
        let ask = |latest: ServerTime| {
            let mut invocation = self.invocation(&script::STOCK_CHANGE, 2, 3 + units.len());
            invocation.name(names.stock()).name(names.stock_operations()).arg(latest.as_micros()).arg("init");
            match known {
                Some(generation) => invocation.arg(generation),
                None => invocation.arg(""),
            };
            for units in units {
                invocation.arg(*units);
            }
            invocation
        };
        let mean = |code, rest: &[Value]| match (code, rest) {
            (0 | 1, [generation]) => Some((code == 1, number(generation)?)),
            _ => None,
        };
        self.stock_step(call, names, at, ask, mean, |(made, _)| *made).await
    }

    /// Changes a stock. Returns `Some(true)` if this call did it, `Some(false)` if it was so
    /// before, `None` if there is no such stock.
    pub(super) async fn change_stock(
        &self,
        call: &StockCall,
        how: &str,
        numbers: &[u64],
        at: At,
    ) -> Result<Option<bool>, Fault> {
        let names = self.stock_names(&call.stock)?;
        let ask = |latest: ServerTime| {
            let mut invocation = self.invocation(&script::STOCK_CHANGE, 2, 2 + numbers.len());
            invocation.name(names.stock()).name(names.stock_operations()).arg(latest.as_micros()).arg(how);
            for number in numbers {
                invocation.arg(*number);
            }
            invocation
        };
        let mean = |code, rest: &[Value]| match (code, rest) {
            (0 | 1, []) => Some(Some(code == 1)),
            (4, []) => Some(None),
            _ => None,
        };
        self.stock_step(call, names, at, ask, mean, |changed| *changed == Some(true)).await
    }

    /// Looks at about `records` records and forgets those that are over. Returns how many those
    /// were, and whether there are more to look at.
    async fn forget_old(&self, call: &StockCall, records: u32, at: At) -> Result<(u64, bool), Fault> {
        let names = self.stock_names(&call.stock)?;
        let ask = |latest: ServerTime| {
            let mut invocation = self.invocation(&script::STOCK_CHANGE, 2, 4);
            invocation
                .name(names.stock())
                .name(names.stock_operations())
                .arg(latest.as_micros())
                .arg("purge");
            invocation.arg(millis(call.retention)).arg(records);
            invocation
        };
        let mean = |code, rest: &[Value]| match (code, rest) {
            (8, [records, more]) => Some((number(records)?, int(more)? == 1)),
            _ => None,
        };
        self.stock_step(call, names, at, ask, mean, |_| false).await
    }

    /// Returns the counts and the sums of a page of records that begins at `cursor`.
    async fn look_at_stock(
        &self,
        call: &StockCall,
        cursor: Option<u64>,
        at: At,
    ) -> Result<Option<Look>, Fault> {
        let names = self.stock_names(&call.stock)?;
        let ask = |_| {
            let mut invocation = self.invocation(&script::STOCK_LOOK, 2, 2);
            invocation.name(names.stock()).name(names.stock_operations());
            match cursor {
                Some(cursor) => invocation.arg(cursor),
                None => invocation.arg(""),
            };
            invocation.arg(RECORDS);
            invocation
        };
        let mean = |code, rest: &[Value]| match (code, rest) {
            (4, []) => Some(None),
            (1, rest) => Some(Some(Look::read(rest)?)),
            _ => None,
        };
        self.stock_step(call, names, at, ask, mean, |_| false).await
    }

    /// Ends reservations that are over, for at most `most` ids. Returns how many ended, how many
    /// ids had none, and whether there are more.
    async fn expire_some(&self, call: &StockCall, most: u32, at: At) -> Result<(u64, u64, bool), Fault> {
        let names = self.stock_names(&call.stock)?;
        let ask = |latest: ServerTime| {
            let mut invocation = self.invocation(&script::STOCK_EXPIRE, 3, 3);
            invocation.name(names.stock()).name(names.stock_holds()).name(names.stock_operations());
            invocation.arg(latest.as_micros()).arg(millis(call.retention)).arg(most);
            invocation
        };
        let mean = |code, rest: &[Value]| match (code, rest) {
            (4, []) => Some((0, 0, false)),
            (1, [ended, left, more]) => Some((number(ended)?, number(left)?, int(more)? == 1)),
            _ => None,
        };
        self.stock_step(call, names, at, ask, mean, |(ended, ..)| *ended > 0).await
    }

    pub(super) async fn sweep_stock(&self, call: &StockCall, limit: u32, at: At) -> Result<Swept, Fault> {
        let (mut swept, mut left, mut failed) = (Swept::default(), limit, None);
        while left > 0 {
            let most = left.min(ENDED);
            match self.expire_some(call, most, at).await {
                Ok((ended, without, more)) => {
                    swept.expired += ended;
                    swept.recovered += without;
                    swept.more = more;
                }
                // Old records must be forgotten all the same.
                Err(fault) => failed = Some(fault),
            }
            left = if swept.more && failed.is_none() { left - most } else { 0 };
        }
        for look in 1..=LOOKS {
            match self.forget_old(call, RECORDS, at).await {
                Ok((forgotten, more)) => {
                    swept.forgotten += forgotten;
                    swept.more |= more && look == LOOKS;
                    if !more {
                        break;
                    }
                }
                Err(fault) => {
                    failed = failed.or(Some(fault));
                    break;
                }
            }
        }
        failed.map_or(Ok(swept), Err)
    }
}

/// The counts of a stock, and the sums of a page of its records.
struct Look {
    snapshot: Snapshot,
    generation: u64,
    forgotten: u64,
    page: Option<Page>,
}

/// Sums over some records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Page {
    /// Start of the next page; 0 after the last one.
    next: u64,
    held: u64,
    sold: u64,
    /// Sum of the times at which the records end; any change of a record changes its time.
    times: u64,
}

impl Look {
    fn read(values: &[Value]) -> Option<Self> {
        let [n, m, epoch, initial, restocked, units, generation, forgotten, page] = values else {
            return None;
        };
        let active = number(n)?;
        let units: Vec<u64> = reply::array(units)?.iter().map(number).collect::<Option<_>>()?;
        let each = units.chunks_exact(3).zip(0..).map(|(of, at)| SegmentCounts {
            available: of.first().copied().unwrap_or_default(),
            held: of.get(1).copied().unwrap_or_default(),
            sold: of.get(2).copied().unwrap_or_default(),
            active: at < active,
        });
        let segments: Vec<_> = each.collect();
        if segments.len() as u64 != number(m)? {
            return None;
        }
        let page = match reply::array(page)? {
            [] => None,
            [next, held, sold, times] => Some(Page {
                next: text(next)?.parse().ok()?,
                held: number(held)?,
                sold: number(sold)?,
                times: number(times)?,
            }),
            _ => return None,
        };
        let (initial, restocked, epoch) = (number(initial)?, number(restocked)?, number(epoch)?);
        let snapshot = Snapshot { segments, in_transit: 0, initial, restocked, epoch };
        Some(Self { snapshot, generation: number(generation)?, forgotten: number(forgotten)?, page })
    }
}

/// Known facts of a stock that this process has used.
#[derive(Debug)]
pub(super) struct Facts {
    /// When the stock was made, by its server's clock. A stock that is made anew, as after a loss
    /// of data, has another generation.
    generation: u64,
    /// Number of segments at the last take; 0 before.
    pub(super) segments: AtomicU32,
}

#[derive(Clone, Debug, Default)]
struct Generations(Arc<Mutex<HashMap<LockKey, Arc<Facts>>>>);

impl Generations {
    fn of(&self, stock: &LockKey) -> Option<Arc<Facts>> {
        lock(&self.0).get(stock).cloned()
    }

    /// Stores a generation unless one is known, and returns the stored facts.
    fn learn(&self, stock: &LockKey, generation: u64) -> Arc<Facts> {
        let facts = || Arc::new(Facts { generation, segments: AtomicU32::new(0) });
        Arc::clone(lock(&self.0).entry(stock.clone()).or_insert_with(facts))
    }
}

/// The stocks in one slot of a [`RedisStore`](super::RedisStore).
#[derive(Clone)]
pub(super) struct RedisStocks {
    topology: Topology,
    generations: Generations,
    /// Groups the takes; `None` in a cluster, where each travels alone.
    takes: Option<Arc<Group<TakeOne>>>,
}

impl RedisStocks {
    pub(super) fn new(topology: &Topology) -> Self {
        let takes = match topology {
            Topology::One { node, .. } => Some(Group::new(node)),
            Topology::Cluster(_) => None,
        };
        Self { topology: topology.clone(), generations: Generations::default(), takes }
    }
}

impl fmt::Debug for RedisStocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisStocks").field(&self.topology).finish()
    }
}

impl RedisStocks {
    /// Runs a step at the only server, or at the server of the stock's slot.
    fn at<T, F>(
        &self,
        stock: LockKey,
        timeout: Duration,
        step: impl Fn(Arc<Node>, At) -> F + Send + 'static,
    ) -> BoxFuture<Result<T, StoreError>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        let made: BoxFuture<_> =
            step!(self, |node| Ok(step(node, At::once(timeout)).await?), |cluster| async move {
                cluster.at_stock(&stock, timeout, step).await
            });
        call(&self.topology, made)
    }

    fn call<T, F>(
        &self,
        call: StockCall,
        step: impl Fn(Arc<Node>, Arc<StockCall>, At) -> F + Send + 'static,
    ) -> BoxFuture<Result<T, StoreError>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        let (stock, timeout) = (call.stock.clone(), call.timeout);
        let call = Arc::new(call);
        self.at(stock, timeout, move |node, at| step(node, Arc::clone(&call), at))
    }
}

impl RedisStocks {
    fn look(&self, call: &StockCall, cursor: Option<u64>) -> BoxFuture<Result<Option<Look>, StoreError>> {
        let call = StockCall::new(call.stock.clone(), call.timeout, call.retention);
        self.call(call, move |node, call, at| async move { node.look_at_stock(&call, cursor, at).await })
    }

    /// Reads all records, page by page. Returns an inner `Err` if the stock changed meanwhile, or
    /// does not exist.
    async fn pass(&self, call: &StockCall) -> Result<Result<(Audit, u64), AuditAnswer>, StoreError> {
        let mut all: Option<(Audit, u64)> = None;
        let mut cursor = 0;
        loop {
            let Some(look) = self.look(call, Some(cursor)).await? else {
                return Ok(Err(AuditAnswer::Missing));
            };
            let page = look.page.unwrap_or_default();
            let (audit, times) = all.get_or_insert_with(|| {
                let (counted, forgotten) = (look.snapshot.clone(), look.forgotten);
                (Audit { counted, held: 0, sold: 0, forgotten }, 0)
            });
            if audit.counted != look.snapshot || audit.forgotten != look.forgotten {
                return Ok(Err(AuditAnswer::Contended));
            }
            audit.held += page.held;
            audit.sold += page.sold;
            *times = times.wrapping_add(page.times);
            cursor = page.next;
            if cursor == 0 {
                return Ok(all.ok_or(AuditAnswer::Missing));
            }
        }
    }

    /// Reads all records until they agree with the counts, or until two passes in a row see the
    /// same. Between two equal passes the stock was as they say.
    async fn compare(self, call: StockCall) -> Result<AuditAnswer, StoreError> {
        let mut before = None;
        for _ in 0..PASSES {
            let seen = match self.pass(&call).await? {
                Ok(seen) => seen,
                Err(AuditAnswer::Contended) => continue,
                Err(answer) => return Ok(answer),
            };
            if seen.0.agrees() || before.as_ref() == Some(&seen) {
                return Ok(AuditAnswer::Audited(seen.0));
            }
            before = Some(seen);
        }
        Ok(AuditAnswer::Contended)
    }

    fn take_of(
        &self,
        request: Arc<TakeRequest>,
        facts: Arc<Facts>,
    ) -> BoxFuture<Result<TakeAnswer, StoreError>> {
        request.call.generation.store(facts.generation, Ordering::Relaxed);
        let take = Take { request, facts };
        let of = &take.request.call;
        if let Some(takes) = &self.takes
            && !of.is_by_itself()
            && of.replication.is_none()
        {
            let takes = Arc::clone(takes);
            return call(&self.topology, async move {
                // Checked before the take joins others: an invalid name must not affect them.
                takes.node.stock_names(&take.request.call.stock)?;
                takes.call(take).await
            });
        }
        self.at(of.stock.clone(), of.timeout, move |node, at| {
            let take = take.clone();
            async move { node.take_stock(&take, at).await }
        })
    }
}

impl StockStore for RedisStocks {
    fn initialize(&self, call: StockCall, segments: Vec<u64>) -> BoxFuture<Result<bool, StoreError>> {
        let (generations, stock) = (self.generations.clone(), call.stock.clone());
        let known = generations.of(&stock).map(|facts| facts.generation);
        let made = self.call(call, move |node, call, at| {
            let segments = segments.clone();
            async move { node.make_stock(&call, known, &segments, at).await }
        });
        Box::pin(async move {
            let (made, generation) = made.await?;
            generations.learn(&stock, generation);
            Ok(made)
        })
    }

    fn take(&self, request: Arc<TakeRequest>) -> BoxFuture<Result<TakeAnswer, StoreError>> {
        if let Some(facts) = self.generations.of(&request.call.stock) {
            return self.take_of(request, facts);
        }
        let stocks = self.clone();
        Box::pin(async move {
            let call = &request.call;
            let Some(look) = stocks.look(call, None).await? else { return Ok(TakeAnswer::Missing) };
            let facts = stocks.generations.learn(&call.stock, look.generation);
            stocks.take_of(request, facts).await
        })
    }

    fn settle(&self, request: Arc<SettleRequest>) -> BoxFuture<Result<SettleAnswer, StoreError>> {
        let (stock, timeout) = (request.call.stock.clone(), request.call.timeout);
        self.at(stock, timeout, move |node, at| {
            let request = Arc::clone(&request);
            async move { node.settle_stock(&request, at).await }
        })
    }

    fn restock(&self, request: Arc<RestockRequest>) -> BoxFuture<Result<RestockAnswer, StoreError>> {
        let (stock, timeout) = (request.call.stock.clone(), request.call.timeout);
        self.at(stock, timeout, move |node, at| {
            let request = Arc::clone(&request);
            async move { node.restock(&request, at).await }
        })
    }

    fn snapshot(&self, call: StockCall) -> BoxFuture<Result<Option<Snapshot>, StoreError>> {
        let look = self.look(&call, None);
        Box::pin(async move { Ok(look.await?.map(|look| look.snapshot)) })
    }

    fn rebalance(&self, call: StockCall) -> BoxFuture<Result<Option<()>, StoreError>> {
        self.call(call, |node, call, at| async move {
            Ok(node.change_stock(&call, "rebalance", &[], at).await?.map(drop))
        })
    }

    fn resize(&self, call: StockCall, segments: u32) -> BoxFuture<Result<Option<()>, StoreError>> {
        self.call(call, move |node, call, at| async move {
            Ok(node.change_stock(&call, "resize", &[segments.into()], at).await?.map(drop))
        })
    }

    fn audit(&self, call: StockCall) -> BoxFuture<Result<AuditAnswer, StoreError>> {
        Box::pin(self.clone().compare(call))
    }

    fn sweep(&self, call: StockCall, limit: u32) -> BoxFuture<Result<Swept, StoreError>> {
        self.call(call, move |node, call, at| async move { node.sweep_stock(&call, limit, at).await })
    }
}
