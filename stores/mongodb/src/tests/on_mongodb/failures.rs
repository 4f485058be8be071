//! Errors of the server, each of which says whether something was done.

use lock_core::store::{StoreError, StoreErrorKind, Withdrawn};

use super::*;

/// The answer to a step that met an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Success: nothing was done, and the step was made again.
    Done,
    /// It is unknown whether the step was made.
    Unknown,
    /// This error: nothing was done.
    Fails(StoreErrorKind),
}

use Outcome::{Done, Fails, Unknown};

/// Opens a store that soon looks for the server again when it has failed: a server that only says
/// that it is no primary remains one.
fn open_at(server: &MongoDbServer) -> Arc<MongoStore> {
    store(&format!("{}&heartbeatFrequencyMS=500", server.url()), "")
}

/// Makes this many of the next commands of these names fail.
#[track_caller]
fn fail(server: &MongoDbServer, commands: &[&str], times: i32, how: Document) {
    let mut data = doc! { "failCommands": commands.to_vec() };
    data.extend(how);
    let mode = doc! { "times": times };
    server.command(doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data });
}

#[track_caller]
fn work(server: &MongoDbServer) {
    server.command(doc! { "configureFailPoint": "failCommand", "mode": "off" });
}

#[track_caller]
fn assert_is<T: std::fmt::Debug>(answer: &Result<T, StoreError>, outcome: Outcome, what: &str) {
    match (answer, outcome) {
        (Ok(_), Done) => {}
        (Err(error), Unknown) => {
            assert!(error.outcome_unknown() && error.kind() == StoreErrorKind::Unanswered, "{what}: {error}");
        }
        (Err(error), Fails(kind)) => assert_eq!(error.kind(), kind, "{what}: {error}"),
        _ => panic!("{what}: {answer:?}, not {outcome:?}"),
    }
}

/// Codes of errors, and the outcome of a write and of one of the steps in a transaction.
const CODES: [(i32, &str, Outcome, Outcome); 18] = [
    (112, "WriteConflict", Done, Done),
    (10107, "NotWritablePrimary", Done, Done),
    (13435, "NotPrimaryNoSecondaryOk", Done, Done),
    (10058, "NotPrimaryOrSecondary", Done, Done),
    (189, "PrimarySteppedDown", Unknown, Done),
    (91, "ShutdownInProgress", Unknown, Done),
    (11600, "InterruptedAtShutdown", Unknown, Done),
    (11601, "Interrupted", Unknown, Done),
    (11602, "InterruptedDueToReplStateChange", Unknown, Done),
    (50, "MaxTimeMSExpired", Unknown, Done),
    (262, "ExceededTimeLimit", Unknown, Done),
    (64, "WriteConcernFailed", Unknown, Done),
    (6, "HostUnreachable", Unknown, Done),
    (13, "Unauthorized", Fails(StoreErrorKind::Denied), Fails(StoreErrorKind::Denied)),
    (14031, "OutOfDiskSpace", Fails(StoreErrorKind::Full), Fails(StoreErrorKind::Full)),
    (59, "CommandNotFound", Fails(StoreErrorKind::Unsupported), Fails(StoreErrorKind::Unsupported)),
    (14, "TypeMismatch", Fails(StoreErrorKind::ForeignData), Fails(StoreErrorKind::ForeignData)),
    (8, "UnknownError", Fails(StoreErrorKind::Refused), Fails(StoreErrorKind::Refused)),
];

