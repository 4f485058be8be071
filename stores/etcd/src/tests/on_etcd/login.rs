//! Servers that let only users in.

use lock_core::store::StoreErrorKind;

use super::*;
use crate::tests::*;

/// Starts a server with the users `root` and `app`. The latter may use the keys under `app/`.
fn guarded(settings: &[&str]) -> EtcdServer {
    let server = EtcdServer::start_with(settings);
    for args in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "app"],
        &["role", "grant-permission", "app", "readwrite", "--prefix", "app/"],
        &["user", "add", "app:hunter2"],
        &["user", "grant-role", "app", "app"],
        &["auth", "enable"],
    ] {
        server.etcdctl(args);
    }
    server
}

fn operate(server: &EtcdServer, args: &[&str]) {
    server.etcdctl(&[&["--user=root:secret"], args].concat());
}

fn url(server: &EtcdServer, user: &str, root: &str) -> String {
    format!("etcd://{user}{}/{root}", server.addr())
}

#[tokio::test]
async fn passwords_and_rights_that_are_missing_are_told() {
    let server = guarded(&[]);
    for (user, root) in [("root:secret@", ""), ("root:secret@", "app/"), ("app:hunter2@", "app/")] {
        let store = store(&url(&server, user, root), "");
        store.check().await.unwrap();
        for kind in [Kind::Mutex, Kind::Read, Kind::Write] {
            let lock = trying(kind, "a", 1, SECOND);
            assert!(granted(&store, &lock).await && release(&store, &lock).await, "{user} {kind:?}");
        }
    }
    for (user, right) in [("reader", "read"), ("writer", "write")] {
        operate(&server, &["role", "add", user]);
        operate(&server, &["role", "grant-permission", user, right, "--prefix", "app/"]);
        operate(&server, &["user", "add", &format!("{user}:hunter2")]);
        operate(&server, &["user", "grant-role", user, user]);
    }
    for (user, root, said) in [
        ("app:wrong@", "app/", "authentication failed"),
        ("nobody:hunter2@", "app/", "authentication failed"),
        ("", "app/", "`etcd://user:password@"),
        ("app:hunter2@", "", "readwrite --prefix \"\"`"),
        ("app:hunter2@", "shop/", "readwrite --prefix \"shop/\"`"),
        ("reader:hunter2@", "app/", "readwrite --prefix \"app/\"`"),
        ("writer:hunter2@", "app/", "readwrite --prefix \"app/\"`"),
    ] {
        let store = store(&url(&server, user, root), "");
        let lock = trying(Kind::Mutex, "a", 1, SECOND);
        for error in [store.check().await.unwrap_err(), ask(&store, &lock).await.unwrap_err()] {
            assert_eq!(error.kind(), StoreErrorKind::Denied, "{user}{root}: {error}");
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(said) && !shown.contains("hunter2"), "{user}{root}: {error}");
        }
    }
    // A server that knows no users.
    let store = store(&url(&SERVER, "app:hunter2@", ""), "");
    let error = store.check().await.unwrap_err();
    assert!(error.to_string().contains("authentication is not enabled"), "{error:?}");
}

/// Waits for a turn, and returns whether it was told. A waiter that does not ask for 3 s loses its
/// place, so it asks from time to time, as the engine does.
async fn gets_its_turn(store: &EtcdStore, request: &Arc<AcquireRequest>, watch: &mut Watch) -> bool {
    let turn = async {
        loop {
            match tokio::time::timeout(SECOND, watch.notice()).await {
                Ok(Notice::Granted { .. }) => return true,
                _ if granted(store, request).await => return false,
                _ => {}
            }
        }
    };
    tokio::time::timeout(SLACK, turn).await.expect("it gets no turn")
}

