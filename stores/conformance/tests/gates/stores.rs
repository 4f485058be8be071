//! Stores that forward to the memory store, and do less than it, or something wrong.

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{
    Abilities, AcquireRequest, Acquired, BoxFuture, Forward, Granted, LatchStore, LockStore, Notices,
    QuorumMember, ReleaseRequest, Released, RenewRequest, Renewed, ScanRequest, Scanned, SemaphoreStore,
    StoreError, StoreErrorKind, TokenRange, Watch, Withdrawn,
};
use lock_store_memory::MemoryStore;

type Answer<T> = BoxFuture<Result<T, StoreError>>;

fn refuse<T: Send + 'static>() -> Answer<T> {
    Box::pin(async { Err(StoreError::new(StoreErrorKind::Unsupported, "mutexes only")) })
}

/// A store of mutexes, of which every request takes one.
#[derive(Debug)]
pub(crate) struct Plain {
    memory: Arc<MemoryStore>,
    abilities: Abilities,
}

impl Plain {
    pub(crate) const ABILITIES: Abilities = Abilities { name: "the plain store", ..Abilities::MUTEX };

    pub(crate) fn new(memory: Arc<MemoryStore>) -> Self {
        Self::claiming(memory, Self::ABILITIES)
    }

    /// Creates the same store, which says that it has these abilities.
    pub(crate) fn claiming(memory: Arc<MemoryStore>, abilities: Abilities) -> Self {
        Self { memory, abilities }
    }
}

impl Forward for Plain {
    fn inner(&self) -> &dyn LockStore {
        &*self.memory
    }

    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> Answer<Acquired> {
        match Self::ABILITIES.allow(&request) {
            Ok(()) => self.memory.acquire(request),
            Err(refusal) => Box::pin(async { Err(refusal) }),
        }
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> Answer<Released> {
        if !request.linger.is_zero() {
            return refuse();
        }
        self.memory.release(Arc::new(ReleaseRequest { then: None, own_watch: None, ..(*request).clone() }))
    }

    fn downgrade(&self, _: Arc<RenewRequest>) -> Answer<Vec<Renewed>> {
        refuse()
    }

    fn watch(&self, _: Arc<AcquireRequest>) -> Answer<Watch> {
        Box::pin(async { Ok(Watch::polled()) })
    }

    fn scan(&self, _: ScanRequest) -> Answer<Scanned> {
        refuse()
    }

    fn member(&self) -> Option<&dyn QuorumMember> {
        None
    }

    fn semaphores(&self) -> Option<Arc<dyn SemaphoreStore>> {
        None
    }

    fn latches(&self) -> Option<Arc<dyn LatchStore>> {
        None
    }
}

/// A store with leases of two to thirty seconds in whole seconds. It does not say when a busy key
/// is free.
#[derive(Debug)]
pub(crate) struct Coarse {
    memory: Arc<MemoryStore>,
    abilities: Abilities,
}

impl Coarse {
    pub(crate) fn new(memory: Arc<MemoryStore>) -> Self {
        let abilities = Abilities {
            name: "the coarse store",
            shortest_lease: Duration::from_secs(2),
            lease_grain: Duration::from_secs(1),
            longest_lease: Some(Duration::from_secs(30)),
            ..memory.abilities().clone()
        };
        Self { memory, abilities }
    }

    fn check_lease(&self, lease: Duration) {
        let Abilities { shortest_lease, longest_lease, .. } = self.abilities;
        assert!(lease >= shortest_lease && longest_lease.is_none_or(|longest| lease <= longest), "{lease:?}");
    }
}

impl Forward for Coarse {
    fn inner(&self) -> &dyn LockStore {
        &*self.memory
    }

    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> Answer<Acquired> {
        self.check_lease(request.lease);
        let call = self.memory.acquire(request);
        Box::pin(async move {
            let mut answer = call.await;
            if let Ok(Acquired::Busy(busy)) = &mut answer {
                busy.remaining = None;
            }
            answer
        })
    }

