//! Waiters: when they are woken, and in which order they are served.

use lock_core::Replication;
use lock_core::internal::clock::Clock;
use lock_core::store::{
    AcquireRequest, Acquired, Item, Kind, LockStore, Notice, ReleaseRequest, RenewItem, RenewRequest,
    Renewed, Rivals, StoreErrorKind,
};
use lock_engine::Engine;
use lock_engine::acquire::acquire;
use lock_engine::metrics::Label;
use lock_engine::request::Request;
use lock_engine::settings::EngineSettings;
use lock_engine::spec::Spec;
use lock_engine::terms::{Lease, Terms, Wait};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

use super::rig::*;

const SHORT: Duration = Duration::from_millis(20);

async fn hears_within(watch: &mut lock_core::store::Watch, time: Duration) -> bool {
    tokio::time::timeout(time, watch.notice()).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_release_wakes_a_waiter_soon_and_once() {
    for away in [None, Some(0), Some(1), Some(2)] {
        let rig = Rig::new(3);
        let (holder, waiter) = (rig.process(), rig.process());
        grant(&holder, 1).await;
        let mut watch = waiter.watch(request("a", 2)).await.unwrap();
        assert!(watch.is_confirmed());
        rig.fail(&Vec::from_iter(away), Fault::Refuses);
        release(&holder, 1).await.unwrap();
        assert!(hears_within(&mut watch, SHORT).await, "{away:?}");
        assert!(!hears_within(&mut watch, SECOND * 5).await, "{away:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_votes_that_a_loser_gives_back_wake_nobody_soon_nor_often() {
    let rig = Rig::new(3);
    // The holder came through another gate.
    let long = Arc::new(AcquireRequest::new(vec![item("a", 7)], SECOND * 100, SECOND));
    for server in &rig.servers[1..] {
        server.store().acquire(Arc::clone(&long)).await.unwrap();
    }
    let (one, other) = (rig.process(), rig.process());
    let mut watches =
        [one.watch(request("a", 1)).await.unwrap(), other.watch(request("a", 2)).await.unwrap()];
    assert!(is_busy(&one, 3).await);
    for watch in &mut watches {
        assert!(!hears_within(watch, SHORT).await);
    }
    // Each waiter asks again whenever it is woken.
    rig.servers.iter().for_each(|server| _ = server.acquires());
    let mut number = 10;
    let end = tokio::time::Instant::now() + SECOND * 20;
    while tokio::time::Instant::now() < end {
        let [first, second] = &mut watches;
        let woken = tokio::select! {
            _ = first.notice() => Some(&one),
            _ = second.notice() => Some(&other),
            () = tokio::time::sleep(SECOND) => None,
        };
        if let Some(process) = woken {
            number += 1;
            assert!(is_busy(process, number).await);
        }
    }
    let asked = rig.servers[0].acquires();
    assert!((2..=60).contains(&asked), "{asked} attempts of two waiters in 20 s");
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_confirmed_by_a_majority_and_mended_later() {
    let rig = Rig::new(3);
    let (holder, waiter) = (rig.process(), rig.process());
    grant(&holder, 1).await;
    rig.fail(&[0, 1], Fault::Refuses);
    assert!(!waiter.watch(request("a", 2)).await.unwrap().is_confirmed());
    rig.fail(&[1], Fault::None);
    let mut watch = waiter.watch(request("a", 2)).await.unwrap();
    assert!(watch.is_confirmed());
    rig.fail(&[0], Fault::None);
    tokio::time::sleep(SECOND * 3).await;
    rig.fail(&[2], Fault::Refuses);
    release(&holder, 1).await.unwrap();
    assert!(hears_within(&mut watch, SHORT).await, "the first two are a majority");
    rig.fail(&[0, 1, 2], Fault::Refuses);
    assert!(waiter.watch(request("a", 2)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_watch_leaves_nothing_at_the_stores() {
    let rig = Rig::new(3);
    let (holder, waiter) = (rig.process(), rig.process());
    let watch = waiter.watch(request("a", 2)).await.unwrap();
    grant(&holder, 1).await;
    assert_eq!(release(&holder, 1).await.unwrap().rivals, Rivals::Some);
    drop(watch);
    tokio::time::sleep(SHORT).await;
    grant(&holder, 1).await;
    assert_eq!(release(&holder, 1).await.unwrap().rivals, Rivals::None);
}

fn fair(number: u32) -> Item {
    Item { kind: Kind::Fair, ..item("a", number) }
}

fn in_line(number: u32) -> Arc<AcquireRequest> {
    Arc::new(AcquireRequest::new(vec![fair(number)], LEASE, SECOND * 2).queued(SECOND * 60))
}

async fn give_back(store: &Arc<dyn LockStore>, number: u32) {
    let items = vec![fair(number)];
    let timeout = SECOND * 2;
    let linger = Duration::ZERO;
    let request = lock_core::store::ReleaseRequest {
        items: items.into(),
        linger,
        then: None,
        own_watch: None,
        timeout,
    };
    assert_eq!(store.release(Arc::new(request)).await.unwrap().held, [true]);
}

async fn keep_place(store: &Arc<dyn LockStore>, number: u32) -> Renewed {
    let items = vec![RenewItem::waiter(fair(number), LEASE)];
    store.renew(Arc::new(RenewRequest { items, timeout: SECOND * 2 })).await.unwrap()[0]
}

#[tokio::test(start_paused = true)]
async fn a_fair_lock_is_served_in_the_order_of_the_gate() {
    for away in [None, Some(1), Some(2)] {
        let rig = Rig::new(3);
        let processes = [rig.process(), rig.process()];
        processes[0].check().await.unwrap();
        rig.fail(&Vec::from_iter(away), Fault::Refuses);
        let first = processes[0].acquire(in_line(9)).await.unwrap();
        assert!(matches!(first, Acquired::Granted(_)));
        let mut line = Vec::new();
        for (number, process) in [3, 1, 2].into_iter().zip(processes.iter().cycle()) {
            let request = in_line(number);
            assert!(matches!(process.acquire(Arc::clone(&request)).await.unwrap(), Acquired::Busy(_)));
            let watch = process.watch(Arc::clone(&request)).await.unwrap();
            assert!(matches!(process.acquire(Arc::clone(&request)).await.unwrap(), Acquired::Busy(_)));
            line.push((process, number, request, watch));
        }
        let mut holder = (&processes[0], 9);
        for turn in 0..line.len() {
            for (process, number, _, _) in &line[turn..] {
                assert!(matches!(keep_place(process, *number).await, Renewed::Waiting(_)));
            }
            give_back(holder.0, holder.1).await;
            // Requests that are not first are refused; none of them overtakes.
            for (process, _, request, _) in line[turn + 1..].iter().rev() {
                assert!(matches!(process.acquire(Arc::clone(request)).await.unwrap(), Acquired::Busy(_)));
            }
            let (process, number, request, watch) = &mut line[turn];
            let notice = tokio::time::timeout(SHORT, watch.notice()).await;
            assert_eq!(notice.unwrap(), Notice::Retry, "{away:?}");
            let got = process.acquire(Arc::clone(request)).await.unwrap();
            assert!(matches!(got, Acquired::Granted(_)), "{away:?} {got:?}");
            holder = (process, *number);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fair_lock_goes_on_when_its_gate_dies() {
    let rig = Rig::new(3);
    let (holder, waiter) = (rig.process(), rig.process());
    assert!(matches!(holder.acquire(in_line(1)).await.unwrap(), Acquired::Granted(_)));
    let request = in_line(2);
    assert!(matches!(waiter.acquire(Arc::clone(&request)).await.unwrap(), Acquired::Busy(_)));
    rig.fail(&[0], Fault::Refuses);
    assert!(
        waiter
            .renew(Arc::new(RenewRequest { items: vec![RenewItem::waiter(fair(2), LEASE)], timeout: SECOND }))
            .await
            .is_err()
    );
    // Its place was at the old gate: it queues again at the new one.
    assert_eq!(keep_place(&waiter, 2).await, Renewed::Gone);
    assert!(matches!(waiter.acquire(Arc::clone(&request)).await.unwrap(), Acquired::Busy(_)));
    give_back(&holder, 1).await;
    assert!(matches!(waiter.acquire(request).await.unwrap(), Acquired::Granted(_)));
}

/// Returns the number of waiters at each server.
async fn lines(rig: &Rig) -> Vec<u64> {
    let mut lines = Vec::new();
    for server in &rig.servers {
        lines.push(server.store().status(key("a")).await.unwrap().waiters);
    }
    lines
}

#[tokio::test(start_paused = true)]
async fn a_place_at_an_earlier_gate_is_given_up_with_the_lock() {
    let rig = Rig::new(3);
    let (holder, waiter) = (rig.process(), rig.process());
    assert!(matches!(holder.acquire(in_line(1)).await.unwrap(), Acquired::Granted(_)));
    rig.fail(&[0], Fault::Refuses);
    let request = in_line(2);
    assert!(matches!(waiter.acquire(Arc::clone(&request)).await.unwrap(), Acquired::Busy(_)));
    rig.fail(&[0], Fault::None);
    tokio::time::sleep(SECOND * 3 / 2).await;
    assert!(matches!(waiter.acquire(Arc::clone(&request)).await.unwrap(), Acquired::Busy(_)));
    assert_eq!(lines(&rig).await, [1, 1, 0]);
    rig.fail(&[1], Fault::Refuses);
    give_back(&holder, 1).await;
    assert!(matches!(waiter.acquire(request).await.unwrap(), Acquired::Granted(_)));
    rig.fail(&[1], Fault::None);
    give_back(&waiter, 2).await;
    tokio::time::sleep(SHORT).await;
    assert_eq!(lines(&rig).await, [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn the_lines_of_two_gates_do_not_wait_for_each_other() {
    let rig = Rig::new(3);
    let processes = [rig.process(), rig.process(), rig.process()];
    assert!(matches!(processes[0].acquire(in_line(9)).await.unwrap(), Acquired::Granted(_)));
    let requests = [in_line(1), in_line(2)];
    // In one order at the second server, and in the other at the first.
    rig.fail(&[0], Fault::Refuses);
    for (process, request) in processes[1..].iter().zip(&requests) {
        assert!(matches!(process.acquire(Arc::clone(request)).await.unwrap(), Acquired::Busy(_)));
    }
    rig.fail(&[0], Fault::None);
    tokio::time::sleep(SECOND * 3 / 2).await;
    for (process, request) in processes[1..].iter().zip(&requests).rev() {
        assert!(matches!(process.acquire(Arc::clone(request)).await.unwrap(), Acquired::Busy(_)));
    }
    rig.fail(&[2], Fault::Refuses);
    give_back(&processes[0], 9).await;
    assert!(matches!(processes[1].acquire(Arc::clone(&requests[0])).await.unwrap(), Acquired::Busy(_)));
    let second = processes[2].acquire(Arc::clone(&requests[1])).await.unwrap();
    assert!(matches!(second, Acquired::Granted(_)), "{second:?}");
}

/// Rivals have the second and the third store. A request passes the gate and loses, and the gate is
/// slow to undo it.
async fn not_undone_for_certain(rig: &Rig) {
    rig.process().check().await.unwrap();
    for server in &rig.servers[1..] {
        server.store().acquire(request("a", 7)).await.unwrap();
    }
    rig.fail(&[1, 2], Fault::Slow(SECOND / 20));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_not_undone_for_certain_is_not_sent_again() {
    let rig = Rig::new(3);
    let process = rig.process();
    not_undone_for_certain(&rig).await;
    let request = in_line(1);
    let call = tokio::spawn(process.acquire(Arc::clone(&request)));
    tokio::time::sleep(SECOND / 40).await;
    rig.fail(&[0], Fault::Slow(SECOND * 3));
    assert_eq!(call.await.unwrap().unwrap_err().kind(), StoreErrorKind::Unsettled);
    rig.fail(&[0, 1, 2], Fault::None);
    for server in &rig.servers[1..] {
        server.store().force_release(key("a")).await.unwrap();
    }
    let again = process.acquire(Arc::clone(&request)).await.unwrap_err();
    assert_eq!(again.kind(), StoreErrorKind::Unsettled, "{again}");
    assert!(again.outcome_unknown() && again.is_transient());
    process.withdraw(request).await.unwrap();
    assert!(matches!(process.acquire(in_line(2)).await.unwrap(), Acquired::Granted(_)));
    tokio::time::sleep(SECOND * 5).await;
    assert_eq!(rig.holders("a").await, vec![Some(owner(2)); 3]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_under_way_is_not_sent_beside_itself() {
    let rig = Rig::new(3);
    let process = rig.process();
    process.check().await.unwrap();
    rig.fail(&[0, 1, 2], Fault::Slow(SECOND / 20));
    let request = in_line(1);
    let call = tokio::spawn(process.acquire(Arc::clone(&request)));
    tokio::time::sleep(SECOND / 40).await;
    let beside = process.acquire(Arc::clone(&request)).await.unwrap_err();
    assert_eq!(beside.kind(), StoreErrorKind::Unsettled, "{beside}");
    assert!(matches!(call.await.unwrap().unwrap(), Acquired::Granted(_)));
    // A request that was answered may be sent again.
    assert!(matches!(process.acquire(request).await.unwrap(), Acquired::Granted(_)));
}

#[tokio::test(start_paused = true)]
async fn a_late_withdrawal_takes_nothing_from_a_waiter_that_goes_on() {
    let rig = Rig::new(3);
    let minute = SECOND * 60;
    let store = rig.process_with(minute);
    let engine = Engine::start(EngineSettings::default(), Clock::tokio(), store, Handle::current());
    not_undone_for_certain(&rig).await;
    let waiting = tokio::spawn(acquire(Request {
        engine,
        key: key("a"),
        spec: Spec::one(Kind::Fair),
        terms: Terms {
            wait: Wait::For(SECOND * 30),
            lease: Lease::renewed(EngineSettings::default().lease),
            max_hold: None,
            min_hold: Duration::ZERO,
            replication: Replication::NONE,
        },
        label: Label::Borrowed(""),
        max_waiters: usize::MAX,
        asked: None,
    }));
    tokio::time::sleep(SECOND / 40).await;
    rig.fail(&[0], Fault::Slow(SECOND * 3));
    // The gate executes the withdrawal later; before that, the waiter is granted the key.
    tokio::time::sleep(SECOND).await;
    rig.fail(&[0, 1], Fault::None);
    rig.fail(&[2], Fault::Refuses);
    for server in &rig.servers[1..] {
        server.store().force_release(key("a")).await.unwrap();
    }
    let admitted = tokio::time::timeout(SECOND * 3 / 2, waiting).await.unwrap().unwrap();
    let Ok(admission) = admitted else { panic!("refused") };
    tokio::time::sleep(SECOND * 5).await;
    let holders = rig.holders("a").await;
    assert!(holders[0].is_some() && holders[0] == holders[1], "{holders:?}");
    admission.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fair_waiter_whose_turn_it_is_outlasts_a_rival_from_another_gate() {
    let rig = Rig::new(3);
    let process = rig.process();
    process.check().await.unwrap();
    for server in &rig.servers[1..] {
        server.store().acquire(request("a", 7)).await.unwrap();
    }
    let rivals = rig.servers[1..].to_vec();
    tokio::spawn(async move {
        tokio::time::sleep(SECOND * 3 / 10).await;
        for server in rivals {
            server.store().force_release(key("a")).await.unwrap();
        }
    });
    rig.servers.iter().for_each(|server| _ = server.acquires());
    assert!(matches!(process.acquire(in_line(1)).await.unwrap(), Acquired::Granted(_)));
    let asked = rig.servers[1].acquires();
    assert!(asked < 50, "{asked}");
}

/// Otherwise its owner's watch would leave out the release of the next holder.
#[tokio::test(start_paused = true)]
async fn a_store_that_answers_a_release_late_announces_no_echo() {
    let rig = Rig::new(3);
    // The first use of the stores needs all of them.
    let near = rig.process();
    grant(&near, 2).await;
    release(&near, 2).await.unwrap();
    let process = rig.process_over(&[0, 0, 300]);
    let mut watch = process.watch(request("a", 9)).await.unwrap();
    grant(&process, 1).await;
    let items = vec![item("a", 1)].into();
    let own_watch = Some(watch.echo());
    let release = ReleaseRequest { items, linger: Duration::ZERO, then: None, own_watch, timeout: SECOND };
    assert!(process.release(Arc::new(release)).await.unwrap().held[0]);
    assert!(watch.echo().is_expected(), "the two others hear it");
    watch.skip();
    tokio::time::sleep(SECOND).await;
    assert!(!watch.echo().is_expected());
}
