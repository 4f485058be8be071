//! Standbys: one that is missing, and one that is promoted.

use std::sync::Arc;
use std::time::Instant;

use lock_core::store::{Acquired, LockStore, StoreErrorKind, Withdrawn};
use sqlx::{Connection, Executor, PgConnection, Row};

use super::*;
use crate::SqlStore;
use crate::tests::rows::{SECOND, granted, item, released, request};

/// Maximum time for something that needs none, on a busy machine.
const SLACK: Duration = Duration::from_secs(20);

fn store(server: &PostgresServer) -> Arc<SqlStore> {
    postgres(server.url().parse().unwrap(), &settings(""))
}

async fn session(server: &PostgresServer) -> PgConnection {
    PgConnection::connect(&server.url()).await.unwrap()
}

/// Changes a setting of the running server.
async fn set(session: &mut PgConnection, setting: &str, value: &str) {
    session.execute(&*format!("ALTER SYSTEM SET {setting} = '{value}'")).await.unwrap();
    session.execute("SELECT pg_reload_conf()").await.unwrap();
    until(session, &format!("SELECT current_setting('{setting}') = '{value}'")).await;
}

/// Waits until this is true.
async fn until(session: &mut PgConnection, query: &str) {
    let deadline = Instant::now() + SLACK;
    while !session.fetch_one(query).await.unwrap().get::<bool, _>(0) {
        assert!(Instant::now() < deadline, "{query}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn token(store: &SqlStore, key: &str, owner: &str) -> u64 {
    match store.acquire(request(&[key], owner, 60 * SECOND, 5 * SECOND)).await.unwrap() {
        Acquired::Granted(mut granted) => granted.tokens[0].take().unwrap().get(),
        Acquired::Busy(busy) => panic!("{key}: {busy:?}"),
    }
}

const WAITS: &str = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'";

/// Lets commits wait for a standby that is missing.
async fn demand_a_standby(server: &PostgresServer, operator: &mut PgConnection) {
    set(operator, "synchronous_standby_names", "nobody").await;
    // Another process of the server puts it into force, a moment later.
    let mut probe = session(server).await;
    let commits = tokio::spawn(async move {
        while probe.execute("COMMENT ON DATABASE postgres IS 'probe'").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    until(operator, WAITS).await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    operator.execute(end).await.unwrap();
    commits.await.unwrap();
    until(operator, &WAITS.replace('>', "=")).await;
}

/// The server commits, and then waits for a standby that may never come: the outcome is unknown,
/// and others see nothing of it before the wait is over.
#[tokio::test]
async fn a_commit_that_waits_for_a_standby_is_unknown_and_in_nobodys_way_afterwards() {
    let server = PostgresServer::start();
    let (one, other, mut operator) = (store(&server), store(&server), session(&server).await);
    assert!(granted(&one, "warm", "owner:1").await);
    demand_a_standby(&server, &mut operator).await;

    let start = Instant::now();
    let waits = request(&["a"], "owner:1", 60 * SECOND, SECOND);
    let error = one.acquire(Arc::clone(&waits)).await.unwrap_err();
    assert!(error.outcome_unknown() && error.kind() == StoreErrorKind::Unanswered, "{error}");
    assert!(start.elapsed() >= SECOND && start.elapsed() < SECOND + SLACK, "{error}");
    until(&mut operator, WAITS).await;
    // Nobody else gets it meanwhile, nor an answer.
    let rival = request(&["a"], "owner:2", 60 * SECOND, 2 * SECOND);
    let error = other.acquire(Arc::clone(&rival)).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let error = one.withdraw(request(&["a"], "owner:1", SECOND, SECOND)).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    // Each key leaves a session that waits, as documented.
    let error = one.acquire(request(&["b"], "owner:1", 3 * SECOND, SECOND / 4)).await.unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    until(&mut operator, &WAITS.replace("> 0", "= 2")).await;

    set(&mut operator, "synchronous_standby_names", "").await;
    until(&mut operator, &WAITS.replace('>', "=")).await;
    // The first grant was made, and once.
    assert!(!granted(&other, "a", "owner:3").await);
    assert_eq!(other.withdraw(rival).await.unwrap(), Withdrawn::Settled);
    assert_eq!(one.withdraw(waits).await.unwrap(), Withdrawn::Settled);
    assert!(granted(&other, "a", "owner:4").await && released(&other, "a", "owner:4").await);
    assert!(released(&one, "warm", "owner:1").await);
}

/// The server warns that the transaction is committed here only, and says nothing else.
#[tokio::test]
async fn a_session_that_is_ended_while_it_waits_for_a_standby_is_no_answer() {
    let server = PostgresServer::start();
    let (store, mut operator) = (store(&server), session(&server).await);
    assert!(granted(&store, "warm", "owner:1").await);
    demand_a_standby(&server, &mut operator).await;
    for (keys, how) in [(&["a"][..], "terminate"), (&["b", "c"], "terminate"), (&["d"], "cancel")] {
        let call = tokio::spawn(store.acquire(request(keys, "owner:1", 60 * SECOND, 60 * SECOND)));
        until(&mut operator, WAITS).await;
        let end = format!("SELECT pg_{how}_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
        operator.execute(&*end).await.unwrap();
        match call.await.unwrap() {
            // The server says that it was done, as documented.
            Ok(Acquired::Granted(_)) => assert_eq!(how, "cancel"),
            Ok(Acquired::Busy(busy)) => panic!("{busy:?}"),
            Err(error) => {
                assert_eq!(how, "terminate");
                assert_eq!(error.kind(), StoreErrorKind::Unanswered, "{error}");
            }
        }
    }
}

/// It has not heard of the last grant. Its clock goes on, and so do the tokens.
#[tokio::test]
async fn a_promoted_standby_that_was_not_waited_for_forgets_the_last_grants() {
    let mut primary = PostgresServer::start();
    let old = store(&primary);
    let early = token(&old, "early", "owner:1").await;
    let standby = primary.start_standby();
    let mut operator = session(&standby).await;
    let error = store(&standby).check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
    until(&mut operator, "SELECT count(*) = 1 FROM pg_stat_wal_receiver").await;
    set(&mut operator, "primary_conninfo", "").await;
    until(&mut operator, "SELECT count(*) = 0 FROM pg_stat_wal_receiver").await;

    let late = token(&old, "late", "owner:1").await;
    assert!(released(&old, "early", "owner:1").await);
    primary.kill();
    until(&mut operator, "SELECT pg_promote()").await;
    let new = store(&standby);
    new.check().await.unwrap();
    // The release is lost, and so is the grant.
    assert!(!granted(&new, "early", "owner:2").await);
    let again = token(&new, "late", "owner:2").await;
    assert!(again > late, "{again} after {late}");
    assert!(new.force_release(item("early", "x").key).await.unwrap());
    let next = token(&new, "early", "owner:2").await;
    assert!(next > early, "{next} after {early}");
}

/// Every grant that was answered is there.
#[tokio::test]
async fn a_promoted_standby_that_was_waited_for_knows_every_grant() {
    let mut primary = PostgresServer::start();
    let old = store(&primary);
    assert!(granted(&old, "warm", "owner:1").await);
    let standby = primary.start_standby();
    set(&mut session(&primary).await, "synchronous_standby_names", "*").await;
    let taker = tokio::spawn(async move {
        let mut keys = Vec::new();
        loop {
            let key = format!("k{}", keys.len());
            match old.acquire(request(&[&key], "owner:1", 600 * SECOND, SECOND)).await {
                Ok(answer) => assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}"),
                Err(_) => return keys,
            }
            keys.push(key);
        }
    });
    tokio::time::sleep(SECOND).await;
    primary.kill();
    let keys = taker.await.unwrap();
    assert!(keys.len() > 10, "{}", keys.len());
    until(&mut session(&standby).await, "SELECT pg_promote()").await;
    let new = store(&standby);
    for key in keys {
        assert!(!granted(&new, &key, "owner:2").await, "{key}");
    }
}
