//! [`Pool`]: connections that each have one user at a time.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::lock;
use lock_core::store::kit::ServerClock;
use lock_core::store::{StoreError, StoreErrorKind};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection::Connector;
use super::dialer::Dialer;

/// Maximum number of connections; further callers wait for one.
const MOST: usize = 8;
/// Time after which an unused connection is closed.
const IDLE: Duration = Duration::from_secs(30);

/// Connections of one server, each exclusive to one call at a time.
pub(super) struct Pool {
    dialer: Dialer,
    runtime: Handle,
    server_clock: Arc<ServerClock>,
    permits: Arc<Semaphore>,
    idle: Mutex<Idle>,
    /// Number of replicas when they were last counted, and the time of that.
    pub(super) counted: Mutex<Option<(u32, Tick)>>,
    /// The error of a `WAIT` that the user has no right to, and its time.
    pub(super) denied: Mutex<Option<(StoreError, Tick)>>,
    weak: Weak<Self>,
}

#[derive(Default)]
struct Idle {
    /// The most recently used connection is last.
    links: Vec<(Arc<Connector>, Tick)>,
    /// Whether a task closes them when they are idle for too long.
    watched: bool,
}

/// A connection with no other user. It is closed unless it is [given back](Self::give_back), since
/// something may be under way on it.
pub(super) struct Exclusive {
    pub(super) connector: Arc<Connector>,
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

    /// Returns a connection as soon as one is available.
    pub(super) async fn take(&self, timeout: Duration) -> Result<Exclusive, StoreError> {
        let permits = Arc::clone(&self.permits);
        let Ok(Ok(permit)) = tokio::time::timeout(timeout, permits.acquire_owned()).await else {
            let what = format!(
                "all {MOST} connections for calls that wait for replicas were in use, so nothing was sent; if this \
                 lasts, fewer replicas are up than the policy needs"
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

    /// Closes connections that were idle for too long, until no idle one is left.
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

    /// Returns the number of idle connections.
    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        lock(&self.idle).links.len()
    }
}

impl Exclusive {
    /// Returns the connection to the pool. Nothing may be under way on it.
    pub(super) fn give_back(self, pool: &Pool) {
        let mut idle = lock(&pool.idle);
        idle.links.push((self.connector, pool.dialer.clock.now()));
        if !idle.watched {
            idle.watched = true;
            drop(pool.runtime.spawn(Pool::close_idle(pool.weak.clone())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::RedisOptions;
    use super::*;
    use lock_core::internal::clock::Clock;

    fn dialer() -> Dialer {
        let client = redis::Client::open("redis://127.0.0.1:1").unwrap();
        let options = RedisOptions { clock: Clock::tokio(), ..super::super::server_tests::options() };
        Dialer::new(client.get_connection_info(), &options).unwrap()
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
        // A closed connection makes room too.
        drop(taken.pop());
        assert_eq!(pool.idle(), 0);
        pool.take(IDLE).await.unwrap().give_back(&pool);
    }
}
