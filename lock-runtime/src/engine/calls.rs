//! Store calls: each has a time-out, is never dropped half-way, and may panic without harm to anybody else.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Engine;
use super::backoff::Backoff;
use super::hold::Hold;
use crate::clock::Tick;
use crate::error::{AcquireError, ExtendError, LockError, Loss};
use crate::key::LockKey;
use crate::store::{BoxFuture, KeepItem, KeepRequest, Kept, LockStore, StoreError, StoreErrorKind};
use crate::time;

/// A call to a store.
pub(crate) type Call<T> = BoxFuture<Result<T, StoreError>>;

impl Engine {
    /// As `limited`, and takes note of how the store does.
    pub(crate) async fn bounded_by<T: Send + 'static>(
        &self,
        timeout: Duration,
        call: impl FnOnce(&dyn LockStore) -> Call<T>,
    ) -> Result<Result<T, StoreError>, Call<T>> {
        let result = self.limited(timeout, call).await;
        match &result {
            Ok(Err(error)) if error.is_transient() => self.health.failed(self.clock.now(), error),
            Ok(_) => self.health.answered(),
            Err(_) => self.health.failed(self.clock.now(), &self.overdue()),
        }
        result
    }

    /// Makes a call and awaits it for a little longer than the store's own time-out; gives it back when it is overdue.
    async fn limited<T: Send + 'static>(
        &self,
        timeout: Duration,
        call: impl FnOnce(&dyn LockStore) -> Call<T>,
    ) -> Result<Result<T, StoreError>, Call<T>> {
        let mut call = match catch_unwind(AssertUnwindSafe(|| call(&*self.store))) {
            Ok(call) => Caught(call),
            Err(panic) => return Ok(Err(panicked(&*panic))),
        };
        let limit = timeout + timeout / 8;
        match time::timeout(&self.runtime, limit, &mut call).await {
            Some(result) => Ok(result),
            None => Err(Box::pin(call)),
        }
    }

    pub(crate) async fn bounded<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn LockStore) -> Call<T>,
    ) -> Result<Result<T, StoreError>, Call<T>> {
        self.bounded_by(self.config.call_timeout, call).await
    }

    /// Whether the store can be used, asked once for at most about `limit`.
    pub(crate) async fn check(self: &Arc<Self>, limit: Duration) -> Result<(), StoreError> {
        self.limited(limit, |store| store.check()).await.unwrap_or_else(|call| {
            self.drive(call);
            let message = format!("{:?} did not answer within {limit:?}", self.store);
            Err(StoreError::new(StoreErrorKind::Unreachable, message))
        })
    }

    pub(crate) fn overdue(&self) -> StoreError {
        let message = format!("no answer within {:?}", self.config.call_timeout);
        StoreError::new(StoreErrorKind::Unanswered, message)
    }

    pub(crate) async fn admin<T: Send + 'static>(
        self: &Arc<Self>,
        name: &LockKey,
        call: impl FnOnce(&dyn LockStore) -> Call<T>,
    ) -> Result<T, LockError> {
        let result = self.bounded(call).await.unwrap_or_else(|call| {
            self.drive(call);
            Err(self.overdue())
        });
        result.map_err(|error| AcquireError::from_store(name.clone(), Arc::new(error)).into())
    }

    /// One `keep` call; returns when it was sent.
    pub(super) async fn keep(
        self: &Arc<Self>,
        items: Vec<KeepItem>,
    ) -> (Tick, Result<Vec<Kept>, StoreError>) {
        let sent = self.clock.now();
        // A call that hangs must leave time for another one before the lease is over.
        let shortest = items.iter().map(|item| item.lease / 4).min().unwrap_or(self.config.call_timeout);
        let timeout = self.config.call_timeout.min(shortest);
        let request = Arc::new(KeepRequest { items, timeout });
        let result = match self.bounded_by(timeout, |store| store.keep(request)).await {
            Ok(result) => result,
            Err(call) => {
                self.drive(call);
                Err(self.overdue())
            }
        };
        if result.is_ok() {
            self.rtt.record(sent, self.clock.now());
        }
        (sent, result)
    }

    /// Asks the store whether the hold is still there, without changing it, until it answers.
    pub(super) async fn verify(self: Arc<Self>, hold: Arc<Hold>) {
        let mut backoff = Backoff::new();
        while hold.is_valid(self.clock.now()) {
            let lease = hold.deadline().since(self.clock.now()).max(Duration::from_millis(1));
            let items = vec![KeepItem { item: hold.item.clone(), lease }];
            let request = Arc::new(KeepRequest { items, timeout: self.config.call_timeout });
            match self.bounded(|store| store.keep(request)).await {
                Ok(Ok(kept)) if kept.first() == Some(&Kept::Gone) => {
                    return self.lose(&hold, Loss::TakenAway);
                }
                Ok(Ok(_)) => return,
                Ok(Err(_)) => {}
                Err(call) => self.drive(call),
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }

    /// Makes the hold's remaining time at least `lease`, by one store call; transient errors are retried until
    /// `retry_until`. Goes on when its caller is gone.
    pub(crate) fn extend(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        lease: Duration,
        retry_until: Tick,
    ) -> tokio::sync::oneshot::Receiver<Result<(), ExtendError>> {
        let (report, outcome) = tokio::sync::oneshot::channel();
        let (engine, hold) = (Arc::clone(self), Arc::clone(hold));
        self.spawn(async move {
            let _ = report.send(engine.extend_until(&hold, lease, retry_until).await);
        });
        outcome
    }

    async fn extend_until(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        lease: Duration,
        retry_until: Tick,
    ) -> Result<(), ExtendError> {
        let key = hold.item.key.clone();
        let mut backoff = Backoff::new();
        loop {
            let items = vec![KeepItem { item: hold.item.clone(), lease }];
            let error = match self.keep(items).await {
                (sent, Ok(kept)) => {
                    let renewed = kept.first() == Some(&Kept::Renewed);
                    if renewed && hold.renewed(sent, self.clock.now(), lease) {
                        self.watch_again(hold);
                        return Ok(());
                    }
                    let why = if renewed { Loss::LeaseOver } else { Loss::TakenAway };
                    self.lose(hold, why);
                    return Err(ExtendError::Lost { key, why });
                }
                (_, Err(error)) => error,
            };
            let now = self.clock.now();
            let next = now + backoff.next();
            if !error.is_transient() || next >= retry_until || !hold.is_valid(next) {
                return Err(ExtendError::Unavailable { key, cause: Arc::new(error) });
            }
            tokio::time::sleep(next.since(now)).await;
        }
    }
}

/// A call whose panic is an error with an unknown outcome.
struct Caught<T>(Call<T>);

impl<T> Future for Caught<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx)))
            .unwrap_or_else(|panic| Poll::Ready(Err(panicked(&*panic))))
    }
}

fn panicked(panic: &(dyn Any + Send)) -> StoreError {
    let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(|s| &**s));
    let message = format!("the store panicked: {}", said.unwrap_or("without a message"));
    StoreError::new(StoreErrorKind::Unanswered, message)
}
