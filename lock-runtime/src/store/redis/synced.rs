//! [`Pool`]: grants that replicas have to confirm, each on a connection of its own while that takes.
//!
//! WAIT is about what its connection wrote last, and holds up everything behind it. So a grant and its WAIT go, one
//! after the other, over a connection that nobody else uses. What is not granted is not waited for.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection::{CallError, Connector, Dialer, Ready};
use super::fault::Fault;
use super::node::{At, Node};
use super::reply;
use super::server_clock::ServerClock;
use crate::clock::Tick;
use crate::replication::Replication;
use crate::store::{Acquired, StoreError, StoreErrorKind};
use crate::sync::lock;

/// Connections, at most; past it callers wait for one.
const MOST: usize = 8;
/// A connection that was not used for so long is closed.
const IDLE: Duration = Duration::from_secs(30);
/// So long it is believed how many replicas there are.
const KNOWN: Duration = Duration::from_secs(10);
/// Longest time by which the server ends its WAIT before we give up.
const MARGIN: Duration = Duration::from_millis(100);

pub(super) struct Pool {
    dialer: Dialer,
    runtime: Handle,
    server_clock: Arc<ServerClock>,
    permits: Arc<Semaphore>,
    idle: Mutex<Idle>,
    /// How many replicas the cluster says the server has, and when it said so.
    replicas: Mutex<Option<(u32, Tick)>>,
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
            replicas: Mutex::default(),
            weak: weak.clone(),
        })
    }

    /// A connection, as soon as there is one.
    async fn take(&self, timeout: Duration) -> Result<Exclusive, StoreError> {
        let permits = Arc::clone(&self.permits);
        let Ok(Ok(permit)) = tokio::time::timeout(timeout, permits.acquire_owned()).await else {
            let what = format!(
                "all {MOST} connections for grants that replicas confirm were in use, nothing was sent; if this \
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
    /// Runs a step that may grant something; a grant is one when the replicas have confirmed it.
    pub(super) async fn granting<F>(
        &self,
        replication: Replication,
        at: At,
        step: impl FnOnce(Arc<Connector>, Ready) -> F,
    ) -> Result<Acquired, Fault>
    where
        F: Future<Output = Result<Acquired, Fault>>,
    {
        if replication.is_none() {
            let ready = self.connector.ready(at).await?;
            return step(Arc::clone(&self.connector), ready).await;
        }
        Box::pin(async move {
            let deadline = self.deadline(at.timeout);
            let link = self.synced.take(at.timeout).await?;
            let result = self.granting_over(&link.connector, replication, at, deadline, step).await;
            if !matches!(&result, Err(fault) if fault.error.kind() == StoreErrorKind::Unanswered) {
                link.give_back(&self.synced);
            }
            result
        })
        .await
    }

    async fn granting_over<F>(
        &self,
        connector: &Arc<Connector>,
        replication: Replication,
        at: At,
        deadline: Tick,
        step: impl FnOnce(Arc<Connector>, Ready) -> F,
    ) -> Result<Acquired, Fault>
    where
        F: Future<Output = Result<Acquired, Fault>>,
    {
        let ready = connector.ready_by(|_| deadline, at.asking).await?;
        let wanted = self.wanted(replication, connector, &ready).await?;
        let acquired = step(Arc::clone(connector), connector.later(&ready)).await?;
        if matches!(acquired, Acquired::Granted(_)) {
            self.confirm(connector, &connector.later(&ready), wanted, replication.timeout()).await?;
        }
        Ok(acquired)
    }

    async fn wanted(
        &self,
        replication: Replication,
        connector: &Connector,
        ready: &Ready,
    ) -> Result<u32, Fault> {
        if let Some(wanted) = replication.wanted(None) {
            return Ok(wanted);
        }
        // Sentinels have been asked when the connection was made.
        let known = match connector.dialer().known_replicas() {
            None if self.has_peers => self.replicas_in_cluster(connector, ready).await?,
            known => known,
        };
        Ok(replication.wanted(known.or(self.options.replicas)).ok_or_else(|| {
            let what = "a majority of how many replicas? This server does not say how many it has; set `replicas` \
                        when the manager is built, or ask for `at_least`";
            self.address.error(StoreErrorKind::Unsupported, what)
        })?)
    }

    /// How many replicas the cluster knows of this server.
    async fn replicas_in_cluster(&self, connector: &Connector, ready: &Ready) -> Result<Option<u32>, Fault> {
        let now = ready.now;
        if let Some((known, since)) = *lock(&self.synced.replicas)
            && now.since(since) < KNOWN
        {
            return Ok(Some(known));
        }
        // CLUSTER SLOTS leaves out those that are down.
        let asked = connector.call(ready, redis::cmd("CLUSTER").arg("NODES")).await;
        let known = match asked.map_err(|error| Fault::from(error).error) {
            Ok(Value::VerbatimString { text, .. }) => replicas_of_myself(&text),
            Ok(nodes) => reply::text(&nodes).and_then(replicas_of_myself),
            // Nothing was granted yet.
            Err(error) if error.is_transient() => {
                return Err(StoreError::new(StoreErrorKind::Unreachable, error.to_string()).into());
            }
            Err(_) => None,
        };
        if let Some(known) = known {
            *lock(&self.synced.replicas) = Some((known, now));
        }
        Ok(known)
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
            // It is granted, and has to be withdrawn: whatever else may be wrong.
            Err(error) => {
                let why = Fault::from(error).error;
                let what = format!("the replicas could not be waited for: {why}");
                return Err(StoreError::new(StoreErrorKind::NotReplicated, what));
            }
        };
        if ready.is_over() {
            let what = "the connection was lost or another server became the primary just after the grant";
            return Err(self.address.error(StoreErrorKind::Unanswered, what));
        }
        if confirmed >= wanted {
            return Ok(());
        }
        let what = format!("{confirmed} of {wanted} replicas confirmed the grant within {timeout:?}");
        Err(self.address.error(StoreErrorKind::NotReplicated, what))
    }
}

/// From the answer to CLUSTER NODES.
fn replicas_of_myself(nodes: &str) -> Option<u32> {
    // ID ADDRESS FLAGS PRIMARY …
    let each = || {
        nodes.lines().filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.nth(1)?, words.next()?))
        })
    };
    let is = |flags: &str, flag: &str| flags.split(',').any(|one| one == flag);
    let (me, ..) = each().find(|(_, flags, _)| is(flags, "myself"))?;
    u32::try_from(each().filter(|(_, flags, primary)| is(flags, "slave") && *primary == me).count()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_that_are_down_are_counted_and_those_of_others_are_not() {
        let nodes = "07c3 127.0.0.1:30004@31004 slave e7d1 0 1426238317239 4 connected\n\
            67ed 127.0.0.1:30002@31002,hostname2 master - 0 1426238316232 2 connected 5461-10922\n\
            6ec2 127.0.0.1:30005@31005 slave 67ed 0 1426238316232 5 connected\n\
            824f 127.0.0.1:30006@31006 slave,fail e7d1 0 1426238317741 6 disconnected\n\
            e7d1 127.0.0.1:30001@31001 myself,master - 0 0 1 connected 0-5460\n";
        assert_eq!(replicas_of_myself(nodes), Some(2));
        assert_eq!(replicas_of_myself(""), None);
    }
    use crate::clock::Clock;

    #[tokio::test(start_paused = true)]
    async fn connections_are_used_again_and_closed_when_idle() {
        let client = redis::Client::open("redis://127.0.0.1:1").unwrap();
        let dialer = Dialer::new(&client, Duration::from_secs(1), Clock::tokio()).unwrap();
        let pool = Pool::new(dialer, Handle::current(), Arc::default());
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
        let client = redis::Client::open("redis://127.0.0.1:1").unwrap();
        let dialer = Dialer::new(&client, Duration::from_secs(1), Clock::tokio()).unwrap();
        let pool = Pool::new(dialer, Handle::current(), Arc::default());
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
