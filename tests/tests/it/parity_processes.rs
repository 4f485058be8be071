//! Locks of all kinds in processes that are killed or paused, as holders and as waiters.
#![cfg(unix)]

use std::time::{Duration, Instant};

use lock_tests::{Helper, RedisServer, eventually_blocking};

/// Time-out for something that needs no time, on a busy two-core machine.
const SLACK: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_secs(1);
const KINDS: [&str; 4] = ["mutex", "fair", "read", "write"];

fn process(server: &RedisServer, options: &[&str]) -> Helper {
    let url = server.url();
    let args = std::iter::once(url.as_str()).chain(options.iter().copied());
    let mut helper = Helper::spawn(env!("CARGO_BIN_EXE_holder"), args);
    assert_eq!(helper.line(SLACK * 2), "ready");
    helper
}

fn token(answer: &str) -> u64 {
    let token = answer.strip_prefix("acquired ");
    token.and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("not a grant: {answer:?}"))
}

fn start(process: &mut Helper, kind: &str) {
    assert_eq!(process.ask(&format!("start k kind={kind} wait=60000")), "started");
}

fn acquire(process: &mut Helper, kind: &str) -> u64 {
    token(&process.ask(&format!("acquire k kind={kind} wait=60000")))
}

/// Returns a kind that a holder of this kind excludes.
fn rival_of(kind: &str) -> &str {
    if kind == "read" { "write" } else { kind }
}

fn queue_is(server: &RedisServer, length: usize) {
    let queue = || server.cli(&["LLEN", "redisson_lock_queue:{lock:k}"]);
    eventually_blocking(|| queue() == length.to_string(), SLACK);
}

/// Waits until only counters of tokens are left.
fn nothing_is_left(server: &RedisServer) {
    let left = || server.cli(&["KEYS", "*"]);
    eventually_blocking(|| left().lines().all(|key| key.starts_with("redisson_lock_token:")), SLACK);
}

#[test]
fn a_killed_holder_of_any_kind_frees_the_key_within_its_lease() {
    let server = RedisServer::start();
    let mut second = process(&server, &["lease=1000"]);
    for kind in KINDS {
        let mut first = process(&server, &["lease=1000"]);
        let before = acquire(&mut first, kind);
        start(&mut second, rival_of(kind));
        // The process of the first one keeps it for more than a lease.
        assert_eq!(second.try_line(LEASE * 2), None, "{kind}");
        first.kill();
        let killed = Instant::now();
        assert!(token(&second.line(LEASE + SLACK)) > before, "{kind}");
        assert!(killed.elapsed() < LEASE + SLACK);
        assert_eq!(second.ask("release k"), "released");
    }
    nothing_is_left(&server);
}

/// A reader's renewals are for its own hold only: another process that reads does not keep the
/// killed one's hold alive.
#[test]
fn a_killed_reader_is_not_kept_alive_by_others() {
    let server = RedisServer::start();
    let [mut dead, mut live, mut writer] = [(); 3].map(|()| process(&server, &["lease=1000"]));
    acquire(&mut dead, "read");
    acquire(&mut live, "read");
    start(&mut writer, "write");
    dead.kill();
    // Past the lease of the dead one, the live one still keeps the writer out.
    assert_eq!(writer.try_line(LEASE * 3), None);
    assert_eq!(live.ask("release k"), "released");
    let released = Instant::now();
    token(&writer.line(SLACK));
    assert!(released.elapsed() < SLACK);
    assert_eq!(writer.ask("release k"), "released");
    nothing_is_left(&server);
}

/// At the head of the queue and in its middle.
#[test]
fn killed_waiters_of_a_fair_lock_are_passed_over() {
    let server = RedisServer::start();
    let mut holder = process(&server, &[]);
    let mut last = acquire(&mut holder, "fair");
    let mut waiters: Vec<_> = (0..5).map(|_| process(&server, &[])).collect();
    for (n, waiter) in waiters.iter_mut().enumerate() {
        start(waiter, "fair");
        queue_is(&server, n + 1);
    }
    waiters[0].kill();
    waiters[2].kill();
    assert_eq!(holder.ask("release k"), "released");
    let released = Instant::now();
    // In the order of the queue, unless a busy machine makes one of them miss its turn: the one
    // that has the lock says so.
    let mut waiting = vec![1, 3, 4];
    while let Some(&next) = waiting.first() {
        let patience = Duration::from_millis(100);
        let mut said = |n: usize| waiters[n].try_line(patience).map(|line| (n, token(&line)));
        let found = said(next).or_else(|| waiting.iter().skip(1).find_map(|&n| said(n)));
        assert!(released.elapsed() < SLACK * 3, "{waiting:?} still wait");
        let Some((n, granted)) = found else { continue };
        assert!(granted > last, "{n} has a larger token than those before");
        last = granted;
        assert_eq!(waiters[n].ask("release k"), "released");
        waiting.retain(|&waiting| waiting != n);
    }
    // Far less than the minutes of a dead head in Redisson.
    assert!(released.elapsed() < SLACK * 3, "{:?}", released.elapsed());
    nothing_is_left(&server);
}

#[test]
fn a_waiter_that_stood_still_gets_a_new_place_and_the_lock() {
    let server = RedisServer::start();
    let [mut holder, mut still, mut next] = [(); 3].map(|()| process(&server, &[]));
    acquire(&mut holder, "fair");
    start(&mut still, "fair");
    queue_is(&server, 1);
    start(&mut next, "fair");
    queue_is(&server, 2);
    still.stop();
    // For longer than a waiter counts as alive.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(holder.ask("release k"), "released");
    let first = token(&next.line(SLACK));
    still.cont();
    assert_eq!(still.try_line(Duration::from_millis(500)), None, "the lock is held");
    assert_eq!(next.ask("release k"), "released");
    assert!(token(&still.line(SLACK * 2)) > first);
    assert_eq!(still.ask("release k"), "released");
    nothing_is_left(&server);
}

#[test]
fn a_killed_writer_in_line_lets_readers_in() {
    let server = RedisServer::start();
    let [mut reader, mut writer, mut next] = [(); 3].map(|()| process(&server, &[]));
    acquire(&mut reader, "read");
    start(&mut writer, "write");
    eventually_blocking(|| server.cli(&["EXISTS", "lock_rw_intent:{lock:k}"]) == "1", SLACK);
    start(&mut next, "read");
    assert_eq!(next.try_line(Duration::from_secs(2)), None, "the writer is before it");
    writer.kill();
    token(&next.line(SLACK));
    assert_eq!(next.ask("release k"), "released");
    assert_eq!(reader.ask("release k"), "released");
    nothing_is_left(&server);
}
