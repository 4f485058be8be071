//! Locks of Apache Curator, the Java client of ZooKeeper.

use std::time::Duration;

use lock_test_servers::zookeeper::Jars;

use crate::callers::Callers;

/// Starts a process that takes and releases locks by Curator's recipes, and waits until it is
/// connected to `servers`, like `127.0.0.1:2181,127.0.0.1:2182`. Its sessions have the time-to-live
/// `session`.
///
/// A caller is a thread, as Curator's locks belong to threads. Callers share a client, and so a
/// session, if their names have the same text before the first `/`, like `a` and `a/2`.
///
/// ```text
/// CALLER lock PATH [WAIT]                 granted CZXID | busy
/// CALLER unlock PATH                      released
/// CALLER read PATH [WAIT]                 granted CZXID | busy
/// CALLER unread PATH                      released
/// CALLER write PATH [WAIT]                granted CZXID | busy
/// CALLER unwrite PATH                     released
/// CALLER downgrade PATH                   granted CZXID
/// CALLER multi PATH,PATH.. [WAIT]         granted CZXID | busy
/// CALLER unmulti PATH,PATH..              released
/// CALLER semaphore PATH LEASES [WAIT]     granted CZXID | busy
/// CALLER shared PATH [WAIT]               granted CZXID | busy
/// CALLER permits PATH NUMBER              set
/// CALLER return PATH                      released
/// CALLER count PATH FILE TIMES            counted
/// CALLER count-node PATH NODE TIMES       counted
/// CALLER participants PATH                participants NAME..
/// CALLER delete NODE                      deleted
/// CALLER revoke NODE                      revoked
/// CALLER czxid NODE                       czxid CZXID
/// CALLER session                          session ID
/// CALLER pairs PATH KEYS TIME             took NANOSECONDS..
/// CALLER hand-offs PATH HOLD TIME         took NANOSECONDS..
/// CALLER grants PATH THREADS TIME         granted TIMES..
/// ```
///
/// Times to wait are in milliseconds; without one, it waits for as long as it takes. The locks are
/// `InterProcessMutex`, `InterProcessReadWriteLock`, `InterProcessSemaphoreV2`, and the mutexes of
/// an `InterProcessMultiLock`. The czxid is of the entry, or of the first one. `shared` takes a
/// permit of a semaphore whose number of permits is the `SharedCount` `PATH/permits`, and `permits`
/// sets that. `downgrade` takes the read lock, and then releases the write lock. `return` gives
/// back the latest lease. `count` increments the number in a file, and `count-node` that in a node,
/// under a mutex. `revoke` asks the holder with this entry to let go.
///
/// The last three measure mutexes for a time in milliseconds. `pairs` takes and releases those
/// below a path in turn, and times each acquire and each release. In `hand-offs` the caller's
/// client holds a mutex for some milliseconds while another one waits for it. The time is that from
/// the release to the grant. `grants` counts how often each thread of the client had the mutex.
///
/// Any command may be answered with `failed EXCEPTION`.
///
/// # Panics
///
/// When it can't be built or started; the text says what is missing.
#[must_use]
pub fn start(servers: &str, session: Duration) -> Callers {
    let jars = Jars::build().unwrap_or_else(|error| panic!("no locks of Curator: {error}"));
    let mut command = jars.command(&["defaultLogLevel=off"], "lockcurator.Curator");
    Callers::start(command.arg(servers).arg(session.as_millis().to_string()))
}

/// Returns the id of a caller's session, which a server can
/// [end](lock_test_servers::ZooKeeperServer::end_session).
///
/// # Panics
///
/// When the caller is not connected.
#[track_caller]
#[must_use]
pub fn session(curator: &mut Callers, caller: &str) -> i64 {
    let answer = curator.ask(&format!("{caller} session"));
    answer.strip_prefix("session ").and_then(|id| id.parse().ok()).expect(&answer)
}
