//! Waiting for a mutex: limits, order, hand-off, crowds, and waiters that are not polled.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_runtime::{LockError, LockManager};
use lock_tests::{RedisServer, Site, first_poll, on_every_store};
use tokio::time::Instant;

const LONG: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Makes `tasks` tasks queue for one lock in a known order, `rounds` times each, and checks that
/// they take turns.
async fn hand_off(site: &Site, tasks: usize, rounds: usize) {
    let locks = site.manager().await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let gate = locks.mutex("handed on").acquire().await.unwrap();
    let mut running = Vec::new();
    for task in 0..tasks {
        let (locks, order) = (locks.clone(), order.clone());
        // Queued here, in this order, before the gate opens.
        let first = first_poll({
            let locks = locks.clone();
            async move { locks.mutex("handed on").wait(LONG).acquire().await }
        })
        .await;
        running.push(tokio::spawn(async move {
            let mut guard = first.await.unwrap();
            for round in 1..=rounds {
                order.lock().unwrap().push((task, guard.fencing_token()));
                tokio::task::yield_now().await;
                if round == rounds {
                    return guard.release().await.unwrap();
                }
                // Queues again before the release: the others are ahead, and the next one is known.
                let next = first_poll({
                    let locks = locks.clone();
                    async move { locks.mutex("handed on").wait(LONG).acquire().await }
                })
                .await;
                guard.release().await.unwrap();
                guard = next.await.unwrap();
            }
        }));
    }
    gate.release().await.unwrap();
    for task in running {
        task.await.unwrap();
    }
    let order = order.lock().unwrap();
    // A busy machine can cause a waiter to miss its offer, and so to be passed over; paused time
    // can't.
    if !site.is_remote() {
        let in_turn = order.iter().enumerate().all(|(i, (task, _))| *task == i % tasks);
        assert!(in_turn, "first come, first served: {order:?}");
    }
    assert!(order.windows(2).all(|pair| pair[0].1 < pair[1].1), "tokens grow at every hand-off: {order:?}");
    assert_eq!(order.len(), tasks * rounds);
}

