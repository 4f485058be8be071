//! The table and the statements, in the dialect of each database.

#[cfg(feature = "mysql")]
use crate::options::MYSQL_COMMIT;
use crate::options::Options;
#[cfg(feature = "postgres")]
use crate::plumbing::quoted;

/// The table. Times are microseconds since the Unix epoch by the database's clock.
///
/// - `class` is `lock`, `semaphore` or `latch`, and `name` the prefix and the key.
/// - `version` is a random number of the change that wrote the row, 32 hexadecimal digits.
/// - `token` is the largest fencing token that was granted.
/// - After `until`, nothing of the record counts any more. The row is kept for its token until
///   `kept_until`.
/// - `record` is JSON: holders, waiters, permits.
/// - `listeners` is JSON: which processes have to hear of changes, and until when.
pub(crate) const TABLE: &str = "lock_records";

/// The clock of PostgreSQL. Not that of the statement, which may have waited for a row.
#[cfg(feature = "postgres")]
pub(crate) const POSTGRES_CLOCK: &str = "CAST(date_part('epoch', clock_timestamp()) * 1000000 AS BIGINT)";

/// The clock of SQLite, with a resolution of a millisecond.
#[cfg(feature = "sqlite")]
pub(crate) const SQLITE_CLOCK: &str =
    "CAST(ROUND((JULIANDAY('now') - 2440587.5) * 86400000) AS INTEGER) * 1000";

/// The clock of MariaDB and MySQL, in sessions whose time zone is UTC. Not that of the statement.
#[cfg(feature = "mysql")]
pub(crate) const MYSQL_CLOCK: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))";

/// Columns of the table, as a row is read.
const ROW: &str = "name, version, token, until, kept_until, record";

/// The statements of one database.
#[derive(Clone, Debug)]
pub(crate) struct Statements {
    pub(crate) clock: String,
    /// Makes the table, if it is missing.
    pub(crate) create: String,
    /// Looks at the rows with these names, without locking them.
    pub(crate) look: String,
    /// Locks the rows with these names, and reads them and then the clock. The last row of the
    /// answer has the time.
    pub(crate) lock: String,
    /// As `lock`, for one name and with a maximum wait in milliseconds. The time is zero if that is
    /// over. Empty if `lock` is as good.
    pub(crate) lock_one: String,
    /// As `lock`, but reads only names where somebody else has locked the row. There may be other
    /// rows of the answer with these names.
    pub(crate) lock_free: String,
    /// Writes rows that are locked.
    pub(crate) update: String,
    /// Inserts rows that were missing, and reads the clock afterwards.
    pub(crate) insert: String,
    /// Reads a page of locks.
    pub(crate) page: String,
    /// Reads a page of all names, and whether each may be removed.
    pub(crate) over: String,
    /// Locks those of these rows that are over and that nobody else has locked; `None` if `remove`
    /// waits for nobody.
    pub(crate) lock_over: Option<String>,
    /// Removes those of these rows that are still over.
    pub(crate) remove: String,
    /// Writes a row that is absent or over; or reads it.
    pub(crate) swap_over: String,
    /// Writes a row that still has this version; or reads it. Empty if `update_version` is enough:
    /// where each write waits for those that came before, one that has failed is not repeated.
    pub(crate) swap_version: String,
    /// Writes a row that is there, and over. This and the next are empty if they would not be
    /// faster.
    pub(crate) update_over: String,
    /// Writes a row that still has this version.
    pub(crate) update_version: String,
    /// Adds a listener to these rows.
    #[cfg(feature = "postgres")]
    pub(crate) register: String,
}

impl Statements {
    pub(crate) fn of(options: &Options) -> Self {
        match options {
            #[cfg(feature = "sqlite")]
            Options::Sqlite(_) => Self::sqlite(),
            #[cfg(feature = "postgres")]
            Options::Postgres(_) | Options::Pooled(_) => Self::postgres(),
            #[cfg(feature = "mysql")]
            Options::MySql(_) => Self::mysql(),
        }
    }

