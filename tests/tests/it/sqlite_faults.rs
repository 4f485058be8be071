//! Processes on one SQLite file that are killed, and stopped in the middle of a write.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager};
use lock_tests::Helper;
use lock_tests::database_locks::{
    a_dead_or_stopped_waiter_takes_nothing_with_it,
    a_lock_of_a_dead_or_stopped_holder_is_free_after_its_lease, nothing_is_left,
};
use lock_tests::hammers::Hammers;
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

const HAMMER: &str = env!("CARGO_BIN_EXE_hammer");
const HOLDER: &str = env!("CARGO_BIN_EXE_holder");
const LEASE: Duration = Duration::from_millis(1500);
const SLACK: Duration = Duration::from_secs(20);

struct Files {
    folder: tempfile::TempDir,
    url: String,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        Self { folder, url }
    }

    fn db(&self) -> std::path::PathBuf {
        self.folder.path().join("locks.db")
    }

    fn hammers(&self, processes: usize, time: Duration) -> Hammers {
        Hammers::start(HAMMER, &self.url, processes, time, &LEASE.as_millis().to_string())
    }

    /// Opens the file as another program, which waits for no writer.
    async fn pool(&self) -> SqlitePool {
        let options = SqliteConnectOptions::new().filename(self.db()).create_if_missing(true);
        SqlitePool::connect_with(options.busy_timeout(Duration::ZERO)).await.unwrap()
    }

    /// Asserts that the file is whole, and that nobody holds or waits for anything.
    async fn assert_nothing_is_left(&self) {
        let pool = self.pool().await;
        nothing_is_left(&pool, LEASE + SLACK).await;
        let check: String = sqlx::query_scalar("PRAGMA integrity_check").fetch_one(&pool).await.unwrap();
        assert_eq!(check, "ok");
    }
}

/// Whether another process is in the middle of a write.
async fn is_being_written(pool: &SqlitePool) -> bool {
    let mut connection = pool.acquire().await.unwrap();
    match sqlx::query("BEGIN IMMEDIATE").execute(&mut *connection).await {
        Ok(_) => {
            sqlx::query("ROLLBACK").execute(&mut *connection).await.unwrap();
            false
        }
        Err(error) => {
            assert!(error.to_string().contains("database is locked"), "{error}");
            true
        }
    }
}

/// Stops the process; whether it is in the middle of a write. Others write for moments only.
async fn stopped_inside_a_write(process: &mut Helper, pool: &SqlitePool) -> bool {
    tokio::task::block_in_place(|| process.stop());
    for _ in 0..10 {
        if !is_being_written(pool).await {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_of_which_one_is_killed_and_others_are_stopped_never_overlap() {
    let files = Files::new();
    tokio::task::block_in_place(|| {
        let mut hammers = files.hammers(4, Duration::from_secs(8));
        hammers.await_work();
        hammers.processes[3].kill();
        for at in [0, 1] {
            hammers.processes[at].stop();
            std::thread::sleep(LEASE * 3 / 2);
            hammers.processes[at].cont();
        }
        let done: usize = (0..3).map(|at| hammers.done(at).sections).sum();
        let report = hammers.report();
        report.assert_clean();
        assert!(report.total() > done, "the dead process was at work, too");
    });
    files.assert_nothing_is_left().await;
}

/// It stops the others, and each of their calls ends in time and says why. None of them is in
/// before it goes on, nor without its lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_stopped_inside_a_write_stops_the_others_until_it_goes_on() {
    let files = Files::new();
    let locks = LockManager::builder().lease(LEASE).connect(&files.url).await.unwrap();
    let guard = locks.mutex("k").acquire().await.unwrap();
    let pool = files.pool().await;
    let mut hammers = tokio::task::block_in_place(|| files.hammers(1, Duration::from_secs(10)));
    // A few of its moments are enough to find one inside a write.
    let deadline = Instant::now() + Duration::from_secs(8);
    while !stopped_inside_a_write(&mut hammers.processes[0], &pool).await {
        hammers.processes[0].cont();
        assert!(Instant::now() < deadline, "it is never stopped inside a write");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let error = locks.mutex("other").no_wait().acquire().await.unwrap_err();
    let said = error.to_string();
    assert!(said.contains("database is locked") || said.contains("another process"), "{said}");
    let start = Instant::now();
    let error = locks.mutex("other").wait(LEASE).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    assert!(start.elapsed() >= LEASE && start.elapsed() < LEASE + SLACK, "{:?}", start.elapsed());
    guard.lost().await;
    assert!(start.elapsed() < LEASE + SLACK, "{:?}", start.elapsed());
    let waiter = tokio::spawn(locks.mutex("k").wait(SLACK * 3).acquire());

    hammers.processes[0].cont();
    let next = waiter.await.unwrap().unwrap();
    assert!(guard.is_lost() && next.fencing_token() > guard.fencing_token());
    next.release().await.unwrap();
    drop(guard);
    tokio::task::block_in_place(|| {
        hammers.done(0);
        hammers.report().assert_clean();
    });
    files.assert_nothing_is_left().await;
}

/// Nobody has closed the file: what was committed is in the log beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_granted_is_found_in_the_log_of_processes_that_were_all_killed() {
    let files = Files::new();
    let token = tokio::task::block_in_place(|| {
        let mut holder = Helper::spawn(HOLDER, [files.url.as_str(), "lease=600000"]);
        assert_eq!(holder.line(SLACK), "ready");
        let mut hammers = files.hammers(2, Duration::from_secs(60));
        hammers.await_work();
        let said = holder.ask("acquire kept wait=60000");
        hammers.processes.iter_mut().for_each(Helper::kill);
        holder.kill();
        hammers.report().assert_clean();
        said.strip_prefix("acquired ").expect("a grant").parse::<u64>().unwrap()
    });
    let log = Path::new(&format!("{}-wal", files.db().display())).metadata().unwrap();
    assert!(log.len() > 0);
    let locks = LockManager::connect(&files.url).await.unwrap();
    assert!(locks.mutex("kept").no_wait().acquire().await.unwrap_err().is_busy());
    assert!(locks.force_release("kept").await.unwrap());
    let next = locks.mutex("kept").acquire().await.unwrap();
    assert!(next.fencing_token().get() > token);
    next.release().await.unwrap();
    // The other keys are free after their leases.
    for key in 0..lock_tests::hammers::KEYS {
        let guard = locks.mutex(format!("hammered:{key}")).wait(LEASE + SLACK).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
    files.assert_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_outlives_its_dead_or_stopped_process_by_its_lease() {
    let files = Files::new();
    let (pool, runtime) = (files.pool().await, tokio::runtime::Handle::current());
    // One that is stopped inside a write would stop the others.
    let stop = |process: &mut Helper| {
        while runtime.block_on(stopped_inside_a_write(process, &pool)) {
            process.cont();
            std::thread::sleep(Duration::from_millis(3));
        }
    };
    tokio::task::block_in_place(|| {
        a_lock_of_a_dead_or_stopped_holder_is_free_after_its_lease(&files.url, HOLDER, stop);
        a_dead_or_stopped_waiter_takes_nothing_with_it(&files.url, HOLDER, stop);
    });
    files.assert_nothing_is_left().await;
}