/// Tokens end with the server that made them.
#[tokio::test]
async fn a_waiter_gets_its_turn_after_a_restart() {
    let mut server = guarded(&[]);
    let url = url(&server, "app:hunter2@", "app/");
    let (one, other) = (store(&url, ""), store(&url, ""));
    let [first, second, third] = [1, 2, 3].map(|owner| waiting(Kind::Mutex, "a", owner));
    assert!(granted(&one, &first).await);
    let mut watch = queue(&other, &second).await;
    server.restart();
    // The connection to the old server ends with a call.
    let items = vec![RenewItem::hold(first.items[0].clone(), 60 * SECOND)];
    let renewal = Arc::new(RenewRequest { items, timeout: SLACK });
    let held = loop {
        match one.renew(Arc::clone(&renewal)).await {
            Ok(held) => break held,
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
    };
    assert_eq!(held, [Renewed::Held]);
    assert!(!granted(&one, &trying(Kind::Mutex, "a", 4, SECOND)).await);
    for _ in 0..4 {
        tokio::time::sleep(SECOND / 2).await;
        assert!(!granted(&other, &second).await);
    }
    assert!(release(&one, &first).await);
    let mut is_told = gets_its_turn(&other, &second, &mut watch).await;
    // On a busy machine, it may ask before it is told.
    for _ in 0..10 {
        let mut watch = queue(&one, &third).await;
        assert!(release(&other, &second).await);
        gets_its_turn(&one, &third, &mut watch).await;
        let mut watch = queue(&other, &second).await;
        assert!(release(&one, &third).await);
        is_told |= gets_its_turn(&other, &second, &mut watch).await;
    }
    assert!(is_told);
}

/// Starts a server whose tokens are refused after 4 s, or when any role has changed. It needs the
/// folder.
fn with_short_tokens() -> (EtcdServer, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let [secret, public] = ["key", "pub"].map(|name| dir.path().join(name).display().to_string());
    for args in
        [&["genrsa", "-out", &secret, "2048"][..], &["rsa", "-in", &secret, "-pubout", "-out", &public]]
    {
        assert!(std::process::Command::new("openssl").args(args).output().unwrap().status.success());
    }
    let jwt = format!("auth-token=jwt,pub-key={public},priv-key={secret},sign-method=RS256,ttl=4s");
    (guarded(&[&jwt]), dir)
}

/// Newer servers look at the token of a keep-alive, too.
#[tokio::test]
async fn an_acquire_after_quiet_times_logs_in_again() {
    let (server, _keys) = with_short_tokens();
    let store = store(&url(&server, "app:hunter2@", "app/"), "");
    let lock = trying(Kind::Mutex, "a", 1, 6 * SECOND);
    assert!(granted(&store, &lock).await && release(&store, &lock).await);
    // The session needs a heartbeat by then.
    tokio::time::sleep(5 * SECOND).await;
    assert!(granted(&store, &lock).await && release(&store, &lock).await);
}

#[tokio::test]
async fn a_waiter_gets_its_turn_when_tokens_are_old() {
    let (server, _keys) = with_short_tokens();
    let url = url(&server, "app:hunter2@", "app/");
    let (one, other) = (store(&url, ""), store(&url, ""));
    for round in 0..2 {
        let [first, second] = [1, 2].map(|owner| waiting(Kind::Mutex, "a", owner));
        assert!(granted(&one, &first).await);
        let mut watch = queue(&other, &second).await;
        if round == 0 {
            tokio::time::sleep(5 * SECOND).await;
        } else {
            operate(&server, &["role", "add", "more"]);
        }
        assert!(release(&one, &first).await);
        gets_its_turn(&other, &second, &mut watch).await;
        assert!(release(&other, &second).await);
    }
}

/// A stream of watches is older than the token of later calls.
#[tokio::test]
async fn a_waiter_gets_its_turn_after_its_user_was_made_anew() {
    let server = guarded(&[]);
    let url = url(&server, "app:hunter2@", "app/");
    let (one, other) = (store(&url, ""), store(&url, ""));
    let [first, second, third] = [1, 2, 3].map(|owner| waiting(Kind::Mutex, "a", owner));
    assert!(granted(&one, &first).await);
    let mut watch = queue(&other, &second).await;
    operate(&server, &["user", "delete", "app"]);
    operate(&server, &["user", "add", "app:hunter2"]);
    operate(&server, &["user", "grant-role", "app", "app"]);
    assert!(release(&one, &first).await);
    gets_its_turn(&other, &second, &mut watch).await;
    // It has a stream already.
    assert!(granted(&one, &waiting(Kind::Mutex, "b", 1)).await);
    let fourth = waiting(Kind::Mutex, "b", 4);
    let mut watch = queue(&other, &fourth).await;
    assert!(release(&one, &waiting(Kind::Mutex, "b", 1)).await);
    gets_its_turn(&other, &fourth, &mut watch).await;
    let mut watch = queue(&one, &third).await;
    assert!(release(&other, &second).await);
    gets_its_turn(&one, &third, &mut watch).await;
}
