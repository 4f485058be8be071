//! `held`: many locks that are held and renewed, and what that costs.
//!
//! `readers`: one lock that many managers of this process read, each over its own connections, as
//! that many processes would.

use std::time::Instant;

use lock_runtime::Kind;
use serde_json::json;

use super::common::{Errors, GAVE_UP, WARM_UP};
use crate::alloc;
use crate::args::{Options, Workload};
use crate::backend::{Backend, Held, Limit, Lock};
use crate::meter::Meter;
use crate::report::Report;
use crate::server::Urls;
use crate::stats::{Samples, Waits, round};

/// Number of tasks that take the locks, or give them back, at the same time.
const AT_ONCE: usize = 64;

pub(super) async fn run(options: &Options, urls: &Urls) -> Result<Report, String> {
    let mut meter = Meter::connect(options, urls).await?;
    let (locks, warm) = match options.workload {
        Workload::Readers => readers(options, urls).await?,
        _ => {
            let backend = Backend::connect(options, urls).await?;
            let locks = (0..options.keys).map(|i| backend.lock(&format!("held:{i}")));
            (locks.collect::<Result<_, _>>()?, vec![backend.lock("held:warm-up")?])
        }
    };
    // Scripts and the timer are set up once for all locks, so they must not count for each.
    give_back(&warm, take(&warm).await?.holds).await?;

    let resident_before = resident();
    let memory = alloc::Growth::start();
    let Taken { holds, waits, mut errors } = take(&locks).await?;
    tokio::time::sleep(WARM_UP).await;
    let start = meter.start().await?;
    tokio::time::sleep(options.secs).await;
    let cost = meter.end(&start).await?;
    let grown = memory.end();
    let resident = resident();

    let held = holds.iter().flatten().count();
    let back = give_back(&locks, holds).await?;
    errors.0 += back.errors.0;
    let per_hold = |bytes: f64| (held > 0).then(|| round(bytes / held as f64));
    let resident_grown = resident.zip(resident_before).and_then(|(now, before)| per_hold(now - before));
    let scripts = cost.calls.map(|calls| round(calls.scripts as f64 / cost.time.as_secs_f64()));
    Ok(Report {
        tasks: AT_ONCE.min(locks.len()),
        hold_us: u64::try_from(options.secs.as_micros()).unwrap_or(u64::MAX),
        grants: held as u64,
        errors: errors.0,
        waits: Waits::from(&waits),
        cost,
        extra: vec![
            ("lost", json!(back.lost)),
            ("rss_mb", json!(resident.map(|bytes| round(bytes / 1e6)))),
            ("bytes_per_hold", json!(per_hold(grown as f64))),
            ("rss_per_hold", json!(resident_grown)),
            ("scripts_per_s", json!(scripts)),
        ],
    })
}

/// Connects the managers of `readers`. Returns a lock of each, and another one for the warm-up.
async fn readers(options: &Options, urls: &Urls) -> Result<(Vec<Lock>, Vec<Lock>), String> {
    let (mut locks, mut warm) = (Vec::new(), Vec::new());
    for manager in 0..options.procs {
        let backend = Backend::connect(options, urls).await?;
        locks.push(backend.lock_as(Kind::Read, "readers")?);
        warm.push(backend.lock(&format!("readers:warm-up:{manager}"))?);
    }
    Ok((locks, warm))
}

/// In the order of the locks; `None` for one that was not granted.
type Holds = Vec<Option<Held>>;

struct Taken {
    holds: Holds,
    waits: Samples,
    errors: Errors,
}

async fn take(locks: &[Lock]) -> Result<Taken, String> {
    let mut all =
        Taken { holds: Vec::with_capacity(locks.len()), waits: Samples::new(), errors: Errors::default() };
    let tasks: Vec<_> = parts(locks)
        .map(|part| {
            let mut part = part.to_vec();
            tokio::spawn(async move {
                let mut outcomes = Vec::with_capacity(part.len());
                for lock in &mut part {
                    let asked = Instant::now();
                    let outcome = lock.acquire(Limit::Default).await;
                    outcomes.push((outcome, asked.elapsed()));
                }
                outcomes
            })
        })
        .collect();
    for task in tasks {
        for (outcome, wait) in task.await.map_err(|error| format!("a task failed: {error}"))? {
            let held = match outcome {
                Ok(Some(held)) => {
                    all.waits.record(wait);
                    Some(held)
                }
                Ok(None) => {
                    all.errors.add(GAVE_UP);
                    None
                }
                Err(error) => {
                    all.errors.add(&error);
                    None
                }
            };
            all.holds.push(held);
        }
    }
    Ok(all)
}

struct Back {
    /// Holds that knew they were lost, and those whose release was not confirmed.
    lost: u64,
    errors: Errors,
}

async fn give_back(locks: &[Lock], mut holds: Holds) -> Result<Back, String> {
    let mut tasks = Vec::new();
    for part in parts(locks) {
        let mut part = part.to_vec();
        let held: Holds = holds.drain(..part.len().min(holds.len())).collect();
        tasks.push(tokio::spawn(async move {
            let mut outcomes = Vec::with_capacity(held.len());
            for (lock, held) in part.iter_mut().zip(held) {
                if let Some(held) = held {
                    let lost = held.is_lost();
                    outcomes.push((lost, lock.release(held).await));
                }
            }
            outcomes
        }));
    }
    let mut back = Back { lost: 0, errors: Errors::default() };
    for task in tasks {
        for (lost, released) in task.await.map_err(|error| format!("a task failed: {error}"))? {
            back.lost += u64::from(lost || released.is_err());
            if let Err(error) = released {
                back.errors.add(&error);
            }
        }
    }
    Ok(back)
}

fn parts(locks: &[Lock]) -> impl Iterator<Item = &[Lock]> {
    locks.chunks(locks.len().div_ceil(AT_ONCE).max(1))
}

/// Returns the resident memory of this process in bytes; known on Linux only.
fn resident() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn locks_that_are_taken_away_count_as_lost() {
        let manager = lock_runtime::LockManager::connect("memory:").await.unwrap();
        let backend = Backend::Ours(manager.clone());
        let locks: Vec<Lock> = (0..100).map(|i| backend.lock(&format!("held:{i}")).unwrap()).collect();
        let taken = take(&locks).await.unwrap();
        assert_eq!((taken.holds.iter().flatten().count(), taken.errors.0), (100, 0));
        for key in ["held:7", "held:99"] {
            assert!(manager.force_release(key).await.unwrap());
        }
        let back = give_back(&locks, taken.holds).await.unwrap();
        assert_eq!(back.lost, 2);
    }

    #[tokio::test]
    async fn locks_that_are_kept_are_given_back() {
        let manager = lock_runtime::LockManager::connect("memory:").await.unwrap();
        let backend = Backend::Ours(manager.clone());
        let locks: Vec<Lock> = (0..3).map(|i| backend.lock(&format!("held:{i}")).unwrap()).collect();
        let back = give_back(&locks, take(&locks).await.unwrap().holds).await.unwrap();
        assert_eq!((back.lost, back.errors.0), (0, 0));
        assert!(!manager.force_release("held:0").await.unwrap());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_is_in_memory() {
        assert!(resident().unwrap() > 1e5);
    }
}
