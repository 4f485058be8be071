//! [`Quorum`]: servers that know nothing of each other; a majority of them must agree.

use crate::RedisServer;
use crate::redis::{StartError, ended};

/// Independent servers, each with its own port and folder. Ended and cleaned up on drop.
#[derive(Debug)]
pub struct Quorum {
    servers: Vec<RedisServer>,
}

impl Quorum {
    /// Starts three servers.
    ///
    /// # Panics
    ///
    /// When a server does not start; the text says what is missing.
    #[track_caller]
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(3, &[])
    }

    /// Starts `count` servers with additional command-line arguments.
    ///
    /// # Panics
    ///
    /// When a server does not start.
    #[track_caller]
    #[must_use]
    pub fn start_with(count: usize, args: &[&str]) -> Self {
        match Self::try_start_with(count, args) {
            Ok(quorum) => quorum,
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts `count` servers with additional arguments.
    ///
    /// # Errors
    ///
    /// When there is no `redis-server`, or a server refuses to run.
    pub fn try_start_with(count: usize, args: &[&str]) -> Result<Self, StartError> {
        let servers = (0..count).map(|_| RedisServer::try_start_with(args)).collect::<Result<_, _>>()?;
        Ok(Self { servers })
    }

    /// Returns `quorum:redis://…|redis://…|redis://…`, in the order of [`servers`](Self::servers).
    #[must_use]
    pub fn url(&self) -> String {
        let urls: Vec<String> = self.servers.iter().map(RedisServer::url).collect();
        format!("quorum:{}", urls.join("|"))
    }

    /// Returns the servers.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns the servers, to be stopped, killed or restarted.
    pub fn servers_mut(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// Returns a report on each server that has ended by itself.
    pub fn ended(&mut self) -> Vec<String> {
        ended("redis-server", &mut self.servers)
    }
}
