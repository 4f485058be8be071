//! Rows: what they look like, what is foreign, and when they go.

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{
    AcquireRequest, Acquired, Item, Kind, LockStore, ReleaseRequest, RenewItem, RenewRequest, Renewed,
    StoreErrorKind,
};
use lock_core::{LockKey, OwnerId, TokenRetention};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Row, SqliteConnection};

use super::*;
use crate::SqlStore;
use crate::call::Call;
use crate::links::Links;
use crate::options::Options;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn item(key: &str, owner: &str) -> Item {
    Item { key: LockKey::new(key).unwrap(), kind: Kind::Mutex, owner: OwnerId::new(owner) }
}

pub(crate) fn request(keys: &[&str], owner: &str, lease: Duration, timeout: Duration) -> Arc<AcquireRequest> {
    let items: Vec<_> = keys.iter().map(|key| item(key, owner)).collect();
    Arc::new(AcquireRequest::new(items, lease, timeout).retention(TokenRetention::For(Duration::ZERO)))
}

pub(crate) async fn granted(store: &SqlStore, key: &str, owner: &str) -> bool {
    let answer = store.acquire(request(&[key], owner, 60 * SECOND, 5 * SECOND)).await.unwrap();
    matches!(answer, Acquired::Granted(_))
}

pub(crate) async fn released(store: &SqlStore, key: &str, owner: &str) -> bool {
    store.release(release(&[key], owner, 5 * SECOND)).await.unwrap().held[0]
}

pub(crate) fn release(keys: &[&str], owner: &str, timeout: Duration) -> Arc<ReleaseRequest> {
    let items = keys.iter().map(|key| item(key, owner)).collect();
    Arc::new(ReleaseRequest { items, linger: Duration::ZERO, then: None, own_watch: None, timeout })
}

struct File {
    folder: tempfile::TempDir,
    store: Arc<SqlStore>,
}

fn file() -> File {
    let folder = tempfile::tempdir().unwrap();
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(folder.path().join("locks.db"));
    let store = sqlite(options, &settings(""));
    File { folder, store }
}

impl File {
    async fn run(&self, sql: &str) -> Vec<sqlx::sqlite::SqliteRow> {
        let path = self.folder.path().join("locks.db");
        let mut connection = SqliteConnection::connect(path.to_str().unwrap()).await.unwrap();
        sqlx::query(sql).fetch_all(&mut connection).await.unwrap()
    }
}

