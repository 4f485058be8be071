//! What servers that belong together have in common.

use std::time::{Duration, Instant};

use super::{RedisServer, Reply};

/// How long one server is waited for when others can be asked instead: one of them may be stopped.
const ASK: Duration = Duration::from_millis(500);

/// Checks again and again until all is as it should be.
///
/// # Errors
///
/// The last reason why it is not, after `within`.
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

/// The answer to a command as text; a reason when there is none, or an error.
pub(crate) fn text(server: &RedisServer, args: &[&str]) -> Result<String, String> {
    match server.command_within(ASK, args) {
        Ok(Reply::Error(error)) => Err(format!("{}: {args:?}: {error}", server.addr())),
        Ok(reply) => Ok(reply.to_string()),
        Err(error) => Err(format!("{}: {args:?}: {error}", server.addr())),
    }
}

/// What is to be said of servers that have ended by themselves: what they were, their status and
/// their log.
pub(crate) fn ended(name: &str, servers: &mut [RedisServer]) -> Vec<String> {
    let say = |server: &mut RedisServer| {
        let status = server.ended()?;
        Some(format!("{name} at {} ended with {status}:\n{}", server.addr(), server.log()))
    };
    servers.iter_mut().filter_map(say).collect()
}
