//! Tests of `commit_if_held` that run on each of the databases. They write notes into a table.

use std::task::Poll;
use std::time::{Duration, Instant};

use lock_runtime::testing::lose;
use lock_runtime::{CommitError, CommitIfHeld, LockError, LockGuard, LockManager, distributed_lock};
use sqlx::{Connection, Executor, Pool, Transaction};

use crate::kinds::{KINDS, lock};
use crate::{Helper, eventually};

/// Maximum time of anything that should come soon, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A database whose transactions are tested.
pub trait Notes: CommitIfHeld {
    /// Expression for its clock, in whole microseconds.
    const NOW: &'static str;

    /// Type that a number is cast to, to be replaced in a text.
    const TEXT: &'static str;

    /// Runs statements without arguments.
    fn run(
        connection: &mut Self::Connection,
        text: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Returns the one number that a statement selects.
    fn number(connection: &mut Self::Connection, text: &str) -> impl Future<Output = i64> + Send;
}

macro_rules! notes {
    ($($database:ty: $text:literal, $now:literal;)*) => {$(
        impl Notes for $database {
            const NOW: &'static str = $now;
            const TEXT: &'static str = $text;

            async fn run(connection: &mut Self::Connection, text: &str) -> Result<(), sqlx::Error> {
                connection.execute(text).await.map(drop)
            }

            async fn number(connection: &mut Self::Connection, text: &str) -> i64 {
                sqlx::query_scalar(text).fetch_one(connection).await.unwrap()
            }
        }
    )*};
}

notes! {
    sqlx::Postgres: "TEXT", "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)";
    sqlx::MySql: "BINARY", "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";
    sqlx::Sqlite: "TEXT", "CAST((JULIANDAY('now') - 2440587.5) * 86400000000 AS INTEGER)";
}

/// A new database with a table for notes.
#[derive(Debug)]
pub struct Place<D: Notes> {
    /// The manager that takes the locks.
    pub locks: LockManager,
    /// Another manager on the same database.
    pub other: LockManager,
    /// Has one connection, so that whatever is left on it is noticed.
    pub pool: Pool<D>,
}

impl<D: Notes> Place<D> {
    /// Prepares the database of these.
    ///
    /// # Panics
    ///
    /// When the table can't be made.
    pub async fn new(locks: LockManager, other: LockManager, pool: Pool<D>) -> Self {
        let place = Self { locks, other, pool };
        place.run("CREATE TABLE note (name VARCHAR(200) PRIMARY KEY)").await;
        place
    }

    /// Runs statements outside of transactions.
    ///
    /// # Panics
    ///
    /// When one of them fails.
    pub async fn run(&self, text: &str) {
        D::run(&mut *self.pool.acquire().await.unwrap(), text).await.unwrap();
    }

    /// Begins a transaction that has written a note.
    ///
    /// # Panics
    ///
    /// When that does not work.
    pub async fn note(&self, name: &str) -> Transaction<'static, D> {
        let mut tx = self.pool.begin().await.unwrap();
        D::run(&mut tx, &format!("INSERT INTO note VALUES ('{name}')")).await.unwrap();
        tx
    }

    /// Returns whether there is this note, as everybody sees it.
    ///
    /// # Panics
    ///
    /// When the database does not answer.
    pub async fn has(&self, name: &str) -> bool {
        let count = format!("SELECT COUNT(*) FROM note WHERE name = '{name}'");
        D::number(&mut *self.pool.acquire().await.unwrap(), &count).await == 1
    }

    async fn commits(&self, guard: &LockGuard, name: &str) {
        guard.commit_if_held(self.note(name).await).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(self.has(name).await, "{name}");
        assert!(!guard.is_lost(), "{name}");
    }

    /// Tries to commit, and returns why that was refused. Nothing may be left.
    ///
    /// # Panics
    ///
    /// When it was committed.
    pub async fn refused(&self, guard: &LockGuard, name: &str) -> CommitError {
        let outcome = guard.commit_if_held(self.note(name).await).await;
        let Err(error) = outcome else { panic!("{name} was committed") };
        assert!(!self.has(name).await, "{name}: {error}");
        error
    }
}

