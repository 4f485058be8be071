//! Stress: processes are killed and stopped at random while their tasks compete for a few keys.
//! Checkers judge everything that they have seen.
//!
//! The parent ([`run`]) starts workers, the program `stress` of this package. It kills and stops
//! them by a [schedule] that follows from a seed, stops the server, cuts its connections, and lets
//! all calm down. Every worker writes its requests and their answers to its own
//! [log](crate::history::Log), with times on the clock that all processes share. In the end the
//! logs become a [history](crate::history), which the checkers [judge](Verdict). The parent also
//! checks the server for leftovers. Witnesses note when a worker or the server stands still,
//! because the machine is busy.
//!
//! A worker can use a [broken](Lock) lock, which shows that the checkers notice.

mod judge;
mod run;
mod schedule;
mod turns;
#[cfg(feature = "helpers")]
mod wish;

#[cfg(feature = "helpers")]
pub use crate::witness::watch_process;
pub use judge::{Counts, Verdict};
pub use run::{Plan, run};
pub use schedule::{Deed, Fault, schedule};
#[cfg(feature = "helpers")]
pub use wish::{Part, Wish};

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Lease of locks that are not renewed.
pub const FIXED: Duration = Duration::from_millis(300);

/// The lock that workers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// The lock under test.
    Real,
    /// Broken: `SET NX PX`, and a `DEL` that does not check the owner.
    NoOwnerCheck,
    /// Broken: tokens are random.
    RandomToken,
    /// Broken: each process never releases one of its locks.
    Leak,
    /// Broken: only waiters of the same process are woken.
    ForgetWaiter,
    /// Broken: half of the requests for fair locks ignore the queue.
    Unfair,
    /// Broken: readers ignore writers.
    BlindReader,
}

/// The kinds of locks in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// Mutexes.
    Mutex,
    /// All kinds, and several keys at once.
    All,
}

impl Kinds {
    /// Returns the name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::All => "all",
        }
    }
}

impl FromStr for Kinds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Mutex, Self::All]
            .into_iter()
            .find(|kinds| kinds.name() == text)
            .ok_or_else(|| format!("unknown kinds {text:?}; there are: mutex, all"))
    }
}

impl Lock {
    const NAMES: [(Self, &'static str); 7] = [
        (Self::Real, "real"),
        (Self::NoOwnerCheck, "no-owner-check"),
        (Self::RandomToken, "random-token"),
        (Self::Leak, "leak"),
        (Self::ForgetWaiter, "forget-waiter"),
        (Self::Unfair, "unfair"),
        (Self::BlindReader, "blind-reader"),
    ];

    /// Returns the name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(lock, _)| *lock == self).map_or("", |(_, name)| name)
    }

    /// Returns all names, for error texts.
    #[must_use]
    pub fn names() -> String {
        Self::NAMES.map(|(_, name)| name).join(", ")
    }
}

impl FromStr for Lock {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text);
        found
            .map(|(lock, _)| *lock)
            .ok_or_else(|| format!("unknown lock {text:?}; there are: {}", Self::names()))
    }
}

/// A worker's command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orders {
    /// The URL of the server.
    pub url: String,
    /// The path of its log.
    pub log: PathBuf,
    /// Its name in logs.
    pub name: String,
    /// The seed of its choices.
    pub seed: u64,
    /// Number of concurrent tasks.
    pub tasks: usize,
    /// Number of keys that tasks compete for.
    pub keys: usize,
    /// Lease of renewed locks.
    pub lease: Duration,
    /// Wait of patient requests.
    pub patience: Duration,
    /// The lock that it uses.
    pub lock: Lock,
    /// The kinds of locks.
    pub kinds: Kinds,
}

impl Orders {
    /// Returns the orders as arguments.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        vec![
            self.url.clone(),
            self.log.display().to_string(),
            self.name.clone(),
            self.seed.to_string(),
            self.tasks.to_string(),
            self.keys.to_string(),
            self.lease.as_millis().to_string(),
            self.patience.as_millis().to_string(),
            self.lock.name().to_owned(),
            self.kinds.name().to_owned(),
        ]
    }

    /// Parses arguments.
    ///
    /// # Errors
    ///
    /// When an argument is wrong; the text says which.
    pub fn from_args(args: &[String]) -> Result<Self, String> {
        fn number<T: FromStr>(what: &str, text: &str) -> Result<T, String> {
            text.parse().map_err(|_| format!("{what} is not a number: {text:?}"))
        }
        let [url, log, name, seed, tasks, keys, lease, patience, lock, kinds] = args else {
            return Err(format!("ten arguments are needed: {args:?}"));
        };
        Ok(Self {
            url: url.clone(),
            log: log.into(),
            name: name.clone(),
            seed: number("the seed", seed)?,
            tasks: number("tasks", tasks)?,
            keys: number("keys", keys)?,
            lease: Duration::from_millis(number("the lease", lease)?),
            patience: Duration::from_millis(number("the patience", patience)?),
            lock: lock.parse()?,
            kinds: kinds.parse()?,
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
            log: "/tmp/a.log".into(),
            name: "0.1".to_owned(),
            seed: 5,
            tasks: 16,
            keys: 8,
            lease: Duration::from_millis(1000),
            patience: Duration::from_secs(60),
            lock: Lock::NoOwnerCheck,
            kinds: Kinds::All,
        };
        assert_eq!(Orders::from_args(&orders.to_args()), Ok(orders.clone()));
        assert!(Orders::from_args(&orders.to_args()[1..]).is_err());
        assert!("nonsense".parse::<Lock>().unwrap_err().contains("no-owner-check"));
    }
}
