//! Helpers that all groups of servers share.

use std::time::{Duration, Instant};

use super::{RedisServer, Reply};

/// Maximum time to wait for one server when others can be asked instead: that server may be
/// stopped.
const ASK: Duration = Duration::from_millis(500);

/// Calls `check` again and again until it succeeds.
///
/// # Errors
///
/// The last error of `check`, after `within`.
pub(crate) fn until<T>(within: Duration, mut check: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let deadline = Instant::now() + within;
    loop {
        match check() {
            Ok(found) => return Ok(found),
            Err(why) if Instant::now() >= deadline => return Err(format!("not within {within:?}: {why}")),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Returns the answer to a command as text. Fails when there is no answer, or when it is an error.
pub(crate) fn text(server: &RedisServer, args: &[&str]) -> Result<String, String> {
    match server.command_within(ASK, args) {
        Ok(Reply::Error(error)) => Err(format!("{}: {args:?}: {error}", server.addr())),
        Ok(reply) => Ok(reply.to_string()),
        Err(error) => Err(format!("{}: {args:?}: {error}", server.addr())),
    }
}

/// Returns a report on each server that has ended by itself: its name, its status and its log.
pub(crate) fn ended(name: &str, servers: &mut [RedisServer]) -> Vec<String> {
    let say = |server: &mut RedisServer| {
        let status = server.ended()?;
        Some(format!("{name} at {} ended with {status}:\n{}", server.addr(), server.log()))
    };
    servers.iter_mut().filter_map(say).collect()
}
