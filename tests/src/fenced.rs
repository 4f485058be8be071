//! A resource that checks fencing tokens, as users' databases should.

use std::net::SocketAddr;
use std::time::Duration;

use crate::redis::{Connection, Reply};

const WRITE: &str = "\
local seen = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
if tonumber(ARGV[1]) < seen then return 0 end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'value', ARGV[2])
return 1";

const READ: &str = "\
local seen = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
if tonumber(ARGV[1]) < seen then return false end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
return redis.call('HGET', KEYS[1], 'value') or ''";

/// A value on a Redis server that rejects writes with a smaller token than the largest it has seen.
///
/// Speaks to the server without the library under test.
#[derive(Debug)]
pub struct FencedRegister {
    connection: Connection,
    key: String,
}

impl FencedRegister {
    /// Opens the register `key` of the server at `addr`.
    ///
    /// # Panics
    ///
    /// When no server listens there.
    #[must_use]
    pub fn open(addr: SocketAddr, key: &str) -> Self {
        let connection = Connection::open(addr, Duration::from_secs(20)).expect("the server is up");
        Self { connection, key: key.to_owned() }
    }

    /// Writes `value`. Returns `false` when the token is too old.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    pub fn write(&mut self, token: u64, value: &str) -> bool {
        match self.connection.command(&["EVAL", WRITE, "1", &self.key, &token.to_string(), value]) {
            Ok(Reply::Number(accepted)) => accepted == 1,
            other => panic!("the register does not answer: {other:?}"),
        }
    }

    /// Returns the value to a caller that will [write](Self::write) a value based on it. Returns
    /// `None` when the token is too old. From now on writes with older tokens are refused.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    pub fn read(&mut self, token: u64) -> Option<String> {
        match self.connection.command(&["EVAL", READ, "1", &self.key, &token.to_string()]) {
            Ok(Reply::Text(value)) => Some(value),
            Ok(Reply::Nil) => None,
            other => panic!("the register does not answer: {other:?}"),
        }
    }

    /// Returns the value; empty before the first write.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    pub fn value(&mut self) -> String {
        match self.connection.command(&["HGET", &self.key, "value"]) {
            Ok(reply) => reply.to_string(),
            Err(error) => panic!("the register does not answer: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RedisServer;

    #[test]
    fn smaller_tokens_are_refused_and_equal_ones_accepted() {
        let server = RedisServer::start();
        let mut register = FencedRegister::open(server.addr(), "account");
        assert_eq!(register.value(), "");
        assert!(register.write(34, "first"));
        assert!(register.write(34, "again"));
        assert!(!register.write(33, "late"));
        assert!(register.write(35, "next"));
        assert_eq!(register.value(), "next");
        assert_eq!(register.read(34), None);
        assert_eq!(register.read(40), Some("next".to_owned()));
        assert!(!register.write(35, "late"), "a newer holder has read");
    }
}
