//! The suite that every store has to pass, on a real server.

use lock_store_conformance::Subject;
use lock_test_servers::RedisServer;

use super::{store, subject_of};

async fn subject() -> Subject {
    let server = RedisServer::start();
    subject_of(|| store(&server)).keeping(server)
}

lock_store_conformance::conformance!(subject);
