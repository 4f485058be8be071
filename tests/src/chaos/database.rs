//! [`Database`]: what a stranger does to a database with locks, and [`Row`]: what it sees there.

use std::io;
use std::time::Duration;

use serde_json::Value;

use super::observe::Observer;
use super::want::stored_keys;
use crate::clock::{now_nanos, whole_millis_since};
use crate::history::{Event, Log, Remains};
use crate::witness::Ping;
use crate::{DatabaseServer, Product, Proxy};

/// The text of a record that the library did not write.
pub(super) const FOREIGN: &str = "mine";

/// Maximum time in microseconds between a look at the rows and a step of the clock.
const SOON: i64 = 100_000;

/// A fault of all processes of a server, or its end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    /// SIGSTOP for all of them.
    Stop,
    /// SIGCONT for all of them.
    Cont,
    /// SIGKILL for all of them.
    Kill,
    /// A new start, with the data.
    Restart,
}

impl Act {
    pub(super) fn on<P: Product>(self, server: &mut DatabaseServer<P>) {
        match self {
            Self::Stop => server.stop(),
            Self::Cont => server.cont(),
            Self::Kill => server.kill(),
            Self::Restart => server.restart(),
        }
    }
}

/// A database with locks, and a connection to it that is independent of the library.
pub(super) trait Database {
    /// Deletes the row of a key that is held.
    fn delete(&self, key: &str) -> io::Result<bool>;

    /// Overwrites the row of a key that is held with foreign text.
    fn overwrite(&self, key: &str) -> io::Result<bool>;

    /// Deletes the rows with foreign text.
    fn delete_foreign(&self) -> io::Result<()>;

    /// Deletes all rows.
    fn flush(&self) -> io::Result<()>;

    /// Locks all rows, in a transaction that stays open. Does nothing if there are no rows.
    fn lock_rows(&self) -> io::Result<()> {
        Ok(())
    }

    /// Locks all rows, if no hold in them is over. Such a hold would count again when the clock is
    /// stepped back, and nobody would release it.
    fn lock_living_rows(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn unlock_rows(&self) -> io::Result<()> {
        Ok(())
    }

    /// Makes the server close all other connections. Returns whether it has a command for that.
    fn cut_clients(&self) -> io::Result<bool> {
        Ok(false)
    }

    /// Returns the rows, and the transactions that are still open.
    fn left(&self) -> io::Result<Vec<(Remains, Option<Duration>, String)>>;

    /// Returns an observer that waits for each answer for this long.
    fn observer(&self, within: Duration) -> Box<dyn Observer>;

    /// Returns an action that asks a server for something harmless, on the way through its proxy.
    fn ping(&self, proxy: &Proxy, within: Duration) -> Ping;
}

/// A row of a lock. Times are microseconds.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) now: i64,
    pub(super) until: i64,
    pub(super) kept_until: i64,
    pub(super) token: i64,
    pub(super) record: String,
}

impl Row {
    /// Notes what is left of the row.
    pub(super) fn left(self, found: &mut Vec<(Remains, Option<Duration>, String)>) {
        let Self { name, now, until, kept_until, token, record } = self;
        let left = |end: i64| Some(Duration::from_micros(u64::try_from(end - now).unwrap_or(0)));
        found.push((Remains::Counter, left(kept_until.max(token)), name.clone()));
        if until > now || record == FOREIGN {
            found.push((Remains::Key, left(until), name));
        }
    }

    /// Whether no hold in the row has ended.
    pub(super) fn has_nothing_over(&self) -> bool {
        let Ok(record) = serde_json::from_str::<Value>(&self.record) else { return false };
        let readers = record["readers"].as_array().into_iter().flatten();
        let mut holds = [&record["held"], &record["writer"]].into_iter().chain(readers);
        holds.all(|hold| hold[1].as_i64().is_none_or(|end| end > self.now + SOON))
    }

