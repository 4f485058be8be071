//! The tables and the statements, in the dialect of each database.

use crate::options::Options;
#[cfg(feature = "mysql")]
use crate::statements::MYSQL_CLOCK;
#[cfg(feature = "postgres")]
use crate::statements::POSTGRES_CLOCK;
#[cfg(feature = "sqlite")]
use crate::statements::SQLITE_CLOCK;

/// The differences between the databases' SQL.
#[derive(Clone, Copy, Debug)]
struct Dialect {
    /// The current time, not that of the transaction's beginning, in microseconds since the Unix
    /// epoch.
    clock: &'static str,
    /// The time of the statement's beginning, if an index is not used for comparisons with the
    /// clock even in a subquery.
    early: Option<&'static str>,
    /// The type of numbers in a `CAST`.
    number: &'static str,
    for_update: &'static str,
    skip_locked: &'static str,
    /// Hints after the name of a table, which say by which index its rows are found: the primary
    /// key, or that of reservations.
    by_key: &'static str,
    by_deadline: &'static str,
    /// Whether a list of rows to change is the first table of a join: with `IN`, all records of a
    /// stock may be read, and locked.
    joins_lists: bool,
}

impl Dialect {
    fn of(options: &Options) -> Self {
        match options {
            #[cfg(feature = "sqlite")]
            Options::Sqlite(_) => Self::SQLITE,
            #[cfg(feature = "postgres")]
            Options::Postgres(_) | Options::Pooled(_) => Self::POSTGRES,
            #[cfg(feature = "mysql")]
            Options::MySql(_) => Self::MYSQL,
        }
    }

    /// Returns the time for conditions by which an index finds rows. It may be a little early, and
    /// so finds no row that is not over.
    fn early(&self) -> String {
        self.early.map_or_else(|| format!("(SELECT {})", self.clock), str::to_owned)
    }

    /// SQLite's transactions begin with `BEGIN IMMEDIATE`: a writer is alone, and locks no rows.
    #[cfg(feature = "sqlite")]
    const SQLITE: Self = Self {
        clock: SQLITE_CLOCK,
        early: None,
        number: "BIGINT",
        for_update: "",
        skip_locked: "",
        by_key: "",
        by_deadline: "",
        joins_lists: false,
    };

    /// PostgreSQL's transactions are READ COMMITTED, and lock rows before they rely on them. The
    /// order is the operation's row, the stock's, then those of segments in ascending order, so
    /// that two transactions never deadlock. An update that has waited for a row sees its newest
    /// version, so conditions in the statement itself are enough where one row decides.
    /// SERIALIZABLE would need no order. But on small tables, which are read as a whole, sales from
    /// different segments would undo each other.
    #[cfg(feature = "postgres")]
    const POSTGRES: Self = Self {
        clock: POSTGRES_CLOCK,
        early: None,
        number: "BIGINT",
        for_update: " FOR UPDATE",
        skip_locked: " FOR UPDATE SKIP LOCKED",
        by_key: "",
        by_deadline: "",
        joins_lists: false,
    };

    /// MariaDB's and MySQL's are the same. Statements that lock several rows name the index.
    /// Otherwise they may read more rows than they need, in any order, and lock them. An index
    /// entry has a lock of its own. So a sweep and the cancellation of an overdue reservation may
    /// deadlock; one of them is made again.
    #[cfg(feature = "mysql")]
    const MYSQL: Self = Self {
        clock: MYSQL_CLOCK,
        early: Some("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', NOW(6))"),
        number: "SIGNED",
        for_update: " FOR UPDATE",
        skip_locked: " FOR UPDATE SKIP LOCKED",
        by_key: " FORCE INDEX (PRIMARY)",
        by_deadline: " FORCE INDEX (lock_stock_operation_held)",
        joins_lists: true,
    };
}

