//! [`Client`]: the connections to the servers, and calls of etcd's services.

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::{StoreError, StoreErrorKind};
use prost::Message;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::messages::{AuthenticateRequest, AuthenticateResponse, RangeRequest, RangeResponse};

/// Time for a connection.
const CONNECT: Duration = Duration::from_secs(1);

/// How often a silent connection is checked. More than the five seconds of etcd's option
/// `grpc-keepalive-min-time`: it closes connections that are checked more often.
const PING: Duration = Duration::from_secs(6);

/// Maximum time for the answer to a check.
const ANSWER: Duration = Duration::from_secs(2);

/// A server that has not answered for this long is not asked next, if there is another one.
const PATIENCE: Duration = Duration::from_millis(500);

/// Maximum size of an answer, such as the queue of a lock with many waiters.
const MOST_BYTES: usize = 64 << 20;

/// A sign of a login.
type Token = MetadataValue<Ascii>;

/// A unary method, by its path.
pub(crate) type Method = &'static str;

pub(crate) const RANGE: Method = "/etcdserverpb.KV/Range";
pub(crate) const TXN: Method = "/etcdserverpb.KV/Txn";
pub(crate) const LEASE_GRANT: Method = "/etcdserverpb.Lease/LeaseGrant";
pub(crate) const LEASE_TIME_TO_LIVE: Method = "/etcdserverpb.Lease/LeaseTimeToLive";
pub(crate) const LEASE_KEEP_ALIVE: Method = "/etcdserverpb.Lease/LeaseKeepAlive";
pub(crate) const WATCH: Method = "/etcdserverpb.Watch/Watch";
pub(crate) const STATUS: Method = "/etcdserverpb.Maintenance/Status";
const AUTHENTICATE: Method = "/etcdserverpb.Auth/Authenticate";

/// User and password.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The servers of a cluster. Calls go to one of them, and to the next one when it fails.
pub(crate) struct Client {
    servers: Vec<Endpoint>,
    channels: Mutex<Vec<Option<Channel>>>,
    current: AtomicUsize,
    login: Option<Login>,
    token: Mutex<Option<Token>>,
    /// One login for all calls that need a token.
    logging_in: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<_> = self.servers.iter().map(|server| server.uri().to_string()).collect();
        f.debug_struct("Client").field("servers", &servers).finish_non_exhaustive()
    }
}

/// Asks the next server, unless the call ends well or soon.
struct Attempt<'a> {
    client: &'a Client,
    server: usize,
    began: Instant,
    is_fine: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.is_fine && self.began.elapsed() > PATIENCE {
            self.client.pass_over(self.server);
        }
    }
}

impl Client {
    pub(crate) fn new(servers: Vec<Endpoint>, login: Option<Login>) -> Self {
        let servers: Vec<_> = servers
            .into_iter()
            .map(|server| {
                let server = server.connect_timeout(CONNECT).tcp_nodelay(true);
                server.http2_keep_alive_interval(PING).keep_alive_timeout(ANSWER)
            })
            .collect();
        let channels = Mutex::new(servers.iter().map(|_| None).collect());
        let (current, token, logging_in) =
            (AtomicUsize::new(0), Mutex::default(), tokio::sync::Mutex::default());
        Self { servers, channels, current, login, token, logging_in }
    }