/// A step that was not made is made again. One that may have been made is withdrawn by the caller.
#[tokio::test]
async fn errors_say_whether_something_was_done() {
    let server = start_with_failures();
    let store = open_at(&server);
    assert!(took(&store, &["a", "b"], "owner:0").await);
    for (number, (code, name, write, several)) in CODES.into_iter().enumerate() {
        let what = format!("{code} {name}");
        let key = format!("k{number}");
        let owner = format!("owner:{number}");
        let how = doc! { "errorCode": code };
        fail(&server, &["findAndModify"], 1, how.clone());
        let wish = request(&[&key], &owner, 60 * SECOND, SLACK);
        let answer = store.acquire(Arc::clone(&wish)).await;
        assert_is(&answer, write, &what);
        // The failpoint fails before the command does anything.
        assert_eq!(is_held(&store, &key).await, write == Done, "{what}");
        assert!(released(&store, &key, &owner).await == (write == Done), "{what}");

        // The step, and the read before it.
        for commands in [&["update"][..], &["find"]] {
            fail(&server, commands, 1, how.clone());
            let keys = [&*key, "z"];
            let answer = store.acquire(request(&keys, &owner, 60 * SECOND, SLACK)).await;
            assert_is(&answer, several, &format!("{what} {commands:?}"));
            assert_eq!(is_held(&store, &key).await, several == Done, "{what}");
            if several == Done {
                assert_eq!(store.release(release(&keys, &owner, SLACK)).await.unwrap().held, [true, true]);
            }
        }

        // A renewal of several costs nobody a lock.
        fail(&server, &["update"], 1, how.clone());
        let renewed = store.renew(renewal(&["a", "b"], "owner:0", SLACK)).await;
        match write {
            Fails(_) => assert_is(&renewed, write, &what),
            // One that was not made, or may have been, is looked at, and made again.
            Done => assert!(!renewed.unwrap().contains(&Renewed::Gone), "{what}"),
            Unknown => assert_eq!(renewed.unwrap(), [Renewed::Held, Renewed::Held], "{what}"),
        }
        let renewed = store.renew(renewal(&["a", "b"], "owner:0", SLACK)).await.unwrap();
        assert_eq!(renewed, [Renewed::Held, Renewed::Held], "{what}");
        work(&server);
    }
}

/// A write that only a deposed primary has may be undone.
#[tokio::test]
async fn a_step_that_no_majority_has_confirmed_is_unknown() {
    let server = start_with_failures();
    let store = open_at(&server);
    assert!(took(&store, &["a", "b"], "owner:0").await);
    for (code, name) in
        [(64, "WriteConcernFailed"), (100, "UnsatisfiableWriteConcern"), (91, "ShutdownInProgress")]
    {
        let how = doc! { "writeConcernError": { "code": code, "codeName": name, "errmsg": name } };
        fail(&server, &["findAndModify"], 1, how.clone());
        let wish = request(&["k"], "owner:1", 60 * SECOND, SLACK);
        let answer = store.acquire(Arc::clone(&wish)).await;
        assert_is(&answer, Unknown, name);
        // The write is done, and may be undone.
        let deadline = tokio::time::Instant::now() + SLACK;
        while !is_held(&store, "k").await {
            assert!(tokio::time::Instant::now() < deadline, "{name}");
        }
        store.withdraw(wish).await.unwrap();
        assert!(!is_held(&store, "k").await);

        fail(&server, &["update"], 1, how.clone());
        // It is looked at.
        assert_eq!(renewed(&store, &["a", "b"], "owner:0").await, [Renewed::Held, Renewed::Held]);

        fail(&server, &["commitTransaction"], 2, how.clone());
        let wish = request(&["k", "l"], "owner:1", 60 * SECOND, SLACK);
        assert_is(&store.acquire(Arc::clone(&wish)).await, Unknown, name);
        work(&server);
        store.withdraw(wish).await.unwrap();
        assert!(!is_held(&store, "k").await && !is_held(&store, "l").await);
        // A step that finds nothing to do waits for a majority, too.
        fail(&server, &["findAndModify"], 1, how);
        assert_is(&store.release(release(&["nothing"], "owner:1", SLACK)).await, Unknown, name);
        work(&server);
        assert!(!released(&store, "nothing", "owner:1").await);
        assert_eq!(renewed(&store, &["a", "b"], "owner:0").await, [Renewed::Held, Renewed::Held]);
    }
}

