//! The shim for tests with wrong clocks: it sets a server's wall clock while the server runs.
#![cfg(target_os = "linux")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_tests::redis::Data;
use lock_tests::{Offset, RedisServer, ServerClock, eventually_blocking};

const MINUTE: Duration = Duration::from_secs(60);
/// Maximum delay between two readings, in seconds, on a busy machine.
const SLACK: f64 = 20.0;

/// Returns by how many seconds the server's clock is ahead of this machine's.
fn ahead(server: &RedisServer) -> f64 {
    let time = server.cli(&["TIME"]);
    let (seconds, micros) = time.split_once('\n').expect("two numbers");
    let server: f64 = seconds.parse::<f64>().unwrap() + micros.parse::<f64>().unwrap() / 1e6;
    server - SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

fn assert_ahead(server: &RedisServer, by: f64) {
    let ahead = ahead(server);
    assert!((ahead - by).abs() < SLACK, "{ahead} s ahead, expected {by}");
}

#[test]
fn a_live_servers_clock_is_stepped_both_ways_and_others_keep_theirs() {
    let clock = ServerClock::new(Offset::Ahead(MINUTE)).unwrap();
    let (server, other) = (RedisServer::start_with_clock(&[], &clock), RedisServer::start());
    assert_ahead(&server, 60.0);
    clock.set(Offset::Behind(MINUTE)).unwrap();
    assert_ahead(&server, -60.0);
    clock.set(Offset::NONE).unwrap();
    assert_ahead(&server, 0.0);
    assert_ahead(&other, 0.0);
}

#[test]
fn keys_expire_by_the_stepped_clock() {
    let clock = ServerClock::new(Offset::NONE).unwrap();
    let server = RedisServer::start_with_clock(&[], &clock);
    let ttl = || server.cli(&["PTTL", "a"]).parse::<i64>().unwrap();
    server.cli(&["SET", "a", "1", "PX", "50000"]);
    clock.set(Offset::Behind(MINUTE)).unwrap();
    eventually_blocking(|| ttl() > 50_000, MINUTE);
    clock.set(Offset::Ahead(MINUTE)).unwrap();
    eventually_blocking(|| ttl() == -2, MINUTE);
    // Scripts read the same clock.
    let script = "return redis.call('TIME')[1]";
    let seconds = server.cli(&["EVAL", script, "0"]).parse::<u64>().unwrap();
    let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!(seconds > here + 40, "{seconds}, here {here}");
}

#[test]
fn a_restarted_server_has_the_same_clock() {
    let clock = ServerClock::new(Offset::Behind(MINUTE)).unwrap();
    let mut server = RedisServer::start_with_clock(&[], &clock);
    server.cli(&["SET", "a", "1"]);
    server.restart(Data::Kept);
    assert_eq!(server.cli(&["GET", "a"]), "1");
    assert_ahead(&server, -60.0);
}
