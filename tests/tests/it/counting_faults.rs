//! Semaphores and latches when processes die, servers go away, and networks break.

use std::time::Duration;

use lock_runtime::{LockError, LockManager};
use lock_tests::proxy::{Fault, Line, Proxy, Way};
use lock_tests::redis::Data;
use lock_tests::{RedisServer, eventually, first_poll};
use tokio::task::LocalSet;

const LONG: Duration = Duration::from_secs(120);
/// Time-out for something quick, on a busy machine.
const SLACK: Duration = Duration::from_secs(40);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn manager(url: &str) -> LockManager {
    LockManager::builder().call_timeout(ms(500)).fallback_poll(ms(300)).connect(url).await.unwrap()
}

const FAULTS: [Fault; 5] =
    [Fault::Delay(ms(1200)), Fault::BlackHole, Fault::Close, Fault::HalfClose, Fault::Reset];

/// Runs `case` for each fault in each direction, with its own proxy and name.
async fn for_each_fault<F>(server: &RedisServer, case: impl Fn(LockManager, Proxy, Way, Fault, String) -> F)
where
    F: Future<Output = ()> + 'static,
{
    let here = LocalSet::new();
    let mut running = Vec::new();
    for (number, fault) in FAULTS.into_iter().enumerate() {
        for way in [Way::ToServer, Way::ToClient] {
            let proxy = Proxy::start(server.addr()).await;
            let locks = manager(&proxy.url()).await;
            let name = format!("case-{number}-{way:?}");
            running.push(here.spawn_local(case(locks, proxy, way, fault, name)));
        }
    }
    here.await;
    for done in running {
        done.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_down_that_breaks_is_sent_again_and_counts_once() {
    let server = RedisServer::start();
    let direct = manager(&server.url()).await;
    for_each_fault(&server, |locks, proxy, way, fault, name| {
        let direct = direct.clone();
        async move {
            direct.latch(&name).try_set_count(4).await.unwrap();
            // The server knows the script from here on, so the next answer belongs to a call that
            // has counted.
            assert_eq!(locks.latch(&name).count_down().await.unwrap(), 3);
            let injection = proxy.next(1, Line::Commands, way, fault);
            assert_eq!(locks.latch(&name).count_down().await.unwrap(), 2, "{fault:?} {way:?}");
            assert_eq!(injection.hits(), 1);
            assert_eq!(locks.latch(&name).count_down().await.unwrap(), 1);
            // A late copy of the first call, if there is one, has arrived by now.
            tokio::time::sleep(ms(1500)).await;
            assert_eq!(direct.latch(&name).count().await.unwrap(), 1, "{fault:?} {way:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_of_permits_that_breaks_is_repeated_and_leaves_nothing() {
    let server = RedisServer::start();
    let direct = manager(&server.url()).await;
    for_each_fault(&server, |locks, proxy, way, fault, name| {
        let direct = direct.clone();
        async move {
            direct.semaphore(&name).try_set_permits(4).await.unwrap();
            locks.semaphore(&name).acquire().await.unwrap().release().await.unwrap();
            let injection = proxy.next(1, Line::Commands, way, fault);
            let permit = locks.semaphore(&name).permits(2).wait(LONG).acquire().await.unwrap();
            assert_eq!(injection.hits(), 1);
            assert_eq!(permit.ids().len(), 2);
            let acquired = async || direct.semaphore(&name).acquired_permits().await.unwrap();
            // Long before the lease of 30 s is over.
            eventually(async || acquired().await == 2, Duration::from_secs(20)).await;
            permit.release().await.unwrap();
            eventually(async || acquired().await == 0, SLACK).await;
            assert_eq!(direct.semaphore(&name).available_permits().await.unwrap(), 4);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_dropped_while_the_network_breaks_come_back() {
    let server = RedisServer::start();
    let direct = manager(&server.url()).await;
    for_each_fault(&server, |locks, proxy, way, fault, name| {
        let direct = direct.clone();
        async move {
            direct.semaphore(&name).try_set_permits(2).await.unwrap();
            let permit = locks.semaphore(&name).permits(2).acquire().await.unwrap();
            let injection = proxy.next(1, Line::Commands, way, fault);
            drop(permit);
            eventually(async || injection.hits() == 1, SLACK).await;
            // Long before the lease of 30 s is over.
            eventually(
                async || direct.semaphore(&name).available_permits().await.unwrap() == 2,
                Duration::from_secs(20),
            )
            .await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_gets_on_without_any_messages() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    locks.latch("l").try_set_count(1).await.unwrap();
    let latch = first_poll(async { locks.latch("l").wait(LONG).await }).await;
    let permit = first_poll(async { locks.semaphore("s").wait(LONG).acquire().await }).await;
    let waiters = tokio::spawn({
        let locks = locks.clone();
        async move {
            locks.latch("l").wait(LONG).await.unwrap();
            locks.semaphore("s").wait(LONG).acquire().await.unwrap().release().await.unwrap();
        }
    });
    tokio::time::sleep(ms(300)).await;
    // Written by hand: nothing is published.
    server.cli(&["SET", "lock:s", "1"]);
    server.cli(&["DEL", "lock:l"]);
    let all = async {
        latch.await.unwrap();
        permit.await.unwrap().release().await.unwrap();
        waiters.await.unwrap();
    };
    tokio::time::timeout(SLACK, all).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_waits_end_as_unavailable_and_go_on_when_it_is_back() {
    let mut server = RedisServer::start();
    let locks = manager(&server.url()).await;
    locks.semaphore("s").try_set_permits(1).await.unwrap();
    let permit = locks.semaphore("s").acquire().await.unwrap();
    locks.latch("l").try_set_count(1).await.unwrap();
    let patient = first_poll(async { locks.semaphore("s").permits(2).wait_forever().acquire().await }).await;
    let latch = first_poll(async { locks.latch("l").wait_forever().await }).await;
    server.kill();

    // One waiter at the head of the queue, and one behind it.
    let (first, second, waited) = tokio::join!(
        locks.semaphore("other").wait(ms(1500)).acquire(),
        locks.semaphore("s").wait(ms(1500)).acquire(),
        async { locks.latch("l").wait(ms(1500)).await },
    );
    for error in [first.unwrap_err(), second.unwrap_err(), waited.unwrap_err()] {
        assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    }
    for error in [
        locks.semaphore("s").try_acquire().await.map(drop).unwrap_err(),
        locks.latch("l").wait(Duration::ZERO).await.unwrap_err(),
    ] {
        assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    }
    let error = locks.latch("l").count_down().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");

    // The server comes back empty: the latch is gone, and somebody gives the semaphore permits
    // again.
    server.restart(Data::Lost);
    tokio::time::timeout(SLACK, latch).await.unwrap().unwrap();
    eventually(async || locks.semaphore("s").try_set_permits(2).await.is_ok(), SLACK).await;
    tokio::time::timeout(SLACK, patient).await.unwrap().unwrap().release().await.unwrap();
    drop(permit);
}

#[cfg(unix)]
mod processes {
    use std::time::{Duration, Instant};

    use lock_tests::{Helper, RedisServer};

    use super::SLACK;

    const LEASE: Duration = Duration::from_secs(1);

    fn holder(server: &RedisServer) -> Helper {
        let mut helper = Helper::spawn(env!("CARGO_BIN_EXE_holder"), [&*server.url(), "lease=1000"]);
        assert_eq!(helper.line(SLACK), "ready");
        helper
    }

    #[test]
    fn a_killed_holders_permits_come_back_within_their_lease() {
        let server = RedisServer::start();
        let (mut first, mut second) = (holder(&server), holder(&server));
        server.cli(&["SET", "lock:s", "2"]);
        assert_eq!(first.ask("permit s"), "permitted");
        assert_eq!(first.ask("permit s"), "permitted");
        // Renewed for as long as the process lives.
        assert!(second.ask("permit s wait=2500").starts_with("failed"));
        first.kill();
        let killed = Instant::now();
        assert_eq!(second.ask("permit s wait=60000"), "permitted");
        assert!(killed.elapsed() < LEASE + SLACK);
        assert_eq!(second.ask("permit s wait=60000"), "permitted");
        assert!(second.ask("permit s wait=100").starts_with("failed"));
    }

    #[test]
    fn a_killed_waiter_takes_no_permit() {
        let server = RedisServer::start();
        let (mut first, mut second) = (holder(&server), holder(&server));
        first.send("permit s wait=60000");
        assert_eq!(first.try_line(Duration::from_millis(300)), None);
        first.kill();
        server.cli(&["SET", "lock:s", "1"]);
        assert_eq!(second.ask("permit s wait=60000"), "permitted");
    }
}
