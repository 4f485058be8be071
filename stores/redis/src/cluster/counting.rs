//! Semaphores and latches of a cluster.

use std::sync::Arc;
use std::time::Duration;

use lock_core::LockKey;
use lock_core::store::{
    CountDownRequest, PermitCounts, Permits, PermitsAcquired, PermitsChange, PermitsRelease, PermitsRenew,
    PermitsRequest, StoreError, Watch, Withdrawn,
};

use super::super::connection::At;
use super::super::fault::Fault;
use super::super::hash_slot::slot;
use super::super::join::join;
use super::super::latch::LatchNames;
use super::super::names::Names;
use super::super::node::Node;
use super::super::semaphore::SemaphoreNames;
use super::Cluster;
use super::moving::Hint;
use super::steps::{each_by_itself, shares};

impl Cluster {
    fn semaphore(&self, key: &LockKey) -> Result<SemaphoreNames, StoreError> {
        SemaphoreNames::new(&self.options.prefix, key)
    }

    fn latch(&self, key: &LockKey) -> Result<LatchNames, StoreError> {
        LatchNames::new(&self.options.prefix, key)
    }

    /// Runs a step at the server of a semaphore. `freed` says whether permits were freed that
    /// others may wait for.
    async fn at_semaphore<T, F>(
        &self,
        key: &LockKey,
        timeout: Duration,
        freed: impl Fn(&T) -> bool,
        step: impl Fn(Arc<Node>, At) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let names = self.semaphore(key)?;
        let channels = [Arc::from(names.channel)];
        let (slot, deadline) = (slot(&names.permits), self.deadline(timeout));
        Ok(self.telling(slot, deadline, Hint::new(&channels), freed, step).await?)
    }

    /// Runs a step at the server of a latch. `opened` says whether the latch is open afterwards.
    async fn at_latch<T, F>(
        &self,
        key: &LockKey,
        timeout: Duration,
        opened: impl Fn(&T) -> bool,
        step: impl Fn(Arc<Node>, At) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let names = self.latch(key)?;
        let channels = [Arc::from(names.channel)];
        // Redisson takes any other message to mean that the latch is closed.
        let hint = Hint { channels: &channels, message: "0" };
        Ok(self.telling(slot(&names.count), self.deadline(timeout), hint, opened, step).await?)
    }

    /// Runs a step at the server of a stock in one slot.
    pub(in super::super) async fn at_stock<T, F>(
        &self,
        key: &LockKey,
        timeout: Duration,
        step: impl Fn(Arc<Node>, At) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let names = Names::new(&self.options.prefix, key)?;
        Ok(self.at_slot(slot(&names.stock().to_string()), self.deadline(timeout), step).await?)
    }

    /// Runs a step at the server of this key's slot.
    pub(in super::super) async fn at_key<T, F>(
        &self,
        key: &str,
        timeout: Duration,
        step: impl Fn(Arc<Node>, At) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        Ok(self.at_slot(slot(key), self.deadline(timeout), step).await?)
    }

    pub(in super::super) async fn acquire_permits(
        &self,
        request: &PermitsRequest,
    ) -> Result<PermitsAcquired, StoreError> {
        let step = |node: Arc<Node>, at| async move { node.acquire_permits(request, at).await };
        self.at_semaphore(&request.key, request.timeout, |_| false, step).await
    }

    pub(in super::super) async fn release_permits(
        &self,
        request: &PermitsRelease,
    ) -> Result<Vec<bool>, StoreError> {
        let step =
            |node: Arc<Node>, at| async move { node.release_permits(&request.key, &request.ids, at).await };
        let freed = |(_, held): &(_, Vec<bool>)| held.contains(&true);
        Ok(self.at_semaphore(&request.key, request.timeout, freed, step).await?.1)
    }

