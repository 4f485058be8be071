//! Tests on a real `mongod`. `xtask` runs these where it is installed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use lock_store_conformance::{Subject, conformance};
use lock_test_servers::MongoDbServer;
use mongodb::options::ConnectionString;

use crate::{MongoStore, Settings, Target, open};

static SUBJECTS: AtomicU64 = AtomicU64::new(0);

fn store(url: &str, prefix: &str) -> Arc<MongoStore> {
    let settings = Settings { prefix: prefix.to_owned(), call_timeout: Duration::from_secs(10) };
    open(Target::Address(Box::new(ConnectionString::parse(url).unwrap())), &settings).unwrap()
}

mod on_mongodb {
    use super::*;

    static SERVER: LazyLock<MongoDbServer> = LazyLock::new(MongoDbServer::start);

    async fn subject() -> Subject {
        let prefix = format!("{}:", SUBJECTS.fetch_add(1, Ordering::Relaxed));
        Subject::new(store(&SERVER.url(), &prefix), store(&SERVER.url(), &prefix))
    }

    conformance!(subject);
}
