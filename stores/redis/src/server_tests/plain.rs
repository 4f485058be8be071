//! The plain layout on real servers: the suite that every store has to pass, and what is its own.

use super::*;

/// The suite on one server.
mod alone {
    use lock_store_conformance::Subject;

    use super::*;

    async fn alone() -> Subject {
        let server = RedisServer::start();
        let store = || Arc::new(store_with(&server, |options| options.layout = Layout::Plain));
        Subject::new(store(), store()).keeping(server)
    }

    lock_store_conformance::conformance!(alone);
}

/// The suite on one server of a quorum.
mod by_script {
    use lock_store_conformance::Subject;

    use super::*;

    async fn by_script() -> Subject {
        let server = RedisServer::start();
        let store = || Arc::new(store_with(&server, |options| options.layout = Layout::PlainByScript));
        let (one, other) = (store(), store());
        let late = Arc::clone(&one);
        Subject::new(one, other)
            .late_through(Box::new(move |request| {
                let store = Arc::clone(&late);
                Box::pin(async move { acquire_late(&store, request).await })
            }))
            .keeping(server)
    }

    lock_store_conformance::conformance!(by_script);
}