    /// A writer of SQLite is alone since its `BEGIN IMMEDIATE`, and locks no rows.
    #[cfg(feature = "sqlite")]
    fn sqlite() -> Self {
        let clock = SQLITE_CLOCK;
        let names = "name IN (SELECT value FROM json_each($2))";
        let values = "SELECT value ->> 'name' AS name, value ->> 'version' AS version, value ->> 'token' AS token, \
                      value ->> 'until' AS until, value ->> 'kept_until' AS kept_until, \
                      value ->> 'record' AS record FROM json_each($2)";
        // Otherwise all rows of the class are compared with the list.
        let by_name = " AND r.name IN (SELECT value ->> 'name' FROM json_each($2))";
        let look = format!(
            "SELECT t.now, r.name, r.version, r.token, r.until, r.kept_until, r.record, r.listeners \
             FROM (SELECT {clock} AS now) t LEFT JOIN main.{TABLE} r ON r.class = $1 AND r.{names}"
        );
        let common = Self::common(clock, "", by_name, values);
        Self {
            create: format!(
                "CREATE TABLE IF NOT EXISTS {TABLE} (class TEXT NOT NULL, name TEXT NOT NULL, \
                 version TEXT NOT NULL, token INTEGER NOT NULL, until INTEGER NOT NULL, \
                 kept_until INTEGER NOT NULL, record TEXT NOT NULL, listeners TEXT, PRIMARY KEY (class, name)) WITHOUT ROWID"
            ),
            lock: look.clone(),
            lock_free: look.clone(),
            look,
            remove: format!("DELETE FROM {TABLE} WHERE class = $1 AND {names} AND {}", over(clock)),
            ..common
        }
    }

