//! [`Place`]: a store of stocks for one test, and [`on_every_stock!`](crate::on_every_stock).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lock_runtime::LockManager;
use lock_runtime::segmented::{Layout, SegmentedStock};

use crate::RedisServer;

/// How the stocks of a place are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// In this process.
    Memory,
    /// On a Redis server, each stock in one slot.
    OneSlot,
    /// On a Redis server, spread over slots.
    Spread,
}

impl Kept {
    /// Returns the name on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::OneSlot => "one-slot",
            Self::Spread => "spread",
        }
    }

    /// Returns the value of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Memory, Self::OneSlot, Self::Spread].into_iter().find(|kept| kept.name() == name)
    }

    /// Connects a client that uses stocks stored this way behind `url`.
    ///
    /// # Panics
    ///
    /// When it can't connect.
    pub async fn connect(self, url: &str) -> Client {
        let locks = LockManager::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        match self {
            Self::Memory | Self::OneSlot => Client::new(move |name| locks.stock(name)),
            Self::Spread => Client::new(move |name| locks.stock(name).layout(Layout::Spread)),
        }
    }
}

/// A store of stocks for one test.
#[derive(Debug)]
pub struct Place {
    kept: Kept,
    url: String,
    server: Option<RedisServer>,
}

impl Place {
    /// Starts a new store.
    ///
    /// # Panics
    ///
    /// When its server does not start.
    #[must_use]
    #[track_caller]
    pub fn start(kept: Kept) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);

        match kept {
            Kept::Memory => {
                let url = format!("memory:stocks-{}", NEXT.fetch_add(1, Ordering::Relaxed));
                Self { kept, url, server: None }
            }
            Kept::OneSlot | Kept::Spread => {
                let server = RedisServer::start();
                Self { kept, url: server.url(), server: Some(server) }
            }
        }
    }

    /// Returns how the stocks are stored.
    #[must_use]
    pub fn kept(&self) -> Kept {
        self.kept
    }

    /// Returns the URL for other processes; `None` for a store in memory.
    #[must_use]
    pub fn url(&self) -> Option<&str> {
        self.server.is_some().then_some(self.url.as_str())
    }

    /// Connects a client. To the store, each client is like another process.
    ///
    /// # Panics
    ///
    /// When it can't connect.
    pub async fn client(&self) -> Client {
        self.kept.connect(&self.url).await
    }

    /// Connects several clients.
    ///
    /// # Panics
    ///
    /// When a client can't connect.
    pub async fn clients<const N: usize>(&self) -> [Client; N] {
        let mut clients = Vec::new();
        for _ in 0..N {
            clients.push(self.client().await);
        }
        clients.try_into().expect("as many as were made")
    }
}

/// A client of stocks.
#[derive(Clone)]
pub struct Client(Arc<dyn Fn(&str) -> SegmentedStock + Send + Sync>);

impl Client {
    /// Creates a client that finds stocks with `find`.
    pub fn new(find: impl Fn(&str) -> SegmentedStock + Send + Sync + 'static) -> Self {
        Self(Arc::new(find))
    }

    /// Returns the stock of this name.
    #[must_use]
    pub fn stock(&self, name: &str) -> SegmentedStock {
        (self.0)(name)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// Makes a test of each function for every way in which stocks are stored, in real time.
///
/// ```
/// lock_tests::on_every_stock! {
///     async fn a_unit_is_sold_once(place: Place) {
///         let stock = place.client().await.stock("stock:1001");
///         stock.initialize(1, 10).await.unwrap();
///         assert!(stock.take("order-1", 1).await.is_ok());
///         assert!(stock.take("order-2", 1).await.is_err());
///     }
/// }
/// ```
#[macro_export]
macro_rules! on_every_stock {
    ($($(#[$attribute:meta])* async fn $name:ident($place:ident: Place) $body:block)*) => {
        $($(#[$attribute])* async fn $name($place: $crate::stocks::Place) $body)*

        mod memory {
            $(
                #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::stocks::Place::start($crate::stocks::Kept::Memory)).await;
                }
            )*
        }

        mod one_slot {
            $(
                #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::stocks::Place::start($crate::stocks::Kept::OneSlot)).await;
                }
            )*
        }

        mod spread {
            $(
                #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::stocks::Place::start($crate::stocks::Kept::Spread)).await;
                }
            )*
        }
    };
}
