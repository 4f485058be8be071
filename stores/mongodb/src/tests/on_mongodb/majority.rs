//! A primary that has lost its majority, and does not know it.

use lock_core::store::{StoreErrorKind, Withdrawn};
use lock_test_servers::MongoDbSet;
use lock_test_servers::mongodb::Options;

use super::*;
use crate::classify::Fault;
use crate::documents;
use crate::server::Bounds;

/// Time-out of the calls that get no answer.
const SHORT: Duration = Duration::from_secs(1);

/// Nothing is granted, and nothing is read that may be undone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_without_a_majority_grants_nothing_and_says_nothing() {
    // It remains the primary for long.
    let options = Options::default().election_timeout(120 * SECOND);
    let mut set = tokio::task::block_in_place(|| MongoDbSet::start_with(options));
    let primary = set.primary();
    let url = set.url_of(primary);
    let (store, other) = (store(&set.url(), ""), store(&url, ""));
    assert!(took(&store, &["a", "b"], "owner:1").await && took(&store, &["held"], "owner:1").await);
    other.check().await.unwrap();
    let server = &store.store().server;
    let look = async || {
        let looked = Bounds::new(SHORT).write(server, documents::look("lock:a")).await;
        looked.map(|(_, answer)| answer.get_document("value").unwrap().get_str("version").unwrap().to_owned())
    };
    let before = look().await.unwrap();
    let is_primary =
        |set: &MongoDbSet| set.command(primary, doc! { "hello": 1 }).get_bool("isWritablePrimary").unwrap();
    let others: Vec<usize> = (0..3).filter(|at| *at != primary).collect();
    for at in &others {
        set.stop(*at);
    }

    // A local write: others can read it, and a majority does not have it.
    let query = doc! { "q": { "_id": "lock:a" }, "u": { "$set": { "version": "local" } } };
    let write = doc! { "update": COLLECTION, "updates": [query], "writeConcern": { "w": 1 }, "$db": "locks" };
    set.command(primary, write);
    let find = |level: &str| {
        let find = doc! {
            "find": COLLECTION, "filter": { "_id": "lock:a" }, "readConcern": { "level": level }, "$db": "locks",
        };
        let found = set.command(primary, find);
        let batch = found.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).unwrap();
        batch[0].as_document().unwrap().get_str("version").unwrap().to_owned()
    };
    assert_eq!((find("local"), find("majority")), ("local".to_owned(), before));
    match look().await {
        Err(Fault::Failed(error)) => assert_eq!(error.kind(), StoreErrorKind::Unanswered, "{error}"),
        looked => panic!("it has read what may be undone: {looked:?}"),
    }

    // Nobody is granted anything, and nobody is told anything that may be undone.
    let one = request(&["free"], "owner:2", 60 * SECOND, SHORT);
    let two = request(&["free", "free2"], "owner:2", 60 * SECOND, SHORT);
    for store in [&store, &other] {
        for wish in [&one, &two] {
            let error = store.acquire(Arc::clone(wish)).await.unwrap_err();
            assert!(error.is_transient(), "{error}");
        }
        let error = store.release(release(&["held"], "owner:1", SHORT)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unanswered, "{error}");
        let error = store.renew(renewal(&["held"], "owner:1", SHORT)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unanswered, "{error}");
        let error = store.acquire(request(&["b"], "owner:2", SECOND, SHORT)).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
    }
    assert!(is_primary(&set), "the test relies on it");

    for at in others {
        set.cont(at);
    }
    tokio::task::block_in_place(|| set.settle());
    for wish in [one, two] {
        while store.withdraw(Arc::clone(&wish)).await.unwrap() != Withdrawn::Settled {
            tokio::time::sleep(SHORT / 10).await;
        }
    }
    assert_eq!(look().await.unwrap(), "local");
    assert!(took(&other, &["free", "free2"], "owner:3").await);
}
