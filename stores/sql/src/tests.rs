//! The contract on real databases.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_store_conformance::{Subject, conformance};
use lock_test_servers::postgres::PostgresServer;
use tokio::runtime::Handle;

use crate::{Settings, postgres, sqlite};

fn settings(prefix: &str) -> Settings {
    Settings {
        prefix: prefix.to_owned(),
        connect_timeout: Duration::from_secs(10),
        runtime: Handle::current(),
    }
}

mod on_sqlite {
    use super::*;

    async fn subject() -> Subject {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let options = || sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
        let one = sqlite(options(), &settings("p:")).unwrap();
        let other = sqlite(options(), &settings("p:")).unwrap();
        Subject::new(one, other).keeping(folder)
    }

    conformance!(subject);
}

mod on_postgres {
    use super::*;

    static SERVER: LazyLock<PostgresServer> = LazyLock::new(PostgresServer::start);
    static SUBJECTS: AtomicU64 = AtomicU64::new(0);

    async fn subject() -> Subject {
        let prefix = format!("{}:", SUBJECTS.fetch_add(1, Ordering::Relaxed));
        let open = || postgres(SERVER.url().parse().unwrap(), &settings(&prefix));
        Subject::new(open(), open())
    }

    conformance!(subject);
}
