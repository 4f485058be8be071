//! Effects of the faults, as seen from both sides.

use std::io::{self, ErrorKind};
use std::time::Instant;

use super::request::request;
use super::*;
use crate::RedisServer;
use crate::eventually_blocking;
use crate::redis::{Connection, Reply};

const LONG: Duration = Duration::from_secs(20);
/// How long a test waits for an answer that must not come.
const SHORT: Duration = Duration::from_millis(300);

/// Returns a proxy on a separate runtime, so that the test may block.
fn proxied() -> (tokio::runtime::Runtime, RedisServer, Proxy) {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let proxy = runtime.block_on(Proxy::start(server.addr()));
    (runtime, server, proxy)
}

fn outcome(reply: &io::Result<Reply>) -> &'static str {
    match reply {
        Ok(_) => "answer",
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "silence",
            ErrorKind::UnexpectedEof => "end",
            ErrorKind::ConnectionReset => "reset",
            _ => panic!("{error}"),
        },
    }
}

#[test]
fn each_fault_is_seen_by_the_client_and_hits_before_or_after_the_server() {
    let (_runtime, server, proxy) = proxied();
    for (fault, seen) in [
        (Fault::BlackHole, "silence"),
        (Fault::Close, "end"),
        (Fault::HalfClose, "end"),
        (Fault::Reset, "reset"),
    ] {
        for (way, carried_out) in [(Way::ToServer, ""), (Way::ToClient, "1")] {
            server.cli(&["FLUSHALL"]);
            let mut connection = Connection::open(proxy.addr(), LONG).unwrap();
            connection.command(&["GET", "warm-up"]).unwrap();
            if fault == Fault::BlackHole {
                connection = Connection::open(proxy.addr(), SHORT).unwrap();
            }
            let injection = proxy.next(1, Line::Commands, way, fault);
            let reply = connection.command(&["INCR", "n"]);
            assert_eq!(outcome(&reply), seen, "{fault:?} {way:?}");
            eventually_blocking(|| injection.hits() == 1, LONG);
            assert_eq!(server.cli(&["GET", "n"]), carried_out, "{fault:?} {way:?}");
            // Only the first connection was hit.
            let mut next = Connection::open(proxy.addr(), LONG).unwrap();
            assert_eq!(next.command(&["INCR", "other"]).unwrap(), Reply::Number(1));
        }
    }
}

#[test]
fn the_server_sees_ends_and_resets_and_no_black_holes() {
    let (_runtime, server, proxy) = proxied();
    let clients = || server.cli(&["CLIENT", "LIST"]).lines().count();
    assert_eq!(clients(), 1, "the one that asks");
    for (fault, left) in [(Fault::Close, 1), (Fault::Reset, 1), (Fault::BlackHole, 2)] {
        let mut connection = Connection::open(proxy.addr(), SHORT).unwrap();
        let _injection = proxy.next(1, Line::Commands, Way::ToServer, fault);
        assert!(connection.command(&["INCR", "n"]).is_err());
        eventually_blocking(|| clients() == left, LONG);
        drop(connection);
        assert_eq!(clients(), left, "{fault:?}");
    }
}

#[test]
fn the_server_hears_of_the_dead_when_they_are_buried_and_keeps_the_living() {
    let (_runtime, server, proxy) = proxied();
    let clients = || server.cli(&["CLIENT", "LIST"]).lines().count();
    let hit = || {
        let mut connection = Connection::open(proxy.addr(), SHORT).unwrap();
        let _injection = proxy.next(1, Line::Commands, Way::ToServer, Fault::BlackHole);
        assert!(connection.command(&["INCR", "n"]).is_err());
        connection
    };
    let (living, dead) = (hit(), hit());
    assert_eq!(clients(), 3, "and the one that asks");
    drop(dead);
    eventually_blocking(
        || {
            proxy.bury_dead();
            clients() == 2
        },
        LONG,
    );
    proxy.bury_dead();
    assert_eq!(clients(), 2, "its client still has it");
    drop(living);
}

