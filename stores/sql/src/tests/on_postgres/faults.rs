//! Statements that meet other sessions, a server that dies, and missing rights.

use lock_core::store::{LockStore, RenewItem, RenewRequest, Renewed, StoreErrorKind, Withdrawn};
use lock_test_servers::wire::{Fate, Wire};
use sqlx::{Connection, Executor, PgConnection, Row};

use super::*;
use crate::SqlStore;
use crate::tests::rows::{SECOND, granted, item, released, request};

struct Server {
    server: PostgresServer,
}

impl Server {
    fn start() -> Self {
        Self { server: PostgresServer::start() }
    }

    fn store(&self) -> std::sync::Arc<SqlStore> {
        postgres(self.server.url().parse().unwrap(), &settings(""))
    }

    async fn session(&self) -> PgConnection {
        PgConnection::connect(&self.server.url()).await.unwrap()
    }
}

/// A statement may wait for a row for longer than its caller. The clock is read when it has the
/// row, so a request that is late by then takes nothing. Once for each way to write a row.
#[tokio::test]
async fn a_request_that_waited_too_long_for_a_row_takes_nothing() {
    let server = Server::start();
    let (store, other) = (server.store(), server.store());
    let mut stranger = server.session().await;
    for (keys, first) in [(&["absent"][..], false), (&["over"], true), (&["one", "two"], true)] {
        if first {
            for key in keys {
                // Another program's grant: `store` knows nothing of the rows.
                assert!(granted(&other, key, "owner:1").await && released(&other, key, "owner:1").await);
            }
        } else {
            assert!(granted(&other, "warm", "owner:1").await, "the table is there");
        }
        store.check().await.unwrap();
        stranger.execute("BEGIN").await.unwrap();
        let lock = match first {
            true => format!("SELECT 1 FROM lock_records WHERE name = '{}' FOR UPDATE", keys[0]),
            false => format!("INSERT INTO lock_records VALUES ('lock', '{}', 'x', 0, 0, 0, '{{}}')", keys[0]),
        };
        stranger.execute(lock.as_str()).await.unwrap();
        let late = request(keys, "owner:2", 60 * SECOND, SECOND / 4);
        let error = store.acquire(std::sync::Arc::clone(&late)).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        tokio::time::sleep(SECOND / 4).await;
        // The statement still waits, and gets the row now.
        stranger.execute(if first { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
        tokio::time::sleep(SECOND / 4).await;
        // The insert of a row looks at the clock before it waits for another insert. If that one is
        // undone, it is late, by no more than the time-out of locks: a withdrawal finds it.
        if !first {
            assert_eq!(store.withdraw(std::sync::Arc::clone(&late)).await.unwrap(), Withdrawn::Settled);
        }
        for key in keys {
            let status = other.status(item(key, "x").key).await.unwrap();
            assert!(!status.is_locked(), "{keys:?}: {status:?}");
        }
        assert_eq!(store.withdraw(late).await.unwrap(), Withdrawn::Settled);
    }
}

/// A grant that is under way when its request is withdrawn is found by the withdrawal, although
/// nobody else can see its row.
#[tokio::test]
async fn a_withdrawal_waits_for_what_is_in_flight() {
    let server = Server::start();
    let store = server.store();
    assert!(granted(&store, "warm", "owner:1").await);
    let mut stalled = server.session().await;
    let until = "9000000000000000";
    stalled.execute("BEGIN").await.unwrap();
    let insert = format!(
        "INSERT INTO lock_records VALUES ('lock', 'a', 'v', 7, {until}, {until}, '{{\"held\":[\"owner:2\",{until}]}}')"
    );
    stalled.execute(insert.as_str()).await.unwrap();
    let withdrawn = request(&["a"], "owner:2", SECOND, 5 * SECOND);
    withdrawn.stamp(lock_core::store::ServerTime::from_micros(1));
    let call = tokio::spawn(store.withdraw(withdrawn));
    tokio::time::sleep(SECOND / 4).await;
    assert!(!call.is_finished());
    stalled.execute("COMMIT").await.unwrap();
    assert_eq!(call.await.unwrap().unwrap(), Withdrawn::Settled);
    assert!(!store.status(item("a", "x").key).await.unwrap().is_locked());
}

/// A grant that a crash undoes would let two in.
#[tokio::test]
async fn commits_wait_for_the_disk_whatever_the_default() {
    let server = Server::start();
    let mut session = server.session().await;
    session.execute("ALTER DATABASE postgres SET synchronous_commit = off").await.unwrap();
    session
        .execute("ALTER DATABASE postgres SET default_transaction_isolation = serializable")
        .await
        .unwrap();
    let store = server.store();
    assert!(granted(&store, "a", "owner:1").await);
    session
        .execute(
            "CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             NEW.version := current_setting('synchronous_commit') || ' ' || \
             current_setting('transaction_isolation'); RETURN NEW; END $$",
        )
        .await
        .unwrap();
    session
        .execute("CREATE TRIGGER seen BEFORE INSERT OR UPDATE ON lock_records FOR EACH ROW EXECUTE FUNCTION seen()")
        .await
        .unwrap();
    assert!(released(&store, "a", "owner:1").await);
    let row = session.fetch_one("SELECT version FROM lock_records WHERE name = 'a'").await.unwrap();
    assert_eq!(row.get::<&str, _>(0), "on read committed");
}

#[tokio::test]
async fn a_server_that_was_killed_is_used_again() {
    let mut server = Server::start();
    let store = server.store();
    assert!(granted(&store, "a", "owner:1").await);
    server.server.kill();
    let error = store.acquire(request(&["b"], "owner:1", SECOND, SECOND)).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    server.server.restart();
    let mut failures = 0;
    while let Err(error) = store.acquire(request(&["b"], "owner:2", SECOND, 5 * SECOND)).await {
        failures += 1;
        assert!(error.is_transient() && failures < 5, "{error}");
    }
    assert!(!granted(&store, "a", "owner:2").await, "the grant has survived");
    assert!(released(&store, "a", "owner:1").await);
}

#[tokio::test]
async fn a_user_without_rights_is_told() {
    let server = Server::start();
    let mut session = server.session().await;
    session.execute("CREATE ROLE reader LOGIN").await.unwrap();
    session.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC").await.unwrap();
    let url = server.server.url().replace("test@", "reader@");
    let reader = postgres(url.parse().unwrap(), &settings(""));
    let error = reader.check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    server.store().check().await.unwrap();
    for rights in ["SELECT", "SELECT, INSERT", "SELECT, INSERT, UPDATE"] {
        session.execute(format!("GRANT {rights} ON lock_records TO reader").as_str()).await.unwrap();
        let error = reader.check().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{rights}: {error}");
    }
    session.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON lock_records TO reader").await.unwrap();
    reader.check().await.unwrap();
    assert!(granted(&reader, "a", "owner:1").await);
}

#[tokio::test]
async fn a_key_is_as_long_as_the_index_allows_or_refused() {
    let server = Server::start();
    let store = server.store();
    let name =
        |length: u64| -> String { (0..length).map(|at| char::from(b'a' + (at * at % 26) as u8)).collect() };
    assert!(granted(&store, &name(2500), "owner:1").await);
    let error = store.acquire(request(&[&name(2501)], "owner:1", SECOND, SECOND)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
}

/// Programs that start together make the table once.
#[tokio::test]
async fn the_table_is_made_by_many_at_once() {
    let server = Server::start();
    let stores: Vec<_> = (0..8).map(|_| server.store()).collect();
    let checks = stores.iter().map(|store| tokio::spawn(store.check()));
    for check in checks.collect::<Vec<_>>() {
        check.await.unwrap().unwrap();
    }
}

/// The call that has begun it is over by then.
#[tokio::test]
async fn a_slow_login_is_used_by_later_calls() {
    let server = Server::start();
    assert!(granted(&server.store(), "warm", "owner:1").await);
    let mut session = server.session().await;
    session.execute("ALTER SYSTEM SET pre_auth_delay = 2").await.unwrap();
    session.execute("SELECT pg_reload_conf()").await.unwrap();
    tokio::time::sleep(SECOND / 2).await;
    let store = server.store();
    let mut failures = 0;
    while let Err(error) = store.acquire(request(&["a"], "owner:1", 60 * SECOND, SECOND / 4)).await {
        failures += 1;
        assert!(error.is_transient() && failures < 100, "{error}");
    }
    assert!(failures > 0);
}

/// The address may lead to another server by then.
#[tokio::test]
async fn logins_that_hang_keep_nobody_from_another() {
    let wire = Wire::to(SERVER.addr());
    let url = format!("postgres://test@{}/postgres", wire.addr());
    let store = postgres(url.parse().unwrap(), &settings("hang:"));
    wire.set(|_| Fate::Lost);
    for _ in 0..6 {
        let error = store.acquire(request(&["a"], "owner:1", SECOND, SECOND / 5)).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(error.to_string().starts_with("PostgreSQL at 127.0.0.1:"), "{error}");
    }
    wire.set(|_| Fate::Passes);
    assert!(granted(&store, "a", "owner:1").await);
}

/// Its lock would be lost, although the manager has a connection for steps.
#[tokio::test]
async fn a_lock_is_renewed_although_no_other_connection_can_be_made() {
    let server = Server::start();
    server.store().check().await.unwrap();
    let mut session = server.session().await;
    session.execute("CREATE ROLE few LOGIN CONNECTION LIMIT 1").await.unwrap();
    session.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON lock_records TO few").await.unwrap();
    let url = server.server.url().replace("test@", "few@");
    let store = postgres(url.parse().unwrap(), &settings(""));
    assert!(granted(&store, "a", "owner:1").await);
    let items = vec![RenewItem::hold(item("a", "owner:1"), 60 * SECOND)];
    let renewed =
        store.renew(std::sync::Arc::new(RenewRequest { items, timeout: 5 * SECOND })).await.unwrap();
    assert_eq!(renewed, [Renewed::Held]);
    let error = store.check().await.unwrap_err();
    assert!(error.to_string().starts_with("PostgreSQL at 127.0.0.1:"), "{error}");
}
