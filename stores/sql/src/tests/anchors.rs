//! Mistakes that other locks in databases make, tried here: see `docs/book/src/rivals.md`.

use std::sync::Arc;

use lock_core::store::{LockStore, RenewItem, RenewRequest, Renewed};
use sqlx::{Connection, Executor, MySqlConnection, PgConnection, SqliteConnection};

use super::*;
use crate::SqlStore;
use crate::tests::rows::{SECOND, granted, item, released};

/// ShedLock never inserts a name twice, so a row that was deleted stops every process that knows
/// it.
async fn a_deleted_row_is_made_again_by_a_process_that_knows_it(
    store: &SqlStore,
    delete: impl AsyncFn(&'static str),
) {
    assert!(granted(store, "held", "owner:1").await);
    assert!(granted(store, "free", "owner:1").await && released(store, "free", "owner:1").await);
    delete("DELETE FROM lock_records").await;
    // Its holder is told, and does not bring it back.
    let items = vec![RenewItem::hold(item("held", "owner:1"), 60 * SECOND)];
    let renewal = Arc::new(RenewRequest { items, timeout: 5 * SECOND });
    assert_eq!(store.renew(renewal).await.unwrap(), [Renewed::Gone]);
    assert!(!released(store, "held", "owner:1").await);
    for key in ["held", "free"] {
        assert!(granted(store, key, "owner:2").await && !granted(store, key, "owner:3").await, "{key}");
        assert!(released(store, key, "owner:2").await, "{key}");
    }
}

/// MySQL's collations ignore case and blanks at the end.
async fn names_that_look_alike_are_different_locks(store: &SqlStore) {
    let names =
        ["order", "Order", "order ", " order", "o\u{308}rder", "\u{f6}rder", "order%", "order_", "order'"];
    for name in names {
        assert!(granted(store, name, "owner:1").await, "{name:?}");
    }
    for name in names {
        assert!(!granted(store, name, "owner:2").await && released(store, name, "owner:1").await, "{name:?}");
    }
}

mod on_sqlite {
    use super::*;

    fn store() -> (tempfile::TempDir, Arc<SqlStore>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
        (folder, sqlite(options, &settings("")))
    }

    #[tokio::test]
    async fn a_deleted_row_is_made_again() {
        let (folder, store) = store();
        let path = folder.path().join("locks.db").display().to_string();
        a_deleted_row_is_made_again_by_a_process_that_knows_it(&store, async |text| {
            SqliteConnection::connect(&path).await.unwrap().execute(text).await.unwrap();
        })
        .await;
    }

    #[tokio::test]
    async fn names_that_look_alike_are_different() {
        names_that_look_alike_are_different_locks(&store().1).await;
    }
}

/// Runs them on one kind of server; `west` and `east` set the time zone of later sessions.
macro_rules! on_server {
    ($module:ident, $server:ty, $open:ident, $session:ty, west: $west:literal, east: $east:literal) => {
        mod $module {
            use super::*;

            fn store(server: &$server) -> Arc<SqlStore> {
                $open(server.url().parse().unwrap(), &settings(""))
            }

            #[tokio::test]
            async fn a_deleted_row_is_made_again() {
                let server = <$server>::start();
                let url = server.url();
                a_deleted_row_is_made_again_by_a_process_that_knows_it(&store(&server), async |text| {
                    <$session>::connect(&url).await.unwrap().execute(text).await.unwrap();
                })
                .await;
            }

            #[tokio::test]
            async fn names_that_look_alike_are_different() {
                let server = <$server>::start();
                names_that_look_alike_are_different_locks(&store(&server)).await;
            }

            #[tokio::test]
            async fn sessions_of_different_time_zones_agree() {
                let server = <$server>::start();
                let mut operator = <$session>::connect(&server.url()).await.unwrap();
                operator.execute($west).await.unwrap();
                let west = store(&server);
                assert!(granted(&west, "a", "owner:1").await);
                operator.execute($east).await.unwrap();
                let east = store(&server);
                assert!(!granted(&east, "a", "owner:2").await);
                let left = east.status(item("a", "x").key).await.unwrap().remaining.unwrap();
                assert!(left > 30 * SECOND && left <= 61 * SECOND, "{left:?}");
                assert!(released(&west, "a", "owner:1").await && granted(&east, "a", "owner:2").await);
            }
        }
    };
}

// ShedLock writes the time of the session into a column that MySQL converts.
on_server!(on_mariadb, MariaDbServer, mysql, MySqlConnection,
    west: "SET GLOBAL time_zone = '-08:00'", east: "SET GLOBAL time_zone = '+09:00'");

// Java's times without a zone are those of the process.
on_server!(on_postgres, PostgresServer, postgres, PgConnection,
    west: "ALTER DATABASE postgres SET timezone = 'America/Los_Angeles'",
    east: "ALTER DATABASE postgres SET timezone = 'Asia/Tokyo'");
