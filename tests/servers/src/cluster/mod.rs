//! [`Cluster`]: servers that share the keys between them by slot.

mod moves;
mod view;

use std::time::Duration;

pub use moves::SlotMove;
pub use view::slot_of;
use view::{SLOTS, View};

use crate::redis::{Reply, Role, Setup, StartError, ended, text, until};
use crate::{RedisServer, ServerClock};

/// Maximum duration of any step, failovers included.
const LONG: Duration = Duration::from_secs(40);

/// Settings of a [`Cluster`].
#[derive(Clone, Debug)]
pub struct Options {
    primaries: usize,
    replicas: usize,
    /// One entry for each additional replica: the place of its primary.
    more_replicas_of: Vec<usize>,
    node_timeout: Duration,
    password: Option<String>,
    args: Vec<String>,
    /// The additional arguments of each node, in the order of the nodes.
    own_args: Vec<Vec<String>>,
    clocks: Vec<ServerClock>,
}

impl Default for Options {
    /// Returns three primaries without replicas and without a password. A node silent for 2 s
    /// counts as dead.
    fn default() -> Self {
        Self {
            primaries: 3,
            replicas: 0,
            more_replicas_of: Vec::new(),
            node_timeout: Duration::from_secs(2),
            password: None,
            args: Vec::new(),
            own_args: Vec::new(),
            clocks: Vec::new(),
        }
    }
}

impl Options {
    /// Sets the number of primaries, three at least.
    #[must_use]
    pub fn primaries(self, count: usize) -> Self {
        Self { primaries: count, ..self }
    }

    /// Sets the number of replicas of each primary.
    #[must_use]
    pub fn replicas(self, count: usize) -> Self {
        Self { replicas: count, ..self }
    }

    /// Adds a replica of the primary at this place, after the replicas that every primary has.
    #[must_use]
    pub fn replica_of(mut self, primary: usize) -> Self {
        self.more_replicas_of.push(primary);
        self
    }

    /// Returns the place of the primary that each replica follows, in the order of the replicas.
    fn followed(&self) -> impl Iterator<Item = usize> {
        let of_all = (0..self.replicas).flat_map(|_| 0..self.primaries);
        of_all.chain(self.more_replicas_of.iter().copied())
    }

    /// Sets how long a node must be silent to count as dead.
    #[must_use]
    pub fn node_timeout(self, time: Duration) -> Self {
        Self { node_timeout: time, ..self }
    }

    /// Sets the password that nodes require from clients and from each other.
    #[must_use]
    pub fn password(self, password: &str) -> Self {
        Self { password: Some(password.to_owned()), ..self }
    }

    /// Sets additional command-line arguments for all nodes.
    #[must_use]
    pub fn args(self, args: &[&str]) -> Self {
        Self { args: args.iter().map(|&arg| arg.to_owned()).collect(), ..self }
    }

    /// Sets additional command-line arguments for each node, in the order of the nodes.
    #[cfg(feature = "tls")]
    pub(crate) fn own_args(self, args: Vec<Vec<String>>) -> Self {
        Self { own_args: args, ..self }
    }

    /// Sets the wall clock of each node, in the order of the nodes.
    #[must_use]
    pub fn clocks(self, clocks: &[ServerClock]) -> Self {
        Self { clocks: clocks.to_vec(), ..self }
    }

    fn setup(&self, place: usize) -> Setup {
        let timeout = self.node_timeout.as_millis().to_string();
        let mut args: Vec<String> = [
            ["--cluster-enabled", "yes"],
            ["--cluster-config-file", "nodes.conf"],
            ["--cluster-node-timeout", &timeout],
            // A replica takes over however old its data is, and syncs with its primary without
            // delay.
            ["--cluster-replica-validity-factor", "0"],
            ["--repl-diskless-sync-delay", "0"],
        ]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect();
        args.extend(self.args.iter().cloned());
        args.extend(self.own_args.get(place).into_iter().flatten().cloned());
        if let Some(password) = &self.password {
            args.extend(["--requirepass", password, "--masterauth", password].map(str::to_owned));
        }
        Setup { role: Role::Node, args, file: None, clock: self.clocks.get(place).cloned() }
    }
}

/// A cluster on free loopback ports. Ended and cleaned up on drop.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<RedisServer>,
    options: Options,
}

