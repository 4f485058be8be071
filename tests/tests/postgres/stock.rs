//! Stocks in PostgreSQL.

use lock_runtime::LockManager;
use lock_runtime::segmented::StockError;
use lock_tests::PostgresServer;
use lock_tests::postgres::Postgres;
use lock_tests::stock_on_servers;
use lock_tests::stock_sql::stock;

stock_on_servers!(Postgres);

/// With a user who may create no table, a sale says what is missing; one who may use the tables
/// that somebody else has made needs no more.
#[tokio::test]
async fn a_user_without_rights_is_told_and_one_who_may_use_the_tables_needs_no_more() {
    let server = PostgresServer::start();
    let pool = sqlx::PgPool::connect(&server.url()).await.unwrap();
    let run = async |text: &'static str| {
        sqlx::raw_sql(text).execute(&pool).await.unwrap();
    };
    run("CREATE ROLE shop LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC").await;
    let owner = LockManager::connect(server.url()).await.unwrap();
    run("GRANT SELECT, INSERT, UPDATE, DELETE ON lock_records TO shop").await;
    let url = server.url().replace("test@", "shop@");
    let locks = LockManager::connect(url).await.unwrap();
    let error = stock(&locks, "few").initialize(10, 2).await.unwrap_err();
    let said = error.to_string();
    assert!(said.contains("permission denied for schema public; a user who may create tables"), "{said}");
    assert!(matches!(stock(&owner, "few").take("op", 1).await, Err(StockError::Missing { .. })));
    let error = stock(&locks, "few").initialize(10, 2).await.unwrap_err();
    assert!(error.to_string().contains("permission denied for table lock_stock"), "{error}");
    run("GRANT SELECT, INSERT, UPDATE, DELETE ON lock_stock, lock_stock_segment, lock_stock_operation TO shop").await;
    assert!(stock(&locks, "few").initialize(10, 2).await.unwrap());
    stock(&locks, "few").take("op", 7).await.unwrap();
    stock(&locks, "few").give_back("op").await.unwrap();
    assert!(!stock(&locks, "few").sweep(10).await.unwrap().more);
}
