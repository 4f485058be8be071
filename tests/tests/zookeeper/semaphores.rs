//! Semaphores that Rust and Curator's `InterProcessSemaphoreV2` share.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager, SemaphorePermit};
use lock_tests::callers::Callers;
use lock_tests::database_server::{LockServer, beside_a_busy_disk};
use lock_tests::dice::Dice;
use lock_tests::wire::Fate;
use lock_tests::zookeeper::{Options, ZooKeeper};
use lock_tests::{Helper, Wire, ZooKeeperEnsemble, ZooKeeperServer, curator, eventually};
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::timeout;

const HOLDER: &str = env!("CARGO_BIN_EXE_holder");

/// The time-out of sessions, also of Java's. No test waits for their end.
const SESSION: Duration = Duration::from_secs(60);

/// The time-out of sessions that have to end.
const SHORT: Duration = Duration::from_secs(3);
const OPTIONS: &str = "timeout=60s&tick=200ms";
const LEASE: Duration = Duration::from_secs(50);
const CALL: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_secs(30);

/// Time in which somebody who gets in by mistake would do so.
const MEANWHILE: Duration = Duration::from_millis(300);

/// How often futures are dropped.
const DROPS: u64 = 200;

/// Connects a manager whose calls have this time-out.
async fn connect(url: &str, timeout: Duration) -> LockManager {
    LockManager::builder().prefix("").lease(LEASE).call_timeout(timeout).connect(url).await.unwrap()
}

async fn manager(server: &ZooKeeperServer) -> LockManager {
    connect(&format!("{}?{OPTIONS}", server.url()), SLACK).await
}

/// A Java process that takes permits.
struct Java(Callers);

impl Java {
    fn start(server: &ZooKeeperServer, session: Duration) -> Self {
        Self::at(&server.connect_string(), session)
    }

    fn at(servers: &str, session: Duration) -> Self {
        Self(block_in_place(|| curator::start(servers, session)))
    }

    fn ask(&mut self, command: &str) -> String {
        block_in_place(|| self.0.ask(command))
    }

    #[track_caller]
    fn takes(&mut self, command: &str) {
        let answer = self.ask(command);
        assert!(answer.starts_with("granted "), "{command}: {answer}");
    }

    #[track_caller]
    fn answers(&mut self, expected: &str) {
        let answer = block_in_place(|| self.0.answer());
        assert!(answer.starts_with(expected), "{answer}");
    }

    #[track_caller]
    fn is_silent(&mut self) {
        assert!(block_in_place(|| self.0.is_silent(MEANWHILE)));
    }

    /// Returns the nodes in a directory.
    fn nodes(&mut self, directory: &str) -> Vec<String> {
        let answer = self.ask(&format!("looker participants {directory}"));
        if answer.contains("NoNode") {
            return Vec::new();
        }
        let names = answer.strip_prefix("participants").expect(&answer);
        names.split_whitespace().map(str::to_owned).collect()
    }

    /// Waits until a directory has this many nodes.
    async fn await_nodes(&mut self, directory: &str, count: usize) {
        eventually(async || self.nodes(directory).len() == count, SLACK).await;
    }
}

async fn permit(locks: &LockManager) -> SemaphorePermit {
    timeout(SLACK, locks.semaphore("s").wait(SLACK).acquire()).await.unwrap().unwrap()
}

async fn is_full(locks: &LockManager) -> bool {
    locks.semaphore("s").try_acquire().await.unwrap().is_none()
}

fn waiter(locks: &LockManager) -> JoinHandle<Result<SemaphorePermit, LockError>> {
    tokio::spawn(locks.semaphore("s").wait(SLACK).acquire())
}

