//! Locks that are shared with Curator.

use std::time::{Duration, Instant};

use lock_runtime::{Lock, LockError, LockGuard, LockManager};
use lock_tests::callers::Callers;
use lock_tests::database_server::LockServer;
use lock_tests::zookeeper::ZooKeeper;
use lock_tests::{Helper, ZooKeeperServer, curator, eventually};
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::timeout;

use crate::entries::{assert_nothing_is_left, await_entries, connect, entries, path};

const HOLDER: &str = env!("CARGO_BIN_EXE_holder");

/// A lease that no pause of a busy machine outlasts.
const LONG: Duration = Duration::from_secs(50);

/// Time-out for something that needs no time, on a busy machine. Shorter than [`LONG`], so that no
/// session that has ended is the reason.
const SLACK: Duration = Duration::from_secs(30);

/// Time in which somebody who gets in by mistake would do so.
const MEANWHILE: Duration = Duration::from_millis(700);

type Waiting = JoinHandle<Result<LockGuard, LockError>>;

async fn start() -> (ZooKeeperServer, LockManager, Callers) {
    let server = ZooKeeper::start_beside_a_busy_disk().await;
    let curator = of_session(&server, Duration::from_secs(60));
    let locks = connect(&server, LONG).await;
    (server, locks, curator)
}

fn of_session(server: &ZooKeeperServer, session: Duration) -> Callers {
    block_in_place(|| curator::start(&server.connect_string(), session))
}

/// Executes a command on the lock `k`, and returns the answer.
fn ask(curator: &mut Callers, command: &str) -> String {
    block_in_place(|| curator.ask(&on_k(command)))
}

fn on_k(command: &str) -> String {
    command.replace(" k", &format!(" {}", path("k")))
}

/// Begins a command on the lock `k` that has to wait. It is the entry number `entries`.
async fn begin(server: &ZooKeeperServer, curator: &mut Callers, command: &str, entries: usize) {
    curator.send(&on_k(command));
    await_entries(server, "k", entries, SLACK).await;
}

/// Begins to wait for a lock. Its entry is the number `entries`.
async fn wait(server: &ZooKeeperServer, lock: Lock, entries: usize) -> Waiting {
    let waiting = tokio::spawn(lock.wait(LONG * 2).acquire());
    await_entries(server, "k", entries, SLACK).await;
    waiting
}

async fn granted(waiting: Waiting) -> LockGuard {
    timeout(SLACK, waiting).await.unwrap().unwrap().unwrap()
}

/// Asserts that the program does not answer for a while.
#[track_caller]
fn assert_waits(curator: &mut Callers) {
    let answer = block_in_place(|| curator.helper().try_line(MEANWHILE));
    assert_eq!(answer, None);
}

fn answer(curator: &mut Callers) -> String {
    let line = block_in_place(|| curator.helper().line(SLACK));
    line.split_once(' ').map_or(line.as_str(), |(_, answer)| answer).to_owned()
}

/// The czxid of a grant.
#[track_caller]
fn czxid(answer: &str) -> u64 {
    answer.strip_prefix("granted ").and_then(|czxid| czxid.parse().ok()).expect(answer)
}

/// The czxid in a token of ours: 1024 of them are of one.
fn czxid_of(guard: &LockGuard) -> u64 {
    guard.fencing_token().get() >> 10
}

