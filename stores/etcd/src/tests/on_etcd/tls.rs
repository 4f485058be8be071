//! Servers that are reached through TLS.

use std::path::Path;

use lock_core::store::StoreErrorKind;
use lock_test_servers::tls::Authority;

use super::*;
use crate::tests::*;
use crate::{Settings, Target, open};

fn folder(authority: &Authority) -> impl AsRef<Path> {
    authority.certificate_for("127.0.0.1").unwrap()
}

/// Checks the error about a server that cannot be reached.
async fn refusal(url: &str) -> StoreError {
    let settings = Settings { prefix: new_prefix(), call_timeout: 3 * SECOND };
    let store = open(Target::parse(url).unwrap(), &settings).unwrap();
    let error = store.check().await.unwrap_err();
    let lock = trying(Kind::Mutex, "a", 1, SECOND);
    let other = ask(&store, &lock).await.unwrap_err();
    assert_eq!(error.kind(), other.kind(), "{error}; {other}");
    error
}

#[tokio::test]
async fn the_certificate_of_the_server_has_to_be_of_the_authority() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (files, others) = (folder(&authority), folder(&stranger));
    let [files, others] = [files.as_ref(), others.as_ref()];
    let server = EtcdServer::start_with_tls(files, &[]);
    let ours = format!("{}?ca={}/ca.pem", server.url(), files.display());
    let (one, other) = (store(&ours, ""), store(&ours, ""));
    one.check().await.unwrap();
    let [first, second] = [1, 2].map(|owner| waiting(Kind::Mutex, "a", owner));
    assert!(granted(&one, &first).await);
    let mut watch = queue(&other, &second).await;
    assert!(release(&one, &first).await);
    hears_grant(&mut watch).await;

    for (url, said) in [
        (format!("{}?ca={}/ca.pem", server.url(), others.display()), "UnknownIssuer"),
        // It has no such name.
        (ours.replace("127.0.0.1", "localhost"), "not valid for name"),
        // Without TLS.
        (server.url().replace("etcds", "etcd"), ""),
    ] {
        let error = refusal(&url).await;
        assert!(error.is_transient() && error.to_string().contains(said), "{url}: {error:?}");
    }
    // With TLS, at a server that has none.
    let plain = SERVER.url().replace("etcd", "etcds");
    assert_eq!(refusal(&plain).await.kind(), StoreErrorKind::Unreachable);
}

/// Another process has another file with the authorities of its platform.
#[tokio::test]
async fn without_a_file_the_authorities_of_the_platform_count() {
    const URL: &str = "LOCK_TESTS_ETCDS_URL";
    const NAME: &str = "tests::on_etcd::tls::without_a_file_the_authorities_of_the_platform_count";
    if let Ok(url) = std::env::var(URL) {
        return store(&url, "").check().await.unwrap();
    }
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (files, others) = (folder(&authority), folder(&stranger));
    let server = EtcdServer::start_with_tls(files.as_ref(), &[]);
    for (files, said) in [(&files, "1 passed"), (&others, "UnknownIssuer")] {
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", NAME]).env(URL, server.url()).env_remove("SSL_CERT_DIR");
        let output = test.env("SSL_CERT_FILE", files.as_ref().join("ca.pem")).output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        assert!(output.contains(said), "{output}");
    }
}