/// The outcome of a commit is known only if the server says it. The driver sends it twice.
#[tokio::test]
async fn a_commit_without_a_clear_answer_is_unknown() {
    let server = start_with_failures();
    let store = open_at(&server);
    let unclear = [
        (50, "MaxTimeMSExpired"),
        (64, "WriteConcernFailed"),
        (91, "ShutdownInProgress"),
        (189, "PrimarySteppedDown"),
        (262, "ExceededTimeLimit"),
        (10107, "NotWritablePrimary"),
        (11602, "InterruptedDueToReplStateChange"),
        // Without the label that says so, it may be one that another primary has committed.
        (251, "NoSuchTransaction"),
    ];
    for (code, name) in unclear {
        let how = doc! { "errorCode": code, "errorLabels": [] };
        fail(&server, &["commitTransaction"], 2, how);
        let wish = request(&["a", "b"], "owner:1", 60 * SECOND, SLACK);
        assert_is(&store.acquire(Arc::clone(&wish)).await, Unknown, name);
        work(&server);
        // The open transaction ends by itself, or because its session was dropped.
        store.withdraw(wish).await.unwrap();
        assert!(took(&store, &["a", "b"], "owner:2").await, "{name}");
        assert_eq!(store.release(release(&["a", "b"], "owner:2", SLACK)).await.unwrap().held, [true, true]);
    }
    // It was not made, and is made again.
    for label in ["TransientTransactionError"] {
        for (code, command) in [(251, "commitTransaction"), (112, "commitTransaction"), (251, "update")] {
            fail(&server, &[command], 1, doc! { "errorCode": code, "errorLabels": [label] });
            assert!(took(&store, &["a", "b"], "owner:1").await, "{code} {command}");
            assert_eq!(
                store.release(release(&["a", "b"], "owner:1", SLACK)).await.unwrap().held,
                [true, true]
            );
        }
    }
}

/// A server that takes its time is left in time, and nothing is left of the request.
#[tokio::test]
async fn a_command_that_is_blocked_is_left_in_time() {
    let server = start_with_failures();
    let (store, other) = (store(&server.url(), ""), store(&server.url(), ""));
    assert!(took(&store, &["warm", "warm2"], "owner:0").await && !granted(&other, "warm", "x").await);
    let block = doc! { "blockConnection": true, "blockTimeMS": 1500 };
    for (commands, keys) in [
        (&["findAndModify"][..], &["a"][..]),
        (&["update"], &["a", "b"]),
        (&["commitTransaction"], &["a", "b"]),
    ] {
        fail(&server, commands, 1, block.clone());
        let wish = request(keys, "owner:1", 60 * SECOND, SECOND / 2);
        let start = std::time::Instant::now();
        let error = store.acquire(Arc::clone(&wish)).await.unwrap_err();
        assert!(error.is_transient(), "{commands:?}: {error}");
        assert!(start.elapsed() >= SECOND / 2 && start.elapsed() < SLACK, "{:?}", start.elapsed());
        let is_sure = commands == ["update"];
        assert_eq!(error.outcome_unknown(), !is_sure, "{commands:?}: {error}");
        // Beside it, others go on.
        assert!(granted(&other, "beside", "owner:2").await && released(&other, "beside", "owner:2").await);
        while store.withdraw(Arc::clone(&wish)).await.unwrap() != Withdrawn::Settled {
            tokio::time::sleep(SECOND / 10).await;
        }
        tokio::time::sleep(2 * SECOND).await;
        for key in keys {
            assert!(!is_held(&other, key).await, "{commands:?} {key}");
        }
    }
}

/// A server that can't be reached is told apart from one that does not answer.
#[tokio::test]
async fn a_server_that_was_killed_is_used_again() {
    let mut server = start_with_failures();
    let store = store(&server.url(), "");
    assert!(granted(&store, "a", "owner:1").await);
    server.kill();
    let error = store.acquire(request(&["b"], "owner:1", SECOND, SECOND)).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    server.restart();
    let mut failures = 0;
    while let Err(error) = store.acquire(request(&["b"], "owner:2", SECOND, 5 * SECOND)).await {
        failures += 1;
        assert!(error.is_transient() && failures < 10, "{error}");
    }
    assert!(!granted(&store, "a", "owner:2").await, "the grant has survived");
    assert!(released(&store, "a", "owner:1").await);
    let nobody = super::super::store("mongodb://127.0.0.1:1/locks", "");
    let error = nobody.acquire(request(&["b"], "owner:1", SECOND, SECOND)).await.unwrap_err();
    assert!(!error.outcome_unknown() && error.is_transient(), "{error}");
}

/// Programs that start together make the collection once.
#[tokio::test]
async fn the_collection_is_made_by_many_at_once() {
    let url = SERVER.url().replace("/locks", "/together");
    let stores: Vec<_> = (0..8).map(|_| store(&url, "")).collect();
    let acquires = stores.iter().enumerate().map(|(number, store)| {
        let keys = [format!("k{number}"), format!("k{}", (number + 1) % 8)];
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        tokio::spawn(store.acquire(request(&keys[..1 + number % 2], "owner:1", SECOND, SLACK)))
    });
    for acquire in acquires.collect::<Vec<_>>() {
        acquire.await.unwrap().unwrap();
    }
}
