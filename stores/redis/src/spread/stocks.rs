//! [`RedisLayouts`]: the stocks of a store, in one slot or spread.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use lock_core::store::stock::{
    AuditAnswer, Layout, RestockAnswer, RestockRequest, SettleAnswer, SettleRequest, Snapshot, StockCall,
    StockStore, Swept, TakeAnswer, TakeRequest,
};
use lock_core::store::{BoxFuture, StoreError, StoreErrorKind};

use super::{Known, Spread};
use crate::stock::RedisStocks;
use crate::topology::{Topology, call};

/// The stocks of a [`RedisStore`](crate::RedisStore).
#[derive(Clone)]
pub(crate) struct RedisLayouts {
    topology: Topology,
    /// Remembered facts of the stocks that are spread.
    known: Known,
    one_slot: RedisStocks,
}

impl RedisLayouts {
    pub(crate) fn new(topology: &Topology) -> Self {
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
        call(&self.topology, async move { work(spread?).await })
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
            Layout::Spread => self.spread(&call, |spread| async move { spread.initialize(&segments).await }),
            _ => self.one_slot.initialize(call, segments),
        }
    }

    fn take(&self, request: Arc<TakeRequest>) -> BoxFuture<Result<TakeAnswer, StoreError>> {
        match request.call.layout {
            Layout::Spread => {
                self.spread(&Arc::clone(&request).call, |spread| async move { spread.take(&request).await })
            }
            _ => self.one_slot.take(request),
        }
    }

    fn settle(&self, request: Arc<SettleRequest>) -> BoxFuture<Result<SettleAnswer, StoreError>> {
        match request.call.layout {
            Layout::Spread => {
                self.spread(&Arc::clone(&request).call, |spread| async move { spread.settle(&request).await })
            }
            _ => self.one_slot.settle(request),
        }
    }

    fn restock(&self, request: Arc<RestockRequest>) -> BoxFuture<Result<RestockAnswer, StoreError>> {
        match request.call.layout {
            Layout::Spread => self
                .spread(&Arc::clone(&request).call, |spread| async move { spread.restock(&request).await }),
            _ => self.one_slot.restock(request),
        }
    }

    fn snapshot(&self, call: StockCall) -> BoxFuture<Result<Option<Snapshot>, StoreError>> {
        match call.layout {
            Layout::Spread => self.spread(&call, |spread| async move { spread.snapshot().await }),
            _ => self.one_slot.snapshot(call),
        }
    }

    fn rebalance(&self, call: StockCall) -> BoxFuture<Result<Option<()>, StoreError>> {
        match call.layout {
            Layout::Spread => self.spread(&call, |spread| async move { spread.rebalance().await }),
            _ => self.one_slot.rebalance(call),
        }
    }

    fn resize(&self, call: StockCall, segments: u32) -> BoxFuture<Result<Option<()>, StoreError>> {
        match call.layout {
            Layout::Spread => self.spread(&call, move |spread| async move { spread.resize(segments).await }),
            _ => self.one_slot.resize(call, segments),
        }
    }

    fn audit(&self, call: StockCall) -> BoxFuture<Result<AuditAnswer, StoreError>> {
        match call.layout {
            Layout::Spread => Box::pin(async {
                let what = "a spread stock has no audit, because its records are in many places; keep it in one slot";
                Err(StoreError::new(StoreErrorKind::Unsupported, what))
            }),
            _ => self.one_slot.audit(call),
        }
    }

    fn sweep(&self, call: StockCall, limit: u32) -> BoxFuture<Result<Swept, StoreError>> {
        match call.layout {
            Layout::Spread => self.spread(&call, move |spread| async move { spread.sweep(limit).await }),
            _ => self.one_slot.sweep(call, limit),
        }
    }
}
