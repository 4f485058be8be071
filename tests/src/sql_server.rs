//! [`SqlServer`]: what the tests of locks need to know of a product, to run on each of them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{ConnectError, LockManager};
use sqlx::pool::PoolOptions;
use sqlx::{Connection, Database, Pool};

use crate::mariadb::MariaDb;
use crate::postgres::Postgres;
use crate::sql_commit::{Notes, Place};
use crate::sql_locks::nothing_is_left;
use crate::{DatabaseServer, PostgresServer, Product};

/// A product whose servers have locks.
pub trait SqlServer: Product {
    /// The database as `sqlx` has it.
    type Database: Notes;

    /// The end of a statement that creates a database whose texts are Unicode.
    const UNICODE: &'static str;

    /// Selects the number of sessions that wait for a row.
    const WAITING: &'static str;

    /// Returns the URL of the server behind this address, for the user who may do everything.
    fn url_at(addr: SocketAddr) -> String;

    /// Starts a server that leaves what it writes to the system's cache. A kill of the server loses
    /// nothing of that, and a busy disk does not end leases.
    fn start_beside_a_busy_disk() -> impl Future<Output = DatabaseServer<Self>>;

    /// Whether this request of a client writes.
    fn writes(request: &[u8]) -> bool;

    /// Connects a manager with the options of a pool.
    fn connect_pool(pool: &Pool<Self::Database>, lease: Duration) -> impl Future<Output = LockManager>;
}

impl SqlServer for Postgres {
    type Database = sqlx::Postgres;

    const UNICODE: &'static str = "";

    const WAITING: &'static str = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";

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

    async fn connect_pool(pool: &sqlx::PgPool, lease: Duration) -> LockManager {
        LockManager::builder().lease(lease).connect_postgres(pool).await.unwrap()
    }
}

impl SqlServer for MariaDb {
    type Database = sqlx::MySql;

    const UNICODE: &'static str = "CHARACTER SET utf8mb4";

    const WAITING: &'static str = "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status \
                                   WHERE variable_name = 'Innodb_row_lock_current_waits'";

    fn url_at(addr: SocketAddr) -> String {
        format!("mysql://root@{addr}/locks")
    }

    async fn start_beside_a_busy_disk() -> DatabaseServer<Self> {
        let settings = ["innodb_flush_method=nosync"];
        DatabaseServer::try_start_in(&std::env::temp_dir(), &settings).unwrap()
    }

    fn writes(request: &[u8]) -> bool {
        has(request, b"COMMIT")
    }

    async fn connect_pool(pool: &sqlx::MySqlPool, lease: Duration) -> LockManager {
        LockManager::builder().lease(lease).connect_mysql(pool).await.unwrap()
    }
}

fn has(request: &[u8], text: &[u8]) -> bool {
    request.windows(text.len()).any(|part| part == text)
}

/// Returns the URL of a server, for the user who may do everything.
pub fn url<P: SqlServer>(server: &DatabaseServer<P>) -> String {
    P::url_at(server.addr())
}

/// Connects a pool to a server.
pub async fn pool<P: SqlServer>(server: &DatabaseServer<P>) -> Pool<P::Database> {
    Pool::connect(&url(server)).await.unwrap()
}

/// Connects a manager to a server. Its locks have this lease.
pub async fn connect<P: SqlServer>(server: &DatabaseServer<P>, lease: Duration) -> LockManager {
    LockManager::builder().lease(lease).connect(url(server)).await.unwrap()
}

/// Asserts that nobody holds or waits for anything on a server, after this time at the latest.
pub async fn assert_nothing_is_left<P: SqlServer>(server: &DatabaseServer<P>, within: Duration) {
    nothing_is_left(&pool(server).await, within).await;
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
