//! The users defined on the pages of docs/book/src/stores have exactly the rights that these
//! describe.

use std::path::Path;
use std::time::Duration;

use lock_runtime::segmented::Layout;
use lock_runtime::{LockManager, MultiKey};
use lock_tests::{Cluster, RedisServer, Sentinels, eventually};

const LONG: Duration = Duration::from_secs(30);

/// Returns the words of the block of a page that begins with `start`.
fn block(page: &str, start: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/book/src/stores").join(page);
    let page = std::fs::read_to_string(page).unwrap();
    let block = page.split("```").map(|block| block.trim_start_matches("text\n"));
    let block = block.into_iter().find(|block| block.starts_with(start)).expect("the page has the block");
    block.split_whitespace().map(str::to_owned).collect()
}

/// Makes a user at a server by the words of `ACL SETUSER`.
fn make(server: &RedisServer, words: &[String]) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_eq!(server.cli(&words).trim(), "OK");
}

/// Connects a manager as such a user, and then clears the log of refusals.
async fn user(server: &RedisServer, user: &str) -> LockManager {
    make(server, &block("redis.md", &format!("ACL SETUSER {user} ")));
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
async fn the_user_for_the_plain_layout_can_use_all_of_it() {
    let server = RedisServer::start();
    make(&server, &block("plain.md", "ACL SETUSER plain "));
    let url = server.url().replace("redis://", "redis+plain://plain:secret@");
    let connect =
        async || LockManager::builder().lease(Duration::from_secs(5)).strict().connect(&url).await.unwrap();
    let (locks, other) = (connect().await, connect().await);
    assert_eq!(refused(&server).trim(), "", "the trial at the connection needs no more");
    let several = || [MultiKey::mutex("a"), MultiKey::mutex("b")];
    let one = locks.mutex("a").acquire().await.unwrap();
    let both = tokio::spawn(other.multi(several()).wait(LONG).acquire());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(other.status("a").await.unwrap().is_locked());
    one.release().await.unwrap();
    both.await.unwrap().unwrap().release().await.unwrap();
    let linger = locks.mutex("a").min_hold(Duration::from_millis(200)).acquire().await.unwrap();
    linger.release().await.unwrap();
    let held = other.mutex("a").wait(LONG).acquire().await.unwrap();
    let mut list = locks.list("");
    while list.next_page().await.unwrap().is_some() {}
    assert!(locks.force_release("a").await.unwrap());
    drop(held);
    assert_eq!(refused(&server).trim(), "");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_user_for_sentinels_finds_the_primary_and_its_successor() {
    let servers = Sentinels::start();
    for sentinel in servers.sentinels() {
        make(sentinel, &block("sentinel.md", "ACL SETUSER watcher "));
        sentinel.cli(&["ACL", "LOG", "RESET"]);
    }
    let url = format!("{}?sentinel_user=watcher&sentinel_password=secret", servers.url());
    let locks = LockManager::builder().strict().connect(&url).await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    servers.failover();
    locks.mutex("a").wait(LONG).acquire().await.unwrap().release().await.unwrap();
    for sentinel in servers.sentinels() {
        assert_eq!(refused(sentinel).trim(), "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_user_for_locks_has_what_a_cluster_needs_too() {
    let cluster = Cluster::start();
    let mut words = block("redis.md", "ACL SETUSER locks ");
    words.extend(block("cluster.md", "+cluster|slots"));
    cluster.nodes().iter().for_each(|node| make(node, &words));
    let url = cluster.url().replace("cluster://", "cluster://locks:secret@");
    let manager = || LockManager::builder().strict().connect(&url);
    let (locks, other) = (manager().await.unwrap(), manager().await.unwrap());
    cluster.nodes().iter().for_each(|node| drop(node.cli(&["ACL", "LOG", "RESET"])));
    for key in ["a", "b", "c", "d"] {
        let held = locks.mutex(key).acquire().await.unwrap();
        let waiter = tokio::spawn(other.mutex(key).wait(LONG).acquire());
        eventually(async || locks.status(key).await.unwrap().waiters > 0, LONG).await;
        held.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
        locks.fair(key).acquire().await.unwrap().release().await.unwrap();
        locks.write(key).acquire().await.unwrap().release().await.unwrap();
    }
    for node in cluster.nodes() {
        assert_eq!(refused(node).trim(), "");
    }
}
