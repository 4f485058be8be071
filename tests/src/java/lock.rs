//! [`JavaLock`]: a lock of Redisson, and the calls that its threads make.

use std::path::Path;
use std::time::Duration;

use super::client::{Call, Java};

/// A lock object of the Java program in the hands of one of its threads. Calls of one thread run
/// one after the other; all threads share one object for each kind and name.
#[derive(Clone, Copy, Debug)]
pub struct JavaLock<'a> {
    pub(super) java: &'a Java,
    pub(super) thread: &'a str,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
}

/// What Redisson says of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// `isLocked()`.
    pub locked: bool,
    /// `isHeldByCurrentThread()`.
    pub mine: bool,
    /// `getHoldCount()`.
    pub count: u64,
    /// `remainTimeToLive()`; nothing when the lock is free.
    pub remaining: Option<Duration>,
}

impl JavaLock<'_> {
    /// Any operation of the Java program with its options.
    pub fn call(&self, operation: &str, options: &[(&str, &str)]) -> Call {
        let Self { java, thread, kind, name } = self;
        let mut words = format!("{operation} {kind} {name}");
        for (option, value) in options {
            words.push_str(&format!(" {option}={value}"));
        }
        java.call(thread, &words)
    }

    /// `lock()`.
    pub fn lock(&self) -> Call {
        self.call("lock", &[])
    }

    /// `lock(lease)`.
    pub fn lock_for(&self, lease: Duration) -> Call {
        self.call("lock", &[("lease", &millis(lease))])
    }

    /// `tryLock()`.
    pub fn try_lock(&self) -> Call {
        self.call("trylock", &[])
    }

    /// `tryLock(wait)`.
    pub fn try_lock_within(&self, wait: Duration) -> Call {
        self.call("trylock", &[("wait", &millis(wait))])
    }

    /// `unlock()`.
    pub fn unlock(&self) -> Call {
        self.call("unlock", &[])
    }

    /// `forceUnlock()`.
    pub fn force_unlock(&self) -> Call {
        self.call("force", &[])
    }

    /// `lockAndGetToken()` of a fenced lock.
    pub fn lock_and_get_token(&self) -> Call {
        self.call("token", &[])
    }

    /// What Redisson says of the lock.
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

    /// Locks and unlocks again and again for `time`, is inside for `hold` each time, and writes its
    /// sections to `log` as [`overlap`](crate::overlap) reads them. Returns how often, and the
    /// longest wait.
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
