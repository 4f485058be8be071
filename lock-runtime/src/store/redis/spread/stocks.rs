//! [`RedisLayouts`]: the stocks of a store, in one slot or spread.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use super::{Known, Spread};
use crate::store::redis::stock::RedisStocks;
use crate::store::redis::topology::{Topology, call};
use crate::store::stock::{
    AuditAnswer, Layout, RestockAnswer, RestockRequest, SettleAnswer, SettleRequest, Snapshot, StockCall,
    StockStore, Swept, TakeAnswer, TakeRequest,
};
use crate::store::{BoxFuture, StoreError, StoreErrorKind};

/// The stocks of a [`RedisStore`](crate::store::redis::RedisStore).
#[derive(Clone)]
pub(in crate::store::redis) struct RedisLayouts {
    topology: Topology,
    /// What is known of those that are spread.
    known: Known,
    one_slot: RedisStocks,
}

impl RedisLayouts {
    pub(in crate::store::redis) fn new(topology: &Topology) -> Self {
        Self { topology: topology.clone(), known: Known::default(), one_slot: RedisStocks::new(topology) }
    }

    fn spread<T, F>(
        &self,
        about: &StockCall,
        work: impl FnOnce(Spread) -> F + Send + 'static,
    ) -> BoxFuture<Result<T, StoreError>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let spread = Spread::new(&self.topology, &self.known, about);
        call(&self.topology.options().runtime, async move { work(spread?).await })
    }
}

impl fmt::Debug for RedisLayouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.one_slot, f)
    }
}

impl StockStore for RedisLayouts {
    fn initialize(&self, call: StockCall, segments: Vec<u64>) -> BoxFuture<Result<bool, StoreError>> {
        match call.layout {
            Layout::OneSlot => self.one_slot.initialize(call, segments),
            Layout::Spread => self.spread(&call, |spread| async move { spread.initialize(&segments).await }),
        }
    }

    fn take(&self, request: Arc<TakeRequest>) -> BoxFuture<Result<TakeAnswer, StoreError>> {
        match request.call.layout {
            Layout::OneSlot => self.one_slot.take(request),
            Layout::Spread => {
                self.spread(&Arc::clone(&request).call, |spread| async move { spread.take(&request).await })
            }
        }
    }

    fn settle(&self, request: Arc<SettleRequest>) -> BoxFuture<Result<SettleAnswer, StoreError>> {
        match request.call.layout {
            Layout::OneSlot => self.one_slot.settle(request),
            Layout::Spread => {
                self.spread(&Arc::clone(&request).call, |spread| async move { spread.settle(&request).await })
            }
        }
    }

    fn restock(&self, request: Arc<RestockRequest>) -> BoxFuture<Result<RestockAnswer, StoreError>> {
        match request.call.layout {
            Layout::OneSlot => self.one_slot.restock(request),
            Layout::Spread => self
                .spread(&Arc::clone(&request).call, |spread| async move { spread.restock(&request).await }),
        }
    }

    fn snapshot(&self, call: StockCall) -> BoxFuture<Result<Option<Snapshot>, StoreError>> {
        match call.layout {
            Layout::OneSlot => self.one_slot.snapshot(call),
            Layout::Spread => self.spread(&call, |spread| async move { spread.snapshot().await }),
        }
    }

    fn rebalance(&self, call: StockCall) -> BoxFuture<Result<Option<()>, StoreError>> {
        match call.layout {
            Layout::OneSlot => self.one_slot.rebalance(call),
            Layout::Spread => self.spread(&call, |spread| async move { spread.rebalance().await }),
        }
    }

    fn resize(&self, call: StockCall, segments: u32) -> BoxFuture<Result<Option<()>, StoreError>> {
        match call.layout {
            Layout::OneSlot => self.one_slot.resize(call, segments),
            Layout::Spread => self.spread(&call, move |spread| async move { spread.resize(segments).await }),
        }
    }

    fn audit(&self, call: StockCall) -> BoxFuture<Result<AuditAnswer, StoreError>> {
        match call.layout {
            Layout::OneSlot => self.one_slot.audit(call),
            Layout::Spread => Box::pin(async {
                let what = "a stock that is spread has no audit: its records are in many places; keep it in one slot";
                Err(StoreError::new(StoreErrorKind::Unsupported, what))
            }),
        }
    }

    fn sweep(&self, call: StockCall, limit: u32) -> BoxFuture<Result<Swept, StoreError>> {
        match call.layout {
            Layout::OneSlot => self.one_slot.sweep(call, limit),
            Layout::Spread => self.spread(&call, move |spread| async move { spread.sweep(limit).await }),
        }
    }
}
