//! Tests on a real `mongod`. `xtask` runs these where it is installed.

mod on_mongodb;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::store::{
    AcquireRequest, Acquired, Item, Kind, LockStore, ReleaseRequest, RenewItem, RenewRequest, Renewed,
};
use lock_core::{LockKey, OwnerId, TokenRetention};
use mongodb::options::ConnectionString;

use crate::{MongoStore, Settings, Target, open};

const SECOND: Duration = Duration::from_secs(1);

/// Time for something that takes none, on a busy machine.
const SLACK: Duration = Duration::from_secs(30);

fn settings(prefix: &str) -> Settings {
    Settings { prefix: prefix.to_owned(), call_timeout: 10 * SECOND }
}

fn store(url: &str, prefix: &str) -> Arc<MongoStore> {
    open(Target::Address(Box::new(ConnectionString::parse(url).unwrap())), &settings(prefix)).unwrap()
}

/// Returns a prefix that no other test has.
fn new_prefix() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{}:", COUNT.fetch_add(1, Ordering::Relaxed))
}

fn item(key: &str, owner: &str) -> Item {
    Item { key: LockKey::new(key).unwrap(), kind: Kind::Mutex, owner: OwnerId::new(owner) }
}

fn request(keys: &[&str], owner: &str, lease: Duration, timeout: Duration) -> Arc<AcquireRequest> {
    let items: Vec<_> = keys.iter().map(|key| item(key, owner)).collect();
    Arc::new(AcquireRequest::new(items, lease, timeout).retention(TokenRetention::For(Duration::ZERO)))
}

async fn took(store: &MongoStore, keys: &[&str], owner: &str) -> bool {
    let answer = store.acquire(request(keys, owner, 60 * SECOND, SLACK)).await.unwrap();
    matches!(answer, Acquired::Granted(_))
}

async fn granted(store: &MongoStore, key: &str, owner: &str) -> bool {
    took(store, &[key], owner).await
}

fn release_of(items: impl IntoIterator<Item = Item>, timeout: Duration) -> Arc<ReleaseRequest> {
    let items = items.into_iter().collect();
    Arc::new(ReleaseRequest { items, linger: Duration::ZERO, then: None, own_watch: None, timeout })
}

fn release(keys: &[&str], owner: &str, timeout: Duration) -> Arc<ReleaseRequest> {
    release_of(keys.iter().map(|key| item(key, owner)), timeout)
}

/// Gives back what a request has taken.
async fn gave_back(store: &MongoStore, request: &AcquireRequest) -> bool {
    let held = store.release(release_of(request.items.iter().cloned(), SLACK)).await.unwrap().held;
    held.iter().all(|held| *held)
}

async fn released(store: &MongoStore, key: &str, owner: &str) -> bool {
    store.release(release(&[key], owner, SLACK)).await.unwrap().held[0]
}

fn renewal(keys: &[&str], owner: &str, timeout: Duration) -> Arc<RenewRequest> {
    let items = keys.iter().map(|key| RenewItem::hold(item(key, owner), 600 * SECOND)).collect();
    Arc::new(RenewRequest { items, timeout })
}

async fn renewed(store: &MongoStore, keys: &[&str], owner: &str) -> Vec<Renewed> {
    store.renew(renewal(keys, owner, SLACK)).await.unwrap()
}

async fn is_held(store: &MongoStore, key: &str) -> bool {
    store.status(item(key, "x").key).await.unwrap().is_locked()
}
