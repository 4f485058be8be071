//! # A schema migration when several instances start
//!
//! A deployment starts three instances at once. One must change the tables, and the others must not
//! serve requests before it is done.
//!
//! **Copy** `migrate`, and call it before the server listens. The first instance changes the tables
//! under the lock. The others wait for the lock, read the version, and find nothing to do.
//!
//! **Watch**
//! - Read the version under the lock, and not before it.
//! - Migrate in one transaction, which is rolled back if the instance dies or loses its lock. In a
//!   database that can't do that, make each step so that it may run again.
//! - The lock is renewed while a migration runs. The others must wait for longer than the longest
//!   one takes, so set `wait` and the start-up probe accordingly. If the store fails, it is asked
//!   for that long, too: log something before you wait.
//! - Instances of the previous version still run without this lock. They must work with the new
//!   tables, too.
#![allow(clippy::print_stdout)]

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use lock_runtime::{LockManager, distributed_lock};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

/// The version of the tables that this program needs.
const VERSION: i64 = 2;

struct Instance {
    locks: LockManager,
    database: SqlitePool,
}

impl Instance {
    async fn start(file: &Path) -> Result<Self> {
        // Managers on `memory:NAME` share their locks, as processes on one Redis server do.
        let url = std::env::var("LOCK_URL").unwrap_or_else(|_| "memory:migration".to_owned());
        let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
        Ok(Self {
            locks: LockManager::connect(url).await?,
            database: SqlitePool::connect_with(options).await?,
        })
    }

    /// Brings the tables to `VERSION`. Returns whether this instance has done it.
    #[distributed_lock(key = "migration:shop", manager = self.locks, wait = "5m")]
    async fn migrate(&self) -> Result<bool> {
        let mut changes = self.database.begin().await?;
        let version: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut *changes).await?;
        if version >= VERSION {
            return Ok(false);
        }
        if version < 1 {
            sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY)").execute(&mut *changes).await?;
        }
        if version < 2 {
            sqlx::query("ALTER TABLE orders ADD COLUMN status TEXT").execute(&mut *changes).await?;
        }
        sqlx::query(&format!("PRAGMA user_version = {VERSION}")).execute(&mut *changes).await?;
        changes.commit().await?;
        Ok(true)
    }

    /// Does what a service does at its start, and uses the new column.
    async fn open(&self, id: i64) -> Result<bool> {
        let migrated = self.migrate().await?;
        println!("instance {id} {}", if migrated { "has changed the tables" } else { "found them changed" });
        sqlx::query("INSERT INTO orders (id, status) VALUES (?, 'open')")
            .bind(id)
            .execute(&self.database)
            .await?;
        Ok(migrated)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("shop.sqlite");
    let (first, second, third) =
        (Instance::start(&file).await?, Instance::start(&file).await?, Instance::start(&file).await?);
    let (one, two, three) = tokio::try_join!(first.open(1), second.open(2), third.open(3))?;
    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&first.database).await?;
    for instance in [first, second, third] {
        instance.database.close().await;
        instance.locks.shutdown(Duration::from_secs(5)).await?;
    }
    match ([one, two, three].into_iter().filter(|migrated| *migrated).count(), orders) {
        (1, 3) => Ok(()),
        (count, orders) => bail!("{count} have migrated, and {orders} of 3 work"),
    }
}
