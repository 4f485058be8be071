//! Observes the store's fair queues from outside, again and again, for the checker of turns.
//!
//! Each look is one atomic script, so it needs no clock except the server's. Between two looks a
//! waiter must not become the holder before another one that was ahead of it in the queue. The
//! other one must count as alive for the whole time, and still wait.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::clock::{now_nanos, whole_millis_since};
use crate::history::{Event, Log};
use crate::redis::{Connection, Reply};

/// Prefix of every key in the store.
const PREFIX: &str = "lock:";

/// Minimum shift of a hold's end, in nanoseconds, that counts as a renewal.
const RENEWED: u64 = 100_000_000;

/// Returns the holder, its remaining time, then each waiter and how long it counts as alive; times
/// in milliseconds.
const LOOK: &str = "
local time, lock = redis.call('TIME'), KEYS[1]
local now = math.floor(time[1] * 1000 + time[2] / 1000)
local reply = {redis.call('HKEYS', lock)[1] or '', redis.call('PTTL', lock)}
for _, id in ipairs(redis.call('LRANGE', 'redisson_lock_queue:{' .. lock .. '}', 0, -1)) do
  local record = redis.call('HGET', 'lock_fair_alive:{' .. lock .. '}', id)
  reply[#reply + 1] = id
  reply[#reply + 1] = tonumber(record and string.match(record, '^%d+ (%d+) ') or now) - now
end
return reply";

/// Maximum time between two looks that are noted, if there are looks. Less than a lease.
const RHYTHM: Duration = Duration::from_millis(100);

/// Turns the `reply` to a look at `key` into an event. Times count from `now`, when the look began,
/// so they are never too late; they may be too early by what it `took`. A waiter that counts as
/// dead keeps its place until another call removes it. If it asks again before that, it goes on
/// waiting in the same place.
fn look(key: &str, now: u64, took: Duration, reply: Reply) -> Option<Event> {
    let Reply::List(parts) = reply else { return None };
    let mut parts = parts.into_iter();
    let (Some(Reply::Text(holder)), Some(Reply::Number(left))) = (parts.next(), parts.next()) else {
        return None;
    };
    let until = |millis: i64| now.saturating_add_signed(millis.saturating_mul(1_000_000));
    let mut queue = Vec::new();
    while let (Some(Reply::Text(id)), Some(Reply::Number(left))) = (parts.next(), parts.next()) {
        queue.push((id, until(left)));
    }
    let holders = if holder.is_empty() { Vec::new() } else { vec![holder] };
    let expires = if left < 0 { 0 } else { until(left) };
    Some(Event::Seen { key: key.to_owned(), took, holders, expires, queue })
}

/// Holders, waiters, the end of the hold, and when that was noted.
type Noted = (Vec<String>, Vec<String>, u64, Instant);

/// A thread that looks at the queues of `keys` until it is ended.
#[derive(Debug)]
pub(super) struct Watcher {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watcher {
    pub(super) fn start(addr: SocketAddr, keys: Vec<String>, log: Log) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let ended = Arc::clone(&ended);
            move || watch(addr, &keys, &ended, &log)
        });
        Self { ended, thread }
    }

    pub(super) fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Err(panic) = self.thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

fn watch(addr: SocketAddr, keys: &[String], ended: &AtomicBool, log: &Log) {
    // A look without news is noted only from time to time.
    let mut before: Vec<Option<Noted>> = vec![None; keys.len()];
    let mut connection = None;
    while !ended.load(Ordering::Relaxed) {
        for (key, before) in keys.iter().zip(&mut before) {
            // Faults cut this connection too.
            let connected =
                connection.take().or_else(|| Connection::open(addr, Duration::from_secs(20)).ok());
            let Some(mut connected) = connected else { break };
            let began = now_nanos();
            let Ok(reply) = connected.command(&["EVAL", LOOK, "1", key]) else { break };
            connection = Some(connected);
            let took = whole_millis_since(began);
            let name = key.strip_prefix(PREFIX).unwrap_or(key);
            let Some(seen) = look(name, began, took, reply) else { continue };
            let Event::Seen { holders, queue, expires, .. } = &seen else { continue };
            let waiters: Vec<String> = queue.iter().map(|(id, _)| id.clone()).collect();
            let same = before.as_ref().is_some_and(|(held, waited, until, noted)| {
                held == holders
                    && *waited == waiters
                    && expires.abs_diff(*until) < RENEWED
                    && noted.elapsed() < RHYTHM
            });
            if !same {
                let now = (holders.clone(), waiters, *expires, Instant::now());
                log.say(&seen);
                *before = Some(now);
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_has_the_holder_and_all_places() {
        let text = |text: &str| Reply::Text(text.to_owned());
        let reply =
            vec![text("x"), Reply::Number(20), text("a"), Reply::Number(5), text("b"), Reply::Number(-3)];
        let seen = look("k", 10_000_000, Duration::ZERO, Reply::List(reply)).unwrap();
        let Event::Seen { holders, expires, queue, .. } = seen else { panic!("{seen:?}") };
        assert_eq!((holders, expires), (vec!["x".to_owned()], 30_000_000));
        assert_eq!(queue, [("a".to_owned(), 15_000_000), ("b".to_owned(), 7_000_000)]);
        let free =
            look("k", 1_000_000, Duration::ZERO, Reply::List(vec![text(""), Reply::Number(-2)])).unwrap();
        assert!(matches!(free, Event::Seen { holders, expires: 0, .. } if holders.is_empty()));
    }
}
