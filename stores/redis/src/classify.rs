//! Turns errors of the client library into [`StoreError`]s, with kind and address and without
//! secrets.

use lock_core::store::{StoreError, StoreErrorKind};
use redis::{ConnectionInfo, ErrorKind, RedisError, ServerError};

use super::url::Sentinels;

/// The server's address for messages, and the secrets that must not appear in them.
#[derive(Clone)]
pub(super) struct Address {
    text: String,
    secrets: Vec<String>,
    /// Whether another server takes over the address when this one becomes a replica.
    moves: bool,
    /// Whether the next connection may have other credentials.
    changes: bool,
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Address {
    pub(super) fn new(info: &ConnectionInfo) -> Self {
        Self {
            text: info.addr().to_string(),
            secrets: secret(info).into_iter().collect(),
            moves: false,
            changes: false,
        }
    }

    /// Sets whether a login that is refused may succeed at the next connection.
    pub(super) fn that_changes(self, changes: bool) -> Self {
        Self { changes, ..self }
    }

    /// Whether the server rejects the login of this connection while the next one logs in anew.
    pub(super) fn is_logged_out(&self, code: &str) -> bool {
        self.changes && matches!(code, "NOAUTH" | "WRONGPASS")
    }

    /// Returns the address of whichever server is the primary.
    pub(super) fn of_sentinels(sentinels: &Sentinels) -> Self {
        let Sentinels { peers, master, template } = sentinels;
        let places: Vec<String> = peers.iter().map(|peer| peer.addr().to_string()).collect();
        let secrets = peers.iter().chain([template]).filter_map(secret).collect();
        Self {
            text: format!("{master} (sentinels {})", places.join(", ")),
            secrets,
            moves: true,
            changes: false,
        }
    }

    /// Returns an error of this kind with passwords removed from `what`.
    pub(super) fn error(&self, kind: StoreErrorKind, what: impl AsRef<str>) -> StoreError {
        let mut what = what.as_ref().to_owned();
        for secret in &self.secrets {
            if what.contains(secret.as_str()) {
                what = what.replace(secret.as_str(), "***");
            }
        }
        StoreError::new(kind, format!("Redis at {}: {what}", self.text))
    }

    /// Returns the error for a request whose time was over before it was sent.
    pub(super) fn no_time(&self) -> StoreError {
        self.error(StoreErrorKind::Unreachable, "no time was left to send the request")
    }

    /// Returns the error for a connection that could not be made: nothing was executed.
    pub(super) fn connect_error(&self, error: &RedisError) -> StoreError {
        match error.kind() {
            ErrorKind::RESP3NotSupported => self.error(
                StoreErrorKind::Unsupported,
                "the server, or a proxy in front of it, does not support HELLO 3, which RESP3 needs; use Redis or \
                 Valkey, 6.2 or newer, without a proxy",
            ),
            ErrorKind::AuthenticationFailed => {
                let kind = if self.changes { StoreErrorKind::NotReady } else { StoreErrorKind::Denied };
                self.error(kind, error.to_string())
            }
            ErrorKind::InvalidClientConfig => self.error(StoreErrorKind::Unsupported, advised(error)),
            ErrorKind::Server(_) | ErrorKind::Extension => self.answer(
                error.code().unwrap_or("ERR"),
                error.detail().map_or_else(|| error.to_string(), str::to_owned).as_str(),
            ),
            // A proxy may answer like this for a moment, and an answer may be cut off.
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => self.error(
                StoreErrorKind::Unreachable,
                format!("this address does not answer like a Redis server: {}", in_one_line(error)),
            ),
            _ => self.error(StoreErrorKind::Unreachable, format!("no connection: {}", advised(error))),
        }
    }

    /// Returns the error for a connection that broke during a call, which may or may not have been
    /// executed.
    pub(super) fn broken(&self, error: &RedisError) -> StoreError {
        self.error(StoreErrorKind::Unanswered, format!("the connection broke before an answer came: {error}"))
    }

    /// Returns the error for an error answer of the server.
    pub(super) fn refused(&self, error: &ServerError) -> StoreError {
        self.answer(error.code(), error.details().unwrap_or_default())
    }

    /// Returns the error for an error answer that starts with `code`.
    pub(super) fn answer(&self, code: &str, detail: &str) -> StoreError {
        let (code, detail) = innermost(code, detail);
        let kind = match kind_of(code, detail) {
            StoreErrorKind::ReadOnly if self.moves => StoreErrorKind::NotReady,
            StoreErrorKind::Denied if self.is_logged_out(code) => StoreErrorKind::NotReady,
            kind => kind,
        };
        let hint = match (kind, code) {
            (StoreErrorKind::NotReady, "NOAUTH" | "WRONGPASS") => {
                "; the next connection asks the credentials provider again"
            }
            (StoreErrorKind::NotReady, "READONLY") => {
                "; the server is a replica now, so the sentinels are asked for the primary"
            }
            (StoreErrorKind::ReadOnly, _) => "; locks need the primary, but this server is a replica",
            (StoreErrorKind::Full, "MISCONF") => {
                "; its last save to disk failed, so it refuses writes: check its log and its free disk space"
            }
            (StoreErrorKind::Full, _) => "; it refuses writes until memory is free",
            (StoreErrorKind::ForeignData, "WRONGTYPE") => {
                "; the key of the lock, or of its fencing counter, has data of another kind; use another key or \
                 prefix"
            }
            (StoreErrorKind::ForeignData, _) => "; the counter is not an integer that can be incremented",
            (StoreErrorKind::Unsupported, "MOVED" | "ASK" | "CROSSSLOT") => {
                "; this is a Redis Cluster: write redis+cluster://host:port, or rediss+cluster:// with TLS"
            }
            (StoreErrorKind::Denied, "NOAUTH") => {
                "; the server needs a password; put it into the URL: redis://:password@host, or with a user \
                 redis://user:password@host"
            }
            (StoreErrorKind::Denied, "WRONGPASS") => "; check the user and password in the URL",
            (StoreErrorKind::Unsupported, "ERR") if detail.contains("DB index") => {
                "; the URL ends in a database number that the server does not have"
            }
            (StoreErrorKind::Unsupported, "ERR") if is_unknown_command(detail) => {
                "; the server is too old, has disabled the command, or is a sentinel, whose address is \
                 redis+sentinel://host:26379/master"
            }
            _ => "",
        };
        let detail = if hint.is_empty() { detail } else { detail.trim_end_matches('.') };
        self.error(kind, format!("{code} {detail}{hint}"))
    }
}

fn secret(info: &ConnectionInfo) -> Option<String> {
    info.redis_settings().password().filter(|secret| !secret.is_empty()).map(str::to_owned)
}

/// Whether the server says that it is a replica.
pub(super) fn is_replica(error: &ServerError) -> bool {
    let (code, detail) = innermost(error.code(), error.details().unwrap_or_default());
    kind_of(code, detail) == StoreErrorKind::ReadOnly
}

/// Joins the lines of a parser's error, since a log entry should have one.
fn in_one_line(error: &RedisError) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the text of the error, with advice if it is about a certificate.
fn advised(error: &RedisError) -> String {
    let text = error.to_string();
    // In this order: rustls, OpenSSL (older and newer), macOS, Windows.
    const UNTRUSTED: [&str; 5] = [
        "UnknownIssuer",
        "self signed certificate",
        "self-signed certificate",
        "issuer certificate",
        "not trusted",
    ];
    // The client's message when it cannot honour `#insecure`.
    const INSECURE: &str = "tls-rustls-insecure";
    let start = if text.contains(INSECURE) {
        "; `#insecure` with rustls needs the feature `tls-rustls-insecure` of the crate `redis`. Better:"
    } else if UNTRUSTED.iter().any(|words| text.contains(words)) {
        ";"
    } else {
        return text;
    };
    let advice = if cfg!(all(feature = "tls-rustls", feature = "tls-native")) {
        "leave out one of the features `tls-rustls` and `tls-native`; with both the Redis client reads no certificate \
         store. Or give `connect_client` a client from `redis::Client::build_with_tls`"
    } else {
        "add the server's certificate authority to the system's certificate store, to the file in SSL_CERT_FILE, or \
         to a client from `redis::Client::build_with_tls` for `connect_client`"
    };
    format!("{text}{start} {advice}")
}

/// Extracts the error of a command inside a script. Redis 7 puts the command's code first and
/// appends ` script: sha, on @user_script:12.`. Redis 6.2 puts `@user_script: 12: -` before the
/// code, and more before that if the script did not catch the error.
fn innermost<'a>(code: &'a str, detail: &'a str) -> (&'a str, &'a str) {
    if let Some((detail, _)) = detail.split_once(" script: ") {
        return (code, detail);
    }
    let inner = match detail.rsplit_once("@user_script") {
        Some((_, inner)) => inner,
        None if code.starts_with("@user_script") => detail,
        None => return (code, detail),
    };
    let inner = inner.trim_start_matches(|c: char| matches!(c, ':' | ' ' | '-') || c.is_ascii_digit());
    match inner.split_once(' ') {
        Some((code, detail)) if code.bytes().all(|byte| byte.is_ascii_uppercase()) => (code, detail),
        _ => ("ERR", inner),
    }
}