/// Programs of other versions and operators read this.
#[tokio::test]
async fn a_row_is_as_documented() {
    let file = file();
    assert!(granted(&file.store, "a", "owner:1").await);
    let rows = file
        .run("SELECT class, name, length(version), token, until, kept_until, record FROM lock_records")
        .await;
    let [row] = &rows[..] else { panic!("{} rows", rows.len()) };
    assert_eq!((row.get::<&str, _>(0), row.get::<&str, _>(1), row.get::<i64, _>(2)), ("lock", "a", 32));
    let (token, until, kept): (i64, i64, i64) = (row.get(3), row.get(4), row.get(5));
    assert!(token > until - 61_000_000 && until == kept, "{token} {until} {kept}");
    assert_eq!(row.get::<String, _>(6), format!(r#"{{"held":["owner:1",{until}]}}"#));
}

#[tokio::test]
async fn a_foreign_record_is_named_and_left_alone() {
    let file = file();
    assert!(granted(&file.store, "a", "owner:1").await && granted(&file.store, "b", "owner:1").await);
    for foreign in [r#"{"held":["owner:1",1],"new":1}"#, "[1]", "", "{\"held\":3}"] {
        file.run(&format!("UPDATE lock_records SET record = '{foreign}' WHERE name = 'a'")).await;
        let error = file.store.acquire(request(&["a"], "owner:2", SECOND, SECOND)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{error}");
        assert!(error.to_string().contains("\"a\" in lock_records"), "{error}");

        let items = ["a", "b"].map(|key| RenewItem::hold(item(key, "owner:1"), 60 * SECOND));
        let waiter = RenewItem::waiter(item("a", "owner:2"), 60 * SECOND);
        let items = items.into_iter().chain([waiter.clone()]).collect();
        let renewed = file.store.renew(Arc::new(RenewRequest { items, timeout: SECOND })).await.unwrap();
        assert_eq!(renewed, [Renewed::Unknown, Renewed::Held, Renewed::Unknown], "it costs no other item");
        let renew = RenewRequest { items: vec![waiter], timeout: SECOND };
        assert_eq!(file.store.renew(Arc::new(renew)).await.unwrap(), [Renewed::Unknown]);

        let rows = file.run("SELECT record FROM lock_records WHERE name = 'a'").await;
        assert_eq!(rows[0].get::<&str, _>(0), foreign);
    }
}

/// A row is swept when nothing in it counts, and the next token will be larger without it.
#[tokio::test]
async fn a_row_goes_only_when_its_token_is_behind_the_clock() {
    let file = file();
    for key in ["over", "held", "ahead", "kept"] {
        assert!(granted(&file.store, key, "owner:1").await);
    }
    file.run("UPDATE lock_records SET until = 1, kept_until = 1 WHERE name <> 'held'").await;
    file.run("UPDATE lock_records SET token = token - 2000000 WHERE name = 'over'").await;
    file.run("UPDATE lock_records SET token = token + 3600000000 WHERE name = 'ahead'").await;
    file.run("UPDATE lock_records SET kept_until = 9223372036854775807 WHERE name = 'kept'").await;
    file.store.store().sweep().await.unwrap();
    let rows = file.run("SELECT name FROM lock_records ORDER BY name").await;
    let names: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(names, ["ahead", "held", "kept"]);
}

#[tokio::test]
async fn a_record_has_a_limit_and_what_is_there_goes_on() {
    let file = file();
    let owner = |number: usize| OwnerId::new(format!("{}:{number}", "o".repeat(1000)));
    let read = |number| {
        let item = Item { key: LockKey::new("a").unwrap(), kind: Kind::Read, owner: owner(number) };
        Arc::new(AcquireRequest::new(vec![item], 60 * SECOND, 5 * SECOND))
    };
    let mut readers = 0;
    let error = loop {
        match file.store.acquire(read(readers)).await {
            Ok(answer) => assert!(matches!(answer, Acquired::Granted(_))),
            Err(error) => break error,
        }
        readers += 1;
    };
    assert_eq!(error.kind(), StoreErrorKind::TooManyWaiters, "{error}");
    assert!((200..300).contains(&readers), "{readers}");
    let items = read(0).items.iter().map(|item| RenewItem::hold(item.clone(), 90 * SECOND)).collect();
    let renewed = file.store.renew(Arc::new(RenewRequest { items, timeout: 5 * SECOND })).await.unwrap();
    assert_eq!(renewed, [Renewed::Held]);
}

#[tokio::test]
async fn a_database_in_memory_is_refused() {
    for url in ["sqlite::memory:", "sqlite://file:x?mode=memory", "sqlite:"] {
        let error = sqlite(url.parse().unwrap(), &settings("")).check().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{url}: {error}");
    }
}

/// If many wait for too few connections, those that get one would all be late, and close it.
#[tokio::test]
async fn a_call_that_is_almost_over_leaves_the_connection_to_others() {
    let file = file();
    let options = SqliteConnectOptions::new().filename(file.folder.path().join("locks.db"));
    let links = Links::new(Options::Sqlite(Box::new(options.create_if_missing(true))), 1);
    let link = links.take().await.unwrap();
    let call = |timeout| Call::new(file.store.store(), &links, timeout);
    let free = async {
        tokio::time::sleep(SECOND * 19 / 20).await;
        link.give_back();
    };
    let late = call(SECOND);
    let (late, ()) = tokio::join!(late.link(), free);
    assert!(late.is_err());
    call(60 * SECOND).link().await.unwrap();
}

#[tokio::test]
async fn what_was_released_is_free_for_others() {
    let file = file();
    for owner in ["owner:1", "owner:2", "owner:3"] {
        assert!(granted(&file.store, "a", owner).await);
        assert!(!granted(&file.store, "a", "other").await);
        assert!(released(&file.store, "a", owner).await);
        assert!(!released(&file.store, "a", owner).await);
    }
}
