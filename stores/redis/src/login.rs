//! [`Login`]: what each new connection sends first: user, password and the connection's name.

use lock_core::store::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo};

use super::classify::Address;
use crate::credentials::{Endpoint, Provider};

/// How the connections of one manager log in.
#[derive(Clone, Debug)]
pub struct Login {
    provider: Option<Provider>,
    /// The name of the connections in `CLIENT LIST`.
    name: String,
}

impl Login {
    /// Returns the login of the manager with this UUID. It uses the credentials of `provider`, if
    /// there is one.
    pub fn new(uuid: &str, provider: Option<Provider>) -> Self {
        Self { provider, name: format!("lock-{uuid}") }
    }

    /// Returns the name of the connections.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether each connection asks for credentials.
    pub(super) fn changes(&self) -> bool {
        self.provider.is_some()
    }

    /// Returns the address of the server at `info`, for errors.
    pub(super) fn address(&self, info: &ConnectionInfo) -> Address {
        Address::new(info).that_changes(self.changes())
    }

    /// Returns `info` with the present credentials, and the server's address, whose errors hide
    /// them.
    pub(super) async fn prepare(
        &self,
        info: &ConnectionInfo,
        is_sentinel: bool,
    ) -> Result<(ConnectionInfo, Address), StoreError> {
        let mut info = info.clone();
        if let Some(provider) = &self.provider {
            let endpoint = Endpoint::new(info.addr().to_string(), is_sentinel);
            let credentials = provider.ask(endpoint).await.map_err(|error| {
                let what = format!("no credentials, their provider failed: {error}");
                self.address(&info).error(StoreErrorKind::Unreachable, what)
            })?;
            if let Some((user, password)) = credentials.parts() {
                let settings = info.redis_settings().clone().set_password(password);
                let settings = settings.set_username(user.unwrap_or("default"));
                info = info.set_redis_settings(settings);
            }
        }
        // The client leaves it to rustls to find a provider.
        #[cfg(feature = "tls-rustls")]
        if matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            let _ = lock_core::internal::tls::provider();
        }
        let address = self.address(&info);
        Ok((info, address))
    }

    /// Returns a new connection and the server's address. Connections to servers with locks get
    /// their name if the user may set it.
    pub(super) async fn connect(
        &self,
        info: &ConnectionInfo,
        is_sentinel: bool,
        config: &AsyncConnectionConfig,
    ) -> Result<(MultiplexedConnection, Address), StoreError> {
        let (info, address) = self.prepare(info, is_sentinel).await?;
        let connect = async {
            let client = Client::open(info)?;
            client.get_multiplexed_async_connection_with_config(config).await
        };
        let mut connection = connect.await.map_err(|error| address.connect_error(&error))?;
        if !is_sentinel {
            let mut name = redis::cmd("CLIENT");
            name.arg("SETNAME").arg(&self.name);
            // If the connection breaks here, its caller will notice.
            drop(connection.send_packed_command(&name).await);
        }
        Ok((connection, address))
    }
}