async fn is_free(lock: Lock) -> bool {
    match lock.try_acquire().await.unwrap() {
        Some(guard) => guard.release().await.map(|()| true).unwrap(),
        None => false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutex_is_shared_in_both_directions_and_tokens_grow() {
    let (server, locks, mut curator) = start().await;
    let first = locks.mutex("k").acquire().await.unwrap();
    assert_eq!(ask(&mut curator, "a lock k 0"), "busy");
    assert_eq!(ask(&mut curator, "a lock k 300"), "busy");
    begin(&server, &mut curator, "b lock k", 2).await;
    let third = wait(&server, connect(&server, LONG).await.fair("k"), 3).await;
    assert_waits(&mut curator);
    let before = czxid_of(&first);
    first.release().await.unwrap();
    let of_curator = czxid(&answer(&mut curator));
    tokio::time::sleep(MEANWHILE).await;
    assert!(!third.is_finished());
    assert!(locks.mutex("k").no_wait().acquire().await.unwrap_err().is_busy());
    assert_eq!(ask(&mut curator, "b unlock k"), "released");
    let third = granted(third).await;
    assert!(before < of_curator && of_curator < czxid_of(&third), "{before}, {of_curator}, {third:?}");
    third.release().await.unwrap();
    assert!(czxid(&ask(&mut curator, "a lock k 0")) > of_curator);
    assert!(locks.mutex("k").try_acquire().await.unwrap().is_none());
    assert_eq!(ask(&mut curator, "a unlock k"), "released");
    assert_nothing_is_left(&server, SLACK).await;
}

/// Names are those of Curator, if the manager has no prefix. The address may have a path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_has_the_path_that_curator_gives_it() {
    let (server, _, mut curator) = start().await;
    for folder in ["", "shop/", "a%20b/c"] {
        let url = format!("{}/{folder}?timeout=60s&tick=200ms", server.url());
        let locks = LockManager::builder().prefix("").lease(LONG).connect(url).await.unwrap();
        let guard = locks.mutex("order/42").acquire().await.unwrap();
        let folder = folder.replace("%20", " ");
        let folder = if folder.is_empty() { folder } else { format!("{}/", folder.trim_end_matches('/')) };
        if folder.contains(' ') {
            // The program has spaces between its words.
            let nodes = block_in_place(|| server.ephemerals()).unwrap();
            assert!(nodes.iter().any(|node| node.starts_with("/a b/c/order/42/")), "{nodes:?}");
            guard.release().await.unwrap();
            continue;
        }
        let lock = format!("/{folder}order/42");
        assert_eq!(ask(&mut curator, &format!("a lock {lock} 0")), "busy");
        guard.release().await.unwrap();
        czxid(&ask(&mut curator, &format!("a lock {lock} 0")));
        assert!(locks.mutex("order/42").try_acquire().await.unwrap().is_none());
        assert_eq!(ask(&mut curator, &format!("a unlock {lock}")), "released");
    }
    assert_nothing_is_left(&server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mixed_queue_is_served_in_its_order() {
    let (server, one, mut curator) = start().await;
    let [two, three] = [connect(&server, LONG).await, connect(&server, LONG).await];
    let holder = one.mutex("k").acquire().await.unwrap();
    let second = wait(&server, two.mutex("k"), 2).await;
    begin(&server, &mut curator, "third lock k", 3).await;
    let fourth = wait(&server, three.fair("k"), 4).await;
    begin(&server, &mut curator, "fifth lock k", 5).await;
    let status = one.status("k").await.unwrap();
    assert_eq!((status.is_locked(), status.waiters), (true, 4));

    assert!(!second.is_finished());
    holder.release().await.unwrap();
    let second = granted(second).await;
    assert_waits(&mut curator);
    assert!(!fourth.is_finished());
    second.release().await.unwrap();
    czxid(&answer(&mut curator));
    assert_waits(&mut curator);
    assert!(!fourth.is_finished());
    assert_eq!(ask(&mut curator, "third unlock k"), "released");
    let fourth = granted(fourth).await;
    assert_waits(&mut curator);
    fourth.release().await.unwrap();
    czxid(&answer(&mut curator));
    assert_eq!(ask(&mut curator, "fifth unlock k"), "released");
    assert_nothing_is_left(&server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_both_share_and_writers_of_both_exclude() {
    let (server, locks, mut curator) = start().await;
    let reader = locks.read("k").acquire().await.unwrap();
    czxid(&ask(&mut curator, "r read k 0"));
    assert_eq!(ask(&mut curator, "w write k 0"), "busy");
    assert!(is_free(locks.read("k")).await && !is_free(locks.write("k")).await);
    reader.release().await.unwrap();
    assert!(is_free(locks.read("k")).await && !is_free(locks.write("k")).await);
    // A mutex of ours waits for a reader too.
    assert!(!is_free(locks.mutex("k")).await);
    assert_eq!(ask(&mut curator, "r unread k"), "released");

    czxid(&ask(&mut curator, "w write k 0"));
    assert!(!is_free(locks.read("k")).await && !is_free(locks.write("k")).await);
    assert!(!is_free(locks.mutex("k")).await);
    assert_eq!(ask(&mut curator, "w unwrite k"), "released");

    let writer = locks.write("k").acquire().await.unwrap();
    assert_eq!(ask(&mut curator, "r read k 0"), "busy");
    assert_eq!(ask(&mut curator, "w write k 0"), "busy");
    begin(&server, &mut curator, "r read k", 2).await;
    assert_waits(&mut curator);
    let before = czxid_of(&writer);
    writer.release().await.unwrap();
    assert!(czxid(&answer(&mut curator)) > before);
    assert_eq!(ask(&mut curator, "r unread k"), "released");
    assert_nothing_is_left(&server, SLACK).await;
}

/// Each waits for those before it that are in its way, and for nobody behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mixed_queue_of_readers_and_writers_is_served_in_its_order() {
    let (server, one, mut curator) = start().await;
    let other = connect(&server, LONG).await;
    czxid(&ask(&mut curator, "first read k"));
    let second = wait(&server, one.write("k"), 2).await;
    begin(&server, &mut curator, "third read k", 3).await;
    let fourth = wait(&server, other.read("k"), 4).await;
    begin(&server, &mut curator, "fifth write k", 5).await;
    let sixth = wait(&server, one.read("k"), 6).await;
    assert_waits(&mut curator);
    assert!(!second.is_finished() && !fourth.is_finished() && !sixth.is_finished());

    assert_eq!(ask(&mut curator, "first unread k"), "released");
    let second = granted(second).await;
    assert_waits(&mut curator);
    assert!(!fourth.is_finished());
    second.release().await.unwrap();
    // Both readers are in.
    czxid(&answer(&mut curator));
    let fourth = granted(fourth).await;
    assert_waits(&mut curator);
    assert!(!sixth.is_finished());
    assert_eq!(ask(&mut curator, "third unread k"), "released");
    assert_waits(&mut curator);
    fourth.release().await.unwrap();
    czxid(&answer(&mut curator));
    tokio::time::sleep(MEANWHILE).await;
    assert!(!sixth.is_finished());
    assert_eq!(ask(&mut curator, "fifth unwrite k"), "released");
    granted(sixth).await.release().await.unwrap();
    assert_nothing_is_left(&server, SLACK).await;
}

/// As Curator's `testContendingDowngrading`, with a writer of ours and one of Curator's that waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_of_ours_lets_readers_of_curator_in_but_no_writer() {
    let (server, locks, mut curator) = start().await;
    let guard = locks.write("k").acquire().await.unwrap();
    let token = guard.fencing_token();
    begin(&server, &mut curator, "r read k", 2).await;
    begin(&server, &mut curator, "w write k", 3).await;
    assert_waits(&mut curator);
    let guard = guard.downgrade().await.unwrap();
    assert!(guard.fencing_token() >= token);
    czxid(&answer(&mut curator));
    assert_waits(&mut curator);
    assert_eq!(ask(&mut curator, "r unread k"), "released");
    assert_waits(&mut curator);
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    czxid(&answer(&mut curator));
    assert_eq!(ask(&mut curator, "w unwrite k"), "released");
    assert_nothing_is_left(&server, SLACK).await;
}

/// The other way round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_of_curator_lets_readers_of_ours_in_but_no_writer() {
    let (server, locks, mut curator) = start().await;
    let writer = czxid(&ask(&mut curator, "a write k"));
    let reads = wait(&server, locks.read("k"), 2).await;
    let writes = wait(&server, locks.write("k"), 3).await;
    assert!(czxid(&ask(&mut curator, "a downgrade k")) > writer);
    let reader = granted(reads).await;
    tokio::time::sleep(MEANWHILE).await;
    assert!(!writes.is_finished());
    reader.release().await.unwrap();
    tokio::time::sleep(MEANWHILE).await;
    assert!(!writes.is_finished());
    assert_eq!(ask(&mut curator, "a unread k"), "released");
    granted(writes).await.release().await.unwrap();
    assert_nothing_is_left(&server, SLACK).await;
}

/// Curator takes its mutexes one after the other, and ours are taken together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_keys_of_either_keep_the_other_out_of_each() {
    let (server, locks, mut curator) = start().await;
    let mut ask = |command: &str| block_in_place(|| curator.ask(command));
    let [j, k] = ["j", "k"].map(path);
    let both = format!("{j},{k}");
    for held in [&j, &k, &both] {
        czxid(&ask(&format!("a multi {held}")));
        assert!(!is_free(locks.multi(["j", "k"])).await);
        let waiting = tokio::spawn(locks.multi(["k", "j"]).wait(LONG * 2).acquire());
        tokio::time::sleep(MEANWHILE).await;
        assert!(!waiting.is_finished());
        assert_eq!(ask(&format!("a unmulti {held}")), "released");
        let guard = granted(waiting).await;
        for wanted in [&j, &k, &both] {
            assert_eq!(ask(&format!("b multi {wanted} 300")), "busy");
        }
        guard.release().await.unwrap();
        czxid(&ask(&format!("b multi {both}")));
        assert_eq!(ask(&format!("b unmulti {both}")), "released");
    }
    assert_nothing_is_left(&server, SLACK).await;
}

/// A waiter behind nothing but the writer's entry is not let in by its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_downgrade_of_curator_a_next_writer_or_mutex_waits() {
    let (server, locks, mut curator) = start().await;
    for lock in [locks.write("k"), locks.mutex("k"), locks.fair("k")] {
        czxid(&ask(&mut curator, "a write k"));
        let next = wait(&server, lock, 2).await;
        czxid(&ask(&mut curator, "a downgrade k"));
        tokio::time::sleep(MEANWHILE).await;
        assert!(!next.is_finished());
        assert_eq!(ask(&mut curator, "a unread k"), "released");
        granted(next).await.release().await.unwrap();
        assert_nothing_is_left(&server, SLACK).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_death_of_either_the_other_gets_in() {
    let (server, locks, mut lives) = start().await;
    let session = Duration::from_secs(6);
    let mut dies = of_session(&server, session);
    czxid(&ask(&mut dies, "a read k"));
    let ours = wait(&server, locks.write("k"), 2).await;
    // Its session is kept for as long as it lives.
    tokio::time::sleep(session * 3 / 2).await;
    assert!(!ours.is_finished());
    block_in_place(|| dies.helper().kill());
    granted(ours).await.release().await.unwrap();

    let url = format!("{}/?timeout=6s&tick=200ms", server.url());
    let mut dies = Helper::spawn(HOLDER, [&*url, "lease=4000"]);
    assert_eq!(block_in_place(|| dies.line(SLACK)), "ready");
    assert!(block_in_place(|| dies.ask("acquire k")).starts_with("acquired"));
    begin(&server, &mut lives, "a lock k", 2).await;
    assert!(block_in_place(|| lives.is_silent(session * 3 / 2)), "ours is renewed");
    let asked = Instant::now();
    let state = block_in_place(|| dies.ask("state k"));
    let left = state.strip_prefix("held ").and_then(|left| left.parse().ok()).map(Duration::from_millis);
    block_in_place(|| dies.kill());
    czxid(&answer(&mut lives));
    assert!(asked.elapsed() >= left.unwrap(), "{state}, after {:?}", asked.elapsed());
    assert_eq!(ask(&mut lives, "a unlock k"), "released");
    assert_nothing_is_left(&server, SLACK).await;
}

/// A waiter of either that dies in the queue holds up nobody for longer than its session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_either_that_die_are_passed_over() {
    let (server, locks, mut lives) = start().await;
    let holder = locks.mutex("k").acquire().await.unwrap();
    let mut dies = of_session(&server, Duration::from_secs(4));
    begin(&server, &mut dies, "a lock k", 2).await;
    let last = wait(&server, connect(&server, LONG).await.mutex("k"), 3).await;
    block_in_place(|| dies.helper().kill());
    // The end of the waiter before it is not the end of the holder.
    await_entries(&server, "k", 2, SLACK).await;
    tokio::time::sleep(MEANWHILE).await;
    assert!(!last.is_finished());
    holder.release().await.unwrap();
    let holder = granted(last).await;

    let url = format!("{}/?timeout=4s&tick=200ms", server.url());
    let mut dies = Helper::spawn(HOLDER, [&*url, "lease=3000"]);
    assert_eq!(block_in_place(|| dies.line(SLACK)), "ready");
    assert_eq!(block_in_place(|| dies.ask("start k wait=60000")), "started");
    await_entries(&server, "k", 2, SLACK).await;
    begin(&server, &mut lives, "a lock k", 3).await;
    block_in_place(|| dies.kill());
    await_entries(&server, "k", 2, SLACK).await;
    assert_waits(&mut lives);
    holder.release().await.unwrap();
    czxid(&answer(&mut lives));
    assert_eq!(ask(&mut lives, "a unlock k"), "released");
    assert_nothing_is_left(&server, SLACK).await;
}

/// The next one is in at once, and the holder hears of it at the next renewal, at the latest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_whose_entry_curator_deletes_is_lost_and_its_body_cancelled() {
    let lease = Duration::from_secs(6);
    let (server, _, mut curator) = start().await;
    let locks = connect(&server, lease).await;
    let (inside, is_inside) = tokio::sync::oneshot::channel();
    let body = locks.mutex("k").with(async |_| {
        let _ = inside.send(());
        std::future::pending::<()>().await;
    });
    let body = tokio::spawn(body);
    is_inside.await.unwrap();
    let guard = locks.mutex("guard").acquire().await.unwrap();
    for lock in ["k", "guard"] {
        let [entry] = &entries(&server, lock)[..] else { panic!("one entry") };
        assert_eq!(ask(&mut curator, &format!("a delete {entry}")), "deleted");
    }
    czxid(&ask(&mut curator, "a lock k 0"));
    timeout(lease + SLACK, guard.lost()).await.unwrap();
    let lost = timeout(lease + SLACK, body).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(lost, LockError::Lost { .. }), "{lost:?}");
    assert!(matches!(guard.release().await.unwrap_err(), LockError::Lost { .. }));
    assert_eq!(entries(&server, "k").len(), 1, "that of Curator");
    assert_eq!(ask(&mut curator, "a unlock k"), "released");
    assert_nothing_is_left(&server, SLACK).await;
}

