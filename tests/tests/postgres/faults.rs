//! Servers and clients of PostgreSQL that are killed or stopped, and connections that are cut.

use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::database_faults;
use lock_tests::database_server::LockServer;
use lock_tests::postgres::Postgres;
use sqlx::PgPool;

database_faults!(Postgres);

/// A grant is durable whatever the database's default is. With that default, others lose commits:
/// so the crash is one that can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_loses_no_grant_although_the_database_does_not_wait_for_the_disk() {
    let mut server = Postgres::start_beside_a_busy_disk().await;
    let run = async |pool: &PgPool, text: &str| sqlx::raw_sql(text).execute(pool).await.map(drop).unwrap();
    let pool = PgPool::connect(&server.url()).await.unwrap();
    run(&pool, "CREATE TABLE note (number INT)").await;
    run(&pool, "ALTER DATABASE postgres SET synchronous_commit = off").await;
    // Nothing is written in the background for ten seconds.
    run(&pool, "ALTER SYSTEM SET wal_writer_delay = '10s'").await;
    let (mut lost, mut guards) = (0, Vec::new());
    tokio::task::block_in_place(|| server.restart());
    for crash in 0..3 {
        let pool = PgPool::connect(&server.url()).await.unwrap();
        let builder = LockManager::builder().lease(Duration::from_secs(600));
        let locks = builder.connect(server.url()).await.unwrap();
        guards.push(locks.mutex(format!("k{crash}")).acquire().await.unwrap());
        sqlx::query("INSERT INTO note VALUES ($1)").bind(crash).execute(&pool).await.unwrap();
        if crash == 0 {
            // Our commits take those before them to the disk.
            guards.push(locks.mutex("last").acquire().await.unwrap());
        }
        tokio::task::block_in_place(|| server.restart());
        let pool = PgPool::connect(&server.url()).await.unwrap();
        let find = sqlx::query_scalar("SELECT count(*) FROM note WHERE number = $1").bind(crash);
        let found: i64 = find.fetch_one(&pool).await.unwrap();
        assert!(found == 1 || crash > 0);
        lost += 1 - found;
        let other = LockManager::connect(server.url()).await.unwrap();
        for guard in &guards {
            let error = other.mutex(guard.key()).no_wait().acquire().await.unwrap_err();
            assert!(error.is_busy(), "{guard:?}: {error:?}");
        }
    }
    assert!(lost > 0, "no commit was lost in two crashes");
}
