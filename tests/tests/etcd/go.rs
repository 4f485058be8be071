//! Locks that are shared with etcd's own Go client: the packages `concurrency` and `recipes`.

use std::time::Duration;

use lock_runtime::{LockGuard, LockManager};
use lock_tests::callers::Callers;
use lock_tests::concurrency;
use lock_tests::database_locks::processes_count_exactly_beside;
use lock_tests::database_server::{LockServer, connect};
use lock_tests::etcd::Etcd;
use lock_tests::{EtcdServer, Helper};
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::timeout;

use crate::entries::{assert_only_epochs_are_left, await_entries, name};

/// How often Go counts.
const OF_GO: usize = 200;

/// A lease that no pause of a busy machine outlasts.
const LONG: Duration = Duration::from_secs(60);

/// Time-out for something that needs no time, on a busy machine. Shorter than [`LONG`], so that no
/// lease that has ended is the reason.
const SLACK: Duration = Duration::from_secs(30);

/// Time in which somebody who gets in by mistake would do so.
const MEANWHILE: Duration = Duration::from_millis(700);

type Waiting = JoinHandle<Result<LockGuard, lock_runtime::LockError>>;

fn start(server: &EtcdServer) -> Callers {
    block_in_place(|| concurrency::start(&server.endpoint()))
}

/// Executes a command on the key `k`, and returns the answer.
fn ask(go: &mut Callers, command: &str) -> String {
    let command = command.replace(" k", &format!(" {}", name("k")));
    block_in_place(|| go.ask(&command))
}

/// Begins a command on the key `k` that has to wait. It is the entry number `entries`.
async fn begin(server: &EtcdServer, go: &mut Callers, command: &str, entries: usize) {
    go.send(&command.replace(" k", &format!(" {}", name("k"))));
    await_entries(server, "k", entries, SLACK).await;
}

/// Begins to wait for a lock. Its entry is the number `entries`.
async fn wait(server: &EtcdServer, lock: lock_runtime::Lock, entries: usize) -> Waiting {
    let waiting = tokio::spawn(lock.wait(LONG * 2).acquire());
    await_entries(server, "k", entries, SLACK).await;
    waiting
}

async fn granted(waiting: Waiting) -> LockGuard {
    timeout(SLACK, waiting).await.unwrap().unwrap().unwrap()
}

/// Asserts that the program is not answered for a while.
fn assert_waits(go: &mut Callers) {
    assert!(block_in_place(|| go.is_silent(MEANWHILE)));
}

fn answer(go: &mut Callers) -> String {
    block_in_place(|| go.answer())
}

