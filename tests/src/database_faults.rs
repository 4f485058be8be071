//! Tests of locks on database servers that are killed or stopped, with clients that are, and with
//! connections that are cut. Each starts its own server. They need a runtime of several threads.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager};

use crate::database_locks::{
    a_dead_or_stopped_waiter_takes_nothing_with_it,
    a_lock_of_a_dead_or_stopped_holder_is_free_after_its_lease,
};
use crate::database_server::{LockServer, url};
use crate::hammers::Hammers;
use crate::wire::Fate;
use crate::{DatabaseServer, Helper, Wire, eventually_blocking};

const LEASE: Duration = Duration::from_millis(1500);
const SLACK: Duration = Duration::from_secs(20);

/// Makes these tests for one product.
#[macro_export]
macro_rules! database_faults {
    ($product:ty) => {
        $crate::database_faults! { $product:
            fn a_server_that_is_killed_and_stopped_under_load_has_one_holder(env!("CARGO_BIN_EXE_hammer"));
            fn processes_that_are_killed_and_stopped_under_load_overlap_with_nobody(env!("CARGO_BIN_EXE_hammer"));
            fn connections_that_are_cut_all_the_time_cost_no_grant_and_double_none(env!("CARGO_BIN_EXE_hammer"));
            fn a_lock_outlives_its_dead_or_stopped_process_by_its_lease(env!("CARGO_BIN_EXE_holder"));
            fn waiters_that_are_killed_and_stopped_are_passed_over(env!("CARGO_BIN_EXE_holder"));
            fn a_stopped_server_is_unavailable_in_time_and_its_holders_are_lost_in_time();
        }
    };
    ($product:ty: $(fn $name:ident($($program:expr)?);)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            $crate::database_faults::$name::<$product>($($program)?).await;
        }
    )*};
}

/// Lets three processes work, and makes `faults` meanwhile. `dies` does not live to the end.
fn processes_never_overlap(
    hammer: &str,
    url: &str,
    time: Duration,
    dies: Option<usize>,
    faults: impl FnOnce(&mut Hammers),
) -> usize {
    let mut hammers = Hammers::start(hammer, url, 3, time, &LEASE.as_millis().to_string());
    hammers.await_work();
    faults(&mut hammers);
    let done: usize = (0..3).filter(|at| Some(*at) != dies).map(|at| hammers.done(at).sections).sum();
    let report = hammers.report();
    report.assert_clean();
    assert!(report.total() >= done && (dies.is_some() || report.total() == done), "{report}");
    done
}

/// Restarts the server twice and stops it once, while processes work.
pub async fn a_server_that_is_killed_and_stopped_under_load_has_one_holder<P: LockServer>(hammer: &str) {
    let mut server = P::start_beside_a_busy_disk().await;
    tokio::task::block_in_place(|| {
        processes_never_overlap(hammer, &url(&server), Duration::from_secs(8), None, |_| {
            std::thread::sleep(LEASE / 3);
            server.restart();
            std::thread::sleep(LEASE / 3);
            server.stop();
            // Past every lease.
            std::thread::sleep(LEASE * 3 / 2);
            server.cont();
            std::thread::sleep(LEASE / 3);
            server.restart();
        })
    });
    P::assert_nothing_is_left(&server, LEASE + SLACK).await;
}

/// Kills one of three processes that work, and stops the others.
pub async fn processes_that_are_killed_and_stopped_under_load_overlap_with_nobody<P: LockServer>(
    hammer: &str,
) {
    let server = P::start_beside_a_busy_disk().await;
    tokio::task::block_in_place(|| {
        processes_never_overlap(hammer, &url(&server), Duration::from_secs(6), Some(2), |hammers| {
            std::thread::sleep(LEASE / 3);
            hammers.processes[2].kill();
            for at in [0, 1] {
                hammers.processes[at].stop();
                std::thread::sleep(LEASE * 3 / 2);
                hammers.processes[at].cont();
            }
        })
    });
    P::assert_nothing_is_left(&server, LEASE + SLACK).await;
}

