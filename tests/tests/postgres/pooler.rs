//! Locks in PostgreSQL behind PgBouncer, which gives each transaction another session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::database_locks::everything_works_between_two_managers;
use lock_tests::sql_commit::{self, Place};
use lock_tests::stock_model::check_on;
use lock_tests::stock_sql::{self, scenarios};
use lock_tests::{PgBouncer, PostgresServer};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Executor, PgConnection, Row};

fn servers() -> (PostgresServer, PgBouncer, String) {
    let server = PostgresServer::start();
    let pooler = PgBouncer::start(&server);
    let url = format!("{}?pooler=true", pooler.url());
    (server, pooler, url)
}

async fn connect(url: &str) -> LockManager {
    LockManager::connect(url).await.unwrap()
}

/// Connects to a pooler, for messages without arguments.
async fn session(url: &str) -> PgConnection {
    url.parse::<PgConnectOptions>().unwrap().extra_float_digits(None).connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn managers_with_and_without_a_pooler_count_exactly() {
    let (server, _pooler, url) = servers();
    let managers = [connect(&url).await, connect(&url).await, connect(&server.url()).await];
    let count = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for manager in managers.iter().flat_map(|manager| [manager; 4]) {
        let (mutex, count) = (manager.mutex("count"), Arc::clone(&count));
        tasks.push(tokio::spawn(async move {
            for _ in 0..25 {
                let guard = mutex.clone().acquire().await.unwrap();
                let before = count.load(Ordering::Relaxed);
                tokio::task::yield_now().await;
                count.store(before + 1, Ordering::Relaxed);
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(count.load(Ordering::Relaxed), 300);
}

#[tokio::test]
async fn managers_with_and_without_a_pooler_share_locks() {
    let (server, _pooler, url) = servers();
    let (pooled, direct) = (connect(&url).await, connect(&server.url()).await);
    everything_works_between_two_managers(&pooled, &direct).await;
    everything_works_between_two_managers(&direct, &pooled).await;
    everything_works_between_two_managers(&pooled, &connect(&url).await).await;
}

/// A poller is neither passed by those who hear of releases, nor does it leave them waiting.
#[tokio::test]
async fn a_mutex_goes_round_in_the_order_of_its_waiters() {
    let (server, _pooler, url) = servers();
    let (holder, pooled, direct) =
        (connect(&server.url()).await, connect(&url).await, connect(&server.url()).await);
    let held = holder.mutex("round").acquire().await.unwrap();
    let (tell, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for (index, manager) in [&pooled, &direct].into_iter().enumerate() {
        let (mutex, tell) = (manager.mutex("round"), tell.clone());
        tasks.push(tokio::spawn(async move {
            let guard = mutex.acquire().await.unwrap();
            tell.send((index, guard.fencing_token())).unwrap();
            guard.release().await.unwrap();
        }));
        while holder.status("round").await.unwrap().waiters < u64::try_from(index).unwrap() + 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    held.release().await.unwrap();
    let (first, second) = (order.recv().await.unwrap(), order.recv().await.unwrap());
    assert_eq!((first.0, second.0), (0, 1));
    assert!(first.1 < second.1);
    for task in tasks {
        task.await.unwrap();
    }
}

/// The database notes which settings each change of a row was made with.
const NOTES: &str = "
    CREATE TABLE notes (setting text);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO notes VALUES (concat_ws(' ', current_setting('transaction_isolation'),
            current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'),
            current_setting('statement_timeout'), current_setting('synchronous_commit'),
            current_setting('client_connection_check_interval', true)));
        RETURN NEW;
    END $$;
    CREATE TRIGGER noted BEFORE INSERT OR UPDATE ON lock_records FOR EACH ROW EXECUTE FUNCTION note();
    ALTER ROLE test SET synchronous_commit = off;
    ALTER ROLE test SET default_transaction_isolation = 'serializable';
    ALTER ROLE test SET statement_timeout = '55s'";

#[tokio::test]
async fn each_transaction_has_its_settings_and_leaves_none_behind() {
    let (server, pooler, url) = servers();
    let mut at_the_server = session(&server.url()).await;
    connect(&url).await;
    at_the_server.execute(NOTES).await.unwrap();
    // New sessions have the settings of the role.
    drop(pooler);
    let pooler = PgBouncer::start(&server);
    let (one, other) = {
        let url = format!("{}?pooler=true", pooler.url());
        (connect(&url).await, connect(&url).await)
    };
    everything_works_between_two_managers(&one, &other).await;
    let noted = at_the_server.fetch_all("SELECT DISTINCT setting FROM notes").await.unwrap();
    let noted: Vec<String> = noted.iter().map(|row| row.get(0)).collect();
    let look = if cfg!(target_os = "linux") { "200ms" } else { "0" };
    assert_eq!(noted, [format!("read committed 1s 1s 0 on {look}")]);

    // Its sessions take turns.
    let mut others = session(&pooler.url()).await;
    for _ in 0..20 {
        let left = others
            .fetch_one("SELECT current_setting('lock_timeout') || current_setting('statement_timeout')");
        assert_eq!(left.await.unwrap().get::<String, _>(0), "055s");
    }
}

#[tokio::test]
async fn transactions_are_committed_under_a_lock() {
    let (server, _pooler, url) = servers();
    // sqlx prepares statements, so the transactions are not behind the pooler.
    let pool = PgPoolOptions::new().max_connections(1).connect(&server.url()).await.unwrap();
    let place = Place::new(connect(&url).await, connect(&url).await, pool).await;
    sql_commit::what_is_not_held_is_not_committed(&place).await;
}

#[tokio::test]
async fn who_forgets_to_name_the_pooler_is_told() {
    let (server, pooler, _) = servers();
    let error = LockManager::connect(pooler.url()).await.unwrap_err();
    assert!(error.to_string().contains("pooler=true"), "{error}");

    // Many are set up so, and let it connect.
    for turns in [0, 1] {
        let more = format!("ignore_startup_parameters = extra_float_digits\nserver_round_robin = {turns}");
        let pooler = PgBouncer::start_with(&server, &more);
        for _ in 0..3 {
            let error = LockManager::connect(pooler.url()).await.unwrap_err();
            assert!(error.to_string().contains("pooler=true"), "{error}");
            // The pooler has more sessions then.
            let mut others = Vec::new();
            for _ in 0..4 {
                let mut other = session(&pooler.url()).await;
                other.execute("BEGIN").await.unwrap();
                others.push(other);
            }
        }
    }
}

#[tokio::test]
async fn a_pooler_of_sessions_needs_no_option() {
    let server = PostgresServer::start();
    let more = "ignore_startup_parameters = extra_float_digits\npool_mode = session\ndefault_pool_size = 40";
    let pooler = PgBouncer::start_with(&server, more);
    let managers = (connect(&pooler.url()).await, connect(&pooler.url()).await);
    everything_works_between_two_managers(&managers.0, &managers.1).await;
}

#[test]
fn a_stock_behind_a_pooler_does_what_the_model_does() {
    let ((_server, _pooler, url), runtime) = (servers(), tokio::runtime::Runtime::new().unwrap());
    let locks = runtime.block_on(connect(&url));
    check_on(&runtime, 40, |name| stock_sql::stock(&locks, name));
    runtime.block_on(scenarios::everything_at_once_adds_up(&url));
    runtime.block_on(scenarios::sales_from_several_segments_end_beside_small_ones(&url));
}
