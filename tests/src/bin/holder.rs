//! A process that takes locks on command: the rival of the integration tests.
//!
//! `holder <url> [lease=<ms>] [call_timeout=<ms>]` connects and says `ready`. Then it reads one
//! command and writes one answer per line. It answers `failed <error>` when an operation fails, and
//! `!…` when it does not understand a command:
//!
//! ```text
//! acquire <key> [kind=<kind>] [wait=<ms>] [lease=<ms>]   acquired <token>
//! start <key> [kind=<kind>] [wait=<ms>] [lease=<ms>]     started, later on its own line: acquired <token>
//! release <key>                            released
//! drop <key>                               dropped
//! state <key>                              lost | held <remaining ms>
//! begin <key> <note>                       begun: a transaction has inserted into the table `note`
//! commit <key>                             committed, if the lock of that key is held
//! permit <semaphore> [wait=<ms>] [lease=<ms>]   permitted, held until the end
//! body <key> <register>                    inside <token>, then waits for the line `go` *without* an await, writes to
//!                                          the fenced register and says `write accepted` or `write refused`; then
//!                                          awaits; in the end `outcome done` or `outcome lost`
//! ```
//!
//! Kinds are `mutex` (the default), `fair`, `read` and `write`.
//!
//! It ends when its input ends, without an orderly release.
#![allow(clippy::print_stdout, reason = "answers go to stdout")]

use std::collections::HashMap;
use std::io::BufRead;
use std::time::Duration;

use lock_runtime::{CommitError, Kind, LockError, LockGuard, LockManager};
use lock_tests::fenced::FencedRegister;
use lock_tests::sql_commit::Notes;
use sqlx::{MySql, Pool, Postgres, Transaction};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut args = std::env::args().skip(1);
    let url = args.next().expect("the first argument is the URL");
    let options = Options::parse(&args.collect::<Vec<_>>().join(" "));
    let mut builder = LockManager::builder();
    if let Some(lease) = options.lease {
        builder = builder.lease(lease);
    }
    if let Some(timeout) = options.call_timeout {
        builder = builder.call_timeout(timeout);
    }
    let locks = match builder.connect(&url).await {
        Ok(locks) => locks,
        Err(error) => {
            println!("!can't connect: {error}");
            return;
        }
    };
    println!("ready");

    let (guards, mut acquired) = tokio::sync::mpsc::unbounded_channel();
    let mut held: HashMap<String, LockGuard> = HashMap::new();
    let mut permits = Vec::new();
    let mut begun = HashMap::new();
    loop {
        // Blocks in place: the runtime moves other tasks to other threads, and guards are still
        // renewed.
        let Some(line) = tokio::task::block_in_place(next_line) else { return };
        while let Ok((key, guard)) = acquired.try_recv() {
            held.insert(key, guard);
        }
        let mut words = line.split_whitespace();
        let (Some(command), Some(key)) = (words.next(), words.next()) else {
            println!("!a command and a key are needed: {line:?}");
            continue;
        };
        let key = key.to_owned();
        let rest = words.collect::<Vec<_>>().join(" ");
        match command {
            "acquire" => match acquire(&locks, &key, &Options::parse(&rest)).await {
                Ok(guard) => {
                    println!("acquired {}", guard.fencing_token());
                    held.insert(key, guard);
                }
                Err(error) => println!("failed {error}"),
            },
            "start" => {
                let (locks, guards) = (locks.clone(), guards.clone());
                println!("started");
                tokio::spawn(async move {
                    match acquire(&locks, &key, &Options::parse(&rest)).await {
                        Ok(guard) => {
                            let token = guard.fencing_token();
                            let _ = guards.send((key, guard));
                            println!("acquired {token}");
                        }
                        Err(error) => println!("failed {error}"),
                    }
                });
            }
            "release" => match held.remove(&key) {
                Some(guard) => match guard.release().await {
                    Ok(()) => println!("released"),
                    Err(error) => println!("failed {error}"),
                },
                None => println!("!{key} is not held"),
            },
            "drop" => match held.remove(&key) {
                Some(guard) => {
                    drop(guard);
                    println!("dropped");
                }
                None => println!("!{key} is not held"),
            },
            "state" => match held.get(&key) {
                Some(guard) if guard.is_lost() => println!("lost"),
                Some(guard) => println!("held {}", guard.remaining().as_millis()),
                None => println!("!{key} is not held"),
            },
            "begin" => {
                begun.insert(key, Begun::with_note(&url, &rest).await);
                println!("begun");
            }
            "commit" => match (held.get(&key), begun.remove(&key)) {
                (Some(guard), Some(begun)) => match begun.commit_if_held(guard).await {
                    Ok(()) => println!("committed"),
                    Err(error) => println!("failed {error}"),
                },
                _ => println!("!{key} is not held, or no transaction has begun"),
            },
            "permit" => {
                let options = Options::parse(&rest);
                let mut semaphore = locks.semaphore(&key);
                if let Some(wait) = options.wait {
                    semaphore = semaphore.wait(wait);
                }
                if let Some(lease) = options.lease {
                    semaphore = semaphore.lease(lease);
                }
                match semaphore.acquire().await {
                    Ok(permit) => {
                        println!("permitted");
                        permits.push(permit);
                    }
                    Err(error) => println!("failed {error}"),
                }
            }
            "body" => body(&locks, &url, &key, &rest).await,
            _ => println!("!unknown command {command:?}"),
        }
    }
}

