//! Servers and clients of PostgreSQL that are killed or stopped, and connections that are cut.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager};
use lock_tests::hammers::Hammers;
use lock_tests::sql_locks::{
    a_dead_or_stopped_waiter_takes_nothing_with_it,
    a_lock_of_a_dead_or_stopped_holder_is_free_after_its_lease, left_in_postgres,
    postgres_beside_a_busy_disk,
};
use lock_tests::wire::Fate;
use lock_tests::{Helper, PostgresServer, Wire, eventually};
use sqlx::PgPool;

const HAMMER: &str = env!("CARGO_BIN_EXE_hammer");
const HOLDER: &str = env!("CARGO_BIN_EXE_holder");
const LEASE: Duration = Duration::from_millis(1500);
const SLACK: Duration = Duration::from_secs(20);

/// Asserts that nobody holds or waits for anything, once the leases of the dead are over.
async fn assert_nothing_is_left(server: &PostgresServer) {
    let pool = PgPool::connect(&server.url()).await.unwrap();
    eventually(async || left_in_postgres(&pool).await.is_empty(), LEASE + SLACK).await;
}

/// Lets three processes work, and makes `faults` meanwhile. `dies` does not live to the end.
fn processes_never_overlap(
    url: &str,
    time: Duration,
    dies: Option<usize>,
    faults: impl FnOnce(&mut Hammers),
) -> usize {
    let mut hammers = Hammers::start(HAMMER, url, 3, time, &LEASE.as_millis().to_string());
    hammers.await_work();
    faults(&mut hammers);
    let done: usize = (0..3).filter(|at| Some(*at) != dies).map(|at| hammers.done(at).sections).sum();
    let report = hammers.report();
    report.assert_clean();
    assert!(report.total() >= done && (dies.is_some() || report.total() == done), "{report}");
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_stopped_under_load_has_one_holder() {
    let mut server = postgres_beside_a_busy_disk().await;
    tokio::task::block_in_place(|| {
        processes_never_overlap(&server.url(), Duration::from_secs(8), None, |_| {
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
    assert_nothing_is_left(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_are_killed_and_stopped_under_load_overlap_with_nobody() {
    let server = postgres_beside_a_busy_disk().await;
    tokio::task::block_in_place(|| {
        processes_never_overlap(&server.url(), Duration::from_secs(6), Some(2), |hammers| {
            std::thread::sleep(LEASE / 3);
            hammers.processes[2].kill();
            for at in [0, 1] {
                hammers.processes[at].stop();
                std::thread::sleep(LEASE * 3 / 2);
                hammers.processes[at].cont();
            }
        })
    });
    assert_nothing_is_left(&server).await;
}

/// Requests are unanswered wherever they are: acquires, renewals, releases, withdrawals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_all_the_time_cost_no_grant_and_double_none() {
    let server = postgres_beside_a_busy_disk().await;
    let wire = Wire::to(server.addr());
    let (mut number, mut lost) = (0, 0);
    wire.set(move |request| {
        let writes = request.contains(&b'{') || request.windows(7).any(|part| part == b"COMMIT\0");
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
    let url = format!("postgres://test@{}/postgres", wire.addr());
    tokio::task::block_in_place(|| processes_never_overlap(&url, Duration::from_secs(6), None, |_| {}));
    assert!(wire.hits() > 10, "{}", wire.hits());
    assert_nothing_is_left(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_outlives_its_dead_or_stopped_process_by_its_lease() {
    let server = postgres_beside_a_busy_disk().await;
    tokio::task::block_in_place(|| {
        a_lock_of_a_dead_or_stopped_holder_is_free_after_its_lease(&server.url(), HOLDER, Helper::stop);
        a_dead_or_stopped_waiter_takes_nothing_with_it(&server.url(), HOLDER, Helper::stop);
    });
    assert_nothing_is_left(&server).await;
}

/// Its processes hold no lock for longer than their leases, and it answers nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_server_is_unavailable_in_time_and_its_holders_are_lost_in_time() {
    let mut server = postgres_beside_a_busy_disk().await;
    let builder = || LockManager::builder().lease(LEASE).call_timeout(LEASE / 3);
    let (one, other) =
        (builder().connect(server.url()).await.unwrap(), builder().connect(server.url()).await.unwrap());
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
    assert_nothing_is_left(&server).await;
}

/// A grant is durable whatever the database's default is. With that default, others lose commits:
/// so the crash is one that can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_loses_no_grant_although_the_database_does_not_wait_for_the_disk() {
    let mut server = postgres_beside_a_busy_disk().await;
    let run = async |pool: &PgPool, text: &str| sqlx::raw_sql(text).execute(pool).await.map(drop).unwrap();
    let pool = PgPool::connect(&server.url()).await.unwrap();
    run(&pool, "CREATE TABLE note (number INT)").await;
    run(&pool, "ALTER DATABASE postgres SET synchronous_commit = off").await;
    // Nothing is written in the background for ten seconds.
    run(&pool, "ALTER SYSTEM SET wal_writer_delay = '10s'").await;
    let (mut lost, mut guards) = (0, Vec::new());
    tokio::task::block_in_place(|| server.restart());
    for crash in 0..3 {
        let pool = PgPool::connect(&server.url()).await.unwrap();
        let builder = LockManager::builder().lease(Duration::from_secs(600));
        let locks = builder.connect(server.url()).await.unwrap();
        guards.push(locks.mutex(format!("k{crash}")).acquire().await.unwrap());
        sqlx::query("INSERT INTO note VALUES ($1)").bind(crash).execute(&pool).await.unwrap();
        if crash == 0 {
            // Our commits take those before them to the disk.
            guards.push(locks.mutex("last").acquire().await.unwrap());
        }
        tokio::task::block_in_place(|| server.restart());
        let pool = PgPool::connect(&server.url()).await.unwrap();
        let find = sqlx::query_scalar("SELECT count(*) FROM note WHERE number = $1").bind(crash);
        let found: i64 = find.fetch_one(&pool).await.unwrap();
        assert!(found == 1 || crash > 0);
        lost += 1 - found;
        let other = LockManager::connect(server.url()).await.unwrap();
        for guard in &guards {
            let error = other.mutex(guard.key()).no_wait().acquire().await.unwrap_err();
            assert!(error.is_busy(), "{guard:?}: {error:?}");
        }
    }
    assert!(lost > 0, "no commit was lost in two crashes");
}
