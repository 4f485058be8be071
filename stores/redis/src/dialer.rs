//! [`Dialer`]: makes connections, to one server or to the primary that sentinels name.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Clock;
use lock_core::store::{StoreError, StoreErrorKind};
use redis::aio::{AsyncPushSender, MultiplexedConnection, SendError};
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ProtocolVersion, PushInfo};

use super::classify::Address;
use super::login::Login;
use super::options::RedisOptions;
use super::sentinel::Discovery;
use super::url::Sentinels;
use crate::trace::TARGET;

/// Maximum number of commands that wait for the socket; further callers wait.
const QUEUE: usize = 1024;

/// Makes connections to one server.
#[derive(Clone)]
pub(super) struct Dialer {
    route: Route,
    pub(super) address: Address,
    login: Login,
    pub(super) connect_timeout: Duration,
    pub(super) clock: Clock,
}

/// How the server is found.
#[derive(Clone)]
enum Route {
    Fixed(Arc<ConnectionInfo>),
    /// Leads to the primary that the sentinels name.
    Named(Arc<Discovery>),
}

impl Dialer {
    /// Returns a dialer for the server at `info`.
    pub(super) fn new(info: &ConnectionInfo, options: &RedisOptions) -> Result<Self, StoreError> {
        let (info, address) = (prepared(info), options.login.address(info));
        // Settings that the client does not accept fail at once.
        Client::open(info.clone()).map_err(|error| address.connect_error(&error))?;
        Ok(Self::by(Route::Fixed(Arc::new(info)), address, options))
    }

    /// Returns a dialer for the primary that `sentinels` name. Their messages are received in the
    /// runtime of `options`.
    pub(super) fn through(sentinels: &Sentinels, options: &RedisOptions) -> Self {
        let discovery = Discovery::new(sentinels, options);
        let address = discovery.address().clone();
        Self::by(Route::Named(discovery), address, options)
    }

    fn by(route: Route, address: Address, options: &RedisOptions) -> Self {
        let RedisOptions { login, connect_timeout, clock, .. } = options.clone();
        Self { route, address, login, connect_timeout, clock }
    }

    /// Returns a client for the same server in the protocol that servers before version 6 know too.
    pub(super) async fn older_protocol(&self) -> Result<Client, StoreError> {
        let Route::Fixed(info) = &self.route else {
            let what = "sentinels are not used with RESP2";
            return Err(self.address.error(StoreErrorKind::Unsupported, what));
        };
        let (info, address) = self.login.prepare(info, false).await?;
        let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
        Client::open(info.set_redis_settings(redis)).map_err(|error| address.connect_error(&error))
    }

    /// Returns the number of replicas, down or not, if sentinels have told it.
    pub(super) fn known_replicas(&self) -> Option<u32> {
        match &self.route {
            Route::Fixed(_) => None,
            Route::Named(discovery) => discovery.replicas(),
        }
    }

    /// Returns the number of the database.
    pub(super) fn database(&self) -> i64 {
        match &self.route {
            Route::Fixed(info) => info.redis_settings().db(),
            Route::Named(discovery) => discovery.template().redis_settings().db(),
        }
    }

    /// Whether sentinels name the server.
    pub(super) fn is_named(&self) -> bool {
        matches!(self.route, Route::Named(_))
    }

    /// Connects to a replica of this server. Returns `None` if that fails.
    pub(super) async fn beside(&self, host: &str, port: u16) -> Option<MultiplexedConnection> {
        let template = match &self.route {
            Route::Fixed(info) => info,
            Route::Named(discovery) => discovery.template(),
        };
        let config = configuration(|_: PushInfo| Ok::<(), SendError>(()));
        let dialed = self.login.connect(&elsewhere(template, host, port), false, &config).await;
        dialed
            .inspect_err(|error| tracing::debug!(target: TARGET, %error, "a replica can't be asked"))
            .ok()
            .map(|dialed| dialed.0)
    }

    /// Makes a new connection on which nothing is executed but the handshake. `pushes` also
    /// receives a `Disconnection` when another server must be used from then on.
    pub(super) async fn dial(
        &self,
        pushes: impl AsyncPushSender,
    ) -> Result<MultiplexedConnection, StoreError> {
        let info = match &self.route {
            Route::Fixed(info) => info,
            // Boxed: large and rare.
            Route::Named(discovery) => return Box::pin(discovery.dial(pushes)).await,
        };
        let config = configuration(pushes);
        let dial = self.login.connect(info, false, &config);
        match tokio::time::timeout(self.connect_timeout, dial).await {
            Ok(dialed) => Ok(dialed?.0),
            Err(_) => Err(self.address.error(
                StoreErrorKind::Unreachable,
                format!("no connection within {:?}", self.connect_timeout),
            )),
        }
    }
}

/// Returns the connection info of another server, with everything else as in `template`.
pub(super) fn elsewhere(template: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let addr = match template.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    template.clone().set_addr(addr)
}

/// Adds RESP3 to `info`, since pushes report lost connections and subscriptions. Adds keep-alive
/// probes unless the user has set some.
pub(super) fn prepared(info: &ConnectionInfo) -> ConnectionInfo {
    let mut tcp = info.tcp_settings().clone().set_nodelay(true);
    if tcp.keepalive().is_none() {
        let probes = TcpKeepalive::new().with_time(Duration::from_secs(15));
        #[cfg(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "windows"))]
        let probes = probes.with_interval(Duration::from_secs(5));
        tcp = tcp.set_keepalive(probes);
    }
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    if tcp.user_timeout().is_none() {
        tcp = tcp.set_user_timeout(Duration::from_secs(30));
    }
    let mut redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    if redis.lib_name().is_none() && !redis.skip_set_lib_name() {
        redis = redis.set_lib_name("lock-runtime", env!("CARGO_PKG_VERSION"));
    }
    info.clone().set_tcp_settings(tcp).set_redis_settings(redis)
}

/// Returns a configuration without time-outs of the client library: the store has its own.
pub(super) fn configuration(pushes: impl AsyncPushSender) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUE)
        .set_push_sender(pushes)
}
