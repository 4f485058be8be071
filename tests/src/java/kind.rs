//! [`Kind`]: a kind of lock as both sides have it, and [`on_kinds!`](crate::on_kinds).

use std::time::Duration;

use lock_runtime::{Lock, LockError, LockGuard, LockManager};

use super::client::Java;
use super::lock::JavaLock;
use super::servers::Servers;

/// A kind of lock with one holder at a time: which object of Redisson meets which of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `RLock` and a mutex.
    Lock,
    /// `RFencedLock` and a mutex.
    Fenced,
    /// `RFairLock` and a fair lock.
    Fair,
    /// The write locks of `RReadWriteLock` and of ours.
    Write,
}

impl Kind {
    /// What the Java program calls it.
    #[must_use]
    pub fn java(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Fenced => "fenced",
            Self::Fair => "fair",
            Self::Write => "write",
        }
    }

    /// The lock `name` in the hands of a Java thread.
    #[must_use]
    pub fn on<'a>(self, java: &'a Java, thread: &'a str, name: &'a str) -> JavaLock<'a> {
        java.lock(thread, self.java(), name)
    }

    fn request(self, locks: &LockManager, name: &str) -> Lock {
        match self {
            Self::Lock | Self::Fenced => locks.mutex(name),
            Self::Fair => locks.fair(name),
            Self::Write => locks.write(name),
        }
    }

    /// Waits for the lock on our side for as long as any test may take.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`].
    pub async fn acquire(self, locks: &LockManager, name: &str) -> Result<LockGuard, LockError> {
        self.acquire_within(locks, name, Duration::from_secs(60)).await
    }

    /// Waits for the lock on our side for at most `wait`.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`].
    pub async fn acquire_within(
        self,
        locks: &LockManager,
        name: &str,
        wait: Duration,
    ) -> Result<LockGuard, LockError> {
        self.request(locks, name).wait(wait).acquire().await
    }

    /// Acquires the lock on our side for a fixed lease.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`].
    pub async fn acquire_for(
        self,
        locks: &LockManager,
        name: &str,
        lease: Duration,
    ) -> Result<LockGuard, LockError> {
        self.request(locks, name).lease(lease).wait(Duration::from_secs(60)).acquire().await
    }

    /// Whether the lock is free for our side.
    ///
    /// # Panics
    ///
    /// When the store does not say.
    pub async fn try_acquire(self, locks: &LockManager, name: &str) -> Option<LockGuard> {
        self.request(locks, name).try_acquire().await.expect("the store answers")
    }

    /// What the helper program `holder` calls it.
    #[must_use]
    pub fn holder(self) -> &'static str {
        match self {
            Self::Lock | Self::Fenced => "mutex",
            Self::Fair => "fair",
            Self::Write => "write",
        }
    }

    /// How many clients wait for the lock, as far as the servers know: those that listen for its
    /// release, or the entries of its queue, each of which is one thread or task.
    ///
    /// # Panics
    ///
    /// When the servers do not say.
    #[must_use]
    pub fn waiting_clients(self, servers: &impl Servers, name: &str) -> usize {
        let channel = match self {
            Self::Lock | Self::Fenced => redis_name("redisson_lock__channel", name),
            Self::Write => redis_name("redisson_rwlock", name),
            Self::Fair => {
                let answer = servers.ask(name, &["LLEN", &redis_name("redisson_lock_queue", name)]);
                return answer.parse().unwrap_or_else(|_| panic!("{answer:?}"));
            }
        };
        servers.listeners(&channel)
    }
}

/// Redisson's rule for names that go with `name`.
#[must_use]
pub fn redis_name(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

/// Makes each function a test for each of the kinds, in a module for each kind: first
/// `module = Kind` for those, then the functions, each an `async fn name(kind: Kind)`. As
/// `on_every_store!` does for stores.
#[macro_export]
macro_rules! on_kinds {
    ($kinds:tt $($(#[$attribute:meta])* async fn $name:ident($kind:ident: Kind) $body:block)*) => {
        $($(#[$attribute])* async fn $name($kind: $crate::java::Kind) $body)*

        $crate::on_kinds!(@kinds $kinds [$($name)*]);
    };
    (@kinds [$($module:ident = $kind:ident),*] $names:tt) => {
        $($crate::on_kinds!(@module $module $kind $names);)*
    };
    (@module $module:ident $kind:ident [$($name:ident)*]) => {
        mod $module {
            $(
                #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::java::Kind::$kind).await;
                }
            )*
        }
    };
}