/// Curator's holder does not look: it hears nothing of it, not even when it releases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_curator_is_released_by_force() {
    let (server, locks, mut curator) = start().await;
    czxid(&ask(&mut curator, "a lock k"));
    let ours = wait(&server, locks.mutex("k"), 2).await;
    let [holder] = &locks.status("k").await.unwrap().holders[..] else { panic!("one holder") };
    assert!(holder.0.as_str().contains("-lock-"), "{holder:?}");
    assert!(connect(&server, LONG).await.force_release("k").await.unwrap());
    let guard = granted(ours).await;
    assert_eq!(ask(&mut curator, "a unlock k"), "released");
    assert!(!guard.is_lost());
    assert_eq!(ask(&mut curator, "b lock k 0"), "busy");
    guard.release().await.unwrap();
    assert_nothing_is_left(&server, SLACK).await;
}

/// Curator asks a holder to let go by the data of its entry. Ours need not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_curator_asks_to_let_go_goes_on() {
    let lease = Duration::from_secs(3);
    let (server, _, mut curator) = start().await;
    let locks = connect(&server, lease).await;
    let guard = locks.mutex("k").acquire().await.unwrap();
    // It is renewed, and watched.
    tokio::time::sleep(lease).await;
    let [entry] = &entries(&server, "k")[..] else { panic!("one entry") };
    assert_eq!(ask(&mut curator, &format!("a revoke {entry}")), "revoked");
    begin(&server, &mut curator, "a lock k", 2).await;
    assert_waits(&mut curator);
    tokio::time::sleep(lease).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    czxid(&answer(&mut curator));
    assert_eq!(ask(&mut curator, "a unlock k"), "released");
    assert_nothing_is_left(&server, SLACK).await;
}

