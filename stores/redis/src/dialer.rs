//! [`Dialer`]: how connections are made, to one server or to whichever the sentinels name.

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

/// Commands that may wait for the socket; past it callers wait.
const QUEUE: usize = 1024;

/// How connections are made.
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
    /// Whichever server the sentinels name.
    Named(Arc<Discovery>),
}

impl Dialer {
    /// To the server at `info`.
    pub(super) fn new(info: &ConnectionInfo, options: &RedisOptions) -> Result<Self, StoreError> {
        let (info, address) = (prepared(info), options.login.address(info));
        // What the client does not take is said at once.
        Client::open(info.clone()).map_err(|error| address.connect_error(&error))?;
        Ok(Self::by(Route::Fixed(Arc::new(info)), address, options))
    }

    /// To the primary that `sentinels` name. They are listened to in the runtime of `options`.
    pub(super) fn through(sentinels: &Sentinels, options: &RedisOptions) -> Self {
        let discovery = Discovery::new(sentinels, options);
        let address = discovery.address().clone();
        Self::by(Route::Named(discovery), address, options)
    }

    fn by(route: Route, address: Address, options: &RedisOptions) -> Self {
        let RedisOptions { login, connect_timeout, clock, .. } = options.clone();
        Self { route, address, login, connect_timeout, clock }
    }

    /// The same server, spoken to in the protocol that servers before version 6 know too.
    pub(super) async fn older_protocol(&self) -> Result<Client, StoreError> {
        let Route::Fixed(info) = &self.route else {
            let what = "sentinels are not asked in the older protocol";
            return Err(self.address.error(StoreErrorKind::Unsupported, what));
        };
        let (info, address) = self.login.prepare(info, false).await?;
        let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
        Client::open(info.set_redis_settings(redis)).map_err(|error| address.connect_error(&error))
    }

    /// How many replicas the server has, those that are down included, if sentinels have said that.
    pub(super) fn known_replicas(&self) -> Option<u32> {
        match &self.route {
            Route::Fixed(_) => None,
            Route::Named(discovery) => discovery.replicas(),
        }
    }

    /// Whether sentinels say where the server is.
    pub(super) fn is_named(&self) -> bool {
        matches!(self.route, Route::Named(_))
    }

    /// Connects to a replica of this server. `None` if that fails.
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

    /// A new connection; nothing is executed on it but the handshake. `pushes` also gets a
    /// `Disconnection` when another server has to be used from then on.
    pub(super) async fn dial(
        &self,
        pushes: impl AsyncPushSender,
    ) -> Result<MultiplexedConnection, StoreError> {
        let info = match &self.route {
            Route::Fixed(info) => info,
            // Boxed: it is large, and rare.
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

/// How to connect to another server, with everything else as in `template`.
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

/// `info` as the user made it, with RESP3 (pushes tell about lost connections and subscriptions)
/// and with keep-alive probes, unless the user has set some.
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

/// Time-outs are ours.
pub(super) fn configuration(pushes: impl AsyncPushSender) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUE)
        .set_push_sender(pushes)
}
