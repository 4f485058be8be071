//! [`Session`]: what the plain layout knows about a connection. [`SentOver`]: the connections over
//! which a request was sent.
//!
//! In the plain layout a server can't refuse a late SET. But it executes the commands of a
//! connection in their order, and none after the connection was killed. So a withdrawal over the
//! same connection comes after all copies of the request, and one over a later connection kills
//! the earlier ones first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::lock;
use lock_core::store::{AcquireRequest, StoreErrorKind, Withdrawn};
use redis::Value;
use tokio::sync::OnceCell;

use super::classify::Address;
use super::connection::{Connector, Ready};
use super::fault::Fault;
use super::reply;

/// Time after which a connection that was just replaced is ended.
const AGAIN: Duration = Duration::from_millis(100);

/// A connection, as the server knows it.
pub(super) struct Session {
    /// The server, or the primary that sentinels name.
    server: String,
    /// Number and address at the server, once it was asked; `None` without the right to ask.
    client: OnceCell<Option<(String, String)>>,
    /// For each counter the least that its tokens must exceed on this connection. A counter is
    /// known by its slot.
    seeds: Mutex<HashMap<u16, u64>>,
    /// Whether it is certain that no command of the connection is executed any more. `false`
    /// without the right to kill it.
    ended: OnceCell<bool>,
}

impl Session {
    pub(super) fn new(server: &Address) -> Self {
        let (client, seeds, ended) = (OnceCell::new(), Mutex::default(), OnceCell::new());
        Self { server: format!("{server:?}"), client, seeds, ended }
    }

    /// Whether the server was asked for the identity of the connection.
    pub(super) fn is_known(&self) -> bool {
        self.client.initialized()
    }

    /// Asks the server for the identity of the connection, unless that was done before.
    pub(super) async fn identify(&self, connector: &Connector, ready: &Ready) -> Result<(), Fault> {
        let ask = async || match connector.call(ready, redis::cmd("CLIENT").arg("INFO")).await {
            Ok(info) => Ok(reply::info(&info).and_then(client)),
            Err(error) => match Fault::from(error) {
                fault if fault.error.is_transient() => Err(fault),
                _ => Ok(None),
            },
        };
        self.client.get_or_try_init(ask).await.map(drop)
    }

    /// Whether the user has the rights that [`identify`](Self::identify) and [`end`](Self::end)
    /// need.
    pub(super) async fn may_end(connector: &Connector, ready: &Ready) -> Result<bool, Fault> {
        // No client has this address.
        let nobody = Some(("1".to_owned(), "0.0.0.0:0".to_owned()));
        let session = Self { client: OnceCell::from(nobody), ..Self::new(&connector.dialer().address) };
        let may_kill = session.end(connector, ready).await?;
        ready.session().identify(connector, ready).await?;
        Ok(may_kill && ready.session().client.get().is_some_and(Option::is_some))
    }

    pub(super) fn seed(&self, slot: u16) -> Option<u64> {
        lock(&self.seeds).get(&slot).copied()
    }

    pub(super) fn set_seed(&self, slot: u16, seed: u64) {
        lock(&self.seeds).insert(slot, seed);
    }

    /// Forgets the seeds: another server may have had the counters meanwhile.
    pub(super) fn forget_seeds(&self) {
        lock(&self.seeds).clear();
    }

    /// Makes the server kill this earlier connection, unless that was done before. Returns `false`
    /// if it can't.
    async fn end(&self, connector: &Connector, ready: &Ready) -> Result<bool, Fault> {
        let Some(Some((id, address))) = self.client.get() else { return Ok(false) };
        let kill = async || {
            let mut command = redis::cmd("CLIENT");
            // The numbers begin anew with the server, so the address is compared too. A connection
            // that is gone is no error.
            command.arg("KILL").arg("ID").arg(id).arg("ADDR").arg(address);
            match connector.call(ready, &command).await {
                Ok(_) => Ok(true),
                Err(error) => match Fault::from(error) {
                    fault if fault.error.is_transient() => Err(fault),
                    _ => Ok(false),
                },
            }
        };
        self.ended.get_or_try_init(kill).await.copied()
    }
}

