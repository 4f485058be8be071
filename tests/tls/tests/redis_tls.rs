//! `rediss://`: with rustls, with the platform's library, and in a build that has neither.

use lock_runtime::{ConnectError, LockManager};

const PASSWORD: &str = "s3cret";

/// The text of a connection error, which never has the password.
#[track_caller]
fn said(error: &ConnectError) -> String {
    let text = error.to_string();
    for text in [&text, &format!("{error:?}")] {
        assert!(!text.contains(PASSWORD), "{text}");
    }
    text
}

#[cfg(not(any(feature = "tls-rustls", feature = "tls-native")))]
#[tokio::test]
async fn without_tls_the_error_names_the_features() {
    let error = LockManager::connect(format!("rediss://:{PASSWORD}@localhost:1")).await.unwrap_err();
    assert!(matches!(error, ConnectError::Misconfigured { .. }), "{error:?}");
    let text = said(&error);
    assert!(text.contains("`tls-rustls`") && text.contains("`tls-native`"), "{text}");
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
mod tls {
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use lock_test_servers::tls::{Authority, TlsServer};
    use redis::{Client, TlsCertificates};
    use tokio::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// In errors about certificates. With both features the Redis client reads no certificate
    /// store.
    const ADVICE: &str = if cfg!(all(feature = "tls-rustls", feature = "tls-native")) {
        "leave out one of the features"
    } else {
        "SSL_CERT_FILE"
    };

    fn url(host: &str, server: &TlsServer) -> String {
        format!("rediss://:{PASSWORD}@{host}:{}", server.port())
    }

    /// A client that trusts `authority` and nobody else.
    fn client(url: &str, authority: &Authority) -> Client {
        let root_cert = Some(authority.pem().into_bytes());
        Client::build_with_tls(url, TlsCertificates { client_tls: None, root_cert }).unwrap()
    }

    /// Returns as soon as `condition` is true.
    async fn eventually(mut condition: impl AsyncFnMut() -> bool) {
        let start = Instant::now();
        while !condition().await {
            assert!(start.elapsed() < LONG, "not true within {LONG:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Runs a process that takes a lock at `url` twice and trusts the authority of `file`.
    fn lock_twice(url: &str, file: &Path) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lock-tls-tests"));
        let output = command.arg(url).env("SSL_CERT_FILE", file).stdin(Stdio::null()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    async fn connect(client: &Client) -> LockManager {
        LockManager::builder().fallback_poll(LONG).connect_client(client.clone()).await.unwrap()
    }

    /// How many scripts the server has run: every attempt to acquire is one.
    async fn scripts(connection: &mut redis::aio::MultiplexedConnection) -> u64 {
        let info: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await.unwrap();
        let calls = info.lines().filter_map(|line| line.strip_prefix("cmdstat_eval")?.split_once("calls="));
        calls.map(|(_, rest)| rest.split(',').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_client_that_trusts_the_server_locks_and_is_woken() {
        let authority = Authority::new();
        let Some(server) = TlsServer::start(&authority, PASSWORD) else { return };
        let client = client(&url("localhost", &server), &authority);
        let (locks, other) = (connect(&client).await, connect(&client).await);
        let guard = locks.mutex("k").lease(LONG).acquire().await.unwrap();
        let token = guard.fencing_token();
        let waiter = tokio::spawn(async move { other.mutex("k").wait(LONG).acquire().await });

        let mut observer = client.get_multiplexed_async_connection().await.unwrap();
        let channel = "redisson_lock__channel:{lock:k}";
        let listening = async || {
            let mut connection = observer.clone();
            let numsub = redis::cmd("PUBSUB").arg(&["NUMSUB", channel]).to_owned();
            let (_, count): (String, u64) = numsub.query_async(&mut connection).await.unwrap();
            count == 1
        };
        eventually(listening).await;
        // The pause between attempts doubles. After one of a second and a half the next is one of
        // three, so whoever gets in before that was woken by the message.
        let mut seen = (scripts(&mut observer).await, Instant::now());
        let pause_is_long = async || {
            let before = seen;
            let count = scripts(&mut observer).await;
            if count > before.0 {
                seen = (count, Instant::now());
            }
            count > before.0 && seen.1 - before.1 > Duration::from_millis(1400)
        };
        eventually(pause_is_long).await;
        assert!(!waiter.is_finished());
        let released = Instant::now();
        guard.release().await.unwrap();
        let next = waiter.await.unwrap().unwrap();
        assert!(released.elapsed() < Duration::from_secs(2), "{:?}", released.elapsed());
        assert!(next.fencing_token() > token, "{} after {token}", next.fencing_token());
        next.release().await.unwrap();
        assert!(!locks.status("k").await.unwrap().is_locked());
    }

    /// By the URL alone. The variable is read by rustls everywhere, and by OpenSSL.
    #[cfg(all(
        not(all(feature = "tls-rustls", feature = "tls-native")),
        any(feature = "tls-rustls", target_os = "linux")
    ))]
    mod by_url {
        use lock_test_servers::tls::{TlsCluster, TlsSentinel};

        use super::*;

        #[track_caller]
        fn assert_locked_twice(url: &str, file: &Path) {
            let said = lock_twice(url, file);
            let tokens: Vec<u64> =
                said.lines().map(|line| line.parse().unwrap_or_else(|_| panic!("{said}"))).collect();
            assert!(matches!(tokens[..], [first, second] if first < second), "{said}");
        }

        #[test]
        fn the_platforms_store_is_trusted() {
            let authority = Authority::new();
            let Some(server) = TlsServer::start(&authority, PASSWORD) else { return };
            assert_locked_twice(&url("localhost", &server), &server.authority_file());
        }

        /// The address is that of one node, and the lock is kept by another: the redirection leads
        /// to its port for TLS.
        #[test]
        fn a_cluster_is_reached_through_tls() {
            let authority = Authority::new();
            let Some(cluster) = TlsCluster::start(&authority, PASSWORD) else { return };
            let other = (cluster.plain().node_of("{lock:k}") + 1) % cluster.plain().nodes().len();
            let url = format!("rediss+cluster://:{PASSWORD}@{}", cluster.node(other));
            assert_locked_twice(&url, &cluster.authority_file());
            assert_eq!(cluster.plain().cli("{lock:k}", &["EXISTS", "redisson_lock_token:{lock:k}"]), "1");
        }

        #[test]
        fn sentinels_and_their_primary_are_reached_through_tls() {
            let authority = Authority::new();
            let Some(servers) = TlsSentinel::start(&authority, PASSWORD) else { return };
            let url =
                format!("rediss+sentinel://:{PASSWORD}@{}?sentinel_password={PASSWORD}", servers.place());
            assert_locked_twice(&url, &servers.authority_file());
            assert_eq!(servers.plain().cli(&["EXISTS", "redisson_lock_token:{lock:k}"]), "1");
        }
    }

    /// Not what it should be, see `docs/plan.md`.
    #[cfg(all(feature = "tls-rustls", feature = "tls-native"))]
    #[test]
    fn with_both_features_no_store_is_trusted_and_the_error_says_so() {
        let authority = Authority::new();
        let Some(server) = TlsServer::start(&authority, PASSWORD) else { return };
        let text = lock_twice(&url("localhost", &server), &server.authority_file());
        assert!(text.contains("!can't connect") && text.contains(ADVICE), "{text}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_untrusted_certificate_is_refused_in_time() {
        let authority = Authority::new();
        let Some(server) = TlsServer::start(&authority, PASSWORD) else { return };
        let start = Instant::now();
        let builder = LockManager::builder().connect_timeout(LONG);
        let by_url = builder.clone().connect(url("localhost", &server)).await.unwrap_err();
        let stranger = client(&url("localhost", &server), &Authority::new());
        let by_client = builder.connect_client(stranger).await.unwrap_err();
        assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
        for error in [by_url, by_client] {
            assert!(matches!(error, ConnectError::Unavailable { .. }), "{error:?}");
            let text = said(&error);
            assert!(text.contains(&format!("localhost:{}", server.port())), "{text}");
            assert!(text.contains(ADVICE) && text.contains("`connect_client`"), "{text}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_certificate_for_another_name_is_refused() {
        let authority = Authority::new();
        let Some(server) = TlsServer::start(&authority, PASSWORD) else { return };
        let client = client(&url("127.0.0.1", &server), &authority);
        let error = LockManager::builder().connect_client(client).await.unwrap_err();
        assert!(matches!(error, ConnectError::Unavailable { .. }), "{error:?}");
        let text = said(&error);
        assert!(text.contains(&format!("127.0.0.1:{}", server.port())), "{text}");
    }

    #[cfg(not(feature = "tls-rustls"))]
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_insecure_url_accepts_any_certificate() {
        let Some(server) = TlsServer::start(&Authority::new(), PASSWORD) else { return };
        let locks = LockManager::connect(url("localhost", &server) + "/#insecure").await.unwrap();
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
    }

    #[cfg(feature = "tls-rustls")]
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_insecure_url_is_refused_and_the_error_says_what_to_do() {
        let Some(server) = TlsServer::start(&Authority::new(), PASSWORD) else { return };
        let error = LockManager::connect(url("localhost", &server) + "/#insecure").await.unwrap_err();
        assert!(matches!(error, ConnectError::Misconfigured { .. }), "{error:?}");
        let text = said(&error);
        assert!(text.contains("`tls-rustls-insecure`") && text.contains(ADVICE), "{text}");
    }
}
