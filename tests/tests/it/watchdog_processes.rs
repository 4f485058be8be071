//! Holders in other processes that are killed or paused.
#![cfg(unix)]

use std::time::{Duration, Instant};

use lock_tests::fenced::FencedRegister;
use lock_tests::{Helper, Layout, RedisServer, eventually_blocking};

/// Time-out for something that needs no time, on a busy two-core machine.
const SLACK: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_secs(1);

fn holder(server: &RedisServer, layout: Layout, options: &[&str]) -> Helper {
    let url = layout.url(&server.url());
    let args = std::iter::once(url.as_str()).chain(options.iter().copied());
    let mut helper = Helper::spawn(env!("CARGO_BIN_EXE_holder"), args);
    assert_eq!(helper.line(SLACK * 2), "ready");
    helper
}

fn token(answer: &str) -> u64 {
    let token = answer.strip_prefix("acquired ").or_else(|| answer.strip_prefix("inside "));
    token.and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("not a grant: {answer:?}"))
}

fn a_killed_holder_frees_the_lock_within_its_lease(layout: Layout) {
    let server = RedisServer::start();
    let mut first = holder(&server, layout, &["lease=1000"]);
    let mut second = holder(&server, layout, &["lease=1000"]);
    let first_token = token(&first.ask("acquire k"));
    assert_eq!(second.ask("start k wait=60000"), "started");
    // The watchdog holds it for more than a lease while the holder lives.
    assert_eq!(second.try_line(LEASE * 2), None);
    assert!(first.ask("state k").starts_with("held"));
    first.kill();
    let killed = Instant::now();
    let second_token = token(&second.line(LEASE + SLACK));
    assert!(killed.elapsed() < LEASE + SLACK);
    assert!(second_token > first_token);
    assert_eq!(second.ask("release k"), "released");
    assert_eq!(server.cli(&["EXISTS", "lock:k"]), "0");
}

fn a_killed_waiter_takes_nothing_with_it(layout: Layout) {
    let server = RedisServer::start();
    let (mut first, mut second, mut third) =
        (holder(&server, layout, &[]), holder(&server, layout, &[]), holder(&server, layout, &[]));
    token(&first.ask("acquire k"));
    assert_eq!(second.ask("start k wait=60000"), "started");
    assert_eq!(third.ask("start k wait=60000"), "started");
    assert_eq!(second.try_line(Duration::from_millis(200)), None);
    second.kill();
    assert_eq!(first.ask("release k"), "released");
    token(&third.line(SLACK));
    assert_eq!(third.ask("release k"), "released");
}

fn a_process_that_ends_without_releasing_frees_the_lock_within_its_lease(layout: Layout) {
    let server = RedisServer::start();
    let mut first = holder(&server, layout, &["lease=1000"]);
    token(&first.ask("acquire k"));
    first.finish(SLACK);
    let mut second = holder(&server, layout, &[]);
    token(&second.ask("acquire k wait=60000"));
}

fn a_stopped_holder_learns_of_its_loss_at_its_first_look(layout: Layout) {
    let server = RedisServer::start();
    let (mut first, mut second) = (holder(&server, layout, &["lease=1000"]), holder(&server, layout, &[]));
    let first_token = token(&first.ask("acquire k"));
    first.stop();
    let second_token = token(&second.ask("acquire k wait=60000"));
    assert!(second_token > first_token);
    first.cont();
    assert_eq!(first.ask("state k"), "lost");
    assert_eq!(first.ask("release k").split_whitespace().next(), Some("failed"));
    assert!(second.ask("state k").starts_with("held"), "the late release touched nothing");
    assert_eq!(second.ask("release k"), "released");
}

fn a_body_stopped_past_its_lease_is_lost_at_its_next_poll_and_its_write_is_refused(layout: Layout) {
    let server = RedisServer::start();
    let (mut first, mut second) = (holder(&server, layout, &["lease=1000"]), holder(&server, layout, &[]));
    let mut register = FencedRegister::open(server.addr(), "account");
    let first_token = token(&first.ask("body k account"));
    first.stop();
    // The lease runs out; the next holder works on the resource.
    let second_token = token(&second.ask("acquire k wait=60000"));
    assert!(second_token > first_token);
    assert!(register.write(second_token, "second"));
    first.cont();
    // The body has not awaited since it was paused: only the token can stop this write.
    assert_eq!(first.ask("go"), "write refused");
    assert_eq!(first.line(SLACK), "outcome lost");
    assert_eq!(register.value(), "second");
    assert!(second.ask("state k").starts_with("held"));
}

fn without_a_pause_the_same_body_writes(layout: Layout) {
    // The counterpart: the test above sees the effect of the pause, not a broken helper.
    let server = RedisServer::start();
    let mut first = holder(&server, layout, &["lease=1000"]);
    let mut register = FencedRegister::open(server.addr(), "account");
    token(&first.ask("body k account"));
    assert_eq!(first.ask("go"), "write accepted");
    assert_eq!(register.value(), "late");
}

fn a_holder_stopped_for_less_than_its_lease_still_holds(layout: Layout) {
    let server = RedisServer::start();
    let (mut first, mut second) = (holder(&server, layout, &["lease=20000"]), holder(&server, layout, &[]));
    token(&first.ask("acquire k"));
    first.stop();
    assert!(second.ask("acquire k wait=500").starts_with("failed"));
    first.cont();
    assert!(first.ask("state k").starts_with("held"));
    assert_eq!(first.ask("release k"), "released");
    eventually_blocking(|| server.cli(&["EXISTS", "lock:k"]) == "0", SLACK);
}

lock_tests::on_every_layout! {
    blocking:
    a_killed_holder_frees_the_lock_within_its_lease,
    a_killed_waiter_takes_nothing_with_it,
    a_process_that_ends_without_releasing_frees_the_lock_within_its_lease,
    a_stopped_holder_learns_of_its_loss_at_its_first_look,
    a_body_stopped_past_its_lease_is_lost_at_its_next_poll_and_its_write_is_refused,
    without_a_pause_the_same_body_writes,
    a_holder_stopped_for_less_than_its_lease_still_holds,
}
