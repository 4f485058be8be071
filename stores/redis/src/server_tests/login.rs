//! The login of connections, and their names.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use lock_core::store::StoreErrorKind;

use super::sentinel_rig::sentinels_with;
use super::server::Fake;
use super::*;
use crate::credentials::{Credentials, Endpoint, Provider};

fn options_with(provider: Provider) -> RedisOptions {
    RedisOptions { login: Login::new("tests", Some(provider)), ..options() }
}

/// A provider whose answer can be changed, and the endpoints that it was asked for.
#[derive(Clone, Default)]
struct Vault {
    password: Arc<Mutex<Option<String>>>,
    asked: Arc<Mutex<Vec<Endpoint>>>,
}

impl Vault {
    fn of(password: &str) -> Self {
        let vault = Self::default();
        vault.set(password);
        vault
    }

    fn set(&self, password: &str) {
        *self.password.lock().unwrap() = Some(password.to_owned());
    }

    fn options(&self) -> RedisOptions {
        let vault = self.clone();
        let provider = Provider::new(move |endpoint: Endpoint| {
            vault.asked.lock().unwrap().push(endpoint);
            let password = vault.password.lock().unwrap().clone();
            async move { password.map(|password| Credentials::user("ann", password)).ok_or("sealed") }
        });
        options_with(provider)
    }

    fn asked(&self) -> Vec<Endpoint> {
        self.asked.lock().unwrap().clone()
    }
}

async fn allow(server: &RedisServer, password: &str) {
    let password = format!(">{password}");
    let _: () =
        server.ask(&["ACL", "SETUSER", "ann", "on", "resetpass", &password, "~*", "&*", "+@all"]).await;
}

#[tokio::test]
async fn a_rotated_password_is_used_at_the_next_connection() {
    let server = RedisServer::start();
    let vault = Vault::of("hunter2");
    allow(&server, "hunter2").await;
    let store = RedisStore::new(&server.client(), vault.options()).unwrap();
    let mine = [item("a")];
    granted(&store, &mine).await;
    let user: String = server.ask(&["CLIENT", "LIST"]).await;
    assert!(user.contains("user=ann"), "{user}");

    // The server gets the new password first, the vault a little later.
    allow(&server, "hunter3").await;
    server.kill_clients("normal").await;
    let error = until_refused(&store).await;
    assert_eq!(error.kind(), StoreErrorKind::NotReady, "{error}");
    assert!(error.to_string().contains("WRONGPASS"), "{error}");
    vault.set("hunter3");
    until("it gets in with the new one", async || {
        let kept = store.renew(renew_request(&mine, LEASE, Standing::Holder)).await;
        kept.is_ok_and(|kept| kept == [Renewed::Held])
    })
    .await;
    for secret in ["hunter2", "hunter3"] {
        assert!(!format!("{error} {error:?} {store:?}").contains(secret), "{error:?}");
    }
}

/// Servers that know when a token expires end the login but not the connection.
#[tokio::test]
async fn a_connection_that_is_logged_out_is_given_up() {
    let expired = Arc::new(AtomicBool::new(false));
    let (dials, told) = (Arc::new(AtomicU64::new(0)), Arc::clone(&expired));
    let counted = Arc::clone(&dials);
    let fake = Fake::start(move |words| match words[0].as_str() {
        "HELLO" => {
            counted.fetch_add(1, Ordering::SeqCst);
            told.store(false, Ordering::SeqCst);
            "%1\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n".to_owned()
        }
        "TIME" => "*2\r\n$10\r\n1700000000\r\n$1\r\n1\r\n".to_owned(),
        "CLIENT" => "+OK\r\n".to_owned(),
        _ if told.load(Ordering::SeqCst) => "-NOAUTH Authentication required.\r\n".to_owned(),
        _ => ":1\r\n".to_owned(),
    })
    .await;
    let store = RedisStore::new(&fake.client(), Vault::of("hunter2").options()).unwrap();
    let mine = [item("a")];
    assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
    expired.store(true, Ordering::SeqCst);
    let error = release(&store, &mine).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotReady, "{error}");
    assert_eq!(release(&store, &mine).await.unwrap().held, [true], "with another login");
    assert_eq!(dials.load(Ordering::SeqCst), 2);
}

/// Returns the error of a call that was refused, not of one under way when its connection broke.
async fn until_refused(store: &RedisStore) -> StoreError {
    let give_up = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        assert!(tokio::time::Instant::now() < give_up, "it is never refused");
        match acquire(store, &[item("b")]).await {
            Err(error) if error.kind() != StoreErrorKind::Unanswered => return error,
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

#[tokio::test]
async fn a_provider_that_fails_is_said_and_asked_again() {
    let server = RedisServer::start();
    let vault = Vault::default();
    allow(&server, "hunter2").await;
    let store = RedisStore::new(&server.client(), vault.options()).unwrap();
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("sealed"), "{error}");
    vault.set("hunter2");
    store.check().await.unwrap();
    assert!(vault.asked().iter().all(|asked| asked.address() == server.addr().to_string()));
}

#[tokio::test]
async fn the_sentinels_and_the_primary_that_they_name_get_credentials() {
    let set = sentinels_with(|options| options.password("hunter2").sentinel_password("swordfish"));
    let bare = set.url().replace(":hunter2@", "");
    let bare = bare.split('?').next().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let provider = Provider::new(move |endpoint: Endpoint| {
        let password = if endpoint.is_sentinel() { "swordfish" } else { "hunter2" };
        noted.lock().unwrap().push(endpoint);
        async move { Ok::<_, std::convert::Infallible>(Credentials::password(password)) }
    });
    let store = store_at(bare, options_with(provider));
    granted(&store, &[item("a")]).await;
    let asked = asked.lock().unwrap().clone();
    assert!(asked.iter().any(Endpoint::is_sentinel) && !asked.iter().all(Endpoint::is_sentinel), "{asked:?}");
}

#[tokio::test]
async fn what_the_url_says_is_used_when_the_provider_leaves_it_to_that() {
    let server = RedisServer::start();
    allow(&server, "hunter2").await;
    let provider = Provider::new(|_| async { Ok::<_, std::convert::Infallible>(Credentials::of_url()) });
    let store = RedisStore::new(&server.client_as("ann", "hunter2"), options_with(provider)).unwrap();
    granted(&store, &[item("a")]).await;
}

#[tokio::test]
async fn connections_are_called_after_their_manager() {
    let server = RedisServer::start();
    let store = store_with(&server, |options| options.login = Login::new("uuid", None));
    let mine = [item("a")];
    granted(&store, &mine).await;
    let watch = store.watch(Arc::new(request(&mine))).await.unwrap();
    let clients: String = server.ask(&["CLIENT", "LIST"]).await;
    assert_eq!(clients.matches("name=lock-uuid ").count(), 2, "{clients}");
    drop(watch);

    // A user without that right does not need it.
    let _: () =
        server.ask(&["ACL", "SETUSER", "bob", "on", ">x", "~*", "&*", "+@all", "-client|setname"]).await;
    let store = RedisStore::new(&server.client_as("bob", "x"), options()).unwrap();
    granted(&store, &[item("b")]).await;
}
