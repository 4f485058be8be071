//! Tests on real servers. `xtask` runs these where etcd is installed.

mod on_etcd;

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{
    AcquireRequest, Acquired, Granted, Item, Kind, LockStore, Notice, ReleaseRequest, RenewItem,
    RenewRequest, Renewed, StoreError, Watch,
};
use lock_core::{LockKey, OwnerId};
use lock_store_sequences::Settings;

use crate::{EtcdStore, Target, open};

const SECOND: Duration = Duration::from_secs(1);

/// Time for something that takes none, on a busy machine.
const SLACK: Duration = Duration::from_secs(30);

/// Opens a manager's handle.
fn store(url: &str, prefix: &str) -> Arc<EtcdStore> {
    let settings = Settings { prefix: prefix.to_owned(), call_timeout: SLACK };
    open(Target::parse(url).unwrap(), &settings).unwrap()
}

fn item(kind: Kind, key: &str, owner: u32) -> Item {
    Item { key: LockKey::new(key).unwrap(), kind, owner: OwnerId::new(format!("tester:{owner}")) }
}

/// Makes a request that waits.
fn waiting(kind: Kind, key: &str, owner: u32) -> Arc<AcquireRequest> {
    Arc::new(AcquireRequest::new([item(kind, key, owner)], 60 * SECOND, SLACK).queued(60 * SECOND))
}

/// Makes a request that does not wait.
fn trying(kind: Kind, key: &str, owner: u32, lease: Duration) -> Arc<AcquireRequest> {
    Arc::new(AcquireRequest::new([item(kind, key, owner)], lease, SLACK))
}

/// Sends a request; `None` if the key is busy.
async fn ask(store: &EtcdStore, request: &Arc<AcquireRequest>) -> Result<Option<Granted>, StoreError> {
    Ok(match store.acquire(Arc::clone(request)).await? {
        Acquired::Granted(granted) => Some(granted),
        Acquired::Busy(_) => None,
    })
}

async fn granted(store: &EtcdStore, request: &Arc<AcquireRequest>) -> bool {
    ask(store, request).await.unwrap().is_some()
}

/// Queues behind others and listens.
async fn queue(store: &EtcdStore, request: &Arc<AcquireRequest>) -> Watch {
    let watch = store.watch(Arc::clone(request)).await.unwrap();
    assert!(!granted(store, request).await);
    watch
}

/// Waits for a grant by a notice, and returns its token.
async fn hears_grant(watch: &mut Watch) -> u64 {
    match tokio::time::timeout(SLACK, watch.notice()).await.expect("nothing was heard") {
        Notice::Granted { token, .. } => token.get(),
        notice => panic!("{notice:?}"),
    }
}

async fn release(store: &EtcdStore, request: &AcquireRequest) -> bool {
    let items = request.items.clone();
    let request =
        ReleaseRequest { items, linger: Duration::ZERO, then: None, own_watch: None, timeout: SLACK };
    store.release(Arc::new(request)).await.unwrap().held.iter().all(|held| *held)
}

async fn renew(store: &EtcdStore, request: &AcquireRequest, lease: Duration) -> Vec<Renewed> {
    let items = request.items.iter().map(|item| RenewItem::hold(item.clone(), lease)).collect();
    store.renew(Arc::new(RenewRequest { items, timeout: SLACK })).await.unwrap()
}
