//! [`Locks`]: acquires and releases locks at one server outside a cluster.
//!
//! Requests for a single key travel in groups, all others by themselves.

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{
    AcquireRequest, Acquired, BoxFuture, Item, Kind, MarkRequest, Marked, QuorumMember, ReleaseRequest,
    Released, ServerTime, StoreError, StoreErrorKind, Withdrawn,
};

use super::connection::At;
use super::group::Group;
use super::late::SentOver;
use super::layout::Layout;
use super::node::Node;
use super::plain::{Take, failed};
use super::singles::{AcquireOne, ReleaseOne, TakeoverOne, WithdrawOne};
use super::steps::HIGHEST_FLOOR;

/// The locks of one server. Aligned so that its reference count shares no cache line with data that
/// all threads read.
#[repr(align(128))]
pub(super) struct Locks {
    node: Arc<Node>,
    acquires: Arc<Group<AcquireOne>>,
    takes: Arc<Group<Take>>,
    releases: Arc<Group<ReleaseOne>>,
    takeovers: Arc<Group<TakeoverOne>>,
    withdrawals: Arc<Group<WithdrawOne>>,
}

impl QuorumMember for Locks {
    fn mark(&self, request: MarkRequest) -> BoxFuture<Result<Marked, StoreError>> {
        let node = Arc::clone(&self.node);
        Box::pin(async move { Ok(node.mark(&request).await?) })
    }
}

impl Locks {
    pub(super) fn new(node: &Arc<Node>) -> Arc<Self> {
        Arc::new(Self {
            node: Arc::clone(node),
            acquires: Group::new(node),
            takes: Group::new(node),
            releases: Group::new(node),
            takeovers: Group::new(node),
            withdrawals: Group::new(node),
        })
    }

    pub(super) async fn acquire(&self, request: Arc<AcquireRequest>) -> Result<Acquired, StoreError> {
        if request.floor() > HIGHEST_FLOOR {
            return Err(self.node.address.error(StoreErrorKind::Unsupported, "the token floor is too high"));
        }
        if let ([item @ Item { kind: Kind::Mutex, .. }], 0, true) =
            (&*request.items, request.floor(), request.replication.is_none())
        {
            // Checked before the request joins others: an invalid name must not affect them.
            self.node.name(item)?;
            match self.node.options.layout {
                Layout::Hash => return self.acquires.call(request).await,
                // Boxed to keep the usual call small.
                Layout::Plain => return Box::pin(self.take(request)).await,
                Layout::PlainByScript => {}
            }
        }
        let at = At::once(request.timeout);
        Ok(Box::pin(self.node.acquire_all(&request, &request.items, request.wait, at)).await?)
    }

    /// Acquires one mutex in the plain layout.
    async fn take(&self, request: Arc<AcquireRequest>) -> Result<Acquired, StoreError> {
        let acquired = self.takes.call(Arc::clone(&request)).await;
        let Err(error) = acquired else { return acquired };
        let at = At::once(self.node.options.call_timeout);
        let give_back = self.node.withdraw_all(&request.items, at);
        Err(failed(&request, error, async { Ok(give_back.await?) }).await)
    }

    pub(super) async fn release(&self, request: Arc<ReleaseRequest>) -> Result<Released, StoreError> {
        if let ([item @ Item { kind: Kind::Mutex, .. }], Duration::ZERO, None) =
            (&*request.items, request.linger, &request.then)
        {
            self.node.name(item)?;
            return self.releases.call(request).await;
        }
        if let [item] = &*request.items
            && request.linger.is_zero()
            && TakeoverOne::is(&request)
        {
            self.node.name(item)?;
            return self.takeovers.call(request).await;
        }
        let at = At::once(request.timeout);
        Ok(Box::pin(self.node.release_all(&request, at)).await?)
    }

    /// Gives back what the request, which may be executed until `latest`, may have taken.
    pub(super) async fn withdraw(
        &self,
        request: Arc<AcquireRequest>,
        latest: ServerTime,
    ) -> Result<Withdrawn, StoreError> {
        let at = At::once(request.timeout);
        let ready = self.node.end_earlier(&request, at).await?;
        let now = if let [item] = &*request.items {
            self.node.name(item)?;
            self.withdrawals.call(Arc::clone(&request)).await?
        } else {
            self.node.withdraw_all(&request.items, at).await?
        };
        if self.node.options.layout != Layout::Plain {
            return Ok(Withdrawn::by(latest, now));
        }
        self.node.withdrawn_over(&request, ready.as_ref());
        Ok(SentOver::of(&request).withdrawn(request.lease, self.node.options.clock.now()))
    }
}
