//! Servers that are reached through TLS.

use std::path::Path;

use lock_core::store::StoreErrorKind;
use lock_test_servers::tls::Authority;

use super::*;
use crate::{Settings, Target, open};

fn folder(authority: &Authority) -> impl AsRef<Path> {
    authority.certificate_for("127.0.0.1").unwrap()
}

/// Starts a server with the settings of [`SERVER`] and this one.
fn start(files: &Path, setting: &str) -> ZooKeeperServer {
    ZooKeeperServer::start_with_tls(files, &["tickTime=200", "maxSessionTimeout=1000000", setting])
}

/// Returns the handle of a server that has just started: its first handshakes may take seconds.
async fn reached(url: &str) -> Arc<ZooKeeperStore> {
    let store = store(url, "");
    let reached = async {
        while let Err(error) = store.check().await {
            assert!(error.is_transient(), "{error:?}");
        }
    };
    tokio::time::timeout(3 * SLACK, reached).await.expect("the server is not reached");
    store
}

/// Checks that a server that cannot be reached is an error that says where to look.
async fn assert_refused(url: &str) {
    let settings = Settings { prefix: String::new(), call_timeout: 3 * SECOND };
    let store = open(Target::parse(url).unwrap(), &settings).unwrap();
    let error = store.check().await.unwrap_err();
    let other = ask(&store, &trying(Kind::Mutex, "a", 1, SECOND)).await.unwrap_err();
    for error in [error, other] {
        assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{url}: {error:?}");
        assert!(error.to_string().contains("the log of `zookeeper_client`"), "{url}: {error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error:?}");
    }
}

#[tokio::test]
async fn the_certificate_of_the_server_has_to_be_of_the_authority() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (files, others) = (folder(&authority), folder(&stranger));
    let [files, others] = [files.as_ref(), others.as_ref()];
    let server = start(files, "");
    let url = server.url().replace("://", "://ann:hunter2@");
    let ours = format!("{url}?{OPTIONS}&ca={}/ca.pem", files.display());
    let (one, other) = (reached(&ours).await, store(&ours, ""));
    let [first, second] = [1, 2].map(|owner| waiting(Kind::Mutex, "a", owner));
    assert!(granted(&one, &first).await);
    let mut watch = queue(&other, &second).await;
    assert!(release(&one, &first).await);
    hears_grant(&mut watch).await;

    for url in [
        format!("{url}?ca={}/ca.pem", others.display()),
        // Its certificate has no such name.
        ours.replace("127.0.0.1", "localhost"),
        // Without TLS.
        url.replace("zookeepers", "zookeeper"),
        // With TLS, at a server that has none.
        format!("zookeepers://ann:hunter2@{}?ca={}/ca.pem", SERVER.connect_string(), files.display()),
    ] {
        assert_refused(&url).await;
    }
}

/// Another process has another file with the authorities of its platform.
#[tokio::test]
async fn without_a_file_the_authorities_of_the_platform_count() {
    const URL: &str = "LOCK_TESTS_ZOOKEEPERS_URL";
    const NAME: &str = "tests::on_zookeeper::tls::without_a_file_the_authorities_of_the_platform_count";
    if let Ok(url) = std::env::var(URL) {
        return store(&url, "").check().await.unwrap();
    }
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (files, others) = (folder(&authority), folder(&stranger));
    let server = start(files.as_ref(), "");
    reached(&format!("{}?ca={}/ca.pem", server.url(), files.as_ref().display())).await;
    std::fs::write(others.as_ref().join("none.pem"), "").unwrap();
    for (file, said) in [
        (files.as_ref().join("ca.pem"), "1 passed"),
        (others.as_ref().join("ca.pem"), "no server of the ensemble could be reached"),
        (others.as_ref().join("none.pem"), "the platform has no certificate store for `zookeepers://`"),
    ] {
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", NAME]).env(URL, server.url()).env_remove("SSL_CERT_DIR");
        let output = test.env("SSL_CERT_FILE", file).output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        assert!(output.contains(said), "{said}: {output}");
    }
}

#[tokio::test]
async fn a_client_shows_its_certificate_where_one_is_required() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (files, others) = (folder(&authority), folder(&stranger));
    let [files, others] = [files.as_ref(), others.as_ref()];
    let server = start(files, "ssl.clientAuth=need");
    let url = format!("{}?{OPTIONS}&ca={}/ca.pem", server.url(), files.display());
    let with = |files: &Path| format!("{url}&cert={0}/server.pem&key={0}/server.key", files.display());
    let store = reached(&with(files)).await;
    let lock = trying(Kind::Mutex, "a", 1, SECOND);
    assert!(granted(&store, &lock).await && release(&store, &lock).await);
    for url in [url.clone(), with(others)] {
        assert_refused(&url).await;
    }
}

#[test]
fn files_that_are_of_no_use_are_named_and_not_quoted() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (files, others) = (folder(&authority), folder(&stranger));
    let [dir, others] = [files.as_ref(), others.as_ref()].map(|path| path.display().to_string());
    std::fs::write(format!("{dir}/text"), "hunter2").unwrap();
    let opened = |host: &str, options: &str| {
        let target = Target::parse(&format!("zookeepers://ann:hunter2@{host}/x?{options}")).unwrap();
        open(target, &Settings { prefix: String::new(), call_timeout: SECOND }).map(|_| ())
    };
    let identity = |cert: &str, key: &str| format!("ca={dir}/ca.pem&cert={cert}&key={key}");
    let (cert, key) = (format!("{dir}/server.pem"), format!("{dir}/server.key"));
    opened("h,[::1]:1,10.0.0.1,c-d.e_f", &identity(&cert, &key)).unwrap();
    opened("h", &identity(&format!("{dir}/both.pem"), &format!("{dir}/both.pem"))).unwrap();
    for (host, options, said) in [
        (
            "h",
            format!("ca={dir}/none"),
            format!("`ca` of the ZooKeeper address names the file \"{dir}/none\""),
        ),
        ("h", format!("ca={dir}/text"), "which has no certificate".to_owned()),
        ("h", identity(&format!("{dir}/text"), &key), "`cert`".to_owned()),
        ("h", identity(&cert, &cert), "which has no private key".to_owned()),
        ("h", identity(&cert, &format!("{others}/server.key")), "is not the key of".to_owned()),
        ("a..b", identity(&cert, &key), "a host that no certificate can name".to_owned()),
    ] {
        let error = opened(host, &options).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{options}: {shown}");
        assert!(shown.contains(&said) || error.to_string().contains(&said), "{options}: {shown}");
        assert!(!shown.contains("hunter2"), "{options}: {shown}");
    }
}