/// A guard of any kind may commit, and do so again.
pub async fn guards_of_all_kinds_commit<D: Notes>(place: &Place<D>) {
    let locks = &place.locks;
    for kind in KINDS {
        let guard = lock(locks, kind, "k").acquire().await.unwrap();
        place.commits(&guard, &format!("{kind:?}")).await;
        place.commits(&guard, &format!("{kind:?} again")).await;
        place.commits(&guard.reenter().unwrap(), &format!("{kind:?} inside")).await;
        guard.release().await.unwrap();
    }
    for key in ["it''s", r"\ \' \\", r#""k" $1 $lock$ $$"#, "ü/猫"] {
        let guard = locks.mutex(key).acquire().await.unwrap();
        place.commits(&guard, &key.replace('\'', "")).await;
    }
    let mut readers = Vec::new();
    for locks in [locks, &place.other, locks] {
        readers.push(locks.read("r").acquire().await.unwrap());
    }
    for (index, reader) in readers.iter().enumerate() {
        place.commits(reader, &format!("reader {index}")).await;
    }
    let writer = locks.write("rw").acquire().await.unwrap();
    place.commits(&writer.downgrade().await.unwrap(), "downgraded").await;
    let several = locks.multi(["b", "a"]).acquire().await.unwrap();
    place.commits(&several, "several").await;
    let one = several.scope(async { locks.mutex("a").acquire().await.unwrap() }).await;
    place.commits(&one, "one of several").await;
    drop(one);
    let more = several.scope(async { locks.multi(["a", "c"]).acquire().await.unwrap() }).await;
    place.commits(&more, "several inside several").await;
}

/// A hold that is gone, or not the guard's any more. The guard does not know yet.
pub async fn what_is_not_held_is_not_committed<D: Notes>(place: &Place<D>) {
    // The end of each hold is a number of 16 digits; each is in the past without its first ones.
    let first = format!("SUBSTR(CAST(until AS {}), 1, 4)", D::TEXT);
    let over = &*format!("UPDATE lock_records SET record = REPLACE(record, {first}, '')");
    for kind in KINDS {
        for (fate, statement) in
            [("deleted", "DELETE FROM lock_records"), ("over", over), ("freed", ""), ("taken", "")]
        {
            let guard = lock(&place.locks, kind, "k").acquire().await.unwrap();
            let mut next = None;
            if statement.is_empty() {
                assert!(place.other.force_release("k").await.unwrap());
            } else {
                place.run(statement).await;
            }
            if fate == "taken" {
                next = Some(lock(&place.other, kind, "k").acquire().await.unwrap());
            }
            assert!(!guard.is_lost(), "{kind:?} {fate}");
            let error = place.refused(&guard, "late").await;
            let is_it = matches!(&error, CommitError::NotHeld { key } if key.as_str() == "k");
            assert!(is_it, "{kind:?} {fate}: {error:?}");
            if let Some(next) = next {
                place.commits(&next, &format!("{kind:?} next")).await;
            }
            drop(guard);
            place.run("DELETE FROM lock_records").await;
        }
    }
    // Only one of the keys.
    let several = place.locks.multi(["a", "b", "c"]).acquire().await.unwrap();
    place.other.force_release("b").await.unwrap();
    let error = place.refused(&several, "late").await;
    assert!(matches!(&error, CommitError::NotHeld { key } if key.as_str() == "b"), "{error:?}");
}

/// Books an amount in a transaction that is committed under the attribute's lock.
#[distributed_lock(key = "account", manager = place.locks, wait = "none")]
async fn book<D: Notes>(place: &Place<D>, name: &str) -> Result<(), LockError> {
    let tx = place.note(name).await;
    // Enters the lock again.
    let guard = place.locks.mutex("account").acquire().await?;
    guard.commit_if_held(tx).await.unwrap();
    guard.release().await
}

/// A body has no guard, but can ask for one.
pub async fn a_body_under_the_attribute_commits<D: Notes>(place: &Place<D>) {
    book(place, "booked").await.unwrap();
    assert!(place.has("booked").await);
    assert!(!place.locks.status("account").await.unwrap().is_locked());
}

