//! Whether a server can keep locks: version, role, loading, eviction.

use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::kit::ServerClock;
use lock_core::store::{StoreError, StoreErrorKind};
use redis::Value;

use super::connection::{At, CallError, Connector, Ready};
use super::dialer::Dialer;
use super::fault::Fault;
use super::join::join;
use super::reply::{self, entry, field};
use crate::trace::TARGET;

/// Oldest version that works: the first with HRANDFIELD.
const OLDEST: (u64, u64) = (6, 2);

/// Difference between the clocks of two servers that is worth a warning.
const CLOCKS_APART: Duration = Duration::from_secs(1);

/// Role of the server in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The only server.
    Alone,
    /// One server of a cluster.
    Cluster,
}

/// Connects and looks at the server; resolves within about `timeout`.
pub(super) async fn check(
    connector: &Connector,
    mode: Mode,
    strict: bool,
    timeout: Duration,
) -> Result<(), StoreError> {
    let deadline = connector.dialer().clock.now() + timeout;
    let ready = match connector.ready(At::once(timeout)).await {
        Ok(ready) => ready,
        Err(error) if error.kind() == StoreErrorKind::Unsupported => {
            return Err(name_old_server(connector, deadline).await.unwrap_or(error));
        }
        Err(error) => return Err(error),
    };
    let address = &connector.dialer().address;

    let info = match call(connector, &ready, &["INFO"]).await {
        Ok(value) => reply::info(&value).unwrap_or_default().to_owned(),
        Err(error) if is_final(&error) => return Err(error),
        Err(error) => {
            tracing::warn!(target: TARGET, %error, "INFO is not allowed, so the server can be checked only in part");
            String::new()
        }
    };
    let hello = match call(connector, &ready, &["HELLO"]).await {
        Ok(value) => value,
        Err(error) if is_final(&error) => return Err(error),
        Err(_) => Value::Nil,
    };

    let version = field(&info, "redis_version").map(str::to_owned).or_else(|| entry(&hello, "version"));
    if let Some(version) = version {
        supported(&version).map_err(|what| address.error(StoreErrorKind::Unsupported, what))?;
    }
    if field(&info, "loading").is_some_and(|loading| loading != "0") {
        return Err(
            address.error(StoreErrorKind::NotReady, "LOADING: the server is reading its data from disk")
        );
    }
    let is_cluster = field(&info, "redis_mode").map(str::to_owned).or_else(|| entry(&hello, "mode"));
    if mode == Mode::Alone && is_cluster.is_some_and(|mode| mode == "cluster") {
        let what = "the server is a node of a Redis Cluster; write redis+cluster://host:port, or rediss+cluster:// \
                    with TLS";
        return Err(address.error(StoreErrorKind::Unsupported, what));
    }
    let role = field(&info, "role").map(str::to_owned).or_else(|| entry(&hello, "role"));
    if let Some(role) = role.filter(|role| role != "master") {
        let what = format!("the server's role is {role}; locks need the primary: connect to it");
        return Err(address.error(StoreErrorKind::ReadOnly, what));
    }

    let policy = match field(&info, "maxmemory_policy") {
        Some(policy) => Some(policy.to_owned()),
        None => configured_policy(connector, &ready).await?,
    };
    match policy {
        Some(policy) if policy != "noeviction" => {
            let what = format!(
                "maxmemory-policy is {policy}: the server may evict locks when memory is short; set noeviction"
            );
            if strict {
                return Err(address.error(StoreErrorKind::Unsupported, what));
            }
            tracing::warn!(target: TARGET, store = ?address, "{what}");
        }
        Some(_) => {}
        None => tracing::warn!(
            target: TARGET,
            store = ?address,
            "maxmemory-policy can't be read; it must be noeviction, or the server may evict locks"
        ),
    }

    // The scripts need TIME.
    let sent = connector.dialer().clock.now();
    let time = call(connector, &ready, &["TIME"]).await?;
    // Sentinels and clusters announce addresses, so their replicas are known too. Behind a fixed
    // address replicas may be unreachable.
    if let Some(time) = reply::time(&time).filter(|_| mode == Mode::Cluster || connector.dialer().is_named())
    {
        let clock = ServerClock::default();
        clock.observe(time, sent);
        let took = connector.dialer().clock.now().since(sent);
        let dialer = connector.dialer().clone();
        // Nobody waits for replicas that do not answer.
        drop(connector.runtime().spawn(async move {
            for what in clocks_apart(&dialer, &clock, took, &info, timeout).await {
                tracing::warn!(target: TARGET, store = ?dialer.address, "{what}");
            }
        }));
    }
    Ok(())
}

