//! [`Session`]: what the plain layout knows about a connection. No I/O here.

use std::collections::HashMap;
use std::sync::Mutex;

use lock_core::internal::sync::lock;
use tokio::sync::OnceCell;

use super::classify::Address;

/// A connection, as the server knows it.
pub(super) struct Session {
    /// The server, or the primary that sentinels name.
    pub(super) server: String,
    /// Number and address at the server, once it was asked; `None` without the right to ask.
    pub(super) client: OnceCell<Option<(String, String)>>,
    /// For each counter the least that its tokens must exceed on this connection. A counter is
    /// known by its slot.
    seeds: Mutex<HashMap<u16, u64>>,
    /// Whether it is certain that no command of the connection is executed any more. `false`
    /// without the right to kill it.
    pub(super) ended: OnceCell<bool>,
}

impl Session {
    pub(super) fn new(server: &Address) -> Self {
        let (client, seeds, ended) = (OnceCell::new(), Mutex::default(), OnceCell::new());
        Self { server: format!("{server:?}"), client, seeds, ended }
    }

    pub(super) fn seed(&self, slot: u16) -> Option<u64> {
        lock(&self.seeds).get(&slot).copied()
    }

    pub(super) fn set_seed(&self, slot: u16, seed: u64) {
        lock(&self.seeds).insert(slot, seed);
    }

    /// Forgets the seeds of these counters: another server may have had them meanwhile.
    pub(super) fn forget_seeds(&self, of: impl Fn(u16) -> bool) {
        lock(&self.seeds).retain(|slot, _| !of(*slot));
    }
}

/// Reads number and address in an answer to CLIENT INFO.
pub(super) fn client(info: &str) -> Option<(String, String)> {
    let value = |name: &str| info.split_whitespace().find_map(|word| word.strip_prefix(name));
    // All clients at a Unix socket have the same address, which ends in 0.
    let address = value("addr=").filter(|address| !address.ends_with(":0"))?;
    Some((value("id=")?.to_owned(), address.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_known_by_its_number_and_address() {
        let info = "id=7 addr=127.0.0.1:50412 laddr=127.0.0.1:6379 fd=8 name=lock-x db=0\n";
        assert_eq!(client(info), Some(("7".to_owned(), "127.0.0.1:50412".to_owned())));
        assert_eq!(client("id=7"), None);
        assert_eq!(client("id=7 addr=/run/redis.sock:0"), None, "it is no address of its own");
    }
}
