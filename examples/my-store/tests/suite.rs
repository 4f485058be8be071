//! The suite that every store has to pass, on a real server.

use std::sync::Arc;
use std::time::Duration;

use example_my_store::MyStore;
use lock_core::store::{AcquireRequest, Item, Kind, LockStatus, LockStore, StoreErrorKind, Withdrawn};
use lock_core::{LockKey, OwnerId};
use lock_store_conformance::Subject;
use lock_test_servers::RedisServer;
use lock_test_servers::redis::{Data, free_port};

fn store(url: &str) -> Arc<MyStore> {
    Arc::new(MyStore::new(redis::Client::open(url).unwrap(), "locks:").unwrap())
}

/// Makes two handles on a fresh server.
async fn subject() -> Subject {
    let server = RedisServer::start();
    Subject::new(store(&server.url()), store(&server.url())).keeping(server)
}

lock_store_conformance::conformance!(subject);

/// The suite has no server to stop: there, a late request is one that was withdrawn.
#[tokio::test]
async fn a_request_that_waits_in_a_buffer_until_it_is_late_takes_nothing() {
    let mut server = RedisServer::start();
    let store = store(&server.url());
    store.check().await.unwrap();
    let limit = Duration::from_millis(300);
    let key = LockKey::new("a").unwrap();
    let item = Item { key: key.clone(), kind: Kind::Mutex, owner: OwnerId::new("me:1") };
    let request = Arc::new(AcquireRequest::new(vec![item], Duration::from_secs(60), limit));
    server.stop();
    let error = store.acquire(Arc::clone(&request)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unanswered, "{error}");
    tokio::time::sleep(2 * limit).await;
    server.cont();
    // By the time this is answered, the server has looked at the request.
    store.check().await.unwrap();
    assert_eq!(store.status(key).await.unwrap(), LockStatus::free());
    assert_eq!(store.withdraw(request).await.unwrap(), Withdrawn::Settled);
}

/// The suite has no server to switch off.
#[tokio::test]
async fn errors_say_whether_the_step_may_have_been_executed() {
    let nowhere = store(&format!("redis://127.0.0.1:{}", free_port().unwrap()));
    for _ in 0..3 {
        assert_eq!(nowhere.check().await.unwrap_err().kind(), StoreErrorKind::Unreachable);
    }

    let mut server = RedisServer::start();
    let store = store(&server.url());
    store.check().await.unwrap();
    server.stop();
    assert_eq!(store.check().await.unwrap_err().kind(), StoreErrorKind::Unanswered);
    server.cont();
    store.check().await.unwrap();

    server.cli(&["HSET", "locks:lock:a", "foreign", "data"]);
    let error = store.status(LockKey::new("a").unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{error}");
}

#[tokio::test]
async fn wrong_credentials_are_denied() {
    let server = RedisServer::start_with(&["--requirepass", "hunter2"]);
    for login in ["", ":hunter1@"] {
        let error = store(&format!("redis://{login}{}", server.addr())).check().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{login}: {error}");
        assert!(!error.to_string().contains("hunter"), "{error}");
    }
}

#[tokio::test]
async fn a_lost_connection_is_made_again() {
    let mut server = RedisServer::start();
    let store = store(&server.url());
    store.check().await.unwrap();
    server.restart(Data::Lost);
    let limit = tokio::time::Instant::now() + Duration::from_secs(10);
    while let Err(error) = store.check().await {
        assert!(tokio::time::Instant::now() < limit, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
