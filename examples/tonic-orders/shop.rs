//! The orders, in SQLite. Nothing here protects a read and the write that follows it.

use std::path::Path;
use std::time::Duration;

use lock_runtime::{FencingToken, LockManager};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use tonic::Status;

use crate::proto::Order;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS orders \
    (id INTEGER PRIMARY KEY, items INTEGER NOT NULL, status TEXT NOT NULL, token INTEGER NOT NULL)";

#[derive(Clone, Debug)]
pub(crate) struct Shop {
    pub(crate) locks: LockManager,
    pool: SqlitePool,
    work: Duration,
}

impl Shop {
    /// Opens the orders in a file, which several processes may share, or in memory.
    pub(crate) async fn open(
        locks: LockManager,
        database: Option<&Path>,
        work: Duration,
    ) -> Result<Self, sqlx::Error> {
        let options = SqliteConnectOptions::new().create_if_missing(true);
        let pool = match database {
            Some(file) => {
                // Not in WAL mode: a process that sets it up does not wait for another that does
                // the same.
                let options = options.filename(file);
                SqlitePoolOptions::new().max_connections(4).connect_with(options).await?
            }
            // A database in memory lives as long as its connection. The pool closes a connection
            // whose test query is dropped midway, as when a client leaves.
            None => {
                let one = SqlitePoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
                let one = one.test_before_acquire(false);
                one.connect_with(options.in_memory(true)).await?
            }
        };
        sqlx::query(TABLE).execute(&pool).await?;
        Ok(Self { locks, pool, work })
    }

    /// Does the work of a call between its read and its write: asks a price list, a warehouse, a
    /// bank.
    pub(crate) async fn work(&self) {
        tokio::time::sleep(self.work).await;
    }

    pub(crate) async fn order(&self, id: u32) -> Result<Option<Order>, Status> {
        let select = sqlx::query_as("SELECT items, status, token FROM orders WHERE id = ?").bind(id);
        let row: Option<(u32, String, i64)> =
            select.fetch_optional(&self.pool).await.map_err(|error| failed(&error))?;
        Ok(row.map(|(items, status, token)| Order { id, items, status, token: token.unsigned_abs() }))
    }

    /// Replaces the order, unless it was written under a later lock. Equal tokens belong to the
    /// same lock.
    pub(crate) async fn write(&self, order: Order, token: FencingToken) -> Result<Order, Status> {
        let order = Order { token: token.get(), ..order };
        let upsert = sqlx::query(
            "INSERT INTO orders VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (id) DO UPDATE SET items = ?2, status = ?3, token = ?4 WHERE token <= ?4",
        );
        // Tokens are below 2^53, so every database can hold one.
        let token = i64::try_from(order.token).unwrap_or(i64::MAX);
        let upsert = upsert.bind(order.id).bind(order.items).bind(&order.status).bind(token);
        match upsert.execute(&self.pool).await.map_err(|error| failed(&error))?.rows_affected() {
            0 => Err(Status::aborted("another call has changed the order; nothing was written")),
            _ => Ok(order),
        }
    }
}

fn failed(error: &sqlx::Error) -> Status {
    eprintln!("error: {error}");
    Status::internal("the database failed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_write_under_an_old_lock_is_refused() {
        let locks = LockManager::connect("memory:").await.unwrap();
        let shop = Shop::open(locks, None, Duration::ZERO).await.unwrap();
        let order = |items| Order { id: 7, items, status: "open".to_owned(), token: 0 };
        shop.write(order(1), FencingToken::new(34)).await.unwrap();
        shop.write(order(2), FencingToken::new(34)).await.unwrap();
        let refused = shop.write(order(3), FencingToken::new(33)).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Aborted);
        assert_eq!(shop.order(7).await.unwrap(), Some(Order { token: 34, ..order(2) }));
    }

    /// The handler of a client that leaves is dropped like this.
    #[tokio::test]
    async fn a_query_that_is_dropped_at_any_moment_leaves_the_orders() {
        let locks = LockManager::connect("memory:").await.unwrap();
        let shop = Shop::open(locks, None, Duration::ZERO).await.unwrap();
        for turns in 0..50 {
            tokio::select! {
                biased;
                _ = shop.order(7) => {}
                () = async { for _ in 0..turns { tokio::task::yield_now().await } } => {}
            }
            assert!(shop.order(7).await.is_ok(), "{turns}");
        }
    }
}
