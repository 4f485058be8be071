//! Readers, writers and mutexes of two stores that want the same key at the same time.

use std::sync::atomic::AtomicI64;

use super::*;

/// Number for an exclusive holder; readers count up from zero.
const ALONE: i64 = -1_000_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_inside_with_a_writer_and_every_writer_gets_in() {
    let server = RedisServer::start();
    let stores = [Arc::new(store(&server)), Arc::new(store(&server))];
    let inside = Arc::new(AtomicI64::new(0));
    let most_readers = Arc::new(AtomicI64::new(0));
    let highest = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..12)
        .map(|task| {
            let (store, inside) = (Arc::clone(&stores[task % 2]), Arc::clone(&inside));
            let (most_readers, highest) = (Arc::clone(&most_readers), Arc::clone(&highest));
            let kind = [Kind::Read, Kind::Read, Kind::Read, Kind::Write, Kind::Read, Kind::Mutex][task / 2];
            tokio::spawn(async move {
                for _ in 0..40 {
                    let mine = [item_of(kind, "a")];
                    let granted = loop {
                        let wish = Arc::new(request(&mine).queued(LEASE));
                        match store.acquire(wish).await.unwrap() {
                            Acquired::Granted(granted) => break granted,
                            // Shorter than necessary, so that all meet often.
                            Acquired::Busy(_) => tokio::time::sleep(Duration::from_micros(300)).await,
                        }
                    };
                    let change = if kind == Kind::Read { 1 } else { ALONE };
                    let before = inside.fetch_add(change, Ordering::SeqCst);
                    if kind == Kind::Read {
                        assert!(before >= 0, "a reader met a writer or a mutex");
                        most_readers.fetch_max(before + 1, Ordering::SeqCst);
                    } else {
                        assert_eq!(before, 0, "{kind:?} is not alone");
                        let token = granted.tokens[0].last;
                        assert!(highest.swap(token, Ordering::SeqCst) < token, "tokens follow the grants");
                    }
                    tokio::time::sleep(Duration::from_micros(200)).await;
                    inside.fetch_sub(change, Ordering::SeqCst);
                    assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("a task starves").unwrap();
    }
    assert!(most_readers.load(Ordering::SeqCst) > 1, "readers share the lock");
    let left: Vec<String> = server.keys().await;
    let ours = |key: &&String| !key.starts_with("redisson_lock_token") && !key.starts_with("lock_rw_intent");
    assert_eq!(left.iter().find(ours), None);
}
