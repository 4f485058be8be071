//! Whether fair locks are granted in turn: the store's queues, looked at again and again from the side.
//!
//! Each look is one atomic script, so it needs no clock but the server's. Between two looks nobody may have become the
//! holder while somebody whose place was before, and who counted as alive for the whole time, still waits.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::redis::{Connection, Reply};

/// Holder, server time (ms), then each waiter and until when it counts as alive (ms).
const LOOK: &str = "
local time, lock = redis.call('TIME'), KEYS[1]
local reply = {redis.call('HKEYS', lock)[1] or '', math.floor(time[1] * 1000 + time[2] / 1000)}
for _, id in ipairs(redis.call('LRANGE', 'redisson_lock_queue:{' .. lock .. '}', 0, -1)) do
  local record = redis.call('HGET', 'lock_fair_alive:{' .. lock .. '}', id)
  reply[#reply + 1] = id
  reply[#reply + 1] = tonumber(record and string.match(record, '^%d+ (%d+) ') or 0)
end
return reply";

#[derive(Debug, Default)]
struct Look {
    holder: String,
    now: i64,
    /// Who waits, and until when they count as alive.
    queue: Vec<(String, i64)>,
}

impl Look {
    fn of(reply: Reply) -> Option<Self> {
        let Reply::List(parts) = reply else { return None };
        let mut parts = parts.into_iter();
        let (Some(Reply::Text(holder)), Some(Reply::Number(now))) = (parts.next(), parts.next()) else {
            return None;
        };
        let mut queue = Vec::new();
        while let (Some(Reply::Text(id)), Some(Reply::Number(by))) = (parts.next(), parts.next()) {
            queue.push((id, by));
        }
        Some(Self { holder, now, queue })
    }

    fn place(&self, id: &str) -> usize {
        self.queue.iter().position(|(waiter, _)| waiter == id).unwrap_or(self.queue.len())
    }
}

/// Who was passed over by the holder that came between the looks; `None` when the holder is the same, or there is none.
fn passed_over(before: &Look, after: &Look) -> Option<Vec<String>> {
    if after.holder.is_empty() || after.holder == before.holder {
        return None;
    }
    let still: HashSet<&str> = after.queue.iter().map(|(id, _)| id.as_str()).collect();
    let earlier = &before.queue[..before.place(&after.holder)];
    let waits = |(id, by): &&(String, i64)| *by > after.now && still.contains(id.as_str());
    Some(earlier.iter().filter(waits).map(|(id, _)| id.clone()).collect())
}

/// Looks at the queues of `keys` until it is ended.
#[derive(Debug)]
pub(super) struct Watcher {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<(usize, Vec<String>)>,
}

impl Watcher {
    pub(super) fn start(addr: SocketAddr, keys: Vec<String>) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let ended = Arc::clone(&ended);
            move || watch(addr, &keys, &ended)
        });
        Self { ended, thread }
    }

    /// How many holders were seen to come in turn, and those that did not.
    pub(super) fn end(self) -> (usize, Vec<String>) {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| (0, vec!["the watcher of the queues failed".to_owned()]))
    }
}

fn watch(addr: SocketAddr, keys: &[String], ended: &AtomicBool) -> (usize, Vec<String>) {
    let (mut turns, mut found) = (0, Vec::new());
    let mut looks: Vec<Look> = keys.iter().map(|_| Look::default()).collect();
    let mut connection = None;
    while !ended.load(Ordering::Relaxed) {
        for (key, before) in keys.iter().zip(&mut looks) {
            // Cut now and then, as everybody is.
            let connected =
                connection.take().or_else(|| Connection::open(addr, Duration::from_secs(20)).ok());
            let Some(mut connected) = connected else { break };
            let Ok(reply) = connected.command(&["EVAL", LOOK, "1", key]) else { break };
            connection = Some(connected);
            let Some(after) = Look::of(reply) else { continue };
            if let Some(passed) = passed_over(before, &after) {
                turns += usize::from(passed.is_empty() && !after.queue.is_empty());
                let line = |id: &String| format!("{key}: {} came before {id}, who waited", after.holder);
                found.extend(passed.iter().map(line));
            }
            *before = after;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    (turns, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(holder: &str, now: i64, queue: &[(&str, i64)]) -> Look {
        let queue = queue.iter().map(|&(id, by)| (id.to_owned(), by)).collect();
        Look { holder: holder.to_owned(), now, queue }
    }

    #[test]
    fn who_comes_before_a_living_waiter_is_found() {
        let before = look("x", 10, &[("a", 100), ("b", 100), ("c", 100)]);
        let passed = |after: Look| passed_over(&before, &after).map(|passed| passed.len());
        assert_eq!(passed(look("x", 20, &[("a", 100), ("b", 100)])), None, "the same holder");
        assert_eq!(passed(look("", 20, &[("a", 100), ("b", 100)])), None, "free");
        assert_eq!(passed(look("a", 20, &[("b", 100), ("c", 100)])), Some(0), "in turn");
        assert_eq!(passed(look("c", 20, &[])), Some(0), "those before have gone");
        assert_eq!(passed(look("b", 20, &[("a", 100), ("c", 100)])), Some(1), "before the first");
        assert_eq!(passed(look("new", 20, &[("a", 100), ("b", 100), ("c", 100)])), Some(3), "past the queue");
        assert_eq!(passed(look("b", 200, &[("a", 300)])), Some(0), "the first counted as dead meanwhile");
    }
}
