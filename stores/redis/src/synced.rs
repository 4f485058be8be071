//! Grants, and operations on stocks, that replicas must confirm.
//!
//! WAIT covers what its connection wrote last, and delays all later commands on it. So a grant and
//! its WAIT are sent one after the other over a [connection](super::pool) that has no other user
//! meanwhile. Only a grant is waited for.

use std::sync::Arc;
use std::time::Duration;

use lock_core::Replication;
use lock_core::internal::OF_HOW_MANY;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::lock;
use lock_core::store::{Acquired, StoreError, StoreErrorKind};

use super::connection::{At, CallError, Connector, Ready};
use super::fault::Fault;
use super::node::Node;
use super::reply;

/// Time for which two facts are remembered: the number of replicas of a cluster's server, and that
/// the user has no right to `WAIT`.
const RECENT: Duration = Duration::from_secs(5);
/// Maximum time by which the server's WAIT ends before the call's own time-out.
const MARGIN: Duration = Duration::from_millis(100);

impl Node {
    /// Runs a step that may grant something. With a replication policy, it counts as granted only
    /// after the replicas have confirmed it.
    pub(super) async fn granting<F>(
        &self,
        replication: Replication,
        at: At,
        step: impl FnOnce(Arc<Connector>, Ready) -> F,
    ) -> Result<Acquired, Fault>
    where
        F: Future<Output = Result<Acquired, Fault>>,
    {
        if !replication.is_none() {
            let denied = lock(&self.synced.denied).clone();
            if let Some((error, _)) = denied.filter(|(_, since)| self.is_recent(*since)) {
                // Nothing was sent, so nothing has to be withdrawn.
                return Err(error.into());
            }
        }
        self.confirmed(replication, at, step, |acquired| matches!(acquired, Acquired::Granted(_))).await
    }

    /// Runs a step. With a replication policy, what `done` accepts counts only after the replicas
    /// have confirmed it.
    pub(super) async fn confirmed<T, F>(
        &self,
        replication: Replication,
        at: At,
        step: impl FnOnce(Arc<Connector>, Ready) -> F,
        done: impl Fn(&T) -> bool,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        if replication.is_none() {
            let ready = self.connector.ready(at).await?;
            return step(Arc::clone(&self.connector), ready).await;
        }
        Box::pin(async {
            let deadline = self.deadline(at.timeout);
            let link = self.synced.take(at.timeout).await?;
            let connector = &link.connector;
            let result: Result<_, Fault> = async {
                let ready = connector.ready_by(|_| deadline, at.asking).await?;
                let wanted = self.wanted(connector, &ready, replication).await?;
                let answer = step(Arc::clone(connector), connector.later(&ready)).await?;
                if done(&answer) {
                    self.confirm(connector, &connector.later(&ready), wanted, replication.timeout()).await?;
                }
                Ok(answer)
            }
            .await;
            if !matches!(&result, Err(fault) if fault.error.kind() == StoreErrorKind::Unanswered) {
                link.give_back(&self.synced);
            }
            result
        })
        .await
    }

    /// Returns how many replicas have to confirm.
    async fn wanted(
        &self,
        connector: &Connector,
        ready: &Ready,
        replication: Replication,
    ) -> Result<u32, StoreError> {
        if let Some(wanted) = replication.wanted(None) {
            return Ok(wanted);
        }
        // Sentinels were asked when the connection was made.
        let known = match connector.dialer().known_replicas() {
            None if self.has_peers => self.replicas_in_cluster(connector, ready).await?,
            known => known,
        };
        replication
            .wanted(known.or(self.options.replicas))
            .ok_or_else(|| self.address.error(StoreErrorKind::Unsupported, OF_HOW_MANY))
    }

    /// Whether a fact learned at `since` is still valid.
    fn is_recent(&self, since: Tick) -> bool {
        self.options.clock.now().since(since) < RECENT
    }

