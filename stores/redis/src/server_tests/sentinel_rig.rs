//! A test's own primary, two replicas and three sentinels.

use std::time::Duration;

use lock_test_servers::Sentinels;
use lock_test_servers::sentinels::{MASTER, Options};

use super::server::ServerExt as _;
use super::{RedisStore, options, store_at, until, until_within};

/// Starts them, and returns when all of them know each other.
pub(super) fn sentinels() -> Sentinels {
    sentinels_with(|options| options)
}

/// Starts them with changed options.
pub(super) fn sentinels_with(change: impl FnOnce(Options) -> Options) -> Sentinels {
    let options =
        Options::default().down_after(Duration::from_millis(1500)).failover_timeout(Duration::from_secs(6));
    let set = Sentinels::start_with(change(options));
    for sentinel in set.sentinels() {
        // The default period. A former primary stays one for four of them, which tests rely on.
        let _ = sentinel.command(&["SENTINEL", "DEBUG", "PUBLISH-PERIOD", "2000"]);
    }
    set
}

/// Operations of tests on sentinels while the store under test goes on.
pub(super) trait SentinelsExt {
    fn store(&self) -> RedisStore;

    /// Returns the port of the primary according to the first sentinel.
    async fn primary_port(&self) -> u16;

    /// Makes another server the primary. Resolves with its place when the first sentinel names it.
    /// The old primary does not know of it for some seconds.
    async fn fail_over(&self) -> usize;

    /// Resolves with the place of another primary when the first sentinel names it.
    async fn another_than(&self, before: u16) -> usize;

    /// Resolves when the first server is a replica; a former primary is told so after 8 s.
    async fn first_is_demoted(&self);
}

impl SentinelsExt for Sentinels {
    fn store(&self) -> RedisStore {
        store_at(&self.url(), options())
    }

    async fn primary_port(&self) -> u16 {
        let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
        let (_, port): (String, u16) = self.sentinels()[0].ask(&question).await;
        port
    }

    async fn fail_over(&self) -> usize {
        let before = self.primary_port().await;
        until("a failover begins", async || {
            self.sentinels()[0].try_ask::<()>(&["SENTINEL", "FAILOVER", MASTER]).await.is_ok()
        })
        .await;
        self.another_than(before).await
    }

    async fn another_than(&self, before: u16) -> usize {
        let other = async || self.primary_port().await != before;
        until_within(Duration::from_secs(60), "a failover", other).await;
        let port = self.primary_port().await;
        self.servers().iter().position(|server| server.port() == port).unwrap()
    }

    async fn first_is_demoted(&self) {
        // The server ends connections while it becomes a replica.
        let demoted = async || {
            let info = self.servers()[0].try_ask::<String>(&["INFO", "replication"]).await;
            info.is_ok_and(|info| info.contains("role:slave"))
        };
        until_within(Duration::from_secs(60), "the former primary is a replica", demoted).await;
    }
}
