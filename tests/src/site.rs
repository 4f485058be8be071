//! [`Site`]: the place that a test of the shared suite runs at, and [`on_every_store!`](crate::on_every_store).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{LockManager, LockManagerBuilder};

use crate::RedisServer;

/// A store of its own for one test, to which any number of managers connect.
#[derive(Debug)]
pub struct Site {
    url: String,
    server: Option<RedisServer>,
}

impl Site {
    /// A fresh memory store. Its time is tokio's, so tests pause it.
    #[must_use]
    pub fn memory() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { url: format!("memory:site-{n}"), server: None }
    }

    /// A fresh Redis server.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[must_use]
    #[track_caller]
    pub fn redis() -> Self {
        let server = RedisServer::start();
        Self { url: server.url(), server: Some(server) }
    }

    /// The store's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server behind it, if it is one.
    #[must_use]
    pub fn server(&self) -> Option<&RedisServer> {
        self.server.as_ref()
    }

    /// A manager with the default settings. Each is to the store what another process would be.
    ///
    /// # Panics
    ///
    /// When it can't connect.
    pub async fn manager(&self) -> LockManager {
        self.manager_with(|builder| builder).await
    }

    /// A manager with other settings.
    ///
    /// # Panics
    ///
    /// When it can't connect.
    pub async fn manager_with(
        &self,
        settings: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
    ) -> LockManager {
        match settings(LockManager::builder()).connect(&self.url).await {
            Ok(locks) => locks,
            Err(error) => panic!("{}: {error}", self.url),
        }
    }

    /// An upper bound for something that takes `exactly` when nothing else runs: nothing more under paused time, and
    /// generous on two busy cores.
    #[must_use]
    pub fn at_most(&self, exactly: Duration) -> Duration {
        match self.server {
            None => exactly + Duration::from_millis(50),
            Some(_) => exactly + Duration::from_secs(5),
        }
    }
}

/// How long a hold of `lease` is valid for its holder: the lease less the margin for clocks that run at different
/// rates (lease/100 + 2 ms). A holder that lives gives a fixed lease back then, so nobody else gets in earlier.
#[must_use]
pub fn validity(lease: Duration) -> Duration {
    lease - lease / 100 - Duration::from_millis(2)
}

/// Makes each function a test on the memory store, with paused time, and a test on a Redis server.
///
/// ```
/// lock_tests::on_every_store! {
///     async fn a_free_lock_is_acquired(site: Site) {
///         let locks = site.manager().await;
///         assert!(locks.mutex("free").try_acquire().await.unwrap().is_some());
///     }
/// }
/// ```
#[macro_export]
macro_rules! on_every_store {
    ($($(#[$attribute:meta])* async fn $name:ident($site:ident: Site) $body:block)*) => {
        $($(#[$attribute])* async fn $name($site: $crate::Site) $body)*

        mod memory {
            $(
                #[::tokio::test(start_paused = true)]
                async fn $name() {
                    super::$name($crate::Site::memory()).await;
                }
            )*
        }

        mod redis {
            $(
                #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::Site::redis()).await;
                }
            )*
        }
    };
}