    /// Returns how many replicas the server has in its cluster, down or not.
    async fn replicas_in_cluster(
        &self,
        connector: &Connector,
        ready: &Ready,
    ) -> Result<Option<u32>, StoreError> {
        let counted = *lock(&self.synced.counted);
        if let Some((count, _)) = counted.filter(|(_, since)| self.is_recent(*since)) {
            return Ok(Some(count));
        }
        // CLUSTER SLOTS leaves out replicas that are down.
        let nodes = connector.call_if_allowed(ready, redis::cmd("CLUSTER").arg("NODES")).await?;
        // A user without the right needs the configured number.
        let Some(nodes) = nodes else { return Ok(None) };
        let text = match &nodes {
            redis::Value::VerbatimString { text, .. } => Some(text.as_str()),
            nodes => reply::text(nodes),
        };
        let count = text.and_then(replicas_of_myself);
        if let Some(count) = count {
            *lock(&self.synced.counted) = Some((count, self.options.clock.now()));
        }
        Ok(count)
    }

    /// Waits for `wanted` replicas to have what the connection wrote last.
    async fn confirm(
        &self,
        connector: &Connector,
        ready: &Ready,
        wanted: u32,
        timeout: Duration,
    ) -> Result<(), StoreError> {
        let left = ready.left();
        let timeout = timeout.min(left.saturating_sub(MARGIN.min(left / 8)));
        // WAIT takes 0 as forever.
        let millis = timeout.as_millis().max(1);
        let mut wait = redis::cmd("WAIT");
        wait.arg(wanted).arg(u64::try_from(millis).unwrap_or(u64::MAX));
        let confirmed = match connector.call(ready, &wait).await {
            Ok(value) => match reply::int(&value) {
                Some(confirmed) => u32::try_from(confirmed).unwrap_or(0),
                None => return Err(self.senseless(&value)),
            },
            Err(CallError::Other(fault)) if fault.error.kind() == StoreErrorKind::Unanswered => {
                return Err(fault.error);
            }
            // The operation is done, so whatever the error is, a grant must be withdrawn.
            Err(error) => {
                let why = Fault::from(error).error;
                if why.kind() == StoreErrorKind::Denied {
                    *lock(&self.synced.denied) = Some((why.clone(), self.options.clock.now()));
                }
                let what = format!("waiting for the replicas failed: {why}");
                return Err(StoreError::new(StoreErrorKind::NotReplicated, what));
            }
        };
        if ready.is_over() {
            let what = "the connection was lost or another server became the primary just after the call";
            return Err(self.address.error(StoreErrorKind::Unanswered, what));
        }
        if confirmed >= wanted {
            return Ok(());
        }
        let what = format!("{confirmed} of {wanted} replicas confirmed it within {timeout:?}");
        Err(self.address.error(StoreErrorKind::NotReplicated, what))
    }
}

/// Counts the replicas of the answering server in an answer to CLUSTER NODES, with lines such as
/// `id address flags primary …`.
pub(super) fn replicas_of_myself(nodes: &str) -> Option<u32> {
    let lines = || nodes.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let is_me = |flags: &str| flags.split(',').any(|flag| flag == "myself");
    let me = lines().find_map(|line| match line.as_slice() {
        [id, _, flags, ..] if is_me(flags) => Some((*id).to_owned()),
        _ => None,
    })?;
    let mine = lines().filter(|line| line.get(3) == Some(&me.as_str())).count();
    u32::try_from(mine).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_that_are_down_count() {
        let nodes = "aa 127.0.0.1:1@10001,h myself,master - 0 0 1 connected 0-5460\n\
                     bb 127.0.0.1:2@10002 master - 0 0 2 connected 5461-16383\n\
                     cc 127.0.0.1:3@10003 slave,fail aa 0 0 1 disconnected\n\
                     dd 127.0.0.1:4@10004 slave aa 0 0 1 connected\n\
                     ee 127.0.0.1:5@10005 slave bb 0 0 2 connected\n";
        assert_eq!(replicas_of_myself(nodes), Some(2));
        assert_eq!(replicas_of_myself(""), None);
    }
}
