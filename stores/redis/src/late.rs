//! Late copies of requests in the plain layout. [`SentOver`]: the connections over which a request
//! was sent.
//!
//! A server can't refuse a late SET. But it executes the commands of a connection in their order,
//! and none after the connection was killed. So a withdrawal over the same connection comes after
//! all copies of the request, and one over a later connection kills the earlier ones first.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::lock;
use lock_core::store::{AcquireRequest, StoreErrorKind, Withdrawn};

use super::connection::{At, Connector, Ready};
use super::fault::Fault;
use super::layout::Layout;
use super::node::Node;
use super::reply;
use super::session::{Session, client};

/// Time after which a connection that was just replaced is ended.
const AGAIN: Duration = Duration::from_millis(100);

/// The connections over which a request was sent and not answered.
#[derive(Default)]
pub(super) struct SentOver {
    sessions: Mutex<Vec<Arc<Session>>>,
    /// Since when the request is withdrawn and they can't all be ended.
    since: Mutex<Option<Tick>>,
}

impl SentOver {
    pub(super) fn of(request: &AcquireRequest) -> &Self {
        request.attachment()
    }

    /// Returns the same if any connection was noted.
    fn known(request: &AcquireRequest) -> Option<&Self> {
        request.attached().filter(|sent: &&Self| !lock(&sent.sessions).is_empty())
    }

    fn note(&self, session: &Arc<Session>) {
        let mut sessions = lock(&self.sessions);
        if !sessions.iter().any(|known| Arc::ptr_eq(known, session)) {
            sessions.push(Arc::clone(session));
        }
    }

    fn answered(&self, session: &Arc<Session>) {
        lock(&self.sessions).retain(|known| !Arc::ptr_eq(known, session));
    }

    /// Ends all connections to this server but that of `ready`.
    async fn end(&self, connector: &Connector, ready: &Ready) -> Result<(), Fault> {
        let sessions = lock(&self.sessions).clone();
        let now = ready.session();
        let is_earlier = |session: &&Arc<Session>| session.server == now.server && !Arc::ptr_eq(session, now);
        for session in sessions.iter().filter(is_earlier) {
            if kill(session, connector, ready).await? {
                self.answered(session);
            }
        }
        Ok(())
    }

    /// Forgets connections to all servers but these, which have the keys now. A late request has no
    /// effect at another server. It redirects the request, or loses its data when it follows the
    /// new primary.
    pub(super) fn keep(&self, nodes: &[&Arc<Node>]) {
        let is_asked = |session: &Arc<Session>| nodes.iter().any(|node| session.server == node.server());
        lock(&self.sessions).retain(is_asked);
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

/// Asks the server for the identity of the connection, unless that was done before.
async fn identify(connector: &Connector, ready: &Ready) -> Result<(), Fault> {
    let ask = async || {
        let info = connector.call_if_allowed(ready, redis::cmd("CLIENT").arg("INFO")).await?;
        Ok(info.as_ref().and_then(reply::info).and_then(client))
    };
    in_time(connector, ready, ready.session().client.get_or_try_init(ask)).await.map(drop)
}

/// Waits for the answer to a question that several callers may share, for as long as the call has.
async fn in_time<T>(
    connector: &Connector,
    ready: &Ready,
    answer: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let no_time = |_| Err(connector.dialer().address.no_time().into());
    tokio::time::timeout(ready.left(), answer).await.unwrap_or_else(no_time)
}

/// Makes the server kill an earlier connection, unless that was done before. Returns `false` if it
/// can't.
async fn kill(session: &Session, connector: &Connector, ready: &Ready) -> Result<bool, Fault> {
    let kill = async || {
        let Some(Some((id, address))) = session.client.get() else { return Ok(false) };
        let mut command = redis::cmd("CLIENT");
        // The numbers begin anew with the server, so the address is compared too. A connection that
        // is gone is no error.
        command.arg("KILL").arg("ID").arg(id).arg("ADDR").arg(address);
        Ok(connector.call_if_allowed(ready, &command).await?.is_some())
    };
    in_time(connector, ready, session.ended.get_or_try_init(kill)).await.copied()
}

/// Whether the user has the rights to ask for the identity of a connection and to kill another one.
pub(super) async fn may_kill(connector: &Connector, ready: &Ready) -> Result<bool, Fault> {
    let nobody = Session::new(&connector.dialer().address);
    // No client has this address.
    drop(nobody.client.set(Some(("1".to_owned(), "0.0.0.0:0".to_owned()))));
    let may_kill = kill(&nobody, connector, ready).await?;
    identify(connector, ready).await?;
    Ok(may_kill && ready.session().client.get().is_some_and(Option::is_some))
}

impl Node {
    /// Prepares a connection to be used for these requests. Returns it with the present time.
    pub(super) async fn prepared<'a>(
        &self,
        requests: impl Iterator<Item = &'a AcquireRequest>,
        connector: &Connector,
        mut ready: Ready,
    ) -> Result<Ready, Fault> {
        if self.options.layout != Layout::Plain {
            return Ok(ready);
        }
        if !ready.session().client.initialized() {
            identify(connector, &ready).await?;
            ready = connector.later(&ready);
        }
        for request in requests {
            // A copy on an earlier connection could take the lock after this one was released.
            if let Some(sent) = SentOver::known(request) {
                sent.end(connector, &ready).await?;
                ready = connector.later(&ready);
            }
        }
        Ok(ready)
    }

    /// Makes a call that may take something for these requests, over a prepared connection. The
    /// requests are noted as sent over it until the call is answered. A withdrawal may come while
    /// this still waits.
    pub(super) async fn noted<'a, T>(
        &self,
        requests: impl Iterator<Item = &'a AcquireRequest> + Clone,
        ready: &Ready,
        call: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        if self.options.layout != Layout::Plain {
            return call.await;
        }
        requests.clone().for_each(|request| SentOver::of(request).note(ready.session()));
        let result = call.await;
        if !matches!(&result, Err(fault) if fault.error.kind() == StoreErrorKind::Unanswered) {
            requests.for_each(|request| SentOver::of(request).answered(ready.session()));
        }
        result
    }

    /// Returns how sessions name this server.
    fn server(&self) -> String {
        format!("{:?}", self.address)
    }

    /// Ends the earlier connections over which the request was sent. Returns the connection that
    /// is in use.
    pub(super) async fn end_earlier(&self, request: &AcquireRequest, at: At) -> Result<Option<Ready>, Fault> {
        let Some(sent) = SentOver::known(request) else { return Ok(None) };
        let ready = self.connector.ready(at).await?;
        sent.end(&self.connector, &ready).await?;
        Ok(Some(ready))
    }

    /// Notes that the request was withdrawn over this connection, if it is still in use: whatever
    /// was sent over it before was executed before.
    pub(super) fn withdrawn_over(&self, request: &AcquireRequest, ready: Option<&Ready>) {
        let session = ready.map(Ready::session);
        if let (Some(session), Some(now)) = (session, self.connector.session())
            && Arc::ptr_eq(session, &now)
        {
            SentOver::of(request).answered(session);
        }
    }
}
