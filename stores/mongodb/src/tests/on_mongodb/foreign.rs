//! Documents: what they look like, what is foreign, and when they go.

use lock_core::store::StoreErrorKind;

use super::*;

/// Programs of other versions and operators read this.
#[tokio::test]
async fn a_document_is_as_documented() {
    let prefix = new_prefix();
    assert!(granted(&store(&SERVER.url(), &prefix), "a", "owner:1").await);
    let found = document(&SERVER, &format!("{prefix}a"));
    assert_eq!(found.get_str("version").unwrap().len(), 32);
    let number = |field| found.get_i64(field).unwrap();
    let (token, until, kept) = (number("token"), number("until"), number("kept_until"));
    assert!(token > until - 61_000_000 && until == kept, "{found}");
    // The token is of the time at which the step was made, which is not far from that of the write.
    assert!((token - 101_000..=token + 250_000).contains(&number("changed_at")), "{found}");
    assert_eq!(found.get_str("record").unwrap(), format!(r#"{{"held":["owner:1",{until}]}}"#));
    let mut fields: Vec<&str> = found.keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["_id", "changed_at", "kept_until", "record", "token", "until", "version"]);
}

/// It is named, left alone, and costs no other key. One process knows the document, the other
/// does not.
#[tokio::test]
async fn a_foreign_document_is_named_and_left_alone() {
    let prefix = new_prefix();
    let (ours, new) = (store(&SERVER.url(), &prefix), store(&SERVER.url(), &prefix));
    for key in ["a", "b", "c"] {
        assert!(granted(&ours, key, "owner:1").await && granted(&new, &format!("{key}2"), "owner:1").await);
    }
    let id = format!("lock:{prefix}a");
    let whole = document(&SERVER, &format!("{prefix}a"));
    let with = |field: &str, value: Document| {
        let mut document = whole.clone();
        document.remove(field);
        document.extend(value);
        document
    };
    let foreign = [
        doc! { "_id": &id, "note": "mine" },
        with("version", doc! {}),
        with("version", doc! { "version": 7 }),
        with("token", doc! {}),
        with("token", doc! { "token": "7" }),
        with("token", doc! { "token": 7.5 }),
        with("until", doc! {}),
        with("until", doc! { "until": "later" }),
        with("until", doc! { "until": 7 }),
        with("kept_until", doc! { "kept_until": [1_i64] }),
        with("changed_at", doc! { "changed_at": "then" }),
        with("record", doc! {}),
        with("record", doc! { "record": 7 }),
        with("record", doc! { "record": { "held": 7 } }),
        with("record", doc! { "record": "[1]" }),
        with("record", doc! { "record": r#"{"held":["owner:1",1],"new":1}"# }),
    ];
    for foreign in foreign {
        change(&SERVER, &format!("{prefix}a"), foreign.clone());
        for store in [&ours, &new] {
            let error = store.acquire(request(&["a"], "owner:2", SECOND, SLACK)).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{foreign}: {error}");
            assert!(error.to_string().contains("a\" in lock_records"), "{error}");
            let error = store.acquire(request(&["a", "d"], "owner:2", SECOND, SLACK)).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{foreign}: {error}");
            let held = renewed(store, &["b", "a", "c"], "owner:1").await;
            assert_eq!(held, [Renewed::Held, Renewed::Unknown, Renewed::Held], "{foreign}");
            assert_eq!(renewed(store, &["a"], "owner:1").await, [Renewed::Unknown], "{foreign}");
            let error = store.withdraw(request(&["a"], "owner:2", SECOND, SECOND)).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{foreign}: {error}");
            let reader = Item { kind: Kind::Read, ..item("a", "owner:2") };
            let _ = store.watch(Arc::new(AcquireRequest::new(vec![reader], SECOND, SLACK))).await.unwrap();
        }
        assert_eq!(document(&SERVER, &format!("{prefix}a")), foreign, "it is left alone");
    }
    assert!(!is_held(&ours, "d").await);
}

/// A document is swept when nothing in it counts, and the next token will be larger without it.
#[tokio::test]
async fn a_document_goes_only_when_its_token_is_behind_the_clock() {
    // Others would go too.
    SERVER.command(doc! { "create": COLLECTION, "$db": "swept" });
    let store = store(&SERVER.url().replace("/locks", "/swept"), "");
    let update = |key: &str, update: Document| {
        let update = doc! { "q": { "_id": format!("lock:{key}") }, "u": { "$set": update } };
        SERVER.command(doc! { "update": COLLECTION, "updates": [update], "$db": "swept" });
    };
    for key in ["ahead", "foreign", "held", "kept", "over", "withdrawn"] {
        assert!(granted(&store, key, "owner:1").await);
        if key != "held" {
            update(key, doc! { "until": 1_i64, "kept_until": 1_i64, "token": 1_i64 });
        }
    }
    update("ahead", doc! { "token": i64::MAX / 2 });
    update("kept", doc! { "kept_until": i64::MAX / 2 });
    update("withdrawn", doc! { "withdrawn_at": i64::MAX / 2 });
    update("foreign", doc! { "token": 1_i32 });
    store.store().sweep().await.unwrap();
    let found = SERVER.command(doc! { "find": COLLECTION, "sort": { "_id": 1 }, "$db": "swept" });
    let batch = found.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).unwrap();
    let left: Vec<&str> =
        batch.iter().map(|document| document.as_document().unwrap().get_str("_id").unwrap()).collect();
    assert_eq!(left, ["lock:ahead", "lock:foreign", "lock:held", "lock:kept", "lock:withdrawn"]);
}

/// The collection is made again by the next step.
#[tokio::test]
async fn a_collection_that_was_dropped_is_made_again() {
    let url = SERVER.url().replace("/locks", "/dropped");
    let (one, other) = (store(&url, ""), store(&url, ""));
    for keys in [&["a"][..], &["a", "b"]] {
        assert!(took(&one, keys, "owner:1").await && !granted(&other, "a", "owner:2").await);
        SERVER.command(doc! { "drop": COLLECTION, "$db": "dropped" });
        let lost = renewed(&one, keys, "owner:1").await;
        assert!(lost.iter().all(|each| *each == Renewed::Gone), "{lost:?}");
        assert!(took(&other, keys, "owner:2").await && !granted(&one, "a", "owner:1").await);
        assert_eq!(
            other.release(release(keys, "owner:2", SLACK)).await.unwrap().held,
            vec![true; keys.len()]
        );
    }
}

#[tokio::test]
async fn a_record_has_a_limit_and_what_is_there_goes_on() {
    let store = store(&SERVER.url(), &new_prefix());
    let owner = |number: usize| OwnerId::new(format!("{}:{number}", "o".repeat(4000)));
    let read = |number| {
        let item = Item { key: LockKey::new("a").unwrap(), kind: Kind::Read, owner: owner(number) };
        Arc::new(AcquireRequest::new(vec![item], 60 * SECOND, SLACK))
    };
    let mut readers = 0;
    let error = loop {
        match store.acquire(read(readers)).await {
            Ok(answer) => assert!(matches!(answer, Acquired::Granted(_))),
            Err(error) => break error,
        }
        readers += 1;
    };
    assert_eq!(error.kind(), StoreErrorKind::TooManyWaiters, "{error}");
    assert!((50..80).contains(&readers), "{readers}");
    let items = read(0).items.iter().map(|item| RenewItem::hold(item.clone(), 90 * SECOND)).collect();
    let renewed = store.renew(Arc::new(RenewRequest { items, timeout: SLACK })).await.unwrap();
    assert_eq!(renewed, [Renewed::Held]);
}

/// An answer or a command of the server has at most 16 MB.
#[tokio::test]
async fn records_that_are_long_together_are_renewed() {
    let prefix = new_prefix();
    let store = store(&SERVER.url(), &prefix);
    let keys: Vec<String> = (0..72).map(|number| format!("k{number}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert!(took(&store, &keys, "owner:1").await);
    let waiters = (0..64).map(|number| {
        let item = Item { kind: Kind::Fair, ..item(keys[0], &format!("{}:{number}", "o".repeat(3900))) };
        let wish = AcquireRequest::new(vec![item], 60 * SECOND, SLACK).queued(600 * SECOND);
        tokio::spawn(store.acquire(Arc::new(wish)))
    });
    for waiter in waiters.collect::<Vec<_>>() {
        assert!(matches!(waiter.await.unwrap().unwrap(), Acquired::Busy(_)));
    }
    let long = document(&SERVER, &format!("{prefix}k0")).get_str("record").unwrap().to_owned();
    assert!(long.len() * keys.len() > 17 << 20, "{}", long.len());
    for key in &keys {
        change(&SERVER, &format!("{prefix}{key}"), doc! { "$set": { "record": &long } });
    }
    assert_eq!(renewed(&store, &keys, "owner:1").await, vec![Renewed::Held; keys.len()]);
    let held = store.release(release(&keys, "owner:1", SLACK)).await.unwrap().held;
    assert_eq!(held, vec![true; keys.len()]);
}

/// Names at their longest, and such that look alike.
#[tokio::test]
async fn names_that_differ_are_different() {
    let (one, other) = (store(&SERVER.url(), &new_prefix()), store(&SERVER.url(), &new_prefix()));
    let long = "\u{e9}".repeat(2047);
    let names = [
        "a",
        "A",
        "a ",
        " a",
        "\u{e1}",
        "a\u{301}",
        "$a",
        "a.b",
        "$where",
        "a\\",
        "{\"$gt\":\"\"}",
        "\u{1f512}",
        "lock:a",
        "a:b",
        "\u{e9}\u{1f512} '\\\" %_",
        &format!("{long}a"),
        &format!("{long}b"),
    ];
    for name in names {
        assert!(granted(&one, name, "owner:$1").await, "{name:?}");
    }
    for name in names {
        assert!(!granted(&one, name, "owner:2").await && granted(&other, name, "owner:2").await, "{name:?}");
    }
    let held = renewed(&one, &names, "owner:$1").await;
    assert_eq!(held, vec![Renewed::Held; names.len()]);
    for name in names {
        assert!(released(&one, name, "owner:$1").await, "{name:?}");
    }
    assert!(took(&one, &names, "owner:$$NOW").await);
}
