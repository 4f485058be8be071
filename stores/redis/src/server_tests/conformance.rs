//! The suite that every store has to pass, on a real server.

use std::sync::Arc;

use lock_store_conformance::Subject;
use lock_test_servers::RedisServer;

use super::{acquire_late, store};

async fn subject() -> Subject {
    let server = RedisServer::start();
    let (one, other) = (Arc::new(store(&server)), Arc::new(store(&server)));
    let late = Arc::clone(&one);
    Subject::new(one, other)
        .late_through(Box::new(move |request| {
            let store = Arc::clone(&late);
            Box::pin(async move { acquire_late(&store, request).await })
        }))
        .keeping(server)
}

lock_store_conformance::conformance!(subject);