    /// PostgreSQL's transactions are READ COMMITTED. Rows are locked in the order of their names.
    #[cfg(feature = "postgres")]
    fn postgres() -> Self {
        let clock = POSTGRES_CLOCK;
        let names = "name = ANY(ARRAY(SELECT json_array_elements_text($2::json)))";
        let values = "SELECT name, version, token, until, kept_until, record FROM json_to_recordset($2::json) \
                      AS w(name text, version text, token bigint, until bigint, kept_until bigint, record text)";
        // The clock is read when every row has been counted, and so locked.
        let locked = |skip: &str| {
            format!(
                "WITH l AS MATERIALIZED (SELECT {ROW}, listeners FROM {TABLE} WHERE class = $1 AND {names} \
                 ORDER BY name FOR UPDATE{skip}), \
                 t AS MATERIALIZED (SELECT count(*) AS rows, {clock} AS now FROM l) "
            )
        };
        // Notifies these channels, within the commit.
        let done = "SELECT 1::bigint, d.now, d.listeners, NULL::bigint, NULL::bigint, NULL::bigint, NULL::text, \
                    (SELECT count(pg_notify(n.value ->> 0, n.value ->> 1)) \
                    FROM json_array_elements($11::json) n) FROM done d";
        // Without more, since most steps are not overtaken. An update that has waited for somebody
        // who only locked the row does not look at the clock again: it is the caller who sees by
        // the returned time that it was too late.
        let update_if = |condition: &str| {
            format!(
                "UPDATE {TABLE} AS r SET version = $3, token = GREATEST(r.token, $4), until = $5, \
                 kept_until = GREATEST(r.kept_until, $6), record = $7 \
                 WHERE r.class = $1 AND r.name = $2 AND {condition} AND {clock} BETWEEN $8 AND $9 \
                 RETURNING 1::bigint, {clock}, r.listeners"
            )
        };
        // The row as it is, if it was not written.
        let else_row = format!(
            "UNION ALL SELECT 0::bigint, t.now, r.version, r.token, r.until, r.kept_until, r.record, 0 \
             FROM (SELECT {clock} AS now) t LEFT JOIN {TABLE} r ON r.class = $1 AND r.name = $2 \
             WHERE NOT EXISTS (SELECT 1 FROM done)"
        );
        Self {
            update_over: update_if(&format!("r.until <= {clock} AND r.token <= $10")),
            update_version: update_if("r.version = $10"),
            // The condition of the update is looked at when the row is locked. That of the insert
            // is looked at before another program's insert of the same row is waited for; if that
            // one is undone, no more than the lock's time-out has passed.
            swap_over: format!(
                "WITH done AS (INSERT INTO {TABLE} AS r (class, name, version, token, until, kept_until, record) \
                 SELECT $1::text, $2::text, $3::text, $4::bigint, $5::bigint, $6::bigint, $7::text \
                 FROM (SELECT {clock} AS now) t WHERE t.now BETWEEN $8::bigint AND $9::bigint \
                 ON CONFLICT (class, name) DO UPDATE SET version = excluded.version, \
                 token = GREATEST(r.token, excluded.token), \
                 until = excluded.until, kept_until = GREATEST(r.kept_until, excluded.kept_until), \
                 record = excluded.record \
                 WHERE r.until <= {clock} AND r.token <= $10::bigint AND {clock} BETWEEN $8 AND $9 \
                 RETURNING {clock} AS now, r.listeners) {done} {else_row}"
            ),
            // The row is locked first, since an update that waits for somebody who only locks the
            // row does not look at the clock again.
            swap_version: format!(
                "WITH l AS MATERIALIZED (SELECT * FROM {TABLE} WHERE class = $1 AND name = $2 FOR UPDATE), \
                 t AS MATERIALIZED (SELECT max(version) AS version, {clock} AS now FROM l), \
                 done AS (UPDATE {TABLE} AS r SET version = $3::text, \
                 token = GREATEST(r.token, $4::bigint), until = $5::bigint, \
                 kept_until = GREATEST(r.kept_until, $6::bigint), record = $7::text FROM t WHERE r.class = $1 AND r.name = $2 \
                 AND t.version = $10::text AND t.now BETWEEN $8::bigint AND $9::bigint RETURNING t.now, r.listeners) {done} \
                 UNION ALL SELECT 0::bigint, t.now, l.version, l.token, l.until, l.kept_until, l.record, 0 \
                 FROM t LEFT JOIN l ON true WHERE NOT EXISTS (SELECT 1 FROM done)"
            ),
            create: format!(
                "SELECT pg_advisory_xact_lock(7236834782); \
                 CREATE TABLE IF NOT EXISTS {TABLE} (class TEXT COLLATE \"C\" NOT NULL, \
                 name TEXT COLLATE \"C\" NOT NULL, version TEXT NOT NULL, token BIGINT NOT NULL, \
                 until BIGINT NOT NULL, kept_until BIGINT NOT NULL, record TEXT NOT NULL, listeners TEXT, \
                 PRIMARY KEY (class, name)) WITH (fillfactor = 50)"
            ),
            look: format!(
                "SELECT t.now, r.name, r.version, r.token, r.until, r.kept_until, r.record, r.listeners \
                 FROM (SELECT {clock} AS now) t LEFT JOIN {TABLE} r ON r.class = $1 AND r.{names}"
            ),
            lock: format!(
                "{}SELECT t.now, l.name, l.version, l.token, l.until, l.kept_until, l.record, l.listeners \
                 FROM t LEFT JOIN l ON true",
                locked("")
            ),
            lock_free: format!(
                "{}SELECT t.now, r.name, l.version, l.token, l.until, l.kept_until, l.record, l.listeners \
                 FROM t LEFT JOIN {TABLE} r ON r.class = $1 AND r.{names} LEFT JOIN l ON l.name = r.name",
                locked(" SKIP LOCKED")
            ),
            remove: format!(
                "DELETE FROM {TABLE} WHERE class = $1 AND name = ANY(ARRAY(SELECT name FROM {TABLE} \
                 WHERE class = $1 AND {names} AND {over} FOR UPDATE SKIP LOCKED)) AND {over}",
                over = over(clock)
            ),
            register: format!(
                "INSERT INTO {TABLE} AS r (class, name, version, token, until, kept_until, record, listeners) \
                 SELECT $1::text, n.name, '', 0, 0, t.now + $4::bigint, '{{}}', \
                 json_build_array(json_build_array($3::text, t.now + $4))::text FROM (SELECT {clock} AS now) t, \
                 (SELECT json_array_elements_text($2::json) AS name) n ORDER BY n.name COLLATE \"C\" \
                 ON CONFLICT (class, name) DO UPDATE SET kept_until = GREATEST(r.kept_until, excluded.kept_until), \
                 listeners = (SELECT json_agg(a.value)::text FROM \
                 (SELECT l.value FROM json_array_elements(r.listeners::json) l \
                 WHERE (l.value ->> 1)::bigint > {clock} AND l.value ->> 0 <> $3 \
                 UNION ALL SELECT excluded.listeners::json -> 0) a)"
            ),
            ..Self::common(clock, " COLLATE \"C\"", "", values)
        }
    }

