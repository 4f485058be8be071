//! Steps of one process on one document travel together.

use lock_store_records::rows::Grouped as _;

use super::*;

/// Number of waiters.
const MANY: usize = 300;

fn waiter(number: usize) -> Arc<AcquireRequest> {
    let item = Item { kind: Kind::Fair, ..item("a", &format!("waiter:{number}")) };
    Arc::new(AcquireRequest::new(vec![item], 60 * SECOND, 2 * SLACK).queued(60 * SECOND))
}

/// Returns the number of writes of a server since it was started.
fn writes(server: &MongoDbServer) -> i64 {
    let status = server.command(doc! { "serverStatus": 1 });
    let commands =
        status.get_document("metrics").and_then(|metrics| metrics.get_document("commands")).unwrap();
    let of = |name| commands.get_document(name).map_or(0, |counts| counts.get_i64("total").unwrap());
    of("findAndModify") + of("update")
}

/// Each write of a document with many waiters is long, and would overtake those of all others.
#[tokio::test]
async fn many_waiters_are_few_writes() {
    let server = MongoDbServer::start();
    let store = store(&server.url(), "");
    assert!(granted(&store, "a", "owner:1").await);
    let before = writes(&server);
    let acquire = |number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.acquire(waiter(number)).await })
    };
    let mut tasks: Vec<_> = (0..MANY).map(acquire).collect();
    // Among them the one that makes the first step, and others that wait for their turns.
    tokio::task::yield_now().await;
    let dropped = tasks.split_off(MANY - 10);
    dropped.iter().chain(&tasks[..1]).for_each(tokio::task::JoinHandle::abort);
    for task in tasks.into_iter().skip(1) {
        assert!(matches!(task.await.unwrap().unwrap(), Acquired::Busy(_)));
    }
    let after = writes(&server);
    assert!(after - before < 20, "{} writes", after - before);
    let waiters = store.status(item("a", "x").key).await.unwrap().waiters;
    assert!((MANY as u64 - 11..=MANY as u64).contains(&waiters), "{waiters}");

    let withdraw = |number| tokio::spawn(store.withdraw(waiter(number)));
    for withdrawal in (0..MANY).map(withdraw).collect::<Vec<_>>() {
        withdrawal.await.unwrap().unwrap();
    }
    let end = writes(&server);
    assert!(end - after < 20, "{} writes", end - after);
    assert_eq!(store.status(item("a", "x").key).await.unwrap().waiters, 0);
}

/// As at the end of a program that does not shut its manager down.
#[test]
fn a_runtime_may_end_while_steps_wait() {
    for round in 0..5 {
        let store = store(&SERVER.url(), &new_prefix());
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            store.check().await.unwrap();
            for number in 0..MANY {
                let store = Arc::clone(&store);
                tokio::spawn(async move { store.acquire(waiter(number)).await });
            }
            tokio::time::sleep(SECOND * round / 500).await;
        });
        drop(runtime);
        assert!(store.store().groups().is_empty(), "no document has a step under way");
    }
}
