//! Fair locks with Redisson's threads and our tasks in one queue: its order, dead waiters in it,
//! and clocks that differ.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lock_runtime::{LockGuard, LockManager};
use lock_tests::clock::now_nanos;
use lock_tests::java::{Call, Java, Kind, LEASE, SLACK, Servers, Settings, Shared, connect, redis_name};
use lock_tests::{Helper, eventually};
use tokio::task::JoinHandle;

/// The lock, which the helper program calls `k`.
const NAME: &str = "lock:k";

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The waiters that entered, with the times, by a clock common to both sides.
type Entered = Arc<Mutex<Vec<(u64, String)>>>;

/// A queue of waiters of both sides that lock, and unlock at once.
struct Line<'a> {
    server: &'a Shared,
    entered: Entered,
    expected: Vec<String>,
    tasks: Vec<JoinHandle<()>>,
    calls: Vec<(String, Call, Call)>,
}

impl<'a> Line<'a> {
    fn new(server: &'a Shared) -> Self {
        Self {
            server,
            entered: Entered::default(),
            expected: Vec::new(),
            tasks: Vec::new(),
            calls: Vec::new(),
        }
    }

    /// Adds a task to the queue, which waits at most `wait`, or forever.
    async fn rust(&mut self, locks: &LockManager, wait: Option<Duration>) {
        let who = format!("Rust {}", self.expected.len());
        let lock = locks.fair(NAME);
        let lock = wait.map_or(lock.clone().wait_forever(), |wait| lock.wait(wait));
        let (entered, name) = (self.entered.clone(), who.clone());
        let before = queue(self.server).len();
        self.tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap_or_else(|error| panic!("{name}: {error}"));
            let at = now_nanos();
            assert!(!guard.is_lost());
            entered.lock().unwrap_or_else(PoisonError::into_inner).push((at, name));
            guard.release().await.expect("held until here");
        }));
        self.expected.push(who);
        self.joined(before).await;
    }

    /// Adds a thread to the queue, which waits at most `wait`, or for as long as Redisson does.
    async fn java(&mut self, java: &Java, wait: Option<Duration>) {
        let who = format!("Java {}", self.expected.len());
        let thread = who.replace(' ', "-");
        let lock = java.lock(&thread, "fair", NAME);
        let before = queue(self.server).len();
        let locked = wait.map_or_else(|| lock.lock(), |wait| lock.try_lock_within(wait));
        self.calls.push((who.clone(), locked, lock.unlock()));
        self.expected.push(who);
        self.joined(before).await;
    }

    /// Waits until the queue has one more waiter.
    async fn joined(&self, before: usize) {
        eventually(async || queue(self.server).len() == before + 1, SLACK).await;
    }

    /// Waits until all have entered and left in the order of the queue.
    async fn in_order(self) {
        let Self { server, entered, expected, tasks, calls } = self;
        for (who, locked, unlocked) in calls {
            let locked = locked.within(Duration::from_secs(120)).await;
            assert_ne!(locked.value().as_bool(), Some(false), "{who} waited in vain");
            unlocked.await.done();
            entered.lock().unwrap_or_else(PoisonError::into_inner).push((locked.end, who));
        }
        for task in tasks {
            task.await.expect("every task enters");
        }
        let mut entered = std::mem::take(&mut *entered.lock().unwrap_or_else(PoisonError::into_inner));
        entered.sort();
        let order: Vec<_> = entered.into_iter().map(|(_, who)| who).collect();
        assert_eq!(order, expected);
        nothing_is_left(server).await;
    }
}

