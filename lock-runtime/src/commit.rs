//! [`LockGuard::commit_if_held`]: a transaction that is committed only under its lock.

use std::any::Any;
use std::sync::Arc;

use lock_core::LockKey;
use lock_engine::failure::Loss;
use lock_store_sql::{CommitIfHeld, Hold, SqlStore, Uncommitted, commit_if_held, roll_back};
use sqlx::Transaction;

use crate::guard::LockGuard;

/// The reason why [`LockGuard::commit_if_held`] has not committed a transaction. Nothing of it is
/// in the database then, except after [`Unknown`](Self::Unknown).
///
/// The text of a `cause` is part of the error's own, so there is no
/// [`source`](std::error::Error::source).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The lock was lost before anything was sent to the database. The transaction was rolled back.
    #[error("lock {key} was lost, so the transaction was rolled back: {why}")]
    Lost {
        /// The key.
        key: LockKey,
        /// The reason.
        why: Loss,
    },
    /// The lock is not held any more in the database: its lease is over by the clock there, or
    /// somebody has freed it. The transaction was rolled back. The guard may notice only at its
    /// next renewal.
    #[error("lock {key} is not held any more in the database, so the transaction was rolled back")]
    NotHeld {
        /// The key.
        key: LockKey,
    },
    /// Another transaction was in the way, and this one was rolled back. The lock may still be
    /// held: a new transaction that does the same work may be committed.
    #[error("another transaction was in the way, so this one was rolled back: {cause}")]
    Conflict {
        /// The database's error: a serialization failure, a deadlock, or a row or file that was
        /// locked for too long.
        cause: sqlx::Error,
    },
    /// The program has to be changed before this can work. The transaction was rolled back.
    #[error("the transaction was rolled back: {reason}")]
    Misconfigured {
        /// The problem, and what to do about it.
        reason: Arc<str>,
    },
    /// The database has refused the commit for another reason, such as a deferred constraint. The
    /// transaction was rolled back.
    #[error("the transaction was rolled back: {cause}")]
    Refused {
        /// The database's error.
        cause: sqlx::Error,
    },
    /// The connection broke before the answer came. The transaction was committed under the lock,
    /// or not at all.
    #[error("it is unknown whether the transaction was committed: {cause}")]
    Unknown {
        /// The error of the connection.
        cause: sqlx::Error,
    },
}

impl LockGuard {
    /// Commits `tx` if the lock is still held in the database at that moment, and rolls it back
    /// otherwise. The lock and the writes of the transaction are atomic: nobody else can have got
    /// the lock before the commit, however long this program was paused.
    ///
    /// The manager has to be on PostgreSQL, MariaDB or SQLite, and `tx` a transaction in its
    /// database. A guard of several keys needs all of them. Begin the transaction after the lock
    /// was acquired. The lock stays held afterwards.
    ///
    /// - **PostgreSQL.** The check, which locks the row of the lock, and the commit are one
    ///   message. If another session has locked the row, the check waits for a second. Deferred
    ///   constraints are checked before it. The user of the transaction needs `SELECT` and `UPDATE`
    ///   on `lock_records`.
    /// - **`REPEATABLE READ` and `SERIALIZABLE`.** Such a transaction fails with
    ///   [`Conflict`](CommitError::Conflict) if the row was changed after its first statement.
    ///   Renewals change it every third of the lease, and waiters more often. Repeat the
    ///   transaction under the same guard, or use `READ COMMITTED`.
    /// - **MariaDB.** The check locks the row of the lock, and the commit is a second message. A
    ///   program that is stopped between the two keeps the row for a second; then the server undoes
    ///   the transaction. The user needs the same two rights.
    /// - **SQLite.** The check takes the write lock of the file. A transaction that has read before
    ///   others wrote fails with [`Conflict`](CommitError::Conflict); begin it with
    ///   `BEGIN IMMEDIATE`.
    ///
    /// # Errors
    ///
    /// - [`CommitError::Lost`]: the lock is lost; nothing was sent but the rollback.
    /// - [`CommitError::NotHeld`]: the lock is not held any more in the database.
    /// - [`CommitError::Conflict`]: another transaction was in the way; see above.
    /// - [`CommitError::Misconfigured`]: the lock is not in a database, or `tx` is of
    ///   another database, is a savepoint, or began too early. Or its user lacks a right.
    /// - [`CommitError::Refused`]: any other error of the database.
    /// - [`CommitError::Unknown`]: the connection broke. The transaction was committed under the
    ///   lock, or not at all.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: when this future is dropped, the transaction may or may not be committed.
    /// If it is, it is committed under the lock.
    pub async fn commit_if_held<D: CommitIfHeld>(&self, tx: Transaction<'_, D>) -> Result<(), CommitError> {
        let error = if self.is_lost() {
            CommitError::Lost { key: self.key().clone(), why: self.loss() }
        } else {
            let store: &dyn Any = &*self.engine().store;
            match store.downcast_ref::<SqlStore>() {
                Some(store) => match commit_if_held(store, self.holds(), tx).await {
                    Ok(()) => return Ok(()),
                    Err(why) => return Err(self.uncommitted(why).await),
                },
                None => CommitError::Misconfigured {
                    reason: "the lock is not in a database; take it from a manager on `postgres://…`, `mysql://…` or `sqlite:…`, \
                             in the database of the transaction"
                        .into(),
                },
            }
        };
        roll_back(tx).await;
        Err(error)
    }

    /// Returns each key with its owner at the store.
    fn holds(&self) -> Vec<Hold> {
        let own =
            self.grant().tokens().map(|(key, _)| Hold { key: key.clone(), owner: self.owner().clone() });
        own.chain(self.inside().iter().flat_map(Self::holds)).collect()
    }

    async fn uncommitted(&self, why: Uncommitted) -> CommitError {
        match why {
            Uncommitted::NotHeld(key) => CommitError::NotHeld { key },
            Uncommitted::Absent(hold) => self.absent(hold).await,
            Uncommitted::Conflict(cause) => CommitError::Conflict { cause },
            Uncommitted::Misconfigured(reason) => CommitError::Misconfigured { reason: reason.into() },
            Uncommitted::Refused(cause) => CommitError::Refused { cause },
            Uncommitted::Unknown(cause) => CommitError::Unknown { cause },
        }
    }

    /// Returns why the transaction has seen no row of a lock: nobody holds it any more, or the
    /// transaction looked elsewhere.
    async fn absent(&self, Hold { key, owner }: Hold) -> CommitError {
        let status = self.engine().bounded(|store| store.status(key.clone())).await;
        if !status.is_ok_and(|status| status.holders.iter().any(|(holder, _)| *holder == owner)) {
            return CommitError::NotHeld { key };
        }
        let reason = format!(
            "lock {key} is held, but the transaction has no row of it in `lock_records`; begin the transaction in the \
             database (and schema) of the locks, and after the lock was acquired"
        );
        CommitError::Misconfigured { reason: reason.into() }
    }
}
