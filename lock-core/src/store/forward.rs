//! [`Forward`]: a store that changes some steps of another one.

use std::sync::Arc;

use super::latch::LatchStore;
use super::semaphore::SemaphoreStore;
use super::stock::StockStore;
use super::{
    Abilities, AcquireRequest, Acquired, BoxFuture, Item, LockStatus, LockStore, QuorumMember,
    ReleaseRequest, Released, RenewRequest, Renewed, ScanRequest, Scanned, StoreError, Watch, Withdrawn,
};
use crate::key::LockKey;

/// The answer of a step.
type Answer<T> = BoxFuture<Result<T, StoreError>>;

/// Makes the trait `Forward` and its `LockStore` from the methods that are passed on: steps, which
/// go through `around`, and looks, which do not.
macro_rules! forward {
    (
        $(#[$doc:meta])*
        pub trait Forward { $($own:tt)* }
        steps { $($step:ident($($arg:ident: $type:ty)?) -> $answer:ty;)* }
        looks { $($look:ident($($seen:ident: $what:ty)?) -> $result:ty;)* }
    ) => {
        $(#[$doc])*
        pub trait Forward: Send + Sync + std::fmt::Debug + 'static {
            $($own)*
            $(
                #[doc = concat!("As [`LockStore::", stringify!($step), "`].")]
                fn $step(&self $(, $arg: $type)?) -> Answer<$answer> {
                    self.around(stringify!($step), self.inner().$step($($arg)?))
                }
            )*
            $(
                #[doc = concat!("As [`LockStore::", stringify!($look), "`].")]
                fn $look(&self $(, $seen: $what)?) -> $result {
                    self.inner().$look($($seen)?)
                }
            )*
        }

        impl<S: Forward> LockStore for S {
            $(
                fn $step(&self $(, $arg: $type)?) -> Answer<$answer> {
                    Forward::$step(self $(, $arg)?)
                }
            )*
            $(
                fn $look(&self $(, $seen: $what)?) -> $result {
                    Forward::$look(self $(, $seen)?)
                }
            )*
        }
    };
}

forward! {
    /// A store that passes every step on to an inner store, except those that it implements: for
    /// tests with faults, for journals, for measurements.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use lock_core::store::{AcquireRequest, Acquired, BoxFuture, Forward, LockStore, StoreError};
    ///
    /// #[derive(Debug)]
    /// struct Counting(Arc<dyn LockStore>, std::sync::atomic::AtomicU64);
    ///
    /// impl Forward for Counting {
    ///     fn inner(&self) -> &dyn LockStore {
    ///         &*self.0
    ///     }
    ///
    ///     fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
    ///         self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    ///         self.0.acquire(request)
    ///     }
    /// }
    /// ```
    pub trait Forward {
        /// Returns the store that makes the steps.
        fn inner(&self) -> &dyn LockStore;

        /// Changes every call that is passed on: delays it, counts it, or lets it fail. `step` is
        /// the name of the method. The call has not begun yet.
        ///
        /// The calls of [`member`](Self::member), [`semaphores`](Self::semaphores),
        /// [`latches`](Self::latches) and [`stocks`](Self::stocks) go past it. A release may grant
        /// a key too, by a takeover or directly.
        fn around<T: Send + 'static>(&self, step: &'static str, call: Answer<T>) -> Answer<T> {
            let _ = step;
            call
        }
    }
    steps {
        acquire(request: Arc<AcquireRequest>) -> Acquired;
        release(request: Arc<ReleaseRequest>) -> Released;
        renew(request: Arc<RenewRequest>) -> Vec<Renewed>;
        downgrade(request: Arc<RenewRequest>) -> Vec<Renewed>;
        withdraw(request: Arc<AcquireRequest>) -> Withdrawn;
        watch(request: Arc<AcquireRequest>) -> Watch;
        status(key: LockKey) -> LockStatus;
        force_release(key: LockKey) -> bool;
        scan(request: ScanRequest) -> Scanned;
        check() -> ();
    }
    looks {
        abilities() -> &Abilities;
        lost() -> Option<BoxFuture<Vec<Item>>>;
        place(key: &LockKey) -> u64;
        member() -> Option<&dyn QuorumMember>;
        semaphores() -> Option<Arc<dyn SemaphoreStore>>;
        latches() -> Option<Arc<dyn LatchStore>>;
        stocks() -> Option<Arc<dyn StockStore>>;
    }
}

#[cfg(test)]
mod tests {
    /// A method of the contract with a default answer would otherwise be lost in every wrapper.
    #[test]
    fn every_method_of_the_contract_is_passed_on() {
        let (contract, forward) = (include_str!("mod.rs"), include_str!("forward.rs"));
        let (_, contract) = contract.split_once("pub trait LockStore").unwrap();
        let (contract, _) = contract.split_once("\n}\n").unwrap();
        let methods: Vec<_> =
            contract.split("\n    fn ").skip(1).filter_map(|rest| rest.split('(').next()).collect();
        assert!(methods.len() > 15, "{methods:?}");
        for method in methods {
            assert!(forward.contains(&format!("        {method}(")), "{method} is not passed on");
        }
    }
}
