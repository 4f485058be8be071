//! `cargo xtask servers` as a user runs it.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use lock_tests::redis::{Connection, Reply, StartError};
use lock_tests::{Helper, RedisServer, eventually_blocking};

const SOON: Duration = Duration::from_secs(60);

/// Reads the line for a user's shell, and returns its URL.
fn url_of(xtask: &mut Helper) -> String {
    let line = xtask.line(SOON);
    let url = line.strip_prefix("export LOCK_URL=").unwrap_or_else(|| panic!("{line:?}"));
    url.trim_matches('\'').to_owned()
}

/// Returns every address in a URL.
fn addresses(url: &str) -> Vec<SocketAddr> {
    let hosts = url.split(['/', ',', '|']).filter(|part| part.starts_with("127.0.0.1:"));
    hosts.map(|host| host.parse().unwrap()).collect()
}

fn ask(addr: SocketAddr, command: &[&str]) -> String {
    match Connection::open(addr, SOON).unwrap().command(command).unwrap() {
        Reply::Error(text) => panic!("{command:?}: {text}"),
        reply => reply.to_string(),
    }
}

/// Returns the id of the process behind an address.
fn process_of(addr: SocketAddr) -> String {
    let info = ask(addr, &["INFO", "server"]);
    info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap().trim().to_owned()
}

/// Returns `false`, and prints a line on stderr, if there is no `redis-server`.
#[track_caller]
fn there_is_a_server() -> bool {
    if let Err(StartError::Missing) = RedisServer::try_start_with(&[]) {
        let ci = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!ci, "there is no redis-server");
        // Not with a macro, whose text is hidden when a test passes.
        let _ = writeln!(std::io::stderr(), "skipped: there is no redis-server");
        return false;
    }
    true
}

fn start(args: &[&str]) -> Helper {
    Helper::spawn(env!("CARGO_BIN_EXE_xtask"), [&["servers"], args].concat())
}

/// Starts the servers, checks that they answer at the addresses of the URL, ends them by Ctrl-C,
/// and checks that they are gone.
#[track_caller]
fn run(args: &[&str], scheme: &str, count: usize) {
    if !there_is_a_server() {
        return;
    }
    let mut xtask = start(args);
    let url = url_of(&mut xtask);
    assert!(url.starts_with(scheme), "{url}");
    let mut all = addresses(&url);
    assert_eq!(all.len(), count, "{url}");
    if args == ["sentinel"] {
        let primary = ask(all[0], &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"]);
        let port = primary.lines().last().unwrap().parse().unwrap();
        all.push(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    let processes: Vec<String> = all.iter().map(|addr| process_of(*addr)).collect();
    assert!(all.iter().all(|addr| ask(*addr, &["PING"]) == "PONG"));

    xtask.process().interrupt();
    assert!(xtask.process().wait(SOON).success());
    for (addr, process) in all.into_iter().zip(processes) {
        let gone = || Connection::open(addr, SOON).is_err() && !Path::new("/proc").join(&process).exists();
        eventually_blocking(gone, SOON);
    }
}

#[test]
fn one_server_runs_until_ctrl_c() {
    run(&[], "redis://", 1);
    run(&["single"], "redis://", 1);
}

#[test]
fn a_primary_with_replicas_and_sentinels_runs_until_ctrl_c() {
    run(&["sentinel"], "redis+sentinel://", 3);
}

#[test]
fn a_cluster_runs_until_ctrl_c() {
    run(&["cluster"], "redis+cluster://", 6);
}

#[test]
fn a_quorum_runs_until_ctrl_c() {
    run(&["quorum"], "quorum:redis://", 3);
}

#[test]
fn a_server_that_ends_by_itself_is_a_failure_and_the_others_go_on() {
    if !there_is_a_server() {
        return;
    }
    let end = |addr: SocketAddr| Connection::open(addr, SOON).unwrap().command(&["SHUTDOWN", "NOSAVE"]);
    let mut single = start(&[]);
    let _ = end(addresses(&url_of(&mut single))[0]);
    assert_eq!(single.process().wait(SOON).code(), Some(1));

    let mut quorum = start(&["quorum"]);
    let all = addresses(&url_of(&mut quorum));
    let _ = end(all[0]);
    eventually_blocking(|| Connection::open(all[0], SOON).is_err(), SOON);
    // Time in which it would end.
    std::thread::sleep(Duration::from_millis(300));
    assert!(all[1..].iter().all(|addr| ask(*addr, &["PING"]) == "PONG"));
    quorum.process().interrupt();
    assert_eq!(quorum.process().wait(SOON).code(), Some(1));
}
