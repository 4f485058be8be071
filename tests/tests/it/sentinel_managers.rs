//! Managers on a primary that sentinels watch.

use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::{Layout, RedisServer, Sentinels, eventually, sentinels};

const SECOND: Duration = Duration::from_secs(1);

fn has(server: &RedisServer, name: &str) -> bool {
    server.cli(&["EXISTS", &format!("lock:{name}")]) == "1"
}

async fn locks_outlive_a_failover(layout: Layout) {
    let options = sentinels::Options::default().down_after(SECOND * 3 / 2).failover_timeout(SECOND * 6);
    let set = Sentinels::start_with(options);
    for sentinel in set.sentinels() {
        // The usual period. A former primary stays one for four of them.
        let _ = sentinel.command(&["SENTINEL", "DEBUG", "PUBLISH-PERIOD", "2000"]);
    }
    let url = layout.url(&set.url());
    let connect = async || LockManager::builder().lease(SECOND * 10).connect(&url).await.unwrap();
    let (here, there) = (connect().await, connect().await);
    let guard = here.mutex("a").acquire().await.unwrap();
    set.servers()[0].wait_for_replicas(2);
    let waiting = tokio::spawn(there.mutex("a").wait(SECOND * 60).acquire());
    let new = &set.servers()[set.failover()];
    // The server closes connections while it becomes a replica.
    let demoted = async || {
        let role = set.servers()[0].command(&["ROLE"]);
        role.is_ok_and(|role| role.to_string().starts_with("slave"))
    };
    eventually(demoted, SECOND * 60).await;
    // The former primary would have kept it for 8 s more, and the new one forgotten it.
    tokio::time::sleep(SECOND * 3).await;
    assert!(has(new, "a"));
    assert!(!guard.is_lost());
    assert!(!waiting.is_finished());
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert!(!has(new, "a"));
}

lock_tests::on_every_layout! { async: locks_outlive_a_failover }
