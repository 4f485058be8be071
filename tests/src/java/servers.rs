//! [`Servers`]: what both sides connect to.

use lock_runtime::{LockManager, LockManagerBuilder, TokenRetention};

use crate::RedisServer;

/// Servers that a Java and a Rust program share, in whatever topology.
pub trait Servers {
    /// The start argument that tells the Java program where they are.
    fn java_argument(&self) -> String;

    /// The URL that tells [`LockManager`](lock_runtime::LockManager) where they are.
    fn url(&self) -> String;

    /// Asks the server that has `key` a command, past both clients.
    fn ask(&self, key: &str, command: &[&str]) -> String;
}

impl Servers for RedisServer {
    fn java_argument(&self) -> String {
        format!("single={}", RedisServer::url(self))
    }

    fn url(&self) -> String {
        RedisServer::url(self)
    }

    fn ask(&self, _key: &str, command: &[&str]) -> String {
        self.cli(command)
    }
}

/// A manager with the settings that a fleet with Java programs needs; others by `settings`.
///
/// # Panics
///
/// When it can't connect.
pub async fn connect(
    servers: &impl Servers,
    settings: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
) -> LockManager {
    let builder = LockManager::builder().prefix("").token_retention(TokenRetention::Keep);
    match settings(builder).connect(servers.url()).await {
        Ok(locks) => locks,
        Err(error) => panic!("{}: {error}", servers.url()),
    }
}
