//! Stress: processes that are killed and stopped at random while their tasks fight for a few keys,
//! and checkers for everything that they have seen.
//!
//! The parent ([`run`]) starts workers (the program `stress` of this package), ends and stops them
//! by a [schedule] that follows from a seed, stops the server and cuts its connections as well, and
//! lets all calm down. Every worker writes what it asks for and what it gets to a
//! [log](crate::history::Log) of its own, with times on the clock that all processes share. In the
//! end the logs are put together to a [history](crate::history), which its checkers
//! [judge](Verdict), and the server is looked at for what was left behind.
//!
//! A worker can be told to use a lock that is [broken](Lock) in a certain way, which shows that the
//! checkers notice.

mod judge;
mod run;
mod schedule;
mod turns;
#[cfg(feature = "helpers")]
mod wish;

pub use judge::{Counts, Verdict};
pub use run::{Plan, run};
pub use schedule::{Deed, Fault, schedule};
#[cfg(feature = "helpers")]
pub use wish::{Part, Wish};

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Leases of locks that are not renewed.
pub const FIXED: Duration = Duration::from_millis(300);

/// The lock that workers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// The one under test.
    Real,
    /// Broken: `SET NX PX` and a `DEL` that does not look whose lock it is.
    NoOwnerCheck,
    /// Broken: the tokens mean nothing.
    RandomToken,
    /// Broken: one lock of each process is never given back.
    Leak,
    /// Broken: waiters are woken by their own process only.
    ForgetWaiter,
    /// Broken: half of those who want a fair lock do not look at its queue.
    Unfair,
    /// Broken: readers do not look for writers.
    BlindReader,
}

/// The kinds of locks that take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// Mutexes.
    Mutex,
    /// All, and several keys at once.
    All,
}

impl Kinds {
    /// As on the command line.
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
            .ok_or_else(|| format!("no kinds {text:?}; there are: mutex, all"))
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

    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(lock, _)| *lock == self).map_or("", |(_, name)| name)
    }

    /// All names, for error texts.
    #[must_use]
    pub fn names() -> String {
        Self::NAMES.map(|(_, name)| name).join(", ")
    }
}

impl FromStr for Lock {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(lock, _)| *lock).ok_or_else(|| format!("no lock {text:?}; there are: {}", Self::names()))
    }
}

/// What a worker is told on its command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orders {
    /// Of the server.
    pub url: String,
    /// Its own log.
    pub log: PathBuf,
    /// Its name in logs.
    pub name: String,
    /// Where its choices come from.
    pub seed: u64,
    /// Tasks side by side.
    pub tasks: usize,
    /// Keys that they fight for.
    pub keys: usize,
    /// Of renewed locks.
    pub lease: Duration,
    /// How long requests wait that never give up.
    pub patience: Duration,
    /// Which lock.
    pub lock: Lock,
    /// Of which kinds.
    pub kinds: Kinds,
}

impl Orders {
    /// As arguments.
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

    /// From arguments.
    ///
    /// # Errors
    ///
    /// Says which argument is wrong.
    pub fn from_args(args: &[String]) -> Result<Self, String> {
        fn number<T: FromStr>(what: &str, text: &str) -> Result<T, String> {
            text.parse().map_err(|_| format!("{what} is not a number: {text:?}"))
        }
        let [url, log, name, seed, tasks, keys, lease, patience, lock, kinds] = args else {
            return Err(format!("ten arguments, please: {args:?}"));
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
