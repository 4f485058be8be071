//! [`ZooKeeperStore`]: how an ensemble is opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{Abilities, StoreError, StoreErrorKind};
use lock_store_sequences::{ABILITIES as OF_SEQUENCES, Address, Files, Sequences, Settings};
use zookeeper_client::Client;
#[cfg(not(feature = "tls"))]
use zookeeper_client::Connector;

use crate::certain::longest_lease;
use crate::link::Ensemble;
use crate::steps::ZooKeeper;
#[cfg(feature = "tls")]
use crate::tls::with_tls;

/// One manager's handle on an ensemble of ZooKeeper.
pub type ZooKeeperStore = Sequences<ZooKeeper>;

/// The features of locks in ZooKeeper.
const ABILITIES: Abilities = Abilities {
    name: "the ZooKeeper store",
    downgrade: true,
    // An entry has 1024 in all, and may be granted its lock several times.
    most_tokens: 256,
    // Entries of a process that has died end with its session.
    waiter_life: Duration::from_secs(3),
    ..OF_SEQUENCES
};

/// The port of ZooKeeper.
const PORT: u16 = 2181;

/// The longest time-out that servers grant by default: 20 ticks of two seconds.
const TIMEOUT: Duration = Duration::from_secs(40);

/// The longest tick of servers in use.
const TICK: Duration = Duration::from_secs(3);

/// Silence after which a connection counts as broken, at most. The client sends three pings in it.
const SILENCE: Duration = Duration::from_secs(4);

/// In front of a host, tells the client to use TLS.
pub(crate) const TLS: &str = "tcp+tls://";

/// The address of an ensemble.
#[derive(Clone)]
pub struct Target {
    hosts: String,
    /// User and password.
    login: Option<String>,
    /// For `zookeepers://`.
    tls: Option<Files>,
    root: String,
    timeout: Duration,
    tick: Duration,
}

impl Target {
    /// Reads `zookeeper://[user:password@]h1[:2181],h2[:port]/[path][?timeout=40s&tick=3s]`, or
    /// `zookeepers://…` with TLS and the options `ca=FILE`, `cert=FILE` and `key=FILE`.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Unsupported`] with a text that has no part of the address, because that
    /// may be a secret.
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        let Address { scheme, login, hosts, path, options } =
            Address::parse(url, &["zookeeper", "zookeepers"]).map_err(refused)?;
        let mut tls = (scheme == "zookeepers").then(Files::default);
        let (mut timeout, mut tick) = (None, None);
        for (name, value) in options {
            let option = match (name.as_str(), &mut tls) {
                ("timeout", _) => &mut timeout,
                ("tick", _) => &mut tick,
                (_, Some(tls)) => {
                    let unknown = "has an option that is not known: there are `timeout`, `tick`, `ca`, `cert` and `key`";
                    tls.set(&name, value).unwrap_or(Err(unknown)).map_err(refused)?;
                    continue;
                }
                (_, None) => {
                    return Err(refused(
                        "has an option that is not known: there are `timeout` and `tick`, others need `zookeepers://`",
                    ));
                }
            };
            if option.is_some() {
                return Err(refused("has an option twice"));
            }
            *option =
                Some(time(&value).ok_or_else(|| refused("has an option that is no time, such as `40s`"))?);
        }
        tls.as_ref().map_or(Ok(()), Files::check).map_err(refused)?;
        let (timeout, tick) = (timeout.unwrap_or(TIMEOUT), tick.unwrap_or(TICK));
        if longest_lease(timeout, tick) < ABILITIES.shortest_lease {
            return Err(refused("has a `timeout` that is not much longer than three times the `tick`"));
        }
        let path = path.trim_matches('/');
        if path.split('/').any(|part| matches!(part, "." | "..") || (part.is_empty() && !path.is_empty())) {
            return Err(refused("has a path with an empty part, `.` or `..`"));
        }
        let protocol = if tls.is_some() { TLS } else { "" };
        let hosts = hosts.iter().map(|(name, port)| format!("{protocol}{name}:{}", port.unwrap_or(PORT)));
        let hosts: Vec<_> = hosts.collect();
        Ok(Self {
            hosts: hosts.join(","),
            login: login.map(|(user, password)| format!("{user}:{password}")),
            tls,
            root: if path.is_empty() { "/".to_owned() } else { format!("/{path}/") },
            timeout,
            tick,
        })
    }
}

/// Shows no part of it, because that may be a secret.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").finish_non_exhaustive()
    }
}

#[cfg(not(feature = "tls"))]
fn with_tls(_: Connector, _: &Files, _: &str) -> Result<Connector, StoreError> {
    Err(refused("needs TLS; switch on the feature `zookeeper-tls` of lock-runtime"))
}

/// Reads a number of seconds or milliseconds, such as `40s` or `500ms`.
fn time(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u32 = digits.parse().ok().filter(|number| *number > 0)?;
    match text.strip_prefix(digits) {
        Some("ms") => Some(Duration::from_millis(number.into())),
        Some("s") => Some(Duration::from_secs(number.into())),
        _ => None,
    }
}

