//! [`Login`]: what a connection says when it is made: user, password and its own name.

use lock_core::store::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo};

use super::classify::Address;
use crate::credentials::{Endpoint, Provider};

/// How the connections of one manager log in.
#[derive(Clone, Debug)]
pub struct Login {
    provider: Option<Provider>,
    /// What `CLIENT LIST` calls the connections.
    name: String,
}

impl Login {
    /// Logs in with what `provider` gives, if there is one, on behalf of the manager with this
    /// UUID.
    pub fn new(uuid: &str, provider: Option<Provider>) -> Self {
        Self { provider, name: format!("lock-{uuid}") }
    }

    /// What connections are called.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether credentials are asked for at each connection.
    pub(super) fn changes(&self) -> bool {
        self.provider.is_some()
    }

    /// The address of the server at `info`, for errors.
    pub(super) fn address(&self, info: &ConnectionInfo) -> Address {
        Address::new(info).that_changes(self.changes())
    }

    /// `info` with the credentials of now, and the address of the server, whose errors don't tell
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
        let address = self.address(&info);
        Ok((info, address))
    }

    /// A new connection, and the same address. Those to servers with locks get their name, if the
    /// user may do that.
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
            // A connection that breaks here breaks for its caller, too.
            drop(connection.send_packed_command(&name).await);
        }
        Ok((connection, address))
    }
}
