//! [`Kind`]: a kind of lock on both sides, and [`on_kinds!`](crate::on_kinds).

use std::time::Duration;

use lock_runtime::{Lock, LockError, LockGuard, LockManager};

use super::client::Java;
use super::lock::JavaLock;
use super::servers::Servers;

/// A kind of lock with one holder at a time: a lock object of Redisson, and the lock of this
/// library that it competes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `RLock` and a mutex.
    Lock,
    /// `RFencedLock` and a mutex.
    Fenced,
    /// `RFairLock` and a fair lock.
    Fair,
    /// The write locks of `RReadWriteLock` and of this library.
    Write,
}

impl Kind {
    /// Returns its name in the Java program.
    #[must_use]
    pub fn java(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Fenced => "fenced",
            Self::Fair => "fair",
            Self::Write => "write",
        }
    }

    /// Returns the lock `name` as a Java thread uses it.
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

    /// Acquires the lock on the Rust side. Waits as long as any test may take.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`].
    pub async fn acquire(self, locks: &LockManager, name: &str) -> Result<LockGuard, LockError> {
        self.acquire_within(locks, name, Duration::from_secs(60)).await
    }

    /// Acquires the lock on the Rust side. Waits for `wait` at most.
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

    /// Acquires the lock on the Rust side with a fixed lease.
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

    /// Acquires the lock on the Rust side if it is free.
    ///
    /// # Panics
    ///
    /// When the store does not answer.
    pub async fn try_acquire(self, locks: &LockManager, name: &str) -> Option<LockGuard> {
        self.request(locks, name).try_acquire().await.expect("the store answers")
    }

    /// Returns its name in the helper program `holder`.
    #[must_use]
    pub fn holder(self) -> &'static str {
        match self {
            Self::Lock | Self::Fenced => "mutex",
            Self::Fair => "fair",
            Self::Write => "write",
        }
    }

    /// Returns how many clients wait for the lock, according to the servers. For a fair lock these
    /// are the entries of its queue, one for each thread or task. Otherwise they are the
    /// subscribers of its channel.
    ///
    /// # Panics
    ///
    /// When the servers do not answer.
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

/// Returns the name of a companion key of `name`, by Redisson's rule.
#[must_use]
pub fn redis_name(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

/// Makes a test of each function for each kind, in one module for each kind. Takes the pairs
/// `module = Kind` first, then the functions, each an `async fn name(kind: Kind)`. Works like
/// `on_every_store!` for stores.
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
