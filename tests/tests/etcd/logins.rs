//! Servers that ask who we are.

use std::time::Duration;

use lock_runtime::{ConnectError, LockManager};
use lock_tests::EtcdServer;
use lock_tests::database_server::LockServer;
use lock_tests::etcd::Etcd;

use crate::entries::Ctl;

const SLACK: Duration = Duration::from_secs(30);

/// Starts a server with the users `root` and `shop`, who may use keys that begin with `shop/`.
async fn start() -> EtcdServer {
    let server = Etcd::start_beside_a_busy_disk().await;
    let commands: [&[&str]; 7] = [
        &["user", "add", "root:hunter1"],
        &["role", "add", "shop"],
        &["role", "grant-permission", "shop", "--prefix=true", "readwrite", "shop/"],
        &["user", "add", "shop:hunter2"],
        &["user", "grant-role", "shop", "shop"],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ];
    for command in commands {
        // The role of `root` comes with the last one.
        let said = server.ctl(command);
        assert!(said.is_ok() || command[1] == "grant-role", "{said:?}");
    }
    server
}

fn url(server: &EtcdServer, login: &str, folder: &str) -> String {
    format!("{}{folder}", server.url().replace("etcd://", &format!("etcd://{login}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_needs_no_more_than_the_keys_of_the_address() {
    let mut server = start().await;
    let builder = || LockManager::builder().lease(Duration::from_secs(60));
    let url = url(&server, "shop:hunter2@", "shop/");
    let (one, other) = (builder().connect(&url).await.unwrap(), builder().connect(&url).await.unwrap());
    for _ in 0..2 {
        let guard = one.mutex("k").acquire().await.unwrap();
        let waiter = tokio::spawn(other.fair("k").wait(SLACK * 2).acquire());
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!waiter.is_finished());
        guard.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
        one.multi(["a", "b"]).acquire().await.unwrap().release().await.unwrap();
        // The tokens of all who have logged in are gone.
        tokio::task::block_in_place(|| server.restart());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_let_us_in_is_told_without_the_password() {
    let server = start().await;
    for login in ["", "shop:hunter3@", "nobody:hunter2@"] {
        let error = LockManager::connect(url(&server, login, "shop/")).await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(matches!(error, ConnectError::Misconfigured { .. }), "{login}: {text}");
        assert!(!text.contains("hunter"), "{text}");
    }
    // This user may not use other keys.
    let error = LockManager::connect(url(&server, "shop:hunter2@", "")).await.unwrap_err();
    assert!(matches!(error, ConnectError::Misconfigured { .. }), "{error:?}");
}
