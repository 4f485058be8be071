//! Store calls: each has a time-out, and its panic harms no other call. A call that changes
//! something is never dropped half-way.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::runtime::InRuntime;
use lock_core::internal::sync::lock;
use lock_core::internal::time;
use lock_core::store::kit::{Backoff, no_answer};
use lock_core::store::{BoxFuture, LockStore, RenewItem, RenewRequest, Renewed, StoreError, StoreErrorKind};

use tokio::sync::oneshot;

use super::hold::{Hold, all_renewed};
use super::lane::{Lane, Report, Told};
use super::machine::Input;
use super::{Engine, LONGEST};
use crate::failure::{Failure, Loss};
use crate::trace::TARGET;

/// A call to a store.
type Call<T> = BoxFuture<Result<T, StoreError>>;

impl Engine {
    /// Makes a call, and records the health of the store. An overdue call is an error with an
    /// unknown outcome.
    pub async fn bounded<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn LockStore) -> Call<T>,
    ) -> Result<T, StoreError> {
        self.bounded_by(self.settings.call_timeout, call).await
    }

    /// Makes a call like [`bounded`](Self::bounded), with another time-out.
    pub(super) async fn bounded_by<T: Send + 'static>(
        &self,
        timeout: Duration,
        call: impl FnOnce(&dyn LockStore) -> Call<T>,
    ) -> Result<T, StoreError> {
        let result =
            self.limited(timeout, call).await.unwrap_or_else(|| Err(no_answer(self.settings.call_timeout)));
        match &result {
            Ok(_) => self.health.answered(),
            Err(error) => self.health.note(self.clock.now(), error),
        }
        result
    }

    /// Makes a call and awaits it for a little longer than the store's time-out. `None` when it is
    /// overdue; it then runs to its end in the background, and its result is dropped.
    async fn limited<T: Send + 'static>(
        &self,
        timeout: Duration,
        call: impl FnOnce(&dyn LockStore) -> Call<T>,
    ) -> Option<Result<T, StoreError>> {
        let mut call = match catch_unwind(AssertUnwindSafe(|| call(&*self.store))) {
            Ok(call) => InRuntime::new(self.runtime.clone(), call),
            Err(panic) => return Some(Err(panicked(&*panic))),
        };
        // A panic is an error with an unknown outcome.
        let mut call = std::future::poll_fn(move |cx| {
            catch_unwind(AssertUnwindSafe(|| Pin::new(&mut call).poll(cx)))
                .unwrap_or_else(|panic| Poll::Ready(Err(panicked(&*panic))))
        });
        let limit = timeout + timeout / 8;
        let result = time::timeout(&self.runtime, limit, &mut call).await;
        if result.is_none() {
            // It ends by itself, because stores have time-outs.
            let limit = self.settings.lease.max(self.settings.call_timeout * 4);
            self.spawn(async move {
                let _ = tokio::time::timeout(limit, call).await;
            });
        }
        result
    }

    /// Asks the store once, for about `limit` at most, whether it can be used.
    pub async fn check(&self, limit: Duration) -> Result<(), StoreError> {
        self.limited(limit, |store| store.check()).await.unwrap_or_else(|| {
            let message = format!("{} did not answer within {limit:?}", self.store.abilities().name);
            Err(StoreError::new(StoreErrorKind::Unreachable, message))
        })
    }

    /// Runs a call to its end, even when nobody awaits it. Awaits the outcome for `limit` only,
    /// because the manager's runtime may not be running.
    pub async fn dispatched<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, Failure> {
        let cause = match time::timeout(&self.runtime, limit, self.report(call)).await {
            Some(Ok(result)) => return result.map_err(Failure::Store),
            // A timer may fire early when the runtime is gone.
            _ if self.runtime_is_gone() => return Err(Failure::ShutDown),
            Some(Err(_)) => StoreError::new(StoreErrorKind::Unanswered, "the task of the call panicked"),
            None => no_answer(limit),
        };
        Err(Failure::Store(cause))
    }

    /// Makes one `renew` call for holds at one store; returns when it was sent, and the answer.
    pub(super) async fn renew(&self, items: Vec<RenewItem>) -> (Tick, Result<Vec<Renewed>, StoreError>) {
        let sent = self.clock.now();
        // A hanging call must leave time for another one before the lease is over.
        let shortest = items.iter().map(|item| item.lease / 4).min().unwrap_or(self.settings.call_timeout);
        let timeout = self.settings.call_timeout.min(shortest);
        let result = self.kept_within(timeout, items).await;
        if result.is_ok() {
            self.rtt.record(sent, self.clock.now());
        }
        (sent, result)
    }

    pub(super) async fn kept_within(
        &self,
        timeout: Duration,
        items: Vec<RenewItem>,
    ) -> Result<Vec<Renewed>, StoreError> {
        let first = items.first().map(|renewal| renewal.item.clone());
        let request = Arc::new(RenewRequest { items, timeout });
        self.bounded_by(timeout, |_| self.store_of(first.as_slice()).renew(request)).await
    }

    /// Handles the store's answer about a hold to a `renew` with `lease`, sent at `sent`.
    pub(super) fn kept(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        hold: &Arc<Hold>,
        kept: Renewed,
        sent: Tick,
        lease: Duration,
    ) -> Result<(), Failure> {
        self.tell(lane, Input::Renewed { hold, kept, sent, lease });
        hold.loss().map_or(Ok(()), |why| Err(Failure::Lost(why)))
    }

    /// Extends the hold's remaining time to at least `lease`, which is computed anew before each
    /// call. Retries transient errors until `retry_until`. The caller waits at most two call
    /// time-outs longer; the call goes on without it.
    pub(crate) fn extend<L: Fn(Tick) -> Duration + Send + Sync + 'static>(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        hold: &Arc<Hold>,
        lease: L,
        retry_until: Tick,
    ) -> impl Future<Output = Result<(), Failure>> + Send + use<L> {
        let limit = retry_until.since(self.clock.now()).min(LONGEST) + self.settings.call_timeout * 2;
        let extend = Arc::clone(self).extend_until(Arc::clone(lane), Arc::clone(hold), lease, retry_until);
        let (runtime, outcome) = (self.runtime.clone(), self.report(extend));
        async move {
            match time::timeout(&runtime, limit, outcome).await {
                Some(outcome) => outcome.unwrap_or(Err(Failure::NotHeld)),
                None => Err(Failure::Unconfirmed(no_answer(limit))),
            }
        }
    }

    async fn extend_until(
        self: Arc<Self>,
        lane: Arc<Lane>,
        hold: Arc<Hold>,
        lease: impl Fn(Tick) -> Duration,
        retry_until: Tick,
    ) -> Result<(), Failure> {
        let mut backoff = Backoff::default();
        loop {
            let lease = lease(self.clock.now());
            let error = match self.renew(hold.renew_items(lease).collect()).await {
                (sent, Ok(kept)) => match all_renewed(kept) {
                    Ok(kept) => return self.kept(&lane, &hold, kept, sent, lease),
                    Err(error) => error,
                },
                (_, Err(error)) => error,
            };
            let now = self.clock.now();
            let next = now + backoff.next_pause();
            if error.kind() == StoreErrorKind::Unsupported {
                return Err(Failure::Store(error));
            }
            if !error.is_transient() || next >= retry_until || !hold.is_valid(next) {
                return Err(Failure::Unconfirmed(error));
            }
            tokio::time::sleep(next.since(now)).await;
        }
    }
}

