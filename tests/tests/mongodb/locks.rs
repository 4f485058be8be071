//! Locks in MongoDB.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use lock_runtime::{ConnectError, LockError, LockManager};
use lock_tests::database_locks::{self, everything_works_between_two_managers};
use lock_tests::{Helper, MongoDbServer, eventually};

const SLACK: Duration = Duration::from_secs(20);

/// For tests with different keys.
static SERVER: LazyLock<MongoDbServer> = LazyLock::new(MongoDbServer::start);

async fn connect(url: &str) -> LockManager {
    LockManager::connect(url).await.unwrap()
}

#[tokio::test]
async fn looks_that_are_not_polled_keep_nobody_waiting() {
    database_locks::looks_that_are_not_polled_keep_nobody_waiting(&connect(&SERVER.url()).await).await;
}

#[tokio::test]
async fn everything_works_between_two_programs() {
    let url = SERVER.url().replace("/locks", "/everything");
    everything_works_between_two_managers(&connect(&url).await, &connect(&url).await).await;
}

/// Waiters are served in the order in which they came, whatever their processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_hand_a_fair_lock_on_in_order() {
    const PROCESSES: usize = 3;
    let url = SERVER.url();
    let operator = connect(&url).await;
    let mut holders: Vec<Helper> =
        (0..PROCESSES).map(|_| Helper::spawn(env!("CARGO_BIN_EXE_holder"), [&*url, "lease=30000"])).collect();
    for holder in &mut holders {
        assert_eq!(holder.line(SLACK), "ready");
    }
    let token = |line: String| -> u64 {
        let token = line.strip_prefix("acquired ").and_then(|token| token.parse().ok());
        token.unwrap_or_else(|| panic!("not a grant: {line:?}"))
    };
    let mut last = token(holders[0].ask("acquire queue kind=fair"));
    for round in 0..4 {
        let order: Vec<usize> = (1..PROCESSES).map(|at| (round + at) % PROCESSES).collect();
        for (before, at) in order.iter().enumerate() {
            assert_eq!(holders[*at].ask("start queue kind=fair wait=60000"), "started");
            let has_come = async || {
                operator.status("queue").await.unwrap().waiters == u64::try_from(before).unwrap() + 1
            };
            eventually(has_come, SLACK).await;
        }
        let mut holding = round % PROCESSES;
        for at in &order {
            assert_eq!(holders[holding].ask("release queue"), "released");
            let next = token(holders[*at].line(SLACK));
            assert!(next > last, "{next} after {last}");
            (last, holding) = (next, *at);
        }
        // The next round begins with its first process.
        let first = (round + 1) % PROCESSES;
        assert_eq!(holders[holding].ask("release queue"), "released");
        last = token(holders[first].ask("acquire queue kind=fair wait=60000"));
    }
}

/// A waiter of a server alone asks again and again.
#[tokio::test]
async fn a_server_alone_hands_locks_on_and_refuses_several_and_stocks() {
    let server = MongoDbServer::start_alone();
    let (one, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let mut last = one.mutex("k").acquire().await.unwrap();
    for _ in 0..3 {
        let waiter = tokio::spawn(other.mutex("k").wait(SLACK).acquire());
        last.release().await.unwrap();
        let next = waiter.await.unwrap().unwrap();
        next.release().await.unwrap();
        last = one.mutex("k").acquire().await.unwrap();
    }
    match one.multi(["a", "b"]).acquire().await.unwrap_err() {
        LockError::Misconfigured { reason, .. } => assert!(reason.contains("--replSet"), "{reason}"),
        other => panic!("{other:?}"),
    }
    let error = one.stock("s").initialize(1, 1).await.unwrap_err();
    assert!(error.to_string().contains("--replSet") && !error.is_retryable(), "{error}");
}

#[tokio::test]
async fn a_server_that_does_not_let_us_in_is_told_at_once() {
    let server = MongoDbServer::start_alone_with(&["auth"]);
    for (user, said) in [("", "auth"), ("nobody:hunter2@", "nobody")] {
        let url = server.url().replace("mongodb://", &format!("mongodb://{user}"));
        let start = Instant::now();
        let error = LockManager::connect(url).await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(matches!(error, ConnectError::Misconfigured { .. }), "{text}");
        let _ = said;
        assert!(!text.contains("hunter2"), "{text}");
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
    for (options, said) in [("?w=1", "w=majority"), ("?journal=false", "journal=false")] {
        let url = format!("mongodb://{}/locks{options}", server.addr());
        match LockManager::connect(url).await.unwrap_err() {
            ConnectError::Misconfigured { reason } => assert!(reason.contains(said), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
}