on_every_store! {
    async fn ten_thousand_pairs_in_sequence_work(site: Site) {
        let locks = site.manager().await;
        let mut last = None;
        for _ in 0..10_000 {
            let guard = locks.mutex("sequence").acquire().await.unwrap();
            assert!(Some(guard.fencing_token()) > last);
            last = Some(guard.fencing_token());
            guard.release().await.unwrap();
        }
        assert!(!locks.status("sequence").await.unwrap().is_locked());
    }

    async fn two_tasks_hand_a_lock_to_each_other(site: Site) {
        hand_off(&site, 2, 50).await;
    }

    async fn three_tasks_take_turns(site: Site) {
        hand_off(&site, 3, 50).await;
    }

    async fn a_wait_ends_at_its_limit(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let _held = locks.mutex("limit").acquire().await.unwrap();
        // In the holder's process and in another one.
        for waiter in [&locks, &other] {
            let start = Instant::now();
            let error = waiter.mutex("limit").wait(Duration::from_secs(3)).acquire().await.unwrap_err();
            let took = start.elapsed();
            assert!(took >= ms(2900) && took <= ms(3500), "{took:?}");
            assert!(matches!(error, LockError::TimedOut { waited, .. } if waited >= ms(2900)), "{error:?}");
        }
    }

    async fn without_a_wait_a_busy_lock_is_refused_at_once(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let _held = locks.mutex("busy").acquire().await.unwrap();
        for asker in [&locks, &other] {
            assert!(asker.mutex("busy").try_acquire().await.unwrap().is_none());
            let error = asker.mutex("busy").no_wait().acquire().await.unwrap_err();
            assert!(matches!(error, LockError::Busy { .. }), "{error:?}");
            assert!(error.is_busy());
        }
    }

    async fn the_managers_default_wait_applies_where_none_is_named(site: Site) {
        let locks = site.manager_with(|builder| builder.default_wait(ms(300))).await;
        let _held = locks.mutex("default").acquire().await.unwrap();
        let start = Instant::now();
        let error = locks.mutex("default").acquire().await.unwrap_err();
        assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}");
        assert!(start.elapsed() >= ms(300) && start.elapsed() < site.at_most(ms(300)), "{:?}", start.elapsed());
    }

    async fn for_ever_is_longer_than_the_default_wait(site: Site) {
        let locks = site.manager_with(|builder| builder.default_wait(ms(100))).await;
        let held = locks.mutex("patient").acquire().await.unwrap();
        let waiter = first_poll({
            let locks = locks.clone();
            async move { locks.mutex("patient").wait_forever().acquire().await }
        }).await;
        let waiter = tokio::spawn(waiter);
        tokio::time::sleep(ms(500)).await;
        assert!(!waiter.is_finished());
        held.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }

    async fn of_a_thousand_impatient_tasks_exactly_one_gets_a_lock_that_is_kept(site: Site) {
        let locks = site.manager().await;
        // The connection is warm: the lock is measured, not the first round trip.
        locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
        let (winners, mut guards) = tokio::sync::mpsc::unbounded_channel();
        // Servers on a busy machine are slow to answer.
        let wait = if site.is_remote() { ms(2000) } else { ms(10) };
        let tasks: Vec<_> = (0..1000)
            .map(|_| {
                let (locks, winners) = (locks.clone(), winners.clone());
                tokio::spawn(async move {
                    match locks.mutex("crowd").wait(wait).acquire().await {
                        // Kept until everybody else has given up.
                        Ok(guard) => drop(winners.send(guard)),
                        Err(error) => assert!(matches!(error, LockError::TimedOut { .. }), "{error:?}"),
                    }
                })
            })
            .collect();
        drop(winners);
        for task in tasks {
            task.await.unwrap();
        }
        let winner = guards.recv().await.expect("one gets it");
        assert!(guards.recv().await.is_none(), "only one");
        winner.release().await.unwrap();
    }

    async fn a_hundred_patient_tasks_all_get_the_lock(site: Site) {
        let locks = site.manager().await;
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                let locks = locks.clone();
                tokio::spawn(async move {
                    let guard = locks.mutex("crowd").wait(Duration::from_secs(10)).acquire().await.unwrap();
                    tokio::time::sleep(ms(1)).await;
                    guard.release().await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert!(!locks.status("crowd").await.unwrap().is_locked());
    }

    async fn a_waiter_that_is_never_polled_does_not_block_the_others(site: Site) {
        let locks = site.manager().await;
        let held = locks.mutex("parked").acquire().await.unwrap();
        // Like an arm of `select!` whose loop is busy elsewhere: alive, at the head of the queue,
        // and not polled.
        let parked = first_poll(locks.mutex("parked").wait(LONG).acquire()).await;
        let waiter = tokio::spawn({
            let locks = locks.clone();
            async move { locks.mutex("parked").wait(LONG).acquire().await }
        });
        tokio::task::yield_now().await;
        held.release().await.unwrap();
        let start = Instant::now();
        let guard = waiter.await.unwrap().expect("the parked waiter is passed over");
        assert!(start.elapsed() < site.at_most(ms(200)), "{:?}", start.elapsed());
        guard.release().await.unwrap();
        // It has kept its place, and gets the lock when it is polled again.
        parked.await.unwrap().release().await.unwrap();
    }

    async fn a_parked_waiter_does_not_keep_the_lock_from_other_managers(site: Site) {
        let (locks, other) = (site.manager().await, site.manager().await);
        let held = locks.mutex("parked").acquire().await.unwrap();
        let parked = first_poll(locks.mutex("parked").wait(LONG).acquire()).await;
        held.release().await.unwrap();
        for _ in 0..3 {
            let guard = other.mutex("parked").wait(LONG).acquire().await.expect("the parked waiter takes nothing");
            guard.release().await.unwrap();
        }
        parked.await.unwrap().release().await.unwrap();
    }

    async fn a_dropped_waiter_gives_its_place_to_the_next(site: Site) {
        let locks = site.manager().await;
        let held = locks.mutex("dropped").acquire().await.unwrap();
        let mut waiters = Vec::new();
        for _ in 0..3 {
            waiters.push(first_poll(locks.mutex("dropped").wait(LONG).acquire()).await);
        }
        let last = waiters.pop().unwrap();
        drop(waiters);
        held.release().await.unwrap();
        last.await.unwrap().release().await.unwrap();
        assert!(!locks.status("dropped").await.unwrap().is_locked());
    }
}

#[test]
fn a_blocked_worker_holds_up_nobody_elses_requests() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    let url = server.url();
    runtime.block_on(async move {
        let locks = LockManager::connect(&url).await.unwrap();
        drop(locks.mutex("warm").acquire().await.unwrap());
        tokio::time::sleep(ms(50)).await;
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (go_on, gone_on) = std::sync::mpsc::channel::<()>();
        let (all, one) = (locks.clone(), locks);
        let blocked = tokio::spawn(async move {
            let mut waiting = Vec::new();
            for i in 0..3 {
                waiting.push(first_poll(all.mutex(format!("k{i}")).wait_forever().acquire()).await);
            }
            begun.send(()).unwrap();
            gone_on.recv().unwrap();
            for acquire in waiting {
                drop(acquire.await.unwrap());
            }
        });
        has_begun.await.unwrap();
        // The lock is free, so this does not wait for the worker to go on.
        drop(one.mutex("other").wait_forever().acquire().await.unwrap());
        go_on.send(()).unwrap();
        blocked.await.unwrap();
    });
}
