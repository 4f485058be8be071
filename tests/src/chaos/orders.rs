//! A worker's command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lock_runtime::Replication;

use crate::Layout;

/// How a worker breaks the lock that it uses, to show that the checkers notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Not at all.
    Nothing,
    /// Some requests for a key are granted without checking whether it is held.
    DoubleGrant,
    /// Some grants have the token of an earlier one.
    ReusedToken,
    /// A guard is leaked, and its lock is still renewed.
    Leak,
    /// Some waiters do not hear that the lock is free.
    DeafWaiter,
    /// The body goes on with a lost lock, and no signal tells it.
    NoLostSignal,
    /// Some requests with a short wait are never sent.
    ForgottenRequest,
}

impl Broken {
    const NAMES: [(Self, &'static str); 7] = [
        (Self::Nothing, "nothing"),
        (Self::DoubleGrant, "double-grant"),
        (Self::ReusedToken, "reused-token"),
        (Self::Leak, "leak"),
        (Self::DeafWaiter, "deaf-waiter"),
        (Self::NoLostSignal, "no-lost-signal"),
        (Self::ForgottenRequest, "forgotten-request"),
    ];

    /// Returns the name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(broken, _)| *broken == self).map_or("", |(_, name)| name)
    }
}

impl FromStr for Broken {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text).map(|(broken, _)| *broken);
        let names = || Self::NAMES.map(|(_, name)| name).join(", ");
        found.ok_or_else(|| format!("unknown way to break a lock {text:?}; there are: {}", names()))
    }
}

/// The servers that must confirm before a lock counts as granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmed {
    /// Only the primary.
    ByNobodyElse,
    /// The primary and one replica.
    ByOne,
    /// The primary and most of the replicas.
    ByMost,
}

impl Confirmed {
    const NAMES: [(Self, &'static str); 3] =
        [(Self::ByNobodyElse, "none"), (Self::ByOne, "one"), (Self::ByMost, "majority")];

    /// Returns the name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(policy, _)| *policy == self).map_or("", |(_, name)| name)
    }

    pub(super) fn policy(self) -> Replication {
        const TIMEOUT: Duration = Duration::from_millis(500);
        match self {
            Self::ByNobodyElse => Replication::NONE,
            Self::ByOne => Replication::at_least(1, TIMEOUT),
            Self::ByMost => Replication::majority(TIMEOUT),
        }
    }
}

impl FromStr for Confirmed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text).map(|(policy, _)| *policy);
        found.ok_or_else(|| {
            format!(
                "unknown replication {text:?}; there are: {}",
                Self::NAMES.map(|(_, name)| name).join(", ")
            )
        })
    }
}

/// A worker's instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orders {
    /// The URL of the store.
    pub url: String,
    /// How the store keeps its locks.
    pub layout: Layout,
    /// The server with the sets that workers write under the locks.
    pub resource: SocketAddr,
    /// The path of its log.
    pub log: PathBuf,
    /// Its name in logs.
    pub name: String,
    /// The seed of its choices.
    pub seed: u64,
    /// Number of concurrent tasks.
    pub tasks: usize,
    /// Lease of renewed locks.
    pub lease: Duration,
    /// Wait of patient requests.
    pub patience: Duration,
    /// How it breaks the lock.
    pub broken: Broken,
    /// The servers that must confirm a grant.
    pub replication: Confirmed,
}

impl Orders {
    /// Returns the orders as arguments.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        vec![
            self.url.clone(),
            self.layout.name().to_owned(),
            self.resource.to_string(),
            self.log.display().to_string(),
            self.name.clone(),
            self.seed.to_string(),
            self.tasks.to_string(),
            self.lease.as_millis().to_string(),
            self.patience.as_millis().to_string(),
            self.broken.name().to_owned(),
            self.replication.name().to_owned(),
        ]
    }

    /// Parses arguments.
    ///
    /// # Errors
    ///
    /// When an argument is wrong; the text says which.
    pub fn from_args(args: &[String]) -> Result<Self, String> {
        fn parsed<T: FromStr>(what: &str, text: &str) -> Result<T, String> {
            text.parse().map_err(|_| format!("{what} is not understood: {text:?}"))
        }
        let [url, layout, resource, log, name, seed, tasks, lease, patience, broken, replication] = args
        else {
            return Err(format!("eleven arguments are needed: {args:?}"));
        };
        Ok(Self {
            url: url.clone(),
            layout: layout.parse()?,
            resource: parsed("the resource", resource)?,
            log: log.into(),
            name: name.clone(),
            seed: parsed("the seed", seed)?,
            tasks: parsed("the number of tasks", tasks)?,
            lease: Duration::from_millis(parsed("the lease", lease)?),
            patience: Duration::from_millis(parsed("the patience", patience)?),
            broken: broken.parse()?,
            replication: replication.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_the_command_line() {
        let orders = Orders {
            url: "redis://127.0.0.1:1".to_owned(),
            layout: Layout::Plain,
            resource: SocketAddr::from(([127, 0, 0, 1], 2)),
            log: "/tmp/a.log".into(),
            name: "0.1".to_owned(),
            seed: 5,
            tasks: 16,
            lease: Duration::from_secs(2),
            patience: Duration::from_secs(60),
            broken: Broken::DeafWaiter,
            replication: Confirmed::ByMost,
        };
        assert_eq!(Orders::from_args(&orders.to_args()), Ok(orders.clone()));
        assert!(Orders::from_args(&orders.to_args()[1..]).is_err());
        assert!("nonsense".parse::<Broken>().unwrap_err().contains("double-grant"));
    }
}