    fn renew(&self, request: Arc<RenewRequest>) -> Answer<Vec<Renewed>> {
        request.items.iter().for_each(|item| self.check_lease(item.lease));
        self.memory.renew(request)
    }
}

/// A store whose waiters have to poll.
#[derive(Debug)]
pub(crate) struct Polled {
    memory: Arc<MemoryStore>,
    abilities: Abilities,
}

impl Polled {
    pub(crate) fn new(memory: Arc<MemoryStore>) -> Self {
        let abilities = Abilities {
            name: "the polled store",
            notices: Notices::Polled,
            counts_listeners: false,
            direct_grants: false,
            most_tokens: 1,
            ..memory.abilities().clone()
        };
        Self { memory, abilities }
    }
}

impl Forward for Polled {
    fn inner(&self) -> &dyn LockStore {
        &*self.memory
    }

    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> Answer<Acquired> {
        let call = self.memory.acquire(request);
        Box::pin(async move {
            let mut answer = call.await;
            if let Ok(Acquired::Granted(granted)) = &mut answer {
                granted.tokens.iter_mut().for_each(|range| range.first = range.last);
            }
            answer
        })
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> Answer<Released> {
        let call = self.memory.release(request);
        Box::pin(async move {
            let mut answer = call.await;
            if let Ok(Released { then: Some(granted), .. }) = &mut answer {
                granted.tokens.iter_mut().for_each(|range| range.first = range.last);
            }
            answer
        })
    }

    fn watch(&self, _: Arc<AcquireRequest>) -> Answer<Watch> {
        refuse()
    }
}

/// A fault of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It claims nothing, and does everything.
    ClaimsNothing,
    /// It claims nothing, and refuses a request after having carried it out.
    RefusesTooLate,
    GrantsWhileHeld,
    RenewsWhatIsGone,
    WithdrawsNothing,
    /// It says that a withdrawal is settled while copies may still be under way.
    SettlesAtOnce,
    /// It carries out late requests.
    ForgetsTheLimit,
    HalvesLeases,
}

/// A memory store with a fault.
#[derive(Debug)]
pub(crate) struct Faulty {
    memory: Arc<MemoryStore>,
    fault: Fault,
}

impl Faulty {
    pub(crate) fn new(memory: Arc<MemoryStore>, fault: Fault) -> Self {
        Self { memory, fault }
    }
}

impl Forward for Faulty {
    fn inner(&self) -> &dyn LockStore {
        &*self.memory
    }

    fn abilities(&self) -> &Abilities {
        match self.fault {
            Fault::ClaimsNothing | Fault::RefusesTooLate => &Plain::ABILITIES,
            _ => self.memory.abilities(),
        }
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> Answer<Acquired> {
        let call = self.memory.acquire(Arc::clone(&request));
        match self.fault {
            Fault::RefusesTooLate if Plain::ABILITIES.allow(&request).is_err() => Box::pin(async {
                call.await?;
                refuse().await
            }),
            Fault::GrantsWhileHeld => Box::pin(async move {
                Ok(match call.await? {
                    Acquired::Busy(busy) => Acquired::Granted(Granted {
                        tokens: request.items.iter().map(|_| TokenRange::ending_at(1, 1)).collect(),
                        moment: busy.moment,
                    }),
                    granted @ Acquired::Granted(_) => granted,
                })
            }),
            Fault::ForgetsTheLimit => {
                let copy = AcquireRequest::new(request.items.clone(), request.lease, request.timeout);
                self.memory.acquire(Arc::new(copy))
            }
            Fault::HalvesLeases => {
                let (items, lease) = (request.items.clone(), request.lease / 2);
                self.memory.acquire(Arc::new(AcquireRequest::new(items, lease, request.timeout)))
            }
            _ => call,
        }
    }

    fn renew(&self, request: Arc<RenewRequest>) -> Answer<Vec<Renewed>> {
        if self.fault == Fault::HalvesLeases {
            let mut request = (*request).clone();
            request.items.iter_mut().for_each(|item| item.lease /= 2);
            return self.memory.renew(Arc::new(request));
        }
        let call = self.memory.renew(request);
        if self.fault != Fault::RenewsWhatIsGone {
            return call;
        }
        Box::pin(async move { Ok(call.await?.iter().map(|_| Renewed::Held).collect()) })
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> Answer<Withdrawn> {
        let call = self.memory.withdraw(request);
        match self.fault {
            Fault::WithdrawsNothing => Box::pin(async { Ok(Withdrawn::Settled) }),
            Fault::SettlesAtOnce => Box::pin(async {
                call.await?;
                Ok(Withdrawn::Settled)
            }),
            _ => call,
        }
    }
}
