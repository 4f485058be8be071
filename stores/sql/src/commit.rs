//! [`CommitIfHeld`]: commits a user's transaction only if a lock is still held.
//!
//! The last read of the transaction locks the rows of the lock, and only then looks at the
//! database's clock. Others can't take the lock before the commit: they need the rows.

use lock_core::store::StoreErrorKind;
use lock_core::{LockKey, OwnerId};
use lock_store_records::Records;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
use lock_store_records::{Class, Record, rows::time};
use sqlx::{Database, Transaction, TransactionManager};

#[cfg(any(feature = "mysql", feature = "sqlite"))]
use crate::plumbing::Row;
use crate::plumbing::{During, Fault, fault};
use crate::records::Sql;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
use crate::row::read_row;
use crate::statements::TABLE;

/// A lock as a transaction has to find it.
#[derive(Clone, Debug)]
pub struct Hold {
    /// The key.
    pub key: LockKey,
    /// The owner, which has no other grant.
    pub owner: OwnerId,
}

/// Why a transaction was not committed, or may not have been.
#[derive(Debug)]
pub enum Uncommitted {
    /// The lock of this key is not held any more.
    NotHeld(LockKey),
    /// The transaction sees no row of this lock. Either nobody holds it, or it is elsewhere.
    Absent(Hold),
    /// The transaction can't be committed in this way; the text says what to do.
    Misconfigured(String),
    /// Another transaction was in the way.
    Conflict(sqlx::Error),
    /// The database has refused for another reason.
    Refused(sqlx::Error),
    /// The connection broke before the answer came.
    Unknown(sqlx::Error),
}

/// A database whose transactions a guard can commit: `sqlx::Postgres` with the feature `postgres`,
/// `sqlx::MySql` with `mysql`, and `sqlx::Sqlite` with `sqlite`. It can't be implemented by others.
#[diagnostic::on_unimplemented(
    message = "a lock can't commit transactions of `{Self}`",
    note = "`commit_if_held` takes transactions of `sqlx::Postgres`, `sqlx::MySql` or `sqlx::Sqlite`, whose feature \
            of lock-runtime has to be on: `postgres`, `mysql` or `sqlite`"
)]
pub trait CommitIfHeld: Database + sealed::Sealed {
    /// Commits if all of these rows, which are in the order of their names, have their owners.
    #[doc(hidden)]
    fn commit_if_held(
        store: &Records<Sql>,
        rows: &[(String, Hold)],
        tx: Transaction<'_, Self>,
    ) -> impl Future<Output = Result<(), Problem>> + Send;
}

/// Why an attempt to commit has failed, as the database says.
#[doc(hidden)]
#[derive(Debug)]
pub enum Problem {
    /// The row of this lock has other holders.
    NotHeld(Hold),
    /// There is no row of this lock.
    Absent(Hold),
    /// The statement failed.
    Failed(sqlx::Error, During),
}

mod sealed {
    pub trait Sealed {}
    #[cfg(feature = "postgres")]
    impl Sealed for sqlx::Postgres {}
    #[cfg(feature = "mysql")]
    impl Sealed for sqlx::MySql {}
    #[cfg(feature = "sqlite")]
    impl Sealed for sqlx::Sqlite {}
}

/// Commits `tx` if all these locks are still held in its database. Otherwise it is rolled back.
///
/// # Errors
///
/// [`Uncommitted`].
pub async fn commit_if_held<D: CommitIfHeld>(
    store: &Records<Sql>,
    holds: Vec<Hold>,
    tx: Transaction<'_, D>,
) -> Result<(), Uncommitted> {
    if let Some(why) = refusal(store, &tx) {
        roll_back(tx).await;
        return Err(Uncommitted::Misconfigured(why));
    }
    let name = |hold: Hold| (hold.key.prefixed(store.prefix()).to_string(), hold);
    let mut rows: Vec<_> = holds.into_iter().map(name).collect();
    rows.sort_by(|(name, _), (other, _)| name.cmp(other));
    match D::commit_if_held(store, &rows, tx).await {
        Ok(()) => Ok(()),
        Err(Problem::NotHeld(hold)) => Err(Uncommitted::NotHeld(hold.key)),
        Err(Problem::Absent(hold)) => Err(Uncommitted::Absent(hold)),
        Err(Problem::Failed(error, during)) => Err(failed::<D>(error, during)),
    }
}

/// Rolls a transaction back, as far as that can be done.
pub async fn roll_back<D: Database>(tx: Transaction<'_, D>) {
    // A transaction that is dropped is rolled back later.
    let _ = tx.rollback().await;
}

