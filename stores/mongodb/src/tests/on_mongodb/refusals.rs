//! Settings that lose grants, servers that can't have locks, and rights that are missing.

use lock_core::store::StoreErrorKind;
use lock_test_servers::tls::Authority;
use mongodb::options::{Acknowledgment, ClientOptions, WriteConcern};

use super::*;

fn refusal(target: Target) -> String {
    let error = open(target, &settings("")).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    error.to_string()
}

fn at(url: &str) -> Target {
    Target::Address(Box::new(ConnectionString::parse(url).unwrap()))
}

/// A grant that only the primary has, or that is not on its disk, is undone by an election.
#[tokio::test]
async fn a_write_concern_that_loses_grants_is_refused() {
    for (option, said) in [
        ("w=1", "`w=1`"),
        ("w=0", "`w=0`"),
        ("w=2", "`w=2`"),
        ("w=near", "`w=near`"),
        ("journal=false", "`journal=false`"),
    ] {
        let url = format!("mongodb://127.0.0.1:1/locks?{option}");
        let error = refusal(at(&url));
        assert!(error.contains(said), "{error}");
        let options = ClientOptions::parse(&url).await.unwrap();
        let error = refusal(Target::Options(Box::new(options)));
        assert!(error.contains(said), "{error}");
    }
    for options in ["w=majority", "journal=true&w=majority", "readConcernLevel=local", "wtimeoutMS=5"] {
        open(at(&format!("mongodb://127.0.0.1:1/locks?{options}")), &settings("")).unwrap();
    }
}

#[tokio::test]
async fn an_address_without_a_database_is_refused() {
    for url in ["mongodb://127.0.0.1:1", "mongodb://127.0.0.1:1/", "mongodb://127.0.0.1:1/?w=majority"] {
        assert!(refusal(at(url)).contains("`mongodb://host/DATABASE`"));
        let options = ClientOptions::parse(url).await.unwrap();
        assert!(refusal(Target::Options(Box::new(options))).contains("`default_database`"));
    }
}

/// A read or a write with them would lose grants.
#[tokio::test]
async fn other_concerns_of_a_client_do_not_count() {
    let prefix = new_prefix();
    let more = "&readPreference=secondary&readConcernLevel=local&retryWrites=true&wtimeoutMS=1";
    let other = store(&SERVER.url(), &prefix);
    let mut options = ClientOptions::parse(format!("{}{more}", SERVER.url())).await.unwrap();
    options.write_concern =
        Some(WriteConcern::builder().w(Acknowledgment::Majority).w_timeout(SECOND / 1000).build());
    let ours = open(Target::Options(Box::new(options)), &settings(&prefix)).unwrap();
    assert!(granted(&ours, "a", "owner:1").await && !granted(&other, "a", "owner:2").await);
    assert!(took(&ours, &["b", "c"], "owner:1").await && !took(&other, &["c", "d"], "owner:2").await);
}

/// The certificate has to be that of the authority.
#[tokio::test]
async fn tls_checks_the_certificate() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let folders = [&authority, &stranger].map(|it| it.certificate_for("127.0.0.1").unwrap());
    let [files, others] = folders.each_ref().map(|folder| folder.path().display());
    // The test itself uses none.
    let [key, ca] = [format!("tlsCertificateKeyFile={files}/both.pem"), format!("tlsCAFile={files}/ca.pem")];
    let tls = ["tlsMode=preferTLS", "tlsAllowConnectionsWithoutCertificates", &key, &ca];
    let server = MongoDbServer::try_start_in(&std::env::temp_dir(), &tls).unwrap();
    let url = |ca| format!("{}&tls=true&tlsCAFile={ca}/ca.pem", server.url());
    let plain = store(&server.url(), "");
    let ours = store(&url(files), "");
    assert!(granted(&ours, "a", "owner:1").await && !granted(&plain, "a", "owner:2").await);
    assert!(took(&ours, &["b", "c"], "owner:1").await);
    let settings = Settings { call_timeout: 3 * SECOND, ..settings("") };
    let theirs = open(at(&url(others)), &settings).unwrap();
    let error = theirs.acquire(request(&["d"], "owner:1", SECOND, 3 * SECOND)).await;
    let error = error.unwrap_err();
    assert!(
        error.kind() == StoreErrorKind::Unreachable && error.to_string().contains("certificate"),
        "{error}"
    );
}