fn refused(why: &str) -> StoreError {
    let text = format!(
        "the ZooKeeper address is not understood: it {why}; write `zookeeper://user:password@h1:2181,h2,h3/path`, \
         or `zookeepers://…` with TLS, with special characters percent-encoded"
    );
    StoreError::new(StoreErrorKind::Unsupported, text)
}

/// Opens an ensemble. Reads the files of certificates, and connects on first use.
///
/// # Errors
///
/// [`StoreErrorKind::Unsupported`] when a file can't be used.
pub fn open(target: Target, settings: &Settings) -> Result<Arc<ZooKeeperStore>, StoreError> {
    let Target { hosts, login, tls, root, timeout, tick } = target;
    let mut connector = Client::connector()
        .with_session_timeout(timeout)
        .with_connection_timeout(SILENCE.min(timeout / 4))
        .with_fail_eagerly();
    let login = match (login, &tls) {
        (Some(login), None) => {
            connector = connector.with_auth("digest", login.as_bytes());
            None
        }
        // A server with TLS may answer a login before it has answered the connection, which the
        // client does not understand. So the login comes later.
        (login, _) => login,
    };
    if let Some(files) = tls {
        connector = with_tls(connector, &files, &hosts)?;
    }
    let abilities = Abilities { longest_lease: Some(longest_lease(timeout, tick)), ..ABILITIES };
    let ensemble = Ensemble { connector, login, hosts, root: root.clone(), timeout, tick };
    let prefix = format!("{root}{}", settings.prefix);
    let steps = ZooKeeper::new(ensemble, abilities);
    Ok(Arc::new(Sequences::new(steps, Settings { prefix, ..settings.clone() })))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "hunter2";

    #[test]
    fn addresses_are_read() {
        let seconds = Duration::from_secs;
        for (url, hosts, login, root, timeout, tick) in [
            ("zookeeper://h", "h:2181", None, "/", 40, 3),
            ("zookeeper://h/", "h:2181", None, "/", 40, 3),
            ("zookeeper://h:1, [::1] /a/b/", "h:1,[::1]:2181", None, "/a/b/", 40, 3),
            ("zookeeper://a%6en:%40@h/x?tick=2s", "h:2181", Some("ann:@"), "/x/", 40, 2),
            ("zookeeper://h?timeout=20000ms&tick=2s", "h:2181", None, "/", 20, 2),
            ("zookeepers://h,[::1]:1?tick=2s&ca=a", "tcp+tls://h:2181,tcp+tls://[::1]:1", None, "/", 40, 2),
            ("zookeepers://h/x?ca=a&cert=b&key=c", "tcp+tls://h:2181", None, "/x/", 40, 3),
        ] {
            let target = Target::parse(url).unwrap();
            assert_eq!((target.hosts.as_str(), target.root.as_str()), (hosts, root), "{url}");
            assert_eq!(target.login.as_deref(), login, "{url}");
            assert_eq!((target.timeout, target.tick), (seconds(timeout), seconds(tick)), "{url}");
        }
    }

    #[test]
    fn an_address_that_is_none_is_refused_and_its_password_not_shown() {
        for (url, said) in [
            ("hunter2", "another scheme"),
            ("zookeepers:ann:hunter2@h", "another scheme"),
            ("zookeeper://h?ca=hunter2", "others need `zookeepers://`"),
            ("zookeepers://h?hunter2=1", "an option that is not known"),
            ("zookeepers://h?ca=hunter2&key=", "an option without a value"),
            ("zookeepers://h?ca=hunter2&ca=b", "an option twice"),
            ("zookeepers://h?cert=hunter2", "`cert` without `key`"),
            ("zookeepers://h?key=hunter2&ca=b", "`key` without `cert`"),
            ("zookeeper://", "an empty host"),
            ("zookeeper://hunter2@h", "a user without a password"),
            ("zookeeper://ann:hunter2@h:0", "a bad port"),
            ("zookeeper://h?hunter2=1", "an option that is not known"),
            ("zookeeper://h?timeout=hunter2", "no time"),
            ("zookeeper://h?timeout=0s", "no time"),
            ("zookeeper://h?timeout=5", "no time"),
            ("zookeeper://h?tick=1s&tick=1s", "an option twice"),
            ("zookeeper://h?timeout=9s", "three times the `tick`"),
            ("zookeeper://h/hunter2/../x", "`..`"),
            ("zookeeper://h/a//hunter2", "an empty part"),
        ] {
            let error = Target::parse(url).unwrap_err();
            assert!(error.to_string().contains(said), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains(SECRET), "{url}: {error}");
            assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{url}");
        }
        let target = Target::parse("zookeeper://ann:hunter2@h/x").unwrap();
        assert!(!format!("{target:?}").contains(SECRET));
    }

    #[test]
    #[cfg(not(feature = "tls"))]
    fn without_tls_the_error_names_the_feature() {
        let target = Target::parse("zookeepers://ann:hunter2@h/x").unwrap();
        let settings = Settings { prefix: String::new(), call_timeout: TIMEOUT };
        let error = open(target, &settings).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("the feature `zookeeper-tls`"), "{error}");
        assert!(!format!("{error} {error:?}").contains(SECRET), "{error}");
        assert_eq!(error.kind(), StoreErrorKind::Unsupported);
    }
}
