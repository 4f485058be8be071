//! Addresses of SQL databases. Errors never repeat what may be a secret.

use lock_core::store::{StoreError, StoreErrorKind};
#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnectOptions;
#[cfg(feature = "sqlite")]
use sqlx::sqlite::SqliteConnectOptions;

/// The form of an address of PostgreSQL.
#[cfg(feature = "postgres")]
const POSTGRES: &str = "`postgres://user:password@host:port/database?sslmode=require`";

/// Options of an address of PostgreSQL, besides `options[NAME]`.
#[cfg(feature = "postgres")]
const OPTIONS: [&str; 12] = [
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "host",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
    POOLER,
];

/// Our own option, which sqlx does not know: whether a pooler of transactions is in front of the
/// server.
#[cfg(feature = "postgres")]
const POOLER: &str = "pooler";

/// Values of `sslmode`.
#[cfg(feature = "postgres")]
const MODES: [&str; 6] = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];

/// Reads `postgres://…` or `postgresql://…`. Returns whether a pooler is in front of the server,
/// too.
#[cfg(feature = "postgres")]
pub(super) fn postgres(url: &str) -> Result<(PgConnectOptions, bool), StoreError> {
    let refuse = |what: String| Err(refusal("PostgreSQL", &what));
    if url.contains('#') {
        return refuse(format!("has a `#`; in user and password, write `%23`, as in {POSTGRES}"));
    }
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let authority = base.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or(""));
    if authority.rsplit('@').next().is_some_and(|hosts| hosts.contains(',')) {
        return refuse(format!("names several hosts; name the one that takes writes, as in {POSTGRES}"));
    }
    let (mut kept, mut is_pooled) = (Vec::new(), false);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !OPTIONS.contains(&name) && !name.starts_with("options[") {
            let accepted = OPTIONS.join("`, `");
            return refuse(format!(
                "has an option that is not known; accepted are `{accepted}` and `options[NAME]`"
            ));
        }
        if name == "sslmode" && !MODES.contains(&value) {
            return refuse(format!("has an unknown `sslmode`; write one of `{}`", MODES.join("`, `")));
        }
        if name != POOLER {
            kept.push(pair);
        } else if let "true" | "false" = value {
            is_pooled = value == "true";
        } else {
            return refuse("has an unknown `pooler`; write `pooler=true` for PgBouncer".to_owned());
        }
    }
    let known = [base, &kept.join("&")].join(if kept.is_empty() { "" } else { "?" });
    let options = known.parse().map_err(|error| {
        let reason = match error {
            // Texts about a part of the address, without its content.
            sqlx::Error::Configuration(reason) => format!(" ({reason})"),
            _ => String::new(),
        };
        let what = format!(
            "is not understood{reason}; write {POSTGRES}, with special characters in user and password \
             percent-encoded"
        );
        refusal("PostgreSQL", &what)
    })?;
    Ok((options, is_pooled))
}

/// Reads `sqlite:FILE` or `sqlite://FILE`.
#[cfg(feature = "sqlite")]
pub(super) fn sqlite(url: &str) -> Result<SqliteConnectOptions, StoreError> {
    let refuse = |what: &str| Err(refusal("SQLite", what));
    let (file, query) = url.split_once('?').unwrap_or((url, ""));
    if matches!(file.strip_prefix("sqlite:"), Some("" | "//")) {
        return refuse("names no file; write `sqlite:locks.db` or `sqlite:///var/lib/shop/locks.db`");
    }
    if !matches!(query, "" | "mode=rwc") {
        return refuse("has an option that is not known; accepted is `mode=rwc`, which is the default here");
    }
    url.parse().or_else(|_| {
        refuse("is not understood; write `sqlite:locks.db`, with special characters percent-encoded")
    })
}

fn refusal(database: &str, what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unsupported, format!("the {database} address {what}"))
}
