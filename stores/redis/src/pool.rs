//! [`Pool`]: connections that are each used by one caller at a time.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lock_core::internal::ServerClock;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::lock;
use lock_core::store::{StoreError, StoreErrorKind};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection::Connector;
use super::dialer::Dialer;

/// Connections, at most; past it callers wait for one.
const MOST: usize = 8;
/// A connection that was not used for so long is closed.
const IDLE: Duration = Duration::from_secs(30);

/// Connections of one server, of which each call has one for itself.
pub(super) struct Pool {
    dialer: Dialer,
    runtime: Handle,
    server_clock: Arc<ServerClock>,
    permits: Arc<Semaphore>,
    idle: Mutex<Idle>,
    /// How many replicas the server had when they were counted last.
    pub(super) counted: Mutex<Option<(u32, Tick)>>,
    /// The error of a `WAIT` that the user has no right to, and when that was.
    pub(super) denied: Mutex<Option<(StoreError, Tick)>>,
    weak: Weak<Self>,
}

#[derive(Default)]
struct Idle {
    /// The one that was used last is the last.
    links: Vec<(Arc<Connector>, Tick)>,
    /// A task looks after them.
    watched: bool,
}

/// A connection that nobody else uses. It is closed unless it is [given back](Self::give_back):
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

    /// A connection, as soon as there is one.
    pub(super) async fn take(&self, timeout: Duration) -> Result<Exclusive, StoreError> {
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
        // Also one that is closed, since something may be under way on it, makes room.
        drop(taken.pop());
        assert_eq!(pool.idle(), 0);
        pool.take(IDLE).await.unwrap().give_back(&pool);
    }
}