    /// Lets the next calls go to another server than this one.
    pub(crate) fn pass_over(&self, server: usize) {
        let next = (server + 1) % self.servers.len().max(1);
        let _ = self.current.compare_exchange(server, next, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns the connection to use, and the number of its server. Connects on first use.
    fn channel(&self) -> Result<(usize, Channel), StoreError> {
        let at = self.current.load(Ordering::Acquire);
        Ok((at, self.channel_of(at)?))
    }

    fn channel_of(&self, at: usize) -> Result<Channel, StoreError> {
        let none = || StoreError::new(StoreErrorKind::Refused, "no server of etcd is known");
        let server = self.servers.get(at).ok_or_else(none)?;
        let mut channels = lock(&self.channels);
        let channel = channels.get_mut(at).ok_or_else(none)?;
        Ok(channel.get_or_insert_with(|| server.connect_lazy()).clone())
    }

    /// Whether another server can be asked in place of one that fails.
    pub(crate) fn has_several(&self) -> bool {
        self.servers.len() > 1
    }

    /// Whether this server answers soon with what the cluster has now. One that is cut off from the
    /// others, or whose disk stands still, may answer other questions.
    pub(crate) async fn is_current(&self, server: usize) -> bool {
        // Any key will do, also one that may not be read.
        let read = RangeRequest { key: vec![0], ..RangeRequest::default() };
        // A login may fail elsewhere.
        let (Ok((read, _)), Ok(channel)) = (self.request(read).await, self.channel_of(server)) else {
            return true;
        };
        match timeout(ANSWER, unary::<_, RangeResponse>(channel, RANGE, read)).await {
            Ok(Ok(_)) => true,
            // Others would have more to do.
            Ok(Err(status)) if status.message().contains(TOO_MANY) => true,
            Ok(Err(status)) => !error_of(&status, self.servers.get(server)).is_transient(),
            Err(_) => false,
        }
    }

    /// Makes a call. One whose outcome is unknown fails as [`StoreErrorKind::Unanswered`].
    pub(crate) async fn call<Q, R>(&self, method: Method, request: &Q) -> Result<R, StoreError>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let mut left = self.servers.len();
        let mut may_login = true;
        loop {
            let (server, channel) = self.channel()?;
            let mut attempt = Attempt { client: self, server, began: Instant::now(), is_fine: false };
            let error = match self.request(request.clone()).await {
                Ok((sent, token)) => match unary(channel, method, sent).await {
                    Ok(answer) => {
                        attempt.is_fine = true;
                        return Ok(answer);
                    }
                    Err(status) if is_stale_token(&status) && token.is_some() && may_login => {
                        may_login = false;
                        self.drop_token(token.as_ref());
                        continue;
                    }
                    Err(status) => error_of(&status, self.servers.get(server)),
                },
                Err(error) => error,
            };
            if error.is_transient() {
                self.pass_over(server);
            }
            left = left.saturating_sub(1);
            // Nothing was executed: another server may be asked.
            if left == 0 || !matches!(error.kind(), StoreErrorKind::Unreachable | StoreErrorKind::NotReady) {
                return Err(error);
            }
        }
    }

    /// Makes a call with streams in both directions, and returns the number of its server.
    pub(crate) async fn stream<Q, R>(
        &self,
        method: Method,
        requests: impl tokio_stream::Stream<Item = Q> + Send + 'static,
    ) -> Result<(usize, Streaming<R>), StoreError>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let (server, channel) = self.channel()?;
        let mut attempt = Attempt { client: self, server, began: Instant::now(), is_fine: false };
        let (request, token) = self.request(requests).await?;
        let mut grpc = Grpc::new(channel).max_decoding_message_size(MOST_BYTES);
        let answer = async {
            grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
            grpc.streaming(request, PathAndQuery::from_static(method), codec::<Q, R>()).await
        };
        match answer.await {
            Ok(answer) => {
                attempt.is_fine = true;
                Ok((server, answer.into_inner()))
            }
            Err(status) => Err(self.stream_failed(server, &status, token.as_ref())),
        }
    }

    /// Reads an error of a stream. The next one goes to another server, or has another token: it
    /// can be opened at once if the error is [`StoreErrorKind::NotReady`].
    pub(crate) fn stream_failed(&self, server: usize, status: &Status, token: Option<&Token>) -> StoreError {
        let error = error_of(status, self.servers.get(server));
        if self.login.is_some() && is_stale_token(status) {
            match token {
                Some(token) => self.drop_token(Some(token)),
                None => self.forget_token(),
            }
            return StoreError::new(StoreErrorKind::NotReady, error.to_string());
        }
        if error.is_transient() {
            self.pass_over(server);
        }
        error
    }

