//! Replicas that take over.

use lock_tests::clock::now_nanos;
use lock_tests::proxy::{Fault, Line, Proxy, Way};
use lock_tests::stocks::{Habits, Kept, counts};
use lock_tests::{Cluster, Sentinels, cluster, eventually, sentinels};

use super::{Crew, NAME, SLACK, ms, new_stock, record, stock_at};

const UNITS: u64 = 100_000;

async fn asked_to_take_over(kept: Kept) {
    let options = cluster::Options::default().replicas(1).node_timeout(SLACK / 2);
    let cluster = Cluster::start_with(options);
    let stock = new_stock(kept, &cluster.url(), UNITS).await;
    let mut crew = Crew::of(kept, &cluster.url(), Habits::default(), 2);
    let key = format!("{{lock:{NAME}}}");
    // There and back. The others would not vote a third time so soon.
    for _ in 0..2 {
        tokio::time::sleep(ms(500)).await;
        let before = cluster.node_of(&key);
        let now = cluster.failover(before);
        assert_ne!(now, before);
        cluster.wait_until_ready();
    }
    tokio::time::sleep(ms(300)).await;
    crew.stop();
    crew.audit(&stock, UNITS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_asked_to_take_over_knows_everything() {
    asked_to_take_over(Kept::OneSlot).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_asked_to_take_over_knows_its_part_of_a_spread_stock() {
    asked_to_take_over(Kept::Spread).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::print_stderr, reason = "the measurement")]
async fn a_replica_that_takes_over_from_a_dead_primary_knows_what_had_reached_it() {
    // Time after which sentinels send replicas straight to their primary.
    let options = sentinels::Options::default().failover_timeout(SLACK * 3);
    let mut group = Sentinels::start_with(options);
    let proxy = Proxy::start(group.primary().addr()).await;
    for replica in [1, 2] {
        group.follow_through(replica, proxy.addr());
    }
    new_stock(Kept::OneSlot, &group.url(), UNITS).await;
    let mut crew = Crew::of(Kept::OneSlot, &group.url(), Habits::default(), 2);
    tokio::time::sleep(ms(800)).await;
    // Nobody sells while the connection to the replicas is cut.
    crew.sellers.iter_mut().for_each(lock_tests::Helper::stop);
    group.primary().wait_for_replicas(2);
    let hole = proxy.from_now(Line::Replication, Way::ToClient, Fault::BlackHole);
    let cut = now_nanos();
    crew.sellers.iter_mut().for_each(lock_tests::Helper::cont);
    tokio::time::sleep(ms(500)).await;
    eventually(async || hole.hits() >= 2, SLACK).await;
    group.servers_mut()[0].kill();
    crew.kill();
    let now = group.wait_for_failover(0);
    drop(proxy);

    let ledger = crew.ledger();
    let loss = ledger.loss(|order| record(&group.servers()[now], order));
    eprintln!(
        "forced failover: of {} orders {} are lost with {} units",
        ledger.sum().orders,
        loss.orders,
        loss.units
    );
    // Only orders done after the cut are lost; one that was done before it and answered after it is
    // not.
    assert!(loss.orders > 0 && loss.first.is_some_and(|first| first >= cut), "{loss:?}, cut at {cut}");
    let stock = stock_at(Kept::OneSlot, &group.url()).await;
    let (available, held, sold) = counts(&stock).await;
    assert_eq!(available + held + sold, UNITS);
}
