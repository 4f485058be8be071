//! Managers on a cluster: all features at once, while slots move.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::cluster::slot_of;
use lock_tests::{Cluster, Layout, RedisServer, eventually};

const ROUNDS: usize = 40;

/// Connects to one server, which is enough to find the others.
async fn manager(cluster: &Cluster, layout: Layout) -> LockManager {
    let url = format!("redis+cluster://{}", cluster.nodes()[0].addr());
    LockManager::connect(layout.url(&url)).await.unwrap()
}

/// The number of holders inside, and the highest token seen there.
#[derive(Default)]
struct Inside {
    count: AtomicU64,
    token: AtomicU64,
}

impl Inside {
    fn enter(&self, token: u64) {
        assert_eq!(self.count.fetch_add(1, Ordering::SeqCst), 0, "two at once");
        let before = self.token.swap(token, Ordering::SeqCst);
        assert!(before < token, "{before} and then {token}");
    }

    fn leave(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn contenders_of_two_managers_go_on_while_their_slot_moves(layout: Layout) {
    let cluster = Arc::new(Cluster::start());
    let managers = [manager(&cluster, layout).await, manager(&cluster, layout).await];
    let inside = Arc::new(Inside::default());
    let mut tasks = tokio::task::JoinSet::new();
    for manager in managers.iter().cycle().take(4) {
        let (manager, inside) = (manager.clone(), Arc::clone(&inside));
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let guard = manager.mutex("a").wait(Duration::from_secs(60)).acquire().await.unwrap();
                inside.enter(guard.fencing_token().get());
                tokio::time::sleep(Duration::from_millis(2)).await;
                inside.leave();
                guard.release().await.unwrap();
            }
        });
    }
    let mover = tokio::spawn({
        let cluster = Arc::clone(&cluster);
        async move {
            let mut at = cluster.node_of("lock:a");
            loop {
                let to = (at + 1) % 3;
                let moving = cluster.begin_move(slot_of("lock:a"), to);
                tokio::time::sleep(Duration::from_millis(30)).await;
                cluster.move_all_keys(moving);
                cluster.end_move(moving);
                at = to;
                tokio::time::sleep(Duration::from_millis(150)).await;
            }
        }
    });
    let done = tokio::time::timeout(Duration::from_secs(90), tasks.join_all()).await;
    mover.abort();
    done.expect("they stand still");
    for manager in managers {
        manager.shutdown(Duration::from_secs(5)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_keys_of_several_servers_exclude_each_other_and_single_ones() {
    let cluster = Cluster::start();
    let names = ["a", "b", "c", "d"];
    let inside = Arc::new(names.map(|_| Inside::default()));
    let mut tasks = tokio::task::JoinSet::new();
    for (number, wish) in [vec![0, 1, 2, 3], vec![3, 1], vec![2], vec![0, 3], vec![1]].into_iter().enumerate()
    {
        let (manager, inside) = (manager(&cluster, Layout::Hash).await, Arc::clone(&inside));
        tasks.spawn(async move {
            for _ in 0..8 {
                let keys = wish.iter().map(|index| names[*index]);
                let lock = manager.multi(keys).wait(Duration::from_secs(60));
                let guard = lock.acquire().await.unwrap_or_else(|error| panic!("{number}: {error}"));
                for index in &wish {
                    assert_eq!(inside[*index].count.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
                wish.iter().for_each(|index| inside[*index].leave());
                guard.release().await.unwrap();
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            manager.shutdown(Duration::from_secs(5)).await.unwrap();
        });
    }
    tokio::time::timeout(Duration::from_secs(90), tasks.join_all()).await.expect("they stand still");
    let only_counters = |server: &RedisServer| {
        server.cli(&["KEYS", "*"]).lines().all(|key| key.starts_with("redisson_lock_token:"))
    };
    eventually(async || cluster.nodes().iter().all(only_counters), Duration::from_secs(10)).await;
}

#[tokio::test]
async fn a_manager_says_at_once_when_the_address_is_of_another_kind_of_server() {
    let cluster = Cluster::start();
    let error = LockManager::connect(&cluster.nodes()[0].url()).await;
    assert!(error.unwrap_err().to_string().contains("redis+cluster://"));
    let server = RedisServer::start();
    let error = LockManager::connect(&format!("redis+cluster://127.0.0.1:{}", server.port())).await;
    assert!(error.unwrap_err().to_string().contains("not in cluster mode"));
}

lock_tests::on_every_layout! { async: contenders_of_two_managers_go_on_while_their_slot_moves }