/// In the order of another language, names that differ are the same.
#[tokio::test]
async fn a_collection_that_compares_names_by_a_language_is_refused() {
    for (database, options, said) in [
        ("collated", doc! { "collation": { "locale": "en", "strength": 1 } }, "`collation`"),
        ("capped", doc! { "capped": true, "size": 1_000_000 }, "`capped`"),
        ("viewed", doc! { "viewOn": "others" }, "`viewOn`"),
    ] {
        let mut create = doc! { "create": COLLECTION, "$db": database };
        create.extend(options);
        SERVER.command(create);
        let store = store(&SERVER.url().replace("/locks", &format!("/{database}")), "");
        for _ in 0..2 {
            let error = store.acquire(request(&["a"], "owner:1", SECOND, SLACK)).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains(said), "{error}");
        }
        assert_eq!(store.check().await.unwrap_err().kind(), StoreErrorKind::Unsupported);
        // An operator drops it, and the same program goes on.
        SERVER.command(doc! { "drop": COLLECTION, "$db": database });
        assert!(granted(&store, "a", "owner:1").await && granted(&store, "A", "owner:1").await);
    }
}

/// It has no transactions, and no change streams.
#[tokio::test]
async fn a_server_alone_has_locks_of_one_key_and_is_polled() {
    let server = MongoDbServer::start_alone();
    let (one, other) = (store(&server.url(), ""), store(&server.url(), ""));
    one.check().await.unwrap();
    for kind in [Kind::Mutex, Kind::Fair, Kind::Write, Kind::Read] {
        let wish = |owner| {
            let item = Item { kind, ..item("a", owner) };
            Arc::new(AcquireRequest::new(vec![item], 60 * SECOND, SLACK).queued(60 * SECOND))
        };
        let answer = one.acquire(wish("owner:1")).await.unwrap();
        assert!(matches!(answer, Acquired::Granted(_)), "{kind:?}: {answer:?}");
        let second = other.acquire(wish("owner:2")).await.unwrap();
        assert_eq!(matches!(second, Acquired::Granted(_)), kind == Kind::Read, "{kind:?}: {second:?}");
        // Nobody is told.
        let watch = other.watch(wish("owner:2")).await.unwrap();
        assert!(!watch.is_confirmed(), "{kind:?}");
        assert!(gave_back(&one, &wish("owner:1")).await, "{kind:?}");
        let deadline = tokio::time::Instant::now() + SLACK;
        while !matches!(other.acquire(wish("owner:2")).await.unwrap(), Acquired::Granted(_)) {
            assert!(tokio::time::Instant::now() < deadline, "{kind:?}");
        }
        assert!(gave_back(&other, &wish("owner:2")).await, "{kind:?}");
    }
    for keys in [&["b", "c"][..], &["a", "b", "c"]] {
        let error = one.acquire(request(keys, "owner:1", SECOND, SLACK)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("`--replSet`"), "{error}");
    }
    for key in ["a", "b", "c"] {
        assert!(!is_held(&one, key).await);
    }
    // Renewals are no transactions.
    assert!(granted(&one, "b", "owner:1").await && granted(&one, "c", "owner:1").await);
    let held = renewed(&one, &["b", "none", "c"], "owner:1").await;
    assert_eq!(held, [Renewed::Held, Renewed::Gone, Renewed::Held]);
}

/// A user without a right is told which.
#[tokio::test]
async fn rights_and_passwords_that_are_missing_are_told() {
    let server = MongoDbServer::start_alone_with(&["auth"]);
    let root = doc! { "createUser": "root", "pwd": "secret", "roles": ["root"] };
    server.command(root);
    let url = |user: &str| format!("mongodb://{user}@{}/locks?authSource=admin", server.addr());
    let root = store(&url("root:secret"), "");
    root.check().await.unwrap();
    assert!(granted(&root, "a", "owner:1").await);
    let operator = Client::with_uri_str(url("root:secret")).await.unwrap().database("admin");
    let resource = doc! { "db": "locks", "collection": COLLECTION };
    let with = |rights: &[&str]| doc! { "resource": resource.clone(), "actions": rights.to_vec() };
    operator.run_command(doc! { "createRole": "app", "privileges": [], "roles": [] }).await.unwrap();
    operator.run_command(doc! { "createUser": "app", "pwd": "secret", "roles": ["app"] }).await.unwrap();
    let rights = ["find", "insert", "update", "remove"];
    for count in 0..rights.len() {
        let privileges: Vec<Document> = (count > 0).then(|| with(&rights[..count])).into_iter().collect();
        let update = doc! { "updateRole": "app", "privileges": privileges };
        operator.run_command(update).await.unwrap();
        let error = store(&url("app:secret"), "").check().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{:?}: {error}", &rights[..count]);
    }
    operator.run_command(doc! { "updateRole": "app", "privileges": [with(&rights)] }).await.unwrap();
    let app = store(&url("app:secret"), "");
    app.check().await.unwrap();
    assert!(granted(&app, "b", "owner:1").await && !granted(&app, "a", "owner:2").await);
    assert_eq!(renewed(&app, &["b", "a"], "owner:1").await, [Renewed::Held, Renewed::Held]);
    for user in ["app:wrong", "nobody:hunter2"] {
        let error = store(&url(user), "").check().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    let anonymous = store(&format!("mongodb://{}/locks", server.addr()), "");
    assert_eq!(anonymous.check().await.unwrap_err().kind(), StoreErrorKind::Denied);
}
