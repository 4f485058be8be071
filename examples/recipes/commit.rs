//! # A commit that needs its lock
//!
//! A worker reads a row, works on it for a while, and writes the result. It may be paused meanwhile
//! for longer than its lease, or an operator takes its lock away. Then others have got the lock,
//! and the late write must not happen.
//!
//! **Copy** `write`. The locks are in the same PostgreSQL, MariaDB or SQLite database as the row.
//! The database commits the transaction only if the lock is held at that moment.
//!
//! **Watch**
//! - Begin the transaction under the lock, and keep it short. Work first, then write.
//! - After `NotHeld` or `Lost`, start again under a new lock. After `Conflict`, repeat the
//!   transaction. After `Unknown`, look whether it was committed.
//! - All programs that write the row must commit with `commit_if_held`.
#![allow(clippy::print_stdout)]

use anyhow::{Result, bail, ensure};
use lock_runtime::{CommitError, CommitIfHeld, LockGuard, LockManager};
use sqlx::{Executor, MySqlPool, PgPool, Pool, SqlitePool};

const KEY: &str = "account:7";

/// Writes the balance, if the lock is still held.
async fn write<D>(pool: &Pool<D>, guard: &LockGuard, balance: i64) -> Result<()>
where
    D: CommitIfHeld,
    for<'c> &'c mut D::Connection: Executor<'c, Database = D>,
{
    let mut tx = pool.begin().await?;
    tx.execute(format!("UPDATE recipe_account SET balance = {balance}").as_str()).await?;
    Ok(guard.commit_if_held(tx).await?)
}

/// Lets Ann pause under her lock, and Ben get it meanwhile. `balance` reads the row.
async fn play<D>(
    locks: [LockManager; 2],
    pool: &Pool<D>,
    balance: impl AsyncFn() -> Result<i64>,
) -> Result<()>
where
    D: CommitIfHeld,
    for<'c> &'c mut D::Connection: Executor<'c, Database = D>,
{
    pool.execute("DROP TABLE IF EXISTS recipe_account").await?;
    pool.execute("CREATE TABLE recipe_account (balance BIGINT)").await?;
    pool.execute("INSERT INTO recipe_account VALUES (100)").await?;
    // Managers of two processes.
    let [anns, bens] = locks;
    let ann = anns.mutex(KEY).acquire().await?;
    let before = balance().await?;
    println!("Ann reads {before}, wants 50, and is paused");

    // An operator believes that Ann is dead.
    ensure!(bens.force_release(KEY).await?, "Ann had the lock");
    let ben = bens.mutex(KEY).acquire().await?;
    write(pool, &ben, balance().await? - 30).await?;
    println!("Ben takes 30, and writes {}", balance().await?);
    ben.release().await?;

    // Her process has not heard of it yet.
    ensure!(!ann.is_lost(), "her lease of 30 s is not over");
    match write(pool, &ann, before - 50).await {
        Err(error) if matches!(error.downcast_ref(), Some(CommitError::NotHeld { .. })) => {
            println!("Ann wants to write {}: {error}", before - 50);
        }
        other => bail!("Ann's late write: {other:?}"),
    }
    drop(ann);

    let ann = anns.mutex(KEY).acquire().await?;
    write(pool, &ann, balance().await? - 50).await?;
    println!("Ann starts again, and writes {}", balance().await?);
    ann.release().await?;
    ensure!(balance().await? == 20, "80 of 100 were taken");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = format!("sqlite:{}", folder.path().join("shop.db").display());
    let url = std::env::var("LOCK_URL").unwrap_or(file);
    let locks = [LockManager::connect(&url).await?, LockManager::connect(&url).await?];
    const READ: &str = "SELECT balance FROM recipe_account";
    if url.starts_with("postgres") {
        let pool = PgPool::connect(&url).await?;
        play(locks, &pool, async || Ok(sqlx::query_scalar(READ).fetch_one(&pool).await?)).await
    } else if url.starts_with("mysql") {
        let pool = MySqlPool::connect(&url).await?;
        play(locks, &pool, async || Ok(sqlx::query_scalar(READ).fetch_one(&pool).await?)).await
    } else {
        ensure!(url.starts_with("sqlite:"), "only PostgreSQL, MariaDB and SQLite have transactions");
        let pool = SqlitePool::connect(&url).await?;
        play(locks, &pool, async || Ok(sqlx::query_scalar(READ).fetch_one(&pool).await?)).await
    }
}
