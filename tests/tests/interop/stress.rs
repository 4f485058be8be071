//! A stress test of both sides: two Java programs and two Rust managers use locks of all kinds on
//! eight keys, and a checker looks for overlaps.
//!
//! Each run takes ten seconds; `LOCK_INTEROP_SECONDS=60 cargo xtask test interop` makes it a
//! minute.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_runtime::{Lock, LockError, LockGuard, LockManager, MultiKey};
use lock_tests::java::{Java, SLACK, Servers, Settings, Shared, connect};
use lock_tests::overlap::{Recorder, Report};
use tokio::task::JoinSet;

// Names with the same hash tag share a slot of a cluster, as those of one lock of ours do.

/// Lease on both sides, and maximum sleep of a Redisson waiter that misses a message.
const LEASE: Duration = Duration::from_secs(5);
/// How long a thread stays with one lock.
const SPELL: Duration = Duration::from_millis(400);
/// Threads of each Java program, tasks of each Rust manager.
const THREADS: usize = 4;
const TASKS: usize = 6;
const HOLD: Duration = Duration::from_millis(1);

/// Locks of Java's threads, by Redisson's kinds. Multi locks name their keys in one order, which is
/// not ours. Redisson does not sort them, and its threads block each other for seconds when their
/// orders differ.
const JAVA: [(&str, &str); 13] = [
    ("lock", "{0}:mutex"),
    ("read", "{0}:rw"),
    ("fair", "{0}:fair"),
    ("multi", "lock:{2}:both:1,lock:{2}:both:0"),
    ("write", "{1}:rw"),
    ("fenced", "{1}:mutex"),
    ("read", "{1}:rw"),
    ("fair", "{1}:fair"),
    ("multi", "lock:{2}:both:1,lock:{2}:both:0"),
    ("write", "{0}:rw"),
    ("lock", "{2}:both:1"),
    ("multi", "fair:{0}:fair,read:{0}:rw,lock:{0}:mutex"),
    ("fair", "{0}:fair"),
];

