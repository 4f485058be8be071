//! [`MemoryStocks`]: stocks inside one process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;

use lock_core::LockKey;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::stock::{
    AuditAnswer, RestockAnswer, RestockRequest, SettleAnswer, SettleRequest, Snapshot, StockCall, StockStore,
    Swept, TakeAnswer, TakeRequest,
};
use lock_core::store::{BoxFuture, StoreError};
use lock_store_records::in_time;

use super::books::{Books, Wanted};
use super::memory::Memory;

/// All stocks of a store, by prefix and key. They stay until the store is dropped, as on a server.
pub(super) type Stocks = Mutex<HashMap<String, Books>>;

/// One manager's access to the stocks.
#[derive(Clone)]
struct Handle {
    memory: Arc<Memory>,
    prefix: Arc<str>,
}

/// The stocks of a memory store.
pub(super) struct MemoryStocks(Handle);

impl MemoryStocks {
    pub(super) fn new(memory: &Arc<Memory>, prefix: &Arc<str>) -> Self {
        Self(Handle { memory: Arc::clone(memory), prefix: Arc::clone(prefix) })
    }

    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Handle) -> Result<T, StoreError> + Send + 'static,
    ) -> BoxFuture<Result<T, StoreError>> {
        let handle = self.0.clone();
        Box::pin(async move {
            // It never waits, so a task that sells in a loop would monopolize its thread.
            tokio::task::coop::consume_budget().await;
            work(&handle)
        })
    }
}

impl fmt::Debug for MemoryStocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStocks").field("prefix", &self.0.prefix).finish_non_exhaustive()
    }
}

impl Handle {
    fn full_name(&self, stock: &LockKey) -> String {
        format!("{}{stock}", self.prefix)
    }

    /// Makes one atomic step, unless the call is late; returns `None` when the stock does not
    /// exist.
    fn stock_step<T>(
        &self,
        call: &StockCall,
        work: impl FnOnce(&mut Books, Tick) -> T,
    ) -> Result<Option<T>, StoreError> {
        call.refuse_replication()?;
        let latest = call.stamp(self.memory.now());
        let mut stocks = lock(&self.memory.stocks);
        let now = self.memory.clock.now();
        in_time(self.memory.time_at(now), latest)?;
        Ok(stocks.get_mut(&self.full_name(&call.stock)).map(|books| work(books, now)))
    }
}

impl StockStore for MemoryStocks {
    fn initialize(&self, call: StockCall, segments: Vec<u64>) -> BoxFuture<Result<bool, StoreError>> {
        self.call(move |handle| {
            call.refuse_replication()?;
            let latest = call.stamp(handle.memory.now());
            let mut stocks = lock(&handle.memory.stocks);
            in_time(handle.memory.now(), latest)?;
            match stocks.entry(handle.full_name(&call.stock)) {
                Entry::Occupied(_) => Ok(false),
                Entry::Vacant(place) => {
                    place.insert(Books::new(&segments));
                    Ok(true)
                }
            }
        })
    }

    fn take(&self, request: Arc<TakeRequest>) -> BoxFuture<Result<TakeAnswer, StoreError>> {
        self.call(move |handle| {
            let TakeRequest { call, operation, quantity, hold, first, only } = &*request;
            let wanted = Wanted { quantity: *quantity, hold: *hold, first: *first, only: *only };
            let answer =
                handle.stock_step(call, |books, now| books.take(operation, wanted, now, call.retention));
            Ok(answer?.unwrap_or(TakeAnswer::Missing))
        })
    }

    fn settle(&self, request: Arc<SettleRequest>) -> BoxFuture<Result<SettleAnswer, StoreError>> {
        self.call(move |handle| {
            let SettleRequest { call, operation, settle } = &*request;
            let answer =
                handle.stock_step(call, |books, now| books.settle(operation, *settle, now, call.retention));
            Ok(answer?.unwrap_or(SettleAnswer::Missing))
        })
    }

    fn restock(&self, request: Arc<RestockRequest>) -> BoxFuture<Result<RestockAnswer, StoreError>> {
        self.call(move |handle| {
            let RestockRequest { call, operation, quantity } = &*request;
            let answer = handle
                .stock_step(call, |books, now| books.restock(operation, *quantity, now, call.retention));
            Ok(answer?.unwrap_or(RestockAnswer::Missing))
        })
    }

    fn snapshot(&self, call: StockCall) -> BoxFuture<Result<Option<Snapshot>, StoreError>> {
        self.call(move |handle| handle.stock_step(&call, |books, _| books.snapshot()))
    }

    fn rebalance(&self, call: StockCall) -> BoxFuture<Result<Option<()>, StoreError>> {
        self.call(move |handle| handle.stock_step(&call, |books, _| books.rebalance()))
    }

    fn resize(&self, call: StockCall, segments: u32) -> BoxFuture<Result<Option<()>, StoreError>> {
        self.call(move |handle| handle.stock_step(&call, |books, _| books.resize(segments)))
    }

    fn audit(&self, call: StockCall) -> BoxFuture<Result<AuditAnswer, StoreError>> {
        self.call(move |handle| {
            let audit = handle.stock_step(&call, |books, _| books.audit())?;
            Ok(audit.map_or(AuditAnswer::Missing, AuditAnswer::Audited))
        })
    }

    fn sweep(&self, call: StockCall, limit: u32) -> BoxFuture<Result<Swept, StoreError>> {
        self.call(move |handle| {
            let swept = handle.stock_step(&call, |books, now| books.sweep(limit, now, call.retention));
            Ok(swept?.unwrap_or_default())
        })
    }
}
