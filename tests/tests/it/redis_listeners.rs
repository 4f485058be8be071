//! Subscriptions on the server: a manager leaves its channels when nobody waits, whatever happened
//! to its connection.

use std::time::Duration;

use lock_runtime::{LockManager, MultiKey};
use lock_tests::proxy::{Fault, Line, Proxy, Way};
use lock_tests::{RedisServer, eventually};

const LONG: Duration = Duration::from_secs(120);
/// Time-out for something quick, on a busy machine.
const SLACK: Duration = Duration::from_secs(40);
const WAITERS: usize = 4;

fn channels(server: &RedisServer) -> usize {
    server.cli(&["PUBSUB", "CHANNELS"]).lines().filter(|line| !line.is_empty()).count()
}

/// Each fair waiter has its own channel, whose name never comes again. A server behind a black hole
/// still counts a connection that its client has given up, until it hears of the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_manager_listens_to_nothing_when_nobody_waits() {
    let server = RedisServer::start();
    let settings = LockManager::builder().lease(LONG).subscription_linger(Duration::from_millis(100));
    let direct = settings.clone().connect(server.url()).await.unwrap();
    let proxy = Proxy::start(server.addr()).await;
    let locks = settings.call_timeout(Duration::from_secs(1)).connect(proxy.url()).await.unwrap();
    let held = direct.fair("a").acquire().await.unwrap();
    let faults = [Fault::BlackHole, Fault::HalfClose, Fault::Reset, Fault::Torn, Fault::Lost];
    for (fault, way) in faults.into_iter().flat_map(|fault| [(fault, Way::ToServer), (fault, Way::ToClient)])
    {
        let waiters: Vec<_> = (0..WAITERS)
            .map(|n| {
                // Each task has one key of its own: waiters of the same keys share a place.
                let lock = locks.multi([MultiKey::fair("a"), MultiKey::mutex(format!("b{n}"))]);
                tokio::spawn(async move { lock.wait(LONG).acquire().await.map(drop) })
            })
            .collect();
        eventually(async || channels(&server) >= WAITERS, SLACK).await;
        let injection = proxy.next(1, Line::PubSub, way, fault);
        waiters.iter().for_each(tokio::task::JoinHandle::abort);
        eventually(async || injection.hits() == 1, SLACK).await;
        eventually(
            async || {
                proxy.bury_dead();
                channels(&server) == 0
            },
            SLACK,
        )
        .await;
    }
    held.release().await.unwrap();
    // It was the same manager all the time.
    locks.fair("a").wait(LONG).acquire().await.unwrap().release().await.unwrap();
}