async fn granted(waiter: JoinHandle<Result<SemaphorePermit, LockError>>) -> SemaphorePermit {
    timeout(SLACK, waiter).await.unwrap().unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_both_sides_are_counted_together() {
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    let (locks, mut java) = (manager(&server).await, Java::start(&server, SESSION));
    let semaphore = locks.semaphore("s");
    assert!(semaphore.try_set_permits(3).await.unwrap());
    let two = semaphore.clone().permits(2).acquire().await.unwrap();
    java.takes("a semaphore /s 3 5000");
    assert_eq!(java.ask("b semaphore /s 3 200"), "busy");
    assert_eq!(java.ask("b shared /s 200"), "busy");
    assert!(is_full(&locks).await);
    assert_eq!(
        (semaphore.available_permits().await.unwrap(), semaphore.acquired_permits().await.unwrap()),
        (0, 3)
    );
    two.release().await.unwrap();
    java.takes("b shared /s 5000");
    java.takes("c shared /s 5000");
    assert!(is_full(&locks).await);
    assert_eq!(java.ask("b return /s"), "released");
    let one = permit(&locks).await;
    assert_eq!(java.ask("b shared /s 200"), "busy");
    one.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_change_the_number_of_permits() {
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    let (locks, mut java) = (manager(&server).await, Java::start(&server, SESSION));
    let semaphore = locks.semaphore("s");
    // A `SharedCount` begins with zero, which sets nothing.
    assert_eq!(java.ask("a shared /s 200"), "busy");
    assert!(semaphore.try_set_permits(1).await.unwrap());
    assert!(!semaphore.try_set_permits(7).await.unwrap());
    java.takes("a shared /s 5000");
    java.0.send("b shared /s");
    java.await_nodes("/s/locks", 1).await;
    java.is_silent();
    semaphore.add_permits(1).await.unwrap();
    java.answers("granted ");
    let waiting = waiter(&locks);
    java.await_nodes("/s/locks", 1).await;
    tokio::time::sleep(MEANWHILE).await;
    assert!(!waiting.is_finished());
    assert_eq!(java.ask("a permits /s 3"), "set");
    let third = granted(waiting).await;
    semaphore.set_permits(1).await.unwrap();
    assert_eq!(
        (semaphore.available_permits().await.unwrap(), semaphore.total_permits().await.unwrap()),
        (-2, 1)
    );
    third.release().await.unwrap();
    assert_eq!(java.ask("a return /s"), "released");
    assert_eq!(semaphore.available_permits().await.unwrap(), 0);
    assert!(is_full(&locks).await);
    assert_eq!(java.ask("b return /s"), "released");
    permit(&locks).await.release().await.unwrap();
}

/// Rust waits behind the Java clients that came first, and before those that came later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_both_sides_take_turns_in_their_order() {
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    let (locks, mut java) = (manager(&server).await, Java::start(&server, SESSION));
    locks.semaphore("s").try_set_permits(1).await.unwrap();
    java.takes("a semaphore /s 1");
    java.0.send("b semaphore /s 1");
    java.await_nodes("/s/locks", 1).await;
    let mut waiting = waiter(&locks);
    java.await_nodes("/s/locks", 2).await;
    java.0.send("c semaphore /s 1");
    java.await_nodes("/s/locks", 3).await;
    java.0.send("a return /s");
    let mut answers = [java.0.answer(), java.0.answer()];
    answers.sort();
    assert!(answers[0].starts_with("granted ") && answers[1] == "released", "{answers:?}");
    assert!(timeout(MEANWHILE, &mut waiting).await.is_err());
    assert_eq!(java.ask("b return /s"), "released");
    let ours = granted(waiting).await;
    java.is_silent();
    ours.release().await.unwrap();
    java.answers("granted ");
    assert_eq!(java.ask("c return /s"), "released");
    java.await_nodes("/s/locks", 0).await;
    java.await_nodes("/s/leases", 0).await;
}

/// It would keep Java waiting although permits are left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_has_waited_or_has_given_up_keeps_nobody_waiting() {
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    let (locks, mut java) = (manager(&server).await, Java::start(&server, SESSION));
    locks.semaphore("s").try_set_permits(2).await.unwrap();
    java.takes("a semaphore /s 2");
    java.takes("a semaphore /s 2");
    let waiting = waiter(&locks);
    java.await_nodes("/s/locks", 1).await;
    assert_eq!(java.ask("a return /s"), "released");
    let ours = granted(waiting).await;
    assert_eq!(java.ask("a return /s"), "released");
    java.takes("b semaphore /s 2 5000");
    let given_up = waiter(&locks);
    java.await_nodes("/s/locks", 1).await;
    given_up.abort();
    ours.release().await.unwrap();
    java.takes("b semaphore /s 2 5000");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_a_killed_process_come_back_with_the_end_of_its_session() {
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    let locks = manager(&server).await;
    locks.semaphore("s").try_set_permits(2).await.unwrap();
    let mut java = Java::start(&server, SHORT);
    java.takes("a semaphore /s 2");
    let url = format!("{}?timeout={}ms&tick=200ms", server.url(), SHORT.as_millis());
    let mut rust = Helper::spawn(HOLDER, [&url, "lease=2000"]);
    assert_eq!(block_in_place(|| rust.line(SLACK)), "ready");
    // The helper has the default prefix.
    let spelled = locks.semaphore("lock:s");
    spelled.try_set_permits(1).await.unwrap();
    assert_eq!(block_in_place(|| rust.ask("permit s")), "permitted");
    let other = permit(&locks).await;
    let waiting = waiter(&locks);
    java.await_nodes("/s/locks", 1).await;
    let mut survivor = Java::start(&server, SESSION);
    survivor.0.send("a semaphore /lock:s 1");
    survivor.await_nodes("/lock:s/locks", 1).await;
    survivor.is_silent();
    assert!(!waiting.is_finished());
    block_in_place(|| {
        java.0.helper().kill();
        rust.kill();
    });
    let back = granted(waiting).await;
    survivor.answers("granted ");
    back.release().await.unwrap();
    other.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_an_operator_ends_loses_its_permits_and_its_holder_hears_of_it() {
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    let lease = Duration::from_secs(6);
    let url = format!("{}?{OPTIONS}", server.url());
    let locks = LockManager::builder().prefix("").lease(lease).connect(url).await.unwrap();
    locks.semaphore("s").try_set_permits(2).await.unwrap();
    let [first, second] = [permit(&locks).await, permit(&locks).await];
    let id = block_in_place(|| server.sessions().unwrap())[0];
    let mut java = Java::start(&server, SESSION);
    java.0.send("a semaphore /s 2");
    java.await_nodes("/s/locks", 1).await;
    java.is_silent();
    block_in_place(|| server.end_session(id));
    java.answers("granted ");
    timeout(lease + SLACK, async {
        first.lost().await;
        second.lost().await;
    })
    .await
    .unwrap();
    assert!(matches!(first.release().await, Err(LockError::Lost { .. })));
    // The next session begins.
    permit(&locks).await.release().await.unwrap();
    assert_eq!(java.ask("a return /s"), "released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_java_session_that_an_operator_ends_gives_its_permits_back() {
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    let (locks, mut java) = (manager(&server).await, Java::start(&server, SESSION));
    locks.semaphore("s").try_set_permits(1).await.unwrap();
    java.takes("a semaphore /s 1");
    let waiting = waiter(&locks);
    java.await_nodes("/s/locks", 1).await;
    let id = block_in_place(|| curator::session(&mut java.0, "a"));
    block_in_place(|| server.end_session(id));
    granted(waiting).await.release().await.unwrap();
}

/// They are repeated, and take no permit twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_whose_answer_is_lost_are_taken_once_and_given_back_once() {
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    let other = manager(&server).await;
    let semaphore = other.semaphore("s");
    semaphore.try_set_permits(2).await.unwrap();
    for is_asked_for in [true, false] {
        for fate in [Fate::Cut, Fate::Unanswered, Fate::Lost] {
            let wire = Wire::to(server.addr());
            let locks = connect(&format!("zookeeper://{}?{OPTIONS}", wire.addr()), CALL).await;
            permit(&locks).await.release().await.unwrap();
            let held = if is_asked_for { None } else { Some(permit(&locks).await) };
            let mut is_over = false;
            wire.set(move |request| {
                let hits = !is_over && names_permit(request) == Some(is_asked_for);
                is_over |= hits;
                if hits { fate } else { Fate::Passes }
            });
            let held = match held {
                Some(held) => held,
                None => {
                    let both = timeout(SLACK, locks.semaphore("s").permits(2).wait(SLACK).acquire());
                    let both = both.await.unwrap().unwrap();
                    assert_eq!(semaphore.acquired_permits().await.unwrap(), 2, "{fate:?}");
                    assert!(is_full(&other).await);
                    both
                }
            };
            match held.release().await {
                Ok(()) | Err(LockError::Unconfirmed { .. } | LockError::Lost { .. }) => {}
                Err(error) => panic!("{fate:?}: {error:?}"),
            }
            assert_eq!(wire.hits(), 1, "{fate:?}");
            eventually(async || semaphore.acquired_permits().await.unwrap() == 0, SLACK).await;
        }
    }
}

/// Whether a request creates permits; `false` if it deletes one, `None` if it does neither.
fn names_permit(request: &[u8]) -> Option<bool> {
    let text = b"-lease-";
    let at = request.windows(text.len()).position(|part| part == text)?;
    // The number of a node that is made is the server's.
    let is_number = request.get(at + text.len()).map(u8::is_ascii_digit)?;
    Some(!is_number)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_that_are_dropped_leave_nothing() {
    let mut dice = Dice::new(42);
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    let (locks, mut java) = (manager(&server).await, Java::start(&server, SESSION));
    locks.semaphore("s").try_set_permits(3).await.unwrap();
    java.takes("a semaphore /s 3");
    for n in 0..DROPS {
        let limit = dice.between(Duration::ZERO, Duration::from_millis(8));
        let permits = 1 + u32::try_from(n % 4).unwrap();
        if let Ok(permit) = timeout(limit, locks.semaphore("s").permits(permits).wait(SLACK).acquire()).await
        {
            assert!(permits <= 2);
            drop(permit.unwrap());
        }
    }
    java.await_nodes("/s/leases", 1).await;
    java.await_nodes("/s/locks", 0).await;
    let two = locks.semaphore("s").permits(2).no_wait().acquire().await.unwrap();
    two.release().await.unwrap();
}

/// A majority has them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_and_waiters_of_both_outlive_the_leader() {
    let options = Options::default().within(beside_a_busy_disk());
    let mut ensemble = block_in_place(|| ZooKeeperEnsemble::start_with(options));
    let url = format!("{}?{OPTIONS}", ensemble.url());
    let (locks, other) = (connect(&url, SLACK).await, connect(&url, SLACK).await);
    let servers: Vec<_> = ensemble.members().map(ZooKeeperServer::connect_string).collect();
    let mut java = Java::at(&servers.join(","), SESSION);
    locks.semaphore("s").try_set_permits(2).await.unwrap();
    let ours = permit(&locks).await;
    java.takes("a semaphore /s 2 5000");
    let waiting = tokio::spawn(other.semaphore("s").wait(SLACK * 2).acquire());
    java.await_nodes("/s/locks", 1).await;
    block_in_place(|| ensemble.kill(ensemble.leader()));
    // When there is a new leader.
    let is_full_again = async || matches!(locks.semaphore("s").try_acquire().await, Ok(None));
    eventually(is_full_again, SLACK).await;
    tokio::time::sleep(MEANWHILE).await;
    assert!(!waiting.is_finished() && !ours.is_lost());
    let released = ours.release().await;
    assert!(matches!(released, Ok(()) | Err(LockError::Unconfirmed { .. })), "{released:?}");
    let theirs = granted(waiting).await;
    assert!(is_full(&locks).await);
    assert_eq!(java.ask("a return /s"), "released");
    permit(&locks).await.release().await.unwrap();
    theirs.release().await.unwrap();
    java.await_nodes("/s/leases", 0).await;
}

/// Takes permits and gives them back, and counts those that are held.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn never_more_permits_are_held_than_there_are() {
    const PERMITS: i64 = 3;
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    let managers = [manager(&server).await, manager(&server).await];
    managers[0].semaphore("s").try_set_permits(3).await.unwrap();
    let held = Arc::new(AtomicI64::new(0));
    let until = Instant::now() + Duration::from_secs(12);
    let enter = |held: &AtomicI64, permits: i64| {
        let now = held.fetch_add(permits, Ordering::SeqCst) + permits;
        assert!(now <= PERMITS, "{now} are held");
    };
    let javas: Vec<_> = (0..2)
        .map(|number| {
            let (mut java, held) = (Java::start(&server, SESSION), Arc::clone(&held));
            tokio::task::spawn_blocking(move || {
                let mut times = 0;
                while Instant::now() < until {
                    let command = if number == 0 { "a semaphore /s 3" } else { "a shared /s" };
                    let answer = java.0.ask(command);
                    assert!(answer.starts_with("granted "), "{answer}");
                    enter(&held, 1);
                    std::thread::sleep(Duration::from_millis(2));
                    held.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(java.0.ask("a return /s"), "released");
                    times += 1;
                }
                times
            })
        })
        .collect();
    let tasks: Vec<_> = (0..8_u32)
        .map(|number| {
            let (locks, held) = (managers[number as usize % 2].clone(), Arc::clone(&held));
            let permits = 1 + number / 2 % 2;
            tokio::spawn(async move {
                let mut times = 0;
                while Instant::now() < until {
                    let semaphore = locks.semaphore("s").permits(permits).wait(SLACK);
                    let permit = timeout(SLACK, semaphore.acquire()).await.unwrap().unwrap();
                    enter(&held, permits.into());
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    held.fetch_sub(permits.into(), Ordering::SeqCst);
                    permit.release().await.unwrap();
                    times += 1;
                }
                times
            })
        })
        .collect();
    let (mut by_java, mut by_rust) = (0, 0);
    for java in javas {
        by_java += java.await.unwrap();
    }
    for task in tasks {
        by_rust += task.await.unwrap();
    }
    assert!(by_java >= 5 && by_rust >= 5, "{by_java} times by Java, {by_rust} times by Rust");
}