impl Engine {
    /// Begins to turn a hold for writing into one for reading. Returns the receiver of the outcome.
    pub(crate) fn start_downgrade(self: &Arc<Self>, lane: &Arc<Lane>, hold: Arc<Hold>) -> Told {
        let (report, told) = oneshot::channel();
        self.spawn(Arc::clone(self).downgrade(Arc::clone(lane), hold, report));
        told
    }

    /// Downgrades the hold, retrying until the store has answered or the lease is over. Meanwhile
    /// the hold counts as one for writing.
    async fn downgrade(self: Arc<Self>, lane: Arc<Lane>, hold: Arc<Hold>, report: Report) {
        let mut backoff = Backoff::default();
        let mut report = Some(report);
        let mut tell = |outcome| {
            if let Some(report) = report.take() {
                let _ = report.send(outcome);
            }
        };
        loop {
            // The hold was released or lost meanwhile.
            let valid = hold.is_valid(self.clock.now());
            let (has, renews) = {
                let machine = &lock(&lane.state).machine;
                (machine.has(&hold), machine.renews(&hold))
            };
            if !valid || !has {
                let why = Loss::LeaseOver;
                return tell(if valid { Ok(()) } else { Err(Failure::Lost(why)) });
            }
            let sent = self.clock.now();
            let left = hold.deadline().since(sent).max(Duration::from_millis(1));
            let lease = renews.unwrap_or(left);
            let keep = RenewItem::hold(hold.item.clone(), lease).retention(hold.lease.retention);
            let items = vec![keep];
            let request = Arc::new(RenewRequest { items, timeout: self.settings.call_timeout });
            match self.bounded(|store| store.downgrade(request)).await.and_then(all_renewed) {
                Ok(kept) => return tell(self.kept(&lane, &hold, kept, sent, lease)),
                Err(error) => {
                    tracing::debug!(target: TARGET, key = %hold.item.key, %error, "downgrade failed");
                    tell(Err(Failure::Unconfirmed(error)));
                    tokio::time::sleep(backoff.next_pause()).await;
                }
            }
        }
    }
}

fn panicked(panic: &(dyn Any + Send)) -> StoreError {
    let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(|s| &**s));
    let message = format!("the store panicked: {}", said.unwrap_or("without a message"));
    StoreError::new(StoreErrorKind::Unanswered, message)
}
