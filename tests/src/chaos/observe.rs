//! The observer: looks at the keys from outside, and counts the servers' commands.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::want::stored_keys;
use crate::background::Background;
use crate::clock::{now_nanos, whole_millis_since};
use crate::history::{Event, Log};
use crate::redis::{Connection, Reply};

/// Delay between two looks at a key.
const PERIOD: Duration = Duration::from_millis(100);
/// Maximum time for an answer. A slower server is busy with a fault.
pub(super) const PATIENCE: Duration = Duration::from_millis(300);

/// The keys are a lock, its queue, the queue's deadlines, and the waiters' signs of life. Returns
/// the milliseconds left to the lock, its holders, and its waiters with the milliseconds left to
/// each. Writes nothing.
const LOOK: &str = "\
local time, holders, queue = redis.call('TIME'), {}, {}
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'hash' then
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if field ~= 'mode' then holders[#holders + 1] = field end
  end
elseif kind == 'string' then
  holders[1] = redis.call('GET', KEYS[1])
end
if redis.call('TYPE', KEYS[2]).ok == 'list' then
  for _, waiter in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
    local till = tonumber(redis.call('ZSCORE', KEYS[3], waiter) or '0')
    -- One of ours counts as dead before its deadline when it does not say that it lives.
    local by = string.match(redis.call('HGET', KEYS[4], waiter) or '', '^%d+ (%d+) ')
    if by then till = tonumber(by) end
    queue[#queue + 1] = waiter .. '@' .. string.format('%d', math.max(till - now, 0))
  end
end
return {tostring(redis.call('PTTL', KEYS[1])), table.concat(holders, ','), table.concat(queue, ',')}";

/// Looks at the keys of a topology, and counts the commands of its servers.
pub(super) trait Observer: Send {
    /// Notes the state of the keys.
    fn look(&mut self, log: &Log);

    /// Notes the number of commands.
    fn count(&mut self, log: &Log);
}

/// Starts to observe.
pub(super) fn start(log: Log, mut observer: Box<dyn Observer>) -> Background {
    let mut counted = Instant::now();
    let mut background = Background::default();
    background.repeat(PERIOD, move || {
        observer.look(&log);
        if counted.elapsed() >= Duration::from_secs(1) {
            counted = Instant::now();
            observer.count(&log);
        }
    });
    background
}

/// Observes Redis servers. Notes the state of the keys only if their holders can be found on a
/// single server.
pub(super) struct Redis {
    eyes: Vec<Eye>,
    lines: Vec<Line>,
}

impl Redis {
    pub(super) fn new(servers: &[SocketAddr], holders: Holders) -> Self {
        let eyes = stored_keys().map(|(key, stored)| Eye::new(key, &stored));
        let eyes = eyes.filter(|_| holders == Holders::OnOne).collect();
        let lines = servers.iter().map(|addr| Line { addr: *addr, open: None }).collect();
        Self { eyes, lines }
    }
}

impl Observer for Redis {
    fn look(&mut self, log: &Log) {
        for eye in &mut self.eyes {
            eye.look(&mut self.lines, log);
        }
    }

    fn count(&mut self, log: &Log) {
        self.lines.iter_mut().for_each(|line| line.count(log));
    }
}

/// Where a key's holders can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holders {
    /// On the one server that serves the key.
    OnOne,
    /// Only on several servers together.
    OnMost,
}

/// A connection to a server.
struct Line {
    addr: SocketAddr,
    open: Option<Connection>,
}

impl Line {
    fn ask(&mut self, command: &[&str]) -> Option<Reply> {
        if self.open.is_none() {
            self.open = Connection::open(self.addr, PATIENCE).ok();
        }
        let reply = self.open.as_mut()?.command(command);
        if reply.is_err() {
            self.open = None;
        }
        reply.ok()
    }

    /// Whether the server takes writes. A cluster node decides that for each key.
    fn is_primary(&mut self) -> bool {
        matches!(self.ask(&["ROLE"]), Some(Reply::List(words)) if words.first() == Some(&Reply::Text("master".to_owned())))
    }

    fn count(&mut self, log: &Log) {
        let Some(Reply::Text(info)) = self.ask(&["INFO", "stats"]) else { return };
        let total = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        if let Some(total) = total.and_then(|total| total.trim().parse().ok()) {
            log.say(&Event::Commands { server: self.addr.to_string(), total });
        }
    }
}

/// An observer of one key.
struct Eye {
    key: &'static str,
    stored: [String; 4],
    /// The place of the server that served it last.
    at: usize,
}

impl Eye {
    fn new(key: &'static str, stored: &str) -> Self {
        // Redisson's names.
        let beside = |prefix: &str| match stored.contains('{') {
            true => format!("{prefix}:{stored}"),
            false => format!("{prefix}:{{{stored}}}"),
        };
        let stored = [
            stored.to_owned(),
            beside("redisson_lock_queue"),
            beside("redisson_lock_timeout"),
            beside("lock_fair_alive"),
        ];
        Self { key, stored, at: 0 }
    }

    fn look(&mut self, lines: &mut [Line], log: &Log) {
        let [key, queue, timeouts, alive] = &self.stored;
        for _ in 0..lines.len() {
            let line = &mut lines[self.at];
            let began = now_nanos();
            if line.is_primary()
                && let Some(Reply::List(found)) = line.ask(&["EVAL", LOOK, "4", key, queue, timeouts, alive])
            {
                if let Some(event) = self.seen(&found, began) {
                    log.say(&event);
                }
                return;
            }
            self.at = (self.at + 1) % lines.len();
        }
    }

    fn seen(&self, found: &[Reply], began: u64) -> Option<Event> {
        let from_now = |millis: u64| began.saturating_add(millis.saturating_mul(1_000_000));
        let [ttl, holders, queue] = found else { return None };
        let words = |reply: &Reply| -> Vec<String> {
            reply.to_string().split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
        };
        let holders = words(holders);
        let expires = match ttl.to_string().parse::<u64>() {
            _ if holders.is_empty() => 0,
            Ok(millis) => from_now(millis),
            // A foreign key, which does not expire.
            Err(_) => u64::MAX,
        };
        let queue = words(queue).into_iter().filter_map(|place| {
            let (id, millis) = place.rsplit_once('@')?;
            Some((id.to_owned(), from_now(millis.parse().ok()?)))
        });
        let took = whole_millis_since(began);
        Some(Event::Seen { key: self.key.to_owned(), took, holders, expires, queue: queue.collect() })
    }
}
