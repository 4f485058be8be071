//! Tests of locks in SQL that run on each of the databases. `url` is the URL of a new one.

use std::time::Duration;

use lock_runtime::LockManager;

use crate::Helper;

/// Maximum time of a run on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// The number to which the processes count together.
const TOTAL: usize = 10_000;

/// Lets this many processes of the program `counter` count in one file, under one lock. Not a
/// single count may be lost.
pub fn processes_count_exactly(url: &str, counter: &str, processes: usize) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("count").display().to_string();
    std::fs::write(&file, "0").unwrap();
    let args = [url.to_owned(), file.clone(), (TOTAL / processes).to_string()];
    let mut running: Vec<_> = (0..processes).map(|_| Helper::spawn(counter, &args)).collect();
    for process in &mut running {
        assert_eq!(process.line(LIMIT), "ready");
    }
    for process in &mut running {
        process.send("go");
    }
    for process in &mut running {
        assert_eq!(process.line(LIMIT), "done");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), TOTAL.to_string());
}

/// Uses locks of all kinds, semaphores, latches and what operators call, by two managers.
pub async fn everything_works_between_two_managers(one: &LockManager, other: &LockManager) {
    let guard = one.mutex("k").acquire().await.unwrap();
    assert!(other.mutex("k").no_wait().acquire().await.unwrap_err().is_busy());
    assert!(other.status("k").await.unwrap().kind.is_some());
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let guard = other.fair("k").acquire().await.unwrap();
    assert!(guard.fencing_token() > token);
    guard.release().await.unwrap();

    let writer = one.write("rw").acquire().await.unwrap();
    let reader = writer.downgrade().await.unwrap();
    let second = other.read("rw").acquire().await.unwrap();
    assert!(one.write("rw").no_wait().acquire().await.is_err());
    reader.release().await.unwrap();
    second.release().await.unwrap();

    let several = one.multi(["a", "b"]).acquire().await.unwrap();
    assert!(other.mutex("b").no_wait().acquire().await.is_err());
    let mut list = other.list("");
    let mut held = Vec::new();
    while let Some(page) = list.next_page().await.unwrap() {
        held.extend(page);
    }
    assert_eq!(held.len(), 2, "{held:?}");
    assert!(other.force_release("a").await.unwrap());
    drop(several);

    let (permits, others) = (one.semaphore("s"), other.semaphore("s"));
    permits.try_set_permits(1).await.unwrap();
    let permit = permits.acquire().await.unwrap();
    assert!(others.no_wait().acquire().await.is_err());
    permit.release().await.unwrap();

    let (latch, waits) = (one.latch("l"), other.latch("l"));
    latch.try_set_count(1).await.unwrap();
    let waiter = tokio::spawn(async move { waits.wait(Duration::from_secs(60)).await });
    latch.count_down().await.unwrap();
    waiter.await.unwrap().unwrap();
}