/// A guard that is lost asks nobody.
pub async fn a_lost_guard_commits_nothing<D: Notes>(place: &Place<D>) {
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    assert!(lose(&place.locks, "k"));
    let error = place.refused(&guard, "late").await;
    assert!(matches!(&error, CommitError::Lost { key, .. } if key.as_str() == "k"), "{error:?}");
    let guard = place.locks.mutex("l").lease(Duration::from_millis(200)).acquire().await.unwrap();
    guard.lost().await;
    let error = place.refused(&guard, "late").await;
    assert!(matches!(&error, CommitError::Lost { .. }), "{error:?}");
}

/// A savepoint is not the transaction, which goes on.
pub async fn a_savepoint_is_refused<D: Notes>(place: &Place<D>) {
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    let mut outer = place.note("outer").await;
    let mut inner = outer.begin().await.unwrap();
    D::run(&mut inner, "INSERT INTO note VALUES ('inner')").await.unwrap();
    is_misconfigured(guard.commit_if_held(inner).await, "savepoint");
    guard.commit_if_held(outer).await.unwrap();
    assert!(place.has("outer").await && !place.has("inner").await);
}

/// The lock is elsewhere: `elsewhere` is a manager on another database.
pub async fn a_lock_of_another_store_commits_nothing<D: Notes>(
    place: &Place<D>,
    elsewhere: &LockManager,
    said: &str,
) {
    let guard = elsewhere.mutex("k").acquire().await.unwrap();
    let error = place.refused(&guard, "late").await;
    is_misconfigured(Err(error), said);
}

/// The statement waits for the row, and looks at the clock afterwards.
pub async fn a_lease_that_ends_while_the_row_is_waited_for_is_over<D: Notes>(place: &Place<D>, url: &str) {
    let mut stranger = D::Connection::connect(url).await.unwrap();
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    let (now, text) = (D::NOW, D::TEXT);
    let update = format!(
        "BEGIN; UPDATE lock_records SET record = \
         REPLACE(record, CAST(until AS {text}), CAST({now} + 200000 AS {text}))"
    );
    let mut attempts = 0;
    loop {
        D::run(&mut stranger, &update).await.unwrap();
        let commit = async { guard.commit_if_held(place.note("late").await).await };
        let (outcome, ()) = tokio::join!(commit, async {
            tokio::time::sleep(Duration::from_millis(250)).await;
            D::run(&mut stranger, "COMMIT").await.unwrap();
        });
        match outcome {
            Err(CommitError::NotHeld { .. }) => break,
            // A busy machine has taken the row away for more than a second.
            Err(CommitError::Conflict { .. }) if attempts < 20 => attempts += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(!place.has("late").await);
}

/// A stranger has locked the row, for too long and for a moment.
pub async fn a_row_that_is_locked_is_waited_for_but_not_for_long<D: Notes>(place: &Place<D>, url: &str) {
    let mut stranger = D::Connection::connect(url).await.unwrap();
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    D::run(&mut stranger, "BEGIN; SELECT 1 FROM lock_records FOR UPDATE").await.unwrap();
    let start = Instant::now();
    let error = place.refused(&guard, "a").await;
    assert!(matches!(error, CommitError::Conflict { .. }), "{error:?}");
    assert!((Duration::from_secs(1)..PATIENCE).contains(&start.elapsed()), "{:?}", start.elapsed());
    let waits = async {
        let tx = place.note("b").await;
        guard.commit_if_held(tx).await
    };
    let (outcome, ()) = tokio::join!(waits, async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        D::run(&mut stranger, "COMMIT").await.unwrap();
    });
    match outcome {
        Ok(()) => assert!(place.has("b").await),
        // A busy machine has taken the row away for more than a second.
        Err(CommitError::Conflict { .. }) => guard.commit_if_held(place.note("b").await).await.unwrap(),
        Err(other) => panic!("{other:?}"),
    }
}

/// The pool is the user's.
pub async fn a_dropped_future_leaves_no_transaction_on_the_connection<D: Notes>(place: &Place<D>, url: &str) {
    let mut elsewhere = D::Connection::connect(url).await.unwrap();
    let guard = place.locks.mutex("k").acquire().await.unwrap();
    for polls in 0..10 {
        let tx = place.note(&format!("tx {polls}")).await;
        let mut commit = Box::pin(guard.commit_if_held(tx));
        let mut left = polls;
        std::future::poll_fn(|cx| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            commit.as_mut().poll(cx).map(drop)
        })
        .await;
        drop(commit);
        place.run(&format!("INSERT INTO note VALUES ('own {polls}')")).await;
        let count = format!("SELECT COUNT(*) FROM note WHERE name = 'own {polls}'");
        assert_eq!(D::number(&mut elsewhere, &count).await, 1, "after {polls} polls");
    }
}