/// Returns why this transaction can't be committed, if that is known beforehand.
fn refusal<D: CommitIfHeld>(store: &Records<Sql>, tx: &Transaction<'_, D>) -> Option<String> {
    let of_locks = store.store().database();
    if of_locks != D::NAME {
        return Some(format!(
            "the lock is in {of_locks}, and the transaction is of {}; begin the transaction in the database of the \
             locks",
            D::NAME
        ));
    }
    let depth = D::TransactionManager::get_transaction_depth(tx);
    (depth != 1).then(|| {
        "a savepoint can't be committed on its own; pass the outermost transaction, which `begin` on a pool or a \
         connection has returned"
            .to_owned()
    })
}

/// Returns the meaning of an error.
fn failed<D: CommitIfHeld>(error: sqlx::Error, during: During) -> Uncommitted {
    // A statement that was cancelled has ended before the commit.
    let is_cancelled =
        error.as_database_error().is_some_and(|error| error.code().as_deref() == Some("57014"));
    let during = if is_cancelled { During::Work } else { during };
    // A trigger of the user's may lack another table, or a right to one.
    let is_about_locks = error.to_string().contains(TABLE);
    match fault(D::NAME, &error, during) {
        Fault::Again(_) => Uncommitted::Conflict(error),
        Fault::NoTables(text) if is_about_locks => Uncommitted::Misconfigured(format!(
            "{text}; begin the transaction in the database (and schema) of the locks"
        )),
        Fault::Failed(store) if store.kind() == StoreErrorKind::Denied && is_about_locks => {
            Uncommitted::Misconfigured(format!(
                "{store}; the user of the transaction needs SELECT and UPDATE on `{TABLE}`"
            ))
        }
        Fault::Failed(store) if store.kind() == StoreErrorKind::Unanswered => Uncommitted::Unknown(error),
        _ => Uncommitted::Refused(error),
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use sqlx::postgres::{PgDatabaseError, Postgres};
    use sqlx::{Executor, Transaction};

    use super::{CommitIfHeld, Hold, Problem, Records, Sql, roll_back};
    use crate::plumbing::During;
    use crate::statements::{ABSENT, NOT_HELD, commit_if_held};

    impl CommitIfHeld for Postgres {
        /// Check and commit are one message. A client that is stopped can't stop between them, and
        /// keeps no row of a lock locked.
        async fn commit_if_held(
            _: &Records<Sql>,
            rows: &[(String, Hold)],
            mut tx: Transaction<'_, Self>,
        ) -> Result<(), Problem> {
            let wanted = rows.iter().map(|(name, hold)| vec![name.as_str(), hold.owner.as_str()]);
            let wanted = serde_json::Value::from_iter(wanted).to_string();
            let outcome = tx.execute(commit_if_held(&wanted).as_str()).await;
            // After a commit, another transaction has begun, which is empty.
            roll_back(tx).await;
            outcome.map(drop).map_err(|error| problem(rows, error))
        }
    }

    fn problem(rows: &[(String, Hold)], error: sqlx::Error) -> Problem {
        let said = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
        let hold =
            said.and_then(PgDatabaseError::detail).and_then(|of| rows.iter().find(|(name, _)| name == of));
        match (said.map(PgDatabaseError::code), hold) {
            (Some(NOT_HELD), Some((_, hold))) => Problem::NotHeld(hold.clone()),
            (Some(ABSENT), Some((_, hold))) => Problem::Absent(hold.clone()),
            _ => Problem::Failed(error, During::Commit),
        }
    }
}

/// Compares the locks that a transaction needs with the rows that it has found. The last of them
/// has the time.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
fn judge(rows: &[(String, Hold)], found: &[Row]) -> Result<(), Problem> {
    let failed = |error| Problem::Failed(error, During::Work);
    let now = found.last().map_or(Ok(0), |row| row.int(0)).map_err(failed)?;
    for (name, hold) in rows {
        let is_it = |row: &&Row| row.maybe_text(1).is_ok_and(|it| it.as_deref() == Some(name));
        let Some(row) = found.iter().find(is_it) else { return Err(Problem::Absent(hold.clone())) };
        let record = read_row(row, 2).map_err(failed)?.map(|found| found.row.record(Class::Lock));
        match record.transpose() {
            Ok(Some(Record::Lock(lock))) if lock.is_held_by(&hold.owner, time(now)) => {}
            Ok(_) => return Err(Problem::NotHeld(hold.clone())),
            Err(unreadable) => return Err(failed(sqlx::Error::Decode(unreadable.into()))),
        }
    }
    Ok(())
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use lock_store_records::Class;
    use sqlx::Transaction;
    use sqlx::sqlite::Sqlite;

    use super::{CommitIfHeld, Hold, Problem, Records, Sql, judge, roll_back};
    use crate::plumbing::{Arg, During, Row, query};
    use crate::statements::WRITE;
    use lock_store_records::rows::text_of;

    impl CommitIfHeld for Sqlite {
        /// From the first statement on, nobody else can write to the file, so nobody can take the
        /// lock.
        async fn commit_if_held(
            store: &Records<Sql>,
            rows: &[(String, Hold)],
            mut tx: Transaction<'_, Self>,
        ) -> Result<(), Problem> {
            match check(store, rows, &mut tx).await {
                Ok(()) => tx.commit().await.map_err(|error| Problem::Failed(error, During::Commit)),
                Err(problem) => {
                    roll_back(tx).await;
                    Err(problem)
                }
            }
        }
    }

    async fn check(
        store: &Records<Sql>,
        rows: &[(String, Hold)],
        tx: &mut Transaction<'_, Sqlite>,
    ) -> Result<(), Problem> {
        let failed = |error| Problem::Failed(error, During::Work);
        let names: Vec<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
        let args = [Arg::Text(text_of(Class::Lock)), Arg::Names(&names)];
        sqlx::query(WRITE).execute(&mut **tx).await.map_err(failed)?;
        let found =
            query!(&store.store().statements.look, args).fetch_all(&mut **tx).await.map_err(failed)?;
        let found: Vec<Row> = found.into_iter().map(|row| Row::Sqlite(Box::new(row))).collect();
        judge(rows, &found)
    }
}

#[cfg(feature = "mysql")]
mod mysql {
    use lock_store_records::Class;
    use sqlx::mysql::{MySql, MySqlDatabaseError};
    use sqlx::{Executor, Transaction};

    use super::{CommitIfHeld, Hold, Problem, Records, Sql, judge, roll_back};
    use crate::plumbing::{Arg, During, Row, filled, mysql_literal};
    use crate::statements::LOCK_HOLDS;
    use lock_store_records::rows::text_of;

    /// Gives the session its own limits back.
    macro_rules! restore {
        () => {
            "SET SESSION wait_timeout = @lock_idle, innodb_lock_wait_timeout = @lock_row, \
             lock_wait_timeout = @lock_table, sql_select_limit = @lock_most"
        };
    }

    /// Commits, and begins another transaction, which sqlx ends.
    const COMMIT: &str = concat!("COMMIT AND CHAIN NO RELEASE; ", restore!());

    /// The number of the error about a savepoint that is missing.
    const NO_SAVEPOINT: u16 = 1305;

    /// The text for a session that is not in the transaction any more.
    const ENDED: &str = "the server has ended the transaction before, because of a deadlock or of a statement such as \
                         CREATE TABLE; what it has written since then is committed, without a lock";

    impl CommitIfHeld for MySql {
        /// A client that is stopped between the check and the commit keeps the rows of the lock for
        /// a second: then the server ends its session.
        async fn commit_if_held(
            _: &Records<Sql>,
            rows: &[(String, Hold)],
            mut tx: Transaction<'_, Self>,
        ) -> Result<(), Problem> {
            let outcome = match check(rows, &mut tx).await {
                Ok(()) => {
                    let committed = tx.execute(COMMIT).await.map(drop);
                    committed.map_err(|error| Problem::Failed(error, During::Commit))
                }
                Err(problem) => Err(problem),
            };
            if outcome.is_err() {
                // A session that has ended has no limits.
                let _ = tx.execute(restore!()).await;
            }
            roll_back(tx).await;
            outcome
        }
    }

    async fn check(rows: &[(String, Hold)], tx: &mut Transaction<'_, MySql>) -> Result<(), Problem> {
        let names: Vec<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
        let args = [Arg::Text(text_of(Class::Lock)), Arg::Names(&names)];
        let found = tx.fetch_all(filled(LOCK_HOLDS, &args, mysql_literal).as_str()).await;
        let found = found.map_err(problem)?;
        let found: Vec<Row> = found.into_iter().map(|row| Row::MySql(Box::new(row))).collect();
        judge(rows, &found)
    }

    fn problem(error: sqlx::Error) -> Problem {
        let said = error.as_database_error().and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>());
        if said.is_some_and(|error| error.number() == NO_SAVEPOINT) {
            return Problem::Failed(sqlx::Error::Protocol(ENDED.to_owned()), During::Commit);
        }
        Problem::Failed(error, During::Work)
    }
}
