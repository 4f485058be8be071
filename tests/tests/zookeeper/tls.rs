//! Several stores that are reached through TLS by one process. rustls has two providers of
//! cryptography then.

use std::process::Command;

use lock_runtime::LockManager;
use lock_test_servers::tls::{Authority, TlsServer};
use lock_test_servers::{EtcdServer, ZooKeeperServer};

/// The URLs that a process of its own connects to, in this order. Each stands on a line.
const URLS: &str = "LOCK_TESTS_TLS_URLS";

const NAME: &str = "tls::a_process_reaches_every_store_in_any_order";

async fn lock_once(url: &str) {
    let builder = LockManager::builder();
    let locks = match url.split_once(" ") {
        // Only a client can be told which authority to trust.
        Some((url, ca)) => {
            let root_cert = Some(std::fs::read(ca).unwrap());
            let certificates = redis::TlsCertificates { client_tls: None, root_cert };
            builder.connect_client(redis::Client::build_with_tls(url, certificates).unwrap()).await
        }
        None => {
            let connected = builder.connect_lazy(url).unwrap();
            // The first handshakes of a server in Java may take longer than a call.
            let lock = connected.mutex("k").lease(std::time::Duration::from_secs(3));
            lock.wait(std::time::Duration::from_secs(60)).acquire().await.unwrap().release().await.unwrap();
            return;
        }
    };
    locks.unwrap().mutex("k").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_process_reaches_every_store_in_any_order() {
    if let Ok(urls) = std::env::var(URLS) {
        for url in urls.lines() {
            lock_once(url).await;
        }
        return;
    }
    let authority = Authority::new();
    let files = authority.certificate_for("127.0.0.1").unwrap();
    let ca = files.path().join("ca.pem").display().to_string();
    let Some(redis) = TlsServer::start(&authority, "s3cret") else { return };
    let (etcd, zookeeper) =
        (EtcdServer::start_with_tls(files.path(), &[]), ZooKeeperServer::start_with_tls(files.path(), &[]));
    let redis = format!("rediss://:s3cret@localhost:{} {ca}", redis.port());
    let etcd = format!("{}?ca={ca}", etcd.url());
    let zookeeper = format!("{}?ca={ca}&tick=1s", zookeeper.url());
    for order in [[&redis, &etcd, &zookeeper], [&etcd, &zookeeper, &redis], [&zookeeper, &redis, &etcd]] {
        let urls = order.map(String::as_str).join("\n");
        let mut test = Command::new(std::env::current_exe().unwrap());
        let output = test.args(["--exact", NAME]).env(URLS, &urls).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("1 passed"), "{urls}: {text}");
    }
}