impl Cluster {
    /// Starts three primaries.
    ///
    /// # Panics
    ///
    /// When they do not start; the text says what is missing.
    #[track_caller]
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(Options::default())
    }

    /// Starts a cluster with these `options`.
    ///
    /// # Panics
    ///
    /// When they do not start.
    #[track_caller]
    #[must_use]
    pub fn start_with(options: Options) -> Self {
        match Self::try_start_with(options) {
            Ok(cluster) => cluster,
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts a cluster with these `options`. Returns when every node knows every other, every slot
    /// is served, and the replicas follow.
    ///
    /// # Errors
    ///
    /// When there is no `redis-server`, or one of them refuses to run.
    pub fn try_start_with(options: Options) -> Result<Self, StartError> {
        let count = options.primaries + options.followed().count();
        let launch = |place| RedisServer::try_launch(&options.setup(place));
        let nodes = (0..count).map(launch).collect::<Result<_, _>>()?;
        let cluster = Self { nodes, options };
        match cluster.form().and_then(|()| until(LONG, || cluster.check())) {
            Ok(()) => Ok(cluster),
            Err(why) => Err(StartError::Failed(format!("{why}\n{}", cluster.logs()))),
        }
    }

    /// Makes a cluster of nodes that do not know each other yet.
    fn form(&self) -> Result<(), String> {
        let primaries = self.options.primaries;
        // Only a node that knows no other accepts an epoch.
        for (at, node) in self.nodes.iter().enumerate() {
            text(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()])?;
        }
        for (at, node) in self.nodes.iter().enumerate() {
            // Every node meets every other, instead of waiting for gossip.
            for other in &self.nodes[at + 1..] {
                let port = other.tls_port().unwrap_or(other.port());
                text(node, &["CLUSTER", "MEET", "127.0.0.1", &port.to_string()])?;
            }
            if at < primaries {
                let slots: Vec<String> = (0..SLOTS)
                    .filter(|slot| usize::from(*slot) * primaries / usize::from(SLOTS) == at)
                    .map(|slot| slot.to_string())
                    .collect();
                let command: Vec<&str> =
                    ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
                text(node, &command)?;
            }
        }
        for (node, primary) in self.nodes[primaries..].iter().zip(self.options.followed()) {
            let id = text(&self.nodes[primary], &["CLUSTER", "MYID"])?;
            // The node refuses until it has heard of its primary.
            until(LONG, || text(node, &["CLUSTER", "REPLICATE", &id]))?;
        }
        Ok(())
    }

    /// Returns `redis+cluster://h1:p,h2:p,…` with all nodes, and with the password.
    #[must_use]
    pub fn url(&self) -> String {
        let password = self.options.password.as_ref().map_or_else(String::new, |text| format!(":{text}@"));
        let nodes: Vec<String> =
            self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.announced_port())).collect();
        format!("redis+cluster://{password}{}", nodes.join(","))
    }

    /// Makes clients and replicas reach each node through the port of a proxy, one port for each
    /// node. Returns when all nodes know the ports.
    ///
    /// # Panics
    ///
    /// When a node refuses.
    pub fn stand_behind(&mut self, ports: &[u16]) {
        for (node, port) in self.nodes.iter_mut().zip(ports) {
            if let Err(why) = node.announce(*port) {
                panic!("{why}");
            }
        }
        self.wait_until_ready();
    }

    /// Returns the nodes, whatever their present roles. At the start the primaries come first, then
    /// their first replicas in the same order, and so on.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Returns the nodes, to be stopped, killed or restarted.
    pub fn nodes_mut(&mut self) -> &mut [RedisServer] {
        &mut self.nodes
    }

    /// Returns the place in [`nodes`](Self::nodes) of the primary that serves `key`.
    ///
    /// # Panics
    ///
    /// When no node knows one.
    #[track_caller]
    #[must_use]
    pub fn node_of(&self, key: &str) -> usize {
        self.node_of_slot(slot_of(key))
    }

    /// Returns the place in [`nodes`](Self::nodes) of the primary that serves `slot`.
    ///
    /// # Panics
    ///
    /// When no node knows one.
    #[track_caller]
    #[must_use]
    pub fn node_of_slot(&self, slot: u16) -> usize {
        self.ask_until(|view| view.owner(slot).ok_or_else(|| format!("nobody serves slot {slot}")))
    }

    /// Returns the places of the primaries in [`nodes`](Self::nodes).
    ///
    /// # Panics
    ///
    /// When no node answers.
    #[track_caller]
    #[must_use]
    pub fn primaries(&self) -> Vec<usize> {
        self.ask_until(|view| Ok(view.primaries()))
    }

    /// Returns the places of a primary's replicas in [`nodes`](Self::nodes).
    ///
    /// # Panics
    ///
    /// When no node answers.
    #[track_caller]
    #[must_use]
    pub fn replicas_of(&self, primary: usize) -> Vec<usize> {
        self.ask_until(|view| Ok(view.replicas_of(primary)))
    }

    /// Runs a command about `key` on the node that serves it, and returns its answer as
    /// [`RedisServer::cli`] does.
    ///
    /// # Panics
    ///
    /// When no node answers, or one answers with an error.
    #[track_caller]
    pub fn cli(&self, key: &str, args: &[&str]) -> String {
        let answer = until(LONG, || {
            let node = self.latest()?.owner(slot_of(key)).ok_or("nobody serves the slot")?;
            match self.nodes[node].command(args) {
                // This view is outdated, or the slot is moving.
                Ok(Reply::Error(error)) if error.starts_with("MOVED") || error.starts_with("CLUSTERDOWN") => {
                    Err(error)
                }
                Ok(reply) => Ok(reply),
                Err(error) => Err(error.to_string()),
            }
        });
        match answer {
            Ok(Reply::Error(error)) => panic!("{args:?}: {error}"),
            Ok(reply) => reply.to_string(),
            Err(why) => panic!("{args:?}: {why}"),
        }
    }

    /// Makes a replica of the primary at `of` take its place, and waits until all nodes know.
    /// Returns the place of the new primary.
    ///
    /// # Panics
    ///
    /// When the primary has no replica, or no replica takes over.
    #[track_caller]
    pub fn failover(&self, of: usize) -> usize {
        let Some(&replica) = self.replicas_of(of).first() else { panic!("node {of} has no replica") };
        let slots = self.ask_until(|view| Ok(view.slots_of(of)));
        let Some(&slot) = slots.first() else { panic!("node {of} serves no slot") };
        if let Err(why) = until(LONG, || text(&self.nodes[replica], &["CLUSTER", "FAILOVER"])) {
            panic!("{why}\n{}", self.logs());
        }
        self.wait_until(|view| view.owner(slot) == Some(replica), "the replica has not taken over");
        replica
    }

    /// Waits until all nodes that answer agree that `slot` is served by a node other than the one
    /// at `before`. Returns its place.
    ///
    /// # Panics
    ///
    /// When no other node takes over.
    #[track_caller]
    pub fn wait_for_failover(&self, slot: u16, before: usize) -> usize {
        self.wait_until(
            |view| view.owner(slot).is_some_and(|owner| owner != before),
            "no replica has taken over",
        );
        self.node_of_slot(slot)
    }

    /// Waits until all nodes run, know each other and serve every slot between them, and the
    /// replicas follow.
    ///
    /// # Panics
    ///
    /// When that takes too long; the text says what is missing.
    #[track_caller]
    pub fn wait_until_ready(&self) {
        if let Err(why) = until(LONG, || self.check()) {
            panic!("{why}\n{}", self.logs());
        }
    }

    /// Returns a report on each node that has ended by itself.
    pub fn ended(&mut self) -> Vec<String> {
        ended("redis-server", &mut self.nodes)
    }

    /// Returns why the cluster is not ready.
    fn check(&self) -> Result<(), String> {
        for node in &self.nodes {
            let info = text(node, &["CLUSTER", "INFO"])?;
            let known = format!("cluster_known_nodes:{}", self.nodes.len());
            for wanted in ["cluster_state:ok", "cluster_slots_ok:16384", &known] {
                if !info.lines().any(|line| line.trim_end() == wanted) {
                    return Err(format!("{} does not say {wanted}", node.addr()));
                }
            }
            let view = View::of(node, &self.nodes)?;
            view.check(self.options.primaries)?;
            let role = text(node, &["ROLE"])?;
            if role.starts_with("slave") && role.lines().nth(3) != Some("connected") {
                return Err(format!("{} says {}", node.addr(), role.replace('\n', " ")));
            }
        }
        Ok(())
    }

    /// Returns the view of the node with the highest epoch among those that answer.
    fn latest(&self) -> Result<View, String> {
        let mut last = "there are no nodes".to_owned();
        let mut latest: Option<View> = None;
        for node in &self.nodes {
            match View::of(node, &self.nodes) {
                Ok(view) if latest.as_ref().is_none_or(|latest| view.epoch > latest.epoch) => {
                    latest = Some(view);
                }
                Ok(_) => {}
                Err(why) => last = why,
            }
        }
        latest.ok_or(last)
    }

    #[track_caller]
    fn ask_until<T>(&self, question: impl Fn(&View) -> Result<T, String>) -> T {
        match until(LONG, || question(&self.latest()?)) {
            Ok(answer) => answer,
            Err(why) => panic!("{why}\n{}", self.logs()),
        }
    }

    /// Waits until `condition` holds in the views of all nodes that answer, at least one.
    #[track_caller]
    fn wait_until(&self, condition: impl Fn(&View) -> bool, else_: &str) {
        let all = until(LONG, || {
            let views: Vec<View> =
                self.nodes.iter().filter_map(|node| View::of(node, &self.nodes).ok()).collect();
            let good = !views.is_empty() && views.iter().all(&condition);
            good.then_some(()).ok_or_else(|| else_.to_owned())
        });
        if let Err(why) = all {
            panic!("{why}\n{}", self.logs());
        }
    }

    fn logs(&self) -> String {
        self.nodes.iter().map(|node| format!("--- {}\n{}", node.addr(), node.log())).collect()
    }
}
