//! [`ZooKeeperStore`]: how an ensemble is opened.

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{Abilities, StoreError, StoreErrorKind};
use lock_store_sequences::{ABILITIES as OF_SEQUENCES, Address, Sequences, Settings};
use zookeeper_client::Client;

use crate::certain::longest_lease;
use crate::link::Ensemble;
use crate::steps::ZooKeeper;

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

/// The address of an ensemble.
#[derive(Clone, Debug)]
pub struct Target {
    hosts: String,
    /// User and password.
    login: Option<String>,
    root: String,
    timeout: Duration,
    tick: Duration,
}

impl Target {
    /// Reads `zookeeper://[user:password@]h1[:2181],h2[:port]/[path][?timeout=40s&tick=3s]`.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Unsupported`] with a text that has no part of the address, because that
    /// may be a secret.
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        let Address { login, hosts, path, options, .. } =
            Address::parse(url, &["zookeeper"]).map_err(refused)?;
        let (mut timeout, mut tick) = (None, None);
        for (name, value) in options {
            let option = match name.as_str() {
                "timeout" => &mut timeout,
                "tick" => &mut tick,
                _ => return Err(refused("has an option that is not known: there are `timeout` and `tick`")),
            };
            if option.is_some() {
                return Err(refused("has an option twice"));
            }
            *option =
                Some(time(&value).ok_or_else(|| refused("has an option that is no time, such as `40s`"))?);
        }
        let (timeout, tick) = (timeout.unwrap_or(TIMEOUT), tick.unwrap_or(TICK));
        if longest_lease(timeout, tick) < ABILITIES.shortest_lease {
            return Err(refused("has a `timeout` that is not much longer than three times the `tick`"));
        }
        let path = path.trim_matches('/');
        if path.split('/').any(|part| matches!(part, "." | "..") || (part.is_empty() && !path.is_empty())) {
            return Err(refused("has a path with an empty part, `.` or `..`"));
        }
        let hosts: Vec<_> =
            hosts.iter().map(|(name, port)| format!("{name}:{}", port.unwrap_or(PORT))).collect();
        Ok(Self {
            hosts: hosts.join(","),
            login: login.map(|(user, password)| format!("{user}:{password}")),
            root: if path.is_empty() { "/".to_owned() } else { format!("/{path}/") },
            timeout,
            tick,
        })
    }
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
         with special characters percent-encoded"
    );
    StoreError::new(StoreErrorKind::Unsupported, text)
}

/// Opens an ensemble, which is reached on first use.
#[must_use]
pub fn open(target: Target, settings: &Settings) -> Arc<ZooKeeperStore> {
    let Target { hosts, login, root, timeout, tick } = target;
    let mut connector = Client::connector()
        .with_session_timeout(timeout)
        .with_connection_timeout(SILENCE.min(timeout / 4))
        .with_fail_eagerly();
    if let Some(login) = login {
        connector = connector.with_auth("digest", login.as_bytes());
    }
    let abilities = Abilities { longest_lease: Some(longest_lease(timeout, tick)), ..ABILITIES };
    let ensemble = Ensemble { connector, hosts, root: root.clone(), timeout, tick };
    let prefix = format!("{root}{}", settings.prefix);
    Arc::new(Sequences::new(ZooKeeper::new(ensemble, abilities), Settings { prefix, ..settings.clone() }))
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
            ("zookeepers://ann:hunter2@h", "another scheme"),
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
    }
}
