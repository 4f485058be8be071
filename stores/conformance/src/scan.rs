//! Listing the locks page by page.

use std::collections::BTreeMap;

use lock_core::store::{Cursor, ScanRequest};

use super::*;

/// Maximum number of pages, more than any store needs for the keys of a test.
const MANY_PAGES: usize = 10_000;

type Found = BTreeMap<String, LockStatus>;

/// Adds a page to the locks found, and returns the cursor of the next.
async fn next_page(
    store: &Arc<dyn LockStore>,
    prefix: &str,
    cursor: Option<Cursor>,
    found: &mut Found,
) -> Option<Cursor> {
    let request = ScanRequest { prefix: prefix.to_owned(), cursor, timeout: PATIENCE };
    let page = store.scan(request).await.unwrap();
    // A lock may be found twice.
    found.extend(page.locks.into_iter().map(|(key, status)| (key.as_str().to_owned(), status)));
    page.next
}

async fn scan(store: &Arc<dyn LockStore>, prefix: &str) -> Found {
    let (mut found, mut cursor) = (Found::new(), None);
    for _ in 0..MANY_PAGES {
        match next_page(store, prefix, cursor, &mut found).await {
            next @ Some(_) => cursor = next,
            None => return found,
        }
    }
    panic!("no end after {MANY_PAGES} pages");
}

async fn found(store: &Arc<dyn LockStore>, prefix: &str) -> Vec<String> {
    scan(store, prefix).await.into_keys().collect()
}

pub async fn scan_finds_locks_of_every_kind(Subject { store, other, .. }: Subject) {
    assert!(found(&store, "").await.is_empty());
    let kinds = [("m", Kind::Mutex), ("f", Kind::Fair), ("r", Kind::Read), ("w", Kind::Write)];
    let has = |kind| abilities(|store| store.has(kind));
    let kinds: Vec<_> = kinds.into_iter().filter(|(_, kind)| has(*kind)).collect();
    for &(name, kind) in &kinds {
        grant(&store, wish(kind, name, 1).tokens(3)).await;
    }
    if has(Kind::Read) {
        grant(&store, wish(Kind::Read, "r", 2)).await;
    }
    if has(Kind::Fair) {
        busy(&store, waiting(Kind::Fair, "f", 2)).await;
    }
    let found = scan(&other, "").await;
    assert_eq!(found.len(), kinds.len(), "{found:?}");
    for (name, kind) in kinds {
        let seen = &found[name];
        let status = status(&store, name).await;
        assert_eq!((seen.kind, status.kind), (Some(kind), Some(kind)));
        assert_eq!((&seen.holders, seen.last_token), (&status.holders, status.last_token));
        assert!(seen.remaining.is_some_and(|left| is_left_of(left, long())), "{seen:?}");
    }
    assert!(!has(Kind::Read) || found["r"].holders.len() == 2, "{found:?}");
    assert!(!has(Kind::Fair) || found["f"].waiters == 1, "{found:?}");
}

pub async fn scan_finds_nothing_that_is_free(Subject { store, other, .. }: Subject) {
    grant_each(&store, &["released", "held"], 1, long()).await;
    grant(&store, leased(&["expired"], 1, short())).await;
    release(&store, giving_back(items(&["released"], 1))).await;
    if abilities(|store| store.fair) {
        // A free key with a waiter.
        grant(&store, AcquireRequest::new(vec![item_of(Kind::Fair, "queued", 1)], short(), PATIENCE)).await;
        busy(&store, waiting(Kind::Fair, "queued", 2)).await;
    }
    let _watch = watch(&store, &["watched"]).await;
    rest(short_is_over()).await;
    assert_eq!(found(&other, "").await, ["held"]);
}

pub async fn scan_takes_its_prefix_literally(Subject { store, .. }: Subject) {
    let names = ["a*c:1", "a*c:2", "abc:1", "a?c:1", "[ab]:1", "a:1", "b:1", r"a\b:1", "ab:1"];
    grant_each(&store, &names, 1, long()).await;
    assert_eq!(found(&store, "a*").await, ["a*c:1", "a*c:2"]);
    assert_eq!(found(&store, "a?").await, ["a?c:1"]);
    assert_eq!(found(&store, "[ab]").await, ["[ab]:1"]);
    assert_eq!(found(&store, r"a\").await, [r"a\b:1"]);
    assert_eq!(found(&store, "a*c:2").await, ["a*c:2"]);
    assert_eq!(found(&store, "c").await, [""; 0]);
    assert_eq!(found(&store, "").await.len(), names.len());
}

pub async fn scan_goes_through_many_locks(Subject { store, .. }: Subject) {
    let names: Vec<_> = (0..1000).map(|number| format!("many:{number:04}")).collect();
    for chunk in names.chunks(50) {
        let names: Vec<_> = chunk.iter().map(String::as_str).collect();
        grant_each(&store, &names, 1, long()).await;
    }
    grant_each(&store, &["few:1", "few:2"], 1, long()).await;
    assert_eq!(found(&store, "many:").await, names);
    assert_eq!(found(&store, "few:").await, ["few:1", "few:2"]);
}

pub async fn a_lock_that_stays_is_found_while_others_come_and_go(Subject { store, other, .. }: Subject) {
    let stays: Vec<_> = (0..600).map(|number| format!("stays:{number:03}")).collect();
    for chunk in stays.chunks(50) {
        let names: Vec<_> = chunk.iter().map(String::as_str).collect();
        grant_each(&store, &names, 1, long()).await;
    }
    let (mut found, mut cursor) = (Found::new(), None);
    for round in 0..MANY_PAGES {
        cursor = next_page(&other, "", cursor, &mut found).await;
        if cursor.is_none() {
            break;
        }
        if round < 20 {
            let names: Vec<_> = (0..30).map(|number| format!("goes:{round}:{number}")).collect();
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            grant_each(&store, &names, 1, long()).await;
            release_each(&store, &names, 1).await;
        }
    }
    assert_eq!(cursor, None);
    assert!(stays.iter().all(|name| found.contains_key(name)));
}
