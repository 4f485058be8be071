//! `xtask` runs these where MongoDB is installed.

use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::{Offset, ServerClock, eventually_blocking};

/// Returns the number that a server has in the collection `t`.
#[track_caller]
fn number(server: &MongoDbServer) -> i32 {
    let from = doc! { "mode": "primaryPreferred" };
    let found = server.command(doc! { "find": "t", "$db": "locks", "$readPreference": from });
    let batch = found.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).unwrap();
    batch[0].as_document().unwrap().get_i32("n").unwrap()
}

/// Returns a command that writes a number for good.
fn write(n: i32) -> Document {
    let concern = doc! { "w": "majority", "wtimeout": 20_000 };
    doc! { "insert": "t", "documents": [{ "n": n }], "writeConcern": concern, "$db": "locks" }
}

/// Writes a number on whatever member is the primary: on a busy machine, that may change.
#[track_caller]
fn write_on(set: &MongoDbSet, n: i32) {
    let is_written = || set.member(set.primary()).try_command(write(n)).is_ok();
    eventually_blocking(is_written, Duration::from_secs(60));
}

#[track_caller]
fn is_empty(parent: &Path) -> bool {
    parent.read_dir().unwrap().next().is_none()
}

#[test]
fn data_outlives_a_kill_and_nothing_outlives_the_handle() {
    let parent = tempfile::tempdir().unwrap();
    let mut server =
        MongoDbServer::try_start_in(parent.path(), &["setParameter=cursorTimeoutMillis=77"]).unwrap();
    assert_eq!(server.url(), format!("mongodb://{}/locks?replicaSet=rs0", server.addr()));
    server.command(write(42));
    let first = server.pid();
    server.kill();
    assert!(server.ended().is_some());
    server.restart();
    assert!(server.pid() != first && server.ended().is_none());
    assert_eq!(number(&server), 42);
    let said = server.command(doc! { "getParameter": 1, "cursorTimeoutMillis": 1 });
    assert_eq!(said.get_i64("cursorTimeoutMillis").unwrap(), 77);
    // It takes writes again, and says what it refuses.
    server.command(write(43));
    let refused = server.try_command(doc! { "nonsense": 1 }).unwrap_err().to_string();
    assert!(refused.contains("CommandNotFound"), "{refused}");
    // One that is stopped is ended too.
    server.stop();
    let addr = server.addr();
    drop(server);
    assert!(TcpStream::connect(addr).is_err());
    assert!(is_empty(parent.path()));
}

#[test]
fn a_server_alone_is_in_no_set() {
    let server = MongoDbServer::start_alone();
    assert_eq!(server.url(), format!("mongodb://{}/locks", server.addr()));
    let said = server.command(doc! { "hello": 1 });
    assert!(is_primary(&said) && !said.contains_key("setName"), "{said}");
}

#[test]
fn a_set_elects_another_primary_when_its_primary_is_killed_or_stopped() {
    let parent = tempfile::tempdir().unwrap();
    let options = Options::default().within(parent.path()).settings(&["setParameter=cursorTimeoutMillis=78"]);
    let mut set = MongoDbSet::start_with(options);
    write_on(&set, 44);
    let first = set.primary();
    set.kill(first);
    let second = set.primary();
    assert_ne!(first, second);
    assert_eq!(number(set.member(second)), 44);
    set.restart(first);
    set.settle();
    let said = set.command(first, doc! { "getParameter": 1, "cursorTimeoutMillis": 1 });
    assert_eq!(said.get_i64("cursorTimeoutMillis").unwrap(), 78);
    // A stopped one does not know what it has missed.
    set.stop(second);
    assert_ne!(set.primary(), second);
    set.cont(second);
    set.settle();
    let third = set.primary();
    assert_ne!(set.step_down(), third);
    assert!(set.log(third).contains("replSetStepDown"));
    assert_eq!(set.ended(), Vec::<String>::new());
    set.stop(0);
    set.kill(1);
    assert_eq!(set.ended().len(), 1);
    drop(set);
    assert!(is_empty(parent.path()));
}

#[test]
fn a_clock_that_is_stepped_moves_the_time_of_one_member() {
    const AHEAD: Duration = Duration::from_secs(3600);
    let clock = ServerClock::new(Offset::NONE).unwrap();
    let set = MongoDbSet::start_with(Options::default().clocks(std::slice::from_ref(&clock)));
    let time = |at| {
        let said = set.command(at, doc! { "hello": 1 });
        let millis = said.get_datetime("localTime").unwrap().timestamp_millis();
        Duration::from_millis(millis.try_into().unwrap())
    };
    let before = time(0);
    clock.set(Offset::Ahead(AHEAD)).unwrap();
    assert!(time(0) >= before + AHEAD && time(1) < before + AHEAD);
    write_on(&set, 1);
    clock.set(Offset::Behind(AHEAD)).unwrap();
    assert!(time(0) < before);
    write_on(&set, 2);
}
