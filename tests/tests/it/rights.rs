//! The users defined in docs/book/src/stores/redis.md have exactly the rights that it describes.

use std::path::Path;
use std::time::Duration;

use lock_runtime::segmented::Layout;
use lock_runtime::{LockManager, MultiKey};
use lock_tests::{RedisServer, eventually};

const LONG: Duration = Duration::from_secs(30);

/// Returns the rules of a user from the page.
fn rules(user: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/book/src/stores/redis.md");
    let page = std::fs::read_to_string(page).unwrap();
    let start = page.find(&format!("ACL SETUSER {user} ")).expect("the page makes the user");
    let block = page[start..].split("```").next().unwrap();
    block.split_whitespace().skip(2).map(str::to_owned).collect()
}

/// Connects a manager as such a user, and then clears the log of refusals.
async fn user(server: &RedisServer, user: &str) -> LockManager {
    let rules = rules(user);
    let words: Vec<&str> = ["ACL", "SETUSER"].into_iter().chain(rules.iter().map(String::as_str)).collect();
    assert_eq!(server.cli(&words).trim(), "OK");
    let url = server.url().replace("redis://", &format!("redis://{user}:secret@"));
    let locks = LockManager::builder().lease(Duration::from_secs(5)).strict().connect(&url).await.unwrap();
    // Connecting tries more than the user needs.
    server.cli(&["ACL", "LOG", "RESET"]);
    locks
}

/// Returns everything that was refused to any user.
fn refused(server: &RedisServer) -> String {
    server.cli(&["ACL", "LOG"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_user_for_mutexes_can_use_mutexes() {
    let server = RedisServer::start();
    let (locks, other) = (user(&server, "mutexes").await, user(&server, "mutexes").await);
    let several = || [MultiKey::mutex("a"), MultiKey::mutex("b")];
    let (one, both) =
        (locks.mutex("a").acquire().await.unwrap(), other.multi(several()).wait(LONG).acquire());
    let both = tokio::spawn(both);
    // Renewed a few times.
    tokio::time::sleep(Duration::from_secs(2)).await;
    one.release().await.unwrap();
    both.await.unwrap().unwrap().release().await.unwrap();
    let linger = locks.mutex("a").min_hold(Duration::from_millis(200)).acquire().await.unwrap();
    linger.release().await.unwrap();
    other.mutex("a").wait(LONG).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(refused(&server).trim(), "");
    locks.fair("f").no_wait().acquire().await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_user_for_locks_can_use_all_kinds() {
    let server = RedisServer::start();
    let (locks, other) = (user(&server, "locks").await, user(&server, "locks").await);
    let kinds = [LockManager::mutex, LockManager::fair, LockManager::read, LockManager::write];
    for (lock, key) in kinds.into_iter().zip(["k0", "k1", "k2", "k3"]) {
        let held = lock(&locks, key).acquire().await.unwrap();
        // Their order is unknown.
        let waiters = [lock(&other, key), lock(&locks, key)].map(|lock| {
            tokio::spawn(async { lock.wait(LONG).acquire().await.unwrap().release().await.unwrap() })
        });
        let left = tokio::time::timeout(Duration::from_millis(300), lock(&other, key).wait(LONG).acquire());
        drop(left.await);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(locks.status(key).await.unwrap().is_locked());
        held.release().await.unwrap();
        for waiter in waiters {
            waiter.await.unwrap();
        }
        let linger = lock(&locks, key).min_hold(Duration::from_millis(200)).acquire().await.unwrap();
        linger.release().await.unwrap();
        let held = lock(&other, key).wait(LONG).acquire().await.unwrap();
        assert!(locks.force_release(key).await.unwrap());
        drop(held);
        assert!(!locks.force_release(key).await.unwrap());
    }
    let all = || [MultiKey::fair("k1"), MultiKey::write("k3"), MultiKey::mutex("k0")];
    let held = locks.multi(all()).wait(LONG).acquire().await.unwrap();
    let waiter = tokio::spawn(other.multi(all()).wait(LONG).acquire());
    tokio::time::sleep(Duration::from_millis(300)).await;
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    let write = locks.write("k3").acquire().await.unwrap();
    write.downgrade().await.unwrap().release().await.unwrap();
    let mut list = locks.list("");
    while list.next_page().await.unwrap().is_some() {}
    assert_eq!(refused(&server).trim(), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_user_for_counting_can_use_semaphores_and_latches() {
    let server = RedisServer::start();
    let locks = user(&server, "counting").await;
    let semaphore = locks.semaphore("s");
    assert!(semaphore.try_set_permits(1).await.unwrap());
    let held = locks.semaphore("s").acquire().await.unwrap();
    let waiter = tokio::spawn(locks.semaphore("s").wait(LONG).acquire());
    tokio::time::sleep(Duration::from_secs(2)).await;
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    semaphore.add_permits(2).await.unwrap();
    let latch = locks.latch("l");
    assert!(latch.try_set_count(2).await.unwrap());
    let waiter = tokio::spawn({
        let latch = locks.latch("l");
        async move { latch.wait(LONG).await }
    });
    eventually(async || latch.count().await.unwrap() == 2, LONG).await;
    latch.count_down().await.unwrap();
    latch.count_down().await.unwrap();
    waiter.await.unwrap().unwrap();
    assert!(latch.try_set_count(1).await.unwrap());
    latch.delete().await.unwrap();
    assert_eq!(refused(&server).trim(), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_user_for_stocks_can_use_both_layouts() {
    let server = RedisServer::start();
    let locks = user(&server, "stock").await;
    for (name, layout) in [("one", Layout::OneSlot), ("many", Layout::Spread)] {
        let stock = locks.stock(name).layout(layout);
        assert!(stock.initialize(100, 4).await.unwrap());
        stock.take("taken", 30).await.unwrap();
        stock.give_back("taken").await.unwrap();
        for (order, ends) in [("kept", true), ("left", false)] {
            stock.reserve(order, 2, LONG).await.unwrap();
            if ends { stock.confirm(order).await.unwrap() } else { stock.cancel(order).await.unwrap() }
        }
        stock.reserve("overdue", 1, Duration::from_millis(1)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        stock.sweep(10).await.unwrap();
        stock.restock("more", 5).await.unwrap();
        stock.resize(3).await.unwrap();
        stock.rebalance().await.unwrap();
        assert_eq!(stock.available().await.unwrap(), 103);
        stock.snapshot().await.unwrap();
    }
    assert_eq!(refused(&server).trim(), "");
}