/// As Curator's `testKilledSession`, with a waiter of ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_curator_that_end_make_room() {
    let (server, locks, mut curator) = start().await;
    czxid(&ask(&mut curator, "a lock k"));
    let ours = wait(&server, locks.mutex("k"), 2).await;
    begin(&server, &mut curator, "b lock k", 3).await;
    let session = block_in_place(|| curator::session(&mut curator, "a"));
    block_in_place(|| server.end_session(session));
    let guard = granted(ours).await;
    assert_waits(&mut curator);
    guard.release().await.unwrap();
    czxid(&answer(&mut curator));
    assert_eq!(ask(&mut curator, "b unlock k"), "released");
    assert_nothing_is_left(&server, SLACK).await;
}

/// As Curator's `testWaitingProcessKilledServer`, with a waiter of the other client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_waiters_of_both_outlive_a_restart_of_the_server() {
    let (mut server, locks, mut curator) = start().await;
    let guard = locks.mutex("k").acquire().await.unwrap();
    begin(&server, &mut curator, "a lock k", 2).await;
    block_in_place(|| server.restart());
    await_entries(&server, "k", 2, SLACK).await;
    assert!(!guard.is_lost());
    let released = guard.release().await;
    assert!(matches!(released, Ok(()) | Err(LockError::Unconfirmed { .. })), "{released:?}");
    czxid(&answer(&mut curator));
    let ours = wait(&server, locks.mutex("k"), 2).await;
    block_in_place(|| server.restart());
    await_entries(&server, "k", 2, SLACK).await;
    tokio::time::sleep(MEANWHILE).await;
    assert!(!ours.is_finished());
    assert_eq!(ask(&mut curator, "a unlock k"), "released");
    granted(ours).await.release().await.unwrap();
    assert_nothing_is_left(&server, SLACK).await;
}

