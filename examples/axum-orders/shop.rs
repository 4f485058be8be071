//! The orders and the stock, in SQLite. Nothing here protects a read and the write that follows it.

use std::path::Path;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lock_runtime::{FencingToken, LockError};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};

/// The only item, and how many of it are in stock at first.
const STOCK: (&str, u32) = ("console", 100_000);

/// One order, with the fencing token of the lock under which it was last written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) id: u32,
    pub(crate) items: u32,
    pub(crate) status: String,
    pub(crate) token: i64,
}

/// One item in stock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stock {
    pub(crate) item: String,
    pub(crate) available: u32,
    pub(crate) token: i64,
}

/// The error of a handler. `#[distributed_lock]` only requires `From<LockError>`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShopError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("there is no such {0}")]
    Unknown(&'static str),
    #[error("that is too many for one order")]
    TooMany,
    #[error("it is sold out")]
    SoldOut,
    /// The lock was lost, perhaps while the process was paused, and another holder has written
    /// since.
    #[error("another request has changed it; nothing was written, try again")]
    Stale,
    #[error("the database failed: {0}")]
    Database(#[from] sqlx::Error),
}

impl IntoResponse for ShopError {
    fn into_response(self) -> Response {
        let status = match self {
            // As the layer does: a status, `Retry-After`, `application/problem+json`.
            Self::Lock(error) => return error.into_response(),
            Self::Unknown(_) => StatusCode::NOT_FOUND,
            Self::TooMany => StatusCode::UNPROCESSABLE_ENTITY,
            Self::SoldOut => StatusCode::GONE,
            Self::Stale => StatusCode::SERVICE_UNAVAILABLE,
            Self::Database(error) => {
                eprintln!("error: {error}");
                return StatusCode::INTERNAL_SERVER_ERROR.into_response();
            }
        };
        (status, format!("{self}\n")).into_response()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Shop {
    pub(crate) pool: SqlitePool,
    work: Duration,
}

impl Shop {
    /// Opens the orders in a file, which several processes may share, or in memory.
    pub(crate) async fn open(database: Option<&Path>, work: Duration) -> Result<Self, ShopError> {
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
        for table in [
            "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, items INTEGER NOT NULL, status TEXT NOT NULL, \
             token INTEGER NOT NULL)",
            "CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, available INTEGER NOT NULL, token INTEGER NOT NULL)",
        ] {
            sqlx::query(table).execute(&pool).await?;
        }
        let insert = sqlx::query("INSERT OR IGNORE INTO stock VALUES (?, ?, 0)").bind(STOCK.0).bind(STOCK.1);
        insert.execute(&pool).await?;
        Ok(Self { pool, work })
    }

    /// Does the work of a handler between its read and its write: asks a price list, a warehouse, a
    /// bank.
    pub(crate) async fn work(&self) {
        tokio::time::sleep(self.work).await;
    }

    pub(crate) async fn order(&self, id: u32) -> Result<Option<Order>, ShopError> {
        let select = sqlx::query_as("SELECT items, status, token FROM orders WHERE id = ?").bind(id);
        let row = select.fetch_optional(&self.pool).await?;
        Ok(row.map(|(items, status, token)| Order { id, items, status, token }))
    }

    /// Replaces the order, unless it was written under a later lock. Equal tokens belong to the
    /// same lock.
    pub(crate) async fn write(&self, order: Order, token: FencingToken) -> Result<Order, ShopError> {
        let order = Order { token: number(token), ..order };
        let upsert = sqlx::query(
            "INSERT INTO orders VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (id) DO UPDATE SET items = ?2, status = ?3, token = ?4 WHERE token <= ?4",
        );
        let upsert = upsert.bind(order.id).bind(order.items).bind(&order.status).bind(order.token);
        match upsert.execute(&self.pool).await?.rows_affected() {
            0 => Err(ShopError::Stale),
            _ => Ok(order),
        }
    }

    pub(crate) async fn stock(&self, item: &str) -> Result<Stock, ShopError> {
        let select = sqlx::query_as("SELECT available, token FROM stock WHERE item = ?").bind(item);
        let (available, token) =
            select.fetch_optional(&self.pool).await?.ok_or(ShopError::Unknown("item"))?;
        Ok(Stock { item: item.to_owned(), available, token })
    }

    pub(crate) async fn write_stock(&self, stock: Stock, token: FencingToken) -> Result<Stock, ShopError> {
        let stock = Stock { token: number(token), ..stock };
        let update =
            sqlx::query("UPDATE stock SET available = ?2, token = ?3 WHERE item = ?1 AND token <= ?3");
        let update = update.bind(&stock.item).bind(stock.available).bind(stock.token);
        match update.execute(&self.pool).await?.rows_affected() {
            0 => Err(ShopError::Stale),
            _ => Ok(stock),
        }
    }
}

/// Tokens are below 2^53, so every database and every JSON parser can hold one.
fn number(token: FencingToken) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_write_under_an_old_lock_is_refused() {
        let shop = Shop::open(None, Duration::ZERO).await.unwrap();
        let order = |items| Order { id: 7, items, status: "open".to_owned(), token: 0 };
        shop.write(order(1), FencingToken::new(34)).await.unwrap();
        shop.write(order(2), FencingToken::new(34)).await.unwrap();
        let refused = shop.write(order(3), FencingToken::new(33)).await;
        assert!(matches!(refused, Err(ShopError::Stale)), "{refused:?}");
        assert_eq!(shop.order(7).await.unwrap().unwrap(), Order { token: 34, ..order(2) });

        let stock = shop.stock(STOCK.0).await.unwrap();
        shop.write_stock(stock.clone(), FencingToken::new(34)).await.unwrap();
        let refused = shop.write_stock(stock, FencingToken::new(33)).await;
        assert!(matches!(refused, Err(ShopError::Stale)), "{refused:?}");
    }

    /// The handler of a client that leaves is dropped like this.
    #[tokio::test]
    async fn a_query_that_is_dropped_at_any_moment_leaves_the_orders() {
        let shop = Shop::open(None, Duration::ZERO).await.unwrap();
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
