//! The suite that every store has to pass, on a real cluster.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::acquire_late;
use super::cluster::Cluster;
use crate::store::conformance::Subject;

/// The tests that run side by side share a cluster, each with a prefix of its own.
async fn shared() -> Arc<Cluster> {
    static SHARED: tokio::sync::Mutex<Weak<Cluster>> = tokio::sync::Mutex::const_new(Weak::new());
    let mut shared = SHARED.lock().await;
    if let Some(cluster) = shared.upgrade() {
        return cluster;
    }
    let cluster = Arc::new(Cluster::start().await);
    *shared = Arc::downgrade(&cluster);
    cluster
}

async fn subject() -> Subject {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let cluster = shared().await;
    let prefix = format!("lock{}:", NEXT.fetch_add(1, Ordering::Relaxed));
    let store = || Arc::new(cluster.store_with(|options| options.prefix.clone_from(&prefix)));
    let (one, other) = (store(), store());
    let late = Arc::clone(&one);
    Subject::new(one, other)
        .late_through(Box::new(move |request| {
            let store = Arc::clone(&late);
            Box::pin(async move { acquire_late(&store, request).await })
        }))
        .keeping(cluster)
}

crate::store::conformance::conformance!(subject);