    /// Returns the event that the row was seen in a look that began at `at`.
    fn seen(&self, key: &str, at: u64, took: Duration) -> Event {
        let local = |end: u64| {
            let left = end.saturating_sub(u64::try_from(self.now).unwrap_or(0));
            at.saturating_add(left.saturating_mul(1000))
        };
        let entry = |entry: &Value| Some((entry[0].as_str()?.to_owned(), local(entry[1].as_u64()?)));
        let key = key.to_owned();
        let Ok(record) = serde_json::from_str::<Value>(&self.record) else {
            // Foreign text, which does not expire.
            let holders = vec![self.record.clone()];
            return Event::Seen { key, took, holders, expires: u64::MAX, queue: Vec::new() };
        };
        let list = |of: &Value| of.as_array().into_iter().flatten().filter_map(entry).collect::<Vec<_>>();
        let holders = [&record["held"], &record["writer"]].into_iter().filter_map(entry);
        let mut holders: Vec<(String, u64)> = holders.chain(list(&record["readers"])).collect();
        holders.retain(|(_, end)| *end > at);
        let expires = holders.iter().map(|(_, end)| *end).max().unwrap_or(0);
        let holders = holders.into_iter().map(|(owner, _)| owner).collect();
        Event::Seen { key, took, holders, expires, queue: list(&record["queue"]) }
    }
}

/// Notes the state of the keys, by what `look` sees of the rows. The database may be in trouble,
/// and the table may be missing still.
pub(super) fn note_rows(log: &Log, look: impl FnOnce() -> io::Result<Vec<Row>>) {
    let began = now_nanos();
    let Ok(rows) = look() else { return };
    let took = whole_millis_since(began);
    for (key, stored) in stored_keys() {
        log.say(&match rows.iter().find(|row| row.name == stored) {
            Some(row) => row.seen(key, began, took),
            None => {
                let (key, holders, queue) = (key.to_owned(), Vec::new(), Vec::new());
                Event::Seen { key, took, holders, expires: 0, queue }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(record: &str) -> Row {
        let (name, record) = ("lock:k".to_owned(), record.to_owned());
        Row { name, now: 1_000_000, until: 0, kept_until: 0, token: 5, record }
    }

    fn seen(record: &str) -> (Vec<String>, u64, Vec<(String, u64)>) {
        match row(record).seen("k", 7_000_000_000, Duration::ZERO) {
            Event::Seen { key, holders, expires, queue, .. } if key == "k" => (holders, expires, queue),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_row_shows_holders_and_waiters_by_our_clock() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (none, second) = (Vec::new(), 1_000_000_000);
        assert_eq!(seen("{}"), (names(&[]), 0, none.clone()));
        assert_eq!(seen(r#"{"held":["a:1",3000000]}"#), (names(&["a:1"]), 9 * second, none.clone()));
        assert_eq!(seen(r#"{"held":["a:1",1000000]}"#), (names(&[]), 0, none.clone()), "it is over");
        let shared = r#"{"writer":["a:1",2000000],"readers":[["b:1",3000000],["c:1",2000000]]}"#;
        assert_eq!(seen(shared), (names(&["a:1", "b:1", "c:1"]), 9 * second, none.clone()));
        let queue = r#"{"queue":[["a:1",2000000,5,null,true],["b:1",4000000,5,null,true]]}"#;
        let waiters = vec![("a:1".to_owned(), 8 * second), ("b:1".to_owned(), 10 * second)];
        assert_eq!(seen(queue), (names(&[]), 0, waiters));
        assert_eq!(seen("mine"), (names(&["mine"]), u64::MAX, none));
    }

    #[test]
    fn a_hold_that_is_over_or_soon_will_be_is_found() {
        let alive = |end: i64| {
            let kinds = [r#"{"held":["a:1",END]}"#, r#"{"readers":[["b:1",9000000],["a:1",END]]}"#];
            kinds.map(|record| row(&record.replace("END", &end.to_string())).has_nothing_over())
        };
        assert_eq!((alive(1_200_000), alive(1_050_000), alive(900_000)), ([true; 2], [false; 2], [false; 2]));
        assert!(row("{}").has_nothing_over() && !row("mine").has_nothing_over());
    }
}
