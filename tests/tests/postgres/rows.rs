//! Rows that strangers lock, and pools whose connections all wait.

use std::time::Duration;

use lock_runtime::{LockGuard, LockManager};
use lock_tests::eventually;
use lock_tests::sql_locks::{left_in_postgres, postgres_beside_a_busy_disk};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

const LEASE: Duration = Duration::from_secs(3);
const SLACK: Duration = Duration::from_secs(20);

/// Takes these keys at the same time, so that the same calls renew them.
async fn take(locks: &LockManager, keys: &[&str]) -> Vec<LockGuard> {
    let acquires: JoinSet<_> = keys.iter().map(|key| locks.mutex(key).acquire()).collect();
    let mut guards: Vec<_> = acquires.join_all().await.into_iter().map(Result::unwrap).collect();
    guards.sort_by_key(|guard| guard.key().clone());
    guards
}

/// `SELECT … FOR UPDATE` of others, more of them than there are connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_a_stranger_has_locked_cost_only_their_own_keys() {
    let server = postgres_beside_a_busy_disk().await;
    let pool = PgPool::connect(&server.url()).await.unwrap();
    let builder = || LockManager::builder().lease(LEASE).call_timeout(LEASE / 2);
    let (one, other) =
        (builder().connect(server.url()).await.unwrap(), builder().connect(server.url()).await.unwrap());
    let mut locked = take(&one, &["a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2"]).await;
    let free = locked.split_off(5);
    let lock = "SELECT 1 FROM lock_records WHERE name LIKE 'lock:a%' FOR UPDATE";

    // Short enough for another renewal: nobody loses anything.
    let mut stranger = pool.begin().await.unwrap();
    sqlx::raw_sql(lock).execute(&mut *stranger).await.unwrap();
    tokio::time::sleep(LEASE / 3).await;
    stranger.rollback().await.unwrap();
    tokio::time::sleep(LEASE).await;
    assert!(locked.iter().chain(&free).all(|guard| !guard.is_lost()), "{locked:?} {free:?}");

    let mut stranger = pool.begin().await.unwrap();
    sqlx::raw_sql(lock).execute(&mut *stranger).await.unwrap();
    let start = Instant::now();
    for guard in &locked {
        timeout(LEASE + SLACK, guard.lost()).await.expect("it can't be renewed");
    }
    // Calls for these keys end.
    let start_of_try = Instant::now();
    let error = other.mutex("a0").no_wait().acquire().await.unwrap_err();
    assert!(error.is_busy() || error.is_retryable(), "{error:?}");
    let error = other.mutex("a1").wait(LEASE / 2).acquire().await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    assert!(start_of_try.elapsed() < LEASE + SLACK, "{:?}", start_of_try.elapsed());
    // Steps on other keys go on beside it, and so do renewals.
    let waiter = tokio::spawn(other.mutex("a0").wait(SLACK * 2).acquire());
    for _ in 0..10 {
        let guard = other.mutex("c").acquire().await.unwrap();
        // On a busy machine its call may have too little time.
        let _ = guard.release().await;
    }
    tokio::time::sleep_until(start + LEASE * 5 / 2).await;
    assert!(free.iter().all(|guard| !guard.is_lost()), "{free:?}");

    stranger.rollback().await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    assert!(next.fencing_token() > locked[0].fencing_token());
    next.release().await.unwrap();
    assert!(locked.iter().all(LockGuard::is_lost));
    drop(locked);
    for guard in free {
        guard.release().await.unwrap();
    }
    eventually(async || left_in_postgres(&pool).await.is_empty(), LEASE + SLACK).await;
}

/// Renewals and releases have their own connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_wait_inside_transactions_hold_up_no_renewal_and_no_release() {
    const HANDLERS: i64 = 5;
    let server = postgres_beside_a_busy_disk().await;
    let pool = PgPoolOptions::new().max_connections(2).connect(&server.url()).await.unwrap();
    sqlx::raw_sql("CREATE TABLE note (number BIGINT)").execute(&pool).await.unwrap();
    let locks = LockManager::builder().lease(LEASE).connect_postgres(&pool).await.unwrap();
    let guard = locks.mutex("k").acquire().await.unwrap();
    let handle = |number| {
        let (pool, locks) = (pool.clone(), locks.clone());
        async move {
            let mut transaction = pool.begin().await.unwrap();
            let guard = locks.mutex("k").wait(SLACK * 2).acquire().await.unwrap();
            let note = sqlx::query("INSERT INTO note VALUES ($1)").bind(number);
            note.execute(&mut *transaction).await.unwrap();
            transaction.commit().await.unwrap();
            guard.release().await.unwrap();
        }
    };
    let handlers: JoinSet<_> = (0..HANDLERS).map(handle).collect();
    eventually(async || pool.size() == 2 && pool.num_idle() == 0, SLACK).await;
    tokio::time::sleep(LEASE * 2).await;
    assert!(!guard.is_lost(), "{guard:?}");
    guard.release().await.unwrap();
    timeout(SLACK, handlers.join_all()).await.expect("each gets its turn");
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM note").fetch_one(&pool).await.unwrap();
    assert_eq!(count, HANDLERS);
    eventually(async || left_in_postgres(&pool).await.is_empty(), SLACK).await;
}
