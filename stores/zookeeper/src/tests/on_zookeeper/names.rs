//! Names of locks, directories that come and go, foreign nodes, and lists.

use lock_core::store::{ScanRequest, StoreErrorKind};

use super::*;

#[tokio::test]
async fn a_directory_that_was_deleted_is_made_again() {
    let (store, root) = new_store();
    let request = waiting(Kind::Mutex, "a", 1);
    for _ in 0..3 {
        assert!(granted(&store, &request).await && release(&store, &request).await);
        client().await.delete(&format!("{root}/a"), None).await.unwrap();
    }
}

#[tokio::test]
async fn a_child_that_is_no_entry_is_named_and_nothing_is_left() {
    let (store, root) = new_store();
    let nested = waiting(Kind::Mutex, "order/42", 1);
    assert!(granted(&store, &nested).await);
    let error = ask(&store, &waiting(Kind::Mutex, "order", 2)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ForeignData);
    assert!(error.to_string().contains("no entry of a lock: 42"), "{error}");
    assert_eq!(nodes(&format!("{root}/order")).await, ["42"]);
    assert!(release(&store, &nested).await);
}

#[tokio::test]
async fn a_lock_below_an_entry_is_refused() {
    let (store, _) = new_store();
    let error = ask(&store, &waiting(Kind::Mutex, "a/lock-0000000001/b", 2)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported);
    assert!(error.to_string().contains("looks like an entry"), "{error}");
}

#[tokio::test]
async fn numbers_that_are_about_to_end_are_refused() {
    let (store, root) = new_store();
    let other = client().await;
    other.mkdir(&format!("{root}/a"), &PERSISTENT).await.unwrap();
    other.create(&format!("{root}/a/lock-2147483000"), b"", &PERSISTENT).await.unwrap();
    let error = ask(&store, &waiting(Kind::Mutex, "a", 2)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ForeignData);
    assert!(error.to_string().contains("about to end"), "{error}");
    assert_eq!(nodes(&format!("{root}/a")).await, ["lock-2147483000"]);
}

#[tokio::test]
async fn a_scan_finds_nested_locks_and_goes_on_behind_a_page() {
    let (store, _) = new_store();
    let mut keys: Vec<_> = (0..120).map(|number| format!("k{number:03}")).collect();
    keys.extend(["order/7".to_owned(), "order/8/x".to_owned()]);
    for key in &keys {
        assert!(granted(&store, &trying(Kind::Mutex, key, 1, 60 * SECOND)).await);
    }
    let scan = |prefix: &str, cursor| ScanRequest { prefix: prefix.to_owned(), cursor, timeout: SLACK };
    let (mut found, mut pages, mut cursor) = (Vec::new(), 0, None);
    loop {
        let page = store.scan(scan("", cursor)).await.unwrap();
        found.extend(page.locks.into_iter().map(|(key, _)| key.to_string()));
        pages += 1;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    found.sort();
    assert_eq!((found, pages), (keys, 2));
    for (prefix, found) in [("k11", 10), ("order/", 2), ("order/8", 1), ("orders", 0)] {
        assert_eq!(store.scan(scan(prefix, None)).await.unwrap().locks.len(), found, "{prefix}");
    }
}

#[tokio::test]
async fn a_check_leaves_nothing() {
    let (store, root) = new_store();
    store.check().await.unwrap();
    assert_eq!(nodes(&root).await, [crate::names::SESSIONS]);
    let left = nodes(&format!("{root}/{}", crate::names::SESSIONS)).await;
    assert!(left.iter().all(|name| !name.starts_with("check")), "{left:?}");
}

#[tokio::test]
async fn a_user_without_rights_is_told() {
    let root = new_root();
    let hosts = SERVER.connect_string();
    let admin = Client::connector().with_auth("digest", b"ann:secret").connect(&hosts).await.unwrap();
    let only_admin = CreateMode::Persistent.with_acls(Acls::creator_all());
    admin.create(&root, b"", &only_admin).await.unwrap();
    let stranger = store(&url(&root), "");
    let error = stranger.check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Denied);
    assert!(error.to_string().contains("create, delete, read and write"), "{error}");
    let address = SERVER.url().replace("zookeeper://", "zookeeper://ann:secret@");
    let ann = store(&format!("{address}{root}?{OPTIONS}"), "");
    ann.check().await.unwrap();
    assert!(granted(&ann, &trying(Kind::Mutex, "a", 1, SECOND)).await);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable() {
    let store = store("zookeeper://127.0.0.1:1/", "");
    let error = ask(&store, &trying(Kind::Mutex, "a", 1, SECOND)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
}