/// Requests are unanswered wherever they are: acquires, renewals, releases, withdrawals.
pub async fn connections_that_are_cut_all_the_time_cost_no_grant_and_double_none<P: LockServer>(
    hammer: &str,
) {
    let server = P::start_beside_a_busy_disk().await;
    let wire = Wire::to(server.addr());
    let (mut number, mut lost) = (0, 0);
    wire.set(move |request| {
        let writes = P::writes(request);
        number += u64::from(writes);
        if !writes || number % 20 != 0 {
            return Fate::Passes;
        }
        lost += 1;
        match lost % 8 {
            0 => Fate::Unanswered,
            4 => Fate::Lost,
            _ => Fate::Cut,
        }
    });
    let url = P::url_at(wire.addr());
    tokio::task::block_in_place(|| {
        processes_never_overlap(hammer, &url, Duration::from_secs(120), None, |hammers| {
            std::thread::sleep(Duration::from_secs(6));
            eventually_blocking(|| wire.hits() > 10, Duration::from_secs(90));
            hammers.end();
        })
    });
    P::assert_nothing_is_left(&server, LEASE + SLACK).await;
}

/// Kills and stops holders.
pub async fn a_lock_outlives_its_dead_or_stopped_process_by_its_lease<P: LockServer>(holder: &str) {
    let server = P::start_beside_a_busy_disk().await;
    tokio::task::block_in_place(|| {
        a_lock_of_a_dead_or_stopped_holder_is_free_after_its_lease(&url(&server), holder, Helper::stop);
    });
    P::assert_nothing_is_left(&server, LEASE + SLACK).await;
}

/// Kills and stops waiters.
pub async fn waiters_that_are_killed_and_stopped_are_passed_over<P: LockServer>(holder: &str) {
    let server = P::start_beside_a_busy_disk().await;
    tokio::task::block_in_place(|| {
        a_dead_or_stopped_waiter_takes_nothing_with_it(&url(&server), holder, Helper::stop);
    });
    P::assert_nothing_is_left(&server, LEASE + SLACK).await;
}

/// Its processes hold no lock for longer than their leases, and it answers nobody.
pub async fn a_stopped_server_is_unavailable_in_time_and_its_holders_are_lost_in_time<P: LockServer>() {
    let mut server = P::start_beside_a_busy_disk().await;
    let builder = || LockManager::builder().lease(LEASE).call_timeout(LEASE / 3);
    let (one, other) =
        (builder().connect(url(&server)).await.unwrap(), builder().connect(url(&server)).await.unwrap());
    let guard = one.mutex("k").acquire().await.unwrap();
    let waiter = tokio::spawn(other.mutex("k").wait(SLACK * 3).acquire());
    server.stop();
    let start = Instant::now();
    let error = other.mutex("free").wait(LEASE).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    assert!(start.elapsed() >= LEASE && start.elapsed() < LEASE + SLACK, "{:?}", start.elapsed());
    guard.lost().await;
    assert!(start.elapsed() < LEASE + SLACK, "{:?}", start.elapsed());
    assert!(!waiter.is_finished());
    server.cont();
    let next = waiter.await.unwrap().unwrap();
    assert!(guard.is_lost() && next.fencing_token() > guard.fencing_token());
    drop(guard);
    next.release().await.unwrap();
    P::assert_nothing_is_left(&server, LEASE + SLACK).await;
}

/// A grant that was answered is on the disk. Clients connect to this URL, with this lease.
pub async fn a_crash_loses_no_grant<P: LockServer>(
    url: impl Fn(&DatabaseServer<P>) -> String,
    lease: Duration,
) {
    let mut server = DatabaseServer::<P>::start();
    let connect = async |server: &DatabaseServer<P>| {
        LockManager::builder().lease(lease).connect(url(server)).await.unwrap()
    };
    let mut guards = Vec::new();
    for crash in 0..3 {
        let locks = connect(&server).await;
        guards.push(locks.mutex(format!("k{crash}")).acquire().await.unwrap());
        tokio::task::block_in_place(|| server.restart());
        let other = connect(&server).await;
        for guard in &guards {
            let error = other.mutex(guard.key()).no_wait().acquire().await.unwrap_err();
            assert!(error.is_busy(), "{guard:?}: {error:?}");
        }
    }
}