#[tokio::test]
async fn a_client_shows_its_certificate_where_one_is_required() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (files, others) = (folder(&authority), folder(&stranger));
    let [files, others] = [files.as_ref(), others.as_ref()];
    let trusted = format!("trusted-ca-file={}/ca.pem", files.display());
    let server = EtcdServer::start_with_tls(files, &["client-cert-auth", &trusted]);
    let url = format!("{}?ca={}/ca.pem", server.url(), files.display());
    let with = |files: &Path| format!("{url}&cert={0}/server.pem&key={0}/server.key", files.display());
    let store = store(&with(files), "");
    store.check().await.unwrap();
    let lock = trying(Kind::Mutex, "a", 1, SECOND);
    assert!(granted(&store, &lock).await && release(&store, &lock).await);
    for url in [url.clone(), with(others)] {
        let store = crate::tests::store(&url, "");
        // The server may close the connection before its reason is read.
        let denied = async {
            loop {
                let error = store.check().await.unwrap_err();
                if !error.is_transient() {
                    return error;
                }
            }
        };
        let error = tokio::time::timeout(SLACK, denied).await.unwrap();
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{error:?}");
        assert!(error.to_string().contains("options `cert` and `key`"), "{error}");
    }
}

#[test]
fn files_that_are_of_no_use_are_named_and_not_quoted() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (files, others) = (folder(&authority), folder(&stranger));
    let [dir, others] = [files.as_ref(), others.as_ref()].map(|path| path.display().to_string());
    let broken = "-----BEGIN CERTIFICATE-----\nhunter2\n-----END CERTIFICATE-----\n";
    let half = "-----BEGIN CERTIFICATE-----\nhunter2\n";
    for (name, text) in [
        ("empty", ""),
        ("text", "hunter2"),
        ("broken", broken),
        ("half", half),
        ("der", "-----BEGIN CERTIFICATE-----\naHVudGVyMg==\n-----END CERTIFICATE-----\n"),
    ] {
        std::fs::write(files.as_ref().join(name), text).unwrap();
    }
    let opened = |options: &str| {
        let target = Target::parse(&format!("etcds://ann:hunter2@h/x?{options}")).unwrap();
        open(target, &Settings { prefix: String::new(), call_timeout: SECOND }).map(|_| ())
    };
    let identity = |cert: &str, key: &str| format!("ca={dir}/ca.pem&cert={cert}&key={key}");
    let (cert, key) = (format!("{dir}/server.pem"), format!("{dir}/server.key"));
    // Two authorities in one file, and a key with its certificate.
    let both = ["ca.pem", "server.pem"].map(|name| std::fs::read_to_string(format!("{dir}/{name}")).unwrap());
    std::fs::write(format!("{dir}/two.pem"), both.concat()).unwrap();
    opened(&identity(&cert, &key)).unwrap();
    opened(&format!("ca={dir}/two.pem&cert={dir}/both.pem&key={dir}/both.pem")).unwrap();
    for (options, option, path) in [
        (format!("ca={dir}/none"), "`ca`", format!("{dir}/none")),
        (format!("ca={dir}"), "`ca`", dir.clone()),
        (format!("ca={dir}/empty"), "`ca`", format!("{dir}/empty")),
        (format!("ca={dir}/text"), "`ca`", format!("{dir}/text")),
        (format!("ca={dir}/broken"), "`ca`", format!("{dir}/broken")),
        (format!("ca={dir}/half"), "`ca`", format!("{dir}/half")),
        (format!("ca={dir}/der"), "`ca`", format!("{dir}/der")),
        (format!("ca={key}"), "`ca`", key.clone()),
        (identity(&format!("{dir}/none"), &key), "`cert`", format!("{dir}/none")),
        (identity(&format!("{dir}/text"), &key), "`cert`", format!("{dir}/text")),
        (identity(&key, &key), "`cert`", key.clone()),
        (identity(&cert, &format!("{dir}/none")), "`key`", format!("{dir}/none")),
        (identity(&cert, &cert), "`key`", cert.clone()),
        (identity(&cert, &format!("{others}/server.key")), "`key`", format!("{others}/server.key")),
    ] {
        let error = opened(&options).unwrap_err();
        let said = format!("{error} {error:?}");
        assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{options}: {said}");
        assert!(said.contains(option) && said.contains(&path), "{options}: {said}");
        assert!(
            !said.contains("hunter2") && !said.contains("aHVud") && !said.contains("BEGIN"),
            "{options}: {said}"
        );
    }
}
