//! The tables and the statements, in the words of either database.

/// What the databases say differently.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dialect {
    /// Microseconds since the Unix epoch, now: not when the transaction began.
    clock: &'static str,
    for_update: &'static str,
    for_share: &'static str,
    skip_locked: &'static str,
    /// Makes those who create the tables at the same time wait for each other.
    alone: &'static str,
}

impl Dialect {
    /// Its transactions begin with `BEGIN IMMEDIATE`: whoever writes is alone, and locks no rows.
    #[cfg(feature = "sqlite")]
    pub(super) const SQLITE: Self = Self {
        clock: "CAST(ROUND((JULIANDAY('now') - 2440587.5) * 86400000) AS INTEGER) * 1000",
        for_update: "",
        for_share: "",
        skip_locked: "",
        alone: "",
    };

    /// Its transactions are READ COMMITTED, and lock rows before they count on what is in them:
    /// first that of the operation, then the stock's, then those of segments in ascending order, so
    /// that two never wait for each other. A change that has waited for a row looks at the row's
    /// newest version, so conditions in the statement itself are enough where one row decides.
    /// SERIALIZABLE would need no order, but takes on small tables, which are read as a whole,
    /// would be undone for each other although they sell from different segments.
    #[cfg(feature = "postgres")]
    pub(super) const POSTGRES: Self = Self {
        clock: "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)",
        for_update: " FOR UPDATE",
        for_share: " FOR SHARE",
        skip_locked: " FOR UPDATE SKIP LOCKED",
        alone: "SELECT pg_advisory_xact_lock(7236834781);",
    };
}

/// `initial + restocked` of a stock is, in all its segments, `available + held + sold`.
///
/// lock_stock: segments that take part in sales (0 to segments - 1), epoch (raised by every change
/// of their number), what was put in. lock_stock_segment: fence, the largest token that has sold
/// here; active, 0 in one that a resize has retired. lock_stock_operation: one row for each
/// operation; and with an empty name and state F one whose quantity is what was sold by operations
/// whose rows are gone. State S sold, H held, C cancelled, E expired, B given back, N cancelled
/// before it came, R restocked; reserved 1 by `reserve`; parts `<segment>:<units> …`; deadline of
/// what is reserved; kept_until, unset while it is held. Times are microseconds since the Unix
/// epoch by the database's clock.
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

/// `$1` is the stock in all of them.
#[derive(Debug)]
pub(super) struct Statements {
    now: &'static str,
    /// Creates what is missing.
    pub(super) tables: String,
    /// now
    pub(super) clock: String,
    /// $2 operation. For each active segment: now, segments, segment, available, and the
    /// operation's record.
    pub(super) look: String,
    /// For each segment: segments, epoch, initial, restocked, segment, active, available, held,
    /// sold; and three zeros.
    pub(super) snapshot: &'static str,
    /// The same, and what the records hold, have sold, and had sold before they were forgotten.
    pub(super) audit: String,
    /// $2 operation. Its record, locked.
    pub(super) record: String,
    /// now, segments, initial + restocked of the stock; as it is, kept from changing, and locked.
    pub(super) stock: String,
    pub(super) stock_shared: String,
    pub(super) stock_locked: String,
    /// $2 operation, $3 state, $4 reserved, $5 quantity, $6 parts, $7 hold, $8 retention (us), $9
    /// latest time. Changes nothing when it is late, or the operation has a record.
    pub(super) note: String,
    /// $2 segment, $3 quantity, $4 of it sold, $5 of it held, $6 token. Changes nothing unless the
    /// segment is active, has enough, and has seen no larger token.
    pub(super) take: &'static str,
    /// $2 segment. active, available, fence.
    pub(super) segment: &'static str,
    /// $2 operation, $3 state before, $4 state after, $5 retention (us), $6 latest time.
    pub(super) end: String,
    /// segment, active, available of all segments, locked.
    pub(super) segments: String,
    /// $2 how many. operation, parts of reservations that are over, locked; those that somebody
    /// else ends just now are left to him. The clock is a query of its own here and in `purge`: an
    /// index is not searched for what is volatile.
    pub(super) overdue: String,
    /// $2 how many. Throws records away whose time is over; state, quantity of each.
    pub(super) purge: String,
    /// $2 operation. Throws its record away if its time is over; state, quantity.
    pub(super) purge_one: String,
    /// $2 units. Adds them to those that were sold by records that are thrown away.
    pub(super) forget: &'static str,
    /// $2 segments, $3 initial. Changes nothing when the stock is there.
    pub(super) create: &'static str,
    /// $2 how many more, $3 the largest total.
    pub(super) restock: &'static str,
    /// $2 segments.
    pub(super) resize: &'static str,
    /// $2 segments.
    pub(super) activate: &'static str,
}

/// The units of all records in this state.
fn sum(state: &str, name: &str) -> String {
    format!("CAST(COALESCE(SUM(CASE WHEN state = '{state}' THEN quantity END), 0) AS BIGINT) AS {name}")
}

/// What there is of an operation.
const RECORD: &str = "o.state, o.reserved, o.quantity, o.parts, o.deadline, o.kept_until";

