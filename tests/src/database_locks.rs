//! Tests of locks that run on each of the databases. `url` is the URL of a new one.

use std::time::{Duration, Instant};

use lock_runtime::LockManager;
use tokio::task::JoinSet;

use crate::sql_commit::Notes;
use crate::{Helper, eventually, first_poll};

/// Maximum time of a run on a busy machine.
const LIMIT: Duration = Duration::from_secs(900);

/// The number to which the processes count together.
const TOTAL: usize = 10_000;

/// Lets this many processes of the program `counter` count in one file, under one lock. Not a
/// single count may be lost.
pub fn processes_count_exactly(url: &str, counter: &str, processes: usize) {
    processes_count_exactly_beside(url, counter, processes, 0, |_| {});
}

/// Like [`processes_count_exactly`], while `rival` adds `of_rival` to the number in the file, in
/// its own way. The lock is `count`.
pub fn processes_count_exactly_beside(
    url: &str,
    counter: &str,
    processes: usize,
    of_rival: usize,
    rival: impl FnOnce(&str),
) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("count").display().to_string();
    std::fs::write(&file, "0").unwrap();
    let times = (TOTAL - of_rival) / processes;
    let args = [url.to_owned(), file.clone(), times.to_string()];
    let mut running: Vec<_> = (0..processes).map(|_| Helper::spawn(counter, &args)).collect();
    for process in &mut running {
        assert_eq!(process.line(LIMIT), "ready");
    }
    for process in &mut running {
        process.send("go");
    }
    rival(&file);
    for process in &mut running {
        assert_eq!(process.line(LIMIT), "done");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), TOTAL.to_string());
}

/// Lets as many tasks wait for the mutex `k` as a process may have. The server sees only one entry
/// of theirs; `entries` counts those of `k`. Then all of them get in.
pub async fn ten_thousand_waiters_are_one_entry(
    holder: &LockManager,
    locks: &LockManager,
    mut entries: impl FnMut() -> usize,
) {
    let held = holder.mutex("k").acquire().await.unwrap();
    let mut waiters = JoinSet::new();
    for _ in 0..10_000 {
        let lock = locks.mutex("k").wait(LIMIT);
        waiters.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
    }
    eventually(async || entries() == 2, LIMIT).await;
    // Those that are late come, too, and no other entry.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(entries(), 2);
    held.release().await.unwrap();
    let mut most = 0;
    while waiters.join_next().await.transpose().unwrap().is_some() {
        if waiters.len().is_multiple_of(1000) {
            most = most.max(entries());
        }
    }
    assert!(most <= 1, "{most} entries");
    eventually(async || entries() == 0, LIMIT).await;
}

