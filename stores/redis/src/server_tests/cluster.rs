//! A test's own cluster: three servers with a third of the slots each.

pub(super) use lock_test_servers::Cluster;
pub(super) use lock_test_servers::cluster::{Options, SlotMove, slot_of};

use super::*;

/// Returns the server that had the slot of `name` at the start, before any slot was moved.
pub(super) fn home(name: &str) -> usize {
    usize::from(slot_of(name)) * 3 / 16_384
}

/// Operations of tests on a cluster, beyond those of its launcher.
pub(super) trait ClusterExt {
    /// Returns the address of the first server, which is enough to find the others.
    fn seed(&self) -> String;

    fn store_with(&self, change: impl FnOnce(&mut RedisOptions)) -> RedisStore;

    fn store(&self) -> RedisStore {
        self.store_with(|_| {})
    }

    /// Moves one key, which must exist.
    async fn move_key(&self, moving: SlotMove, key: &str);

    /// Returns all keys of all primaries.
    async fn keys(&self) -> Vec<String>;
}

impl ClusterExt for Cluster {
    fn seed(&self) -> String {
        format!("redis+cluster://{}", self.nodes()[0].addr())
    }

    fn store_with(&self, change: impl FnOnce(&mut RedisOptions)) -> RedisStore {
        let mut options = options();
        change(&mut options);
        store_at(&self.seed(), options)
    }

    async fn move_key(&self, moving: SlotMove, key: &str) {
        let port = self.nodes()[moving.to].port().to_string();
        let command = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
        let moved: String = self.nodes()[moving.from].ask(&command).await;
        assert_eq!(moved, "OK", "{key}");
    }

    async fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for server in &self.nodes()[..3] {
            keys.extend(server.keys().await);
        }
        keys.sort();
        keys
    }
}