/// The work of one of our tasks in one round.
#[derive(Clone, Copy, Debug)]
enum Rust {
    Mutex(&'static str),
    Fair(&'static str),
    Read(&'static str),
    /// With a lease, and so with a separate hold.
    ReadFor(&'static str),
    Write(&'static str),
    /// Writes, then reads, without releasing in between.
    Downgrade(&'static str),
    /// `{2}:both:0` and `{2}:both:1`.
    Both,
    /// One key of each kind.
    Mixed,
}

const RUST: [Rust; 14] = [
    Rust::Mutex("{0}:mutex"),
    Rust::Read("{0}:rw"),
    Rust::Fair("{0}:fair"),
    Rust::Both,
    Rust::Write("{1}:rw"),
    Rust::Mutex("{1}:mutex"),
    Rust::ReadFor("{1}:rw"),
    Rust::Fair("{1}:fair"),
    Rust::Downgrade("{0}:rw"),
    Rust::Mutex("{2}:both:0"),
    Rust::Mixed,
    Rust::Read("{1}:rw"),
    Rust::Write("{0}:rw"),
    Rust::Downgrade("{1}:rw"),
];

impl Rust {
    fn name(self) -> &'static str {
        match self {
            Self::Mutex(_) => "mutex",
            Self::Fair(_) => "fair",
            Self::Read(_) => "read",
            Self::ReadFor(_) => "read with a lease",
            Self::Write(_) => "write",
            Self::Downgrade(_) => "downgrade",
            Self::Both => "multi",
            Self::Mixed => "multi, mixed",
        }
    }

    fn request(self, locks: &LockManager) -> Lock {
        match self {
            Self::Mutex(key) => locks.mutex(key),
            Self::Fair(key) => locks.fair(key),
            Self::Read(key) => locks.read(key),
            Self::ReadFor(key) => locks.read(key).lease(LEASE),
            Self::Write(key) | Self::Downgrade(key) => locks.write(key),
            Self::Both => locks.multi(["{2}:both:1", "{2}:both:0"]),
            Self::Mixed => locks.multi([
                MultiKey::mutex("{0}:mutex"),
                MultiKey::read("{0}:rw"),
                MultiKey::fair("{0}:fair"),
            ]),
        }
    }

    fn reads(self, key: &str) -> bool {
        matches!(self, Self::Read(_) | Self::ReadFor(_)) || matches!(self, Self::Mixed) && key == "{0}:rw"
    }
}

/// The counts of one kind of worker.
#[derive(Debug, Default)]
struct Tally {
    rounds: u64,
    lost: u64,
    longest: Duration,
}

type Tallies = BTreeMap<String, Tally>;

fn add(tallies: &mut Tallies, name: String, other: &Tally) {
    let tally = tallies.entry(name).or_default();
    tally.rounds += other.rounds;
    tally.lost += other.lost;
    tally.longest = tally.longest.max(other.longest);
}

/// Stays inside for a moment, and records it for each key.
async fn inside(recorder: &Recorder, guard: &LockGuard, reads: impl Fn(&str) -> bool) {
    let mut sections = Vec::new();
    for (key, token) in guard.tokens() {
        let remaining = || guard.remaining();
        sections.push(if reads(key.as_str()) {
            recorder.enter_shared(key.as_str(), token.get(), remaining)
        } else {
            recorder.enter(key.as_str(), token.get(), remaining)
        });
    }
    tokio::time::sleep(HOLD).await;
    for section in sections {
        recorder.leave(section, || guard.remaining());
    }
}

async fn task(locks: LockManager, recorder: Arc<Recorder>, first: usize, end: Instant) -> Tallies {
    let mut tallies = Tallies::new();
    // The step is coprime to the number of things to do, so each task does all of them.
    for work in (0..).map(|round| RUST[(first + round * 3) % RUST.len()]) {
        let asked = Instant::now();
        if asked >= end {
            break;
        }
        let guard = match work.request(&locks).wait(Duration::from_secs(60)).acquire().await {
            Ok(guard) => guard,
            Err(error @ LockError::TimedOut { .. }) => panic!("{work:?}: {error}"),
            Err(error) => panic!("{work:?} failed: {error}"),
        };
        let longest = asked.elapsed();
        inside(&recorder, &guard, |key| work.reads(key)).await;
        let guard = if matches!(work, Rust::Downgrade(_)) {
            match guard.downgrade().await {
                Ok(guard) => {
                    inside(&recorder, &guard, |_| true).await;
                    Some(guard)
                }
                Err(_) => None,
            }
        } else {
            Some(guard)
        };
        let lost = match guard {
            Some(guard) => guard.release().await.is_err(),
            None => true,
        };
        add(
            &mut tallies,
            format!("Rust {}", work.name()),
            &Tally { rounds: 1, lost: u64::from(lost), longest },
        );
        tokio::task::yield_now().await;
    }
    tallies
}

async fn thread(java: Arc<Java>, log: String, first: usize, end: Instant) -> Tallies {
    let mut tallies = Tallies::new();
    let name = format!("thread-{first}");
    let spell = SPELL.as_millis().to_string();
    for (kind, lock) in (0..).map(|round| JAVA[(first + round * 5) % JAVA.len()]) {
        if Instant::now() >= end {
            break;
        }
        let options =
            [("for", spell.as_str()), ("hold_us", "1000"), ("pause_us", "500"), ("log", log.as_str())];
        let answer = java.lock(&name, kind, lock).call("hammer", &options).within(SLACK * 12).await;
        let number =
            |name: &str| answer.value()[name].as_u64().unwrap_or_else(|| panic!("no {name}: {answer:?}"));
        let longest = Duration::from_nanos(number("longest"));
        add(&mut tallies, format!("Java {kind}"), &Tally { rounds: number("rounds"), lost: 0, longest });
    }
    tallies
}

/// Starts one Java program after another, and kills each while its threads work. None of them
/// queues for fair locks, where Redisson's dead waiters keep their places for minutes.
async fn doomed(server: Arc<Shared>, log: String, end: Instant) -> usize {
    let mut killed = 0;
    while Instant::now() < end {
        let mut java = Java::start_with(&*server, Settings::default().alone().watchdog(LEASE)).await;
        let options = [("for", "60000"), ("hold_us", "1000"), ("log", log.as_str())];
        let threads: Vec<_> = (0..JAVA.len()).map(|number| format!("doomed-{number}")).collect();
        let locks =
            threads.iter().zip(JAVA).filter(|(_, (kind, name))| !format!("{kind}{name}").contains("fair"));
        let calls: Vec<_> = locks
            .map(|(thread, (kind, name))| java.lock(thread, kind, name).call("hammer", &options))
            .collect();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        drop(calls);
        java.kill();
        killed += 1;
        // Until its locks are free again, and for a while in which all others go on.
        tokio::time::sleep(LEASE * 3 / 2).await;
    }
    killed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_kinds_of_both_sides_exclude_each_other_and_leave_nothing_behind() {
    everybody(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_kinds_of_both_sides_go_on_when_java_programs_are_killed() {
    everybody(true).await;
}

async fn everybody(kills: bool) {
    let seconds = std::env::var("LOCK_INTEROP_SECONDS").ok();
    let time = Duration::from_secs(seconds.map_or(10, |seconds| seconds.parse().expect("seconds")));
    let server = Arc::new(Shared::start());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let recorder = Arc::new(Recorder::open(&path).unwrap());
    let settings = |ahead| Settings::default().watchdog(LEASE).wall_clock_ahead(ahead);
    let (left, right) =
        tokio::join!(Java::start_with(&*server, settings(2000)), Java::start_with(&*server, settings(-2000)));
    let javas = [Arc::new(left), Arc::new(right)];
    let end = Instant::now() + time;
    let mut workers = JoinSet::new();
    for (manager, java) in javas.iter().enumerate() {
        let locks = connect(&*server, |builder| builder.lease(LEASE)).await;
        for number in 0..TASKS {
            workers.spawn(task(locks.clone(), recorder.clone(), manager * TASKS + number, end));
        }
        for number in 0..THREADS {
            let (java, log) = (java.clone(), path.display().to_string());
            workers.spawn(thread(java, log, manager * THREADS + number, end));
        }
    }
    let killer = kills.then(|| tokio::spawn(doomed(Arc::clone(&server), path.display().to_string(), end)));
    let mut tallies = Tallies::new();
    while let Some(done) = workers.join_next().await {
        for (name, tally) in done.expect("a worker ends in good order") {
            add(&mut tallies, name, &tally);
        }
    }
    let over = end.elapsed();
    if let Some(killer) = killer {
        println!("{} programs killed", killer.await.unwrap());
    }
    let report = Report::read(&path).unwrap();
    println!(
        "{time:?}, the last left {over:.2?} later; {} sections on {} keys",
        report.total(),
        report.sections.len()
    );
    for (name, Tally { rounds, lost, longest }) in &tallies {
        println!("{name:22} {rounds:6} times, {lost} lost, longest wait {longest:.2?}");
    }
    report.assert_clean();
    assert_eq!(report.sections.len(), 8, "{report}");
    for name in ["lock", "fenced", "fair", "read", "write", "multi"] {
        assert!(tallies.get(&format!("Java {name}")).is_some_and(|tally| tally.rounds > 0), "Java {name}");
    }
    for work in RUST {
        let name = format!("Rust {}", work.name());
        assert!(tallies.get(&name).is_some_and(|tally| tally.rounds > 0), "{name}");
    }
    // Only the counters of fencing tokens are left.
    let is_counter = |key: &String| key.starts_with("redisson_lock_token:");
    // Killed programs leave locks that end with their leases, and Redisson's records of unlocks,
    // which last 20 s.
    let deadline = Instant::now() + if kills { SLACK * 4 } else { SLACK };
    while !server.keys().iter().all(is_counter) {
        assert!(Instant::now() < deadline, "left behind: {:?}", server.keys());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.keys().len(), 8);
}
