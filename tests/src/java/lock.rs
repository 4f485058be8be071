//! [`JavaLock`]: a Redisson lock, and the calls that its threads make.

use std::path::Path;
use std::time::Duration;

use super::client::{Call, Java};

/// A lock object of the Java program as one of its threads uses it. Calls of one thread run one
/// after the other. All threads share one object for each kind and name.
#[derive(Clone, Copy, Debug)]
pub struct JavaLock<'a> {
    pub(super) java: &'a Java,
    pub(super) thread: &'a str,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
}

/// A lock's state as Redisson reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// `isLocked()`.
    pub locked: bool,
    /// `isHeldByCurrentThread()`.
    pub mine: bool,
    /// `getHoldCount()`.
    pub count: u64,
    /// `remainTimeToLive()`; `None` when the lock is free.
    pub remaining: Option<Duration>,
}

impl JavaLock<'_> {
    /// Calls any operation of the Java program with its options.
    pub fn call(&self, operation: &str, options: &[(&str, &str)]) -> Call {
        let Self { java, thread, kind, name } = self;
        let mut words = format!("{operation} {kind} {name}");
        for (option, value) in options {
            words.push_str(&format!(" {option}={value}"));
        }
        java.call(thread, &words)
    }

    /// Calls `lock()`.
    pub fn lock(&self) -> Call {
        self.call("lock", &[])
    }

    /// Calls `lock(lease)`.
    pub fn lock_for(&self, lease: Duration) -> Call {
        self.call("lock", &[("lease", &millis(lease))])
    }

    /// Calls `tryLock()`.
    pub fn try_lock(&self) -> Call {
        self.call("trylock", &[])
    }

    /// Calls `tryLock(wait)`.
    pub fn try_lock_within(&self, wait: Duration) -> Call {
        self.call("trylock", &[("wait", &millis(wait))])
    }

    /// Calls `unlock()`.
    pub fn unlock(&self) -> Call {
        self.call("unlock", &[])
    }

    /// Calls `forceUnlock()`.
    pub fn force_unlock(&self) -> Call {
        self.call("force", &[])
    }

    /// Calls `lockAndGetToken()` of a fenced lock.
    pub fn lock_and_get_token(&self) -> Call {
        self.call("token", &[])
    }

    /// Returns the lock's state as Redisson reports it.
    ///
    /// # Panics
    ///
    /// As an awaited [`Call`] does.
    pub async fn status(&self) -> Status {
        let answer = self.call("status", &[]).await;
        let value = answer.value();
        Status {
            locked: value["locked"].as_bool().expect("isLocked()"),
            mine: value["mine"].as_bool().expect("isHeldByCurrentThread()"),
            count: value["count"].as_u64().expect("getHoldCount()"),
            remaining: value["ttl"].as_u64().map(Duration::from_millis),
        }
    }

    /// Locks and unlocks again and again for `time`, and holds the lock for `hold` each time.
    /// Writes its sections to `log` in the format of [`overlap`](crate::overlap). Returns the
    /// number of sections and the longest wait.
    ///
    /// # Panics
    ///
    /// As an awaited [`Call`] does.
    pub async fn hammer(&self, time: Duration, hold: Duration, log: &Path) -> (u64, Duration) {
        let (time_ms, hold_us) = (millis(time), hold.as_micros().to_string());
        let log = log.display().to_string();
        let call = self.call("hammer", &[("for", &time_ms), ("hold_us", &hold_us), ("log", &log)]);
        let answer = call.within(time + Duration::from_secs(60)).await;
        let value = answer.value();
        let number = |name: &str| value[name].as_u64().unwrap_or_else(|| panic!("no {name}: {value}"));
        (number("rounds"), Duration::from_nanos(number("longest")))
    }
}

fn millis(time: Duration) -> String {
    time.as_millis().to_string()
}
