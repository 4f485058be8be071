//! Tests of rows that strangers lock, and of pools whose connections all wait. Each starts its own
//! server. They need a runtime of several threads.

use std::time::Duration;

use lock_runtime::{LockGuard, LockManager};
use sqlx::pool::PoolOptions;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::database_locks::nothing_is_left;
use crate::database_server::url;
use crate::eventually;
use crate::sql_commit::Notes;
use crate::sql_server::{SqlServer, pool};

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
pub async fn rows_that_a_stranger_has_locked_cost_only_their_own_keys<P: SqlServer>() {
    let server = P::start_beside_a_busy_disk().await;
    let pool = pool(&server).await;
    let builder = || LockManager::builder().lease(LEASE).call_timeout(LEASE / 2);
    let (one, other) =
        (builder().connect(url(&server)).await.unwrap(), builder().connect(url(&server)).await.unwrap());
    let mut locked = take(&one, &["a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2"]).await;
    let free = locked.split_off(5);
    // MariaDB would lock more rows at its own level.
    let lock = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; BEGIN; \
                SELECT 1 FROM lock_records WHERE class = 'lock' AND name IN \
                ('lock:a0', 'lock:a1', 'lock:a2', 'lock:a3', 'lock:a4') FOR UPDATE";
    let mut stranger = pool.acquire().await.unwrap();

    // Short enough for another renewal: nobody loses anything.
    P::Database::run(&mut stranger, lock).await.unwrap();
    tokio::time::sleep(LEASE / 3).await;
    P::Database::run(&mut stranger, "ROLLBACK").await.unwrap();
    tokio::time::sleep(LEASE).await;
    assert!(locked.iter().chain(&free).all(|guard| !guard.is_lost()), "{locked:?} {free:?}");

    P::Database::run(&mut stranger, lock).await.unwrap();
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

    P::Database::run(&mut stranger, "ROLLBACK").await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    assert!(next.fencing_token() > locked[0].fencing_token());
    next.release().await.unwrap();
    assert!(locked.iter().all(LockGuard::is_lost));
    drop(locked);
    for guard in free {
        guard.release().await.unwrap();
    }
    nothing_is_left(&pool, LEASE + SLACK).await;
}

/// Renewals and releases have their own connections.
pub async fn handlers_that_wait_inside_transactions_hold_up_no_renewal_and_no_release<P: SqlServer>() {
    const HANDLERS: i64 = 5;
    let server = P::start_beside_a_busy_disk().await;
    let pool = PoolOptions::<P::Database>::new().max_connections(2).connect(&url(&server)).await.unwrap();
    let create = "CREATE TABLE note (number BIGINT)";
    P::Database::run(&mut *pool.acquire().await.unwrap(), create).await.unwrap();
    let locks = P::connect_pool(&pool, LEASE).await;
    let guard = locks.mutex("k").acquire().await.unwrap();
    let handle = |number| {
        let (pool, locks) = (pool.clone(), locks.clone());
        async move {
            let mut transaction = pool.begin().await.unwrap();
            let guard = locks.mutex("k").wait(SLACK * 2).acquire().await.unwrap();
            let note = format!("INSERT INTO note VALUES ({number})");
            P::Database::run(&mut transaction, &note).await.unwrap();
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
    let count = "SELECT COUNT(*) FROM note";
    let count = P::Database::number(&mut *pool.acquire().await.unwrap(), count).await;
    assert_eq!(count, HANDLERS);
    nothing_is_left(&pool, SLACK).await;
}
