//! Writes that are late, transactions of others, and callers that leave.

use lock_core::store::{ServerTime, Withdrawn};
use lock_store_records::rows::{Found, Swap};
use lock_store_records::{Class, Name, Row};
use mongodb::ClientSession;
use mongodb::bson::{Bson, DateTime};
use mongodb::options::ClientOptions;

use super::*;
use crate::documents;

/// Replaces the primary's time in a command by another one.
fn at(time: DateTime, command: Document) -> Document {
    let replace = |value: Bson| match value {
        Bson::String(text) if text == "$$NOW" => time.into(),
        Bson::Document(document) => at(time, document).into(),
        Bson::Array(all) => all
            .into_iter()
            .map(|value| match at(time, doc! { "": value }).remove("") {
                Some(value) => value,
                None => unreachable!(),
            })
            .collect::<Vec<_>>()
            .into(),
        other => other,
    };
    command.into_iter().map(|(key, value)| (key, replace(value))).collect()
}

/// A blind write may begin before a withdrawal, and find the document after it. It has the time at
/// which it began.
#[tokio::test]
async fn a_late_write_that_a_withdrawal_has_overtaken_is_refused() {
    let prefix = new_prefix();
    let store = store(&SERVER.url(), &prefix);
    for (key, is_there) in [("absent", false), ("over", true)] {
        for is_withdrawn in [false, true] {
            let key = format!("{key} {is_withdrawn}");
            if is_there {
                assert!(granted(&store, &key, "owner:1").await && released(&store, &key, "owner:1").await);
            }
            tokio::time::sleep(SECOND / 50).await;
            let began = DateTime::now();
            tokio::time::sleep(SECOND / 50).await;
            if is_withdrawn {
                let unwanted = request(&[&key], "owner:2", SECOND, SECOND);
                unwanted.stamp(ServerTime::from_micros(1));
                assert_eq!(store.withdraw(unwanted).await.unwrap(), Withdrawn::Settled);
            }
            let until = 9_000_000_000_000_000;
            let text = format!(r#"{{"held":["owner:2",{until}]}}"#);
            let row = Row { token: until, until, kept_until: until, text };
            let after = Found { version: format!("late {key}"), row };
            let name = Name { class: Class::Lock, text: format!("{prefix}{key}").into() };
            let swap = |version| Swap {
                name: &name,
                after: &after,
                version,
                largest: i64::MAX,
                within: (0, i64::MAX),
                is_there,
                at: ServerTime::from_micros(0),
                events: &[],
                settles: false,
            };
            let late = |time| run(&SERVER, at(time, documents::swap(&swap(None), None)));
            let answer = late(began);
            let is_written = |answer: &Document| {
                answer.get_document("value").unwrap().get_str("version").unwrap() == after.version
            };
            assert_eq!(is_written(&answer), !is_withdrawn, "{answer}");
            assert_eq!(is_held(&store, &key).await, !is_withdrawn, "{key}");
            if is_withdrawn {
                // One that has begun since then is not the withdrawn one.
                assert!(is_written(&late(DateTime::now())), "{key}");
            }
        }
    }
}

/// The clock has been set back since, or a new primary's is behind.
#[tokio::test]
async fn a_withdrawal_that_is_ahead_of_the_clock_keeps_nobody_out() {
    let prefix = new_prefix();
    let (store, other) = (store(&SERVER.url(), &prefix), store(&SERVER.url(), &prefix));
    assert!(granted(&store, "a", "owner:1").await && released(&store, "a", "owner:1").await);
    let later = 1000 * DateTime::now().timestamp_millis() + 3_600_000_000;
    for (store, owner) in [(&store, "owner:2"), (&other, "owner:3"), (&store, "owner:4")] {
        change(&SERVER, &format!("{prefix}a"), doc! { "$set": { "withdrawn_at": later } });
        assert!(granted(store, "a", owner).await && released(store, "a", owner).await, "{owner}");
    }
}

/// Locks these documents in a transaction of another program.
async fn locking(client: &Client, prefix: &str, keys: &[&str], set: Document) -> ClientSession {
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let updates = keys.iter().map(|key| {
        let id = format!("lock:{prefix}{key}");
        doc! { "q": { "_id": id }, "u": [{ "$set": set.clone() }], "upsert": true }
    });
    let update = doc! { "update": COLLECTION, "updates": updates.collect::<Vec<_>>() };
    client.database("locks").run_command(update).session(&mut session).await.unwrap();
    session
}

/// A command may wait for a document for longer than its caller. Its time is that of its
/// beginning, so a withdrawal refuses it, or waits for it.
#[tokio::test]
async fn a_request_that_waited_too_long_for_a_document_takes_nothing() {
    let prefix = new_prefix();
    let (store, other) = (store(&SERVER.url(), &prefix), store(&SERVER.url(), &prefix));
    let client = stranger(&SERVER).await;
    for (keys, is_there) in
        [(&["absent"][..], false), (&["none", "none2"], false), (&["over"], true), (&["one", "two"], true)]
    {
        for key in keys.iter().filter(|_| is_there) {
            // Another program's grant: `store` knows nothing of the documents.
            assert!(granted(&other, key, "owner:1").await && released(&other, key, "owner:1").await);
        }
        store.check().await.unwrap();
        let mut session = locking(&client, &prefix, &keys[..1], doc! { "note": 1 }).await;
        let late = request(keys, "owner:2", 60 * SECOND, SECOND / 4);
        let error = store.acquire(Arc::clone(&late)).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        // In the same moment.
        let withdrawal = tokio::spawn(store.withdraw(Arc::clone(&late)));
        session.abort_transaction().await.unwrap();
        let mut withdrawn = withdrawal.await.unwrap().unwrap();
        while withdrawn != Withdrawn::Settled {
            withdrawn = store.withdraw(Arc::clone(&late)).await.unwrap();
        }
        for key in keys {
            assert!(!is_held(&other, key).await, "{keys:?}: {key}");
        }
        assert!(took(&other, keys, "owner:3").await, "{keys:?}");
    }
}

/// A grant that is under way when its request is withdrawn is found by the withdrawal, although
/// nobody else can see it.
#[tokio::test]
async fn a_withdrawal_waits_for_what_is_in_flight() {
    let prefix = new_prefix();
    let store = store(&SERVER.url(), &prefix);
    let client = stranger(&SERVER).await;
    for keys in [&["a"][..], &["b", "c"]] {
        let until = 9_000_000_000_000_000_i64;
        let text = format!(r#"{{"held":["owner:2",{until}]}}"#);
        let grant = doc! {
            "version": "in flight", "token": 7_i64, "until": until, "kept_until": until, "changed_at": 7_i64,
            "record": text,
        };
        let mut session = locking(&client, &prefix, keys, grant).await;
        let unwanted = request(keys, "owner:2", SECOND, SLACK);
        unwanted.stamp(ServerTime::from_micros(1));
        let withdrawal = tokio::spawn(store.withdraw(unwanted));
        tokio::time::sleep(SECOND / 4).await;
        assert!(!withdrawal.is_finished());
        assert!(!is_held(&store, keys[0]).await, "nobody sees it");
        session.commit_transaction().await.unwrap();
        assert_eq!(withdrawal.await.unwrap().unwrap(), Withdrawn::Settled);
        for key in keys {
            assert!(!is_held(&store, key).await, "{key}");
        }
    }
}

/// The server ends the transaction of a program that has stopped, and lets others have its
/// documents.
#[tokio::test]
async fn a_program_that_stops_in_a_transaction_keeps_documents_for_a_while() {
    let server = start_with_failures();
    let store = store(&server.url(), "");
    let client = stranger(&server).await;
    for keys in [&["a"][..], &["b", "c"]] {
        let mut stopped = locking(&client, "", &keys[..1], doc! { "note": 1 }).await;
        // Others are renewed meanwhile.
        assert!(granted(&store, "free", "owner:1").await);
        // On a busy machine, it is over soon.
        if let Err(error) = store.acquire(request(keys, "owner:2", SECOND, SECOND / 4)).await {
            assert!(error.is_transient(), "{error}");
        }
        assert_eq!(renewed(&store, &["free"], "owner:1").await, [Renewed::Held]);
        assert!(took(&store, keys, "owner:2").await, "{keys:?}");
        assert!(stopped.commit_transaction().await.is_err(), "its transaction was ended");
        assert!(is_held(&store, keys[0]).await);
        assert!(released(&store, "free", "owner:1").await);
    }
}

/// A process of ours that stands still in a transaction keeps a document until somebody needs it.
#[tokio::test]
async fn a_waiter_ends_an_abandoned_transaction_of_ours() {
    let prefix = new_prefix();
    let store = store(&SERVER.url(), &prefix);
    let mut options = ClientOptions::parse(SERVER.url()).await.unwrap();
    options.app_name = Some("lock-runtime".to_owned());
    let client = Client::with_options(options).unwrap();
    for keys in [&["a"][..], &["b", "c"]] {
        store.check().await.unwrap();
        let mut stopped = locking(&client, &prefix, &keys[..1], doc! { "note": 1 }).await;
        // The server alone would end it only after a minute.
        let answer = store.acquire(request(keys, "owner:2", 60 * SECOND, 30 * SECOND)).await.unwrap();
        assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
        assert!(stopped.commit_transaction().await.is_err(), "its transaction was ended");
    }
}

/// Documents that somebody else has locked cost only their own keys.
#[tokio::test]
async fn a_renewal_of_many_waits_for_no_document_that_is_locked() {
    let prefix = new_prefix();
    let store = store(&SERVER.url(), &prefix);
    let keys = ["a", "b", "c"];
    assert!(took(&store, &keys, "owner:1").await);
    let mut session = locking(&stranger(&SERVER).await, &prefix, &["b"], doc! { "note": 1 }).await;
    let held = store.renew(renewal(&keys, "owner:1", 10 * SECOND)).await.unwrap();
    assert_eq!(held, [Renewed::Held, Renewed::Unknown, Renewed::Held]);
    session.abort_transaction().await.unwrap();
    assert_eq!(renewed(&store, &keys, "owner:1").await, [Renewed::Held; 3]);
}

/// Whenever the caller leaves, its transaction ends at once, and not when the server ends it.
#[tokio::test]
async fn a_caller_that_leaves_at_any_time_leaves_nothing() {
    let prefix = new_prefix();
    let (store, other) = (store(&SERVER.url(), &prefix), store(&SERVER.url(), &prefix));
    let start = tokio::time::Instant::now();
    assert!(took(&store, &["a", "b"], "owner:0").await);
    let took_about = start.elapsed();
    assert!(store.release(release(&["a", "b"], "owner:0", SLACK)).await.unwrap().held[1]);
    let mut cancelled = 0;
    for step in 0..40 {
        let (owner, keys) = (format!("owner:{step}"), ["a", "b"]);
        let wish = request(&keys, &owner, 60 * SECOND, SLACK);
        let time = took_about * step / 30;
        cancelled += usize::from(tokio::time::timeout(time, store.acquire(Arc::clone(&wish))).await.is_err());
        store.withdraw(wish).await.unwrap();
        assert!(took(&other, &keys, "other:1").await, "{time:?}");
        assert!(other.release(release(&keys, "other:1", SLACK)).await.unwrap().held[1]);
    }
    assert!(cancelled > 0);
}
