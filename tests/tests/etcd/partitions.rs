//! Members of a cluster that are cut off from the others, and still answer their clients.

use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::EtcdCluster;
use lock_tests::chaos::{Peers, etcd_with_peers};
use lock_tests::database_server::{LockServer, beside_a_busy_disk};
use lock_tests::etcd::{Etcd, Options};
use tokio::time::timeout;

use crate::elections::processes_never_overlap;
use crate::entries::{assert_nothing_is_left, await_entries};

const SLACK: Duration = Duration::from_secs(30);

/// A lease that no pause of a busy machine outlasts.
const LONG: Duration = Duration::from_secs(60);

/// A member that hears nothing of its leader goes on for this long. etcd allows no more.
const PATIENT: Duration = Duration::from_secs(50);

fn start(options: Options) -> (EtcdCluster, Peers) {
    tokio::task::block_in_place(|| etcd_with_peers(options.within(beside_a_busy_disk())).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_cut_off_under_load_leave_one_holder() {
    let (cluster, peers) = start(Options::default());
    tokio::task::block_in_place(|| {
        processes_never_overlap(&cluster.url(), Duration::from_secs(8), |_| {
            for round in 0..2 {
                let leader = cluster.leader();
                peers.cut((leader + round) % 3);
                std::thread::sleep(Duration::from_secs(3));
                assert!(peers.join() > 0);
                cluster.wait_until_ready();
            }
        });
    });
    assert_nothing_is_left(&cluster, SLACK).await;
}

/// Its connections are fine, but it does not get what the others have written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gets_its_turn_although_its_member_hears_nothing_of_the_release() {
    let (cluster, peers) = start(Options::default().election_timeout(PATIENT));
    let leader = tokio::task::block_in_place(|| cluster.leader());
    let (cut, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let url_of = |at: usize| Etcd::url_at(cluster.member(at).addr());
    let holder = LockManager::builder().lease(LONG).connect(url_of(other)).await.unwrap();
    let urls = format!("etcd://{},{}/", cluster.member(cut).addr(), cluster.member(other).addr());
    let waiter = LockManager::builder().lease(LONG).connect(urls).await.unwrap();
    let guard = holder.mutex("k").acquire().await.unwrap();
    let next = tokio::spawn(waiter.mutex("k").wait(LONG * 2).acquire());
    await_entries(&cluster, "k", 2, SLACK).await;
    // Its watch begins.
    tokio::time::sleep(Duration::from_secs(1)).await;
    peers.cut(cut);
    guard.release().await.unwrap();
    let within = PATIENT - Duration::from_secs(10);
    let next = timeout(within, next).await.expect("nobody tells it").unwrap().unwrap();
    peers.join();
    next.release().await.unwrap();
}