    /// Transactions of MariaDB and MySQL are READ COMMITTED, too. A statement that has an answer is
    /// followed by another one that reads it. The index is named: on a small table, the optimiser
    /// would rather read all rows, and would wait for each that somebody has locked.
    #[cfg(feature = "mysql")]
    fn mysql() -> Self {
        let clock = MYSQL_CLOCK;
        let columns = "version, token, until, kept_until, record";
        let table = format!("{TABLE} FORCE INDEX (PRIMARY)");
        let rows = "WHERE class = $1 AND name IN ($2)";
        let time = format!("SELECT {clock}, NULL, NULL, NULL, NULL, NULL, NULL, NULL");
        // InnoDB gives each waiter for a row another entry in the page's list of locks whenever the
        // row changes its length. Each commit walks through that list once for each waiter. A
        // hundred waiters stop the server. So steps that lock or insert a single row wait for a
        // name first.
        let binary = ["DATABASE()", "$1", "$2"].map(|text| format!("CAST({text} AS BINARY)")).join(", ");
        let gate =
            |wait: &str| format!("SET @gate = GET_LOCK(MD5(CONCAT_WS(':', '{TABLE}', {binary})), {wait})");
        // Most rows are written by one statement alone. It has no answer but a number: the time.
        let update_if = |condition: &str| {
            format!(
                "UPDATE {TABLE} SET version = $3, token = GREATEST(token, $4), \
                 until = IF(LAST_INSERT_ID({clock}), $5, $5), kept_until = GREATEST(kept_until, $6), record = $7 \
                 WHERE class = $1 AND name = $2 AND {condition} AND {clock} BETWEEN $8 AND $9"
            )
        };
        let insert = format!("INSERT INTO {TABLE} (class, name, {columns}) SELECT $1, w.* FROM");
        // The version comes first. The others are assigned if it was.
        let mut if_over = format!(
            "version = IF({TABLE}.until <= {clock} AND {TABLE}.token <= $10 AND {clock} BETWEEN $8 AND $9, $3, \
             {TABLE}.version)"
        );
        let mut always = "version = w.version".to_owned();
        for column in ["token", "until", "kept_until", "record"] {
            let value = match column {
                "token" | "kept_until" => format!("GREATEST({TABLE}.{column}, w.{column})"),
                _ => format!("w.{column}"),
            };
            if_over += &format!(", {column} = IF({TABLE}.version = $3, {value}, {TABLE}.{column})");
            always += &format!(", {column} = w.{column}");
        }
        Self {
            create: format!(
                "CREATE TABLE IF NOT EXISTS {TABLE} (class VARBINARY(16) NOT NULL, name VARBINARY(2500) NOT NULL, \
                 version VARBINARY(32) NOT NULL, token BIGINT NOT NULL, until BIGINT NOT NULL, \
                 kept_until BIGINT NOT NULL, record MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL, \
                 PRIMARY KEY (class, name)) ENGINE = InnoDB ROW_FORMAT = DYNAMIC"
            ),
            look: format!(
                "SELECT {clock}, r.name, r.version, r.token, r.until, r.kept_until, r.record, NULL \
                 FROM (SELECT 1) AS t LEFT JOIN {TABLE} AS r ON r.class = $1 AND r.name IN ($2)"
            ),
            lock: format!(
                "SELECT 0, name, {columns}, NULL FROM {table} {rows} ORDER BY name FOR UPDATE; {time}"
            ),
            lock_one: format!(
                "{}; SELECT 0, name, {columns}, NULL FROM {table} {rows} AND @gate FOR UPDATE; \
                 SELECT IF(@gate, {clock}, 0), NULL, NULL, NULL, NULL, NULL, NULL, NULL",
                gate("$3 / 1000")
            ),
            lock_free: format!(
                "SELECT 0, name, {columns}, NULL FROM {table} {rows} ORDER BY name FOR UPDATE SKIP LOCKED; \
                 SELECT 0, name, NULL, NULL, NULL, NULL, NULL, NULL FROM {TABLE} {rows}; {time}"
            ),
            update: format!("{insert} ($2) AS w ON DUPLICATE KEY UPDATE {always}"),
            insert: format!("{insert} ($2) AS w ORDER BY w.name; SELECT {clock} FROM ($2) AS w"),
            lock_over: Some(format!(
                "SELECT name FROM {table} {rows} AND {} ORDER BY name FOR UPDATE SKIP LOCKED",
                over(clock)
            )),
            // A hint about the index is not allowed in the shorter form.
            remove: format!("DELETE {TABLE} FROM {table} {rows} AND {}", over(clock)),
            over: format!(
                "SELECT class, name, {} FROM {TABLE} WHERE class > $1 OR (class = $1 AND name > $2) \
                 ORDER BY class, name LIMIT $3",
                over(clock)
            ),
            update_over: update_if(&format!("until <= {clock} AND token <= $10")),
            update_version: update_if("version = $10"),
            // The row is locked until the commit, if it was written.
            swap_over: format!(
                "BEGIN; {}; {insert} (SELECT $2 AS name, $3 AS version, $4 AS token, $5 AS until, $6 AS kept_until, \
                 $7 AS record) AS w WHERE @gate AND {clock} BETWEEN $8 AND $9 ON DUPLICATE KEY UPDATE {if_over}; \
                 SELECT r.version <=> $3, {clock}, NULLIF(r.version, $3), r.token, r.until, r.kept_until, r.record \
                 FROM (SELECT 1) AS t LEFT JOIN {TABLE} AS r ON r.class = $1 AND r.name = $2; {MYSQL_COMMIT}",
                gate("1")
            ),
            ..Self::common(clock, "", "", "")
        }
    }

