//! # An outbox worker in several instances
//!
//! A service writes events into a table, in the same transaction as the data that they are about.
//! Workers publish them to a broker, in order within each partition, and each event at least once.
//!
//! **Copy** `publish` and `save`. Each partition has a lock, so that workers share the work. The
//! position is stored with the fencing token, and a worker that has lost its lock is refused there.
//!
//! **Watch**
//! - If a worker dies or loses its lock between `push` and `save`, the next one publishes that
//!   event again. No lock can prevent this: consumers must ignore ids that they have seen.
//! - A worker must go on after an error. Here it ends, so that the program fails.
//! - A position works only if smaller ids become visible first. Concurrent transactions may commit
//!   in another order. Then mark each row as published instead.
//! - Tokens are below 2^53, so a column for 64-bit integers holds them.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use lock_runtime::{FencingToken, LockManager, distributed_lock};
use sqlx::sqlite::{SqlitePool, SqlitePoolOptions};
use tokio::{sync::Mutex, task::JoinSet};

const PARTITIONS: i64 = 3;
const EVENTS: usize = 60;
const TABLES: &str = "
    CREATE TABLE event (id INTEGER PRIMARY KEY, partition INTEGER);
    CREATE TABLE position (partition INTEGER PRIMARY KEY, last INTEGER, token INTEGER);
    WITH RECURSIVE n(id) AS (VALUES (1) UNION ALL SELECT id + 1 FROM n WHERE id < 60)
        INSERT INTO event SELECT id, id % 3 FROM n;
    INSERT INTO position SELECT DISTINCT partition, 0, 0 FROM event;";
/// The ids of the events that were published; it stands for a broker.
type Broker = Arc<Mutex<Vec<i64>>>;

struct Worker {
    locks: LockManager,
    database: SqlitePool,
    broker: Broker,
}

impl Worker {
    /// Publishes what waits in a partition; `None` if another worker is at it.
    #[distributed_lock(key = "outbox:<partition>", manager = self.locks, wait = "none", on_busy = skip, guard = held)]
    async fn publish(&self, partition: i64) -> Result<Option<u32>> {
        let (token, mut count) = (held.fencing_token(), 0);
        self.save(partition, 0, token).await?; // from now on, earlier holders are refused
        // No more than ten, so that the other partitions have their turn.
        for _ in 0..10 {
            let Some(id) = self.next(partition).await? else { break };
            self.broker.lock().await.push(id);
            self.save(partition, id, token).await?;
            count += 1;
        }
        Ok(Some(count))
    }

    async fn next(&self, partition: i64) -> Result<Option<i64>> {
        let select = "SELECT min(e.id) FROM event e JOIN position p ON p.partition = e.partition \
                      WHERE e.partition = ? AND e.id > p.last";
        Ok(sqlx::query_scalar(select).bind(partition).fetch_one(&self.database).await?)
    }

    /// Stores the position, unless a later holder of the lock has stored one.
    async fn save(&self, partition: i64, last: i64, token: FencingToken) -> Result<()> {
        let update =
            "UPDATE position SET last = max(last, ?), token = ?3 WHERE partition = ?2 AND token <= ?3";
        let update = sqlx::query(update).bind(last).bind(partition).bind(token.get().cast_signed());
        let saved = update.execute(&self.database).await?.rows_affected() == 1;
        ensure!(
            saved,
            "partition {partition}: a later holder of the lock has stored a position, or there is none"
        );
        Ok(())
    }

    /// Goes round the partitions until all events are published.
    async fn work(&self) -> Result<()> {
        while self.broker.lock().await.len() < EVENTS {
            for partition in 0..PARTITIONS {
                self.publish(partition).await?;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("LOCK_URL").unwrap_or_else(|_| "memory:outbox".to_owned());
    let (locks, broker) = (LockManager::connect(&url).await?, Broker::default());
    // A database in memory lives as long as its only connection.
    let database = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
    sqlx::raw_sql(TABLES).execute(&database).await?;
    // The token of a worker that is then paused for so long that the others do its work.
    let old = locks.mutex("outbox:0").acquire().await?.fencing_token();
    let mut workers = JoinSet::new();
    for _ in 0..3 {
        let locks = LockManager::connect(&url).await?;
        let worker = Worker { locks, database: database.clone(), broker: Arc::clone(&broker) };
        workers.spawn(async move { worker.work().await });
    }
    workers.join_all().await.into_iter().collect::<Result<()>>()?;
    let published = broker.lock().await.clone();
    let of = |partition| published.iter().filter(move |id| *id % PARTITIONS == partition);
    let in_order = |partition| of(partition).is_sorted_by(|a, b| a < b);
    let is_good = published.len() == EVENTS && (0..PARTITIONS).all(in_order);
    ensure!(is_good, "not each once and in order: {published:?}");
    println!("three workers have published {EVENTS} events, each once and in order");
    let late = Worker { locks, database, broker };
    match late.save(0, 1, old).await {
        Err(refused) => println!("the late worker was refused: {refused}"),
        Ok(()) => bail!("the late worker has stored a position"),
    }
    Ok(late.locks.shutdown(Duration::from_secs(5)).await?)
}
