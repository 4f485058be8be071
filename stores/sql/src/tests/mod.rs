//! The contract on real databases, and what is particular to them.

mod anchors;
mod rows;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_store_conformance::{Subject, conformance};
use lock_test_servers::{MariaDbServer, PgBouncer, PostgresServer};

use crate::{Settings, mysql, pooled_postgres, postgres, sqlite};

fn settings(prefix: &str) -> Settings {
    Settings { prefix: prefix.to_owned(), call_timeout: Duration::from_secs(10) }
}

mod on_sqlite {
    use super::*;

    async fn subject() -> Subject {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let options = || sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
        let one = sqlite(options(), &settings("p:"));
        let other = sqlite(options(), &settings("p:"));
        Subject::new(one, other).keeping(folder)
    }

    conformance!(subject);
}

static SUBJECTS: AtomicU64 = AtomicU64::new(0);

const SKIPPED: [(&str, &str); 1] = [(
    "acquire::keys_that_differ_in_one_byte_are_different",
    "the index of a server has no room for a key of 4096 bytes",
)];

/// `xtask` runs these where MariaDB is installed.
mod on_mariadb {
    use super::*;

    mod faults;
    mod stock;

    static SERVER: LazyLock<MariaDbServer> = LazyLock::new(MariaDbServer::start);

    async fn subject() -> Subject {
        let prefix = format!("{}:", SUBJECTS.fetch_add(1, Ordering::Relaxed));
        let open = || mysql(SERVER.url().parse().unwrap(), &settings(&prefix));
        Subject::new(open(), open()).skipping(&SKIPPED)
    }

    conformance!(subject);
}

/// `xtask` runs these where PostgreSQL is installed.
mod on_postgres {
    use super::*;

    mod cuts;
    mod faults;
    mod groups;
    mod standby;
    mod stock;
    mod waking;

    static SERVER: LazyLock<PostgresServer> = LazyLock::new(PostgresServer::start);

    async fn subject() -> Subject {
        let prefix = format!("{}:", SUBJECTS.fetch_add(1, Ordering::Relaxed));
        let open = || postgres(SERVER.url().parse().unwrap(), &settings(&prefix));
        Subject::new(open(), open()).skipping(&SKIPPED)
    }

    conformance!(subject);

    /// Behind a pooler that gives each transaction another session.
    mod pooled {
        use super::*;

        static POOLER: LazyLock<PgBouncer> = LazyLock::new(|| PgBouncer::start(&SERVER));

        async fn subject() -> Subject {
            let prefix = format!("{}:", SUBJECTS.fetch_add(1, Ordering::Relaxed));
            let open = || pooled_postgres(POOLER.url().parse().unwrap(), &settings(&prefix));
            Subject::new(open(), open()).skipping(&SKIPPED)
        }

        conformance!(subject);
    }
}