    /// Adds what every request says: who asks, and that only a server with a leader may answer.
    async fn request<T>(&self, message: T) -> Result<(Request<T>, Option<Token>), StoreError> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let Some(login) = &self.login else { return Ok((request, None)) };
        let known = lock(&self.token).clone();
        let token = match known {
            Some(token) => token,
            None => self.log_in(login).await?,
        };
        request.metadata_mut().insert("token", token.clone());
        Ok((request, Some(token)))
    }

    /// Makes the next call log in anew, unless another one has done so.
    fn drop_token(&self, stale: Option<&Token>) {
        let mut token = lock(&self.token);
        if token.as_ref() == stale {
            *token = None;
        }
    }

    /// Makes the next call log in anew.
    pub(crate) fn forget_token(&self) {
        *lock(&self.token) = None;
    }

    async fn log_in(&self, login: &Login) -> Result<Token, StoreError> {
        let _only = self.logging_in.lock().await;
        let known = lock(&self.token).clone();
        if let Some(token) = known {
            return Ok(token);
        }
        let (server, channel) = self.channel()?;
        let Login { user, password } = login.clone();
        let request = Request::new(AuthenticateRequest { name: user, password });
        let answer: Result<AuthenticateResponse, Status> = unary(channel, AUTHENTICATE, request).await;
        let answer = answer.map_err(|status| {
            let error = error_of(&status, self.servers.get(server));
            if error.is_transient() {
                self.pass_over(server);
            }
            match error.kind() {
                // Nothing was changed.
                StoreErrorKind::Unanswered => StoreError::new(StoreErrorKind::Unreachable, error.to_string()),
                _ => error,
            }
        })?;
        let refused =
            |_| StoreError::new(StoreErrorKind::Refused, "etcd has answered with a token that is no text");
        let token = MetadataValue::try_from(answer.token).map_err(refused)?;
        *lock(&self.token) = Some(token.clone());
        Ok(token)
    }
}

fn codec<Q: Message + 'static, R: Message + Default + 'static>() -> ProstCodec<Q, R> {
    ProstCodec::default()
}

async fn unary<Q, R>(channel: Channel, method: Method, request: Request<Q>) -> Result<R, Status>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel).max_decoding_message_size(MOST_BYTES);
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    let answer = grpc.unary(request, PathAndQuery::from_static(method), codec::<Q, R>()).await?;
    Ok(answer.into_inner())
}

/// Texts of etcd about a token that is too old.
const STALE: [&str; 2] = ["invalid auth token", "revision of auth store is old"];

fn is_stale_token(status: &Status) -> bool {
    status.code() == Code::Unauthenticated || STALE.iter().any(|part| status.message().contains(part))
}

/// Whether the error says that the lease has ended.
pub(crate) fn is_lease_gone(error: &StoreError) -> bool {
    error.to_string().contains("requested lease not found")
}

/// Texts of etcd that say that nothing was executed, and that another attempt may succeed.
const NOT_READY: [&str; 4] = ["no leader", "not leader", TOO_MANY, "server is not ready"];

const TOO_MANY: &str = "too many requests";

/// Reads an error of a call.
pub(crate) fn error_of(status: &Status, server: Option<&Endpoint>) -> StoreError {
    let text = status.message();
    let source = sources(status).last().map(ToString::to_string);
    let source = source.filter(|source| !text.contains(source.as_str()));
    let more = source.map(|source| format!(": {source}")).unwrap_or_default();
    let text = format!("{text}{more}");
    let says = |part: &str| text.contains(part);
    let is_client_refused = says("received fatal alert") && (says("Certificate") || says("UnknownCA"));
    let kind = match status.code() {
        _ if is_client_refused => StoreErrorKind::Denied,
        _ if is_unconnected(status) => StoreErrorKind::Unreachable,
        _ if NOT_READY.iter().any(|part| says(part)) => StoreErrorKind::NotReady,
        _ if says("database space exceeded") => StoreErrorKind::Full,
        Code::Unauthenticated | Code::PermissionDenied => StoreErrorKind::Denied,
        _ if says("authentication failed") || says("user name is empty") => StoreErrorKind::Denied,
        Code::Unimplemented => StoreErrorKind::Unsupported,
        Code::InvalidArgument | Code::FailedPrecondition | Code::NotFound | Code::OutOfRange => {
            StoreErrorKind::Refused
        }
        // The connection has ended, or the server has not heard of a majority in time.
        _ => StoreErrorKind::Unanswered,
    };
    let at = server.map(|server| server.uri().to_string()).unwrap_or_default();
    let advice = if is_client_refused {
        "; the server wants another certificate from clients: see the options `cert` and `key` of the address"
    } else if says("UnknownIssuer") {
        "; name a file with the server's certificate authority in the option `ca` of the address"
    } else if says("user name is empty") {
        "; name a user in the address: `etcd://user:password@…`"
    } else {
        ""
    };
    StoreError::new(kind, format!("etcd at {at}: {text}{advice}"))
}

/// Whether there was no connection, so that nothing was sent.
fn is_unconnected(status: &Status) -> bool {
    sources(status).any(<dyn Error>::is::<tonic::ConnectError>)
}

fn sources(status: &Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    let mut next = status.source();
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}