    /// Returns the statements that are alike. `bytes` orders names by their bytes, `by_name` limits
    /// an update to its names, and `values` selects rows from a JSON list.
    fn common(clock: &str, bytes: &str, by_name: &str, values: &str) -> Self {
        let none = String::new;
        Self {
            clock: format!("SELECT {clock}"),
            update: format!(
                "UPDATE {TABLE} AS r SET version = w.version, token = w.token, until = w.until, \
                 kept_until = w.kept_until, record = w.record FROM ({values}) AS w \
                 WHERE r.class = $1 AND r.name = w.name{by_name}"
            ),
            insert: format!(
                "INSERT INTO {TABLE} (class, name, version, token, until, kept_until, record) \
                 SELECT $1, w.* FROM ({values}) AS w WHERE true ORDER BY w.name{bytes} \
                 ON CONFLICT DO NOTHING RETURNING {clock}"
            ),
            page: format!(
                "SELECT {clock}, {ROW} FROM {TABLE} WHERE class = 'lock' AND name > $1 AND name >= $2 \
                 AND name <= $3 ORDER BY name LIMIT $4"
            ),
            over: format!(
                "SELECT class, name, CAST(CASE WHEN {} THEN 1 ELSE 0 END AS BIGINT) FROM {TABLE} \
                 WHERE (class, name) > ($1, $2) ORDER BY class, name LIMIT $3",
                over(clock)
            ),
            create: none(),
            look: none(),
            lock: none(),
            lock_one: none(),
            lock_free: none(),
            lock_over: None,
            remove: none(),
            swap_over: none(),
            swap_version: none(),
            update_over: none(),
            update_version: none(),
            #[cfg(feature = "postgres")]
            register: none(),
        }
    }
}

/// Whether a row may be removed: nothing in it counts any more, and the next token will be larger
/// without it.
fn over(clock: &str) -> String {
    format!("until < {clock} AND kept_until < {clock} AND token < {clock} - 1000000")
}