/// The revision of a grant.
fn revision(answer: &str) -> u64 {
    answer.strip_prefix("granted ").and_then(|revision| revision.parse().ok()).expect(answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutex_is_shared_with_concurrency_in_both_directions() {
    let server = Etcd::start_beside_a_busy_disk().await;
    let (locks, mut go) = (connect(&server, LONG).await, start(&server));
    let first = locks.mutex("k").acquire().await.unwrap();
    assert_eq!(ask(&mut go, "a try k"), "busy");
    begin(&server, &mut go, "b lock k 60", 2).await;
    let third = wait(&server, locks.fair("k"), 3).await;
    assert_waits(&mut go);
    let before = first.fencing_token().get();
    first.release().await.unwrap();
    let of_go = revision(&answer(&mut go));
    tokio::time::sleep(MEANWHILE).await;
    assert!(!third.is_finished());
    assert!(locks.mutex("k").no_wait().acquire().await.unwrap_err().is_busy());
    assert_eq!(ask(&mut go, "b release k"), "released");
    let third = granted(third).await;
    let after = third.fencing_token().get();
    // 1024 of our tokens are of one revision.
    assert!(before >> 10 < of_go && of_go < after >> 10, "{before}, {of_go}, {after}");
    third.release().await.unwrap();
    assert!(revision(&ask(&mut go, "a try k")) > after >> 10);
    assert!(locks.mutex("k").try_acquire().await.unwrap().is_none());
    assert_eq!(ask(&mut go, "a release k"), "released");
    assert_only_epochs_are_left(&server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_are_revisions_grow_over_both() {
    let server = Etcd::start_beside_a_busy_disk().await;
    let builder = LockManager::builder().lease(LONG);
    let locks = builder.connect(format!("{}?tokens=revision", server.url())).await.unwrap();
    let mut go = start(&server);
    let mut last = 0;
    for _ in 0..3 {
        let ours = locks.mutex("k").acquire().await.unwrap();
        let token = ours.fencing_token().get();
        assert!(token > last, "{token}, {last}");
        begin(&server, &mut go, "a lock k 60", 2).await;
        ours.release().await.unwrap();
        last = revision(&answer(&mut go));
        assert!(last > token, "{last}, {token}");
        let next = wait(&server, locks.mutex("k"), 2).await;
        assert_eq!(ask(&mut go, "a release k"), "released");
        let next = granted(next).await;
        assert!(next.fencing_token().get() > last, "{}, {last}", next.fencing_token());
        last = next.fencing_token().get();
        next.release().await.unwrap();
    }
    // Callers of one process are served one after the other, each with a token of its own.
    let all = (0..20).map(|_| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let guard = locks.mutex("k").wait(LONG).acquire().await.unwrap();
            let token = guard.fencing_token().get();
            guard.release().await.unwrap();
            token
        })
    });
    let mut tokens = Vec::new();
    for one in all.collect::<Vec<_>>() {
        tokens.push(timeout(SLACK, one).await.unwrap().unwrap());
    }
    assert!(tokens.iter().all(|token| *token > last), "{tokens:?}, {last}");
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 20);
    assert_only_epochs_are_left(&server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_both_share_and_writers_of_both_exclude() {
    async fn is_free(lock: lock_runtime::Lock) -> bool {
        match lock.try_acquire().await.unwrap() {
            Some(guard) => guard.release().await.map(|()| true).unwrap(),
            None => false,
        }
    }
    let server = Etcd::start_beside_a_busy_disk().await;
    let (locks, mut go) = (connect(&server, LONG).await, start(&server));
    let reader = locks.read("k").acquire().await.unwrap();
    assert_eq!(ask(&mut go, "r read k 60"), "granted 0");
    assert!(is_free(locks.read("k")).await && !is_free(locks.write("k")).await);
    reader.release().await.unwrap();
    assert!(is_free(locks.read("k")).await && !is_free(locks.write("k")).await);
    // A mutex of ours waits for a reader too.
    assert!(!is_free(locks.mutex("k")).await);
    assert_eq!(ask(&mut go, "r release k"), "released");

    assert_eq!(ask(&mut go, "w write k 60"), "granted 0");
    assert!(!is_free(locks.read("k")).await && !is_free(locks.write("k")).await);
    assert!(!is_free(locks.mutex("k")).await);
    assert_eq!(ask(&mut go, "w release k"), "released");

    let writer = locks.write("k").acquire().await.unwrap();
    begin(&server, &mut go, "r read k 60", 2).await;
    assert_waits(&mut go);
    writer.release().await.unwrap();
    assert_eq!(answer(&mut go), "granted 0");
    assert_eq!(ask(&mut go, "r release k"), "released");
    assert_only_epochs_are_left(&server, SLACK).await;
}

/// Each waits for those before it that are in its way, and for nobody behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mixed_queue_of_readers_and_writers_is_served_in_its_order() {
    let server = Etcd::start_beside_a_busy_disk().await;
    let (one, other, mut go) = (connect(&server, LONG).await, connect(&server, LONG).await, start(&server));
    assert_eq!(ask(&mut go, "first read k 60"), "granted 0");
    let second = wait(&server, one.write("k"), 2).await;
    begin(&server, &mut go, "third read k 60", 3).await;
    let fourth = wait(&server, other.read("k"), 4).await;
    begin(&server, &mut go, "fifth write k 60", 5).await;
    let sixth = wait(&server, one.read("k"), 6).await;
    assert_waits(&mut go);
    assert!(!second.is_finished() && !fourth.is_finished() && !sixth.is_finished());

    assert_eq!(ask(&mut go, "first release k"), "released");
    let second = granted(second).await;
    assert_waits(&mut go);
    assert!(!fourth.is_finished());
    second.release().await.unwrap();
    // Both readers are in.
    assert_eq!(answer(&mut go), "granted 0");
    let fourth = granted(fourth).await;
    assert_waits(&mut go);
    assert!(!sixth.is_finished());
    assert_eq!(ask(&mut go, "third release k"), "released");
    assert_waits(&mut go);
    fourth.release().await.unwrap();
    assert_eq!(answer(&mut go), "granted 0");
    tokio::time::sleep(MEANWHILE).await;
    assert!(!sixth.is_finished());
    assert_eq!(ask(&mut go, "fifth release k"), "released");
    granted(sixth).await.release().await.unwrap();
    assert_only_epochs_are_left(&server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_death_of_either_the_other_gets_in() {
    let server = Etcd::start_beside_a_busy_disk().await;
    let (locks, mut dies) = (connect(&server, LONG).await, start(&server));
    assert_eq!(ask(&mut dies, "r read k 10"), "granted 0");
    let ours = wait(&server, locks.write("k"), 2).await;
    // Its lease is kept for as long as it lives.
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(!ours.is_finished());
    block_in_place(|| dies.helper().kill());
    granted(ours).await.release().await.unwrap();

    let mut dies = Helper::spawn(env!("CARGO_BIN_EXE_holder"), [&*server.url(), "lease=8000"]);
    assert_eq!(block_in_place(|| dies.line(SLACK)), "ready");
    assert!(block_in_place(|| dies.ask("acquire k")).starts_with("acquired"));
    let mut go = start(&server);
    begin(&server, &mut go, "a lock k 60", 2).await;
    assert!(block_in_place(|| go.is_silent(Duration::from_secs(12))), "ours is renewed");
    block_in_place(|| dies.kill());
    assert!(revision(&answer(&mut go)) > 0);
    assert_eq!(ask(&mut go, "a release k"), "released");
    assert_only_epochs_are_left(&server, SLACK).await;
}

/// A waiter of Go that dies in the queue holds up nobody for longer than its session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_of_go_that_dies_is_passed_over() {
    let server = Etcd::start_beside_a_busy_disk().await;
    let locks: LockManager = connect(&server, LONG).await;
    let holder = locks.mutex("k").acquire().await.unwrap();
    let mut dies = start(&server);
    begin(&server, &mut dies, "a lock k 8", 2).await;
    let last = wait(&server, connect(&server, LONG).await.mutex("k"), 3).await;
    block_in_place(|| dies.helper().kill());
    // The end of the waiter before it is not the end of the holder.
    await_entries(&server, "k", 2, SLACK).await;
    tokio::time::sleep(MEANWHILE).await;
    assert!(!last.is_finished());
    holder.release().await.unwrap();
    granted(last).await.release().await.unwrap();
    assert_only_epochs_are_left(&server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_and_go_count_to_ten_thousand() {
    let server = Etcd::start_beside_a_busy_disk().await;
    let mut go = start(&server);
    block_in_place(|| {
        processes_count_exactly_beside(&server.url(), env!("CARGO_BIN_EXE_counter"), 2, OF_GO, |file| {
            assert_eq!(go.ask(&format!("a count lock:count {file} {OF_GO}")), "counted");
        });
    });
    assert_only_epochs_are_left(&server, SLACK).await;
}