fn holder(program: &str, url: &str, lease: &str) -> Helper {
    let mut helper = Helper::spawn(program, [url, lease]);
    assert_eq!(helper.line(PATIENCE), "ready");
    helper
}

/// A holder is stopped within its transaction. Others get the lock when its lease is over, a
/// hundred less one neighbours are renewed meanwhile, and its late commit is refused. Once by its
/// own clock, and once by the database alone.
pub async fn a_holder_that_was_stopped_in_its_transaction_commits_nothing<D: Notes>(
    place: &Place<D>,
    url: &str,
    program: &str,
) {
    const LEASE: Duration = Duration::from_secs(6);
    let mut neighbours = Vec::new();
    for number in 0..99 {
        if number % 33 == 0 {
            neighbours.push((LockManager::builder().lease(LEASE).connect(url).await.unwrap(), Vec::new()));
        }
        let (locks, guards) = neighbours.last_mut().unwrap();
        guards.push(locks.mutex(format!("neighbour:{number}")).acquire().await.unwrap());
    }
    let ends = async |which: &str| -> i64 {
        let select = format!("SELECT {which}(until) FROM lock_records WHERE name LIKE '%neighbour%'");
        D::number(&mut *place.pool.acquire().await.unwrap(), &select).await
    };
    for (lease, said) in [("lease=1000", "was lost"), ("lease=600000", "not held any more in the database")] {
        let (mut first, mut second) = (holder(program, url, lease), holder(program, url, "lease=600000"));
        let name = format!("by the {lease}");
        assert!(first.ask("acquire k").starts_with("acquired"));
        assert_eq!(first.ask(&format!("begin k {name}")), "begun");
        let before = ends("MAX").await;
        first.stop();
        if said != "was lost" {
            // The holder believes in ten minutes. The database knows better.
            let now = format!("SELECT {}", D::NOW);
            let ends = D::number(&mut *place.pool.acquire().await.unwrap(), &now).await + 1_000_000;
            let until = format!("CAST(until AS {})", D::TEXT);
            let update = format!(
                "UPDATE lock_records SET version = 'v', record = REPLACE(record, {until}, '{ends}'), \
                 until = {ends} WHERE name LIKE '%:k'"
            );
            place.run(&update).await;
        }
        assert!(second.ask("acquire k wait=60000").starts_with("acquired"));
        let renewed = async || ends("MIN").await > before + LEASE.as_micros() as i64;
        eventually(renewed, PATIENCE).await;
        assert!(neighbours.iter().flat_map(|(_, guards)| guards).all(|guard| !guard.is_lost()));
        first.cont();
        if said != "was lost" {
            assert!(first.ask("state k").starts_with("held"));
        }
        let answer = first.ask("commit k");
        assert!(answer.starts_with("failed") && answer.contains(said), "{answer}");
        assert!(!place.has(&name).await);
        assert_eq!(second.ask(&format!("begin k {name}")), "begun");
        assert_eq!(second.ask("commit k"), "committed");
        assert!(place.has(&name).await);
        assert_eq!(second.ask("release k"), "released");
    }
}

/// Checks that a program has to be changed, and that the text says `said`.
///
/// # Panics
///
/// When it is another error.
pub fn is_misconfigured(outcome: Result<(), CommitError>, said: &str) {
    match outcome {
        Err(CommitError::Misconfigured { reason }) => assert!(reason.contains(said), "{reason}"),
        other => panic!("{other:?}"),
    }
}
