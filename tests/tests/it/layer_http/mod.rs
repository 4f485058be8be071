//! The layer behind real sockets: axum and plain hyper, HTTP/1.1 and HTTP/2, with its locks on a
//! real Redis server.
//!
//! A second manager on the same server stands for another process: to the store it is one.

mod axum_keys;
mod bodies;
mod client;
mod disconnects;
mod handlers;
mod plain_hyper;
mod recorded;
mod refusals;

mod server;
mod store_faults;
mod traffic;

use lock_runtime::{LockManager, testing};
use lock_tests::eventually;

use crate::layer_rig::{LONG, SLACK, at_rest, manager, manager_with, ms, soon, waiting};

/// Makes each function a test over HTTP/1.1 and one over HTTP/2.
macro_rules! over_both {
    ($($(#[$attribute:meta])* async fn $name:ident($version:ident: Version) $body:block)*) => {
        $($(#[$attribute])* async fn $name($version: $crate::layer_http::client::Version) $body)*

        mod http1 {
            $(
                #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::layer_http::client::Version::Http1).await;
                }
            )*
        }

        mod http2 {
            $(
                #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::layer_http::client::Version::Http2).await;
                }
            )*
        }
    };
}
use over_both;

/// Waits until a request is in the queue for a lock that another process holds. The count of
/// waiters includes a request about to join; the task that asks for it reports that it has joined.
async fn queued(locks: &LockManager) {
    let asks = || {
        let left = testing::leftovers(locks);
        left.waiters == 1 && left.tasks > 0
    };
    eventually(async || asks(), SLACK).await;
}
