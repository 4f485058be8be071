//! Addresses: `redis://`, `redis+sentinel://`, `redis+cluster://`, the same with `redis+plain` for
//! the plain layout, and with `rediss` for TLS.
#![allow(missing_debug_implementations, reason = "addresses may have passwords")]

use lock_core::store::{StoreError, StoreErrorKind};
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::layout::Layout;
use super::url_parts::{Options, Parts, redacted};

/// Default ports.
const SENTINEL_PORT: u16 = 26379;
const REDIS_PORT: u16 = 6379;

/// The server or servers that a URL leads to.
pub enum Servers {
    /// One server.
    One(Client),
    /// A primary that sentinels name.
    Sentinel(Sentinels),
    /// A cluster.
    Cluster(Seeds),
}

/// The sentinels of a primary, and the settings of the connections to it.
#[derive(Clone)]
pub struct Sentinels {
    /// The sentinels, with their own credentials.
    pub(crate) peers: Vec<ConnectionInfo>,
    /// The sentinels' name for the primary.
    pub(crate) master: String,
    /// User, password, database and TLS of the primary; the address is a placeholder.
    pub(crate) template: ConnectionInfo,
}

/// Some nodes of a cluster, which know the others. All share one user, password and TLS setting.
#[derive(Clone)]
pub struct Seeds {
    pub(crate) seeds: Vec<ConnectionInfo>,
}

impl Servers {
    /// Returns what identifies the servers, whatever else their URLs say: each server, or each
    /// sentinel with the name of the primary.
    pub fn places(&self) -> Vec<String> {
        let (infos, master) = match self {
            Self::One(client) => (std::slice::from_ref(client.get_connection_info()), ""),
            Self::Sentinel(sentinels) => (&*sentinels.peers, &*sentinels.master),
            Self::Cluster(seeds) => (&*seeds.seeds, ""),
        };
        infos.iter().map(|info| format!("{}/{master}", place(info.addr()))).collect()
    }
}

/// Returns the address, with one form for all names of this machine.
fn place(address: &ConnectionAddr) -> String {
    let (ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }) = address else {
        return address.to_string();
    };
    let host = host.to_ascii_lowercase();
    let is_usual = matches!(host.trim_matches(['[', ']']), "127.0.0.1" | "::1");
    format!("{}:{port}", if is_usual { "localhost" } else { &host })
}

/// Reads an address. Errors show the URL without secrets.
pub fn servers(url: &str) -> Result<Servers, StoreError> {
    read(url).map_err(|error| layout(url).advice(error))
}

fn read(url: &str) -> Result<Servers, StoreError> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| {
        refusal(url, "has no scheme; write redis://host:port, redis+sentinel://… or redis+cluster://…")
    })?;
    let (base, kind) = match scheme.split_once('+') {
        Some((base, "plain")) => (base, None),
        Some((base, kind)) => (base, Some(kind.strip_prefix("plain+").unwrap_or(kind))),
        None => (scheme, None),
    };
    match base {
        "redis" => {}
        "rediss" if cfg!(any(feature = "tls-rustls", feature = "tls-native")) => {}
        "rediss" => {
            let what = "needs TLS; switch on the feature `tls-rustls` or `tls-native` of lock-runtime";
            return Err(refusal(url, what));
        }
        _ => return Err(refusal(url, UNKNOWN)),
    }
    match kind {
        None => client(url, base, rest).map(Servers::One),
        Some("sentinel") => sentinels(url, base, rest).map(Servers::Sentinel),
        Some("cluster") => seeds(url, base, rest).map(Servers::Cluster),
        Some(_) => Err(refusal(url, UNKNOWN)),
    }
}

/// Returns the layout of the locks at this address.
pub fn layout(url: &str) -> Layout {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    if scheme.split('+').nth(1) == Some("plain") { Layout::Plain } else { Layout::Hash }
}

const UNKNOWN: &str = "is not for the Redis store; it takes redis://, redis+sentinel://, redis+cluster://. With \
                       `redis+plain` for `redis` a lock is that of `SET NX PX`; `rediss` is for TLS";

