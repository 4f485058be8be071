//! [`SqlServer`]: what the tests of locks in SQL need to know of a product, to run on each of them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{ConnectError, LockManager};
use sqlx::pool::PoolOptions;
use sqlx::{Connection, Database, Pool};

use crate::database_locks::nothing_is_left;
use crate::database_server::{LockServer, has, url};
use crate::mariadb::MariaDb;
use crate::postgres::Postgres;
use crate::sql_commit::{Notes, Place};
use crate::{DatabaseServer, PostgresServer};

/// A product whose servers have locks in SQL.
pub trait SqlServer: LockServer {
    /// The database as `sqlx` has it.
    type Database: Notes;

    /// The end of a statement that creates a database whose texts are Unicode.
    const UNICODE: &'static str;

    /// Selects the number of sessions that wait for a row.
    const WAITING: &'static str;

    /// Connects a manager with the options of a pool.
    fn connect_pool(pool: &Pool<Self::Database>, lease: Duration) -> impl Future<Output = LockManager>;
}

impl LockServer for Postgres {
    fn url_at(addr: SocketAddr) -> String {
        format!("postgres://test@{addr}/postgres")
    }

    async fn start_beside_a_busy_disk() -> PostgresServer {
        let server = PostgresServer::start();
        let pool = sqlx::PgPool::connect(&server.url()).await.unwrap();
        for statement in ["ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()"] {
            sqlx::query(statement).execute(&pool).await.unwrap();
        }
        server
    }

    fn writes(request: &[u8]) -> bool {
        request.contains(&b'{') || has(request, b"COMMIT\0")
    }

    async fn assert_nothing_is_left(server: &DatabaseServer<Self>, within: Duration) {
        nothing_is_left(&pool(server).await, within).await;
    }
}

impl SqlServer for Postgres {
    type Database = sqlx::Postgres;

    const UNICODE: &'static str = "";

    const WAITING: &'static str = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";

    async fn connect_pool(pool: &sqlx::PgPool, lease: Duration) -> LockManager {
        LockManager::builder().lease(lease).connect_postgres(pool).await.unwrap()
    }
}

impl LockServer for MariaDb {
    fn url_at(addr: SocketAddr) -> String {
        format!("mysql://root@{addr}/locks")
    }

    async fn start_beside_a_busy_disk() -> DatabaseServer<Self> {
        let settings = ["innodb_flush_method=nosync"];
        DatabaseServer::try_start_in(&std::env::temp_dir(), &settings).unwrap()
    }

    fn writes(request: &[u8]) -> bool {
        // One that writes a row alone is its own transaction.
        has(request, b"COMMIT") || has(request, b"UPDATE lock_records SET")
    }

    async fn assert_nothing_is_left(server: &DatabaseServer<Self>, within: Duration) {
        nothing_is_left(&pool(server).await, within).await;
    }
}

impl SqlServer for MariaDb {
    type Database = sqlx::MySql;

    const UNICODE: &'static str = "CHARACTER SET utf8mb4";

    const WAITING: &'static str = "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status \
                                   WHERE variable_name = 'Innodb_row_lock_current_waits'";

    async fn connect_pool(pool: &sqlx::MySqlPool, lease: Duration) -> LockManager {
        LockManager::builder().lease(lease).connect_mysql(pool).await.unwrap()
    }
}

/// Connects a pool to a server.
pub async fn pool<P: SqlServer>(server: &DatabaseServer<P>) -> Pool<P::Database> {
    Pool::connect(&url(server)).await.unwrap()
}

/// Makes a new database on a server, and returns its URL too.
pub async fn new_place<P: SqlServer>(server: &DatabaseServer<P>) -> (Place<P::Database>, String) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!("d{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let url = url(server);
    let mut session = <P::Database as Database>::Connection::connect(&url).await.unwrap();
    let create = format!("CREATE DATABASE {name} {}", P::UNICODE);
    P::Database::run(&mut session, &create).await.unwrap();
    let url = format!("{}/{name}", url.rsplit_once('/').unwrap().0);
    let pool = PoolOptions::new().max_connections(1).connect(&url).await.unwrap();
    (Place::new(available(&url).await, available(&url).await, pool).await, url)
}

/// Connects, even if a busy machine lets the session of an attempt be ended.
async fn available(url: &str) -> LockManager {
    for _ in 0..20 {
        match LockManager::connect(url).await {
            Err(ConnectError::Unavailable { .. }) => {}
            other => return other.unwrap(),
        }
    }
    panic!("{url} is not available");
}
