//! [`Pool`]: grants, and operations on stocks, that replicas have to confirm, each on a connection of its own while that
//! takes.
//!
//! WAIT is about what its connection wrote last, and holds up everything behind it. So a grant and its WAIT go, one
//! after the other, over a connection that nobody else uses. What is not granted is not waited for.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection::{CallError, Connector, Ready};
use super::dialer::Dialer;
use super::fault::Fault;
use super::node::{At, Node};
use super::reply;
use crate::clock::Tick;
use crate::replication::{OF_HOW_MANY, Replication};
use crate::store::server_clock::ServerClock;
use crate::store::{Acquired, StoreError, StoreErrorKind};
use crate::sync::lock;

/// Connections, at most; past it callers wait for one.
const MOST: usize = 8;
/// A connection that was not used for so long is closed.
const IDLE: Duration = Duration::from_secs(30);
/// For so long it is remembered how many replicas a cluster's server has, and that the user has no
/// right to `WAIT`.
const RECENT: Duration = Duration::from_secs(5);
/// Longest time by which the server ends its WAIT before we give up.
const MARGIN: Duration = Duration::from_millis(100);

pub(super) struct Pool {
    dialer: Dialer,
    runtime: Handle,
    server_clock: Arc<ServerClock>,
    permits: Arc<Semaphore>,
    idle: Mutex<Idle>,
    /// How many replicas the server had when they were counted last.
    counted: Mutex<Option<(u32, Tick)>>,
    /// The error of a `WAIT` that the user has no right to, and when that was.
    denied: Mutex<Option<(StoreError, Tick)>>,
    weak: Weak<Self>,
}

#[derive(Default)]
struct Idle {
    /// The one that was used last is the last.
    links: Vec<(Arc<Connector>, Tick)>,
    /// A task looks after them.
    watched: bool,
}

/// A connection that nobody else uses. It is closed unless it is [given back](Self::give_back): something may be under
/// way on it.
struct Exclusive {
    connector: Arc<Connector>,
    _permit: OwnedSemaphorePermit,
}

impl Pool {
    pub(super) fn new(dialer: Dialer, runtime: Handle, server_clock: Arc<ServerClock>) -> Arc<Self> {
        Arc::new_cyclic(|weak| Self {
            dialer,
            runtime,
            server_clock,
            permits: Arc::new(Semaphore::new(MOST)),
            idle: Mutex::default(),
            counted: Mutex::default(),
            denied: Mutex::default(),
            weak: weak.clone(),
        })
    }

    /// A connection, as soon as there is one.
    async fn take(&self, timeout: Duration) -> Result<Exclusive, StoreError> {
        let permits = Arc::clone(&self.permits);
        let Ok(Ok(permit)) = tokio::time::timeout(timeout, permits.acquire_owned()).await else {
            let what = format!(
                "all {MOST} connections for what replicas confirm were in use, nothing was sent; if this \
                 lasts, fewer replicas are up than the policy asks for"
            );
            return Err(self.dialer.address.error(StoreErrorKind::Unreachable, what));
        };
        let used = lock(&self.idle).links.pop();
        let connector = match used {
            Some((connector, _)) => connector,
            None => Connector::new(self.dialer.clone(), self.runtime.clone(), Arc::clone(&self.server_clock)),
        };
        Ok(Exclusive { connector, _permit: permit })
    }

    /// Closes what was idle for too long, until nothing is.
    async fn close_idle(weak: Weak<Self>) {
        loop {
            tokio::time::sleep(IDLE / 2).await;
            let Some(pool) = weak.upgrade() else { return };
            let now = pool.dialer.clock.now();
            let mut idle = lock(&pool.idle);
            let over: Vec<_> = idle.links.extract_if(.., |(_, since)| now.since(*since) >= IDLE).collect();
            idle.watched = !idle.links.is_empty();
            let done = !idle.watched;
            drop(idle);
            drop(over);
            if done {
                return;
            }
        }
    }

    /// Connections that wait for a grant.
    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        lock(&self.idle).links.len()
    }
}

impl Exclusive {
    /// Nothing is under way on it.
    fn give_back(self, pool: &Pool) {
        let mut idle = lock(&pool.idle);
        idle.links.push((self.connector, pool.dialer.clock.now()));
        if !idle.watched {
            idle.watched = true;
            drop(pool.runtime.spawn(Pool::close_idle(pool.weak.clone())));
        }
    }
}