/// In every stock, `initial + restocked` equals the sum of `available + held + sold` over its
/// segments. Times are microseconds since the Unix epoch by the database's clock.
///
/// - lock_stock: `segments` take part in sales, 0 to `segments - 1`. Every change of their number
///   raises `epoch`.
/// - lock_stock_segment: `fence` is the largest token that has sold here; `active` is 0 in a
///   segment that a resize has retired.
/// - lock_stock_operation: one row for each operation. `state` is S sold, H held, C cancelled, E
///   expired, B given back, N cancelled before it arrived, or R restocked. `reserved` is 1 for a
///   `reserve`, `parts` is `<segment>:<units> …`, `deadline` that of the reservation. `kept_until`
///   is unset while the units are held. A row with an empty `operation` and the state F has the
///   total that deleted records have sold.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
const TABLES: &str = "
CREATE TABLE IF NOT EXISTS lock_stock (
    stock TEXT PRIMARY KEY,
    segments BIGINT NOT NULL CHECK (segments > 0),
    epoch BIGINT NOT NULL,
    initial BIGINT NOT NULL CHECK (initial >= 0),
    restocked BIGINT NOT NULL CHECK (restocked >= 0)
);
CREATE TABLE IF NOT EXISTS lock_stock_segment (
    stock TEXT NOT NULL,
    segment BIGINT NOT NULL,
    active BIGINT NOT NULL,
    available BIGINT NOT NULL CHECK (available >= 0),
    held BIGINT NOT NULL DEFAULT 0 CHECK (held >= 0),
    sold BIGINT NOT NULL DEFAULT 0 CHECK (sold >= 0),
    fence BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (stock, segment)
);
CREATE TABLE IF NOT EXISTS lock_stock_operation (
    stock TEXT NOT NULL,
    operation TEXT NOT NULL,
    state TEXT NOT NULL,
    reserved BIGINT NOT NULL,
    quantity BIGINT NOT NULL,
    parts TEXT NOT NULL,
    deadline BIGINT,
    kept_until BIGINT,
    PRIMARY KEY (stock, operation)
);
CREATE INDEX IF NOT EXISTS lock_stock_operation_held ON lock_stock_operation (stock, deadline) WHERE state = 'H';
CREATE INDEX IF NOT EXISTS lock_stock_operation_over ON lock_stock_operation (stock, kept_until) WHERE state <> 'H';
";

/// Makes processes that create the tables of PostgreSQL at the same time wait for each other.
#[cfg(feature = "postgres")]
const ALONE: &str = "SELECT pg_advisory_xact_lock(7236834781);";