fn client(url: &str, base: &str, rest: &str) -> Result<Client, StoreError> {
    let parts = parts(url, base, rest, &[])?.0;
    let places = parts.places(REDIS_PORT).map_err(|what| refusal(url, what))?;
    if places.len() > 1 {
        let what = "names several hosts; write redis+sentinel://…/master or redis+cluster://… for those";
        return Err(refusal(url, what));
    }
    // Without the layout, which the client does not know.
    Client::open(info(url, &format!("{base}://{rest}"), "redis://user:password@host:port/db")?)
        .map_err(|error| refusal(url, &format!("is not understood ({})", error.category())))
}

/// Splits a URL into its parts and options.
fn parts<'a>(
    url: &str,
    base: &str,
    rest: &'a str,
    options: &[&str],
) -> Result<(Parts<'a>, Options<'a>), StoreError> {
    let read = Parts::read(base, rest).and_then(|parts| Ok((parts.options(options)?, parts)));
    read.map(|(options, parts)| (parts, options)).map_err(|what| refusal(url, &what))
}

fn sentinels(url: &str, base: &str, rest: &str) -> Result<Sentinels, StoreError> {
    const FORM: &str = "redis+sentinel://user:password@host:26379,host:26379/master/db";
    let (parts, options) = parts(url, base, rest, &["sentinel_user", "sentinel_password"])?;
    let (master, db) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    if master.is_empty() {
        return Err(refusal(
            url,
            &format!("does not name the primary that the sentinels watch; write {FORM}"),
        ));
    }
    let option =
        |wanted: &str| options.iter().find(|(name, _)| *name == wanted).map(|(_, value)| in_authority(value));
    let auth = match (option("sentinel_user"), option("sentinel_password")) {
        (None, None) => String::new(),
        (user, password) => {
            format!("{}:{}@", user.unwrap_or_default(), password.unwrap_or_default())
        }
    };
    let places = parts.places(SENTINEL_PORT).map_err(|what| refusal(url, what))?;
    let fragment = parts.fragment;
    let peers: Result<Vec<_>, _> =
        places.iter().map(|place| info(url, &format!("{base}://{auth}{place}{fragment}"), FORM)).collect();
    let peers = peers?;
    let place = places.first().map_or("", String::as_str);
    let template = format!("{base}://{}{place}/{db}{fragment}", parts.auth);
    Ok(Sentinels { peers, master: master.to_owned(), template: info(url, &template, FORM)? })
}

fn seeds(url: &str, base: &str, rest: &str) -> Result<Seeds, StoreError> {
    const FORM: &str = "redis+cluster://user:password@host:port,host:port";
    let parts = parts(url, base, rest, &[])?.0;
    if !matches!(parts.path, "" | "0") {
        return Err(refusal(url, "names a database, but a cluster has only database 0; leave it out"));
    }
    let places = parts.places(REDIS_PORT).map_err(|what| refusal(url, what))?;
    let seed = |place: &String| info(url, &format!("{base}://{}{place}{}", parts.auth, parts.fragment), FORM);
    Ok(Seeds { seeds: places.iter().map(seed).collect::<Result<_, _>>()? })
}

/// Reads the settings of one server. `form` shows how the whole URL should look.
fn info(whole: &str, url: &str, form: &str) -> Result<ConnectionInfo, StoreError> {
    let info = url.into_connection_info().map_err(|error| {
        // Details may quote the address.
        let reason = error.detail().map_or_else(|| error.to_string(), |_| error.category().to_owned());
        let what = format!(
            "is not understood ({reason}); write {form}, with special characters in user and password percent-encoded"
        );
        refusal(whole, &what)
    })?;
    // The client accepts every number, and servers give no helpful error.
    if !(0..=i64::from(i32::MAX)).contains(&info.redis_settings().db()) {
        return Err(refusal(whole, "has an invalid database number; the first database is 0"));
    }
    Ok(info)
}

