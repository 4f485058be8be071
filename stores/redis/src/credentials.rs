//! [`Credentials`] that change: the provider is asked for each new connection.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

/// User and password for one connection to a Redis server.
#[derive(Clone)]
pub struct Credentials(Option<(Option<String>, String)>);

impl Credentials {
    /// Returns the password of the default user.
    #[must_use]
    pub fn password(password: impl Into<String>) -> Self {
        Self(Some((None, password.into())))
    }

    /// Returns a user and its password, which may be a token.
    #[must_use]
    pub fn user(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self(Some((Some(user.into()), password.into())))
    }

    /// Returns the credentials in the URL, for servers whose credentials don't change.
    #[must_use]
    pub fn of_url() -> Self {
        Self(None)
    }

    pub(crate) fn parts(&self) -> Option<(Option<&str>, &str)> {
        self.0.as_ref().map(|(user, password)| (user.as_deref(), password.as_str()))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// The server to which a connection is made.
#[derive(Clone, Debug)]
pub struct Endpoint {
    address: String,
    is_sentinel: bool,
}

impl Endpoint {
    pub(crate) fn new(address: String, is_sentinel: bool) -> Self {
        Self { address, is_sentinel }
    }

    /// Returns `host:port`, or the path of a socket.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether the server is a sentinel, which has no locks but knows the primary.
    #[must_use]
    pub fn is_sentinel(&self) -> bool {
        self.is_sentinel
    }
}

type Answer = Result<Credentials, Box<dyn Error + Send + Sync>>;
type Ask = dyn Fn(Endpoint) -> Pin<Box<dyn Future<Output = Answer> + Send>> + Send + Sync;

/// The function that is asked for credentials.
#[derive(Clone)]
pub struct Provider(Arc<Ask>);

impl Provider {
    /// Returns a provider that calls `ask`.
    pub fn new<F, Fut, E>(ask: F) -> Self
    where
        F: Fn(Endpoint) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        Self(Arc::new(move |endpoint| {
            let asked = ask(endpoint);
            Box::pin(async move { asked.await.map_err(Into::into) })
        }))
    }

    pub(crate) async fn ask(&self, endpoint: Endpoint) -> Answer {
        (self.0)(endpoint).await
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").finish_non_exhaustive()
    }
}
