//! [`Quorum`]: servers that know nothing of each other, most of which must agree.

use crate::RedisServer;
use crate::redis::{StartError, ended};

/// Independent servers, each with a port and a folder of its own. Ended and cleaned up on drop.
#[derive(Debug)]
pub struct Quorum {
    servers: Vec<RedisServer>,
}

impl Quorum {
    /// Starts three servers.
    ///
    /// # Panics
    ///
    /// When one does not start; the text says what is missing.
    #[track_caller]
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(3, &[])
    }

    /// Starts `count` servers with more arguments, as on their command lines.
    ///
    /// # Panics
    ///
    /// When one does not start.
    #[track_caller]
    #[must_use]
    pub fn start_with(count: usize, args: &[&str]) -> Self {
        match Self::try_start_with(count, args) {
            Ok(quorum) => quorum,
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts `count` servers with more arguments.
    ///
    /// # Errors
    ///
    /// When there is no `redis-server`, or one refuses to run.
    pub fn try_start_with(count: usize, args: &[&str]) -> Result<Self, StartError> {
        let servers = (0..count).map(|_| RedisServer::try_start_with(args)).collect::<Result<_, _>>()?;
        Ok(Self { servers })
    }

    /// `quorum:redis://…|redis://…|redis://…`, in the order of [`servers`](Self::servers).
    #[must_use]
    pub fn url(&self) -> String {
        let urls: Vec<String> = self.servers.iter().map(RedisServer::url).collect();
        format!("quorum:{}", urls.join("|"))
    }

    /// The servers.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The servers, to be stopped, killed or restarted.
    pub fn servers_mut(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// What is to be said of servers that have ended by themselves.
    pub fn ended(&mut self) -> Vec<String> {
        ended("redis-server", &mut self.servers)
    }
}