impl Statements {
    pub(super) fn new(dialect: Dialect) -> Self {
        let Dialect { clock, for_update, for_share, skip_locked, alone } = dialect;
        let stock = format!("SELECT {clock}, segments, initial + restocked FROM lock_stock WHERE stock = $1");
        Self {
            now: clock,
            tables: format!("{alone}{TABLES}"),
            clock: format!("SELECT {clock}"),
            look: format!(
                "SELECT {clock}, s.segments, g.segment, g.available, {RECORD}, \
                 CAST(CASE WHEN EXISTS (SELECT 1 FROM lock_stock_operation h WHERE h.stock = $1 AND h.state = 'H' \
                 AND h.deadline < (SELECT {clock})) THEN 1 ELSE 0 END AS BIGINT) FROM lock_stock s \
                 JOIN lock_stock_segment g ON g.stock = s.stock AND g.active = 1 \
                 LEFT JOIN lock_stock_operation o ON o.stock = s.stock AND o.operation = $2 \
                 WHERE s.stock = $1 ORDER BY g.segment"
            ),
            snapshot: "SELECT s.segments, s.epoch, s.initial, s.restocked, \
                       g.segment, g.active, g.available, g.held, g.sold, \
                       CAST(0 AS BIGINT), CAST(0 AS BIGINT), CAST(0 AS BIGINT) FROM lock_stock s \
                       JOIN lock_stock_segment g ON g.stock = s.stock WHERE s.stock = $1 ORDER BY g.segment",
            audit: format!(
                "SELECT s.segments, s.epoch, s.initial, s.restocked, \
                 g.segment, g.active, g.available, g.held, g.sold, o.h, o.s, o.f FROM lock_stock s \
                 JOIN lock_stock_segment g ON g.stock = s.stock CROSS JOIN (SELECT {}, {}, {} \
                 FROM lock_stock_operation WHERE stock = $1) o WHERE s.stock = $1 ORDER BY g.segment",
                sum("H", "h"),
                sum("S", "s"),
                sum("F", "f")
            ),
            record: format!(
                "SELECT {RECORD} FROM lock_stock_operation o WHERE o.stock = $1 AND o.operation = $2{for_update}"
            ),
            stock_shared: format!("{stock}{for_share}"),
            stock_locked: format!("{stock}{for_update}"),
            stock,
            note: format!(
                "INSERT INTO lock_stock_operation \
                 (stock, operation, state, reserved, quantity, parts, deadline, kept_until) \
                 SELECT $1, $2, $3, $4, $5, $6, t.now + $7, t.now + $8 FROM (SELECT {clock} AS now) t \
                 WHERE t.now <= $9 ON CONFLICT (stock, operation) DO NOTHING"
            ),
            take: "UPDATE lock_stock_segment SET available = available - $3, sold = sold + $4, held = held + $5, \
                   fence = COALESCE($6, fence) WHERE stock = $1 AND segment = $2 AND active = 1 \
                   AND available >= $3 AND fence <= COALESCE($6, fence)",
            segment: "SELECT active, available, fence FROM lock_stock_segment WHERE stock = $1 AND segment = $2",
            end: format!(
                "UPDATE lock_stock_operation SET state = $4, kept_until = {clock} + $5 \
                 WHERE stock = $1 AND operation = $2 AND state = $3 AND {clock} <= $6"
            ),
            segments: format!(
                "SELECT segment, active, available FROM lock_stock_segment WHERE stock = $1 \
                 ORDER BY segment{for_update}"
            ),
            overdue: format!(
                "SELECT operation, parts FROM lock_stock_operation WHERE stock = $1 AND state = 'H' \
                 AND deadline < (SELECT {clock}) ORDER BY deadline, operation LIMIT $2{skip_locked}"
            ),
            purge: format!(
                "DELETE FROM lock_stock_operation WHERE stock = $1 AND operation IN \
                 (SELECT operation FROM lock_stock_operation WHERE stock = $1 AND state <> 'H' \
                 AND kept_until <= (SELECT {clock}) ORDER BY kept_until LIMIT $2{skip_locked}) \
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
            activate: "UPDATE lock_stock_segment SET active = CASE WHEN segment < $2 THEN 1 ELSE 0 END \
                       WHERE stock = $1",
        }
    }

    /// $2 and on, for each of so many segments: segment, and the differences of available, held,
    /// sold; none ends below zero.
    pub(super) fn shift(count: usize) -> String {
        let value = |at: usize| format!("(${}, ${}, ${}, ${})", at, at + 1, at + 2, at + 3);
        let values: Vec<_> = (0..count).map(|nth| value(4 * nth + 2)).collect();
        format!(
            "UPDATE lock_stock_segment SET available = available + d.column2, held = held + d.column3, \
             sold = sold + d.column4 FROM (VALUES {}) AS d WHERE stock = $1 AND segment = d.column1 \
             AND available + d.column2 >= 0 AND held + d.column3 >= 0 AND sold + d.column4 >= 0",
            values.join(", ")
        )
    }

    /// $2 retention (us), $3 and on: so many operations, all held and locked.
    pub(super) fn expire(&self, count: usize) -> String {
        let operations: Vec<_> = (3..count + 3).map(|at| format!("${at}")).collect();
        format!(
            "UPDATE lock_stock_operation SET state = 'E', kept_until = {} + $2 \
             WHERE stock = $1 AND state = 'H' AND operation IN ({})",
            self.now,
            operations.join(", ")
        )
    }

    /// $2 and on, for each of so many new segments: segment and units.
    pub(super) fn add(count: usize) -> String {
        let values: Vec<_> =
            (0..count).map(|nth| format!("($1, ${}, 1, ${})", 2 * nth + 2, 2 * nth + 3)).collect();
        format!(
            "INSERT INTO lock_stock_segment (stock, segment, active, available) VALUES {}",
            values.join(", ")
        )
    }
}
