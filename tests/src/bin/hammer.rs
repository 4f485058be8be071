//! Many tasks on a few keys, which note every section in the overlap log.
//!
//! `hammer <url> <log> <tasks> <keys> <milliseconds> <lease in ms|broken>` says `ready`, starts at
//! the line `go`, and says `done <sections> <lost>`. The line `end` ends its work early.
//! `<sections>` is how many sections were entered, `<lost>` in how many of them the lock was lost,
//! or its release was not confirmed. `broken` uses a lock that only excludes tasks of its own
//! process, which the checker must notice.
#![allow(clippy::print_stdout, reason = "answers go to stdout")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::{ConnectError, LockError, LockManager};
use lock_tests::clock::now_nanos;
use lock_tests::overlap::Recorder;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, log, tasks, keys, time, lock] = args.as_slice() else {
        println!("!six arguments are needed: {args:?}");
        return;
    };
    let number = |text: &String| text.parse::<usize>().expect("a number");
    let (tasks, keys) = (number(tasks), number(keys));
    let time = Duration::from_millis(number(time) as u64);
    let lock = Arc::new(match lock.as_str() {
        "broken" => Lock::ThisProcessOnly((0..keys).map(|_| tokio::sync::Mutex::new(())).collect()),
        lease => {
            let lease = Duration::from_millis(lease.parse().expect("milliseconds"));
            Lock::Real(connect(url, lease).await)
        }
    });
    println!("ready");
    tokio::task::block_in_place(|| std::io::stdin().read_line(&mut String::new()).expect("a line"));

    let (end, is_ended) = (Instant::now() + time, Arc::new(AtomicBool::new(false)));
    let ended = Arc::clone(&is_ended);
    std::thread::spawn(move || {
        let ends = std::io::stdin().lines().map_while(Result::ok).any(|line| line == "end");
        ended.store(ends, Ordering::Relaxed);
    });
    let goes_on = move || Instant::now() < end && !is_ended.load(Ordering::Relaxed);
    let running: Vec<_> = (0..tasks)
        .map(|task| tokio::spawn(run(lock.clone(), PathBuf::from(log), task, keys, goes_on.clone())))
        .collect();
    let (mut sections, mut lost) = (0, 0);
    for task in running {
        match task.await {
            Ok(counts) => {
                sections += counts.0;
                lost += counts.1;
            }
            Err(error) => println!("!a task failed: {error}"),
        }
    }
    if let Lock::Real(locks) = &*lock {
        locks.shutdown(Duration::from_secs(60)).await.expect("all locks were released");
    }
    println!("done {sections} {lost}");
}

/// Connects, also to servers that are just electing a primary.
async fn connect(url: &str, lease: Duration) -> LockManager {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match LockManager::builder().lease(lease).connect(url).await {
            Err(ConnectError::Unavailable { .. }) if Instant::now() < end => {}
            connected => return connected.expect("the server is up"),
        }
    }
}

enum Lock {
    Real(LockManager),
    ThisProcessOnly(Vec<tokio::sync::Mutex<()>>),
}

/// Runs sections one after the other on changing keys, and releases them in every way that users
/// do.
async fn run(
    lock: Arc<Lock>,
    log: PathBuf,
    task: usize,
    keys: usize,
    goes_on: impl Fn() -> bool,
) -> (usize, usize) {
    const FOR_EVER: Duration = Duration::from_secs(3600);
    let recorder = Recorder::open(&log).expect("the log can be opened");
    let (mut sections, mut lost) = (0, 0);
    while goes_on() {
        let index = (task + sections) % keys;
        let key = format!("hammered:{index}");
        match &*lock {
            Lock::Real(locks) => {
                let guard = locks
                    .mutex(&key)
                    .wait(Duration::from_secs(60))
                    .acquire()
                    .await
                    .expect("each wait ends with a grant");
                let section = recorder.enter(&key, guard.fencing_token().get(), || guard.remaining());
                work(sections).await;
                recorder.leave(section, || guard.remaining());
                if sections % 2 == 0 {
                    match guard.release().await {
                        Ok(()) => {}
                        Err(LockError::Lost { .. } | LockError::Unconfirmed { .. }) => lost += 1,
                        Err(error) => println!("!{error}"),
                    }
                } else {
                    lost += usize::from(guard.is_lost());
                    drop(guard);
                }
            }
            Lock::ThisProcessOnly(mutexes) => {
                let guard = mutexes[index].lock().await;
                let section = recorder.enter(&key, now_nanos(), || FOR_EVER);
                work(sections).await;
                recorder.leave(section, || FOR_EVER);
                drop(guard);
            }
        }
        sections += 1;
    }
    (sections, lost)
}

/// Some sections are empty, some yield, some sleep.
async fn work(n: usize) {
    match n % 3 {
        0 => {}
        1 => tokio::task::yield_now().await,
        _ => tokio::time::sleep(Duration::from_millis(1)).await,
    }
}