fn queue(server: &Shared) -> Vec<String> {
    let answer = server.ask(NAME, &["LRANGE", &redis_name("redisson_lock_queue", NAME), "0", "-1"]);
    answer.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Waits until only the counter of fencing tokens is left.
async fn nothing_is_left(server: &Shared) {
    let counter = redis_name("redisson_lock_token", NAME);
    eventually(async || server.keys() == [counter.as_str()], SLACK).await;
}

async fn rust_with_short_lease(server: &Shared) -> LockManager {
    connect(server, |builder| builder.lease(LEASE)).await
}

async fn java_with_short_lease(server: &Shared) -> Java {
    Java::start_with(server, Settings::default().watchdog(LEASE)).await
}

/// Starts a Java program whose waiters count as dead about three seconds after the holder's lease.
async fn java_soon_given_up(server: &Shared) -> Java {
    Java::start_with(server, Settings::default().alone().watchdog(LEASE).fair_wait(LEASE)).await
}

/// Starts another process that waits for the lock.
async fn helper_waits(server: &Shared) -> Helper {
    let before = queue(server).len();
    let mut helper = helper(server);
    assert_eq!(helper.ask("start k kind=fair wait=200000"), "started");
    eventually(async || queue(server).len() == before + 1, SLACK).await;
    helper
}

fn helper(server: &Shared) -> Helper {
    let lease = format!("lease={}", LEASE.as_millis());
    let mut helper = Helper::spawn(env!("CARGO_BIN_EXE_holder"), [server.url(), lease]);
    assert_eq!(helper.line(SLACK * 2), "ready");
    helper
}

/// Runs twelve waiters of two programs on each side. Their waits differ, and so does the time that
/// each takes off the deadlines of the others when it leaves.
async fn twelve_in_a_row(ahead: [i64; 2]) {
    let server = Shared::start();
    let (one, two) = (connect(&server, |builder| builder).await, connect(&server, |builder| builder).await);
    let clock = |ahead| Settings::default().wall_clock_ahead(ahead);
    let (left, right) =
        tokio::join!(Java::start_with(&server, clock(ahead[0])), Java::start_with(&server, clock(ahead[1])));
    let minute = Duration::from_secs(60);
    for java_first in [true, false] {
        let mut line = Line::new(&server);
        let holder = right.lock("holder", "fair", NAME);
        let guard = if java_first {
            holder.lock().await.done();
            None
        } else {
            Some(one.fair(NAME).acquire().await.unwrap())
        };
        line.rust(&one, None).await;
        line.java(&left, None).await;
        line.rust(&two, Some(minute / 2)).await;
        line.java(&right, Some(minute / 2)).await;
        line.rust(&one, Some(minute)).await;
        line.java(&left, Some(minute)).await;
        line.rust(&two, None).await;
        line.java(&right, None).await;
        line.rust(&one, Some(minute / 2)).await;
        line.java(&left, Some(minute * 2)).await;
        line.java(&right, Some(minute * 2)).await;
        line.rust(&two, Some(minute)).await;
        // Long enough for our waiters to renew their places once or twice.
        tokio::time::sleep(ms(2500)).await;
        let start = Instant::now();
        match guard {
            Some(guard) => guard.release().await.unwrap(),
            None => holder.unlock().await.done(),
        }
        line.in_order().await;
        println!("clocks {ahead:?} ms ahead: twelve in a row within {:.2?}", start.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_both_sides_enter_in_the_order_in_which_they_came() {
    twelve_in_a_row([0, 0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_of_java_that_are_two_seconds_off_change_no_order() {
    twelve_in_a_row([2000, -2000]).await;
}

/// Every grant of Java moves the deadlines of all waiters behind it. Ours have short waits here, so
/// a deadline that is moved too far would be over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_of_java_put_no_living_rust_waiter_out_of_the_queue() {
    let server = Shared::start();
    let locks = rust_with_short_lease(&server).await;
    let java = Java::start_with(&server, Settings::default().watchdog(LEASE).wall_clock_ahead(2000)).await;
    let guard = locks.fair(NAME).acquire().await.unwrap();
    let mut line = Line::new(&server);
    // Redisson takes 300 s off for each of these, whatever the waiters behind have added.
    for _ in 0..3 {
        line.rust(&locks, Some(Duration::from_secs(20))).await;
        line.java(&java, None).await;
        line.java(&java, None).await;
    }
    line.rust(&locks, Some(Duration::from_secs(20))).await;
    let ours = |server: &Shared| -> Vec<String> {
        queue(server).into_iter().filter(|owner| owner.starts_with(locks.id())).collect()
    };
    let joined = ours(&server);
    assert_eq!(joined.len(), 4);
    // Strangers ask too, and each attempt of Redisson removes overdue waiters.
    let asking = java.lock("asking", "fair", NAME);
    let start = Instant::now();
    while start.elapsed() < LEASE {
        assert!(!asking.try_lock().await.is_true());
        assert_eq!(ours(&server), joined);
    }
    guard.release().await.unwrap();
    line.in_order().await;
}

/// A Rust waiter and a Java waiter are killed in the queue. The first is passed over after three
/// seconds without a sign of life, the second at its deadline, as with Redisson.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dead_of_both_sides_are_passed_over_and_the_living_keep_their_order() {
    let server = Shared::start();
    let locks = rust_with_short_lease(&server).await;
    let (java, mut doomed) = tokio::join!(java_with_short_lease(&server), java_soon_given_up(&server));
    let guard = locks.fair(NAME).acquire().await.unwrap();
    let mut line = Line::new(&server);
    line.rust(&locks, None).await;
    line.java(&java, None).await;
    let mut dead_rust = helper_waits(&server).await;
    line.java(&java, None).await;
    line.rust(&locks, None).await;
    let _never = doomed.lock("dead", "fair", NAME).lock();
    line.joined(5).await;
    line.rust(&locks, None).await;
    line.java(&java, None).await;
    let mut dead_again = helper_waits(&server).await;
    line.rust(&locks, None).await;
    line.java(&java, None).await;
    dead_rust.kill();
    dead_again.kill();
    doomed.kill();
    let start = Instant::now();
    guard.release().await.unwrap();
    line.in_order().await;
    println!("eight behind three dead: {:.2?}", start.elapsed());
}

/// The holder is killed, and so is the next one, which was granted the lock directly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_holders_of_both_sides_are_followed_by_the_next_in_the_queue() {
    let server = Shared::start();
    let locks = rust_with_short_lease(&server).await;
    let alone = Settings::default().alone().watchdog(LEASE);
    let (java, mut doomed) = tokio::join!(java_with_short_lease(&server), Java::start_with(&server, alone));
    for rust_dies in [true, false] {
        let mut holder = helper(&server);
        if rust_dies {
            assert!(holder.ask("acquire k kind=fair").starts_with("acquired"));
        } else {
            doomed.lock("dead", "fair", NAME).lock().await.done();
        }
        let mut line = Line::new(&server);
        for _ in 0..2 {
            line.java(&java, None).await;
            line.rust(&locks, None).await;
        }
        let start = Instant::now();
        if rust_dies {
            holder.kill();
        } else {
            doomed.kill();
        }
        line.in_order().await;
        println!("Rust died: {rust_dies}: all in after {:.2?}, lease {LEASE:?}", start.elapsed());
        assert!(start.elapsed() < LEASE + SLACK);
    }
}

/// Shows the limit: Redisson does not know our signs of life. While a dead waiter of ours is the
/// head and the lock is free, Redisson's waiters do not ask again. The first of ours that asks
/// removes it, and does not pass the Java waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_java_waiter_behind_a_dead_rust_head_waits_until_some_rust_asks() {
    let server = Shared::start();
    let locks = rust_with_short_lease(&server).await;
    let java = java_with_short_lease(&server).await;
    let holder = java.lock("holder", "fair", NAME);
    holder.lock().await.done();
    let mut dead = helper_waits(&server).await;
    let waiter = java.lock("waiter", "fair", NAME);
    let mut waiting = waiter.lock();
    eventually(async || queue(&server).len() == 2, SLACK).await;
    dead.kill();
    holder.unlock().await.done();
    // It is dead for us after three seconds, and for Redisson minutes later.
    let start = Instant::now();
    while start.elapsed() < LEASE * 2 {
        waiting.assert_still_out();
        assert_eq!(server.ask(NAME, &["EXISTS", NAME]), "0");
        tokio::time::sleep(ms(100)).await;
    }
    let next = tokio::spawn({
        let locks = locks.clone();
        async move { locks.fair(NAME).wait(SLACK * 2).acquire().await.unwrap() }
    });
    let entered = waiting.within(SLACK).await;
    entered.done();
    eventually(async || queue(&server).len() == 1, SLACK).await;
    assert!(!next.is_finished(), "it was behind the Java waiter");
    waiter.unlock().await.done();
    next.await.unwrap().release().await.unwrap();
    nothing_is_left(&server).await;
}

/// Returns the number of scripts that the lock's server has run.
fn scripts(server: &Shared) -> u64 {
    let stats = server.ask(NAME, &["INFO", "commandstats"]);
    let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
    stats.lines().filter(|line| line.starts_with("cmdstat_eval")).filter_map(calls).sum()
}

/// Behind a dead head, Redisson's waiters poll thousands of times a second. Ours look about once a
/// second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_waiters_behind_a_dead_java_head_do_not_poll_and_enter_at_its_deadline() {
    let server = Shared::start();
    let locks = rust_with_short_lease(&server).await;
    let mut doomed = java_soon_given_up(&server).await;
    let guard = locks.fair(NAME).acquire().await.unwrap();
    let _never = doomed.lock("dead", "fair", NAME).lock();
    eventually(async || queue(&server).len() == 1, SLACK).await;
    let mut line = Line::new(&server);
    for _ in 0..3 {
        line.rust(&locks, None).await;
    }
    doomed.kill();
    guard.release().await.unwrap();
    let (start, before) = (Instant::now(), scripts(&server));
    line.in_order().await;
    let (took, ran) = (start.elapsed(), scripts(&server) - before);
    println!("three Rust waiters behind a dead Java head: {took:.2?}, {ran} scripts");
    assert!(took < LEASE * 2 + SLACK);
    assert!(ran < 100 + 20 * took.as_secs(), "{ran} scripts in {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_up_leaves_no_ghost_in_the_queue() {
    let server = Shared::start();
    let (locks, java) = tokio::join!(rust_with_short_lease(&server), java_with_short_lease(&server));
    let guard = locks.fair(NAME).acquire().await.unwrap();
    let mut line = Line::new(&server);
    let first = tokio::spawn({
        let locks = locks.clone();
        async move { locks.fair(NAME).wait(ms(1500)).acquire().await.unwrap_err() }
    });
    eventually(async || queue(&server).len() == 1, SLACK).await;
    line.java(&java, None).await;
    let gives_up = java.lock("gives-up", "fair", NAME).try_lock_within(ms(1500));
    eventually(async || queue(&server).len() == 3 || first.is_finished(), SLACK).await;
    assert!(!gives_up.await.is_true());
    assert!(first.await.is_ok());
    eventually(async || queue(&server).len() == 1, SLACK).await;
    line.rust(&locks, None).await;
    line.java(&java, None).await;
    guard.release().await.unwrap();
    line.in_order().await;
}

/// A forced unlock by either side passes the lock to the head of the queue, on whichever side that
/// is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_unlock_lets_the_first_of_the_queue_in() {
    let server = Shared::start();
    let (locks, java) =
        tokio::join!(connect(&server, |builder| builder), Java::start_with(&server, Settings::default()));
    for java_forces in [true, false] {
        for java_is_next in [true, false] {
            let held: LockGuard = locks.fair(NAME).acquire().await.unwrap();
            let mut line = Line::new(&server);
            if java_is_next {
                line.java(&java, None).await;
                line.rust(&locks, None).await;
            } else {
                line.rust(&locks, None).await;
                line.java(&java, None).await;
            }
            if java_forces {
                assert!(Kind::Fair.on(&java, "admin", NAME).force_unlock().await.is_true());
            } else {
                assert!(locks.force_release(NAME).await.unwrap());
            }
            let start = Instant::now();
            line.in_order().await;
            assert!(start.elapsed() < SLACK);
            // The lock was lost, whether its holder has noticed or not.
            assert!(held.release().await.is_err());
        }
    }
}

/// Redisson lets a thread unlock a fair lock whose lease is over, where `RLock` throws.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unlock_after_the_lease_is_over_does_not_disturb_the_next_holder() {
    let server = Shared::start();
    let (locks, java) = tokio::join!(rust_with_short_lease(&server), java_with_short_lease(&server));
    let expired = java.lock("a", "fair", NAME);
    expired.lock_for(ms(300)).await.done();
    eventually(async || server.ask(NAME, &["EXISTS", NAME]) == "0", SLACK).await;
    // It succeeds. If this fails, Redisson has fixed the defect.
    expired.unlock().await.done();
    expired.lock_for(ms(300)).await.done();
    let guard = locks.fair(NAME).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.fair(NAME).wait(SLACK * 2).acquire().await.unwrap() }
    });
    eventually(async || queue(&server).len() == 1, SLACK).await;
    assert_eq!(expired.unlock().await.exception(), "IllegalMonitorStateException");
    assert!(!guard.is_lost() && !waiting.is_finished());
    guard.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
    nothing_is_left(&server).await;
}

