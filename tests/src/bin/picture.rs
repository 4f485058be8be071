//! Draws what a lost lock does, from a run on a redis-server of its own.
//!
//! ```text
//! cargo run -p lock-tests --bin picture -- docs/book/src/lost-lock.svg
//! ```
//!
//! Ann holds a lock and writes. Her connection goes dead, so no renewal arrives. Her body is
//! cancelled at her local deadline, which comes before the server ends her lease, and then Ben has
//! the lock.
#![allow(clippy::print_stdout, reason = "says where the picture is")]

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_runtime::{LockError, LockManager};
use lock_tests::RedisServer;
use lock_tests::proxy::{Fault, Line, Proxy, Way};
use tokio::time::{Instant, sleep, sleep_until};

const LEASE: Duration = Duration::from_secs(2);
const BETWEEN_WRITES: Duration = Duration::from_millis(100);
const CUT: Duration = Duration::from_millis(2500);
/// How long Ben writes.
const BEN: Duration = Duration::from_millis(1200);

/// One write under a lock: when, with which token, and for how long the lock was certain then.
#[derive(Clone, Copy, Debug)]
struct Written {
    at: Duration,
    token: u64,
    left: Duration,
}

/// The writes of one holder.
type Journal = Arc<Mutex<Vec<Written>>>;

/// Writes until the lock is lost or `time` is over.
async fn hold(
    locks: LockManager,
    start: Instant,
    time: Duration,
    journal: Journal,
) -> Result<Duration, LockError> {
    let body = async |held: lock_runtime::HeldLock| {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let (token, left) = (held.fencing_token().get(), held.remaining());
            let written = Written { at: start.elapsed(), token, left };
            journal.lock().unwrap_or_else(PoisonError::into_inner).push(written);
            sleep(BETWEEN_WRITES).await;
        }
    };
    let held = locks.mutex("account:7").wait_forever().with(body).await;
    held.map(|()| start.elapsed())
}

#[tokio::main]
async fn main() {
    let path = std::env::args().nth(1).expect("the name of the picture's file");
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr()).await;
    let builder = || LockManager::builder().lease(LEASE).call_timeout(Duration::from_millis(200));
    let ann = builder().connect(&proxy.url()).await.expect("Ann's manager");
    let ben = builder().connect(&server.url()).await.expect("Ben's manager");

    let start = Instant::now();
    let [hers, his] = [Journal::default(), Journal::default()];
    let long = Duration::from_secs(60);
    let holds = tokio::spawn(hold(ann, start, long, Arc::clone(&hers)));
    sleep(Duration::from_millis(400)).await;
    let waits = tokio::spawn(hold(ben, start, BEN, Arc::clone(&his)));
    sleep_until(start + CUT).await;
    let cuts =
        [Line::Connecting, Line::Commands].map(|line| proxy.from_now(line, Way::ToServer, Fault::BlackHole));
    let lost = holds.await.expect("no panic").expect_err("Ann's lock is lost");
    let cancelled = start.elapsed();
    assert!(matches!(lost, LockError::Lost { .. }), "{lost}");
    let ended = waits.await.expect("no panic").expect("Ben gets the lock");
    drop(cuts);

    let journals = [hers, his].map(|journal| std::mem::take(&mut *journal.lock().expect("no panic")));
    let last = journals[0].last().expect("Ann writes");
    let first = journals[1].first().expect("Ben writes");
    assert!(last.at < first.at && last.token < first.token, "{last:?}, {first:?}");
    std::fs::write(&path, draw(&journals, cancelled, ended)).expect("the picture is written");
    println!("{path}: Ann's body was cancelled after {cancelled:?}, {lost}");
}

/// Where a time is, in pixels.
fn x(at: Duration) -> f64 {
    110.0 + at.as_secs_f64() * 95.0
}

fn draw([hers, his]: &[Vec<Written>; 2], cancelled: Duration, ended: Duration) -> String {
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 250\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"760\" height=\"250\" fill=\"#fff\"/>\n",
    );
    let got = his.first().map_or(ended, |first| first.at);
    let text = |svg: &mut String, x: f64, y: u32, anchor: &str, text: &str| {
        let _ = writeln!(svg, "<text x=\"{x:.0}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>");
    };
    let bar = |svg: &mut String, from: Duration, to: Duration, y: u32, colour: &str| {
        let (left, width) = (x(from), x(to) - x(from));
        let shape = format!("x=\"{left:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"34\" rx=\"4\"");
        let _ = writeln!(svg, "<rect {shape} fill=\"{colour}\"/>");
    };
    for (name, writes, y, end) in [("Ann", hers, 60, cancelled), ("Ben", his, 160, ended)] {
        text(&mut svg, 100.0, y + 22, "end", name);
        let from = writes.first().map_or(end, |first| first.at);
        if name == "Ben" {
            bar(&mut svg, Duration::from_millis(400), from, y, "#eee");
            text(&mut svg, x(Duration::from_millis(1500)), y + 22, "middle", "waits");
        }
        bar(&mut svg, from, end, y, if name == "Ann" { "#9ec5fe" } else { "#a3cfbb" });
        for written in writes {
            let at = x(written.at);
            let _ = writeln!(
                svg,
                "<line x1=\"{at:.1}\" y1=\"{}\" x2=\"{at:.1}\" y2=\"{}\" stroke=\"#333\"/>",
                y + 8,
                y + 26
            );
        }
        let with = if name == "Ann" { "a token" } else { "a larger token" };
        text(&mut svg, x(from) + 4.0, y - 6, "start", &format!("writes with {with}"));
        // What was left of the lease: it falls, and each renewal lifts it.
        let points = writes.iter().map(|written| {
            let height = written.left.as_secs_f64() / LEASE.as_secs_f64() * 22.0;
            format!("{:.1},{:.1}", x(written.at), f64::from(y) + 60.0 - height)
        });
        let last = (name == "Ann").then(|| format!("{:.1},{:.1}", x(end), f64::from(y) + 60.0));
        let points: Vec<_> = points.chain(last).collect();
        let _ = writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"#d63384\"/>", points.join(" "));
    }
    text(&mut svg, 100.0, 116, "end", "left of lease");
    text(&mut svg, 20.0, 236, "start", "time →, a lease of 2 s");
    for (at, label, y, anchor) in [
        (CUT, "Ann's connection is dead", 20, "middle"),
        (cancelled, "her lease is over by her clock: her body is cancelled", 38, "middle"),
        (got, "over by the server's clock too: Ben's turn", 236, "middle"),
    ] {
        let line = format!("x1=\"{0:.1}\" y1=\"44\" x2=\"{0:.1}\" y2=\"222\"", x(at));
        let _ = writeln!(svg, "<line {line} stroke=\"#888\" stroke-dasharray=\"4 3\"/>");
        text(&mut svg, x(at), y, anchor, label);
    }
    svg + "</svg>\n"
}