/// A transaction that has begun.
enum Begun {
    Postgres(Transaction<'static, Postgres>),
    MySql(Transaction<'static, MySql>),
}

impl Begun {
    async fn with_note(url: &str, note: &str) -> Self {
        if url.starts_with("mysql:") {
            Self::MySql(begin(url, note).await)
        } else {
            Self::Postgres(begin(url, note).await)
        }
    }

    async fn commit_if_held(self, guard: &LockGuard) -> Result<(), CommitError> {
        match self {
            Self::Postgres(tx) => guard.commit_if_held(tx).await,
            Self::MySql(tx) => guard.commit_if_held(tx).await,
        }
    }
}

async fn begin<D: Notes>(url: &str, note: &str) -> Transaction<'static, D> {
    let mut tx = Pool::<D>::connect(url).await.unwrap().begin().await.unwrap();
    D::run(&mut tx, &format!("INSERT INTO note VALUES ('{note}')")).await.unwrap();
    tx
}

async fn acquire(locks: &LockManager, key: &str, options: &Options) -> Result<LockGuard, LockError> {
    let mut lock = lock_tests::kinds::lock(locks, options.kind.unwrap_or(Kind::Mutex), key);
    if let Some(wait) = options.wait {
        lock = lock.wait(wait);
    }
    if let Some(lease) = options.lease {
        lock = lock.lease(lease);
    }
    lock.acquire().await
}

/// A locked body that is between two awaits when it is told to go on.
async fn body(locks: &LockManager, url: &str, key: &str, register: &str) {
    let addr = url.rsplit('/').next().and_then(|addr| addr.parse().ok()).expect("an address");
    let mut register = FencedRegister::open(addr, register);
    let outcome = locks
        .mutex(key)
        .with(async |guard| {
            let token = guard.fencing_token().get();
            println!("inside {token}");
            tokio::task::block_in_place(next_line);
            let accepted = register.write(token, "late");
            println!("write {}", if accepted { "accepted" } else { "refused" });
            tokio::task::yield_now().await;
        })
        .await;
    match outcome {
        Ok(()) => println!("outcome done"),
        Err(LockError::Lost { .. }) => println!("outcome lost"),
        Err(error) => println!("outcome {error}"),
    }
}

fn next_line() -> Option<String> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(line),
    }
}

fn kind(name: &str) -> Kind {
    match name {
        "mutex" => Kind::Mutex,
        "fair" => Kind::Fair,
        "read" => Kind::Read,
        "write" => Kind::Write,
        _ => panic!("unknown kind {name:?}"),
    }
}

#[derive(Debug, Default)]
struct Options {
    kind: Option<Kind>,
    wait: Option<Duration>,
    lease: Option<Duration>,
    call_timeout: Option<Duration>,
}

impl Options {
    fn parse(text: &str) -> Self {
        let mut options = Self::default();
        for word in text.split_whitespace() {
            let (name, value) = word.split_once('=').expect("options are name=value");
            if name == "kind" {
                options.kind = Some(kind(value));
                continue;
            }
            let value = Some(Duration::from_millis(value.parse().expect("milliseconds")));
            match name {
                "wait" => options.wait = value,
                "lease" => options.lease = value,
                "call_timeout" => options.call_timeout = value,
                _ => panic!("unknown option {name:?}"),
            }
        }
        options
    }
}