#[test]
fn a_half_closed_connection_still_sends() {
    let (_runtime, server, proxy) = proxied();
    let mut connection = Connection::open(proxy.addr(), LONG).unwrap();
    let injection = proxy.next(1, Line::Commands, Way::ToClient, Fault::HalfClose);
    assert_eq!(outcome(&connection.command(&["INCR", "n"])), "end");
    assert_eq!(outcome(&connection.command(&["INCR", "n"])), "end");
    eventually_blocking(|| server.cli(&["GET", "n"]) == "2", LONG);
    assert_eq!(injection.hits(), 1);
}

#[test]
fn a_delay_keeps_the_order_and_is_no_shorter_than_it_says() {
    let (_runtime, _server, proxy) = proxied();
    let mut connection = Connection::open(proxy.addr(), LONG).unwrap();
    for way in [Way::ToServer, Way::ToClient] {
        let injection = proxy.next(2, Line::Commands, way, Fault::Delay(SHORT));
        let start = Instant::now();
        connection.command(&["SET", "n", "1"]).unwrap();
        assert_eq!(connection.command(&["INCR", "n"]).unwrap(), Reply::Number(2));
        assert!(start.elapsed() >= SHORT * 2, "{:?}", start.elapsed());
        connection.command(&["GET", "n"]).unwrap();
        assert_eq!(injection.hits(), 2);
    }
}

#[test]
fn a_delayed_request_arrives_although_its_sender_has_gone() {
    let (_runtime, server, proxy) = proxied();
    let mut connection = Connection::open(proxy.addr(), SHORT / 3).unwrap();
    let injection = proxy.next(1, Line::Commands, Way::ToServer, Fault::Delay(SHORT * 6));
    assert_eq!(outcome(&connection.command(&["INCR", "n"])), "silence");
    drop(connection);
    eventually_blocking(|| injection.hits() == 1 && proxy.delayed() == 0, LONG);
    eventually_blocking(|| server.cli(&["GET", "n"]) == "1", LONG);
}

#[test]
fn lines_are_told_apart_and_counted() {
    let (_runtime, server, proxy) = proxied();
    let mut subscriber = Connection::open(proxy.addr(), LONG).unwrap();
    let mut commands = Connection::open(proxy.addr(), LONG).unwrap();
    let connecting = proxy.next(1, Line::Connecting, Way::ToClient, Fault::Delay(Duration::ZERO));
    commands.command(&["TIME"]).unwrap();
    assert_eq!(connecting.hits(), 1);
    commands.command(&["GET", "n"]).unwrap();
    subscriber.command(&["SUBSCRIBE", "news"]).unwrap();
    assert_eq!(proxy.accepted(), 2);
    eventually_blocking(|| proxy.passed(Line::PubSub, Way::ToClient) == 1, LONG);
    assert_eq!(proxy.passed(Line::Connecting, Way::ToServer), 1);
    assert_eq!(proxy.passed(Line::Commands, Way::ToServer), 1);

    let news = proxy.from_now(Line::PubSub, Way::ToClient, Fault::Reset);
    assert_eq!(commands.command(&["PUBLISH", "news", "x"]).unwrap(), Reply::Number(1));
    assert_eq!(outcome(&subscriber.read()), "reset");
    commands.command(&["GET", "n"]).unwrap();
    assert_eq!(news.hits(), 1);
    eventually_blocking(|| server.cli(&["PUBLISH", "news", "x"]) == "0", LONG);
}

#[test]
fn a_fault_that_is_lifted_hits_nothing_more() {
    let (_runtime, _server, proxy) = proxied();
    let injection = proxy.from_now(Line::Commands, Way::ToServer, Fault::Reset);
    for _ in 0..3 {
        let mut connection = Connection::open(proxy.addr(), LONG).unwrap();
        assert_eq!(outcome(&connection.command(&["GET", "n"])), "reset");
    }
    assert_eq!(injection.hits(), 3);
    injection.lift();
    let mut connection = Connection::open(proxy.addr(), LONG).unwrap();
    connection.command(&["GET", "n"]).unwrap();
    drop(proxy.from_now(Line::Commands, Way::ToServer, Fault::Reset));
    connection.command(&["GET", "n"]).unwrap();
    assert_eq!(injection.hits(), 3);
}

