//! [`passes_on!`], for stores that change some steps of another store.

use lock_core::store::{BoxFuture, StoreError};

/// The types of the steps, each under one name.
#[allow(unused_imports, dead_code, reason = "each test program passes on other steps")]
pub(crate) mod types {
    use std::sync::Arc;

    use lock_core::store::{AcquireRequest, KeepRequest, ReleaseRequest};
    pub(crate) use lock_core::store::{
        Acquired, LockStatus, Released, ScanRequest, Scanned, Watch, Withdrawn,
    };
    pub(crate) use lock_runtime::LockKey;

    pub(crate) type Acquire = Arc<AcquireRequest>;
    pub(crate) type Release = Arc<ReleaseRequest>;
    pub(crate) type Keep = Arc<KeepRequest>;
    pub(crate) type Kept = Vec<lock_core::store::Kept>;
    pub(crate) type Freed = bool;
}

/// The result of a step.
pub(crate) type Answer<T> = BoxFuture<Result<T, StoreError>>;

/// Implements these methods of `LockStore` by passing them on to `self.inner`.
macro_rules! passes_on {
    ($($method:ident),+) => { $(crate::passes_on::passes_on!(@ $method);)+ };
    (@ acquire) => { crate::passes_on::passes_on!(@ acquire Acquire Acquired); };
    (@ release) => { crate::passes_on::passes_on!(@ release Release Released); };
    (@ keep) => { crate::passes_on::passes_on!(@ keep Keep Kept); };
    (@ downgrade) => { crate::passes_on::passes_on!(@ downgrade Keep Kept); };
    (@ scan) => { crate::passes_on::passes_on!(@ scan ScanRequest Scanned); };
    (@ withdraw) => { crate::passes_on::passes_on!(@ withdraw Acquire Withdrawn); };
    (@ watch) => { crate::passes_on::passes_on!(@ watch Acquire Watch); };
    (@ status) => { crate::passes_on::passes_on!(@ status LockKey LockStatus); };
    (@ force_release) => { crate::passes_on::passes_on!(@ force_release LockKey Freed); };
    (@ check) => {
        fn check(&self) -> crate::passes_on::Answer<()> {
            self.inner.check()
        }
    };
    (@ $method:ident $request:ident $answer:ident) => {
        fn $method(
            &self,
            request: crate::passes_on::types::$request,
        ) -> crate::passes_on::Answer<crate::passes_on::types::$answer> {
            self.inner.$method(request)
        }
    };
}

pub(crate) use passes_on;
