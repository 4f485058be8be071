//! Addresses of SQL databases. Errors never repeat what may be a secret.

#[cfg(any(feature = "mysql", feature = "postgres"))]
use std::str::FromStr;

use lock_core::store::{StoreError, StoreErrorKind};
#[cfg(feature = "mysql")]
use sqlx::mysql::MySqlConnectOptions;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnectOptions;
#[cfg(feature = "sqlite")]
use sqlx::sqlite::SqliteConnectOptions;

/// The form of addresses of one kind of server.
#[cfg(any(feature = "mysql", feature = "postgres"))]
struct Form {
    database: &'static str,
    example: &'static str,
    /// Options besides `options[NAME]`.
    options: &'static [&'static str],
    /// The option that says whether TLS is used, and its values.
    tls: (&'static str, &'static [&'static str]),
}

#[cfg(feature = "postgres")]
const POSTGRES: Form = Form {
    database: "PostgreSQL",
    example: "`postgres://user:password@host:port/database?sslmode=require`",
    options: &[
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
    ],
    tls: ("sslmode", &["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]),
};

#[cfg(feature = "mysql")]
const MYSQL: Form = Form {
    database: "MariaDB",
    example: "`mysql://user:password@host:port/database?ssl-mode=REQUIRED`",
    options: &["ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "socket"],
    tls: ("ssl-mode", &["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"]),
};

/// Our own option, which sqlx does not know: whether a pooler of transactions is in front of the
/// server.
#[cfg(feature = "postgres")]
const POOLER: &str = "pooler";

#[cfg(any(feature = "mysql", feature = "postgres"))]
impl Form {
    /// Returns the part before the options, and the options, if they are known ones.
    fn split<'a>(&self, url: &'a str) -> Result<(&'a str, Vec<&'a str>), StoreError> {
        let Self { database, example, options, tls: (tls, modes) } = *self;
        let refuse = |what: String| Err(refusal(database, &what));
        if url.contains('#') {
            return refuse(format!("has a `#`; in user and password, write `%23`, as in {example}"));
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let authority = base.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or(""));
        if authority.rsplit('@').next().is_some_and(|hosts| hosts.contains(',')) {
            return refuse(format!("names several hosts; name the one that takes writes, as in {example}"));
        }
        let pairs: Vec<_> = query.split('&').filter(|pair| !pair.is_empty()).collect();
        for pair in &pairs {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let is_setting = options.contains(&"options") && name.starts_with("options[");
            if !options.contains(&name) && !is_setting {
                let settings = if options.contains(&"options") { " and `options[NAME]`" } else { "" };
                let accepted = options.join("`, `");
                return refuse(format!(
                    "has an option that is not known; accepted are `{accepted}`{settings}"
                ));
            }
            if name == tls && !modes.contains(&value) {
                return refuse(format!("has an unknown `{tls}`; write one of `{}`", modes.join("`, `")));
            }
        }
        Ok((base, pairs))
    }

    fn parsed<T: FromStr<Err = sqlx::Error>>(&self, url: &str) -> Result<T, StoreError> {
        url.parse().map_err(|error| {
            let reason = match error {
                // Texts about a part of the address, without its content.
                sqlx::Error::Configuration(reason) => format!(" ({reason})"),
                _ => String::new(),
            };
            let what = format!(
                "is not understood{reason}; write {}, with special characters in user and password percent-encoded",
                self.example
            );
            refusal(self.database, &what)
        })
    }
}

/// Reads `postgres://…` or `postgresql://…`. Returns whether a pooler is in front of the server,
/// too.
#[cfg(feature = "postgres")]
pub(super) fn postgres(url: &str) -> Result<(PgConnectOptions, bool), StoreError> {
    let (base, pairs) = POSTGRES.split(url)?;
    let (mut kept, mut is_pooled) = (Vec::new(), false);
    for pair in pairs {
        match pair.split_once('=').unwrap_or((pair, "")) {
            (POOLER, "true") => is_pooled = true,
            (POOLER, "false") => is_pooled = false,
            (POOLER, _) => {
                let what = "has an unknown `pooler`; write `pooler=true` for PgBouncer";
                return Err(refusal(POSTGRES.database, what));
            }
            _ => kept.push(pair),
        }
    }
    let known = [base, &kept.join("&")].join(if kept.is_empty() { "" } else { "?" });
    Ok((POSTGRES.parsed(&known)?, is_pooled))
}

/// Reads `mysql://…` or `mariadb://…`.
#[cfg(feature = "mysql")]
pub(super) fn mysql(url: &str) -> Result<MySqlConnectOptions, StoreError> {
    MYSQL.split(url)?;
    let options: MySqlConnectOptions = MYSQL.parsed(url)?;
    if options.get_database().is_none() {
        let what = format!("names no database; write {}", MYSQL.example);
        return Err(refusal(MYSQL.database, &what));
    }
    Ok(options)
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