#[test]
fn requests_are_found_however_they_arrive() {
    let bytes = b"*2\r\n$4\r\necho\r\n$4\r\n\r\n\r\n\r\n*1\r\n$4\r\nPING\r\n";
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    assert_eq!(request(bytes), Some((words(&["ECHO", "\r\n\r\n"]), 24)));
    assert_eq!(request(&bytes[24..]), Some((words(&["PING"]), 14)));
    for end in 0..24 {
        assert_eq!(request(&bytes[..end]), None, "{end}");
    }
}

#[test]
fn half_of_a_request_is_not_carried_out() {
    let (_runtime, server, proxy) = proxied();
    for (way, carried_out) in [(Way::ToServer, ""), (Way::ToClient, "1")] {
        let mut connection = Connection::open(proxy.addr(), LONG).unwrap();
        connection.command(&["GET", "warm-up"]).unwrap();
        let injection = proxy.next(1, Line::Commands, way, Fault::Torn);
        assert!(connection.command(&["INCR", "n"]).is_err());
        assert_eq!((injection.hits(), server.cli(&["GET", "n"])), (1, carried_out.to_owned()), "{way:?}");
    }
}

#[test]
fn a_refused_request_is_answered_by_the_error_and_the_next_one_is_not() {
    let (_runtime, server, proxy) = proxied();
    let mut connection = Connection::open(proxy.addr(), LONG).unwrap();
    let loading = Fault::Refused("LOADING Redis is loading the dataset in memory");
    let injection = proxy.next(1, Line::Commands, Way::ToServer, loading);
    let Ok(Reply::Error(error)) = connection.command(&["INCR", "n"]) else { panic!("not refused") };
    assert!(error.starts_with("LOADING"), "{error}");
    assert_eq!((injection.hits(), server.cli(&["GET", "n"])), (1, String::new()));
    assert_eq!(connection.command(&["INCR", "n"]).unwrap(), Reply::Number(1));
}

#[test]
fn published_messages_are_lost_or_come_twice_and_the_line_lives() {
    let (_runtime, server, proxy) = proxied();
    let mut subscriber = Connection::open(proxy.addr(), LONG).unwrap();
    subscriber.command(&["SUBSCRIBE", "news"]).unwrap();
    let message =
        |text: &str| Reply::List(["message", "news", text].map(|word| Reply::Text(word.to_owned())).to_vec());
    let injection = proxy.next(1, Line::PubSub, Way::ToClient, Fault::Lost);
    server.cli(&["PUBLISH", "news", "1"]);
    eventually_blocking(|| injection.hits() == 1, LONG);
    let injection = proxy.next(1, Line::PubSub, Way::ToClient, Fault::Twice);
    server.cli(&["PUBLISH", "news", "2"]);
    assert_eq!(subscriber.read().unwrap(), message("2"));
    assert_eq!(subscriber.read().unwrap(), message("2"));
    assert_eq!(injection.hits(), 1);
}

#[test]
fn replicas_follow_through_it_and_fall_behind_in_a_black_hole() {
    let (_runtime, master, proxy) = proxied();
    let port = proxy.addr().port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", &format!("127.0.0.1 {port}")]);
    master.cli(&["SET", "n", "1"]);
    eventually_blocking(|| replica.cli(&["GET", "n"]) == "1", LONG);
    let injection = proxy.from_now(Line::Replication, Way::ToClient, Fault::BlackHole);
    master.cli(&["SET", "n", "2"]);
    eventually_blocking(|| injection.hits() > 0, LONG);
    // A swallowed message is never delivered, whatever the primary has.
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!((master.cli(&["GET", "n"]), replica.cli(&["GET", "n"])), ("2".to_owned(), "1".to_owned()));
}