/// Whether a command is unknown, in the server's words outside and inside a script.
fn is_unknown_command(detail: &str) -> bool {
    detail.contains("unknown command") || detail.contains("Unknown Redis command")
}

fn kind_of(code: &str, detail: &str) -> StoreErrorKind {
    match code {
        "LOADING" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "NOREPLICAS" => {
            StoreErrorKind::NotReady
        }
        "ERR" if detail.contains("max number of clients") => StoreErrorKind::NotReady,
        "READONLY" => StoreErrorKind::ReadOnly,
        "OOM" | "MISCONF" => StoreErrorKind::Full,
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" => StoreErrorKind::Denied,
        // The wording inside a script.
        "ERR" if detail.starts_with("The user executing the script can't") => StoreErrorKind::Denied,
        "WRONGTYPE" | "LOCKTOKEN" => StoreErrorKind::ForeignData,
        // Only counters, permits and latches are incremented.
        "ERR" if detail.contains("would overflow") || detail.contains("not an integer") => {
            StoreErrorKind::ForeignData
        }
        "MOVED" | "ASK" | "CROSSSLOT" | "NOPROTO" => StoreErrorKind::Unsupported,
        // Inside a script only the text tells that a slot is moving, or that no server has it.
        "ERR" if detail.contains("a non local key") || detail.contains("while the cluster is down") => {
            StoreErrorKind::NotReady
        }
        "ERR" if is_unknown_command(detail) || detail.contains("DB index") => StoreErrorKind::Unsupported,
        _ => StoreErrorKind::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Address {
        let client = redis::Client::open("redis://ann:hunter2@127.0.0.1:6399/3").unwrap();
        Address::new(client.get_connection_info())
    }

    #[test]
    fn every_answer_has_its_kind() {
        use StoreErrorKind::*;
        for (answer, kind) in [
            ("LOADING Redis is loading the dataset in memory", NotReady),
            ("BUSY Redis is busy running a script", NotReady),
            ("TRYAGAIN Multiple keys request during rehashing of slot", NotReady),
            ("CLUSTERDOWN The cluster is down", NotReady),
            ("MASTERDOWN Link with MASTER is down", NotReady),
            ("ERR max number of clients reached", NotReady),
            ("READONLY You can't write against a read only replica.", ReadOnly),
            ("OOM command not allowed when used memory > 'maxmemory'.", Full),
            ("NOAUTH Authentication required.", Denied),
            ("WRONGPASS invalid username-password pair or user is disabled.", Denied),
            ("NOPERM this user has no permissions to run the 'evalsha' command", Denied),
            ("ERR The user executing the script can't run this command or subcommand", Denied),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", ForeignData),
            ("LOCKTOKEN not a counter", ForeignData),
            ("ERR increment or decrement would overflow", ForeignData),
            ("MISCONF Redis is configured to save RDB snapshots", Full),
            ("MOVED 3999 127.0.0.1:6381", Unsupported),
            ("ERR Script attempted to access a non local key in a cluster node", NotReady),
            ("ERR Script attempted to execute a command while the cluster is down", NotReady),
            ("ERR Unknown Redis command called from script", Unsupported),
            ("ERR DB index is out of range", Unsupported),
            ("ERR something else", Refused),
        ] {
            let (code, detail) = answer.split_once(' ').unwrap();
            let error = address().answer(code, detail);
            assert_eq!(error.kind(), kind, "{answer}");
            assert!(error.to_string().contains("127.0.0.1:6399"), "{error}");
            assert!(error.to_string().contains(answer.trim_end_matches('.')), "{error}");
        }
    }

    #[test]
    fn errors_inside_scripts_are_unwrapped() {
        let old = "Error running script (call to f_0af): @user_script:12: @user_script: 12: OOM command not allowed \
                   when used memory > 'maxmemory'.";
        let error = address().answer("ERR", old);
        assert_eq!(error.kind(), StoreErrorKind::Full);
        assert!(!error.to_string().contains("user_script"), "{error}");

        let caught = "10: -READONLY You can't write against a read only replica.";
        assert_eq!(address().answer("@user_script:", caught).kind(), StoreErrorKind::ReadOnly);
        let denied = "104: The user executing the script can't run this command or subcommand";
        assert_eq!(address().answer("@user_script:", denied).kind(), StoreErrorKind::Denied);

        let new = "Operation against a key holding the wrong kind of value script: 0af, on @user_script:34.";
        let error = address().answer("WRONGTYPE", new);
        assert_eq!(error.kind(), StoreErrorKind::ForeignData);
        assert!(!error.to_string().contains("user_script"), "{error}");
    }

    #[test]
    fn errors_about_certificates_say_what_to_do() {
        let refused = |what: &str| address().connect_error(&std::io::Error::other(what).into()).to_string();
        for what in [
            "invalid peer certificate: UnknownIssuer",
            "certificate verify failed: (self signed certificate in certificate chain)",
            "certificate verify failed: (self-signed certificate)",
            "certificate verify failed: (unable to get local issuer certificate)",
            "The certificate was not trusted.",
        ] {
            let error = refused(what);
            assert!(error.contains(what) && error.contains("`connect_client`"), "{error}");
        }
        assert!(!refused("Connection refused").contains("`connect_client`"));
    }

    #[test]
    fn the_password_is_never_in_an_error() {
        let echo = "unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `ann`, `hunter2`";
        let error = address().answer("ERR", echo);
        assert!(!error.to_string().contains("hunter2"), "{error}");
        assert!(!format!("{error:?} {:?}", address()).contains("hunter2"));
    }
}