/// Takes the write lock of the file, and fails if the transaction has read older data. Changes
/// nothing. Tables of attached files don't count, since a commit is atomic for each file only.
#[cfg(feature = "sqlite")]
pub(crate) const WRITE: &str = "UPDATE main.lock_records SET version = version WHERE 0";

/// Locks the rows of a lock in a transaction of the user's, whose session may have another time
/// zone; then reads the clock. Until the commit, the session has our limits. The savepoint is there
/// to fail outside of transactions.
#[cfg(feature = "mysql")]
pub(crate) const LOCK_HOLDS: &str = "SET @lock_idle = @@SESSION.wait_timeout, @lock_row = @@SESSION.innodb_lock_wait_timeout, \
     @lock_table = @@SESSION.lock_wait_timeout, @lock_most = @@SESSION.sql_select_limit; \
     SET SESSION wait_timeout = 1, innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, \
     sql_select_limit = 18446744073709551615; \
     SAVEPOINT lock_runtime; RELEASE SAVEPOINT lock_runtime; \
     SELECT 0, name, version, token, until, kept_until, record FROM lock_records FORCE INDEX (PRIMARY) \
     WHERE class = $1 AND name IN ($2) ORDER BY name FOR UPDATE; \
     SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), NULL, NULL, NULL, NULL, NULL, NULL";

/// SQLSTATE of a commit whose lock has other holders. The detail is the name of the row.
#[cfg(feature = "postgres")]
pub(crate) const NOT_HELD: &str = "LR001";

/// SQLSTATE of a commit that finds no row of its lock. The detail is the name of the row.
#[cfg(feature = "postgres")]
pub(crate) const ABSENT: &str = "LR002";

/// Commits the transaction if all these rows have their owners; `wanted` is a JSON list of names
/// and owners.
///
/// - Constraints that were deferred are checked first, so that rows of locks are not locked
///   meanwhile.
/// - Somebody who has locked a row is waited for, for a second. Rows are locked in the order of
///   their names.
/// - The clock is read when all rows are locked.
/// - The commit begins another transaction. sqlx ends that one, and PostgreSQL does not warn about
///   a rollback outside of transactions.
#[cfg(feature = "postgres")]
pub(crate) fn commit_if_held(wanted: &str) -> String {
    let wanted = quoted(wanted);
    format!(
        "SET CONSTRAINTS ALL IMMEDIATE; SET LOCAL lock_timeout = '1s'; \
         SELECT set_config('lock_runtime.wanted', {wanted}, true); \
         DO $lock$ \
         DECLARE wanted CONSTANT json := current_setting('lock_runtime.wanted')::json; \
         locked json; clock bigint; missing text; is_absent boolean; \
         BEGIN \
         locked := (SELECT json_object_agg(l.name, l.record::json) FROM (SELECT name, record FROM {TABLE} \
         WHERE class = 'lock' AND name = ANY(ARRAY(SELECT w.it->>0 FROM json_array_elements(wanted) AS w(it))) \
         ORDER BY name FOR UPDATE) AS l); \
         clock := {POSTGRES_CLOCK}; \
         SELECT w.it->>0, locked->(w.it->>0) IS NULL INTO missing, is_absent \
         FROM json_array_elements(wanted) AS w(it) \
         WHERE NOT EXISTS (SELECT 1 FROM (SELECT locked->(w.it->>0)->'held' \
         UNION ALL SELECT locked->(w.it->>0)->'writer' \
         UNION ALL SELECT json_array_elements(locked->(w.it->>0)->'readers')) AS h(hold) \
         WHERE h.hold->>0 = w.it->>1 AND CAST(h.hold->>1 AS numeric) > clock) LIMIT 1; \
         IF missing IS NOT NULL THEN \
         RAISE EXCEPTION 'the lock is not held' USING DETAIL = missing, \
         ERRCODE = CASE WHEN is_absent THEN '{ABSENT}' ELSE '{NOT_HELD}' END; \
         END IF; END $lock$; \
         COMMIT AND CHAIN"
    )
}