/// Reads number and address in an answer to CLIENT INFO.
fn client(info: &str) -> Option<(String, String)> {
    let value = |name: &str| info.split_whitespace().find_map(|word| word.strip_prefix(name));
    Some((value("id=")?.to_owned(), value("addr=")?.to_owned()))
}

/// The connections over which a request was sent and not answered.
#[derive(Default)]
pub(super) struct SentOver {
    sessions: Mutex<Vec<Arc<Session>>>,
    /// Since when the request is withdrawn without the right to end them.
    since: Mutex<Option<Tick>>,
    /// Whether SET has taken something that has no token yet.
    took: AtomicBool,
}

impl SentOver {
    pub(super) fn of(request: &AcquireRequest) -> &Self {
        request.attachment()
    }

    /// Returns the same if any connection was noted.
    pub(super) fn known(request: &AcquireRequest) -> Option<&Self> {
        request.attached().filter(|sent: &&Self| !sent.is_empty())
    }

    pub(super) fn set_took(&self, took: bool) {
        self.took.store(took, Ordering::Relaxed);
    }

    /// Whether a request that has failed may hold something nevertheless.
    pub(super) fn took(request: &AcquireRequest) -> bool {
        request.attached().is_some_and(|sent: &Self| sent.took.load(Ordering::Relaxed))
    }

    pub(super) fn note(&self, session: &Arc<Session>) {
        let mut sessions = lock(&self.sessions);
        if !sessions.iter().any(|known| Arc::ptr_eq(known, session)) {
            sessions.push(Arc::clone(session));
        }
    }

    pub(super) fn answered(&self, session: &Arc<Session>) {
        lock(&self.sessions).retain(|known| !Arc::ptr_eq(known, session));
    }

    fn is_empty(&self) -> bool {
        lock(&self.sessions).is_empty()
    }

    /// Ends all connections to this server but that of `ready`.
    pub(super) async fn end(&self, connector: &Connector, ready: &Ready) -> Result<(), Fault> {
        let sessions = lock(&self.sessions).clone();
        let now = ready.session();
        let is_earlier = |session: &&Arc<Session>| session.server == now.server && !Arc::ptr_eq(session, now);
        for session in sessions.iter().filter(is_earlier) {
            if session.end(connector, ready).await? {
                self.answered(session);
            }
        }
        Ok(())
    }

    /// Returns whether a withdrawal that has freed everything is settled. One that could not end a
    /// connection counts as settled a lease after the first attempt.
    pub(super) fn withdrawn(&self, lease: Duration, now: Tick) -> Withdrawn {
        let sessions = lock(&self.sessions);
        if sessions.is_empty() {
            return Withdrawn::Settled;
        }
        let since = *lock(&self.since).get_or_insert(now);
        let left = (since + lease).since(now);
        let is_new = sessions.iter().any(|session| session.ended.get().is_none());
        match left.is_zero() {
            true => Withdrawn::Settled,
            // The connection was replaced just now.
            false if is_new => Withdrawn::Pending(left.min(AGAIN)),
            false => Withdrawn::Pending(left),
        }
    }
}

/// Whether a call with this result may still be executed.
pub(super) fn is_open<T>(result: &Result<T, Fault>) -> bool {
    matches!(result, Err(fault) if fault.error.kind() == StoreErrorKind::Unanswered)
}

/// Reads the answer to INCRBY.
pub(super) fn count(value: &Value) -> Option<u64> {
    reply::int(value).and_then(|count| u64::try_from(count).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_known_by_its_number_and_address() {
        let info = "id=7 addr=127.0.0.1:50412 laddr=127.0.0.1:6379 fd=8 name=lock-x db=0\n";
        assert_eq!(client(info), Some(("7".to_owned(), "127.0.0.1:50412".to_owned())));
        assert_eq!(client("id=7"), None);
    }
}
