//! Other libraries that keep a lock in the plain layout, as `redis+plain://` does.
//!
//! A [`Fleet`] is the servers of one test, on which [`Rival`]s are programs with such a library, a
//! [`Client`]. The programs are in `tests/interop/plain`. [`Client::build`] builds them the first
//! time, under cargo's target folder.

mod build;
#[cfg(feature = "interop")]
mod fleet;
#[cfg(feature = "interop")]
mod rival;

pub use build::{Client, Program};
#[cfg(feature = "interop")]
pub use fleet::{Fleet, LONG, count, waiter};
#[cfg(feature = "interop")]
pub use rival::{LIMIT, Rival};

/// Makes a test of each function for each client, in one module for each client and number of
/// servers. Takes these as `module = Client on number` first, then the functions, each an `async fn
/// name(fleet: Fleet)`. The modules' names begin with [`Client::name`].
#[macro_export]
macro_rules! on_clients {
    ($clients:tt $($(#[$attribute:meta])* async fn $name:ident($fleet:ident: Fleet) $body:block)*) => {
        $($(#[$attribute])* async fn $name($fleet: $crate::plain::Fleet) $body)*

        $crate::on_clients!(@clients $clients [$($name)*]);
    };
    (@clients [$($module:ident = $client:ident on $servers:literal),*] $names:tt) => {
        $($crate::on_clients!(@module $module $client $servers $names);)*
    };
    (@module $module:ident $client:ident $servers:literal [$($name:ident)*]) => {
        mod $module {
            use $crate::plain::{Client, Fleet};

            $(
                #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name(Fleet::start(Client::$client, $servers)).await;
                }
            )*
        }
    };
}
