//! [`Fleet`]: the servers of one test, and the programs of both sides on them.

use std::path::Path;
use std::time::Duration;

use lock_runtime::{Lock, LockGuard, LockManager};
use tokio::task::JoinHandle;

use super::build::Client;
use super::rival::{LIMIT, Rival};
use crate::{Layout, Quorum, RedisServer, eventually};

/// A lease that outlasts every test.
pub const LONG: Duration = Duration::from_secs(300);
/// Time between two increments of one task.
const PAUSE: Duration = Duration::from_millis(10);

/// The servers of one test, which a [`Client`] and this library share. A lock is on all of them.
#[derive(Debug)]
pub struct Fleet {
    client: Client,
    servers: Quorum,
}

impl Fleet {
    /// Starts the servers.
    ///
    /// # Panics
    ///
    /// When they do not start.
    #[must_use]
    pub fn start(client: Client, servers: usize) -> Self {
        Self { client, servers: Quorum::start_with(servers, &[]) }
    }

    /// Returns the servers.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        self.servers.servers()
    }

    /// Returns the servers, to be killed.
    pub fn servers_mut(&mut self) -> &mut [RedisServer] {
        self.servers.servers_mut()
    }

    /// Starts a program with the client.
    ///
    /// # Panics
    ///
    /// When it can't be built or started.
    #[must_use]
    pub fn rival(&self) -> Rival {
        Rival::start(self.client, self.servers())
    }

    /// Connects a manager with the settings that a mixed fleet needs, and with this lease. No lease
    /// of the test is longer than [`LONG`].
    ///
    /// # Panics
    ///
    /// When it can't connect.
    pub async fn connect(&self, lease: Duration) -> LockManager {
        let url = match self.servers() {
            [server] => server.url(),
            _ => self.servers.url(),
        };
        let url = Layout::Plain.url(&url);
        let connected = LockManager::builder().prefix("").lease(lease).max_lease(LONG).connect(&url).await;
        connected.unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    /// Waits until most servers have this value.
    ///
    /// # Panics
    ///
    /// When that takes too long.
    pub async fn has_value(&self, key: &str, value: &str) {
        let count = || self.servers().iter().filter(|server| server.cli(&["GET", key]) == value).count();
        eventually(async || count() > self.servers().len() / 2, LIMIT).await;
    }

    /// Waits until every server has this value. A client holds a lock that most servers have given
    /// it, and its last requests may still be on their way.
    ///
    /// # Panics
    ///
    /// When that takes too long.
    pub async fn has_value_everywhere(&self, key: &str, value: &str) {
        let has = |server: &RedisServer| server.cli(&["GET", key]) == value;
        eventually(async || self.servers().iter().all(has), LIMIT).await;
    }

    /// Waits until no server has the key.
    ///
    /// # Panics
    ///
    /// When that takes too long.
    pub async fn is_free(&self, key: &str) {
        let free = |server: &RedisServer| server.cli(&["EXISTS", key]) == "0";
        eventually(async || self.servers().iter().all(free), LIMIT).await;
    }
}

/// Starts to wait for the lock of `key`, which may be one of several. Returns when the store knows
/// of the waiter, or when it has the lock.
///
/// # Panics
///
/// When that takes too long.
pub async fn waiter(lock: Lock, locks: &LockManager, key: &str) -> JoinHandle<LockGuard> {
    let task = tokio::spawn(async move { lock.wait(LIMIT).acquire().await.expect("it is released") });
    let is_known = async || locks.status(key).await.is_ok_and(|status| status.waiters > 0);
    eventually(async || task.is_finished() || is_known().await, LIMIT).await;
    task
}

/// Increments the number in a file, `times` times, each under a new lock.
///
/// # Panics
///
/// When a lock can't be taken or is lost.
pub async fn count(lock: impl Fn() -> Lock, file: &Path, times: u32) {
    for _ in 0..times {
        let guard = lock().wait(LIMIT).acquire().await.expect("it is free at some time");
        let number: u32 = std::fs::read_to_string(file).expect("a file").parse().expect("a number");
        tokio::time::sleep(Duration::from_millis(1)).await;
        std::fs::write(file, (number + 1).to_string()).expect("the file can be written");
        guard.release().await.expect("it was held until now");
        tokio::time::sleep(PAUSE).await;
    }
}
