//! [`ask`]: asks one sentinel about a primary.

use std::fmt;
use std::time::Duration;

use lock_core::store::{StoreError, StoreErrorKind};
use redis::aio::{AsyncPushSender, MultiplexedConnection, SendError};
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, PushInfo, ServerError, Value};

use super::super::classify::Address;
use super::super::dialer::elsewhere;
use super::super::login::Login;
use super::super::reply::{self, entry};

/// The address of a server, as the sentinels name it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Place {
    /// Returns `None` for a socket in the file system.
    pub(super) fn of(info: &ConnectionInfo) -> Option<Self> {
        match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some(Self { host: host.clone(), port: *port })
            }
            _ => None,
        }
    }

    /// Returns the connection info for this place, with everything else as in `template`.
    pub(super) fn reached_like(&self, template: &ConnectionInfo) -> ConnectionInfo {
        elsewhere(template, &self.host, self.port)
    }

    fn parse(host: &Value, port: &Value) -> Option<Self> {
        Some(Self { host: reply::text(host)?.to_owned(), port: reply::text(port)?.parse().ok()? })
    }

    fn of_entry(value: &Value) -> Option<Self> {
        Some(Self { host: entry(value, "ip")?, port: entry(value, "port")?.parse().ok()? })
    }
}

/// A sentinel's view of the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) place: Place,
    /// Number of the failover: the higher, the newer. 0 if the user may not ask the sentinel for
    /// it.
    pub(super) epoch: u64,
    /// Number of replicas that the sentinel knows, down or not.
    pub(super) replicas: Option<u32>,
    /// The sentinel that was asked and those that it knows.
    pub(super) sentinels: Vec<Place>,
}

/// Outcome of asking a sentinel.
pub(super) enum Answer {
    View(View),
    /// The sentinel knows only these other primaries.
    Unknown(Vec<String>),
    Failed(StoreError),
}

pub(super) async fn ask(login: &Login, info: &ConnectionInfo, master: &str, timeout: Duration) -> Answer {
    let asked = async {
        let (connection, address) = connect(login, info, |_: PushInfo| Ok::<(), SendError>(())).await?;
        let mut answer = view(&connection, &address, master).await?;
        if let Answer::View(view) = &mut answer {
            view.sentinels.extend(Place::of(info));
        }
        Ok(answer)
    };
    let failed =
        || login.address(info).error(StoreErrorKind::Unreachable, format!("no answer within {timeout:?}"));
    match tokio::time::timeout(timeout, asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => Answer::Failed(error),
        Err(_) => Answer::Failed(failed()),
    }
}

/// Returns a connection to a sentinel, and the sentinel's address.
pub(super) async fn connect(
    login: &Login,
    info: &ConnectionInfo,
    pushes: impl AsyncPushSender,
) -> Result<(MultiplexedConnection, Address), StoreError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_push_sender(pushes);
    login.connect(info, true, &config).await.map_err(refused)
}

/// Adds to the error whose password it is about.
fn refused(error: StoreError) -> StoreError {
    if error.kind() != StoreErrorKind::Denied {
        return error;
    }
    let what = "this is a sentinel: give its password as sentinel_password and its user as sentinel_user at the end \
                of the URL";
    StoreError::new(error.kind(), format!("{error} ({what})"))
}

fn is_unknown(error: &ServerError) -> bool {
    error.details().is_some_and(|details| details.contains("unknown command"))
}

/// Asks the sentinel of `connection`.
pub(super) async fn view(
    connection: &MultiplexedConnection,
    address: &Address,
    master: &str,
) -> Result<Answer, StoreError> {
    let sentinel = |what: &str, master: Option<&str>| {
        let mut command = redis::cmd("SENTINEL");
        command.arg(what).arg(master);
        let mut connection = connection.clone();
        async move {
            match connection.send_packed_command(&command).await {
                Ok(Value::ServerError(error)) if is_unknown(&error) => {
                    let what = "this is not a sentinel: it does not know the command SENTINEL. The usual port of \
                                sentinels is 26379";
                    Err(address.error(StoreErrorKind::Unsupported, what))
                }
                Ok(Value::ServerError(error)) => Err(refused(address.refused(&error))),
                Ok(value) => Ok(value),
                Err(error) => Err(address.connect_error(&error)),
            }
        }
    };
    let (place, details, others) = tokio::join!(
        // During a failover this command is the first to name the new primary.
        sentinel("GET-MASTER-ADDR-BY-NAME", Some(master)),
        sentinel("MASTER", Some(master)),
        sentinel("SENTINELS", Some(master)),
    );
    let place = match &place? {
        Value::Nil => {
            let masters = sentinel("MASTERS", None).await.unwrap_or(Value::Nil);
            let masters = reply::array(&masters).unwrap_or_default();
            return Ok(Answer::Unknown(masters.iter().filter_map(|master| entry(master, "name")).collect()));
        }
        value => match reply::array(value) {
            Some([host, port]) => Place::parse(host, port),
            _ => None,
        },
    };
    let Some(place) = place else {
        return Err(
            address.error(StoreErrorKind::Refused, "the sentinel gives no valid address of the primary")
        );
    };
    // The user may have the right to no more than the first command.
    let number = |name| entry(details.as_ref().ok()?, name)?.parse::<u64>().ok();
    let others = others.as_ref().ok().and_then(reply::array).unwrap_or_default();
    Ok(Answer::View(View {
        place,
        epoch: number("config-epoch").unwrap_or(0),
        replicas: number("num-slaves").and_then(|count| u32::try_from(count).ok()),
        sentinels: others.iter().filter_map(Place::of_entry).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;

    #[test]
    fn what_they_name_is_reached_as_the_url_says() {
        let place = Place { host: "redis-2.example".to_owned(), port: 6380 };
        let plain = "redis://ann:hunter2@10.0.0.1:1/3".into_connection_info().unwrap();
        let reached = place.reached_like(&plain);
        assert_eq!(*reached.addr(), ConnectionAddr::Tcp("redis-2.example".to_owned(), 6380));
        assert_eq!(reached.redis_settings().password(), Some("hunter2"));
        assert_eq!(reached.redis_settings().db(), 3);

        let addr =
            ConnectionAddr::TcpTls { host: "10.0.0.1".to_owned(), port: 1, insecure: true, tls_params: None };
        let reached = place.reached_like(&plain.set_addr(addr));
        assert!(
            matches!(reached.addr(), ConnectionAddr::TcpTls { host, port: 6380, insecure: true, .. } if *host == place.host)
        );
    }
}
