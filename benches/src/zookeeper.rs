//! A write to ZooKeeper that stands for a PING.

use zookeeper_client::{Acls, Client, CreateMode};

/// Returns ZooKeeper's own form of a store URL: `h1:2181,h2:2181`.
pub(crate) fn servers_of(url: &str) -> Result<&str, String> {
    let hosts = url.strip_prefix("zookeeper://").filter(|hosts| !hosts.contains('@'));
    let hosts = hosts
        .ok_or("ZooKeeper can be measured without a user and without TLS only: `zookeeper://host:port`")?;
    Ok(hosts.split(['/', '?']).next().unwrap_or_default())
}

/// A client that writes to a node of its own.
#[derive(Debug)]
pub(crate) struct Writes {
    client: Client,
    node: String,
}

impl Writes {
    pub(crate) async fn connect(url: &str) -> Result<Self, String> {
        let said = |error: zookeeper_client::Error| format!("ZooKeeper: {error}");
        let client = Client::connect(servers_of(url)?).await.map_err(said)?;
        let node = format!("/lock-bench-ping-{}", client.session_id());
        let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        client.create(&node, b"", &options).await.map_err(said)?;
        Ok(Self { client, node })
    }

    /// Writes once.
    pub(crate) async fn write(&self) -> Result<(), String> {
        let written = self.client.set_data(&self.node, b"", None).await;
        written.map(drop).map_err(|error| format!("ZooKeeper: {error}"))
    }
}