/// As Curator's `testContainerCleanup`: the server deletes directories that nobody needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_the_server_has_deleted_is_made_again() {
    let (server, locks, mut curator) = start().await;
    for _ in 0..3 {
        assert!(is_free(locks.mutex("k")).await);
        // Curator deletes as the server does when nobody has used it for a minute.
        assert_eq!(ask(&mut curator, "a delete k"), "deleted");
        czxid(&ask(&mut curator, "a lock k 0"));
        assert_eq!(ask(&mut curator, "a unlock k"), "released");
        assert_eq!(ask(&mut curator, "a delete k"), "deleted");
    }
    assert_nothing_is_left(&server, SLACK).await;
}

/// Names nest: the directory of the lock `k` may have those of other locks, or entries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_above_another_one_is_an_error_that_names_it() {
    let (server, locks, mut curator) = start().await;
    czxid(&ask(&mut curator, "a lock k/inner 0"));
    for wait in [Duration::ZERO, Duration::from_secs(1)] {
        let error = locks.mutex("k").wait(wait).acquire().await.unwrap_err();
        assert!(error.to_string().contains("inner") && !error.is_busy(), "{error}");
    }
    assert_eq!(entries(&server, "k"), [""; 0]);
    assert!(!is_free(locks.mutex("k/inner")).await);
    assert_eq!(ask(&mut curator, "a unlock k/inner"), "released");
    assert_eq!(ask(&mut curator, "a delete k/inner"), "deleted");
    eventually(async || is_free(locks.mutex("k")).await, SLACK).await;
    assert_nothing_is_left(&server, SLACK).await;
}
