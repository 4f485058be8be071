//! The target of every event and span begins with the name that users know, whichever crate it is
//! from.
#![cfg(feature = "redis")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use lock_runtime::LockManager;
use lock_runtime::testing::memory_manager;
use lock_test_servers::RedisServer;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::captured::alone;

/// Collects the targets of all events and spans that are not from a dependency.
#[derive(Clone, Default)]
struct Targets(Arc<Mutex<BTreeSet<(&'static str, bool)>>>);

impl Targets {
    fn note(&self, metadata: &'static Metadata<'static>) {
        if metadata.module_path().is_some_and(|path| path.starts_with("lock_")) {
            self.0.lock().unwrap().insert((metadata.target(), metadata.is_span()));
        }
    }
}

impl Subscriber for Targets {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.note(span.metadata());
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        self.note(event.metadata());
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn all_that_is_traced_is_found_by_the_name_of_the_crate() {
    let _alone = alone();
    let targets = Targets::default();
    tracing::subscriber::with_default(targets.clone(), || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            drop(memory_manager().mutex("a").acquire().await.unwrap());
            // Nothing listens at port 1. The eviction policy is warned of.
            let servers = [(); 2].map(|()| RedisServer::start_with(&["--maxmemory-policy", "allkeys-lru"]));
            let urls = servers.each_ref().map(RedisServer::url);
            let quorum = LockManager::connect(format!("quorum:redis://127.0.0.1:1|{}|{}", urls[0], urls[1]));
            drop(quorum.await.unwrap());
        });
    });
    let found = targets.0.lock().unwrap().clone();
    assert!(found.iter().all(|(target, _)| target.starts_with("lock_runtime::")), "{found:?}");
    let has = |wanted: &str, is_span| found.iter().any(|&(target, span)| target == wanted && span == is_span);
    for (target, is_span) in [
        ("lock_runtime::engine", true),
        ("lock_runtime::engine", false),
        ("lock_runtime::store::redis", false),
        ("lock_runtime::store::quorum", false),
    ] {
        assert!(has(target, is_span), "{target}: {found:?}");
    }
}