/// Encodes a query's value for the place in front of an `@`.
fn in_authority(value: &str) -> String {
    value.replace('@', "%40").replace(':', "%3A").replace('/', "%2F").replace('?', "%3F").replace('#', "%23")
}

fn refusal(url: &str, what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unsupported, format!("the store address {:?} {what}", redacted(url)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(url: &str) -> Result<Client, StoreError> {
        match servers(url)? {
            Servers::One(client) => Ok(client),
            Servers::Sentinel(_) | Servers::Cluster(_) => panic!("{url} is one server"),
        }
    }

    fn of_sentinels(url: &str) -> Sentinels {
        match servers(url) {
            Ok(Servers::Sentinel(sentinels)) => sentinels,
            other => panic!("{url}: {:?}", other.err()),
        }
    }

    fn of_cluster(url: &str) -> Vec<String> {
        match servers(url) {
            Ok(Servers::Cluster(Seeds { seeds })) => {
                seeds.iter().map(|seed| seed.addr().to_string()).collect()
            }
            other => panic!("{url}: {:?}", other.err()),
        }
    }

    fn who(info: &ConnectionInfo) -> (Option<&str>, Option<&str>) {
        (info.redis_settings().username(), info.redis_settings().password())
    }

    #[test]
    fn user_password_and_database_are_read() {
        let client = one("redis://ann:hun%40ter2@example.org:7000/3").unwrap();
        let info = client.get_connection_info();
        assert_eq!(info.addr().to_string(), "example.org:7000");
        assert_eq!(who(info), (Some("ann"), Some("hun@ter2")));
        assert_eq!(info.redis_settings().db(), 3);
    }

    #[test]
    fn the_layout_stands_behind_the_first_word_of_the_scheme() {
        let plain = one("redis+plain://ann:hun%40ter2@example.org:7000/3").unwrap();
        assert_eq!(plain.get_connection_info().addr().to_string(), "example.org:7000");
        assert_eq!(plain.get_connection_info().redis_settings().db(), 3);
        assert_eq!(of_sentinels("redis+plain+sentinel://h/main").master, "main");
        assert_eq!(of_cluster("redis+plain+cluster://a,b"), ["a:6379", "b:6379"]);
        for (url, is_plain) in [
            ("redis+plain://a", true),
            ("rediss+plain+cluster://a", true),
            ("redis://a", false),
            ("redis+cluster://plain", false),
        ] {
            assert_eq!(layout(url) == Layout::Plain, is_plain, "{url}");
        }
        assert!(servers("redis+sentinel+plain://h/main").is_err());
        for (url, advice) in [
            ("redis+plain+sentinel://h", "redis+plain+sentinel://user"),
            ("redis+plain://a,b", "redis+plain+cluster://"),
        ] {
            let Err(error) = servers(url) else { panic!("{url}") };
            assert!(error.to_string().contains(advice), "{error}");
        }
    }

    #[test]
    fn sentinels_have_credentials_of_their_own() {
        let url = "redis+sentinel://ann:hun%40ter2@a:1,b,[::1]:3/main/4?sentinel_password=s%2Fe@cret";
        let sentinels = of_sentinels(url);
        assert_eq!(sentinels.master, "main");
        let places: Vec<_> = sentinels.peers.iter().map(|peer| peer.addr().to_string()).collect();
        assert_eq!(places, ["a:1", "b:26379", "::1:3"]);
        assert!(sentinels.peers.iter().all(|peer| who(peer).1 == Some("s/e@cret")));
        assert!(sentinels.peers.iter().all(|peer| peer.redis_settings().db() == 0));
        assert_eq!(who(&sentinels.template), (Some("ann"), Some("hun@ter2")));
        assert_eq!(sentinels.template.redis_settings().db(), 4);

        for secret in ["1234?x", "a:b/c?d@e"] {
            let odd = of_sentinels(&format!("redis+sentinel://h/main?sentinel_password={secret}"));
            assert_eq!(odd.peers[0].addr().to_string(), "h:26379");
            assert_eq!(who(&odd.peers[0]).1, Some(secret));
        }
        let bare = of_sentinels("redis+sentinel://h/main");
        assert_eq!((who(&bare.peers[0]), who(&bare.template)), ((None, None), (None, None)));
        let both = of_sentinels("redis+sentinel://h/main?sentinel_user=bob&sentinel_password=x");
        assert_eq!((who(&both.peers[0]), who(&both.template)), ((Some("bob"), Some("x")), (None, None)));
    }

    #[test]
    fn nodes_of_a_cluster_share_credentials() {
        assert_eq!(of_cluster("redis+cluster://a"), ["a:6379"]);
        assert_eq!(of_cluster("redis+cluster://ann:x@a:7000,b,c:7002/"), ["a:7000", "b:6379", "c:7002"]);
        let Ok(Servers::Cluster(Seeds { seeds })) = servers("redis+cluster://ann:x@a,b/0") else { panic!() };
        assert!(seeds.iter().all(|seed| who(seed) == (Some("ann"), Some("x"))));
    }

    #[test]
    fn what_is_missing_is_named() {
        for (url, said) in [
            ("redis+sentinel://h:26379", "the primary"),
            ("redis+sentinel://h:26379/", "the primary"),
            ("redis+sentinel:///main", "without a host"),
            ("redis+sentinel://a,,b/main", "without a host"),
            ("redis+sentinel://a/main/first", "database number"),
            ("redis+cluster://", "without a host"),
            ("redis+cluster://a/2", "names a database"),
            ("redis+cluster://a:port", "has a port"),
            ("redis+ring://a", "it takes redis://"),
            ("http://a", "it takes redis://"),
            ("redis.example.org", "has no scheme"),
        ] {
            let Err(error) = servers(url) else { panic!("{url}") };
            assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{url}");
            assert!(error.to_string().contains(said), "{url}: {error}");
        }
    }

    #[test]
    fn secrets_are_never_in_errors() {
        for url in [
            "redis://:hunter2@",
            "redis://ann:hunter2@host:port/",
            "redis://ann:hunter2@host/nodb",
            "redis://:hun/hunter2@host:1/",
            "redis://:hun@hunter2@host:99999/",
            "redis://:hun?hunter2@host:1/",
            "http://ann:hunter2@host/",
            "ann:hunter2@host",
            "redis://host:port/?password=hunter2",
            "unix:///tmp/x.sock?pass=hunter2",
            "redis+sentinel://:hunter2@host",
            "redis+sentinel://:hunter2@a:port,b/main",
            "redis+sentinel://a:port/main?sentinel_password=hunter2",
            "redis+sentinel://a:port/main?sentinel_password=x@hunter2",
            "redis+cluster://:hunter2@a,b/7",
        ] {
            let Err(error) = servers(url) else { panic!("{url}") };
            assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{url}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    #[cfg(not(any(feature = "tls-rustls", feature = "tls-native")))]
    #[test]
    fn tls_without_the_feature_names_the_features() {
        for url in ["rediss://ann:hunter2@host:6380", "rediss+cluster://ann:hunter2@host"] {
            let error = servers(url).err().unwrap().to_string();
            assert!(error.contains("tls-rustls") && error.contains("tls-native"), "{error}");
            assert!(!error.contains("hunter2"));
        }
    }

    #[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
    #[test]
    fn tls_addresses_are_read() {
        use redis::ConnectionAddr;

        assert!(one("rediss://ann:hunter2@host:6380").is_ok());
        let insecure = of_sentinels("rediss+sentinel://a,b/main#insecure");
        for info in insecure.peers.iter().chain([&insecure.template]) {
            assert!(
                matches!(info.addr(), ConnectionAddr::TcpTls { insecure: true, .. }),
                "{:?}",
                info.addr()
            );
        }
        assert!(matches!(servers("rediss+cluster://a"), Ok(Servers::Cluster(_))));
    }
}