/// `delete()` removes the queue with the lock and notifies nobody. Redisson's waiters sleep on;
/// ours notice that their places are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fair_lock_that_java_deletes_is_taken_by_rust_waiters_soon() {
    let server = Shared::start();
    let (locks, java) = tokio::join!(connect(&server, |builder| builder), Java::start(&server));
    let guard = locks.fair(NAME).acquire().await.unwrap();
    let mut line = Line::new(&server);
    for _ in 0..3 {
        line.rust(&locks, None).await;
    }
    let start = Instant::now();
    assert!(java.lock("admin", "fair", NAME).call("delete", &[]).await.is_true());
    // The order is a race now.
    for task in std::mem::take(&mut line.tasks) {
        task.await.unwrap();
    }
    println!("three waiters within {:.2?} of the deletion", start.elapsed());
    assert!(start.elapsed() < SLACK);
    assert!(guard.release().await.is_err());
    eventually(async || server.ask(NAME, &["EXISTS", NAME]) == "0" && queue(&server).is_empty(), SLACK).await;
}

/// An operator sees Java's holders and waiters too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_shows_the_holders_and_waiters_of_both_sides() {
    let server = Shared::start();
    let (locks, java) = tokio::join!(connect(&server, |builder| builder), Java::start(&server));
    let (holder, waiter) = (java.lock("a", "fair", "f"), java.lock("b", "fair", "f"));
    let owner = holder.lock().await.owner;
    holder.lock().await.done();
    let _waits = waiter.lock();
    eventually(async || Kind::Fair.waiting_clients(&server, "f") == 1, SLACK).await;
    let ours = tokio::spawn({
        let locks = locks.clone();
        async move { locks.fair("f").wait(SLACK * 3).acquire().await.unwrap() }
    });
    eventually(async || Kind::Fair.waiting_clients(&server, "f") == 2, SLACK).await;
    let status = locks.status("f").await.unwrap();
    let holders: Vec<_> = status.holders.iter().map(|(owner, count)| (owner.to_string(), *count)).collect();
    assert_eq!((holders, status.waiters), (vec![(owner, 2)], 2));
    assert_eq!(status.kind, Some(lock_runtime::Kind::Fair));

    let (writer, reader) = (java.lock("w", "write", "rw"), java.lock("w", "read", "rw"));
    writer.lock().await.done();
    reader.lock().await.done();
    let status = locks.status("rw").await.unwrap();
    assert_eq!(status.kind, Some(lock_runtime::Kind::Write));
    assert_eq!(status.holders.len(), 2, "it reads too: {status:?}");
    writer.unlock().await.done();
    let guard = locks.read("rw").wait(SLACK).acquire().await.unwrap();
    let status = locks.status("rw").await.unwrap();
    assert_eq!((status.kind, status.holders.len()), (Some(lock_runtime::Kind::Read), 2));

    let mut listed = Vec::new();
    let mut list = locks.list("");
    while let Some(page) = list.next_page().await.unwrap() {
        listed.extend(page.into_iter().map(|(key, _)| key.as_str().to_owned()));
    }
    listed.sort();
    listed.dedup();
    assert_eq!(listed, ["f", "rw"]);
    for _ in 0..2 {
        holder.unlock().await.done();
    }
    waiter.unlock().await.done();
    ours.await.unwrap().release().await.unwrap();
    guard.release().await.unwrap();
}

/// A Java client removes a new waiter of ours if its clock is further ahead than the deadline that
/// we have set allows. The waiter joins again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rust_waiter_that_a_fast_java_clock_puts_out_of_the_queue_joins_again() {
    let server = Shared::start();
    let fast = Settings::default().wall_clock_ahead(60_000);
    let (locks, java) = tokio::join!(connect(&server, |builder| builder), Java::start_with(&server, fast));
    let holder = java.lock("a", "fair", NAME);
    holder.lock_for(SLACK).await.done();
    let lock = locks.fair(NAME).wait(SLACK * 2);
    let task = tokio::spawn(async move { lock.acquire().await });
    let joined = async || eventually(async || queue(&server).len() == 1, SLACK).await;
    joined().await;
    // Within its first second; after that, our side has moved its deadline.
    assert!(!java.lock("b", "fair", NAME).try_lock().await.is_true());
    joined().await;
    holder.unlock().await.done();
    task.await.unwrap().expect("it waits on").release().await.unwrap();
    nothing_is_left(&server).await;
}
