//! The program with Curator's recipes, which the other tests trust.

use std::time::Duration;

use lock_tests::callers::Callers;
use lock_tests::{ZooKeeperServer, curator, eventually_blocking};

/// Time in which somebody who gets in by mistake would do so.
const MEANWHILE: Duration = Duration::from_millis(300);

fn start() -> (ZooKeeperServer, Callers) {
    let server = ZooKeeperServer::start();
    let curator = curator::start(&server.connect_string(), Duration::from_secs(10));
    (server, curator)
}

/// The czxid of a grant.
#[track_caller]
fn granted(answer: &str) -> u64 {
    answer.strip_prefix("granted ").and_then(|czxid| czxid.parse().ok()).expect(answer)
}

#[test]
fn a_mutex_belongs_to_a_thread_and_is_handed_over_in_order() {
    let (_server, mut curator) = start();
    let first = granted(&curator.ask("a lock /m"));
    assert_eq!(granted(&curator.ask("a lock /m")), first);
    assert_eq!(curator.ask("a/2 lock /m 0"), "busy");
    assert_eq!(curator.ask("b lock /m 100"), "busy");
    curator.send("b lock /m");
    assert!(curator.is_silent(MEANWHILE));
    assert!(curator.ask("a/2 unlock /m").starts_with("failed java.lang.IllegalMonitorStateException"));
    let names = curator.ask("a participants /m");
    assert_eq!(names.matches("-lock-00").count(), 2, "{names}");
    let entry = names.split(' ').nth(1).unwrap();
    assert_eq!(curator.ask(&format!("a czxid /m/{entry}")), format!("czxid {first}"));
    assert_eq!(curator.ask("a unlock /m"), "released");
    assert!(curator.is_silent(MEANWHILE));
    curator.send("a unlock /m");
    let mut answers = [curator.answer(), curator.answer()];
    answers.sort();
    assert_eq!(answers[1], "released");
    assert!(granted(&answers[0]) > first);
}

#[test]
fn readers_share_writers_do_not_and_a_writer_becomes_a_reader() {
    let (_server, mut curator) = start();
    let writer = granted(&curator.ask("a write /rw"));
    assert_eq!(curator.ask("b read /rw 0"), "busy");
    assert!(granted(&curator.ask("a downgrade /rw")) > writer);
    granted(&curator.ask("b read /rw 0"));
    assert_eq!(curator.ask("c write /rw 0"), "busy");
    assert_eq!(curator.ask("a unread /rw"), "released");
    assert_eq!(curator.ask("b unread /rw"), "released");
    granted(&curator.ask("c write /rw 0"));
    assert_eq!(curator.ask("c unwrite /rw"), "released");
}

#[test]
fn a_semaphore_has_so_many_leases() {
    let (_server, mut curator) = start();
    granted(&curator.ask("a semaphore /s 2"));
    granted(&curator.ask("a semaphore /s 2 5000"));
    assert_eq!(curator.ask("b semaphore /s 2 200"), "busy");
    assert_eq!(curator.ask("a return /s"), "released");
    granted(&curator.ask("b semaphore /s 2 5000"));
}

#[test]
fn counts_are_exact_and_times_are_taken() {
    let (_server, mut curator) = start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("count");
    std::fs::write(&file, "0").unwrap();
    for caller in ["a", "a/2", "b"] {
        curator.send(&format!("{caller} count /c {} 20", file.display()));
    }
    (0..3).for_each(|_| assert_eq!(curator.answer(), "counted"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "60");
    for command in ["a pairs /p 3 300", "a hand-offs /h 3 300", "a grants /g 4 300"] {
        let answer = curator.ask(command);
        let (word, numbers) = answer.split_once(' ').expect(&answer);
        assert_eq!(word, if command.contains("grants") { "granted" } else { "took" });
        assert!(numbers.split(' ').all(|number| number.parse::<u64>().is_ok()), "{answer}");
    }
}

#[test]
fn a_session_that_a_server_ends_loses_its_locks() {
    let (server, mut curator) = start();
    let first = granted(&curator.ask("a lock /m"));
    curator.send("b lock /m");
    assert!(curator.is_silent(MEANWHILE));
    let id = curator::session(&mut curator, "a");
    server.end_session(id);
    assert!(granted(&curator.answer()) > first);
    // Curator connects again, with another session.
    eventually_blocking(|| curator::session(&mut curator, "a") != id, Duration::from_secs(30));
}