impl Node {
    /// Runs a step that may grant something; with a policy, a grant is one when the replicas have confirmed it.
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
                // Nothing has to be withdrawn.
                return Err(error.into());
            }
        }
        self.confirmed(replication, at, step, |acquired| matches!(acquired, Acquired::Granted(_))).await
    }

    /// Runs a step; with a policy, what is `done` by it is so when the replicas have confirmed it.
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

    /// How many replicas have to confirm.
    async fn wanted(
        &self,
        connector: &Connector,
        ready: &Ready,
        replication: Replication,
    ) -> Result<u32, StoreError> {
        if let Some(wanted) = replication.wanted(None) {
            return Ok(wanted);
        }
        // Sentinels have been asked when the connection was made.
        let known = match connector.dialer().known_replicas() {
            None if self.has_peers => self.replicas_in_cluster(connector, ready).await?,
            known => known,
        };
        replication
            .wanted(known.or(self.options.replicas))
            .ok_or_else(|| self.address.error(StoreErrorKind::Unsupported, OF_HOW_MANY))
    }

    /// Whether what was learned at `since` still counts.
    fn is_recent(&self, since: Tick) -> bool {
        self.options.clock.now().since(since) < RECENT
    }

    /// How many replicas the server has in its cluster, those that are down included.
    async fn replicas_in_cluster(
        &self,
        connector: &Connector,
        ready: &Ready,
    ) -> Result<Option<u32>, StoreError> {
        let counted = *lock(&self.synced.counted);
        if let Some((count, _)) = counted.filter(|(_, since)| self.is_recent(*since)) {
            return Ok(Some(count));
        }
        // CLUSTER SLOTS leaves out those that are down.
        let nodes = connector.call(ready, redis::cmd("CLUSTER").arg("NODES")).await;
        let nodes = match nodes.map_err(|error| Fault::from(error).error) {
            Ok(nodes) => nodes,
            Err(error) if error.is_transient() => return Err(error),
            // Who may not ask has to be told.
            Err(_) => return Ok(None),
        };
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
        // 0 is for ever.
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
            // It is done, and a grant has to be withdrawn: whatever else may be wrong.
            Err(error) => {
                let why = Fault::from(error).error;
                if why.kind() == StoreErrorKind::Denied {
                    *lock(&self.synced.denied) = Some((why.clone(), self.options.clock.now()));
                }
                let what = format!("the replicas could not be waited for: {why}");
                return Err(StoreError::new(StoreErrorKind::NotReplicated, what));
            }
        };
        if ready.is_over() {
            let what = "the connection was lost or another server became the primary just after it was done";
            return Err(self.address.error(StoreErrorKind::Unanswered, what));
        }
        if confirmed >= wanted {
            return Ok(());
        }
        let what = format!("{confirmed} of {wanted} replicas confirmed it within {timeout:?}");
        Err(self.address.error(StoreErrorKind::NotReplicated, what))
    }
}

/// Of an answer to CLUSTER NODES: `id address flags primary …` in each line.
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
    use super::super::tests::options;
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

    fn dialer() -> Dialer {
        let client = redis::Client::open("redis://127.0.0.1:1").unwrap();
        Dialer::new(client.get_connection_info(), &options()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_used_again_and_closed_when_idle() {
        let pool = Pool::new(dialer(), Handle::current(), Arc::default());
        let (first, second) = (pool.take(IDLE).await.unwrap(), pool.take(IDLE).await.unwrap());
        let last = Arc::clone(&second.connector);
        first.give_back(&pool);
        tokio::time::sleep(IDLE / 2).await;
        second.give_back(&pool);
        assert_eq!(pool.idle(), 2);
        let again = pool.take(IDLE).await.unwrap();
        assert!(Arc::ptr_eq(&again.connector, &last));
        again.give_back(&pool);

        tokio::time::sleep(IDLE).await;
        assert_eq!(pool.idle(), 1, "used within the time");
        tokio::time::sleep(IDLE).await;
        assert_eq!(pool.idle(), 0);
        pool.take(IDLE).await.unwrap().give_back(&pool);
        tokio::time::sleep(IDLE * 2).await;
        assert_eq!(pool.idle(), 0, "looked after again");
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_so_many_connections_and_no_more() {
        let pool = Pool::new(dialer(), Handle::current(), Arc::default());
        let mut taken = Vec::new();
        for _ in 0..MOST {
            taken.push(pool.take(IDLE).await.unwrap());
        }
        let error = pool.take(IDLE).await.err().unwrap();
        assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
        // Also one that is closed, since something may be under way on it, makes room.
        drop(taken.pop());
        assert_eq!(pool.idle(), 0);
        pool.take(IDLE).await.unwrap().give_back(&pool);
    }
}