    pub(in super::super) async fn withdraw_permits(
        &self,
        request: &PermitsRequest,
    ) -> Result<Withdrawn, StoreError> {
        // A request that was never stamped was never sent.
        let Some(latest) = request.seal() else { return Ok(Withdrawn::Settled) };
        let step =
            |node: Arc<Node>, at| async move { node.release_permits(&request.key, &request.ids, at).await };
        let freed = |(_, held): &(_, Vec<bool>)| held.contains(&true);
        let (now, _) = self.at_semaphore(&request.key, request.timeout, freed, step).await?;
        Ok(Withdrawn::by(latest, now))
    }

    /// Renews the permits of each slot separately.
    pub(in super::super) async fn renew_permits(
        &self,
        request: &PermitsRenew,
    ) -> Result<Vec<Option<Vec<bool>>>, StoreError> {
        let deadline = self.deadline(request.timeout);
        let holds: Result<Vec<_>, StoreError> = request
            .holds
            .iter()
            .map(|hold| Ok((slot(&self.semaphore(&hold.key)?.permits), hold.clone())))
            .collect();
        let shares = shares(holds?);
        let kept = join(shares.iter().map(|share| {
            let holds = &*share.items;
            let keep = |holds| {
                let keep = move |node: Arc<Node>, at| async move { node.renew_permits(holds, at).await };
                self.at_slot(share.slot, deadline, keep)
            };
            self.together_or_each(share.slot, holds, None, keep)
        }))
        .await;
        each_by_itself(shares, kept, None)
    }

    pub(in super::super) async fn change_permits(&self, request: &PermitsChange) -> Result<bool, StoreError> {
        let step =
            |node: Arc<Node>, at| async move { node.change_permits(&request.key, request.permits, at).await };
        let freed = |(changed, counts): &(bool, PermitCounts)| *changed && counts.available > 0;
        Ok(self.at_semaphore(&request.key, request.timeout, freed, step).await?.0)
    }

    pub(in super::super) async fn count_permits(
        &self,
        key: &LockKey,
        timeout: Duration,
    ) -> Result<PermitCounts, StoreError> {
        // Adding 0 permits changes nothing.
        let step = |node: Arc<Node>, at| async move { node.change_permits(key, Permits::Add(0), at).await };
        Ok(self.at_semaphore(key, timeout, |_| false, step).await?.1)
    }

    pub(in super::super) async fn watch_semaphore(
        &self,
        key: &LockKey,
        timeout: Duration,
    ) -> Result<Watch, StoreError> {
        self.watch_channels(vec![Arc::from(self.semaphore(key)?.channel)], timeout).await
    }

    pub(in super::super) async fn set_count(
        &self,
        key: &LockKey,
        count: u32,
        timeout: Duration,
    ) -> Result<bool, StoreError> {
        let step = |node: Arc<Node>, at| async move { node.set_count(key, count, at).await };
        self.at_latch(key, timeout, |_| false, step).await
    }

    pub(in super::super) async fn count_down(&self, request: &CountDownRequest) -> Result<u64, StoreError> {
        let step = |node: Arc<Node>, at| async move { node.count_down(request, at).await };
        self.at_latch(&request.key, request.timeout, |left| *left == 0, step).await
    }

    pub(in super::super) async fn count(&self, key: &LockKey, timeout: Duration) -> Result<u64, StoreError> {
        let step = |node: Arc<Node>, at| async move { node.count(key, at).await };
        self.at_latch(key, timeout, |_| false, step).await
    }

    pub(in super::super) async fn delete_latch(
        &self,
        key: &LockKey,
        timeout: Duration,
    ) -> Result<bool, StoreError> {
        let step = |node: Arc<Node>, at| async move { node.delete_latch(key, at).await };
        self.at_latch(key, timeout, |deleted| *deleted, step).await
    }

    pub(in super::super) async fn watch_latch(
        &self,
        key: &LockKey,
        timeout: Duration,
    ) -> Result<Watch, StoreError> {
        self.watch_channels(vec![Arc::from(self.latch(key)?.channel)], timeout).await
    }
}
