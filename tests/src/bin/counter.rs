//! A process that counts in a file, each step under one lock.
//!
//! `counter <url> <file> <times>` says `ready`, starts at the line `go`, adds one to the number in
//! the file this many times, and says `done`. Reading and writing are two steps, so that two
//! processes at once would lose a count.
#![allow(clippy::print_stdout, reason = "answers go to stdout")]

use std::time::Duration;

use lock_runtime::{LockError, LockManager};

/// Number of tasks that count.
const TASKS: usize = 4;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, file, times] = &args[..] else { panic!("three arguments are needed: {args:?}") };
    let times: usize = times.parse().expect("a number");
    let locks = LockManager::connect(url).await.expect("the store is there");
    println!("ready");
    tokio::task::block_in_place(|| std::io::stdin().read_line(&mut String::new()).expect("a line"));

    let tasks = (0..TASKS).map(|_| {
        let (locks, file) = (locks.clone(), file.clone());
        tokio::spawn(async move {
            for _ in 0..times / TASKS {
                count(&locks, &file).await.expect("the lock is held");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("a task ends");
    }
    locks.shutdown(Duration::from_secs(10)).await.expect("all locks were released");
    println!("done");
}

async fn count(locks: &LockManager, file: &str) -> Result<(), LockError> {
    let guard = locks.mutex("count").wait(Duration::from_secs(120)).acquire().await?;
    let before = std::fs::read_to_string(file).expect("the file is there");
    let before: u64 = before.parse().expect("a number");
    tokio::task::yield_now().await;
    std::fs::write(file, (before + 1).to_string()).expect("the file can be written");
    guard.release().await
}
