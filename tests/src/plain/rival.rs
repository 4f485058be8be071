//! [`Rival`]: a running program, its commands and their answers.

use std::path::Path;
use std::time::Duration;

use super::build::Client;
use crate::process::Helper;
use crate::{RedisServer, eventually};

/// Maximum time for an answer. Generous: two busy cores.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A process that takes and releases locks with a [`Client`]. It is killed on drop.
///
/// Its arguments are the URLs of the servers that a lock is on. It prints `ready` when it is
/// connected. Then it takes one command a line, one after the other, with times in milliseconds:
///
/// ```text
/// acquire KEY LEASE WAIT          granted VALUE | busy
/// release KEY                     released | gone
/// extend KEY LEASE                extended | gone
/// count KEY LEASE FILE TIMES      counted
/// ```
///
/// `acquire` with a wait of 0 makes one attempt. Only redis-py has holds without an end, which have
/// a lease of 0. `count` increments the number in a file, under the lock. For node-redlock, a key
/// can be several, with commas between them. An answer that starts with `!` fails the test.
#[derive(Debug)]
pub struct Rival {
    helper: Helper,
}

impl Rival {
    /// Starts a program, and waits until it is connected to the servers.
    ///
    /// # Panics
    ///
    /// When it can't be built or started; the text says what is missing.
    #[must_use]
    pub fn start(client: Client, servers: &[RedisServer]) -> Self {
        let program = client.build().unwrap_or_else(|error| panic!("no {}: {error}", client.name()));
        let mut command = program.command();
        command.args(servers.iter().map(RedisServer::url));
        let mut helper = Helper::spawn_command(&mut command);
        assert_eq!(helper.line(LIMIT), "ready");
        Self { helper }
    }

    /// Tries once to take the lock, and returns its value.
    pub fn try_acquire(&mut self, key: &str, lease: Duration) -> Option<String> {
        let answer = self.ask(&format!("acquire {key} {} 0", lease.as_millis()));
        (answer != "busy").then(|| value(&answer))
    }

    /// Takes the lock, which must be free, and returns its value.
    ///
    /// # Panics
    ///
    /// When it is not free.
    #[track_caller]
    pub fn acquire(&mut self, key: &str, lease: Duration) -> String {
        self.try_acquire(key, lease).unwrap_or_else(|| panic!("{key} is taken"))
    }

    /// Starts to wait for the lock.
    pub fn start_waiting(&mut self, key: &str, lease: Duration) {
        self.helper.send(&format!("acquire {key} {} {}", lease.as_millis(), LIMIT.as_millis()));
    }

    /// Starts to wait for the lock, which is taken. Returns when `server` has seen two attempts.
    ///
    /// # Panics
    ///
    /// When the server sees none.
    pub async fn wait(&mut self, server: &RedisServer, key: &str, lease: Duration) {
        let before = attempts(server);
        self.start_waiting(key, lease);
        eventually(async || attempts(server) >= before + 2, LIMIT).await;
    }

    /// Checks that the program has not answered its last command yet.
    ///
    /// # Panics
    ///
    /// When it has.
    #[track_caller]
    pub fn assert_still_out(&mut self) {
        assert_eq!(self.helper.try_line(Duration::ZERO), None);
    }

    /// Returns the value of the lock that it has waited for.
    ///
    /// # Panics
    ///
    /// When it does not get it.
    #[track_caller]
    pub fn granted(&mut self) -> String {
        value(&self.helper.line(LIMIT))
    }

    /// Releases the lock. Returns whether it was still held.
    pub fn release(&mut self, key: &str) -> bool {
        self.is(&format!("release {key}"), "released")
    }

    /// Sets what is left of the lease. Returns whether the lock was still held.
    pub fn extend(&mut self, key: &str, lease: Duration) -> bool {
        self.is(&format!("extend {key} {}", lease.as_millis()), "extended")
    }

    /// Starts to increment the number in a file, `times` times, each under the lock.
    pub fn count(&mut self, key: &str, file: &Path, times: u32) {
        self.helper.send(&format!("count {key} {} {} {times}", LIMIT.as_millis(), file.display()));
    }

    /// Waits until all increments are made.
    ///
    /// # Panics
    ///
    /// When that takes more than a minute.
    #[track_caller]
    pub fn counted(&mut self) {
        assert_eq!(self.helper.line(LIMIT), "counted");
    }

    /// Returns whether the answer is `done`, and not `gone`.
    fn is(&mut self, command: &str, done: &str) -> bool {
        let answer = self.ask(command);
        assert!(answer == done || answer == "gone", "{command}: {answer}");
        answer == done
    }

    fn ask(&mut self, command: &str) -> String {
        self.helper.send(command);
        self.helper.line(LIMIT)
    }
}

#[track_caller]
fn value(answer: &str) -> String {
    let value = answer.strip_prefix("granted ");
    value.unwrap_or_else(|| panic!("not a grant: {answer}")).to_owned()
}

/// Returns how often clients have asked a server for locks: by `SET`, or by node-redlock's script,
/// which looks with `EXISTS`. Only waiters do that, so this counts no renewals.
fn attempts(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls = |command: &str| -> u64 {
        let start = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&start));
        line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    calls("set") + calls("exists")
}
