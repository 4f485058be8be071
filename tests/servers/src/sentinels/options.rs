//! [`Options`]: the number of servers, the patience of their sentinels, and the content of their
//! files.

use std::net::SocketAddr;
use std::time::Duration;

use super::MASTER;
use crate::redis::{Role, Setup};
use crate::{RedisServer, ServerClock};

/// Settings of [`Sentinels`](super::Sentinels).
#[derive(Clone, Debug)]
pub struct Options {
    pub(super) replicas: usize,
    pub(super) sentinels: usize,
    down_after: Duration,
    failover_timeout: Duration,
    pub(super) password: Option<String>,
    pub(super) sentinel_password: Option<String>,
    user: Option<String>,
    args: Vec<String>,
    clocks: Vec<ServerClock>,
}

impl Default for Options {
    /// Returns two replicas and three sentinels without passwords. A server silent for 1 s counts
    /// as dead.
    fn default() -> Self {
        Self {
            replicas: 2,
            sentinels: 3,
            down_after: Duration::from_secs(1),
            failover_timeout: Duration::from_secs(5),
            password: None,
            sentinel_password: None,
            user: None,
            args: Vec::new(),
            clocks: Vec::new(),
        }
    }
}

impl Options {
    /// Sets the number of replicas.
    #[must_use]
    pub fn replicas(self, count: usize) -> Self {
        Self { replicas: count, ..self }
    }

    /// Sets the number of sentinels; a majority of them must agree.
    #[must_use]
    pub fn sentinels(self, count: usize) -> Self {
        Self { sentinels: count, ..self }
    }

    /// Sets how long a server must be silent to count as dead.
    #[must_use]
    pub fn down_after(self, time: Duration) -> Self {
        Self { down_after: time, ..self }
    }

    /// Sets the maximum duration of one step of a failover. A failed election is repeated after
    /// twice that time. A replica that does not follow the primary is corrected after that time.
    #[must_use]
    pub fn failover_timeout(self, time: Duration) -> Self {
        Self { failover_timeout: time, ..self }
    }

    /// Sets the password that servers with data require from clients and from each other.
    #[must_use]
    pub fn password(self, password: &str) -> Self {
        Self { password: Some(password.to_owned()), ..self }
    }

    /// Sets the password that sentinels require from clients and from each other.
    #[must_use]
    pub fn sentinel_password(self, password: &str) -> Self {
        Self { sentinel_password: Some(password.to_owned()), ..self }
    }

    /// Makes the sentinels log in to the servers with data as this user. Its password is its name.
    #[must_use]
    pub fn user(self, name: &str) -> Self {
        Self { user: Some(name.to_owned()), ..self }
    }

    /// Sets additional command-line arguments for the servers with data.
    #[must_use]
    pub fn args(self, args: &[&str]) -> Self {
        Self { args: args.iter().map(|&arg| arg.to_owned()).collect(), ..self }
    }

    /// Sets the wall clock of each server with data, in the order of the servers.
    #[must_use]
    pub fn clocks(self, clocks: &[ServerClock]) -> Self {
        Self { clocks: clocks.to_vec(), ..self }
    }

    /// Returns how the server with data at this place is launched, as a replica of `primary` if
    /// there is one.
    pub(super) fn server(&self, place: usize, primary: Option<SocketAddr>) -> Setup {
        // A replica gets its data without delay, and answers while it has none.
        let mut args: Vec<String> = ["--repl-diskless-sync-delay", "0"].map(str::to_owned).into();
        args.extend(self.args.iter().cloned());
        if let Some(password) = &self.password {
            args.extend(["--requirepass", password, "--masterauth", password].map(str::to_owned));
        }
        if let Some(user) = &self.user {
            let password = format!(">{user}");
            args.extend(
                ["--user", user, "on", &password, "allkeys", "allchannels", "+@all"].map(str::to_owned),
            );
        }
        // In the file, which sentinels change later: the command line would overrule them.
        let file =
            primary.map_or_else(String::new, |addr| format!("replicaof {} {}\n", addr.ip(), addr.port()));
        Setup { role: Role::Data, args, file: Some(file), clock: self.clocks.get(place).cloned() }
    }

    /// Returns the sentinels' settings for the primary. `servers` counts the primary and its
    /// replicas.
    pub(super) fn settings(&self, servers: usize) -> Vec<(&'static str, String)> {
        let mut settings = vec![
            ("down-after-milliseconds", self.down_after.as_millis().to_string()),
            ("failover-timeout", self.failover_timeout.as_millis().to_string()),
            ("parallel-syncs", servers.to_string()),
        ];
        settings.extend(self.user.clone().map(|user| ("auth-user", user)));
        let password = self.user.as_ref().or(self.password.as_ref());
        settings.extend(password.map(|password| ("auth-pass", password.clone())));
        settings
    }

    /// Returns how the sentinel at `port` is launched. `ports` are those of all sentinels, and the
    /// first of the `servers` is the primary.
    pub(super) fn sentinel(&self, servers: &[RedisServer], port: u16, ports: &[u16]) -> Setup {
        let primary = servers[0].port();
        let quorum = ports.len() / 2 + 1;
        let mut file = format!(
            "sentinel myid {}\n\
             sentinel monitor {MASTER} 127.0.0.1 {primary} {quorum}\n",
            sentinel_id(port),
        );
        for (name, value) in self.settings(servers.len()) {
            file.push_str(&format!("sentinel {name} {MASTER} {value}\n"));
        }
        for replica in servers.iter().skip(1) {
            file.push_str(&format!("sentinel known-replica {MASTER} 127.0.0.1 {}\n", replica.port()));
        }
        for peer in ports.iter().filter(|peer| **peer != port) {
            file.push_str(&format!(
                "sentinel known-sentinel {MASTER} 127.0.0.1 {peer} {}\n",
                sentinel_id(*peer)
            ));
        }
        let mut args = Vec::new();
        if let Some(password) = &self.sentinel_password {
            file.push_str(&format!("sentinel sentinel-pass {password}\n"));
            args.extend(["--requirepass", password].map(str::to_owned));
        }
        Setup { role: Role::Sentinel, args, file: Some(file), clock: None }
    }
}

/// Returns forty hexadecimal digits.
fn sentinel_id(port: u16) -> String {
    format!("{:08x}{port:032x}", std::process::id())
}