/// Describes the replicas in `info` whose clocks differ from that of `primary`. The primary's clock
/// was read in a call that took `took`. Replicas that do not answer within `timeout` are left out:
/// they may be unreachable from here.
///
/// Redis stores the time at which a key expires. A replica that is promoted compares that time with
/// its own clock.
pub(super) async fn clocks_apart(
    dialer: &Dialer,
    primary: &ServerClock,
    took: Duration,
    info: &str,
    timeout: Duration,
) -> Vec<String> {
    let look = async |(host, port): (&str, u16)| {
        let mut connection = dialer.beside(host, port).await?;
        let asked = dialer.clock.now();
        let answer = connection.send_packed_command(&redis::cmd("TIME")).await.ok();
        let now = dialer.clock.now();
        let here = primary.estimate(now)?.as_micros();
        let there = answer.as_ref().and_then(reply::time)?.as_micros();
        let apart = Duration::from_micros(here.abs_diff(there)).saturating_sub(took + now.since(asked));
        let (how, harm) = if there < here {
            ("behind", "locks of dead holders stay taken longer by that time")
        } else {
            ("ahead of", "leases end earlier by that time, even those of live holders")
        };
        (apart > CLOCKS_APART).then(|| {
            format!(
                "the clock of the replica at {host}:{port} is {apart:.1?} {how} the primary's: after a failover to \
                 it, {harm}. Keep the servers' clocks in sync, for example with NTP"
            )
        })
    };
    let looks = replicas(info).map(|replica| tokio::time::timeout(timeout, look(replica)));
    join(looks).await.into_iter().filter_map(|look| look.ok().flatten()).collect()
}

/// Returns the replicas that a primary's INFO names, in lines such as
/// `slave0:ip=127.0.0.1,port=6380,state=online,...`.
fn replicas(info: &str) -> impl Iterator<Item = (&str, u16)> {
    info.lines().filter_map(|line| {
        let (name, fields) = line.trim().split_once(':')?;
        name.strip_prefix("slave")?.parse::<u32>().ok()?;
        let value = |name| {
            fields
                .split(',')
                .find_map(|field| field.split_once('=').filter(|field| field.0 == name))
                .map(|field| field.1)
        };
        Some((value("ip")?, value("port")?.parse().ok()?))
    })
}

async fn call(connector: &Connector, ready: &Ready, words: &[&str]) -> Result<Value, StoreError> {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(*word);
    }
    connector
        .call(&connector.later(ready), &command)
        .await
        .map_err(|error: CallError| Fault::from(error).error)
}

/// Whether `error` means that the server cannot be used, not only that this question is not
/// allowed.
fn is_final(error: &StoreError) -> bool {
    !matches!(error.kind(), StoreErrorKind::Denied | StoreErrorKind::Refused | StoreErrorKind::Unsupported)
        || error.to_string().contains("NOAUTH")
}

async fn configured_policy(connector: &Connector, ready: &Ready) -> Result<Option<String>, StoreError> {
    match call(connector, ready, &["CONFIG", "GET", "maxmemory-policy"]).await {
        Ok(value) => Ok(entry(&value, "maxmemory-policy")),
        Err(error) if is_final(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Names the version of a server that does not know HELLO; it is asked in the older protocol.
async fn name_old_server(connector: &Connector, deadline: Tick) -> Option<StoreError> {
    let dialer = connector.dialer();
    let ask = async {
        let client = dialer.older_protocol().await.ok()?;
        let config =
            redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.ok()?;
        let value = connection.send_packed_command(redis::cmd("INFO").arg("server")).await.ok()?;
        let version = field(reply::info(&value)?, "redis_version")?.to_owned();
        let what = supported(&version).err()?;
        Some(dialer.address.error(StoreErrorKind::Unsupported, what))
    };
    tokio::time::timeout(deadline.since(dialer.clock.now()), ask).await.ok()?
}

pub(super) fn supported(version: &str) -> Result<(), String> {
    let mut numbers = version.split('.').map(str::parse::<u64>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return Ok(()) };
    if (major, minor) >= OLDEST {
        return Ok(());
    }
    Err(format!("the server is version {version}; locks need Redis {}.{} or newer", OLDEST.0, OLDEST.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for good in ["6.2.0", "6.2", "7.0.15", "10.1.3", "8.0-rc1.2", "unstable"] {
            assert!(supported(good).is_ok(), "{good}");
        }
        for bad in ["6.0.16", "5.0.7", "2.8.19"] {
            assert!(supported(bad).unwrap_err().contains(bad), "{bad}");
        }
    }
}
