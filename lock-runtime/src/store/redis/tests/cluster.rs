//! A cluster of the test's own: three servers, a third of the slots each.

use super::super::cluster::slots::slot;
use super::super::url::{Servers, servers};
use super::server::{Server, free_port};
use super::*;

/// Three servers, with a replica at most; killed when dropped.
pub(super) struct Cluster {
    pub(super) servers: Vec<Server>,
    pub(super) ids: Vec<String>,
    replica: Option<Server>,
}

impl Cluster {
    pub(super) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub(super) async fn start_with(arguments: &[&str]) -> Self {
        let started: Vec<_> = (0..3).map(|_| start(arguments)).collect();
        let (servers, buses): (Vec<_>, Vec<_>) = started.into_iter().unzip();
        let slots = [(0, 5460), (5461, 10922), (10923, 16383)];
        let mut ids = Vec::new();
        for (index, (server, (first, last))) in servers.iter().zip(slots).enumerate() {
            let epoch = (index + 1).to_string();
            let _: () = server.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
            let _: () =
                server.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]).await;
            ids.push(server.command::<String>(&["CLUSTER", "MYID"]).await);
        }
        for (server, bus) in servers.iter().zip(&buses).skip(1) {
            let port = server.port().to_string();
            let _: () = servers[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]).await;
        }
        let cluster = Self { servers, ids, replica: None };
        cluster.agrees().await;
        cluster
    }

    /// Waits until every server sees all others, and a server for every slot.
    async fn agrees(&self) {
        for server in &self.servers {
            until("the cluster agrees", || async {
                let info: String = server.command(&["CLUSTER", "INFO"]).await;
                info.contains("cluster_state:ok")
                    && info.contains("cluster_known_nodes:3")
                    && info.contains("cluster_slots_ok:16384")
                    && info.contains("cluster_size:3")
            })
            .await;
        }
    }

    /// Gives one of the servers a replica, which takes over when it is gone for 2 s.
    pub(super) async fn add_replica(&mut self, of: usize) {
        let (replica, bus) = start(&[]);
        let port = replica.port().to_string();
        let _: () = self.servers[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await;
        let id = &self.ids[of];
        until("the replica knows its primary", || async {
            replica.try_command::<()>(&["CLUSTER", "REPLICATE", id]).await.is_ok()
        })
        .await;
        until("the replica has a link", || async {
            let info: String = replica.command(&["INFO", "replication"]).await;
            info.contains("master_link_status:up")
        })
        .await;
        for server in self.servers.iter().chain([&replica]) {
            until("all know the replica", || async {
                let info: String = server.command(&["CLUSTER", "INFO"]).await;
                info.contains("cluster_known_nodes:4") && info.contains("cluster_state:ok")
            })
            .await;
            let _: () = server.command(&["CONFIG", "SET", "cluster-node-timeout", "2000"]).await;
        }
        self.replica = Some(replica);
    }

    pub(super) fn replica(&self) -> &Server {
        self.replica.as_ref().unwrap()
    }

    pub(super) fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}", self.servers[0].port())
    }

    pub(super) fn store(&self) -> RedisStore {
        self.store_with(|_| {})
    }

    pub(super) fn store_with(&self, change: impl FnOnce(&mut RedisOptions)) -> RedisStore {
        let mut options = options();
        change(&mut options);
        let Servers::Cluster(seeds) = servers(&self.url()).unwrap() else { panic!("no cluster") };
        RedisStore::cluster(&seeds, options).unwrap()
    }

    /// Which of the servers has the slot, as all but movers see it: the one it was started with.
    pub(super) fn home(&self, name: &str) -> usize {
        match slot(name) {
            0..5461 => 0,
            5461..10923 => 1,
            _ => 2,
        }
    }

    /// The slot of `name` begins to move between these servers.
    pub(super) async fn begin_move(&self, name: &str, from: usize, to: usize) {
        let slot = slot(name).to_string();
        let importing = ["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.ids[from]];
        let _: () = self.servers[to].command(&importing).await;
        let migrating = ["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.ids[to]];
        let _: () = self.servers[from].command(&migrating).await;
    }

    /// Moves one key.
    pub(super) async fn move_key(&self, key: &str, from: usize, to: usize) {
        let port = self.servers[to].port().to_string();
        let moved: String =
            self.servers[from].command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]).await;
        assert_eq!(moved, "OK", "{key}");
    }

    /// Moves all keys of the slot of `name`, also those that come meanwhile.
    pub(super) async fn move_slot_keys(&self, name: &str, from: usize, to: usize) {
        let slot = slot(name).to_string();
        loop {
            let keys: Vec<String> =
                self.servers[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).await;
            if keys.is_empty() {
                return;
            }
            let port = self.servers[to].port().to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            let _: String = self.servers[from].command(&words).await;
        }
    }

    /// The slot of `name` is at `to` now, and everybody knows.
    pub(super) async fn end_move(&self, name: &str, to: usize) {
        let slot = slot(name).to_string();
        let order = std::iter::once(to).chain((0..3).filter(|index| *index != to));
        for index in order {
            let _: () =
                self.servers[index].command(&["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[to]]).await;
        }
    }

    /// All keys of all servers.
    pub(super) async fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for server in &self.servers {
            keys.extend(server.keys().await);
        }
        keys.sort();
        keys
    }
}

fn start(arguments: &[&str]) -> (Server, String) {
    // The usual one, 10 000 above, may be none.
    let bus = free_port().to_string();
    let fixed = ["--cluster-enabled", "yes", "--cluster-node-timeout", "3000", "--cluster-port", &bus];
    let server = Server::start_with(&[&fixed[..], arguments].concat());
    (server, bus)
}