/// Calls that only look, begun by somebody who then does something else for long.
pub async fn looks_that_are_not_polled_keep_nobody_waiting(locks: &LockManager) {
    let held = locks.mutex("held").lease(Duration::from_secs(30)).acquire().await.unwrap();
    let (latch, semaphore) = (locks.latch("latch"), locks.semaphore("semaphore"));
    assert!(latch.try_set_count(1).await.unwrap());
    assert!(semaphore.try_set_permits(1).await.unwrap());
    let mut still = Vec::new();
    for _ in 0..5 {
        let page = async { locks.list("").next_page().await };
        let counts = (first_poll(latch.wait(LIMIT)).await, first_poll(semaphore.available_permits()).await);
        let status = (first_poll(locks.status("k")).await, first_poll(locks.health()).await);
        still.push((status, first_poll(page).await, counts));
    }
    for _ in 0..3 {
        locks.mutex("k").no_wait().acquire().await.unwrap().release().await.unwrap();
        held.extend(Duration::from_secs(60)).await.unwrap();
    }
    drop(still);
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

/// Time-out for something that needs no time, on a busy machine.
const SLACK: Duration = Duration::from_secs(20);

const LEASE: Duration = Duration::from_secs(3);

/// A lease that no pause of a busy machine outlasts.
const LONG: Duration = Duration::from_secs(10);

/// Time after which a waiter that stands still has lost its place in a queue.
const PLACE: Duration = Duration::from_millis(3500);

/// A process of the program `holder`, whose locks have this lease.
fn holder(program: &str, url: &str, lease: Duration) -> Helper {
    let lease = format!("lease={}", lease.as_millis());
    let mut helper = Helper::spawn(program, [url, &lease]);
    assert_eq!(helper.line(SLACK * 2), "ready");
    helper
}

fn token(answer: &str) -> u64 {
    let token = answer.strip_prefix("acquired ").and_then(|token| token.parse().ok());
    token.unwrap_or_else(|| panic!("not a grant: {answer:?}"))
}

/// Kills and stops processes of the program `holder` that hold a lock. Others get it when the lease
/// is over, and not earlier. `stop` stops a process.
pub fn a_lock_of_a_dead_or_stopped_holder_is_free_after_its_lease(
    url: &str,
    program: &str,
    stop: impl Fn(&mut Helper),
) {
    let mut second = holder(program, url, LONG);
    for kills in [true, false] {
        let mut first = holder(program, url, LEASE);
        let before = token(&first.ask("acquire k"));
        assert_eq!(second.ask("start k wait=60000"), "started");
        assert_eq!(second.try_line(LEASE * 2), None, "it is renewed");
        let (asked, said) = (Instant::now(), first.ask("state k"));
        if kills {
            first.kill();
        } else {
            stop(&mut first);
        }
        let left = said.strip_prefix("held ").and_then(|left| left.parse().ok()).map(Duration::from_millis);
        let after = token(&second.line(LEASE + SLACK));
        assert!(asked.elapsed() >= left.expect("it is held"), "{said}, after {:?}", asked.elapsed());
        assert!(after > before, "{after} after {before}");
        if !kills {
            first.cont();
            assert_eq!(first.ask("state k"), "lost");
            assert!(first.ask("release k").starts_with("failed"));
            assert!(second.ask("state k").starts_with("held"), "the late release touched nothing");
        }
        assert_eq!(second.ask("release k"), "released");
    }
}

/// Kills a process of the program `holder` that waits for a mutex, and stops one that waits for a
/// fair lock. Those behind them get in. `stop` stops a process.
pub fn a_dead_or_stopped_waiter_takes_nothing_with_it(url: &str, program: &str, stop: impl Fn(&mut Helper)) {
    for (kind, kills) in [("mutex", true), ("fair", false)] {
        let [mut first, mut second, mut third] = [(); 3].map(|()| holder(program, url, LONG));
        let start = format!("start {kind} kind={kind} wait=60000");
        let before = token(&first.ask(&format!("acquire {kind} kind={kind}")));
        assert_eq!(second.ask(&start), "started");
        assert_eq!(second.try_line(LEASE / 3), None);
        assert_eq!(third.ask(&start), "started");
        assert_eq!(third.try_line(LEASE / 3), None);
        if kills {
            second.kill();
        } else {
            stop(&mut second);
            // It is passed over, and the next one waits for the holder.
            assert_eq!(third.try_line(PLACE), None);
        }
        assert_eq!(first.ask(&format!("release {kind}")), "released");
        let after = token(&third.line(LONG + SLACK));
        assert!(after > before, "{after} after {before}");
        let release = format!("release {kind}");
        if kills {
            assert_eq!(third.ask(&release), "released");
            continue;
        }
        second.cont();
        assert_eq!(second.try_line(LEASE), None, "it is no longer first");
        assert_eq!(third.ask(&release), "released");
        assert!(token(&second.line(LONG + SLACK)) > after);
        assert_eq!(second.ask(&release), "released");
    }
}

/// Asserts that no row counts any more, after this time at the latest: that there are no holders,
/// waiters and permits.
pub async fn nothing_is_left<D: Notes>(pool: &sqlx::Pool<D>, within: Duration) {
    let count = format!("SELECT COUNT(*) FROM lock_records WHERE until > {}", D::NOW);
    let is_empty = async || D::number(&mut *pool.acquire().await.unwrap(), &count).await == 0;
    eventually(is_empty, within).await;
}