/// The same tables in MariaDB and MySQL. Names are bytes. An index has 3072 bytes at most, so names
/// of stocks and operations have their longest.
#[cfg(feature = "mysql")]
const MYSQL_TABLES: &str = "
CREATE TABLE IF NOT EXISTS lock_stock (
    stock VARBINARY(2500) PRIMARY KEY,
    segments BIGINT NOT NULL CHECK (segments > 0),
    epoch BIGINT NOT NULL,
    initial BIGINT NOT NULL CHECK (initial >= 0),
    restocked BIGINT NOT NULL CHECK (restocked >= 0)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
CREATE TABLE IF NOT EXISTS lock_stock_segment (
    stock VARBINARY(2500) NOT NULL,
    segment BIGINT NOT NULL,
    active BIGINT NOT NULL,
    available BIGINT NOT NULL CHECK (available >= 0),
    held BIGINT NOT NULL DEFAULT 0 CHECK (held >= 0),
    sold BIGINT NOT NULL DEFAULT 0 CHECK (sold >= 0),
    fence BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (stock, segment)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
CREATE TABLE IF NOT EXISTS lock_stock_operation (
    stock VARBINARY(2500) NOT NULL,
    operation VARBINARY(128) NOT NULL,
    state VARBINARY(1) NOT NULL,
    reserved BIGINT NOT NULL,
    quantity BIGINT NOT NULL,
    parts MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL,
    deadline BIGINT,
    kept_until BIGINT,
    PRIMARY KEY (stock, operation),
    INDEX lock_stock_operation_held (stock, state, deadline, operation),
    INDEX lock_stock_operation_over (stock, kept_until)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
";

/// In statements about a stock, `$1` is the stock. The comments list the other arguments and the
/// columns of the result.
#[derive(Debug)]
pub(crate) struct Statements {
    dialect: Dialect,
    /// Creates the tables and indexes that are missing.
    pub(crate) tables: String,
    /// $2 operation. For each active segment: now, segment, available, the operation's
    /// record, and whether the stock has an overdue reservation.
    pub(super) look: String,
    /// For each segment: segments, epoch, initial, restocked, segment, active, available, held,
    /// sold; and three zeros.
    pub(super) snapshot: String,
    /// The same, with the units that the records hold and have sold, and those sold by deleted
    /// records.
    pub(super) audit: String,
    /// $2 operation. Its record, locked.
    pub(super) record: String,
    /// now, segments, initial + restocked of the stock.
    pub(super) stock: String,
    /// Locks the stock's own row, which it returns without columns. Sales that share a lock, one
    /// after the other, would keep a restock waiting without end.
    pub(super) lock: String,
    /// $2 operation, $3 state, $4 reserved, $5 quantity, $6 parts, $7 hold, $8 retention (us), $9
    /// latest time. Changes nothing if it is too late, or the operation has a record.
    pub(super) note: String,
    /// $2 segment, $3 quantity, $4 of it sold, $5 of it held, $6 token. Changes nothing unless the
    /// segment is active, has enough, and has seen no larger token.
    pub(super) take: &'static str,
    /// $2 operation, $3 parts.
    pub(super) set_parts: &'static str,
    /// $2 segment. active, available, fence.
    pub(super) segment: &'static str,
    /// $2 operation, $3 state before, $4 state after, $5 retention (us), $6 latest time.
    pub(super) end: String,
    /// segment, active, available of all segments, locked.
    pub(super) segments: String,
    /// $2 how many. operation, parts of overdue reservations, locked; skips those that another
    /// transaction is ending.
    pub(crate) overdue: String,
    /// $2 how many. Deletes records whose retention is over; state, quantity of each. If there is
    /// [`discard`](Self::discard), this only locks them, and operation is a third column.
    pub(crate) purge: String,
    /// $2 operation. Deletes its record if its retention is over, in the same way; state, quantity.
    pub(super) purge_one: String,
    /// $2 units. Adds them to the total that deleted records have sold.
    pub(super) forget: &'static str,
    /// $2 segments, $3 initial. Changes nothing if the stock exists.
    pub(super) create: &'static str,
    /// $2 how many more, $3 the largest allowed total.
    pub(super) restock: &'static str,
    /// $2 segments.
    pub(super) resize: &'static str,
    /// $2 segments.
    pub(super) activate: String,
}

/// Returns the SQL for the units of all records in this state.
fn sum(state: &str, name: &str, number: &str) -> String {
    format!("CAST(COALESCE(SUM(CASE WHEN state = '{state}' THEN quantity END), 0) AS {number}) AS {name}")
}

/// The columns of an operation's record.
const RECORD: &str = "o.state, o.reserved, o.quantity, o.parts, o.deadline, o.kept_until";

impl Statements {
    pub(crate) fn of(options: &Options) -> Self {
        let dialect = Dialect::of(options);
        match options {
            #[cfg(feature = "sqlite")]
            Options::Sqlite(_) => Self { tables: TABLES.to_owned(), ..Self::common(dialect) },
            #[cfg(feature = "postgres")]
            Options::Postgres(_) | Options::Pooled(_) => {
                Self { tables: format!("{ALONE}{TABLES}"), ..Self::common(dialect) }
            }
            #[cfg(feature = "mysql")]
            Options::MySql(_) => Self::mysql(dialect),
        }
    }

    /// MariaDB and MySQL have no `ON CONFLICT DO NOTHING`, and no `LIMIT` in a subquery with `IN`.
    /// `INSERT IGNORE` would also cut a text that is too long. If two insert the same row at the
    /// same time, one of them fails, and is made again.
    #[cfg(feature = "mysql")]
    fn mysql(dialect: Dialect) -> Self {
        let Dialect { clock, skip_locked, .. } = dialect;
        Self {
            tables: MYSQL_TABLES.to_owned(),
            note: format!(
                "INSERT INTO lock_stock_operation \
                 (stock, operation, state, reserved, quantity, parts, deadline, kept_until) \
                 SELECT $1, $2, $3, $4, $5, $6, t.now + $7, t.now + $8 FROM (SELECT {clock} AS now) t \
                 WHERE t.now <= $9 AND NOT EXISTS \
                 (SELECT 1 FROM lock_stock_operation WHERE stock = $1 AND operation = $2)"
            ),
            purge: format!(
                "SELECT state, quantity, operation FROM lock_stock_operation \
                 FORCE INDEX (lock_stock_operation_over) WHERE stock = $1 AND kept_until <= {} \
                 ORDER BY kept_until LIMIT $2{skip_locked}",
                dialect.early()
            ),
            purge_one: format!(
                "SELECT state, quantity, operation FROM lock_stock_operation \
                 WHERE stock = $1 AND operation = $2 AND kept_until <= {clock} FOR UPDATE"
            ),
            forget: "INSERT INTO lock_stock_operation (stock, operation, state, reserved, quantity, parts) \
                     VALUES ($1, '', 'F', 0, $2, '') ON DUPLICATE KEY UPDATE quantity = quantity + $2",
            create: "INSERT INTO lock_stock (stock, segments, epoch, initial, restocked) \
                     SELECT $1, $2, 1, $3, 0 FROM DUAL \
                     WHERE NOT EXISTS (SELECT 1 FROM lock_stock WHERE stock = $1)",
            ..Self::common(dialect)
        }
    }

    /// Returns the statements that are alike, and others as PostgreSQL and SQLite have them.
    fn common(dialect: Dialect) -> Self {
        let Dialect { clock, number, for_update, skip_locked, by_key, by_deadline, .. } = dialect;
        let early = dialect.early();
        Self {
            dialect,
            tables: String::new(),
            look: format!(
                "SELECT {clock}, g.segment, g.available, {RECORD}, \
                 CAST(CASE WHEN EXISTS (SELECT 1 FROM lock_stock_operation h WHERE h.stock = $1 AND h.state = 'H' \
                 AND h.deadline < {early}) THEN 1 ELSE 0 END AS {number}) FROM lock_stock s \
                 JOIN lock_stock_segment g ON g.stock = s.stock AND g.active = 1 \
                 LEFT JOIN lock_stock_operation o ON o.stock = s.stock AND o.operation = $2 \
                 WHERE s.stock = $1 ORDER BY g.segment"
            ),
            snapshot: format!(
                "SELECT s.segments, s.epoch, s.initial, s.restocked, \
                 g.segment, g.active, g.available, g.held, g.sold, \
                 CAST(0 AS {number}), CAST(0 AS {number}), CAST(0 AS {number}) FROM lock_stock s \
                 JOIN lock_stock_segment g ON g.stock = s.stock WHERE s.stock = $1 ORDER BY g.segment"
            ),
            audit: format!(
                "SELECT s.segments, s.epoch, s.initial, s.restocked, \
                 g.segment, g.active, g.available, g.held, g.sold, o.h, o.s, o.f FROM lock_stock s \
                 JOIN lock_stock_segment g ON g.stock = s.stock CROSS JOIN (SELECT {}, {}, {} \
                 FROM lock_stock_operation WHERE stock = $1) o WHERE s.stock = $1 ORDER BY g.segment",
                sum("H", "h", number),
                sum("S", "s", number),
                sum("F", "f", number)
            ),
            record: format!(
                "SELECT {RECORD} FROM lock_stock_operation o WHERE o.stock = $1 AND o.operation = $2{for_update}"
            ),
            stock: format!("SELECT {clock}, segments, initial + restocked FROM lock_stock WHERE stock = $1"),
            lock: format!("SELECT 1 FROM lock_stock WHERE stock = $1{for_update}"),
            note: format!(
                "INSERT INTO lock_stock_operation \
                 (stock, operation, state, reserved, quantity, parts, deadline, kept_until) \
                 SELECT $1, $2, $3, $4, $5, $6, t.now + $7, t.now + $8 FROM (SELECT {clock} AS now) t \
                 WHERE t.now <= $9 ON CONFLICT (stock, operation) DO NOTHING"
            ),
            take: "UPDATE lock_stock_segment SET available = available - $3, sold = sold + $4, held = held + $5, \
                   fence = COALESCE($6, fence) WHERE stock = $1 AND segment = $2 AND active = 1 \
                   AND available >= $3 AND fence <= COALESCE($6, fence)",
            set_parts: "UPDATE lock_stock_operation SET parts = $3 WHERE stock = $1 AND operation = $2",
            segment: "SELECT active, available, fence FROM lock_stock_segment WHERE stock = $1 AND segment = $2",
            end: format!(
                "UPDATE lock_stock_operation SET state = $4, kept_until = {clock} + $5 \
                 WHERE stock = $1 AND operation = $2 AND state = $3 AND {clock} <= $6"
            ),
            segments: format!(
                "SELECT segment, active, available FROM lock_stock_segment{by_key} WHERE stock = $1 \
                 ORDER BY segment{for_update}"
            ),
            overdue: format!(
                "SELECT operation, parts FROM lock_stock_operation{by_deadline} WHERE stock = $1 AND state = 'H' \
                 AND deadline < {early} ORDER BY deadline, operation LIMIT $2{skip_locked}"
            ),
            purge: format!(
                "DELETE FROM lock_stock_operation WHERE stock = $1 AND operation IN \
                 (SELECT operation FROM lock_stock_operation WHERE stock = $1 AND state <> 'H' \
                 AND kept_until <= {early} ORDER BY kept_until LIMIT $2{skip_locked}) \
                 RETURNING state, quantity"
            ),
            purge_one: format!(
                "DELETE FROM lock_stock_operation WHERE stock = $1 AND operation = $2 AND kept_until <= {clock} \
                 RETURNING state, quantity"
            ),
            forget: "INSERT INTO lock_stock_operation (stock, operation, state, reserved, quantity, parts) \
                     VALUES ($1, '', 'F', 0, $2, '') ON CONFLICT (stock, operation) DO UPDATE \
                     SET quantity = lock_stock_operation.quantity + excluded.quantity",
            create: "INSERT INTO lock_stock (stock, segments, epoch, initial, restocked) VALUES ($1, $2, 1, $3, 0) \
                     ON CONFLICT (stock) DO NOTHING",
            restock: "UPDATE lock_stock SET restocked = restocked + $2 \
                      WHERE stock = $1 AND initial + restocked <= $3 - $2",
            resize: "UPDATE lock_stock SET segments = $2, epoch = epoch + 1 WHERE stock = $1",
            activate: format!(
                "UPDATE lock_stock_segment{by_key} SET active = CASE WHEN segment < $2 THEN 1 ELSE 0 END \
                 WHERE stock = $1"
            ),
        }
    }

    /// Returns a statement with $2 and on, for each of `count` segments: segment, and the
    /// differences of available, held, sold. No count may end below zero.
    pub(super) fn shift(&self, count: usize) -> String {
        let places = |nth: usize| [2, 3, 4, 5].map(|place| format!("${}", 4 * nth + place));
        if self.dialect.joins_lists {
            let select = |nth| {
                let [segment, available, held, sold] = places(nth);
                format!(
                    "SELECT {segment} AS segment, {available} AS available, {held} AS held, {sold} AS sold"
                )
            };
            let selects: Vec<_> = (0..count).map(select).collect();
            return format!(
                "UPDATE ({}) AS d STRAIGHT_JOIN lock_stock_segment AS g FORCE INDEX (PRIMARY) \
                 ON g.stock = $1 AND g.segment = d.segment SET g.available = g.available + d.available, \
                 g.held = g.held + d.held, g.sold = g.sold + d.sold \
                 WHERE g.available + d.available >= 0 AND g.held + d.held >= 0 AND g.sold + d.sold >= 0",
                selects.join(" UNION ALL ")
            );
        }
        let values: Vec<_> = (0..count).map(|nth| format!("({})", places(nth).join(", "))).collect();
        format!(
            "UPDATE lock_stock_segment SET available = available + d.column2, held = held + d.column3, \
             sold = sold + d.column4 FROM (VALUES {}) AS d WHERE stock = $1 AND segment = d.column1 \
             AND available + d.column2 >= 0 AND held + d.column3 >= 0 AND sold + d.column4 >= 0",
            values.join(", ")
        )
    }

    /// Returns a statement with $2 retention (us), $3 and on: `count` operations, all held and
    /// locked.
    pub(super) fn expire(&self, count: usize) -> String {
        let clock = self.dialect.clock;
        if self.dialect.joins_lists {
            let records = records(3, count);
            return format!(
                "UPDATE {records} SET o.state = 'E', o.kept_until = {clock} + $2 WHERE o.state = 'H'"
            );
        }
        let operations: Vec<_> = (3..count + 3).map(|at| format!("${at}")).collect();
        format!(
            "UPDATE lock_stock_operation SET state = 'E', kept_until = {clock} + $2 \
             WHERE stock = $1 AND state = 'H' AND operation IN ({})",
            operations.join(", ")
        )
    }

    /// Returns a statement with $2 and on: `count` operations, whose records it deletes. `None` if
    /// `purge` and `purge_one` do so themselves.
    pub(super) fn discard(&self, count: usize) -> Option<String> {
        self.dialect.joins_lists.then(|| format!("DELETE o FROM {}", records(2, count)))
    }

    /// Returns a statement with $2 and on, for each of `count` new segments: segment and units.
    pub(super) fn add(count: usize) -> String {
        let values: Vec<_> =
            (0..count).map(|nth| format!("($1, ${}, 1, ${})", 2 * nth + 2, 2 * nth + 3)).collect();
        format!(
            "INSERT INTO lock_stock_segment (stock, segment, active, available) VALUES {}",
            values.join(", ")
        )
    }
}

/// Returns the records of `count` operations, which are the arguments from `first` on, as a join.
fn records(first: usize, count: usize) -> String {
    let operations: Vec<_> = (first..first + count).map(|at| format!("SELECT ${at} AS operation")).collect();
    format!(
        "({}) AS d STRAIGHT_JOIN lock_stock_operation AS o FORCE INDEX (PRIMARY) \
         ON o.stock = $1 AND o.operation = d.operation",
        operations.join(" UNION ALL ")
    )
}
